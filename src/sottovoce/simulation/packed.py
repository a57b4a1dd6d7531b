"""Codes really drawn from each client's own keystream, packed, unpacked and added up.

The codes are those that `rounds` would send from the same seed; headers are counted and not made,
and charges are counted in memory. One bit a coordinate has a path of its own: several clients at
once, on several threads; or on the device where the rows are, if that is a CUDA device and Triton
is installed. The bits are the same.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.domains import Vector
from sottovoce.kernels import cuda
from sottovoce.kernels.one_bit import sample_rows
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.mechanism import LevelCodes
from sottovoce.randomness import Keystream
from sottovoce.rounds.plan import ClientPlan
from sottovoce.simulation.counted import CountedClients, Gathering, Portion
from sottovoce.wire import packing

# Coordinates that a thread works on at once. Many: threads hand the interpreter to each other less
# often, which counts for more than arrays that fit a core's cache.
_TOGETHER = 1 << 21
_THREADS = max(1, min(8, os.cpu_count() or 1))
_MOST_COUNTED = 255  # ones that a byte can count
_TOGETHER_ON_DEVICE = 1 << 27
_MOST_ROWS_ON_DEVICE = 4096


class PackedMessages(CountedClients):
    """Bits as they would leave, without their envelopes."""

    def begin(self, number: int) -> None:
        self._rotation = self.rotation(number)

    def add(self, gathering: Gathering, portion: Portion, number: int, uplink: int) -> None:
        mechanism = portion.mechanism
        one_weight = bool((portion.weights == portion.weights[0]).all())
        gathering.weight += portion.weight
        if (
            isinstance(mechanism, GaussHermite)
            and mechanism.levels == 2
            and one_weight
            and not self.rotated
            and not self.algorithm.gathers
        ):
            ones = self._count_ones(portion, mechanism, number, uplink)
            clients = len(portion.clients)
            mean_sign = (2.0 * ones - clients) * mechanism.noise_stddev
            weighted = torch.from_numpy(float(portion.weights[0]) * mean_sign)
            gathering.total += weighted.to(gathering.total.device)
            return
        self._add_one_by_one(gathering, portion, number, uplink)

    def _keystream(self, part: ClientPlan, number: int, uplink: int) -> Keystream:
        """The one that `rounds` gives the first attempt at this message."""
        return self.randomness.stream("encode", self.run, part.client, number, uplink, 0)

    def _count_ones(
        self, portion: Portion, mechanism: GaussHermite, number: int, uplink: int
    ) -> NDArray[np.int64]:
        """How many clients' bits are 1, for each coordinate."""
        if self._device.type == "cuda" and cuda.available():
            return self._count_ones_there(portion, mechanism, number, uplink)
        rows = max(1, min(_MOST_COUNTED, _TOGETHER // self.task.dimension))

        def work(start: int) -> NDArray[np.int64]:
            part = slice(start, start + rows)
            streams = [self._keystream(one, number, uplink) for one in portion.clients[part]]
            (block,) = portion.rows.select(part).blocks(rows)
            values = block.cpu().numpy()  # a mean of records stays in float64
            payloads = sample_rows(values, mechanism.noise_stddev, streams)
            opened = np.unpackbits(payloads, axis=1, count=values.shape[1], bitorder="little")
            return np.asarray(opened.sum(axis=0, dtype=np.uint8), dtype=np.int64)

        total = np.zeros(self.task.dimension, dtype=np.int64)
        with ThreadPoolExecutor(_THREADS) as pool:
            for counted in pool.map(work, range(0, len(portion.clients), rows)):
                total += counted
        return total

    def _count_ones_there(
        self, portion: Portion, mechanism: GaussHermite, number: int, uplink: int
    ) -> NDArray[np.int64]:
        """The same on the device where the rows are."""
        from sottovoce.kernels.cuda.counts import OneCounts
        from sottovoce.kernels.cuda.one_bit import sample_rows

        counted = OneCounts(self.task.dimension, self._device)
        rows = max(1, min(_MOST_ROWS_ON_DEVICE, _TOGETHER_ON_DEVICE // self.task.dimension))
        clients = iter(portion.clients)
        for block in portion.rows.blocks(rows):
            streams = [self._keystream(next(clients), number, uplink) for _ in block]
            counted.add(sample_rows(block.contiguous(), mechanism.noise_stddev, streams))
        return counted.counts.cpu().numpy().astype(np.int64)

    def _add_one_by_one(
        self, gathering: Gathering, portion: Portion, number: int, uplink: int
    ) -> None:
        domain = portion.mechanism.input_domain
        total = np.zeros(self.task.dimension)
        position = 0
        for block in portion.rows.blocks(64):
            for row in block.to("cpu", torch.float64).numpy():
                part = portion.clients[position]
                position += 1
                values = domain.project(row)
                if self._rotation is not None:
                    values = self._rotation.forward(values)
                decoded = self._sent(part, values, number, uplink)
                total += part.weight * decoded
                if self.algorithm.gathers:
                    if self._rotation is not None:
                        decoded = self._rotation.inverse(decoded)
                    gathering.rows.append(decoded)
                    gathering.clients.append(part.client)
                    gathering.weights.append(part.weight)
        if self._rotation is not None:
            total = self._rotation.inverse(total)
        gathering.total += torch.from_numpy(total).to(gathering.total.device)

    def _sent(self, part: ClientPlan, values: Vector, number: int, uplink: int) -> Vector:
        """What the server reads: encoded, packed, unpacked, decoded."""
        mechanism = part.mechanism
        codes = mechanism.encode(values, self._keystream(part, number, uplink))
        code_format = mechanism.code_format()
        if isinstance(code_format, LevelCodes):
            typed = codes.astype(code_format.dtype, copy=False)
            payload = packing.pack(typed, code_format.bits)
            return mechanism.decode(packing.unpack(payload, len(codes), code_format.bits))
        return mechanism.decode(codes)
