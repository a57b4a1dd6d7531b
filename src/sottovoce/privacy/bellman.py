"""The Bellman accountant: small finite cases, composed by the worst choice after every past.

In each step an adversary who knows the past picks one pair (P, Q) of laws from a menu. The largest
delta at A = e^epsilon over all of its strategies is V_T(A), where

    V_0(A) = (1 - A)_+,    V_t(A) = max over the menu of sum_x P(x) V_(t-1)(A Q(x)/P(x)),

with P(x) itself where Q(x) = 0: the hockey-stick divergence of two stages is that mean, exactly.
V is convex and falls, from V(0) = 1. So on a grid of log A it lies below the chords in A, below the
chord to V(0) = 1 on the left of the grid, and below the last value on the right.

Steps that share a budget, such as the coordinates of one vector of bits, have it as a second state.
It counts in cells: who spends within a cell has the laws of its top and pays for its bottom.

Where a composition holds several kinds of releases, whose order is not known, the adversary chooses
which comes next. Proofs in docs/privacy.md, section 30.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np

from sottovoce import parameter_rules
from sottovoce.adjacency import Adjacency
from sottovoce.domains import Vector
from sottovoce.errors import UnsupportedEventError
from sottovoce.privacy.accountant import register
from sottovoce.privacy.divergences import log_sum_exp
from sottovoce.privacy.events import (
    BasicEvent,
    FiniteTable,
    OneBit,
    PrivacyEvent,
    Sampled,
    SecureSum,
    basic_counts,
)
from sottovoce.privacy.finite_menus import (
    Pair,
    bit_pairs,
    is_small,
    sampled_table_pairs,
    sum_pairs,
)
from sottovoce.privacy.loss_distributions import grid_step
from sottovoce.privacy.one_bit import one_bit_renyi

MAX_BITS = 12
MAX_CLIENTS = 6
_MAX_WORK = 8e8  # multiplications: two seconds
_MAX_POINTS = 2**15
_LARGEST_REACH = 600.0  # e^600 is a float64
_TABLE_PRECISION = 2e-5  # what the grid of log A may cost, as a part of epsilon
_CELLS = (180, 10)  # of the budget, and more for each coordinate
_LEAST_CELLS = 16  # for each coordinate
_ORDERS = 1.0 + np.geomspace(1e-2, 1e4, 120)
_ROUNDING = 2.0**-46  # of laws, ratios and sums, on the private side


@register(
    summary="small finite cases exactly: the worst choice after every past", turn=7, slow=True
)
class BellmanAccountant:
    """For tables, a few bits against fair ones, and secure sums of few clients."""

    name = "bellman"

    def epsilon(self, event: PrivacyEvent, delta: float) -> float:
        parameter_rules.delta(delta)
        return max(curve.epsilon(delta) for curve in _curves(event, delta))

    def delta(self, event: PrivacyEvent, epsilon: float) -> float:
        # The grid is planned for a delta, which only decides how close the result is.
        rough = max(curve.delta(epsilon) for curve in _curves(event, 1e-6))
        if rough >= 1e-6:
            return rough
        return min(rough, max(curve.delta(epsilon) for curve in _curves(event, 1e-12)))


@dataclass(frozen=True, slots=True)
class Grid:
    """The points A = e^(i step), i = -below, ..., above."""

    step: float
    below: int
    above: int

    @property
    def size(self) -> int:
        return self.below + 1 + self.above

    def start(self) -> Vector:
        """V_0 = (1 - A)_+ at the points; one of them is its kink."""
        logs = np.arange(-self.below, self.above + 1) * self.step
        return np.asarray(np.maximum(0.0, -np.expm1(logs)))

    def padded(self, values: Vector) -> Vector:
        """`values`, continued by the chord to V(0) = 1 on the left and by the last on the right."""
        decay = np.exp(-self.step * np.arange(self.size, 0, -1))
        left = 1.0 - (1.0 - values[..., :1]) * decay * (1.0 - _ROUNDING)
        right = np.broadcast_to(values[..., -1:], (*values.shape[:-1], self.size + 1))
        return np.concatenate([left, values, right], axis=-1)


@dataclass(frozen=True, slots=True)
class Letters:
    """One pair of laws on a grid: where each letter moves A, and how it weighs the two points."""

    places: tuple[int, ...]
    weights: tuple[tuple[float, float], ...]
    infinite: float  # the mass of letters that Q does not have

    @classmethod
    def of(cls, pair: Pair, grid: Grid) -> "Letters":
        places, weights, infinite = [], [], 0.0
        for p, q in zip(*pair, strict=True):
            if not p > 0.0:
                continue
            move = math.log(q) - math.log(p) if q > 0.0 else -math.inf
            move -= _ROUNDING * (1.0 + abs(move))  # V falls: a smaller A only adds
            if move < -grid.size * grid.step:
                infinite += p  # V <= 1
                continue
            place = min(math.floor(move / grid.step), grid.size - 1)
            share = min(1.0, math.expm1(move - place * grid.step) / math.expm1(grid.step))
            share = max(0.0, share)
            places.append(grid.size + place)
            up = p * (1.0 + _ROUNDING)
            weights.append((up * (1.0 - share), up * share))
        return cls(tuple(places), tuple(weights), infinite * (1.0 + _ROUNDING))

    def mean(self, padded: Vector, size: int) -> Vector:
        """sum_x P(x) V(A Q(x)/P(x)) at all points; V is `padded`."""
        total = np.full((*padded.shape[:-1], size), self.infinite)
        buffer = np.empty_like(total)
        for place, (low, high) in zip(self.places, self.weights, strict=True):
            for at, weight in ((place, low), (place + 1, high)):
                np.multiply(padded[..., at : at + size], weight, out=buffer)
                total += buffer
        return total


class Part(Protocol):
    """One release of a composition: what the adversary may choose, in one direction."""

    def log_moment(self, order: float, *, reverse: bool) -> float:
        """An upper bound on (a-1) D_a of the finite losses, to plan with."""
        ...

    @property
    def draws(self) -> int:
        """How often the grid is rounded up to in a release."""
        ...

    def work(self, grid: Grid) -> float:
        """Multiplications for one release, about."""
        ...

    def before(self, values: Vector, grid: Grid) -> Vector:
        """V before the release, given V after it."""
        ...


@dataclass(frozen=True)
class Menu:
    """A release whose pair of laws is one of finitely many."""

    pairs: tuple[Pair, ...]
    draws = 1

    def log_moment(self, order: float, *, reverse: bool) -> float:
        ways = self._reversed if reverse else self._logs
        moments = [log_sum_exp(order * p + (1.0 - order) * q) for p, q in ways if len(p)]
        return max(moments, default=0.0)

    @cached_property
    def _logs(self) -> list[tuple[Vector, Vector]]:
        found = []
        for pair in self.pairs:
            first, second = np.array(pair[0]), np.array(pair[1])
            both = (first > 0.0) & (second > 0.0)
            found.append((np.log(first[both]), np.log(second[both])))
        return found

    @cached_property
    def _reversed(self) -> list[tuple[Vector, Vector]]:
        return [(q, p) for p, q in self._logs]

    def work(self, grid: Grid) -> float:
        return 2.0 * grid.size * sum(len(first) for first, _ in self.pairs)

    def before(self, values: Vector, grid: Grid) -> Vector:
        padded = grid.padded(values)
        menu = _letters(self.pairs, grid)
        return np.asarray(np.maximum.reduce([one.mean(padded, grid.size) for one in menu]))


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Coordinates drawn one after another, of which a coordinate that moves by s spends s^2.

    All of them together spend at most shift^2. A coordinate without a budget left is not seen:
    its two laws are the same.
    """

    event: OneBit | SecureSum

    @property
    def draws(self) -> int:
        return self.event.dimension

    def log_moment(self, order: float, *, reverse: bool) -> float:  # noqa: ARG002 - a bound on both
        return (order - 1.0) * one_bit_renyi(self.event.shift, self.event.dimension, order)

    def pairs(self, move: float) -> tuple[Pair, ...]:
        """What a coordinate that moves by at most that may have."""
        match self.event:
            case OneBit():
                return bit_pairs(move)
            case SecureSum():
                return sum_pairs(
                    move,
                    self.event.logit_bound,
                    self.event.clients,
                    spacing=0.06 if self.event.dimension == 1 else 0.25,
                    against_zero=self.event.against_zero,
                )

    def cells(self, grid: Grid) -> int:
        """Into how many cells the budget is cut: fewer where that would take too long."""
        dimension = self.event.dimension
        count = _CELLS[0] + _CELLS[1] * dimension
        while self._work(count, grid) > _MAX_WORK and count > _LEAST_CELLS * dimension:
            count -= count // 8
        return count

    def work(self, grid: Grid) -> float:
        return self._work(self.cells(grid), grid)

    def _work(self, cells: int, grid: Grid) -> float:
        dimension = self.event.dimension
        typical = self.event.shift / math.sqrt(dimension)
        letters = 2.0 * grid.size * sum(len(first) for first, _ in self.pairs(typical))
        if dimension == 1:
            return letters
        layers = sum(
            sum(cells - bottom for _, bottom in _cells(cells, n)) for n in range(2, dimension)
        )
        return letters * (layers + 2 * cells)

    def before(self, values: Vector, grid: Grid) -> Vector:
        dimension, shift = self.event.dimension, self.event.shift * (1.0 + _ROUNDING)
        cells = self.cells(grid)

        def menu(spent: int) -> tuple[Letters, ...]:
            return _letters(self.pairs(shift * math.sqrt(spent / cells)), grid)

        def best(spent: int, padded: Vector) -> Vector:
            means = [letters.mean(padded, grid.size) for letters in menu(spent)]
            return means[0] if len(means) == 1 else np.maximum.reduce(means)

        padded = grid.padded(values)
        if dimension == 1:
            return best(cells, padded)
        # The last coordinate spends all that is left.
        layer = np.stack([values, *(best(spent, padded) for spent in range(1, cells + 1))])
        for left in range(2, dimension + 1):
            whole = left < dimension
            padded, layer = grid.padded(layer), layer.copy()
            if not whole:
                layer = layer[-1:]
            for top, bottom in _cells(cells, left):
                rows = padded[1 : cells - bottom + 1] if whole else padded[cells - bottom, None]
                reached = layer[bottom + 1 :] if whole else layer
                np.maximum(reached, best(top, rows), out=reached)
        return np.asarray(layer[-1])


@lru_cache(maxsize=64)
def _cells(count: int, left: int) -> tuple[tuple[int, int], ...]:
    """(top, bottom) of the cells, with `left` coordinates to come: wider where few would spend."""
    found, bottom = [], 0
    while bottom < count:
        beyond = max(0.0, bottom - 1.6 * count / left)
        top = min(count, bottom + 1 + int(beyond * 0.15))
        found.append((top, bottom))
        bottom = top
    return tuple(found)


@lru_cache(maxsize=1024)
def _letters(pairs: tuple[Pair, ...], grid: Grid) -> tuple[Letters, ...]:
    return tuple(Letters.of(pair, grid) for pair in pairs)


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Upper bounds of V_T at the points of a grid, read as delta(epsilon).

    `turned` is the other direction: sup of Q - A P is 1 - A + A V(1/A).
    """

    grid: Grid
    values: Vector
    turned: bool = False

    def delta(self, epsilon: float) -> float:
        grid = self.grid
        at = -epsilon if self.turned else epsilon
        at -= _ROUNDING * (1.0 + abs(at))  # V falls
        place = at / grid.step + grid.below
        if place >= grid.size - 1:
            value = float(self.values[-1])
        elif place < 0.0:
            value = 1.0 - (1.0 - float(self.values[0])) * math.exp(place * grid.step)
        else:
            low = min(math.floor(place), grid.size - 2)
            share = math.expm1(min(1.0, place - low) * grid.step) / math.expm1(grid.step)
            value = float((1.0 - share) * self.values[low] + share * self.values[low + 1])
        value *= 1.0 + _ROUNDING
        if self.turned:
            value = -math.expm1(epsilon) + math.exp(epsilon) * (value + _ROUNDING)
        return min(1.0, max(0.0, value))

    def epsilon(self, delta: float) -> float:
        """Where delta falls to that, rounded up; infinity if it does not within the grid."""
        low, high = 0.0, self.grid.step * (self.grid.below if self.turned else self.grid.above)
        if self.delta(low) <= delta:
            return low
        if self.delta(high) > delta:
            return math.inf
        while high - low > 1e-9 * high:
            middle = (low + high) / 2.0
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high


def _curves(event: PrivacyEvent, delta: float) -> list[Curve]:
    """V_T in every direction that counts, on a grid for deltas of about that."""
    plans = [_direction(event, reverse=False)]
    counted = plans[0]
    if event.adjacency == Adjacency.ZERO_OUT and all(isinstance(p, Menu) for p, _ in counted):
        plans.append(_direction(event, reverse=True))
    decade = 10.0 ** math.floor(math.log10(delta))
    curves = [_solved(tuple(parts), decade) for parts in plans]
    if any(isinstance(part, Coordinates) and part.event.against_zero for part, _ in counted):
        curves.append(Curve(curves[0].grid, curves[0].values, turned=True))
    return curves


def _direction(event: PrivacyEvent, *, reverse: bool) -> list[tuple[Part, int]]:
    counts = basic_counts(event)
    parts = [(_part(part, reverse=reverse), count) for part, count in counts.items()]
    if len({type(part) for part, _ in parts}) > 1:
        raise UnsupportedEventError(
            "the bellman accountant composes tables with tables and bits with bits; use pld or "
            "renyi for both together"
        )
    if all(isinstance(part, Menu) and len(part.pairs) == 1 for part, _ in parts):
        raise UnsupportedEventError("there is nothing to choose here, and pld is exact; use pld")
    return parts


def _part(event: BasicEvent, *, reverse: bool) -> Part:
    match event:
        case FiniteTable() if is_small(event):
            return Menu(_towards(sampled_table_pairs(event, 1.0), reverse=reverse))
        case Sampled(event=FiniteTable() as table) if event.scheme == "poisson" and is_small(table):
            return Menu(_towards(sampled_table_pairs(table, event.rate), reverse=reverse))
        case OneBit() if event.against_zero and event.dimension <= MAX_BITS:
            return Coordinates(event)
        case SecureSum() if 1 < event.clients <= MAX_CLIENTS and event.dimension <= MAX_BITS:
            return Coordinates(event)
        case _:
            raise UnsupportedEventError(
                "the bellman accountant is for tables (Poisson-sampled or not), at most "
                f"{MAX_BITS} bits against fair ones and secure sums of at most {MAX_CLIENTS} "
                f"clients, got {type(event).__name__}; use pld or renyi"
            )


def _towards(pairs: tuple[Pair, ...], *, reverse: bool) -> tuple[Pair, ...]:
    return tuple((second, first) for first, second in pairs) if reverse else pairs


@lru_cache(maxsize=32)
def _solved(parts: tuple[tuple[Part, int], ...], delta: float) -> Curve:
    grid = _planned(parts, delta)
    states = math.prod(count + (len(parts) > 1) for _, count in parts)
    work = float(states) * math.fsum(part.work(grid) for part, _ in parts)
    if work > _MAX_WORK:
        raise UnsupportedEventError(
            "the bellman accountant would take too long for so many releases, rows or clients; "
            "use pld or renyi"
        )
    return Curve(grid, _composed(parts, grid))


def _composed(parts: Sequence[tuple[Part, int]], grid: Grid) -> Vector:
    """V with all releases to come, the adversary choosing the next one among those left."""
    counts = [count for _, count in parts]
    level = {(0,) * len(parts): grid.start()}
    for total in range(1, sum(counts) + 1):
        level = {
            state: np.maximum.reduce(list(_options(parts, state, level, grid)))
            for state in _states(counts, total)
        }
    return level[tuple(counts)]


def _states(counts: Sequence[int], total: int) -> Iterator[tuple[int, ...]]:
    """How many of each kind may be left, `total` in all."""
    if len(counts) == 1:
        yield (total,)
        return
    for state in itertools.product(*(range(count + 1) for count in counts[:-1])):
        rest = total - sum(state)
        if 0 <= rest <= counts[-1]:
            yield (*state, rest)


def _options(
    parts: Sequence[tuple[Part, int]],
    state: tuple[int, ...],
    after: dict[tuple[int, ...], Vector],
    grid: Grid,
) -> Iterator[Vector]:
    for i, (part, _) in enumerate(parts):
        if state[i]:
            left = (*state[:i], state[i] - 1, *state[i + 1 :])
            yield part.before(after[left], grid)


def _planned(parts: Sequence[tuple[Part, int]], delta: float) -> Grid:
    """A grid for epsilons at about `delta`: it reaches as far as Chernoff's bound says.

    Rounding up to a step h adds variance of at most h^2/4 to a loss, in the mean h^2/6.
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
            "the bellman accountant is for losses of at most a few hundred; use renyi"
        )
    draws = sum(count * part.draws for part, count in parts)
    if both_ways:  # few losses of few values need more points than many
        step = reach / max(1200.0 / draws, 32.0 * math.sqrt(draws), 4000.0 if draws == 1 else 0.0)
    else:
        step = math.sqrt(12.0 * _TABLE_PRECISION * reach / ((1.0 + tilt) * draws))
        step = min(step, reach / (4000.0 if draws == 1 else 500.0))
    step = grid_step(max(step, (reach + below) / _MAX_POINTS, 1e-9))
    return Grid(step, max(8, math.ceil(below / step)), max(8, math.ceil(reach / step)))


def _chernoff(moments: Vector, tilts: Vector, mass: float) -> tuple[float, float]:
    """A loss above which there is at most that mass, and the tilt that shows it."""
    bounds = (moments - math.log(mass)) / tilts
    best = int(np.argmin(bounds))
    return max(1e-6, float(bounds[best])), float(tilts[best])
