"""Check that the CUDA kernels give the bits of the CPU; `benchmarks/gpu.py` starts with it.

Bits, sums of squares and counts of ones are compared with plain numpy, written here apart from all
kernels; payloads and counts of levels with what the package gives on the CPU.
"""

import math
import multiprocessing
import os
import traceback
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.core.domains import Box, Domain, L2Ball
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms import packing, registry
from sottovoce.mechanisms.encoding import encode_packed, prepare
from sottovoce.mechanisms.kernels.cuda import level_counts, norm, rotation, seeded
from sottovoce.mechanisms.kernels.cuda.counts import OneCounts
from sottovoce.mechanisms.kernels.cuda.one_bit import Options, sample_rows
from sottovoce.mechanisms.kernels.reference.one_bit import exact_bit
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.protocol.sums import LevelCounts

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SIZES = (1, 7, 8, 31, 33, 1023, 1024, 1025, 4096, 5003, 300_001)
VARIANTS = (Options(), Options(repeat=8), Options(warps=4, repeat=2))
COUNT_SHAPES = ((128, 4), (256, 4))
GIVEN: dict[str, tuple[str, dict[str, Any], str]] = {
    **{
        f"gauss_hermite {levels}": (
            "gauss_hermite",
            {"levels": levels, "noise_multiplier": 5.0},
            "ball",
        )
        for levels in (2, 3, 4, 16, 64, 256)
    },
    "mvu 3 bits": ("mvu", {"epsilon": 1.0, "input_bits": 3, "output_bits": 3}, "box"),
    "mvu 3 bits, far": ("mvu", {"epsilon": 1.0, "input_bits": 3, "output_bits": 3}, "far box"),
    "generalized_rr 8 bits": ("generalized_rr", {"epsilon": 8.0, "bits": 8}, "box"),
    "discrete_gaussian 16 bits": (
        "discrete_gaussian",
        {"noise_multiplier": 5.0, "bits": 16, "steps_per_radius": "auto"},
        "ball",
    ),
    "discrete_laplace 16 bits": (
        "discrete_laplace",
        {"noise_multiplier": 1.0, "bits": 16, "steps_per_radius": "auto"},
        "far box",
    ),
    "discrete_staircase 16 bits": (
        "discrete_staircase",
        {
            "step_epsilon": 1.0,
            "nu": "auto",
            "step_multiplier": 2.0,
            "bits": 16,
            "steps_per_radius": "auto",
        },
        "box",
    ),
}
SPREADS = {"ball": (0.3, 3.0), "box": (0.3, 1.0), "far box": (0.3, 1.0)}
WORKERS = 15


def draws(keystream: Keystream, count: int) -> NDArray[np.uint16]:
    """Return the 16-bit draws: draw k of block 32 t + l is for coordinate 1024 t + 32 k + l."""
    tiles = -(-count // 1024)
    stream = np.frombuffer(bytes(keystream._bytes(0, 2048 * tiles)), dtype="<u2")
    return stream.reshape(tiles, 32, 32).transpose(0, 2, 1).reshape(-1)[:count]


def expected_bits(
    values: NDArray[np.float64], scale: float, stddev: float, key: bytes
) -> NDArray[np.uint8]:
    """Return the payload, from thresholds in float64 and exact decisions near them."""
    keystream = Keystream(key)
    words = draws(keystream, len(values))
    with np.errstate(over="ignore"):
        tilts = values * scale / stddev
    small = np.exp(-2.0 * np.abs(tilts))
    thresholds = 65536.0 * (np.where(tilts > 0.0, small, 1.0) / (1.0 + small))
    bits = (words >= thresholds).astype(np.uint8)
    for i in np.flatnonzero(np.abs(words + 0.5 - thresholds) < 0.5 + 1e-6):
        bits[i] = exact_bit(float(tilts[i]), int(words[i]), int(i), keystream)
    return np.packbits(bits, bitorder="little")


def expected_sum(values: NDArray[np.float64]) -> float:
    """Return the sum of squares in the order of the tree."""
    tiles = max(1, -(-len(values) // 1024))
    padded = np.zeros(1024 * (1 << (tiles - 1).bit_length()))
    padded[: len(values)] = values * values
    nodes = padded.reshape(-1, 32, 32).transpose(0, 2, 1).reshape(-1)
    while len(nodes) > 1:
        nodes = nodes[::2] + nodes[1::2]
    return float(nodes[0])


def built(name: str, dimension: int) -> Mechanism:
    kind, given, where = GIVEN[name]
    domains: dict[str, Domain] = {
        "ball": L2Ball(dimension=dimension, radius=1.0),
        "box": Box(dimension=dimension, lower=-1.0, upper=1.0),
        "far box": Box(dimension=dimension, lower=100.0, upper=101.0),
    }
    entry = registry.find(kind)
    return entry.build(domains[where], entry.resolve(domains[where], given))


def update_for(name: str, size: int, spread: float, dtype: torch.dtype) -> torch.Tensor:
    """Return an update around the middle of a box, or of a norm of about `spread` radii."""
    where = GIVEN[name][2]
    made = np.random.default_rng(size).normal(size=size) * spread
    if where == "ball":
        made /= math.sqrt(size)
    return torch.from_numpy(made + (100.5 if where == "far box" else 0.0)).to("cuda", dtype)


class Checks:
    """The number of comparisons, and the wrong ones."""

    def __init__(self) -> None:
        self.done = 0
        self.wrong: list[str] = []

    def same(self, name: str, found: object, expected: object) -> None:
        self.done += 1
        if not np.array_equal(np.asarray(found), np.asarray(expected)):
            self.wrong.append(f"wrong: {name}")

    def refused(self, name: str, action: Callable[[], object]) -> None:
        self.done += 1
        try:
            action()
        except (ParameterError, DomainError):
            return
        self.wrong.append(f"not refused: {name}")


def bits_case(
    checks: Checks,
    name: str,
    rows: torch.Tensor,
    scale: float,
    stddev: float,
    options: Options | None = None,
) -> None:
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    keys = [generator.bytes(32) for _ in range(len(rows))]
    found = sample_rows(
        rows,
        stddev,
        [Keystream(key) for key in keys],
        scales=(scale,) * len(rows),
        options=options,
    )
    for row, key, payload in zip(rows, keys, found, strict=True):
        expected = expected_bits(row.double().cpu().numpy(), scale, stddev, key)
        checks.same(f"one bit, {name}", payload.cpu().numpy(), expected)


def normal(clients: int, size: int, spread: float, dtype: torch.dtype) -> torch.Tensor:
    generator = np.random.default_rng([clients, size])
    return torch.from_numpy(spread * generator.normal(size=(clients, size))).to("cuda", dtype)


def check_type(checks: Checks, dtype: torch.dtype) -> None:
    for size in SIZES:
        bits_case(checks, f"{dtype} {size}", normal(2, size, 1.0, dtype), 0.7, 1.3)
    for spread in (0.0, 1e-9, 1e-3, 0.1, 0.5, 3.0, 20.0, 1e3, 1e30):
        bits_case(checks, f"{dtype} {spread}", normal(1, 70_000, spread, dtype), 1.0, 1.0)
    for size in (0, *SIZES, 33 * 1024, 2_000_003):
        values = normal(1, size, 1.0, dtype)[0]
        found = float(norm.square_sums(values[None]))
        checks.same(f"norm, {dtype} {size}", found, expected_sum(values.double().cpu().numpy()))


def check_variant(checks: Checks, options: Options) -> None:
    for spread in (0.01, 0.4, 5.0):
        values = normal(2, 150_003, spread, torch.float32)
        bits_case(checks, f"{options}", values, 0.9, 1.0, options)


def check_extremes(checks: Checks, scales: list[tuple[float, float]]) -> None:
    for scale, stddev in scales:
        values = normal(1, 3000, 1.0, torch.float32)
        bits_case(checks, f"scale {scale} stddev {stddev}", values, scale, stddev)
    huge = torch.tensor([[math.inf, -math.inf, 3e38, -3e38, 1e-45, -0.0, 1e-38] * 300]).cuda()
    bits_case(checks, "extremes", huge, 1.0, 1.0)
    wide = normal(3, 5000, 1.0, torch.float32)
    bits_case(checks, "rows of a wider tensor", wide[:, 11:4011], 1.0, 2.0)
    stream = Keystream(bytes(32))
    checks.refused("columns", lambda: sample_rows(wide.t(), 1.0, [stream] * 5000))
    checks.refused("integers", lambda: sample_rows(wide.int(), 1.0, [stream] * 3))
    checks.refused("on the CPU", lambda: sample_rows(wide.cpu(), 1.0, [stream] * 3))
    checks.refused("too few keystreams", lambda: sample_rows(wide, 1.0, [stream]))
    empty = sample_rows(wide[:, :0], 1.0, [Keystream(bytes(32)) for _ in range(3)])
    checks.same("one bit, empty", list(empty.shape), [3, 0])
    for bad in (math.nan, math.inf):
        broken = torch.tensor([1.0, bad]).cuda()
        for name in GIVEN:
            checks.refused(f"{name} of {bad}", partial(given_payload, name, broken))
    checks.refused("an empty vector", lambda: given_payload("mvu 3 bits", wide[0, :0], 1))
    checks.refused("a vector too long", lambda: given_payload("mvu 3 bits", wide[0], 1))


def given_payload(name: str, update: torch.Tensor, dimension: int | None = None) -> object:
    mechanism = built(name, len(update) if dimension is None else dimension)
    return encode_packed(prepare(mechanism, update), [Keystream(bytes(32))]).payloads


def check_mechanism(checks: Checks, given: tuple[str, torch.dtype]) -> None:
    """Check payloads of the device against those of the CPU, from the same key."""
    name, dtype = given
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    for size in SIZES:
        for spread in SPREADS[GIVEN[name][2]]:
            update = update_for(name, size, spread, dtype)
            payload_case(checks, name, f"{dtype} {size} {spread}", update, generator)
    values = update_for(name, 6000, 1.0, dtype)
    payload_case(checks, name, f"{dtype} with gaps", values[::2], generator)
    payload_case(checks, name, f"{dtype} with a gradient", values.requires_grad_(), generator)
    for scale in {torch.float32: (0.0, 1e36), torch.float64: (1e300,)}.get(dtype, ()):
        payload_case(checks, name, f"{dtype} times {scale}", values.detach() * scale, generator)


def payload_case(
    checks: Checks, name: str, what: str, update: torch.Tensor, generator: np.random.Generator
) -> None:
    mechanism, key = built(name, len(update)), generator.bytes(32)
    found = encode_packed(prepare(mechanism, update), [Keystream(key)])
    expected = encode_packed(prepare(mechanism, update.cpu()), [Keystream(key)])
    if not found.on_device:
        raise AssertionError(f"{name} was encoded on the CPU")
    checks.same(f"{name}, {what}", found.on_cpu(), expected.on_cpu())


def check_long_vector(checks: Checks, size: int) -> None:
    """Check a vector so long that some hundred coordinates take the second decision."""
    values = normal(1, size, 0.2, torch.float32)
    bits_case(checks, f"{size} coordinates", values, 1.0, 1.0)


def check_counts(checks: Checks, shape: tuple[int, int]) -> None:
    block, warps = shape
    generator = np.random.default_rng(block)
    for dimension, clients in ((1, 1), (7, 3), (33, 9), (1000, 255), (4099, 17), (70_001, 2100)):
        width = -(-dimension // 8)
        payloads = generator.integers(0, 256, size=(clients, width), dtype=np.uint8)
        bits = np.unpackbits(payloads, axis=1, count=dimension, bitorder="little")
        expected = bits.sum(axis=0, dtype=np.int32)
        on_device = torch.from_numpy(payloads).cuda()
        padded = torch.zeros((clients, -(-width // 128) * 128), dtype=torch.uint8, device="cuda")
        padded[:, :width] = on_device
        forms = {"plain": on_device, "padded": padded[:, :width]}
        for name, form in forms.items():
            counted = OneCounts(dimension, "cuda")
            counted.add(form, block=block, warps=warps)
            counted.add(form, block=block, warps=warps)
            label = f"counts, {name} {dimension} of {clients}, {block}"
            checks.same(label, counted.counts.cpu().numpy(), 2 * expected)
    checks.refused("wrong width", lambda: OneCounts(100, "cuda").add(on_device))


def check_level_counts(checks: Checks, levels: int) -> None:
    bits = (levels - 1).bit_length()
    generator = np.random.default_rng(levels)
    for dimension, clients in ((1, 1), (7, 3), (1000, 255), (4099, 17), (20_001, 300)):
        codes = generator.integers(0, levels, size=(clients, dimension), dtype=np.uint8)
        rows = np.stack([np.frombuffer(packing.pack(one, bits), np.uint8) for one in codes])
        expected = LevelCounts(dimension, levels)
        expected.add_rows(rows)
        counted = level_counts.CudaLevelCounts(dimension, levels, "cuda")
        counted.add(torch.from_numpy(rows).cuda())
        label = f"counts of {levels} levels, {dimension} of {clients}"
        checks.same(label, counted.counts.cpu().numpy(), expected.counts())
    if levels < 1 << bits:
        counted.add(torch.full((1, rows.shape[1]), 255, dtype=torch.uint8).cuda())
        checks.refused(f"code {(1 << bits) - 1} of {levels} levels", lambda: counted.counts)


def check_rotation(checks: Checks, size: int) -> None:
    turn = Rotation(bytes(range(32)), size)
    given = normal(140 if size < 30_000 else 2, size, 1.0, torch.float32)
    scales = np.random.default_rng(size).uniform(0.1, 1.0, size=len(given))
    expected = given.double().cpu().numpy() * scales[:, None]
    turn.rotate_rows(expected)
    found = rotation.rotate_rows(given, turn, torch.from_numpy(scales).cuda())
    checks.same(f"rotation of {size}", found.cpu().numpy(), expected)
    rotation.rotate_back(found[1], turn)
    checks.same(f"rotation back of {size}", found[1].cpu().numpy(), turn.inverse(expected[1]))


def expected_signs(seed: bytes, count: int) -> NDArray[np.uint8]:
    """Return the keystream's own bits, from the definition."""
    stream = bytes(Keystream(seed + b"sottovoce-signs1")._bytes(0, -(-count // 8)))
    return np.unpackbits(np.frombuffer(stream, np.uint8), count=count, bitorder="little")


def check_seeds(checks: Checks, count: int) -> None:
    """Check signs of seeds, and scores of weights up to the ends of int16."""
    generator = np.random.default_rng(count)
    seeds = generator.integers(0, 256, size=(count, 16), dtype=np.uint8)
    for size in SIZES:
        bits = np.stack([expected_signs(seed.tobytes(), size) for seed in seeds])
        rows = seeded.sign_rows(seeds, size).cpu().numpy()
        packed = np.packbits(bits, axis=1, bitorder="little")
        checks.same(f"signs, {size} of {count}", rows, packed)
        for reach in (1, 3000, 32768):
            weights = generator.integers(-reach, reach, size=size).astype(np.int16)
            found = seeded.scores(seeds, torch.from_numpy(weights).cuda()).cpu().numpy()
            expected = (2 * bits.astype(np.int64) - 1) @ weights.astype(np.int64)
            checks.same(f"scores, {size} of {count}, weights to {reach}", found, expected)
        largest = np.where(bits[0] == 1, 32767, -32768).astype(np.int16)
        found = seeded.scores(seeds, torch.from_numpy(largest).cuda()).cpu().numpy()
        expected = (2 * bits.astype(np.int64) - 1) @ largest.astype(np.int64)
        checks.same(f"scores, {size} of {count}, nothing cancels", found, expected)
    on_cpu = torch.ones(8, dtype=torch.int16)
    checks.refused("weights on the CPU", lambda: seeded.scores(seeds, on_cpu))
    checks.refused("weights of 32 bits", lambda: seeded.scores(seeds, on_cpu.int().cuda()))
    checks.refused("seeds of 15 bytes", lambda: seeded.sign_rows(seeds[:, :15], 8))


def run_check(check: Callable[[Checks, Any], None], what: Any) -> tuple[int, list[str]]:
    checks = Checks()
    try:
        check(checks, what)
    except Exception:
        checks.wrong.append(f"{check.__name__} {what}: {traceback.format_exc()}")
    return checks.done, checks.wrong


def check_all() -> tuple[int, list[str]]:
    """Run all checks in several processes, because compiling takes most of the time."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    scales = [(1e-290, 1e-290), (1e-250, 1.0), (1.0, 1e-40), (1e9, 1e12), (1e12, 1e-9)]
    tasks: list[tuple[Callable[[Checks, Any], None], Any]] = [
        *((check_type, dtype) for dtype in TYPES),
        *((check_variant, options) for options in VARIANTS),
        (check_extremes, scales),
        (check_long_vector, 10_000_019),
        *((check_mechanism, (name, dtype)) for dtype in TYPES for name in GIVEN),
        *((check_level_counts, levels) for levels in (3, 4, 8, 13, 16)),
        *((check_counts, shape) for shape in COUNT_SHAPES),
        *((check_rotation, size) for size in (7, 1024, 20_000, 95_000, 3_000_001)),
        *((check_seeds, count) for count in (1, 3, 33)),
    ]
    done, wrong = 0, list[str]()
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn")) as pool:
        for more, found in pool.map(run_check, *zip(*tasks, strict=True)):
            done += more
            wrong += found
    return done, wrong
