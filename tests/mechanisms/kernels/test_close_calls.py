"""Values chosen so that a threshold hits the coordinate's own uniform number, or all but hits it.

The kernels in C draw their stream from the key, so nothing can be planted in it. But for a given
key each coordinate's number U is known, and x can be chosen such that a threshold of the law at x
lies from 1e-12 to a few units of the draw beside U. Coordinates are those whose further bits lie
nearest to 0 or to 1, so that U is all but an end of its draw's cell and the least slip shows.
The oracle is exact arithmetic on the numbers, and none of the samplers.
"""

from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pytest
from cases import thinned
from numpy.typing import NDArray
from planted import KEY, uniform_number
from precise_noise import precise_quantile, precise_tail

from sottovoce.core import native
from sottovoce.core.domains import Vector
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.design import randomized_response, store
from sottovoce.mechanisms.design.channel import IntegerTable, round_pure
from sottovoce.mechanisms.design.families import gauss_hermite
from sottovoce.mechanisms.kernels import one_bit
from sottovoce.mechanisms.kernels.family import sample_exponential_family
from sottovoce.mechanisms.kernels.ladder import Affine
from sottovoce.mechanisms.kernels.table import sample_table
from sottovoce.mechanisms.noise.laws import Noise, ScalarGaussian, ScalarLaplace, ScalarStaircase
from sottovoce.mechanisms.noise.rounded import sample_rounded

COUNT = 1 << 16
EXTREME, ANY = 150, 100
Places = NDArray[np.int64]
every_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@cache
def coordinates() -> Places:
    """Those whose further bits are nearly all 0 or nearly all 1, and some others."""
    further = Keystream(KEY).extensions(np.arange(COUNT))
    order = np.argsort(further)
    others = np.random.default_rng(0).choice(COUNT, ANY, replace=False)
    return np.unique(np.concatenate([order[:EXTREME], order[-EXTREME:], others]))


@cache
def numbers(bits: int) -> list[Fraction]:
    """What they spell, cut off after 128 bits more than the draw."""
    spelled = [uniform_number(Keystream(KEY), bits, int(i)) for i in coordinates()]
    return [Fraction(number, 1 << size) for number, size in spelled]


def misses(seed: int, unit: float) -> Vector:
    """From 1e-12 to 3 units on either side."""
    generator = np.random.default_rng(seed)
    count = len(coordinates())
    sizes = 10.0 ** generator.uniform(-12.0, 0.5, count)
    return np.asarray(unit * sizes * generator.choice([-1.0, 1.0], count))


def filled(chosen: Vector, at: Places, others: Vector, dtype: type) -> NDArray[np.floating]:
    values = others.copy()
    values[at] = chosen
    return values.astype(dtype)


def exceeds(number: Fraction, threshold: mpmath.mpf) -> bool:
    """Whether the infinite number is at least the threshold; what was cut off must not matter."""
    exact = mpmath.mpf(number.numerator) / number.denominator
    assert abs(exact - threshold) > mpmath.mpf(2) ** -120
    return bool(exact >= threshold)


# -- one bit -------------------------------------------------------------------------------


@every_dtype
@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("seed", [1, 2])
def test_one_bit(dtype: type, scale: float, seed: int) -> None:
    places, stddev = coordinates(), 0.7
    targets = np.array([float(number) for number in numbers(16)]) + misses(seed, 2.0**-16)
    targets = np.clip(targets, 2.0**-60, 1.0 - 2.0**-50)
    tilts = (np.log1p(-targets) - np.log(targets)) / 2.0
    others = np.random.default_rng(seed).normal(size=COUNT)
    values = filled(tilts * stddev / scale, places, others, dtype)
    expected = []
    with mpmath.workdps(60):
        for i, number in zip(places.tolist(), numbers(16), strict=True):
            tilt = mpmath.mpf(float(values[i]) * scale / stddev)
            expected.append(exceeds(number, 1 / (1 + mpmath.exp(2 * tilt))))
    assert 0.2 < np.mean(expected) < 0.8
    for level in native.levels():
        with native.using(level):
            payload = one_bit.sample_payload(values, stddev, Keystream(KEY), scale=scale)
        found = np.unpackbits(payload, bitorder="little")[places]
        np.testing.assert_array_equal(found, expected, err_msg=level)


# -- families ------------------------------------------------------------------------------


def cumulative(tilts: Vector, points: Vector, weights: Vector) -> Vector:
    """F_j(z) in float64, a row for each tilt."""
    exponents = np.multiply.outer(tilts, points)
    masses = weights * np.exp(exponents - exponents.max(axis=1, keepdims=True))
    sums = np.cumsum(masses, axis=1)
    return np.asarray(sums[:, :-1] / sums[:, -1:])


def tilts_that_hit(targets: Vector, points: Vector, weights: Vector, band: float) -> Vector:
    """For each target a z within `band` with F_j(z) at it for some j, or NaN. F_j falls with z."""
    generator = np.random.default_rng(5)
    rows = len(targets)
    ends = [cumulative(np.array([z]), points, weights)[0] for z in (-band, band)]
    within = (targets[:, None] < ends[0]) & (targets[:, None] > ends[1])
    scores = np.where(within, generator.random(within.shape), -1.0)
    j = scores.argmax(axis=1)
    low, high = np.full(rows, -band), np.full(rows, band)
    for _ in range(80):
        middle = (low + high) / 2.0
        above = cumulative(middle, points, weights)[np.arange(rows), j] > targets
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.where(scores.max(axis=1) >= 0.0, (low + high) / 2.0, np.nan)


@pytest.mark.parametrize(
    ("levels", "reach", "band", "dtype"),
    thinned(
        [
            (2, 16.0, 0.25), (3, 16.0, 0.25), (3, 3.0, 3.0), (4, 2.0, 2.0**-4), (8, 16.0, 0.25),
            (8, 5.0, 5.0), (16, 16.0, 0.25), (16, 16.0, 16.0), (17, 6.0, 6.0), (64, 9.0, 9.0),
        ],
        [np.float32, np.float64],
    ),
)  # fmt: skip
def test_families(dtype: type, levels: int, reach: float, band: float) -> None:
    """Within the reach, and within what the first pass in 16 bits covers of it."""
    design, affine = gauss_hermite(levels), Affine(scale=0.9, divisor=0.31)
    aimed = np.array([float(number) for number in numbers(16)]) + misses(levels, 2.0**-16)
    tilts = tilts_that_hit(aimed, design.points, design.weights, band)
    (hits,) = np.nonzero(~np.isnan(tilts))
    hits = hits[:: max(1, len(hits) * levels // 3000)]
    places = coordinates()[hits]
    assert len(places) >= 30
    others = np.random.default_rng(levels).uniform(-reach, reach, COUNT) * 0.31 / 0.9
    values = filled(tilts[hits] * 0.31 / 0.9, places, others, dtype)
    expected = []
    with mpmath.workdps(60):
        points, weights = (
            [mpmath.mpf(float(x)) for x in v] for v in (design.points, design.weights)
        )
        for i, hit in zip(places.tolist(), hits.tolist(), strict=True):
            tilt = mpmath.mpf(float(values[i]) * 0.9 / 0.31)
            masses = [w * mpmath.exp(y * tilt) for w, y in zip(weights, points, strict=True)]
            total, below, code = mpmath.fsum(masses), mpmath.mpf(0), 0
            for mass in masses[:-1]:
                below += mass
                code += exceeds(numbers(16)[hit], below / total)
            expected.append(code)
    for level in native.levels()[1 if levels > 16 else 0 :]:
        with native.using(level):
            codes = sample_exponential_family(
                values, affine, design.points, design.weights, Keystream(KEY),
                reach=reach, fisher_bound=design.fisher_bound,
            )  # fmt: skip
        np.testing.assert_array_equal(codes[places], expected, err_msg=level)


# -- tables --------------------------------------------------------------------------------


def a_table(name: str) -> IntegerTable:
    kind, epsilon, bits = name.split("-")
    if kind == "response":
        channel = randomized_response.k_ary(float(epsilon), 1 << int(bits))
        return round_pure(channel, float(epsilon))
    return store.find(store.spec_of(float(epsilon), None, int(bits))).table


@pytest.mark.parametrize(
    ("name", "dtype"),
    thinned(
        ["response-2-1", "response-2-3", "response-11.2-3", "response-4-6", "mvu-3-2", "mvu-5-4"],
        [np.float32, np.float64],
    ),
)
def test_tables(dtype: type, name: str) -> None:
    table, generator = a_table(name), np.random.default_rng(7)
    aimed = np.array([float(number) for number in numbers(16)]) + misses(8, 2.0**-16)
    hits, chosen = [], []
    for at, target in enumerate(aimed):
        off = table.thresholds[:, :-1] - target
        knots, columns = np.nonzero(off[:-1] * off[1:] < 0.0)
        if len(knots):
            pick = int(generator.integers(len(knots)))
            k, j = knots[pick], columns[pick]
            share = off[k, j] / (off[k, j] - off[k + 1, j])
            hits.append(at)
            chosen.append(table.knots[k] + share * (table.knots[k + 1] - table.knots[k]))
    places = coordinates()[hits]
    assert len(places) >= 30
    values = filled(np.array(chosen), places, generator.uniform(size=COUNT), dtype)
    values = np.clip(values, 0.0, 1.0)
    expected = []
    for i, hit in zip(places.tolist(), hits, strict=True):
        x = Fraction(float(values[i]))
        k = int(np.searchsorted(table.knots, float(values[i]), "right")) - 1
        k = min(k, len(table.knots) - 2)
        u, v = (Fraction(float(knot)) for knot in table.knots[k : k + 2])
        rows = zip(table.cumulative[k][:-1], table.cumulative[k + 1][:-1], strict=True)
        limits = [(a + (x - u) / (v - u) * (b - a)) / 2**128 for a, b in rows]
        assert all(abs(limit - numbers(16)[hit]) > Fraction(1, 2**120) for limit in limits)
        expected.append(sum(limit <= numbers(16)[hit] for limit in limits))
    for level in native.levels():
        with native.using(level):
            codes = sample_table(values, table, Keystream(KEY))
        np.testing.assert_array_equal(codes[places], expected, err_msg=level)


# -- noise on a grid -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "grid", [*(pytest.param(one, marks=pytest.mark.slow) for one in (2.0, 0.01)), 1e-5]
)
@pytest.mark.parametrize(
    "noise",
    [
        ScalarGaussian(stddev=0.7),
        ScalarLaplace(scale=1.7),
        ScalarStaircase(step=2.0, epsilon=1.5, nu=0.3),
        ScalarStaircase(step=5.0, epsilon=20.0, nu=1.2e-3),
    ],
    ids=repr,
)  # fmt: skip
def test_noise_on_a_grid(noise: Noise, grid: float) -> None:
    """x is where x + noise all but reaches the middle between two grid points."""
    step = grid * noise.quantile_slope
    places = coordinates()
    generator = np.random.default_rng(9)
    chosen, middles = [], []
    with mpmath.workdps(50):
        for i, number in zip(places.tolist(), numbers(32), strict=True):
            word = Keystream(KEY).draw(32, i)
            tail = tail_of(number, word)
            place = precise_quantile(noise, mpmath.mpf(tail.numerator) / tail.denominator)
            middle = int(mpmath.nint(place / step)) + int(generator.integers(-3, 4))
            miss = 10.0 ** generator.uniform(-14.0, -0.5) * generator.choice([-1.0, 1.0])
            x = float((middle + mpmath.mpf(1) / 2 + miss) * step - place)
            chosen.append(-x if word & 1 else x)
            middles.append(middle)
        values = generator.normal(size=COUNT)
        values[places] = chosen
        expected = []
        for i, number, middle in zip(places.tolist(), numbers(32), middles, strict=True):
            word = Keystream(KEY).draw(32, i)
            sign = -1 if word & 1 else 1
            threshold = (middle + Fraction(1, 2)) * Fraction(step) - sign * Fraction(values[i])
            beyond = threshold <= 0 or not exceeds(
                tail_of(number, word), precise_tail(noise, threshold)
            )
            expected.append(sign * (middle + 1 if beyond else middle))
    for level in native.levels():
        with native.using(level):
            codes = sample_rounded(values, noise, step, Keystream(KEY))
        np.testing.assert_array_equal(codes[places], expected, err_msg=level)


def tail_of(number: Fraction, word: int) -> Fraction:
    """The sign taken out of the 32 bits before the rest: v = h 2^-32, and so on."""
    rest = number - Fraction(word, 2**32)
    return Fraction(word >> 1, 2**32) + rest
