"""Infer an attribute of the people who trained a finished run's model.

What attribute inference makes of a model, beside what needs no model or no training.
"""

import dataclasses
from typing import Any

import numpy as np

from sottovoce.auditing.attacks.attributes import (
    AttributeClassifier,
    Embeddings,
    Labels,
    accuracy,
    attribute_of,
    embeddings_of,
    f1,
    infer,
    majority,
    named_attribute,
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
    """Accuracy and F1 on the training rows of each way of guessing, learned on the test rows.

    Each but the last is the same network: on the trained model's embeddings, on those of the model
    that training started from, and on the rows themselves. What the first has over the others is
    what the trained model adds. `baselines` are the others', if they are known already.
    """
    truth, known = attribute_of(data, attribute)
    others = baselines or baseline_guesses(task, data, attribute, attack, seed=seed)
    ours = _inferred(task, embedded(task, model, data), known, attack, seed)
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
    """What is guessed without the trained model."""
    truth, known = attribute_of(data, attribute)
    others, own = _rows(data)
    views = {
        UNTRAINED: embedded(task, task.initial_model(), data),
        PIXELS: (others.reshape(len(others), -1), own.reshape(len(own), -1)),
    }
    found = {name: _inferred(task, view, known, attack, seed) for name, view in views.items()}
    return found | {MAJORITY: majority(known, len(truth))}


View = tuple[Embeddings, Embeddings]  # of other people, and of those who are asked about


def embedded(task: Task, model: Vector, data: Dataset) -> View:
    others, own = _rows(data)
    return embeddings_of(task, model, others), embeddings_of(task, model, own)


def _rows(data: Dataset) -> View:
    return (
        np.asarray(data.test_features, dtype=np.float32),
        np.asarray(data.train_features, dtype=np.float32),
    )


def _inferred(
    task: Task, view: View, known: Labels, attack: AttributeClassifier, seed: int
) -> Labels:
    others, own = view
    return infer(others, known, own, attack, seed=seed, device=str(task.device))


def _gain(truth: Labels, ours: Labels, theirs: Labels) -> dict[str, float]:
    """Accuracy that the model's embeddings have over another guess, in pairs, with its interval."""
    pairs = (truth == ours).astype(float) - (truth == theirs)
    mean, half = mean_and_half_width(pairs.tolist())
    return {"mean": mean, "low": mean - half, "high": mean + half}


RESULT = ATTRIBUTES_NAME


def attack_attributes(
    run: FinishedRun, wanted: str | None, attack: AttributeClassifier, *, seed: int
) -> dict[str, Any]:
    """Attack, compare, and leave the result in the run's folder."""
    attribute = named_attribute(run.data, wanted)
    place = run.place_of(RESULT)
    truth, known = attribute_of(run.data, attribute)
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
