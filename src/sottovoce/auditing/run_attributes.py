"""Infer an attribute of the people who trained a finished run's model."""

from typing import Any

from sottovoce.auditing.attacks.attributes import AttributeClassifier, attribute_of, named_attribute
from sottovoce.auditing.attribute_scores import MAJORITY, MODEL, attribute_scores
from sottovoce.auditing.finished_run import FinishedRun
from sottovoce.core import files
from sottovoce.core.charts.scatter import ScatterChart, Series
from sottovoce.runs.folder import ATTRIBUTES_NAME

RESULT = ATTRIBUTES_NAME


def attack_attributes(
    run: FinishedRun, wanted: str | None, attack: AttributeClassifier, *, seed: int
) -> dict[str, Any]:
    """Attack, compare, and leave the result in the run's folder."""
    attribute = named_attribute(run.data, wanted)
    place = run.place_of(RESULT)
    truth, known = attribute_of(run.data, attribute)
    scores = attribute_scores(run.ground.task, run.model, run.data, attribute, attack, seed=seed)
    ours = scores.pop(MODEL)
    result = {
        "attack": "attributes",
        "attribute": attribute,
        "people": len(truth),
        "known_people": len(known),
        "confidence": 0.95,
        "accuracy": ours["accuracy"],
        "f1": ours["f1"],
        "baselines": scores,
        "beats": {name: one["gain_of_the_model"]["low"] > 0.0 for name, one in scores.items()},
        "setting": "The attacker has the model and knows the attribute of the test people; a "
        "network of two layers learns it from the input of the model's last layer, and is asked "
        "about the training people. F1 is the mean over values. Gains are differences in accuracy "
        "on the same people.",
    }
    files.write_json(place, result, sort_keys=False, mode=files.PRIVATE)
    return result


def chart(result: dict[str, Any]) -> ScatterChart:
    """Accuracy of each way of guessing, with its interval."""
    named = {MODEL: result, **result["baselines"]}
    return ScatterChart(
        title=f"Inferring '{result['attribute']}': accuracy of each guess",
        x_label="guess, in the order of the legend",
        y_label="accuracy",
        frontiers="none",
        series=[
            Series(
                name="majority, no model" if name == MAJORITY else name,
                x=[float(number)],
                y=[one["accuracy"]["mean"]],
                low=[one["accuracy"]["low"]],
                high=[one["accuracy"]["high"]],
            )
            for number, (name, one) in enumerate(named.items(), start=1)
        ],
    )
