"""Federated averaging, with two kinds of local work that fix what is protected.

SampleClippedGradient   sample level: one full-batch step whose per-sample gradients are clipped, so
                        that one sample moves the client's mean by at most C/n (zero-out).
LocalSgd                client level: several local steps; the whole update is clipped to C.

Reference: McMahan et al. 2017 (federated averaging); Abadi et al. 2016 (per-sample clipping).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import torch

from sottovoce import parameters
from sottovoce.algorithms.algorithm import State, Uplinks
from sottovoce.domains import ROUNDING_HEADROOM, L2Ball, Vector
from sottovoce.errors import ParameterError
from sottovoce.learning.task import ClientData, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleClippedGradient:
    """The mean of per-sample gradients, each clipped to `clip_norm`; protects one sample."""

    clip_norm: float

    def __post_init__(self) -> None:
        parameters.positive("clip_norm", self.clip_norm)

    def updates(
        self, task: Task, model: Vector, clients: Sequence[ClientData]
    ) -> Iterator[tuple[ClientData, Vector]]:
        limit = self.clip_norm * (1.0 - ROUNDING_HEADROOM)
        totals = torch.zeros(len(clients), task.dimension, dtype=torch.float64)
        for owners, gradients in task.sample_gradients(model, clients):
            # Norms and sums in float64: rounding stays far inside the headroom.
            exact = gradients.to(torch.float64)
            norms = torch.linalg.vector_norm(exact, dim=1, keepdim=True)
            totals.index_add_(0, owners, exact * (limit / torch.clamp(norms, min=limit)))
        for client, total in zip(clients, totals.numpy(), strict=True):
            yield client, -total / client.num_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSgd:
    """The change of the model over `steps` full-batch steps; protects the whole client."""

    clip_norm: float
    steps: int
    learning_rate: float

    def __post_init__(self) -> None:
        parameters.positive("clip_norm", self.clip_norm)
        parameters.integer("local_steps", self.steps, low=1, high=10**6)
        parameters.positive("local_learning_rate", self.learning_rate)

    def updates(
        self, task: Task, model: Vector, clients: Sequence[ClientData]
    ) -> Iterator[tuple[ClientData, Vector]]:
        models = task.local_models(
            model, clients, steps=self.steps, learning_rate=self.learning_rate
        )
        for position, local in models:
            yield clients[position], local.to(torch.float64).numpy() - model


LocalWork = SampleClippedGradient | LocalSgd


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvg:
    """Model += learning rate * velocity, velocity = momentum * velocity + mean update."""

    local_work: LocalWork
    server_learning_rate: float
    server_momentum: float

    def __post_init__(self) -> None:
        parameters.positive("server_learning_rate", self.server_learning_rate)
        momentum = parameters.finite("server_momentum", self.server_momentum)
        if not 0.0 <= momentum < 1.0:
            raise ParameterError(f"server_momentum must lie in [0, 1), got {momentum}")

    def domain(self, dimension: int, client: ClientData) -> L2Ball:
        match self.local_work:
            case SampleClippedGradient(clip_norm=clip_norm):
                records = client.num_samples
            case LocalSgd(clip_norm=clip_norm):
                records = 1
            case _:
                assert_never(self.local_work)
        return L2Ball(dimension=dimension, radius=clip_norm, records=records)

    def weight(self, client: ClientData) -> float:
        """Sample level: the public sample count. Client level: equal, for counts are private."""
        match self.local_work:
            case SampleClippedGradient():
                return float(client.num_samples)
            case LocalSgd():
                return 1.0
            case _:
                assert_never(self.local_work)

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
