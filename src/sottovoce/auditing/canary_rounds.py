"""A round of the real algorithm, with canaries where gradients and local models come from.

Canaries are contributions of known direction and huge norm. A canary replaces one record's
gradient, or one client's local model, before anything is clipped. What happens to it then is the
real thing: clip, sum, projection, rotation, mechanism, wire, ledger, channel. If it is out, zero
stands in its place (zero-out), or its opposite (replace-one).

Signs alternate from round to round, c_t = +1, -1, +1, ..., and so do those with which the released
vectors y_t are added up. A canary's score is sum_t c_t <y_t, u>: what is the same in every round
drops out of it, noise that was used twice too. Where each message is seen, the mean message of
clients that always send zero is taken off: noise that clients share drops out too.

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
from sottovoce.core.domains import L2Ball, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.federated.algorithms.algorithm import Algorithm, Block, Combined, Each, State, Step
from sottovoce.learning.clients import ClientData, DenseRows, Rows, names_of, sizes_of
from sottovoce.learning.task import Task

_TIMES_THE_CLIP = 1000.0  # a clip that is wrong shows


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """Which client has which canary, in which direction, and whether it is in.

    Canary i has the coordinates blocks[i], with the `signs` there. `hosts` are names, and `places`
    the record that it replaces there (at client level the whole client is replaced). Clients in
    `silent` contribute nothing else, and those of them that host no canary are the references.
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
        """The canaries of each host."""
        found: dict[str, list[int]] = {}
        for number, host in enumerate(self.hosts):
            found.setdefault(host, []).append(number)
        return found

    @property
    def references(self) -> frozenset[str]:
        return self.silent - set(self.hosts)

    def contribution(self, number: int, round_number: int) -> Vector:
        """What stands in the canary's place in a round."""
        out = -1.0 if self.adjacency is Adjacency.REPLACE_ONE else 0.0
        side = 1.0 if self.coins[number] > 0 else out
        size = side * _sign(round_number) * _TIMES_THE_CLIP * self.clip_norm
        row, block = np.zeros(len(self.signs)), self.blocks[number]
        row[block] = size * self._direction(block)
        return row

    def scores(self, combined: Combined, round_number: int) -> Vector:
        """What one round adds to both scores: rows by value, and by sign.

        Values are the best there is against Gaussian noise, signs against Laplace's. Messages count
        by their weight, which undoes the division by a client's records.
        """
        found = np.zeros((2, len(self)))
        for number, values in self._seen(combined):
            direction = self._direction(self.blocks[number])
            found[:, number] = values @ direction, np.sign(values) @ direction
        return _sign(round_number) * found

    def _seen(self, combined: Combined) -> Iterator[tuple[int, Vector]]:
        """What there is to see of each canary: its host's message, or else its part of the mean."""
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


def blocks_of(dimension: int, count: int) -> tuple[slice, ...]:
    """As many runs of coordinates, each as long as the others: orthogonal directions."""
    if not 1 <= count <= dimension:
        raise ParameterError(
            f"{dimension} coordinates hold from 1 to {dimension} orthogonal canaries, got {count}; "
            "ask for fewer"
        )
    size = dimension // count
    return tuple(slice(i * size, (i + 1) * size) for i in range(count))


SCORES, ROUNDS = "canary_scores", "canary_rounds"
_ROWS_TOGETHER = 1 << 22  # numbers of silent clients' gradients that are held at once


class CanaryTask(Task):
    """The task with canaries in the place of some gradients or local models, for one round.

    `origin` is what a client that contributes nothing would send as its local model. Where records
    are not `sampled` silent clients' zeros need not be added up, and are left out.
    """

    def __init__(
        self,
        task: Task,
        canaries: Canaries,
        round_number: int,
        origin: Vector,
        *,
        sampled: bool,
    ) -> None:
        self.__dict__.update(vars(task))
        self._canaries, self._round, self._sampled = canaries, round_number, sampled
        self._origin = torch.from_numpy(origin).to(task.device)

    def sample_gradients(
        self, model: Vector, clients: Sequence[ClientData], chosen: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Rows]]:
        names, sizes = names_of(clients), sizes_of(clients)
        offset = 0
        for start, stop, silent in _runs([name in self._canaries.silent for name in names]):
            total = sum(sizes[start:stop])
            if silent and not self._sampled:
                yield from self._canaries_alone(names[start:stop], start)
                offset += total
                continue
            rows_of = self._silent if silent else super().sample_gradients
            planted = self._planted(names[start:stop], sizes[start:stop])
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

    def first_steps(self, model: Vector, clients: Sequence[ClientData]) -> Rows | None:
        if any(self._is_replaced(name) for name in names_of(clients)):
            return None  # they have no gradient: local models stand in
        return super().first_steps(model, clients)

    def local_models(
        self,
        model: Vector,
        clients: Sequence[ClientData],
        *,
        steps: int,
        learning_rate: float,
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
                steps=steps,
                learning_rate=learning_rate,
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

    def _planted(self, names: Sequence[str], sizes: Sequence[int]) -> dict[int, Tensor]:
        """Canaries of these clients by the place of the record that they replace."""
        found, offset = {}, 0
        for name, size in zip(names, sizes, strict=True):
            for number in self._canaries.hosted.get(name, []):
                found[offset + self._canaries.places[number]] = self._gradient(number)
            offset += size
        return found

    def _gradient(self, number: int) -> Tensor:
        """What a step goes against."""
        row = -self._canaries.contribution(number, self._round)
        return torch.from_numpy(row).to(self.device, torch.float32)

    def _canaries_alone(self, names: Sequence[str], start: int) -> Iterator[tuple[Tensor, Rows]]:
        """The canaries of silent clients, and no zeros beside them."""
        found = [
            (i, n) for i, name in enumerate(names) for n in self._canaries.hosted.get(name, [])
        ]
        together = max(1, _ROWS_TOGETHER // self.dimension)
        for first in range(0, len(found), together):
            some = found[first : first + together]
            owners = torch.tensor([i for i, _ in some], device=self.device) + start
            yield owners, DenseRows(torch.stack([self._gradient(number) for _, number in some]))

    def _silent(
        self,
        model: Vector,  # noqa: ARG002
        clients: Sequence[ClientData],
    ) -> Iterator[tuple[Tensor, Rows]]:
        """Gradients of zero, for all records of some clients."""
        owners = torch.repeat_interleave(
            torch.arange(len(clients)), torch.tensor(sizes_of(clients))
        ).to(self.device)
        for part in torch.split(owners, max(1, _ROWS_TOGETHER // self.dimension)):
            yield part, DenseRows(torch.zeros(len(part), self.dimension, device=self.device))


def _dense(rows: Rows) -> Tensor:
    (block,) = rows.blocks(len(rows))
    return block.clone()


def _runs(flags: Sequence[bool]) -> Iterator[tuple[int, int, bool]]:
    """Stretches of equal flags."""
    start = 0
    for stop in range(1, len(flags) + 1):
        if stop == len(flags) or flags[stop] != flags[start]:
            yield start, stop, flags[start]
            start = stop


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryAlgorithm:
    """The algorithm itself, with canaries among what clients contribute and scores in its state.

    The model goes on from real clients' messages alone where each message is seen (`gathers`), as
    it would without an audit.
    """

    inner: Algorithm
    canaries: Canaries
    gathers: bool
    sends_models: bool

    def __post_init__(self) -> None:
        if self.inner.uplinks != 1:
            raise ParameterError(
                f"a client sends {self.inner.uplinks} vectors a round here, and canaries are for "
                "one; audit the algorithm 'fedavg' with the same privacy"
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

    def domain(self, dimension: int, num_samples: int) -> L2Ball:
        return self.inner.domain(dimension, num_samples)

    def weight(self, num_samples: int) -> float:
        return self.inner.weight(num_samples)

    def initialise(self, model: Vector) -> State:
        own = {SCORES: np.zeros((2, len(self.canaries))), ROUNDS: np.zeros(1)}
        return {**self.inner.initialise(model), **own}

    def client_steps(
        self, task: Task, clients: Sequence[ClientData], step: Step
    ) -> Iterator[Block]:
        # Where clients send models, and not changes of one, nothing is the zero vector.
        origin = np.zeros_like(step.model) if self.sends_models else step.model
        sampled = self.inner.record_sampling_rate < 1.0
        planted = CanaryTask(task, self.canaries, step.round, origin, sampled=sampled)
        return self.inner.client_steps(planted, clients, step)

    def server_step(
        self, model: Vector, combined: Sequence[Combined], state: State
    ) -> tuple[Vector, State]:
        number = int(state[ROUNDS][0]) + 1
        scores = state[SCORES] + self.canaries.scores(combined[0], number)
        inner = {name: value for name, value in state.items() if name not in (SCORES, ROUNDS)}
        real = _without(combined[0], self.canaries.silent)
        model, after = self.inner.server_step(model, [real], inner)
        return model, {**after, SCORES: scores, ROUNDS: np.array([float(number)])}


def _without(combined: Combined, silent: frozenset[str]) -> Combined:
    """What real clients sent."""
    if combined.each is None or not silent:
        return combined
    each = combined.each
    real = [i for i, name in enumerate(each.clients) if name not in silent]
    kept = Each(
        clients=tuple(each.clients[i] for i in real),
        rows=each.rows[real],
        weights=each.weights[real],
    )
    return Combined(mean=np.average(kept.rows, axis=0, weights=kept.weights), each=kept)
