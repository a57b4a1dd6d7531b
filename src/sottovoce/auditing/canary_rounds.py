"""Rounds of the real algorithm with canaries in place of some gradients or local models.

A canary is a contribution of known direction and very large norm. It replaces one record's gradient
or one client's local model before clipping. Everything after that is the real computation: clip,
sum, projection, rotation, mechanism, wire format, ledger, channel. A canary that is out is replaced
by zero (zero-out) or by its opposite (replace-one).

The sign of the canaries alternates from round to round, c_t = +1, -1, +1, ..., and so does the sign
with which the released vectors y_t are added up. The score of a canary with direction u is
sum_t c_t <y_t, u>. What is the same in every round cancels (over an even number of rounds); this
includes noise that was used twice. Where the auditor sees each message, the mean message of the
clients that always send zero is subtracted, so noise that clients share cancels too.

References: Jagielski et al. 2020 and Nasr et al. 2023 (gradient canaries); Andrew et al. 2024 (in
federated learning, in one run).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import Floats, L2Ball, SteppedBall, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.federated.algorithms.algorithm import (
    AggregatedUplink,
    Algorithm,
    Block,
    ClientStepInput,
    ClientVectors,
    State,
    message_mechanism,
    shared_numbers_of,
)
from sottovoce.learning.clients import ClientData, DenseRows, Rows, names_of, sizes_of
from sottovoce.learning.minibatches import Minibatches
from sottovoce.learning.optimizers import PLAIN_SGD, OptimizerSettings
from sottovoce.learning.task import Task
from sottovoce.mechanisms.mechanism import Mechanism

_TIMES_THE_CLIP = 1000.0  # So large that a missing or wrong clipping shows in the scores.


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """The canaries of a run: their directions, their places, and which of them are in.

    A canary is a contribution of known direction that replaces one record's gradient or one
    client's local model. One that is out contributes 0 (zero-out) or its opposite (replace-one).

    Attributes:
        blocks: The coordinates of each canary.
        signs: The sign of each coordinate of the model; canary i has the direction
            signs[blocks[i]]/sqrt(len(blocks[i])).
        coins: +1 for each canary that is in, -1 for each that is out.
        hosts: The name of the client that has each canary.
        places: The position of the record that each canary replaces at its host. At client level
            the whole client is replaced.
        silent: Names of clients that contribute nothing but canaries. Those without a canary are
            the references.
        clip_norm: The clipping norm of the run.
        adjacency: The adjacency of the run.
    """

    blocks: tuple[slice, ...]
    signs: Vector
    coins: NDArray[np.int64]
    hosts: tuple[str, ...]
    places: tuple[int, ...]
    silent: frozenset[str]
    clip_norm: float
    adjacency: Adjacency

    def __len__(self) -> int:
        return len(self.hosts)

    @cached_property
    def hosted(self) -> dict[str, list[int]]:
        """The numbers of the canaries of each client that has one, by the client's name."""
        found: dict[str, list[int]] = {}
        for number, host in enumerate(self.hosts):
            found.setdefault(host, []).append(number)
        return found

    @property
    def references(self) -> frozenset[str]:
        """The silent clients without a canary, whose messages are noise only."""
        return self.silent - set(self.hosts)

    def contribution(self, number: int, round_number: int) -> Vector:
        """Return the vector that canary `number` contributes in a round, before clipping.

        If the canary is in, it is 1000 clipping norms long, and its sign changes every round; if it
        is out, it is 0 (zero-out) or the opposite (replace-one).
        """
        out = -1.0 if self.adjacency is Adjacency.REPLACE_ONE else 0.0
        side = 1.0 if self.coins[number] > 0 else out
        size = side * _sign(round_number) * _TIMES_THE_CLIP * self.clip_norm
        row, block = np.zeros(len(self.signs)), self.blocks[number]
        row[block] = size * self._direction(block)
        return row

    def scores(self, combined: AggregatedUplink, round_number: int) -> Vector:
        """Return what one round adds to both scores of each canary, as a (2, canaries) array.

        The first row has the released values along the canary's direction, the second their signs;
        both change sign every round, as canaries do. They come from the message of the canary's
        client, or from the mean if messages are not seen; 0 for a client that sent none. The sum of
        values is the best statistic against Gaussian noise, the sum of signs against Laplace noise.
        Single messages are multiplied by their weights, which undoes the division by a client's
        number of records.
        """
        found = np.zeros((2, len(self)))
        for number, values in self._observed(combined):
            direction = self._direction(self.blocks[number])
            found[:, number] = values @ direction, np.sign(values) @ direction
        return _sign(round_number) * found

    def _observed(self, combined: AggregatedUplink) -> Iterator[tuple[int, Vector]]:
        """Yield (canary, values at its coordinates) of its host's message, or else of the mean."""
        if combined.each is None:
            yield from ((number, combined.mean[block]) for number, block in enumerate(self.blocks))
            return
        each = combined.each
        places = {name: place for place, name in enumerate(each.clients)}
        still = [places[name] for name in sorted(self.references) if name in places]
        rest = each.rows[still].mean(axis=0) if still else np.zeros(len(self.signs))
        for number, (host, block) in enumerate(zip(self.hosts, self.blocks, strict=True)):
            if host in places:
                place = places[host]
                yield number, each.weights[place] * (each.rows[place, block] - rest[block])

    def _direction(self, block: slice) -> Vector:
        signs = self.signs[block]
        return signs / math.sqrt(len(signs))


def _sign(round_number: int) -> float:
    return 1.0 if round_number % 2 else -1.0


def split_coordinates(dimension: int, count: int) -> tuple[slice, ...]:
    """Return `count` disjoint slices of equal length, so that canaries have orthogonal directions.

    Coordinates that remain at the end belong to no slice. Raise ParameterError unless `count` lies
    between 1 and `dimension`.
    """
    if not 1 <= count <= dimension:
        raise ParameterError(
            f"{dimension} coordinates hold at most {dimension} orthogonal canaries, got {count}; "
            f"choose a number from 1 to {dimension}"
        )
    size = dimension // count
    return tuple(slice(i * size, (i + 1) * size) for i in range(count))


SCORES, ROUNDS = "canary_scores", "canary_rounds"
_ROWS_TOGETHER = 1 << 22  # Entries of silent clients' gradients that are held at once.


class CanaryTask(Task):
    """A task with canaries in place of some gradients or local models, for one round.

    `origin` is the local model of a client that contributes nothing. If records are not `sampled`,
    the zero gradients of silent clients do not change any sum and are left out.
    """

    def __init__(
        self,
        task: Task,
        canaries: Canaries,
        round_number: int,
        origin: Floats,
        *,
        sampled: bool,
    ) -> None:
        self.__dict__.update(vars(task))
        self._canaries, self._round, self._sampled = canaries, round_number, sampled
        self._origin = torch.from_numpy(origin).to(task.device, torch.float64)

    def sample_gradients(
        self, model: Floats, clients: Sequence[ClientData], chosen: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Rows]]:
        names, sizes = names_of(clients), sizes_of(clients)
        offset = 0
        for start, stop, silent in _runs([name in self._canaries.silent for name in names]):
            total = sum(sizes[start:stop])
            if silent and not self._sampled:
                yield from self._canary_rows(names[start:stop], start)
                offset += total
                continue
            rows_of = self._silent_rows if silent else super().sample_gradients
            planted = self._planted_rows(names[start:stop], sizes[start:stop])
            seen = 0
            for owners, rows in rows_of(model, clients[start:stop]):
                dense = _dense(rows)
                for place, row in planted.items():
                    if seen <= place < seen + len(dense):
                        dense[place - seen] = row
                kept = slice(offset + seen, offset + seen + len(dense))
                seen += len(dense)
                mask = slice(None) if chosen is None else chosen[kept].to(self.device)
                yield owners[mask] + start, DenseRows(dense[mask])
            offset += total

    def closed_form_gradients(self, model: Floats, clients: Sequence[ClientData]) -> Rows | None:
        if any(self._is_replaced(name) for name in names_of(clients)):
            return None  # These clients have a local model and no gradient.
        return super().closed_form_gradients(model, clients)

    def local_models(
        self,
        model: Floats,
        clients: Sequence[ClientData],
        *,
        steps: int | Minibatches,
        learning_rate: float,
        optimizer: OptimizerSettings = PLAIN_SGD,
        gradient_clip: float | None = None,
        proximal_weights: Sequence[float] | None = None,
        corrections: Tensor | None = None,
    ) -> Iterator[tuple[int, Tensor]]:
        names = names_of(clients)
        for start, stop, replaced in _runs([self._is_replaced(name) for name in names]):
            if replaced:
                yield start, torch.stack([self._replaced_model(n) for n in names[start:stop]])
                continue
            for place, rows in super().local_models(
                model,
                clients[start:stop],
                steps=steps if isinstance(steps, int) else steps[start:stop],
                learning_rate=learning_rate,
                optimizer=optimizer,
                gradient_clip=gradient_clip,
                proximal_weights=proximal_weights and proximal_weights[start:stop],
                corrections=None if corrections is None else corrections[start:stop],
            ):
                yield start + place, rows

    def _is_replaced(self, name: str) -> bool:
        return name in self._canaries.silent or name in self._canaries.hosted

    def _replaced_model(self, name: str) -> Tensor:
        moved = self._origin.clone()
        for number in self._canaries.hosted.get(name, []):
            row = self._canaries.contribution(number, self._round)
            moved += torch.from_numpy(row).to(self.device)
        return moved

    def _planted_rows(self, names: Sequence[str], sizes: Sequence[int]) -> dict[int, Tensor]:
        """Return the canaries of these clients by the position of the record they replace."""
        found, offset = {}, 0
        for name, size in zip(names, sizes, strict=True):
            for number in self._canaries.hosted.get(name, []):
                found[offset + self._canaries.places[number]] = self._gradient(number)
            offset += size
        return found

    def _gradient(self, number: int) -> Tensor:
        """Return the gradient of a canary: the negative of its contribution."""
        row = -self._canaries.contribution(number, self._round)
        return torch.from_numpy(row).to(self.device, torch.float32)

    def _canary_rows(self, names: Sequence[str], start: int) -> Iterator[tuple[Tensor, Rows]]:
        """Yield the canaries of silent clients, without their zero gradients."""
        found = [
            (i, n) for i, name in enumerate(names) for n in self._canaries.hosted.get(name, [])
        ]
        together = max(1, _ROWS_TOGETHER // self.dimension)
        for first in range(0, len(found), together):
            some = found[first : first + together]
            owners = torch.tensor([i for i, _ in some], device=self.device) + start
            yield owners, DenseRows(torch.stack([self._gradient(number) for _, number in some]))

    def _silent_rows(
        self,
        model: Floats,  # noqa: ARG002
        clients: Sequence[ClientData],
    ) -> Iterator[tuple[Tensor, Rows]]:
        """Yield gradients of zero for all records of some clients."""
        owners = torch.repeat_interleave(
            torch.arange(len(clients)), torch.tensor(sizes_of(clients))
        ).to(self.device)
        for part in torch.split(owners, max(1, _ROWS_TOGETHER // self.dimension)):
            yield part, DenseRows(torch.zeros(len(part), self.dimension, device=self.device))


def _dense(rows: Rows) -> Tensor:
    (block,) = rows.blocks(len(rows))
    return block.clone()


def _runs(flags: Sequence[bool]) -> Iterator[tuple[int, int, bool]]:
    """Yield (start, stop, flag) of each stretch of equal flags."""
    start = 0
    for stop in range(1, len(flags) + 1):
        if stop == len(flags) or flags[stop] != flags[start]:
            yield start, stop, flags[start]
            start = stop


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryAlgorithm:
    """An algorithm with canaries among the clients' contributions and their scores in its state.

    Where the server sees each message (`gathers`), the model is updated from the messages of real
    clients only, as it would be without an audit. `inner` is the audited algorithm, and
    `sends_models` says whether its clients send models and not changes of the model.
    """

    inner: Algorithm
    canaries: Canaries
    gathers: bool
    sends_models: bool

    def __post_init__(self) -> None:
        if self.inner.uplinks != 1:
            raise ParameterError(
                f"canaries need an algorithm that sends one vector a round, and this one sends "
                f"{self.inner.uplinks}; use a run of 'fedavg' with the same privacy"
            )

    @property
    def unit(self) -> Unit:
        return self.inner.unit

    @property
    def record_sampling_rate(self) -> float:
        return self.inner.record_sampling_rate

    @property
    def uplinks(self) -> int:
        return self.inner.uplinks

    @property
    def shared_state(self) -> tuple[str, ...]:
        return self.inner.shared_state

    @property
    def shared_numbers(self) -> tuple[str, ...]:
        return shared_numbers_of(self.inner)

    def domain(self, dimension: int, num_samples: int) -> L2Ball | SteppedBall:
        return self.inner.domain(dimension, num_samples)

    def message_mechanism(self, mechanism: Mechanism) -> Mechanism:
        """Return the mechanism of the clients' messages, which is that of the run."""
        return message_mechanism(self.inner, mechanism)

    def weight(self, num_samples: int) -> float:
        return self.inner.weight(num_samples)

    def initialize(self, model: Vector) -> State:
        """Return the inner algorithm's state with scores of zero."""
        own = {SCORES: np.zeros((2, len(self.canaries))), ROUNDS: np.zeros(1)}
        return {**self.inner.initialize(model), **own}

    def client_steps(
        self, task: Task, clients: Sequence[ClientData], step: ClientStepInput
    ) -> Iterator[Block]:
        # The local model of a client that contributes nothing: zero if clients send models, and the
        # current model if they send its changes.
        origin = np.zeros_like(step.model) if self.sends_models else step.model
        sampled = self.inner.record_sampling_rate < 1.0
        planted = CanaryTask(task, self.canaries, step.round, origin, sampled=sampled)
        return self.inner.client_steps(planted, clients, step)

    def server_step(
        self, model: Vector, combined: Sequence[AggregatedUplink], state: State
    ) -> tuple[Vector, State]:
        number = int(state[ROUNDS][0]) + 1
        scores = state[SCORES] + self.canaries.scores(combined[0], number)
        inner = {name: value for name, value in state.items() if name not in (SCORES, ROUNDS)}
        real = _drop_silent(combined[0], self.canaries.silent)
        model, after = self.inner.server_step(model, [real], inner)
        return model, {**after, SCORES: scores, ROUNDS: np.array([float(number)])}


def _drop_silent(combined: AggregatedUplink, silent: frozenset[str]) -> AggregatedUplink:
    """Return what the clients that are not silent sent."""
    if combined.each is None or not silent:
        return combined
    each = combined.each
    real = [i for i, name in enumerate(each.clients) if name not in silent]
    kept = ClientVectors(
        clients=tuple(each.clients[i] for i in real),
        rows=each.rows[real],
        weights=each.weights[real],
    )
    return AggregatedUplink(mean=np.average(kept.rows, axis=0, weights=kept.weights), each=kept)
