"""The Bellman accountant: exact adaptive composition of small finite cases by dynamic programming.

In each of T steps an adversary, who knows all earlier outcomes, picks one pair (P, Q) of laws from
a menu. The largest delta at A = e^epsilon over all of its strategies is V_T(A), where

    V_0(A) = (1 - A)_+,    V_t(A) = max over the menu of sum_x P(x) V_(t-1)(A Q(x)/P(x)),

and an outcome with Q(x) = 0 contributes P(x). This is exact: the hockey-stick divergence of two
stages is the mean, under P, of that of the second stage at A Q(x)/P(x).

V is convex and decreases from V(0) = 1. So on a grid of log A it is bounded by chords in A between
grid points, by the chord to V(0) = 1 to the left of the grid, and by the last value to the right.

Steps that share a budget, such as the coordinates of one vector of bits, have the remaining budget
as a second state, divided into cells: a coordinate that spends an amount within a cell gets the
laws of the cell's upper end and pays for its lower end.

If a composition has several kinds of releases, their order is not known, so the adversary also
chooses which kind comes next. Proofs: docs/explanation/privacy.md, section 30.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.core.errors import UnsupportedEventError
from sottovoce.privacy.accounting import register
from sottovoce.privacy.bellman_steps import (
    MAX_WORK,
    ROUNDING,
    BellmanGrid,
    BellmanStep,
    Coordinates,
    Menu,
)
from sottovoce.privacy.events import (
    BasicEvent,
    FiniteTable,
    OneBit,
    PrivacyEvent,
    Sampled,
    SummedBits,
    basic_counts,
)
from sottovoce.privacy.finite_menus import Pair, is_small, sampled_table_pairs
from sottovoce.privacy.loss_distributions import grid_step
from sottovoce.privacy.secure_sum import MAX_CLIENTS, MAX_REDUCED_CLIENTS

MAX_BITS = 12
_MAX_POINTS = 2**15
_MOST_RELEASES = 2**40
_LARGEST_REACH = 600.0  # e^600 still fits into float64.
_TABLE_PRECISION = 2e-5  # Relative error of epsilon that the grid of log A may add.
_ORDERS = 1.0 + np.geomspace(1e-2, 1e4, 120)


@register(summary="small finite cases, exactly, by dynamic programming", turn=7, slow=True)
class BellmanAccountant:
    """An accountant for tables, a few bits against fair ones, and secure sums of a few clients.

    It bounds delta over all strategies of an adversary who chooses the inputs of each release by
    the earlier outcomes, on a grid that rounds up. It supports a `FiniteTable` with few rows
    (Poisson-sampled or not), and with at most 12 coordinates `OneBit` with `against_zero` and
    `SummedBits` over 2 to 16 clients. `UnsupportedEventError` is raised for other events, for
    tables composed with bits, for tables with a single possible pair of laws, and for compositions
    that would take too long.
    """

    name = "bellman"

    def epsilon(self, event: PrivacyEvent, delta: float) -> float:
        parameter_rules.delta(delta)
        return max(curve.epsilon(delta) for curve in _curves(event, delta))

    def delta(self, event: PrivacyEvent, epsilon: float) -> float:
        # The grid is planned for a delta; that decides how tight the result is, not its soundness.
        rough = max(curve.delta(epsilon) for curve in _curves(event, 1e-6))
        if rough >= 1e-6:
            return rough
        return min(rough, max(curve.delta(epsilon) for curve in _curves(event, 1e-12)))


@dataclass(frozen=True, slots=True, eq=False)
class DeltaCurve:
    """Upper bounds on the delta of a composition as a function of epsilon, from values on a grid.

    `values` are upper bounds on V(A), the largest sup P - A Q over all strategies of the adversary,
    at the points A = e^epsilon of `grid`. Without `reverse`, delta at epsilon is V(A). With
    `reverse` it is that of the other direction: sup Q - A P = 1 - A + A V(1/A).
    """

    grid: BellmanGrid
    values: Vector
    reverse: bool = False

    def delta(self, epsilon: float) -> float:
        # Delta decreases with epsilon, and V with A, so that smaller values are on the safe side.
        grid, epsilon = self.grid, min(epsilon, _LARGEST_REACH)
        at = -epsilon if self.reverse else epsilon
        at -= ROUNDING * (1.0 + abs(at))
        place = at / grid.step + grid.below
        if place >= grid.size - 1:
            value = float(self.values[-1])
        elif place < 0.0:
            value = 1.0 - (1.0 - float(self.values[0])) * math.exp(place * grid.step)
        else:
            low = min(math.floor(place), grid.size - 2)
            share = math.expm1(min(1.0, place - low) * grid.step) / math.expm1(grid.step)
            value = float((1.0 - share) * self.values[low] + share * self.values[low + 1])
        value *= 1.0 + ROUNDING
        if self.reverse:
            value = -math.expm1(epsilon) + math.exp(epsilon) * (value + ROUNDING)
        return min(1.0, max(0.0, value))

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon >= 0, rounded up, at which the bound is at most `delta`.

        The result is infinity if there is none within the grid.
        """
        low, high = 0.0, self.grid.step * (self.grid.below if self.reverse else self.grid.above)
        if self.delta(low) <= delta:
            return low
        if self.delta(high) > delta:
            return math.inf
        while high - low > 1e-9 * high:
            middle = (low + high) / 2.0
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high


def _curves(event: PrivacyEvent, delta: float) -> list[DeltaCurve]:
    """Return V_T in each direction that can be the worse one, on a grid planned for `delta`."""
    plans = [_direction_steps(event, reverse=False)]
    counted = plans[0]
    if event.adjacency == Adjacency.ZERO_OUT and all(isinstance(p, Menu) for p, _ in counted):
        plans.append(_direction_steps(event, reverse=True))
    decade = 10.0 ** math.floor(math.log10(delta))
    curves = [_solve(tuple(parts), decade) for parts in plans]
    if any(isinstance(part, Coordinates) and part.event.against_zero for part, _ in counted):
        curves.append(DeltaCurve(curves[0].grid, curves[0].values, reverse=True))
    return curves


def _direction_steps(event: PrivacyEvent, *, reverse: bool) -> list[tuple[BellmanStep, int]]:
    counts = basic_counts(event)
    if sum(counts.values()) > _MOST_RELEASES:
        raise UnsupportedEventError(
            f"the bellman accountant composes at most {_MOST_RELEASES} releases; use renyi"
        )
    parts = [(_step_of(part, reverse=reverse), count) for part, count in counts.items()]
    if len({type(part) for part, _ in parts}) > 1:
        raise UnsupportedEventError(
            "the bellman accountant composes tables with tables and bits with bits; use renyi for "
            "both together"
        )
    if all(isinstance(part, Menu) and len(part.pairs) == 1 for part, _ in parts):
        raise UnsupportedEventError(
            "every release has only one possible pair of laws, so the pld accountant is exact; use "
            "pld"
        )
    return parts


def _step_of(event: BasicEvent, *, reverse: bool) -> BellmanStep:
    match event:
        case FiniteTable() if is_small(event):
            return Menu(_orient(sampled_table_pairs(event, 1.0), reverse=reverse))
        case Sampled(event=FiniteTable() as table) if event.scheme == "poisson" and is_small(table):
            return Menu(_orient(sampled_table_pairs(table, event.rate), reverse=reverse))
        case OneBit() if event.against_zero and event.dimension <= MAX_BITS:
            return Coordinates(event)
        case SummedBits() if (
            1 < event.clients <= MAX_REDUCED_CLIENTS and event.dimension <= MAX_BITS
        ):
            # Of more clients some are assumed to reveal their bits: a sum over the others is left.
            return Coordinates(replace(event, clients=min(event.clients, MAX_CLIENTS)))
        case _:
            raise UnsupportedEventError(
                "the bellman accountant supports small tables (Poisson-sampled or not) and, with "
                f"at most {MAX_BITS} coordinates, OneBit with against_zero and SummedBits over 2 "
                f"to {MAX_REDUCED_CLIENTS} clients, got {type(event).__name__} that is "
                "none of these; use renyi"
            )


def _orient(pairs: tuple[Pair, ...], *, reverse: bool) -> tuple[Pair, ...]:
    return tuple((second, first) for first, second in pairs) if reverse else pairs


@lru_cache(maxsize=32)
def _solve(parts: tuple[tuple[BellmanStep, int], ...], delta: float) -> DeltaCurve:
    grid = _plan_grid(parts, delta)
    states = math.prod(count + (len(parts) > 1) for _, count in parts)
    work = float(states) * math.fsum(part.work(grid) for part, _ in parts)
    if work > MAX_WORK:
        raise UnsupportedEventError(
            "the bellman accountant would take too long for so many releases, rows or clients; "
            "use renyi"
        )
    return DeltaCurve(grid, _compose(parts, grid))


def _compose(parts: Sequence[tuple[BellmanStep, int]], grid: BellmanGrid) -> Vector:
    """Return V before all releases, where the adversary chooses the next kind among those left."""
    counts = [count for _, count in parts]
    level = {(0,) * len(parts): grid.start()}
    for total in range(1, sum(counts) + 1):
        level = {
            state: np.maximum.reduce(list(_options(parts, state, level, grid)))
            for state in _states(counts, total)
        }
    return level[tuple(counts)]


def _states(counts: Sequence[int], total: int) -> Iterator[tuple[int, ...]]:
    """Yield the possible numbers of releases left of each kind, `total` in all."""
    if len(counts) == 1:
        yield (total,)
        return
    for state in itertools.product(*(range(count + 1) for count in counts[:-1])):
        rest = total - sum(state)
        if 0 <= rest <= counts[-1]:
            yield (*state, rest)


def _options(
    parts: Sequence[tuple[BellmanStep, int]],
    state: tuple[int, ...],
    after: dict[tuple[int, ...], Vector],
    grid: BellmanGrid,
) -> Iterator[Vector]:
    for i, (part, _) in enumerate(parts):
        if state[i]:
            left = (*state[:i], state[i] - 1, *state[i + 1 :])
            yield part.value_before(after[left], grid)


def _plan_grid(parts: Sequence[tuple[BellmanStep, int]], delta: float) -> BellmanGrid:
    """Return a grid for epsilons at about `delta`; it reaches as far as Chernoff's bound says.

    Rounding up to a grid of step h adds variance of at most h^2/4 to a loss, h^2/6 on average.
    """
    forward, backward = (
        np.array(
            [
                math.fsum(count * part.log_moment(order, reverse=reverse) for part, count in parts)
                for order in _ORDERS.tolist()
            ]
        )
        for reverse in (False, True)
    )
    tilts = _ORDERS - 1.0
    both_ways = any(isinstance(part, Coordinates) for part, _ in parts)
    reach, tilt = _chernoff(forward, tilts, 1e-3 * delta)
    below, _ = _chernoff(backward, tilts, 1e-3 * delta)
    if not reach + below < _LARGEST_REACH:
        raise UnsupportedEventError(
            "the bellman accountant supports compositions whose privacy losses (log-likelihood "
            f"ratios) mostly lie within a range of {_LARGEST_REACH:g}; use renyi"
        )
    draws = sum(count * part.draws for part, count in parts)
    if both_ways:  # A few losses with a few values each need more points than many losses.
        step = reach / max(1200.0 / draws, 32.0 * math.sqrt(draws), 4000.0 if draws == 1 else 0.0)
    else:
        step = math.sqrt(12.0 * _TABLE_PRECISION * reach / ((1.0 + tilt) * draws))
        step = min(step, reach / (4000.0 if draws == 1 else 500.0))
    step = grid_step(max(step, (reach + below) / _MAX_POINTS, 1e-9))
    return BellmanGrid(step, max(8, math.ceil(below / step)), max(8, math.ceil(reach / step)))


def _chernoff(moments: Vector, tilts: Vector, mass: float) -> tuple[float, float]:
    """Return a loss above which there is at most that mass, and the tilt that shows it."""
    bounds = (moments - math.log(mass)) / tilts
    best = int(np.argmin(bounds))
    return max(1e-6, float(bounds[best])), float(tilts[best])
