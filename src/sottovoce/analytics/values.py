"""People's values as arrays: from arrays, lists and pandas Series, with one clear refusal."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.errors import DomainError, ParameterError

_NO_NUMBERS = "cmM"  # complex numbers, spans of time and dates: float64 would hold something else


def people(values: Any) -> NDArray[Any]:
    """Everybody's values as they are: an entry, or a row, for each person."""
    if np.ma.is_masked(values):  # an array would hold what the mask hides
        raise DomainError("some values are masked; leave those people out")
    if hasattr(values, "detach"):  # a tensor, perhaps one with a gradient
        values = values.detach().cpu()
    try:
        array = np.asarray(values)
        if array.dtype.kind in "US" and not isinstance(values, np.ndarray):
            array = np.asarray(values, dtype=object)  # or a missing word would become 'nan'
    except (TypeError, ValueError):
        raise DomainError("values must have one entry for each person, all of one kind") from None
    if array.ndim == 0:
        raise ParameterError(
            "values must be a list, an array or a Series with an entry for each person, got "
            f"{type(values).__name__}; for a file see 'sottovoce estimate'"
        )
    if len(array) == 0:
        raise ParameterError("there are no values; an estimate needs at least one person")
    return array


def numbers(values: ArrayLike) -> Vector:
    """One finite number a person."""
    try:
        if np.asarray(values).dtype.kind in _NO_NUMBERS:
            raise TypeError
        vector = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise DomainError(
            "values must be numbers that float64 holds, one for each person; for words ask for a "
            "histogram with categories"
        ) from None
    if vector.ndim != 1 or len(vector) == 0:
        raise DomainError(
            f"values must be one number for each person, at least one, got shape {vector.shape}"
        )
    if not np.isfinite(vector).all():
        where = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise DomainError(
            f"value {where} is {vector[where]}; every one must be finite (a missing value? leave "
            "the person out)"
        )
    return vector


def words(values: Any) -> list[str]:
    """One word a person."""
    array = np.asarray(values)
    if array.ndim != 1 or len(array) == 0:
        raise DomainError(
            f"values must be one word for each person, at least one, got shape {array.shape}"
        )
    found = array.tolist()
    if array.dtype.kind not in "USbiu":
        for where, value in enumerate(found):
            if _is_missing(value):
                raise DomainError(f"value {where} is missing; leave the person out")
    return [str(value) for value in found]


def _is_missing(value: Any) -> bool:
    """None, and what does not equal itself: NaN, and pandas' NA and NaT."""
    if value is None or isinstance(value, str):
        return value is None
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # whether NA equals itself is NA
        return True
