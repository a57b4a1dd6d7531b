"""What attribute inference makes of a model, beside what needs no model or no training."""

import dataclasses
from typing import Any

import numpy as np

from sottovoce.attacks.attributes import (
    AttributeClassifier,
    Embeddings,
    Labels,
    accuracy,
    attribute_of,
    embeddings_of,
    f1,
    infer,
    majority,
)
from sottovoce.domains import Vector
from sottovoce.experiments.intervals import mean_and_half_width
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.task import Task
from sottovoce.randomness import SeededRandomness

MODEL, UNTRAINED, PIXELS, MAJORITY = "the model", "untrained model", "raw rows", "majority"


def attribute_scores(
    task: Task,
    model: Vector,
    data: Dataset,
    attribute: str,
    attack: AttributeClassifier,
    *,
    seed: int,
) -> dict[str, dict[str, Any]]:
    """Accuracy and F1 on the training rows of each way of guessing, learned on the test rows.

    Each but the last is the same network: on the trained model's embeddings, on those of the model
    that training started from, and on the rows themselves. What the first has over the others is
    what the trained model adds.
    """
    truth, known = attribute_of(data, attribute)
    guesses = {
        name: infer(there, known, asked, attack, seed=seed, device=str(task.device))
        for name, (there, asked) in _views(task, model, data).items()
    }
    guesses[MAJORITY] = majority(known, len(truth))
    return {
        name: {
            "accuracy": dataclasses.asdict(accuracy(truth, own)),
            "f1": dataclasses.asdict(f1(truth, own, SeededRandomness(seed).generator(name))),
            "gain_of_the_model": None if name == MODEL else _gain(truth, guesses[MODEL], own),
        }
        for name, own in guesses.items()
    }


def _views(task: Task, model: Vector, data: Dataset) -> dict[str, tuple[Embeddings, Embeddings]]:
    """What the attacker may look at, of other people and of those who are asked about."""
    others = np.asarray(data.test_features, dtype=np.float32)
    own = np.asarray(data.train_features, dtype=np.float32)
    views = {
        name: (embeddings_of(task, weights, others), embeddings_of(task, weights, own))
        for name, weights in ((MODEL, model), (UNTRAINED, task.initial_model()))
    }
    return views | {PIXELS: (others.reshape(len(others), -1), own.reshape(len(own), -1))}


def _gain(truth: Labels, ours: Labels, theirs: Labels) -> dict[str, float]:
    """Accuracy that the model's embeddings have over another guess, in pairs, with its interval."""
    pairs = (truth == ours).astype(float) - (truth == theirs)
    mean, half = mean_and_half_width(pairs.tolist())
    return {"mean": mean, "low": mean - half, "high": mean + half}
