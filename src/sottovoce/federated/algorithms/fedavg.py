"""Federated averaging, with two kinds of local work that fix what is protected.

SampleClippedGradient   sample level: one step whose per-sample gradients are clipped, so that one
                        sample moves the client's mean by at most C/n (zero-out).
LocalSgd                client level: several local steps; the whole update is clipped to C. With
                        one step it is federated SGD; with penalties, FedProx.

The server takes the mean of the decoded messages, or a robust mean of their rows, which no minority
can move at will:

CoordinateMedian        the median of each coordinate. It holds as long as fewer than half of the
                        clients lie. Of n messages with Gaussian noise it has pi/2 times the
                        variance of their mean; of messages with a few letters it is one of the
                        letters, so that of single bits it is a majority vote, which is no estimate
                        of a mean (a random rotation makes messages look Gaussian again).
TrimmedMean             the mean of each coordinate without its largest and smallest values. It
                        holds as long as no more clients lie than are trimmed at one end. With
                        Gaussian noise the variance grows from that of the mean (fraction 0) to
                        pi/2 times it (towards 1/2, the median). Messages of a few letters lose
                        letters, and with them the mean's unbiasedness.

Robust means weight nothing: a weight is a client's own word for how far it may move the result.

References: McMahan et al. 2017 (federated averaging and SGD); Abadi et al. 2016 (per-sample
clipping); Li et al. 2020 (FedProx, equation 2); Yin, Chen, Kannan and Bartlett 2018 (definitions 1
and 2, algorithm 1, options I and II).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import ROUNDING_HEADROOM, L2Ball, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Randomness
from sottovoce.federated.algorithms.algorithm import Block, Combined, State, Step
from sottovoce.learning.clients import ClientData, DenseRows, Rows, clipping, names_of, sizes_of
from sottovoce.learning.task import Task


def checked_rows(rows: Vector) -> Vector:
    """A matrix with a finite row for each of at least one client."""
    found = np.asarray(rows, dtype=np.float64)
    if found.ndim != 2 or not len(found):
        raise ParameterError(
            f"expected messages as rows, got an array of shape {found.shape}; stack at least one"
        )
    if not np.isfinite(found).all():
        raise ParameterError("a message is not finite; leave it out")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimmedMean:
    """floor(fraction n) values are dropped at either end of each coordinate."""

    fraction: float

    def __post_init__(self) -> None:
        if not 0.0 <= parameter_rules.finite("fraction", self.fraction) < 0.5:
            raise ParameterError(
                f"the fraction to trim at each end must lie in [0, 1/2), got {self.fraction}; "
                "use the median to trim all but the middle"
            )

    def trimmed(self, clients: int) -> int:
        """How many values are dropped at each end of a coordinate."""
        return int(self.fraction * clients)

    def combine(self, rows: Vector) -> Vector:
        checked = checked_rows(rows)
        drop = self.trimmed(len(checked))
        if not drop:
            return np.asarray(checked.mean(axis=0))
        # Two partitions, not a sort: what lies between the ends needs no order.
        inner = np.partition(checked, (drop, len(checked) - drop - 1), axis=0)
        return np.asarray(inner[drop : len(checked) - drop].mean(axis=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinateMedian:
    """The middle value of each coordinate, or half-way between two middle values."""

    def combine(self, rows: Vector) -> Vector:
        return np.asarray(np.median(checked_rows(rows), axis=0), dtype=np.float64)


# Clipped gradients are rounded to this fraction of the clip norm; MAX_RECORDS of them fit int64.
_GRID = 2.0**-40


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleClippedGradient:
    """The mean of per-sample gradients, each clipped to `clip_norm`; protects one sample.

    With a `sampling_rate` q below 1 every record takes part in a round with probability q, drawn by
    its client and seen by nobody; the sum is divided by the public number of records that are
    expected. (More than those may come: the projection onto the domain takes care of that, and
    brings no two inputs further apart.)

    "exact": clipped gradients are rounded to multiples of 2^-40 C and added up as integers: the sum
    is exact, so one sample moves it by its own contribution and nothing else, whatever the order.
    "float": they are added up in float32, for a simulation that sends nothing.
    A gradient that is not finite counts as zero.
    """

    clip_norm: float
    sampling_rate: float = 1.0
    summation: Literal["exact", "float"] = "exact"
    unit: ClassVar[Unit] = Unit.SAMPLE

    def __post_init__(self) -> None:
        parameter_rules.clip_norm("clip_norm", self.clip_norm)
        parameter_rules.fraction("sampling_rate", self.sampling_rate)

    def records(self, num_samples: int) -> int:
        """Contributions in a client's mean: its samples, whose number is public, times q."""
        return max(1, int(self.sampling_rate * num_samples))

    def updates(
        self, task: Task, clients: Sequence[ClientData], step: Step
    ) -> Iterator[tuple[int, Rows]]:
        taking_part = self._sample(clients, step)
        if self.summation == "float" and taking_part is None and max(sizes_of(clients)) == 1:
            yield from self._own_gradients(task, clients, step.model)
            return
        add = self._exact_sums if self.summation == "exact" else self._float_sums
        totals = add(task, clients, step.model, taking_part)
        records = [self.records(size) for size in sizes_of(clients)]
        # A grid step over the records: the product is rounded once.
        factors = [-(self._grid if self.summation == "exact" else 1.0) / n for n in records]
        factor = torch.tensor(factors, dtype=torch.float64, device=totals.device)
        yield 0, DenseRows(totals * factor.to(_float_of(totals))[:, None])

    @property
    def _grid(self) -> float:
        return self.clip_norm * _GRID

    @property
    def limit(self) -> float:
        """What gradients are shortened to: below the clip by more than rounding can add."""
        return self.clip_norm * (1.0 - ROUNDING_HEADROOM)

    def _sample(self, clients: Sequence[ClientData], step: Step) -> Tensor | None:
        """Which records take part, client after client; None if all of them do."""
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
        """Which of a client's records take part in a round."""
        if self.sampling_rate >= 1.0:
            return np.ones(size, dtype=bool)
        threshold = int(self.sampling_rate * 2.0**64)  # rounded down: no likelier than charged
        words = randomness.stream("records", run, client, number).words(size)
        return words < np.uint64(threshold)

    def _exact_sums(
        self, task: Task, clients: Sequence[ClientData], model: Vector, taking_part: Tensor | None
    ) -> Tensor:
        totals = torch.zeros(len(clients), task.dimension, dtype=torch.int64, device=task.device)
        seen = 0
        # All gradients, also of records that are left out: shapes must not tell who takes part.
        for owners, rows in task.sample_gradients(model, clients):
            for gradients in rows.blocks(len(rows)):
                steps = gradients.to(torch.float64)
                norms = torch.linalg.vector_norm(steps, dim=1, keepdim=True)
                # Float32 entries cannot overflow a float64 norm: it is finite if all of them are.
                bad = ~torch.isfinite(norms[:, 0])
                steps *= (self.limit / self._grid) / torch.clamp(norms, min=self.limit)
                steps[bad] = 0.0
                if taking_part is not None:
                    steps[~taking_part[seen : seen + len(owners)].to(steps.device)] = 0.0
                totals.index_add_(0, owners, steps.round_().to(torch.int64))
            seen += len(owners)
        return totals

    def _float_sums(
        self, task: Task, clients: Sequence[ClientData], model: Vector, taking_part: Tensor | None
    ) -> Tensor:
        totals = torch.zeros(len(clients), task.dimension, device=task.device)
        for owners, rows in task.sample_gradients(model, clients, taking_part):
            finite, factors = clipping(rows, self.limit)
            for owner, own in _runs(owners):
                totals[owner] += finite.select(own).total(factors[own])
        return totals

    def _own_gradients(
        self, task: Task, clients: Sequence[ClientData], model: Vector
    ) -> Iterator[tuple[int, Rows]]:
        """Clients with one sample each: their gradients are their updates, and nothing is added."""
        start = 0
        for _, rows in task.sample_gradients(model, clients):
            finite, factors = clipping(rows, self.limit)
            yield start, finite.scaled(-factors)
            start += len(rows)


def _float_of(totals: Tensor) -> torch.dtype:
    return torch.float64 if totals.dtype == torch.int64 else totals.dtype


def _runs(owners: Tensor) -> Iterator[tuple[int, slice]]:
    """Each owner and where its rows are: they lie side by side."""
    found, counts = torch.unique_consecutive(owners, return_counts=True)
    stop = 0
    for owner, count in zip(found.tolist(), counts.tolist(), strict=True):
        start, stop = stop, stop + count
        yield owner, slice(start, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSgd:
    """The change of the model over `steps` full-batch steps; protects the whole client.

    `penalties` holds lambda_k for clients that are pulled back to where they started,

        w <- w - learning_rate (gradient + lambda_k (w - w_0)),

    w_0 being the model that the server released, as everything here that is not the client's own;
    `proximal_weight` is added to all of them. A first step starts at w_0, so with `steps` = 1 no
    penalty has any effect.
    """

    clip_norm: float
    steps: int
    learning_rate: float
    proximal_weight: float = 0.0
    penalties: Mapping[str, float] = field(default_factory=dict)
    unit: ClassVar[Unit] = Unit.CLIENT
    sampling_rate: ClassVar[float] = 1.0  # all records, always

    def __post_init__(self) -> None:
        parameter_rules.clip_norm("clip_norm", self.clip_norm)
        parameter_rules.integer("local_steps", self.steps, low=1, high=10**6)
        parameter_rules.positive("local_learning_rate", self.learning_rate)
        if parameter_rules.finite("proximal_weight", self.proximal_weight) < 0.0:
            raise ParameterError(f"proximal_weight must be at least 0, got {self.proximal_weight}")
        for client, penalty in self.penalties.items():
            if not 0.0 <= parameter_rules.finite("penalty", penalty) <= 1.0:
                raise ParameterError(
                    f"the penalty of client '{client}' must lie in [0, 1], got {penalty}"
                )

    def records(self, num_samples: int) -> int:
        """One, whatever the number of samples: that number is private here."""
        return 1

    def updates(
        self, task: Task, clients: Sequence[ClientData], step: Step
    ) -> Iterator[tuple[int, Rows]]:
        if self.steps == 1:
            gradients = task.first_steps(step.model, clients)
            if gradients is not None:
                rate = torch.full((len(gradients),), -self.learning_rate, device=task.device)
                yield 0, gradients.scaled(rate)
                return
        models = task.local_models(
            step.model,
            clients,
            steps=self.steps,
            learning_rate=self.learning_rate,
            proximal_weights=self._pulls(clients),
        )
        origin = torch.from_numpy(step.model).to(task.device)
        for start, rows in models:
            yield start, DenseRows(rows.to(torch.float64) - origin)

    def _pulls(self, clients: Sequence[ClientData]) -> list[float] | None:
        if not self.penalties:
            return [self.proximal_weight] * len(clients) if self.proximal_weight else None
        names = names_of(clients)
        return [self.proximal_weight + self.penalties.get(name, 0.0) for name in names]


def budget_penalties(epsilons: Mapping[str, float]) -> dict[str, float]:
    """lambda_k = (eps_max - eps_k)/eps_max: the smaller a budget, the closer to the shared model.

    Budgets are public, and so are these.
    """
    largest = max(epsilons.values())
    return {client: (largest - epsilon) / largest for client, epsilon in epsilons.items()}


LocalWork = SampleClippedGradient | LocalSgd


@runtime_checkable
class SendsLocalWork(Protocol):
    """An algorithm whose clients send what their local work gives, and nothing else."""

    @property
    def local_work(self) -> LocalWork: ...


def ball_of(work: LocalWork, dimension: int, num_samples: int) -> L2Ball:
    """Where the update of a client with so many samples lies."""
    records = work.records(num_samples)
    return L2Ball(dimension=dimension, radius=work.clip_norm, records=records)


def blocks_of(
    work: LocalWork, task: Task, clients: Sequence[ClientData], step: Step
) -> Iterator[Block]:
    """Blocks of clients that send their update and nothing else."""
    for start, rows in work.updates(task, clients, step):
        yield Block(start=start, uplinks=(rows,))


RobustMean = CoordinateMedian | TrimmedMean


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSteps:
    """Rounds of one clipped gradient a client, whose mean the server follows with momentum."""

    work: SampleClippedGradient
    server_learning_rate: float
    server_momentum: float


@runtime_checkable
class Stackable(Protocol):
    """An algorithm whose runs may be trained side by side."""

    def gradient_steps(self) -> GradientSteps | None:
        """Return all that the algorithm does, if it does no more than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvg:
    """Model += learning rate * velocity, velocity = momentum * velocity + mean update.

    The mean is weighted. With a `robust_mean` that takes its place: it needs every decoded message
    and weighs all of them alike. It is post-processing, and changes no charge.
    """

    local_work: LocalWork
    server_learning_rate: float
    server_momentum: float
    robust_mean: RobustMean | None = None
    uplinks: ClassVar[int] = 1
    shared_state: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        parameter_rules.positive("server_learning_rate", self.server_learning_rate)
        momentum = parameter_rules.finite("server_momentum", self.server_momentum)
        if not 0.0 <= momentum < 1.0:
            raise ParameterError(f"server_momentum must lie in [0, 1), got {momentum}")

    @property
    def unit(self) -> Unit:
        return self.local_work.unit

    @property
    def record_sampling_rate(self) -> float:
        return self.local_work.sampling_rate

    @property
    def gathers(self) -> bool:
        return self.robust_mean is not None

    def domain(self, dimension: int, num_samples: int) -> L2Ball:
        return ball_of(self.local_work, dimension, num_samples)

    def weight(self, num_samples: int) -> float:
        """The number of records behind the mean: the public sample count, or one client."""
        return float(self.local_work.records(num_samples))

    def initialise(self, model: Vector) -> State:
        return {"velocity": np.zeros_like(model)}

    def client_steps(
        self, task: Task, clients: Sequence[ClientData], step: Step
    ) -> Iterator[Block]:
        yield from blocks_of(self.local_work, task, clients, step)

    def server_step(
        self, model: Vector, combined: Sequence[Combined], state: State
    ) -> tuple[Vector, State]:
        velocity = self.server_momentum * state["velocity"] + self._middle(combined[0])
        return model + self.server_learning_rate * velocity, {"velocity": velocity}

    def gradient_steps(self) -> GradientSteps | None:
        """Return all that a round does, if it is so simple; what inherits may step otherwise."""
        work = self.local_work
        if type(self) is not FedAvg or self.gathers or not isinstance(work, SampleClippedGradient):
            return None
        return GradientSteps(
            work=work,
            server_learning_rate=self.server_learning_rate,
            server_momentum=self.server_momentum,
        )

    def _middle(self, combined: Combined) -> Vector:
        if self.robust_mean is None:
            return combined.mean
        assert combined.each is not None  # this algorithm gathers
        return self.robust_mean.combine(combined.each.rows)
