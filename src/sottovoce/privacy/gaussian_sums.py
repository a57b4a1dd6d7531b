"""Gaussian noise that dominates secure sums.

Statement. If the logits of neighbors move by at most S in Euclidean norm, the sums (`SummedBits`)
are dominated by Gaussian noise with mu = kappa S/2: at every epsilon their delta is at most that of
the noise, in both orders and under adaptive composition. For n clients and a small logit bound Z,
kappa is 1.00 to 1.02 times 1/sqrt(n), and 1/sqrt(n) is the central limit.

Proof in short (docs/explanation/privacy.md, section 35). Let the others of one coordinate be fixed,
B the law of their sum and h that of their sum and one fair coin. The two laws of the sum are
h (1 + c v) and h (1 + c' v), where v = (B(x-1) - B(x))/(B(x-1) + B(x)), c = tanh(z/2) and
c' = tanh(z'/2) for the logits z and z' of the protected client. With A = e^eps >= 1,

    delta = E (1 - A + (c - A c') v)_+ = K g(t),    g(t) = E (v - t)_+,    A = 1 + K t,

    K = |c - A c'| = (c - c')/(1 + t c')   up to the signs of c, c' and v.

1. Let B(x) = E (G - x)_+ for a standard normal G, and let sigma(t) be a sigma with
   g(t) <= sigma B(t/sigma), whose right side does not fall with sigma. Then
   K g(t) <= m B((A - 1)/m) if m >= K sigma(t).
2. Gaussian noise with mu has at least the delta m B((A - 1)/m) for all A >= 1, where
   m = sqrt(2 pi) erf(mu/sqrt 8): the density of the lognormal e^(mu G - mu^2/2) crosses that of
   1 + m G exactly once above 1, from below.
3. So mu(s) = sqrt 8 erfinv(R s/sqrt(8 pi)) suffices for a coordinate that moves by s, where
   R >= sigma(t) K/(s/2) for all t and s. mu(s)/s grows with s; let kappa/2 be its value at the
   largest s. The squares of mu(s) <= kappa s/2 then add up to at most (kappa S/2)^2.

Others with logits in [-Z, Z] are mixtures of others at an end of it, and delta is jointly convex,
so g is the largest over all numbers of others at Z. Of many clients only the fair coins hide one:
every bit is a fair coin with probability p = 2/(1 + e^Z), all that is not is revealed, and v is the
mean of N fair signs with N - 1 ~ Bin(n - 1, p) known.

g is bounded on a grid by its chords, and beyond it by Chernoff's bound. On a cell of either kind
the least sigma that suffices for the whole cell is computed.

Sums of rounded Gaussian noise (`SummedNoise`) differ by a factor of at most e^excess from
post-processed Gaussian noise, and a slightly larger mu covers that factor.
"""

import math
from functools import lru_cache
from typing import assert_never

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.privacy.events import SummedBits, SummedNoise
from sottovoce.privacy.sum_sigmas import MAX_LISTED, sum_cells

_MOVES = 64  # Cells of the move of a logit.
_LEAST_LOGIT_BOUND = 1e-6  # Smaller bounds count as this; a larger bound is always sound.
_MAX_LOGIT_BOUND = 30.0  # Beyond it hardly any bit is a fair coin, so sums hide nothing.
_BOUNDS_PER_OCTAVE = 32  # To so many bounds per octave the bound of many clients is rounded up.
_LEAST_SHIFT = 1e-100  # Smaller shifts count as this.
_ROUNDING = 1e-7  # Relative rounding of mu: the bisection and the functions used.
_ROOT_8 = math.sqrt(8.0)


@lru_cache(maxsize=1024)
def gaussian_mu_of_sum(event: SummedBits | SummedNoise) -> float:
    """Return mu such that Gaussian noise with this mu dominates the sums, rounded up.

    mu is the distance of the means in standard deviations, as in `GaussianNoise`. It is never above
    the mu that dominates the protected client's messages themselves.
    """
    match event:
        case SummedBits():
            return _mu_of_bits(event)
        case SummedNoise():
            return _mu_of_noise(event)
        case _:
            assert_never(event)


def _mu_of_noise(event: SummedNoise) -> float:
    """Return mu' with erf(mu'/sqrt 8) = erf(m/sqrt 8) + e^(2 excess) - 1, m = mu/sqrt(clients)."""
    from scipy.special import erfcinv, erfinv

    mu = event.mu / math.sqrt(event.clients)
    if event.clients == 1 or event.excess > 1.0:
        return event.mu
    added = math.expm1(2.0 * event.excess)
    if mu < 1.0:
        reach = math.erf(mu / _ROOT_8) + added
        raised = _ROOT_8 * float(erfinv(reach)) if reach < 1.0 else math.inf
    else:
        rest = math.erfc(mu / _ROOT_8) - added * (1.0 + _ROUNDING)
        raised = _ROOT_8 * float(erfcinv(rest)) if rest > 1e-300 else math.inf
    raised *= 1.0 + _ROUNDING
    # Otherwise the densities might cross above 1 (see the proof).
    proved = 2.0 * event.excess**2 <= mu * mu * (event.excess + math.log(raised / mu))
    return min(event.mu, raised) if proved else event.mu


def _mu_of_bits(event: SummedBits) -> float:
    shift = max(event.shift, _LEAST_SHIFT)
    visible = shift * math.sqrt(2.0 * math.pi) / 4.0 * (1.0 + _ROUNDING)
    if event.clients == 1 or event.logit_bound > _MAX_LOGIT_BOUND:
        return visible
    bound = max(event.logit_bound, _LEAST_LOGIT_BOUND)
    if event.clients > MAX_LISTED:  # Calibration tries many bounds, and each takes a while.
        steps = math.ceil(_BOUNDS_PER_OCTAVE * math.log2(bound) - 1e-9)
        bound = max(bound, 2.0 ** (steps / _BOUNDS_PER_OCTAVE))
    farthest = min(shift, bound if event.against_zero else 2.0 * bound)
    cells = sum_cells(event.clients, bound)
    slopes = _slopes(cells.ends, farthest / 2.0, bound, against_zero=event.against_zero)
    reach = float(np.max(slopes * cells.sigmas)) * farthest / _ROOT_8 / math.sqrt(math.pi)
    if not reach < 1.0:
        return visible
    from scipy.special import erfinv

    # For small arguments erfinv is a line; its error there would be relative to 1.
    inverse = float(erfinv(reach)) if reach > 1e-8 else reach * math.sqrt(math.pi) / 2.0
    return min(visible, _ROOT_8 * inverse * shift / farthest * (1.0 + _ROUNDING))


def _slopes(ends: Vector, half: float, bound: float, *, against_zero: bool) -> Vector:
    """Return upper bounds on K/(s/2) for all moves s <= 2 `half`, at each t of `ends`.

    With t = tanh tau, y = s/2 and m the middle of the two logits,

        K = 2 sinh(y) cosh(tau)/(cosh(m + tau) + cosh(y - tau)),

    which is largest at m = -tau, but m >= y - Z; with `against_zero` at m = -y. The bound is
    evaluated cell by cell of y. It does not fall with t, so it holds for smaller t as well.
    """
    tau = np.arctanh(np.minimum(ends, 1.0 - 2.0**-53))[:, None]
    edges = np.linspace(0.0, half, _MOVES + 1)
    low, high = edges[:-1], edges[1:]
    apart = np.cosh(np.clip(tau, low, high) - tau)
    middle = apart if against_zero else np.cosh(np.maximum(0.0, low - bound + tau))
    slopes = 2.0 * np.sinh(high) / high * np.cosh(tau) / (middle + apart)
    return np.asarray(slopes.max(axis=1))


def rounding_excess(stddev: float, clients: int, *, dimension: int) -> float:
    """Return the `excess` of `SummedNoise` for rounded Gaussian noise, rounded up.

    `stddev` is the standard deviation of the noise of one message in grid steps. The sum of n
    messages is compared with rounded noise n - 1 times in each coordinate. Each time the factor is
    a sum of e^(-(k-t)^2/(2c^2)) over integers k, normalized, with c^2 >= stddev^2/2, which lies
    within theta of 1, theta = 2r/(1 - r) with r = e^(-pi^2 stddev^2) (Poisson summation).
    """
    ratio = math.exp(-((math.pi * stddev) ** 2))
    theta = 2.0 * ratio / (1.0 - ratio) if ratio < 0.5 else 1.0
    if theta >= 1.0:
        return 1e9  # No bound; the messages then count as if they were seen.
    return -math.log1p(-theta) * (clients - 1) * dimension * (1.0 + _ROUNDING)
