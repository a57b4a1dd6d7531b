"""The backend that draws, packs and adds up real codes, without message headers.

The codes are those that `rounds` would send from the same seed, and the means have the same bits.
Headers are counted and not built, and charges are counted in memory. Rows of several clients are
clipped, rotated and encoded at once, on several threads, or on a CUDA device if the rows are there,
the mechanism has kernels for it and Triton is installed. All ways give the same bits.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from sottovoce.core.domains import ROUNDING_HEADROOM, L2Ball, Vector
from sottovoce.core.randomness import Keystreams
from sottovoce.core.stages import stage
from sottovoce.federated.algorithms.algorithm import AggregatedUplink, ClientVectors
from sottovoce.federated.simulation.counted import InMemoryBackend, positions_by_mechanism
from sottovoce.learning.clients import Rows, clip_rows, factored
from sottovoce.mechanisms.encoding import PackedRows, encode_packed, prepare
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.mechanisms.row_batches import rows_at_once
from sottovoce.protocol.broadcast import Start
from sottovoce.protocol.plan import ClientPlan
from sottovoce.protocol.sums import add_in_order, create_row_sums, shared_mechanism

_MAX_COORDINATES_ON_DEVICE = 1 << 26
_MAX_ROWS_ON_DEVICE = 4096


class PackedMessages(InMemoryBackend):
    """The backend that produces the bits of every message, without headers."""

    def combine(
        self, number: int, cohort: Sequence[int], start: Start
    ) -> tuple[AggregatedUplink, ...]:
        rotation = self.rotation(number)
        everyone = [self.parts[i] for i in cohort]
        sums = [
            _UplinkSum(self.task.dimension, everyone, rotation, gathers=self.algorithm.gathers)
            for _ in range(self.algorithm.uplinks)
        ]
        for uplink, parts, rows in self._blocks(number, cohort, start):
            for some, groups in self._encode(parts, rows, rotation, number, uplink):
                sums[uplink].add(some, groups)
            del rows  # Large models are not kept while the next ones train.
        return tuple(one.combined() for one in sums)

    def _encode(
        self,
        parts: Sequence[ClientPlan],
        rows: Rows,
        rotation: Rotation | None,
        number: int,
        uplink: int,
    ) -> Iterator[tuple[Sequence[ClientPlan], "list[_Group]"]]:
        """Yield clients with their packed codes, as many as are encoded at once."""
        together = self._rows_together()
        for first in range(0, len(parts), together):
            some = parts[first : first + together]
            groups = []
            for positions in positions_by_mechanism(some):
                chosen = rows.select(_index([first + i for i in positions]))
                mechanism = some[positions[0]].mechanism
                prepared = prepare(
                    mechanism, self._given(chosen, mechanism), rotation=rotation,
                    zero_nonfinite=True,
                )  # fmt: skip
                streams = self._keystreams([some[i].client for i in positions], number, uplink)
                groups.append(_Group(mechanism, positions, encode_packed(prepared, streams)))
            yield some, groups

    def _rows_together(self) -> int:
        """Return how many clients are encoded at once."""
        if self._device.type != "cuda":
            return rows_at_once(self.task.dimension)
        capacity, most = _MAX_COORDINATES_ON_DEVICE, _MAX_ROWS_ON_DEVICE
        return max(1, min(most, capacity // self.task.dimension))

    def _given(self, rows: Rows, mechanism: Mechanism) -> Any:
        """Return rows as `prepare` takes them; on a device, rows that are not finite become 0."""
        if self._device.type == "cpu":
            return factored(rows)
        domain = mechanism.input_domain
        if isinstance(domain, L2Ball):
            rows = clip_rows(rows, domain.radius * (1.0 - ROUNDING_HEADROOM))
        (matrix,) = rows.blocks(len(rows))
        return matrix

    def _keystreams(self, clients: Sequence[str], number: int, uplink: int) -> Keystreams:
        """Return the keystreams that `rounds` uses for the first attempt at these messages."""
        with stage("keys"):
            return self.randomness.streams_of(("encode", self.run), clients, (number, uplink, 0))


class _Group:
    """The messages of clients with the same mechanism, at their positions among some clients."""

    def __init__(self, mechanism: Mechanism, positions: Sequence[int], packed: PackedRows) -> None:
        self.mechanism, self.positions, self.packed = mechanism, positions, packed


class _UplinkSum:
    """The sum of the messages of one uplink, with the bits of the server's `create_mean`."""

    def __init__(
        self,
        dimension: int,
        cohort: Sequence[ClientPlan],
        rotation: Rotation | None,
        *,
        gathers: bool,
    ) -> None:
        self._rotation, self._weight = rotation, 0.0
        shared = shared_mechanism((part.mechanism, part.weight) for part in cohort)
        self._sums, self._total = None, np.zeros(dimension)
        if shared is not None:  # Equal weights cancel in the mean.
            self._sums = create_row_sums(dimension, shared, equal_weights=True)
        self._each: list[tuple[ClientPlan, Vector]] | None = [] if gathers else None

    def add(self, parts: Sequence[ClientPlan], groups: Sequence[_Group]) -> None:
        """Add the messages of consecutive clients."""
        with stage("sum"):
            if self._sums is not None:
                self._weight += len(parts)
                for one in groups:
                    self._sums.add(one.packed, [1.0] * len(one.packed))
            else:
                self._add_in_order(parts, groups)
            if self._each is not None:
                codes = [one.packed.codes() for one in groups]
                self._each += [
                    (part, self._decoded(part.mechanism.decode(codes[group][row])))
                    for part, (group, row) in zip(parts, _places(groups), strict=True)
                ]

    def _add_in_order(self, parts: Sequence[ClientPlan], groups: Sequence[_Group]) -> None:
        """Add the messages one after the other, with the roundings of the server's mean."""
        weights = [part.weight for part in parts]
        for weight in weights:
            self._weight += weight
        messages = [(one.mechanism, one.packed) for one in groups]
        add_in_order(self._total, messages, weights, _places(groups))

    def combined(self) -> AggregatedUplink:
        """Return the weighted mean, rotated back, and all vectors if they were kept."""
        total = self._total if self._sums is None else self._sums.total()
        total /= self._weight
        with stage("rotate back"):
            mean = total if self._rotation is None else self._rotation.undo(total)
        if self._each is None:
            return AggregatedUplink(mean=mean)
        each = ClientVectors(
            clients=tuple(part.client for part, _ in self._each),
            rows=np.stack([vector for _, vector in self._each]),
            weights=np.array([part.weight for part, _ in self._each]),
        )
        return AggregatedUplink(mean=mean, each=each)

    def _decoded(self, vector: Vector) -> Vector:
        """Return a decoded vector, rotated back."""
        with stage("rotate back"):
            return vector if self._rotation is None else self._rotation.inverse(vector)


def _places(groups: Sequence[_Group]) -> list[tuple[int, int]]:
    """Return the group of each client, and its row there, in the order of the clients."""
    places = [
        (position, group, row)
        for group, one in enumerate(groups)
        for row, position in enumerate(one.positions)
    ]
    return [(group, row) for _, group, row in sorted(places)]


def _index(positions: list[int]) -> Any:
    """Return positions as a slice if they are consecutive, so that rows are not copied."""
    first, last = positions[0], positions[-1] + 1
    if last - first == len(positions):
        return slice(first, last)
    return torch.tensor(positions)
