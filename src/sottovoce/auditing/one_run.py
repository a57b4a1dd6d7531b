"""A lower bound on epsilon from one run with many canaries.

m coins S in {-1, 1}^m, fair and independent, say which canaries are in. Somebody who sees what was
released guesses r of them, T in {-1, 0, 1}^m, and W guesses are right. If the release is
(epsilon, delta)-DP for each coin, then for every v

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
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from sottovoce.auditing.verdict import Certificate, Point, Shares, Verdict
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
