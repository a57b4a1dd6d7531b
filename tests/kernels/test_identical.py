"""Every level gives the bits of numpy: the same codes from the same key, whatever the values."""

import itertools
import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from contract import inputs
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sottovoce import native, norms
from sottovoce.design import randomised_response, store
from sottovoce.design.channel import IntegerTable, round_pure
from sottovoce.design.hermite import gauss_hermite
from sottovoce.domains import Domain, Vector
from sottovoce.kernels import arrays, one_bit
from sottovoce.kernels.family import sample_exponential_family
from sottovoce.kernels.ladder import Affine
from sottovoce.kernels.table import sample_table
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.interpolated_mvu import interpolated_family
from sottovoce.mechanisms.registry import Parameters, Registration
from sottovoce.noises.gaussian import Gaussian
from sottovoce.noises.laplace import Laplace
from sottovoce.noises.noise import Noise
from sottovoce.noises.rounded import sample_rounded
from sottovoce.noises.staircase import Staircase
from sottovoce.randomness import Keystream

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
    return values


@pytest.fixture(params=[1, 3])
def split(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Even short vectors are split among so many threads."""
    threads = int(request.param)
    monkeypatch.setattr(arrays, "_ALONE", 2)
    monkeypatch.setattr(arrays, "THREADS", threads)
    return threads


# -- one bit -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_one_bit_of_every_size_and_width(size: int, dtype: type) -> None:
    values = np.random.default_rng(size).normal(0.0, 0.3, size).astype(dtype)
    check_identical(lambda: one_bit.sample_payload(values, 0.7, Keystream(KEY)))
    check_identical(lambda: one_bit.sample_payload(values, 0.7, Keystream(KEY), scale=0.37))


@pytest.mark.parametrize("top", [1e-6, 1.0, 40.0, 1e15, 1e38])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_bit_of_every_scale(top: float, dtype: type) -> None:
    values = of_many_scales(np.random.default_rng(3), 30_000, top).astype(dtype)
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
    values = np.random.default_rng(6).normal(size=10_007).astype(dtype)
    check_identical(lambda: one_bit.sample_payload(values, 1.0, Keystream(KEY)))


def test_more_coordinates_left_open_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """float64 decides none of these tilts; the kernel says how much room it wants."""
    monkeypatch.setattr(arrays, "_ROOM", 3)
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
    check_identical(lambda: one_bit.sample_payload(values, 2.0 * scale, Keystream(key), scale=scale))


# -- families ------------------------------------------------------------------------------


def check_family(
    values: Vector | NDArray[np.float32],
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


@pytest.mark.parametrize("levels", [2, 3, 4, 5, 8, 16, 17, 64, 256])
@pytest.mark.parametrize("reach", [1e-6, 0.2, 3.0, 40.0, 1e8])
def test_gauss_hermite_families_within_and_beyond_the_reach(levels: int, reach: float) -> None:
    design, generator = gauss_hermite(levels), np.random.default_rng(levels)
    count = 6000 if levels <= 17 else 1500
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


@pytest.mark.parametrize(("epsilon", "bits"), [(1.0, 1), (3.0, 2), (5.0, 3)])
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


@cache
def tables() -> dict[str, IntegerTable]:
    named = {
        f"mvu-{bits}": store.find(store.spec_of(epsilon, inputs, bits)).table
        for epsilon, inputs, bits in ((1.0, 1, 1), (1.0, 2, 2), (3.0, 3, 3))
    }
    for kind in ("mvu", "metric_mvu"):
        registration = registry.find(kind)
        for number, example in enumerate(registration.examples):
            for domain in registration.example_domains:
                mechanism = registration.build(domain, example)
                named[f"{kind}-example-{number}"] = mechanism.table
    for epsilon, bits in itertools.product((0.5, 8.0, 10.8, 11.2, 14.0), (1, 3, 4)):
        channel = randomised_response.generalised(epsilon, bits)
        named[f"grr-{epsilon}-{bits}"] = round_pure(channel, epsilon)
    named["grr-256"] = round_pure(randomised_response.generalised(8.0, 8), 8.0)
    return named
