"""One-bit codes: lazy, and yet decided by the same infinitely long uniform number as ever."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from sottovoce.kernels import one_bit
from sottovoce.kernels.one_bit import decide, exact_bit, sample_bits, sample_rows
from sottovoce.randomness import Keystream, SeededRandomness

SOURCE = SeededRandomness(7)


def reference(tilts: np.ndarray, keystream: Keystream) -> np.ndarray:
    """The whole uniform number of every coordinate, 80 bits of it, against a 50-digit threshold."""
    words = keystream.halfwords(len(tilts))
    found = []
    with mpmath.workdps(50):
        for i, (tilt, word) in enumerate(zip(tilts, words, strict=True)):
            extension = int.from_bytes(keystream.extension(i, 8), "big")
            uniform = mpmath.mpf((int(word) << 64) | extension) / mpmath.mpf(2) ** 80
            found.append(uniform >= 1 / (1 + mpmath.exp(2 * mpmath.mpf(float(tilt)))))
    return np.array(found, dtype=np.uint8)


@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e-3, 0.06, 0.125, 0.3, 2.0, 50.0, 1e6])
def test_bits_are_those_of_the_exact_threshold(scale: float) -> None:
    tilts = scale * np.random.default_rng(0).normal(size=1500)
    found = sample_bits(tilts, SOURCE.stream("a", repr(scale)))
    np.testing.assert_array_equal(found, reference(tilts, SOURCE.stream("a", repr(scale))))


@pytest.mark.parametrize("dimension", [1, 7, 8, 9, 1000, 1003])
@pytest.mark.parametrize("scale", [1e-3, 0.2, 5.0])
def test_packed_rows_are_the_bits_of_each_row(dimension: int, scale: float) -> None:
    rows = (scale * np.random.default_rng(1).normal(size=(5, dimension))).astype(np.float32)
    label = (dimension, repr(scale))
    payloads = sample_rows(rows, 1.3, [SOURCE.stream("row", i, *label) for i in range(5)])
    assert payloads.shape == (5, (dimension + 7) // 8)
    bits = np.unpackbits(payloads, axis=1, bitorder="little")
    assert not bits[:, dimension:].any()
    for i, row in enumerate(rows):
        alone = sample_bits(row.astype(np.float64) / 1.3, SOURCE.stream("row", i, *label))
        np.testing.assert_array_equal(bits[i, :dimension], alone)


@pytest.mark.parametrize("noise_stddev", [2e-12, 1e-9, 1e-30, 1e9, 1e30])
def test_rows_under_any_noise_are_the_bits_of_each_row(noise_stddev: float) -> None:
    tilts = np.array([[0.0, 0.05, -0.05, 0.124, 0.126, 3.0, -0.0, 1e-8]] * 40)
    rows = tilts * noise_stddev
    streams = [[SOURCE.stream("noise", repr(noise_stddev), i) for i in range(40)] for _ in "ab"]
    payloads = sample_rows(rows, noise_stddev, streams[0])
    bits = np.unpackbits(payloads, axis=1, count=8, bitorder="little")
    pairs = zip(rows, streams[1], strict=True)
    np.testing.assert_array_equal(
        bits, [sample_bits(row / noise_stddev, one) for row, one in pairs]
    )
    assert 0 < bits[:, 0].sum() < 40


def test_rows_in_float64_are_not_rounded_first() -> None:
    rows = np.random.default_rng(2).normal(size=(3, 400))
    payloads = sample_rows(rows, 0.7, [SOURCE.stream("wide", i) for i in range(3)])
    bits = np.unpackbits(payloads, axis=1, count=400, bitorder="little")
    for i, row in enumerate(rows):
        np.testing.assert_array_equal(bits[i], sample_bits(row / 0.7, SOURCE.stream("wide", i)))


@given(
    tilt=st.floats(-40.0, 40.0),
    word=st.integers(0, 2**16 - 1),
    share=st.floats(0.0, 1.0),
)
def test_the_first_comparison_is_never_wrong(tilt: float, word: int, share: float) -> None:
    """Wherever it is sure, every uniform number in the halfword's cell gives that bit."""
    value = np.array([share * tilt])
    surely, perhaps = one_bit._compare(value, 1.0, np.array([word], dtype=np.uint16))
    with mpmath.workdps(40):
        threshold = mpmath.mpf(2) ** 16 / (1 + mpmath.exp(2 * mpmath.mpf(float(value[0]))))
        if surely[0]:
            assert word >= threshold
        if not perhaps[0]:
            assert word + 1 <= threshold


@pytest.mark.parametrize("tilt", [0.0, 0.1, -0.1, 0.12499, 0.2, 3.0, -3.0])
def test_the_worst_halfwords_are_left_undecided_and_few_others(tilt: float) -> None:
    words = np.arange(2**16, dtype=np.uint16)
    value = np.full(2**16, tilt)
    surely, perhaps = one_bit._compare(value, 1.0, words)
    undecided = np.flatnonzero(surely != perhaps)
    threshold = 2.0**16 * expit(-2.0 * tilt)
    assert math.floor(threshold) in undecided or threshold == math.floor(threshold)
    assert len(undecided) <= 2


def test_frequencies_are_those_of_the_law() -> None:
    tilts = np.repeat([-0.8, -0.05, 0.0, 0.3], 50_000)
    bits = sample_bits(tilts, SOURCE.stream("law")).reshape(4, -1)
    expected = expit(2.0 * np.array([-0.8, -0.05, 0.0, 0.3]))
    spread = np.sqrt(expected * (1 - expected) / 50_000)
    assert (np.abs(bits.mean(axis=1) - expected) < 5 * spread).all()


class Fixed(Keystream):
    """A keystream whose extension is given."""

    __slots__ = ("_extension",)

    def __init__(self, extension: bytes) -> None:
        super().__init__(bytes(32))
        self._extension = extension

    def extension(self, coordinate: int, num_bytes: int) -> bytes:
        return self._extension[:num_bytes].ljust(num_bytes, b"\x80")


def test_a_tie_in_float64_is_decided_in_arbitrary_precision() -> None:
    """The uniform number agrees with the threshold in 80 bits; further ones decide."""
    with mpmath.workdps(60):
        threshold = 1 / (1 + mpmath.exp(mpmath.mpf(2) * mpmath.mpf(0.3)))
        scaled = int(mpmath.floor(threshold * mpmath.mpf(2) ** 144))
    for offset, expected in ((0, 0), (1, 1)):
        digits = scaled + offset
        word, extension = digits >> 128, (digits & (2**128 - 1)).to_bytes(16, "big")
        assert decide(0.3, word, 0, Fixed(extension)) == expected
        assert exact_bit(0.3, word, 0, Fixed(extension)) == expected
