"""The sampler against exact decisions: float64 may be fast, but it is never allowed to be wrong.

Oracles: `exact_code` on every coordinate for the fast path, mpmath's tails with hundreds of digits
for `exact_code` itself, and a chi-square test for the law as a whole.
"""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from cases import FACTOR, cases, thinned
from numpy.typing import NDArray
from planted import FURTHER_BYTES, KEY, Planted, PlantedNumber
from precise_noise import precise_tail
from scipy.stats import chisquare

from sottovoce.core import native
from sottovoce.core.domains import Vector
from sottovoce.core.errors import DomainError, ParameterError, RandomnessError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.noise import rounded
from sottovoce.mechanisms.noise.laws import Noise, ScalarGaussian, ScalarLaplace, ScalarStaircase
from sottovoce.mechanisms.noise.rounded import LEAST_TAIL, exact_code
from sottovoce.mechanisms.noise.series import PER_UNIT, tail_series

ALL_ONES = 2**32 - 1
LAWS: list[Noise] = [
    ScalarGaussian(stddev=2.3),
    ScalarLaplace(scale=1.7),
    ScalarStaircase(step=2.0, epsilon=1.5, nu=0.3),
    ScalarStaircase(step=5.0, epsilon=20.0, nu=1.2e-3),  # a density with a cliff
]
every_law = pytest.mark.parametrize("noise", LAWS, ids=repr)
STEPS = (3.1, 1.0, 0.37, 1e-3, 2.0**-17)


def sample_rounded(
    values: Vector, noise: Noise, step: float, keystream: Keystream
) -> NDArray[np.int32]:
    """The sampler in numpy, which reads planted keystreams."""
    with native.using("numpy"):
        return rounded.sample_rounded(values, noise, step, keystream)


def precise_code(value: float, noise: Noise, step: float, word: int, tail_bits: bytes) -> int:
    """By bisection over codes: the one whose cell the tail falls into, with 200 digits."""
    bits = 32 + 8 * len(tail_bits)
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


@pytest.mark.parametrize(("noise", "step"), thinned(LAWS, STEPS))
def test_codes_are_those_that_exact_arithmetic_decides(
    noise: Noise, step: float, slow_calls: list[int]
) -> None:
    generator = np.random.default_rng(int(1e6 * step))
    count = cases(500)
    values = generator.uniform(-3.0, 3.0, count) * generator.choice([1.0, 1e-3, 0.0], count)
    fast = sample_rounded(values, noise, step, Keystream(KEY))
    assert len(slow_calls) <= FACTOR
    words = Keystream(KEY).draws(32, count).tolist()
    exact = np.array(
        [
            exact_code(value, noise, step, word, i, Keystream(KEY))
            for i, (value, word) in enumerate(zip(values.tolist(), words, strict=True))
        ]
    )
    assert fast.dtype == np.int32
    assert fast.tolist() == exact.tolist()


@pytest.mark.parametrize(("noise", "step"), thinned(LAWS, [3.1, 0.37, 2.0**-17]))
def test_exact_codes_are_those_of_mpmath(noise: Noise, step: float) -> None:
    generator = np.random.default_rng(7)
    words = [*generator.integers(0, 2**32, 40).tolist(), 0, 1, 2, 3, 2**12, 2**13, 2**14]
    words += [ALL_ONES, ALL_ONES - 1]
    for i, word in enumerate(words):
        value = float(generator.uniform(-3.0, 3.0))
        source = Keystream(KEY)
        expected = precise_code(value, noise, step, word, source.extension(i, FURTHER_BYTES))
        assert exact_code(value, noise, step, word, i, source) == expected


@pytest.mark.parametrize(
    ("noise", "step", "value"), thinned(LAWS, [1.0, 1e-3], [0.0, -0.4, 1.2345])
)
def test_words_on_and_around_every_middle_are_decided_as_by_mpmath(
    noise: Noise, step: float, value: float, slow_calls: list[int]
) -> None:
    """The numbers walk out of both margins on both sides, so every stage decides some of them."""
    planted: list[int] = []
    on_a_middle: set[int] = set()
    centre = round(value / step)
    spread = max(1, round(math.sqrt(noise.variance) / step))
    for offset in (0, 1, spread, 2 * spread):
        threshold = (centre + offset + Fraction(1, 2)) * Fraction(step) - Fraction(value)
        with mpmath.workdps(100):
            at = int(mpmath.floor(mpmath.ldexp(precise_tail(noise, threshold), 96)))
        sizes = (0, 3, 30, 48, 52, 56, 60, 62, 63, 64, 65, 70)
        offsets = [0, *(s * 2**k for s in (1, -1) for k in sizes)]
        for o in offsets:
            if 2**63 <= at + o < 2**95:
                if o == 0:
                    on_a_middle.add(len(planted))
                # The sign goes between the 31 bits of the tail that a draw has and the rest.
                planted.append(((at + o) >> 64) << 65 | (at + o) % 2**64)
    keystream = Planted(planted, draw_bits=32)
    codes = sample_rounded(np.full(len(planted), value), noise, step, keystream)
    assert on_a_middle
    assert on_a_middle <= set(slow_calls) < set(range(len(planted)))
    for i, code in enumerate(codes.tolist()):
        word, extension = keystream.draw(32, i), keystream.extension(i, FURTHER_BYTES)
        assert code == precise_code(value, noise, step, word, extension)


@every_law
def test_small_tails_read_on_and_others_do_not(
    noise: Noise, monkeypatch: pytest.MonkeyPatch, slow_calls: list[int]
) -> None:
    read: list[int] = []

    def extensions(self: Planted, coordinates: NDArray[np.int64]) -> NDArray[np.uint64]:
        read.extend(coordinates.tolist())
        return super(Planted, self).extensions(coordinates)

    monkeypatch.setattr(Planted, "extensions", extensions)
    words = [0, 1, LEAST_TAIL, 2 * LEAST_TAIL - 1, 2 * LEAST_TAIL, 2**31 + 2**30, ALL_ONES]
    keystream = Planted([word << 64 | 2**40 for word in words], draw_bits=32)
    width = 10.0 * math.sqrt(noise.variance)
    codes = sample_rounded(np.zeros(len(words)), noise, width, keystream)
    assert read == [0, 1, 2, 3]
    assert slow_calls == []
    for i, word in enumerate(words):
        extension = keystream.extension(i, FURTHER_BYTES)
        assert codes[i] == precise_code(0.0, noise, width, word, extension)


@every_law
@pytest.mark.parametrize("further", [0, 1, 2**11, 2**53, 2**64 - 1])
@pytest.mark.parametrize("step", [40.0, 1.0, 0.01])
def test_the_smallest_tails_are_decided_exactly(
    noise: Noise, further: int, step: float, slow_calls: list[int]
) -> None:
    """Where the draw is 0 but for its sign, and where what follows is next to nothing, too."""
    numbers = [0 << 64 | further, 1 << 64 | further, 2 << 64 | further]
    keystream = Planted(numbers, draw_bits=32)
    codes = sample_rounded(np.full(3, 0.3), noise, step, keystream)
    if further == 0:
        assert {0, 1} <= set(slow_calls)
    for i, code in enumerate(codes.tolist()):
        extension = keystream.extension(i, FURTHER_BYTES)
        assert code == precise_code(0.3, noise, step, i, extension)


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
        tail = int(mpmath.floor(mpmath.ldexp(precise_tail(noise, threshold), 544))) + 2 * side
    head, rest = divmod(tail, 2**512)
    keystream = PlantedNumber(head << 1 | negative, rest)
    (found,) = sample_rounded(np.array([value]), noise, step, keystream).tolist()
    assert found == sign * (code if side > 0 else code + 1)  # a larger tail is less noise
    assert keystream.asked == [8, 16, 32, 64]


@every_law
@pytest.mark.parametrize("step", [1e-4, 0.5])
def test_the_margins_cover_what_float64_can_be_off(noise: Noise, step: float) -> None:
    """Where float64 is sure, both ends of what the bits leave open round to its code in mpmath."""
    generator = np.random.default_rng(3)
    heads = (2.0 ** generator.uniform(12.0, 31.0, 300)).astype(np.int64)
    values = generator.uniform(-1.0, 1.0, 300)
    further = generator.integers(0, 2**64, 300, dtype=np.uint64)
    positive = np.zeros(300, dtype=np.bool_)
    whole = heads.astype(np.float64)
    draws = rounded._float_codes(values, noise, step, positive, whole * 2.0**-32, 1.0 / whole)
    tails = (heads + further * 2.0**-64) * 2.0**-32
    longer = rounded._float_codes(values, noise, step, positive, tails, np.full(300, 2.0**-52))
    sure = 0
    for i, head in enumerate(heads.tolist()):
        for (codes, undecided), lower, bits in (
            (draws, head, 32),
            (longer, head << 64 | int(further[i]), 96),
        ):
            if undecided[i]:
                continue
            sure += 1
            code, value = int(codes[i]), Fraction(float(values[i]))
            with mpmath.workdps(60):
                below = (code - Fraction(1, 2)) * Fraction(step) - value
                above = (code + Fraction(1, 2)) * Fraction(step) - value
                low, high = mpmath.ldexp(lower, -bits), mpmath.ldexp(lower + 1, -bits)
                assert below <= 0 or high <= precise_tail(noise, below)
                assert above > 0
                assert low >= precise_tail(noise, above)
    assert sure > 400


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
    noise, step = ScalarGaussian(stddev=3.0), 0.5
    words = Keystream(KEY).draws(32, 1000).astype(np.int64).tolist()
    numbers = [word << 64 | 12345 for word in words]
    flipped = [number ^ (1 << 64) for number in numbers]
    plain = sample_rounded(np.zeros(1000), noise, step, Planted(numbers, 32))
    moved = sample_rounded(np.full(1000, 4.0), noise, step, Planted(numbers, 32))
    mirrored = sample_rounded(np.zeros(1000), noise, step, Planted(flipped, 32))
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
        sample_rounded(np.zeros(3), ScalarGaussian(stddev=1e8), 1.0, keystream)
    bad: list[Vector] = [np.array([1e8, 0.0]), np.array([math.nan]), np.array([-math.inf])]
    for values in bad:
        with pytest.raises(DomainError, match="steps of 0"):
            sample_rounded(values, LAWS[0], 1.0, keystream)
    assert sample_rounded(np.zeros(0), LAWS[0], 1.0, keystream).tolist() == []
    with pytest.raises(RandomnessError, match="fresh"):
        sample_rounded(np.zeros(3), LAWS[0], 1.0, keystream)


@pytest.mark.parametrize("noise", LAWS[:2], ids=repr)
def test_the_series_of_a_tail_is_off_by_a_few_roundings(noise: Noise) -> None:
    found = tail_series(noise)
    assert found is not None
    generator = np.random.default_rng(3)
    last = len(found.rows) - 1
    for place in (*generator.uniform(0.0, last, 100), 0.5, 1.5, last + 0.5):
        node = min(round(place), last)
        value = float(np.polyval(found.rows[node, ::-1], place - node)) * 2.0**-32
        with mpmath.workdps(50):
            exact = precise_tail(noise, Fraction(place) * Fraction(found.unit) / PER_UNIT)
            assert abs(value / exact - 1) < 2.0**-50
    # Until the last series the tail is below 2^-32.
    assert found.rows[-1, 0] < 1.0
    assert tail_series(LAWS[2]) is None
