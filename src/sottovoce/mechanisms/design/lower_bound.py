"""A certified lower bound on the variance of every unbiased epsilon-DP mechanism on [0, 1].

The result is the largest of three bounds; inputs are centered, x in [-1/2, 1/2].

Duality. Over all mechanisms with any number of real outputs y the problem is a linear program in
measures. For numbers p(x) <= q(x) put g_x(y) = (y - p(x))(y - q(x)). If

    Phi(y) = sum_x min(g_x(y), e^eps g_x(y)) >= 0    for every real y

then  sum_x Var(x) >= sum_x (x - p(x))(q(x) - x).  Proof: a row P_x is unbiased and sums to 1, so
Var(x) = (x - p)(q - x) + E g_x(Y); and with the columns' infimum l(dy), l <= P_x <= e^eps l, the
sum of the E g_x(Y) is at least the integral of Phi against l.

p + q and p q are interpolated linearly between knots: min(g, e^eps g) is concave and nondecreasing
in g, so Phi is at least the sum over knots with the weights of the interpolation, and that sum, a
piecewise quadratic, is checked to be nonnegative *in rational arithmetic*. A cutting-plane linear
program finds good p and q in floats; its result is never trusted, only checked.

Quantization. B letters: Var(x) >= (x - a)(b - x) for the letters a <= x <= b next to x. Moving a
letter between two inputs changes the sum linearly, so evenly spaced letters on inputs are best.

Pairs. Two inputs at distance t: Var >= t^2 e^eps/(e^eps - 1)^2 for both (Chapman and Robbins 1951,
with the largest chi-square divergence of an epsilon-DP pair, which is that of randomized response).
"""

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.mechanisms.design.channel import ChannelMatrix

# From coarse to fine, each level starts from the one before. At a large epsilon multipliers change
# from input to input, so finer levels help, and they may start from a design's own edges.
_KNOTS, _FINER_KNOTS, _LARGE_EPSILON = (8, 16, 32), (64, 128, 256), 5.0
_ITERATIONS = 80
_LARGEST_EPSILON = 14.0  # Above it, the linear program's own tolerance exceeds the variances.


def variance_lower_bound(
    epsilon: float, letters: int, inputs: int | None, near: ChannelMatrix | None = None
) -> float:
    """Return a lower bound on the summed variance of every unbiased epsilon-DP mechanism on [0, 1].

    The sum is over the inputs; for continuous input it is the mean. The bound holds for every
    choice of `letters` output values.

    Args:
        epsilon: The epsilon between any two inputs.
        letters: The number of output values.
        inputs: The number of evenly spaced points over which the variance is summed; None for the
            mean over [0, 1].
        near: A good design, which only helps the search.

    Returns:
        The bound, rounded down.
    """
    grid = _Grid.even(inputs, knots=8)
    bounds = [_pairs(epsilon, grid), _quantization(letters, inputs)]
    if letters == 2:
        bounds.append(_two_letters(epsilon, grid))
    elif epsilon <= _LARGEST_EPSILON:
        bounds.append(_duality(epsilon, letters, inputs, near))
    return max(bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """Knots with the total weight and first moment of their hat functions; exact and symmetric.

    Attributes:
        knots: The knots.
        weights: The sum of each knot's hat function over the inputs.
        moments: The sum of x times the hat function.
        square: The sum (or mean) of x^2 over the inputs.
        count: The number of inputs, or 1 for a mean.
    """

    knots: tuple[Fraction, ...]
    weights: tuple[Fraction, ...]
    moments: tuple[Fraction, ...]
    square: Fraction
    count: Fraction

    @classmethod
    def even(cls, inputs: int | None, *, knots: int) -> "_Grid":
        """Return the grid of evenly spaced inputs, or of all of [-1/2, 1/2] for None.

        Knots are closer at the ends, where the multipliers change fastest.
        """
        if inputs is None:
            half = [_crowded(k, knots) - Fraction(1, 2) for k in range(knots // 2)]
            places = [*half, *(-x for x in reversed(half))]
            weights, moments = [Fraction(0)] * len(places), [Fraction(0)] * len(places)
            for k, (u, v) in enumerate(itertools.pairwise(places)):
                for knot, near, far in ((k, u, v), (k + 1, v, u)):
                    weights[knot] += (v - u) / 2
                    moments[knot] += (v - u) * (2 * near + far) / 6
            square, count = Fraction(1, 12), Fraction(1)
        else:
            points = [Fraction(i, inputs - 1) - Fraction(1, 2) for i in range(inputs)]
            few = min(inputs, knots) // 2
            first = sorted({round(_crowded(k, 2 * few) * (inputs - 1)) for k in range(few)})
            if few == inputs // 2:
                first = list(range(few))
            chosen = [*first, *(inputs - 1 - i for i in reversed(first))]
            places = [points[i] for i in chosen]
            weights, moments = [Fraction(0)] * len(places), [Fraction(0)] * len(places)
            for k, (left, right) in enumerate(itertools.pairwise(chosen)):
                for i in range(left, right + (right == chosen[-1])):
                    share = Fraction(i - left, right - left)
                    for knot, part in ((k, 1 - share), (k + 1, share)):
                        weights[knot] += part
                        moments[knot] += part * points[i]
            square, count = sum((x * x for x in points), Fraction(0)), Fraction(inputs)
        return cls(
            knots=tuple(places),
            weights=tuple(weights),
            moments=tuple(moments),
            square=square,
            count=count,
        )


def _crowded(number: int, of: int) -> Fraction:
    """Return place `number` of `of` places on [0, 1], which are closer at the ends."""
    return Fraction(round((1.0 - math.cos(math.pi * number / (of - 1))) / 2.0 * 2**20), 2**20)


def _pairs(epsilon: float, grid: _Grid) -> float:
    ratio = math.exp(epsilon)
    return 4.0 * float(grid.square) * ratio / math.expm1(epsilon) ** 2 * (1.0 - 1e-12)


def _two_letters(epsilon: float, grid: _Grid) -> float:
    """Return the sum of reach^2 - x^2 with the smallest reach that two letters can have.

    The reach is 1/2 coth(eps/2), so reach^2 = 1/4 + 1/(4 sinh^2(eps/2)).
    """
    noise = float(grid.count) / (4.0 * math.sinh(epsilon / 2.0) ** 2)
    return (noise + float(grid.count / 4 - grid.square)) * (1.0 - 1e-12)


def _quantization(letters: int, inputs: int | None) -> float:
    if inputs is None:
        return 1.0 / (6.0 * (letters - 1) ** 2) * (1.0 - 1e-12)
    if letters >= inputs:
        return 0.0
    # With m steps between adjacent letters, the sum of k (m - k) is (m^3 - m)/6.
    gap, wider = divmod(inputs - 1, letters - 1)
    narrow = (letters - 1 - wider) * (gap**3 - gap)
    wide = wider * ((gap + 1) ** 3 - (gap + 1))
    return (narrow + wide) / 6.0 / (inputs - 1) ** 2 * (1.0 - 1e-12)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Multipliers:
    """The multipliers at the knots: sums = p + q, antisymmetric, and products = p q, symmetric."""

    sums: Vector
    products: Vector

    @classmethod
    def of(cls, channel: ChannelMatrix, grid: _Grid) -> "_Multipliers":
        """Return the letters at the edges of a design's windows, filled beyond the minima."""
        rows = channel.at(np.array([float(knot) for knot in grid.knots]) + 0.5)
        filled = rows > channel.rows.min(axis=0) * (1.0 + 1e-9)
        letters = channel.letters - 0.5
        low = letters[filled.argmax(axis=1)]
        high = letters[len(letters) - 1 - filled[:, ::-1].argmax(axis=1)]
        sums, products = low + high, low * high
        return cls(sums=(sums - sums[::-1]) / 2.0, products=(products + products[::-1]) / 2.0)

    def roots(self) -> tuple[Vector, Vector]:
        """Return p and q."""
        spread = np.sqrt(np.maximum(self.sums**2 / 4.0 - self.products, 0.0))
        return self.sums / 2.0 - spread, self.sums / 2.0 + spread

    def raised(self, amount: float) -> "_Multipliers":
        """Raise the products, at most to squares: Phi increases, the bound decreases."""
        return _Multipliers(
            sums=self.sums, products=np.minimum(self.products + amount, self.sums**2 / 4.0)
        )

    def moved(self, old: _Grid, new: _Grid) -> "_Multipliers":
        """Interpolate to other knots."""
        places, before = ([float(k) for k in grid.knots] for grid in (new, old))
        return _Multipliers(
            sums=np.interp(places, before, self.sums),
            products=np.interp(places, before, self.products),
        )


def _duality(epsilon: float, letters: int, inputs: int | None, near: ChannelMatrix | None) -> float:
    ratio = _exponential_above(epsilon)
    reach = 0.5 / math.tanh(epsilon / 2.0)  # Start with the two letters of randomized response.
    grid = _Grid.even(inputs, knots=2)
    found = _Multipliers(sums=np.zeros(2), products=np.full(2, -(reach**2)))
    finer = _FINER_KNOTS if epsilon > _LARGE_EPSILON and near is not None else ()
    levels = [*_KNOTS, *(knots for knots in finer if knots <= min(inputs or 64, 2 * letters))]
    bounds = []
    for knots in levels:
        finest = _Grid.even(inputs, knots=knots)
        if finest.knots == grid.knots:
            continue
        starts = [found.moved(grid, finest)]
        if near is not None and knots in _FINER_KNOTS:
            starts.append(_Multipliers.of(near, finest))
        grid = finest
        weights = np.array([float(w) for w in grid.weights])
        values = [_repaired(start, grid, weights, float(ratio))[1] for start in starts]
        found = _improved(starts[int(np.argmax(values))], grid, ratio)
        bounds.append(_certified(found, grid, ratio))
    return max(bounds, default=0.0)


def _improved(start: _Multipliers, grid: _Grid, ratio: Fraction) -> _Multipliers:
    """Improve the multipliers by cutting planes in a box that grows with success.

    The result is feasible up to rounding.
    """
    best, found = -math.inf, start
    center, radius = start, 0.5
    cuts: list[tuple[Vector, float]] = []
    weights = np.array([float(w) for w in grid.weights])
    for _ in range(_ITERATIONS):
        feasible, value = _repaired(found, grid, weights, float(ratio))
        cuts += _cuts(found, weights, float(ratio))
        if value > best:
            best, center, radius = value, feasible, radius * 1.5
        else:
            radius *= 0.7
        candidate = _solve_linear_program(cuts, center, radius, grid, weights)
        if candidate is None or candidate[1] - best < 1e-5 * abs(best):
            break
        found = candidate[0]
    return center


def _exponential_above(epsilon: float) -> Fraction:
    """Return a rational at or above e^epsilon, since Phi decreases as it increases."""
    return Fraction(math.exp(epsilon)) * (1 + Fraction(1, 2**50))


def _value(multipliers: _Multipliers, grid: _Grid) -> float:
    moments = np.array([float(m) for m in grid.moments])
    weights = np.array([float(w) for w in grid.weights])
    return float(moments @ multipliers.sums - weights @ multipliers.products - float(grid.square))


def _phi_minima(multipliers: _Multipliers, weights: Vector, ratio: float) -> tuple[Vector, Vector]:
    """Return the places and values of the minimum of Phi on each of its quadratic pieces."""
    low, high = multipliers.roots()
    edges = np.unique(np.concatenate((low, high)))
    inner = np.concatenate(([edges[0] - 1.0], (edges[1:] + edges[:-1]) / 2.0, [edges[-1] + 1.0]))
    inside = (inner[:, None] > low) & (inner[:, None] < high)
    factors = np.where(inside, ratio, 1.0) * weights
    squares, lines = factors.sum(axis=1), factors @ multipliers.sums
    lower = np.concatenate(([-np.inf], edges))
    upper = np.concatenate((edges, [np.inf]))
    places = np.clip(lines / (2.0 * squares), lower, upper)
    values = squares * places**2 - lines * places + factors @ multipliers.products
    return places, values


def _repaired(
    multipliers: _Multipliers, grid: _Grid, weights: Vector, ratio: float
) -> tuple[_Multipliers, float]:
    """Raise the products until Phi is nonnegative (in floats), and return the bound too."""

    def falls_short(amount: float) -> bool:
        return bool(_phi_minima(multipliers.raised(amount), weights, ratio)[1].min() < 0.0)

    low, high = 0.0, 1e-15
    while falls_short(high):
        low, high = high, high * 8.0
    while high - low > 1e-7 * high and high > 1e-15:
        middle = (low + high) / 2.0
        low, high = (middle, high) if falls_short(middle) else (low, middle)
    repaired = multipliers.raised(high)
    return repaired, _value(repaired, grid)


def _cuts(multipliers: _Multipliers, weights: Vector, ratio: float) -> list[tuple[Vector, float]]:
    """Return constraints sum_k f_k (y^2 - s_k y + m_k) >= 0 at the local minima y >= 0 of Phi."""
    places, values = _phi_minima(multipliers, weights, ratio)
    padded = np.concatenate(([np.inf], values, [np.inf]))
    local = (values <= padded[:-2]) & (values <= padded[2:]) & (places >= 0.0)
    half = len(weights) // 2
    cuts = []
    for y in places[local]:
        parabola = y * y - multipliers.sums * y + multipliers.products
        factors = np.where(parabola < 0.0, ratio, 1.0) * weights
        right, left = factors[half:], factors[:half][::-1]
        scale = float((right + left).sum())
        # The left half mirrors the right: sums change their sign, products do not.
        row = np.concatenate(((right - left) * y, -(right + left))) / scale
        cuts.append((row, float(y * y)))
    return cuts


def _solve_linear_program(
    cuts: list[tuple[Vector, float]],
    center: _Multipliers,
    radius: float,
    grid: _Grid,
    weights: Vector,
) -> tuple[_Multipliers, float] | None:
    """Return the best multipliers within the cuts and a box around the center, and their bound."""
    from scipy.optimize import linprog

    half = len(weights) // 2
    moments = np.array([float(m) for m in grid.moments])
    size = radius * (float(np.abs(center.products).max()) + 0.01)
    middle = np.concatenate((center.sums[half:], center.products[half:]))
    reach = np.concatenate((np.full(half, math.sqrt(size)), np.full(half, size)))
    result = linprog(
        np.concatenate((-2.0 * moments[half:], 2.0 * weights[half:])),
        A_ub=np.array([row for row, _ in cuts]),
        b_ub=np.array([limit for _, limit in cuts]),
        bounds=np.column_stack((middle - reach, middle + reach)),
        method="highs",
    )
    if result.status != 0:
        return None
    sums, products = result.x[:half], result.x[half:]
    found = _Multipliers(
        sums=np.concatenate((-sums[::-1], sums)),
        products=np.concatenate((products[::-1], products)),
    )
    return found, -float(result.fun) - float(grid.square)


def _certified(multipliers: _Multipliers, grid: _Grid, ratio: Fraction) -> float:
    """Return the bound of multipliers that pass the exact check, raising products until they do."""
    amount = 0.0
    while True:
        low, high = multipliers.raised(amount).roots()
        half = len(low) // 2
        # Roots are mirrored instead of computed twice, so they are symmetric to the last bit.
        roots = [
            *(
                (-Fraction(q), -Fraction(p))
                for p, q in zip(low[half:][::-1], high[half:][::-1], strict=True)
            ),
            *((Fraction(p), Fraction(q)) for p, q in zip(low[half:], high[half:], strict=True)),
        ]
        if _phi_is_nonnegative(roots, grid.weights, ratio):
            break
        amount = max(1e-15, 4.0 * amount)
    total = -grid.square
    for (p, q), weight, moment in zip(roots, grid.weights, grid.moments, strict=True):
        total += moment * (p + q) - weight * p * q
    return math.nextafter(float(total), -math.inf)


def _phi_is_nonnegative(
    roots: list[tuple[Fraction, Fraction]], weights: tuple[Fraction, ...], ratio: Fraction
) -> bool:
    """Check exactly that Phi's minimum over each piece between adjacent roots is not negative."""
    changes: dict[Fraction, tuple[Fraction, Fraction, Fraction]] = {}
    square, line, constant = Fraction(0), Fraction(0), Fraction(0)
    for (p, q), weight in zip(roots, weights, strict=True):
        parts = (weight, -weight * (p + q), weight * p * q)
        square, line, constant = square + parts[0], line + parts[1], constant + parts[2]
        for place, sign in ((p, ratio - 1), (q, 1 - ratio)):
            old = changes.get(place, (Fraction(0),) * 3)
            changes[place] = (
                old[0] + sign * parts[0],
                old[1] + sign * parts[1],
                old[2] + sign * parts[2],
            )
    places = sorted(changes)
    for index in range(len(places) + 1):
        left = places[index - 1] if index else None
        right = places[index] if index < len(places) else None
        vertex = -line / (2 * square)
        if left is not None and vertex < left:
            vertex = left
        if right is not None and vertex > right:
            vertex = right
        if (square * vertex + line) * vertex + constant < 0:
            return False
        if right is not None:
            change = changes[right]
            square, line, constant = square + change[0], line + change[1], constant + change[2]
    return True
