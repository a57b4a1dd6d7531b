"""What training needs of whoever collects a round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.federated.algorithms.algorithm import Combined
from sottovoce.ledger.records import SpendingRecord
from sottovoce.protocol.round_broadcast import Start

Mask = NDArray[np.bool_]

# Coordinates of updates held in memory at once.
COORDINATES_TOGETHER = 1 << 25


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteReply:
    """What came of asking one site in a round.

    A reply counted, was a refusal, was not what was announced and dropped, or did not come in time.
    `rounds_charged` is the site's own word on its ledger; None where it says nothing.
    """

    outcome: Literal["counted", "refused", "dropped", "silent"]
    rounds_charged: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a round brought in; `combined` holds an entry for each uplink, or none at all.

    Where messages really travel, `total_bytes_down` is what was sent, and some clients may be
    unreachable, or their replies no use: `replies_dropped`. Of those who were asked, and of whom
    nothing counted, `unanswered` says why, by name; `sites` has what came of each of them.
    """

    combined: tuple[Combined, ...]
    clients_asked: int
    clients_received: int
    clients_out_of_budget: int
    payload_bytes_up: int
    total_bytes_up: int
    total_bytes_down: int | None = None
    clients_unreachable: int = 0
    replies_dropped: int = 0
    unanswered: Mapping[str, str] = field(default_factory=dict)
    sites: Mapping[str, SiteReply] = field(default_factory=dict)


class Backend(Protocol):
    """Charges clients, then collects what they send."""

    @property
    def record(self) -> SpendingRecord:
        """What the clients have been charged."""
        ...

    def able(self, number: int) -> Mask:
        """Clients, drawn or not, whose budgets hold round `number`, as they stood before it."""
        ...

    def replay(self, number: int, drawn: Sequence[int]) -> None:
        """A round that was run before the last checkpoint: what was charged then counts now.

        Of those who were `drawn`, whoever could pay was asked.
        """
        ...

    def collect(self, number: int, cohort: Sequence[int], start: Start) -> Collected:
        """One round of these clients, charged before anything of it is drawn or encoded.

        They start from `start`, which is what they read of the server's progress.
        """
        ...
