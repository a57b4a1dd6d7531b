"""Every level gives the bits of numpy: the same codes from the same key, whatever the values."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sottovoce.auditing.enumeration import extreme_inputs
from sottovoce.core import domains, native, threads
from sottovoce.core.domains import Domain, Vector
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.design import randomized_response, store
from sottovoce.mechanisms.design.channel import IntegerTable, round_pure
from sottovoce.mechanisms.design.families import gauss_hermite
from sottovoce.mechanisms.interpolated_mvu import interpolated_family
from sottovoce.mechanisms.kernels import one_bit
from sottovoce.mechanisms.kernels.family import sample_exponential_family
from sottovoce.mechanisms.kernels.ladder import Affine
from sottovoce.mechanisms.kernels.table import sample_table
from sottovoce.mechanisms.noise.laws import Noise, ScalarGaussian, ScalarLaplace, ScalarStaircase
from sottovoce.mechanisms.noise.rounded import sample_rounded
from sottovoce.mechanisms.registry import Parameters, Registration

KEY = bytes(range(32))
SIZES = (0, 1, 7, 8, 9, 31, 32, 33, 511, 512, 513, 1023, 1024, 1025, 4097, 100_003)
FASTER = native.levels()[1:]


def check_identical(draw: Callable[[], object]) -> None:
    """`draw()` gives on every level what it gives with numpy."""
    with native.using("numpy"):
        expected = np.asarray(draw())
    for level in FASTER:
        with native.using(level):
            found = np.asarray(draw())
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected, err_msg=level)


def of_many_scales(generator: np.random.Generator, count: int, top: float) -> Vector:
    """Numbers from 1e-320 to `top` of either sign, zeros, and many near `top`."""
    exponents = generator.uniform(-320.0, math.log10(top), count)
    near = np.log10(top) - generator.exponential(1.0, count)
    magnitudes = 10.0 ** np.where(generator.random(count) < 0.3, exponents, near)
    values = magnitudes * generator.choice([-1.0, 1.0], count)
    values[generator.random(count) < 0.02] = 0.0
    return np.asarray(values)


@pytest.fixture(params=[1, 3])
def split(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Even short vectors are split among so many threads."""
    count = int(request.param)
    monkeypatch.setattr(threads, "_ALONE", 2)
    monkeypatch.setenv("SOTTOVOCE_THREADS", str(count))
    return count


# -- one bit -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_one_bit_of_every_size_and_width(size: int, dtype: type) -> None:
    values: Any = np.random.default_rng(size).normal(0.0, 0.3, size).astype(dtype)
    check_identical(lambda: one_bit.sample_payload(values, 0.7, Keystream(KEY)))
    check_identical(lambda: one_bit.sample_payload(values, 0.7, Keystream(KEY), scale=0.37))


@pytest.mark.parametrize("top", [1e-6, 1.0, 40.0, 1e15, 1e38])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_bit_of_every_scale(top: float, dtype: type) -> None:
    values: Any = of_many_scales(np.random.default_rng(3), 30_000, top).astype(dtype)
    check_identical(lambda: one_bit.sample_payload(values, 1.3, Keystream(KEY)))


@pytest.mark.parametrize("stddev", [1e-200, 1e-31, 1e-20, 1e20, 1e31, 1e200])
def test_one_bit_under_any_noise(stddev: float) -> None:
    """Also where single precision could not hold the slope."""
    values = of_many_scales(np.random.default_rng(4), 3000, 3.0) * stddev
    check_identical(lambda: one_bit.sample_payload(values, stddev, Keystream(KEY)))
    values = np.random.default_rng(5).normal(size=3000)
    scale = stddev * 0.3
    check_identical(lambda: one_bit.sample_payload(values, stddev, Keystream(KEY), scale=scale))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_bit_on_several_threads(split: int, dtype: type) -> None:
    values: Any = np.random.default_rng(6).normal(size=10_007).astype(dtype)
    check_identical(lambda: one_bit.sample_payload(values, 1.0, Keystream(KEY)))


def test_more_coordinates_left_open_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """float64 decides none of these tilts; the kernel says how much room it wants."""
    monkeypatch.setattr(threads, "_FIRST_CAPACITY", 3)
    design = gauss_hermite(3)
    tilts = np.random.default_rng(7).choice([-1e15, 1e15, 0.3], 200)

    def draw() -> NDArray[np.uint8]:
        return sample_exponential_family(
            tilts, Affine(), design.points, design.weights, Keystream(KEY),
            reach=1.0, fisher_bound=design.fisher_bound,
        )  # fmt: skip

    check_identical(draw)


@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(0, 3000),
    log_top=st.floats(-5.0, 5.0),
    log_scale=st.floats(-20.0, 20.0),
    single=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_one_bit_of_any_values(
    seed: int, size: int, log_top: float, log_scale: float, single: bool
) -> None:
    generator = np.random.default_rng(seed)
    values = of_many_scales(generator, size, 10.0**log_top)
    values = values.astype(np.float32) if single else values
    key, scale = generator.bytes(32), 10.0**log_scale
    check_identical(
        lambda: one_bit.sample_payload(values, 2.0 * scale, Keystream(key), scale=scale)
    )


# -- families ------------------------------------------------------------------------------


def check_family(
    values: NDArray[np.floating],
    points: Vector,
    weights: Vector,
    fisher_bound: float,
    reach: float,
    affine: Affine = Affine(),  # noqa: B008 (frozen)
    key: bytes = KEY,
) -> None:
    check_identical(
        lambda: sample_exponential_family(
            values, affine, points, weights, Keystream(key), reach=reach, fisher_bound=fisher_bound
        )
    )


@pytest.mark.parametrize(
    "levels",
    [2, 3, 4, 16, 17, 256, *(pytest.param(n, marks=pytest.mark.slow) for n in (5, 8, 64))],
)
@pytest.mark.parametrize(
    "reach", [1e-6, 3.0, 1e8, *(pytest.param(r, marks=pytest.mark.slow) for r in (0.2, 40.0))]
)
def test_gauss_hermite_families_within_and_beyond_the_reach(levels: int, reach: float) -> None:
    design, generator = gauss_hermite(levels), np.random.default_rng(levels)
    count = 2400 if levels <= 17 else 300
    tilts = np.concatenate(
        [
            generator.uniform(-reach, reach, count),
            of_many_scales(generator, count // 3, reach),
            [reach, -reach, math.nextafter(reach, 0.0), math.nextafter(reach, math.inf)],
            [1.5 * reach, -3.0 * reach, 0.0, -0.0, 5e-324, -1e-310, 1e15, -1e15],
            np.linspace(-reach, reach, 65),  # edges of cells
        ]
    )
    tilts = generator.permutation(tilts)
    family = (design.points, design.weights, design.fisher_bound)
    check_family(tilts, *family, reach)
    check_family(tilts.astype(np.float32), *family, reach)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("levels", [3, 16])
def test_families_of_every_size(size: int, levels: int) -> None:
    """Narrow tilts, as a high dimension has them, in either precision; through a clip."""
    design = gauss_hermite(levels)
    family = (design.points, design.weights, design.fisher_bound)
    values = np.random.default_rng(size).normal(size=size) / math.sqrt(max(size, 1))
    check_family(values, *family, 2.0, Affine(divisor=0.5))
    halves = values.astype(np.float16)
    check_family(halves, *family, 2.0, Affine(scale=0.1, divisor=0.05))


@pytest.mark.parametrize("levels", [4, 17])
def test_families_on_several_threads(split: int, levels: int) -> None:
    design = gauss_hermite(levels)
    values = np.random.default_rng(8).normal(0.0, 0.2, 7001).astype(np.float32)
    check_family(values, design.points, design.weights, design.fisher_bound, 1.0)


@pytest.mark.parametrize(
    ("epsilon", "bits"), [(1.0, 1), (3.0, 2), pytest.param(5.0, 3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("beta", [1e-6, 0.4, 50.0])
def test_interpolated_families(epsilon: float, bits: int, beta: float) -> None:
    family = interpolated_family(epsilon, bits).family
    generator = np.random.default_rng(bits)
    values = np.concatenate([generator.uniform(-1.0, 1.0, 5000), [1.0, -1.0, 0.0]])
    affine = Affine(scale=beta / 2.0)
    check_family(values, family.points, family.weights, family.fisher_bound, beta / 2.0, affine)


@given(
    seed=st.integers(0, 2**32 - 1),
    levels=st.integers(2, 40),
    log_spread=st.floats(-3.0, 2.0),
    log_reach=st.floats(-6.0, 4.0),
    single=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_families_with_any_points_and_weights(
    seed: int, levels: int, log_spread: float, log_reach: float, single: bool
) -> None:
    generator = np.random.default_rng(seed)
    points = np.sort(generator.normal(0.0, 10.0**log_spread, levels))
    weights = generator.exponential(1.0, levels) ** 4 + 1e-12
    weights /= weights.sum()
    reach = 10.0**log_reach
    tilts = np.concatenate(
        [generator.uniform(-1.1 * reach, 1.1 * reach, 1500), of_many_scales(generator, 500, reach)]
    )
    values = tilts.astype(np.float32) if single else tilts
    # The variance of numbers in an interval is at most a quarter of its squared width.
    bound = float((points[-1] - points[0]) ** 2 / 4.0)
    check_family(values, points, weights, bound, reach, key=generator.bytes(32))


# -- tables --------------------------------------------------------------------------------


def by_hand(knots: list[float], seed: int, levels: int) -> IntegerTable:
    """Any rows at any knots, some cells next to empty."""
    generator = np.random.default_rng(seed)
    rows = []
    for _ in knots:
        cells = [1 + int(2**100 * share**8) for share in generator.random(levels)]
        rows.append([cell * 2**128 // sum(cells) for cell in cells])
        rows[-1][int(generator.integers(levels))] += 2**128 - sum(rows[-1])
    return IntegerTable.of(np.array(knots), np.arange(levels) / levels, rows)


@cache
def tables() -> dict[str, IntegerTable]:
    named: dict[str, IntegerTable] = {}
    for epsilon, input_bits, bits in (
        (1.0, 1, 1), (3.0, None, 2), (1.0, 3, 3), (3.0, None, 3), (5.0, 4, 4), (5.0, None, 4),
    ):  # fmt: skip
        spec = store.spec_of(epsilon, input_bits, bits)
        named[f"mvu-{epsilon:g}-{input_bits}-{bits}"] = store.find(spec).table
    for epsilon, input_bits, bits in ((2.0, 1, 1), (1.0, 5, 2)):
        spec = store.spec_of(epsilon, input_bits, bits, "l1")
        named[f"metric-{epsilon:g}-{input_bits}-{bits}"] = store.find(spec).table
    for epsilon, bits in itertools.product((0.5, 10.8, 11.2, 14.0), (1, 3, 4)):
        channel = randomized_response.k_ary(epsilon, 1 << bits)
        named[f"response-{epsilon:g}-{bits}"] = round_pure(channel, epsilon)
    named["response-256"] = round_pure(randomized_response.k_ary(8.0, 256), 8.0)
    named["uneven"] = by_hand([0.0, 1e-9, 0.1, 0.100001, 0.5, 0.50390625, 1.0], 0, 5)
    named["uneven and wide"] = by_hand([0.0, 0.3, 0.31, 1.0], 1, 100)
    named["two knots"] = by_hand([0.0, 1.0], 2, 16)
    named["nearly even"] = by_hand([0.0, 0.25, 0.5 + 2.0**-45, 0.75, 1.0], 3, 7)
    named["elsewhere"] = by_hand([-3.0, -1.0, 5.0, 5.5], 4, 4)
    named["far from 0"] = by_hand([1000.0, 1000.25, 1000.5], 5, 4)
    return named


TABLES = [
    *("mvu-1-1-1", "mvu-3-None-2", "mvu-1-3-3", "mvu-3-None-3", "mvu-5-4-4", "mvu-5-None-4"),
    *("metric-2-1-1", "metric-1-5-2", "response-256", "uneven", "uneven and wide", "two knots"),
    *("nearly even", "elsewhere", "far from 0"),
    *(f"response-{e:g}-{b}" for e, b in itertools.product((0.5, 10.8, 11.2, 14.0), (1, 3, 4))),
]


def test_the_tables_are_all_tested() -> None:
    assert set(TABLES) == set(tables())


@pytest.mark.parametrize("name", TABLES)
def test_tables_between_and_at_their_knots(name: str) -> None:
    table, generator = tables()[name], np.random.default_rng(11)
    low, high = float(table.knots[0]), float(table.knots[-1])
    count = 600 if table.thresholds.shape[1] > 16 else 6000
    near = table.knots[:, None] + np.array([-1e-17, 0.0, 1e-17, 1e-9, -1e-9]) * (high - low)
    positions = np.concatenate(
        [
            generator.uniform(low, high, count),
            low + (high - low) * 10.0 ** generator.uniform(-300.0, 0.0, 200),
            np.clip(near.ravel(), low, high),
            np.tile([low, high], 50),
        ]
    )
    positions = np.clip(generator.permutation(positions), low, high)
    check_identical(lambda: sample_table(positions, table, Keystream(KEY)))
    inner = np.clip(positions.astype(np.float32), np.float32(low), np.float32(high))
    check_identical(lambda: sample_table(inner, table, Keystream(KEY)))


@pytest.mark.parametrize("size", SIZES)
def test_tables_of_every_size_on_an_interval_of_their_own(size: int) -> None:
    table = tables()["mvu-1-3-3"]
    for low, high in ((-1.0, 1.0), (1e6, 1e6 + 1e-3), (-1e-80, 3e-80)):
        values = np.random.default_rng(size).uniform(low, high, size)
        place = Affine(shift=low, divisor=high - low)
        check_identical(lambda: sample_table(values, table, Keystream(KEY), place))  # noqa: B023
    singles = np.random.default_rng(size).uniform(-0.99, 0.99, size).astype(np.float32)
    place = Affine(shift=-1.0, divisor=2.0)
    check_identical(lambda: sample_table(singles, table, Keystream(KEY), place))


def test_tables_on_several_threads(split: int) -> None:
    table = tables()["response-0.5-4"]
    positions = np.random.default_rng(12).uniform(size=5003)
    check_identical(lambda: sample_table(positions, table, Keystream(KEY)))


@given(
    seed=st.integers(0, 2**32 - 1),
    billionths=st.lists(st.integers(-(10**12), 10**12), min_size=2, max_size=40, unique=True),
    levels=st.integers(2, 40),
)
@settings(max_examples=60, deadline=None)
def test_tables_with_any_knots(seed: int, billionths: list[int], levels: int) -> None:
    knots = [number / 1e9 for number in sorted(billionths)]
    table, generator = by_hand(knots, seed, levels), np.random.default_rng(seed)
    positions = np.concatenate([generator.uniform(knots[0], knots[-1], 1500), knots])
    positions = np.clip(positions, knots[0], knots[-1])
    key = generator.bytes(32)
    check_identical(lambda: sample_table(positions, table, Keystream(key)))


# -- noise on a grid -----------------------------------------------------------------------

NOISES: list[Noise] = [
    ScalarGaussian(stddev=1.0),
    ScalarGaussian(stddev=3e5),
    ScalarLaplace(scale=1.7),
    ScalarStaircase(step=2.0, epsilon=1.5, nu=0.3),
    ScalarStaircase(step=5.0, epsilon=20.0, nu=1.2e-3),
    ScalarStaircase(step=0.01, epsilon=1e-3, nu=0.5),
]


@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize("grid", [30.0, 1.0, 0.037, 1e-3, 1e-6])
def test_noise_on_grids(noise: Noise, grid: float) -> None:
    step = grid * noise.quantile_slope
    generator = np.random.default_rng(13)
    values = np.concatenate(
        [
            generator.normal(0.0, noise.quantile_slope, 3000),
            generator.uniform(-(2.0**24), 2.0**24, 2000) * step,
            (np.arange(-20, 20) + 0.5) * step,
            [0.0, -0.0, 5e-324, 2.0**24 * step, -(2.0**24) * step],
        ]
    )
    check_identical(lambda: sample_rounded(values, noise, step, Keystream(KEY)))
    check_identical(lambda: sample_rounded(values[:3000], noise, step, Keystream(KEY)))


@pytest.mark.parametrize("size", SIZES)
def test_noise_of_every_size(size: int) -> None:
    values = np.random.default_rng(size).normal(size=size)
    check_identical(
        lambda: sample_rounded(values, ScalarGaussian(stddev=1.0), 0.01, Keystream(KEY))
    )
    spaced = np.random.default_rng(size).normal(size=2 * size)[::2]
    check_identical(lambda: sample_rounded(spaced, ScalarLaplace(scale=1.0), 0.01, Keystream(KEY)))


@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["gaussian", "laplace", "staircase"]),
    log_width=st.floats(-20.0, 20.0),
    log_grid=st.floats(-6.5, 3.0),  # values beyond 2^24 steps are refused
    epsilon=st.floats(1e-3, 30.0),
    nu=st.floats(1e-6, 0.999),
)
@settings(max_examples=60, deadline=None)
def test_noise_of_any_width_on_any_grid(
    seed: int, kind: str, log_width: float, log_grid: float, epsilon: float, nu: float
) -> None:
    width = 10.0**log_width
    noise: Noise
    match kind:
        case "gaussian":
            noise = ScalarGaussian(stddev=width)
        case "laplace":
            noise = ScalarLaplace(scale=width)
        case _:
            noise = ScalarStaircase(step=width, epsilon=epsilon, nu=nu)
    generator = np.random.default_rng(seed)
    step = 10.0**log_grid * noise.quantile_slope
    values = generator.normal(size=1500) * noise.quantile_slope
    key = generator.bytes(32)
    check_identical(lambda: sample_rounded(values, noise, step, Keystream(key)))


# -- norms ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [*SIZES, 1 << 20, (1 << 20) + 1, 3_000_001])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_squares(size: int, dtype: type) -> None:
    values: Any = np.random.default_rng(size).normal(size=size).astype(dtype)
    check_identical(lambda: domains.square_sum(values))
    check_identical(lambda: domains.square_sum(values[::-1]))
    if 0 < size <= 5000:
        exact = sum(Fraction(value) ** 2 for value in values.tolist())
        allowed = exact * Fraction((math.log2(size) + 2.0) * 2.0**-53)
        assert abs(Fraction(domains.square_sum(values)) - exact) <= allowed


@pytest.mark.parametrize("worst", [math.inf, -math.inf, math.nan, 1e200])
def test_sums_of_squares_that_overflow_or_are_none(worst: float) -> None:
    values = np.ones(5000)
    values[3210] = worst
    check_identical(lambda: domains.square_sum(values))
    assert not domains.square_sum(values) < math.inf


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(0, 5000), log_top=st.floats(-150.0, 150.0))
@settings(max_examples=60, deadline=None)
def test_sums_of_squares_of_any_values(seed: int, size: int, log_top: float) -> None:
    values = of_many_scales(np.random.default_rng(seed), size, 10.0**log_top)
    check_identical(lambda: domains.square_sum(values))


# -- mechanisms ----------------------------------------------------------------------------

EXAMPLES = [
    pytest.param(registration, example, domain, id=f"{registration.kind}-{number}-{place}")
    for registration in registry.registrations()
    for number, example in enumerate(registration.examples)
    for place, domain in enumerate(registration.example_domains)
]


@pytest.mark.parametrize(("registration", "example", "domain"), EXAMPLES)
def test_every_mechanism(registration: Registration, example: Parameters, domain: Domain) -> None:
    mechanism = registration.build(domain, example)
    for number, values in enumerate(extreme_inputs(domain, np.random.default_rng(14))):
        for trial in range(cases(5)):
            key = bytes([number, trial]) + bytes(30)
            check_identical(lambda: mechanism.encode(values, Keystream(key)))  # noqa: B023
