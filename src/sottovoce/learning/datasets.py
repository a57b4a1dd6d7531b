"""Datasets as plain arrays, scaled by public constants, never by private statistics."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import UnknownNameError

TEST_FRACTION = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Training data to be spread over clients, and held-out test data."""

    name: str
    train_features: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test_features: NDArray[np.float32]
    test_labels: NDArray[np.int64]
    num_classes: int


def digits(generator: np.random.Generator) -> Dataset:
    """scikit-learn's bundled 8x8 digits, pixels 0..16 mapped to [-1/2, 1/2]; a fifth held out."""
    from sklearn.datasets import load_digits  # slow to import, and only this loader needs it

    bundle = load_digits()
    features = (bundle.data / 16.0 - 0.5).astype(np.float32)
    labels = bundle.target.astype(np.int64)
    order = generator.permutation(len(labels))
    held_out = int(TEST_FRACTION * len(labels))
    test, train = order[:held_out], order[held_out:]
    return Dataset(
        name="digits",
        train_features=features[train],
        train_labels=labels[train],
        test_features=features[test],
        test_labels=labels[test],
        num_classes=10,
    )


LOADERS: dict[str, Callable[[np.random.Generator], Dataset]] = {"digits": digits}


def load(name: str, generator: np.random.Generator) -> Dataset:
    """The dataset called `name`; `generator` draws the test split if there is no official one."""
    if name not in LOADERS:
        raise UnknownNameError.among("dataset", name, LOADERS)
    return LOADERS[name](generator)
