import math

import mpmath as mp
import numpy as np
import pytest
from cases import denser, thinned
from scipy.special import ive

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, L1Ball, L2Ball
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms.registry import find
from sottovoce.mechanisms.skellam import (
    Skellam,
    rounded_divergence,
    skellam_divergence,
    wrapped_skellam,
)
from sottovoce.privacy.divergences import finite_renyi

BALL = L2Ball(dimension=8, radius=1.0)


def build(**changes: float) -> Skellam:
    given = {"noise_multiplier": 2.0, "bits": 8, "steps_per_radius": 8.0, **changes}
    return Skellam(input_domain=BALL, **given)  # type: ignore[arg-type]


# -- the theorem, against exact sums in mpmath ---------------------------------------------


def exact_divergence(order: int, shift: int, variance: float) -> float:
    """D_a(shift + Skellam || Skellam) from e^-V I_n(V), in 40 digits."""
    with mp.workdps(40):
        below = -int(12 * math.sqrt(variance)) - 60
        above = int(12 * math.sqrt(variance) + 1.5 * order * shift) + 60
        mass = {n: mp.besseli(abs(n), variance) for n in range(below - shift, above + 1)}
        terms = (mass[n - shift] ** order * mass[n] ** (1 - order) for n in range(below, above + 1))
        return float(mp.log(mp.fsum(terms) * mp.e ** (-mp.mpf(variance))) / (order - 1))


@pytest.mark.parametrize(
    ("variance", "order", "shift"),
    thinned(denser([0.05, 0.3, 1.0, 3.0, 10.0, 40.0]), [2, 3, 5, 10, 30, 64], [1, 2, 5]),
)
def test_the_published_bound_holds_for_integer_shifts(
    variance: float, order: int, shift: int
) -> None:
    exact = exact_divergence(order, shift, variance)
    assert exact <= skellam_divergence(order, variance, shift, shift)


@pytest.mark.parametrize("variance", [1e2, 1e4, 1e6])
@pytest.mark.parametrize("order", [2, 5, 17, 64])
@pytest.mark.parametrize("relative_shift", [0.01, 0.05, 0.1])
def test_the_theorem_holds_at_the_variances_of_fine_grids(
    variance: float, order: int, relative_shift: float
) -> None:
    """Sixteen bits mean variances of millions; float64, 30 deviations about the tilted law."""
    stddev = math.sqrt(variance)
    shift = max(1, round(relative_shift * stddev))
    centre = order * shift
    outcomes = np.arange(int(centre - 30.0 * stddev), int(centre + 30.0 * stddev))
    with np.errstate(divide="ignore"):
        near, far = (
            np.log(ive(np.abs(outcomes - k).astype(np.float64), variance)) for k in (shift, 0)
        )
    kept = np.isfinite(near) & np.isfinite(far)
    terms = order * near[kept] + (1 - order) * far[kept]
    assert max(terms[0], terms[-1]) < terms.max() - 60.0  # nothing that counts was cut off
    exact = (terms.max() + math.log(np.exp(terms - terms.max()).sum())) / (order - 1)
    bound = skellam_divergence(order, variance, float(shift), float(shift))
    assert exact <= bound
    assert exact >= 0.9 * bound


@pytest.mark.parametrize(
    ("variance", "bits"), [(0.3, 6), (1.0, 6), (4.0, 6), (30.0, 7), (300.0, 9)]
)
@pytest.mark.parametrize("order", denser([2, 4, 16, 50]))
def test_the_bound_for_rounded_shifts_covers_every_pair_of_a_fine_grid(
    variance: float, bits: int, order: int
) -> None:
    noise = wrapped_skellam(variance, bits)
    law = {x: (1 - x % 1) * np.roll(noise, int(x)) + x % 1 * np.roll(noise, int(x) + 1)
           for x in np.arange(0.0, 4.01, 0.125)}  # fmt: skip
    for first in np.arange(0.0, 1.0, 0.125):
        for second, other in law.items():
            shift = abs(second - first)
            exact = max(
                finite_renyi(law[first], other, order), finite_renyi(other, law[first], order)
            )
            assert exact <= rounded_divergence(order, variance, 1, shift, shift) * (1 + 1e-9) + 1e-9


def test_the_claim_nears_the_gaussian_s_on_a_fine_grid() -> None:
    ball = L2Ball(dimension=128, radius=1.0)
    mechanism = Skellam(input_domain=ball, noise_multiplier=4.0, bits=16, steps_per_radius=1300.0)
    curve = mechanism.privacy(Adjacency.ZERO_OUT)
    for order, divergence in zip(curve.orders[:40], curve.divergences[:40], strict=True):
        assert 1.0 <= divergence / (order / 32.0) < 1.001


@pytest.mark.parametrize("bits", [4, 8])
def test_the_modulus_never_adds_to_the_divergence(bits: int) -> None:
    variance = 9.0
    wide, narrow = wrapped_skellam(variance, 12), wrapped_skellam(variance, bits)
    for order in (2.0, 8.0, 32.0):
        assert finite_renyi(np.roll(narrow, 3), narrow, order) <= finite_renyi(
            np.roll(wide, 3), wide, order
        ) * (1 + 1e-9)


# -- the law ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("variance", "bits"), [(0.01, 4), (3.0, 4), (3.0, 10), (200.0, 4)])
def test_the_wrapped_pmf_is_the_sum_over_residues(variance: float, bits: int) -> None:
    size, reach = 2**bits, 60 + int(15 * math.sqrt(variance))
    expected = [mp.mpf(0)] * size
    for n in range(-reach, reach + 1):
        expected[n % size] += mp.besseli(abs(n), variance) * mp.e ** (-mp.mpf(variance))
    assert wrapped_skellam(variance, bits) == pytest.approx([float(e) for e in expected], abs=1e-14)


@pytest.mark.parametrize("stddev", [15.9, 16.1])  # either side of where the method changes
def test_both_ways_to_the_pmf_agree(stddev: float) -> None:
    pmf = wrapped_skellam(stddev**2, 6)
    wide = wrapped_skellam(stddev**2, 12).reshape(-1, 64).sum(axis=0)
    assert pmf == pytest.approx(wide, abs=1e-14)


def test_the_noise_has_the_variance_of_its_name_and_the_mean_is_exact() -> None:
    mechanism = build(noise_multiplier=1.0, bits=12, steps_per_radius=20.0)
    values = BALL.project(np.random.default_rng(0).normal(size=8))
    law = mechanism.law(values)
    assert law.table.sum(axis=1) == pytest.approx(np.ones(8), abs=1e-14)
    assert law.mean() == pytest.approx(values, abs=1e-12)
    fractions = values * 20.0 % 1.0
    expected = 1.0 + fractions * (1.0 - fractions) / 20.0**2
    assert law.variance() == pytest.approx(expected, rel=1e-9)


def test_wrap_around_is_declared_as_bias() -> None:
    spike = np.eye(8)[0]
    coarse = build(noise_multiplier=2.0, bits=4, steps_per_radius=4.0)
    assert coarse.law(spike).mean()[0] < 0.6  # of 1
    assert build().law(spike).mean()[0] == pytest.approx(1.0, abs=1e-9)


def test_samples_follow_the_declared_mean_and_variance() -> None:
    mechanism = build(bits=16, steps_per_radius=1000.0)
    values = BALL.project(np.arange(8.0) - 3.0)
    law = mechanism.law(values)
    randomness, samples = SeededRandomness(6), 3000
    decoded = np.stack(
        [mechanism.decode(mechanism.encode(values, randomness.stream(n))) for n in range(samples)]
    )
    errors = (decoded.mean(axis=0) - law.mean()) / np.sqrt(law.variance() / samples)
    assert np.abs(errors).max() < 7.0
    spread = decoded.var(axis=0) / law.variance()
    assert np.abs(spread - 1.0).max() < 7.0 * math.sqrt(2.0 / samples)


def test_automatic_steps_leave_no_bias() -> None:
    given = {"noise_multiplier": 2.0, "bits": 10, "steps_per_radius": "auto"}
    mechanism = find("skellam").build(BALL, given)
    assert isinstance(mechanism, Skellam)
    assert mechanism.steps_per_radius == 512.0 / 13.0
    spike = np.eye(8)[0]
    assert mechanism.law(spike).mean() == pytest.approx(spike, abs=1e-6)


# -- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [0, 1, 17, 20, -3, 8.0, True])
def test_bits_outside_two_to_sixteen_are_refused(bits: int) -> None:
    with pytest.raises(ParameterError, match="bits must be an integer from 2 to 16"):
        build(bits=bits)


@pytest.mark.parametrize("steps", [0.0, -1.0, math.nan, math.inf, 129.0, 1e-12])
def test_a_grid_that_wraps_or_vanishes_is_refused(steps: float) -> None:
    with pytest.raises(ParameterError, match="steps_per_radius"):
        build(steps_per_radius=steps)


@pytest.mark.parametrize("noise_multiplier", [0.0, -1.0, math.nan])
def test_a_noise_multiplier_that_is_none_is_refused(noise_multiplier: float) -> None:
    with pytest.raises(ParameterError, match="noise_multiplier"):
        build(noise_multiplier=noise_multiplier)


def test_a_box_and_values_outside_are_refused() -> None:
    box = Box(dimension=8, lower=-1.0, upper=1.0)
    with pytest.raises(ParameterError, match="for a Box use 'laplace' or 'cldp'"):
        Skellam(input_domain=box, noise_multiplier=1.0, bits=8, steps_per_radius=8.0)  # type: ignore[arg-type]
    with pytest.raises(DomainError, match="project"):
        build().encode(np.ones(8), SeededRandomness(1).stream("a"))


def test_an_l1_ball_is_charged_no_more_than_the_l2_ball_of_its_radius() -> None:
    curves = [
        Skellam(input_domain=ball, noise_multiplier=2.0, bits=12, steps_per_radius=64.0).privacy(
            Adjacency.REPLACE_ONE
        )
        for ball in (L1Ball(dimension=50, radius=1.0), L2Ball(dimension=50, radius=1.0))
    ]
    assert all(a <= b for a, b in zip(curves[0].divergences, curves[1].divergences, strict=True))
