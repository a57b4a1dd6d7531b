"""The PLD accountant: dominating pairs, composed by their privacy loss distributions.

For the dominating pairs the result is exact up to the grid, whose error is on the private side.
Where these pairs are tight it is tighter than the Renyi accountant, which loses in the conversion
to (epsilon, delta): about 15% for sampled Gaussians. Several bits count as Gaussian noise; for them
it is not.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.core.errors import UnsupportedEventError
from sottovoce.privacy.accounting import register
from sottovoce.privacy.conversion import epsilon_at_order, log_delta_at_order
from sottovoce.privacy.divergences import gaussian_delta
from sottovoce.privacy.dominating_pairs import dominating_pairs
from sottovoce.privacy.events import (
    Allocated,
    GaussianNoise,
    NonPrivate,
    PrivacyEvent,
    SummedBits,
    SummedNoise,
    basic_counts,
)
from sottovoce.privacy.gaussian import gaussian_epsilon
from sottovoce.privacy.loss_distributions import (
    LOG_OUTSIDE,
    ComposedLaw,
    CompositionTilts,
    LossLaw,
    coarse_law,
    grid_law,
    grid_step,
    loss_range,
)
from sottovoce.privacy.loss_pairs import PAIR_ACCURACY, GaussianPair, LossPair

_PRECISION = 1e-5  # Relative error of epsilon that the grid may add.
_LARGEST_GRID = 2.0**20
_LEAST_STEP = 8.0 * PAIR_ACCURACY  # A grid must not be finer than the accuracy of the edges.
_LARGEST_COUNT = 2**50
_TILTS = np.geomspace(1e-4, 1e10, 141)

Parts = tuple[tuple[LossPair, int], ...]


@register(
    summary="privacy loss distributions on a grid, rounded toward privacy",
    turn=6,
    slow=True,
)
class PldAccountant:
    """The PLD accountant: loss distributions on a grid, and the worse of the two directions.

    It needs a dominating pair of each part, which `ZeroConcentrated`, `RenyiCurve` and
    `LaplaceNoise` of dimension 2 or more do not have, nor `Shuffled` events without a finite pure
    epsilon and events that `allocated_pairs` refuses. Gaussian noise and secure sums alone and one
    random allocation alone are left to their own accountants. All of these raise
    `UnsupportedEventError`.
    """

    name = "pld"

    def epsilon(self, event: PrivacyEvent, delta: float) -> float:
        parameter_rules.delta(delta)
        return max((_epsilon(parts, delta) for parts in _directions(event)), default=math.inf)

    def delta(self, event: PrivacyEvent, epsilon: float) -> float:
        return max((_delta(parts, epsilon) for parts in _directions(event)), default=1.0)


def direction_epsilon(
    event: PrivacyEvent, delta: float, direction: Literal["towards", "away"]
) -> float:
    """Return the PLD accountant's epsilon in one direction only, an upper bound.

    It is an epsilon with sup P - e^epsilon Q <= `delta`, where the law with the contribution is P
    ("towards") or Q ("away"). Infinity if no finite one can be shown; `UnsupportedEventError` is
    raised for events that the accountant does not handle.
    """
    found = _directions(event)
    return _epsilon(found[0 if direction == "towards" else -1], delta) if found else math.inf


def direction_delta(
    event: PrivacyEvent, epsilon: float, direction: Literal["towards", "away"]
) -> float:
    """Return the PLD accountant's delta at `epsilon` in one direction only, an upper bound.

    It bounds sup P - e^epsilon Q, where the law with the contribution is P ("towards") or Q
    ("away"). 1 if nothing less can be shown; `UnsupportedEventError` is raised for events that the
    accountant does not handle.
    """
    found = _directions(event)
    return _delta(found[0 if direction == "towards" else -1], epsilon) if found else 1.0


def _directions(event: PrivacyEvent) -> list[Parts]:
    """Return the pairs to compose for the contribution in the first neighbor and in the second.

    The list is empty if no finite epsilon can be shown.
    """
    counts = basic_counts(event)
    if all(isinstance(part, GaussianNoise | SummedBits | SummedNoise) for part in counts):
        raise UnsupportedEventError(
            "all parts are GaussianNoise or secure sums, which the gaussian accountant composes "
            "exactly; use gaussian"
        )
    if sum(counts.values()) == 1 and isinstance(next(iter(counts)), Allocated):
        raise UnsupportedEventError(
            "for one random allocation the allocation accountant is exact; use allocation"
        )
    if any(isinstance(part, NonPrivate) for part in counts):
        return []
    found = dominating_pairs(event)
    if sum(count for _, _, count in found) > _LARGEST_COUNT:
        return []
    towards = tuple((pair, count) for pair, _, count in found)
    away = tuple((pair, count) for _, pair, count in found)
    return [towards] if towards == away else [towards, away]


@lru_cache(maxsize=256)  # A calibration asks for the same bound several times.
def _epsilon(parts: Parts, delta: float) -> float:
    """Return the smallest epsilon of one direction."""
    mu = _lone_gaussian(parts)
    if mu is not None:
        return gaussian_epsilon(mu, delta)
    plan = plan_composition(parts, delta)
    if plan is None:
        return math.inf
    for reach_down_to in (math.inf, 0.0):
        law = _compose(parts, plan, reach_down_to)
        start = max(0.0, law.floor)
        if law.delta(start) > delta:
            return _least_epsilon(law, delta, start, near=plan.epsilon)
        if start == 0.0:
            return 0.0
    return start


def _least_epsilon(law: ComposedLaw, delta: float, low: float, near: float) -> float:
    """Return where the delta of the law falls to `delta`, from above, to a relative 1e-8.

    Secant steps in log delta (Illinois method: the value of an end that stays twice is halved),
    with bisection where they are slow. The returned epsilon was itself evaluated. `near` is where
    the search begins.
    """
    high = near if low < near < law.top else law.top
    at_low, at_high = (_excess(law.delta(end), delta) for end in (low, high))
    if at_high > 0.0:
        low, at_low, high = high, at_high, law.top
        at_high = _excess(law.delta(high), delta)
    if at_high > 0.0:
        return math.inf
    weight_low = weight_high = 1.0
    moved = ""
    for i in range(200):
        if high - low <= 1e-8 * high or high <= 1e-12:
            break
        above = weight_low * at_low
        part = above / (above - weight_high * at_high) if i % 6 < 5 else 0.5
        # Aim slightly past the root, toward the farther end, so that this end moves too.
        part += math.copysign(4e-9 * high / (high - low), 0.5 - part)
        middle = low + min(0.999, max(0.001, part)) * (high - low)
        at_middle = _excess(law.delta(middle), delta)
        if at_middle > 0.0:
            low, at_low, weight_low = middle, at_middle, 1.0
            weight_high /= 2.0 if moved == "low" else 1.0
            moved = "low"
        else:
            high, at_high, weight_high = middle, at_middle, 1.0
            weight_low /= 2.0 if moved == "high" else 1.0
            moved = "high"
    return high


def _excess(found: float, delta: float) -> float:
    """Return log(found/delta), which is at most 0 only if `found` is at most delta."""
    if found <= delta:
        return min(0.0, math.log(max(found, 1e-308)) - math.log(delta))
    return max(1e-300, math.log(found) - math.log(delta))


def _delta(parts: Parts, epsilon: float) -> float:
    """Return the delta of one direction, on a grid planned for the delta of the Renyi bound."""
    mu = _lone_gaussian(parts)
    if mu is not None:
        return gaussian_delta(mu, epsilon)
    plan = plan_composition(parts, 1e-30, epsilon)
    plan = plan and plan_composition(parts, max(1e-290, min(0.5, plan.delta)), epsilon)
    return 1.0 if plan is None else _compose(parts, plan, epsilon).delta(epsilon)


def _lone_gaussian(parts: Parts) -> float | None:
    """Return the mu of a single Gaussian pair, which needs no grid; None for other parts.

    This is the case of several bits that are not sampled.
    """
    ((pair, count), *others) = parts
    return pair.mu if isinstance(pair, GaussianPair) and count == 1 and not others else None


def _compose(parts: Parts, plan: "CompositionPlan", reach_down_to: float) -> ComposedLaw:
    laws = [(grid_law(pair, plan.step, plan.tail), count) for pair, count in parts]
    return ComposedLaw(laws, plan.tilts, reach_down_to)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompositionPlan:
    """The grid and the tilts of a composition; the result is sound whatever they are.

    Attributes:
        step: The distance of grid points, in units of the privacy loss.
        tail: The P mass of each release that its grid may leave out on each side.
        tilts: The exponents of the tilted masses and Chernoff bounds.
        epsilon: The epsilon that was asked for, or the Renyi bound on it.
        delta: The delta that was asked for, or the Renyi bound on it.
    """

    step: float
    tail: float
    tilts: CompositionTilts
    # One of the two is what was asked for, the other one its Renyi bound.
    epsilon: float
    delta: float


def plan_composition(
    parts: Parts, delta: float, epsilon: float | None = None
) -> CompositionPlan | None:
    """Return a plan for the epsilon at `delta`, or for the delta at `epsilon` if that is given.

    `parts` are (pair, count), one direction of a composition; with `epsilon` given, `delta` is a
    guess of the result. The tilt is the best order (minus 1) of the Renyi bound, because delta is
    decided there. Rounding up to a grid of step h adds variance h^2/6 to each of n losses, so
    a h^2/12 to D_a, the Renyi divergence of order a, but never more than h. The result is None if
    the mass of infinite losses leaves nothing of `delta` (only without `epsilon`), or if a pair has
    no finite loss.
    """
    count = sum(times for _, times in parts)
    tail = max(1e-306, 10.0 ** math.floor(math.log10(1e-6 * delta / count)))
    coarse = [(_coarse_moments(pair, tail), times) for pair, times in parts]
    laws = [(one.law, times) for one, times in coarse]
    finite = sum(times * math.log1p(-min(law.infinite, 1.0 - 2.0**-53)) for law, times in laws)
    left = delta + math.expm1(finite) if epsilon is None else delta
    if left <= 0.0 or any(not len(law.losses) for law, _ in laws):
        return None

    def bound(tilt: float, moment: float) -> float:
        if epsilon is None:
            return epsilon_at_order(moment / tilt, 1.0 + tilt, left)
        return log_delta_at_order(moment / tilt, 1.0 + tilt, epsilon)

    tilts, moments, best = _moments(coarse, bound)
    tilt, found = float(tilts[best]), bound(float(tilts[best]), float(moments[best]))
    lows = (moments[best] - moments[:best] - LOG_OUTSIDE) / (tilt - tilts[:best])
    highs = (moments[best + 1 :] - moments[best] + LOG_OUTSIDE) / (tilts[best + 1 :] - tilt)
    positive = tilts > 0.0
    tops = (moments[positive] - math.log(1e-7 * left)) / tilts[positive]
    at = found if epsilon is None else epsilon
    low, high = min(float(np.max(lows)), at), max(float(np.min(highs)), float(np.min(tops)))
    widths = [end - start for start, end in (loss_range(pair, tail) for pair, _ in parts)]
    widest = max(*widths, high - low, 1e-12)
    spread = math.sqrt(sum(times * law.variance() for law, times in laws))
    cost = _PRECISION * max(at, 0.1 * spread)
    step = max(math.sqrt(12.0 * cost / ((1.0 + tilt) * count)), cost / count)
    if epsilon is not None:  # Losses that all lie below epsilon stay below it on such a grid.
        margin = epsilon - sum(times * loss_range(pair, tail)[1] for pair, times in parts)
        step = max(step, margin / (4.0 * count))
    return CompositionPlan(
        step=grid_step(max(min(step, widest / 64.0), widest / _LARGEST_GRID, _LEAST_STEP)),
        tail=tail,
        tilts=CompositionTilts(
            low=float(tilts[np.argmax(lows)]),
            middle=tilt,
            high=float(tilts[best + 1 + np.argmin(highs)]),
            top=float(tilts[positive][np.argmin(tops)]),
            top_mass=1e-7 * left,
        ),
        epsilon=at,
        delta=delta if epsilon is None else math.exp(min(0.0, found)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _CoarseMoments:
    """The law for planning, with a cache of K: every epsilon asks at the same tilts."""

    law: LossLaw
    known: dict[float, float] = field(default_factory=dict)

    def log_moments(self, tilts: Vector) -> Vector:
        """Return K at each tilt, from the cache where it is known."""
        new = [tilt for tilt in tilts.tolist() if tilt not in self.known]
        self.known.update(zip(new, self.law.log_moments(new), strict=True))
        return np.array([self.known[tilt] for tilt in tilts.tolist()])


@lru_cache(maxsize=64)
def _coarse_moments(pair: LossPair, tail: float) -> _CoarseMoments:
    return _CoarseMoments(coarse_law(pair, tail).support())


def _moments(
    laws: Sequence[tuple[_CoarseMoments, int]], bound: Callable[[float, float], float]
) -> tuple[Vector, Vector, int]:
    """Return increasing tilts, K of the composition at each, and the index of the best tilt.

    The tilts are refined around the best one, because K grows very fast where single large losses
    begin to dominate.
    """
    # Beyond this reach the rounding of a tilted loss would be visible in delta.
    reach = sum(times * float(np.max(np.abs(one.law.losses))) for one, times in laws)
    forward = _TILTS[: max(3, int(np.sum(_TILTS * reach <= 1e10)))]
    tilts, moments = np.zeros(0), np.zeros(0)
    more = np.concatenate((-_TILTS[::-4], [0.0], forward))
    for refinement in range(4):
        values = [times * one.log_moments(more) for one, times in laws]
        tilts, moments = np.append(tilts, more), np.append(moments, sum(values))
        order = np.argsort(tilts)
        tilts, moments = tilts[order], moments[order]
        first = int(np.searchsorted(tilts, 0.0, side="right"))
        bounds = [bound(t, m) for t, m in zip(tilts[first:-1], moments[first:-1], strict=True)]
        best = first + int(np.argmin(bounds))
        start = max(best - 1, first)
        if refinement < 3:
            more = np.geomspace(tilts[start], tilts[best + 1], 10)[1:-1]
            more = more[~np.isin(more, tilts)]
    return tilts, moments, best
