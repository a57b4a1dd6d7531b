"""Some rows of an array on disk, without a copy of them."""

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray


class SelectedRows:
    """Looks like the array of the chosen rows; reads those that are asked for."""

    def __init__(self, array: NDArray[Any], rows: NDArray[np.int64]) -> None:
        self._array, self._rows = array, rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self._rows), *self._array.shape[1:])

    @property
    def ndim(self) -> int:
        return self._array.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._array.dtype

    def __getitem__(self, key: Any) -> NDArray[Any]:
        return np.asarray(self._array[self._rows[key]])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("the rows lie on disk: reading them makes a copy")
        return np.asarray(self[:], dtype=dtype)

    def take(self, rows: Any) -> "SelectedRows":
        return SelectedRows(self._array, self._rows[rows])


def chosen_rows(array: "NDArray[Any] | SelectedRows", rows: Any) -> NDArray[Any]:
    """Some rows: a copy where the array is in memory, a look-alike where it lies on disk."""
    if isinstance(array, SelectedRows):
        return cast(NDArray[Any], array.take(rows))
    if isinstance(array, np.memmap):
        return cast(NDArray[Any], SelectedRows(array, np.arange(len(array))[rows]))
    return np.asarray(array[rows])
