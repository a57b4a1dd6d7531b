"""The privacy of a vector whose coordinates pass independently through one finite table.

The inputs of two neighbors differ by a cost c_l in coordinate l, which is the distance of their
values to the power p. The sum of the costs is at most a budget K (not a privacy budget): the
sensitivity to the power p. An option is an ordered pair of inputs of the table. It has a cost c and
a value v, the Renyi divergence between the two rows. The worst case is a multiple-choice knapsack
problem. Its linear relaxation, in which all d coordinates share one set of options, is

    max d sum_o v_o x_o    subject to    sum_o c_o x_o <= K/d,  sum_o x_o <= 1,  x >= 0
        = d h(K/d),

where x_o is the fraction of the coordinates that use option o, and h is the least nondecreasing
concave function through (0, 0) above every option. Three bounds:

    greedy_bound            K max v/c                       (the loosest; equal for large d)
    linear_program_bound    the relaxation, by a solver
    envelope_bound          the relaxation, by the upper hull, in O(n log n)

Soundness does not depend on the solver or the hull. Each of them only proposes a price L >= 0, and
by weak duality

    sum_l v_l <= sum_l (v_l - L c_l) + L K <= d max(0, max_o(v_o - L c_o)) + L K

holds at every price.

Reference: Chaudhuri, Guo and Rabbat 2022 (MVU), section 4.3, program (4) and lemma 7. See also
docs/explanation/privacy.md, section 13.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import MAX_DIMENSION, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.privacy.events import RenyiCurve

MAX_ORDER = 1e6
# A budget is enlarged by this fraction before it is floored or compared, so that a distance that
# equals the limit in exact arithmetic is not lost to rounding.
BUDGET_ROUNDING = 1e-12
_BLOCK_CELLS = 1 << 20
_LARGEST_EXPONENT = 600.0


def pairwise_renyi(first_rows: ArrayLike, second_rows: ArrayLike, order: float) -> Vector:
    """Return the matrix of D_a(P_i || Q_k) for the rows P_i and Q_k of two tables, rounded up.

    D_a is the Renyi divergence of order a = `order`; see `rowwise_renyi`. Each row must be a
    probability mass function (pmf), all over the same outcomes, else `ParameterError` is raised.
    """
    first, second = pmf_rows("first_rows", first_rows), pmf_rows("second_rows", second_rows)
    if first.shape[1] != second.shape[1]:
        raise ParameterError(
            "both tables must have the same number of outcomes (columns), got "
            f"{first.shape[1]} and {second.shape[1]}"
        )
    block = max(1, _BLOCK_CELLS // second.size)
    parts = [
        rowwise_renyi(first[start : start + block, None, :], second[None, :, :], order)
        for start in range(0, len(first), block)
    ]
    return np.concatenate(parts)


def rowwise_renyi(
    first: Vector, second: Vector, order: float, cell_error: Vector | float = 2.0**-50
) -> Vector:
    """Return D_a(p || q) = log( sum_j p_j^a q_j^(1-a) ) / (a - 1) along the last axis, rounded up.

    This is the Renyi divergence of order a = `order` of rows p of `first` and q of `second`, which
    are broadcast against each other. Infinite where p has mass that q does not. The result covers
    relative errors of the probabilities of up to `cell_error`.
    """
    return RowPairs.of(first, second).renyi(order, cell_error)


@dataclass(frozen=True, slots=True)
class RowPairs:
    """Pairs of pmf rows, with the quantities that their divergences of all orders share."""

    p: Vector
    q: Vector
    log_q: Vector
    ratios: Vector  # log(p/q)
    changes: Vector  # p/q - 1

    @classmethod
    def of(cls, first: Vector, second: Vector) -> "RowPairs":
        """Return the pairs of the rows of two arrays, which are broadcast against each other."""
        p, q = np.broadcast_arrays(first, second)
        with np.errstate(all="ignore"):
            log_q, quotient, change = np.log(q), p / q, (p - q) / q
            ratios = np.where(np.abs(change) < 0.5, np.log1p(change), np.log(quotient))
            extreme = (quotient < 1e-290) | (quotient > 1e290)  # The quotient is not accurate here.
            if extreme.any():
                ratios = np.where(extreme, np.log(p) - log_q, ratios)
            ratios = np.where((p == 0.0) & (q == 0.0), 0.0, ratios)  # Neither row has the outcome.
            return cls(p, q, log_q, ratios, np.expm1(ratios))

    def renyi(self, order: float, cell_error: Vector | float = 2.0**-50) -> Vector:
        """Return the Renyi divergences D_a(p || q) of order a = `order`, rounded up.

        There is one for each pair of rows; outcomes are on the last axis. While every
        a log(p/q) <= 600 it is computed as log1p( sum q (r^a - 1 - a (r - 1)) )/(a - 1), with
        r = p/q. No term is negative, so there is no cancellation, also for orders near 1 and rows
        that are close together. Beyond that it is computed as a sum of logarithms. The result is
        infinite where p has mass that q does not, and never NaN. It covers a relative error of the
        probabilities of up to `cell_error`.
        """
        check_order(order)
        p, q, log_q, ratios = self.p, self.q, self.log_q, self.ratios
        with np.errstate(all="ignore"):
            powers, slopes = np.expm1(order * ratios), order * self.changes
            # A relative error e of p or q changes a term by at most q (a |r^a - 1| + a |r - 1|) e.
            size = (1.0 + order) * (np.abs(powers) + np.abs(slopes))
            terms = q * (np.maximum(0.0, powers - slopes) + cell_error * size)
            largest = ratios.max(axis=-1)
            small = np.log1p(terms.sum(axis=-1)) / (order - 1.0)
            unsafe = order * largest > _LARGEST_EXPONENT
            if not unsafe.any():
                return np.asarray(small)
            logs = np.where(q > 0.0, log_q, -np.inf) + order * ratios
            top = logs.max(axis=-1, keepdims=True)
            sums = top[..., 0] + np.log(np.exp(logs - top).sum(axis=-1))
            sums += 2.0**-50 * (order * largest + np.abs(top[..., 0]) + 1000.0)
            sums += 2.0 * order * np.max(np.broadcast_to(cell_error, p.shape), axis=-1)
            large = np.where(np.isnan(sums), np.inf, sums) / (order - 1.0)
            impossible = ((p > 0.0) & (q == 0.0)).any(axis=-1)
            return np.where(impossible, np.inf, np.where(unsafe, large, small))


def greedy_bound(costs: ArrayLike, values: ArrayLike, budget: float, dimension: int) -> float:
    """Return the bound K max v/c on the Renyi divergence of a vector of `dimension` coordinates.

    An option is an ordered pair of inputs that one coordinate of two neighbors may have; c is its
    cost and v its value. The price is the largest ratio of value to cost, so no option is worth
    more than it costs. If options without cost have a value, `dimension` times the largest of these
    is added. Infinite if an option has an infinite value and K > 0 or that option costs nothing.

    Args:
        costs: The cost of each option, at least 0: the distance of its inputs to the power p.
        values: The divergence of each option, at least 0; all of one order.
        budget: The largest sum K of the costs of all coordinates: the sensitivity to the power p.
        dimension: The number of coordinates.

    Reference: Chaudhuri, Guo and Rabbat 2022 (MVU), lemma 7.
    """
    cost, value, budget = _options(costs, values, budget, dimension)
    return _priced(cost, value, budget, dimension, _best_ratio(cost, value))


def linear_program_bound(
    costs: ArrayLike, values: ArrayLike, budget: float, dimension: int
) -> float:
    """Return the optimum of the linear relaxation, program (4) of the MVU paper, rounded up.

    It is an upper bound on the Renyi divergence of the vector. scipy's HiGHS solves it, and the
    result is certified at the price (dual variable) that the solver returns, so an inexact solution
    gives a larger bound, never one that is too small. If the solver fails, it is `greedy_bound`,
    whose arguments these are.
    """
    from scipy.optimize import linprog

    cost, value, budget = _options(costs, values, budget, dimension)
    top_cost, top_value = float(cost.max()), float(value.max())
    if not 0.0 < top_value < math.inf or top_cost == 0.0 or budget == 0.0:
        return _priced(cost, value, budget, dimension, _best_ratio(cost, value))
    solution = linprog(
        -value / top_value,
        A_ub=np.stack([cost / top_cost, np.ones_like(cost)]),
        b_ub=[budget / dimension / top_cost, 1.0],
        method="highs",
    )
    if solution.status != 0:
        return greedy_bound(cost, value, budget, dimension)
    price = max(0.0, -float(solution.ineqlin.marginals[0])) * top_value / top_cost
    return _priced(cost, value, budget, dimension, price)


def envelope_bound(costs: ArrayLike, values: ArrayLike, budget: float, dimension: int) -> float:
    """Return d h(K/d), where h is the nondecreasing concave envelope of the options through (0, 0).

    It is an upper bound on the Renyi divergence of the vector, rounded up. Beyond the largest cost
    h is constant. The result equals `linear_program_bound` up to rounding. The arguments are those
    of `greedy_bound`; d is `dimension` and K is `budget`.
    """
    cost, value, budget = _options(costs, values, budget, dimension)
    price = envelope_price(cost, value, budget / dimension)
    return _priced(cost, value, budget, dimension, price)


def envelope_price(cost: Vector, value: Vector, share: float) -> float:
    """Return the best price: the slope of the envelope to the right of the cost `share` = K/d.

    The envelope is the nondecreasing concave function above all options (cost, value); its slope is
    0 beyond the largest cost. The price is the largest value/cost instead if a value is infinite or
    `share` is 0. Every price gives a sound bound; the best one gives the smallest.
    """
    if not np.isfinite(value).all() or share == 0.0:
        return _best_ratio(cost, value)
    order = np.argsort(cost, kind="stable")
    sorted_cost, best = cost[order], np.maximum.accumulate(value[order])
    keep = np.flatnonzero(np.append(sorted_cost[1:] > sorted_cost[:-1], True))
    # A corner of a nondecreasing function has a larger value than all cheaper options.
    keep = keep[np.append(True, best[keep][1:] > best[keep][:-1])]
    hull = [(0.0, float(best[keep[0]]) if sorted_cost[keep[0]] == 0.0 else 0.0)]
    for x, y in zip(sorted_cost[keep].tolist(), best[keep].tolist(), strict=True):
        if x == 0.0 or y <= hull[0][1]:
            continue
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2], hull[-1]
            if (y1 - y0) * (x - x1) > (y - y1) * (x1 - x0):
                break
            hull.pop()
        hull.append((x, y))
    for (x0, y0), (x1, y1) in itertools.pairwise(hull):
        if share < x1:
            return (y1 - y0) / (x1 - x0)
    return 0.0


def renyi_curve(
    bound_at_order: Callable[[float], float],
    adjacency: Adjacency,
    orders: Sequence[float] | None = None,
) -> RenyiCurve:
    """Return the event of a mechanism with D_a <= bound_at_order(a) in both directions.

    D_a is the Renyi divergence of order a between neighbors under `adjacency`. The bound is taken
    at `orders` (increasing; None for `ORDERS`, from 1.01 to 10^4). A bound is raised to that of a
    smaller order where it lies below it, so that the bounds do not decrease with the order. A
    failed bound (NaN) becomes infinity.
    """
    orders = tuple(orders or ORDERS)
    bounds = np.array([bound_at_order(order) for order in orders], dtype=np.float64)
    bounds = np.where(np.isnan(bounds), np.inf, np.maximum(bounds, 0.0)) * (1.0 + 1e-12)
    return RenyiCurve(
        orders=orders,
        divergences=tuple(float(d) for d in np.maximum.accumulate(bounds)),
        adjacency=adjacency,
    )


def _orders() -> tuple[float, ...]:
    dense = 1.0 + np.geomspace(0.01, 1.0, 25)
    return tuple(
        float(order) for order in (*dense[:-1], *np.arange(2, 65), *np.geomspace(64.0, 1e4, 24)[1:])
    )


ORDERS = _orders()


def check_order(order: float) -> float:
    """Return the order of a Renyi divergence; raise `ParameterError` unless 1 < order <= 1e6."""
    if not 1.0 < order <= MAX_ORDER:
        raise ParameterError(f"order must lie above 1 and be at most {MAX_ORDER:g}, got {order!r}")
    return order


def pmf_rows(name: str, rows: ArrayLike) -> Vector:
    """Return `rows` as a float64 matrix; raise `ParameterError` unless each row is a pmf.

    The sums may differ from 1 by 1e-12. `name` stands for the table in the error's message.
    """
    table = np.asarray(rows, dtype=np.float64)
    if table.ndim != 2 or table.size == 0:
        raise ParameterError(
            f"{name} must be a nonempty matrix with a pmf in each row, got an array of shape "
            f"{table.shape}"
        )
    if not (np.all(table >= 0.0) and np.all(np.abs(table.sum(axis=1) - 1.0) <= 1e-12)):
        raise ParameterError(
            f"each row of {name} must hold probabilities that sum to 1 within 1e-12; "
            "divide each row by its sum"
        )
    return table


def _options(
    costs: ArrayLike, values: ArrayLike, budget: float, dimension: int
) -> tuple[Vector, Vector, float]:
    cost, value = np.asarray(costs, dtype=np.float64), np.asarray(values, dtype=np.float64)
    cost, value = cost.ravel(), value.ravel()
    if cost.shape != value.shape or cost.size == 0:
        raise ParameterError(
            "each option must have a cost and a value, and there must be an option, got "
            f"{cost.size} costs and {value.size} values"
        )
    if not (np.all(cost >= 0.0) and np.isfinite(cost).all() and np.all(value >= 0.0)):
        raise ParameterError("costs must be finite and at least 0, and values at least 0")
    if not 0.0 <= budget < math.inf:
        raise ParameterError(
            "budget (the largest sum of the coordinates' costs, not an epsilon) must be finite and "
            f"at least 0, got {budget!r}"
        )
    parameter_rules.integer("dimension", dimension, low=1, high=MAX_DIMENSION)
    return cost, value, float(budget)


def _best_ratio(cost: Vector, value: Vector) -> float:
    """Return max v/c over the options of positive cost; infinite if one has infinite value."""
    paid = cost > 0.0
    with np.errstate(over="ignore"):
        return float(np.max(value[paid] / cost[paid], initial=0.0))


def _priced(cost: Vector, value: Vector, budget: float, dimension: int, price: float) -> float:
    """Return d max(0, max_o(v_o - L c_o)) + L K, at least the optimum for every price L >= 0."""
    if not np.isfinite(value).all() or math.isinf(price):
        # The relaxation uses an option of infinite value if it can pay for a fraction of it.
        free = np.max(value[cost == 0.0], initial=0.0)
        return math.inf if budget > 0.0 or math.isinf(free) else dimension * float(free)
    surplus = max(0.0, float(np.max(value - price * cost)))
    return (dimension * surplus + price * budget) * (1.0 + 2.0**-48)
