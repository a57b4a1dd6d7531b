"""The speed of a server that unpacks, decodes and averages the payloads of a round."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import native, parameter_rules
from sottovoce.core.domains import MAX_DIMENSION, L2Ball, Vector
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.packing import PackedCodes, packed_size
from sottovoce.protocol import sums
from sottovoce_papers.benchmarks import limits
from sottovoce_papers.benchmarks.measurement import (
    TimedAction,
    check_memory,
    check_threads,
    cores,
    limited_to,
    rates,
    require,
    result,
    version,
)

if TYPE_CHECKING:
    import torch

UNIT = "clients_per_second"
MAX_CLIENTS = 10**7
# Number of clients for baselines and checks: the speed of a baseline does not depend on it.
_YARDSTICK_CLIENTS = 32
_CHECKED_COORDINATES = 1 << 12  # Of every client; a multiple of 8, so that it fills bytes.
_BYTES_PER_COORDINATE = 80  # Sums, codes and decoded values of the numpy path.


def mean_of(mechanism: GaussHermite, payloads: Sequence[bytes]) -> Vector:
    """Return the mean of a round's payloads, with the server's checks. This is what is timed."""
    dimension = mechanism.input_domain.dimension
    mean = sums.create_mean(dimension, [(mechanism, 1.0)])
    for payload in payloads:
        packed = PackedCodes(payload, count=dimension, levels=mechanism.levels)
        mean.add(mechanism, 1.0, packed)
    found = mean.result()
    assert found is not None
    return found


def payloads_of(clients: int, dimension: int, bits: int) -> list[bytes]:
    """Return random packed codes; the bits after the last code are zero."""
    generator = np.random.default_rng(0)
    size = packed_size(dimension, bits)
    last = 0xFF >> (8 * size - dimension * bits)
    found = []
    for _ in range(clients):
        payload = bytearray(generator.bytes(size))
        payload[-1] &= last
        found.append(bytes(payload))
    return found


def check(mechanism: GaussHermite, payloads: Sequence[bytes]) -> str:
    """Check the mean against the numpy path's, bit for bit, and against plain sums of codes."""
    mean = mean_of(mechanism, payloads)
    with native.using("numpy"):
        expected = mean_of(mechanism, payloads)
    require(
        np.array_equal(mean, expected),
        f"the mean of {len(payloads)} payloads differs from the numpy path's",
    )
    dimension, bits = mechanism.input_domain.dimension, mechanism.code_format().bits
    points = mechanism.decode(np.arange(mechanism.levels, dtype=np.uint8))
    plain = np.zeros(dimension)
    for payload in payloads:
        plain += points[plain_codes(np.frombuffer(payload, np.uint8), dimension, bits)]
    near = np.allclose(mean, plain / len(payloads), rtol=0.0, atol=1e-9 * np.abs(points).max())
    require(near, "the mean differs from a plain sum of the codes")
    return f"the mean of {len(payloads)} payloads equals the numpy path's bit for bit"


def _check_all(mechanism: GaussHermite, payloads: Sequence[bytes]) -> str:
    """Check all clients, so many that small counters are flushed, in their first coordinates."""
    domain = mechanism.input_domain
    few = min(domain.dimension, _CHECKED_COORDINATES)
    size = packed_size(few, mechanism.code_format().bits)
    part = replace(mechanism, input_domain=replace(domain, dimension=few))
    return check(part, [payload[:size] for payload in payloads])


def plain_codes(payload: NDArray[np.uint8], dimension: int, bits: int) -> NDArray[np.uint8]:
    """Return the codes unpacked with plain numpy."""
    if bits == 1:
        return np.unpackbits(payload, count=dimension, bitorder="little")
    if bits == 8:
        return payload
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        codes: NDArray[np.uint8] = (payload[:, None] >> shifts) & np.uint8((1 << bits) - 1)
        return codes.ravel()[:dimension]
    planes = np.unpackbits(payload, count=dimension * bits, bitorder="little")
    return np.packbits(planes.reshape(dimension, bits), axis=1, bitorder="little")[:, 0]


def measure(
    *,
    bits: int = 1,
    dimension: int = 10**6,
    clients: int = 1000,
    threads: int = 1,
    seconds: float = 5.0,
) -> dict[str, Any]:
    """Measure clients per second whose payloads are averaged, with baselines and the limit."""
    check_threads(threads)
    parameter_rules.integer("bits", bits, low=1, high=8)
    parameter_rules.integer("dimension", dimension, low=1, high=MAX_DIMENSION)
    parameter_rules.integer("clients", clients, low=1, high=MAX_CLIENTS)
    size = packed_size(dimension, bits)
    check_memory(
        1.1 * float(size) * clients + float(dimension) * _BYTES_PER_COORDINATE,
        "take a smaller --dimension or fewer --clients",
    )
    mechanism = GaussHermite(
        input_domain=L2Ball(dimension=dimension, radius=1.0), levels=1 << bits, noise_multiplier=5.0
    )
    payloads = payloads_of(clients, dimension, bits)
    few = payloads[:_YARDSTICK_CLIENTS]
    with limited_to(threads):
        checked = f"{check(mechanism, few)}; of their beginnings, {_check_all(mechanism, payloads)}"
        speeds = rates(_timed_actions(mechanism, payloads, few), seconds)
    read = limits.read_rate(size * clients // threads, threads, seconds / 8.0)
    return result(
        UNIT,
        speeds["ours"],
        checked=checked,
        numpy=speeds["numpy"],
        torch=speeds.get("torch"),
        limit=f"reading the bytes of each payload once, on {cores(threads)}",
        limit_per_second=read / size,
        notes={
            "numpy": "unpackbits (or shifts), then codes added in int32, or decoded values added "
            "in float32 if there are more than two levels",
            "torch": "the same with torch, eager"
            if "torch" in speeds
            else "not installed: pip install 'sottovoce[learn]' to compare",
        },
        ratio_to_own_numpy_path=speeds["ours"] / speeds["own numpy path"],
        coordinates_per_second=speeds["ours"] * dimension,
        bits=bits,
        dimension=dimension,
        clients=clients,
        threads=threads,
        read_bytes_per_second=read,
    )


def _timed_actions(
    mechanism: GaussHermite, payloads: Sequence[bytes], few: Sequence[bytes]
) -> dict[str, TimedAction]:
    def own_numpy_path() -> None:
        with native.using("numpy"):
            mean_of(mechanism, few)

    found = {
        "ours": TimedAction(lambda: mean_of(mechanism, payloads), len(payloads)),
        "own numpy path": TimedAction(own_numpy_path, len(few)),
        "numpy": TimedAction(_plain(mechanism, few), len(few)),
    }
    if version("torch"):
        found["torch"] = TimedAction(_eager(mechanism, few), len(few))
    return found


def _plain(mechanism: GaussHermite, payloads: Sequence[bytes]) -> Callable[[], object]:
    dimension, bits = mechanism.input_domain.dimension, mechanism.code_format().bits
    points = mechanism.decode(np.arange(mechanism.levels, dtype=np.uint8)).astype(np.float32)

    def run() -> None:
        counts, total = np.zeros(dimension, dtype=np.int32), np.zeros(dimension, dtype=np.float32)
        for payload in payloads:
            codes = plain_codes(np.frombuffer(payload, np.uint8), dimension, bits)
            if bits == 1:
                counts += codes
            else:
                total += points[codes]

    return run


def _eager(mechanism: GaussHermite, payloads: Sequence[bytes]) -> Callable[[], object]:
    import torch

    dimension, bits = mechanism.input_domain.dimension, mechanism.code_format().bits
    points = torch.from_numpy(mechanism.decode(np.arange(mechanism.levels, dtype=np.uint8))).float()
    tensors = [torch.frombuffer(bytearray(payload), dtype=torch.uint8) for payload in payloads]

    def run() -> None:
        total = torch.zeros(dimension, dtype=torch.int32 if bits == 1 else torch.float32)
        for tensor in tensors:
            codes = _eager_codes(tensor, dimension, bits)
            total += codes if bits == 1 else points[codes.int()]

    return run


def _eager_codes(payload: "torch.Tensor", dimension: int, bits: int) -> "torch.Tensor":
    """Return the codes unpacked with plain torch."""
    import torch

    if bits == 8:
        return payload
    width = bits if 8 % bits == 0 else 1
    parts = (payload[:, None] >> torch.arange(0, 8, width, dtype=torch.uint8)) & ((1 << width) - 1)
    if width == bits:
        return parts.flatten()[:dimension]
    planes = parts.flatten()[: dimension * bits].view(dimension, bits)
    return (planes << torch.arange(bits, dtype=torch.uint8)).sum(1, dtype=torch.uint8)
