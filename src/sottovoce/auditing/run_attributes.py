"""Attribute inference against the people whose records trained a finished run's model.

The attack is compared with guesses that use no model, or a model without training.
"""

import dataclasses
from typing import Any

import numpy as np

from sottovoce.auditing.attacks.attributes import (
    AttributeClassifier,
    Embeddings,
    Labels,
    accuracy,
    attribute_labels,
    choose_attribute,
    compute_embeddings,
    f1,
    infer,
    majority_guesses,
)
from sottovoce.auditing.finished_run import FinishedRun
from sottovoce.core import files
from sottovoce.core.charts.scatter import ScatterChart, Series
from sottovoce.core.domains import Vector
from sottovoce.core.randomness import SeededRandomness
from sottovoce.core.statistics import mean_and_half_width
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.task import Task
from sottovoce.runs.folder import ATTRIBUTES_NAME

MODEL, UNTRAINED, PIXELS, MAJORITY = "the model", "untrained model", "raw rows", "majority"


def attribute_scores(
    task: Task,
    model: Vector,
    data: Dataset,
    attribute: str,
    attack: AttributeClassifier,
    *,
    seed: int,
    baselines: dict[str, Labels] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return accuracy and F1 on the training rows of each way of guessing, learned on test rows.

    The result is by the name of the way; "gain_of_the_model" is the trained model's accuracy minus
    that of the way, with an interval (None for the model itself). The same network guesses from the
    trained model's embeddings, from those of the initial model, and from the rows themselves; the
    last guess is the majority value. What the first has over the others is what the trained model
    adds. `baselines` are the guesses of the others, if they were computed before.
    """
    truth, known = attribute_labels(data, attribute)
    others = baselines or baseline_guesses(task, data, attribute, attack, seed=seed)
    ours = _infer_view(task, embed_rows(task, model, data), known, attack, seed)
    guesses = {MODEL: ours, **others}
    return {
        name: {
            "accuracy": dataclasses.asdict(accuracy(truth, own)),
            "f1": dataclasses.asdict(f1(truth, own, SeededRandomness(seed).generator(name))),
            "gain_of_the_model": None if name == MODEL else _gain(truth, ours, own),
        }
        for name, own in guesses.items()
    }


def baseline_guesses(
    task: Task, data: Dataset, attribute: str, attack: AttributeClassifier, *, seed: int
) -> dict[str, Labels]:
    """Return the guesses that do not use the trained model, by name: one for each training row.

    They use the initial model's embeddings, the rows themselves, or the majority value only. All
    are learned on test rows.
    """
    truth, known = attribute_labels(data, attribute)
    others, own = _rows(data)
    views = {
        UNTRAINED: embed_rows(task, task.initial_model(), data),
        PIXELS: (others.reshape(len(others), -1), own.reshape(len(own), -1)),
    }
    found = {name: _infer_view(task, view, known, attack, seed) for name, view in views.items()}
    return found | {MAJORITY: majority_guesses(known, len(truth))}


View = tuple[Embeddings, Embeddings]  # (test rows, training rows)


def embed_rows(task: Task, model: Vector, data: Dataset) -> View:
    """Return the model's embeddings of the test rows and of the training rows, in this order.

    The embedding of a row is the input of the model's last linear layer.
    """
    others, own = _rows(data)
    return compute_embeddings(task, model, others), compute_embeddings(task, model, own)


def _rows(data: Dataset) -> View:
    return (
        np.asarray(data.test_features, dtype=np.float32),
        np.asarray(data.train_features, dtype=np.float32),
    )


def _infer_view(
    task: Task, view: View, known: Labels, attack: AttributeClassifier, seed: int
) -> Labels:
    others, own = view
    return infer(others, known, own, attack, seed=seed, device=str(task.device))


def _gain(truth: Labels, ours: Labels, theirs: Labels) -> dict[str, float]:
    """Return the trained model's gain in accuracy over another guess, with its paired interval."""
    pairs = (truth == ours).astype(float) - (truth == theirs)
    mean, half = mean_and_half_width(pairs.tolist())
    return {"mean": mean, "low": mean - half, "high": mean + half}


RESULT = ATTRIBUTES_NAME


def attack_attributes(
    run: FinishedRun, wanted: str | None, attack: AttributeClassifier, *, seed: int
) -> dict[str, Any]:
    """Run the attack and the baselines on a run, and write the result into the run's folder.

    `wanted` is the attribute's name; None is the first attribute of the data set. Raise DataError
    if the data set has no attribute or the attribute cannot be learned, UnknownNameError if it does
    not have this one, and OutputError if the result cannot be written.
    """
    attribute = choose_attribute(run.data, wanted)
    place = run.result_path(RESULT)
    truth, known = attribute_labels(run.data, attribute)
    scores = attribute_scores(run.inputs.task, run.model, run.data, attribute, attack, seed=seed)
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
        "setting": "The attacker has the model and knows the attribute of the people in the test "
        "rows. A network of two layers learns it from the input of the model's last layer and "
        "guesses it for the people in the training rows. F1 is the mean over values. Gains are "
        "differences in accuracy on the same people.",
    }
    files.write_json(place, result, sort_keys=False, mode=files.PRIVATE)
    return result


def chart(result: dict[str, Any]) -> ScatterChart:
    """Return a chart of the accuracy of each way of guessing, with its interval."""
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
