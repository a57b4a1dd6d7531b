"""The cost of choosing the best of a random number of trials, such as runs of a grid search.

A trial is one use of a private mechanism Q whose output has a score. A number of trials K is drawn
from a public law, K independent trials are made, and only the best output is released; K and the
other outputs stay secret. `selected_curve` bounds the Renyi divergences of this release:

    law of K                        bound on the divergence of order a
    truncated negative binomial     D_a + (1 + eta) ((1 - 1/b) D_b + log(1/gamma)/b)
                                        + log(E[K])/(a - 1), for any b >= 1
    Poisson of mean m               log(e^-m + m e^((a - 1)(D_a + m d)))/(a - 1), where Q is
                                        (log(1 + 1/(a - 1)), d)-DP

Here D_a is the Renyi divergence of one trial. In the second row, the term e^-m is the probability
of no trial, after which nothing is released.

The proof of both: let f be the generating function of K. The output y has the probability
f(q) - f(p), where q and p are the probabilities of an output at most y and below y. It is the mean
of f' between p and q times that of y in one trial. Since (s, t) -> s^a t^(1 - a) is convex, the sum
over outputs is at most e^((a - 1) D_a) times the largest f'(q)^a f'(q')^(1 - a), where q and q' are
the probabilities of the same event under two neighbors. Privacy of Q bounds that in turn.

References: Papernot and Steinke 2022, "Hyperparameter tuning with Renyi differential privacy",
theorems 2 and 6 (whose second bound has no term for K = 0); Liu and Talwar 2019.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.privacy.conversion import log_delta_at_order
from sottovoce.privacy.events import PrivacyEvent, RenyiCurve
from sottovoce.privacy.renyi import renyi_divergence

_EXCESSES = np.geomspace(0.01, 1e4, 200).tolist()  # Values of a - 1.
_ROUNDING = 2.0**-40  # Relative rounding of the sums below, added on the private side.
MAX_EXPECTED_TRIALS = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NegativeBinomialTrials:
    """The number of trials has a truncated negative binomial law; it is at least 1.

    Its generating function is ((1 - (1 - gamma) x)^-eta - 1)/(gamma^-eta - 1), or its limit at
    eta = 0, a logarithmic law. With eta = 1 it is the geometric law of mean 1/gamma.

    Attributes:
        gamma: Between 0 and 1; a smaller one means more trials.
        eta: The shape, above -1. A smaller one costs less privacy for the same mean, but then
            a single trial is more likely.
    """

    gamma: float
    eta: float = 1.0

    def __post_init__(self) -> None:
        _check_eta(self.eta)
        if not 0.0 < self.gamma < 1.0:
            raise ParameterError(f"gamma must lie strictly between 0 and 1, got {self.gamma!r}")

    @classmethod
    def with_mean(cls, mean: float, *, eta: float = 1.0) -> "NegativeBinomialTrials":
        """Return the law of this shape with this expected number of trials, up to rounding."""
        _check_mean(mean)
        _check_eta(eta)
        low, high = -700.0 / (1.0 + max(1.0, eta)), -1e-9  # Logarithms of gamma.
        for _ in range(100):
            middle = (low + high) / 2.0
            few = cls(gamma=math.exp(middle), eta=eta).mean < mean
            low, high = (low, middle) if few else (middle, high)
        law = cls(gamma=math.exp((low + high) / 2.0), eta=eta)
        if abs(law.mean - mean) > 1e-6 * mean:
            raise ParameterError(
                f"no law with eta {eta:g} has an expected number of {mean:g} trials; choose an eta "
                "further from -1"
            )
        return law

    @property
    def mean(self) -> float:
        """The expected number of trials."""
        return self._first / math.pow(self.gamma, self.eta + 1.0)

    @property
    def _first(self) -> float:
        """The probability of one trial."""
        power = math.expm1(-self.eta * math.log(self.gamma))  # gamma^-eta - 1
        ratio = self.eta / power if self.eta else 1.0 / -math.log(self.gamma)
        return ratio * (1.0 - self.gamma)

    def probabilities(self) -> Iterator[float]:
        """Yield the probabilities of 0, 1, 2, ... trials, without end."""
        yield 0.0
        probability = self._first
        for number in itertools.count(1):
            yield probability
            probability *= (1.0 - self.gamma) * (number + self.eta) / (number + 1.0)

    def describe(self) -> str:
        """Return the name of the law and its parameters."""
        if self.eta == 1.0:
            return f"geometric, mean {self.mean:g}"
        return f"truncated negative binomial, eta {self.eta:g}, mean {self.mean:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonTrials:
    """The number of trials has a Poisson law; it is 0 with probability e^-mean.

    Attributes:
        mean: The expected number of trials, above 1.
    """

    mean: float

    def __post_init__(self) -> None:
        _check_mean(self.mean)

    def probabilities(self) -> Iterator[float]:
        """Yield the probabilities of 0, 1, 2, ... trials, without end."""
        for number in itertools.count():
            yield math.exp(number * math.log(self.mean) - self.mean - math.lgamma(number + 1.0))

    def describe(self) -> str:
        """Return the name of the law and its parameter."""
        return f"Poisson, mean {self.mean:g}"


TrialLaw = NegativeBinomialTrials | PoissonTrials


def draw_trials(law: TrialLaw, uniform: float) -> int:
    """Return the number of trials at a uniform number between 0 and 1, by inversion."""
    total = 0.0
    for number, probability in enumerate(law.probabilities()):
        total += probability
        # Later terms no longer change the sum, which rounding may keep below 1.
        if uniform < total or (number > law.mean and probability < 1e-18):
            return number
    raise AssertionError("the probabilities do not end")


def selected_curve(trials: Sequence[PrivacyEvent], law: TrialLaw) -> RenyiCurve:
    """Return the event of releasing only the best of a random number of trials.

    Each trial is any one of `trials`, chosen at random independently of the data, and its output
    says which one; the curve of a trial is then at most the largest of their curves.

    Args:
        trials: What one trial may be: the event of its whole output. All have one adjacency.
        law: The law of the number of trials, which must stay secret.

    Returns:
        A bound on the Renyi divergences in both directions, at a fixed set of orders.

    Raises:
        ParameterError: There is no event, or their adjacencies differ.
        UnsupportedEventError: No Renyi divergence of an event is known.
    """
    if len({event.adjacency for event in trials}) != 1:
        raise ParameterError("trials must be one or more events with the same adjacency")
    distinct = list(dict.fromkeys(trials))
    base = {
        1.0 + excess: max(_divergence(event, 1.0 + excess) for event in distinct)
        for excess in _EXCESSES
    }
    match law:
        case NegativeBinomialTrials():
            # b = 1 needs no divergence.
            extra = min(
                [
                    math.log(1.0 / law.gamma),
                    *(
                        (1.0 - 1.0 / order) * divergence + math.log(1.0 / law.gamma) / order
                        for order, divergence in base.items()
                    ),
                ]
            )
            bounds = [
                divergence + (1.0 + law.eta) * extra + math.log(law.mean) / (order - 1.0)
                for order, divergence in base.items()
            ]
        case PoissonTrials():
            bounds = [_poisson(order, base, law.mean) for order in base]
    return RenyiCurve(
        orders=tuple(base),
        divergences=tuple(_rounded_up(bound) for bound in bounds),
        adjacency=distinct[0].adjacency,
    )


def _poisson(order: float, base: dict[float, float], mean: float) -> float:
    excess = order - 1.0
    epsilon = math.log1p(1.0 / excess) * (1.0 - 2.0**-50)  # A smaller epsilon is sound, too.
    log_delta = min(
        log_delta_at_order(divergence, other, epsilon) for other, divergence in base.items()
    )
    delta = math.exp(min(0.0, log_delta))
    some = math.log(mean) + excess * (base[order] + mean * delta)
    return float(np.logaddexp(-mean, some)) / excess


def _divergence(event: PrivacyEvent, order: float) -> float:
    """Return the divergence, or infinity if its computation fails: that only loses this order."""
    try:
        value = renyi_divergence(event, order)
    except (OverflowError, ValueError, FloatingPointError):
        return math.inf
    return math.inf if math.isnan(value) else value


def _rounded_up(bound: float) -> float:
    return bound + _ROUNDING * (1.0 + abs(bound))


def _check_mean(mean: float) -> None:
    parameter_rules.positive("the expected number of trials", mean)
    if not 1.0 < mean <= MAX_EXPECTED_TRIALS:
        raise ParameterError(
            f"the expected number of trials must be above 1 and at most {MAX_EXPECTED_TRIALS:g}, "
            f"got {mean:g}; a single trial chooses nothing, so use 'sottovoce run' for it"
        )


def _check_eta(eta: float) -> None:
    if not -1.0 < eta <= 100.0:
        raise ParameterError(f"eta must be above -1 and at most 100, got {eta!r}")
