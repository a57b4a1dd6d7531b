"""Small arrays and files for the tests of datasets."""

from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.learning import datasets
from sottovoce.learning.datasets import Dataset

RNG = np.random.default_rng


def images(rows: int, *shape: int) -> Any:
    return RNG(rows).integers(0, 256, (rows, *shape), dtype=np.uint8)


def labels(rows: int, num_classes: int) -> Any:
    return (np.arange(rows) % num_classes).astype(np.uint8)


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def save_split(path: Path, num_classes: int, *shape: int, **more: Any) -> Path:
    parts = {
        "x_train": images(20, *shape),
        "y_train": labels(20, num_classes),
        "x_test": images(10, *shape),
        "y_test": labels(10, num_classes),
    }
    return save(path, **{**parts, **more})


def load(name: str, folder: Path | None = None, **more: Any) -> Dataset:
    return datasets.load(name, RNG(0), data_dir=folder, **more)
