"""Rounds in one process: training is vectorised, each message really charged, sealed, opened."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sottovoce.adjacency import Adjacency
from sottovoce.algorithms.algorithm import Algorithm
from sottovoce.channels.channel import Channel
from sottovoce.domains import Vector
from sottovoce.learning.task import ClientData, Task
from sottovoce.ledger.ledger import Ledger
from sottovoce.randomness import Randomness, SeededRandomness
from sottovoce.rounds.charging import able_to_pay, charge_round
from sottovoce.rounds.client import Refused, Request, privatise
from sottovoce.rounds.plan import ClientPlan, RoundPlan
from sottovoce.rounds.server import RoundServer
from sottovoce.rounds.shuffler import ShuffledRound, open_round
from sottovoce.simulation.cohorts import ClientSampling, draw
from sottovoce.simulation.progress import Progress
from sottovoce.transforms.rotation import Rotation
from sottovoce.wire.message import HEADER_BYTES

# Coordinates of updates held in memory at once; their messages share a commit of the ledger.
_COORDINATES_TOGETHER = 1 << 25


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """What a round sent, in clients and in bytes (payload: codes alone; total: with headers).

    Clients out of budget were drawn, but neither asked nor charged.
    """

    round: int
    clients_asked: int
    clients_received: int
    clients_out_of_budget: int
    payload_bytes_up: int
    total_bytes_up: int
    payload_bytes_down: int
    total_bytes_down: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Halted:
    """Too few clients can go on; why, in a sentence."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A federated run on one machine: public plan, clients' data, and where randomness comes from.

    `schedule` draws cohorts and is always seeded; `randomness` feeds the mechanisms and the
    shuffler. Where updates are `rotated`, each round has its own rotation. It halts where fewer
    than `minimum_clients` of all clients have budget left for a round.
    """

    run: str
    task: Task
    clients: tuple[ClientData, ...]
    parts: tuple[ClientPlan, ...]
    algorithm: Algorithm
    adjacency: Adjacency
    sampling: ClientSampling
    schedule: SeededRandomness
    randomness: Randomness
    ledger: Ledger
    rotated: bool
    channel: Channel
    minimum_clients: int = 1

    def start(self) -> Progress:
        model = self.task.initial_model()
        state = self.algorithm.initialise(model)
        return Progress(rounds_done=0, model=model, algorithm_state=state)

    def able(self, number: int) -> frozenset[str]:
        """Clients, drawn or not, whose budgets hold round `number`, as they stood before it."""
        everyone = self._plan(number, range(len(self.clients)))
        return able_to_pay(everyone, self.ledger, uplinks=self.algorithm.uplinks)

    def step(self, progress: Progress) -> tuple[Progress, RoundRecord] | Halted:
        """One round, charged as a whole before anything of it is encoded."""
        number = progress.rounds_done + 1  # rounds are counted from 1
        able = self.able(number)
        if len(able) < self.minimum_clients:
            return Halted(
                reason=f"before round {number} only {len(able)} of {len(self.clients)} clients "
                f"had budget left for it, fewer than {self.minimum_clients}"
            )
        drawn = draw(self.sampling, len(self.clients), self.schedule.generator("cohort", number))
        cohort = [i for i in drawn if self.parts[i].client in able]
        short = len(drawn) - len(cohort)
        if not self.channel.serves(len(cohort)):
            cohort = []  # nothing could be released, so nobody is asked, and nobody charged
        plan = self._plan(number, cohort)
        # Others may have charged the same clients meanwhile: the charge has the last word.
        unpaid = {
            refused.part.client
            for refused in charge_round(
                plan, self.ledger, self.randomness, uplinks=self.algorithm.uplinks
            )
        }
        asked = [self.clients[i] for i in cohort if self.parts[i].client not in unpaid]
        servers, refused = self._collect(plan, asked, progress.model)
        results = [server.result() for server in servers]
        combined = [mean for mean in results if mean is not None]
        model, state = progress.model, progress.algorithm_state
        if combined and len(combined) == len(results):  # else the model stays as it is
            model, state = self.algorithm.server_step(model, combined, state)
        payload_down = 4 * self.task.dimension * len(asked)
        record = RoundRecord(
            round=number,
            clients_asked=len(asked),
            clients_received=servers[0].received if servers else 0,
            clients_out_of_budget=short + len(unpaid) + refused,
            payload_bytes_up=sum(server.payload_bytes for server in servers),
            total_bytes_up=sum(server.total_bytes for server in servers),
            payload_bytes_down=payload_down,
            total_bytes_down=payload_down + HEADER_BYTES * len(asked),
        )
        return Progress(rounds_done=number, model=model, algorithm_state=state), record

    def _plan(self, number: int, cohort: Sequence[int]) -> RoundPlan:
        rotation = None
        if self.rotated:
            rotation = Rotation.of_round(self.run, number, self.task.dimension)
        return RoundPlan(
            run=self.run,
            round=number,
            unit=self.algorithm.unit,
            adjacency=self.adjacency,
            clients=tuple(self.parts[i] for i in cohort),
            rotation=rotation,
            channel=self.channel,
        )

    def _collect(
        self, plan: RoundPlan, clients: Sequence[ClientData], model: Vector
    ) -> tuple[list[RoundServer | ShuffledRound], int]:
        """Train, privatise and accumulate, a few clients at a time; servers, one per uplink."""
        servers: list[RoundServer | ShuffledRound] = []
        refused: set[str] = set()
        parts = {part.client: part for part in plan.clients}
        together = max(1, _COORDINATES_TOGETHER // self.task.dimension)
        for group in _batched(clients, together):
            requests = [
                Request(part=parts[client.name], uplink=uplink, values=values)
                for client, uplinks in self.algorithm.client_steps(self.task, model, group)
                for uplink, values in enumerate(uplinks)
            ]
            for outcome in privatise(plan, requests, self.ledger, self.randomness):
                if isinstance(outcome, Refused):
                    refused.add(outcome.part.client)
                    continue
                while len(servers) <= outcome.uplink:
                    servers.append(
                        open_round(
                            plan,
                            self.randomness,
                            dimension=self.task.dimension,
                            uplink=len(servers),
                        )
                    )
                servers[outcome.uplink].receive(outcome.part.client, outcome.message)
        return servers, len(refused)


def _batched(items: Sequence[ClientData], size: int) -> Iterator[list[ClientData]]:
    iterator = iter(items)
    while group := list(itertools.islice(iterator, size)):
        yield group
