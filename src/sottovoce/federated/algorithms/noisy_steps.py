"""Local DP-SGD: a client takes several noisy steps on its own records before it sends anything.

Each step takes a secret Poisson sample of the client's records, clips the gradient of each (of one
copy of it that is changed at random, with `augmentation`), divides
their sum by the public expected size of the sample, adds the noise of the mechanism, and moves the
client's model with a `torch.optim` optimizer. Every step is charged (`release_event` of a mechanism
on a `SteppedBall`). The change of the model over all steps is computed from noisy vectors alone, so
sending it costs nothing more, with however few bits (`mechanisms.compressed_update`).

With "exact" sums every step draws its sample and its noise from the client's own keystreams and
encodes with the mechanism's own code: what leaves the client is made of the same numbers that a
message of the mechanism would be. With "float" sums, for simulations that send no messages, many
clients take a step together (`federated.simulation.noisy_models`).

References: Abadi et al. 2016 (DP-SGD); algorithm 1 of UDP-FL, updating with the noisy gradient.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import (
    ROUNDING_HEADROOM,
    Floats,
    SteppedBall,
    SteppedL1Ball,
    SteppedL2Ball,
    Vector,
)
from sottovoce.core.errors import ConfigError, ParameterError
from sottovoce.federated.algorithms.algorithm import ClientStepInput
from sottovoce.federated.algorithms.exact_sums import GRID, ExactSums, Geometry
from sottovoce.federated.schedules import RateSchedule, rate_in_round
from sottovoce.learning.augmentation import Augmentation, changed_images
from sottovoce.learning.clients import ClientData, DenseRows, Rows, names_of
from sottovoce.learning.optimizers import PLAIN_SGD, OptimizerSettings
from sottovoce.learning.task import Task
from sottovoce.mechanisms.compressed_update import MessageBits, compressed
from sottovoce.mechanisms.encoding import encode_packed, prepare
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.registry import charged_mechanism

# The records of a step are padded to the expected number plus this many standard deviations, so
# that the time of a step does not tell how many there were. A larger sample is used as it is.
_PADDED_DEVIATIONS = 5.0
# Rounding each coordinate to the grid must stay within the headroom of an L1 norm.
_MOST_L1_COORDINATES = int(ROUNDING_HEADROOM / GRID)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyLocalSteps:
    """The change of a client's model over several noisy steps; protects one record.

    Client k takes the steps

        w <- w - learning_rate (noisy mean gradient + (proximal_weight + lambda_k) (w - w_0)),

    or those that an `optimizer` takes along these directions. Here w_0 is the model that the server
    released, and lambda_k is the client's entry in `penalties`.

    Attributes:
        clip_norm: The norm that the gradient of each record is clipped to.
        geometry: The norm: "l2" or "l1".
        normalizes: Whether gradients are normalized to this norm instead of clipped.
        steps: Number of steps in a round.
        epochs: Expected number of passes over a client's records, instead of `steps`.
        batch_size: Expected number of records of a step; None if `rate` is given.
        rate: The probability with which a step uses each record; None if `batch_size` is given.
        learning_rate: Step size.
        rate_schedule: How the step size changes from round to round; None if it does not.
        optimizer: How directions move the model, with a new state in each round.
        proximal_weight: The FedProx weight of all clients.
        penalties: Further weights in [0, 1] by client name.
        augmentation: How images are changed at random in each step; None if they are not.
        message_bits: Bits of a coordinate of the message: 32, 4, 2 or 1.
        summation: "exact", or "float" for simulations that send no messages.

    Raises:
        ParameterError: A value is out of its range.

    Examples:
        >>> work = NoisyLocalSteps(clip_norm=1.0, epochs=1, batch_size=50, learning_rate=0.5)
        >>> work.domain(dimension=10, num_samples=1000).steps
        20
    """

    clip_norm: float
    geometry: Geometry = "l2"
    normalizes: bool = False
    steps: int = 1
    epochs: int | None = None
    batch_size: int | None = None
    rate: float | None = None
    learning_rate: float
    rate_schedule: RateSchedule | None = None
    optimizer: OptimizerSettings = PLAIN_SGD
    proximal_weight: float = 0.0
    penalties: Mapping[str, float] = field(default_factory=dict)
    augmentation: Augmentation | None = None
    message_bits: MessageBits = 32
    summation: Literal["exact", "float"] = "exact"
    # CUDA graphs of steps, kept from round to round.
    kept: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    unit: ClassVar[Unit] = Unit.SAMPLE
    sampling_rate: ClassVar[float] = 1.0  # Steps are sampled, and not the round as a whole.

    def __post_init__(self) -> None:
        parameter_rules.clip_norm("clip_norm", self.clip_norm)
        parameter_rules.positive("local_learning_rate", self.learning_rate)
        parameter_rules.integer("local_steps", self.steps, low=1, high=10**6)
        if self.epochs is not None:
            parameter_rules.integer("local_epochs", self.epochs, low=1, high=10**6)
        if (self.batch_size is None) == (self.rate is None):
            raise ParameterError(
                "local steps with noise need either batch_size, the expected number of records of "
                "a step, or the rate with which a step uses each record; give one of them"
            )
        if self.rate is not None:
            parameter_rules.fraction("rate", self.rate)

    def records(self, num_samples: int) -> int:
        """Return the client's weight in the mean: the number of its records, which is public.

        Args:
            num_samples: Number of the client's records.

        Returns:
            The same number.
        """
        return num_samples

    def domain(self, dimension: int, num_samples: int) -> SteppedBall:
        """Return the domain of a step's mean gradient.

        Args:
            dimension: Number of model parameters.
            num_samples: Number of the client's records.

        Returns:
            The ball of the clipping norm, with the number of steps and the rate of their samples.

        Raises:
            ConfigError: The expected number of records of a step exceeds the client's records; or
                there are too many parameters for an L1 norm.
        """
        if self.batch_size is None:
            assert self.rate is not None, "checked when created"
            rate, expected = self.rate, max(1, int(self.rate * num_samples))
        elif self.batch_size > num_samples:
            raise ConfigError(
                f"'algorithm.batch_size' = {self.batch_size} is the expected number of records of "
                f"a local step, but a client has only {num_samples}; lower it to at most "
                f"{num_samples}, or give 'privacy.record_sampling_rate' instead"
            )
        else:
            rate, expected = self.batch_size / num_samples, self.batch_size
        steps = self.steps if self.epochs is None else math.ceil(self.epochs / rate)
        if self.geometry == "l2":
            return SteppedL2Ball(
                dimension=dimension,
                radius=self.clip_norm,
                records=expected,
                steps=steps,
                sampling_rate=rate,
            )
        if dimension > _MOST_L1_COORDINATES:
            raise ConfigError(
                f"clipping in L1 is for at most {_MOST_L1_COORDINATES} parameters, and the model "
                f"has {dimension}; use algorithm.clip_geometry = 'l2'"
            )
        # A mean cannot be projected onto an L1 ball, so the ball holds the sum of all records.
        times = -(-num_samples // expected) + 1  # One more makes up for rounding to the grid.
        return SteppedL1Ball(
            dimension=dimension,
            radius=self.clip_norm * times,
            records=expected * times,
            steps=steps,
            sampling_rate=rate,
        )

    def message_mechanism(self, mechanism: Mechanism) -> Mechanism:
        """Return the mechanism of messages: it compresses what the noise of the steps protects."""
        return compressed(mechanism, self.message_bits)

    def learning_rate_of(self, number: int) -> float:
        """Return the step size in a round.

        Args:
            number: The round, counted from 1.

        Returns:
            The learning rate times the factor of the schedule.
        """
        return rate_in_round(self.learning_rate, self.rate_schedule, number)

    @property
    def limit(self) -> float:
        """The norm that gradients are clipped to: `clip_norm` less the headroom for rounding."""
        return self.clip_norm * (1.0 - ROUNDING_HEADROOM)

    def pulls(self, clients: Sequence[ClientData]) -> list[float]:
        """Return how strongly each client is pulled to the model that it started from."""
        return [self.proximal_weight + self.penalties.get(name, 0.0) for name in names_of(clients)]

    def updates(
        self, task: Task, clients: Sequence[ClientData], step: ClientStepInput
    ) -> Iterator[tuple[int, Rows]]:
        """Compute the updates of some clients.

        Args:
            task: The model and its loss.
            clients: The clients' data.
            step: The round, the model and the state that the clients start from.

        Yields:
            The position of a block's first client, and the updates of the block as rows.

        Raises:
            ConfigError: The caller does not know the clients' mechanisms.
        """
        if step.mechanism_of is None:
            raise ConfigError(
                "local steps with noise (algorithm.local_work = 'dp_sgd') cannot be computed here, "
                "without the mechanism of each client; use algorithm.local_work = 'auto'"
            )
        mechanisms = [charged_mechanism(step.mechanism_of(i)) for i in range(len(clients))]
        if self.summation == "float":
            from sottovoce.federated.simulation.noisy_models import noisy_models

            for start, models in noisy_models(self, task, clients, mechanisms, step):
                yield start, DenseRows(models - task.tensor(step.model))
            return
        for place, (client, mechanism) in enumerate(zip(clients, mechanisms, strict=True)):
            own = _ExactSteps(work=self, task=task, client=client, mechanism=mechanism, step=step)
            yield place, DenseRows(torch.from_numpy(own.update())[None])


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExactSteps:
    """The steps of one client, with samples and noise from its own keystreams."""

    work: NoisyLocalSteps
    task: Task
    client: ClientData
    mechanism: Mechanism
    step: ClientStepInput

    def update(self) -> Vector:
        """Return the change of the client's model, in float64."""
        domain, work = self.mechanism.input_domain, self.work
        assert isinstance(domain, SteppedBall), "the algorithm made the domain"
        origin = torch.from_numpy(np.array(self.step.model, dtype=np.float64))[None]
        rate, (pull,) = work.learning_rate_of(self.step.round), work.pulls([self.client])
        rows = work.optimizer.start(origin.clone(), learning_rate=rate)
        for number in range(domain.steps):
            model = rows.models[0].numpy()
            direction = self._noisy_mean(model.astype(np.float32), domain, number)
            rows.step(torch.from_numpy(direction)[None] + pull * (rows.models - origin))
        found: Vector = (rows.models - origin)[0].numpy()
        return found

    def _noisy_mean(self, model: Floats, domain: SteppedBall, number: int) -> Vector:
        """Return the noisy mean gradient of a step's sample, as the mechanism decodes it."""
        grid = self.work.clip_norm * GRID
        sums = ExactSums(
            clients=1,
            task=self.task,
            limit=self.work.limit,
            grid=grid,
            geometry=self.work.geometry,
            normalizes=self.work.normalizes,
        )
        places, used = self._sample(domain, number)
        chosen = ClientData(
            name=self.client.name,
            features=self._images(places, number),
            labels=self.client.labels[places],
        )
        seen = 0
        for owners, rows in self.task.sample_gradients(model, [chosen]):
            sums.add(owners, rows, used[seen : seen + len(owners)])
            seen += len(owners)
        # The mechanism's `records` times its share of the radius is the expected number of records.
        expected = domain.records * self.work.clip_norm / domain.radius
        mean = sums.totals[0].to("cpu", torch.float64).numpy() * (grid / round(expected))
        ready = prepare(self.mechanism, mean, zero_nonfinite=True)
        label = ("local noise", self.step.run, self.client.name, self.step.round, number)
        packed = encode_packed(ready, [self.step.randomness.stream(*label)])
        return self.mechanism.decode(packed.codes()[0])

    def _images(self, places: Tensor, number: int) -> Tensor:
        """Return the features of the records of a step, each with its own random change."""
        features, augmentation = self.client.features[places], self.work.augmentation
        if augmentation is None:
            return features
        label = ("local augmentation", self.step.run, self.client.name, self.step.round, number)
        draws = self.step.randomness.stream(*label).draws(32, len(places))
        changes = augmentation.changes(torch.from_numpy(draws.astype(np.int64)))
        return changed_images(features, changes)

    def _sample(self, domain: SteppedBall, number: int) -> tuple[Tensor, Tensor]:
        """Return the records of a step, padded, and which of these are in the sample."""
        size = self.client.num_samples
        label = ("local records", self.step.run, self.client.name, self.step.round, number)
        chosen = np.flatnonzero(
            records_in_sample(self.step.randomness.stream(*label).words(size), domain.sampling_rate)
        )
        spread = math.sqrt(size * domain.sampling_rate * (1.0 - domain.sampling_rate))
        width = math.ceil(size * domain.sampling_rate + _PADDED_DEVIATIONS * spread)
        width = max(len(chosen), min(width, size))
        places = np.zeros(width, dtype=np.int64)
        places[: len(chosen)] = chosen
        return torch.from_numpy(places), torch.arange(width) < len(chosen)


def records_in_sample(words: NDArray[np.uint64], rate: float) -> NDArray[np.bool_]:
    """Return which records are in a Poisson sample.

    Args:
        words: One uniform word of 64 bits for each record.
        rate: The rate that is charged.

    Returns:
        One boolean per record. Each is true with probability floor(rate 2^64)/2^64, which is never
        above the rate.
    """
    if rate >= 1.0:
        return np.ones(len(words), dtype=bool)
    return words < np.uint64(int(rate * 2.0**64))
