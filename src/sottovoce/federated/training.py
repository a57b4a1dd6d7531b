"""The training loop: it draws a cohort, has it charged and collected, and updates the model.

The module also defines `RoundBackend`, the interface through which the loop reaches clients,
`RoundRecord`, the record of a round, and `Progress`, the content of a checkpoint.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.errors import PluginError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.core.stages import stage
from sottovoce.federated.algorithms.algorithm import (
    AggregatedUplink,
    Algorithm,
    State,
    shared_numbers_of,
)
from sottovoce.federated.cohorts import ClientSampling, Positions, draw_positions
from sottovoce.learning.clients import ClientData, names_of
from sottovoce.learning.task import Task
from sottovoce.ledger.records import SpendingRecord
from sottovoce.protocol.broadcast import (
    DownlinkFormat,
    Start,
    as_received,
    pack_start,
    payload_bytes,
)
from sottovoce.protocol.message import HEADER_BYTES

Mask = NDArray[np.bool_]
Cohort = Sequence[int] | Positions

# The most coordinates of updates that are held in memory at once.
MAX_COORDINATES_IN_MEMORY = 1 << 25


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteReply:
    """The outcome of asking one site in a round.

    Attributes:
        outcome: "counted" if the reply entered the sum, "refused" if the site declined, "dropped"
            if the reply was not what the plan announced, "silent" if none came in time.
        rounds_charged: Number of rounds of this run that the site's own ledger has charged, as the
            site reports it; None where it reports nothing.
    """

    outcome: Literal["counted", "refused", "dropped", "silent"]
    rounds_charged: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedRound:
    """The result of collecting one round.

    Attributes:
        combined: One aggregate per uplink; empty if nothing was released.
        clients_asked: Number of clients that were charged and asked.
        clients_received: Number of clients whose messages were decoded.
        clients_out_of_budget: Number of clients of the cohort whose charge was refused.
        payload_bytes_up: Bytes of the codes that clients sent.
        total_bytes_up: The same with headers and, over a network, transport records.
        total_bytes_down: Bytes that were sent to clients; None where messages do not travel.
        clients_unreachable: Number of clients of the cohort that were not connected.
        replies_dropped: Number of replies that came in time but were not what the plan announced.
        unanswered: For each client that was asked and does not count, the reason, by client name.
        sites: The outcome of each remote site, by name.
    """

    combined: tuple[AggregatedUplink, ...]
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


class RoundBackend(Protocol):
    """The interface that charges clients and then collects what they send."""

    @property
    def record(self) -> SpendingRecord:
        """The record of what the clients have been charged."""
        ...

    def clients_with_budget(self, number: int) -> Mask:
        """Return which clients have enough budget for a round, whether drawn for it or not.

        Args:
            number: The round, counted from 1.

        Returns:
            One boolean per client of the run, in their order: whether the client's budget, as it
            stood before the round, covers the round.
        """
        ...

    def replay(self, number: int, drawn: Cohort) -> None:
        """Count again the charges of a round that was run before the last checkpoint.

        This restores charges that were counted in memory only; no client is asked, and a backend
        with a ledger on disk does nothing.

        Args:
            number: The round, counted from 1.
            drawn: Positions of the clients that were drawn; those with enough budget were asked.
        """
        ...

    def collect(self, number: int, cohort: Cohort, start: Start) -> CollectedRound:
        """Run one round with these clients.

        All charges of the round are made before any of its messages is drawn or encoded.

        Args:
            number: The round, counted from 1.
            cohort: Positions of the clients to ask.
            start: The model and the shared state as clients receive them.

        Returns:
            What the round released and how many clients and bytes took part.
        """
        ...


def pack_shared(algorithm: Algorithm, start: Start, downlink: DownlinkFormat) -> tuple[bytes, ...]:
    """Return the packed vectors that an algorithm's clients receive in a round.

    Args:
        algorithm: The algorithm.
        start: The model and the shared state as clients receive them.
        downlink: The number format of the model and of state of its size.

    Returns:
        One payload for each vector.

    Raises:
        WireError: A number is not finite or does not fit the format.
    """
    return pack_start(start, algorithm.shared_state, downlink, shared_numbers_of(algorithm))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Everything that changes from round to round: the content of a checkpoint.

    Attributes:
        rounds_done: Number of completed rounds.
        model: The server's flat model vector, in float64.
        algorithm_state: The algorithm's arrays by name, such as a momentum buffer.
    """

    rounds_done: int
    model: Vector
    algorithm_state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """The clients that took part in a round and the bytes that it sent.

    Clients that are out of budget or unreachable were drawn, but neither asked nor charged.

    Attributes:
        round: The round, counted from 1.
        clients_asked: Number of clients that were charged and asked.
        clients_received: Number of clients whose messages were decoded.
        clients_out_of_budget: Number of clients that were drawn and could not pay for the round.
        payload_bytes_up: Bytes of the codes that clients sent.
        total_bytes_up: The same with headers and, over a network, transport records.
        payload_bytes_down: Bytes of the vectors that clients were sent.
        total_bytes_down: The same with headers and, over a network, transport records.
        clients_unreachable: Number of clients that were drawn and not connected.
        replies_dropped: Number of replies that came in time but were not what the plan announced.
        unanswered: For each client that was asked and does not count, the reason, by client name.
        sites: The outcome of each remote site, by name.
        update_norm: The norm of the decoded mean update, which the server sees; None if the round
            released nothing.
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
    unanswered: Mapping[str, str] = field(default_factory=dict)
    sites: Mapping[str, SiteReply] = field(default_factory=dict)
    update_norm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Halted:
    """The result of a step that was not made because too few clients have budget left.

    Attributes:
        reason: A sentence that names the round and the numbers of clients.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A federated training run over any backend.

    Attributes:
        run: Name of the run, which labels its charges and random streams.
        task: The model and its loss.
        clients: The clients' data; remote clients have names and sizes only.
        algorithm: What clients compute and what the server does with the mean.
        sampling: How the cohort of a round is drawn.
        schedule: Seeded randomness for cohorts; the noise comes from the backend's own randomness.
        backend: Charges clients and collects their messages.
        downlink: Number format in which clients receive the model.
        minimum_clients: The run halts when fewer clients than this have budget for a round.
    """

    run: str
    task: Task
    clients: Sequence[ClientData]
    algorithm: Algorithm
    sampling: ClientSampling
    schedule: SeededRandomness
    backend: RoundBackend
    downlink: DownlinkFormat
    minimum_clients: int = 1

    @property
    def record(self) -> SpendingRecord:
        """The record of what the clients have been charged."""
        return self.backend.record

    def start(self) -> Progress:
        """Return the progress before the first round.

        Returns:
            The task's initial model and the algorithm's initial state, with no rounds done.
        """
        model = self.task.initial_model()
        state = self.algorithm.initialize(model)
        return Progress(rounds_done=0, model=model, algorithm_state=state)

    def broadcast(self, progress: Progress) -> Start:
        """Return the model and the state as clients receive them.

        Args:
            progress: The server's progress.

        Returns:
            The model and the shared state, rounded to the downlink format, once for all clients,
            and the rest of the state unchanged.

        Raises:
            WireError: If a number is not finite or does not fit the downlink format.
        """
        state, shared = progress.algorithm_state, self.algorithm.shared_state
        model = as_received(progress.model, self.downlink)
        read = {name: as_received(state[name], self.downlink).astype(float) for name in shared}
        for name in shared_numbers_of(self.algorithm):
            read[name] = as_received(state[name], "float32").astype(float)
        # The rest of the state stays with the server, or is what simulated clients keep locally.
        return Start(model=model, state={**state, **read})

    def clients_with_budget(self, number: int) -> frozenset[str]:
        """Return the clients with enough budget for a round, whether or not they are drawn for it.

        Args:
            number: The round, counted from 1.

        Returns:
            Names of clients, from the budgets as they stood before the round.
        """
        able = self.backend.clients_with_budget(number)
        names = names_of(self.clients)
        return frozenset(name for name, can in zip(names, able, strict=True) if can)

    def replay(self, progress: Progress) -> None:
        """Count the charges of the rounds before a checkpoint, where no ledger on disk holds them.

        Args:
            progress: The checkpoint.
        """
        for number in range(1, progress.rounds_done + 1):
            self.backend.replay(number, self._draw(number))

    def _draw(self, number: int) -> Positions:
        """Return the clients that are drawn for a round, whether or not they can pay for it."""
        return draw_positions(self.sampling, len(self.clients), self.schedule, number)

    def cohort(self, number: int) -> tuple[Positions, Positions] | Halted:
        """Return the clients that are drawn for a round and those of them that can pay for it.

        Args:
            number: The round, counted from 1.

        Returns:
            The positions of all clients that are drawn, and of those among them that can pay; or
            `Halted` if fewer than `minimum_clients` of all clients can pay.
        """
        able = self.backend.clients_with_budget(number)
        count = np.count_nonzero(able)
        if count < self.minimum_clients:
            return Halted(
                reason=f"before round {number} only {count} of {len(self.clients)} clients "
                f"had budget left for it, fewer than {self.minimum_clients}"
            )
        drawn = self._draw(number)
        return drawn, drawn if count == len(able) else drawn[able[drawn]]

    def bytes_down(self, clients: int) -> tuple[int, int]:
        """Return the bytes that clients are sent in a round.

        Args:
            clients: Number of clients that are asked.

        Returns:
            The bytes of the vectors alone, and the bytes with message headers.
        """
        vectors, numbers = 1 + len(self.algorithm.shared_state), shared_numbers_of(self.algorithm)
        payload = payload_bytes(self.task.dimension, self.downlink) * vectors
        if numbers:
            payload += payload_bytes(len(numbers), "float32")
        headers = HEADER_BYTES * (vectors + bool(numbers))
        return payload * clients, (payload + headers) * clients

    def step(self, progress: Progress) -> tuple[Progress, RoundRecord] | Halted:
        """Run one round; all its charges are made before any of its messages is encoded.

        Args:
            progress: The progress before the round.

        Returns:
            The progress after the round and its record, or `Halted` if too few clients can pay. If
            the round released nothing, it is counted as done and the model does not change.

        Raises:
            PluginError: If the algorithm returns a model of another shape.
            WireError: If the model does not fit the downlink format; no client is charged then.
        """
        number = progress.rounds_done + 1
        found = self.cohort(number)
        if isinstance(found, Halted):
            return found
        drawn, cohort = found
        # Before the charge: a model that does not fit the format is an error and costs no budget.
        with stage("broadcast"):
            start = self.broadcast(progress)
        collected = self.backend.collect(number, cohort, start)
        del start  # The step needs the memory of a large model.
        model, state, norm = progress.model, progress.algorithm_state, None
        if collected.combined:
            norm = float(np.linalg.norm(collected.combined[0].mean))
            with stage("step"):
                model, state = self.algorithm.server_step(model, collected.combined, state)
            if model.shape != progress.model.shape:
                raise PluginError(
                    f"server_step() of {type(self.algorithm).__name__} returned a model of shape "
                    f"{model.shape}, but must return one of shape {progress.model.shape}; correct "
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
            update_norm=norm,
        )
        return Progress(rounds_done=number, model=model, algorithm_state=state), record
