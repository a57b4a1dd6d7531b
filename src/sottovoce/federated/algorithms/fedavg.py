"""Federated averaging, with three kinds of local work that determine what is protected.

SampleClippedGradient   sample level: one step whose per-sample gradients are clipped, so that one
                        sample moves the client's mean by at most C/n (zero-out).
NoisyLocalSteps         sample level: several such steps on secret samples of the client's records,
                        each with its own noise (in `noisy_steps`).
LocalSgd                client level: local steps, on all records or on minibatches; the whole
                        update is clipped to C. With one step on all records it is federated SGD;
                        with penalties it is FedProx.

The server takes the mean of the decoded messages, or a robust mean of their rows, which a minority
of clients cannot move arbitrarily:

CoordinateMedian        the median of each coordinate. It tolerates fewer than half of the clients
                        being malicious. With Gaussian noise it has pi/2 times the variance of the
                        mean. If a decoded coordinate has few possible values it is one of them (or
                        between two), so for single bits it is a majority vote, which does not
                        estimate a mean (after a random rotation messages look Gaussian again).
TrimmedMean             the mean of each coordinate without its largest and smallest values. It
                        tolerates as many malicious clients as are trimmed at one end. With
                        Gaussian noise the variance grows from that of the mean (fraction 0) to
                        pi/2 times it (towards fraction 1/2, the median). If a decoded coordinate
                        has few possible values, trimming drops rare ones and biases the mean.

Robust means use no weights: a client states its own weight and could enlarge its influence.

References: McMahan et al. 2017 (federated averaging and SGD); Abadi et al. 2016 (per-sample
clipping); Li et al. 2020 (FedProx, equation 2); Yin, Chen, Kannan and Bartlett 2018 (definitions 1
and 2, algorithm 1, options I and II).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import ROUNDING_HEADROOM, Floats, L2Ball, SteppedBall, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Randomness
from sottovoce.federated.algorithms.algorithm import AggregatedUplink, Block, ClientStepInput, State
from sottovoce.federated.algorithms.exact_sums import GRID, ExactSums, pieces
from sottovoce.federated.algorithms.model_average import ModelAverage
from sottovoce.federated.algorithms.noisy_steps import NoisyLocalSteps, records_in_sample
from sottovoce.federated.algorithms.server_steps import ServerOptimizer
from sottovoce.federated.schedules import RateSchedule, rate_in_round
from sottovoce.learning.augmentation import Augmentation
from sottovoce.learning.clients import (
    ClientData,
    DenseRows,
    Rows,
    clip_rows,
    clipping_factors,
    count_clipped,
    have_one_sample,
    names_of,
    sizes_of,
)
from sottovoce.learning.minibatches import LocalSchedule
from sottovoce.learning.optimizers import PLAIN_SGD, OptimizerSettings
from sottovoce.learning.task import Task
from sottovoce.mechanisms.mechanism import Mechanism


def check_rows(rows: Vector) -> Vector:
    """Return the rows in float64; raise ParameterError if there are none or one is not finite."""
    found = np.asarray(rows, dtype=np.float64)
    if found.ndim != 2 or not len(found):
        raise ParameterError(
            f"messages must be the rows of a matrix with at least one row, got shape {found.shape}"
        )
    if not np.isfinite(found).all():
        raise ParameterError("a message is not finite; leave it out")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimmedMean:
    """The mean of n values of each coordinate without the floor(fraction n) at either end."""

    fraction: float

    def __post_init__(self) -> None:
        if not 0.0 <= parameter_rules.finite("fraction", self.fraction) < 0.5:
            raise ParameterError(
                f"the fraction to trim at each end must lie in [0, 1/2), got {self.fraction}; "
                "use the median to trim all but the middle"
            )

    def trimmed(self, clients: int) -> int:
        """Return floor(fraction clients), the values that are dropped at each end."""
        return int(self.fraction * clients)

    def combine(self, rows: Vector) -> Vector:
        """Return the trimmed mean of each column; raise ParameterError as `check_rows` does."""
        checked = check_rows(rows)
        drop = self.trimmed(len(checked))
        if not drop:
            return np.asarray(checked.mean(axis=0))
        # Partitioning is enough because the values between the ends need no order.
        inner = np.partition(checked, (drop, len(checked) - drop - 1), axis=0)
        return np.asarray(inner[drop : len(checked) - drop].mean(axis=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinateMedian:
    """The median of each coordinate; for even counts the mean of the two middle values."""

    def combine(self, rows: Vector) -> Vector:
        """Return the median of each column; raise ParameterError as `check_rows` does."""
        return np.asarray(np.median(check_rows(rows), axis=0), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleClippedGradient:
    """The negative mean of per-sample gradients, each clipped to `clip_norm`; protects one sample.

    With a `sampling_rate` q below 1 every record takes part in a round with probability q. The
    client draws the sample and reveals it to no one. The sum is divided by the public expected
    number of records. More records than expected may take part; the projection onto the domain
    bounds the norm then, and a projection brings no two inputs further apart.

    A gradient that is not finite counts as zero; with "float" also one whose norm overflows.

    Attributes:
        clip_norm: The clipping norm C of a sample's gradient.
        normalizes: Whether a gradient g is divided by (|g| + 0.01)/C instead of clipped, which
            needs no clipping norm that fits the data (Bu et al. 2023). Its norm is then below C,
            too.
        sampling_rate: The probability q with which a record takes part in a round.
        summation: "exact" rounds clipped gradients to multiples of 2^-40 C and adds them as
            integers. The sum is then exact in any order, so one sample moves it by its own
            contribution only. "float" adds in float32, for simulations that send no messages.

    Raises:
        ParameterError: If the clipping norm is not in [1e-100, 1e12], or the rate not in (0, 1].

    Examples:
        >>> work = SampleClippedGradient(clip_norm=1.0, sampling_rate=0.25)
        >>> work.records(num_samples=40)
        10
    """

    clip_norm: float
    normalizes: bool = False
    sampling_rate: float = 1.0
    summation: Literal["exact", "float"] = "exact"
    unit: ClassVar[Unit] = Unit.SAMPLE

    def __post_init__(self) -> None:
        parameter_rules.clip_norm("clip_norm", self.clip_norm)
        parameter_rules.fraction("sampling_rate", self.sampling_rate)

    def records(self, num_samples: int) -> int:
        """Return the number of records by which the client's sum of gradients is divided.

        Args:
            num_samples: Number of the client's records, which is public at sample level.

        Returns:
            max(1, floor(q num_samples)).
        """
        return max(1, int(self.sampling_rate * num_samples))

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
        """
        taking_part = self._sample_records(clients, step)
        if self.summation == "float" and taking_part is None and max(sizes_of(clients)) == 1:
            yield from self._single_sample_updates(task, clients, step.model)
            return
        add = self._sum_exactly if self.summation == "exact" else self._sum_in_float32
        totals = add(task, clients, step.model, taking_part)
        records = [self.records(size) for size in sizes_of(clients)]
        # One factor, so that each product is rounded once.
        factors = [-(self._grid if self.summation == "exact" else 1.0) / n for n in records]
        factor = torch.tensor(factors, dtype=torch.float64, device=totals.device)
        yield 0, DenseRows(_scale(totals, factor[:, None]))

    @property
    def _grid(self) -> float:
        return self.clip_norm * GRID

    @property
    def limit(self) -> float:
        """The norm that gradients are clipped to: `clip_norm` less the headroom for rounding."""
        return self.clip_norm * (1.0 - ROUNDING_HEADROOM)

    def _sample_records(
        self, clients: Sequence[ClientData], step: ClientStepInput
    ) -> Tensor | None:
        """Return which records take part, client after client; None if all of them do."""
        if self.sampling_rate >= 1.0:
            return None
        parts = [
            self.records_of_round(step.randomness, step.run, name, step.round, size)
            for name, size in zip(names_of(clients), sizes_of(clients), strict=True)
        ]
        return torch.from_numpy(np.concatenate(parts))

    def records_of_round(
        self, randomness: Randomness, run: str, client: str, number: int, size: int
    ) -> NDArray[np.bool_]:
        """Return which of a client's records take part in a round.

        Args:
            randomness: The client's own randomness.
            run: Name of the run.
            client: Name of the client.
            number: The round, counted from 1.
            size: Number of the client's records.

        Returns:
            One boolean per record. Each is true with probability floor(q 2^64)/2^64, which is never
            above the rate q that is charged.
        """
        if self.sampling_rate >= 1.0:
            return np.ones(size, dtype=bool)
        words = randomness.stream("records", run, client, number).words(size)
        return records_in_sample(words, self.sampling_rate)

    def _sum_exactly(
        self, task: Task, clients: Sequence[ClientData], model: Floats, taking_part: Tensor | None
    ) -> Tensor:
        sums = ExactSums(
            clients=len(clients),
            task=task,
            limit=self.limit,
            grid=self._grid,
            normalizes=self.normalizes,
        )
        seen = 0
        # Gradients of all records, also those left out: array shapes and run time must not depend
        # on the secret sample.
        for owners, rows in task.sample_gradients(model, clients):
            chosen = None if taking_part is None else taking_part[seen : seen + len(owners)]
            sums.add(owners, rows, chosen)
            seen += len(owners)
        return sums.totals

    def _sum_in_float32(
        self, task: Task, clients: Sequence[ClientData], model: Floats, taking_part: Tensor | None
    ) -> Tensor:
        totals = torch.zeros(len(clients), task.dimension, device=task.device)
        for owners, rows in task.sample_gradients(model, clients, taking_part):
            finite, factors = self._factors(rows)
            for owner, own in _slices_by_owner(owners):
                totals[owner] += finite.select(own).total(factors[own])
        return totals

    def _factors(self, rows: Rows) -> tuple[Rows, Tensor]:
        """Return the rows, with zeros for those that are not finite, and their factors."""
        finite, factors = clipping_factors(rows, self.limit, normalizes=self.normalizes)
        if not self.normalizes:
            count_clipped(factors)
        return finite, factors

    def _single_sample_updates(
        self, task: Task, clients: Sequence[ClientData], model: Floats
    ) -> Iterator[tuple[int, Rows]]:
        """Yield the clipped gradients of clients with one sample each, which are their updates."""
        start = 0
        for _, rows in task.sample_gradients(model, clients):
            finite, factors = self._factors(rows)
            yield start, finite.scaled(-factors)
            start += len(rows)


def _scale(totals: Tensor, factor: Tensor) -> Tensor:
    """Return the totals times the factor, in the memory of the totals; integers become float64."""
    if totals.dtype != torch.int64:
        return totals.mul_(factor.to(totals.dtype))
    scaled = totals.view(torch.float64)
    for part in pieces(totals.shape[1]):
        scaled[:, part] = totals[:, part] * factor
    return scaled


def _slices_by_owner(owners: Tensor) -> Iterator[tuple[int, slice]]:
    """Yield each owner and the slice of its consecutive rows."""
    found, counts = torch.unique_consecutive(owners, return_counts=True)
    stop = 0
    for owner, count in zip(found.tolist(), counts.tolist(), strict=True):
        start, stop = stop, stop + count
        yield owner, slice(start, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSgd:
    """The change of the model over the local steps of a client; protects the whole client.

    Client k takes the steps

        w <- w - learning_rate (gradient + (proximal_weight + lambda_k) (w - w_0)),

    where w_0 is the model that the server released and lambda_k is the client's entry in
    `penalties`; or an `optimizer` takes them, along the same directions and with a new state
    in each round. The first step starts at w_0, so if it is the only one no penalty has any
    effect. The gradient is that of the mean loss of the records of a step: all of the client's
    records, or a minibatch (`learning.minibatches` defines the order of records). It is clipped to
    the norm `gradient_clip`, so that training with large steps does not diverge. The whole change
    is clipped and privatized, so the guarantee does not depend on the number of steps or their
    records.

    Attributes:
        clip_norm: The clipping norm of the whole update.
        steps: Number of local steps.
        learning_rate: Their step size.
        rate_schedule: How the step size changes from round to round; None if it does not.
        optimizer: How gradients move the model.
        gradient_clip: The norm to which the gradient of each step is clipped; None for no clipping.
        augmentation: How images are changed at random in each step; None if they are not.
        epochs: Number of passes over the client's records, instead of `steps`; None to count steps.
        batch_size: Number of records of a step; None for all of them.
        proximal_weight: The FedProx weight of all clients.
        penalties: Further weights in [0, 1] by client name.

    Raises:
        ParameterError: If a value is out of its range.
    """

    clip_norm: float
    steps: int = 1
    learning_rate: float
    rate_schedule: RateSchedule | None = None
    optimizer: OptimizerSettings = PLAIN_SGD
    gradient_clip: float | None = None
    augmentation: Augmentation | None = None
    epochs: int | None = None
    batch_size: int | None = None
    proximal_weight: float = 0.0
    penalties: Mapping[str, float] = field(default_factory=dict)
    unit: ClassVar[Unit] = Unit.CLIENT
    sampling_rate: ClassVar[float] = 1.0  # All records take part in every round.

    def __post_init__(self) -> None:
        parameter_rules.clip_norm("clip_norm", self.clip_norm)
        assert self.schedule, "building it checks the numbers"
        parameter_rules.positive("local_learning_rate", self.learning_rate)
        if self.gradient_clip is not None:
            parameter_rules.positive("gradient_clip", self.gradient_clip)
        if parameter_rules.finite("proximal_weight", self.proximal_weight) < 0.0:
            raise ParameterError(f"proximal_weight must be at least 0, got {self.proximal_weight}")
        for client, penalty in self.penalties.items():
            if not 0.0 <= parameter_rules.finite("penalty", penalty) <= 1.0:
                raise ParameterError(
                    f"the penalty of client '{client}' must lie in [0, 1], got {penalty}"
                )

    def records(self, num_samples: int) -> int:
        """Return 1 for every number of samples, because that number is private at client level.

        Args:
            num_samples: Number of the client's records; not used.

        Returns:
            One.
        """
        return 1

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
        """
        schedule, learning_rate = self.schedule, self.learning_rate_of(step.round)
        one_step = schedule.num_steps(1) == 1 and have_one_sample(clients)
        if one_step and self.optimizer.is_plain_sgd and self.augmentation is None:
            gradients = task.closed_form_gradients(step.model, clients)
            if gradients is not None:
                if self.gradient_clip is not None:
                    gradients = clip_rows(gradients, self.gradient_clip)
                yield 0, gradients.scaled(-learning_rate)
                return
        names, sizes = names_of(clients), sizes_of(clients)
        steps = schedule.draw(step.randomness, step.run, step.round, names, sizes)
        if self.augmentation is not None:
            steps = self.augmentation.draw(step.randomness, step.run, step.round, names, steps)
        models = task.local_models(
            step.model,
            clients,
            steps=steps,
            learning_rate=learning_rate,
            optimizer=self.optimizer,
            gradient_clip=self.gradient_clip,
            proximal_weights=self._proximal_weights(clients),
        )
        yield from map(partial(_changes_since, task.tensor(step.model)), models)

    def learning_rate_of(self, number: int) -> float:
        """Return the learning rate of local steps in a round.

        Args:
            number: The round, counted from 1.

        Returns:
            The learning rate times the factor of the schedule.
        """
        return rate_in_round(self.learning_rate, self.rate_schedule, number)

    @property
    def schedule(self) -> LocalSchedule:
        """How many steps a client takes, and on which of its records."""
        return LocalSchedule(steps=self.steps, epochs=self.epochs, batch_size=self.batch_size)

    def _proximal_weights(self, clients: Sequence[ClientData]) -> list[float] | None:
        if not self.penalties:
            return [self.proximal_weight] * len(clients) if self.proximal_weight else None
        names = names_of(clients)
        return [self.proximal_weight + self.penalties.get(name, 0.0) for name in names]


def budget_penalties(epsilons: Mapping[str, float]) -> dict[str, float]:
    """Return lambda_k = (eps_max - eps_k)/eps_max for each client k, in [0, 1), from its epsilon.

    These are the `penalties` of `LocalSgd`: the smaller a client's budget, the closer it stays to
    the shared model. Budgets are public, and so are these penalties.
    """
    largest = max(epsilons.values())
    return {client: (largest - epsilon) / largest for client, epsilon in epsilons.items()}


LocalWork = SampleClippedGradient | LocalSgd | NoisyLocalSteps


@runtime_checkable
class SendsLocalWork(Protocol):
    """An algorithm whose clients send the result of their local work and nothing else."""

    @property
    def local_work(self) -> LocalWork:
        """The computation of each client."""
        ...


def update_domain(work: LocalWork, dimension: int, num_samples: int) -> L2Ball | SteppedBall:
    """Return the domain of a client's update, the ball of radius `work.clip_norm`.

    It also holds the number of records of which the update is a mean, for the sensitivity. Noisy
    steps have a domain of their own.
    """
    if isinstance(work, NoisyLocalSteps):
        return work.domain(dimension, num_samples)
    records = work.records(num_samples)
    return L2Ball(dimension=dimension, radius=work.clip_norm, records=records)


def yield_update_blocks(
    work: LocalWork, task: Task, clients: Sequence[ClientData], step: ClientStepInput
) -> Iterator[Block]:
    """Yield the updates of all these clients in blocks with one uplink."""
    yield from map(_block, work.updates(task, clients, step))


# `map` keeps no reference to what it has yielded, unlike a loop: large models would be kept.


def _block(found: tuple[int, Rows]) -> Block:
    start, rows = found
    return Block(start=start, uplinks=(rows,))


def _changes_since(origin: Tensor, found: tuple[int, Tensor]) -> tuple[int, Rows]:
    """Return the position and the changes of some clients' models."""
    start, rows = found
    if origin.is_cuda:  # There they stay in float32, in which they are clipped and encoded.
        return start, DenseRows(rows - origin)
    changes = rows.to(torch.float64)
    for part in pieces(len(origin)):  # torch converts the subtracted numbers in a copy.
        changes[:, part].sub_(origin[part])
    return start, DenseRows(changes)


def _plus_multiple(vector: Vector, factor: float, other: Vector) -> Vector:
    """Return vector + factor other without a temporary array, since models may be large."""
    found = np.multiply(other, factor)
    found += vector
    return found


RobustMean = CoordinateMedian | TrimmedMean
STEPS_TAKEN = "server_steps"  # The key of the state that counts the steps of the server.


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSteps:
    """Rounds in which each client sends one clipped gradient and the server uses momentum."""

    work: SampleClippedGradient
    server_learning_rate: float
    server_momentum: float


@runtime_checkable
class Stackable(Protocol):
    """An algorithm of which many runs may be trained together (`simulation.stacked`)."""

    def gradient_steps(self) -> GradientSteps | None:
        """Return the algorithm's gradient steps, or None if its rounds do anything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvg:
    """Federated averaging, with momentum or an optimizer at the server.

        velocity <- momentum * velocity + mean update
        model    <- model + learning rate * velocity

    A `server_optimizer` moves the model instead (see `server_steps`). The mean is weighted by
    public weights. A `robust_mean` replaces it: it needs every decoded message and gives all of
    them the same weight. All of this is post-processing and changes no charge.

    Attributes:
        local_work: What each client computes; it determines the unit of privacy.
        server_learning_rate: Step size of the server.
        server_momentum: Momentum of the server, in [0, 1).
        robust_mean: The median or trimmed mean that replaces the mean; None for the weighted mean.
        server_optimizer: How the mean moves the model; None for momentum.
        server_schedule: How the server's step size changes from round to round; None if it does
            not. Rounds that released nothing do not count.
        model_average: An average of the models of the rounds, which is kept in the state; or None.

    Raises:
        ParameterError: If the learning rate or the momentum is out of range, or there are both
            momentum and an optimizer at the server.

    Examples:
        >>> work = SampleClippedGradient(clip_norm=1.0)
        >>> algorithm = FedAvg(local_work=work, server_learning_rate=1.0, server_momentum=0.9)
        >>> algorithm.domain(dimension=10, num_samples=50).radius, algorithm.weight(num_samples=50)
        (1.0, 50.0)

    Reference: McMahan et al. 2017.
    """

    local_work: LocalWork
    server_learning_rate: float
    server_momentum: float
    robust_mean: RobustMean | None = None
    server_optimizer: ServerOptimizer | None = None
    server_schedule: RateSchedule | None = None
    model_average: ModelAverage | None = None
    uplinks: ClassVar[int] = 1
    shared_state: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        parameter_rules.positive("server_learning_rate", self.server_learning_rate)
        momentum = parameter_rules.finite("server_momentum", self.server_momentum)
        if not 0.0 <= momentum < 1.0:
            raise ParameterError(f"server_momentum must lie in [0, 1), got {momentum}")
        if momentum and self.server_optimizer is not None:
            raise ParameterError(
                "server_momentum and server_optimizer both say how the server moves the model; "
                "give one of them, such as the optimizer 'sgd' with its option momentum"
            )

    @property
    def unit(self) -> Unit:
        """What is protected: single records, or all data of a client."""
        return self.local_work.unit

    @property
    def record_sampling_rate(self) -> float:
        return self.local_work.sampling_rate

    @property
    def gathers(self) -> bool:
        return self.robust_mean is not None

    def domain(self, dimension: int, num_samples: int) -> L2Ball | SteppedBall:
        return update_domain(self.local_work, dimension, num_samples)

    def weight(self, num_samples: int) -> float:
        """Return the client's weight: the records behind its mean, or 1 at client level.

        Args:
            num_samples: Number of the client's records.

        Returns:
            At sample level the public number by which the client's sum of gradients is divided.
        """
        return float(self.local_work.records(num_samples))

    def message_mechanism(self, mechanism: Mechanism) -> Mechanism:
        """Return the mechanism that encodes messages; noisy local steps only need compression.

        Args:
            mechanism: The mechanism that is charged.

        Returns:
            The same mechanism, or one that compresses what its noise protects.
        """
        if isinstance(self.local_work, NoisyLocalSteps):
            return self.local_work.message_mechanism(mechanism)
        return mechanism

    def initialize(self, model: Vector) -> State:
        # Without momentum, the velocity of a round has no effect on the next one.
        velocity = {"velocity": np.zeros(model.shape)} if self.server_momentum else {}
        return velocity if self.has_plain_server else {**velocity, STEPS_TAKEN: np.zeros(1)}

    @property
    def has_plain_server(self) -> bool:
        """Whether the server only adds the mean update, with momentum and a constant rate."""
        return not (self.server_optimizer or self.server_schedule or self.model_average)

    def client_steps(
        self, task: Task, clients: Sequence[ClientData], step: ClientStepInput
    ) -> Iterator[Block]:
        yield from yield_update_blocks(self.local_work, task, clients, step)

    def server_step(
        self, model: Vector, combined: Sequence[AggregatedUplink], state: State
    ) -> tuple[Vector, State]:
        update = self._average(combined[0])
        if self.has_plain_server:
            return self._add(model, update, state, self.server_learning_rate)
        number = int(state[STEPS_TAKEN][0]) + 1
        rate = rate_in_round(self.server_learning_rate, self.server_schedule, number)
        step = self._add if self.server_optimizer is None else self.server_optimizer.step
        stepped, kept = step(model, update, state, rate)
        after = {STEPS_TAKEN: np.array([float(number)]), **kept}
        if self.model_average is not None:
            after |= self.model_average.after_round(stepped, state, number)
        return stepped, after

    def _add(
        self, model: Vector, update: Vector, state: State, learning_rate: float
    ) -> tuple[Vector, State]:
        """Return the next model and the velocity, with the server's momentum."""
        velocity = update
        if self.server_momentum:
            velocity = _plus_multiple(velocity, self.server_momentum, state["velocity"])
        stepped = _plus_multiple(model, learning_rate, velocity)
        return stepped, {"velocity": velocity} if self.server_momentum else {}

    def gradient_steps(self) -> GradientSteps | None:
        """Return the gradient steps if a round consists of these only.

        Returns:
            None for client-level privacy, a robust mean, other steps of the server, or a subclass,
            which may step differently.
        """
        work, plain = self.local_work, type(self) is FedAvg and self.has_plain_server
        if not plain or self.gathers or not isinstance(work, SampleClippedGradient):
            return None
        return GradientSteps(
            work=work,
            server_learning_rate=self.server_learning_rate,
            server_momentum=self.server_momentum,
        )

    def _average(self, combined: AggregatedUplink) -> Vector:
        if self.robust_mean is None:
            return combined.mean
        assert combined.each is not None, "gathers is true"
        return self.robust_mean.combine(combined.each.rows)
