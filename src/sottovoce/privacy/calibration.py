"""Find the parameter that just meets a budget, from the private side."""

import math
from collections.abc import Callable
from typing import Literal

from sottovoce import parameters
from sottovoce.errors import ParameterError
from sottovoce.privacy import accounting
from sottovoce.privacy.events import PrivacyEvent

Direction = Literal["larger", "smaller"]

# Where to look, from the least to the most private end; just inside what parameters allow.
_ENDS: dict[Direction, tuple[float, float]] = {"larger": (1e-4, 1e8), "smaller": (999.0, 1e-9)}
_RELATIVE_TOLERANCE = 1e-7


def calibrate(
    event_at: Callable[[float], PrivacyEvent],
    *,
    epsilon: float,
    delta: float,
    more_private: Direction,
    ends: tuple[float, float] | None = None,
    relative_tolerance: float = _RELATIVE_TOLERANCE,
) -> float:
    """The least private parameter whose event still has at most `epsilon` at `delta`.

    `event_at` must grow more private as its parameter grows larger (or smaller, as `more_private`
    says). The result itself is checked to meet the budget: it is the safe end of a bisection.
    `ends` are where to look, the least private first.
    """
    parameters.epsilon(epsilon)
    parameters.delta(delta)

    def meets(log_parameter: float) -> bool:
        return accounting.epsilon(event_at(math.exp(log_parameter)), delta) <= epsilon

    loose, safe = (math.log(end) for end in ends or _ENDS[more_private])
    if not meets(safe):
        raise ParameterError(
            f"not even the parameter {math.exp(safe):g} reaches epsilon {epsilon:g} at delta "
            f"{delta:g}; ask for a larger epsilon or fewer rounds"
        )
    if meets(loose):
        return math.exp(loose)
    while abs(safe - loose) > relative_tolerance:
        middle = (safe + loose) / 2.0
        safe, loose = (middle, loose) if meets(middle) else (safe, middle)
    return math.exp(safe)
