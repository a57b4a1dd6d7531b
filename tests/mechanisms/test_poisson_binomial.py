"""Several clamped bits per coordinate: their law, their privacy, and sums of codes of many bits."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms.clamped_sign import ClampedSign
from sottovoce.mechanisms.poisson_binomial import PoissonBinomial
from sottovoce.mechanisms.release import OnlySums, release_event
from sottovoce.privacy.divergences import finite_renyi
from sottovoce.privacy.events import SummedBits
from sottovoce.privacy.renyi import renyi_divergence

BALL = L2Ball(dimension=4, radius=1.0)
Z = Adjacency.ZERO_OUT


def several(trials: int, bound: float = 1.0, multiplier: float = 0.5) -> PoissonBinomial:
    return PoissonBinomial(
        input_domain=BALL, noise_multiplier=multiplier, trials=trials, logit_bound=bound
    )


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_one_trial_is_the_clamped_sign(adjacency: Adjacency) -> None:
    sign = ClampedSign(input_domain=BALL, noise_multiplier=0.5, logit_bound=1.0)
    values = np.array([-0.7, -0.2, 0.1, 0.6])
    np.testing.assert_allclose(several(1).law(values).table, sign.law(values).table, rtol=1e-14)
    np.testing.assert_array_equal(several(1).points, sign.points)
    assert several(1).privacy(adjacency) == sign.privacy(adjacency)
    for clients in (2, 90):
        event = several(1).summed_event(adjacency, clients)
        assert event == sign.summed_event(adjacency, clients)
        assert several(1).sum_bits(clients) == sign.sum_bits(clients)


@pytest.mark.parametrize("trials", [1, 2, 7, 255])
def test_the_law_is_that_of_independent_clamped_bits(trials: int) -> None:
    mechanism = several(trials, bound=0.8)
    values = np.array([-0.6, 0.0, 0.05, 0.7])
    law = mechanism.law(values)
    logits = np.clip(2.0 * values / (0.5 * math.sqrt(trials)), -0.8, 0.8)
    chance = 1.0 / (1.0 + np.exp(-logits))
    for row, p in zip(law.table, chance, strict=True):
        exact = np.ones(1)
        for _ in range(trials):
            exact = np.convolve(exact, [1.0 - p, p])
        np.testing.assert_allclose(row, exact, rtol=1e-9, atol=1e-300)
    expected = 0.5 * math.sqrt(trials) * np.tanh(logits / 2.0)
    np.testing.assert_allclose(law.mean(), expected, atol=1e-12)
    assert law.variance()[1] == pytest.approx(0.25)


def test_more_trials_are_right_up_to_larger_coordinates() -> None:
    spike = np.array([1.0, 0.0, 0.0, 0.0])
    biases = [abs(several(m, bound=9.0).law(spike).mean()[0] - 1.0) for m in (1, 3, 15, 63)]
    assert all(more < 0.7 * few for few, more in itertools.pairwise(biases))


def test_codes_are_drawn_from_the_law() -> None:
    mechanism = several(5)
    values = np.array([0.4, -0.3, 0.0, 0.1])
    source = SeededRandomness(3)
    draws = np.array(
        [mechanism.encode(values, source.stream(f"message {i}", 1)) for i in range(2000)]
    )
    law = mechanism.law(values)
    for column, row in zip(draws.T, law.table, strict=True):
        found = np.bincount(column, minlength=6) / len(draws)
        np.testing.assert_allclose(found, row, atol=5.0 * math.sqrt(0.25 / len(draws)))


def test_no_message_and_no_sum_exceeds_what_is_charged() -> None:
    """All inputs at the ends of the ball, in one dimension, by enumeration."""
    ball = L2Ball(dimension=1, radius=1.0)
    for trials, clients in ((1, 3), (3, 2), (3, 4), (7, 3)):
        mechanism = PoissonBinomial(
            input_domain=ball, noise_multiplier=1.5, trials=trials, logit_bound=0.9
        )
        tables = {x: mechanism.law([x]).table[0] for x in (-1.0, 0.0, 1.0)}
        for others in ([1.0] * (clients - 1), [-1.0] * (clients - 1)):
            laws = {}
            for own in (-1.0, 0.0, 1.0):
                law = tables[own]
                for x in others:
                    law = np.convolve(law, tables[x])
                laws[own] = law
            for adjacency, pair in ((Z, (1.0, 0.0)), (Adjacency.REPLACE_ONE, (1.0, -1.0))):
                local = mechanism.privacy(adjacency)
                central = mechanism.summed_event(adjacency, clients)
                for order in (1.5, 4.0, 30.0):
                    for one, other in (pair, pair[::-1]):
                        seen = finite_renyi(tables[one], tables[other], order)
                        summed = finite_renyi(laws[one], laws[other], order)
                        assert seen <= renyi_divergence(local, order) * (1.0 + 1e-9)
                        assert summed <= renyi_divergence(central, order) * (1.0 + 1e-9)


def test_a_sum_is_charged_as_sums_of_all_single_bits() -> None:
    mechanism = several(7)
    event = release_event(mechanism, adjacency=Z, visibility=OnlySums(minimum_clients=20))
    assert event == SummedBits.of(mechanism.privacy(Z), 1.0, 20)
    assert mechanism.privacy(Z).dimension == 28
    assert mechanism.sum_bits(20) == 8  # 140 ones at most


def test_a_sum_of_codes_decodes_to_the_mean() -> None:
    mechanism = several(7)
    codes = np.array([[0, 7, 3, 1], [5, 2, 2, 7]], dtype=np.uint8)
    mean = (mechanism.decode(codes[0]) + mechanism.decode(codes[1])) / 2.0
    total = codes.sum(axis=0, dtype=np.int64)
    np.testing.assert_allclose(mechanism.decode_sum(total, 2), mean, atol=1e-14)


@pytest.mark.parametrize("bad", [0, -1, 256, 1.5, True, "3"])
def test_a_senseless_number_of_trials_is_refused_with_a_remedy(bad: Any) -> None:
    with pytest.raises(ParameterError, match="trials"):
        PoissonBinomial(input_domain=BALL, noise_multiplier=1.0, trials=bad, logit_bound=1.0)
