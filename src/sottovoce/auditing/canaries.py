"""Canaries: contributions of known direction and huge norm, put where real ones come from.

A canary replaces one record's gradient, or one client's local model, before anything is clipped.
What happens to it then is the real thing: clip, sum, projection, rotation, mechanism, wire, ledger,
channel. If it is out, zero stands in its place (zero-out), or its opposite (replace-one).

Signs alternate from round to round, c_t = +1, -1, +1, ..., and so do those with which the released
vectors y_t are added up. A canary's score is sum_t c_t <y_t, u>: what is the same in every round
drops out of it, noise that was used twice too. Where each message is seen, the mean message of
clients that always send zero is taken off: noise that clients share drops out too.

References: Jagielski et al. 2020 and Nasr et al. 2023 (gradient canaries); Andrew et al. 2024 (in
federated learning, in one run).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.federated.algorithms.algorithm import Combined

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
