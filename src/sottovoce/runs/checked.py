"""The result of `check`: what a run would cost, as text, HTML in notebooks and plain data."""

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
    "example": "example",
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
    """What each of a number of clients with equal costs would spend and send in all rounds.

    Attributes:
        num_clients: The number of clients with these costs.
        example: The name of one of them.
        group: The number of their table in `privacy.groups`, from 1; 0 if no table names them.
        mechanism: The registered name of their mechanism.
        budget: The largest epsilon that each may spend; None without a budget.
        delta: The failure probability of all epsilons of the row.
        rounds: The number of rounds in which each is asked.
        epsilon: What each spends under the channel's assumptions; infinite without a guarantee.
        local_epsilon: What each spends if every message, its sender and the sampled records were
            seen; infinite where messages have no noise of their own.
        payload_bytes_up: The bytes of the codes that each sends.
        total_bytes_up: The same with message headers.
        payload_bytes_down: The bytes of the models that each receives.
        total_bytes_down: The same with message headers.
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
class CheckResult:
    """What a run would cost, or why it would be refused; nothing was charged.

    Attributes:
        problems: Every reason for a refusal that was found; empty if the spec would run.
        notes: What to know before the run: its warnings, and what only sites know.
        costs: One row for all clients with equal costs; empty if they could not be computed.
        clients: For each client's name, the index of its row in `costs`.
        details: The mechanism, the epsilons of the client that spends most, the bytes of all
            clients together, and estimates of time and memory; empty if `costs` is.
    """

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    costs: Table[ClientCost] = field(default_factory=lambda: table_of([]))
    clients: Mapping[str, int] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def would_run(self) -> bool:
        """Whether the spec would run: no problem was found."""
        return not self.problems

    def cost_of(self, client: str) -> ClientCost:
        """Return what one client would spend and send.

        Args:
            client: The client's name.

        Returns:
            Its row of `costs`.

        Raises:
            KeyError: The run has no such client, or `costs` is empty.
        """
        return self.costs[self.clients[client]]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data.

        Returns:
            The same as `run --check --json` prints; None stands for an infinite epsilon.
        """
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
        """Return the names and values that are printed for the check.

        Returns:
            `details`, after an entry `would run` that says whether the run would finish.
        """
        shown = dict(self.details)
        if shown and not shown["private"]:
            shown["epsilon"] = math.inf
        return {"would run": self._would_run(), **shown}

    def _would_run(self) -> str:
        """Return whether the run would finish, in a few words."""
        if not self.would_run:
            return "no"
        rounds, asked_for = self.details["rounds"], self.details["rounds_asked_for"]
        if self.details["halted"]:
            return f"{rounds} of {asked_for} rounds, then it stops: {self.details['halted']}"
        if not self.details["total_bytes_up"]:
            return f"{rounds} of {asked_for} rounds, but no client is asked in any of them"
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
    """Return the costs of clients as a table with headings, for printing and notebooks."""
    return Table(costs, caption="what each client would spend and send", columns=_COLUMNS)


def problems_of(error: SottovoceError) -> tuple[str, ...]:
    """Return the messages of all problems that an error reports.

    A `SpecError` may have several; of any other error it is the error's own message.
    """
    return tuple(getattr(error, "problems", (str(error),)))
