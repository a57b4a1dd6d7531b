"""Measures of how well scores separate members from non-members, with 95% confidence intervals.

Larger scores mean "member". Members and non-members are treated as independent draws. Nothing is
assumed about the distribution of the scores, which may have ties.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri
from scipy.stats import binom

from sottovoce.core import parameter_rules, statistics
from sottovoce.core.errors import DataError, ParameterError

CONFIDENCE = 0.95

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalEstimate:
    """A measured value with its confidence interval and the value that random guessing gives.

    Attributes:
        value: The measured value.
        low: Lower end of the 95% interval.
        high: Upper end of the 95% interval.
        chance: The value for scores that do not depend on membership.
    """

    value: float
    low: float
    high: float
    chance: float

    @property
    def contains_chance(self) -> bool:
        """Whether the interval contains the value of random guessing."""
        return self.low <= self.chance <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoresByMembership:
    """The scores of members and of non-members."""

    members: Scores
    non_members: Scores

    @classmethod
    def of(cls, scores: ArrayLike, is_member: ArrayLike) -> "ScoresByMembership":
        """Split one score for each candidate by membership.

        Raise ParameterError if the shapes differ or a score is NaN, and DataError unless there are
        both members and non-members.
        """
        values = np.asarray(scores, dtype=np.float64)
        member = np.asarray(is_member, dtype=bool)
        if values.ndim != 1 or values.shape != member.shape:
            raise ParameterError(
                f"scores of shape {values.shape} do not fit candidates of shape {member.shape}; "
                "give two flat lists, with one score and one truth value for each candidate"
            )
        if np.isnan(values).any():
            raise ParameterError("a score is NaN; an attack must give every candidate a number")
        if member.all() or not member.any():
            raise DataError(
                "all candidates are members, or none is; give both members and non-members"
            )
        return cls(members=values[member], non_members=values[~member])


def check_fpr(fpr: float, num_non_members: int) -> None:
    """Raise unless `fpr` is a rate that so many non-members can show: at least 1/fpr of them.

    Raise ParameterError if it does not lie strictly between 0 and 1, and DataError if there are too
    few non-members.
    """
    parameter_rules.inner_fraction("fpr", fpr)
    needed = math.ceil(1.0 / fpr - 1e-9)
    if num_non_members < needed:
        raise DataError(
            f"too few non-members for the false positive rate {fpr:g}: there are "
            f"{num_non_members}, and {needed} are needed to observe one false positive; "
            f"use at least {needed} non-members, or choose a larger rate"
        )


def true_positive_rate(verdicts: ScoresByMembership, fpr: float) -> IntervalEstimate:
    """Return the true positive rate at a false positive rate of at most `fpr`.

    The threshold is the lowest that at most `fpr` of the non-members exceed; a score equal to the
    threshold is not above it. The interval is valid for every distribution of the scores: order
    statistics of the non-members enclose the threshold whose true false positive rate is `fpr`, and
    Clopper and Pearson's limits bound the share of members above each end. Each of the two steps
    gets half of the error.
    """
    members, others = verdicts.members, np.sort(verdicts.non_members)[::-1]
    check_fpr(fpr, len(others))
    error = (1.0 - CONFIDENCE) / 4.0
    allowed = math.floor(fpr * len(others) + 1e-9)
    value = float(np.mean(members > _threshold(others, allowed)))
    # False positives at the true threshold are binomial: they lie between these two numbers, except
    # with probability `error` on either side.
    fewest = int(binom.ppf(error, len(others), fpr))
    most = int(binom.isf(error, len(others), fpr))
    strict = int(np.sum(members > _threshold(others, fewest - 1)))
    lenient = int(np.sum(members > _threshold(others, most)))
    return IntervalEstimate(
        value=value,
        low=float(statistics.lower(strict, len(members), error)),
        high=float(statistics.upper(lenient, len(members), error)),
        chance=fpr,
    )


def _threshold(descending: Scores, allowed: int) -> float:
    """Return the score that at most `allowed` of the scores exceed; infinity if allowed < 0."""
    if allowed < 0:
        return math.inf
    return float(descending[allowed]) if allowed < len(descending) else -math.inf


def balanced_accuracy(verdicts: ScoresByMembership, threshold: float) -> IntervalEstimate:
    """Return (TPR + TNR)/2 at a threshold that was fixed before the scores were seen.

    Scores above the threshold count as "member". The interval joins Clopper and Pearson's limits of
    both rates by square-and-add (Newcombe 1998, method 10).
    """
    hits = int(np.sum(verdicts.members > threshold))
    rejections = int(np.sum(verdicts.non_members <= threshold))
    below, above, value = 0.0, 0.0, 0.0
    for count, total in ((hits, len(verdicts.members)), (rejections, len(verdicts.non_members))):
        low, high = statistics.two_sided_bounds(count, total, CONFIDENCE)
        below, above = below + (count / total - low) ** 2, above + (high - count / total) ** 2
        value += 0.5 * count / total
    return IntervalEstimate(
        value=value,
        low=max(0.0, value - 0.5 * math.sqrt(below)),
        high=min(1.0, value + 0.5 * math.sqrt(above)),
        chance=0.5,
    )


def area(verdicts: ScoresByMembership) -> IntervalEstimate:
    """Return the AUC: the probability that a member scores above a non-member; ties count half.

    The interval uses DeLong's variance (DeLong, DeLong and Clarke-Pearson 1988), but it is at least
    as wide as the score interval with the variance of Hanley and McNeil (1982): perfectly separated
    scores have an estimated variance of 0, which is no proof of certainty.
    """
    members, others = verdicts.members, verdicts.non_members
    of_members = _share_below(members, others)
    of_others = 1.0 - _share_below(others, members)
    value = float(of_members.mean())
    spread = _variance(of_members) / len(members) + _variance(of_others) / len(others)
    z = float(ndtri(0.5 + CONFIDENCE / 2.0))
    half = z * math.sqrt(spread)
    low, high = value - half, value + half
    score_low, score_high = _score_limits(value, len(members), len(others), z)
    return IntervalEstimate(
        value=value,
        low=max(0.0, min(low, score_low)),
        high=min(1.0, max(high, score_high)),
        chance=0.5,
    )


def _share_below(scores: Scores, others: Scores) -> Scores:
    """Return, for each score, the share of the others below it; ties count half."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, scores, side="left")
    upto = np.searchsorted(ordered, scores, side="right")
    return np.asarray((below + upto) / (2.0 * len(others)), dtype=np.float64)


def _variance(values: Scores) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.25


def _score_limits(value: float, num_members: int, num_others: int, z: float) -> tuple[float, float]:
    """Return the AUCs whose own variance makes `value` just plausible (Newcombe 2006, method 5)."""

    def far(theta: float) -> bool:
        q1, q2 = theta / (2.0 - theta), 2.0 * theta**2 / (1.0 + theta)
        variance = (
            theta * (1.0 - theta)
            + (num_members - 1) * (q1 - theta**2)
            + (num_others - 1) * (q2 - theta**2)
        ) / (num_members * num_others)
        return (value - theta) ** 2 > z**2 * variance

    return _bisect(far, 0.0, value), _bisect(far, 1.0, value)


def _bisect(far: Callable[[float], bool], outside: float, inside: float) -> float:
    """Return the boundary of `far` between a point outside and a point inside, from outside."""
    for _ in range(60):
        middle = 0.5 * (outside + inside)
        outside, inside = (middle, inside) if far(middle) else (outside, middle)
    return outside


def curve(verdicts: ScoresByMembership) -> tuple[list[float], list[float]]:
    """Return the false positive rates and the true positive rates at all thresholds.

    The highest threshold comes first. Scores that equal a threshold count as "member" here.
    """
    values = np.concatenate([verdicts.members, verdicts.non_members])
    thresholds = np.unique(values)[::-1]
    members, others = np.sort(verdicts.members), np.sort(verdicts.non_members)
    hits = len(members) - np.searchsorted(members, thresholds, side="left")
    alarms = len(others) - np.searchsorted(others, thresholds, side="left")
    return (alarms / len(others)).tolist(), (hits / len(members)).tolist()
