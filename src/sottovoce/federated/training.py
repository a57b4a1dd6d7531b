"""Rounds, one after another: who is drawn, who can pay, what the server makes of what it gets.

What a checkpoint holds.

What training needs of whoever collects a round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.errors import PluginError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms.algorithm import Algorithm, Combined, State
from sottovoce.federated.cohorts import ClientSampling, draw
from sottovoce.learning.clients import ClientData, names_of
from sottovoce.learning.task import Task
from sottovoce.ledger.records import SpendingRecord
from sottovoce.protocol.broadcast import DownlinkFormat, Start, payload_bytes, received, sent
from sottovoce.protocol.message import HEADER_BYTES

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Everything that changes from round to round."""

    rounds_done: int
    model: Vector
    algorithm_state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """What a round sent, in clients and in bytes (payload: codes alone; total: with headers).

    Clients out of budget, and such as cannot be reached, were drawn, but neither asked nor charged.
    Dropped replies came in time, and were not what was announced.
    """

    round: int
    clients_asked: int
    clients_received: int
    clients_out_of_budget: int
    payload_bytes_up: int
    total_bytes_up: int
    payload_bytes_down: int
    total_bytes_down: int
    clients_unreachable: int = 0
    replies_dropped: int = 0
    unanswered: Mapping[str, str] = field(default_factory=dict)  # who was asked in vain, and why
    sites: Mapping[str, SiteReply] = field(default_factory=dict)  # of clients elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Halted:
    """Too few clients can go on; why, in a sentence."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A federated run, wherever its clients are: the backend knows.

    `schedule` draws cohorts and is always seeded; the backend has its own randomness. It halts
    where fewer than `minimum_clients` of all clients have budget left for a round. What clients
    are sent they read in the format `downlink`, as they would anywhere.
    """

    run: str
    task: Task
    clients: Sequence[ClientData]
    algorithm: Algorithm
    sampling: ClientSampling
    schedule: SeededRandomness
    backend: Backend
    downlink: DownlinkFormat
    minimum_clients: int = 1

    @property
    def record(self) -> SpendingRecord:
        """What the clients have been charged."""
        return self.backend.record

    def start(self) -> Progress:
        model = self.task.initial_model()
        state = self.algorithm.initialise(model)
        return Progress(rounds_done=0, model=model, algorithm_state=state)

    def sent_down(self, progress: Progress) -> Start:
        """What clients read of the server's progress: rounded once, for all of them."""
        state, shared = progress.algorithm_state, self.algorithm.shared_state
        payloads = sent(Start(model=progress.model, state=state), shared, self.downlink)
        read = received(payloads, shared, self.task.dimension, self.downlink)
        # The rest of the state is the server's, or what simulated clients keep to themselves.
        return Start(model=read.model, state={**state, **read.state})

    def able(self, number: int) -> frozenset[str]:
        """Clients, drawn or not, whose budgets hold round `number`, as they stood before it."""
        able = self.backend.able(number)
        names = names_of(self.clients)
        return frozenset(name for name, can in zip(names, able, strict=True) if can)

    def replay(self, progress: Progress) -> None:
        """Count the charges of rounds before a checkpoint, where no ledger remembers them."""
        for number in range(1, progress.rounds_done + 1):
            self.backend.replay(number, self._drawn(number))

    def _drawn(self, number: int) -> list[int]:
        """Who is drawn for a round, whether or not they can pay for it."""
        return draw(self.sampling, len(self.clients), self.schedule, number)

    def cohort(self, number: int) -> tuple[list[int], list[int]] | Halted:
        """Return who is drawn for a round, and who of these can pay for it."""
        able = self.backend.able(number)
        if able.sum() < self.minimum_clients:
            return Halted(
                reason=f"before round {number} only {able.sum()} of {len(self.clients)} clients "
                f"had budget left for it, fewer than {self.minimum_clients}"
            )
        drawn = self._drawn(number)
        return drawn, [i for i in drawn if able[i]]

    def bytes_down(self, clients: int) -> tuple[int, int]:
        """Return the bytes that so many clients are sent in a round: payload, and with headers."""
        vectors = (1 + len(self.algorithm.shared_state)) * clients
        payload = payload_bytes(self.task.dimension, self.downlink) * vectors
        return payload, payload + HEADER_BYTES * vectors

    def step(self, progress: Progress) -> tuple[Progress, RoundRecord] | Halted:
        """One round, charged as a whole before anything of it is encoded."""
        number = progress.rounds_done + 1  # rounds are counted from 1
        found = self.cohort(number)
        if isinstance(found, Halted):
            return found
        drawn, cohort = found
        # First: a model that does not fit is an error, and then nobody is charged.
        start = self.sent_down(progress)
        collected = self.backend.collect(number, cohort, start)
        model, state = progress.model, progress.algorithm_state
        if collected.combined:  # else the model stays as it is
            model, state = self.algorithm.server_step(model, collected.combined, state)
            if model.shape != progress.model.shape:
                raise PluginError(
                    f"server_step() of {type(self.algorithm).__name__} returned a model of shape "
                    f"{model.shape}, and must return one of shape {progress.model.shape}; correct "
                    "the plug-in"
                )
        payload_down, total_down = self.bytes_down(collected.clients_asked)
        short = len(drawn) - len(cohort)
        record = RoundRecord(
            round=number,
            clients_asked=collected.clients_asked,
            clients_received=collected.clients_received,
            clients_out_of_budget=short + collected.clients_out_of_budget,
            payload_bytes_up=collected.payload_bytes_up,
            total_bytes_up=collected.total_bytes_up,
            payload_bytes_down=payload_down,
            total_bytes_down=collected.total_bytes_down
            if collected.total_bytes_down is not None
            else total_down,
            clients_unreachable=collected.clients_unreachable,
            replies_dropped=collected.replies_dropped,
            unanswered=collected.unanswered,
            sites=collected.sites,
        )
        return Progress(rounds_done=number, model=model, algorithm_state=state), record
