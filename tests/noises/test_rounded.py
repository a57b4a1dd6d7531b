"""The sampler against exact decisions: float64 may be fast, but it is never allowed to be wrong.

Oracles: `exact_code` on every coordinate for the fast path, mpmath's tails with hundreds of digits
for `exact_code` itself, and a chi-square test for the law as a whole.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare

from sottovoce.domains import Vector
from sottovoce.errors import DomainError, ParameterError, RandomnessError
from sottovoce.noises import rounded
from sottovoce.noises.gaussian import Gaussian
from sottovoce.noises.laplace import Laplace
from sottovoce.noises.noise import Noise
from sottovoce.noises.rounded import exact_code, sample_rounded
from sottovoce.noises.staircase import Staircase
from sottovoce.randomness import Keystream

KEY = bytes(range(32))
ALL_ONES = 2**64 - 1
EXTENSION_BYTES = 16  # what exact_code reads first
LAWS: list[Noise] = [
    Gaussian(stddev=2.3),
    Laplace(scale=1.7),
    Staircase(step=2.0, epsilon=1.5, nu=0.3),
    Staircase(step=5.0, epsilon=20.0, nu=1.2e-3),  # a density with a cliff
]
every_law = pytest.mark.parametrize("noise", LAWS, ids=repr)
STEPS = (3.1, 1.0, 0.37, 1e-3, 2.0**-17)


class PlantedWords(Keystream):
    """A keystream whose 64-bit words are chosen; what lies beyond them is drawn as ever."""

    __slots__ = ("_planted",)

    def __init__(self, words: Sequence[int]) -> None:
        super().__init__(KEY)
        self._planted = np.array(words, dtype=np.uint64)

    def words(self, count: int) -> NDArray[np.uint64]:
        assert count == len(self._planted)
        return self._planted


class PlantedNumber(Keystream):
    """A keystream that spells a sign and one chosen tail of 63 + 8 * 64 bits after the first 0."""

    __slots__ = ("_rest", "_word", "asked")

    def __init__(self, tail: int, *, negative: bool) -> None:
        super().__init__(KEY)
        self._word = (tail >> 512) << 1 | negative
        self._rest = (tail & (2**512 - 1)).to_bytes(64, "big")
        self.asked: list[int] = []

    def words(self, count: int) -> NDArray[np.uint64]:
        assert count == 1
        return np.array([self._word], dtype=np.uint64)

    def extension(self, coordinate: int, num_bytes: int) -> bytes:
        self.asked.append(num_bytes)
        assert num_bytes <= 64, "the planted number should have been decided by now"
        return self._rest[:num_bytes]


def precise_tail(noise: Noise, threshold: Fraction) -> mpmath.mpf:
    """P(X > t) for t >= 0 in mpmath, from the densities and not from the code under test."""
    place = mpmath.mpf(threshold.numerator) / threshold.denominator
    if isinstance(noise, Gaussian):
        return mpmath.erfc(place / mpmath.mpf(noise.stddev) / mpmath.sqrt(2)) / 2
    if isinstance(noise, Laplace):
        return mpmath.exp(-place / mpmath.mpf(noise.scale)) / 2
    assert isinstance(noise, Staircase)
    b, nu = mpmath.exp(-mpmath.mpf(noise.epsilon)), mpmath.mpf(noise.nu)
    height = (1 - b) / (2 * (nu + b * (1 - nu)))
    steps = place / mpmath.mpf(noise.step)
    level = int(mpmath.floor(steps))
    part = steps - level
    in_this_step = max(nu - part, 0) + b * (1 - max(nu, part))
    return b**level * height * (in_this_step + b / (1 - b) * (nu + b * (1 - nu)))


def precise_code(value: float, noise: Noise, step: float, word: int, tail_bits: bytes) -> int:
    """By bisection over codes: the one whose cell the tail falls into, with 200 digits."""
    bits = 64 + 8 * len(tail_bits)
    lower = (word >> 1) << (8 * len(tail_bits)) | int.from_bytes(tail_bits, "big")
    sign = -1 if word & 1 else 1

    with mpmath.workdps(200):
        low, high = mpmath.ldexp(lower, -bits), mpmath.ldexp(lower + 1, -bits)

        def noise_exceeds(code: int) -> bool:
            threshold = (code + Fraction(1, 2)) * Fraction(step) - sign * Fraction(value)
            if threshold <= 0:
                return True
            tail = precise_tail(noise, threshold)
            assert not low < tail < high, "the bits do not decide"
            return bool(high <= tail)

        reach = int((abs(value) + 500.0 * noise.quantile_slope) / step) + 2
        below, above = -reach, reach
        assert noise_exceeds(below)
        assert not noise_exceeds(above)
        while above - below > 1:
            middle = (above + below) // 2
            below, above = (middle, above) if noise_exceeds(middle) else (below, middle)
        return sign * above


@pytest.fixture
def slow_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the coordinates that the sampler hands to the slow path."""
    coordinates: list[int] = []

    def counted(
        value: float, noise: Noise, step: float, word: int, coordinate: int, keystream: Keystream
    ) -> int:
        coordinates.append(coordinate)
        return exact_code(value, noise, step, word, coordinate, keystream)

    monkeypatch.setattr(rounded, "exact_code", counted)
    return coordinates


# -- the fast path is never wrong ----------------------------------------------------------


@every_law
@pytest.mark.parametrize("step", STEPS)
def test_codes_are_those_that_exact_arithmetic_decides(
    noise: Noise, step: float, monkeypatch: pytest.MonkeyPatch, slow_calls: list[int]
) -> None:
    generator = np.random.default_rng(int(1e6 * step))
    values = generator.uniform(-3.0, 3.0, 500) * generator.choice([1.0, 1e-3, 0.0], 500)
    fast = sample_rounded(values, noise, step, Keystream(KEY))
    assert len(slow_calls) <= 1
    monkeypatch.setattr(rounded, "_margin", lambda *_: 1.0)
    exact = sample_rounded(values, noise, step, Keystream(KEY))
    assert len(slow_calls) >= 500
    assert fast.dtype == np.int64
    assert fast.tolist() == exact.tolist()


@every_law
@pytest.mark.parametrize("step", [3.1, 0.37, 2.0**-17])
def test_exact_codes_are_those_of_mpmath(noise: Noise, step: float) -> None:
    generator = np.random.default_rng(7)
    words = [*generator.integers(0, 2**64, 40, dtype=np.uint64).tolist(), 0, 1, 2, 3, 2**30, 2**41]
    words += [ALL_ONES, ALL_ONES - 1]
    for i, word in enumerate(words):
        value = float(generator.uniform(-3.0, 3.0))
        source = Keystream(KEY)
        expected = precise_code(value, noise, step, word, source.extension(i, EXTENSION_BYTES))
        assert exact_code(value, noise, step, word, i, source) == expected


@every_law
@pytest.mark.parametrize("step", [1.0, 1e-3])
@pytest.mark.parametrize("value", [0.0, -0.4, 1.2345])
def test_words_on_and_around_every_middle_are_decided_as_by_mpmath(
    noise: Noise, step: float, value: float, slow_calls: list[int]
) -> None:
    """The words walk out of the margin on both sides, so both paths decide some of them."""
    planted: list[int] = []
    on_a_middle: set[int] = set()
    centre = round(value / step)
    spread = max(1, round(math.sqrt(noise.variance) / step))
    for offset in (0, 1, spread, 2 * spread):
        threshold = (centre + offset + Fraction(1, 2)) * Fraction(step) - Fraction(value)
        with mpmath.workdps(100):
            at = int(mpmath.floor(mpmath.ldexp(precise_tail(noise, threshold), 64)))
        offsets = [0, *(s * 2**k for s in (1, -1) for k in (0, 3, 10, 16, 20, 24, 28, 34))]
        for o in offsets:
            if 2**41 <= at + o < 2**63:
                if o == 0:
                    on_a_middle.add(len(planted))
                planted.append((at + o) << 1)
    codes = sample_rounded(np.full(len(planted), value), noise, step, PlantedWords(planted))
    assert on_a_middle
    assert on_a_middle <= set(slow_calls) < set(range(len(planted)))
    source = Keystream(KEY)
    for i, (word, code) in enumerate(zip(planted, codes.tolist(), strict=True)):
        extension = source.extension(i, EXTENSION_BYTES)
        assert code == precise_code(value, noise, step, word, extension)


@every_law
def test_small_tails_take_the_slow_path_and_others_do_not(
    noise: Noise, slow_calls: list[int]
) -> None:
    words = [0, 1, 2**40, 2**63 + 2**62]
    sample_rounded(np.zeros(4), noise, 10.0 * math.sqrt(noise.variance), PlantedWords(words))
    assert slow_calls == [0, 1, 2]


@every_law
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_tail_that_agrees_with_a_middle_for_500_bits_is_read_until_it_is_decided(
    noise: Noise, negative: bool, side: int
) -> None:
    value, step, code = 0.3, 0.75, 2
    sign = -1 if negative else 1
    threshold = (code + Fraction(1, 2)) * Fraction(step) - sign * Fraction(value)
    with mpmath.workdps(400):
        tail = int(mpmath.floor(mpmath.ldexp(precise_tail(noise, threshold), 576))) + 2 * side
    keystream = PlantedNumber(tail, negative=negative)
    (found,) = sample_rounded(np.array([value]), noise, step, keystream).tolist()
    assert found == sign * (code if side > 0 else code + 1)  # a larger tail is less noise
    assert keystream.asked == [16, 32, 64]


def test_the_margin_covers_what_float64_can_be_off() -> None:
    """Against the real number (x + noise)/step in mpmath: never off by more than half of it."""
    generator = np.random.default_rng(3)
    noise, step = Gaussian(stddev=0.7), 1e-4
    words = generator.integers(2**41, 2**64, 300, dtype=np.uint64)
    words[:100] = (2.0 ** generator.uniform(41.0, 64.0, 100)).astype(np.uint64)
    values = generator.uniform(-1.0, 1.0, 300)
    margin = rounded._margin(1.0, noise, step)
    with mpmath.workdps(40):
        for value, word in zip(values.tolist(), words.tolist(), strict=True):
            for end in (word >> 1, (word >> 1) + 1):  # of all tails that begin with this word
                tail = mpmath.mpf(end) / 2**64
                real = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * tail) * mpmath.mpf(noise.stddev)
                place = noise.quantile(np.array([(word >> 1) * 2.0**-64]))[0]
                difference = (value + place) * (1.0 / step) - (value + real) / mpmath.mpf(step)
                assert abs(difference) < margin / 2


# -- the law -------------------------------------------------------------------------------


@every_law
@pytest.mark.parametrize("relative_value", [0.0, 0.3, -1.3])
def test_sampled_frequencies_match_the_declared_law(noise: Noise, relative_value: float) -> None:
    count, stddev = 100_000, math.sqrt(noise.variance)
    value, step = relative_value * stddev, 0.7 * stddev
    codes = sample_rounded(np.full(count, value), noise, step, Keystream(KEY))
    with mpmath.workdps(30):
        limits = [
            (code + Fraction(1, 2)) * Fraction(step) - Fraction(value) for code in range(-9, 9)
        ]
        cumulative = [
            float(1 - precise_tail(noise, t) if t > 0 else precise_tail(noise, -t)) for t in limits
        ]
    # Cells -8 ... 8, and all that lies beyond them on either side.
    expected = count * np.diff([0.0, *cumulative, 1.0])
    observed = np.bincount(np.clip(codes, -9, 9) + 9, minlength=19).astype(np.float64)
    rare = expected < 5.0  # the chi-square law needs a few of everything
    expected = np.append(expected[~rare], max(expected[rare].sum(), 1e-9))
    observed = np.append(observed[~rare], observed[rare].sum())
    if expected[-1] < 5.0:
        expected, observed = (np.append(x[1:-1], x[0] + x[-1]) for x in (expected, observed))
    assert len(expected) > 3
    assert chisquare(observed, expected * count / expected.sum()).pvalue > 1e-6


def test_a_shift_by_whole_steps_shifts_the_codes_and_a_flipped_sign_mirrors_them() -> None:
    noise, step = Gaussian(stddev=3.0), 0.5
    words = Keystream(KEY).words(1000).tolist()
    plain = sample_rounded(np.zeros(1000), noise, step, PlantedWords(words))
    moved = sample_rounded(np.full(1000, 4.0), noise, step, PlantedWords(words))
    mirrored = sample_rounded(np.zeros(1000), noise, step, PlantedWords([w ^ 1 for w in words]))
    assert np.array_equal(moved, plain + 8)
    assert np.array_equal(mirrored, -plain)


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.linspace(-1.0, 1.0, 1001)
    whole = sample_rounded(values, LAWS[0], 0.01, Keystream(KEY))
    monkeypatch.setattr(rounded, "_CHUNK", 64)
    assert np.array_equal(sample_rounded(values, LAWS[0], 0.01, Keystream(KEY)), whole)


# -- what is refused -------------------------------------------------------------------------


def test_a_grid_too_fine_for_the_noise_is_refused_before_anything_is_drawn() -> None:
    keystream = Keystream(KEY)
    with pytest.raises(ParameterError, match="coarser grid"):
        sample_rounded(np.zeros(3), Gaussian(stddev=1e8), 1.0, keystream)
    bad: list[Vector] = [np.array([1e8, 0.0]), np.array([math.nan]), np.array([-math.inf])]
    for values in bad:
        with pytest.raises(DomainError, match="steps of 0"):
            sample_rounded(values, LAWS[0], 1.0, keystream)
    assert sample_rounded(np.zeros(0), LAWS[0], 1.0, keystream).tolist() == []
    with pytest.raises(RandomnessError, match="fresh"):
        sample_rounded(np.zeros(3), LAWS[0], 1.0, keystream)
