"""Tests of the energy of sums of bits: honest rounds pass, and known attacks do not."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from sottovoce.core.errors import AbandonedError, ParameterError
from sottovoce.protocol.secure.energy import check_energy, clamp_sums, energy, energy_limit
from sottovoce.protocol.secure.pairwise_result import check_range

CLIENTS, LOGIT_BOUND = 100, 0.05
Sums = NDArray[np.int64]


def honest_sums(generator: np.random.Generator, dimension: int, logits: float = 0.0) -> Sums:
    """Return sums of bits of clients that all have the same logit at all coordinates."""
    chance = 1.0 / (1.0 + math.exp(-logits))
    return generator.binomial(CLIENTS, chance, dimension).astype(np.int64)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("dimension", [1, 16])
def test_a_thousand_honest_rounds_raise_no_alarm(dimension: int, aligned: bool) -> None:
    generator = np.random.default_rng(dimension)
    norm = 1.0
    logit = norm / math.sqrt(dimension) if aligned else 0.0
    for _ in range(1000):
        check_energy(honest_sums(generator, dimension, logit), CLIENTS, norm)


@pytest.mark.slow
def test_honest_rounds_of_a_million_coordinates_raise_no_alarm() -> None:
    generator = np.random.default_rng(0)
    for logit in (0.0, 0.005):
        for _ in range(5):
            check_energy(honest_sums(generator, 1_000_000, logit), CLIENTS, 5.0)


@pytest.mark.parametrize("clients", [3, 100, 1000])
@pytest.mark.parametrize("norm", [0.1, 5.0])
def test_aligned_clients_stay_six_deviations_below_the_limit(clients: int, norm: float) -> None:
    """Mean and deviation of the energy of clients that all have logit S/sqrt(d), exactly."""
    for dimension in (1, 16, 1_000_000):
        chance = 1.0 / (1.0 + math.exp(-norm / math.sqrt(dimension)))
        counts = np.arange(clients + 1)
        logs = [
            math.lgamma(clients + 1) - math.lgamma(k + 1) - math.lgamma(clients - k + 1)
            + k * math.log(chance) + (clients - k) * math.log1p(-chance)
            for k in range(clients + 1)
        ]  # fmt: skip
        law = np.exp(logs)
        squares = (counts - clients / 2.0) ** 2
        mean = float(law @ squares)
        deviation = math.sqrt(max(0.0, float(law @ squares**2) - mean**2))
        limit = energy_limit(dimension=dimension, clients=clients, logit_norm=norm)
        assert dimension * mean + 6.0 * math.sqrt(dimension) * deviation < limit


def attacked(dimension: int, error: NDArray[np.int64]) -> Sums:
    return honest_sums(np.random.default_rng(1), dimension) + error


@pytest.mark.parametrize("seed", range(3))
def test_codes_from_minus_one_to_two_are_found(seed: int) -> None:
    generator = np.random.default_rng(seed)
    error = generator.integers(-1, 3, 1_000_000) - generator.integers(0, 2, 1_000_000)
    with pytest.raises(AbandonedError, match="cannot be told which"):
        check_energy(attacked(1_000_000, error), CLIENTS, 5.0)


def test_values_within_the_range_of_sums_are_found_if_they_are_many() -> None:
    """A value of 64 is above the range of a sum at nearly every coordinate; 48 is within it."""
    error = np.zeros(1_000_000, np.int64)
    error[:150] = 48
    with pytest.raises(AbandonedError):
        check_energy(attacked(1_000_000, error), CLIENTS, 5.0)


def test_a_value_of_64_exceeds_the_range_of_sums_at_one_of_fifty_coordinates() -> None:
    """Below the limit of the energy: 50 * 64^2 is 5.8 standard deviations, the limit 6.7."""
    error = np.zeros(1_000_000, np.int64)
    error[:50] = 64
    sums = attacked(1_000_000, error)
    with pytest.raises(AbandonedError, match="outside 0 to 100"):
        check_range(sums, least=0, largest=CLIENTS)


def test_an_error_of_the_size_of_noise_is_not_found_and_is_bounded_by_the_clamp() -> None:
    """What the test does not cover: here 30 at 50 coordinates, an L2 norm of 212."""
    error = np.zeros(1_000_000, np.int64)
    error[:50] = 30
    sums = attacked(1_000_000, error)
    check_energy(sums, CLIENTS, 5.0)
    clamped = clamp_sums(sums, CLIENTS, LOGIT_BOUND)
    assert clamped.max() <= 82


def test_the_largest_hidden_error_is_about_that_of_one_plain_message() -> None:
    limit = energy_limit(dimension=1_000_000, clients=CLIENTS, logit_norm=5.0)
    hidden = math.sqrt(limit - 1_000_000 * CLIENTS / 4.0)
    assert hidden < 1.1 * math.sqrt(1_000_000) / 2.0


def test_the_energy_is_exact() -> None:
    assert energy(np.array([0, 3, 1], dtype=np.uint8), 3) == 2 * 2.25 + 0.25
    assert energy(np.full(3_000_000, 100, np.uint8), 100) == 3_000_000 * 2500.0


def test_a_clamp_leaves_what_honest_clients_send_and_rounds_outward() -> None:
    sums = np.arange(101, dtype=np.uint8)
    clamped = clamp_sums(sums, CLIENTS, LOGIT_BOUND)
    reach = CLIENTS * math.tanh(LOGIT_BOUND / 2.0) / 2.0 + 30.0
    assert (clamped.min(), clamped.max()) == (math.floor(50 - reach), math.ceil(50 + reach))
    np.testing.assert_array_equal(clamped[19:82], sums[19:82])
    np.testing.assert_array_equal(clamp_sums(sums, CLIENTS, 100.0), sums)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_bounds_of_logits_are_positive(value: float) -> None:
    with pytest.raises(ParameterError):
        check_energy(np.zeros(1, np.uint8), 1, value)
    with pytest.raises(ParameterError):
        clamp_sums(np.zeros(1, np.uint8), 1, value)
