"""Renyi divergence of secure sums of bits, of which only the sums are seen.

Many clients: fair coins. If all logits lie within Z of 0, the bit of every other client is a fair
coin with probability 2/(1 + e^Z). Reveal to the adversary M, the number of fair coins of a
coordinate, and all other bits: one protected bit plus M fair coins is left. Let v be the mean of
N = M + 1 fair signs, c = 2 P(1) - 1 for one input and c' for the other. Then the two laws of the
sum are h(x)(1 + c v) and h(x)(1 + c' v), h = Bin(N, 1/2), so

    e^((a-1) D_a) = E (1 + c v)^a (1 + c' v)^(1-a),          M averaged too,

which is the expectation of a convex function of v. Three facts are used, with m = (c + c')/2 and
D = c - c':

1. It is jointly convex in (c, c'), so over a convex set it is at most its largest value at the
   vertices of a polygon around the set. The mean of more signs is smaller in convex order, so M may
   be replaced by the lower end of a bucket, and the law of v by one on a grid with the same mean in
   each cell.
2. A logit move of s gives |D| <= 2 T (1 - m^2), T = tanh(s/4), because
   (cosh z - 1)(cosh(s/2) - 1) >= 0, where z is the middle of the two logits.
3. m <= 0 <= D are the worst signs, and there the excess over 1 divided by D^2 increases with D: the
   second derivative in D is a power series with nonnegative coefficients. So the largest excess
   X(T) satisfies X(T) <= (T/T_1)^2 X(T_1) for T <= T_1, and cells in s lose very little.

Coordinates are independent given all that, and the squared moves add up to at most S^2: weak
duality as in `privacy.envelope`. Proof: docs/explanation/privacy.md, section 17.

Few clients: worst laws. The bits of the others are mixtures of bits with logits at an end of
[-Z, Z], and e^((a-1) D_a) is jointly convex, so only the cases "j others at Z, the rest at -Z"
matter, coordinate by coordinate. For each j it is convex in the protected client's two
probabilities too, so the corners of a polygon around the possible values suffice
(`finite_menus.bit_corners`). The bound by fair coins loses little for many clients, but up to 40%
of epsilon for a few.

A coordinate that moves by s costs s^2. D_a increases with s, because the polygons are nested, so a
cell [u, u'] of costs gets the option with cost u and the divergence at u'. In the first cell the
sum counts as the bit itself, D_a <= a s^2/8. Weak duality as in `privacy.envelope`. Proof:
docs/explanation/privacy.md, section 30.
"""

import itertools
import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.privacy.binomial import fair_pmf, lower_buckets
from sottovoce.privacy.divergences import one_bit_renyi
from sottovoce.privacy.envelope import BUDGET_ROUNDING, RowPairs, envelope_bound
from sottovoce.privacy.events import SummedBits
from sottovoce.privacy.finite_menus import Bit, bit_corners, sums_of_others
from sottovoce.privacy.gaussian_sums import gaussian_mu_of_sum

MAX_CLIENTS = 6
# Up to so many clients a sum over `MAX_CLIENTS` of them may give a tighter bound than fair coins.
MAX_REDUCED_CLIENTS = 16
_SPACING = 0.2  # Spacing of tangents, in logits.
_FIRST = 2.0**-11  # End of the first cell, as a fraction of an equal share of the budget.
# Ratios of consecutive cell ends: around an equal share and where a few coordinates take the whole
# budget, and elsewhere.
_FINE, _COARSE = 1.02, 1.15
_CELL_ERROR = 2.0**-45  # Relative error of a probability, a product of at most six.
_SMALL_SUM_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class _Menu:
    """The ends of the cells of costs, and the laws at the corners of each right end in sequence."""

    ends: Vector
    laws: RowPairs  # Shape: corners, laws of the others, values of the sum.
    starts: NDArray[np.intp]  # Index of the first corner of each cell.


@lru_cache(maxsize=16)
def _menu(event: SummedBits) -> _Menu:
    share = event.shift**2 / event.dimension
    widest = min(event.shift**2, (2.0 * event.logit_bound) ** 2) * (1.0 + BUDGET_ROUNDING)
    ends = [min(widest, _FIRST * share)]
    while ends[-1] < widest:
        near = 0.2 * share < ends[-1] < 8.0 * share or ends[-1] > widest / 64.0
        ends.append(min(widest, ends[-1] * (_FINE if near else _COARSE)))
    corners: list[tuple[Bit, Bit]] = []
    starts = []
    for end in ends[1:]:
        starts.append(len(corners))
        move = math.sqrt(end) * (1.0 + BUDGET_ROUNDING)
        found = bit_corners(move, event.logit_bound, _SPACING, against_zero=event.against_zero)
        corners += found
        if event.against_zero:  # Otherwise the menu contains the other order already.
            corners += [(second, first) for first, second in found]
    others = np.array(sums_of_others(event.logit_bound, event.clients))
    bits = np.array(corners).reshape(-1, 2, 1, 2)  # Axes: corners, neighbors, others, values.
    without, with_one = (np.pad(others, ((0, 0), ends)) for ends in ((0, 1), (1, 0)))
    laws = bits[..., :1] * without + bits[..., 1:] * with_one
    pairs = RowPairs.of(laws[:, 0], laws[:, 1])
    return _Menu(np.array(ends), pairs, np.array(starts, dtype=np.intp))


def small_sum_renyi(event: SummedBits, order: float) -> float:
    """Return an upper bound on D_a of the sums over a few clients, in both directions.

    D_a is the Renyi divergence of order a = `order` between the vectors of sums on two neighbors.
    `event.clients` must be at most `MAX_CLIENTS` (not checked): time grows with it.
    """
    menu = _menu(event)
    costs, values = [menu.ends[0]], [order * menu.ends[0] / 8.0 * (1.0 + _SMALL_SUM_ROUNDING)]
    if len(menu.starts):
        found = menu.laws.renyi(order, _CELL_ERROR).max(axis=-1)
        costs.extend(menu.ends[:-1])
        values.extend(np.maximum.reduceat(found, menu.starts))
    budget = event.shift**2 * (1.0 + BUDGET_ROUNDING)
    bound = envelope_bound(np.array(costs), np.array(values), budget, event.dimension)
    return bound * (1.0 + _SMALL_SUM_ROUNDING)


# With this bound even 2^31 clients have only 4e-4 fair coins among them, so sums hide nothing.
MAX_LOGIT_BOUND = 30.0
_LEAST_LOGIT_BOUND = 1e-6  # Smaller bounds count as this; a larger bound is always sound.
_LEAST_SHIFT = 1e-100  # Its square still fits into float64.
_LAST_ORDER = 1e5
_STEPS_PER_OCTAVE = 3
_POINTS_PER_STDDEV = 12
_TANGENTS = 9
_CELL_RATIO = 1.5
_ROUNDING = 2.0**-48

# The orders at which D_a is computed. (a-1) D_a is convex in a, so chords bound it between them.
NODES: tuple[float, ...] = tuple(
    1.0 + 2.0 ** (k / _STEPS_PER_OCTAVE)
    for k in range(-12, 1 + int(_STEPS_PER_OCTAVE * math.log2(_LAST_ORDER)))
)


def secure_sum_renyi(event: SummedBits, order: float) -> float:
    """Return an upper bound on D_a of the sums in both directions.

    D_a is the Renyi divergence of order a = `order` between the vectors of sums on two neighbors;
    an order of at most 1 raises `ParameterError`. The result is never above the bound of the
    protected client's bits themselves, which is used where sums do not help (one client, a logit
    bound above `MAX_LOGIT_BOUND`, orders above about 8 * 10^4), nor above a mu^2/2 for the mu of
    Gaussian noise that dominates the sums (`gaussian_sums`).
    """
    if not order > 1.0:
        raise ParameterError(f"the Renyi order must lie above 1, got {order!r}")
    visible = one_bit_renyi(event.shift, event.dimension, order)
    local = min(visible, order * gaussian_mu_of_sum(event) ** 2 / 2.0)
    hidden = event.clients > 1 and event.logit_bound <= MAX_LOGIT_BOUND
    if not hidden or order > NODES[-1] or event.shift < _LEAST_SHIFT:
        return local
    above = int(np.searchsorted(NODES, order))
    high = _at_node(event, above)
    if above == 0 or order == NODES[above]:
        return min(local, high)
    low, left, right = _at_node(event, above - 1), NODES[above - 1], NODES[above]
    if math.isinf(low) or math.isinf(high):
        return min(local, high)
    weight = (order - left) / (right - left)
    chord = (1.0 - weight) * low * (left - 1.0) + weight * high * (right - 1.0)
    return min(local, high, chord / (order - 1.0) * (1.0 + _ROUNDING))


@lru_cache(maxsize=1 << 14)
def _at_node(event: SummedBits, node: int) -> float:
    """Return D_a of the sums at one of `NODES`, over all coordinates."""
    found = _by_fair_coins(event, node)
    if event.clients <= MAX_REDUCED_CLIENTS:
        # Of more clients some are assumed to reveal their bits: a sum over the others is left.
        few = replace(event, clients=min(event.clients, MAX_CLIENTS))
        found = min(found, small_sum_renyi(few, NODES[node]))
    return found


def _by_fair_coins(event: SummedBits, node: int) -> float:
    """Return the bound if everything that is not a fair coin is revealed to the adversary."""
    cells, order = _cells(event), NODES[node]
    log_excess = cells.log_excess(order)
    if not np.isfinite(log_excess.max()):
        return math.inf
    # With a large excess the line through 0 is steep, and the tangent is the tighter bound.
    line_holds = not cells.boxed[0] and float(log_excess[0].max()) < 700.0
    return min(
        envelope_bound(
            *_options(cells, log_excess, order, through_zero=line), _budget(event), event.dimension
        )
        for line in {False, line_holds}
    )


def _budget(event: SummedBits) -> float:
    return event.shift**2 * (1.0 + _ROUNDING)


def _options(
    cells: "_Cells", log_excess: Vector, order: float, *, through_zero: bool
) -> tuple[Vector, Vector]:
    """Return costs u = s^2 and values above D_a of one coordinate, cell by cell.

    D_a <= log(1 + X T(u)^2/T^2)/(a-1) is concave in u and lies below its tangent at the right end;
    in the first cell also, with `through_zero`, below the line X u/(16 T^2 (a-1)). Where the box
    cuts the polygon, the corner on its edge does not shrink with T, so it is used unchanged.
    """
    u, t = cells.squares, cells.moves
    largest = log_excess.max(axis=-1)
    excess = np.exp(np.minimum(largest, 700.0))
    divergence, corner = (_divergence(logs, order) for logs in (largest, log_excess[:, -1]))
    # d/du tanh(sqrt(u)/4)^2 = T (1 - T^2)/(4 sqrt u). The slope is rounded down, which raises the
    # line to the left of the point of tangency.
    growth = t * (1.0 - t * t) / (4.0 * np.sqrt(u)) / (t * t)
    slope = growth * excess / (1.0 + excess) / (order - 1.0) * (1.0 - 1e-9)
    left = np.concatenate([[0.0], u[:-1]])
    at_left = divergence - slope * (u - left)
    at_left = np.where(cells.boxed, np.maximum(corner, at_left), at_left)
    if through_zero:
        line = excess[0] / (16.0 * t[0] ** 2 * (order - 1.0)) * (1.0 + _ROUNDING)
        at_left[0], divergence[0] = 0.0, max(line * float(u[0]), float(divergence[0]))
    return np.concatenate([left, u]), np.maximum(0.0, np.concatenate([at_left, divergence]))


def _divergence(log_excess: Vector, order: float) -> Vector:
    """Return log(1 + X)/(a - 1), rounded up."""
    exponent = np.logaddexp(0.0, log_excess)
    small = log_excess < 0.0  # There logaddexp would lose the last digits.
    exponent[small] = np.log1p(np.exp(log_excess[small]))
    return np.asarray(exponent / (order - 1.0) * (1.0 + _ROUNDING))


@dataclass(frozen=True, slots=True)
class _Cells:
    """The cells in u = s^2: right ends, T there, and the ratios at all vertices and means v."""

    squares: Vector
    moves: Vector
    boxed: NDArray[np.bool_]  # Whether the smallest possible c' cuts the polygon.
    log_mass: Vector  # Cells x vertices x points: log of the weight times 1 + c' v.
    change: Vector  # (1 + c v)/(1 + c' v) - 1.
    log_ratio: Vector

    def log_excess(self, order: float) -> Vector:
        """Return log E[(1 + c'v)(r^a - 1 - a (r - 1))] for each cell and vertex, rounded up."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            powers, slopes = np.expm1(order * self.log_ratio), order * self.change
            rounding = 2.0**-50 * (np.abs(powers) + np.abs(slopes))
            direct = np.log(np.maximum(0.0, powers - slopes) + rounding)
            direct = np.where(order * self.log_ratio > 600.0, order * self.log_ratio, direct)
            # Taylor's remainder is an upper bound without cancellation.
            reach = np.maximum(0.0, (order - 2.0) * self.log_ratio)
            taylor = math.log(order * (order - 1.0) / 2.0) + 2.0 * np.log(np.abs(self.change))
            logs = self.log_mass + np.fmin(direct, taylor + reach)
            top = logs.max(axis=-1, keepdims=True)
            sums = top[..., 0] + np.log(np.exp(logs - top).sum(axis=-1))
        sums = np.where(np.isnan(sums), np.inf, sums)
        slack = 1e-9 + 1e-12 * order * np.max(np.abs(self.log_ratio), axis=-1)
        return np.asarray(sums + slack)


@lru_cache(maxsize=4)
def _cells(event: SummedBits) -> _Cells:
    budget, bound = _budget(event), max(event.logit_bound, _LEAST_LOGIT_BOUND)
    widest = min(budget, (2.0 * bound) ** 2)
    smallest = min(widest, max(min(budget / (2.0 * event.dimension), 1e-2), 1e-4))
    count = 1 + math.ceil(math.log(widest / smallest) / math.log(_CELL_RATIO))
    squares = np.unique(np.geomspace(smallest, widest, count + 1) * (1.0 + _ROUNDING))
    moves = np.tanh(np.sqrt(squares) / 4.0) * (1.0 + _ROUNDING)
    means, log_weights = _sign_means(event.clients, bound)
    # Where `boxed` is false the whole polygon has c' > -1 and needs no box.
    boxed = moves * (1.0 + math.tanh(bound / 2.0)) >= 0.9
    shapes = [_vertices(float(t), bound, boxed=bool(b)) for t, b in zip(moves, boxed, strict=True)]
    gap = np.array([[vertex[0] for vertex in shape] for shape in shapes])[..., None]  # 1 + c'.
    step = np.array([[vertex[1] for vertex in shape] for shape in shapes])[..., None]  # c - c'.
    signed = np.concatenate([means, -means])
    # 1 + c'v = (1 - v) + v (1 + c') has no cancellation for v > 0, where it can be small.
    second = np.where(signed > 0.0, (1.0 - signed) + signed * gap, 1.0 + signed * (gap - 1.0))
    change = step * signed / second
    log_mass = np.concatenate([log_weights, log_weights]) - math.log(2.0) + np.log(second)
    return _Cells(
        squares,
        moves,
        boxed,
        log_mass,
        change,
        np.log1p(np.maximum(change, -1.0 + 1e-16)),
    )


def _vertices(move: float, bound: float, *, boxed: bool) -> list[tuple[float, float]]:
    """Return (1 + c', c - c') at the corners of a polygon around 0 <= D <= 2 T (1 - m^2), m <= 0.

    Tangents of a parabola meet halfway between their points of tangency, at D = 2 T (1 - m_1 m_2).
    `boxed` excludes c' below its smallest value -C, which cuts the parabola at the m for which
    T (1 - m^2) = C + m.
    """
    least = 2.0 / (1.0 + math.exp(bound))  # 1 - C.
    reach = bound
    if boxed:
        largest = math.tanh(bound / 2.0)
        root = math.sqrt(max(0.0, 1.0 - 4.0 * move * (largest - move)))
        cut = max(0.0, (1.0 - root) / (2.0 * move))
        reach = min(bound, 2.0 * math.atanh(min(cut, 1.0 - 1e-15)))
    # 1 + m at the points of tangency.
    points = [2.0 / (1.0 + math.exp(z)) for z in np.linspace(0.0, reach, _TANGENTS).tolist()]
    pairs = [
        (points[0], points[0]),
        *itertools.pairwise(points),
        (points[-1], points[-1]),
    ]
    corners = []
    for one, other in pairs:
        half = move * (one + other - one * other)
        gap = (one + other) / 2.0 - half
        corners.append((max(gap, least) if boxed else gap, 2.0 * half * (1.0 + _ROUNDING)))
    return corners


@lru_cache(maxsize=64)
def _sign_means(clients: int, bound: float) -> tuple[Vector, Vector]:
    """Return points in (0, 1] and log weights of |v|, above the true law of v in convex order."""
    chance = 2.0 / (1.0 + math.exp(bound))
    ends, below = lower_buckets(clients - 1, chance)
    log_weights = _log_bucket_masses(clients - 1, chance, ends, below)
    typical = float(np.dot(np.exp(log_weights), ends)) + 1.0
    grid = _grid(1.0 / math.sqrt(typical))
    logs = np.full(len(grid), -np.inf)
    inner = grid[:-1]
    exponent = ((1.0 + inner) * np.log1p(inner) + (1.0 - inner) * np.log1p(-inner)) / 2.0
    for end, log_weight in zip(ends.tolist(), log_weights.tolist(), strict=True):
        signs = int(end) + 1
        first, pmf = fair_pmf(signs)
        values = np.abs(2.0 * (first + np.arange(len(pmf))) - signs) / signs
        cell = np.minimum(np.searchsorted(grid, values, side="right") - 1, len(grid) - 2)
        share = (values - grid[cell]) / (grid[cell + 1] - grid[cell])
        mass = np.bincount(cell, (1.0 - share) * pmf, minlength=len(grid))
        mass += np.bincount(cell + 1, share * pmf, minlength=len(grid))
        with np.errstate(divide="ignore"):
            logs = np.logaddexp(logs, log_weight + np.log(mass * (1.0 + 1e-8)))
        if first > 0:
            # Mass that is not listed is bounded by Chernoff's bound at the inner end of each cell
            # and put at its outer end.
            outside = grid[1:] > 1.0 - 2.0 * first / signs
            far = log_weight + math.log(2.0) - signs * exponent
            logs[1:] = np.logaddexp(logs[1:], np.where(outside, far, -np.inf))
    return grid[1:], logs[1:]


def _log_bucket_masses(coins: int, chance: float, ends: Vector, below: Vector) -> Vector:
    """Return log P(M in the bucket), rounded up, also far below the range of float64."""
    from scipy.special import rel_entr

    with np.errstate(divide="ignore"):
        logs = np.log(np.diff(below, append=1.0))
    upper = np.append(ends[1:], coins)
    # Chernoff: log P(M <= k) <= -n KL(k/n || p) for k <= np.
    last = np.minimum(upper - 1.0, coins * chance)
    chernoff = -(rel_entr(last, coins * chance) + rel_entr(coins - last, coins * (1.0 - chance)))
    tiny = np.append(below[1:], 1.0) < 1e-290
    return np.asarray(np.where(tiny, chernoff * (1.0 - 1e-6), logs))


def _grid(stddev: float) -> Vector:
    """Return 0, fine steps up to 8 standard deviations, then steps of a tenth up to 1."""
    fine_end = min(1.0, 8.0 * stddev)
    fine = np.linspace(0.0, fine_end, 1 + math.ceil(_POINTS_PER_STDDEV * fine_end / stddev))
    count = math.ceil(math.log(1.0 / fine_end) / math.log(1.1))
    return np.append(fine[:-1], np.geomspace(fine_end, 1.0, count + 1) if count else 1.0)
