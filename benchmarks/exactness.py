"""Check the codes of every kernel against an independent reference.

    python benchmarks/exactness.py [draws]      10^8 if none are given; exits 1 on any mismatch

The reference draws the keystream itself (ChaCha20 from `cryptography`, laid out as `randomness`
says) and knows no crude filter. A coordinate's uniform number U = 0.draw,extension... has
infinitely many bits; a draw gives the first 16. Thresholds are computed in float64, with an error
below the guard. Where all numbers of the draw's cell [w, w + 1)/2^16 lie on the same side of every
threshold by more than the guard, further bits cannot change the code, so drawing them would change
nothing; elsewhere 64 further bits are drawn (80 in all), and where these too lie within the guard
of a threshold, mpmath compares with 400 bits of precision and as many random ones as it takes.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from sottovoce.core import native
from sottovoce.core.domains import L2Ball
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.design import families
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.kernels.one_bit import sample_bits

Floats = NDArray[np.float64]
Codes = NDArray[np.uint8]
Sampled = Callable[[NDArray[Any], Keystream], Codes]

_TILE_DRAWS, _BLOCKS = 1024, 32
_CELL = 2.0**-16
# float64 thresholds of one bit carry some 2^-50, those of 256 levels and |y z| <= 1000 some 2^-39.
_GUARD, _FAMILY_GUARD = 2.0**-45, 2.0**-35
_MANY, _FEW = 1 << 20, 1 << 15  # coordinates at a time: one bit, several
_STDDEVS = (0.03, 1.0, 30.0, 2000.0)  # of values up to about 4: |z| up to 130, and down to 1e-9
_MULTIPLIERS = (0.05, 0.5, 5.0)
_NUMPY_EVERY = 16  # numpy takes part in some of the work, since it is slow
_ODD = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, -1e-30, 1e-300, 5e-324, 2.0**-126, 1.0 / 3.0])


def stream(key: bytes, nonce: int, num_bytes: int) -> bytes:
    """Return ChaCha20 from block 0 on (RFC 8439: 4-byte counter, 12-byte nonce, little-endian)."""
    start = bytes(4) + nonce.to_bytes(12, "little")
    return Cipher(ChaCha20(key, start), mode=None).encryptor().update(bytes(num_bytes))


def first_draws(key: bytes, count: int) -> NDArray[np.uint16]:
    """Return 16 bits per coordinate: i = 1024 t + 32 k + l reads draw k of block 32 t + l."""
    tiles = -(-count // _TILE_DRAWS)
    rest = np.arange(_TILE_DRAWS)
    places = (rest % _BLOCKS) * _BLOCKS + rest // _BLOCKS
    read = np.frombuffer(stream(key, 0, 2 * _TILE_DRAWS * tiles), dtype="<u2")
    return read.reshape(tiles, _TILE_DRAWS)[:, places].ravel()[:count]


def reference_bits(tilts: Floats, key: bytes) -> Codes:
    """Return 1 where U >= 1/(1 + e^(2z))."""
    small = np.exp(-2.0 * np.abs(tilts))
    limits = np.where(tilts > 0.0, small, 1.0) / (1.0 + small)
    return _codes(limits[None], key, _GUARD, lambda i: [1 / (1 + mpmath.exp(2 * tilts[i]))])


def reference_codes(tilts: Floats, points: Floats, weights: Floats, key: bytes) -> Codes:
    """Return how many of the cumulative probabilities of w_j e^(y_j z) are at most U."""
    exponents = np.multiply.outer(points, tilts)
    below = np.cumsum(weights[:, None] * np.exp(exponents - exponents.max(axis=0)), axis=0)
    limits = below[:-1] / below[-1]

    def exactly(i: int) -> list[Any]:
        masses = [
            mpmath.mpf(float(w)) * mpmath.exp(mpmath.mpf(float(y)) * mpmath.mpf(float(tilts[i])))
            for y, w in zip(points, weights, strict=True)
        ]
        total = mpmath.fsum(masses)
        return [mpmath.fsum(masses[: j + 1]) / total for j in range(len(masses) - 1)]

    return _codes(limits, key, _FAMILY_GUARD, exactly)


def _codes(limits: Floats, key: bytes, guard: float, exactly: Callable[[int], list[Any]]) -> Codes:
    """Return, for each column, how many limits are at most its uniform number."""
    words = first_draws(key, limits.shape[1])
    low = words * _CELL
    surely: Codes = (limits <= low - guard).sum(axis=0, dtype=np.uint8)
    perhaps = (limits < low + (_CELL + guard)).sum(axis=0, dtype=np.uint8)
    for i in np.flatnonzero(surely != perhaps):
        surely[i] = _decided(limits[:, i], int(words[i]), int(i), key, guard, exactly)
    return surely


def _decided(
    limits: Floats,
    word: int,
    i: int,
    key: bytes,
    guard: float,
    exactly: Callable[[int], list[Any]],
) -> int:
    """Decide with 80 random bits in float64, and finally with as many as needed."""
    read = int.from_bytes(stream(key, i + 1, 8), "big")
    uniform = (word + read * 2.0**-64) * _CELL
    if not (np.abs(limits - uniform) <= guard).any():
        return int((limits < uniform).sum())
    with mpmath.workprec(400):
        exact = exactly(i)
        for num_bytes in (8, 16, 32):
            bits = 16 + 8 * num_bytes
            read = int.from_bytes(stream(key, i + 1, num_bytes), "big")
            lower = word << (8 * num_bytes) | read
            scaled = [mpmath.ldexp(limit, bits) for limit in exact]
            if not any(lower < limit < lower + 1 for limit in scaled):
                return sum(limit <= lower for limit in scaled)
    raise AssertionError("272 random bits lie on a threshold: that cannot happen")


class Tally:
    """The draws and mismatches of each kind and level."""

    def __init__(self) -> None:
        self.draws: Counter[tuple[str, str]] = Counter()
        self.wrong: Counter[tuple[str, str]] = Counter()

    def compare(self, kind: str, number: int, values: NDArray[Any], sampled: Sampled,
                key: bytes, expected: Codes) -> None:  # fmt: skip
        every = native.levels()
        for level in every if number % _NUMPY_EVERY == 0 or len(every) == 1 else every[1:]:
            with native.using(level):
                found = sampled(values, Keystream(key))
            self.draws[kind, level] += len(values)
            self.wrong[kind, level] += int(np.count_nonzero(found != expected))


def one_bit(draws: int, tally: Tally) -> None:
    generator, done, number = np.random.default_rng(1), 0, 0
    while done < draws:
        size = min(_MANY - number % 97, draws - done)
        stddev = _STDDEVS[number % len(_STDDEVS)]
        values = generator.standard_normal(size)
        values[: len(_ODD)] = _ODD[:size]
        given = values.astype(np.float32) if number % 2 else values
        key = generator.bytes(32)
        expected = reference_bits(given.astype(np.float64) / stddev, key)

        def sampled(chosen: NDArray[Any], keystream: Keystream, stddev: float = stddev) -> Codes:
            return sample_bits(chosen, stddev, keystream)

        tally.compare("1 bit", number, given, sampled, key, expected)
        done, number = done + size, number + 1


def several_bits(bits: int, draws: int, tally: Tally) -> None:
    generator, done, number = np.random.default_rng(bits), 0, 0
    design = families.gauss_hermite(1 << bits)
    while done < draws:
        size = min(_FEW - number % 97, draws - done)
        mechanism = GaussHermite(
            input_domain=L2Ball(dimension=size, radius=1.0),
            levels=1 << bits,
            noise_multiplier=_MULTIPLIERS[number % len(_MULTIPLIERS)],
        )
        values = generator.uniform(-1.0, 1.0, size)
        values[: len(_ODD)] = _ODD[:size]
        given = values.astype(np.float32) if number % 2 else values
        key = generator.bytes(32)
        tilts = given.astype(np.float64) / mechanism.noise_stddev
        expected = reference_codes(tilts, design.points, design.weights, key)
        tally.compare(f"{bits} bits", number, given, mechanism.sample, key, expected)
        done, number = done + size, number + 1


def main() -> None:
    draws = int(float(sys.argv[1])) if len(sys.argv) > 1 else 10**8
    if draws < 1:
        sys.exit("give a number of draws, at least 1")
    tally, start = Tally(), time.perf_counter()
    one_bit(draws, tally)
    for bits, share in ((2, 100), (4, 400), (8, 4000)):
        several_bits(bits, max(1000, draws // share), tally)
    print(f"{'codes':<8}{'kernels':<10}{'draws':>14}{'mismatches':>12}")
    for (kind, level), count in tally.draws.items():
        print(f"{kind:<8}{level:<10}{count:>14,}{tally.wrong[kind, level]:>12,}")
    wrong = sum(tally.wrong.values())
    print(f"{wrong} mismatches, {time.perf_counter() - start:.0f} s")
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
