"""What an audit holds a measurement against, and what it says.

A certificate is an event, and so a whole curve delta(epsilon), not one point of it. At delta = 1e-5
noise that is half of what was charged can hardly be seen; at epsilon = 0, where delta is the total
variation, it is plain. So an audit looks at several points of the curve and shares its error among
them: half for the epsilon at the certificate's own delta, a quarter for the rest of the curve, and
a quarter for the question whether draws follow the law that the certificate is of.
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
from sottovoce.privacy.accounting import accountants, privacy_spent
from sottovoce.privacy.compositions import unhidden
from sottovoce.privacy.events import NonPrivate, PrivacyEvent, basic_counts

CONFIDENCE = 0.999
# Where the curve is looked at, as fractions of the certified epsilon.
_FRACTIONS = (0.0, 0.125, 0.25, 0.5, 0.75)


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What was charged: an event, and the delta at which its epsilon is stated."""

    event: PrivacyEvent
    delta: float

    def __post_init__(self) -> None:
        parameter_rules.delta(self.delta)

    @property
    def adjacency(self) -> Adjacency:
        return self.event.adjacency

    @cached_property
    def epsilon(self) -> float:
        """The smallest sound epsilon at delta; infinite without a guarantee."""
        if self._is_open:
            return math.inf
        return privacy_spent(self.event, self.delta).epsilon

    def delta_at(self, epsilon: float) -> float:
        """The smallest sound delta at `epsilon`."""
        if self._is_open:
            return 1.0
        found = [1.0]
        for event in {self.event, unhidden(self.event)}:
            for accountant in accountants():
                with contextlib.suppress(UnsupportedEventError):
                    found.append(accountant.delta(event, epsilon))
        if epsilon >= self.epsilon:
            found.append(self.delta)
        return min(found)

    @cached_property
    def curve(self) -> tuple[tuple[float, float], ...]:
        """(epsilon, certified delta) where an audit looks beside the certificate's own delta."""
        if not math.isfinite(self.epsilon):
            return ()
        epsilons = dict.fromkeys(fraction * self.epsilon for fraction in _FRACTIONS)
        return tuple((epsilon, self.delta_at(epsilon)) for epsilon in epsilons)

    @property
    def _is_open(self) -> bool:
        return any(isinstance(part, NonPrivate) for part in basic_counts(self.event))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of the curve: the delta that was certified, and one that is surely there."""

    epsilon: float
    certified_delta: float
    measured_delta: float

    @property
    def violated(self) -> bool:
        return self.measured_delta > self.certified_delta


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A lower bound on epsilon beside the certificate; wrong with chance 1 - confidence at most.

    `certified` is infinite where nothing is guaranteed. `trials` says what was counted, in words,
    and `law_refuted` what shows that draws do not follow the law that was certified.
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
        return (
            self.lower_bound > self.certified
            or any(point.violated for point in self.points)
            or self.law_refuted is not None
        )

    @property
    def gap(self) -> float:
        """How much of the certificate the audit did not find."""
        return self.certified - self.lower_bound

    @property
    def finding(self) -> str:
        """In a sentence, with the point that shows it."""
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
            return f"violated: what is drawn is not what was certified: {self.law_refuted}{sure}"
        if not math.isfinite(self.certified):
            return f"nothing is certified; {found}{sure}"
        return (
            f"holds: {found} and certified to be at most {show_epsilon(self.certified)} at delta "
            f"{self.delta:g}{sure}"
        )

    def plain(self) -> dict[str, Any]:
        """As plain data; no guarantee is null."""
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
class Shares:
    """The error of an audit, shared out beforehand: no more than all of it together."""

    at_delta: float
    at_each_point: float
    of_the_law: float

    @classmethod
    def of(cls, confidence: float, points: int) -> "Shares":
        """An error, too, if `confidence` is none: whoever draws for long asks first."""
        if not 0.5 <= confidence < 1.0:
            raise ParameterError(
                f"confidence must be at least 0.5 and below 1, got {confidence!r}; 0.999 is usual"
            )
        error = 1.0 - confidence
        return cls(
            at_delta=error / 2.0,
            at_each_point=error / 4.0 / max(1, points),
            of_the_law=error / 4.0,
        )
