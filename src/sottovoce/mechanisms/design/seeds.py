"""How odds are truncated so that a seed can be chosen by rejection, and what that costs.

Signs b in {-1, 1}^D, fair under Q, have r(b) = exp(<b, z> - sum log cosh z_i) times their fair
probability under the one-bit law P of the tilts z, |z| <= M. A candidate is accepted with
probability c(b)/t, c = r cut to [1/t, t], at most J of them; the last one is sent if none was. So
the message follows (1 - w) c/Z + w, in units of Q, with Z = E_Q c and w = (1 - Z/t)^(J-1).

    log t = M^2/2 + M x,   x = sqrt(2 log(1/tail))

and by Chernoff's bound (D_a <= a M^2/2 both ways) P(r > t), Q(r < 1/t) and P'(r > t) for the law P'
of any other tilts in the ball are at most `tail`: 1 - tail <= Z <= 1 + tail/t. docs/privacy.md,
section 27, has what follows.

Reference: Feldman and Talwar 2021 (seeds in place of outputs); the truncation is our own.
"""

import math
from dataclasses import dataclass

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError

MAX_TRIES = 2_000  # on average
# The share of rho that truncation may cost.
_SHARE = 2.0**-12
_LARGEST_TAIL = 1e-3
_LEAST_TAIL = 1e-30
# Failing J times has this part of the tail's probability.
_FAILING = 0.125
# Of odds in float64: relative errors below 2^-40.
_ROUNDING = 2.0**-38
_LEAST_DIFFERENCE = 2.0**-64  # of probabilities that random words are compared with


@dataclass(frozen=True, slots=True, kw_only=True)
class TiltedSeeds:
    """The choice of one seed for tilts of norm at most `reach`."""

    reach: float
    tail: float

    def __post_init__(self) -> None:
        parameter_rules.positive("reach", self.reach)
        parameter_rules.fraction("tail", self.tail)

    @property
    def log_limit(self) -> float:
        """log t; t is also the average number of tries, up to `tail`."""
        width = math.sqrt(-2.0 * math.log(self.tail))
        return self.reach * (self.reach / 2.0 + width) * (1.0 + 2.0**-50)

    @property
    def tries(self) -> int:
        """J, candidates at most: all fail with probability `failure` at most."""
        acceptance = (1.0 - self.tail) * math.exp(-self.log_limit)
        return 1 + math.ceil(math.log(self.failure) / math.log1p(-min(acceptance, 0.999)))

    def acceptance(self, log_odds: Vector) -> Vector:
        """c/t for candidates with log r = `log_odds`."""
        limit = self.log_limit
        return np.asarray(np.exp(np.clip(log_odds, -limit, limit) - limit))

    @property
    def failure(self) -> float:
        """A bound on w."""
        return _FAILING * self.tail

    @property
    def excess(self) -> float:
        """D_a grows by at most `excess` a/(a - 1): by Z, by what is cut, and by failures."""
        floor = math.exp(-self.log_limit) * self.tail
        cut = self.tail + 2.0 * floor
        return cut - math.log1p(-self.tail) + floor + self._failures + self._rounding

    @property
    def _failures(self) -> float:
        """How far log densities move if failures get the weight w' that they have for another
        input, in place of w.

        (1 - w) c/Z + w gains (w - w')(1 - c/Z). If w > w', that is at most the part (w - w') t Z of
        it, for c >= 1/t, and w/w' - 1 in any case; else (w' - w)/(1 - w'). Both laws then have the
        same part of fair signs, which only brings them together.
        """
        limit = math.exp(self.log_limit)
        low, high = (1.0 - self.tail) / limit, (1.0 + self.tail / limit) / limit
        log_ratio = math.inf
        if high < 1.0:
            log_ratio = (self.tries - 1) * (math.log1p(-low) - math.log1p(-high))
        part = -math.expm1(-log_ratio) * self.failure * (limit + self.tail) / (1.0 - self.failure)
        return min(log_ratio, math.log1p(part)) * (1.0 + 2.0**-40)

    @property
    def _rounding(self) -> float:
        """Of log probabilities, and of the words that they are compared with."""
        return _ROUNDING + 2.0 * _LEAST_DIFFERENCE * math.exp(2.0 * self.log_limit)

    def largest_loss(self, *, against_zero: bool) -> float:
        """The log of the largest ratio: against fair signs (log t - log Z), or of two inputs."""
        extremes = self.log_limit * (1.0 if against_zero else 2.0)
        return extremes + math.log1p(self.tail) - math.log1p(-self.tail) + self._rounding

    @property
    def timing_loss(self) -> float:
        """What the number of tries tells, if it is seen: geometric with parameter Z/t."""
        limit = math.exp(self.log_limit)
        return timing_loss((1.0 - self.tail) / limit, (1.0 + self.tail / limit) / limit, self.tries)

    @property
    def shrinkage(self) -> float:
        """E <b, z>/|z|^2 at |z| = reach, with a normal <b, z>: what decoding divides by.

        (1 - w) P(1/t < r < t)/Z. It is closer to 1 for shorter inputs, whose mean is decoded by
        at most the difference too long.
        """
        from scipy.special import ndtr

        limit, reach = self.log_limit, self.reach
        inside = float(ndtr((limit - reach**2 / 2.0) / reach))
        inside -= float(ndtr((-limit - reach**2 / 2.0) / reach))
        above = math.exp(limit) * float(ndtr(-(limit + reach**2 / 2.0) / reach))
        below = math.exp(-limit) * float(ndtr((reach**2 / 2.0 - limit) / reach))
        normaliser = inside + above + below
        failing = (1.0 - normaliser * math.exp(-limit)) ** (self.tries - 1)
        return (1.0 - failing) * inside / normaliser


def timing_loss(least: float, most: float, tries: int) -> float:
    """The largest log ratio of two geometric laws, cut off at `tries`, with parameters in a range.

    Rounded up: logarithms err by 2^-52, times `tries`, of which each fails with log1p(-least).
    """
    if most >= 1.0:  # one of them may stop at once
        return math.inf if least < 1.0 else 0.0
    failing = (tries - 1) * (math.log1p(-least) - math.log1p(-most))
    return math.log(most / least) + failing + 2.0**-40


def tilted_seeds(reach: float, rho: float) -> TiltedSeeds:
    """The choice for tilts up to `reach` that costs about a 2000th of `rho`."""
    tail = min(_LARGEST_TAIL, max(_LEAST_TAIL, _SHARE * rho))
    found = TiltedSeeds(reach=reach, tail=tail)
    if found.log_limit > math.log(MAX_TRIES):
        raise ParameterError(
            f"a seed for an update {reach:.4g} noise widths long takes e^{found.log_limit:.3g} "
            f"tries, and {MAX_TRIES} are the limit"
        )
    return found
