"""Attribute inference: guess an attribute of training records from a model's embeddings.

The attribute is not what the model was trained to predict. The attacker has the model and other
records whose attribute is known. A network with one hidden layer learns on them to predict the
attribute from the embedding, and is then applied to the records that trained the model.

References: Melis, Song, De Cristofaro and Shmatikov 2019; Mahloujifar, Ghosh and Chase 2022.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from sottovoce.core import parameter_rules, statistics
from sottovoce.core.domains import Vector
from sottovoce.core.errors import DataError, UnknownNameError
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.task import Task

_TOGETHER = 1024
_BATCH = 128
_RESAMPLES = 1000

Labels = NDArray[np.int64]
Embeddings = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeClassifier:
    """The training settings of the attacker's network.

    Attributes:
        hidden_units: Width of the hidden layer.
        epochs: Passes over the records whose attribute is known.
        learning_rate: Step size of AdamW.
        weight_decay: Weight decay of AdamW.
    """

    hidden_units: int = 64
    epochs: int = 40
    learning_rate: float = 1e-3
    weight_decay: float = 1e-3

    def __post_init__(self) -> None:
        parameter_rules.integer("hidden_units", self.hidden_units, low=1, high=10**5)
        parameter_rules.integer("epochs", self.epochs, low=1, high=10**5)
        parameter_rules.positive("learning_rate", self.learning_rate)
        parameter_rules.positive("weight_decay", self.weight_decay)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with the bounds of its confidence interval."""

    mean: float
    low: float
    high: float


def choose_attribute(data: Dataset, wanted: str | None) -> str:
    """Return the attribute's name, or the first attribute of the data set if `wanted` is None.

    Raise DataError if the data set has no attributes, and UnknownNameError if it has no `wanted`.
    """
    known = list(data.train_attributes)
    if not known:
        raise DataError(
            f"dataset '{data.name}' has no attributes to infer; use 'digits', 'utkface-race', or "
            f"your own npz file with an array attribute_{wanted or 'NAME'}"
        )
    if wanted is not None and wanted not in known:
        raise UnknownNameError.among(f"attribute of '{data.name}'", wanted, known)
    return wanted or known[0]


def attribute_labels(data: Dataset, name: str) -> tuple[Labels, Labels]:
    """Return the attribute `name` of the training rows and of the test rows, in this order.

    Raise DataError unless it varies and every value of the training rows also occurs among the test
    rows, which the attacker learns from.
    """
    choose_attribute(data, name)
    own, others = data.train_attributes[name], data.test_attributes[name]
    values = np.unique(own)
    if len(np.unique(np.concatenate([own, others]))) < 2:
        raise DataError(
            f"attribute '{name}' has the value {values[0]} in every row: there is nothing to "
            "infer; choose another attribute"
        )
    missing = np.setdiff1d(values, others)
    if len(missing):
        raise DataError(
            f"no test row has the value {missing[0]} of attribute '{name}', so the attacker cannot "
            "learn it; add test rows with this value"
        )
    return own, others


def compute_embeddings(task: Task, model: Vector, features: NDArray[np.float32]) -> Embeddings:
    """Return the input of the model's last linear layer for each row."""
    flat = task.tensor(model)
    parts = []
    with torch.no_grad():
        for start in range(0, len(features), _TOGETHER):
            rows = np.array(features[start : start + _TOGETHER], dtype=np.float32)
            parts.append(task.embeddings(flat, torch.from_numpy(rows).to(task.device)).cpu())
    return torch.cat(parts).numpy()


def infer(
    known: Embeddings,
    attribute: Labels,
    asked: Embeddings,
    attack: AttributeClassifier,
    *,
    seed: int,
    device: str = "cpu",
) -> Labels:
    """Return the predicted attribute of each record of `asked`, learned from records `known`.

    `attribute` has the values of the known records; predictions are among them. `seed` determines
    the initial weights and the order of the batches.
    """
    values, targets = np.unique(attribute, return_inverse=True)
    center, spread = known.mean(axis=0), known.std(axis=0) + 1e-6
    x = torch.from_numpy((known - center) / spread).to(device)
    y = torch.from_numpy(targets.astype(np.int64)).to(device)
    # Initial weights and batch order come from torch's global generator; its state is restored.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = nn.Sequential(
            nn.Linear(x.shape[1], attack.hidden_units),
            nn.ReLU(),
            nn.Linear(attack.hidden_units, len(values)),
        ).to(device)
        optimizer = torch.optim.AdamW(
            classifier.parameters(), lr=attack.learning_rate, weight_decay=attack.weight_decay
        )
        for _ in range(attack.epochs):
            for part in torch.split(torch.randperm(len(x)).to(device), _BATCH):
                optimizer.zero_grad()
                cross_entropy(classifier(x[part]), y[part]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    with torch.no_grad():
        scores = classifier(torch.from_numpy((asked - center) / spread).to(device))
    return np.asarray(values[scores.argmax(dim=1).cpu().numpy()], dtype=np.int64)


def majority_guesses(attribute: Labels, count: int) -> Labels:
    """Return the most frequent value of `attribute`, `count` times: a guess without a model."""
    values, counts = np.unique(attribute, return_counts=True)
    return np.full(count, values[counts.argmax()], dtype=np.int64)


def accuracy(truth: Labels, guesses: Labels, *, confidence: float = 0.95) -> Interval:
    """Return the share of right guesses, with the interval of Clopper and Pearson 1934."""
    total, right = len(truth), int((truth == guesses).sum())
    low, high = statistics.two_sided_bounds(right, total, confidence)
    return Interval(mean=right / total, low=low, high=high)


def macro_f1(truth: Labels, guesses: Labels) -> float:
    """Return the mean F1 score over the values that occur in `truth`.

    The F1 score of a value is 2 TP/(2 TP + FP + FN).
    """
    return float(_macro_f1(_confusion(truth, guesses)[None])[0])


def f1(
    truth: Labels, guesses: Labels, generator: np.random.Generator, *, confidence: float = 0.95
) -> Interval:
    """Return the macro F1 score with the bootstrap percentile interval (Efron 1979).

    Resampling records with replacement is the same as a multinomial draw of the confusion matrix.
    """
    counts = _confusion(truth, guesses)
    drawn = generator.multinomial(len(truth), counts.ravel() / len(truth), size=_RESAMPLES)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(
        _macro_f1(drawn.reshape(-1, *counts.shape).astype(np.float64)), [tail, 1.0 - tail]
    )
    return Interval(mean=macro_f1(truth, guesses), low=float(low), high=float(high))


def _confusion(truth: Labels, guesses: Labels) -> Vector:
    """Return the confusion matrix: counts by (true value, guessed value)."""
    values = np.unique(np.concatenate([truth, guesses]))
    places = len(values) * np.searchsorted(values, truth) + np.searchsorted(values, guesses)
    counts = np.bincount(places, minlength=len(values) ** 2)
    return counts.reshape(len(values), len(values)).astype(np.float64)


def _macro_f1(counts: Vector) -> Vector:
    """Return the macro F1 score of each confusion matrix; values with no record do not count."""
    hits = np.diagonal(counts, axis1=1, axis2=2)
    have, taken = counts.sum(axis=2), counts.sum(axis=1)
    scores = 2.0 * hits / np.maximum(have + taken, 1.0)
    return np.asarray((scores * (have > 0)).sum(axis=1) / (have > 0).sum(axis=1))
