"""The speed of a client that clips a float32 update, draws its codes and packs them."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import native, parameter_rules
from sottovoce.core.domains import MAX_DIMENSION, Box, Domain, L2Ball
from sottovoce.core.errors import UnknownNameError
from sottovoce.core.randomness import Keystream, SeededRandomness, SystemRandomness
from sottovoce.mechanisms import packing, registry
from sottovoce.mechanisms.encoding import encode_packed, prepare
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.rotation import SEED_BYTES, Rotation
from sottovoce_papers.benchmarks import limits, yardsticks
from sottovoce_papers.benchmarks.measurement import (
    TimedAction,
    check_memory,
    check_threads,
    cores,
    limited_to,
    rates,
    require,
    result,
    side_by_side,
    version,
)

UNIT = "coordinates_per_second"
NOISE_MULTIPLIER = 5.0
EPSILON = 1.0  # Of a table, between any two inputs.
INPUT_BITS = 3
# Coordinates for baselines of several bits: they are slow, and their speed does not depend on it.
_YARDSTICK_COORDINATES = 1 << 18
# The peak of the numpy path: update, float64 copies, random words, codes.
_BYTES_PER_COORDINATE = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkCase:
    """A mechanism, the random bytes per coordinate of its kernel, and a plain baseline."""

    mechanism: Mechanism
    bits: int
    draw_bytes: int
    yardstick: yardsticks.Yardstick


def _gauss_hermite(dimension: int, bits: int) -> BenchmarkCase:
    from sottovoce.mechanisms.design import families

    parameter_rules.integer("bits", bits, low=1, high=8, remedy="gauss_hermite sends 1 to 8 bits")
    ball = L2Ball(dimension=dimension, radius=1.0)
    given = {"levels": 1 << bits, "noise_multiplier": NOISE_MULTIPLIER}
    design = families.gauss_hermite(1 << bits)
    yardstick: yardsticks.Yardstick = yardsticks.NumpyOneBit(1.0, NOISE_MULTIPLIER)
    if bits > 1:
        yardstick = yardsticks.NumpyFamily(1.0, NOISE_MULTIPLIER, design.points, design.weights)
    return BenchmarkCase(
        mechanism=registry.find("gauss_hermite").build(ball, given),
        bits=bits,
        draw_bytes=2,
        yardstick=yardstick,
    )


def _mvu(dimension: int, bits: int) -> BenchmarkCase:
    from sottovoce.mechanisms.design import store

    parameter_rules.integer("bits", bits, low=1, high=8, remedy="mvu sends 1 to 8 bits")
    box = Box(dimension=dimension, lower=-1.0, upper=1.0)
    given = {"epsilon": EPSILON, "input_bits": INPUT_BITS, "output_bits": bits}
    rows = store.find(store.spec_of(EPSILON, INPUT_BITS, bits)).channel.rows
    return BenchmarkCase(
        mechanism=registry.find("mvu").build(box, given),
        bits=bits,
        draw_bytes=2,
        yardstick=yardsticks.NumpyTable(rows),
    )


def _discrete_gaussian(dimension: int, bits: int) -> BenchmarkCase:
    ball = L2Ball(dimension=dimension, radius=1.0)
    given = {"noise_multiplier": NOISE_MULTIPLIER, "bits": bits, "steps_per_radius": "auto"}
    found = registry.find("discrete_gaussian")
    steps = found.resolve(ball, given)["steps_per_radius"]
    return BenchmarkCase(
        mechanism=found.build(ball, {**given, "steps_per_radius": steps}),
        bits=bits,
        draw_bytes=4,
        yardstick=yardsticks.NumpyGrid(1.0, NOISE_MULTIPLIER, 1.0 / steps, bits),
    )


# Kind: the function that builds the case, and the default number of bits.
_CASES: dict[str, tuple[Callable[[int, int], BenchmarkCase], int]] = {
    "gauss_hermite": (_gauss_hermite, 1),
    "mvu": (_mvu, 3),
    "discrete_gaussian": (_discrete_gaussian, 16),
}


def case_of(kind: str, dimension: int, bits: int | None) -> BenchmarkCase:
    """Return the case that the options of the command name; refuse unknown ones."""
    if kind not in _CASES:
        raise UnknownNameError.among("mechanism of this benchmark", kind, _CASES)
    parameter_rules.integer("dimension", dimension, low=1, high=MAX_DIMENSION)
    build, usual = _CASES[kind]
    return build(dimension, usual if bits is None else bits)


def update_of(domain: Domain, seed: int = 0) -> NDArray[np.float32]:
    """Return a random float32 update, outside a ball (so that it is clipped) or inside a box."""
    generator = np.random.default_rng(seed)
    if isinstance(domain, Box):
        return generator.uniform(domain.lower, domain.upper, domain.dimension).astype(np.float32)
    return generator.standard_normal(domain.dimension, dtype=np.float32)


def payload_of(mechanism: Mechanism, update: NDArray[np.float32], keystream: Keystream) -> bytes:
    """Return the payload of an update as a client makes it: clip, codes, packing. This is timed."""
    return encode_packed(prepare(mechanism, update), [keystream]).on_cpu().tobytes()


def check(case: BenchmarkCase, update: NDArray[np.float32]) -> str:
    """Check that payloads of one key are the same with the kernels in use and with plain numpy."""
    dimension = len(update)

    def drawn() -> bytes:
        return payload_of(case.mechanism, update, SeededRandomness(1).stream("benchmark"))

    found = drawn()
    with native.using("numpy"):
        expected = drawn()
        codes = packing.unpack(found, dimension, case.bits)
        again = packing.pack(codes, case.bits)
    require(
        found == expected,
        f"the payload of {dimension} coordinates of {case.bits} bits differs from numpy's",
    )
    require(again == found, "the payload does not unpack to its codes")
    require(
        np.isfinite(case.mechanism.decode(codes)).all(), "the codes do not decode to finite numbers"
    )
    return f"all {dimension} codes equal those of the numpy path from the same key"


def measure(
    *,
    mechanism: str = "gauss_hermite",
    bits: int | None = None,
    dimension: int = 10**6,
    threads: int = 1,
    seconds: float = 3.0,
) -> dict[str, Any]:
    """Measure coordinates per second through clipping, coding and packing.

    With several threads each thread privatizes its own update, and so do the baselines.
    """
    check_threads(threads)
    parameter_rules.integer("dimension", dimension, low=1, high=MAX_DIMENSION)
    check_memory(float(dimension) * _BYTES_PER_COORDINATE * threads, "take a smaller --dimension")
    case = case_of(mechanism, dimension, bits)
    update = update_of(case.mechanism.input_domain)
    with limited_to(1):  # Threads per update.
        checked = check(case, update)
        speeds = rates(_timed_actions(case, update, threads), seconds)
    read = limits.read_rate(4 * dimension, threads, seconds / 8.0)
    keystream = limits.keystream_rate(threads, seconds / 8.0)
    return result(
        UNIT,
        speeds["ours"],
        checked=checked,
        numpy=speeds["numpy"],
        torch=speeds.get("torch"),
        limit=(
            "two reads of the float32 update, as fast as that many bytes are read here, and "
            f"{case.draw_bytes} bytes of ChaCha20 keystream a coordinate, on {cores(threads)}"
        ),
        limit_per_second=1.0 / (8.0 / read + case.draw_bytes / keystream),
        notes=_notes(speeds),
        ratio_to_own_numpy_path=speeds["ours"] / speeds["own numpy path"],
        rotated_coordinates_per_second=speeds.get("rotated"),
        mechanism=mechanism,
        bits=case.bits,
        dimension=dimension,
        clients=threads,
        threads=threads,
        read_bytes_per_second=read,
        keystream_bytes_per_second=keystream,
        **first_call(mechanism, case.bits, dimension),
    )


def _notes(speeds: dict[str, float]) -> dict[str, str]:
    notes = {
        "numpy": "float32 and numpy's generator: clip, probabilities, draws, packing; not exact",
        "rotated": "the same after a rotation, as a run does by default; not for a box",
        "own_numpy_path": "the same codes bit for bit, without the C kernels",
        "torch": "eager, float32 and torch's generator: the same steps; not exact",
    }
    if "torch" not in speeds:
        notes["torch"] = "not installed: pip install 'sottovoce[learn]' to compare"
    return notes


def _timed_actions(
    case: BenchmarkCase, update: NDArray[np.float32], threads: int
) -> dict[str, TimedAction]:
    randomness = SystemRandomness()
    few = update if case.bits == 1 else update[:_YARDSTICK_COORDINATES]

    def ours() -> None:
        payload_of(case.mechanism, update, randomness.stream())

    def own_numpy_path() -> None:
        with native.using("numpy"):
            side()

    side = side_by_side([ours] * threads)
    generators = [np.random.default_rng(number) for number in range(threads)]
    plain = side_by_side([partial(case.yardstick.payload, few, one) for one in generators])
    found = {
        "ours": TimedAction(side, len(update) * threads),
        **_rotated(case.mechanism, update, threads),
        "own numpy path": TimedAction(own_numpy_path, len(update) * threads),
        "numpy": TimedAction(plain, len(few) * threads),
    }
    if version("torch"):
        found["torch"] = TimedAction(_eager(case, few, threads), len(few) * threads)
    return found


def _rotated(
    mechanism: Mechanism, update: NDArray[np.float32], threads: int
) -> dict[str, TimedAction]:
    """Return the action that rotates first, as a run does by default where codes have a range."""
    if not isinstance(mechanism.input_domain, L2Ball):
        return {}
    rotation = Rotation(bytes(SEED_BYTES), len(update))

    def work() -> None:
        prepared = prepare(mechanism, update, rotation=rotation)
        encode_packed(prepared, [SystemRandomness().stream()])

    return {"rotated": TimedAction(side_by_side([work] * threads), len(update) * threads)}


def _eager(case: BenchmarkCase, update: NDArray[np.float32], threads: int) -> Callable[[], object]:
    import torch

    tensor = torch.from_numpy(update)
    return side_by_side([lambda: case.yardstick.torch_payload(tensor)] * threads)


_FIRST_CALL = """
import json, sys, time
from sottovoce_papers.benchmarks import privatize
from sottovoce.core.randomness import SystemRandomness
kind, dimension, bits = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
case = privatize.case_of(kind, dimension, bits)
update = privatize.update_of(case.mechanism.input_domain)
times = [time.perf_counter()]
for _ in range(2):
    privatize.payload_of(case.mechanism, update, SystemRandomness().stream())
    times.append(time.perf_counter())
print(json.dumps({"first_call_seconds": times[1] - times[0],
                  "second_call_seconds": times[2] - times[1]}))
"""


def first_call(kind: str, bits: int, dimension: int) -> dict[str, float]:
    """Return the seconds of the first and the second call in a new process, after its imports."""
    done = subprocess.run(  # noqa: S603  (a fixed list of arguments, no shell)
        [sys.executable, "-c", _FIRST_CALL, kind, str(dimension), str(bits)],
        capture_output=True,
        text=True,
        check=False,
    )
    require(done.returncode == 0, f"a new process could not privatize: {done.stderr.strip()}")
    return dict(json.loads(done.stdout))
