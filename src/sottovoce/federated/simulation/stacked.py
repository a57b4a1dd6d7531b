"""Many runs of one configuration trained at once, each with its own records and randomness.

For experiments that need a hundred models of one kind, such as shadow models. Each run equals the
run that `Training` makes with drawn messages (`drawn`): the same seed gives the same samples of
records and the same noise, whichever runs are trained with it; only float rounding differs.

Runs can be stacked if each client sends one clipped gradient and the server takes a plain mean, as
FedAvg does at sample level. All runs share one pool of records; models, gradients and noise stay on
the task's device.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.core.domains import ROUNDING_HEADROOM, L2Ball, Vector
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms.algorithm import Algorithm
from sottovoce.federated.algorithms.fedavg import GradientSteps, Stackable
from sottovoce.federated.simulation.draws import RowRotation, draw_rotated_total, round_generator
from sottovoce.federated.simulation.roster import SimulatedRoster
from sottovoce.federated.training import MAX_COORDINATES_IN_MEMORY
from sottovoce.learning.clients import DenseRows, to_single
from sottovoce.learning.local_training import copy_to
from sottovoce.learning.task import Task
from sottovoce.mechanisms.coordinate_laws import CoordinateLaw, Coordinatewise
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.protocol.plan import ClientPlan

Rows = NDArray[np.int64]
OnRound = Callable[[int], None]

# The most gradient coordinates held at once. On a CPU the batch of one small model fills the
# cache, so computing further models at the same time gains nothing.
_TOGETHER = {"cpu": 1 << 22, "cuda": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The records of all runs, on the device where they train."""

    features: Tensor
    labels: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedRun:
    """One run of the stack.

    Attributes:
        run: Its name, which labels its random streams.
        randomness: Source of its noise and samples of records.
        model: Its initial model.
        parts: The plans of its clients, as many as in every other run of the stack.
        shares: For each client, the indices of its records in the pool.
    """

    run: str
    randomness: SeededRandomness
    model: Vector
    parts: Sequence[ClientPlan]
    shares: Sequence[Rows]


def can_stack(algorithm: Algorithm, parts: Sequence[ClientPlan], dimension: int) -> bool:
    """Return whether runs with this algorithm and these clients can be trained at once.

    They can if a round is one clipped gradient per client and a plain mean, all mechanisms declare
    the law of a coordinate, and the updates of one run fit the limit of 2^25 numbers.
    """
    return (
        isinstance(algorithm, Stackable)
        and algorithm.gradient_steps() is not None
        and len(parts) * dimension <= MAX_COORDINATES_IN_MEMORY
        and all(isinstance(part.mechanism, Coordinatewise) for part in parts)
    )


def train_stacked(
    task: Task,
    algorithm: Algorithm,
    pool: Pool,
    runs: Sequence[StackedRun],
    *,
    rounds: int,
    rotated: bool,
    on_round: OnRound | None = None,
) -> Vector:
    """Train all runs and return their final models, one row per run in the order of `runs`.

    `can_stack` must hold. `rotated` says whether each round rotates updates; `on_round` is called
    with the number of each finished round.
    """
    steps = algorithm.gradient_steps() if isinstance(algorithm, Stackable) else None
    assert steps is not None, "can_stack() was checked"
    return _Stack(task, steps, pool, runs, rotated=rotated).train(rounds, on_round)


class _Stack:
    def __init__(
        self,
        task: Task,
        steps: GradientSteps,
        pool: Pool,
        runs: Sequence[StackedRun],
        *,
        rotated: bool,
    ) -> None:
        self.task, self.steps, self.pool, self.runs = task, steps, pool, runs
        self.work, self.rotated = steps.work, rotated
        self.num_clients = len(runs[0].parts)
        sizes = [[len(share) for share in one.shares] for one in runs]
        records = [[float(self.work.records(size)) for size in row] for row in sizes]
        radii = [[_radius(part.mechanism) for part in one.parts] for one in runs]
        self.records = torch.tensor(records, device=task.device)[:, :, None]
        self.radii = torch.tensor(radii, device=task.device)[:, :, None]
        self.portions = [_portions(one.parts, task.device) for one in runs]

    def train(self, rounds: int, on_round: OnRound | None) -> Vector:
        """Run all rounds and return the final models as rows."""
        with _workers(self.task.device) as self.workers:
            return self._run_rounds(rounds, on_round)

    def _run_rounds(self, rounds: int, on_round: OnRound | None) -> Vector:
        models = torch.from_numpy(np.stack([one.model for one in self.runs])).to(self.task.device)
        velocity = torch.zeros_like(models)
        for number in range(1, rounds + 1):
            means = self._means(number, self._compute_updates(number, models.float()))
            velocity = self.steps.server_momentum * velocity + means
            models = models + self.steps.server_learning_rate * velocity
            if on_round:
                on_round(number)
        return models.cpu().numpy()

    def _compute_updates(self, number: int, models: Tensor) -> Tensor:
        """Return what each client sends, within its domain, shaped (runs, clients, parameters)."""
        batch = [self._select_records(one, number) for one in self.runs]
        longest = max(len(rows) for rows, _ in batch)
        capacity = _TOGETHER.get(self.task.device.type, _TOGETHER["cpu"])
        samples = max(1, capacity // self.task.elements_per_sample)  # Records per model.
        together = max(1, samples // max(1, longest))

        def totals(start: int) -> Tensor:
            stop = start + together
            return self._sum_gradients(models[start:stop], batch[start:stop], samples)

        found = list(self.workers(totals, range(0, len(batch), together)))
        updates = -torch.cat(found) / self.records
        norms = torch.linalg.vector_norm(updates, dim=2, keepdim=True)
        return updates * torch.clamp(self.radii / norms, max=1.0)

    def _select_records(self, one: StackedRun, number: int) -> tuple[Rows, Rows]:
        """Return the rows of the pool that take part in a round, and the client of each."""
        rows, owners = [], []
        for owner, (part, share) in enumerate(zip(one.parts, one.shares, strict=True)):
            chosen = self.work.records_of_round(
                one.randomness, one.run, part.client, number, len(share)
            )
            rows.append(share[chosen])
            owners.append(np.full(len(rows[-1]), owner))
        return np.concatenate(rows), np.concatenate(owners)

    def _sum_gradients(
        self, models: Tensor, batch: Sequence[tuple[Rows, Rows]], samples: int
    ) -> Tensor:
        """Sum the clipped gradients of some models by client, `samples` records at a time."""
        device = self.task.device
        total = torch.zeros(len(models), self.num_clients, self.task.dimension, device=device)
        longest = max(len(rows) for rows, _ in batch)
        rows = np.zeros((len(batch), longest), dtype=np.int64)
        owners = np.full((len(batch), longest), -1, dtype=np.int64)  # -1 marks padding.
        for i, (own_rows, own_owners) in enumerate(batch):
            rows[i, : len(own_rows)], owners[i, : len(own_rows)] = own_rows, own_owners
        places, clients_of = copy_to(rows, device), copy_to(owners, device)
        clients = torch.arange(self.num_clients, device=device)[None, :, None]
        for start in range(0, longest, samples):
            part = slice(start, start + samples)
            shares = (clients_of[:, None, part] == clients).float()
            features = to_single(self.pool.features[places[:, part]])
            labels = self.pool.labels[places[:, part]]
            found = self.task.stacked_gradients(models, features, labels)
            total += found.clipped_totals(self.work.limit, shares, normalizes=self.work.normalizes)
        return total

    def _means(self, number: int, updates: Tensor) -> Tensor:
        def mean(index: int) -> Tensor:
            return self._mean(index, number, updates[index])

        return torch.stack(list(self.workers(mean, range(len(self.runs)))))

    def _mean(self, index: int, number: int, updates: Tensor) -> Tensor:
        """Return the mean that the server decodes in one run."""
        one, device = self.runs[index], self.task.device
        generator = round_generator(one.randomness, one.run, number, device)
        row_rotation = None
        if self.rotated:
            rotation = Rotation.of_round(one.run, number, self.task.dimension)
            row_rotation = RowRotation(rotation, device)
        total = torch.zeros(self.task.dimension, dtype=torch.float64, device=device)
        for portion in self.portions[index]:
            rows = updates if portion.positions is None else updates[portion.positions]
            total += draw_rotated_total(
                portion.law, DenseRows(rows), portion.weights, generator, row_rotation
            )
        return total / sum(part.weight for part in one.parts)


@contextlib.contextmanager
def _workers(device: torch.device) -> Iterator[Callable[..., Iterable[Tensor]]]:
    """Provide a map over models; on a CPU each thread works on models of its own.

    Threads that share the matrix products of one small model mostly wait for each other.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield map
        return
    torch.set_num_threads(1)  # Each worker thread uses one.
    try:
        with ThreadPoolExecutor(threads) as pool:
            yield pool.map
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Portion:
    """Clients of a run that share a mechanism; `positions` is None if all clients do."""

    law: CoordinateLaw
    positions: Tensor | None
    weights: Tensor


def _portions(parts: Sequence[ClientPlan], device: torch.device) -> list[_Portion]:
    portions = []
    for mechanism, positions in SimulatedRoster(parts).groups(np.arange(len(parts))):
        assert isinstance(mechanism, Coordinatewise), "can_stack() was checked"
        everyone = len(positions) == len(parts)
        portions.append(
            _Portion(
                law=mechanism.coordinate_law(),
                positions=None if everyone else torch.from_numpy(positions).to(device),
                weights=torch.tensor([parts[i].weight for i in positions], device=device),
            )
        )
    return portions


def _radius(mechanism: Mechanism) -> float:
    """Return the largest norm in the mechanism's domain, less the headroom for rounding."""
    domain = mechanism.input_domain
    return domain.radius * (1.0 - ROUNDING_HEADROOM) if isinstance(domain, L2Ball) else np.inf
