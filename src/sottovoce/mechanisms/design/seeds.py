"""The choice of a seed by rejection, with truncated odds or by a step, and its privacy cost.

A client draws candidate seeds, which expand to signs b in {-1, 1}^D, and sends the first seed that
it accepts. Q is the distribution of fair signs, which candidates have.

**Truncated odds.** P is the one-bit distribution of the update: independent signs with tilts z (the
coordinates over the noise width), |z| <= M. Relative to Q it has the density, or odds,
r(b) = exp(<b, z> - sum log cosh z_i). A candidate is accepted with probability c(b)/t, where c is r
clipped to [1/t, t]. There are at most J candidates, and the last one is sent if none was accepted.
So the message has the density (1 - w) c/Z + w relative to Q, with Z = E_Q c and
w = (1 - Z/t)^(J-1).

    log t = M^2/2 + M x,   x = sqrt(2 log(1/tail))

and by Chernoff's bound (D_a <= a M^2/2 both ways) P(r > t), Q(r < 1/t) and P'(r > t), for the
distribution P' of any other tilts in the ball, are at most `tail`: 1 - tail <= Z <= 1 + tail/t.
docs/explanation/privacy.md, section 27, has the consequences.

Reference: Feldman and Talwar 2021 (seeds in place of outputs); the truncation is new.

**A step** has two acceptance probabilities, so a pure epsilon, and a certificate for their mean.
Signs b in {-1, 1}^D have the score g = <b, z>/|z| and are accepted with probability

    a(g) = e^-eps + (1 - e^-eps) Phi((g - cut)/width),

at most J times; the last candidate is sent if none was accepted. A message has the density a(g)/Z
relative to fair signs, except for failures, which only bring it closer to fair. Z depends a little
on z, so between any two inputs the log ratio is at most eps + log(max Z/min Z). That is certified
over all z with max |z_i| <= m |z|: with v = 1 + width^2 and phi(t) = prod cos(z_i t) for |z| = 1,

    E Phi((g - cut)/width) - Phi(-cut/sqrt v)
        = 1/pi int_0^inf (e^(-t^2/2) - phi(t)) e^(-width^2 t^2/2) sin(cut t)/t dt

  t <= 1/m       log phi = -t^2/2 - s t^4/12 - rest, s = sum z_i^4 in [0, m^2] and rest between 0
                 and .0324 m^4 t^6; the term in s has a closed form, the others are bounded.
  up to pi/(2m)  0 <= phi <= e^(-t^2/2), because |cos x| <= e^(-x^2/2) up to pi/2.
  beyond         |phi| <= 1, and the width makes it small: E1(width^2 pi^2/(8 m^2))/(2 pi).

The cut maximizes the mean score, G = (1 - e^-eps) phi(cut/sqrt v)/(Z sqrt v).

Reference: Bhowmick et al. 2018 (PrivUnit, on the sphere, where Z does not depend on z and the step
is sharp); Feldman and Talwar 2021; the certificate for signs is new.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.privacy.conversion import golden_section

MAX_TRIES = 2_000  # The largest average number of tries.
# The share of rho that truncation may cost.
_SHARE = 2.0**-12
_LARGEST_TAIL = 1e-3
_LEAST_TAIL = 1e-30
# The probability of failing J times, as a fraction of the tail's.
_FAILING = 0.125
# A bound on the rounding of odds in float64, whose relative errors are below 2^-40.
_ROUNDING = 2.0**-38
_LEAST_DIFFERENCE = 2.0**-64  # The resolution of the random words that decide acceptance.


@dataclass(frozen=True, slots=True, kw_only=True)
class TiltedSeeds:
    """A rule by which a client accepts or rejects candidate seeds, by their truncated odds.

    A candidate is drawn at random and expands to signs. Its odds r are the probability of these
    signs under the client's one-bit distribution, divided by that of fair signs. It is accepted
    with probability c/t, where c is r clipped to [1/t, t] and Z is the mean of c over fair signs.
    The last of `tries` candidates is sent if none was accepted. The module has the formulas.

    Attributes:
        reach: The largest norm M of the tilts z (an update divided by the noise width).
        tail: The bound on the probability that odds are truncated.
    """

    reach: float
    tail: float

    def __post_init__(self) -> None:
        parameter_rules.positive("reach", self.reach)
        parameter_rules.fraction("tail", self.tail)

    @property
    def log_limit(self) -> float:
        """The log of the limit t of the odds; a seed takes about t candidates on average."""
        width = math.sqrt(-2.0 * math.log(self.tail))
        return self.reach * (self.reach / 2.0 + width) * (1.0 + 2.0**-50)

    @property
    def tries(self) -> int:
        """J, the most candidates that are drawn.

        The last one is sent if none before it was accepted, which happens with probability at most
        `failure`.
        """
        acceptance = (1.0 - self.tail) * math.exp(-self.log_limit)
        return 1 + math.ceil(math.log(self.failure) / math.log1p(-min(acceptance, 0.999)))

    def acceptance(self, log_odds: Vector) -> Vector:
        """Return the probability with which candidates of these log odds are accepted.

        It is the odds clipped to [1/t, t], divided by t, where log t is `log_limit`.
        """
        limit = self.log_limit
        return np.asarray(np.exp(np.clip(log_odds, -limit, limit) - limit))

    @property
    def failure(self) -> float:
        """A bound on w, the probability that no candidate but the last is accepted."""
        return _FAILING * self.tail

    @property
    def excess(self) -> float:
        """A bound on the privacy cost of truncation, which is added to Renyi divergences.

        The divergence of order a between the messages of two inputs is at most that of their
        one-bit distributions plus a/(a - 1) times this number. It covers the normalizer Z, the
        truncated odds, failures (w) and rounding.
        """
        floor = math.exp(-self.log_limit) * self.tail
        cut = self.tail + 2.0 * floor
        return cut - math.log1p(-self.tail) + floor + self._failures + self._rounding

    @property
    def _failures(self) -> float:
        """A bound on the change of log densities by failures, which depend on the input.

        It compares the weight w of failures with the weight w' that they have for another input:
        (1 - w) c/Z + w gains (w - w')(1 - c/Z). If w > w', that is at most a fraction (w - w') t Z
        of it, because c >= 1/t, and at most w/w' - 1 in any case; else it is (w' - w)/(1 - w').
        Both distributions then have the same part of fair signs, which only brings them closer.
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
        """A bound on the rounding of log probabilities, and on that of the random words."""
        return _ROUNDING + 2.0 * _LEAST_DIFFERENCE * math.exp(2.0 * self.log_limit)

    def largest_loss(self, *, against_zero: bool) -> float:
        """Return the largest privacy loss, rounded up: a bound on the log ratio of probabilities.

        The probabilities are those of the same message for two inputs.

        Args:
            against_zero: Whether the second input is 0, whose messages are fair signs (log t -
                log Z), instead of any other input.

        Returns:
            The largest privacy loss.
        """
        extremes = self.log_limit * (1.0 if against_zero else 2.0)
        return extremes + math.log1p(self.tail) - math.log1p(-self.tail) + self._rounding

    @property
    def timing_loss(self) -> float:
        """A bound on the privacy loss of showing how many candidates were drawn.

        That number is geometric with rate Z/t, and Z depends a little on the input.
        """
        limit = math.exp(self.log_limit)
        return timing_loss((1.0 - self.tail) / limit, (1.0 + self.tail / limit) / limit, self.tries)

    @property
    def shrinkage(self) -> float:
        """The factor by which sent signs shrink the update, and by which decoding divides.

        It is E <b, z>/|z|^2 for the signs b that are sent at tilts z with |z| = reach, if <b, z> is
        normal: (1 - w) P(1/t < r < t)/Z. It is closer to 1 for shorter inputs, whose mean is
        therefore decoded too long by at most the difference.
        """
        from scipy.special import ndtr

        limit, reach = self.log_limit, self.reach
        inside = float(ndtr((limit - reach**2 / 2.0) / reach))
        inside -= float(ndtr((-limit - reach**2 / 2.0) / reach))
        above = math.exp(limit) * float(ndtr(-(limit + reach**2 / 2.0) / reach))
        below = math.exp(-limit) * float(ndtr((reach**2 / 2.0 - limit) / reach))
        normalizer = inside + above + below
        failing = (1.0 - normalizer * math.exp(-limit)) ** (self.tries - 1)
        return (1.0 - failing) * inside / normalizer


def timing_loss(least: float, most: float, tries: int) -> float:
    """Return the largest log ratio of two geometric distributions that end at `tries`.

    It bounds the privacy loss of seeing how many candidates a client tried. It is infinite if one
    distribution may always stop at the first try (`most` >= 1) and the other not. It is rounded up:
    logarithms have an error of 2^-52, times `tries`, each of which fails with log1p(-least).

    Args:
        least: The least acceptance probability.
        most: The largest acceptance probability.
        tries: The number of candidates after which both end.

    Returns:
        The privacy loss of observing the number of tries.
    """
    if most >= 1.0:  # One of them may always stop at the first try.
        return math.inf if least < 1.0 else 0.0
    failing = (tries - 1) * (math.log1p(-least) - math.log1p(-most))
    return math.log(most / least) + failing + 2.0**-40


def tilted_seeds(reach: float, rho: float) -> TiltedSeeds:
    """Return the rule for tilts of norm up to `reach` whose truncation costs little of `rho`.

    `tail` is a 4096th of `rho`, limited to [1e-30, 1e-3], so truncation adds about a 2000th of
    `rho` to the cost.

    Args:
        reach: The largest norm M of the tilts.
        rho: The zCDP parameter of the one-bit distribution.

    Returns:
        The rule.

    Raises:
        ParameterError: A seed takes more than `MAX_TRIES` (2000) tries on average.
    """
    tail = min(_LARGEST_TAIL, max(_LEAST_TAIL, _SHARE * rho))
    found = TiltedSeeds(reach=reach, tail=tail)
    if found.log_limit > math.log(MAX_TRIES):
        raise ParameterError(
            f"a seed for a block whose norm is {reach:.4g} times the noise standard deviation "
            f"takes e^{found.log_limit:.3g} tries on average, and {MAX_TRIES} are the limit; use "
            "more blocks or more noise"
        )
    return found


MAX_STEPPED_TRIES = 20_000  # The largest average number of tries.
# Coordinates are clipped at this many times their root mean square, and padded with equal ones of
# at most 1.1 times that, so none exceeds `_PEAK`.
CLAMP, _PEAK = 3.9, 5.0
_WIDTH = 2.5  # The width of the step, in units of the peak.
_FAILURE = 1e-4
_SIXTH = 0.0324  # (-log cos x - x^2/2 - x^4/12)/x^6 increases with x, to .0323 at 1.


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedSeeds:
    """A rule that accepts candidate seeds by a step in their score, with a certified pure epsilon.

    A candidate is drawn at random and expands to signs b. Its score for the input z is
    g = <b, z>/|z|, and it is accepted with a probability a(g) that rises from e^-contrast to 1
    where g passes `cut`. The last of `tries` candidates is sent if none was accepted. The privacy
    loss of a message is at most `epsilon` for any two inputs.

    Attributes:
        epsilon: The certified epsilon, rounding errors included.
        num_signs: The number of signs of a seed.
        contrast: The log ratio of the largest and the least acceptance probability; less than
            `epsilon`.
        cut: The score at the middle of the step.
    """

    epsilon: float
    num_signs: int
    contrast: float
    cut: float

    @property
    def peak(self) -> float:
        """m, the largest |z_i|/|z| that a coordinate z_i of an input z may have."""
        return peak(self.num_signs)

    @property
    def width(self) -> float:
        """The standard deviation of the normal cdf that is the step, in units of the score."""
        return _WIDTH * self.peak

    def acceptance(self, scores: Vector) -> Vector:
        """Return the probability with which candidates of these scores are accepted.

        It is e^-contrast + (1 - e^-contrast) Phi((score - cut)/width).
        """
        from scipy.special import ndtr

        least = math.exp(-self.contrast)
        return np.asarray(least + (1.0 - least) * ndtr((scores - self.cut) / self.width))

    @property
    def normalizers(self) -> tuple[float, float]:
        """(low, high): bounds on the probability Z to accept a candidate, for every input."""
        return _normalizers(self.contrast, self.cut, self.num_signs)

    @property
    def tries(self) -> int:
        """J, the most candidates that are drawn; the last one is sent if none was accepted."""
        return 1 + math.ceil(math.log(_FAILURE) / math.log1p(-min(self.normalizers[0], 0.999)))

    @property
    def timing_loss(self) -> float:
        """A bound on the privacy loss of showing how many candidates were drawn.

        `epsilon` does not include it.
        """
        return timing_loss(*self.normalizers, self.tries)

    @property
    def mean_score(self) -> float:
        """E g, the mean score of the signs that are sent, if the scores of fair signs are normal.

        It says how much of the input's direction they carry: 0 for fair signs.
        """
        scale = math.sqrt(1.0 + self.width**2)
        return self._sent(_density(self.cut / scale) / scale)

    @property
    def excess_square(self) -> float:
        """E g^2 - 1 for the score g of the signs that are sent, if fair ones have normal scores."""
        scale = math.sqrt(1.0 + self.width**2)
        return self._sent(self.cut / scale * _density(self.cut / scale) / scale**2)

    def _sent(self, moment: float) -> float:
        """Convert E Phi(...) q(g) under fair signs into E q(g) under the signs that are sent."""
        normalizer = _gaussian_normalizer(self.contrast, self.cut, self.width)
        failing = (1.0 - normalizer) ** (self.tries - 1)
        return (1.0 - failing) * -math.expm1(-self.contrast) * moment / normalizer

    def ratios(self) -> tuple[float, float]:
        """Return (largest, least): bounds on a message's probability divided by that of fair signs.

        They hold for all messages and inputs, and are ratios, not logarithms.
        """
        low, high = self.normalizers
        return (1.0 + _ROUNDING) / low, math.exp(-self.contrast) * (1.0 - _ROUNDING) / high


@lru_cache(maxsize=256)
def stepped_seeds(epsilon: float, num_signs: int) -> SteppedSeeds:
    """Return the steepest step whose certified epsilon between any two inputs is at most `epsilon`.

    Args:
        epsilon: The largest privacy loss of a message, rounding errors included.
        num_signs: The number of signs of a seed.

    Returns:
        The rule.

    Raises:
        ParameterError: Epsilon is not positive or above 1000, too small for float64, or so large
            that a seed takes more than 20000 tries on average.
    """
    parameter_rules.epsilon(epsilon)
    low, high = 0.0, float(epsilon)
    while high - low > 1e-12 * epsilon:
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        low, high = (middle, high) if _total(middle, num_signs) <= epsilon else (low, middle)
    if low <= 0.0:
        raise ParameterError(
            f"epsilon must be above {2.0 * _ROUNDING:.2g}, the privacy loss that rounding errors "
            f"may cause, got {epsilon!r}; choose a larger epsilon"
        )
    found = SteppedSeeds(
        epsilon=epsilon, num_signs=num_signs, contrast=low, cut=_best_cut(low, num_signs)
    )
    if found.normalizers[0] * MAX_STEPPED_TRIES < 1.0:
        raise ParameterError(
            f"epsilon {epsilon:.4g} for one seed takes {1.0 / found.normalizers[0]:.3g} tries on "
            f"average, and {MAX_STEPPED_TRIES} are the limit; use the mechanism 'seeded_sign', "
            "which sends several seeds"
        )
    return found


def peak(num_signs: int) -> float:
    """Return m, the largest |z_i|/|z| that a coordinate z_i of an input z may have.

    It is the smaller of 1 and 5/sqrt(num_signs); an input has a coordinate for each sign, and |z|
    is its Euclidean norm. The epsilon of a `SteppedSeeds` is certified only for such inputs; the
    mechanism must ensure that its inputs are.
    """
    return min(1.0, _PEAK / math.sqrt(num_signs))


def _total(contrast: float, num_signs: int) -> float:
    low, high = _normalizers(contrast, _best_cut(contrast, num_signs), num_signs)
    return contrast + math.log(high / low) + 2.0 * _ROUNDING


@lru_cache(maxsize=4096)
def _best_cut(contrast: float, num_signs: int) -> float:
    """Return the cut with the largest mean score; G is unimodal in the cut."""
    width = _WIDTH * peak(num_signs)
    scale = math.sqrt(1.0 + width**2)

    def loss(cut: float) -> float:
        return -_density(cut / scale) / _gaussian_normalizer(contrast, cut, width)

    return golden_section(loss, 0.0, scale * (1.0 + math.sqrt(2.0 * contrast)), tolerance=1e-9)[0]


def _gaussian_normalizer(contrast: float, cut: float, width: float) -> float:
    """Return Z for normal scores."""
    least = math.exp(-contrast)
    return least + (1.0 - least) * _upper(cut / math.sqrt(1.0 + width**2))


@lru_cache(maxsize=4096)
def _normalizers(contrast: float, cut: float, num_signs: int) -> tuple[float, float]:
    width = _WIDTH * peak(num_signs)
    below, above = _deviations(cut, width, peak(num_signs))
    middle, least = _upper(cut / math.sqrt(1.0 + width**2)), math.exp(-contrast)
    low, high = max(0.0, middle - below), min(1.0, middle + above)
    return least + (1.0 - least) * low, least + (1.0 - least) * high


def _deviations(cut: float, width: float, top: float) -> tuple[float, float]:
    """Return how far E Phi((g - cut)/width) may be below and above its value for normal scores."""
    from scipy.special import exp1

    v = 1.0 + width**2
    fourth = _density(cut / math.sqrt(v)) * (3.0 * cut - cut**3 / v) / (12.0 * v**2.5)
    # int_0^inf t^(2k-1) e^(-v t^2/2) dt = 2^(k-1) (k-1)!/v^k
    sixth = _SIXTH * top**4 * 8.0 / v**3
    square = top**4 / 144.0 * 48.0 / v**4 + 2.0 * top**2 / 12.0 * _SIXTH * top**4 * 384.0 / v**5
    square += _SIXTH**2 * top**8 * 3840.0 / v**6
    edge = v / (2.0 * top**2)
    # The part of the closed form beyond t = 1/m.
    far = top**2 / 12.0 * (2.0 / v**2) * (1.0 + edge) * math.exp(-edge)
    between = float(exp1(edge)) / 2.0
    beyond = float(exp1(width**2 * math.pi**2 / (8.0 * top**2)) + exp1(edge * math.pi**2 / 4.0)) / 2
    rest = (sixth + square / 2.0 + far + between + beyond) / math.pi * (1.0 + 1e-9) + 1e-14
    main = top**2 * fourth
    return max(0.0, -main) + rest, max(0.0, main) + rest


def _density(x: float) -> float:
    return math.exp(-x * x / 2.0) / math.sqrt(2.0 * math.pi)


def _upper(x: float) -> float:
    return 0.5 * math.erfc(x / math.sqrt(2.0))
