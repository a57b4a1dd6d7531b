"""What the ledger holds, as plain values, and what can be asked of any record of spending.

Digests chained from row to row, so that an edited, removed or reordered row is noticed.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import LedgerError
from sottovoce.privacy.accounting import PrivacySpent
from sottovoce.privacy.events import PrivacyEvent

Cell = str | int | float | None

_DIGEST_BYTES = 16


@lru_cache(maxsize=1 << 16, typed=True)  # names and events come again and again
def _as_json(cell: Cell) -> str:
    return json.dumps(cell)


def link(previous: bytes, row: tuple[Cell, ...]) -> bytes:
    """BLAKE2b-128(previous link, row as a JSON array)."""
    text = ",".join([_as_json(cell) for cell in row])
    return digest(previous + f"[{text}]".encode())


def digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def as_hex(content: bytes | None) -> str | None:
    """Bytes as a row holds them for its digest."""
    return None if content is None else content.hex()


# An account that is nobody's: its budget is what a site's first order set aside for its event.
FIRST_EVENT = "(first event)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most a client may spend, over everything in the ledger.

    `adjacency` and `unit` may be given as words; they are zero-out and client unless given.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.ZERO_OUT
    unit: Unit = Unit.CLIENT

    def __post_init__(self) -> None:
        parameter_rules.epsilon(self.epsilon)
        parameter_rules.delta(self.delta)
        object.__setattr__(self, "adjacency", Adjacency.parse(self.adjacency))
        object.__setattr__(self, "unit", Unit.parse(self.unit))

    def __str__(self) -> str:
        return (
            f"epsilon {self.epsilon:g} at delta {self.delta:g}, {self.adjacency}, per {self.unit}"
        )

    def check_not_replacing(self, present: "Budget | None", client: str) -> None:
        """Refuse to take the place of another budget, which might be smaller."""
        if present is not None and present != self:
            raise LedgerError(
                f"client '{client}' has another budget already ({present}), and this is "
                f"{self}; a budget is set once"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One vector that a client is asked to send, and what it protects."""

    unit: Unit
    run: str
    client: str
    round: int
    uplink: int

    def __post_init__(self) -> None:
        for name, high in (("round", 2**32 - 1), ("uplink", 255)):
            given = getattr(self, name)
            value = parameter_rules.integer(name, given, low=0, high=high)
            if value is not given:
                object.__setattr__(self, name, value)  # a plain int, whatever came in

    def __str__(self) -> str:
        return f"client '{self.client}', round {self.round}, uplink {self.uplink}"

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.run, self.client, self.round, self.uplink


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A charge that is to be made."""

    release: Release
    attempt: int
    event: PrivacyEvent

    def __str__(self) -> str:
        return f"{self.release}, attempt {self.attempt}"


class SpendingRecord(Protocol):
    """What the clients of a run have been charged, wherever that is written down.

    `Ledger` is durable, and charged release by release; `Tally` is in memory, and counts rounds.
    How each is charged is the business of the backend that holds it.
    """

    @property
    def num_charges(self) -> int:
        """How many charges have been made."""
        ...

    def set_budgets(self, budgets: Mapping[str, Budget]) -> None:
        """Give clients their budgets, each once: nobody can raise one later."""
        ...

    def history(self, client: str) -> list[tuple[PrivacyEvent, int]]:
        """Every event charged to a client, with its count."""
        ...

    def spent(self, client: str, delta: float) -> PrivacySpent | None:
        """What a client has spent; None if nothing."""
        ...

    def largest_spent(
        self, delta: float, *, through: tuple[str, int] | None = None
    ) -> PrivacySpent | None:
        """What the client that has spent most has spent; None if nobody has.

        `through` = (run, round): rounds of that run after `round` do not count yet.
        """
        ...

    def rounds_charged(self, run: str) -> dict[str, int]:
        """In how many rounds of a run each client was charged."""
        ...

    def discard_messages(self, run: str, before_round: int) -> None:
        """Drop stored messages of finished rounds, if there are any; their charges stay."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Which ledger it is, and how far it has come: what a copy or a new one cannot match.

    `identity` is drawn when a ledger is made (32 hexadecimal digits). A head is the chain link of
    the last row, in hexadecimal, and empty while there is none. Messages count as well as charges:
    a copy that has a charge but not yet the message that it paid for would send another one under
    the same charge.
    """

    identity: str
    charges: int
    charges_head: str
    messages: int
    messages_head: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A charge in the ledger, and what became of it.

    not sealed                   nothing encoded under it has left: messages are stored first.
    sealed, with a message       these bytes may have left.
    sealed, without a message    it was discarded. `commitment` is a keyed digest of what was
                                 encoded, kept where the keystream could come back.
    """

    id: int
    release: Release
    attempt: int
    event: PrivacyEvent
    sealed: bool = False
    commitment: bytes | None = None
    message: bytes | None = None
