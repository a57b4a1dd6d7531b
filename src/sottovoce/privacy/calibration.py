"""Calibration: the parameter, or the number of rounds, that just meets a privacy budget.

Results are rounded toward privacy: what is returned was checked to meet the budget.
"""

import math
from collections.abc import Callable
from typing import Literal

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.privacy import accounting
from sottovoce.privacy.events import PrivacyEvent, Repeated

Direction = Literal["larger", "smaller"]

# The ends of the search, the least private one first; just inside the range of the parameters.
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
    initial_guess: float | None = None,
) -> float:
    """Return the least private parameter whose event costs at most `epsilon` at `delta`.

    The result is the safe end of a bracket: its event itself was checked to meet the budget.

    Args:
        event_at: Function from the parameter, above 0, to its event. The event must become more
            private as the parameter becomes larger (or smaller, according to `more_private`).
        epsilon: The epsilon of the budget, above 0.
        delta: The delta of the budget, strictly between 0 and 1.
        more_private: "larger" or "smaller", the direction in which the event is more private.
        ends: The ends of the search, the least private one first. None for 1e-4 to 1e8 ("larger")
            or 999 to 1e-9 ("smaller").
        relative_tolerance: The search stops when the parameter is known to this fraction, or when
            its epsilon is below the budget by at most this fraction.
        initial_guess: A first guess of the parameter, which can make the search faster. None to
            search from the ends.

    Returns:
        The parameter. If the least private end meets the budget, that end.

    Raises:
        ParameterError: If not even the most private end is shown to meet the budget, also because
            no accountant handles its event, or if `epsilon` or `delta` is outside its range.
        UnsupportedEventError: If no accountant handles an event that the search compares closely,
            such as that of the initial guess.

    Examples:
        >>> from sottovoce.core.adjacency import Adjacency
        >>> from sottovoce.privacy import GaussianNoise
        >>> def event(noise_multiplier):
        ...     return GaussianNoise(mu=1.0 / noise_multiplier, adjacency=Adjacency.ZERO_OUT)
        >>> noise = calibrate(event, epsilon=1.0, delta=1e-5, more_private="larger")
        >>> round(noise, 3)
        3.731
    """
    parameter_rules.epsilon(epsilon)
    parameter_rules.delta(delta)

    def meets(log_parameter: float, *, quickly: bool = False) -> bool:
        event = event_at(math.exp(log_parameter))
        return accounting.within(event, delta, epsilon, quickly=quickly)

    loose, safe = (math.log(end) for end in ends or ENDS[more_private])
    if initial_guess is not None:
        bracket = _bracket_guess(
            event_at, math.log(initial_guess), (safe, loose), epsilon, delta, relative_tolerance
        )
        if bracket is not None:
            return math.exp(_refine_bracket(event_at, *bracket, epsilon, delta, relative_tolerance))
    quickly = meets(safe, quickly=True)
    if not quickly and not meets(safe):
        raise ParameterError(
            f"not even the parameter {math.exp(safe):g}, the most private one tried, reaches "
            f"epsilon {epsilon:g} at delta {delta:g}; ask for a larger epsilon or fewer rounds"
        )
    least_private = loose
    if meets(loose, quickly=quickly):
        return math.exp(loose)
    # A coarse tolerance needs no narrow bracket before the secant steps converge quickly.
    while abs(safe - loose) > max(_COARSE, 100.0 * relative_tolerance):
        middle = (safe + loose) / 2.0
        safe, loose = (middle, loose) if meets(middle, quickly=quickly) else (safe, middle)
    # The bracket holds for the quick accountants; the slow ones may show that less noise suffices.
    while quickly and meets(loose):
        if loose == least_private:
            return math.exp(loose)
        step = 2.0 * (loose - safe)
        safe = loose
        loose = safe + math.copysign(min(abs(step), abs(least_private - safe)), step)
    return math.exp(_refine_bracket(event_at, safe, loose, epsilon, delta, relative_tolerance))


def _bracket_guess(
    event_at: Callable[[float], PrivacyEvent],
    guess: float,
    ends: tuple[float, float],
    target: float,
    delta: float,
    tolerance: float,
) -> tuple[float, float] | None:
    """Return a safe and a loose end around the guess, by doubling steps; None if an end is passed.

    A guess that is good enough is returned as both ends.
    """
    safe, loose = ends

    def log_margin(log_parameter: float) -> float:
        spent = accounting.epsilon(event_at(math.exp(log_parameter)), delta)
        if spent == 0.0:
            return 1.0
        return math.log(target / spent) if spent < math.inf else -1.0

    at, gap = guess, log_margin(guess)
    if 0.0 <= gap <= tolerance:
        return guess, guess
    meets_budget = gap >= 0.0
    # Log epsilon has a slope of about 1 in the log parameter, or more with amplification.
    toward = loose - safe if meets_budget else safe - loose
    step = math.copysign(max(_COARSE / 2.0, abs(gap)), toward)
    while True:
        following = at + step
        if not min(loose, safe) < following < max(loose, safe):
            return None
        if (log_margin(following) >= 0.0) != meets_budget:
            return (at, following) if meets_budget else (following, at)
        at, step = following, 2.0 * step


def _refine_bracket(
    event_at: Callable[[float], PrivacyEvent],
    safe: float,
    loose: float,
    target: float,
    delta: float,
    tolerance: float,
) -> float:
    """Return the safe end after narrowing the bracket by secant steps.

    The logarithm of epsilon is nearly linear in the logarithm of the parameter.
    """

    def log_margin(log_parameter: float) -> float:
        spent = accounting.epsilon(event_at(math.exp(log_parameter)), delta)
        if spent == 0.0:
            return math.inf
        gap = math.log(target) - math.log(spent)
        # The logarithms may round away the last bit, so the comparison decides about the sign.
        return gap if spent <= target else min(gap, -1e-300)

    at_safe, at_loose = log_margin(safe), log_margin(loose)
    # Illinois method: the value of an end that stays twice is halved, which moves the secant.
    weight_safe = weight_loose = 1.0
    moved = ""
    while abs(safe - loose) > tolerance and at_safe > tolerance:
        middle = (safe + loose) / 2.0
        if math.isfinite(at_safe) and math.isfinite(at_loose):
            # Aim half a tolerance inside, so that the safe end moves as well, and never at an end.
            above = weight_safe * (at_safe - tolerance / 2.0)
            share = above / (above - weight_loose * (at_loose - tolerance / 2.0))
            middle = safe + min(max(share, 1e-3), 1.0 - 1e-3) * (loose - safe)
        if middle in (safe, loose):
            break
        at_middle = log_margin(middle)
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
    """Return how often an event may be repeated within a budget.

    Args:
        event: The event of one round.
        epsilon: The epsilon of the budget, above 0.
        delta: The delta of the budget, strictly between 0 and 1.

    Returns:
        The largest number of rounds that some accountant shows to meet the budget: 0 if even one
        round exceeds it or no accountant handles the event, at most 10^12.

    Raises:
        ParameterError: If `epsilon` or `delta` is outside its range.

    Examples:
        >>> from sottovoce.core.adjacency import Adjacency
        >>> from sottovoce.privacy import GaussianNoise
        >>> event = GaussianNoise(mu=0.1, adjacency=Adjacency.ZERO_OUT)
        >>> rounds_within(event, epsilon=2.0, delta=1e-5)
        25
    """
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
