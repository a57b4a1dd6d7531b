"""NbAFL: noise before aggregation, on the trained models themselves.

A client trains from the server's model, clips its *model* to norm C and sends it with Gaussian
noise. The server averages the models and, where the published rule asks for it, adds its own noise
before it sends the mean to the clients.

The published analysis, for T rounds, N clients, L releases of a client's model, m the size of the
smallest data set and c = sqrt(2 ln(1.25/delta)):

    sigma_up   = c L (2C/m)/epsilon
    sigma_down = 2 c C sqrt(T^2 - L^2 N)/(m N epsilon)  if T > L sqrt N, else 0.

It assumes that one sample changes a trained and clipped model by at most 2C/m. No training
guarantees that: one sample may change it by up to 2C. The analysis also adds up epsilons without
adding up delta, and its c is the classical constant, which is proved for epsilon below 1 only. Its
epsilon is therefore reported but never charged: what is charged is the release of a vector in a
ball of radius C with noise, as for any other mechanism.

Reference: Wei, Li, Ding, Ma, Yang, Farokhi, Jin, Quek and Poor 2020, Federated learning with
differential privacy: algorithms and performance analysis, section III, theorem 1, algorithm 1.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import L2Ball, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Randomness, open_uniforms
from sottovoce.federated.algorithms.algorithm import AggregatedUplink, Block, ClientStepInput, State
from sottovoce.learning.clients import ClientData, DenseRows
from sottovoce.learning.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedNoise:
    """The inputs of the published calibration; `smallest_dataset` is m and is public."""

    clip_norm: float
    delta: float
    rounds: int
    clients: int
    smallest_dataset: int

    def __post_init__(self) -> None:
        parameter_rules.clip_norm("clip_norm", self.clip_norm)
        parameter_rules.delta(self.delta)
        for name in ("rounds", "clients", "smallest_dataset"):
            parameter_rules.integer(name, getattr(self, name), low=1, high=2**32)

    @property
    def _stddev_per_exposure(self) -> float:
        """c 2C/m: the noise that the paper asks for at epsilon = 1 and one exposure."""
        constant = math.sqrt(2.0 * math.log(1.25 / self.delta))
        return constant * 2.0 * self.clip_norm / self.smallest_dataset

    def uplink_stddev(self, epsilon: float, exposures: int) -> float:
        """Return sigma_up, the published noise of a client's model."""
        return self._stddev_per_exposure * exposures / epsilon

    def downlink_stddev(self, epsilon: float, exposures: int) -> float:
        """Return sigma_down, the published noise that the server adds."""
        missing = self.rounds**2 - exposures**2 * self.clients
        if missing <= 0:
            return 0.0
        return self._stddev_per_exposure * math.sqrt(missing) / (self.clients * epsilon)

    def epsilon(self, uplink_stddev: float, exposures: int) -> float:
        """Return the epsilon that the paper would print for so many releases with that noise."""
        return self._stddev_per_exposure * exposures / uplink_stddev


@dataclass(frozen=True, slots=True, kw_only=True)
class NbAfl:
    """The model is the mean of the clients' clipped models plus downlink noise, at client level.

    The downlink noise is added to what is already released, so it changes no charge. Its draws are
    named by the number of server steps, which is part of the state, so that a resumed run repeats
    them if `randomness` is seeded.
    """

    clip_norm: float
    local_steps: int
    local_learning_rate: float
    proximal_weight: float
    downlink_stddev: float
    randomness: Randomness
    unit: ClassVar[Unit] = Unit.CLIENT
    record_sampling_rate: ClassVar[float] = 1.0
    uplinks: ClassVar[int] = 1
    shared_state: ClassVar[tuple[str, ...]] = ()
    gathers: ClassVar[bool] = False

    def __post_init__(self) -> None:
        parameter_rules.clip_norm("clip_norm", self.clip_norm)
        parameter_rules.integer("local_steps", self.local_steps, low=1, high=10**6)
        parameter_rules.positive("local_learning_rate", self.local_learning_rate)
        for name in ("proximal_weight", "downlink_stddev"):
            value = parameter_rules.finite(name, getattr(self, name))
            if value < 0.0:
                raise ParameterError(f"{name} must be at least 0, got {value}; use 0 for none")

    def domain(self, dimension: int, num_samples: int) -> L2Ball:  # noqa: ARG002
        return L2Ball(dimension=dimension, radius=self.clip_norm)

    def weight(self, num_samples: int) -> float:  # noqa: ARG002
        """Return 1 for any number of samples, because that number is private here."""
        return 1.0

    def initialize(self, model: Vector) -> State:  # noqa: ARG002
        return {"server_steps": np.zeros(1)}

    def client_steps(
        self, task: Task, clients: Sequence[ClientData], step: ClientStepInput
    ) -> Iterator[Block]:
        models = task.local_models(
            step.model,
            clients,
            steps=self.local_steps,
            learning_rate=self.local_learning_rate,
            proximal_weights=[self.proximal_weight] * len(clients),
        )
        for start, rows in models:
            yield Block(start=start, uplinks=(DenseRows(rows.to(torch.float64)),))

    def server_step(
        self, model: Vector, combined: Sequence[AggregatedUplink], state: State
    ) -> tuple[Vector, State]:
        step = int(state["server_steps"][0])
        mean = combined[0].mean
        if self.downlink_stddev:
            mean = mean + self.downlink_stddev * self._noise(step, len(model))
        return mean, {"server_steps": np.array([step + 1.0])}

    def _noise(self, step: int, dimension: int) -> Vector:
        from scipy.special import ndtri

        words = self.randomness.stream("downlink", step).words(dimension)
        return np.asarray(ndtri(open_uniforms(words)))
