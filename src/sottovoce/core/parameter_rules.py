"""Rules that parameters obey, stated once. Each returns the value it accepted."""

import math
import numbers
import operator
from typing import Any, SupportsIndex

from sottovoce.core.errors import ParameterError

MAX_EPSILON = 1000.0
# Of one step of a staircase. Below, the steps that noise reaches (some 37/epsilon) are no exact
# float64 any more; above, e^-epsilon times a probability may not be one.
STEP_EPSILONS = (1e-12, 500.0)


def _as_number(name: str, value: Any) -> float:
    if type(value) is float:  # sixty thousand clients have a weight each
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ParameterError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:  # an integer beyond float64: refused by every rule, whatever its sign
        return math.inf


def clip_norm(name: str, value: float) -> float:
    """A norm to clip to, from 1e-100 (products with it must not vanish) to 1e12."""
    if 0.0 < _as_number(name, value) < 1e-100:
        raise ParameterError(f"{name} must be at least 1e-100, got {value!r}; scale the data")
    return positive(name, value)


def positive(name: str, value: float, *, at_most: float = 1e12, remedy: str = "") -> float:
    """A finite number above 0 (and any float64's rounding) and at most `at_most`."""
    number = _as_number(name, value)
    if not 1e-300 <= number <= at_most:  # also refuses NaN
        tail = f"; {remedy}" if remedy else ""
        raise ParameterError(
            f"{name} must be a finite number above 0 and at most {at_most:g}, got {value!r}{tail}"
        )
    return number


def epsilon(value: float, name: str = "epsilon") -> float:
    """An epsilon that means something: above 0, at most 1000."""
    return positive(
        name,
        value,
        at_most=MAX_EPSILON,
        remedy="use the mechanism 'no_privacy' to run without a guarantee",
    )


def delta(value: float, name: str = "delta") -> float:
    """A delta strictly between 0 and 1."""
    number = _as_number(name, value)
    if not 1e-300 <= number < 1.0:
        raise ParameterError(
            f"{name} must lie strictly between 0 and 1, got {value!r}; "
            "choose well below one over the number of people, such as 1e-5"
        )
    return number


def noise_multiplier(value: float) -> float:
    """Noise standard deviation / clip norm: from 1e-5 (next to nothing) to 1e12."""
    number = _as_number("noise_multiplier", value)
    if not 1e-5 <= number <= 1e12:
        raise ParameterError(
            f"noise_multiplier must lie between 1e-5 and 1e12, got {value!r}; "
            "use the mechanism 'no_privacy' to run without noise, or calibrate to an epsilon"
        )
    return number


def fraction(name: str, value: float) -> float:
    """A number in (0, 1]."""
    return positive(name, value, at_most=1.0)


def inner_fraction(name: str, value: float) -> float:
    """A number strictly between 0 and 1."""
    number = _as_number(name, value)
    if not 1e-300 <= number < 1.0:
        raise ParameterError(f"{name} must lie strictly between 0 and 1, got {value!r}")
    return number


def step_epsilon(name: str, value: float) -> float:
    """The epsilon of one step of a staircase: from 1e-12 to 500."""
    low, high = STEP_EPSILONS
    number = _as_number(name, value)
    if not low <= number <= high:
        raise ParameterError(
            f"{name} must lie between {low:g} and {high:g}, got {value!r}; "
            "use the mechanism 'no_privacy' to run without noise, or calibrate to an epsilon"
        )
    return number


def integer(name: str, value: SupportsIndex, *, low: int, high: int, remedy: str = "") -> int:
    """An integer between `low` and `high`, both included."""
    tail = f"; {remedy}" if remedy else ""
    try:
        number = operator.index(value)
    except TypeError:
        raise ParameterError(
            f"{name} must be an integer from {low} to {high}, got {value!r}{tail}"
        ) from None
    if isinstance(value, bool) or not low <= number <= high:
        raise ParameterError(f"{name} must be an integer from {low} to {high}, got {value!r}{tail}")
    return number


def finite(name: str, value: float) -> float:
    """A finite number."""
    number = _as_number(name, value)
    if not math.isfinite(number):
        raise ParameterError(f"{name} must be finite, got {value!r}")
    return number


def boolean(name: str, value: bool) -> bool:
    """True or false, and no number in their place."""
    if not isinstance(value, bool):
        raise ParameterError(f"{name} must be true or false, got {value!r}")
    return value


def text(name: str, value: str) -> str:
    """A text."""
    if not isinstance(value, str):
        raise ParameterError(f"{name} must be a text, got {value!r}")
    return value
