"""The margins that the kernels in C rely on, against what their arithmetic really is off.

Single precision and 16-bit lanes are emulated in numpy, step by step; float64 stands for the exact
numbers, for it is wrong by less than 1e-9 of a draw's unit, and the claims must hold with 1e-6 of
it to spare.
"""

import re
from pathlib import Path

import mpmath
import numpy as np
import pytest
from cases import denser
from numpy.typing import NDArray
from precise_noise import precise_quantile

from sottovoce.core.domains import Vector
from sottovoce.mechanisms.design import randomized_response, store
from sottovoce.mechanisms.design.channel import IntegerTable, round_pure
from sottovoce.mechanisms.design.families import ExponentialFamily, gauss_hermite
from sottovoce.mechanisms.interpolated_mvu import interpolated_family
from sottovoce.mechanisms.kernels import family, table
from sottovoce.mechanisms.kernels.ladder import NARROW_CELLS, Ladder, NarrowLadder
from sottovoce.mechanisms.noise import rounded as chords
from sottovoce.mechanisms.noise.laws import Noise, ScalarGaussian, ScalarLaplace, ScalarStaircase

SOURCE = Path(__file__).parents[3] / "src" / "native" / "one_bit.h"
SPARE = 1e-6
Singles = NDArray[np.float32]


# -- one bit -------------------------------------------------------------------------------


def coefficients() -> Vector:
    """Of the polynomial for 2^f, the highest power first, as the C source has them."""
    singles = np.array(re.findall(r"FOUR\(([\d.]+)f\)", SOURCE.read_text()), dtype=np.float32)
    found = singles.astype(np.float64)
    assert len(found) == 5
    return found


def test_the_polynomial_is_relatively_wrong_by_less_than_one_in_2_to_the_18() -> None:
    """On a grid, and by no more than h^2/8 |r''| between: r(f) = p(f) 2^-f has |r''| < 8 there.

    |r''| <= 2^(1/2) (|p''| + 2 ln 2 |p'| + (ln 2)^2 |p|) on [-1/2, 1/2], where |p| and its
    derivatives are at most the sums of their terms' magnitudes.
    """
    c, spacing = coefficients(), 2.0**-14
    magnitudes = np.abs(c)
    sums = [np.polyval(np.polyder(magnitudes, order), 0.5) for order in (2, 1, 0)]
    curvature = np.sqrt(2.0) * (sums[0] + 2.0 * np.log(2.0) * sums[1] + np.log(2.0) ** 2 * sums[2])
    assert curvature < 8.0
    with mpmath.workdps(30):
        exact = [mpmath.mpf(float(x)) for x in c]
        grid = (mpmath.mpf(k) * spacing for k in range(-(2**13), 2**13 + 1))
        worst = max(abs(mpmath.polyval(exact, f) * mpmath.mpf(2) ** -f - 1) for f in grid)
    # Single precision rounds four times: numbers below 2, for a result of at least 2^(-1/2), and
    # what is rounded before the last step is halved at each further one.
    rounding = (1.0 + 0.5 + 0.25 + 0.125) * 2.0**-24 * np.sqrt(2.0)
    assert worst + spacing**2 / 8.0 * 8.0 + rounding < 2.0**-18


def rounded(exact: Vector) -> Singles:
    return exact.astype(np.float32)


def portable_odds(x: Singles, slope: np.float32) -> Singles:
    """1 + 2^(slope x), as one_bit.h computes it for portable code."""
    y = np.clip(x * slope, np.float32(-32.0), np.float32(32.0))
    whole = np.rint(y)
    f = y - whole
    c = coefficients().astype(np.float32)
    p = np.full_like(f, c[0])
    for next_one in c[1:]:
        p = p * f + next_one
    return np.asarray(np.ldexp(p, whole.astype(np.int32)) + np.float32(1.0))


def fused_odds(x: Singles, slope: np.float32) -> Singles:
    """1 + 2^(slope x), as one_bit_fused.h and one_bit_neon.h do: every multiply-add rounds once."""
    reach = np.float32(32.0) / slope
    y = np.clip(x, -reach, reach).astype(np.float64) * np.float64(slope)
    whole = np.rint(y)
    f = rounded(y - whole).astype(np.float64)
    c = coefficients()
    p = np.full(len(x), np.float32(c[0]))
    for next_one in c[1:]:
        p = rounded(p.astype(np.float64) * f + next_one)
    return rounded(np.ldexp(p.astype(np.float64), whole.astype(np.int32)) + 1.0)


def fused_decisions(words: Singles, odds: Singles) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Where the draws give 1 for certain, and where 0, as these two decide."""
    middles = words.astype(np.float64) + 0.5
    rest = rounded(65536.0 - middles * odds.astype(np.float64))
    sure = np.abs(rest) >= odds
    return sure & (rest < 0.0), sure & (rest >= 0.0)


@pytest.mark.parametrize("kernel", ["fused", "portable"])
@pytest.mark.parametrize("top", denser([0.01, 1.0, 20.0, 1e3]))
def test_the_odds_decide_nothing_wrongly(kernel: str, top: float) -> None:
    """For values that single precision holds, and for others; draws next to the threshold."""
    generator = np.random.default_rng(1)
    scale, stddev = 0.7, 1.3
    values = generator.uniform(-top, top, 300_000)
    slope = np.float32(2.0 / np.log(2.0) * scale / stddev)
    if kernel == "fused":
        odds = fused_odds(rounded(values), slope)
    else:
        odds = portable_odds(rounded(values), slope)
    with np.errstate(over="ignore"):
        thresholds = 2.0**16 / (1.0 + np.exp(2.0 * values * scale / stddev))
    margin = np.float32(2.0**-16)
    sure = np.zeros(3, dtype=np.int64)
    for offset in (-1, 0, 1):
        words = np.clip(np.floor(thresholds) + offset, 0.0, 65535.0).astype(np.float32)
        if kernel == "fused":
            one, zero = fused_decisions(words, odds)
        else:
            place = words * odds
            one = place >= np.float32(65536.0) * (np.float32(1.0) + margin)
            zero = np.float32(65536.0) * (np.float32(1.0) - margin) >= place + odds
        assert (words[one] >= thresholds[one] + SPARE * thresholds[one] / 2.0**16).all()
        assert (words[zero] + 1.0 <= thresholds[zero]).all()
        assert not (one & zero).any()
        sure[offset + 1] = (one | zero).sum()
    assert sure[0] > 1000  # or the margin would leave all to double precision
    assert sure[2] > 1000


# -- ladders -------------------------------------------------------------------------------


def place_of(x: Singles, cells_per_unit: float, origin: float, fused: bool) -> Singles:
    unit, start = np.float32(cells_per_unit), np.float32(origin)
    if fused:
        return rounded(x.astype(np.float64) * np.float64(unit) + np.float64(start))
    return x * unit + start


def check_ladder(ladder: Ladder, u: Vector, thresholds: Vector) -> float:
    """The claims at places u with these exact thresholds, and the share that they leave open."""
    exact, open_ = 2.0**16 * thresholds, np.zeros(len(u), dtype=np.float64)
    for fused in (True, False):
        place = place_of(rounded(u), ladder.cells_per_unit, ladder.origin, False)
        inside = (place >= 0) & (place < len(ladder.gaps) - 1)
        place, limits = place[inside], exact[inside]
        cells = place.astype(np.int64)
        rest = (place - cells.astype(np.float32))[:, None]
        starts, rises = ladder.rows[cells, 0], ladder.rows[cells, 1]
        if fused:
            found = rounded(rises.astype(np.float64) * rest + starts)
        else:
            found = rises * rest + starts
        count = ladder.levels - 1
        padded = found.shape[1] if count <= 16 else found.shape[1] - 16
        assert np.isinf(found[:, count:padded]).all()
        if count > 16:  # every 16th again, and the last of them is padding
            assert padded > count
            np.testing.assert_array_equal(
                found[:, padded:][:, : padded // 16], found[:, 15:padded:16]
            )
            assert np.isinf(found[:, padded + padded // 16 - 1 :]).all()
        # Draw w has passed the limit for certain if w >= found, and has not if w + gap < found.
        assert (found[:, :count] >= limits + SPARE).all()
        gaps = ladder.gaps[cells][:, None].astype(np.float64)
        # w + gap is rounded, too, by 2^-8 at most; w is a whole number.
        assert (found[:, :count] - gaps + 2.0**-8 + 1.0 <= limits - SPARE).all()
        open_ = gaps
    return float(open_.mean())


def check_narrow(narrow: NarrowLadder, u: Vector, thresholds: Vector) -> None:
    place = place_of(rounded(u), narrow.cells_per_unit, narrow.origin, True)
    inside = (place >= 0) & (place < narrow.cells)
    place, exact = place[inside], 2.0**15 * thresholds[inside] - 2.0**14
    fixed = (place * np.float32(32768.0)).astype(np.int64)
    cells, parts = fixed >> 15, fixed & 0x7FFF
    assert len(cells) > 100
    for j, rows in enumerate(narrow.rows.astype(np.int64)):
        products = (rows[1][cells] * parts + 2**14) >> 15  # as mulhrs rounds
        found = np.clip(rows[0][cells] + products, -(2**15), 2**15 - 1)
        limits = exact[:, j]
        # Half-draw w, from -2^14 to 2^14 - 1, has passed if w > found, has not if w <= lowered.
        least = np.maximum(found + 1, -(2**14))
        assert ((least > 2**14 - 1) | (least >= limits + SPARE)).all()
        lowered = np.maximum(found - narrow.gap, -(2**15))
        most = np.minimum(lowered, 2**14 - 1)
        assert ((most < -(2**14)) | (most + 1 <= limits - SPARE)).all()


def tilted(tilts: Vector, design: ExponentialFamily) -> Vector:
    exponents = np.multiply.outer(tilts, design.points)
    masses = design.weights * np.exp(exponents - exponents.max(axis=1, keepdims=True))
    sums = np.cumsum(masses, axis=1)
    return np.asarray(sums[:, :-1] / sums[:, -1:])


def a_family(name: str) -> ExponentialFamily:
    kind, levels = name.split("-")
    if kind == "hermite":
        return gauss_hermite(int(levels))
    return interpolated_family(3.0, 2).family


@pytest.mark.parametrize(
    "name", [*(f"hermite-{levels}" for levels in (2, 3, 5, 8, 16, 40)), "interpolated-4"]
)
@pytest.mark.parametrize("reach", [1e-3, 0.25, 2.0, 9.0, 300.0])
def test_the_chords_and_margins_of_families(name: str, reach: float) -> None:
    design = a_family(name)
    generator = np.random.default_rng(2)
    parts = (design.points.tobytes(), design.weights.tobytes(), float(design.fisher_bound))
    tilts = generator.uniform(-reach, reach, 4000)
    for fewest in (1, 4):
        check_ladder(family._ladder(*parts, reach, fewest), tilts, tilted(tilts, design))
    low, high, at_edges, errors, slope = family._chords(*parts, reach, NARROW_CELLS)
    # |F - chord| <= M w^2/8 at random places of random cells, and |F'| <= sqrt(M)/2.
    edges = np.linspace(low, high, NARROW_CELLS + 1)
    exact = tilted(tilts, design)
    for j in range(exact.shape[1]):
        off = np.abs(np.interp(tilts, edges, at_edges[:, j]) - exact[:, j])
        assert off.max() <= errors[0] + 1e-12
    nearby = tilted(tilts + 1e-4, design)
    assert (np.abs(nearby - exact) <= 1e-4 * slope + 1e-12).all()
    if len(design.points) <= 16 and reach <= 0.25:
        narrow = family._narrow(*parts, reach)
        assert narrow is not None
        check_narrow(narrow, tilts, exact)


TABLES = [
    "mvu-even",
    "mvu-uneven",
    *(f"{epsilon}-{bits}" for epsilon in (1.0, 10.5, 11.0, 11.3, 11.6) for bits in (1, 2, 3, 4)),
]


def a_table(name: str) -> IntegerTable:
    match name.split("-"):
        case ["mvu", "even"]:
            return store.find(store.spec_of(5.0, 4, 4)).table
        case ["mvu", _]:
            return store.find(store.spec_of(3.0, None, 3)).table
        case [epsilon, bits]:
            channel = randomized_response.k_ary(float(epsilon), 1 << int(bits))
            return round_pure(channel, float(epsilon))
        case _:
            raise AssertionError(name)


@pytest.mark.parametrize("name", TABLES)
def test_the_margins_of_tables(name: str) -> None:
    given = a_table(name)
    ladder, narrow = table.ladders_of(given.knots, given.thresholds)
    places = np.random.default_rng(3).uniform(size=40_000)
    columns = given.thresholds[:, :-1].T
    exact = np.stack([np.interp(places, given.knots, column) for column in columns], axis=1)
    check_ladder(ladder, places, exact)
    if narrow is not None:
        check_narrow(narrow, places, exact)


def test_most_tables_have_a_narrow_ladder() -> None:
    """Or their margins would go untested."""
    tables = [a_table(name) for name in TABLES]
    found = [table.ladders_of(one.knots, one.thresholds)[1] for one in tables]
    assert sum(narrow is not None for narrow in found) >= 12


@pytest.mark.parametrize("low", [-1000.0, -1.0, 0.0, 3.0, 1e5])
def test_the_margins_of_knots_anywhere(low: float) -> None:
    knots = low + np.linspace(0.0, 1.0, 9)
    thresholds = np.random.default_rng(4).uniform(size=(9, 4))
    thresholds = np.cumsum(thresholds, axis=1) / thresholds.sum(axis=1, keepdims=True)
    ladder, narrow = table.ladders_of(knots, thresholds)
    places = np.random.default_rng(5).uniform(knots[0], knots[-1], 40_000)
    columns = thresholds[:, :-1].T
    exact = np.stack([np.interp(places, knots, column) for column in columns], axis=1)
    check_ladder(ladder, places, exact)
    if narrow is not None:
        check_narrow(narrow, places, exact)


# -- noise on a grid -----------------------------------------------------------------------

NOISES: list[Noise] = [
    ScalarGaussian(stddev=2.3),
    ScalarLaplace(scale=1.7),
    ScalarStaircase(step=2.0, epsilon=1.5, nu=0.3),
    ScalarStaircase(step=5.0, epsilon=20.0, nu=1.2e-3),
    ScalarStaircase(step=0.01, epsilon=1e-3, nu=0.5),
    ScalarStaircase(
        step=1.0, epsilon=26.985295, nu=1e-6
    ),  # its first kink at a tail of nearly 2^-20
]


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_noise_lies_between_its_chords(noise: Noise) -> None:
    """chord(h + 1) - error <= Q(v) <= chord(h) for v = (h + something in [0, 1)) 2^-32."""
    step = 0.01 * noise.quantile_slope
    chord_table = chords.chords(noise, step)
    generator = np.random.default_rng(6)
    heads = np.unique(
        np.concatenate(
            [
                (2.0 ** generator.uniform(12.0, 31.0, 150)).astype(np.int64),
                generator.integers(2**12, 2**31, 50),
                [*range(2**12, 2**12 + 4), 2**22 - 1, 2**22, 2**30 - 1, 2**30, 2**31 - 1],
            ]
        )
    )
    assert heads.min() >= chords.LEAST_TAIL
    # What `codes_by_chords` allows for the float64 quantiles that the table is made of.
    slack = chords.slack_of(noise, step, 0.0)
    with mpmath.workdps(50):
        for head in heads.tolist():
            octave = head.bit_length() - 1
            within = (head - 2**octave) >> (octave - 10)
            value, slope, error, _ = chord_table[(octave - 12) * 1024 + within]
            start = 2**octave + (within << (octave - 10))
            far = value + slope * (head - start)
            near = far + slope - error
            at_head = precise_quantile(noise, mpmath.mpf(head) / 2**32) / step
            at_next = precise_quantile(noise, mpmath.mpf(head + 1) / 2**32) / step
            assert at_head <= far + slack
            assert at_next >= near - slack
            assert error <= 1e-6 * noise.quantile_slope / step + 2.0 * slack or isinstance(
                noise, ScalarStaircase
            )
