"""Federated averaging, with two kinds of local work that fix what is protected.

SampleClippedGradient   sample level: one full-batch step whose per-sample gradients are clipped, so
                        that one sample moves the client's mean by at most C/n (zero-out).
LocalSgd                client level: several local steps; the whole update is clipped to C.

Reference: McMahan et al. 2017 (federated averaging); Abadi et al. 2016 (per-sample clipping).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from sottovoce import parameters
from sottovoce.adjacency import Unit
from sottovoce.algorithms.algorithm import State, Uplinks
from sottovoce.domains import ROUNDING_HEADROOM, L2Ball, Vector
from sottovoce.errors import ParameterError
from sottovoce.learning.task import ClientData, Task

# Clipped gradients are rounded to this fraction of the clip norm; MAX_RECORDS of them fit int64.
_GRID = 2.0**-40


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleClippedGradient:
    """The mean of per-sample gradients, each clipped to `clip_norm`; protects one sample.

    Clipped gradients are rounded to multiples of 2^-40 C and added up as integers: the sum is
    exact, so one sample moves it by its own contribution and nothing else, whatever the order. A
    gradient that is not finite counts as zero.
    """

    clip_norm: float
    unit: ClassVar[Unit] = Unit.SAMPLE

    def __post_init__(self) -> None:
        parameters.clip_norm("clip_norm", self.clip_norm)

    def records(self, client: ClientData) -> int:
        """Contributions in a client's mean: its samples, whose number is public."""
        return client.num_samples

    def updates(
        self, task: Task, model: Vector, clients: Sequence[ClientData]
    ) -> Iterator[tuple[ClientData, Vector]]:
        limit = self.clip_norm * (1.0 - ROUNDING_HEADROOM)
        grid = self.clip_norm * _GRID
        totals = torch.zeros(len(clients), task.dimension, dtype=torch.int64)
        for owners, gradients in task.sample_gradients(model, clients):
            steps = gradients.to(torch.float64)
            norms = torch.linalg.vector_norm(steps, dim=1, keepdim=True)
            # Float32 entries cannot overflow a float64 norm: it is finite if all of them are.
            bad = ~torch.isfinite(norms[:, 0])
            steps *= (limit / grid) / torch.clamp(norms, min=limit)
            steps[bad] = 0.0
            totals.index_add_(0, owners, steps.round_().to(torch.int64))
        for client, total in zip(clients, totals.numpy(), strict=True):
            yield client, total * (-grid / client.num_samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSgd:
    """The change of the model over `steps` full-batch steps; protects the whole client.

    `penalties` holds lambda_k for clients that are pulled back to where they started,

        w <- w - learning_rate (gradient + lambda_k (w - w_0)),

    w_0 being the model that the server released, as everything here that is not the client's own.
    A first step starts at w_0, so with `steps` = 1 no penalty has any effect.
    """

    clip_norm: float
    steps: int
    learning_rate: float
    penalties: Mapping[str, float] = field(default_factory=dict)
    unit: ClassVar[Unit] = Unit.CLIENT

    def __post_init__(self) -> None:
        parameters.clip_norm("clip_norm", self.clip_norm)
        parameters.integer("local_steps", self.steps, low=1, high=10**6)
        parameters.positive("local_learning_rate", self.learning_rate)
        for client, penalty in self.penalties.items():
            if not 0.0 <= parameters.finite("penalty", penalty) <= 1.0:
                raise ParameterError(
                    f"the penalty of client '{client}' must lie in [0, 1], got {penalty}"
                )

    def records(self, client: ClientData) -> int:
        """One, whatever the number of samples: that number is private here."""
        return 1

    def updates(
        self, task: Task, model: Vector, clients: Sequence[ClientData]
    ) -> Iterator[tuple[ClientData, Vector]]:
        models = task.local_models(
            model,
            clients,
            steps=self.steps,
            learning_rate=self.learning_rate,
            proximal_weights=[self.penalties.get(client.name, 0.0) for client in clients],
        )
        for position, local in models:
            update = local.to(torch.float64).numpy() - model
            # A diverged client sends zero: an error would tell the server about its data.
            yield clients[position], update if np.isfinite(update).all() else np.zeros_like(update)


def budget_penalties(epsilons: Mapping[str, float]) -> dict[str, float]:
    """lambda_k = (eps_max - eps_k)/eps_max: the smaller a budget, the closer to the shared model.

    Budgets are public, and so are these.
    """
    largest = max(epsilons.values())
    return {client: (largest - epsilon) / largest for client, epsilon in epsilons.items()}


LocalWork = SampleClippedGradient | LocalSgd


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvg:
    """Model += learning rate * velocity, velocity = momentum * velocity + mean update."""

    local_work: LocalWork
    server_learning_rate: float
    server_momentum: float
    uplinks: ClassVar[int] = 1

    def __post_init__(self) -> None:
        parameters.positive("server_learning_rate", self.server_learning_rate)
        momentum = parameters.finite("server_momentum", self.server_momentum)
        if not 0.0 <= momentum < 1.0:
            raise ParameterError(f"server_momentum must lie in [0, 1), got {momentum}")

    @property
    def unit(self) -> Unit:
        return self.local_work.unit

    def domain(self, dimension: int, client: ClientData) -> L2Ball:
        records = self.local_work.records(client)
        return L2Ball(dimension=dimension, radius=self.local_work.clip_norm, records=records)

    def weight(self, client: ClientData) -> float:
        """The number of records behind the mean: the public sample count, or one client."""
        return float(self.local_work.records(client))

    def initialise(self, model: Vector) -> State:
        return {"velocity": np.zeros_like(model)}

    def client_steps(
        self, task: Task, model: Vector, clients: Sequence[ClientData]
    ) -> Iterator[tuple[ClientData, Uplinks]]:
        for client, update in self.local_work.updates(task, model, clients):
            yield client, (update,)

    def server_step(
        self, model: Vector, combined: Sequence[Vector], state: State
    ) -> tuple[Vector, State]:
        velocity = self.server_momentum * state["velocity"] + combined[0]
        return model + self.server_learning_rate * velocity, {"velocity": velocity}
