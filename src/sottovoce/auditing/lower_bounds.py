"""Lower bounds on epsilon and delta, from draws of two neighbors or from one run with canaries.

Two neighbors: each draw has a score. A set of scores is chosen on the first draws and counted on
the others, which played no part in the choice. So the count is binomial, whatever was tried to find
the set, and several statistics of the same draws may compete at no cost in confidence.

One run with m canaries: m fair independent coins S in {-1, 1}^m decide which canaries are in. An
adversary who sees the release guesses r of the coins, T in {-1, 0, 1}^m, and W guesses are right.
If the release is (epsilon, delta)-DP with respect to each coin, then for every v

    P(W >= v) <= f(v) + 2 m delta max_{1 <= i <= m} (f(v - i) - f(v))/i,

    f(v) = P(Bin(r, e^eps/(1 + e^eps)) >= v).

Proof idea for delta = 0: given T and the coins before the i-th, the i-th coin is 1 with odds of at
most e^eps to 1, because the likelihoods of the release for its two values differ by at most a
factor e^eps. So each guess is right with probability at most e^eps/(1 + e^eps), whatever the
others were, and W is stochastically dominated by that binomial variable. For delta > 0 the release
equals a pure DP one except on an event of mass at most 2 m delta over all coins. Such mass raises
the tail most where the fewest right guesses are missing to v, hence the maximum over i.

Reference: Steinke, Nasr and Jagielski 2023, theorem 5.2 and section D.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import binom

from sottovoce.auditing.verdict import Certificate, ErrorShares, Point, Verdict
from sottovoce.core import statistics
from sottovoce.core import statistics as proportion_bounds
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError

# Shares of the canaries that are guessed. They are fixed before the scores are seen, and the error
# is divided among them.
GUESSED = (0.05, 0.2, 1.0)
_LARGEST_EPSILON = 50.0


def p_value(*, canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return an upper bound on the probability of `right` or more right guesses.

    It holds for every release that is (epsilon, delta)-DP, whose observer guesses `guesses` of the
    `canaries` fair coins that decided which canaries were included. It is at most 1.
    """
    tail, per_delta = _tail(canaries, guesses, right, epsilon)
    return min(1.0, tail + delta * per_delta)


def _tail(canaries: int, guesses: int, right: int, epsilon: float) -> tuple[float, float]:
    """Return f(v), and the amount that each unit of delta adds to it."""
    share = 1.0 / (1.0 + math.exp(-epsilon))
    steps = np.arange(1, min(right, canaries) + 1)
    # Beyond `right` steps f(v - i) is 1, and the quotient decreases.
    lost = np.cumsum(binom.pmf(right - steps, guesses, share)) / steps
    tail = float(binom.sf(right - 1, guesses, share))
    return tail, 2.0 * canaries * float(lost.max(initial=0.0))


def largest_refuted_epsilon(
    *, canaries: int, guesses: int, right: int, delta: float, error: float
) -> float:
    """Return the largest epsilon at `delta` whose p-value is at most `error`, rounded down.

    The p-value bounds the probability of `right` or more right guesses among `guesses`, if that
    epsilon were true. So the true epsilon at `delta` is at least the result except with probability
    `error`. The result is 0 if no epsilon is refuted, and at most 50.
    """

    def refuted(epsilon: float) -> bool:
        p = p_value(canaries=canaries, guesses=guesses, right=right, epsilon=epsilon, delta=delta)
        return p <= error

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, _LARGEST_EPSILON
    # Every refuted epsilon is a valid lower bound, so `low` is one at every step.
    while high - low > 1e-6:
        middle = (low + high) / 2.0
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def count_right_guesses(scores: Vector, coins: NDArray[np.int64], guesses: int) -> int:
    """Count the right guesses if high scores are guessed to be in and low scores to be out.

    Coins are +1 (in) and -1 (out). Half of the `guesses` go to the lowest scores, the others to the
    highest; scores between them are not guessed. Raise ParameterError if there are more guesses
    than scores.
    """
    if guesses > len(scores):
        raise ParameterError(
            f"guesses must be at most the number of canaries {len(scores)}, got {guesses}"
        )
    order = np.argsort(scores, kind="stable")
    out, into = guesses // 2, guesses - guesses // 2
    wrong_side = np.count_nonzero(coins[order[len(order) - into :]] < 0)
    right_side = np.count_nonzero(coins[order[:out]] < 0)
    return into - int(wrong_side) + int(right_side)


def judge_one_run(
    scores: Vector,
    coins: NDArray[np.int64],
    certificate: Certificate,
    *,
    confidence: float,
    method: str,
    guessed: Sequence[float] = GUESSED,
) -> Verdict:
    """Return lower bounds on epsilon and delta from the canaries of one run, with the certificate.

    `scores` has a number for each canary, larger if it seems to be in; `coins` has the truth, +1
    (in) or -1 (out). The shares `guessed` of the canaries are guessed from the highest and lowest
    scores, and the error 1 - confidence is divided among them. Ties are ordered by position, which
    does not depend on the coins.
    """
    shares = ErrorShares.of(confidence, len(certificate.curve))
    tried = sorted({max(1, round(share * len(scores))) for share in guessed})
    right = {guesses: count_right_guesses(scores, coins, guesses) for guesses in tried}

    def bound(delta: float, error: float) -> float:
        return max(
            largest_refuted_epsilon(
                canaries=len(scores),
                guesses=guesses,
                right=right[guesses],
                delta=delta,
                error=error / len(tried),
            )
            for guesses in tried
        )

    points = tuple(
        Point(
            epsilon=epsilon,
            certified_delta=certified,
            measured_delta=max(
                largest_refuted_delta(
                    canaries=len(scores),
                    guesses=guesses,
                    right=right[guesses],
                    epsilon=epsilon,
                    error=shares.at_each_point / len(tried),
                )
                for guesses in tried
            ),
        )
        for epsilon, certified in certificate.curve
    )
    most = max(tried)
    return Verdict(
        method=method,
        adjacency=certificate.adjacency,
        delta=certificate.delta,
        confidence=confidence,
        certified=certificate.epsilon,
        lower_bound=bound(certificate.delta, shares.at_delta),
        points=points,
        trials=f"{len(scores)} canaries; of {most} guesses {right[most]} are right",
    )


def largest_refuted_delta(
    *, canaries: int, guesses: int, right: int, epsilon: float, error: float
) -> float:
    """Return the largest delta at `epsilon` whose p-value is at most `error`.

    The p-value bounds the probability of `right` or more right guesses among `guesses`, if that
    delta were true. So the true delta is at least the result except with probability `error`. The
    result is 0 if no delta is refuted, and at most 1.
    """
    tail, per_delta = _tail(canaries, guesses, right, epsilon)
    if tail >= error:
        return 0.0
    return min(1.0, (error - tail) / per_delta) if per_delta > 0.0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """How often draws of two neighbors fell into one set S that was fixed before.

    `first` of `first_trials` draws of the first neighbor fell into S, and `second` of
    `second_trials` draws of the second. P(S) and Q(S) are the set's probabilities under the first
    and the second neighbor. Each bound holds with probability 1 - error; half of the error goes to
    P(S) and half to Q(S).
    """

    first: int
    first_trials: int
    second: int
    second_trials: int

    def delta(self, epsilon: float, error: float) -> float:
        """Return a lower bound of the true delta at `epsilon`: P(S) - e^eps Q(S), or 0 if negative.

        P(S) and Q(S) are bounds on the probability of the set S under the first neighbor (a lower
        one) and the second (an upper one). The result is wrong with probability at most `error`. At
        epsilon = 0 and with as many draws of either neighbor it is 2 r - 1, where r is the share
        of draws that the set classifies correctly; one bound on r is tighter than two bounds. The
        draws of the two neighbors are correct with different probabilities; beyond its mean, the
        tail of such a sum is no heavier than the binomial's (Hoeffding 1956).
        """
        if epsilon == 0.0 and self.first_trials == self.second_trials:
            right = self.first + self.second_trials - self.second
            share = statistics.lower(right, self.first_trials + self.second_trials, error)
            return max(0.0, 2.0 * float(share) - 1.0)
        p, q = self._bounds(error)
        return max(0.0, p - math.exp(min(epsilon + math.log(q), 700.0)))

    def epsilon(self, delta: float, error: float) -> float:
        """Return a lower bound of the true epsilon at `delta`: log((P(S) - delta)/Q(S)).

        P(S) and Q(S) are bounds on the probability of the set S under the first neighbor (a lower
        one) and the second (an upper one). The result is at least 0, also if P(S) is at most
        `delta`, and wrong with probability at most `error`.
        """
        p, q = self._bounds(error)
        return max(0.0, math.log((p - delta) / q)) if p > delta else 0.0

    def _bounds(self, error: float) -> tuple[float, float]:
        return (
            float(statistics.lower(self.first, self.first_trials, error / 2.0)),
            float(statistics.upper(self.second, self.second_trials, error / 2.0)),
        )


Expected = Literal["frequencies", "normal"]

_THRESHOLDS = 512  # Number of thresholds that are tried for each statistic.
_CHOICE_ERROR = 0.01
_MIN_DRAWS = 8  # Least number of draws of each neighbor to choose a set, and to count.


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawScores:
    """One score of every draw of two neighboring inputs; larger scores speak for the first.

    Attributes:
        first: The scores of the draws of the first neighbor.
        second: The scores of the draws of the second neighbor.
    """

    first: Vector
    second: Vector

    def part(self, start: int, stop: int | None) -> "DrawScores":
        """Return the scores of draws `start` to `stop` - 1 of each neighbor; None is the end."""
        return DrawScores(first=self.first[start:stop], second=self.second[start:stop])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Set:
    """The set of draws whose statistic `number` is at least `threshold`, or below it.

    A set `below` speaks for the second neighbor, so the neighbors change roles there.
    """

    number: int
    threshold: float
    below: bool

    def hits(self, statistics: Sequence[DrawScores]) -> Hits:
        """Count the draws of each neighbor in the set."""
        scores = statistics[self.number]
        first = int(np.count_nonzero(scores.first >= self.threshold))
        second = int(np.count_nonzero(scores.second >= self.threshold))
        trials = len(scores.first), len(scores.second)
        if self.below:
            return Hits(
                first=trials[1] - second,
                first_trials=trials[1],
                second=trials[0] - first,
                second_trials=trials[0],
            )
        return Hits(first=first, first_trials=trials[0], second=second, second_trials=trials[1])


# The lower bound that a set gives, from the bounds on its probabilities under the two neighbors.
_Bound = Callable[[Vector, Vector], Vector]


def judge(
    statistics: Sequence[DrawScores],
    certificate: Certificate,
    *,
    choosing: int,
    learning: int = 0,
    confidence: float,
    method: str,
    expected: Expected = "frequencies",
) -> Verdict:
    """Return lower bounds on epsilon and delta from draws of two neighbors, with the certificate.

    Each of the `statistics` scores the same draws. The first `learning` draws of each neighbor were
    used to build the statistics and are not used again. The next `choosing` draws choose a set of
    scores, above or below a threshold. All others are counted: how many fall into the set. Raise
    ParameterError if fewer than 8 draws of a neighbor are left to choose, or to count.

    The choice assumes what the remaining draws will look like: the same frequencies (`expected` is
    "frequencies"), or normal distributions ("normal"), for few scores that are sums over many
    rounds. The bounds do not depend on this assumption.
    """
    start = learning + choosing
    rest_of = min(len(statistics[0].first), len(statistics[0].second)) - start
    if min(choosing, rest_of) < _MIN_DRAWS:
        raise ParameterError(
            f"the audit has {choosing} draws of each neighbor to choose a threshold and {rest_of} "
            f"to count, and needs at least {_MIN_DRAWS} for each; give more draws"
        )
    first = [scores.part(learning, start) for scores in statistics]
    rest = [scores.part(start, None) for scores in statistics]
    shares = ErrorShares.of(confidence, len(certificate.curve))
    counted = len(rest[0].first), len(rest[0].second)

    def best(bound_of: _Bound, error: float) -> Hits:
        return _choose(first, bound_of, error, counted, expected).hits(rest)

    def at_delta(p: Vector, q: Vector) -> Vector:
        return np.log(np.maximum(p - certificate.delta, 1e-300) / q)

    def at_epsilon(epsilon: float) -> _Bound:
        return lambda p, q: p - np.exp(min(epsilon, 700.0)) * q

    points = tuple(
        Point(
            epsilon=epsilon,
            certified_delta=certified,
            measured_delta=best(at_epsilon(epsilon), shares.at_each_point).delta(
                epsilon, shares.at_each_point
            ),
        )
        for epsilon, certified in certificate.curve
    )
    return Verdict(
        method=method,
        adjacency=certificate.adjacency,
        delta=certificate.delta,
        confidence=confidence,
        certified=certificate.epsilon,
        lower_bound=best(at_delta, shares.at_delta).epsilon(certificate.delta, shares.at_delta),
        points=points,
        trials=f"{counted[0]} and {counted[1]} draws counted, {start} of each to choose a set",
    )


def _choose(
    statistics: Sequence[DrawScores],
    bound_of: _Bound,
    error: float,
    counted: tuple[int, int],
    expected: Expected,
) -> _Set:
    """Return the set with the best bound if the counted draws fell as these did."""
    found: list[tuple[float, _Set]] = []
    for number, scores in enumerate(statistics):
        thresholds = _thresholds(scores, expected)
        above = _frequency_above if expected == "frequencies" else _normal_above
        first, second = above(scores.first, thresholds), above(scores.second, thresholds)
        for below in (False, True):
            # Be pessimistic: a lower bound for one side, an upper bound for the other.
            p, q = (1.0 - second[1], 1.0 - first[0]) if below else (first[0], second[1])
            trials = counted[::-1] if below else counted
            low = proportion_bounds.lower(np.floor(p * trials[0]), trials[0], error / 2.0)
            high = proportion_bounds.upper(np.ceil(q * trials[1]), trials[1], error / 2.0)
            values = bound_of(low, high)
            place = int(np.argmax(values))
            chosen = _Set(number=number, threshold=float(thresholds[place]), below=below)
            found.append((float(values[place]), chosen))
    return max(found, key=lambda one: one[0])[1]


def _frequency_above(scores: Vector, thresholds: Vector) -> tuple[Vector, Vector]:
    """Return a lower and an upper bound on the probability that a score is at least each threshold.

    A set is chosen because its frequency is extreme, so the frequency itself would promise too
    much.
    """
    hits = len(scores) - np.searchsorted(np.sort(scores), thresholds)
    return (
        proportion_bounds.lower(hits, len(scores), _CHOICE_ERROR),
        proportion_bounds.upper(hits, len(scores), _CHOICE_ERROR),
    )


def _normal_above(scores: Vector, thresholds: Vector) -> tuple[Vector, Vector]:
    spread = max(float(scores.std(ddof=1)), 1e-300)
    share = np.asarray(ndtr((scores.mean() - thresholds) / spread))
    return share, share


def _thresholds(scores: DrawScores, expected: Expected) -> Vector:
    """Return all scores, or some quantiles of them that are denser at both ends."""
    distinct = np.unique(np.concatenate([scores.first, scores.second]))
    if expected == "normal":
        margin = 0.25 * float(np.ptp(distinct))
        return np.linspace(distinct[0] - margin, distinct[-1] + margin, _THRESHOLDS)
    if len(distinct) <= _THRESHOLDS:
        return distinct
    ramp = np.linspace(0.0, 1.0, _THRESHOLDS)
    # The smoothstep function is flat, so places are denser, at both ends.
    places = (ramp**2 * (3.0 - 2.0 * ramp)) * (len(distinct) - 1)
    return distinct[np.unique(places.astype(np.intp))]
