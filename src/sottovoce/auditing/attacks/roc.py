"""How well scores tell members from non-members, and how sure that is: 95% intervals throughout.

Larger scores say "member". Members and non-members are taken as independent draws; nothing is
assumed about the scores themselves, which may tie.
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
class Estimate:
    """A figure with its interval and what guessing gives."""

    value: float
    low: float
    high: float
    chance: float

    @property
    def contains_chance(self) -> bool:
        return self.low <= self.chance <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """Scores of members and of non-members, apart."""

    members: Scores
    non_members: Scores

    @classmethod
    def of(cls, scores: ArrayLike, is_member: ArrayLike) -> "Verdicts":
        values = np.asarray(scores, dtype=np.float64)
        member = np.asarray(is_member, dtype=bool)
        if values.ndim != 1 or values.shape != member.shape:
            raise ParameterError(
                f"scores of shape {values.shape} do not fit candidates of shape {member.shape}; "
                "give one each"
            )
        if np.isnan(values).any():
            raise ParameterError("a score is not a number; an attack must decide about everyone")
        if member.all() or not member.any():
            raise DataError(
                "all candidates are members, or none is: there is nothing to tell apart; take both"
            )
        return cls(members=values[member], non_members=values[~member])


def check_fpr(fpr: float, num_non_members: int) -> None:
    """A false-positive rate that so many non-members can show."""
    parameter_rules.inner_fraction("fpr", fpr)
    needed = math.ceil(1.0 / fpr - 1e-9)
    if num_non_members < needed:
        raise DataError(
            f"too few non-members for the false-positive rate {fpr:g}: there are "
            f"{num_non_members}, and one false alarm among {needed} is the least that can be seen; "
            f"take {needed} non-members or more, or ask for a larger rate"
        )


def true_positive_rate(verdicts: Verdicts, fpr: float) -> Estimate:
    """The share of members above the threshold that at most `fpr` of non-members exceed.

    A score that ties with the threshold is not above it. The interval holds whatever the scores'
    law: order statistics of the non-members enclose the threshold whose true rate is `fpr`, and
    Clopper and Pearson's limits the share of members above each; half of the error goes to either.
    """
    members, others = verdicts.members, np.sort(verdicts.non_members)[::-1]
    check_fpr(fpr, len(others))
    error = (1.0 - CONFIDENCE) / 4.0
    allowed = math.floor(fpr * len(others) + 1e-9)
    value = float(np.mean(members > _threshold(others, allowed)))
    # False alarms at the true threshold are binomial: so many, but for `error` on either side.
    fewest = int(binom.ppf(error, len(others), fpr))
    most = int(binom.isf(error, len(others), fpr))
    strict = int(np.sum(members > _threshold(others, fewest - 1)))
    lenient = int(np.sum(members > _threshold(others, most)))
    return Estimate(
        value=value,
        low=float(statistics.lower(strict, len(members), error)),
        high=float(statistics.upper(lenient, len(members), error)),
        chance=fpr,
    )


def _threshold(descending: Scores, allowed: int) -> float:
    """The score that at most `allowed` of the sorted scores exceed; fewer than none: infinity."""
    if allowed < 0:
        return math.inf
    return float(descending[allowed]) if allowed < len(descending) else -math.inf


def balanced_accuracy(verdicts: Verdicts, threshold: float) -> Estimate:
    """(TPR + TNR)/2 at a threshold that was fixed before anybody looked at the answers.

    Clopper and Pearson's limits of both rates, joined by square-and-add (Newcombe 1998, method 10).
    """
    hits = int(np.sum(verdicts.members > threshold))
    rejections = int(np.sum(verdicts.non_members <= threshold))
    below, above, value = 0.0, 0.0, 0.0
    for count, total in ((hits, len(verdicts.members)), (rejections, len(verdicts.non_members))):
        low, high = statistics.between(count, total, CONFIDENCE)
        below, above = below + (count / total - low) ** 2, above + (high - count / total) ** 2
        value += 0.5 * count / total
    return Estimate(
        value=value,
        low=max(0.0, value - 0.5 * math.sqrt(below)),
        high=min(1.0, value + 0.5 * math.sqrt(above)),
        chance=0.5,
    )


def area(verdicts: Verdicts) -> Estimate:
    """The probability that a member scores above a non-member; ties count half.

    DeLong's variance (DeLong, DeLong and Clarke-Pearson 1988), but at least what Hanley and McNeil
    (1982) have at the limit itself: separated scores show no variance, and prove no certainty.
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
    return Estimate(
        value=value,
        low=max(0.0, min(low, score_low)),
        high=min(1.0, max(high, score_high)),
        chance=0.5,
    )


def _share_below(scores: Scores, others: Scores) -> Scores:
    """For each score, which share of the others lies below it; ties count half."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, scores, side="left")
    upto = np.searchsorted(ordered, scores, side="right")
    return np.asarray((below + upto) / (2.0 * len(others)), dtype=np.float64)


def _variance(values: Scores) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.25


def _score_limits(value: float, num_members: int, num_others: int, z: float) -> tuple[float, float]:
    """Areas whose own variance makes `value` just plausible (Newcombe 2006, method 5)."""

    def far(theta: float) -> bool:
        q1, q2 = theta / (2.0 - theta), 2.0 * theta**2 / (1.0 + theta)
        variance = (
            theta * (1.0 - theta)
            + (num_members - 1) * (q1 - theta**2)
            + (num_others - 1) * (q2 - theta**2)
        ) / (num_members * num_others)
        return (value - theta) ** 2 > z**2 * variance

    return _bisected(far, 0.0, value), _bisected(far, 1.0, value)


def _bisected(far: Callable[[float], bool], outside: float, inside: float) -> float:
    for _ in range(60):
        middle = 0.5 * (outside + inside)
        outside, inside = (middle, inside) if far(middle) else (outside, middle)
    return outside


def curve(verdicts: Verdicts) -> tuple[list[float], list[float]]:
    """False- and true-positive rates of all thresholds, from the strictest on."""
    values = np.concatenate([verdicts.members, verdicts.non_members])
    thresholds = np.unique(values)[::-1]
    members, others = np.sort(verdicts.members), np.sort(verdicts.non_members)
    hits = len(members) - np.searchsorted(members, thresholds, side="left")
    alarms = len(others) - np.searchsorted(others, thresholds, side="left")
    return (alarms / len(others)).tolist(), (hits / len(members)).tolist()
