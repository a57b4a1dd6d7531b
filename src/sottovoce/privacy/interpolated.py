"""The privacy of a vector whose coordinates pass through an interpolated table.

Between knots x_k <= x <= x_{k+1} the law P(x) is the linear interpolation of rows k and k + 1, so
inputs are continuous and need not be rounded to a grid. Let h(t) be the largest D_a(P(x) || P(y))
over |x - y| <= t. Three facts, for a > 1:

1.  F(x, y) = e^((a-1) D_a(P(x) || P(y))) = sum_j P_j(x)^a P_j(y)^(1-a) is jointly convex in the
    two laws (u^a v^(1-a) is the perspective of u^a), which are linear in (x, y) on each rectangle
    of knot cells. So its maximum over {|x - y| <= t} within a rectangle is at a corner of that
    polygon: a pair of knots, or a knot and the point t away from it. Hence

        h(t) = max over knots x_k, both signs, both directions, and s <= t of D(x_k, x_k +- s).

2.  While x_k + s stays in one cell, F is convex in s. So between two adjacent distances l < r
    (every distance between knots is one of them) the largest F lies below its chord.
    log(chord)/(a-1) is increasing and concave in the cost c = s^p, p >= 1, so it lies below its
    tangents at both ends: the point where they meet is one option that covers the whole interval.

3.  From a knot, with q = P(x_k) and slope w of the law, F - 1 <= s^2/2 max F'' on 0 <= s <= r, and

        F'' = a (a-1) sum w^2 q^(1-a) (q + s w)^(a-2)     for D(P(x_k + s) || P(x_k))
        F'' = a (a-1) sum w^2 q^a (q + s w)^(-1-a)        for D(P(x_k) || P(x_k + s)),

    each term monotone in s, so largest at 0 or r. In c = s^p, p <= 2, the bound is a convex
    function: one option at r covers the interval from 0 to r.

The envelope of these options (`privacy.envelope`) is an upper bound. The distances that determine
it are refined until it meets the envelope of the values attained at the distances themselves. See
also docs/explanation/privacy.md, section 19.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.privacy.envelope import (
    BUDGET_ROUNDING,
    check_order,
    envelope_bound,
    envelope_price,
    pmf_rows,
    rowwise_renyi,
)

_ROUNDS = 60
_NEGLIGIBLE = 1e-15  # A divergence below this is not refined.
_MAX_DISTANCES = 20_000
_BLOCK_CELLS = 1 << 19
_POSITION_ERROR = 2e-14  # Error of x + s and of gaps between knots, in units of the span.


def interpolated_renyi_bound(
    knots: ArrayLike,
    rows: ArrayLike,
    order: float,
    *,
    power: float,
    radius_distance: float,
    dimension: int,
    center: float | None = None,
    resolution: float = 1e-3,
) -> float:
    """Return an upper bound on D_a of a vector whose coordinates pass an interpolated table.

    D_a is the Renyi divergence between the messages of two neighbors, in both directions. The
    coordinates pass independently: an input x between two knots has the linear interpolation of
    their rows as its law. No input lies outside the knots.

    Args:
        knots: The inputs of the rows, increasing, at least two; each gap above 1e-9 of the span.
        rows: The pmf of each knot, all over the same outcomes.
        order: The order a of the divergence, above 1 and at most 1e6.
        power: The p, from 1 to 2, of the L_p norm in which neighbors are close.
        radius_distance: The largest L_p distance between the input vectors of two neighbors, in
            units of the knots.
        dimension: The number of coordinates.
        center: If given, one of the two neighbors has this input in every coordinate (zero-out
            adjacency). None if both may have any inputs.
        resolution: Refinement stops when the bound is within this fraction of the best attained
            value. The bound is sound at every resolution.

    Returns:
        The bound; infinity if no finite one holds.

    Raises:
        ParameterError: An argument is outside its range, or `center` outside the knots.
    """
    check_order(order)
    points, table = _checked_table(knots, rows)
    if not 1.0 <= power <= 2.0:
        raise ParameterError(
            f"power must lie between 1 and 2, got {power!r}; use L1 or L2 clipping"
        )
    parameter_rules.positive("resolution", resolution, at_most=1.0)
    reach = parameter_rules.positive("radius_distance", radius_distance) * (1.0 + BUDGET_ROUNDING)
    laws = [_Laws(points=points, table=table, center=center, order=order, forward=True)]
    laws.append(_Laws(points=points, table=table, center=center, order=order, forward=False))
    groups = [tuple(laws)] if center is None else [(law,) for law in laws]
    bound = max(_bound(group, power, reach, dimension, resolution) for group in groups)
    return bound * (1.0 + 1e-12)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Laws:
    """Interpolated laws, compared with those at the bases: all knots, or one fixed point."""

    points: Vector
    table: Vector
    center: float | None
    order: float
    forward: bool  # True for D(moved || base), False for D(base || moved).

    @property
    def bases(self) -> Vector:
        """The inputs from which distances are measured."""
        if self.center is None:
            return self.points
        if not self.points[0] <= self.center <= self.points[-1]:
            raise ParameterError(
                f"the center must lie between the knots {self.points[0]:g} and "
                f"{self.points[-1]:g}, "
                f"got {self.center!r}"
            )
        return np.array([self.center], dtype=np.float64)

    def at(self, inputs: Vector) -> Vector:
        """Return P(x) for each input x, every probability to a relative 2^-50."""
        cell = np.clip(np.searchsorted(self.points, inputs) - 1, 0, len(self.points) - 2)
        left, right = self.points[cell], self.points[cell + 1]
        before, after = (right - inputs) / (right - left), (inputs - left) / (right - left)
        return np.asarray(
            before[..., None] * self.table[cell] + after[..., None] * self.table[cell + 1]
        )

    def breakpoints(self) -> Vector:
        """Return every positive distance at which a moved point meets a knot."""
        gaps = np.unique(np.abs(self.bases[:, None] - self.points[None, :]))
        if self.center is None:  # Gaps closer than 1e-14 of the span differ by rounding only.
            span = self.points[-1] - self.points[0]
            gaps = np.unique(np.round(gaps / span, 14)) * span
        return gaps[gaps > 0.0]

    def largest(self, distances: Vector) -> Vector:
        """Return the largest divergence over all bases and both signs, at each distance."""
        bases = self.bases
        block = max(1, _BLOCK_CELLS // (2 * self.table.shape[1] * len(bases)))
        parts = [
            self._largest(bases, distances[start : start + block])
            for start in range(0, len(distances), block)
        ]
        return np.concatenate(parts)

    def _largest(self, bases: Vector, distances: Vector) -> Vector:
        low, high = self.points[0], self.points[-1]
        base = self.at(bases)[:, None, :]
        last, found = len(self.points) - 1, np.zeros(len(distances))
        ahead = np.minimum(np.searchsorted(self.points, bases, side="right"), last)
        behind = np.maximum(np.searchsorted(self.points, bases, side="left") - 1, 0)
        for sign, following in ((1.0, ahead), (-1.0, behind)):
            inputs = bases[:, None] + sign * distances
            slack = _POSITION_ERROR * (high - low)
            outside = (inputs < low - slack) | (inputs > high + slack)
            moved = self.at(np.clip(inputs, low, high))
            # Up to the next knot the fraction of the way is more accurate than the sum x + s.
            reach = np.abs(self.points[following] - bases)[:, None]
            near = (distances <= reach)[..., None]
            share = (distances / np.maximum(reach, 1e-300))[..., None]
            share = np.minimum(share, 1.0)
            close = (1.0 - share) * base + share * self.table[following][:, None, :]
            with np.errstate(all="ignore"):
                error = slack * self.steepest / moved
            error = np.where(near, 2.0**-50, np.minimum(error, 1.0) + 2.0**-50)
            moved = np.where(near, close, moved)
            first, second = (moved, base) if self.forward else (base, moved)
            divergence = rowwise_renyi(first, second, self.order, error)
            found = np.maximum(found, np.where(outside, 0.0, divergence).max(axis=0))
        return found

    @property
    def steepest(self) -> Vector:
        """The largest absolute slope of each outcome's probability."""
        slopes = np.diff(self.table, axis=0) / np.diff(self.points)[:, None]
        return np.asarray(np.abs(slopes).max(axis=0))

    def curvature(self, reach: float) -> float:
        """Return max F''/(a - 1) over bases and signs, on distances up to `reach` (fact 3)."""
        a, worst = self.order, 0.0
        bases = self.bases
        last = len(self.points) - 1
        ahead = np.searchsorted(self.points, bases, side="right") - 1  # The cell to the right.
        behind = np.searchsorted(self.points, bases, side="left") - 1
        for cells, sign in ((ahead, 1.0), (behind, -1.0)):
            inside = (cells >= 0) & (cells < last)
            cell, base = cells[inside], self.at(bases[inside])
            gap = (self.points[cell + 1] - self.points[cell])[:, None]
            slope = (self.table[cell + 1] - self.table[cell]) * (sign / gap)
            with np.errstate(all="ignore"):
                growth = np.log1p(np.maximum(reach * slope / base, -1.0))  # log((q + r w)/q)
                exponent = (a - 2.0) * growth if self.forward else -(1.0 + a) * growth
                terms = slope**2 / base * np.exp(np.maximum(0.0, exponent))
                total = a * np.where(slope == 0.0, 0.0, terms).sum(axis=-1)
            worst = max(worst, float(np.max(np.where(np.isnan(total), np.inf, total), initial=0.0)))
        return worst * (1.0 + 1e-12)


def _bound(
    laws: tuple[_Laws, ...], power: float, reach: float, dimension: int, resolution: float
) -> float:
    """Return the envelope over options that cover every distance, refined where it matters."""
    order = laws[0].order
    breaks = laws[0].breakpoints()
    cap = min(reach, float(breaks[-1]))
    budget = reach**power * (1.0 + BUDGET_ROUNDING)
    first = min(float(breaks[0]), cap)
    distances = np.unique(np.append(breaks[breaks < cap], [first, cap]))
    values = _largest_over(laws, distances)
    if not np.isfinite(values).all():
        return math.inf
    best = math.inf
    for _ in range(_ROUNDS):
        start = distances[0] ** 2 / 2.0 * max(law.curvature(float(distances[0])) for law in laws)
        costs, upper = _options(distances, values, float(start), power, order)
        own = distances**power
        all_costs, all_values = np.append(costs, own), np.append(upper, values)
        best = min(best, envelope_bound(all_costs, all_values, budget, dimension))
        attained = envelope_bound(own, values, budget, dimension)
        goal = max(attained * (1.0 + resolution), _NEGLIGIBLE)
        if best <= goal or len(distances) > _MAX_DISTANCES:
            break
        finite = np.isfinite(all_values)
        price = envelope_price(all_costs[finite], all_values[finite], budget / dimension)
        surplus = upper - price * costs
        allowed = max(0.0, float(np.max(values - price * own)))
        allowed += resolution * attained / dimension / 4.0
        split = np.flatnonzero(surplus >= min(allowed, float(surplus.max())))
        lefts, rights = np.append(0.0, distances)[split], distances[split]
        lefts = np.maximum(lefts, rights / 64.0)  # Toward 0 the distances shrink geometrically.
        added = np.sqrt(lefts * rights)
        added = added[(added > lefts) & (added < rights)]
        if added.size == 0:
            break
        distances, where = np.unique(np.append(distances, added), return_index=True)
        values = np.append(values, _largest_over(laws, added))[where]
    return best


def _largest_over(laws: tuple[_Laws, ...], distances: Vector) -> Vector:
    return np.asarray(np.max([law.largest(distances) for law in laws], axis=0))


def _options(
    distances: Vector, values: Vector, start: float, power: float, order: float
) -> tuple[Vector, Vector]:
    """Return one option for each interval between 0, distances[0], ... (facts 2 and 3)."""
    running = np.maximum.accumulate(values)
    cost = distances**power
    left, right, c0, c1 = distances[:-1], distances[1:], cost[:-1], cost[1:]
    low, high = running[:-1], running[1:]
    with np.errstate(all="ignore"):
        rise = (order - 1.0) * (high - low)
        scale = 1.0 / ((order - 1.0) * (right - left) * power)
        steep = np.expm1(rise) * scale * left ** (1.0 - power)
        flat = -np.expm1(-rise) * scale * right ** (1.0 - power)
        meet = (high - low + steep * c0 - flat * c1) / (steep - flat)
        meet = np.clip(np.where(np.isfinite(meet), meet, c0), c0, c1)
        from_left = np.where(meet > c0, low + steep * (meet - c0), low)
        from_right = high - flat * (c1 - meet)
    # A point above both tangents covers the interval wherever it lies between the ends. Where the
    # left tangent is too steep for float64, the left end is used.
    peak = np.maximum(from_left, from_right)
    first = max(start, float(running[0]))
    return np.append(cost[0], meet), np.append(first, peak)


def _checked_table(knots: ArrayLike, rows: ArrayLike) -> tuple[Vector, Vector]:
    points, table = np.asarray(knots, dtype=np.float64), pmf_rows("rows", rows)
    if points.shape != (len(table),) or len(table) < 2:
        raise ParameterError(
            f"knots must be a vector with one knot for each row, at least two, got shape "
            f"{points.shape} for {len(table)} rows"
        )
    if not np.isfinite(points).all() or not np.min(np.diff(points)) > 1e-9 * np.ptp(points):
        raise ParameterError(
            "knots must be finite and increase, with each gap above 1e-9 of the span"
        )
    return points, table
