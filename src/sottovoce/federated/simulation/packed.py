"""Codes really drawn from each client's own keystream, packed, checked and added up.

The codes are those that `rounds` would send from the same seed; headers are counted and not made,
and charges are counted in memory. Rows of several clients are clipped, rotated and encoded at once:
on several threads, or on the device where they are, if that is a CUDA device, the mechanism has
kernels for it and Triton is installed. The bits are the same.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.core.domains import L2Ball, Vector
from sottovoce.core.randomness import Keystream
from sottovoce.core.threads import how_many
from sottovoce.federated.simulation.counted import CountedClients, Gathering, Portion
from sottovoce.mechanisms.encoding import PackedRows, encode_packed, prepare, take_clipped
from sottovoce.mechanisms.mechanism import Expanding, SendsSigns
from sottovoce.protocol.message import Opened, codes_of, opened_as_sent
from sottovoce.protocol.plan import ClientPlan
from sottovoce.protocol.sums import DecodedMean, ExpandedMean, LevelCounts

# Coordinates that each thread has at once. Many: threads hand the interpreter to each other less
# often, which counts for more than arrays that fit a core's cache.
_TOGETHER = 1 << 21
_MOST_ROWS = 256  # that small models have in common for each thread
_TOGETHER_ON_DEVICE = 1 << 26
_MOST_ROWS_ON_DEVICE = 4096


class PackedMessages(CountedClients):
    """Bits as they would leave, without their envelopes."""

    def begin(self, number: int) -> None:
        self._rotation = self.rotation(number)

    def add(self, gathering: Gathering, portion: Portion, number: int, uplink: int) -> None:
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
        """The one that `rounds` gives the first attempt at this message."""
        return self.randomness.stream("encode", self.run, part.client, number, uplink, 0)

    def _encoded(
        self, portion: Portion, number: int, uplink: int, *, as_clipped: bool = False
    ) -> Iterator[tuple[Sequence[ClientPlan], PackedRows]]:
        """Clients and what they send, as many as are encoded at once.

        `as_clipped` takes the rows as the portion has them; else they are projected, so that
        float32's rounding cannot leave one outside the domain.
        """
        room, most = _TOGETHER * how_many(), _MOST_ROWS * how_many()
        if self._device.type == "cuda":
            room, most = _TOGETHER_ON_DEVICE, _MOST_ROWS_ON_DEVICE
        position = 0
        for block in portion.rows.blocks(max(1, min(most, room // self.task.dimension))):
            parts = portion.clients[position : position + len(block)]
            position += len(block)
            if as_clipped:
                prepared = take_clipped(portion.mechanism, block)
            else:
                prepared = prepare(portion.mechanism, block, rotation=self._rotation)
            streams = [self._keystream(part, number, uplink) for part in parts]
            yield parts, encode_packed(prepared, streams)

    def _count_ones(self, portion: Portion, number: int, uplink: int) -> NDArray[np.uint32]:
        """How many clients' bits are 1, for each coordinate."""
        here, there = LevelCounts(self.task.dimension, 2), None
        as_clipped = isinstance(portion.mechanism.input_domain, L2Ball)
        for _, packed in self._encoded(portion, number, uplink, as_clipped=as_clipped):
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

    def _total(self, gathering: Gathering, portion: Portion, number: int, uplink: int) -> Vector:
        """The weighted sum of all messages, each read as the server reads it, turned back."""
        sums = _sum_of(self.task.dimension, portion)
        for parts, packed in self._encoded(portion, number, uplink):
            for part, opened in zip(parts, opened_as_sent(packed), strict=True):
                sums.add(part.mechanism, part.weight, opened)
                if self.algorithm.gathers:
                    self._gather(gathering, part, opened)
        total = _total(sums, portion)
        return total if self._rotation is None else self._rotation.inverse(total)

    def _gather(self, gathering: Gathering, part: ClientPlan, opened: Opened) -> None:
        decoded = part.mechanism.decode(codes_of(opened))
        if self._rotation is not None:
            decoded = self._rotation.inverse(decoded)
        gathering.rows.append(decoded)
        gathering.clients.append(part.client)
        gathering.weights.append(part.weight)


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
