"""Lower bounds on what was given away: from draws of two neighbours, or from one run.

Two neighbours: their draws have scores. A set of scores is chosen on the first draws and counted on
the others, which played no part in the choice. So the count is binomial whatever was tried before,
and several statistics of the same draws may compete at no cost in confidence.

One run with many canaries: m coins S in {-1, 1}^m, fair and independent, say which canaries are in.
Somebody who sees what was released guesses r of them, T in {-1, 0, 1}^m, and W guesses are right.
If the release is (epsilon, delta)-DP for each coin, then for every v

    P(W >= v) <= f(v) + 2 m delta max_{1 <= i <= m} (f(v - i) - f(v))/i,

f(v) = P(Bin(r, e^eps/(1 + e^eps)) >= v).

Why, for delta = 0: given T and the coins before it, the i-th coin is 1 with odds at most e^eps to
1, for the release was as likely with either up to e^eps. So each guess is right with probability at
most e^eps/(1 + e^eps), whatever the others were, and W is stochastically below that binomial. With
delta > 0 a release is that of a pure one but on an event whose mass, over all coins, is 2 m delta
at most; such mass does most for the tail where the fewest guesses are missing to v, which is what
the maximum over i says.

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

from sottovoce.auditing.verdict import Certificate, Point, Shares, Verdict
from sottovoce.core import statistics
from sottovoce.core import statistics as proportion_bounds
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError

# Shares of the canaries that are guessed, fixed beforehand: the error is divided among them.
GUESSED = (0.05, 0.2, 1.0)
_LARGEST_EPSILON = 50.0


def p_value(*, canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The most likely that so many right guesses are under (epsilon, delta)-DP."""
    tail, per_delta = _tail(canaries, guesses, right, epsilon)
    return min(1.0, tail + delta * per_delta)


def _tail(canaries: int, guesses: int, right: int, epsilon: float) -> tuple[float, float]:
    """f(v), and what each unit of delta adds to it."""
    share = 1.0 / (1.0 + math.exp(-epsilon))
    steps = np.arange(1, min(right, canaries) + 1)
    # Beyond `right` steps f(v - i) stays 1, and the quotient falls.
    lost = np.cumsum(binom.pmf(right - steps, guesses, share)) / steps
    tail = float(binom.sf(right - 1, guesses, share))
    return tail, 2.0 * canaries * float(lost.max(initial=0.0))


def epsilon_refuted(
    *, canaries: int, guesses: int, right: int, delta: float, error: float
) -> float:
    """The largest epsilon whose p-value is at most `error`: a lower bound but for that chance."""

    def refuted(epsilon: float) -> bool:
        p = p_value(canaries=canaries, guesses=guesses, right=right, epsilon=epsilon, delta=delta)
        return p <= error

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, _LARGEST_EPSILON
    # Whoever refutes a larger epsilon has refuted the smaller ones, so any refuted one will do.
    while high - low > 1e-6:
        middle = (low + high) / 2.0
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def guesses_right(scores: Vector, coins: NDArray[np.int64], guesses: int) -> int:
    """Right guesses, where the highest half of the scores is guessed in and the lowest out."""
    if guesses > len(scores):
        raise ParameterError(f"{guesses} guesses need as many canaries, got {len(scores)}")
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
    """What the scores of all canaries prove; ties are no help, for order says nothing then."""
    shares = Shares.of(confidence, len(certificate.curve))
    tried = sorted({max(1, round(share * len(scores))) for share in guessed})
    right = {guesses: guesses_right(scores, coins, guesses) for guesses in tried}

    def bound(delta: float, error: float) -> float:
        return max(
            epsilon_refuted(
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
                delta_refuted(
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


def delta_refuted(
    *, canaries: int, guesses: int, right: int, epsilon: float, error: float
) -> float:
    """The largest delta at `epsilon` whose p-value is at most `error`."""
    tail, per_delta = _tail(canaries, guesses, right, epsilon)
    if tail >= error:
        return 0.0
    return min(1.0, (error - tail) / per_delta) if per_delta > 0.0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """How often draws of two neighbours fell into one set that was fixed before.

    The bounds hold together with probability 1 - error: half of it is for each side.
    """

    first: int
    first_trials: int
    second: int
    second_trials: int

    def delta(self, epsilon: float, error: float) -> float:
        """At or below the true delta at `epsilon`: P(S) - e^eps Q(S).

        At epsilon = 0 it is 2 r - 1, r the share of draws that the set tells right: one bound for
        all of them is closer than two. They are not all right with the same probability, which
        makes their sum's tail no heavier than the binomial's beyond its mean (Hoeffding 1956).
        """
        if epsilon == 0.0 and self.first_trials == self.second_trials:
            right = self.first + self.second_trials - self.second
            share = statistics.lower(right, self.first_trials + self.second_trials, error)
            return max(0.0, 2.0 * float(share) - 1.0)
        p, q = self._bounds(error)
        return max(0.0, p - math.exp(min(epsilon + math.log(q), 700.0)))

    def epsilon(self, delta: float, error: float) -> float:
        """At or below the true epsilon at `delta`: log((P(S) - delta)/Q(S))."""
        p, q = self._bounds(error)
        return max(0.0, math.log((p - delta) / q)) if p > delta else 0.0

    def _bounds(self, error: float) -> tuple[float, float]:
        return (
            float(statistics.lower(self.first, self.first_trials, error / 2.0)),
            float(statistics.upper(self.second, self.second_trials, error / 2.0)),
        )


Expected = Literal["frequencies", "normal"]

_THRESHOLDS = 512  # that are tried
_DOUBT = 0.01
_FEWEST = 8  # draws of each neighbour to choose by, and to count


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """One statistic of every draw: larger speaks for the first neighbour."""

    first: Vector
    second: Vector

    def part(self, start: int, stop: int | None) -> "Scores":
        """Some draws of each, by their place."""
        return Scores(first=self.first[start:stop], second=self.second[start:stop])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Set:
    """Scores of statistic `number` that are at least `threshold`; or those below it.

    Below speaks for the second neighbour: there it is the one whose hits are many.
    """

    number: int
    threshold: float
    below: bool

    def hits(self, statistics: Sequence[Scores]) -> Hits:
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


# What a set is worth, from the bounds on its probabilities under the two neighbours.
_Worth = Callable[[Vector, Vector], Vector]


def judge(
    statistics: Sequence[Scores],
    certificate: Certificate,
    *,
    choosing: int,
    learning: int = 0,
    confidence: float,
    method: str,
    expected: Expected = "frequencies",
) -> Verdict:
    """What the scores prove; the first ones of each neighbour only say where to look.

    The first `learning` have made the statistics themselves and say nothing new, so the next
    `choosing` choose a set, and all others are counted.

    What is `expected` of the others is that they fall as often as these did; or, where these are
    few and sums of many rounds, that all are normal.
    """
    start = learning + choosing
    rest_of = min(len(statistics[0].first), len(statistics[0].second)) - start
    if min(choosing, rest_of) < _FEWEST:
        raise ParameterError(
            f"{choosing} draws of each neighbour to choose a set by and {rest_of} to count are too "
            f"few; give at least {_FEWEST} for either"
        )
    first = [scores.part(learning, start) for scores in statistics]
    rest = [scores.part(start, None) for scores in statistics]
    shares = Shares.of(confidence, len(certificate.curve))
    counted = len(rest[0].first), len(rest[0].second)

    def best(worth: _Worth, error: float) -> Hits:
        return _choose(first, worth, error, counted, expected).hits(rest)

    def at_delta(p: Vector, q: Vector) -> Vector:
        return np.log(np.maximum(p - certificate.delta, 1e-300) / q)

    def at_epsilon(epsilon: float) -> _Worth:
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
        trials=f"{counted[0]} and {counted[1]} draws counted, after {start} of each to choose by",
    )


def _choose(
    statistics: Sequence[Scores],
    worth: _Worth,
    error: float,
    counted: tuple[int, int],
    expected: Expected,
) -> _Set:
    """The set that would be worth most if the draws to be counted fell as these did."""
    found: list[tuple[float, _Set]] = []
    for number, scores in enumerate(statistics):
        thresholds = _thresholds(scores, expected)
        above = _above if expected == "frequencies" else _normal_above
        first, second = above(scores.first, thresholds), above(scores.second, thresholds)
        for below in (False, True):
            # Of one side the least, of the other the most that these draws allow for.
            p, q = (1.0 - second[1], 1.0 - first[0]) if below else (first[0], second[1])
            trials = counted[::-1] if below else counted
            low = proportion_bounds.lower(np.floor(p * trials[0]), trials[0], error / 2.0)
            high = proportion_bounds.upper(np.ceil(q * trials[1]), trials[1], error / 2.0)
            values = worth(low, high)
            place = int(np.argmax(values))
            chosen = _Set(number=number, threshold=float(thresholds[place]), below=below)
            found.append((float(values[place]), chosen))
    return max(found, key=lambda one: one[0])[1]


def _above(scores: Vector, thresholds: Vector) -> tuple[Vector, Vector]:
    """How likely a score is at least a threshold, from below and from above.

    A set of few scores looks better than it is, for it was chosen: so its frequency is not taken
    at its word.
    """
    hits = len(scores) - np.searchsorted(np.sort(scores), thresholds)
    return (
        proportion_bounds.lower(hits, len(scores), _DOUBT),
        proportion_bounds.upper(hits, len(scores), _DOUBT),
    )


def _normal_above(scores: Vector, thresholds: Vector) -> tuple[Vector, Vector]:
    spread = max(float(scores.std(ddof=1)), 1e-300)
    share = np.asarray(ndtr((scores.mean() - thresholds) / spread))
    return share, share


def _thresholds(scores: Scores, expected: Expected) -> Vector:
    """All scores, or so many quantiles of them; the outer ones closer together."""
    distinct = np.unique(np.concatenate([scores.first, scores.second]))
    if expected == "normal":
        margin = 0.25 * float(np.ptp(distinct))
        return np.linspace(distinct[0] - margin, distinct[-1] + margin, _THRESHOLDS)
    if len(distinct) <= _THRESHOLDS:
        return distinct
    ramp = np.linspace(0.0, 1.0, _THRESHOLDS)
    places = (ramp**2 * (3.0 - 2.0 * ramp)) * (len(distinct) - 1)  # denser at both ends
    return distinct[np.unique(places.astype(np.intp))]
