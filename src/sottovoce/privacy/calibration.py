"""What just meets a budget, from the private side: a parameter, or a number of rounds."""

import math
from collections.abc import Callable
from typing import Literal

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.privacy import accounting
from sottovoce.privacy.events import PrivacyEvent, Repeated

Direction = Literal["larger", "smaller"]

# Where to look, from the least to the most private end; just inside what parameters allow.
ENDS: dict[Direction, tuple[float, float]] = {"larger": (1e-4, 1e8), "smaller": (999.0, 1e-9)}
_RELATIVE_TOLERANCE = 1e-7
_COARSE = 1e-2
MAX_ROUNDS = 10**12


def calibrate(
    event_at: Callable[[float], PrivacyEvent],
    *,
    epsilon: float,
    delta: float,
    more_private: Direction,
    ends: tuple[float, float] | None = None,
    relative_tolerance: float = _RELATIVE_TOLERANCE,
    near: float | None = None,
) -> float:
    """The least private parameter whose event still has at most `epsilon` at `delta`.

    `event_at` must grow more private as its parameter grows larger (or smaller, as `more_private`
    says). The result itself is checked to meet the budget: it is the safe end of a bracket.
    `ends` are where to look, the least private first, and `near` is a guess to begin with.
    """
    parameter_rules.epsilon(epsilon)
    parameter_rules.delta(delta)

    def meets(log_parameter: float, *, quickly: bool = False) -> bool:
        event = event_at(math.exp(log_parameter))
        return accounting.within(event, delta, epsilon, quickly=quickly)

    loose, safe = (math.log(end) for end in ends or ENDS[more_private])
    if near is not None:
        bracket = _around(
            event_at, math.log(near), (safe, loose), epsilon, delta, relative_tolerance
        )
        if bracket is not None:
            return math.exp(_refined(event_at, *bracket, epsilon, delta, relative_tolerance))
    quickly = meets(safe, quickly=True)
    if not quickly and not meets(safe):
        raise ParameterError(
            f"not even the parameter {math.exp(safe):g} reaches epsilon {epsilon:g} at delta "
            f"{delta:g}; ask for a larger epsilon or fewer rounds"
        )
    least_private = loose
    if meets(loose, quickly=quickly):
        return math.exp(loose)
    # Whoever asks for three digits needs no closer bracket for secants to be quick.
    while abs(safe - loose) > max(_COARSE, 100.0 * relative_tolerance):
        middle = (safe + loose) / 2.0
        safe, loose = (middle, loose) if meets(middle, quickly=quickly) else (safe, middle)
    while quickly and meets(loose):  # the quick accountants end here; the others may go on
        if loose == least_private:
            return math.exp(loose)
        step = 2.0 * (loose - safe)
        safe = loose
        loose = safe + math.copysign(min(abs(step), abs(least_private - safe)), step)
    return math.exp(_refined(event_at, safe, loose, epsilon, delta, relative_tolerance))


def _around(
    event_at: Callable[[float], PrivacyEvent],
    guess: float,
    ends: tuple[float, float],
    target: float,
    delta: float,
    tolerance: float,
) -> tuple[float, float] | None:
    """A safe and a loose end around the guess, by ever longer steps; None if an end is passed.

    A guess that is good enough is both.
    """
    safe, loose = ends

    def missing(log_parameter: float) -> float:
        spent = accounting.epsilon(event_at(math.exp(log_parameter)), delta)
        if spent == 0.0:
            return 1.0
        return math.log(target / spent) if spent < math.inf else -1.0

    at, gap = guess, missing(guess)
    if 0.0 <= gap <= tolerance:
        return guess, guess
    kept = gap >= 0.0
    # Log epsilon has a slope of about 1, or more where there is amplification.
    step = math.copysign(max(_COARSE / 2.0, abs(gap)), loose - safe if kept else safe - loose)
    while True:
        following = at + step
        if not min(loose, safe) < following < max(loose, safe):
            return None
        if (missing(following) >= 0.0) != kept:
            return (at, following) if kept else (following, at)
        at, step = following, 2.0 * step


def _refined(
    event_at: Callable[[float], PrivacyEvent],
    safe: float,
    loose: float,
    target: float,
    delta: float,
    tolerance: float,
) -> float:
    """Close the bracket by secants: log epsilon is nearly linear in the log of the parameter."""

    def missing(log_parameter: float) -> float:
        spent = accounting.epsilon(event_at(math.exp(log_parameter)), delta)
        if spent == 0.0:
            return math.inf
        gap = math.log(target) - math.log(spent)
        return gap if spent <= target else min(gap, -1e-300)  # logarithms may hide the last bit

    at_safe, at_loose = missing(safe), missing(loose)
    # Illinois: an end that stays for a second time is drawn nearer to 0, and the secant past it.
    weight_safe = weight_loose = 1.0
    moved = ""
    while abs(safe - loose) > tolerance and at_safe > tolerance:
        middle = (safe + loose) / 2.0
        if math.isfinite(at_safe) and math.isfinite(at_loose):
            # Aim half a tolerance inside, so that the safe end closes in too; and never at an end.
            above = weight_safe * (at_safe - tolerance / 2.0)
            share = above / (above - weight_loose * (at_loose - tolerance / 2.0))
            middle = safe + min(max(share, 1e-3), 1.0 - 1e-3) * (loose - safe)
        if middle in (safe, loose):
            break
        at_middle = missing(middle)
        if at_middle >= 0.0:
            safe, at_safe, weight_safe = middle, at_middle, 1.0
            weight_loose /= 2.0 if moved == "safe" else 1.0
            moved = "safe"
        else:
            loose, at_loose, weight_loose = middle, at_middle, 1.0
            weight_safe /= 2.0 if moved == "loose" else 1.0
            moved = "loose"
    return safe


def rounds_within(event: PrivacyEvent, *, epsilon: float, delta: float) -> int:
    """How often the event may happen within the budget: 0 if not even once, at most 10^12."""
    parameter_rules.epsilon(epsilon)
    parameter_rules.delta(delta)

    def fits(count: int) -> bool:
        return accounting.within(Repeated(event=event, count=count), delta, epsilon)

    if not fits(1):
        return 0
    most, too_many = 1, 2
    while too_many <= MAX_ROUNDS and fits(too_many):
        most, too_many = too_many, 2 * too_many
    too_many = min(too_many, MAX_ROUNDS + 1)
    while too_many - most > 1:
        middle = (most + too_many) // 2
        most, too_many = (middle, too_many) if fits(middle) else (most, middle)
    return most
