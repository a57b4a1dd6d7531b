"""An estimate as people, programs and notebooks read it."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.display import show_epsilon
from sottovoce.mechanisms.mechanism import Sampling

NO_LEDGER = "entered in no ledger"
SEEDED = "noise from a seed: for simulation only"
FLOAT = "float noise, whose last bits leak: for simulation only"
WHOM = (
    "interval for the population of which these people are a random sample; for the people at hand "
    "it holds too, a little too wide"
)

_LABELS_TOLD = 4

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One estimated number; no interval where too few people were asked for one.

    A `caveat` says why this interval may cover more or less often than stated.
    """

    label: str
    estimate: float
    interval: Interval | None
    caveat: str | None = None

    def row(self) -> dict[str, Any]:
        low, high = self.interval or (None, None)
        return {"label": self.label, "estimate": self.estimate, "low": low, "high": high}


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is known of the population, and what each person paid for it.

    epsilon      of one person, pure, between any two values: the event's own, rounded up; for
                 places per kilometre, and `unit` says so.
    bits         that one person sends.
    notes        what to know before believing it; assumptions and labels.
    details      further functions of the codes and of public numbers, by name.
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
        """The number, or the numbers in the order of their labels."""
        values = tuple(number.estimate for number in self.numbers)
        return values[0] if self.is_single else values

    @property
    def interval(self) -> Interval | tuple[Interval | None, ...] | None:
        """(low, high), or one for each number."""
        values = tuple(number.interval for number in self.numbers)
        return values[0] if self.is_single else values

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each number: `pandas.DataFrame(estimate.rows())` is a table."""
        return [number.row() for number in self.numbers]

    def noted(self, *notes: str) -> "Estimate":
        """The same with further notes."""
        return replace(self, notes=(*self.notes, *notes))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
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
        """What may be off about intervals, each with the numbers that it is about."""
        found: dict[str, list[str]] = {}
        for number in self.numbers:
            if number.caveat is not None:
                found.setdefault(number.caveat, []).append(number.label)
        return [f"{self._about(labels)}: {why}" for why, labels in found.items()]

    def _about(self, labels: Sequence[str]) -> str:
        if len(labels) == len(self.numbers) > 1:
            return "every interval"
        more = len(labels) - _LABELS_TOLD
        tail = f" and {more} more" if more > 0 else ""
        return f"interval of {', '.join(labels[:_LABELS_TOLD])}{tail}"

    def facts(self) -> dict[str, str]:
        """What stands below the numbers."""
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
