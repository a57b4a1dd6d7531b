"""The family sampler in numpy against exact decisions: float64 is never allowed to be wrong.

Oracles: `exact_code` on every coordinate for the fast path, mpmath with 200 digits or more for
`exact_code` itself, and a chi-square test for the law as a whole.
"""

import mpmath
import numpy as np
import pytest
from cases import denser, thinned
from numpy.typing import NDArray
from planted import FURTHER_BYTES, KEY, Planted, PlantedNumber, uniform_number
from scipy.stats import chisquare

from sottovoce.core.domains import Vector
from sottovoce.core.errors import RandomnessError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.design.families import gauss_hermite
from sottovoce.mechanisms.kernels.reference import family
from sottovoce.mechanisms.kernels.reference.family import exact_code, sample_exponential_family

STAGE_BITS = 16 + 64  # of a draw, and of the second stage
ALL_ONES = 2**STAGE_BITS - 1


def sample(tilts: Vector, levels: int, keystream: Keystream) -> NDArray[np.uint8]:
    design = gauss_hermite(levels)
    return sample_exponential_family(tilts, design.points, design.weights, keystream)


def all_decided_exactly(tilts: Vector, levels: int, key: bytes) -> list[int]:
    """The slow reference: no float64 decision anywhere."""
    design = gauss_hermite(levels)
    words = Keystream(key).draws(16, len(tilts))
    return [
        exact_code(float(z), design.points, design.weights, int(words[i]), i, Keystream(key))
        for i, z in enumerate(tilts)
    ]


def precise_thresholds(tilt: float, levels: int, digits: int = 200) -> list[mpmath.mpf]:
    """The inner cumulative probabilities of the float64 design, to `digits` digits."""
    design = gauss_hermite(levels)
    return precise_family(tilt, design.points, design.weights, digits)


def precise_family(
    tilt: float, points: Vector, weights: Vector, digits: int = 200
) -> list[mpmath.mpf]:
    with mpmath.workdps(digits):
        exponents = [mpmath.mpf(float(y)) * mpmath.mpf(tilt) for y in points]
        masses = [
            mpmath.mpf(float(w)) * mpmath.exp(e - max(exponents))
            for w, e in zip(weights, exponents, strict=True)
        ]
        total = mpmath.fsum(masses)
        return [mpmath.fsum(masses[: j + 1]) / total for j in range(len(points) - 1)]


def precise_code(thresholds: list[mpmath.mpf], number: int, bits: int) -> int:
    """The code of number / 2^bits, and the assurance that its last bit was not needed."""
    with mpmath.workdps(200):
        low, high = mpmath.ldexp(number, -bits), mpmath.ldexp(number + 1, -bits)
        assert not any(low <= t <= high for t in thresholds)
        return sum(low >= t for t in thresholds)


@pytest.fixture
def slow_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the coordinates that the sampler hands to the slow path."""
    coordinates: list[int] = []

    def counted(
        tilt: float,
        points: Vector,
        weights: Vector,
        word: int,
        coordinate: int,
        keystream: Keystream,
    ) -> int:
        coordinates.append(coordinate)
        return exact_code(tilt, points, weights, word, coordinate, keystream)

    monkeypatch.setattr(family, "exact_code", counted)
    return coordinates


# -- the fast path is never wrong ----------------------------------------------------------


@pytest.mark.parametrize(
    ("levels", "count"), [(2, 600), (3, 400), (5, 250), (8, 200), (16, 90), (64, 24), (256, 6)]
)
def test_codes_are_those_that_exact_arithmetic_decides(levels: int, count: int) -> None:
    generator = np.random.default_rng(levels)
    kinds = [
        generator.normal(0.0, 1.0, count),
        generator.uniform(-30.0, 30.0, count),
        generator.uniform(-1e3, 1e3, count),
        10.0 ** generator.uniform(-20.0, 3.0, count) * generator.choice([-1.0, 1.0], count),
    ]
    tilts = np.choose(generator.integers(0, 4, count), kinds)
    tilts[:2] = 1e3, -1e3
    key = generator.bytes(32)
    codes = sample(tilts, levels, Keystream(key))
    assert codes.dtype == np.uint8
    assert codes.tolist() == all_decided_exactly(tilts, levels, key)


@pytest.mark.parametrize(
    ("tilt", "levels"), thinned(denser([0.0, 1e-9, 0.3, -2.0, 7.5, -60.0, 1e3]), [2, 3, 8, 17])
)
def test_numbers_on_and_around_every_threshold_are_decided_as_by_mpmath(
    tilt: float, levels: int, slow_calls: list[int]
) -> None:
    thresholds = precise_thresholds(tilt, levels)
    with mpmath.workdps(200):
        at = [int(mpmath.floor(mpmath.ldexp(t, STAGE_BITS))) for t in thresholds]
    # The offsets walk out of both margins, so all three stages decide some of them.
    sizes = (0, 1, 16, 27, 28, 30, 34, 46, 60, 63, 64, 65, 67)
    offsets = [0, *(s * 2**k for s in (1, -1) for k in sizes)]
    numbers = {w + o for w in at for o in offsets if 0 <= w + o <= ALL_ONES}
    planted = sorted(numbers | {0, 1, ALL_ONES - 1, ALL_ONES})
    keystream = Planted(planted)
    codes = sample(np.full(len(planted), tilt), levels, keystream)

    for i, code in enumerate(codes.tolist()):
        assert code == precise_code(thresholds, *uniform_number(keystream, 16, i))
    on_a_threshold = {i for i, number in enumerate(planted) if number in at}
    assert on_a_threshold <= set(slow_calls)


@pytest.mark.parametrize("tilt", [1.0, -31.7, 400.3, -999.9])
def test_the_margin_grows_with_the_exponents_and_not_only_with_the_levels(tilt: float) -> None:
    # Nodes far from 0 and close together: exponents near a million whose differences matter, so
    # that float64 loses twenty bits more than it does on any Gauss-Hermite design.
    points, weights = np.array([1000.0, 1000.001, 1000.0025]), np.array([0.2, 0.5, 0.3])
    thresholds = precise_family(tilt, points, weights)
    with mpmath.workdps(200):
        at = [int(mpmath.floor(mpmath.ldexp(t, STAGE_BITS))) for t in thresholds]
    numbers = [w + s * 2**k for w in at for s in (1, -1) for k in range(68)]
    planted = [number for number in numbers if 0 <= number <= ALL_ONES]
    assert len(planted) > 200
    keystream = Planted(planted)
    codes = sample_exponential_family(np.full(len(planted), tilt), points, weights, keystream)
    for i, code in enumerate(codes.tolist()):
        assert code == precise_code(thresholds, *uniform_number(keystream, 16, i))


def test_numbers_far_from_every_threshold_do_not_take_the_slow_path(slow_calls: list[int]) -> None:
    sample(np.zeros(3), 2, Planted([0, 2**78, ALL_ONES]))
    assert slow_calls == []


def test_draws_that_decide_alone_read_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*_: object) -> None:
        raise AssertionError("the draw had decided")

    monkeypatch.setattr(Planted, "extensions", unwanted)
    word, rest = 2**15, 2**64 - 1  # the threshold is at 2^15, exactly
    codes = sample(
        np.zeros(4), 2, Planted([0, (word - 2) << 64 | rest, (word + 1) << 64, ALL_ONES])
    )
    assert codes.tolist() == [0, 0, 1, 1]
    for undecided in (word << 64, (word - 1) << 64 | rest):  # it is an end of these cells
        with pytest.raises(AssertionError, match="the draw had decided"):
            sample(np.zeros(1), 2, Planted([undecided]))


@pytest.mark.parametrize("tilt", [0.0, 0.7, -3.0, 20.0])
@pytest.mark.parametrize("levels", [2, 3, 8])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_number_that_agrees_with_a_threshold_for_500_bits_is_read_until_it_is_decided(
    tilt: float, levels: int, side: int
) -> None:
    thresholds = precise_thresholds(tilt, levels, digits=400)
    # Those at 0 or 1 as far as 100 bits can tell have neighbours that are just as near.
    inner = [j for j, t in enumerate(thresholds) if t > 2**-100 and 1 - t > 2**-100]
    assert inner
    for j in inner:
        with mpmath.workdps(400):
            # Two units away: 1/2 is a threshold, and the end of an interval must not touch it.
            number = int(mpmath.floor(mpmath.ldexp(thresholds[j], 16 + 512))) + 2 * side
        keystream = PlantedNumber(*divmod(number, 2**512))
        (code,) = sample(np.array([tilt]), levels, keystream).tolist()
        assert code == (j + 1 if side > 0 else j)
        assert keystream.asked == [8, 16, 32, 64]


@pytest.mark.parametrize("tilt", [0.0, 5e-324, 1e-300, -1e-300, 1e-20])
@pytest.mark.parametrize("levels", [2, 3, 8, 256])
def test_a_vanishing_tilt_gives_the_codes_of_no_tilt(tilt: float, levels: int) -> None:
    # It moves a threshold by less than 1e-19, so none of these numbers can fall between.
    plain = sample(np.zeros(100), levels, Keystream(KEY))
    assert np.array_equal(sample(np.full(100, tilt), levels, Keystream(KEY)), plain)


@pytest.mark.parametrize("tilt", [50.0, 1e3, 1e6, 1e10, 1e15])
@pytest.mark.parametrize("levels", [2, 3, 8, 256])
def test_an_extreme_tilt_gives_the_outermost_codes_without_warning(
    tilt: float, levels: int
) -> None:
    # Any other code has probability 1.1e-6 at B = 256, z = 50, and below 1e-27 elsewhere.
    # At 1e15 float64 cannot tell anything: every coordinate takes the slow path.
    tilts = np.array([tilt, -tilt, tilt])
    codes = sample(tilts, levels, Keystream(KEY))
    assert codes.tolist() == [levels - 1, 0, levels - 1]


def test_tilts_of_every_size_do_not_disturb_each_other() -> None:
    tilts = np.array([0.0, 1e15, 1e-300, -1e15, 0.5, -1e6, 50.0, -0.0])
    codes = sample(tilts, 3, Keystream(KEY))
    assert codes.tolist() == all_decided_exactly(tilts, 3, KEY)


# -- the law -------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [2, 3, 8])
@pytest.mark.parametrize("tilt", [0.0, 0.4, -1.1, 2.5])
def test_sampled_frequencies_match_the_declared_law(levels: int, tilt: float) -> None:
    count = 100_000
    design = gauss_hermite(levels)
    masses = design.weights * np.exp(design.points * tilt)
    expected = count * masses / masses.sum()
    key = np.random.default_rng([levels, int(10 * tilt) + 100]).bytes(32)
    observed = np.bincount(sample(np.full(count, tilt), levels, Keystream(key)), minlength=levels)
    # The chi-square law needs a few of everything: rare codes are counted together.
    common = expected >= 10.0
    observed = np.append(observed[common], observed[~common].sum())
    expected = np.append(expected[common], expected[~common].sum())
    present = expected > 0.0
    assert observed[~present].sum() == 0
    assert chisquare(observed[present], expected[present]).pvalue > 1e-6


def test_neighboring_coordinates_are_drawn_independently() -> None:
    codes = sample(np.zeros(100_000), 2, Keystream(KEY))
    pairs = np.bincount(2 * codes[0::2] + codes[1::2], minlength=4)
    assert chisquare(pairs).pvalue > 1e-6


# -- one key, one result -------------------------------------------------------------------


def test_the_same_key_gives_the_same_codes_and_another_key_others() -> None:
    tilts = np.linspace(-2.0, 2.0, 1000)
    codes = sample(tilts, 4, Keystream(KEY))
    assert np.array_equal(codes, sample(tilts, 4, Keystream(KEY)))
    assert not np.array_equal(codes, sample(tilts, 4, Keystream(KEY[::-1])))


def test_a_keystream_cannot_be_sampled_from_twice() -> None:
    keystream = Keystream(KEY)
    sample(np.zeros(4), 2, keystream)
    with pytest.raises(RandomnessError):
        sample(np.zeros(4), 2, keystream)


@pytest.mark.parametrize("count", [0, 1, 7, 999])
def test_a_coordinate_does_not_depend_on_those_after_it(count: int) -> None:
    tilts = np.linspace(-2.0, 2.0, 1000)
    codes = sample(tilts, 4, Keystream(KEY))
    assert np.array_equal(sample(tilts[:count], 4, Keystream(KEY)), codes[:count])


def test_the_tilts_are_left_as_they_were() -> None:
    tilts = np.linspace(-2.0, 2.0, 9)
    tilts.flags.writeable = False
    sample(tilts, 4, Keystream(KEY))
    assert np.array_equal(tilts, np.linspace(-2.0, 2.0, 9))


# -- the chunks are invisible --------------------------------------------------------------


@pytest.mark.parametrize("extra", [-1, 0, 1, 70])
def test_codes_around_the_chunk_boundary_are_the_exact_ones(extra: int) -> None:
    count = (1 << 15) + extra
    tilts = np.random.default_rng(extra + 1).normal(0.0, 2.0, count)
    design = gauss_hermite(3)
    codes = sample(tilts, 3, Keystream(KEY))
    assert codes.shape == (count,)
    words = Keystream(KEY).draws(16, count)
    for i in range(count - 90, count):
        assert codes[i] == exact_code(
            float(tilts[i]), design.points, design.weights, int(words[i]), i, Keystream(KEY)
        )


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_the_size_of_a_chunk_does_not_matter(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tilts = np.random.default_rng(5).normal(0.0, 2.0, 2001)
    codes = sample(tilts, 5, Keystream(KEY))
    monkeypatch.setattr(family, "_CHUNK", chunk)
    assert np.array_equal(sample(tilts, 5, Keystream(KEY)), codes)


def test_an_undecided_coordinate_reads_its_own_extension_in_any_chunk() -> None:
    # Numbers exactly on the threshold, so that their further bits alone decide. In the second
    # chunk the coordinate's place in its chunk and its place in the vector differ.
    boundary, tilt = 1 << 15, 0.7
    (threshold,) = precise_thresholds(tilt, 2)
    with mpmath.workdps(200):
        number = int(mpmath.floor(mpmath.ldexp(threshold, STAGE_BITS)))
    numbers = [0] * boundary + [number] * 40
    keystream = Planted(numbers)
    codes = sample(np.full(len(numbers), tilt), 2, keystream)[boundary:].tolist()

    def decided_by(coordinate: int) -> int:
        further = Keystream(KEY).extension(coordinate, FURTHER_BYTES)[8:]
        whole = number << 64 | int.from_bytes(further, "big")
        return precise_code([threshold], whole, STAGE_BITS + 64)

    assert codes == [decided_by(boundary + i) for i in range(40)]
    assert codes != [decided_by(i) for i in range(40)]  # or the test could not tell
