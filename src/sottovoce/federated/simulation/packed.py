"""The backend that draws, packs and adds up real codes, without message headers.

The codes are those that `rounds` would send from the same seed, and the means have the same bits.
Headers are counted and not built, and charges are counted in memory. Rows of several clients are
clipped, rotated and encoded at once, on several threads, or on a CUDA device if the rows are there,
the mechanism has kernels for it and Triton is installed. All ways give the same bits.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch

from sottovoce.core.domains import Vector
from sottovoce.core.randomness import Keystreams
from sottovoce.core.stages import stage
from sottovoce.federated.algorithms.algorithm import AggregatedUplink, ClientVectors
from sottovoce.federated.simulation.counted import InMemoryBackend
from sottovoce.federated.simulation.roster import Positions, SimulatedRoster
from sottovoce.learning.clients import Rows, factored
from sottovoce.mechanisms.encoding import PackedRows, encode_packed, prepare
from sottovoce.mechanisms.kernels import cuda
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.mechanisms.row_batches import rows_at_once
from sottovoce.protocol.broadcast import Start
from sottovoce.protocol.row_sums import CountedRows, OrderedSum, RowSums, SummedCodes, row_sums_of

_MAX_COORDINATES_ON_DEVICE = 1 << 26
_MAX_ROWS_ON_DEVICE = 4096


class PackedMessages(InMemoryBackend):
    """The backend that produces the bits of every message, without headers."""

    def combine(self, number: int, cohort: Positions, start: Start) -> tuple[AggregatedUplink, ...]:
        shared = self.roster.shared_mechanism(cohort)
        if shared is None or not self._counts_on_device(shared):
            return self._combine(number, cohort, start, shared)
        from sottovoce.mechanisms.kernels.cuda.batch import reading_later

        with reading_later() as unread:
            found = self._combine(number, cohort, start, shared)
        if unread.all_decided():
            return found
        # Of 2^40 codes about one needs the CPU. The same seeds give the same messages again.
        return self._combine(number, cohort, start, shared)

    def _counts_on_device(self, mechanism: Mechanism) -> bool:
        """Return whether messages of equal weight are counted where they are encoded."""
        return (
            self._device.type == "cuda"
            and cuda.available()
            and not self.algorithm.gathers
            and isinstance(self._sums_of(mechanism)(), CountedRows)
        )

    def _combine(
        self, number: int, cohort: Positions, start: Start, shared: Mechanism | None
    ) -> tuple[AggregatedUplink, ...]:
        """Do what `combine` does; clients with equal weights have the mechanism `shared`."""
        rotation = self.rotation(number)
        counted = None if shared is None else self._sums_of(shared)  # Equal weights cancel.
        sums = [
            _UplinkSum(
                self.roster,
                counted and counted(),
                rotation,
                self.dimension,
                self.algorithm.gathers,
            )
            for _ in range(self.algorithm.uplinks)
        ]
        for uplink, members, rows in self._blocks(number, cohort, start):
            for some, groups in self._encode(members, rows, rotation, number, uplink):
                sums[uplink].add(some, groups)
            del rows  # Large models are not kept while the next ones train.
        return tuple(one.combined() for one in sums)

    def _sums_of(self, mechanism: Mechanism) -> Callable[[], RowSums]:
        """Return what makes the sums of messages of equal weight; it is the same in all rounds."""
        known = self._known_sums.get(id(mechanism))
        if known is None:
            if self.channel.only_sums:
                known = partial(SummedCodes, self.dimension, mechanism)
            else:
                known = row_sums_of(self.dimension, mechanism, equal_weights=True)
            self._known_sums[id(mechanism)] = known
        return known

    @cached_property
    def _known_sums(self) -> dict[int, Callable[[], RowSums]]:
        """By the identity of a mechanism, which the roster keeps alive."""
        return {}

    def _encode(
        self, members: Positions, rows: Rows, rotation: Rotation | None, number: int, uplink: int
    ) -> Iterator[tuple[Positions, "list[_Group]"]]:
        """Yield clients with their packed codes, as many as are encoded at once."""
        together = self._rows_together()
        for first in range(0, len(members), together):
            some = members[first : first + together]
            groups = []
            for mechanism, positions in self.roster.groups(some):
                chosen = rows
                if len(positions) < len(rows):
                    chosen = rows.select(_index(first + positions))
                prepared = prepare(
                    mechanism, self._given(chosen), rotation=rotation, zero_nonfinite=True
                )
                streams = self._keystreams(some[positions], number, uplink)
                groups.append(_Group(mechanism, positions, encode_packed(prepared, streams)))
            yield some, groups

    def _rows_together(self) -> int:
        """Return how many clients are encoded at once."""
        if self._device.type != "cuda":
            return rows_at_once(self.dimension)
        capacity, most = _MAX_COORDINATES_ON_DEVICE, _MAX_ROWS_ON_DEVICE
        return max(1, min(most, capacity // self.dimension))

    def _given(self, rows: Rows) -> Any:
        """Return rows as `prepare` takes them."""
        if self._device.type == "cpu":
            return factored(rows)
        (matrix,) = rows.blocks(len(rows))
        return matrix

    def _keystreams(self, members: Positions, number: int, uplink: int) -> Keystreams:
        """Return the keystreams that `rounds` uses for the first attempt at these messages."""
        with stage("keys"):
            labels = self.roster.labels.take(members)
            return self.randomness.streams_of(("encode", self.run), labels, (number, uplink, 0))


class _Group(NamedTuple):
    """The messages of clients with the same mechanism, at their positions among some clients."""

    mechanism: Mechanism
    positions: Positions
    packed: PackedRows


class _UplinkSum:
    """The sum of the messages of one uplink, with the bits of the server's `create_mean`."""

    def __init__(
        self,
        roster: SimulatedRoster,
        counted: RowSums | None,
        rotation: Rotation | None,
        dimension: int,
        gathers: bool,
    ) -> None:
        self._roster, self._rotation, self._weight = roster, rotation, 0.0
        self._sums: RowSums | OrderedSum = counted or OrderedSum(dimension)
        self._each: list[tuple[int, Vector]] | None = [] if gathers else None

    def add(self, members: Positions, groups: Sequence[_Group]) -> None:
        """Add the messages of consecutive clients."""
        with stage("sum"):
            if isinstance(self._sums, OrderedSum):
                self._add_in_order(self._sums, members, groups)
            else:
                self._weight += len(members)
                for one in groups:
                    self._sums.add(one.packed, [1.0] * len(one.packed))
            if self._each is not None:
                codes, places = [one.packed.codes() for one in groups], _places(groups).tolist()
                self._each += [
                    (i, self._decoded(groups[group].mechanism.decode(codes[group][row])))
                    for i, (group, row) in zip(members.tolist(), places, strict=True)
                ]

    def _add_in_order(self, sums: OrderedSum, members: Positions, groups: Sequence[_Group]) -> None:
        """Add the messages one after the other, with the roundings of the server's mean."""
        weights = self._roster.weights[members]
        self._weight = float(
            np.cumsum(np.append(self._weight, weights))[-1]
        )  # One after the other.
        messages = [(one.mechanism, one.packed) for one in groups]
        sums.add(messages, weights, _places(groups))

    def combined(self) -> AggregatedUplink:
        """Return the weighted mean, rotated back, and all vectors if they were kept."""
        mean = self._sums.mean(self._weight, self._rotation)
        if self._each is None:
            return AggregatedUplink(mean=mean)
        each = ClientVectors(
            clients=tuple(self._roster.names[i] for i, _ in self._each),
            rows=np.stack([vector for _, vector in self._each]),
            weights=self._roster.weights[[i for i, _ in self._each]],
        )
        return AggregatedUplink(mean=mean, each=each)

    def _decoded(self, vector: Vector) -> Vector:
        """Return a decoded vector, rotated back."""
        with stage("rotate back"):
            return vector if self._rotation is None else self._rotation.inverse(vector)


def _places(groups: Sequence[_Group]) -> Positions:
    """Return the group of each client, and its row there, in the order of the clients."""
    places = np.empty((sum(len(one.positions) for one in groups), 2), dtype=np.int64)
    for group, one in enumerate(groups):
        places[one.positions, 0] = group
        places[one.positions, 1] = np.arange(len(one.positions))
    return places


def _index(positions: Positions) -> Any:
    """Return positions as a slice if they are consecutive, so that rows are not copied."""
    first, last = int(positions[0]), int(positions[-1]) + 1
    if last - first == len(positions):
        return slice(first, last)
    return torch.from_numpy(positions)
