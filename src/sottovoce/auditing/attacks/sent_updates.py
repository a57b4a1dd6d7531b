"""The updates of single clients as the server decodes them, computed by the code of real rounds.

    client_steps -> project -> rotate -> charge -> encode -> seal -> open -> decode -> rotate back

An attacker at the server has exactly this, for every mechanism: float32 values with noise, levels,
or one bit per coordinate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Domain, Vector
from sottovoce.federated.algorithms.algorithm import Algorithm, ClientStepInput, seeded_steps
from sottovoce.learning.clients import ClientData
from sottovoce.learning.task import Task
from sottovoce.ledger.ledger import temporary_ledger
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.protocol.client import PrivatizationRequest, Refused, privatize
from sottovoce.protocol.plan import ClientPlan, RoundPlan
from sottovoce.protocol.server import RoundServer

# Builds the mechanism for a domain; the domain of a client depends on its number of records.
MechanismOn = Callable[[Domain], Mechanism]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """How the clients of a run send an update.

    Attributes:
        algorithm: The federated algorithm.
        mechanism_on: Builds the mechanism for a client's domain.
        adjacency: The adjacency of the run.
        rotated: Whether updates are rotated first, as in the resolved spec of the run.
    """

    algorithm: Algorithm
    mechanism_on: MechanismOn
    adjacency: Adjacency
    rotated: bool


def true_updates(
    sender: Sender, task: Task, clients: Sequence[ClientData], step: ClientStepInput
) -> list[Vector]:
    """Return each client's update as its algorithm computes it, in the order of `clients`.

    It is not yet projected onto the mechanism's domain or privatized; a real client never sends it.
    """
    rows: list[Vector] = []
    for block in seeded_steps(sender.algorithm, task, clients, step):
        for part in block.uplinks[0].blocks(64):
            rows.extend(part.to("cpu", torch.float64).numpy())
    return rows


def decoded_updates(
    sender: Sender, task: Task, clients: Sequence[ClientData], step: ClientStepInput
) -> Vector:
    """Return what the server decodes from each client's message: one row per client, in order.

    The charges go to a temporary ledger: this simulates an attack on data at hand and releases
    nothing.
    """
    parts = tuple(_part(sender, task.dimension, client) for client in clients)
    rotation = None
    if sender.rotated:
        rotation = Rotation.of_round(step.run, step.round, task.dimension)
    plan = RoundPlan(
        run=step.run,
        round=step.round,
        unit=sender.algorithm.unit,
        adjacency=sender.adjacency,
        clients=parts,
        rotation=rotation,
    )
    requests = [
        PrivatizationRequest(part=part, uplink=0, values=values)
        for part, values in zip(parts, true_updates(sender, task, clients, step), strict=True)
    ]
    server = RoundServer(plan, dimension=task.dimension, keeps_each=True)
    with temporary_ledger() as ledger:
        for outcome in privatize(plan, requests, ledger, step.randomness):
            assert not isinstance(outcome, Refused), (
                "a new ledger has no budgets that could refuse a charge"
            )
            server.receive(outcome.part.client, outcome.message)
    each = server.each()
    assert each is not None, "the server was told to keep each update"
    return np.stack([vector for _, vector in each])


def _part(sender: Sender, dimension: int, client: ClientData) -> ClientPlan:
    domain = sender.algorithm.domain(dimension, client.num_samples)
    mechanism = sender.mechanism_on(domain)
    weight = sender.algorithm.weight(client.num_samples)
    return ClientPlan(client=client.name, mechanism=mechanism, weight=weight)
