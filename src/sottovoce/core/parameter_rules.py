"""Range checks of parameters. Each function returns the value that it accepted."""

import math
import numbers
import operator
from typing import Any, SupportsIndex

from sottovoce.core.errors import ParameterError

MAX_EPSILON = 1000.0
# The range of epsilon for one step of a staircase distribution. Below it, the number of steps that
# noise can reach (about 37/epsilon) exceeds the integers that float64 represents exactly; above it,
# e^-epsilon times a probability can underflow.
STEP_EPSILONS = (1e-12, 500.0)


def _as_number(name: str, value: Any) -> float:
    if type(value) is float:  # A fast path: a run checks tens of thousands of client weights.
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ParameterError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:  # An integer beyond float64: every rule refuses infinity.
        return math.inf


def clip_norm(name: str, value: float) -> float:
    """Check a clip norm and return it as a float; ParameterError unless in [1e-100, 1e12].

    Products with a smaller one could underflow. `name` is the parameter's name, for the message.
    """
    if 0.0 < _as_number(name, value) < 1e-100:
        raise ParameterError(f"{name} must be at least 1e-100, got {value!r}; scale the data up")
    return positive(name, value)


def positive(name: str, value: float, *, at_most: float = 1e12, remedy: str = "") -> float:
    """Check that a number is above 0 (at least 1e-300) and at most `at_most`, and return it.

    Args:
        name: The parameter's name, for the message.
        value: The value to check.
        at_most: The largest allowed value.
        remedy: What to do instead, appended to the message.

    Returns:
        The value as a float.

    Raises:
        ParameterError: The value is no number, or outside the range.

    Examples:
        >>> positive("learning_rate", 0.5)
        0.5
    """
    number = _as_number(name, value)
    if not 1e-300 <= number <= at_most:  # This also refuses NaN.
        tail = f"; {remedy}" if remedy else ""
        raise ParameterError(
            f"{name} must be a finite number above 0 and at most {at_most:g}, got {value!r}{tail}"
        )
    return number


def epsilon(value: float, name: str = "epsilon") -> float:
    """Check an epsilon and return it as a float; ParameterError unless above 0 and at most 1000.

    A larger one guarantees nothing; the least is 1e-300. `name` is its name in the message.
    """
    return positive(
        name,
        value,
        at_most=MAX_EPSILON,
        remedy="to run without a guarantee use the mechanism 'no_privacy'",
    )


def delta(value: float, name: str = "delta") -> float:
    """Check a delta and return it as a float; ParameterError unless strictly between 0 and 1.

    The least is 1e-300. `name` is its name in the message.
    """
    number = _as_number(name, value)
    if not 1e-300 <= number < 1.0:
        raise ParameterError(
            f"{name} must lie strictly between 0 and 1, got {value!r}; "
            "choose a delta well below 1 / (number of protected people), such as 1e-5"
        )
    return number


def noise_multiplier(value: float) -> float:
    """Check a noise multiplier, the noise's standard deviation / clip norm, and return it.

    ParameterError is raised unless it lies between 1e-5 and 1e12.
    """
    number = _as_number("noise_multiplier", value)
    if not 1e-5 <= number <= 1e12:
        raise ParameterError(
            f"noise_multiplier must lie between 1e-5 and 1e12, got {value!r}; "
            "calibrate it to an epsilon, or use the mechanism 'no_privacy' to run without noise"
        )
    return number


def fraction(name: str, value: float) -> float:
    """Check a number and return it as a float; ParameterError unless it is in (0, 1].

    The least is 1e-300. `name` is the parameter's name, for the message.
    """
    return positive(name, value, at_most=1.0)


def inner_fraction(name: str, value: float) -> float:
    """Check a number and return it as a float; ParameterError unless strictly between 0 and 1.

    The least is 1e-300. `name` is the parameter's name, for the message.
    """
    number = _as_number(name, value)
    if not 1e-300 <= number < 1.0:
        raise ParameterError(f"{name} must lie strictly between 0 and 1, got {value!r}")
    return number


def step_epsilon(name: str, value: float) -> float:
    """Check the epsilon of one step of a staircase distribution, and return it as a float.

    ParameterError is raised unless it lies between 1e-12 and 500.
    """
    low, high = STEP_EPSILONS
    number = _as_number(name, value)
    if not low <= number <= high:
        raise ParameterError(
            f"{name} must lie between {low:g} and {high:g}, got {value!r}; "
            "calibrate it to an epsilon, or use the mechanism 'no_privacy' to run without noise"
        )
    return number


def integer(name: str, value: SupportsIndex, *, low: int, high: int, remedy: str = "") -> int:
    """Check that a value is an integer from `low` to `high`, both included, and return it.

    Args:
        name: The parameter's name, for the message.
        value: The value to check; a boolean is not an integer here.
        low: The smallest allowed value.
        high: The largest allowed value.
        remedy: What to do instead, appended to the message.

    Returns:
        The value as an int.

    Raises:
        ParameterError: The value is no integer, or outside the range.
    """
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
    """Check a number and return it as a float; ParameterError for NaN, infinity and non-numbers."""
    number = _as_number(name, value)
    if not math.isfinite(number):
        raise ParameterError(f"{name} must be finite, got {value!r}")
    return number


def boolean(name: str, value: bool) -> bool:
    """Check a boolean and return it; ParameterError for any other value, also for 0 and 1."""
    if not isinstance(value, bool):
        raise ParameterError(f"{name} must be true or false, got {value!r}")
    return value


def text(name: str, value: str) -> str:
    """Check a string and return it; ParameterError for any other value."""
    if not isinstance(value, str):
        raise ParameterError(f"{name} must be a string, got {value!r}")
    return value
