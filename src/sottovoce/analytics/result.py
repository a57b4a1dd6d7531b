"""The result of an estimate, for people, programs and notebooks."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.display import show_epsilon
from sottovoce.mechanisms.mechanism import Sampling

NO_LEDGER = "not charged to a ledger"
SEEDED = "noise is drawn from a seed: for simulation only"
FLOAT = "float noise, whose last bits leak information: for simulation only"
POPULATION_NOTE = (
    "the interval is for the population of which these people are a random sample; it also holds "
    "for these people themselves, and is then slightly too wide"
)

_LABELS_TOLD = 4

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One estimated number.

    Attributes:
        label: Its name among the numbers of the estimate.
        estimate: The estimate.
        interval: The confidence interval; None if too few people answered or the noise is too
            large.
        caveat: Why this interval may cover more or less often than stated; None if no such reason
            is known.
    """

    label: str
    estimate: float
    interval: Interval | None
    caveat: str | None = None

    def row(self) -> dict[str, Any]:
        """Return label, estimate, low and high by name; the ends are None without an interval."""
        low, high = self.interval or (None, None)
        return {"label": self.label, "estimate": self.estimate, "low": low, "high": high}


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An estimate of a statistic of a population, and its privacy cost for each person.

    Attributes:
        statistic: Name of the statistic.
        numbers: The estimated numbers with their intervals.
        is_single: Whether the statistic is one number and not a list.
        confidence: Confidence level of the intervals.
        people: Number of people who answered.
        epsilon: Pure epsilon of one person's code between any two values, rounded up; per kilometer
            of distance for locations, see `epsilon_unit`.
        epsilon_unit: What epsilon refers to.
        bits: Bits that one person sends.
        mechanism: Name of the mechanism.
        sampling: Sampling grade of the mechanism.
        adjacency: The adjacency of epsilon.
        notes: Assumptions and limits of the estimate.
        details: Further functions of the codes and of public parameters, by name.
    """

    statistic: str
    numbers: tuple[Number, ...]
    is_single: bool
    confidence: float
    people: int
    epsilon: float
    epsilon_unit: str
    bits: int
    mechanism: str
    sampling: Sampling
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def estimate(self) -> float | tuple[float, ...]:
        """The estimated number, or a tuple of them in the order of their labels."""
        values = tuple(number.estimate for number in self.numbers)
        return values[0] if self.is_single else values

    @property
    def interval(self) -> Interval | tuple[Interval | None, ...] | None:
        """The interval (low, high), or one for each number; None where there is no interval."""
        values = tuple(number.interval for number in self.numbers)
        return values[0] if self.is_single else values

    def rows(self) -> list[dict[str, Any]]:
        """Return a dictionary for each number; `pandas.DataFrame(estimate.rows())` makes a table.

        Returns:
            Dictionaries with label, estimate, low and high; the ends are None without an interval.
        """
        return [number.row() for number in self.numbers]

    def noted(self, *notes: str) -> "Estimate":
        """Return the estimate with further notes; this one is not changed.

        Args:
            *notes: The notes to append.

        Returns:
            A new estimate.
        """
        return replace(self, notes=(*self.notes, *notes))

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as plain data for JSON.

        Returns:
            The numbers, intervals, facts, notes and details.
        """
        result: dict[str, Any] = {
            "statistic": self.statistic,
            "estimate": _plain(self.estimate),
            "interval": _plain(self.interval),
            "confidence": self.confidence,
        }
        if not self.is_single:
            result["labels"] = [number.label for number in self.numbers]
        return {
            **result,
            "people": self.people,
            "epsilon": self.epsilon,
            "epsilon_unit": self.epsilon_unit,
            "adjacency": str(self.adjacency),
            "bits_per_person": self.bits,
            "mechanism": self.mechanism,
            "sampling_grade": self.sampling,
            "notes": [*self.notes, *self.caveats()],
            **{name: _plain(value) for name, value in self.details.items()},
        }

    def caveats(self) -> list[str]:
        """Return the caveats about intervals, each with the numbers that it applies to.

        Returns:
            One sentence for each caveat.
        """
        found: dict[str, list[str]] = {}
        for number in self.numbers:
            if number.caveat is not None:
                found.setdefault(number.caveat, []).append(number.label)
        return [f"{self._about(labels)}: {why}" for why, labels in found.items()]

    def _about(self, labels: Sequence[str]) -> str:
        """Return which numbers a caveat applies to, in words."""
        if len(labels) == len(self.numbers) > 1:
            return "every interval"
        more = len(labels) - _LABELS_TOLD
        tail = f" and {more} more" if more > 0 else ""
        return f"interval of {', '.join(labels[:_LABELS_TOLD])}{tail}"

    def facts(self) -> dict[str, str]:
        """Return the facts that are printed below the numbers, by name.

        Returns:
            People, confidence, epsilon, bits and mechanism, as text.
        """
        grade = "exact" if self.sampling == "exact" else "float, for simulation only"
        return {
            "people": f"{self.people}",
            "confidence": f"{self.confidence:.4g}",
            "epsilon": f"{show_epsilon(self.epsilon)} {self.epsilon_unit} ({self.adjacency})",
            "bits a person": f"{self.bits}",
            "mechanism": f"{self.mechanism} (sampling: {grade})",
        }

    def __str__(self) -> str:
        width = max(len(self._name(number)) for number in self.numbers)
        lines = [f"{self._name(number):<{width}}  {_shown(number)}" for number in self.numbers]
        facts = self.facts()
        wide = max(len(name) for name in facts)
        lines += [f"{name:<{wide}}  {value}" for name, value in facts.items()]
        return "\n".join([*lines, *(f"note: {note}" for note in (*self.notes, *self.caveats()))])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in (self.statistic, "estimate", "low", "high"))
        body = "".join(_html_row(number) for number in self.numbers)
        facts = "; ".join(f"{name}: {value}" for name, value in self.facts().items())
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in (*self.notes, *self.caveats()))
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"<p>{html.escape(facts)}</p><ul>{notes}</ul>"
        )

    def _name(self, number: Number) -> str:
        return self.statistic if self.is_single else f"{self.statistic} {number.label}"


def _shown(number: Number) -> str:
    if number.interval is None:
        return f"{number.estimate:.6g}  (no interval)"
    low, high = number.interval
    return f"{number.estimate:.6g}  [{low:.6g}, {high:.6g}]"


def _html_row(number: Number) -> str:
    low, high = (f"{end:.6g}" for end in number.interval) if number.interval else ("", "")
    cells = (html.escape(number.label), f"{number.estimate:.6g}", low, high)
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list) or (
        isinstance(value, Sequence) and not isinstance(value, str)
    ):
        return [_plain(item) for item in value]
    return value
