"""The CUDA kernels: first whether they give the bits of the CPU, then how fast they are.

python benchmarks/gpu.py [--page FILE] [--report FILE] [--checks-only]

Needs an NVIDIA device, torch and triton. Wrong bits end it with exit status 1; slowness never does.
Rates are set against the floor of the memory: the bytes that must be read and written, at the rate
at which this device copies. `--page` writes the table in Markdown, `--report` in JSON.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from gpu_checks import COUNT_SHAPES, VARIANTS, built, check_all
from gpu_rounds import measure_rounds

from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.encoding import encode_packed, prepare
from sottovoce.mechanisms.kernels.cuda import level_counts, norm, rotation, seeded
from sottovoce.mechanisms.kernels.cuda.counts import OneCounts
from sottovoce.mechanisms.kernels.cuda.one_bit import Options, sample_rows
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.rotation import Rotation

PLAIN_NOISE = "torch Gaussian noise, float32 out"
PLAIN_BITS = "torch sigmoid, bernoulli, pack"
ONE_BIT = "one bit, the whole call"
_ROUND_SECONDS = 3.0  # for each case of whole rounds


class Table:
    """Measured rates, printed as they are measured."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.bandwidth = math.nan  # bytes a second, of a copy

    def time(self, action: Callable[[], object]) -> float:
        """Return the seconds of one call: the median of several."""
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
    """Return one bit per coordinate in plain torch: not exact, and its generator is not secure."""
    bits = torch.bernoulli(torch.sigmoid(2.0 * values)).to(torch.uint8).view(-1, 8)
    places = torch.arange(8, dtype=torch.uint8, device=values.device)
    return (bits << places).sum(dim=1, dtype=torch.uint8)


def measure_one_bit(table: Table, size: int) -> None:
    values = torch.empty(size, dtype=torch.float32, device="cuda").normal_().mul_(0.1)
    moved = 4.125 * size
    seconds = table.time(lambda: values + 0.3 * torch.randn_like(values))
    table.add(PLAIN_NOISE, seconds, coordinates=size, moved=8.0 * size)
    seconds = table.time(lambda: torch_packed(values))
    table.add(PLAIN_BITS, seconds, coordinates=size, moved=moved)
    for options in VARIANTS:
        seconds = table.time(partial(one_bit_once, values, options))
        label = " ".join(f"{key}={value}" for key, value in options._asdict().items())
        name = ONE_BIT if options == Options() else f"one bit, {label}"
        table.add(name, seconds, coordinates=size, moved=moved)
    seconds = table.time(lambda: norm.square_sums(values[None]))
    table.add("sum of squares", seconds, coordinates=size, moved=4.0 * size)
    mechanism = built("gauss_hermite 2", size)
    seconds = table.time(lambda: privatize_once(mechanism, values))
    table.add("privatise, 1 bit: norm, clip, draw", seconds, coordinates=size, moved=8.125 * size)
    rows = values[: 64 * 100_000].view(64, 100_000)
    mechanism, rotation = built("gauss_hermite 2", 100_000), Rotation(bytes(32), 100_000)
    seconds = table.time(lambda: rotated(mechanism, rows, rotation))
    name = "privatise, 1 bit, 64 rows of 100000 rotated in float64: what a run does by default"
    table.add(name, seconds, coordinates=6.4e6, moved=8.125 * 6.4e6)
    for dtype in (torch.bfloat16, torch.float64):
        fewer = values[: size // 4].to(dtype)
        seconds = table.time(partial(one_bit_once, fewer, Options()))
        moved = (fewer.element_size() + 0.125) * len(fewer)
        table.add(f"one bit, {dtype}", seconds, coordinates=len(fewer), moved=moved)
    for shorter in (100_000, 1_000_000, 10_000_000):
        part = values[:shorter]
        seconds = table.time(partial(one_bit_once, part, Options()))
        table.add(f"one bit, d = {shorter}", seconds, coordinates=shorter, moved=4.125 * shorter)
        mechanism = built("gauss_hermite 2", shorter)
        seconds = table.time(partial(privatize_once, mechanism, part))
        name = f"privatise, 1 bit, d = {shorter}"
        table.add(name, seconds, coordinates=shorter, moved=8.125 * shorter)
    rows = values[: 64 * 1_000_000].view(64, 1_000_000)
    streams = [bytes([i]) * 32 for i in range(64)]
    seconds = table.time(lambda: sample_rows(rows, 1.0, [Keystream(key) for key in streams]))
    table.add("one bit, 64 rows of a million", seconds, coordinates=64e6, moved=4.125 * 64e6)


def one_bit_once(values: torch.Tensor, options: Options) -> torch.Tensor:
    return sample_rows(values[None], 1.0, [Keystream(bytes(32))], options=options)


def privatize_once(mechanism: Mechanism, values: torch.Tensor) -> object:
    return encode_packed(prepare(mechanism, values), [Keystream(bytes(32))]).payloads


def privatize_rows(mechanism: Mechanism, rows: torch.Tensor) -> object:
    streams = [Keystream(bytes([i]) * 32) for i in range(len(rows))]
    return encode_packed(prepare(mechanism, rows), streams).payloads


def rotated(mechanism: Mechanism, rows: torch.Tensor, rotation: Rotation) -> object:
    streams = [Keystream(bytes([i]) * 32) for i in range(len(rows))]
    return encode_packed(prepare(mechanism, rows, rotation=rotation), streams).payloads


def measure_mechanisms(table: Table, size: int) -> None:
    values = torch.empty(size, dtype=torch.float32, device="cuda").normal_()
    for name, bits in (
        ("gauss_hermite 4", 2),
        ("gauss_hermite 16", 4),
        ("mvu 3 bits", 3),
        ("discrete_gaussian 16 bits", 16),
    ):
        mechanism = built(name, size)
        seconds = table.time(partial(privatize_once, mechanism, values))
        moved = (8.0 + bits / 8.0) * size  # values are read twice: for their norm, and for codes
        table.add(f"privatise, {name}", seconds, coordinates=size, moved=moved)
        rows = values[: 64 * 100_000].view(64, 100_000)
        mechanism = built(name, 100_000)
        seconds = table.time(partial(privatize_rows, mechanism, rows))
        moved = (8.0 + bits / 8.0) * 6.4e6
        name = f"privatise, {name}, 64 rows of 100000"
        table.add(name, seconds, coordinates=6.4e6, moved=moved)


def measure_rotations(table: Table) -> None:
    """Measure rotations of float32 rows into float64 rows, and of a sum back."""
    for count, dimension in ((1000, 20_000), (50, 95_000), (1, 100_000_000)):
        rows = torch.empty((count, dimension), dtype=torch.float32, device="cuda").normal_()
        turn, total = Rotation(bytes(32), dimension), float(count * dimension)
        seconds = table.time(partial(rotation.rotate_rows, rows, turn))
        name = f"rotation, {count} rows of {dimension}"
        table.add(name, seconds, coordinates=total, moved=12.0 * total)
        seconds = table.time(partial(norm.clip_factors, rows, 1.0))
        name = f"clipping factors, {count} rows of {dimension}"
        table.add(name, seconds, coordinates=total, moved=4.0 * total)
        mean = torch.empty(dimension, dtype=torch.float64, device="cuda").normal_()
        seconds = table.time(partial(rotation.rotate_back, mean, turn))
        name = f"rotation back, d = {dimension}"
        table.add(name, seconds, coordinates=dimension, moved=16.0 * dimension)


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
    for levels in (4, 8, 16):
        bits = (levels - 1).bit_length()
        width = -(-dimension * bits // 8)
        payloads = torch.randint(0, 256, (clients, width), dtype=torch.uint8, device="cuda")
        several = level_counts.CudaLevelCounts(dimension, levels, "cuda")
        seconds = table.time(partial(several.add, payloads))
        moved = float(clients * width + 8 * (levels - 1) * dimension)
        name = f"counts of {levels} levels, {clients} of {dimension}"
        table.add(name, seconds, coordinates=total, moved=moved)


def measure_seeds(table: Table, dimension: int) -> None:
    """Measure whole calls for signs of seeds and their scores; weights are read once for all."""
    weights = torch.randint(-3000, 3001, (dimension,), dtype=torch.int16, device="cuda")
    for count in (1, 64, 1024):
        seeds = np.random.default_rng(count).integers(0, 256, size=(count, 16), dtype=np.uint8)
        total = float(count * dimension)
        seconds = table.time(partial(seeded.scores, seeds, weights))
        name = f"scores of {count} seeds, d = {dimension}"
        table.add(name, seconds, coordinates=total, moved=2.0 * dimension)
        seconds = table.time(partial(seeded.sign_rows, seeds, dimension))
        name = f"signs of {count} seeds, d = {dimension}"
        table.add(name, seconds, coordinates=total, moved=total / 8.0)


def page(table: Table, done: int, wrong: list[str]) -> str:
    """Return the measurements in Markdown."""
    lines = [
        "# CUDA kernels: measured",
        "",
        f"`python benchmarks/gpu.py --page` on {torch.cuda.get_device_name()}, torch "
        f"{torch.__version__}, triton {triton.__version__}. {done} payloads, sums and counts were "
        f"compared with the CPU's, bit for bit: {len(wrong)} wrong.",
        "",
        "The floor is the time in which the device copies as many bytes as must be read and "
        "written; a share of 100% would be a copy.",
        "",
        "| what | time | coordinates/s | bytes moved/s | share of the floor |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['name']} | {1e3 * row['seconds']:.3f} ms "
        f"| {1e-9 * row['coordinates_per_second']:.1f} G "
        f"| {1e-12 * row['bytes_per_second']:.3f} TB | {100.0 * row['share_of_floor']:.1f}% |"
        for row in table.rows
    ]
    times = {row["name"]: row["seconds"] for row in table.rows}
    if PLAIN_NOISE in times:
        ours = times[ONE_BIT]
        lines += [
            "",
            f"A call that draws and packs one bit is {times[PLAIN_NOISE] / ours:.1f} times as fast"
            f" as plain Gaussian noise in torch, and {times[PLAIN_BITS] / ours:.1f} times as fast "
            "as eager torch operations that draw bits and pack them; neither is exact or secure.",
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path)
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
    table, rounds = Table(), []
    if not arguments.checks_only:
        rounds = measure_rounds(_ROUND_SECONDS)
        measure_memory(table, arguments.dimension)
        measure_one_bit(table, arguments.dimension)
        measure_mechanisms(table, arguments.dimension // 5)
        measure_rotations(table)
        measure_counts(table, 10_000_000, 1000)
        measure_counts(table, 100_000, 10_000)
        measure_seeds(table, 1_000_000)
    if arguments.page:
        arguments.page.write_text(page(table, done, wrong))
    if arguments.report:
        report = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "checks": done,
            "wrong": wrong,
            "measured": table.rows,
            "rounds": rounds,
        }
        arguments.report.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
