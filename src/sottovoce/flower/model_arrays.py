"""A model as Flower carries it, and the vector of its floating-point arrays.

Both sides read names, shapes and types from the record that the server sent, in its order. Integer
arrays, such as a count of batches, are not part of the vector and stay unchanged.
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
    """Name, shape and type of one array of a model."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def is_float(self) -> bool:
        """Whether the array holds floating-point numbers."""
        return np.dtype(self.dtype).kind == "f"

    @property
    def size(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLayout:
    """The arrays of a model, in the order of Flower's `ArrayRecord` that the server sends.

    The vector of the model consists of the floating-point arrays one after the other, in this
    order. Other arrays are not part of it.

    Attributes:
        arrays: Name, shape and type of each array, including those that are not part of the vector.
    """

    arrays: tuple[ArrayShape, ...]

    @classmethod
    def of(cls, record: ArrayRecord) -> "ModelLayout":
        """Return the layout of a record; raise ParameterError if it has no floating-point array."""
        arrays = tuple(
            ArrayShape(name=name, shape=values.shape, dtype=values.dtype.str)
            for name, values in _unpack(record).items()
        )
        layout = cls(arrays=arrays)
        if not layout.dimension:
            raise ParameterError(
                "the model has no floating-point array, so there is nothing to privatize; send "
                "its weights as float32"
            )
        return layout

    @property
    def dimension(self) -> int:
        """The length of the vector."""
        return sum(array.size for array in self.arrays if array.is_float)

    def digest(self) -> str:
        """Return a hex digest of the names, shapes and types of all arrays, in their order.

        It is equal on two sides if they split a vector in the same way.
        """
        text = json.dumps([[array.name, array.shape, array.dtype] for array in self.arrays])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def vector(self, record: ArrayRecord) -> Vector:
        """Return the floating-point arrays of a record as one float64 vector.

        Raises:
            ParameterError: The record's arrays have other names or shapes than this layout.
        """
        found = _unpack(record)
        if set(found) != {array.name for array in self.arrays}:
            raise ParameterError(
                f"the server sent the arrays {[array.name for array in self.arrays]}, but the "
                f"reply has {list(found)}; return arrays with the same names, in any order"
            )
        pieces = []
        for array in self.arrays:
            values = found[array.name]
            if values.shape != array.shape:
                raise ParameterError(
                    f"array '{array.name}' has shape {values.shape}, but must have {array.shape}, "
                    "as it was sent"
                )
            if array.is_float:
                pieces.append(values.astype(np.float64).ravel())
        return np.concatenate(pieces)

    def unchanged(self, update: Vector) -> list[str]:
        """Return the names of non-empty floating-point arrays whose update is exactly zero."""
        found, start = [], 0
        for array in self.arrays:
            if array.is_float:
                if array.size and not update[start : start + array.size].any():
                    found.append(array.name)
                start += array.size
        return found

    def moved(self, record: ArrayRecord, update: Vector) -> ArrayRecord:
        """Return a copy of the record with `update` added to its floating-point arrays.

        Names, shapes and types stay the same, and so do other arrays.
        """
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
        """Return the record with its arrays converted to the types of this layout.

        Where the layout has integers and the record has floats (averages), they are rounded to the
        nearest integer.
        """
        found = _unpack(record)
        typed = {}
        for array in self.arrays:
            values = found[array.name]
            if np.dtype(array.dtype).kind in "iu" and values.dtype.kind == "f":
                values = np.rint(values)
            typed[array.name] = Array(np.asarray(values.astype(array.dtype)))
        return ArrayRecord(typed)


def _unpack(record: ArrayRecord) -> dict[str, NDArray[np.generic]]:
    return {name: array.numpy() for name, array in record.items()}
