"""Replace-one on a Poisson sample around zero: golden values, quadrature and enumeration."""

import math

import mpmath
import numpy as np
import pytest
from cases import cases

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball, Vector
from sottovoce.mechanisms.design.families import gauss_hermite
from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.divergences import finite_renyi
from sottovoce.privacy.dominating_pairs import dominating_pairs
from sottovoce.privacy.events import (
    Composed,
    GaussianNoise,
    OneBit,
    PrivacyEvent,
    Repeated,
    Sampled,
    SamplingScheme,
    ZeroConcentrated,
)
from sottovoce.privacy.loss_pairs import PAIR_ACCURACY, SwappedPair
from sottovoce.privacy.renyi import renyi_divergence
from sottovoce.privacy.sampling import AntipodalPair, swapped_log_excess

REPLACE_ONE = Adjacency.REPLACE_ONE


def sampled(
    event: PrivacyEvent, rate: float, count: int = 1, scheme: SamplingScheme = "poisson"
) -> Repeated:
    one = Sampled(event=event, rate=rate, scheme=scheme, hidden_by="own-records")
    return Repeated(event=one, count=count)


def gaussian(center: float) -> GaussianNoise:
    return GaussianNoise(mu=2.0 * center, adjacency=REPLACE_ONE, zero_centered=True)


# Fourier inversion at 1e-5 (and dp-accounting's REPLACE_ONE, 1.1e-5 above at most).
@pytest.mark.parametrize(
    ("rate", "sigma", "rounds", "exact"),
    [
        (0.01, 1.0, 100, 0.89512),
        (0.1, 4.0, 100, 1.98986),
        (0.2, 2.0, 12, 2.91141),
        (0.01, 2.0, 1000, 1.20520),
        (0.01, 1.0, 1000, 2.84344),
    ],
)
def test_sampled_gaussian_noise_costs_what_its_antipodal_pair_costs(
    rate: float, sigma: float, rounds: int, exact: float
) -> None:
    spent = privacy_spent(sampled(gaussian(1.0 / sigma), rate, rounds), 1e-5)
    assert exact - 1e-5 <= spent.epsilon <= 1.001 * exact


# Whole orders and two fixed majorants give the golden values; more of both may only be smaller.
@pytest.mark.parametrize(
    ("rate", "tilt", "rounds", "golden", "limit"),
    [
        (0.01, 0.5, 1000, 1.32063, 1.20520),
        (0.1, 0.25, 100, 2.1759, 1.98986),
        (0.2, 0.5, 12, 3.3050, 2.91141),
    ],
)
def test_few_bits_on_a_sample_come_close_to_gaussian_noise(
    rate: float, tilt: float, rounds: int, golden: float, limit: float
) -> None:
    one_bit = OneBit(shift=4.0 * tilt, dimension=10**6, adjacency=REPLACE_ONE, zero_centered=True)
    levels = ZeroConcentrated(rho=2.0 * tilt**2, adjacency=REPLACE_ONE, zero_centered=True)
    for event in (one_bit, levels):
        spent = privacy_spent(sampled(event, rate, rounds), 1e-5)
        assert limit <= spent.epsilon <= golden


def test_the_golden_renyi_divergences() -> None:
    for order, exponent, exact in ((8, 0.00283627, 0.00282216), (14, 0.00925767, 0.00918596)):
        found = math.log1p(math.exp(swapped_log_excess(0.25, 0.01, order)))
        assert exact <= found <= exponent * (1.0 + 1e-5)


def test_masses_are_right_to_the_promised_accuracy() -> None:
    edges = np.array([-30.0, -3.0, -0.1, -1e-6, 0.0, 1e-9, 0.02, 0.5, 4.0, 25.0, 1500.0])
    for center, rate in ((0.01, 0.01), (1.0, 1e-6), (2.5, 0.3), (20.0, 0.05)):
        found = AntipodalPair(center, rate).masses(edges)
        with mpmath.workdps(350):
            c, q = mpmath.mpf(center), mpmath.mpf(rate)
            scale = (1 - q) * mpmath.exp(c**2 / 2) / q
            halves = [mpmath.mpf(edge) / 2 for edge in edges.tolist()]
            places = [(half + mpmath.asinh(scale * mpmath.sinh(half))) / c for half in halves]
            for law, shift in zip(found, (c, -c), strict=True):
                below = [(1 - q) * mpmath.ncdf(x) + q * mpmath.ncdf(x - shift) for x in places]
                ends = [mpmath.mpf(0), *below, mpmath.mpf(1)]
                for i, mass in enumerate(law.tolist()):
                    exact = ends[i + 1] - ends[i]
                    assert abs(mass - exact) <= 8 * PAIR_ACCURACY * exact + 1e-280


def test_no_placement_of_two_contributions_is_worse_than_opposite_ones() -> None:
    """Quadrature in the plane over random x, x' within the ball, several noises, rates and A."""
    rng = np.random.default_rng(28)
    nodes = np.linspace(-9.0, 9.0, 241)
    area = (nodes[1] - nodes[0]) ** 2
    x, y = np.meshgrid(nodes, nodes)
    zero = np.exp(-(x**2 + y**2) / 2.0) / (2.0 * math.pi)
    for _ in range(cases(60)):
        center, rate = float(rng.uniform(0.2, 2.5)), float(rng.uniform(0.05, 0.9))
        laws = []
        for _ in range(2):
            radius, angle = center * math.sqrt(rng.uniform()), rng.uniform(0.0, 2.0 * math.pi)
            radius = center if rng.uniform() < 0.5 else radius
            a, b = radius * math.cos(angle), radius * math.sin(angle)
            moved = np.exp(-((x - a) ** 2 + (y - b) ** 2) / 2.0) / (2.0 * math.pi)
            laws.append((1.0 - rate) * zero + rate * moved)
        for epsilon in (-0.7, 0.0, 0.1, 1.0):
            ratio = math.exp(epsilon)
            truth = float(np.maximum(0.0, laws[0] - ratio * laws[1]).sum()) * area
            first, second = AntipodalPair(center, rate).masses(np.array([epsilon]))
            assert truth <= float(first[1] - ratio * second[1]) + 1e-6


def test_neither_a_fixed_size_nor_an_unknown_center_has_the_antipodal_pair() -> None:
    far = GaussianNoise(mu=1.0, adjacency=REPLACE_ONE)
    for event in (sampled(far, 0.1), sampled(gaussian(0.5), 0.1, scheme="fixed-size")):
        ((pair, _, _),) = dominating_pairs(event)
        assert isinstance(pair, SwappedPair)
    two = Composed(events=(gaussian(0.3), gaussian(0.4)))
    ((pair, _, _),) = dominating_pairs(sampled(two, 0.1))
    assert isinstance(pair, AntipodalPair)
    assert pair.center == pytest.approx(0.5)


def test_a_gaussian_mechanism_says_where_its_zero_is() -> None:
    ball = L2Ball(dimension=3, radius=2.0, records=5)
    event = Gaussian(input_domain=ball, noise_multiplier=2.0).privacy(REPLACE_ONE)
    assert event == gaussian(0.5)


def bits(tilts: Vector) -> Vector:
    """The law of independent bits with these half-logits."""
    law = np.ones(1)
    for one in 1.0 / (1.0 + np.exp(-2.0 * tilts)):
        law = np.multiply.outer(law, np.array([1.0 - one, one])).ravel()
    return law


def levels(tilts: Vector, count: int) -> Vector:
    """The law of independent Gauss-Hermite codes with these tilts."""
    family, law = gauss_hermite(count), np.ones(1)
    for tilt in tilts:
        weights = family.weights * np.exp(family.points * tilt)
        law = np.multiply.outer(law, weights / weights.sum()).ravel()
    return law


def test_renyi_of_tilted_laws_on_a_sample_covers_enumeration() -> None:
    """Random bases and contributions, both orders; and one of fixed size, left out for another."""
    rng = np.random.default_rng(4)
    for case in range(cases(300)):
        count = (2, 3, 4)[case % 3]
        size = int(rng.integers(1, 6 if count == 2 else 4))
        mu, rate = float(rng.uniform(0.05, 1.5)), float(rng.choice([0.01, 0.1, 0.4]))
        order = int(rng.integers(2, 30))
        base = rng.normal(size=size) * rng.choice([0.0, 1.0])
        moves = rng.normal(size=(2, size))
        moves *= mu / np.linalg.norm(moves, axis=1, keepdims=True)
        if rng.uniform() < 0.5:
            moves[1] = -moves[0]
        draw = bits if count == 2 else (lambda tilts, count=count: levels(tilts, count))
        left_out, first, second = (draw(base + move) for move in (0.0 * base, *moves))
        mixed = [(1.0 - rate) * left_out + rate * law for law in (first, second)]
        fisher = gauss_hermite(count).fisher_bound if count > 2 else 1.0
        event: PrivacyEvent
        if count == 2:
            event = OneBit(
                shift=4.0 * mu, dimension=size, adjacency=REPLACE_ONE, zero_centered=True
            )
        else:
            rho = 2.0 * fisher * mu**2
            event = ZeroConcentrated(rho=rho, adjacency=REPLACE_ONE, zero_centered=True)
        claimed = renyi_divergence(sampled(event, rate), float(order))
        log_excess = swapped_log_excess(fisher * mu**2, rate, order)
        for one, other in (mixed, mixed[::-1]):
            truth = finite_renyi(one, other, float(order))
            assert truth <= claimed * (1.0 + 1e-9)
            if truth > 1e-9:
                assert math.log(math.expm1((order - 1) * truth)) <= log_excess + 1e-9
        # Of fixed size: with probability 1 - rate another record is in its place.
        swapped = [(1.0 - rate) * first + rate * law for law in (second, left_out)]
        truth = finite_renyi(swapped[0], swapped[1], float(order))
        fixed = renyi_divergence(sampled(event, rate, scheme="fixed-size"), float(order))
        assert truth <= fixed * (1.0 + 1e-9)
