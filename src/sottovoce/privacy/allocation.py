"""Random allocation: a contribution takes part in one of T steps of Gaussian noise, at random.

Statement. Each client draws its step uniformly, independently of the other clients. Let Q be the
law of the transcript without the contribution and A = e^eps. Then delta at eps is exactly

    delta = E_Q (F_1 + ... + F_T)_+/T

over T independent copies of

    F = a e^(c g - c^2/2) - b e^(-c g - c^2/2) - d,   g ~ N(0, 1),

    zero-out, removing the contribution  (a, b, d) = (1, 0, A),    c = mu
    zero-out, adding it                  (a, b, d) = (0, A, -1),   c = mu
    replace-one                          (a, b, d) = (1, A, 0),    c = mu/2  (centered at zero)

also for adaptive contributions. Proof: docs/explanation/privacy.md, section 32. Cohorts that are
cut from one permutation of the clients are not covered, because there the steps are not
independent.

How the expectation is bounded from above. F increases with g. Values above a limit v are cut off,
and E (F - v)_+ is added for them. Values far below 0 are raised. The mass of each grid cell is
split onto the ends of the cell so that its mean is kept. Each of these changes can only raise
E (sum F)_+. The sums are convolved by FFT, and all rounding errors are added.

References: Feldman and Shenfeld 2025 (random allocation); Chua et al. 2024 (balls and bins).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.core.errors import UnsupportedEventError
from sottovoce.privacy.accounting import register
from sottovoce.privacy.divergences import gaussian_delta, log_sum_exp
from sottovoce.privacy.events import Allocated, PrivacyEvent, basic_counts
from sottovoce.privacy.gaussian import gaussian_epsilon, least_epsilon
from sottovoce.privacy.loss_distributions import FFT_ROUNDING, polar_power, transform_size
from sottovoce.privacy.loss_pairs import PAIR_ACCURACY, AtomPair, LossPair

Direction = Literal["remove", "add", "replace"]
_REVERSES: dict[Direction, Direction] = {"remove": "add", "add": "remove", "replace": "replace"}

_LEAST_MU = 1e-9  # Smaller values count as this, which is sound; below it points would coincide.
LARGEST_MU = 8.0  # Beyond it a single step reveals nearly everything, however many there are.
_LARGEST_TRANSFORM = 2**17
_CELL = 0.04  # Width of a grid cell, in standard deviations of F.
_REACH = 7.0  # Reach of the grid, in standard deviations of the sum.
_FAR = 7.5  # Standard deviations of g beyond which F hardly matters.
_NORMALS = np.linspace(-9.0, 9.0, 721)
_NORMAL_ERROR = 2.0**-44  # Relative error of scipy's normal cdf and of its argument.
_TILTS = np.geomspace(1e-7, 30.0, 48)  # In units of 1/(standard deviation of F).
_LOG_OUTSIDE = 30.0  # A window may miss e^-30 of a tilted law on each side; it wraps and adds.
_LEAST_DELTA = 1e-12  # A curve ends where delta is below this.
_DOTS = 128  # Number of epsilons at which each half of a curve is computed.
_ROUNDING = 2.0**-40  # Relative rounding of the masses of a curve's pair.


@dataclass(frozen=True, slots=True)
class _Term:
    """The function F of a standard normal g, by its coefficients."""

    a: float
    b: float
    d: float
    c: float

    def at(self, g: Vector) -> Vector:
        """Return the value of the term at each point of `g`."""
        half = self.c**2 / 2.0
        return np.asarray(
            self.a * np.exp(self.c * g - half) - self.b * np.exp(-self.c * g - half) - self.d
        )

    def inverse(self, values: Vector) -> Vector:
        """Return the g at which F has each value; infinite outside the range of F."""
        # u = e^(c g) solves a u^2 - scaled u - b = 0. Neither quotient suffers cancellation.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            scaled = (values + self.d) * math.exp(self.c**2 / 2.0)
            root = np.sqrt(scaled * scaled + 4.0 * self.a * self.b)
            above = (scaled + root) / (2.0 * self.a) if self.a else np.full_like(scaled, np.inf)
            below = 2.0 * self.b / np.maximum(root - scaled, 1e-300)
            return np.asarray(np.log(np.where(scaled > 0.0, above, below)) / self.c)

    def mean_excess(self, value: float) -> float:
        """Return E (F - value)_+, rounded up."""
        from scipy.special import ndtr

        g = float(self.inverse(np.array([value]))[0])
        parts = (
            self.a * float(ndtr(self.c - g)),
            -self.b * float(ndtr(-self.c - g)),
            -(self.d + value) * float(ndtr(-g)),
        )
        return max(0.0, math.fsum(parts)) + _NORMAL_ERROR * math.fsum(map(abs, parts)) + 1e-300

    def on_grid(self, cell: float, low: int, high: int) -> Vector:
        """Return masses at low*cell ... high*cell that are above F, cut off, in convex order.

        A cell (f, f + s] of mass m in which F has the mean e gets m (e - f)/s at its upper end and
        the rest at its lower end. Rounded up.
        """
        from scipy.special import ndtr

        values = np.arange(low, high + 1, dtype=np.float64) * cell
        g, left = self.inverse(values), values[:-1]
        mass, error = _cell_masses(g, 0.0)
        rising, rising_error = _cell_masses(g, self.c)
        falling, falling_error = _cell_masses(g, -self.c)
        size = np.abs(left) + abs(self.d) + cell
        error = (size * error + self.a * rising_error + self.b * falling_error) / cell
        upper = (self.a * rising - self.b * falling - (self.d + left) * mass) / cell
        upper = np.clip(upper, 0.0, mass)
        masses = np.append(mass - upper + error, 0.0)
        masses[1:] += upper + error
        # Values below the grid are raised to its first value, those above are cut off at its last.
        masses[0] += ndtr(g[0]) * (1.0 + _NORMAL_ERROR)
        masses[-1] += ndtr(-g[-1]) * (1.0 + _NORMAL_ERROR)
        return masses


def _cell_masses(edges: Vector, mean: float) -> tuple[Vector, Vector]:
    """Return masses of N(mean, 1) between edges and bounds on their errors.

    Each mass is a difference of tails on the side of the nearer tail.
    """
    from scipy.special import ndtr

    low, high = edges[:-1] - mean, edges[1:] - mean
    right = low > 0.0
    larger, smaller = ndtr(np.where(right, -low, high)), ndtr(np.where(right, -high, low))
    return np.maximum(0.0, larger - smaller), _NORMAL_ERROR * larger


def _mean_positive_part(term: _Term, steps: int) -> float:
    """Return at least E (sum of `steps` terms)_+/steps, for terms whose mean is at most 0."""
    lowest, highest = term.at(np.array([-term.c - _FAR, term.c + _FAR])).tolist()
    drift = (steps - 1) * (term.b + term.d - term.a)
    weights = np.exp(-_NORMALS * _NORMALS / 2.0)
    plain = term.at(_NORMALS)
    for _ in range(3):  # The limits depend on the spread of what they leave, so they are iterated.
        cut = np.clip(plain, lowest, highest)
        mean = np.average(cut, weights=weights)
        spread = max(1e-9, math.sqrt(np.average((cut - mean) ** 2, weights=weights)))
        deviation = _REACH * math.sqrt(steps) * spread
        highest, lowest = min(highest, drift + deviation), max(lowest, -deviation)
    # Few steps need a finer grid, because fewer terms smooth its error.
    cell = _CELL * min(1.0, math.sqrt(steps) / 8.0) * spread
    cell = max(cell, 4.0 * (deviation + drift) / _LARGEST_TRANSFORM)
    while True:
        low, high = math.floor(lowest / cell), max(1, math.ceil(highest / cell))
        if high - low <= _LARGEST_TRANSFORM:
            found = _positive_part(term.on_grid(cell, low, high), cell, low, spread, steps)
            if found is not None:
                return found / steps + term.mean_excess(high * cell)
        cell *= 1.5


def _positive_part(
    masses: Vector, cell: float, low: int, spread: float, steps: int
) -> float | None:
    """Return at least E (sum)_+ of independent values with these masses; None if it takes too long.

    The masses are tilted by e^(t value), as in `loss_distributions.TiltedComposition`, whose
    docstring explains wrapping and rounding. Sums w above the window contribute at most
    max(w e^(-t w)) e^K(t) for every t > 0.
    """
    values = (low + np.arange(len(masses), dtype=np.float64)) * cell
    with np.errstate(divide="ignore"):
        logs = np.log(masses)
    tilts, moments = _bounded_moments(values, masses, spread, steps)
    # Half the best tilt of the Renyi bound: at the best tilt, rare large values would dominate.
    best = len(_TILTS) + int(np.argmin(moments[len(_TILTS) :]))
    best = int(np.searchsorted(tilts, tilts[best] / 2.0))
    tilt = float(tilts[best])
    shifted = logs + tilt * values
    moment = log_sum_exp(shifted)
    moments[best] = steps * moment
    lows = (moments[best] - moments[:best] - _LOG_OUTSIDE) / (tilt - tilts[:best])
    highs = (moments[best + 1 :] - moments[best] + _LOG_OUTSIDE) / (tilts[best + 1 :] - tilt)
    above, log_above = tilts[len(_TILTS) + 1 :], moments[len(_TILTS) + 1 :]
    goal = max(moments[best] + math.log(1e-8 * cell), math.log(1e-16 * steps))
    tops = (log_above - goal) / above
    tops = (log_above - goal + np.log(np.maximum(tops, 1.0 / above))) / above
    largest = steps * (low + len(masses) - 1)
    start = max(steps * low, min(-1, math.floor(float(np.max(lows)) / cell)))
    stop = min(largest, max(2, math.ceil(max(float(np.min(tops)), float(np.min(highs))) / cell)))
    size = transform_size(max(2, stop - start + 1))
    if size > _LARGEST_TRANSFORM:
        return None
    rest = 0.0
    if start + size <= largest:
        top = (start + size) * cell
        highest = np.maximum(top, 1.0 / above)  # The maximum of w e^(-t w) over w >= top.
        peaks = np.log(highest) - above * highest
        rest = math.exp(min(700.0, float(np.min(log_above + peaks)) + 1e-6 + steps * 2.0**-40))
    tilted = np.exp(shifted - moment)
    places = (low + np.arange(len(tilted))) % size
    folded = np.bincount(places, weights=tilted, minlength=size)
    sums = np.fft.irfft(polar_power(np.fft.rfft(folded), float(steps)), size)
    level, norm = FFT_ROUNDING * math.log2(2 * size), float(np.linalg.norm(folded))
    growth = steps * (max(0.0, float(np.sum(folded)) - 1.0) + level * math.sqrt(size) * norm)
    rounding = level * (1.0 + steps * norm) * math.exp(min(growth, 700.0))
    above_zero = np.arange(1, start + size) * cell
    weights = above_zero * np.exp(-tilt * above_zero)
    found = np.maximum(0.0, np.roll(sums, -(start % size))[1 - start :])
    total = float(weights @ found) + rounding * float(np.linalg.norm(weights))
    slack = steps * 2.0**-51 * (1000.0 + abs(moment) + tilt * float(np.max(np.abs(values))))
    log_total = math.log(total + 1e-300) + steps * moment + slack + 1e-9
    return math.exp(min(700.0, log_total)) + rest


def _bounded_moments(
    values: Vector, masses: Vector, spread: float, steps: int
) -> tuple[Vector, Vector]:
    """Return tilts, and at least `steps` times the log moment at each."""
    # Near 0, where most of the mass is, every cell is a part of its own; farther out parts are
    # wider.
    zero = int(np.searchsorted(values, 0.0))
    away = np.append(np.arange(300), np.geomspace(300.0, _LARGEST_TRANSFORM, 400)).astype(np.intp)
    parts = np.unique(np.concatenate(([0], zero - away, zero + away)))
    parts = parts[(parts >= 0) & (parts < len(values))]
    weights = np.add.reduceat(masses, parts)
    smallest, largest = values[parts], values[np.append(parts[1:], len(values)) - 1]
    tilts = np.concatenate((-_TILTS[::-1], [0.0], _TILTS)) / spread
    logs = np.log(np.maximum(weights, 1e-300))
    exponents = logs + np.maximum(tilts[:, None] * smallest, tilts[:, None] * largest)
    top = np.max(exponents, axis=1)
    return tilts, steps * (top + np.log(np.sum(np.exp(exponents - top[:, None]), axis=1)))


@lru_cache(maxsize=4096)
def allocated_delta(mu: float, steps: int, direction: Direction, epsilon: float) -> float:
    """Return an upper bound on the delta of one random allocation in one direction.

    Args:
        mu: Sensitivity divided by the standard deviation of the Gaussian noise of a step.
        steps: The number of steps, of which the contribution takes part in one.
        direction: Which delta = sup P - e^epsilon Q. "remove": the contribution is in the data of P
            and not in those of Q. "add": only in those of Q. "replace": both have a contribution,
            at most mu/2 standard deviations from zero.
        epsilon: At least 0.
    """
    # An allocation is a mixture of single releases, so the delta of one release is a bound.
    unallocated = gaussian_delta(mu, epsilon)
    if steps == 1 or epsilon > 200.0:
        return unallocated
    a = math.exp(epsilon)
    match direction:
        case "remove":
            term = _Term(1.0, 0.0, a, mu)
        case "add":
            term = _Term(0.0, a, -1.0, mu)
        case "replace":
            term = _Term(1.0, a, 0.0, mu / 2.0)
    return min(unallocated, _mean_positive_part(term, steps))


@dataclass(frozen=True, slots=True)
class AllocatedPair:
    """A dominating pair (P, Q) of one direction of a random allocation.

    The fields are the arguments of `allocated_delta`. The privacy profile H(x) = sup P - x Q is
    bounded from above at finitely many points x; between them it is the chord, which lies above the
    convex profile.
    """

    mu: float
    steps: int
    direction: Direction
    accuracy: ClassVar[float] = PAIR_ACCURACY

    def masses(self, edges: Vector) -> tuple[Vector, Vector]:
        return _atoms(self.mu, self.steps, self.direction).masses(edges)

    def reverse(self) -> "AllocatedPair":
        return AllocatedPair(self.mu, self.steps, _REVERSES[self.direction])


@lru_cache(maxsize=64)
def _atoms(mu: float, steps: int, direction: Direction) -> AtomPair:
    """Return the pair with the profile at e^-eps and e^eps of the computed epsilons.

    For x < 1 the profile is 1 - x + x h(1/x), where h is the profile of the reverse direction.
    """
    points = [(0.0, 1.0)]
    for epsilon, delta in _curve(mu, steps, _REVERSES[direction])[:0:-1]:
        x = math.exp(-epsilon)
        points.append((x, min(1.0, (1.0 - x + x * delta) * (1.0 + 2.0**-50))))
    points += [(math.exp(epsilon), delta) for epsilon, delta in _curve(mu, steps, direction)]
    return curve_pair(points)


@lru_cache(maxsize=64)
def _curve(mu: float, steps: int, direction: Direction) -> list[tuple[float, float]]:
    """Return points (epsilon, delta) from epsilon 0 to where delta is negligible, denser near 0."""
    most = gaussian_epsilon(mu, _LEAST_DELTA)
    reach = most / 1024.0
    while reach < most and allocated_delta(mu, steps, direction, reach) > _LEAST_DELTA:
        reach *= math.sqrt(2.0)
    dots = (reach * np.linspace(0.0, 1.0, _DOTS + 1) ** 1.7).tolist()
    return [(epsilon, allocated_delta(mu, steps, direction, epsilon)) for epsilon in dots]


def curve_pair(points: list[tuple[float, float]]) -> AtomPair:
    """Return a pair that dominates a convex privacy profile, given points above that profile.

    A privacy profile is H(x) = sup P - x Q for x = e^epsilon. The points (x, y) begin at (0, 1), x
    increases, and the given profile is at most y at x. The lower convex hull of the points then
    lies above it, and it is the profile of the returned pair, up to rounding, which is upward: at a
    kink x where the slope rises by q, Q has the mass q and P has x q.
    """
    hull: list[tuple[float, float]] = []
    for point in points:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    slopes = [_slope(one, two) for one, two in pairwise(hull)] + [0.0]
    x = np.array([point[0] for point in hull[1:]])
    q = np.maximum(0.0, np.diff(slopes)) * (1.0 - _ROUNDING)
    rest = max(0.0, 1.0 - float(np.sum(q)))
    return AtomPair(
        np.concatenate(([-math.inf], np.log(x) + 4.0 * _ROUNDING, [math.inf])),
        np.concatenate(([0.0], x * q * (1.0 + 3.0 * _ROUNDING), [hull[-1][1]])),
        np.concatenate(([rest], q, [0.0])),
    )


def _slope(one: tuple[float, float], two: tuple[float, float]) -> float:
    return (two[1] - one[1]) / (two[0] - one[0])


def allocated_pairs(event: Allocated) -> tuple[LossPair, LossPair]:
    """Return dominating pairs (P, Q) for the contribution in the first neighbor and in the second.

    Under zero-out, in the first pair the law with the contribution is P, in the second pair it is
    Q. Under replace-one both pairs are the same. `UnsupportedEventError` is raised if mu exceeds
    `LARGEST_MU`, or under replace-one if the event is not zero-centered.
    """
    first, second = _directions(event)
    mu = max(event.event.mu, _LEAST_MU)
    return AllocatedPair(mu, event.steps, first), AllocatedPair(mu, event.steps, second)


def _directions(event: Allocated) -> tuple[Direction, Direction]:
    if event.event.mu > LARGEST_MU:
        raise UnsupportedEventError(
            f"random allocation is accounted up to mu = {LARGEST_MU:g} (sensitivity / standard "
            f"deviation of the noise), got {event.event.mu:g}; use the renyi accountant, or more "
            "noise"
        )
    if event.adjacency is Adjacency.ZERO_OUT:
        return "remove", "add"
    if not event.event.zero_centered:
        raise UnsupportedEventError(
            "random allocation under replace-one is accounted only if no contribution lies farther "
            "than half the sensitivity from zero; set zero_centered if that holds, ask for "
            "zero-out, or use the renyi accountant"
        )
    return "replace", "replace"


@register(summary="random allocation of one contribution to steps of Gaussian noise", turn=5)
class AllocationAccountant:
    """An accountant for one random allocation: its delta, computed on a grid that rounds up.

    The worse of the two directions counts. Compositions, and events that `allocated_pairs` refuses,
    raise `UnsupportedEventError`.
    """

    name = "allocation"

    def epsilon(self, event: PrivacyEvent, delta: float) -> float:
        curve = _single_curve(event)
        return least_epsilon(curve, delta, precision=1e-8)

    def delta(self, event: PrivacyEvent, epsilon: float) -> float:
        return _single_curve(event)(epsilon)


def _single_curve(event: PrivacyEvent) -> Callable[[float], float]:
    """Return the function from epsilon to delta of the single allocation that the event must be."""
    counts = basic_counts(event)
    part = next(iter(counts))
    if not isinstance(part, Allocated) or sum(counts.values()) != 1:
        raise UnsupportedEventError(
            "the allocation accountant bounds one random allocation only; use renyi, or pld for "
            "compositions"
        )
    directions = sorted(set(_directions(part)))

    def curve(epsilon: float) -> float:
        mu, steps = part.event.mu, part.steps
        return max(allocated_delta(mu, steps, direction, epsilon) for direction in directions)

    return curve
