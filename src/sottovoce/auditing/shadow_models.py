"""Shadow models of a spec: trained by its own recipe, noise and all, on parts of a pool.

Shadow models, kept as they finish: the same command goes on after an interruption.

FOLDER/shadows-<recipe>-<first>-<last>.npz holds a block of models; the recipe is a hash of all that
they follow from, so that a folder never serves models of another kind.
"""

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import files
from sottovoce.core.domains import Vector
from sottovoce.core.randomness import SeededRandomness
from sottovoce.learning.datasets import Dataset
from sottovoce.runs.inputs import device_of
from sottovoce.runs.spec import RunSpec
from sottovoce.runs.stacked_runs import train_many

# Trains the models of these numbers and returns them as rows.
TrainBlock = Callable[[range], Vector]
OnBlock = Callable[[int, int], None]  # models that are there, of how many


def kept_or_trained(
    folder: Path, recipe: str, count: int, *, block: int, train: TrainBlock, on_block: OnBlock
) -> Vector:
    """`count` models as rows, in blocks; those that `folder` has are not trained again."""
    with files.explained("create", folder):
        folder.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
    found = []
    for first in range(0, count, block):
        numbers = range(first, min(first + block, count))
        on_block(first, count)
        path = folder / f"shadows-{recipe}-{numbers[0]:04d}-{numbers[-1]:04d}.npz"
        models = _read(path, len(numbers))
        if models is None:
            models = train(numbers).astype(np.float32)
            _write(path, models)
        found.append(models)
    on_block(count, count)
    return np.concatenate(found).astype(np.float64)


def _write(path: Path, models: Vector) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, models=models)
    # The owner's alone: they were trained on records, without privacy perhaps.
    files.write_atomic(path, buffer.getvalue(), mode=0o600)


def _read(path: Path, count: int) -> Vector | None:
    """What an earlier attack kept; None unless it is whole."""
    if not path.is_file():
        return None
    try:
        with files.explained("read", path):
            content = io.BytesIO(path.read_bytes())
        with np.load(content, allow_pickle=False) as stored:
            models: Vector = stored["models"]
    except files.ARRAY_DAMAGE:
        return None
    return models if models.ndim == 2 and len(models) == count else None


SHADOWS_VERSION = 1  # to be raised when the same recipe gives other models
_TOGETHER = {"cpu": 8, "cuda": 128}  # models trained at once; what is lost by an interruption

Rows = NDArray[np.int64]
# What is being done, how much of it is done, of how much, and a note.
OnStep = Callable[[str, int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What models follow from: a resolved spec, a pool of records, and who trains on which rows.

    The training rows of `pool` are all records; shadow i trains on `rows[i]`.
    """

    spec: RunSpec
    pool: Dataset
    rows: Sequence[Rows]
    label: str = "shadow"

    @property
    def hash(self) -> str:
        plain = self.spec.plain()
        plain["runtime"].pop("device")
        text = json.dumps([SHADOWS_VERSION, self.label, plain], sort_keys=True)
        hashed = hashlib.blake2b(text.encode(), digest_size=8)
        hashed.update(np.ascontiguousarray(self.pool.train_labels).tobytes())
        hashed.update(np.ascontiguousarray(self.pool.train_features[::_STRIDE]).tobytes())
        for rows in self.rows:
            hashed.update(rows.tobytes())
        return hashed.hexdigest()

    def seed(self, number: int) -> int:
        """Of one model; none of them has the target's."""
        generator = SeededRandomness(self.spec.seed).generator(self.label, number)
        return int(generator.integers(2**62))


_STRIDE = 16  # of the features that are hashed: data are told apart, not sealed


def shadow_models(recipe: Recipe, folder: Path, on_step: OnStep) -> Vector:
    """The recipe's models as rows; those that `folder` has are not trained again."""
    count, rounds = len(recipe.rows), recipe.spec.rounds
    what = f"{recipe.label} models"

    def train(numbers: range) -> Vector:
        def on_round(models: int, number: int) -> None:
            done = numbers[0] + (models * number) // rounds
            on_step(what, min(done, count), count, f"round {number}")

        runs = [(recipe.seed(i), recipe.rows[i]) for i in numbers]
        return train_many(recipe.spec, recipe.pool, runs, on_round)

    def on_block(done: int, total: int) -> None:
        on_step(what, done, total, "")

    block = _TOGETHER.get(device_of(recipe.spec), _TOGETHER["cpu"])
    return kept_or_trained(folder, recipe.hash, count, block=block, train=train, on_block=on_block)
