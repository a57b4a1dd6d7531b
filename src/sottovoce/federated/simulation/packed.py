"""The backend that draws, packs and adds up real codes, without message headers.

The codes are those that `rounds` would send from the same seed. Headers are counted and not built,
and charges are counted in memory. Rows of several clients are clipped, rotated and encoded at once,
on several threads, or on a CUDA device if the rows are there, the mechanism has kernels for it and
Triton is installed. All ways give the same bits.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.core.domains import L2Ball, Vector
from sottovoce.core.randomness import Keystream
from sottovoce.core.threads import thread_count
from sottovoce.federated.simulation.counted import InMemoryBackend, Portion, UplinkAccumulator
from sottovoce.mechanisms.encoding import PackedRows, encode_packed, prepare, take_clipped
from sottovoce.mechanisms.mechanism import ExpandsToSigns, SendsSigns
from sottovoce.protocol.message import MessageContent, codes_of, open_packed_rows
from sottovoce.protocol.plan import ClientPlan
from sottovoce.protocol.sums import DecodedMean, ExpandedMean, LevelCounts

# The most coordinates and rows that each thread encodes at once. They are many because switching
# threads at the interpreter lock costs more than arrays that exceed a core's cache.
_MAX_COORDINATES = 1 << 21
_MAX_ROWS = 256
_MAX_COORDINATES_ON_DEVICE = 1 << 26
_MAX_ROWS_ON_DEVICE = 4096


class PackedMessages(InMemoryBackend):
    """The backend that produces the bits of every message, without headers."""

    def begin(self, number: int) -> None:
        self._rotation = self.rotation(number)

    def add(self, gathering: UplinkAccumulator, portion: Portion, number: int, uplink: int) -> None:
        gathering.weight += portion.weight
        mechanism, weight = portion.mechanism, portion.common_weight
        size = mechanism.sign_size if isinstance(mechanism, SendsSigns) else None
        plain = self._rotation is None and not self.algorithm.gathers
        if plain and weight is not None and size is not None:
            ones = self._count_ones(portion, number, uplink)
            total = weight * ((2.0 * ones - len(portion.clients)) * size)
        else:
            total = self._total(gathering, portion, number, uplink)
        gathering.total += torch.from_numpy(total).to(gathering.total.device)

    def _keystream(self, part: ClientPlan, number: int, uplink: int) -> Keystream:
        """Return the keystream that `rounds` uses for the first attempt at this message."""
        return self.randomness.stream("encode", self.run, part.client, number, uplink, 0)

    def _encode(
        self, portion: Portion, number: int, uplink: int, *, as_clipped: bool = False
    ) -> Iterator[tuple[Sequence[ClientPlan], PackedRows]]:
        """Yield clients with their packed codes, as many as are encoded at once.

        With `as_clipped` the rows are taken as they are in the portion. Otherwise they are
        projected, so that the rounding of float32 leaves no row outside the domain.
        """
        capacity, most = _MAX_COORDINATES * thread_count(), _MAX_ROWS * thread_count()
        if self._device.type == "cuda":
            capacity, most = _MAX_COORDINATES_ON_DEVICE, _MAX_ROWS_ON_DEVICE
        position = 0
        for block in portion.rows.blocks(max(1, min(most, capacity // self.task.dimension))):
            parts = portion.clients[position : position + len(block)]
            position += len(block)
            if as_clipped:
                prepared = take_clipped(portion.mechanism, block)
            else:
                prepared = prepare(portion.mechanism, block, rotation=self._rotation)
            streams = [self._keystream(part, number, uplink) for part in parts]
            yield parts, encode_packed(prepared, streams)

    def _count_ones(self, portion: Portion, number: int, uplink: int) -> NDArray[np.uint32]:
        """Count the clients whose bit is 1, for each coordinate."""
        here, there = LevelCounts(self.task.dimension, 2), None
        as_clipped = isinstance(portion.mechanism.input_domain, L2Ball)
        for _, packed in self._encode(portion, number, uplink, as_clipped=as_clipped):
            if not packed.on_device:
                here.add_rows(packed.payloads)
                continue
            if there is None:
                from sottovoce.mechanisms.kernels.cuda.counts import OneCounts

                there = OneCounts(self.task.dimension, self._device)
            there.add(packed.payloads)
        if there is not None:
            return np.asarray(there.counts.cpu().numpy(), dtype=np.uint32)
        ones: NDArray[np.uint32] = here.counts()[0]
        return ones

    def _total(
        self, gathering: UplinkAccumulator, portion: Portion, number: int, uplink: int
    ) -> Vector:
        """Return the weighted sum of all messages, decoded as the server does and rotated back."""
        sums = _make_accumulator(self.task.dimension, portion)
        for parts, packed in self._encode(portion, number, uplink):
            for part, opened in zip(parts, open_packed_rows(packed), strict=True):
                sums.add(part.mechanism, part.weight, opened)
                if self.algorithm.gathers:
                    self._gather(gathering, part, opened)
        total = _total(sums, portion)
        return total if self._rotation is None else self._rotation.inverse(total)

    def _gather(
        self, gathering: UplinkAccumulator, part: ClientPlan, opened: MessageContent
    ) -> None:
        decoded = part.mechanism.decode(codes_of(opened))
        if self._rotation is not None:
            decoded = self._rotation.inverse(decoded)
        gathering.rows.append(decoded)
        gathering.clients.append(part.client)
        gathering.weights.append(part.weight)


def _make_accumulator(dimension: int, portion: Portion) -> ExpandedMean | DecodedMean:
    """Return an accumulator of sign counts if all weights are equal, else of decoded messages."""
    mechanism = portion.mechanism
    if isinstance(mechanism, ExpandsToSigns) and portion.common_weight is not None:
        return ExpandedMean(mechanism)
    return DecodedMean(dimension)


def _total(sums: ExpandedMean | DecodedMean, portion: Portion) -> Vector:
    if isinstance(sums, DecodedMean):
        return sums.total()
    mean = sums.result()
    assert mean is not None
    return mean * portion.weight
