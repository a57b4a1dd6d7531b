"""The formulas of UDP-FL as printed, here and nowhere else, each with where it fails.

Reference: Feng et al., "Universally Harmonizing Differential Privacy Mechanisms for Federated
Learning" (UDP-FL). What is right instead is in privacy/additive_noise.py, privacy/shuffling.py
and mechanisms/noise/.
"""

import itertools
import math

import mpmath
import pytest

from sottovoce.core.adjacency import Adjacency
from sottovoce.mechanisms.noise.laws import (
    ScalarGaussian,
    ScalarLaplace,
    ScalarStaircase,
    nu_for_mean_absolute,
)
from sottovoce.privacy import accounting
from sottovoce.privacy.additive_noise import laplace_renyi, staircase_renyi
from sottovoce.privacy.events import GaussianNoise, Repeated
from sottovoce.privacy.renyi import renyi_divergence

# Section 4.2 and theorems 1 and 2: the staircase.


def printed_density_at_zero(epsilon: float, nu: float, sensitivity: float) -> float:
    return (1.0 - math.exp(-1.0)) / (2.0 * sensitivity * (nu + math.exp(-epsilon) * (1.0 - nu)))


def printed_sign(nu: float) -> int:
    """Equation 12."""
    return 0 if nu < 0.5 else 1


def printed_staircase_renyi(order: float, epsilon: float, nu: float) -> float:
    """Theorem 1 = theorem 2 = table 3."""
    up, down = math.exp((order - 1.0) * epsilon), math.exp(-order * epsilon)
    middle = (up + down) * (1.0 - nu)
    middle += abs(2.0 * nu - 1.0) * math.exp(-printed_sign(nu) * epsilon)
    return 0.5 * up + 0.5 * down + middle * printed_density_at_zero(epsilon, nu, 1.0)


def test_the_printed_density_integrates_to_one_at_epsilon_one_only() -> None:
    """1 - e^-1 stands where 1 - e^-lambda must."""
    for epsilon, right in ((0.1, False), (1.0, True), (3.0, False)):
        nu = nu_for_mean_absolute(epsilon)
        steps = (nu + math.exp(-epsilon) * (1.0 - nu)) / -math.expm1(-epsilon)
        mass = 2.0 * printed_density_at_zero(epsilon, nu, 1.0) * steps
        assert (abs(mass - 1.0) < 1e-12) == right
        assert mass == pytest.approx(-math.expm1(-1.0) / -math.expm1(-epsilon))


def test_theorem_1_claims_too_little_for_orders_near_one() -> None:
    """It is no divergence: the logarithm and 1/(a - 1) are missing."""
    order, epsilon, nu = 1.01, 10.0, 0.5
    exact = staircase_renyi(order, epsilon, nu, 1.0)
    assert exact > 9.99
    assert printed_staircase_renyi(order, epsilon, nu) < 0.1 * exact


def test_the_proof_of_theorem_1_has_no_parameter_for_small_budgets() -> None:
    """lambda = log(gamma - 1)/(alpha - 1) is negative below gamma = 2, and none below 1."""

    def printed_parameter(budget: float, order: float) -> float:
        return float(mpmath.re(mpmath.log(budget - 1.0)) / (order - 1.0))

    for budget, order in ((0.5, 2.0), (1.5, 2.0), (1.9, 32.0)):
        assert printed_parameter(budget, order) < 0.0
        # There is one: D_a is at most epsilon.
        assert staircase_renyi(order, budget, 0.4, 1.0) <= budget


# Table 3.


def test_table_3_s_gaussian_forgets_a_power_of_the_sensitivity() -> None:
    sensitivity, stddev, order = 2.0, 1.0, 8.0
    event = GaussianNoise(mu=sensitivity / stddev, adjacency=Adjacency.ZERO_OUT)
    printed = order * sensitivity / (2.0 * stddev**2)
    assert printed == renyi_divergence(event, order) / 2.0


def test_table_3_s_gaussian_calibration_does_not_know_the_budget() -> None:
    order, delta = 2.0, 1e-5
    stddev = 1.0 / (order * math.sqrt(2.0 * math.log(1.25 / delta)))
    assert order / (2.0 * stddev**2) == pytest.approx(94.0, rel=0.01)  # whatever was asked for


def test_table_3_s_laplace_calibration_spends_four_times_the_budget() -> None:
    order, target = 1.2, 1.0
    scale = (order - 1.0) / target
    assert laplace_renyi(1.0 / scale, 1, order) == pytest.approx(4.23, abs=0.005)


def test_table_3_s_laplace_divergence_without_its_braces_is_another() -> None:
    """The logarithm must hold both terms, as in equation 13."""
    order, shift = 2.0, 0.1
    up = order / (2.0 * order - 1.0) * math.exp((order - 1.0) * shift)
    down = (order - 1.0) / (2.0 * order - 1.0) * math.exp(-order * shift)
    exact = math.log(up + down) / (order - 1.0)
    assert exact == pytest.approx(laplace_renyi(shift, 1, order))
    assert math.log(up) / (order - 1.0) < 0.0 < exact
    assert math.log(up) / (order - 1.0) + down != pytest.approx(exact, rel=0.5)


def test_table_3_s_nu_is_the_root_of_a_negative_number() -> None:
    for order, epsilon in ((2.0, 1.0), (1.5, 1.5), (8.0, 0.5), (32.0, 0.1)):
        radicand = 1.0 + math.expm1(-epsilon) * math.expm1(2.0 * (order - 1.0) * epsilon)
        assert radicand < 0.0


# Theorem 3, lemmas 1, 4 and 5, theorems 8 and 9: amplitudes.


def printed_staircase_distance(
    epsilon: float, nu: float, sensitivity: float, dimension: int, rounds: int
) -> float:
    """Theorem 3."""
    b, d = math.exp(-epsilon), sensitivity
    inner = nu**2 * d**2 + b * d**2 - b * nu**2 * d**2 + d * b
    return dimension * rounds / (1.0 - b) * inner


@pytest.mark.parametrize(
    "noise",
    [
        ScalarGaussian(stddev=1.0),
        ScalarLaplace(scale=1.0),
        ScalarStaircase(step=1.0, epsilon=1.0, nu=nu_for_mean_absolute(1.0)),
    ],
)
def test_theorems_3_8_and_9_add_up_noise_that_cancels(
    noise: ScalarGaussian | ScalarLaplace | ScalarStaircase,
) -> None:
    """After T = 100 rounds the distance is at most sqrt(T Var X) (Jensen), far below E|X| T."""
    at_most, printed = math.sqrt(100 * noise.variance), 100 * noise.mean_absolute
    assert at_most < 0.15 * printed


def test_theorem_8_s_statement_and_proof_differ_by_the_rounds() -> None:
    rounds, m, stddev = 100, 5, 1.0
    stated = math.sqrt(2.0 * m**2 * stddev**2 / math.pi)
    proved = math.sqrt(2.0 * m**2 * stddev**2 * rounds**2 / math.pi)
    exact = m * ScalarGaussian(stddev=math.sqrt(rounds) * stddev).mean_absolute  # sums are Gaussian
    assert stated < 0.11 * exact < exact < 0.11 * proved


def test_lemma_4_is_right() -> None:
    for order, budget, sensitivity in ((2.0, 0.1, 1.0), (8.0, 3.0, 2.0)):
        stddev = math.sqrt(order * sensitivity**2 / (2.0 * budget))
        printed = 2.0 * stddev / math.sqrt(2.0 * math.pi)
        assert ScalarGaussian(stddev=stddev).mean_absolute == pytest.approx(printed)


def test_lemma_5_and_theorem_9_disagree_and_the_latter_s_integral_is_not_its_value() -> None:
    """Delta/b against b; and the integral of |x| 2b e^(-|x|/b) is 4 b^3."""
    sensitivity, b = 1.0, 2.0
    assert sensitivity / b != b == ScalarLaplace(scale=b).mean_absolute
    printed = 2.0 * float(mpmath.quad(lambda x: x * 2.0 * b * mpmath.exp(-x / b), [0, mpmath.inf]))
    assert printed == pytest.approx(4.0 * b**3)


def test_lemma_1_is_right() -> None:
    for epsilon in (0.1, 1.0, 5.0):
        noise = ScalarStaircase(step=3.0, epsilon=epsilon, nu=nu_for_mean_absolute(epsilon))
        assert noise.mean_absolute == pytest.approx(
            3.0 * math.exp(epsilon / 2.0) / math.expm1(epsilon)
        )


def test_theorem_4_takes_the_square_of_the_mean_amplitude_for_the_variance() -> None:
    for epsilon in (0.1, 1.0, 4.0):
        noise = ScalarStaircase(step=1.0, epsilon=epsilon, nu=nu_for_mean_absolute(epsilon))
        printed = math.exp(epsilon) / math.expm1(epsilon) ** 2
        assert printed == pytest.approx(noise.mean_absolute**2)
        assert noise.variance > 1.9 * printed
    noise = ScalarStaircase(step=1.0, epsilon=16.0, nu=nu_for_mean_absolute(16.0))
    assert noise.variance > 990.0 * math.exp(16.0) / math.expm1(16.0) ** 2  # No constant covers it.


def test_theorem_4_s_noisy_descent_never_arrives_however_many_rounds_are_added() -> None:
    """On w^2/2 the expected squared distance stays above rate Var/(2 - rate)."""
    rate, squared_distance = 0.1, 1.0
    noise = ScalarStaircase(step=1.0, epsilon=1.0, nu=nu_for_mean_absolute(1.0))
    for _ in range(10_000):
        squared_distance = (1.0 - rate) ** 2 * squared_distance + rate**2 * noise.variance
    assert squared_distance == pytest.approx(rate * noise.variance / (2.0 - rate))
    assert squared_distance == pytest.approx(0.101, abs=5e-4)


def test_theorem_5_s_bend_is_no_minimizer_and_moves_models_that_are_at_the_minimum() -> None:
    """For the loss w^2/2, one client, w = 1 and a rate of 0.1 (so v = 0.9 and L = 1)."""

    def printed_bend(v: float, w: float) -> float:
        return 1.2 + 1.1 * w - 0.1 * v

    def mean_loss(bend: float, v: float, w: float) -> float:
        def loss(r: mpmath.mpf) -> mpmath.mpf:
            return ((1 - r) ** 2 * v + 2 * r * (1 - r) * bend + r**2 * w) ** 2 / 2

        return float(mpmath.quad(loss, [0, 1]))

    best = -0.75 * (0.9 + 1.0)  # Where the derivative of the mean loss by the bend is zero.
    assert mean_loss(best, 0.9, 1.0) == pytest.approx(0.0756, abs=5e-5)
    assert mean_loss(0.95, 0.9, 1.0) == pytest.approx(0.4517, abs=5e-5)  # A straight line.
    assert mean_loss(printed_bend(0.9, 1.0), 0.9, 1.0) == pytest.approx(0.9565, abs=5e-5)
    w = 0.0
    for _ in range(1000):  # Equation 6 with the moments of U(0, 1), from the minimum on.
        v = 0.9 * w
        w = (v + printed_bend(v, w) + w) / 3.0
    assert w == pytest.approx(40.0 / 3.0)


# Theorems 6 and 7.


def test_theorem_6_is_right() -> None:
    for order, budget, sensitivity in ((1.5, 0.1, 1.0), (8.0, 0.5, 3.0), (64.0, 4.0, 0.1)):
        stddev = math.sqrt(order * sensitivity**2 / (2.0 * budget))
        event = GaussianNoise(mu=sensitivity / stddev, adjacency=Adjacency.ZERO_OUT)
        assert renyi_divergence(event, order) == pytest.approx(budget)


@pytest.mark.parametrize(
    ("order", "budget", "spent"), [(2.0, 0.001, 0.349), (2.0, 0.5, 0.703), (8.0, 0.001, 0.0689)]
)
def test_theorem_7_s_scale_spends_more_than_the_budget(
    order: float, budget: float, spent: float
) -> None:
    """It has + (alpha - 1) where solving equation 13 for the scale gives - (alpha - 1)."""

    def scale(sign: float) -> float:
        inner = (2.0 * order - 1.0) * math.exp(budget * (order - 1.0)) + sign * (order - 1.0)
        return (order - 1.0) / math.log(inner / order)

    assert laplace_renyi(1.0 / scale(1.0), 1, order) == pytest.approx(spent, rel=2e-3)
    assert laplace_renyi(1.0 / scale(-1.0), 1, order) <= budget


# Lemmas 2 and 3: shuffling.


def printed_shuffled_renyi(order: int, epsilon: float, clients: int) -> float:
    excess = math.comb(order, 2) * 4.0 * math.expm1(epsilon) ** 2 / clients
    return math.log1p(excess) / (order - 1.0)


def exact_shuffled_response(order: int, epsilon: float, clients: int) -> float:
    """D_a of the number of ones, all clients by binary randomised response, one of them flipped."""
    with mpmath.workdps(40):
        lie = 1 / (1 + mpmath.exp(epsilon))
        others = [
            mpmath.binomial(clients - 1, k) * lie**k * (1 - lie) ** (clients - 1 - k)
            for k in range(clients)
        ]
        padded = [mpmath.mpf(0), *others, mpmath.mpf(0)]
        counts = list(itertools.pairwise(padded))  # (k - 1 ones, k ones) among the others
        zero = [before * lie + after * (1 - lie) for before, after in counts]
        one = [before * (1 - lie) + after * lie for before, after in counts]
        moments = [
            mpmath.fsum(p**order * q ** (1 - order) for p, q in zip(first, second, strict=True))
            for first, second in ((zero, one), (one, zero))
        ]
        return float(mpmath.log(max(moments)) / (order - 1))


@pytest.mark.parametrize(
    ("clients", "epsilon", "order", "printed", "exact"),
    [(10, 1.0, 8, 0.504, 0.571), (1000, 4.0, 32, 0.279, 3.41)],
)
def test_lemma_2_lies_below_shuffled_randomized_response(
    clients: int, epsilon: float, order: int, printed: float, exact: float
) -> None:
    assert printed_shuffled_renyi(order, epsilon, clients) == pytest.approx(printed, abs=5e-4)
    assert exact_shuffled_response(order, epsilon, clients) == pytest.approx(exact, rel=2e-3)
    assert exact > printed


@pytest.mark.parametrize("clients", [2, 10, 1000])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("order", [2, 8, 32])
def test_lemma_3_holds_for_randomized_response_but_not_for_every_randomizer(
    order: int, epsilon: float, clients: int
) -> None:
    excess = math.comb(order, 2) * math.expm1(epsilon) ** 2 / (clients * math.exp(epsilon))
    printed = math.log1p(excess) / (order - 1.0)
    assert exact_shuffled_response(order, epsilon, clients) >= printed > 0.0  # A constant has 0.


# Algorithms 1 and 3.


def test_algorithm_1_s_merging_ends_for_two_models_only() -> None:
    """It replaces n models by one for each pair, while there is more than one."""
    after = [[n] for n in (2, 3, 4, 10)]
    for counts in after:
        for _ in range(3):
            counts.append(math.comb(counts[-1], 2))
    assert after == [[2, 1, 0, 0], [3, 3, 3, 3], [4, 6, 15, 105], [10, 45, 990, 489_555]]


def test_algorithm_3_s_noise_spends_four_times_the_budget() -> None:
    """It compares the sum of divergences with epsilon, without log(1/delta)/(alpha - 1)."""
    order, rounds, budget = 2.0, 150, 1.0
    stddev = math.sqrt(order * rounds / (2.0 * budget))  # The sum over all rounds is the budget.
    step = GaussianNoise(mu=1.0 / stddev, adjacency=Adjacency.ZERO_OUT)
    event = Repeated(event=step, count=rounds)
    assert renyi_divergence(event, order) == pytest.approx(budget)
    assert accounting.epsilon(event, 1e-5) == pytest.approx(4.377, abs=5e-4)
    assert renyi_divergence(event, 10.0 * order) == pytest.approx(10.0 * budget)  # "for all alpha"
