"""Plain values that a ledger holds, and the protocol of every record of spending.

Rows carry digests that are chained from row to row, so an edited, removed or reordered row is
detected.
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


@lru_cache(maxsize=1 << 16, typed=True)  # the same names and events recur
def _as_json(cell: Cell) -> str:
    return json.dumps(cell)


def link(previous: bytes, row: tuple[Cell, ...]) -> bytes:
    """Return the chain link of a row, a digest of the previous link and the row.

    The link is BLAKE2b-128(previous link || row as a JSON array).
    """
    text = ",".join([_as_json(cell) for cell in row])
    return digest(previous + f"[{text}]".encode())


def digest(content: bytes) -> bytes:
    """Return the BLAKE2b-128 digest of some bytes."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def as_hex(content: bytes | None) -> str | None:
    """Return bytes in hexadecimal, the form in which a row's digest covers them; None for None."""
    return None if content is None else content.hex()


# The name of an account that belongs to no client. Its budget is the part of delta that a site's
# first order reserved for its event.
FIRST_EVENT_ACCOUNT = "(first event)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most that a client may spend over everything in the ledger.

    Attributes:
        epsilon: Largest epsilon at `delta`, over all runs in the ledger.
        delta: Delta at which epsilon is computed.
        adjacency: Adjacency of the guarantee; a word such as "replace-one" is accepted.
        unit: What is protected, a sample or a client; a word is accepted.

    Examples:
        >>> print(Budget(epsilon=8.0, delta=1e-5))
        epsilon 8 at delta 1e-05, zero-out, per client
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
        """Raise if this budget would replace a different one, which might be smaller.

        Args:
            present: The client's budget; None if it has none. An equal budget does not raise.
            client: The client's name, for the message.

        Raises:
            LedgerError: `present` is another budget.
        """
        if present is not None and present != self:
            raise LedgerError(
                f"client '{client}' already has the budget {present}, which cannot be replaced by "
                f"{self}; use the budget that is set"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One vector that a client is asked to send.

    Attributes:
        unit: What the charge protects, a sample or the whole client.
        run: Name of the run.
        client: Name of the client.
        round: Round of the run, from 0 to 2^32 - 1.
        uplink: Number of the vector within the round, from 0 to 255.
    """

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
                object.__setattr__(
                    self, name, value
                )  # a plain int, also if a NumPy integer was given

    def __str__(self) -> str:
        return f"client '{self.client}', round {self.round}, uplink {self.uplink}"

    @property
    def key(self) -> tuple[str, str, int, int]:
        """The columns (run, client, round, uplink) by which the ledger finds the release."""
        return self.run, self.client, self.round, self.uplink


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCharge:
    """A charge that has not been made yet.

    Attributes:
        release: The release to charge for.
        attempt: 0 for the first attempt; larger where an earlier message may have left and cannot
            be sent again.
        event: The privacy event to charge.
    """

    release: Release
    attempt: int
    event: PrivacyEvent

    def __str__(self) -> str:
        return f"{self.release}, attempt {self.attempt}"


class SpendingRecord(Protocol):
    """A record of what the clients of a run have been charged.

    `Ledger` is durable and is charged release by release. `Tally` is in memory and counts rounds.
    The backend that holds the record decides when it is charged.
    """

    @property
    def num_charges(self) -> int:
        """The number of charges that have been made."""
        ...

    def set_budgets(self, budgets: Mapping[str, Budget]) -> None:
        """Give clients their budgets; a budget cannot be changed later."""
        ...

    def history(self, client: str) -> list[tuple[PrivacyEvent, int]]:
        """Return (event, count) of everything charged to a client; empty if nothing was."""
        ...

    def spent(self, client: str, delta: float) -> PrivacySpent | None:
        """Return what a client has spent, as epsilon at `delta`; None without a charge."""
        ...

    def largest_spent(
        self, delta: float, *, through: tuple[str, int] | None = None
    ) -> PrivacySpent | None:
        """Return what the client that has spent most has spent; None if no client has a charge.

        With `through` = (run, round), rounds of that run after `round` are not counted.
        """
        ...

    def rounds_charged(self, run: str) -> dict[str, int]:
        """Return in how many rounds of a run each client was charged.

        A client without a charge has 0 in a `Tally` and is absent in a `Ledger`.
        """
        ...

    def discard_messages(self, run: str, before_round: int) -> None:
        """Discard stored messages of rounds before `before_round`; their charges stay."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPosition:
    """The identity of a ledger and the extent of its chains, by which an older copy is detected.

    Messages count as well as charges: a copy that has a charge but not the message that the charge
    paid for would send another message under the same charge.

    Attributes:
        identity: 32 hexadecimal digits, drawn at random when the ledger is created. In a ledger of
            an earlier version they are derived from its first charge, if it has one.
        charges: Number of charges.
        charges_head: Chain link of the last charge in hexadecimal; empty without charges.
        messages: Number of stored messages, discarded ones included.
        messages_head: Chain link of the last message in hexadecimal; empty without messages.
    """

    identity: str
    charges: int
    charges_head: str
    messages: int
    messages_head: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A charge in the ledger, and what became of it.

    A client's message is stored under its charge before it is sent. So if such a charge is not
    sealed, nothing encoded under it has left. If it is sealed and has a message, these bytes may
    have left. If it is sealed without a message, the bytes may have left and were discarded.
    Charges of a question that is answered from a file, and those in a server's own ledger, never
    have a message.

    Attributes:
        id: Number of the charge's row in the ledger, from 1.
        release: What was charged for.
        attempt: Number of the attempt, from 0.
        event: The privacy event that was charged.
        sealed: Whether a message was ever stored for it.
        commitment: A keyed digest of what was encoded, kept where the same keystream can be derived
            again; else None.
        message: The stored bytes; None if there are none or they were discarded.
    """

    id: int
    release: Release
    attempt: int
    event: PrivacyEvent
    sealed: bool = False
    commitment: bytes | None = None
    message: bytes | None = None
