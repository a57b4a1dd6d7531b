"""Speed of the reference kernels, as ratios within one run. Wrong results fail; slow ones never do.

make bench        prints a table
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from sottovoce.aggregation.mean import StreamingMean
from sottovoce.domains import L2Ball, Vector
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.mechanisms.mechanism import Codes, Mechanism
from sottovoce.mechanisms.registry import find
from sottovoce.randomness import SeededRandomness, SystemRandomness
from sottovoce.wire import packing

DIMENSION = 1_000_000
REPETITIONS = 5


def seconds(action: Callable[[], object]) -> float:
    """The best of a few repetitions."""
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def encode_afresh(mechanism: Mechanism, values: Vector) -> Codes:
    return mechanism.encode(values, SystemRandomness().stream())


def main() -> None:
    ball = L2Ball(dimension=DIMENSION, radius=1.0)
    values = ball.project(np.random.default_rng(0).normal(size=DIMENSION))
    numpy_generator = np.random.default_rng(1)
    baseline = seconds(lambda: values + numpy_generator.normal(size=DIMENSION))
    rows = [("numpy Gaussian noise, no packing (the yardstick)", baseline)]
    rows.append(("ChaCha20 words", seconds(lambda: SystemRandomness().stream().words(DIMENSION))))
    gaussian = Gaussian(input_domain=ball, noise_multiplier=5.0)
    rows.append(("gaussian encode", seconds(partial(encode_afresh, gaussian, values))))
    rows.append(
        (
            "numpy Gaussian noise, rounded to a grid",
            seconds(lambda: np.rint((values + numpy_generator.normal(size=DIMENSION)) / 0.1)),
        )
    )
    for kind in ("discrete_gaussian", "discrete_laplace"):
        given = {"noise_multiplier": 5.0, "bits": 16, "steps_per_radius": "auto"}
        rounded = find(kind).build(ball, given)
        assert len(np.unique(rounded.encode(values, SeededRandomness(1).stream("bench")))) > 10_000
        rows.append(
            (f"{kind} 16 bit, encode", seconds(partial(encode_afresh, rounded, values))),
        )
    for levels in (2, 4, 16):
        mechanism = GaussHermite(input_domain=ball, levels=levels, noise_multiplier=5.0)
        bits = mechanism.code_format().bits

        def privatise(mechanism: GaussHermite = mechanism, bits: int = bits) -> bytes:
            return packing.pack(mechanism.encode(values, SystemRandomness().stream()), bits)

        codes = mechanism.encode(values, SeededRandomness(1).stream("bench"))
        packed = packing.pack(codes, bits)
        assert np.array_equal(packing.unpack(packed, DIMENSION, bits), codes)
        total = StreamingMean(DIMENSION)

        def aggregate(
            mechanism: GaussHermite = mechanism,
            bits: int = bits,
            packed: bytes = packed,
            total: StreamingMean = total,
        ) -> None:
            total.add(mechanism.decode(packing.unpack(packed, DIMENSION, bits)), 1.0)

        rows.append((f"gauss_hermite {bits} bit, encode and pack", seconds(privatise)))
        rows.append((f"gauss_hermite {bits} bit, unpack, decode, add", seconds(aggregate)))
    print(f"{'what':<52}{'Mcoord/s':>10}{'ratio to numpy':>16}")
    for name, elapsed in rows:
        print(f"{name:<52}{DIMENSION / elapsed / 1e6:>10.1f}{baseline / elapsed:>16.2f}")


if __name__ == "__main__":
    main()
