"""One noise on a sum: what is charged against the exact divergence of what is released."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import ParameterError, PrivacyError
from sottovoce.mechanisms.clamped_sign import ClampedSign
from sottovoce.mechanisms.coordinate_laws import noise_of
from sottovoce.mechanisms.discrete_gaussian import DiscreteGaussian
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.mechanisms.laplace import Laplace
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.no_privacy import NoPrivacy
from sottovoce.mechanisms.noise import laws
from sottovoce.privacy import accounting
from sottovoce.privacy.events import GaussianNoise, LaplaceNoise, Repeated, Sampled
from sottovoce.protocol.channels.central import Central, noise_of_sum
from sottovoce.protocol.channels.channel import terms_of
from sottovoce.protocol.plan import ClientPlan, RoundPlan

ZERO_OUT, REPLACE_ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
DELTA = 1e-3


def ball(records: int = 1) -> L2Ball:
    return L2Ball(dimension=4, radius=0.5, records=records)


def a_gaussian(records: int = 1, noise_multiplier: float = 1.2) -> Gaussian:
    return Gaussian(input_domain=ball(records), noise_multiplier=noise_multiplier)


def exact_delta(epsilon: float, rate: float, mu: float, *, removed: bool) -> float:
    """The hockey-stick of (1-q) N(0,1) + q N(mu,1) against N(0,1), or the other way round."""

    def excess(x: float) -> float:
        mixed = (1.0 - rate) * norm.pdf(x) + rate * norm.pdf(x - mu)
        first, second = (norm.pdf(x), mixed) if removed else (mixed, norm.pdf(x))
        return max(0.0, float(first - math.exp(epsilon) * second))

    return float(quad(excess, -12.0, 14.0 + mu, limit=400, points=[0.0, mu])[0])


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_a_secret_sample_is_charged_what_the_mixture_gives_away(rate: float) -> None:
    event = terms_of(Central(client_sampling_rate=rate), ZERO_OUT)(a_gaussian())
    assert event == Sampled(
        event=a_gaussian().privacy(ZERO_OUT),
        rate=rate,
        scheme="poisson",
        hidden_by="central-noise",
    )
    epsilon = accounting.epsilon(event, DELTA)
    mu = 1.0 / 1.2
    worst = max(exact_delta(epsilon, rate, mu, removed=r) for r in (False, True))
    assert worst <= DELTA * (1.0 + 1e-6)
    below = max(exact_delta(0.97 * epsilon, rate, mu, removed=r) for r in (False, True))
    assert below > DELTA  # and not much more than that


def test_the_noisy_sum_of_a_poisson_sample_is_within_what_is_charged() -> None:
    """Other clients included: sums over who else was sampled, enumerated for three clients."""
    rate, stddev, others = 0.3, 0.6, (0.5, -0.4)
    epsilon = accounting.epsilon(
        terms_of(Central(client_sampling_rate=rate), ZERO_OUT)(a_gaussian()), DELTA
    )
    grid = np.linspace(-8.0, 8.0, 40_001)

    def density(mine: float) -> np.ndarray:
        total = np.zeros_like(grid)
        for coins in np.ndindex(2, 2, 2):
            chance = math.prod(rate if coin else 1.0 - rate for coin in coins)
            centre = float(np.dot(coins, (*others, mine)))
            total += chance * norm.pdf(grid, centre, stddev)
        return total

    present, absent = density(0.5), density(0.0)
    for first, second in ((present, absent), (absent, present)):
        excess = np.maximum(0.0, first - math.exp(epsilon) * second).sum() * (grid[1] - grid[0])
        assert excess <= DELTA * (1.0 + 1e-6)


def test_a_round_that_would_only_charge_the_sampled_would_charge_too_little() -> None:
    """Who sees the sample pays the plain event; the sampled one is cheaper, in every round."""
    rounds = 10
    plain, secret = Central(), Central(client_sampling_rate=0.2)
    seen = accounting.epsilon(
        Repeated(event=terms_of(plain, ZERO_OUT)(a_gaussian()), count=2), DELTA
    )  # drawn in 2 of 10 rounds, on average
    charged = accounting.epsilon(
        Repeated(event=terms_of(secret, ZERO_OUT)(a_gaussian()), count=rounds), DELTA
    )
    wrong = accounting.epsilon(
        Repeated(event=terms_of(secret, ZERO_OUT)(a_gaussian()), count=2), DELTA
    )
    assert wrong < charged < seen


@pytest.mark.parametrize("adjacency", [ZERO_OUT, REPLACE_ONE])
def test_without_sampling_it_is_the_mechanisms_own_event(adjacency: Adjacency) -> None:
    event = terms_of(Central(), adjacency)(a_gaussian())
    assert isinstance(event, GaussianNoise)
    assert event == a_gaussian().privacy(adjacency)


def test_laplace_noise_will_do() -> None:
    mechanism = Laplace(input_domain=ball(), noise_multiplier=3.0)
    event = terms_of(Central(client_sampling_rate=0.5), ZERO_OUT)(mechanism)
    assert isinstance(event, Sampled)
    assert isinstance(event.event, LaplaceNoise)
    assert accounting.epsilon(event, DELTA) < accounting.epsilon(event.event, DELTA)
    assert noise_of(mechanism) == laws.ScalarLaplace(scale=1.5)


@pytest.mark.parametrize(
    "mechanism",
    [
        GaussHermite(input_domain=ball(), levels=2, noise_multiplier=1.0),
        ClampedSign(input_domain=ball(), noise_multiplier=1.0, logit_bound=1.0),
        DiscreteGaussian(input_domain=ball(), noise_multiplier=1.0, bits=8, steps_per_radius=16.0),
        NoPrivacy(input_domain=ball()),
    ],
    ids=lambda mechanism: type(mechanism).__name__,
)
def test_what_is_no_noise_on_a_sum_is_refused_by_name(mechanism: Mechanism) -> None:
    with pytest.raises(PrivacyError, match=r"use mechanism 'gaussian' or 'laplace'"):
        terms_of(Central(), ZERO_OUT)(mechanism)


def test_the_noise_of_a_sum_is_that_of_one_message_times_its_weight() -> None:
    """Sample level: 3 records and 8 have the same noise on the sum of all records."""
    cohort = [(a_gaussian(records), float(records)) for records in (3, 8)]
    noise = noise_of_sum(cohort)
    assert isinstance(noise, laws.ScalarGaussian)
    assert noise.stddev == pytest.approx(1.2 * 0.5, rel=1e-12)
    assert all(noise.stddev >= weight * one.noise_stddev for one, weight in cohort)
    assert noise_of_sum([]) is None


@pytest.mark.parametrize(
    "other",
    [
        (a_gaussian(noise_multiplier=1.3), 1.0),
        (a_gaussian(), 2.0),
        (Laplace(input_domain=ball(), noise_multiplier=1.2), 1.0),
    ],
)
def test_clients_with_different_noises_have_no_sum(other: tuple[Any, float]) -> None:
    with pytest.raises(ParameterError, match="a sum has one noise"):
        Central().check_cohort([(a_gaussian(), 1.0), other])


def test_sampled_clients_bring_all_their_records_so_no_record_is_amplified() -> None:
    with pytest.raises(PrivacyError, match="record_sampling_rate"):
        terms_of(Central(client_sampling_rate=0.5), ZERO_OUT)(a_gaussian(records=5))


def test_sampled_records_are_charged_behind_central_noise_and_never_sampled_twice() -> None:
    event = terms_of(Central(), ZERO_OUT, record_sampling_rate=0.25)(a_gaussian(records=5))
    assert isinstance(event, Sampled)
    assert (event.rate, event.hidden_by) == (0.25, "central-noise")
    both = terms_of(Central(client_sampling_rate=0.5), ZERO_OUT, record_sampling_rate=0.25)
    with pytest.raises(ParameterError, match="cannot be sampled too"):
        both(a_gaussian())


def test_no_plan_of_messages_can_be_charged_for_one_noise() -> None:
    part = ClientPlan(client="a", mechanism=a_gaussian(), weight=1.0)
    with pytest.raises(ParameterError, match="carries no messages"):
        RoundPlan(
            run="r",
            round=1,
            unit=Unit.CLIENT,
            adjacency=ZERO_OUT,
            clients=(part,),
            channel=Central(),
        )


@pytest.mark.parametrize("rate", [0.0, 1.5, float("nan")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ParameterError, match="client_sampling_rate"):
        Central(client_sampling_rate=rate)
