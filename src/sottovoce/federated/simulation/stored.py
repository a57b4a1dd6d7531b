"""Every message really charged, sealed, stored and opened, through the code that a client runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from sottovoce.federated.algorithms.algorithm import Step
from sottovoce.federated.rounds import ChargedRounds, Served, Server, finite_uplinks
from sottovoce.federated.training import COORDINATES_TOGETHER
from sottovoce.learning.clients import ClientData
from sottovoce.learning.task import Task
from sottovoce.protocol.client import Refused, Request, privatise
from sottovoce.protocol.plan import RoundPlan
from sottovoce.protocol.round_broadcast import Start


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessages(ChargedRounds):
    """All clients in this process: charges are durable before a code is drawn, and messages before
    they are opened.

    `together` is how many clients train at once; None is as many as memory allows.
    """

    task: Task
    clients: Sequence[ClientData]
    together: int | None = None

    def _serve(self, plan: RoundPlan, asked: Sequence[int], start: Start) -> Served:
        """Train, privatise and accumulate, a few clients at a time."""
        servers: list[Server] = []
        refused: set[str] = set()
        together = self.together or max(1, COORDINATES_TOGETHER // self.dimension)
        for first in range(0, len(asked), together):
            requests = self._requests(plan, asked[first : first + together], start)
            for outcome in privatise(plan, requests, self.ledger, self.randomness):
                if isinstance(outcome, Refused):
                    refused.add(outcome.part.client)
                    continue
                while len(servers) <= outcome.uplink:
                    servers.append(self._open(plan, len(servers)))
                servers[outcome.uplink].receive(outcome.part.client, outcome.message)
        return Served(servers=servers, refused=len(refused))

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
            Request(part=self.parts[group[place]], uplink=uplink, values=values)
            for place, uplink, values in finite_uplinks(self.algorithm, self.task, clients, step)
        ]
