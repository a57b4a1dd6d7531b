"""The app's own business: data, model, training."""

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

NUM_TRAIN = 1400
Samples = tuple[Tensor, Tensor]


@cache
def _digits() -> Samples:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return (
        torch.tensor(images[order] / 16.0, dtype=torch.float32),
        torch.tensor(labels[order], dtype=torch.int64),
    )


def test_data() -> Samples:
    images, labels = _digits()
    return images[NUM_TRAIN:], labels[NUM_TRAIN:]


def train_data(partition: int, num_partitions: int, seed: int) -> Samples:
    """One client's share of the training data."""
    images, labels = _digits()
    order = np.random.default_rng(seed).permutation(NUM_TRAIN)
    share = np.array_split(order, num_partitions)[partition]
    return images[share], labels[share]


def make_model() -> nn.Module:
    model = nn.Linear(64, 10)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def fit(model: nn.Module, samples: Samples, steps: int, learning_rate: float) -> None:
    images, labels = samples
    optimiser = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()


@torch.no_grad()
def accuracy(model: nn.Module, samples: Samples) -> float:
    images, labels = samples
    return float((model(images).argmax(dim=1) == labels).float().mean())
