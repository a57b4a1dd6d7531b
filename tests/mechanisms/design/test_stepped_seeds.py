"""The step's normalisers: no direction within the peak has one outside what was certified."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from cases import denser
from scipy import stats
from scipy.special import ndtr

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.design import seeds as module
from sottovoce.mechanisms.design.seeds import SteppedSeeds, peak, stepped_seeds

EPSILONS = (0.1, 1.0, 2.0, 4.0, 5.0, 8.0)


def signs(count: int) -> Vector:
    return np.array(list(itertools.product((-1.0, 1.0), repeat=count)))


def directions(count: int) -> list[Vector]:
    generator = np.random.default_rng(count)
    found = [np.ones(count), generator.normal(size=count), generator.uniform(size=count)]
    for spikes, height in itertools.product((1, 2, 5), (1.2, 2.0, 4.0)):
        spiky = np.ones(count)
        spiky[:spikes] = height
        found.append(spiky)
    return [one / np.linalg.norm(one) for one in found]


def grouped_mean(choice: SteppedSeeds, heights: Vector, counts: list[int]) -> float:
    """E a(g) for z of a few distinct heights, exactly: g is a sum of scaled binomials."""
    scores, masses = np.zeros(1), np.ones(1)
    heights = heights / math.sqrt(float(np.asarray(counts) @ heights**2))
    for height, count in zip(heights, counts, strict=True):
        heads = np.arange(count + 1)
        scores = np.add.outer(scores, height * (2.0 * heads - count)).ravel()
        masses = np.outer(masses, stats.binom.pmf(heads, count, 0.5)).ravel()
        keep = masses > 1e-18
        scores, masses = scores[keep], masses[keep]
    return float(masses @ choice.acceptance(scores))


# -- the formula -----------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0.0, 0.4, 1.5, 3.0])
def test_the_inversion_formula(cut: float) -> None:
    z, width = [mp.mpf("0.6"), mp.mpf("0.64"), mp.sqrt(1 - mp.mpf("0.36") - mp.mpf("0.4096"))], 1.2
    exact = mp.mpf(0)
    for b in itertools.product((-1, 1), repeat=3):
        g = mp.fsum(s * x for s, x in zip(b, z, strict=True))
        exact += mp.ncdf((g - cut) / width) / 8

    def integrand(t: mp.mpf) -> mp.mpf:
        phi = mp.fprod(mp.cos(x * t) for x in z)
        damping = mp.exp(-(width**2) * t * t / 2)
        return (mp.exp(-t * t / 2) - phi) * damping * (mp.sin(cut * t) / t if t else mp.mpf(cut))

    normal = mp.ncdf(-cut / mp.sqrt(1 + width**2))
    found = normal + mp.quad(integrand, [0, 1, 2, 4, 8, 16]) / mp.pi
    assert float(found) == pytest.approx(float(exact), abs=1e-14)


@pytest.mark.parametrize("width", [0.1, 0.7, 2.0])
@pytest.mark.parametrize("cut", [0.0, 0.5, 1.7, 4.0])
def test_the_closed_form_of_the_fourth_order(cut: float, width: float) -> None:
    v = 1.0 + width**2
    integral = mp.quad(lambda t: t**3 * mp.exp(-v * t * t / 2) * mp.sin(cut * t), [0, 2, 4, 8, 20])
    exact = float(integral / mp.pi / 12)
    below, above = module._deviations(cut, width, 1.0)
    # What lies between the two bounds is the term itself, at s = 1 or 0.
    assert above - below == pytest.approx(exact, abs=1e-12)


def test_the_rest_of_log_cos() -> None:
    with mp.workdps(50):
        for x in (mp.mpf(n) / 200 for n in range(1, 201)):
            rest = -mp.log(mp.cos(x)) - x**2 / 2 - x**4 / 12
            assert 0.0 <= rest <= module._SIXTH * x**6


# -- exact means -----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 5, 9, 13])
def test_all_signs_of_few_coordinates_lie_within_the_deviations(count: int) -> None:
    vectors = signs(count)
    for z, cut, wide in itertools.product(directions(count), (0.0, 0.5, 1.3, 2.5), (0.2, 1.0, 2.5)):
        top = float(np.abs(z).max())
        width = wide * top
        exact = float(ndtr((vectors @ z - cut) / width).mean())
        below, above = module._deviations(cut, width, top)
        normal = float(ndtr(-cut / math.sqrt(1.0 + width**2)))
        assert -below <= exact - normal <= above


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 5.17, 8.0])
def test_tries_and_signs_together_are_within_epsilon_and_the_timing_loss(epsilon: float) -> None:
    """The exact law of both, of signs in the open; the tries alone tell what is claimed at most."""
    choice = stepped_seeds(epsilon, 10)
    tries, vectors, laws = np.arange(choice.tries), signs(10), []
    for z in directions(10):
        accepted = choice.acceptance(vectors @ z)
        fails = math.log1p(-float(accepted.mean()))
        # The last candidate is sent, whether it is accepted or not.
        laws.append((np.log(accepted), tries * fails))
    low, high = choice.normalizers
    for (first, first_fails), (second, second_fails) in itertools.permutations(laws, 2):
        signs_apart, tries_apart = float(np.max(first - second)), first_fails - second_fails
        together = max(signs_apart + float(tries_apart[:-1].max()), float(tries_apart[-1]))
        assert together <= epsilon + choice.timing_loss
    geometric = [[p * (1.0 - p) ** n for n in range(choice.tries - 1)] for p in (low, high)]
    last = [(1.0 - p) ** (choice.tries - 1) for p in (low, high)]
    ratios = np.log([*geometric[0], last[0]]) - np.log([*geometric[1], last[1]])
    assert 0.4 * choice.timing_loss <= float(np.abs(ratios).max()) <= choice.timing_loss


@pytest.mark.parametrize(
    ("epsilon", "loss"),
    [(2.0, (0.0028, 0.0006)), (5.17, (0.0082, 0.0051)), (8.0, (0.0954, 0.0507))],
)
def test_the_documented_timing_losses(epsilon: float, loss: tuple[float, float]) -> None:
    """docs/explanation/seeded-updates.md: of 16,384 signs and of a million."""
    for num_signs, expected in zip((16_384, 1_000_000), loss, strict=True):
        found = stepped_seeds(epsilon, num_signs).timing_loss
        assert found == pytest.approx(expected, abs=6e-5)


@pytest.mark.parametrize("num_signs", denser([30, 200, 1024, 4096, 16_384]))
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_means_of_many_signs_are_within_the_normalizers(num_signs: int, epsilon: float) -> None:
    choice = stepped_seeds(epsilon, num_signs)
    low, high = choice.normalizers
    assert low < high
    assert choice.contrast + math.log(high / low) <= epsilon
    height = module._PEAK / math.sqrt(num_signs)
    found = [grouped_mean(choice, np.ones(1), [num_signs])]
    # Some coordinates at the peak and the others equal; or all that there may be, and else nothing.
    most = num_signs // 25
    for spikes in {*range(1, min(most, 5)), most // 4, most // 2, (3 * most) // 4, most - 1} - {0}:
        others = math.sqrt((1.0 - spikes * height**2) / (num_signs - spikes))
        counts = [spikes, num_signs - spikes]
        found.append(grouped_mean(choice, np.array([height, others]), counts))
    found.append(grouped_mean(choice, np.ones(1), [most + 1]))
    assert low <= min(found)
    assert max(found) <= high


def test_a_search_finds_no_direction_outside_and_comes_near_the_ends() -> None:
    choice = stepped_seeds(4.0, 1024)
    low, high = choice.normalizers
    generator = np.random.default_rng(3)
    found = []
    for _ in range(200):
        spikes, some = int(generator.integers(1, 40)), int(generator.integers(1, 60))
        heights = np.array([generator.uniform(3.0, 5.0), generator.uniform(0.0, 5.0)]) / 32.0
        left = 1.0 - spikes * heights[0] ** 2 - some * heights[1] ** 2
        rest = 1024 - spikes - some
        if left <= 0.0:
            continue
        smallest = math.sqrt(left / rest)
        if smallest > 5.0 / 32.0:
            continue
        found.append(grouped_mean(choice, np.array([*heights, smallest]), [spikes, some, rest]))
    assert len(found) > 50
    assert low <= min(found)
    assert max(found) <= high
    assert max(found) - min(found) > 0.2 * (high - low)


def test_a_direction_beyond_the_peak_can_lie_outside() -> None:
    """So the certificate says something: a lone spike breaks it."""
    choice = stepped_seeds(4.0, 16_384)
    low, high = choice.normalizers
    spike = grouped_mean(choice, np.ones(1), [1])
    assert not low <= spike <= high


def test_integer_weights_by_convolution() -> None:
    """Random whole weights within the peak: the law of the score, weight by weight."""
    num_signs = 400
    choice = stepped_seeds(3.0, num_signs)
    low, high = choice.normalizers
    generator = np.random.default_rng(8)
    for draw in range(4):
        if draw % 2:
            weights = np.rint(np.clip(10.0 * generator.normal(size=num_signs), -39, 39))
        else:
            weights = np.rint(generator.exponential(8.0, size=num_signs).clip(0, 36))
        length = math.sqrt(float(weights @ weights))
        assert np.abs(weights).max() <= choice.peak * length
        reach = int(np.abs(weights).sum())
        law = np.zeros(2 * reach + 1)
        law[reach] = 1.0
        for weight in np.abs(weights).astype(int).tolist():
            law = (np.roll(law, weight) + np.roll(law, -weight)) / 2.0
        scores = np.arange(-reach, reach + 1) / length
        assert low <= float(law @ choice.acceptance(scores)) <= high


# -- what follows ----------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("num_signs", [1, 8, 25, 1000, 16_384, 10**6])
def test_ratios_and_failures(epsilon: float, num_signs: int) -> None:
    choice = stepped_seeds(epsilon, num_signs)
    low, high = choice.normalizers
    largest, least = choice.ratios()
    assert least < 1.0 < largest
    assert math.log(largest / least) <= epsilon * (1.0 + 1e-12) + 1e-10
    assert peak(num_signs) == min(1.0, 5.0 / math.sqrt(num_signs))
    scores = np.linspace(-math.sqrt(num_signs), math.sqrt(num_signs), 301)
    accepted = choice.acceptance(scores)
    assert np.all(np.diff(accepted) >= 0.0)
    for normaliser in (low, high):
        failing = (1.0 - normaliser) ** (choice.tries - 1)
        density = (1.0 - failing) * accepted / normaliser + failing
        assert density.max() <= largest
        assert density.min() >= least
        assert failing <= module._FAILURE * (1.0 + 1e-9)


@pytest.mark.parametrize("epsilon", [2.0, 4.0, 5.0])
def test_moments_are_those_of_many_signs(epsilon: float) -> None:
    choice = stepped_seeds(epsilon, 16_384)
    heads = np.arange(16_385)
    scores: Vector = np.asarray((2.0 * heads - 16_384) / 128.0)
    law = stats.binom.pmf(heads, 16_384, 0.5) * choice.acceptance(scores)
    assert float(law @ scores / law.sum()) == pytest.approx(choice.mean_score, rel=2e-3)
    square = float(law @ scores**2 / law.sum()) - 1.0
    assert square == pytest.approx(choice.excess_square, rel=2e-3, abs=1e-3)
    # On a sphere, where the step is sharp.
    assert choice.mean_score == pytest.approx(
        {2.0: 0.786, 4.0: 1.516, 5.0: 1.851}[epsilon], rel=6e-3
    )


def test_the_cut_is_about_the_best() -> None:
    choice = stepped_seeds(4.0, 16_384)

    def score(cut: float) -> float:
        return SteppedSeeds(
            epsilon=4.0, num_signs=16_384, contrast=choice.contrast, cut=cut
        ).mean_score

    assert all(score(choice.cut + move) <= choice.mean_score * (1 + 1e-7) for move in (-0.1, 0.1))


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_an_epsilon_that_is_none_is_refused(epsilon: float) -> None:
    with pytest.raises(ParameterError):
        stepped_seeds(epsilon, 1000)


def test_too_large_an_epsilon_is_refused_with_a_remedy() -> None:
    with pytest.raises(ParameterError, match="seeded_sign"):
        stepped_seeds(30.0, 16_384)
