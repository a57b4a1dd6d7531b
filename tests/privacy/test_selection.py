"""Choosing the best of a random number of trials: bounds against exact enumeration."""

import itertools
import math

import pytest

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import ParameterError
from sottovoce.privacy import RenyiAccountant
from sottovoce.privacy.divergences import finite_renyi
from sottovoce.privacy.events import FinitePair, GaussianNoise, NonPrivate, RenyiCurve, Repeated
from sottovoce.privacy.selection import (
    NegativeBinomialTrials,
    PoissonTrials,
    TrialLaw,
    draw_trials,
    selected_curve,
)

ADJACENCY = Adjacency.ZERO_OUT
LAWS: list[TrialLaw] = [
    NegativeBinomialTrials.with_mean(mean, eta=eta)
    for mean in (1.5, 10.0)
    for eta in (-0.5, 0.0, 1.0, 3.0)
]
LAWS += [PoissonTrials(mean=mean) for mean in (1.01, 3.0, 20.0)]
# Outcomes in the order of their scores, the worst first.
PAIRS = [
    ((0.5, 0.5), (0.6, 0.4)),
    ((0.99, 0.01), (0.97, 0.03)),
    ((0.2, 0.3, 0.5), (0.5, 0.3, 0.2)),
    ((0.9, 0.09, 0.01), (0.89, 0.1, 0.01)),
    ((0.1, 0.2, 0.3, 0.4), (0.1, 0.2, 0.31, 0.39)),
    ((0.5, 0.5), (0.5, 0.5)),
]


def _selected(pmf: tuple[float, ...], law: TrialLaw) -> list[float]:
    """Return the law of the best of K draws by summing over K, and last no trial."""
    probabilities, reached = [], 0.0
    for number, probability in enumerate(law.probabilities()):
        probabilities.append(probability)
        reached += probability
        if number > law.mean and probability < 1e-19:
            break
    assert reached == pytest.approx(1.0, abs=1e-12)
    below = [0.0, *itertools.accumulate(pmf)]
    below[-1] = 1.0
    return [
        math.fsum(p * (high**k - low**k) for k, p in enumerate(probabilities) if k)
        for low, high in itertools.pairwise(below)
    ] + [probabilities[0]]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.describe())
def test_the_curve_is_never_below_the_exact_divergence(law: TrialLaw) -> None:
    for first, second in PAIRS:
        curve = selected_curve([FinitePair(first=first, second=second, adjacency=ADJACENCY)], law)
        chosen = [_selected(pmf, law) for pmf in (first, second)]
        norms = [math.fsum(pmf) for pmf in chosen]
        p, q = ([x / norm for x in pmf] for pmf, norm in zip(chosen, norms, strict=True))
        for order, bound in list(zip(curve.orders, curve.divergences, strict=True))[::5]:
            exact = max(finite_renyi(p, q, order), finite_renyi(q, p, order))
            assert exact <= bound + 1e-11, (first, second, order)


def test_the_bound_is_the_formula_of_the_paper() -> None:
    base = Repeated(event=GaussianNoise(mu=0.1, adjacency=ADJACENCY), count=10)
    law = NegativeBinomialTrials(gamma=0.1)
    curve = selected_curve([base], law)
    rho = 0.05

    def paper(order: float) -> float:
        # The best b minimizes (1 - 1/b) rho b + log(10)/b.
        b = math.sqrt(math.log(10.0) / rho)
        return order * rho + 2 * ((b - 1) * rho + math.log(10) / b) + math.log(10) / (order - 1)

    for order, bound in zip(curve.orders, curve.divergences, strict=True):
        assert paper(order) <= bound <= paper(order) * 1.01


def test_more_trials_cost_more_and_selection_costs_more_than_one_trial() -> None:
    base = GaussianNoise(mu=0.5, adjacency=ADJACENCY)
    epsilon = RenyiAccountant().epsilon
    for laws in (
        [NegativeBinomialTrials.with_mean(mean) for mean in (1.1, 2.0, 10.0, 100.0)],
        [NegativeBinomialTrials.with_mean(10.0, eta=eta) for eta in (-0.5, 0.0, 1.0, 2.0)],
        [PoissonTrials(mean=mean) for mean in (1.1, 2.0, 10.0, 100.0)],
    ):
        costs = [epsilon(selected_curve([base], law), 1e-5) for law in laws]
        assert costs == sorted(costs)
        assert epsilon(base, 1e-5) < costs[0]


def test_a_trial_costs_the_most_that_any_of_the_grid_costs() -> None:
    small, large = (GaussianNoise(mu=mu, adjacency=ADJACENCY) for mu in (0.1, 0.5))
    law = PoissonTrials(mean=5.0)
    assert selected_curve([small, large, small], law) == selected_curve([large], law)


def test_without_privacy_nothing_is_bounded() -> None:
    for law in LAWS:
        curve = selected_curve([NonPrivate(adjacency=ADJACENCY)], law)
        assert isinstance(curve, RenyiCurve)
        assert set(curve.divergences) == {math.inf}


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.describe())
def test_draws_have_the_stated_law(law: TrialLaw) -> None:
    uniforms = [(i + 0.5) / 20_000 for i in range(20_000)]
    drawn = [draw_trials(law, uniform) for uniform in uniforms]
    assert sum(drawn) / len(drawn) == pytest.approx(law.mean, rel=0.01)
    first = list(itertools.islice(law.probabilities(), 2))
    assert drawn.count(0) / len(drawn) == pytest.approx(first[0], abs=1e-3)
    assert drawn.count(1) / len(drawn) == pytest.approx(first[1], abs=1e-3)


def test_impossible_laws_are_refused() -> None:
    for make in (
        lambda: PoissonTrials(mean=0.5),
        lambda: NegativeBinomialTrials.with_mean(1.0),
        lambda: NegativeBinomialTrials.with_mean(5.0, eta=-1.0),
        lambda: NegativeBinomialTrials.with_mean(9000.0, eta=-0.99),
        lambda: NegativeBinomialTrials(gamma=1.0),
        lambda: PoissonTrials(mean=math.nan),
        lambda: selected_curve([], PoissonTrials(mean=2.0)),
    ):
        with pytest.raises(ParameterError):
            make()
