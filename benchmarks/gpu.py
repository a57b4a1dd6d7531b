"""The CUDA kernels: first whether they give the bits of the CPU, then how fast they are.

python benchmarks/gpu.py [--report FILE] [--checks-only]

Needs an NVIDIA device, torch and triton. Wrong bits end it with exit status 1; slowness never does.
Rates are set against the floor of the memory: the bytes that must be read and written, at the rate
at which this device copies.
"""

import argparse
import json
import math
import multiprocessing
import sys
import traceback
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from sottovoce.errors import ParameterError
from sottovoce.kernels.cuda import ladder, norm
from sottovoce.kernels.cuda.counts import OneCounts
from sottovoce.kernels.cuda.one_bit import Drawing, Options, sample_rows
from sottovoce.kernels.ladder import Affine, Ladder
from sottovoce.kernels.reference.one_bit import exact_bit
from sottovoce.randomness import Keystream

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SIZES = (1, 7, 8, 31, 33, 1023, 1024, 1025, 4096, 5003, 300_001)
VARIANTS = [
    Options(warps=warps, repeat=repeat, floats=floats)
    for floats in (False, True)
    for warps, repeat in ((4, 1), (4, 4), (4, 16), (1, 4), (8, 2))
] + [Options(floats=floats, turns=turns) for floats, turns in ((False, 1), (True, 1), (False, 2))]
COUNT_SHAPES = ((64, 2), (128, 4), (256, 4), (256, 8), (512, 8))
WORKERS = 12


# The CPU's part: plain numpy, coordinate by coordinate where it takes that.


def draws(keystream: Keystream, count: int) -> NDArray[np.uint16]:
    """The 16-bit draw of each coordinate: draw k of block 32 t + l is for 1024 t + 32 k + l."""
    tiles = -(-count // 1024)
    stream = np.frombuffer(bytes(keystream._bytes(0, 2048 * tiles)), dtype="<u2")
    return stream.reshape(tiles, 32, 32).transpose(0, 2, 1).reshape(-1)[:count]


def expected_bits(
    values: NDArray[np.float64], scale: float, stddev: float, key: bytes
) -> NDArray[np.uint8]:
    """The payload, from thresholds in float64 and exact decisions near them."""
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
    """The sum of squares in the order of the tree."""
    tiles = max(1, -(-len(values) // 1024))
    padded = np.zeros(1024 * (1 << (tiles - 1).bit_length()))
    padded[: len(values)] = values * values
    nodes = padded.reshape(-1, 32, 32).transpose(0, 2, 1).reshape(-1)
    while len(nodes) > 1:
        nodes = nodes[::2] + nodes[1::2]
    return float(nodes[0])


def thresholds(tilts: NDArray[np.float64], levels: int) -> NDArray[np.float64]:
    """Of a made-up law with so many levels: logistic functions side by side."""
    centres = np.linspace(-2.0, 2.0, levels - 1)
    return np.asarray(1.0 / (1.0 + np.exp(tilts[:, None] - centres[None, :])))


def steps(levels: int, cells: int = 128) -> Ladder:
    """Its ladder; the second derivative of a logistic function is below .1, its slope below .25."""
    errors = np.full(cells, 0.1 * (6.0 / cells) ** 2 / 8.0)
    edges = np.linspace(-3.0, 3.0, cells + 1)
    return Ladder.between(-3.0, 3.0, thresholds(edges, levels), errors, 0.25)


class Checks:
    """Counts what was compared and remembers what was wrong."""

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
        except ParameterError:
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
        rows, stddev, [Keystream(key) for key in keys], scale=scale, options=options
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
        found = float(norm.sum_of_squares(values))
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
    broken = torch.tensor([1.0, math.nan]).cuda()
    checks.refused("norm of NaN", lambda: norm.clip_scale(broken, 1.0))


def check_long_vector(checks: Checks, size: int) -> None:
    """Some hundred coordinates take the second decision."""
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
        forms: dict[str, Any] = {
            "plain": on_device,
            "padded": padded[:, :width],
            "list": list(on_device),
            "padded list": list(padded[:, :width]),
        }
        for name, form in forms.items():
            counted = OneCounts(dimension, "cuda")
            counted.add(form, block=block, warps=warps)
            counted.add(form, block=block, warps=warps)
            label = f"counts, {name} {dimension} of {clients}, {block}"
            checks.same(label, counted.counts.cpu().numpy(), 2 * expected)
    checks.refused("wrong width", lambda: OneCounts(100, "cuda").add(on_device))


def check_ladder(checks: Checks, levels: int) -> None:
    for size in SIZES:
        values = normal(1, size, 1.0, torch.float32)[0]
        codes, left = ladder.sample_codes(values, Affine(), steps(levels), Keystream(bytes(32)))
        words = draws(Keystream(bytes(32)), size) / 65536.0
        exact = thresholds(values.double().cpu().numpy(), levels)
        decided = np.setdiff1d(np.arange(size), left)
        lowest = (words[:, None] >= exact).sum(axis=1)[decided]
        highest = (words[:, None] + 2.0**-16 > exact).sum(axis=1)[decided]
        found = codes.cpu().numpy()
        checks.same(f"ladder {levels}, {size}, at least", found[decided], lowest)
        checks.same(f"ladder {levels}, {size}, at most", found[decided], highest)
        checks.same(f"ladder {levels}, {size}, decided", len(left) <= 0.02 * size + 5, True)
        for bits in range((levels - 1).bit_length(), 9):
            each = (found[:, None] >> np.arange(bits, dtype=np.uint8)) & 1
            packed = np.packbits(each.reshape(-1), bitorder="little")
            checks.same(f"pack {bits}, {size}", ladder.pack(codes, bits).cpu().numpy(), packed)


def run_check(check: Callable[[Checks, Any], None], what: Any) -> tuple[int, list[str]]:
    checks = Checks()
    try:
        check(checks, what)
    except Exception:
        checks.wrong.append(f"{check.__name__} {what}: {traceback.format_exc()}")
    return checks.done, checks.wrong


def check_all() -> tuple[int, list[str]]:
    """On several processes, because compiling takes most of the time; what they compile is kept."""
    scales = [(1e-290, 1e-290), (1e-250, 1.0), (1.0, 1e-40), (1e9, 1e12), (1e12, 1e-9)]
    tasks: list[tuple[Callable[[Checks, Any], None], Any]] = [
        *((check_type, dtype) for dtype in TYPES),
        *((check_variant, options) for options in VARIANTS),
        (check_extremes, scales),
        (check_long_vector, 10_000_019),
        *((check_ladder, levels) for levels in (4, 16)),
        *((check_counts, shape) for shape in COUNT_SHAPES),
    ]
    done, wrong = 0, list[str]()
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn")) as pool:
        for more, found in pool.map(run_check, *zip(*tasks, strict=True)):
            done += more
            wrong += found
    return done, wrong


# Times.


class Table:
    """Measured rates, printed as they come."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.bandwidth = math.nan  # bytes a second, of a copy

    def time(self, action: Callable[[], object]) -> float:
        """Seconds of one call: the median of several."""
        found = triton.testing.do_bench(action, warmup=30, rep=120, return_mode="median")
        return float(found) * 1e-3

    def add(self, name: str, seconds: float, *, coordinates: float, moved: float) -> None:
        floor = moved / self.bandwidth
        row = {
            "name": name,
            "seconds": seconds,
            "coordinates_per_second": coordinates / seconds,
            "bytes_per_second": moved / seconds,
            "share_of_floor": floor / seconds,
        }
        self.rows.append(row)
        print(
            f"{name:62s} {seconds * 1e3:9.3f} ms {coordinates / seconds / 1e9:9.1f} G/s "
            f"{moved / seconds / 1e12:7.3f} TB/s {100.0 * floor / seconds:6.1f} %",
            flush=True,
        )


def measure_memory(table: Table, size: int) -> None:
    source = torch.empty(size, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    seconds = table.time(lambda: target.copy_(source))
    table.bandwidth = 8.0 * size / seconds
    table.add("copy (the floor's rate)", seconds, coordinates=size, moved=8.0 * size)
    seconds = table.time(lambda: source.sum())
    table.add("sum (reads only)", seconds, coordinates=size, moved=4.0 * size)


def torch_packed(values: torch.Tensor) -> torch.Tensor:
    """One bit a coordinate in plain torch: not exact, its generator not secure."""
    bits = torch.bernoulli(torch.sigmoid(2.0 * values)).to(torch.uint8).view(-1, 8)
    places = torch.arange(8, dtype=torch.uint8, device=values.device)
    return (bits << places).sum(dim=1, dtype=torch.uint8)


def measure_one_bit(table: Table, size: int) -> None:
    values = torch.empty(size, dtype=torch.float32, device="cuda").normal_().mul_(0.1)
    moved = 4.125 * size
    seconds = table.time(lambda: values + 0.3 * torch.randn_like(values))
    table.add("torch Gaussian noise, float32 out", seconds, coordinates=size, moved=8.0 * size)
    seconds = table.time(lambda: torch_packed(values))
    table.add("torch sigmoid, bernoulli, pack", seconds, coordinates=size, moved=moved)
    for options in VARIANTS:
        drawing = Drawing(values[None], [bytes(32)], 1.0, 1.0, options)
        drawing.start()
        assert drawing.complete()
        seconds = table.time(drawing.start)
        label = " ".join(f"{key}={value}" for key, value in options._asdict().items())
        table.add(f"one bit, kernels, {label}", seconds, coordinates=size, moved=moved)
    seconds = table.time(lambda: one_bit_once(values, Options()))
    table.add("one bit, the whole call", seconds, coordinates=size, moved=moved)
    seconds = table.time(lambda: norm.sum_of_squares(values))
    table.add("sum of squares", seconds, coordinates=size, moved=4.0 * size)
    seconds = table.time(lambda: privatised(values))
    table.add("norm, clip, one bit", seconds, coordinates=size, moved=8.125 * size)
    for dtype in (torch.bfloat16, torch.float64):
        fewer = values[: size // 4].to(dtype)
        seconds = table.time(partial(one_bit_once, fewer, Options()))
        moved = (fewer.element_size() + 0.125) * len(fewer)
        table.add(f"one bit, {dtype}", seconds, coordinates=len(fewer), moved=moved)
    for shorter in (100_000, 1_000_000, 10_000_000):
        part = values[:shorter]
        seconds = table.time(partial(one_bit_once, part, Options()))
        table.add(f"one bit, d = {shorter}", seconds, coordinates=shorter, moved=4.125 * shorter)
    rows = values[: 64 * 1_000_000].view(64, 1_000_000)
    streams = [bytes([i]) * 32 for i in range(64)]
    seconds = table.time(lambda: sample_rows(rows, 1.0, [Keystream(key) for key in streams]))
    table.add("one bit, 64 rows of a million", seconds, coordinates=64e6, moved=4.125 * 64e6)


def one_bit_once(values: torch.Tensor, options: Options) -> torch.Tensor:
    return sample_rows(values[None], 1.0, [Keystream(bytes(32))], options=options)


def privatised(values: torch.Tensor) -> torch.Tensor:
    scale = norm.clip_scale(values, 1000.0)
    return sample_rows(values[None], 1.0, [Keystream(bytes(32))], scale=scale)


def measure_ladder(table: Table, size: int) -> None:
    values = torch.empty(size, dtype=torch.float32, device="cuda").normal_().mul_(0.5)
    for bits in (2, 4):
        given = steps(1 << bits)
        seconds = table.time(partial(climbed, values, given))
        moved = (4.0 + bits / 8.0) * size
        table.add(f"ladder, {bits} bits, and pack", seconds, coordinates=size, moved=moved)


def climbed(values: torch.Tensor, given: Ladder) -> torch.Tensor:
    codes, _ = ladder.sample_codes(values, Affine(), given, Keystream(bytes(32)))
    return ladder.pack(codes, (given.levels - 1).bit_length())


def measure_counts(table: Table, dimension: int, clients: int) -> None:
    width = -(-dimension // 8)
    payloads = torch.randint(0, 256, (clients, width), dtype=torch.uint8, device="cuda")
    moved = float(clients * width + 8 * dimension)
    total = float(clients * dimension)
    for block, warps in COUNT_SHAPES:
        counted = OneCounts(dimension, "cuda")
        seconds = table.time(partial(counted.add, payloads, block=block, warps=warps))
        name = f"counts, {clients} of {dimension}, block={block} warps={warps}"
        table.add(name, seconds, coordinates=total, moved=moved)
    counted = OneCounts(dimension, "cuda")
    seconds = table.time(lambda: counted.add(list(payloads)))
    table.add(f"counts, {clients} of {dimension}, a list", seconds, coordinates=total, moved=moved)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--checks-only", action="store_true")
    parser.add_argument("--dimension", type=int, default=500_000_000)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to check or to measure")
        return 1
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    done, wrong = check_all()
    print(f"{done} checks, {len(wrong)} wrong", *wrong, sep="\n", flush=True)
    table = Table()
    if not arguments.checks_only:
        measure_memory(table, arguments.dimension)
        measure_one_bit(table, arguments.dimension)
        measure_ladder(table, arguments.dimension // 5)
        measure_counts(table, 10_000_000, 1000)
        measure_counts(table, 100_000, 10_000)
    if arguments.report:
        report = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "checks": done,
            "wrong": wrong,
            "measured": table.rows,
        }
        arguments.report.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
