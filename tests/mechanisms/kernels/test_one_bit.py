"""One-bit codes: lazy, and yet decided by the same infinitely long uniform number as ever."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from planted import Planted, PlantedNumber, uniform_number
from scipy.special import expit

from sottovoce.core.domains import Vector
from sottovoce.core.randomness import Keystream, SeededRandomness
from sottovoce.mechanisms.kernels.one_bit import sample_bits as public_bits
from sottovoce.mechanisms.kernels.one_bit import sample_payload
from sottovoce.mechanisms.kernels.reference import one_bit
from sottovoce.mechanisms.kernels.reference.one_bit import decide, exact_bit, sample_bits

SOURCE = SeededRandomness(7)


def bits_of_exact_numbers(tilts: Vector, keystream: Keystream) -> NDArray[np.uint8]:
    """The uniform number of every coordinate, 144 bits of it, against a 60-digit threshold."""
    found = []
    with mpmath.workdps(60):
        for i, tilt in enumerate(tilts):
            number, bits = uniform_number(keystream, 16, i)
            uniform = mpmath.ldexp(mpmath.mpf(number), -bits)
            found.append(uniform >= 1 / (1 + mpmath.exp(2 * mpmath.mpf(float(tilt)))))
    return np.array(found, dtype=np.uint8)


@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e-3, 0.06, 0.125, 0.3, 2.0, 50.0, 1e6])
def test_bits_are_those_of_the_exact_threshold(scale: float) -> None:
    tilts = scale * np.random.default_rng(0).normal(size=1500)
    expected = bits_of_exact_numbers(tilts, SOURCE.stream("a", repr(scale)))
    found = sample_bits(tilts, SOURCE.stream("a", repr(scale)))
    np.testing.assert_array_equal(found, expected)
    found = public_bits(tilts, 1.0, SOURCE.stream("a", repr(scale)))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dimension", [1, 7, 8, 9, 1000, 1003])
@pytest.mark.parametrize("scale", [1e-3, 0.2, 5.0])
def test_a_payload_is_the_bits_packed(dimension: int, scale: float) -> None:
    rows = (scale * np.random.default_rng(1).normal(size=(5, dimension))).astype(np.float32)
    label = (dimension, repr(scale))
    for i, row in enumerate(rows):
        payload = sample_payload(row, 1.3, SOURCE.stream("row", i, *label))
        assert payload.shape == ((dimension + 7) // 8,)
        bits = np.unpackbits(payload, bitorder="little")
        assert not bits[dimension:].any()
        alone = sample_bits(row.astype(np.float64) / 1.3, SOURCE.stream("row", i, *label))
        np.testing.assert_array_equal(bits[:dimension], alone)


@pytest.mark.parametrize("noise_stddev", [2e-12, 1e-9, 1e-30, 1e-35, 1e9, 1e30, 1e40])
def test_payloads_under_any_noise_are_the_bits(noise_stddev: float) -> None:
    tilts = np.array([0.0, 0.05, -0.05, 0.124, 0.126, 3.0, -0.0, 1e-8] * 40)
    values = tilts * noise_stddev
    streams = [SOURCE.stream("noise", repr(noise_stddev)) for _ in "ab"]
    payload = sample_payload(values, noise_stddev, streams[0])
    bits = np.unpackbits(payload, bitorder="little")
    np.testing.assert_array_equal(bits, sample_bits(values / noise_stddev, streams[1]))
    assert 0 < bits[::8].sum() < 40


def test_values_in_float64_are_not_rounded_first() -> None:
    rows = np.random.default_rng(2).normal(size=(3, 400))
    for i, row in enumerate(rows):
        payload = sample_payload(row, 0.7, SOURCE.stream("wide", i))
        bits = np.unpackbits(payload, count=400, bitorder="little")
        np.testing.assert_array_equal(bits, sample_bits(row / 0.7, SOURCE.stream("wide", i)))


@given(
    tilt=st.floats(-40.0, 40.0),
    word=st.integers(0, 2**16 - 1),
    share=st.floats(0.0, 1.0),
)
def test_the_first_comparison_is_never_wrong(tilt: float, word: int, share: float) -> None:
    """Wherever it is sure, every uniform number in the draw's cell gives that bit."""
    value = np.array([share * tilt])
    surely, perhaps = one_bit._compare(value, np.array([word], dtype=np.uint16))
    with mpmath.workdps(40):
        threshold = mpmath.mpf(2) ** 16 / (1 + mpmath.exp(2 * mpmath.mpf(float(value[0]))))
        if surely[0]:
            assert word >= threshold
        if not perhaps[0]:
            assert word + 1 <= threshold


@pytest.mark.parametrize("tilt", [0.0, 0.1, -0.1, 0.12499, 0.2, 3.0, -3.0])
def test_the_worst_draws_are_left_undecided_and_few_others(tilt: float) -> None:
    words = np.arange(2**16, dtype=np.uint16)
    value = np.full(2**16, tilt)
    surely, perhaps = one_bit._compare(value, words)
    undecided = np.flatnonzero(surely != perhaps)
    threshold = 2.0**16 * expit(-2.0 * tilt)
    assert math.floor(threshold) in undecided or threshold == math.floor(threshold)
    assert len(undecided) <= 2


def test_frequencies_are_those_of_the_law() -> None:
    tilts = np.repeat([-0.8, -0.05, 0.0, 0.3], 50_000)
    bits = public_bits(tilts, 1.0, SOURCE.stream("law")).reshape(4, -1)
    expected = expit(2.0 * np.array([-0.8, -0.05, 0.0, 0.3]))
    spread = np.sqrt(expected * (1 - expected) / 50_000)
    assert (np.abs(bits.mean(axis=1) - expected) < 5 * spread).all()


@pytest.mark.parametrize("tilt", [0.0, 1e-9, 0.05, -0.1249, 0.126, -0.7, 5.0, -20.0])
def test_numbers_on_and_around_the_threshold_are_decided_as_by_mpmath(tilt: float) -> None:
    """Offsets that walk out of both margins: each stage decides some."""
    with mpmath.workdps(60):
        threshold = 1 / (1 + mpmath.exp(2 * mpmath.mpf(tilt)))
        at = int(mpmath.floor(mpmath.ldexp(threshold, 80)))
    numbers = [at + s * 2**k for s in (1, -1) for k in (0, 20, 30, 31, 34, 50, 63, 64, 66)]
    numbers = [0, 2**80 - 1, at, *numbers]
    planted = [number for number in numbers if 0 <= number < 2**80]
    expected = bits_of_exact_numbers(np.full(len(planted), tilt), Planted(planted))
    found = sample_bits(np.full(len(planted), tilt), Planted(planted))
    np.testing.assert_array_equal(found, expected)
    assert 0 < expected.sum() < len(planted)


@pytest.mark.parametrize("tilt", [0.3, -0.02])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_tie_is_read_until_it_is_decided(tilt: float, side: int) -> None:
    """The uniform number agrees with the threshold in all but the last of 528 bits."""
    with mpmath.workdps(200):
        threshold = 1 / (1 + mpmath.exp(mpmath.mpf(2) * mpmath.mpf(tilt)))
        number = int(mpmath.floor(mpmath.ldexp(threshold, 528))) + 2 * side
    keystream = PlantedNumber(*divmod(number, 2**512))
    word = keystream.draw(16, 0)
    assert exact_bit(tilt, word, 0, keystream) == (side > 0)
    assert decide(tilt, word, 0, keystream) == (side > 0)
    assert keystream.asked == [16, 32, 64, 8, 16, 32, 64]
