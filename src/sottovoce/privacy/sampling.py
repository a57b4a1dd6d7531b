"""Amplification by sampling: Renyi divergences of an event on a secret sample.

Notation: q is the sampling rate, eps(k) bounds D_k of the event without sampling, in both
directions.

Poisson sampling, zero-out. With mix = (1-q) Q + q P and K ~ Bin(a, q),

    e^((a-1) D_a) <= E e^((K-1) eps(K))        (eps(0) = eps(1) = 0)

at integer a >= 2, in both directions. For (mix || Q) this is the binomial expansion. For
(Q || mix) put r = P/Q, t = 1/r, y = 1 - q + q r, m = a - 2, w = 3(1-q)/(3 + 2mq), and

    f = y^-(a-1) - 1 + (a-1) q (r-1),    g = y^a - 1 - a q (r-1),
    h = E[ t^(K-1) - 1 + (K-1)(r-1) ].

All three vanish at r = 1 with their slopes. Their second derivatives divided by a(a-1)q^2 are
y^-(m+3), y^m and t^3 (1-q+qt)^m. By weighted AM-GM, y (1-q+qt) >= 1 and y >= r^q, the mixture
w y^m + (1-w) t^3 (1-q+qt)^m is at least y^-(m+3). So f <= w g + (1-w) h, and under Q both g and h
have a mean of at most the sum minus 1. Proof in full: docs/explanation/privacy.md, section 15.

Replace-one, Poisson or fixed-size. With the laws N (contribution not sampled), P, P' bounded
pairwise,

    e^((a-1) D_a) <= 1 + sum_{j=2}^a C(a, j) q^j z_j,
    z_2 = min(4 (e^eps(2) - 1), e^eps(2) b_2),   z_j = e^((j-1) eps(j)) b_j,
    b_j = min(2, (e^eps_inf - 1)^j).

Reference: Wang, Balle and Kasiviswanathan 2019, theorem 9.

Between integer orders. e^((a-1) D_a) - 1 = E_Q[y^a - 1 - a(y-1)], with y the likelihood ratio, is
a(a-1) times a mixture of the exponentials u^(a-2), u > 0 (Taylor's remainder). So the logarithm of
that divided by a(a-1) is convex in a and lies below its chords. (Sampled Gaussian noise has a grid
of its own, see below.) Below order 2 the chord of (a-1) D_a, which is convex and 0 at 1, is used.
Beyond `MAX_ORDER`, and wherever it is smaller, the bound without sampling holds, because D_a is
quasi-convex.

Sampled Gaussian noise between integer orders. With Q = N(0, 1), r = e^(mu x - mu^2/2) and
y = 1 - q + q r,

    e^((a-1) D_a) = E_Q y^a

in the direction (mix || Q), which is the larger one (Mironov, Talwar and Zhang 2019, theorem 5).
Up to a point t of x the law of log y is rounded up to a grid (`connect_dots`). Above it
y <= r (q + (1-q)/r_t), which contributes at most
(q + (1-q)/r_t)^a e^(a (a-1) mu^2/2) Phi(a mu - t).

Replace-one on a Poisson sample, with contributions centered at zero. Both neighbors are mixtures:
with probability 1 - q the contribution is not sampled, which leaves the law N of the rest, and with
probability q it is sampled and moves N by at most half the distance between two contributions.
`SwappedPair` does not use this and is far from tight. Proofs: docs/explanation/privacy.md, section
28.

- Gaussian noise. The worst neighbors are opposite. With c = mu/2 the pair

      (1-q) N(0, 1) + q N(c, 1)    and    (1-q) N(0, 1) + q N(-c, 1)

  dominates each round, in every dimension and in both orders, because it is its own mirror image.

- Exponential families. Let v = M t^2, where the Fisher information is at most M at every tilt and a
  contribution tilts by at most t. For integer a >= 2, f(x) = (1-q+qx)^-(a-1) and any
  p(x) = h/x + p0 + p1 x + p2 x^2 >= f(x) with h, p2 >= 0,

      e^((a-1) D_a) <= sum_j C(a,j) (1-q)^(a-j) q^j e^(j(j-1)v/2) max(G(e^-jv), G(e^jv)),
      G(w) = h e^v/w + p0 + p1 w + p2 e^v w^2.
"""

import decimal
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import ClassVar

import numpy as np

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.privacy.events import (
    GaussianNoise,
    OneBit,
    PrivacyEvent,
    Sampled,
    ZeroConcentrated,
    basic_counts,
)
from sottovoce.privacy.loss_distributions import LossLaw, connect_dots
from sottovoce.privacy.loss_pairs import (
    MAX_SAMPLING_RATE,
    PAIR_ACCURACY,
    GaussianPair,
    SampledPair,
    normal_masses,
)
from sottovoce.privacy.pure import pure_epsilon

# For larger centers e^(c^2/2) would cost the accuracy that `LossPair` requires of edges.
LARGEST_CENTER = 30.0
_DIGITS = 60
_LARGEST_GROWTH = 300.0  # Largest a v, for which e^(jv) and its square fit into float64.
_SWAP_ROUNDING = 2.0**-46
_LEAST_SWAP_RATE = 1e-9


@dataclass(frozen=True, slots=True)
class AntipodalPair:
    """Sampled Gaussian noise with center c against the same with center -c.

    P = (1-q) N(0, 1) + q N(c, 1) and Q = (1-q) N(0, 1) + q N(-c, 1), with c = `center` and
    q = `rate`. The privacy loss log(dP/dQ) at x is
    loss(x) = log(1-q+q e^(cx - c^2/2)) - log(1-q+q e^(-cx - c^2/2)). It is odd and increases with
    x, with the inverse x = (l/2 + asinh((1-q) e^(c^2/2) sinh(l/2)/q))/c. c is at most
    `LARGEST_CENTER`.
    """

    center: float
    rate: float
    accuracy: ClassVar[float] = PAIR_ACCURACY

    def masses(self, edges: Vector) -> tuple[Vector, Vector]:
        """Return the P and Q masses of the loss between the edges; see `LossPair.masses`."""
        if not len(edges):
            return np.ones(1), np.ones(1)
        places = self._inverse_loss(edges)
        # All laws use the same bins, so that rounding an edge affects both masses alike.
        left_out, up, down = (
            normal_masses(places, shift) for shift in (0.0, -self.center, self.center)
        )
        rest = (1.0 - self.rate) * left_out
        return rest + self.rate * up, rest + self.rate * down

    def _inverse_loss(self, losses: Vector) -> Vector:
        """Return the x at which the loss has these values."""
        half = np.abs(losses) / 2.0
        log_odds = math.log1p(-self.rate) - math.log(self.rate) + self.center**2 / 2.0
        with np.errstate(over="ignore", divide="ignore"):
            log_sinh = np.where(
                half > 1.0, half + np.log1p(-np.exp(-2.0 * half)) - math.log(2.0), -np.inf
            )
            log_sinh = np.where(half <= 1.0, np.log(np.sinh(np.minimum(half, 1.0))), log_sinh)
            exponent = log_odds + log_sinh
            inverse = np.where(
                exponent > 20.0,  # There asinh(u) is log(2u) to a relative 2^-57.
                exponent + math.log(2.0),
                np.arcsinh(np.exp(np.minimum(exponent, 20.0))),
            )
        return np.asarray(np.copysign((half + inverse) / self.center, losses))

    def reverse(self) -> "AntipodalPair":
        """Return the pair itself: x -> -x exchanges the two laws."""
        return self


def centered_square(event: Sampled) -> float | None:
    """Return v = M t^2 of a sampled release under replace-one, summed over its parts.

    M bounds the Fisher information of the laws at every tilt, and a contribution tilts them by at
    most t; for Gaussian noise M = 1 and t is in standard deviations. None if a part is not
    zero-centered or not supported.

    If one sampling decision covers several parts, the later ones may depend on the outcomes of the
    earlier ones. For this the theorem is proved for Gaussian noise only, where the worst step is
    always the same; None for other parts. On a Poisson sample t is half the distance of neighbors.
    On a sample of fixed size a contribution takes the place of another one, so t is the whole
    distance.
    """
    total, parts = 0.0, basic_counts(event.event)
    if sum(parts.values()) > 1 and not all(isinstance(part, GaussianNoise) for part in parts):
        return None
    for part, count in parts.items():
        square = _square_distance(part)
        if square is None:
            return None
        total += float(min(count, 2**1000)) * square
    return total / (4.0 if event.scheme == "poisson" else 1.0) * (1.0 + 2.0**-48)


def _square_distance(event: PrivacyEvent) -> float | None:
    """Return M times the squared distance of the neighbors' tilts; None if not zero-centered."""
    match event:
        case GaussianNoise(zero_centered=True):
            return event.mu**2
        case OneBit(zero_centered=True):
            return event.shift**2 / 4.0  # The tilt is half the logit, with M = 1.
        case ZeroConcentrated(zero_centered=True):
            return 2.0 * event.rho
        case _:
            return None


def swapped_log_excess(square: float, rate: float, order: int) -> float:
    """Return an upper bound on log(e^((a-1) D_a) - 1), rounded up, for an integer order a >= 2.

    D_a is the Renyi divergence, in both directions, of a sampled zero-centered release under
    replace-one with v = `square` (`centered_square`), at the sampling rate `rate`. The smallest
    bound over a few functions p of this module's docstring is taken. Infinity at rate 1, or if the
    tilts are too large for float64.
    """
    if not order * square <= _LARGEST_GROWTH or not rate < 1.0:
        return math.inf
    rate = max(rate, _LEAST_SWAP_RATE)  # A larger rate reveals more, so this is sound.
    return min(
        _log_swap_excess(square, rate, order, one) for one in _majorants(square, rate, order - 1)
    )


@dataclass(frozen=True, slots=True)
class _Majorant:
    """The coefficients of p(x) = h/x + p0 + p1 x + p2 x^2, rounded up."""

    h: float
    p0: float
    p1: float
    p2: float


@lru_cache(maxsize=4096)
def _majorants(square: float, rate: float, power: int) -> tuple[_Majorant, ...]:
    """Return some p >= (1-q+qx)^-n on x > 0; all are sound, they differ in how tight they are."""
    with decimal.localcontext(prec=_DIGITS):
        found = list(_tangent_majorants(rate, power))
        found += _interpolation_majorants(math.sqrt(square), rate, power)
    return tuple(found)


def _round_up(value: Decimal) -> float:
    """Return the smallest float64 that is not below the value."""
    nearest = float(value)
    return nearest if Decimal(nearest) >= value else math.nextafter(nearest, math.inf)


def _majorant(h: Decimal, p0: Decimal, p1: Decimal, p2: Decimal) -> _Majorant:
    # Larger coefficients give a larger p for x > 0, so rounding up is sound.
    return _Majorant(*(_round_up(value) for value in (h, p0, p1, p2)))


def _tangent_majorants(rate: float, power: int) -> Iterator[_Majorant]:
    """Yield parabolas through f(0), tangent to f at some c; they lie above f because f''' < 0."""
    q = Decimal(rate)
    at_zero = (1 - q) ** -power
    for c in (Decimal("1.1"), Decimal("1.3"), Decimal("1.6")):
        y = 1 - q + q * c
        value, slope = y**-power, -power * q * y ** (-power - 1)
        p2 = (at_zero - value + c * slope) / c**2
        yield _majorant(Decimal(0), at_zero, slope - 2 * p2 * c, p2)


def _interpolation_majorants(step: float, rate: float, power: int) -> Iterator[_Majorant]:
    """Yield p for which x p(x) is the cubic that meets x f(x) twice at x1 and twice at x2.

    (x f)'''' has the sign of (n-1) q x - 4 (1-q), so x p - x f >= 0 up to t = 4 (1-q)/((n-1) q) if
    x2 <= t. Beyond t, p increases (this is checked) and f decreases.
    """
    q = Decimal(rate)
    limit = None if power == 1 else 4 * (1 - q) / ((power - 1) * q)
    for low, high in ((1.2, 1.0), (0.7, 0.7), (1.2, 0.5), (2.0, 1.5)):
        x1, x2 = Decimal(math.exp(-low * step)), Decimal(math.exp(high * step))
        if limit is not None and x2 > limit:
            continue
        ends = []
        for x in (x1, x2):
            y = 1 - q + q * x
            f, slope = y**-power, -power * q * y ** (-power - 1)
            ends.append((x * f, f + x * slope))
        (g1, s1), (g2, s2) = ends
        gap = x2 - x1
        if gap <= 0:
            continue
        # Newton's form of the interpolation at x1, x1, x2, x2:
        # g1 + s1 (x-x1) + second (x-x1)^2 + third (x-x1)^2 (x-x2).
        chord = (g2 - g1) / gap
        second = (chord - s1) / gap
        third = (s2 - 2 * chord + s1) / gap**2
        h = g1 - s1 * x1 + second * x1**2 - third * x1**2 * x2
        p0 = s1 - 2 * second * x1 + third * (x1**2 + 2 * x1 * x2)
        p1 = second - third * (2 * x1 + x2)
        p2 = third
        grows = limit is None or -h / limit**2 + p1 + 2 * p2 * limit >= 0
        if h >= 0 and p2 >= 0 and grows:
            yield _majorant(h, p0, p1, p2)


def _log_swap_excess(square: float, rate: float, order: int, p: _Majorant) -> float:
    """Return the log of the sum minus 1: sum_j C(a,j) (1-q)^(a-j) q^j (e^(j(j-1)v/2) G - 1).

    No term is negative, because G is convex and at least 1 at 1. Each term is accurate relative to
    its parts.
    """
    from scipy.special import gammaln

    j = np.arange(order + 1, dtype=np.float64)
    growth = math.exp(square) * (1.0 + 2.0**-50)
    with decimal.localcontext(prec=_DIGITS):
        at_one = sum(map(Decimal, (p.p0, p.p1))) + (Decimal(p.h) + Decimal(p.p2)) * Decimal(growth)
        start = _round_up(at_one - 1)  # G(1) - 1.
    above = np.zeros(order + 1)
    for sign in (-1.0, 1.0):
        with np.errstate(over="ignore", invalid="ignore"):  # Overflow results in infinity.
            parts = (
                p.h * growth * np.expm1(-sign * j * square),
                p.p1 * np.expm1(sign * j * square),
                p.p2 * growth * np.expm1(2.0 * sign * j * square),
            )
            change = sum(parts) + 2.0**-48 * sum(map(np.abs, parts))
            above = np.maximum(above, start + change)
    exponents = j * (j - 1.0) * square / 2.0
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        direct = np.log(np.expm1(np.minimum(exponents, 40.0)) * (1.0 + above) + above)
        logs = np.where(exponents > 40.0, exponents + np.log1p(above), direct)
    sizes = float(gammaln(order + 1.0))
    logs += sizes - gammaln(j + 1.0) - gammaln(order - j + 1.0)
    logs += j * math.log(rate) + (order - j) * math.log1p(-rate)
    top = float(np.max(logs))
    if not math.isfinite(top):
        return math.inf
    slack = _SWAP_ROUNDING * (4.0 * sizes + 2.0 * order * abs(math.log(rate)) + 1000.0)
    slack += _SWAP_ROUNDING * float(exponents[-1])
    return top + math.log(float(np.sum(np.exp(logs - top)))) + slack


# E_Q y^a is determined around x = a mu. Up to 16 no mass there underflows in float64, and the grid
# stays small. Beyond that the chord between integer orders is used.
_LARGEST_PLACE = 16.0
_LEAST_MU, _LEAST_RATE = 1e-3, 1e-6
_REACH = 12.0  # The grid extends by so many standard deviations on both sides.
_TOP = _LARGEST_PLACE + _REACH
_WIDTH = 0.02  # Width of a grid cell, in standard deviations.


def sampled_gaussian_log_excess(mu: float, rate: float, order: float) -> float:
    """Return log(e^((a-1) D_a) - 1) of Poisson-sampled Gaussian noise under zero-out, rounded up.

    D_a is the Renyi divergence of order a = `order` > 1 in the larger of the two directions,
    D_a((1-q) N(0, 1) + q N(mu, 1) || N(0, 1)), with q = `rate`. Infinity outside the range of mu,
    rate and order in which this is computed; there other bounds are used.
    """
    inside = mu >= _LEAST_MU and order * mu <= _LARGEST_PLACE
    if not (inside and _LEAST_RATE <= rate <= MAX_SAMPLING_RATE):
        return math.inf
    from scipy.special import log_ndtr

    top = _TOP - 1e-2  # The last edge of the grid is slightly below the last dot.
    share = rate + (1.0 - rate) * math.exp(-_log_ratio(mu, top))
    beyond = order * math.log(share) + order * (order - 1.0) * mu * mu / 2.0
    beyond += float(log_ndtr(order * mu - top))
    moment = np.logaddexp(_sampled_gaussian_law(mu, rate).log_moment(order - 1.0), beyond + 1e-9)
    # The sums have a few thousand positive terms, each accurate to a few units in the last place.
    moment = float(moment) + 2.0**-44
    return math.log(math.expm1(moment)) if moment < 40.0 else moment


def _log_ratio(mu: float, place: float) -> float:
    return mu * place - mu * mu / 2.0


@lru_cache(maxsize=64)
def _sampled_gaussian_law(mu: float, rate: float) -> LossLaw:
    """Return the loss law of the sampled pair on dots that are evenly spaced in x."""
    cells = math.ceil((_TOP + _REACH) / _WIDTH)
    logs = mu * np.linspace(-_REACH, _TOP, cells + 1) - mu * mu / 2.0
    small = np.minimum(logs, 1.0)
    low = np.log1p(rate * np.expm1(small))
    large = np.maximum(logs, 1.0)
    high = large + np.log(rate + (1.0 - rate) * np.exp(-large))
    dots = np.unique(np.where(logs <= 1.0, low, high))
    return connect_dots(SampledPair(GaussianPair(mu), rate), dots)


EventDivergence = Callable[[PrivacyEvent, float], float]

MAX_ORDER = 10_000
_DENSE_ORDERS = 256
# D_a without sampling may be slow, so it is tabulated up to the first of these that suffices.
_LIMITS = (64, 1000, MAX_ORDER)
_ROUNDING = 2.0**-49


def _known_orders() -> Vector:
    """Return the integer orders at which D_a without sampling is computed; chords serve between."""
    sparse = np.geomspace(_DENSE_ORDERS, MAX_ORDER, 735)
    return np.unique(np.concatenate([np.arange(2, _DENSE_ORDERS), np.rint(sparse)]))


_KNOWN = _known_orders()


def sampled_renyi(event: Sampled, order: float, curve: EventDivergence) -> float:
    """Return an upper bound on D_a of the sampled event in both directions.

    D_a is the Renyi divergence of order a = `order`; an order of at most 1 raises `ParameterError`.
    `curve` returns such a bound for an event and an order; it is asked about the event without
    sampling, whose bound the result never exceeds.
    """
    if not order > 1.0:
        raise ParameterError(f"the Renyi order must lie above 1, got {order!r}")
    unsampled = curve(event.event, order)
    if event.rate == 1.0 or order > MAX_ORDER:
        return unsampled
    below = math.floor(order)
    if below == order:
        log_excess = _log_excess(event, below, curve)
    else:
        log_excess = _log_excess_between(event, order, below, curve)
        if isinstance(event.event, GaussianNoise) and event.adjacency == Adjacency.ZERO_OUT:
            exact = sampled_gaussian_log_excess(event.event.mu, event.rate, order)
            log_excess = min(log_excess, exact)
    exponent = math.log1p(math.exp(log_excess)) if log_excess < 40.0 else log_excess + 1e-17
    return min(unsampled, exponent / (order - 1.0) * (1.0 + _ROUNDING))


def _log_excess_between(event: Sampled, order: float, below: int, curve: EventDivergence) -> float:
    """Return the log excess between two integer orders, by the chord."""
    weight, high = order - below, _log_excess(event, below + 1, curve)
    if below == 1:  # (a-1) D_a is convex and 0 at order 1.
        exponent = math.log1p(math.exp(high)) if high < 40.0 else high
        return float(_log_expm1(weight * exponent))
    low = _log_excess(event, below, curve)
    if math.isinf(low) or math.isinf(high):
        return max(low, high)
    low_ratio, high_ratio = low - _log_order_product(below), high - _log_order_product(below + 1)
    chord = (1.0 - weight) * low_ratio + weight * high_ratio
    return chord + _log_order_product(order) + _ROUNDING * (100.0 + abs(low) + abs(high))


def _log_order_product(order: float) -> float:
    """Return log(a (a - 1))."""
    return math.log(order) + math.log(order - 1.0)


@lru_cache(maxsize=1 << 15)
def _log_excess(event: Sampled, order: int, curve: EventDivergence) -> float:
    """Return log(e^((a-1) D_a) - 1) at an integer order, rounded up; infinity if it fails."""
    if order > MAX_ORDER:
        return math.inf
    exponents = _exponents(event.event, curve, next(n for n in _LIMITS if order <= n))
    exponents = exponents[: order + 1]
    if event.adjacency == Adjacency.ZERO_OUT:
        logs = _log_binomial(order) + _log_powers(event.rate, order, with_rest=True)
        logs = logs[2:] + _log_expm1(exponents[2:])
    else:
        logs = _log_binomial(order) + _log_powers(event.rate, order, with_rest=False)
        logs = logs[2:] + _log_ternary(exponents, event.event)
    top = float(np.max(logs))
    if not math.isfinite(top):
        return -math.inf if top == -math.inf else _centered_log_excess(event, order)
    # Each logarithm is wrong by a few units in the last place of its largest part.
    size = 4.0 * float(_log_factorials()[order]) + 2.0 * order * abs(math.log(event.rate))
    slack = _ROUNDING * (size + float(np.max(exponents)) + order + 1000.0)
    found = top + math.log(float(np.sum(np.exp(logs - top)))) + slack
    return min(found, _centered_log_excess(event, order))


def _centered_log_excess(event: Sampled, order: int) -> float:
    """Return the same for zero-centered exponential families under replace-one, else infinity."""
    if event.adjacency == Adjacency.ZERO_OUT:
        return math.inf
    square = centered_square(event)
    return math.inf if square is None else swapped_log_excess(square, event.rate, order)


@lru_cache(maxsize=64)
def _exponents(event: PrivacyEvent, curve: EventDivergence, limit: int) -> Vector:
    """Return (k-1) eps(k) for k = 0 ... limit.

    Between known orders by chords, because the function is convex.
    """
    orders = np.union1d(_KNOWN[limit >= _KNOWN], [limit])
    known = np.array([(order - 1.0) * _evaluate(curve, event, order) for order in orders.tolist()])
    finite = np.isfinite(known)
    # From the first order without a finite bound on, no bound is used.
    usable = len(known) if finite.all() else int(np.argmin(finite))
    exponents = np.full(limit + 1, np.inf)
    exponents[:2] = 0.0
    if usable:
        whole = np.arange(2, int(orders[usable - 1]) + 1)
        exponents[whole] = np.interp(whole, orders[:usable], known[:usable])
    exponents *= 1.0 + _ROUNDING
    exponents.setflags(write=False)
    return exponents


def _evaluate(curve: EventDivergence, event: PrivacyEvent, order: float) -> float:
    try:
        value = curve(event, order)
    except (OverflowError, ValueError, FloatingPointError):
        return math.inf
    return math.inf if math.isnan(value) else value


def _log_expm1(values: Vector | float) -> Vector:
    """Return log(e^x - 1) for x >= 0.

    The weights sum to 1, so subtracting 1 in each term avoids the cancellation with that sum.
    """
    values = np.asarray(values, dtype=np.float64)
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(np.where(values > 40.0, values, np.log(np.expm1(values))))


def _log_ternary(exponents: Vector, event: PrivacyEvent) -> Vector:
    """Return log z_j for j = 2 ... a."""
    pure = pure_epsilon(event)
    log_reach = pure if pure > 40.0 else float(_log_expm1(pure))
    powers = np.arange(2, len(exponents)) * log_reach
    logs = exponents[2:] + np.minimum(math.log(2.0), powers)
    logs[0] = min(logs[0], math.log(4.0) + float(_log_expm1(float(exponents[2]))))
    return np.asarray(logs)


def _log_powers(rate: float, order: int, *, with_rest: bool) -> Vector:
    """Return k log q, plus (a-k) log(1-q) if `with_rest`."""
    chosen = np.arange(order + 1)
    logs = chosen * math.log(rate)
    return np.asarray(logs + chosen[::-1] * math.log1p(-rate) if with_rest else logs)


def _log_binomial(order: int) -> Vector:
    factorials = _log_factorials()[: order + 1]
    return np.asarray(factorials[-1] - factorials - factorials[::-1])


@lru_cache(maxsize=1)
def _log_factorials() -> Vector:
    from scipy.special import gammaln

    return np.asarray(gammaln(np.arange(MAX_ORDER + 1) + 1.0), dtype=np.float64)
