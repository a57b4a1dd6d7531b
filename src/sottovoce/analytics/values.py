"""Conversion of people's values (arrays, lists, pandas Series, tensors) to checked arrays."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.errors import DomainError, ParameterError

# Complex numbers, time spans and dates: float64 would hold something else.
_NO_NUMBERS = "cmM"


def as_people_array(values: Any) -> NDArray[Any]:
    """Return the values as an array with one entry, or one row, for each person.

    Raise ParameterError if `values` is a single value or empty, and DomainError if some values are
    masked or they are of different shapes.
    """
    if np.ma.is_masked(values):  # An array would contain the masked values.
        raise DomainError("some values are masked; leave those people out")
    if hasattr(values, "detach"):  # This is a tensor, which may have a gradient.
        values = values.detach().cpu()
    try:
        array = np.asarray(values)
        if array.dtype.kind in "US" and not isinstance(values, np.ndarray):
            # Otherwise a missing word would become 'nan'.
            array = np.asarray(values, dtype=object)
    except (TypeError, ValueError):
        raise DomainError(
            "values must have one entry for each person, all of one kind and shape"
        ) from None
    if array.ndim == 0:
        raise ParameterError(
            "values must be a list, an array or a Series with an entry for each person, got "
            f"{type(values).__name__}; for a file see 'sottovoce estimate'"
        )
    if len(array) == 0:
        raise ParameterError("there are no values; give those of at least one person")
    return array


def numbers(values: ArrayLike) -> Vector:
    """Return the values as a float64 vector with one number for each person.

    Raise DomainError unless there is at least one value and all are finite numbers.
    """
    try:
        if np.asarray(values).dtype.kind in _NO_NUMBERS:
            raise TypeError
        vector = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise DomainError(
            "values must be numbers that fit into float64, one for each person; for words use a "
            "histogram with categories"
        ) from None
    if vector.ndim != 1 or len(vector) == 0:
        raise DomainError(
            "values must be a flat list with one number for each person, at least one, got shape "
            f"{vector.shape}"
        )
    if not np.isfinite(vector).all():
        where = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise DomainError(
            f"values must be finite, and value {where} (counted from 0, in estimate() within each "
            f"million) is {vector[where]}; if it is missing, leave the person out"
        )
    return vector


def words(values: Any) -> list[str]:
    """Return one word for each person, a value that is no string as text.

    Raise DomainError if there is no value or one is missing (None, NaN, or pandas' NA and NaT).
    """
    array = np.asarray(values)
    if array.ndim != 1 or len(array) == 0:
        raise DomainError(
            "values must be a flat list with one word for each person, at least one, got shape "
            f"{array.shape}"
        )
    found = array.tolist()
    if array.dtype.kind not in "USbiu":
        for where, value in enumerate(found):
            if _is_missing(value):
                raise DomainError(
                    f"value {where} (counted from 0, in estimate() within each million) is "
                    "missing; leave the person out"
                )
    return [str(value) for value in found]


def _is_missing(value: Any) -> bool:
    """Return whether a value is None or does not equal itself: NaN, or pandas' NA and NaT."""
    if value is None or isinstance(value, str):
        return value is None
    try:
        return bool(value != value)
    except (
        TypeError,
        ValueError,
    ):  # The comparison of NA with itself is NA, which has no truth value.
        return True
