"""The certificate that an audit compares its measurement with, and the verdict.

A certificate is a privacy event, which has a whole curve delta(epsilon) and not one point of it.
Noise of half the certified size is hard to detect at delta = 1e-5, but easy to detect at
epsilon = 0, where delta is the total variation distance. So an audit looks at several points of the
curve and divides its error: half of it for epsilon at the certificate's own delta, a quarter for
the other points of the curve, and a quarter for the test of whether draws follow the declared law.
"""

import contextlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.display import show_epsilon, show_lower
from sottovoce.core.errors import ParameterError, UnsupportedEventError
from sottovoce.core.files import finite_or_none
from sottovoce.privacy.accounting import builtin_accountants, privacy_spent
from sottovoce.privacy.compositions import reveal_messages
from sottovoce.privacy.events import NonPrivate, PrivacyEvent, basic_counts

CONFIDENCE = 0.999
# The points of the curve that are compared, as fractions of the certified epsilon.
_FRACTIONS = (0.0, 0.125, 0.25, 0.5, 0.75)


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A privacy event that was charged, and the delta at which its epsilon is stated.

    Attributes:
        event: The event, which may be a composition.
        delta: The delta.
    """

    event: PrivacyEvent
    delta: float

    def __post_init__(self) -> None:
        parameter_rules.delta(self.delta)

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency of the event."""
        return self.event.adjacency

    @cached_property
    def epsilon(self) -> float:
        """The smallest epsilon that accountants prove at `delta`; infinite without a guarantee."""
        if self._has_no_guarantee:
            return math.inf
        return privacy_spent(self.event, self.delta).epsilon

    def delta_at(self, epsilon: float) -> float:
        """Return the smallest delta that a built-in accountant proves at an epsilon.

        Args:
            epsilon: The epsilon, at least 0.

        Returns:
            The delta; 1 without a guarantee.
        """
        if self._has_no_guarantee:
            return 1.0
        found = [1.0]
        for event in {self.event, reveal_messages(self.event)}:
            for accountant in builtin_accountants():
                with contextlib.suppress(UnsupportedEventError):
                    found.append(accountant.delta(event, epsilon))
        if epsilon >= self.epsilon:
            found.append(self.delta)
        return min(found)

    @cached_property
    def curve(self) -> tuple[tuple[float, float], ...]:
        """The pairs (epsilon, certified delta) that an audit compares in addition to `delta`.

        The epsilons are 0, 1/8, 1/4, 1/2 and 3/4 of the certified one. Without a guarantee there
        are no pairs.
        """
        if not math.isfinite(self.epsilon):
            return ()
        epsilons = dict.fromkeys(fraction * self.epsilon for fraction in _FRACTIONS)
        return tuple((epsilon, self.delta_at(epsilon)) for epsilon in epsilons)

    @property
    def _has_no_guarantee(self) -> bool:
        """Whether a part of the event has no guarantee at all."""
        return any(isinstance(part, NonPrivate) for part in basic_counts(self.event))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One epsilon, its certified delta, and a lower bound of the true delta that an audit measured.

    Attributes:
        epsilon: The epsilon.
        certified_delta: The delta that the certificate claims at it.
        measured_delta: The lower bound of the true delta at it.
    """

    epsilon: float
    certified_delta: float
    measured_delta: float

    @property
    def violated(self) -> bool:
        """Whether the lower bound exceeds the certified delta."""
        return self.measured_delta > self.certified_delta


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of an audit: a lower bound on epsilon, compared with the certificate.

    All its bounds together are wrong with probability at most 1 - confidence.

    Attributes:
        method: How the audit was made, in words.
        adjacency: The adjacency of the certificate.
        delta: The delta at which epsilon is compared.
        confidence: Probability with which all bounds hold; 1 for an exact computation.
        certified: The certified epsilon; infinite without a guarantee.
        lower_bound: The lower bound on epsilon.
        points: Other epsilons, each with its certified delta and a lower bound of the true delta.
        trials: What was counted, in words.
        law_refuted: What shows that the draws do not follow the certified law; None if nothing
            does.
    """

    method: str
    adjacency: Adjacency
    delta: float
    confidence: float
    certified: float
    lower_bound: float
    points: tuple[Point, ...]
    trials: str
    law_refuted: str | None = None

    @property
    def violated(self) -> bool:
        """Whether one of the lower bounds exceeds the certificate or the law is refuted."""
        return (
            self.lower_bound > self.certified
            or any(point.violated for point in self.points)
            or self.law_refuted is not None
        )

    @property
    def gap(self) -> float:
        """The certified epsilon minus the lower bound; infinite if nothing is certified."""
        return self.certified - self.lower_bound

    @property
    def finding(self) -> str:
        """The verdict as a sentence, with the point that shows a violation."""
        sure = "" if self.confidence >= 1.0 else f", with confidence {self.confidence}"
        found = f"epsilon is at least {show_lower(self.lower_bound)}"
        if self.lower_bound > self.certified:
            return (
                f"violated: {found} at delta {self.delta:g}, certified "
                f"{show_epsilon(self.certified)}{sure}"
            )
        for point in self.points:
            if point.violated:
                return (
                    f"violated: delta is at least {point.measured_delta:.6g} at epsilon "
                    f"{point.epsilon:.4f}, certified {point.certified_delta:.6g}{sure}"
                )
        if self.law_refuted is not None:
            return f"violated: the draws do not follow the certified law: {self.law_refuted}{sure}"
        if not math.isfinite(self.certified):
            return f"nothing is certified; {found}{sure}"
        return (
            f"holds: {found} and certified to be at most {show_epsilon(self.certified)} at delta "
            f"{self.delta:g}{sure}"
        )

    def plain(self) -> dict[str, Any]:
        """Return the verdict as plain data for JSON.

        Returns:
            A dictionary; infinite values are None.
        """
        return {
            "method": self.method,
            "adjacency": str(self.adjacency),
            "delta": self.delta,
            "confidence": self.confidence,
            "certified": finite_or_none(self.certified),
            "lower_bound": finite_or_none(self.lower_bound),
            "gap": finite_or_none(self.gap),
            "violated": self.violated,
            "finding": self.finding,
            "law_refuted": self.law_refuted,
            "trials": self.trials,
            "profile": [
                {
                    "epsilon": point.epsilon,
                    "certified_delta": point.certified_delta,
                    "measured_delta": point.measured_delta,
                    "violated": point.violated,
                }
                for point in self.points
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorShares:
    """The division of an audit's error among its bounds, fixed before anything is measured.

    By the union bound all bounds together hold with the stated confidence.

    Attributes:
        at_delta: Error of the bound on epsilon at the certificate's delta.
        at_each_point: Error of each other point of the curve.
        of_the_law: Error of the test of the declared law.
    """

    at_delta: float
    at_each_point: float
    of_the_law: float

    @classmethod
    def of(cls, confidence: float, points: int) -> "ErrorShares":
        """Divide the error 1 - confidence, for an audit that compares `points` other epsilons.

        Raise ParameterError if the confidence is not in [0.5, 1).
        """
        if not 0.5 <= confidence < 1.0:
            raise ParameterError(
                f"confidence must be at least 0.5 and below 1, got {confidence!r}; use 0.999"
            )
        error = 1.0 - confidence
        return cls(
            at_delta=error / 2.0,
            at_each_point=error / 4.0 / max(1, points),
            of_the_law=error / 4.0,
        )
