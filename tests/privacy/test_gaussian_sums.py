"""Gaussian noise that dominates secure sums: above all exact sums, close to the central limit."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from cases import cases

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.privacy import gaussian_sums, sum_sigmas
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.divergences import gaussian_delta
from sottovoce.privacy.events import GaussianNoise, OneBit, Repeated, SummedBits, SummedNoise
from sottovoce.privacy.gaussian import gaussian_epsilon
from sottovoce.privacy.gaussian_sums import gaussian_mu_of_sum, rounding_excess
from sottovoce.privacy.renyi import RenyiAccountant, renyi_divergence
from sottovoce.privacy.zcdp import total_rho

FACTORS = np.exp(np.concatenate([[0.0], np.geomspace(1e-4, 3.0, 60)]))


def sums(
    shift: float, clients: int, logit_bound: float, *, zero: bool = False, dimension: int = 10**6
) -> SummedBits:
    return SummedBits(
        shift=shift,
        dimension=dimension,
        logit_bound=logit_bound,
        clients=clients,
        adjacency=Adjacency.ZERO_OUT if zero else Adjacency.REPLACE_ONE,
        against_zero=zero,
    )


def sum_law(logits: list[float]) -> Vector:
    law = np.ones(1)
    for logit in logits:
        chance = 1.0 / (1.0 + math.exp(-logit))
        law = np.convolve(law, [1.0 - chance, chance])
    return law


def exceeds(first: Vector, second: Vector, mu: float) -> bool:
    """Whether some event has more probability than Gaussian noise with this mu allows."""
    for p, q in ((first, second), (second, first)):
        exact = np.maximum(p - FACTORS[:, None] * q, 0.0).sum(axis=1)
        allowed = [gaussian_delta(mu, math.log(factor)) for factor in FACTORS]
        if np.any(exact > np.array(allowed) * (1.0 + 1e-9) + 1e-15):
            return True
    return False


@pytest.mark.parametrize("bound", [0.05, 0.3, 1.0, 3.0])
def test_the_noise_dominates_a_sum_whatever_the_others_send(bound: float) -> None:
    rng = np.random.default_rng(3)
    for _ in range(cases(25)):
        clients = int(rng.integers(1, 30))
        rest = (bound * rng.choice([-1.0, 0.0, 1.0], size=clients - 1)).tolist()
        one, other = (bound * rng.uniform(-1.0, 1.0, size=2)).tolist()
        for z, y, zero in ((one, other, False), (bound, -bound, False), (one, 0.0, True)):
            mu = gaussian_mu_of_sum(sums(max(abs(z - y), 1e-3), clients, bound, zero=zero))
            assert not exceeds(sum_law([z, *rest]), sum_law([y, *rest]), mu)


def test_the_noise_dominates_any_split_of_the_shift_over_coordinates() -> None:
    rng = np.random.default_rng(4)
    for _ in range(cases(40)):
        clients, dimension = int(rng.integers(2, 7)), int(rng.integers(2, 4))
        bound = float(rng.uniform(0.05, 1.5))
        logits = bound * rng.choice([-1.0, 1.0], size=(clients, dimension))
        other = np.clip(logits[0] + rng.normal(size=dimension) * bound / 2.0, -bound, bound)
        joint = []
        for own in (logits[0], other):
            law = np.ones(1)
            for j in range(dimension):
                law = np.outer(law, sum_law([own[j], *logits[1:, j].tolist()])).ravel()
            joint.append(law)
        shift = max(float(np.linalg.norm(logits[0] - other)), 1e-3)
        assert not exceeds(joint[0], joint[1], gaussian_mu_of_sum(sums(shift, clients, bound)))


def test_the_check_finds_noise_that_is_too_small() -> None:
    """The central limit itself does not dominate: nine fair coins move further."""
    first, second = sum_law([0.05, *([0.0] * 8)]), sum_law([-0.05, *([0.0] * 8)])
    mu = gaussian_mu_of_sum(sums(0.1, 9, 0.05))
    assert not exceeds(first, second, mu)
    assert exceeds(first, second, 0.98 * mu)


def worst_mu(clients: int, bound: float, one: float, other: float) -> float:
    """The least mu of Gaussian noise above all sums with others at the bound, by bisection."""
    low, high = 0.0, 2.0 * abs(one - other)
    for _ in range(30):
        middle = (low + high) / 2.0
        others = ([bound] * j + [-bound] * (clients - 1 - j) for j in range(clients))
        too_small = any(
            exceeds(sum_law([one, *rest]), sum_law([other, *rest]), middle) for rest in others
        )
        low, high = (middle, high) if too_small else (low, middle)
    return high


def test_a_single_coordinate_needs_nearly_all_of_that_noise() -> None:
    """So for one coordinate the bound can hardly be improved."""
    clients, bound = 9, 0.1
    mu = gaussian_mu_of_sum(sums(2.0 * bound, clients, bound))
    assert 0.97 * mu <= worst_mu(clients, bound, bound, -bound) <= mu


def profile_given_the_coins(one: float, other: float, clients: int, bound: float) -> Vector:
    """The exact delta of one sum at `FACTORS` if everything but fair coins is revealed."""
    chance, found = 2.0 / (1.0 + math.exp(bound)), np.zeros(len(FACTORS))
    for coins in range(clients):
        weight = math.comb(clients - 1, coins) * chance**coins
        weight *= (1.0 - chance) ** (clients - 1 - coins)
        p, q = (sum_law([z, *([0.0] * coins)]) for z in (one, other))
        found += weight * np.maximum(p - FACTORS[:, None] * q, 0.0).sum(axis=1)
    return found


@pytest.mark.parametrize("clients", [2, 5, 12, 40])
@pytest.mark.parametrize("bound", [0.05, 0.5, 2.0])
def test_it_dominates_what_is_left_when_the_coins_are_known(
    clients: int, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound for many clients, tried with few."""
    monkeypatch.setattr(gaussian_sums, "sum_cells", sum_sigmas.cells_of_coins)
    for share, start in itertools.product((0.02, 0.5, 1.0), (-1.0, -0.3, 0.5)):
        low = start * bound
        high = min(bound, low + 2.0 * share * bound)
        mu = gaussian_sums._mu_of_bits(sums(high - low, clients, bound))
        allowed = np.array([gaussian_delta(mu, math.log(factor)) for factor in FACTORS])
        for z, y in ((low, high), (high, low)):
            exact = profile_given_the_coins(z, y, clients, bound)
            assert np.all(exact <= allowed * (1.0 + 1e-9) + 1e-15)


@pytest.mark.parametrize(
    ("clients", "bound", "loss"),
    [
        (5, 0.05, 1.0585),
        (20, 0.05, 1.0190),
        (100, 0.05, 1.0080),
        (100, 0.005, 1.0035),
        (1000, 0.05, 1.0068),
        (10**4, 0.05, 1.0151),
        (10**6, 0.01, 1.0070),
        (2**31, 0.05, 1.0161),
    ],
)
def test_small_logits_come_close_to_the_central_limit(
    clients: int, bound: float, loss: float
) -> None:
    """Measured values, which must not grow."""
    mu = gaussian_mu_of_sum(sums(1.0, clients, bound, zero=True))
    assert 1.0 <= mu * 2.0 * math.sqrt(clients) <= loss


def test_a_single_message_is_dominated_as_one_bit() -> None:
    alone = gaussian_mu_of_sum(sums(2.0, 1, 0.5))
    assert alone == pytest.approx(2.0 * math.sqrt(2.0 * math.pi) / 4.0)
    for clients, bound in ((2, 0.5), (10**6, 29.0), (10**6, 1e12), (2**31, 30.0)):
        assert gaussian_mu_of_sum(sums(2.0, clients, bound)) <= alone


def test_more_clients_and_smaller_logits_never_cost_more() -> None:
    """Up to the spacing of the grid."""
    for one, other in itertools.pairwise((1, 2, 3, 7, 20, 100, 900, 10**5)):
        for bound in (0.05, 1.0, 3.0):
            few, many = (gaussian_mu_of_sum(sums(0.1, clients, bound)) for clients in (one, other))
            assert many <= few * (1.0 + 2e-3)
    for small, large in itertools.pairwise((1e-9, 0.01, 0.1, 0.5, 2.0, 8.0, 40.0)):
        low, high = (gaussian_mu_of_sum(sums(0.1, 50, bound)) for bound in (small, large))
        assert low <= high * (1.0 + 1e-6)


def test_extreme_events_keep_a_finite_positive_mu() -> None:
    for shift, bound in ((1e-200, 1.0), (1e12, 5.0), (1.0, 1e-300), (1.0, 1e12), (1e-90, 1.0)):
        for clients in (1, 2, 10**5):
            assert 0.0 < gaussian_mu_of_sum(sums(shift, clients, bound)) < math.inf


def test_gaussian_noise_is_above_a_normal_likelihood_ratio_of_the_same_slope() -> None:
    """Step 2 of the proof, in 40 digits: E (Y - A)_+ >= E (1 + m G - A)_+ for A >= 1."""
    with mpmath.workdps(40):
        for mu in (0.01, 0.3, 1.0, 3.0):
            m = mpmath.sqrt(2 * mpmath.pi) * mpmath.erf(mu / mpmath.sqrt(8))
            for factor in [1.0, *(1.0 + np.geomspace(1e-5, 200.0, 40)).tolist()]:
                a, log = mpmath.mpf(factor), mpmath.log(factor)
                noise = mpmath.ncdf(mu / 2 - log / mu) - a * mpmath.ncdf(-mu / 2 - log / mu)
                x = (a - 1) / m
                normal = m * (mpmath.npdf(x) - x * mpmath.ncdf(-x))
                assert noise >= normal * (1 - mpmath.mpf(10) ** -25)


def test_rounds_and_other_noise_are_composed_as_gaussian_noise() -> None:
    event = sums(5.0, 100, 0.05, zero=True)
    mu = gaussian_mu_of_sum(event)
    spent = privacy_spent(Repeated(event=event, count=30), 1e-5)
    assert spent.accountant == "gaussian"
    assert spent.epsilon == pytest.approx(gaussian_epsilon(mu * math.sqrt(30.0), 1e-5))
    noise = GaussianNoise(mu=mu, adjacency=Adjacency.ZERO_OUT)
    assert renyi_divergence(event, 40.0) <= renyi_divergence(noise, 40.0)
    assert total_rho(event) <= mu * mu / 2.0


def test_epsilon_is_within_two_percent_of_gaussian_noise_where_renyi_needs_ten() -> None:
    """The table of the design: 100 honest clients, noise multiplier .40 and .373."""
    for multiplier, before, after in ((0.40, 1.0277, 0.9344), (0.373, 1.1096, 1.0089)):
        event = sums(2.0 / multiplier, 100, 0.05, zero=True)
        epsilon = privacy_spent(event, 1e-5).epsilon
        assert epsilon == pytest.approx(after, abs=1e-3)
        assert gaussian_epsilon(0.1 / multiplier, 1e-5) <= epsilon
        assert RenyiAccountant().epsilon(event, 1e-5) <= before
        assert privacy_spent(event.local(), 1e-5).epsilon > 10.0


def test_a_bound_on_messages_that_are_seen_is_never_exceeded() -> None:
    event = sums(1.0, 3, 25.0)
    visible = OneBit(shift=1.0, dimension=10**6, adjacency=Adjacency.REPLACE_ONE)
    assert privacy_spent(event, 1e-5).epsilon <= privacy_spent(visible, 1e-5).epsilon


# -- sums of rounded noise -------------------------------------------------------------------------


def noise_sum(mu: float, clients: int, excess: float) -> SummedNoise:
    return SummedNoise(mu=mu, clients=clients, excess=excess, adjacency=Adjacency.REPLACE_ONE)


def rounded_law(mean: float, stddev: float) -> Vector:
    """The law of round(mean + stddev G) on -80 ... 80, in 30 digits."""
    with mpmath.workdps(30):
        edges = [mpmath.ncdf((k - 0.5 - mean) / stddev) for k in range(-80, 82)]
        return np.array([float(high - low) for low, high in itertools.pairwise(edges)])


@pytest.mark.parametrize("stddev", [0.5, 0.7, 1.0, 2.0])
@pytest.mark.parametrize("clients", [2, 3, pytest.param(6, marks=pytest.mark.slow)])
def test_gaussian_noise_dominates_sums_of_rounded_noise(stddev: float, clients: int) -> None:
    """Whatever the means of the others, and also where rounding shows."""
    rng = np.random.default_rng(5)
    for _ in range(3):
        one, other, *rest = rng.uniform(-1.0, 1.0, size=clients + 1).tolist()
        laws = []
        for own in (one, other):
            law = rounded_law(own, stddev)
            for mean in rest:
                law = np.convolve(law, rounded_law(mean, stddev))
            laws.append(law)
        excess = rounding_excess(stddev, clients, dimension=1)
        mu = gaussian_mu_of_sum(noise_sum(abs(one - other) / stddev, clients, excess))
        assert not exceeds(laws[0], laws[1], mu * (1.0 + 1e-9))
        if stddev >= 2.0:
            limit = abs(one - other) / stddev / math.sqrt(clients)
            assert limit <= mu <= limit * (1.0 + 1e-6)


def test_the_excess_is_paid_for_in_full() -> None:
    """In 40 digits: e^(2 tau) E (Y - A e^(-2 tau))_+ <= E (Y' - A)_+ for all A >= 1."""

    def delta(mu: float, factor: mpmath.mpf) -> mpmath.mpf:
        log = mpmath.log(factor)
        return mpmath.ncdf(mu / 2 - log / mu) - factor * mpmath.ncdf(-mu / 2 - log / mu)

    with mpmath.workdps(40):
        for mu, tau in itertools.product((1e-3, 0.1, 0.9, 3.0, 12.0), (0.0, 1e-12, 1e-6, 1e-2)):
            raised = gaussian_mu_of_sum(noise_sum(2.0 * mu, 4, tau))
            assert mu <= raised <= 2.0 * mu
            if raised == 2.0 * mu:  # nothing better is proved
                continue
            for factor in [1.0, *(1.0 + np.geomspace(1e-6, 1e4, 50)).tolist()]:
                a, scale = mpmath.mpf(factor), mpmath.exp(2 * mpmath.mpf(tau))
                assert scale * delta(mu, a / scale) <= delta(raised, a)


def test_noise_is_divided_by_the_honest_clients_and_its_messages_stay_known() -> None:
    event = noise_sum(2.0, 100, 1e-30)
    assert gaussian_mu_of_sum(event) == pytest.approx(0.2, rel=1e-6)
    assert event.local() == GaussianNoise(mu=2.0, adjacency=Adjacency.REPLACE_ONE)
    spent = privacy_spent(Repeated(event=event, count=4), 1e-5)
    assert spent.epsilon == pytest.approx(gaussian_epsilon(0.4, 1e-5), rel=1e-5)
    assert "sums over at least 100 clients" in str(spent.assumes)
    assert gaussian_mu_of_sum(noise_sum(2.0, 1, 0.0)) == 2.0
    assert gaussian_mu_of_sum(noise_sum(2.0, 100, 50.0)) == 2.0


@pytest.mark.parametrize("excess", [-1e-9, math.nan, math.inf])
def test_an_excess_that_is_no_bound_is_refused(excess: float) -> None:
    with pytest.raises(ParameterError, match="excess"):
        noise_sum(1.0, 2, excess)
