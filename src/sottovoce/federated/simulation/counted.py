"""The base of the simulation backends that count charges in memory.

packed   real codes are drawn from each client's keystream, packed and unpacked: the bits that a
         client would send, without headers and without a ledger on disk.
drawn    decoded values are drawn from the same laws with torch's generator, on any device, and no
         codes are made. For sweeps.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import ROUNDING_HEADROOM, L2Ball, Vector
from sottovoce.core.randomness import SeededRandomness
from sottovoce.core.stages import stage, staged
from sottovoce.federated.algorithms.algorithm import (
    AggregatedUplink,
    Algorithm,
    ClientStepInput,
    ClientVectors,
    seeded_steps,
)
from sottovoce.federated.simulation.roster import Positions, SimulatedRoster, as_positions
from sottovoce.federated.training import MAX_COORDINATES_IN_MEMORY, Cohort, CollectedRound, Mask
from sottovoce.learning.clients import Clients, Rows, clipping_factors, count_clipped
from sottovoce.learning.task import Task
from sottovoce.ledger.tally import Tally
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.protocol.broadcast import Start
from sottovoce.protocol.channels.channel import Channel
from sottovoce.protocol.message import HEADER_BYTES
from sottovoce.protocol.plan import ClientPlan, message_dimension

# How many times as many coordinates a GPU holds at once as a CPU.
_GPU_FACTOR = 16


@dataclass
class UplinkAccumulator:
    """The accumulator of one uplink: the weighted sum and, where they are needed, all vectors."""

    total: Tensor
    weight: float = 0.0
    clients: list[str] = field(default_factory=list)
    rows: list[Vector] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def combined(self) -> AggregatedUplink:
        """Return the weighted mean and, if they were kept, all vectors; `weight` must not be 0."""
        mean = (self.total.to(torch.float64) / self.weight).cpu().numpy()
        if not self.rows:
            return AggregatedUplink(mean=mean)
        each = ClientVectors(
            clients=tuple(self.clients), rows=np.stack(self.rows), weights=np.array(self.weights)
        )
        return AggregatedUplink(mean=mean, each=each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """Rows of some clients that share a mechanism, clipped to its domain."""

    mechanism: Mechanism
    clients: Sequence[ClientPlan]
    weights: Tensor
    rows: Rows

    @property
    def weight(self) -> float:
        """The sum of the clients' weights."""
        return sum(part.weight for part in self.clients)


class InMemoryBackend(ABC):
    """A backend that trains blocks of clients and counts their charges in memory, not on disk."""

    def __init__(
        self,
        *,
        run: str,
        task: Task,
        clients: Clients,
        parts: Sequence[ClientPlan],
        algorithm: Algorithm,
        randomness: SeededRandomness,
        tally: Tally,
        rotated: bool,
        channel: Channel,
    ) -> None:
        self.run, self.task, self.clients, self.parts = run, task, clients, parts
        self.algorithm, self.randomness, self.tally = algorithm, randomness, tally
        self.rotated, self.channel = rotated, channel
        self.roster = SimulatedRoster(parts)
        self.dimension = message_dimension(parts)

    @property
    def record(self) -> Tally:
        return self.tally

    def clients_with_budget(self, number: int) -> Mask:
        return self.tally.clients_with_budget(number)

    def replay(self, number: int, drawn: Cohort) -> None:
        able, clients = self.clients_with_budget(number), as_positions(drawn)
        self.tally.charge(number, self._served(clients[able[clients]]))

    def collect(self, number: int, cohort: Cohort, start: Start) -> CollectedRound:
        cohort = self._served(as_positions(cohort))
        with stage("charge"):
            self.tally.charge(number, cohort)
        bytes_up = self._payload_bytes(cohort) * self.algorithm.uplinks
        return CollectedRound(
            combined=self.combine(number, cohort, start) if len(cohort) else (),
            clients_asked=len(cohort),
            clients_received=len(cohort),
            clients_out_of_budget=0,
            payload_bytes_up=bytes_up,
            total_bytes_up=bytes_up + HEADER_BYTES * len(cohort) * self.algorithm.uplinks,
        )

    def _served(self, cohort: Positions) -> Positions:
        """Return the clients to charge and ask: none if the channel could release nothing."""
        return cohort if self.channel.serves(len(cohort)) else cohort[:0]

    def rotation(self, number: int) -> Rotation | None:
        """Return the rotation of a round; None if updates are not rotated."""
        if not self.rotated:
            return None
        return Rotation.of_round(self.run, number, self.dimension)

    @abstractmethod
    def combine(self, number: int, cohort: Positions, start: Start) -> tuple[AggregatedUplink, ...]:
        """Train a cohort of at least one client, privatize, and return what the server decodes."""

    @property
    def _device(self) -> torch.device:
        return self.task.device

    def _payload_bytes(self, clients: Positions) -> int:
        """Return the bytes of one vector's codes, summed over the clients."""
        return self.roster.payload_bytes(clients)

    def _blocks(
        self, number: int, cohort: Positions, start: Start
    ) -> Iterator[tuple[int, Positions, Rows]]:
        """Yield (uplink index, clients, their updates), a few consecutive clients at a time."""
        step = ClientStepInput(
            run=self.run,
            round=number,
            model=start.model,
            state=start.state,
            randomness=self.randomness,
        )
        capacity = MAX_COORDINATES_IN_MEMORY * (_GPU_FACTOR if self._device.type == "cuda" else 1)
        together = max(1, capacity // self.dimension)
        for first in range(0, len(cohort), together):
            group = cohort[first : first + together]
            own = replace(step, mechanism_of=self._mechanisms_of(group))
            steps = seeded_steps(self.algorithm, self.task, self.clients.take(group), own)
            for block in staged("train", steps):
                for uplink, rows in enumerate(block.uplinks):
                    yield uplink, group[block.start : block.start + len(rows)], rows
                del block, rows  # Large models are not kept while the next ones train.

    def _mechanisms_of(self, group: Positions) -> Callable[[int], Mechanism]:
        return lambda i: self.parts[int(group[i])].mechanism


class PortionedBackend(InMemoryBackend):
    """A backend that adds clipped rows to a sum as tensors, without codes."""

    def combine(self, number: int, cohort: Positions, start: Start) -> tuple[AggregatedUplink, ...]:
        gathered = [
            UplinkAccumulator(torch.zeros(self.dimension, dtype=torch.float64, device=self._device))
            for _ in range(self.algorithm.uplinks)
        ]
        self.begin(number)
        for uplink, portion in self._portions(number, cohort, start):
            self.add(gathered[uplink], portion, number, uplink)
        return tuple(one.combined() for one in gathered)

    @abstractmethod
    def begin(self, number: int) -> None:
        """Prepare the rotation or the generator of round `number`, before its first `add`."""

    @abstractmethod
    def add(self, gathering: UplinkAccumulator, portion: Portion, number: int, uplink: int) -> None:
        """Privatize the rows of a portion, and add what the server decodes to `gathering`."""

    def _portions(
        self, number: int, cohort: Positions, start: Start
    ) -> Iterator[tuple[int, Portion]]:
        """Yield (uplink index, portion) for the cohort, a few clients at a time."""
        for uplink, members, rows in self._blocks(number, cohort, start):
            for portion in self._by_mechanism(members, rows):
                yield uplink, portion

    def _by_mechanism(self, members: Positions, rows: Rows) -> Iterator[Portion]:
        for mechanism, positions in self.roster.groups(members):
            own = rows
            if len(positions) < len(members):
                own = rows.select(torch.from_numpy(positions).to(self._device))
            domain = mechanism.input_domain
            if isinstance(domain, L2Ball):
                own, factors = clipping_factors(own, domain.radius * (1.0 - ROUNDING_HEADROOM))
                if self.algorithm.unit is Unit.CLIENT:
                    count_clipped(factors)
                own = own.scaled(factors)
            chosen = [self.parts[i] for i in members[positions].tolist()]
            weights = _tensor([part.weight for part in chosen], self._device)
            yield Portion(mechanism=mechanism, clients=chosen, weights=weights, rows=own)


def _tensor(weights: list[float], device: torch.device) -> Tensor:
    """Return the weights on the device; equal weights are created there."""
    if len(set(weights)) == 1:
        return torch.full((len(weights),), weights[0], device=device)
    return torch.tensor(weights, device=device)
