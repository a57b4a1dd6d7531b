"""Renyi divergence of an event on a secret sample.

Poisson, zero-out. With mix = (1-q) Q + q P, K ~ Bin(a, q), and D_k <= eps(k) both ways for (P, Q),

    e^((a-1) D_a) <= E e^((K-1) eps(K))        (eps(0) = eps(1) = 0)

at whole a >= 2, in both directions. (mix || Q) is the binomial expansion. For (Q || mix) put
r = P/Q, t = 1/r, y = 1 - q + q r, m = a - 2, w = 3(1-q)/(3 + 2mq), and

    f = y^-(a-1) - 1 + (a-1) q (r-1),    g = y^a - 1 - a q (r-1),
    h = E[ t^(K-1) - 1 + (K-1)(r-1) ].

All vanish at r = 1 with their slopes; their second derivatives over a(a-1)q^2 are y^-(m+3), y^m and
t^3 (1-q+qt)^m. By weighted AM-GM, y (1-q+qt) >= 1 and y >= r^q, w y^m + (1-w) t^3 (1-q+qt)^m is at
least y^-(m+3); so f <= w g + (1-w) h, and under Q both g and h have mean at most the sum minus 1.

Replace-one, Poisson or fixed-size. With the laws N (left out), P, P' bounded pairwise,

    e^((a-1) D_a) <= 1 + sum_{j=2}^a C(a, j) q^j z_j,
    z_2 = min(4 (e^eps(2) - 1), e^eps(2) b_2),   z_j = e^((j-1) eps(j)) b_j,
    b_j = min(2, (e^eps_inf - 1)^j).

Reference: Wang, Balle and Kasiviswanathan 2019, theorem 9.

Between whole orders: e^((a-1) D_a) - 1 = E_Q[y^a - 1 - a(y-1)], y the ratio, is a(a-1) times a
mixture of the exponentials u^(a-2), u > 0 (Taylor's remainder). So the logarithm of that over
a(a-1) is convex in a and lies below its chord (and Gaussian noise has a grid of its own, see
`privacy.sampled_gaussian`). Below 2 the chord of (a-1) D_a, convex and 0 at 1,
serves. Beyond `MAX_ORDER`, and wherever it is smaller, the unsampled curve holds: D_a is
quasi-convex.

Renyi divergence of sampled Gaussian noise at orders between whole ones.

With Q = N(0, 1), r = e^(mu x - mu^2/2) and y = 1 - q + q r,

    e^((a-1) D_a) = E_Q y^a

in the direction (mix || Q), the larger one (Mironov, Talwar and Zhang 2019, theorem 5). Up to a
place t the law of log y is rounded up to a grid (`connect_dots`); above it y <= r (q + (1-q)/r_t),
which leaves at most (q + (1-q)/r_t)^a e^(a (a-1) mu^2/2) Phi(a mu - t).
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.privacy.events import GaussianNoise, PrivacyEvent, Sampled
from sottovoce.privacy.loss_distributions import LossLaw, connect_dots
from sottovoce.privacy.loss_pairs import MAX_SAMPLING_RATE, GaussianPair, SampledPair
from sottovoce.privacy.pure import pure_epsilon
from sottovoce.privacy.sampled_swaps import centered_square, swapped_log_excess

# E_Q y^a is decided around x = a mu: up to 16 no mass there vanishes in float64, and the grid stays
# small. The chord between whole orders serves beyond.
_LARGEST_PLACE = 16.0
_LEAST_MU, _LEAST_RATE = 1e-3, 1e-6
_REACH = 12.0  # standard deviations further on both sides
_TOP = _LARGEST_PLACE + _REACH
_WIDTH = 0.02  # of a cell, in standard deviations


def sampled_gaussian_log_excess(mu: float, rate: float, order: float) -> float:
    """log(e^((a-1) D_a) - 1), rounded up; infinity where another bound is better."""
    inside = mu >= _LEAST_MU and order * mu <= _LARGEST_PLACE
    if not (inside and _LEAST_RATE <= rate <= MAX_SAMPLING_RATE):
        return math.inf
    from scipy.special import log_ndtr

    top = _TOP - 1e-2  # the grid's last edge is a little below the last dot
    share = rate + (1.0 - rate) * math.exp(-_log_ratio(mu, top))
    beyond = order * math.log(share) + order * (order - 1.0) * mu * mu / 2.0
    beyond += float(log_ndtr(order * mu - top))
    moment = np.logaddexp(_law(mu, rate).log_moment(order - 1.0), beyond + 1e-9)
    # Sums of some thousand positive terms, each right to some units in the last place.
    moment = float(moment) + 2.0**-44
    return math.log(math.expm1(moment)) if moment < 40.0 else moment


def _log_ratio(mu: float, place: float) -> float:
    return mu * place - mu * mu / 2.0


@lru_cache(maxsize=64)
def _law(mu: float, rate: float) -> LossLaw:
    """The loss of the sampled pair on dots that are evenly spaced in x."""
    cells = math.ceil((_TOP + _REACH) / _WIDTH)
    logs = mu * np.linspace(-_REACH, _TOP, cells + 1) - mu * mu / 2.0
    small = np.minimum(logs, 1.0)
    low = np.log1p(rate * np.expm1(small))
    large = np.maximum(logs, 1.0)
    high = large + np.log(rate + (1.0 - rate) * np.exp(-large))
    dots = np.unique(np.where(logs <= 1.0, low, high))
    return connect_dots(SampledPair(GaussianPair(mu), rate), dots)


Curve = Callable[[PrivacyEvent, float], float]

MAX_ORDER = 10_000
_DENSE_ORDERS = 256
# The unsampled curve is tabulated up to the first of these that suffices: it may be slow.
_LIMITS = (64, 1000, MAX_ORDER)
_ROUNDING = 2.0**-49


def _known_orders() -> Vector:
    """Whole orders at which the unsampled curve is asked; chords serve between."""
    sparse = np.geomspace(_DENSE_ORDERS, MAX_ORDER, 735)
    return np.unique(np.concatenate([np.arange(2, _DENSE_ORDERS), np.rint(sparse)]))


_KNOWN = _known_orders()


def sampled_renyi(event: Sampled, order: float, curve: Curve) -> float:
    """D_a of the sampled event, both directions, from `curve`, the D_a of any event."""
    if not order > 1.0:
        raise ParameterError(f"order must lie above 1, got {order!r}")
    unsampled = curve(event.event, order)
    if event.rate == 1.0 or order > MAX_ORDER:
        return unsampled
    below = math.floor(order)
    if below == order:
        log_excess = _log_excess(event, below, curve)
    else:
        log_excess = _between(event, order, below, curve)
        if isinstance(event.event, GaussianNoise) and event.adjacency == Adjacency.ZERO_OUT:
            exact = sampled_gaussian_log_excess(event.event.mu, event.rate, order)
            log_excess = min(log_excess, exact)
    exponent = math.log1p(math.exp(log_excess)) if log_excess < 40.0 else log_excess + 1e-17
    return min(unsampled, exponent / (order - 1.0) * (1.0 + _ROUNDING))


def _between(event: Sampled, order: float, below: int, curve: Curve) -> float:
    """log excess between two whole orders, by the chord."""
    weight, high = order - below, _log_excess(event, below + 1, curve)
    if below == 1:  # (a-1) D_a is 0 at 1
        exponent = math.log1p(math.exp(high)) if high < 40.0 else high
        return float(_log_expm1(weight * exponent))
    low = _log_excess(event, below, curve)
    if math.isinf(low) or math.isinf(high):
        return max(low, high)
    chord = (1.0 - weight) * (low - _log_pairs(below)) + weight * (high - _log_pairs(below + 1))
    return chord + _log_pairs(order) + _ROUNDING * (100.0 + abs(low) + abs(high))


def _log_pairs(order: float) -> float:
    """log(a (a - 1))"""
    return math.log(order) + math.log(order - 1.0)


@lru_cache(maxsize=1 << 15)
def _log_excess(event: Sampled, order: int, curve: Curve) -> float:
    """log(e^((a-1) D_a) - 1) at a whole order, rounded up; infinity if it cannot be computed."""
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
        return -math.inf if top == -math.inf else _swapped(event, order)
    # Each logarithm errs by a few units in the last place of its largest part.
    size = 4.0 * float(_log_factorials()[order]) + 2.0 * order * abs(math.log(event.rate))
    slack = _ROUNDING * (size + float(np.max(exponents)) + order + 1000.0)
    found = top + math.log(float(np.sum(np.exp(logs - top)))) + slack
    return min(found, _swapped(event, order))


def _swapped(event: Sampled, order: int) -> float:
    """The same for exponential families around zero, under replace-one; else infinity."""
    if event.adjacency == Adjacency.ZERO_OUT:
        return math.inf
    square = centered_square(event)
    return math.inf if square is None else swapped_log_excess(square, event.rate, order)


@lru_cache(maxsize=64)
def _exponents(event: PrivacyEvent, curve: Curve, limit: int) -> Vector:
    """(k-1) eps(k) for k = 0 ... limit, chords of a convex function between known orders."""
    orders = np.union1d(_KNOWN[limit >= _KNOWN], [limit])
    known = np.array([(order - 1.0) * _safe(curve, event, order) for order in orders.tolist()])
    finite = np.isfinite(known)
    # From the first order without a bound on there is none.
    usable = len(known) if finite.all() else int(np.argmin(finite))
    exponents = np.full(limit + 1, np.inf)
    exponents[:2] = 0.0
    if usable:
        whole = np.arange(2, int(orders[usable - 1]) + 1)
        exponents[whole] = np.interp(whole, orders[:usable], known[:usable])
    exponents *= 1.0 + _ROUNDING
    exponents.setflags(write=False)
    return exponents


def _safe(curve: Curve, event: PrivacyEvent, order: float) -> float:
    try:
        value = curve(event, order)
    except (OverflowError, ValueError, FloatingPointError):
        return math.inf
    return math.inf if math.isnan(value) else value


def _log_expm1(values: Vector | float) -> Vector:
    """log(e^x - 1) for x >= 0: no cancellation with the 1 that the weights sum to."""
    values = np.asarray(values, dtype=np.float64)
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(np.where(values > 40.0, values, np.log(np.expm1(values))))


def _log_ternary(exponents: Vector, event: PrivacyEvent) -> Vector:
    """log z_j for j = 2 ... a."""
    pure = pure_epsilon(event)
    log_reach = pure if pure > 40.0 else float(_log_expm1(pure))
    powers = np.arange(2, len(exponents)) * log_reach
    logs = exponents[2:] + np.minimum(math.log(2.0), powers)
    logs[0] = min(logs[0], math.log(4.0) + float(_log_expm1(float(exponents[2]))))
    return np.asarray(logs)


def _log_powers(rate: float, order: int, *, with_rest: bool) -> Vector:
    """k log q, and with_rest + (a-k) log(1-q)."""
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
