"""People's values as arrays: from arrays, lists and pandas Series, with one clear refusal."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.domains import Vector
from sottovoce.errors import DomainError


def numbers(values: ArrayLike) -> Vector:
    """One finite number a person."""
    try:
        vector = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise DomainError(
            "values must be numbers, one for each person; for words ask for a histogram with "
            "categories"
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
    return [str(value) for value in array.tolist()]
