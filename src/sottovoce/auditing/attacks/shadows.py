"""Shadow models, kept as they finish: the same command goes on after an interruption.

FOLDER/shadows-<recipe>-<first>-<last>.npz holds a block of models; the recipe is a hash of all that
they follow from, so that a folder never serves models of another kind.
"""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sottovoce.core import files
from sottovoce.core.domains import Vector

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
