"""What a run would cost, as `check` found it: as text, as HTML in a notebook, as plain data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sottovoce.core import display
from sottovoce.core.display import Table, text_fields
from sottovoce.core.errors import SottovoceError
from sottovoce.core.files import finite

_COLUMNS = {
    "num_clients": "clients",
    "example": "such as",
    "mechanism": "mechanism",
    "budget": "budget",
    "delta": "delta",
    "rounds": "rounds",
    "epsilon": "epsilon",
    "local_epsilon": "local epsilon",
    "total_bytes_up": "bytes up",
    "total_bytes_down": "bytes down",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCost:
    """What each of some clients with equal costs would spend and send in all rounds.

    epsilon        under the channel's assumptions, at `delta`.
    local_epsilon  if every message and its sender were seen; infinite where messages have no noise.
    rounds         in how many each is asked.
    """

    num_clients: int
    example: str
    group: int
    mechanism: str
    budget: float | None
    delta: float
    rounds: int
    epsilon: float
    local_epsilon: float
    payload_bytes_up: int
    total_bytes_up: int
    payload_bytes_down: int
    total_bytes_down: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a run would cost, or why it would be refused; nothing was charged or written.

    problems  every reason for a refusal that was found; none if the spec would run.
    costs     for clients with equal costs one row; `clients` says which row is a client's.
    notes     what to know before the run: its warnings, and what only sites know.
    details   mechanism, epsilons of the client that spends most, bytes, estimates.
    """

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    costs: Table[ClientCost] = field(default_factory=lambda: table_of([]))
    clients: Mapping[str, int] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def would_run(self) -> bool:
        return not self.problems

    def cost_of(self, client: str) -> ClientCost:
        """Return what one client would spend and send."""
        return self.costs[self.clients[client]]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, the same as `run --check --json` prints; no guarantee is None."""
        found: dict[str, Any] = finite(
            {
                "would_run": self.would_run,
                "problems": list(self.problems),
                **self.details,
                "costs": self.costs.to_dicts(),
                "clients": dict(self.clients),
                "notes": list(self.notes),
            }
        )
        return found

    def fields(self) -> dict[str, Any]:
        """Return names and values for people."""
        shown = dict(self.details)
        if shown and not shown["private"]:
            shown["epsilon"] = math.inf
        return {"would run": self._would_run(), **shown}

    def _would_run(self) -> str:
        """Say whether the run would be done, and how much of it."""
        if not self.would_run:
            return "no"
        rounds, asked_for = self.details["rounds"], self.details["rounds_asked_for"]
        if self.details["halted"]:
            return f"{rounds} of {asked_for} rounds, then it stops: {self.details['halted']}"
        if not self.details["total_bytes_up"]:
            return f"{rounds} of {asked_for} rounds, and nobody is asked in any of them"
        return "yes"

    def __str__(self) -> str:
        refused = [f"refused: {problem}" for problem in self.problems]
        table = [str(self.costs)] if len(self.costs) else []
        noted = [f"note: {note}" for note in self.notes]
        return "\n".join([text_fields(self.fields()), *table, *noted, *refused])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        parts = [display.fields(self.fields(), caption="what the run would cost")]
        if len(self.costs):
            parts.append(self.costs._repr_html_())
        parts += [display.note(f"refused: {problem}") for problem in self.problems]
        parts += [display.note(note) for note in self.notes]
        return "\n".join(parts)


def table_of(costs: Sequence[ClientCost]) -> Table[ClientCost]:
    return Table(costs, caption="what each client would spend and send", columns=_COLUMNS)


def problems_of(error: SottovoceError) -> tuple[str, ...]:
    """Return all that is wrong by an error: of a spec that cannot be read it may be several."""
    return tuple(getattr(error, "problems", (str(error),)))
