"""Codes really drawn from each client's own keystream, packed, checked and added up.

The codes are those that `rounds` would send from the same seed; headers are counted and not made,
and charges are counted in memory. Several threads make them. One bit a coordinate has a path of its
own: several clients at once; or on the device where the rows are, if that is a CUDA device and
Triton is installed. The bits are the same.
"""

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.randomness import Keystream
from sottovoce.core.threads import how_many
from sottovoce.federated.simulation.counted import CountedClients, Gathering, Portion
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.kernels import cuda
from sottovoce.mechanisms.kernels.one_bit import sample_payload
from sottovoce.mechanisms.mechanism import Expanding
from sottovoce.protocol.level_counts import LevelCounts
from sottovoce.protocol.means import DecodedMean, ExpandedMean
from sottovoce.protocol.message import Opened, codes_of, opened_as_sent
from sottovoce.protocol.plan import ClientPlan

# Coordinates that a thread works on at once. Many: threads hand the interpreter to each other less
# often, which counts for more than arrays that fit a core's cache.
_TOGETHER = 1 << 21
_MOST_ROWS = 255  # that small models have in common: a cohort is to keep every thread busy
_MADE_TOGETHER = 256  # messages, where they are made one by one
_TOGETHER_ON_DEVICE = 1 << 27
_MOST_ROWS_ON_DEVICE = 4096


class PackedMessages(CountedClients):
    """Bits as they would leave, without their envelopes."""

    def begin(self, number: int) -> None:
        self._rotation = self.rotation(number)

    def add(self, gathering: Gathering, portion: Portion, number: int, uplink: int) -> None:
        mechanism = portion.mechanism
        weight = portion.common_weight
        gathering.weight += portion.weight
        if (
            isinstance(mechanism, GaussHermite)
            and mechanism.levels == 2
            and weight is not None
            and not self.rotated
            and not self.algorithm.gathers
        ):
            ones = self._count_ones(portion, mechanism, number, uplink)
            clients = len(portion.clients)
            decoded_sum = (2.0 * ones - clients) * mechanism.noise_stddev
            gathering.total += torch.from_numpy(weight * decoded_sum).to(gathering.total.device)
            return
        self._add_one_by_one(gathering, portion, number, uplink)

    def _keystream(self, part: ClientPlan, number: int, uplink: int) -> Keystream:
        """The one that `rounds` gives the first attempt at this message."""
        return self.randomness.stream("encode", self.run, part.client, number, uplink, 0)

    def _count_ones(
        self, portion: Portion, mechanism: GaussHermite, number: int, uplink: int
    ) -> NDArray[np.uint32]:
        """How many clients' bits are 1, for each coordinate."""
        if self._device.type == "cuda" and cuda.available():
            return self._count_ones_there(portion, mechanism, number, uplink)
        rows = max(1, min(_MOST_ROWS, _TOGETHER // self.task.dimension))

        def work(start: int) -> NDArray[np.uint8]:
            part = slice(start, start + rows)
            streams = [self._keystream(one, number, uplink) for one in portion.clients[part]]
            (block,) = portion.rows.select(part).blocks(rows)
            values = block.cpu().numpy()  # a mean of records stays in float64
            pairs = zip(values, streams, strict=True)
            return np.stack(
                [sample_payload(row, mechanism.noise_stddev, one) for row, one in pairs]
            )

        counts = LevelCounts(self.task.dimension, 2)
        with ThreadPoolExecutor(how_many()) as pool:
            for payloads in pool.map(work, range(0, len(portion.clients), rows)):
                counts.add_rows(payloads)
        ones: NDArray[np.uint32] = counts.counts()[0]
        return ones

    def _count_ones_there(
        self, portion: Portion, mechanism: GaussHermite, number: int, uplink: int
    ) -> NDArray[np.uint32]:
        """The same on the device where the rows are."""
        from sottovoce.mechanisms.kernels.cuda.counts import OneCounts
        from sottovoce.mechanisms.kernels.cuda.one_bit import sample_rows

        counted = OneCounts(self.task.dimension, self._device)
        rows = max(1, min(_MOST_ROWS_ON_DEVICE, _TOGETHER_ON_DEVICE // self.task.dimension))
        clients = iter(portion.clients)
        for block in portion.rows.blocks(rows):
            streams = [self._keystream(next(clients), number, uplink) for _ in block]
            counted.add(sample_rows(block.contiguous(), mechanism.noise_stddev, streams))
        return np.asarray(counted.counts.cpu().numpy(), dtype=np.uint32)

    def _add_one_by_one(
        self, gathering: Gathering, portion: Portion, number: int, uplink: int
    ) -> None:
        """Each client's message, read as the server reads it; several are made at once."""
        sums = _sum_of(self.task.dimension, portion)
        position = 0
        with ThreadPoolExecutor(how_many()) as pool:
            for block in portion.rows.blocks(_MADE_TOGETHER):
                rows = block.to("cpu", torch.float64).numpy()
                parts = portion.clients[position : position + len(rows)]
                position += len(rows)
                for part, opened in self._made(pool, parts, rows, number, uplink):
                    sums.add(part.mechanism, part.weight, opened)
                    if self.algorithm.gathers:
                        self._gather(gathering, part, opened)
        total = _total(sums, portion)
        if self._rotation is not None:
            total = self._rotation.inverse(total)
        gathering.total += torch.from_numpy(total).to(gathering.total.device)

    def _made(
        self,
        pool: ThreadPoolExecutor,
        parts: Sequence[ClientPlan],
        rows: NDArray[np.float64],
        number: int,
        uplink: int,
    ) -> Iterator[tuple[ClientPlan, Opened]]:
        """Clients and what the server reads of them, in order; each thread makes a share."""
        share = -(-len(rows) // how_many())

        def work(start: int) -> list[Opened]:
            own = slice(start, start + share)
            pairs = zip(parts[own], rows[own], strict=True)
            return [self._sent(part, row, number, uplink) for part, row in pairs]

        made = itertools.chain.from_iterable(pool.map(work, range(0, len(rows), share)))
        return zip(parts, made, strict=True)

    def _gather(self, gathering: Gathering, part: ClientPlan, opened: Opened) -> None:
        decoded = part.mechanism.decode(codes_of(opened))
        if self._rotation is not None:
            decoded = self._rotation.inverse(decoded)
        gathering.rows.append(decoded)
        gathering.clients.append(part.client)
        gathering.weights.append(part.weight)

    def _sent(self, part: ClientPlan, row: Vector, number: int, uplink: int) -> Opened:
        """What the server reads: projected, rotated, encoded, packed, checked."""
        mechanism = part.mechanism
        values = mechanism.input_domain.project(row)
        if self._rotation is not None:
            values = self._rotation.forward(values)
        codes = mechanism.encode(values, self._keystream(part, number, uplink))
        return opened_as_sent(codes, mechanism.code_format())


def _sum_of(dimension: int, portion: Portion) -> ExpandedMean | DecodedMean:
    """Signs are counted where everybody has one weight, and folded once; all else is decoded."""
    mechanism = portion.mechanism
    if isinstance(mechanism, Expanding) and portion.common_weight is not None:
        return ExpandedMean(mechanism)
    return DecodedMean(dimension)


def _total(sums: ExpandedMean | DecodedMean, portion: Portion) -> Vector:
    if isinstance(sums, DecodedMean):
        return sums.total()
    mean = sums.result()
    assert mean is not None
    return mean * portion.weight
