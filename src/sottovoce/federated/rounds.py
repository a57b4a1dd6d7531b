"""Backends that charge every message in a ledger on disk and decode it with the server's own code.

`ChargedRounds` charges the cohort before any client is asked. `StoredMessages` simulates the
clients in this process with the code that remote clients run. Every vector that leaves a client
is finite: an update that diverged is replaced by zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.randomness import Randomness
from sottovoce.core.stages import stage, staged
from sottovoce.federated.algorithms.algorithm import (
    AggregatedUplink,
    Algorithm,
    ClientStepInput,
    ClientVectors,
    seeded_steps,
)
from sottovoce.federated.training import (
    MAX_COORDINATES_IN_MEMORY,
    Cohort,
    CollectedRound,
    Mask,
    SiteReply,
)
from sottovoce.learning.clients import ClientData, Clients, Rows, factored
from sottovoce.learning.task import Task
from sottovoce.ledger.ledger import Ledger
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.protocol.broadcast import Start
from sottovoce.protocol.channels.channel import Channel
from sottovoce.protocol.charging import charge_round, clients_within_budget
from sottovoce.protocol.client import PrivatizationRequest, Refused, SharedRow, privatize
from sottovoce.protocol.plan import ClientPlan, RoundPlan
from sottovoce.protocol.server import (
    AnonymousServer,
    RoundServer,
    ShuffledRound,
    SummedUplink,
    open_round,
)


def compute_finite_uplinks(
    algorithm: Algorithm, task: Task, clients: Sequence[ClientData], step: ClientStepInput
) -> list[tuple[int, int, np.ndarray]]:
    """Compute what clients will privatize and send, as (client index, uplink index, values).

    The client index is the place in `clients`. The values are neither projected onto the domain nor
    noisy yet; a vector that is not finite is replaced by zero.
    """
    return [
        (block.start + i, uplink, values)
        for block in staged("train", seeded_steps(algorithm, task, clients, step))
        for uplink, rows in enumerate(block.uplinks)
        for i, values in enumerate(zero_nonfinite_rows(rows))
    ]


def zero_nonfinite_rows(rows: Rows) -> list[np.ndarray]:
    """Return the rows in float64, with zeros for each row that has an infinite or NaN entry.

    Raising an error for a client that diverged would reveal something about its data.
    """
    found = []
    for block in rows.blocks(len(rows)):
        values = block.to("cpu", torch.float64).numpy()
        bad = ~np.isfinite(values).all(axis=1)
        if bad.any():
            values = np.where(bad[:, None], 0.0, values)
        found += list(values)
    return found


Server = RoundServer | ShuffledRound


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRound:
    """The decoders of a round's messages, and what came of the clients that were asked.

    Attributes:
        servers: One object per uplink that decodes and adds up messages; none if no client was
            asked or every charge was refused.
        refused: Number of clients whose charge was refused when their message was encoded.
        enough: Whether enough replies arrived to change the model.
        total_bytes_up: Bytes that arrived with all transport records; None without a network.
        total_bytes_down: Bytes that were sent with all transport records; None without a network.
        replies_dropped: Number of replies that came in time but were not what the plan announced.
        unanswered: For each client whose reply does not count, the reason, by client name.
        sites: The outcome of each remote site, by name.
    """

    servers: Sequence[Server | SummedUplink | AnonymousServer]
    refused: int = 0
    enough: bool = True
    total_bytes_up: int | None = None
    total_bytes_down: int | None = None
    replies_dropped: int = 0
    unanswered: Mapping[str, str] = field(default_factory=dict)
    sites: Mapping[str, SiteReply] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargedRounds:
    """A backend with a ledger on disk: each client is charged, durably, before it is asked.

    Attributes:
        run: Name of the run in the ledger.
        dimension: Number of coordinates of a message.
        parts: The plan of each client: its name, mechanism and public weight.
        algorithm: What clients compute.
        adjacency: Which data sets count as neighbors.
        randomness: Source of the mechanisms' noise, the shuffler's order and samples of records.
        ledger: Where clients are charged.
        rotated: Whether each round rotates updates with its own random rotation.
        channel: How messages reach the server.
    """

    run: str
    dimension: int
    parts: tuple[ClientPlan, ...]
    algorithm: Algorithm
    adjacency: Adjacency
    randomness: Randomness
    ledger: Ledger
    rotated: bool
    channel: Channel

    @property
    def record(self) -> Ledger:
        return self.ledger

    def clients_with_budget(self, number: int) -> Mask:
        everyone = self._plan(number, range(len(self.parts)))
        able = clients_within_budget(everyone, self.ledger, uplinks=self.algorithm.uplinks)
        return np.array([part.client in able for part in self.parts])

    def replay(self, number: int, drawn: Cohort) -> None:
        """Do nothing: the ledger on disk already holds the charges of earlier rounds."""

    def collect(self, number: int, cohort: Cohort, start: Start) -> CollectedRound:
        reachable = self._reachable([int(i) for i in cohort])
        unreachable = len(cohort) - len(reachable)
        if not self.channel.serves(len(reachable)):
            # The channel could release nothing for so few clients: none is asked or charged.
            reachable = []
        plan = self._plan(number, reachable)
        # Another process may have charged the same clients since the budgets were read, so only
        # the charge itself decides who can pay.
        with stage("charge"):
            refusals = self._charge(plan)
        unpaid = {refused.part.client for refused in refusals}
        asked = [i for i in reachable if self.parts[i].client not in unpaid]
        served = self._serve(plan, asked, start)
        servers = served.servers
        total_up = sum(server.total_bytes for server in servers)
        return CollectedRound(
            combined=_combine(servers) if served.enough else (),
            # A client refused at encoding is out of budget and has released nothing.
            clients_asked=len(asked) - served.refused,
            clients_received=servers[0].received if servers else 0,
            clients_out_of_budget=len(unpaid) + served.refused,
            payload_bytes_up=sum(server.payload_bytes for server in servers),
            total_bytes_up=total_up if served.total_bytes_up is None else served.total_bytes_up,
            total_bytes_down=served.total_bytes_down,
            clients_unreachable=unreachable,
            replies_dropped=served.replies_dropped,
            unanswered=served.unanswered,
            sites=served.sites,
        )

    def _reachable(self, cohort: Sequence[int]) -> Sequence[int]:
        """Return the clients of a cohort that are connected."""
        return cohort

    def _charge(self, plan: RoundPlan) -> Sequence[Refused]:
        """Charge the clients of a round, and return the refusals."""
        return charge_round(plan, self.ledger, self.randomness, uplinks=self.algorithm.uplinks)

    def _serve(self, plan: RoundPlan, asked: Sequence[int], start: Start) -> ServedRound:
        """Let the charged clients train and privatize, and decode what they send."""
        raise NotImplementedError

    def _plan(self, number: int, cohort: Sequence[int]) -> RoundPlan:
        rotation = None
        if self.rotated:
            rotation = Rotation.of_round(self.run, number, self.dimension)
        return RoundPlan(
            run=self.run,
            round=number,
            unit=self.algorithm.unit,
            adjacency=self.adjacency,
            clients=tuple(self.parts[i] for i in cohort),
            rotation=rotation,
            channel=self.channel,
            record_sampling_rate=self.algorithm.record_sampling_rate,
        )

    def _open(self, plan: RoundPlan, uplink: int) -> Server:
        return open_round(
            plan,
            self.randomness,
            dimension=self.dimension,
            uplink=uplink,
            keeps_each=self.algorithm.gathers,
        )


def _combine(
    servers: Sequence[Server | SummedUplink | AnonymousServer],
) -> tuple[AggregatedUplink, ...]:
    """Return the aggregate of each uplink; an empty tuple if one of them was not released."""
    means = [server.result() for server in servers]
    found = []
    for server, mean in zip(servers, means, strict=True):
        if mean is None:
            return ()
        kept = server.each() if isinstance(server, RoundServer) else None
        each = None
        if kept is not None:
            each = ClientVectors(
                clients=tuple(part.client for part, _ in kept),
                rows=np.stack([vector for _, vector in kept]),
                weights=np.array([part.weight for part, _ in kept]),
            )
        found.append(AggregatedUplink(mean=mean, each=each))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessages(ChargedRounds):
    """A `ChargedRounds` backend that simulates all clients in this process.

    Charges are durable before a code is drawn, and messages are durable before they are decoded.
    `together` is the number of clients that train at once; None means as many as have 2^25 model
    parameters together, and at least one.
    """

    task: Task
    clients: Sequence[ClientData]
    together: int | None = None

    def _serve(self, plan: RoundPlan, asked: Sequence[int], start: Start) -> ServedRound:
        """Train, privatize and accumulate, `together` clients at a time."""
        servers: list[Server] = []
        refused: set[str] = set()
        together = self.together or max(1, MAX_COORDINATES_IN_MEMORY // self.dimension)
        for first in range(0, len(asked), together):
            group = asked[first : first + together]
            outcomes = privatize(  # No name keeps the updates while the next group trains.
                plan, self._requests(plan, group, start), self.ledger, self.randomness
            )
            for outcome in outcomes:
                if isinstance(outcome, Refused):
                    refused.add(outcome.part.client)
                    continue
                while len(servers) <= outcome.uplink:
                    servers.append(self._open(plan, len(servers)))
                with stage("sum"):
                    servers[outcome.uplink].receive(outcome.part.client, outcome.message)
        return ServedRound(servers=servers, refused=len(refused))

    def _requests(
        self, plan: RoundPlan, group: Sequence[int], start: Start
    ) -> list[PrivatizationRequest]:
        step = ClientStepInput(
            run=self.run,
            round=plan.round,
            model=start.model,
            state=start.state,
            randomness=self.randomness,
            mechanism_of=lambda i: self.parts[group[i]].mechanism,
        )
        clients = _take(self.clients, group)
        requests = []
        for block in staged("train", seeded_steps(self.algorithm, self.task, clients, step)):
            for uplink, rows in enumerate(block.uplinks):
                shared = factored(rows)
                requests += [
                    PrivatizationRequest(
                        part=self.parts[group[block.start + i]],
                        uplink=uplink,
                        values=SharedRow(shared, i),
                    )
                    for i in range(len(rows))
                ]
        return requests


def _take(clients: Sequence[ClientData], group: Sequence[int]) -> Sequence[ClientData]:
    """Return some of the clients, without reading each of them if they share their arrays."""
    return clients.take(group) if isinstance(clients, Clients) else [clients[i] for i in group]
