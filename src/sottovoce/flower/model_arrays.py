"""A model as Flower carries it, and the one vector that stands for its floating-point arrays.

Both sides read names, shapes and types from the record that the server sent, in its order. Arrays
of whole numbers (a count of batches, say) are no part of the vector: they stay what they were.
"""

import hashlib
import json
import math
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayShape:
    """One array of a model, without its values."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def is_float(self) -> bool:
        return np.dtype(self.dtype).kind == "f"

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where each floating-point array lies in the vector: one after the other."""

    arrays: tuple[ArrayShape, ...]

    @classmethod
    def of(cls, record: ArrayRecord) -> "Layout":
        arrays = tuple(
            ArrayShape(name=name, shape=values.shape, dtype=values.dtype.str)
            for name, values in _unpacked(record).items()
        )
        layout = cls(arrays=arrays)
        if not layout.dimension:
            raise ParameterError(
                "the model has no floating-point array, so there is nothing to privatise; send "
                "its weights as float32"
            )
        return layout

    @property
    def dimension(self) -> int:
        return sum(array.size for array in self.arrays if array.is_float)

    def digest(self) -> str:
        """Tells whether two sides would cut a vector at the same places."""
        text = json.dumps([[array.name, array.shape, array.dtype] for array in self.arrays])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def vector(self, record: ArrayRecord) -> Vector:
        """The floating-point arrays of a record with these names and shapes, in float64."""
        found = _unpacked(record)
        if set(found) != {array.name for array in self.arrays}:
            raise ParameterError(
                f"the model has the arrays {[array.name for array in self.arrays]}, and what came "
                f"back has {list(found)}; send back what was sent"
            )
        pieces = []
        for array in self.arrays:
            values = found[array.name]
            if values.shape != array.shape:
                raise ParameterError(
                    f"array '{array.name}' has shape {values.shape}, and {array.shape} was sent"
                )
            if array.is_float:
                pieces.append(values.astype(np.float64).ravel())
        return np.concatenate(pieces)

    def unchanged(self, update: Vector) -> list[str]:
        """Names of floating-point arrays that an update leaves as they were, to the last bit."""
        found, start = [], 0
        for array in self.arrays:
            if array.is_float:
                if array.size and not update[start : start + array.size].any():
                    found.append(array.name)
                start += array.size
        return found

    def moved(self, record: ArrayRecord, update: Vector) -> ArrayRecord:
        """The record with `update` added, in its own names, shapes and types."""
        moved: dict[str, Array] = {}
        start = 0
        for array in self.arrays:
            if not array.is_float:
                moved[array.name] = record[array.name]
                continue
            step = update[start : start + array.size].reshape(array.shape)
            start += array.size
            values = record[array.name].numpy().astype(np.float64) + step
            moved[array.name] = Array(np.asarray(values, dtype=array.dtype))
        return ArrayRecord(moved)

    def typed(self, record: ArrayRecord) -> ArrayRecord:
        """The record in its model's types again: averages of whole numbers come as floats."""
        found = _unpacked(record)
        typed = {}
        for array in self.arrays:
            values = found[array.name]
            if np.dtype(array.dtype).kind in "iu" and values.dtype.kind == "f":
                values = np.rint(values)
            typed[array.name] = Array(np.asarray(values.astype(array.dtype)))
        return ArrayRecord(typed)


def _unpacked(record: ArrayRecord) -> dict[str, NDArray[np.generic]]:
    return {name: array.numpy() for name, array in record.items()}
