"""Every message really charged, sealed, stored and opened, through the code that a client runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sottovoce.adjacency import Adjacency
from sottovoce.algorithms.algorithm import Algorithm, Combined, Each, Step
from sottovoce.channels.channel import MessageChannel
from sottovoce.learning.clients import ClientData
from sottovoce.learning.rows import Rows
from sottovoce.learning.task import Task
from sottovoce.ledger.ledger import Ledger
from sottovoce.randomness import Randomness
from sottovoce.rounds.broadcast import Start
from sottovoce.rounds.charging import able_to_pay, charge_round
from sottovoce.rounds.client import Refused, Request, privatise
from sottovoce.rounds.plan import ClientPlan, RoundPlan
from sottovoce.rounds.server import RoundServer
from sottovoce.rounds.shuffler import ShuffledRound, open_round
from sottovoce.simulation.backend import COORDINATES_TOGETHER, Collected, Mask
from sottovoce.transforms.rotation import Rotation

Server = RoundServer | ShuffledRound


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessages:
    """A ledger on disk: charges are durable before a code is drawn, messages before they leave.

    `randomness` feeds the mechanisms, the shuffler and samples of records. Where updates are
    `rotated`, each round has its own rotation.
    """

    run: str
    task: Task
    clients: Sequence[ClientData]
    parts: tuple[ClientPlan, ...]
    algorithm: Algorithm
    adjacency: Adjacency
    randomness: Randomness
    ledger: Ledger
    rotated: bool
    channel: MessageChannel

    def able(self, number: int) -> Mask:
        everyone = self._plan(number, range(len(self.clients)))
        able = able_to_pay(everyone, self.ledger, uplinks=self.algorithm.uplinks)
        return np.array([part.client in able for part in self.parts])

    def replay(self, number: int, cohort: Sequence[int]) -> None:
        """The ledger remembers."""

    def collect(self, number: int, cohort: Sequence[int], start: Start) -> Collected:
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
        asked = [i for i in cohort if self.parts[i].client not in unpaid]
        servers, refused = self._serve(plan, asked, start)
        return Collected(
            combined=_combined(servers),
            clients_asked=len(asked),
            clients_received=servers[0].received if servers else 0,
            clients_out_of_budget=len(unpaid) + refused,
            payload_bytes_up=sum(server.payload_bytes for server in servers),
            total_bytes_up=sum(server.total_bytes for server in servers),
        )

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
            record_sampling_rate=self.algorithm.record_sampling_rate,
        )

    def _serve(
        self, plan: RoundPlan, asked: Sequence[int], start: Start
    ) -> tuple[list[Server], int]:
        """Train, privatise and accumulate, a few clients at a time; servers, one per uplink."""
        servers: list[Server] = []
        refused: set[str] = set()
        together = max(1, COORDINATES_TOGETHER // self.task.dimension)
        for first in range(0, len(asked), together):
            requests = self._requests(plan, asked[first : first + together], start)
            for outcome in privatise(plan, requests, self.ledger, self.randomness):
                if isinstance(outcome, Refused):
                    refused.add(outcome.part.client)
                    continue
                while len(servers) <= outcome.uplink:
                    servers.append(self._open(plan, len(servers)))
                servers[outcome.uplink].receive(outcome.part.client, outcome.message)
        return servers, len(refused)

    def _open(self, plan: RoundPlan, uplink: int) -> Server:
        return open_round(
            plan,
            self.randomness,
            dimension=self.task.dimension,
            uplink=uplink,
            keeps_each=self.algorithm.gathers,
        )

    def _requests(self, plan: RoundPlan, group: Sequence[int], start: Start) -> list[Request]:
        step = Step(
            run=self.run,
            round=plan.round,
            model=start.model,
            state=start.state,
            randomness=self.randomness,
        )
        clients = [self.clients[i] for i in group]
        return [
            Request(part=self.parts[group[block.start + i]], uplink=uplink, values=values)
            for block in self.algorithm.client_steps(self.task, clients, step)
            for uplink, rows in enumerate(block.uplinks)
            for i, values in enumerate(finite_rows(rows))
        ]


def finite_rows(rows: Rows) -> list[np.ndarray]:
    """The rows in float64; a diverged client's is zero: an error would tell about its data."""
    found = []
    for block in rows.blocks(len(rows)):
        values = block.to("cpu", torch.float64).numpy()
        bad = ~np.isfinite(values).all(axis=1)
        if bad.any():
            values = np.where(bad[:, None], 0.0, values)
        found += list(values)
    return found


def _combined(servers: Sequence[Server]) -> tuple[Combined, ...]:
    """What each uplink came to; nothing if one of them was not released."""
    means = [server.result() for server in servers]
    found = []
    for server, mean in zip(servers, means, strict=True):
        if mean is None:
            return ()
        kept = server.each() if isinstance(server, RoundServer) else None
        each = None
        if kept is not None:
            each = Each(
                clients=tuple(part.client for part, _ in kept),
                rows=np.stack([vector for _, vector in kept]),
                weights=np.array([part.weight for part, _ in kept]),
            )
        found.append(Combined(mean=mean, each=each))
    return tuple(found)
