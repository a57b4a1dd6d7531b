"""A published formula, its inputs, and the comparison of its value with the true one."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sottovoce.core.errors import ParameterError, UnknownNameError

# How the true value is said to relate to the published one.
Relation = Literal["at most", "at least", "equal to"]
_CLAIMS = {"at most": "upper bound on ", "at least": "lower bound on ", "equal to": ""}
_RELATIVE_TOLERANCE = 1e-8  # Some true values are rounded up by about 1e-12.


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a formula: its default, and its smallest and largest value.

    A whole number as the default means that only whole numbers are allowed.
    """

    default: float
    low: float
    high: float

    def parse(self, name: str, text: str) -> float:
        """Return the value that a text stands for; raise `ParameterError` if it is not allowed."""
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        try:
            value = int(text) if isinstance(self.default, int) else float(text)
        except ValueError:
            value = math.nan
        if not self.low <= value <= self.high:
            raise ParameterError(
                f"{name} must be {kind} from {self.low:g} to {self.high:g}, got '{text}'"
            )
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """A formula as a paper prints it, next to a way to compute the true value.

    Attributes:
        name: The name on the command line.
        paper: The paper that prints it.
        number: Its theorem, lemma, equation, table or section.
        claim: The quantity that the formula is said to give or to bound.
        relation: How the true value is said to relate to the published one.
        holds: Whether the claim is true for all inputs.
        correction: What is true instead, or, if the claim is true, how it is used.
        why: Why the two values differ.
        inputs: The inputs with their defaults. They are a counterexample if the claim is false.
        published: The formula as printed; NaN where it has no real value.
        true: The function that computes the true value.
        truth: What the true value is, and how it is computed.
    """

    name: str
    paper: str
    number: str
    claim: str
    relation: Relation
    holds: bool
    correction: str
    why: str
    inputs: Mapping[str, Input]
    published: Callable[..., float]
    true: Callable[..., float]
    truth: str

    def compare(self, assignments: Sequence[str] = ()) -> "Comparison":
        """Return the published and the true value.

        Args:
            assignments: Inputs that differ from the default, as key=value.

        Returns:
            The comparison at these inputs.

        Raises:
            ParameterError: An assignment has another form, or a value is not allowed.
            UnknownNameError: The formula has no such input.
        """
        values = {name: one.default for name, one in self.inputs.items()}
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals:
                raise ParameterError(f"--set takes KEY=VALUE, as in --set order=2; got '{key}'")
            if key not in self.inputs:
                raise UnknownNameError.among("input", key, self.inputs)
            values[key] = self.inputs[key].parse(key, text)
        try:
            published, true = self.published(**values), self.true(**values)
        except OverflowError:
            raise ParameterError(
                "a number is too large to be computed; choose inputs closer to the defaults"
            ) from None
        return Comparison(formula=self, inputs=values, published=published, true=true)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The published and the true value of a formula at some inputs."""

    formula: Formula
    inputs: Mapping[str, float]
    published: float
    true: float

    @property
    def _is_close(self) -> bool:
        return math.isclose(self.published, self.true, rel_tol=_RELATIVE_TOLERANCE)

    @property
    def holds(self) -> bool:
        """Whether the claim is true at these inputs."""
        if self._is_close:
            return True
        match self.formula.relation:
            case "at most":
                return self.true < self.published
            case "at least":
                return self.true > self.published
            case "equal to":
                return False

    @property
    def outcome(self) -> str:
        """A sentence that compares the two values."""
        if math.isnan(self.published):
            return "The formula has no real value at these inputs."
        if self._is_close:
            known = "" if self.formula.holds else "; at the default inputs it does not"
            return f"The published value equals the true one{known}."
        place = "below" if self.published < self.true else "above"
        if not self.holds:
            verdict = "so the claim is false"
        elif self.formula.holds:
            verdict = "as claimed"
        else:
            verdict = "as claimed; at the default inputs it does not"
        return f"The published value lies {place} the true one, {verdict}."

    def plain(self) -> dict[str, object]:
        """Return the comparison as JSON data; a value that is no finite number is None."""
        return {
            **describe(self.formula),
            "inputs": dict(self.inputs),
            "published_value": self.published if math.isfinite(self.published) else None,
            "true_value": self.true if math.isfinite(self.true) else None,
            "truth": self.formula.truth,
            "holds_here": self.holds,
            "outcome": self.outcome,
            "why": self.formula.why,
        }


def describe(formula: Formula) -> dict[str, object]:
    """Return what the list of formulas shows of one of them, as JSON data."""
    return {
        "name": formula.name,
        "paper": formula.paper,
        "number": formula.number,
        "claim": f"{_CLAIMS[formula.relation]}{formula.claim}",
        "sound": formula.holds,
        "correction": formula.correction,
    }


def show_value(value: float) -> str:
    """Return a value with four significant digits, or "none" if there is no real value."""
    return "none" if math.isnan(value) else f"{value:.4g}"
