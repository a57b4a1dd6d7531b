"""The last bits count: bounds must not fall below the truth by rounding, each once a bug."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from cases import denser
from exact_gaussians import exact_gaussian_delta
from exact_responses import exact_response_delta
from some_events import pure, randomised_response

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import ROUNDING_HEADROOM, L1Ball
from sottovoce.core.errors import DomainError, LedgerError, ParameterError
from sottovoce.mechanisms.design.families import certified_fisher_bound
from sottovoce.privacy import accounting
from sottovoce.privacy.divergences import finite_renyi, gaussian_delta
from sottovoce.privacy.event_json import from_json, to_json
from sottovoce.privacy.events import GaussianNoise, PrivacyEvent, RenyiCurve, Repeated
from sottovoce.privacy.gaussian import GaussianAccountant
from sottovoce.privacy.renyi import RenyiAccountant

ZERO_OUT = Adjacency.ZERO_OUT
ACCOUNTANT = RenyiAccountant()


# -- privacy/test_renyi.py ---------------------------------------------------------------------


@pytest.mark.parametrize("epsilon_each", [1e-10, 1e-9, 3e-9, 1e-8, 1e-7])
@pytest.mark.parametrize("count", [2**50, 2**53])
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_very_many_very_small_responses_cost_no_less_than_their_gaussian_limit(
    epsilon_each: float, count: int, delta: float
) -> None:
    # By the central limit theorem they are mu-GDP with mu = eps sqrt(count), up to 1/sqrt(count).
    limit = GaussianNoise(mu=epsilon_each * math.sqrt(count), adjacency=ZERO_OUT)
    exact = GaussianAccountant().epsilon(limit, delta)
    for event in (pure(epsilon_each), randomised_response(epsilon_each)):
        assert ACCOUNTANT.epsilon(Repeated(event=event, count=count), delta) >= exact * (1 - 1e-6)


@pytest.mark.parametrize("epsilon_each", denser([0.01, 0.1, 1.0, 3.0]))
@pytest.mark.parametrize("count", [1, 2, 10, 100])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-10])
def test_epsilon_is_never_below_exact_binomial_enumeration_by_a_single_bit(
    epsilon_each: float, count: int, delta: float
) -> None:
    for event in (pure(epsilon_each), randomised_response(epsilon_each)):
        epsilon = ACCOUNTANT.epsilon(Repeated(event=event, count=count), delta)
        assert exact_response_delta(epsilon_each, count, epsilon) <= delta


@pytest.mark.parametrize(
    ("epsilon_each", "count"), [(3.8812949400666, 20), (14.83187285537433, 5), (0.5, 1)]
)
@pytest.mark.parametrize("shortfall", [1e-12, 1e-10, 1e-8, 1e-4])
def test_delta_is_never_below_exact_binomial_enumeration_just_under_the_pure_epsilon(
    epsilon_each: float, count: int, shortfall: float
) -> None:
    epsilon = count * epsilon_each * (1 - shortfall)
    delta = ACCOUNTANT.delta(Repeated(event=pure(epsilon_each), count=count), epsilon)
    assert delta >= exact_response_delta(epsilon_each, count, epsilon)


# -- privacy/test_divergences.py, test_gaussian.py ---------------------------------------------


@pytest.mark.parametrize("mu", denser(np.geomspace(1e-3, 50.0, 30).tolist()))
def test_gaussian_delta_is_never_below_mpmath(mu: float) -> None:
    for epsilon in [0.0, *np.geomspace(1e-6, 100.0, 120)]:
        # Above 1e-290 the difference is at least 1e-7 of either term.
        exact = exact_gaussian_delta(float(mu), float(epsilon), digits=40)
        if exact > 1e-290:
            assert gaussian_delta(float(mu), float(epsilon)) >= exact


@pytest.mark.parametrize("mu", np.geomspace(1e-8, 100.0, 60))
def test_gaussian_epsilon_is_never_below_the_exact_one_however_small_mu_and_delta(
    mu: float,
) -> None:
    event = GaussianNoise(mu=float(mu), adjacency=ZERO_OUT)
    for delta in (1e-300, 1e-100, 1e-30, 1e-15, 1e-12, 1e-9, 1e-5, 0.3):
        epsilon = GaussianAccountant().epsilon(event, delta)
        assert exact_gaussian_delta(float(mu), epsilon, digits=120) <= delta, delta


@pytest.mark.parametrize("mu", [1e-160, 1e-200, 1e-300])
def test_a_mu_whose_square_underflows_has_an_epsilon(mu: float) -> None:
    assert accounting.epsilon(GaussianNoise(mu=mu, adjacency=ZERO_OUT), 1e-5) == 0.0


@pytest.mark.parametrize("delta", [math.nan, 0.0, -1.0])
def test_the_gaussian_accountant_gives_no_finite_epsilon_for_a_delta_that_is_none(
    delta: float,
) -> None:
    with pytest.raises(ParameterError):
        GaussianAccountant().epsilon(GaussianNoise(mu=1.0, adjacency=ZERO_OUT), delta)


def test_an_astronomical_count_gives_infinity_not_an_error() -> None:
    event: PrivacyEvent = GaussianNoise(mu=1.0, adjacency=ZERO_OUT)
    for _ in range(25):
        event = Repeated(event=event, count=2**53)
    assert accounting.epsilon(event, 1e-5) == math.inf


# -- privacy/test_events.py --------------------------------------------------------------------


@pytest.mark.parametrize("orders", [(math.nan,), (2.0, math.nan), (math.nan, 2.0)])
def test_a_curve_with_an_order_that_is_not_a_number_is_refused(orders: tuple[float, ...]) -> None:
    with pytest.raises(ParameterError):
        RenyiCurve(orders=orders, divergences=(0.0,) * len(orders), adjacency=ZERO_OUT)


ONE = '{"shape":"NonPrivate","adjacency":"zero-out"}'


@pytest.mark.parametrize(
    "text",
    [
        '{"shape":"Repeated","event":5,"count":2}',
        '{"shape":"Composed","events":[1,2]}',
        '{"shape":"Composed","events":"ab"}',
        '{{"shape":"Composed","events":[{},{}]}}'.format(
            ONE, ONE.replace("zero-out", "replace-one")
        ),
        "[" * 100_000,
        '{"shape":"GaussianNoise","mu":1%s,"adjacency":"zero-out"}' % ("0" * 400),
        '{"shape":"RenyiCurve","orders":[NaN],"divergences":[0],"adjacency":"zero-out"}',
    ],
    ids=lambda text: text[:50],
)
def test_text_that_is_no_event_is_a_ledger_error(text: str) -> None:
    with pytest.raises(LedgerError, match="not a privacy event"):
        from_json(text)


def test_a_numpy_count_survives_json() -> None:
    event = Repeated(event=pure(1.0), count=np.int64(3))  # type: ignore[arg-type]
    assert from_json(to_json(event)) == event


# -- test_parameters.py ------------------------------------------------------------------------


def test_an_integer_beyond_float64_is_refused() -> None:
    for rule in (
        parameter_rules.epsilon,
        parameter_rules.delta,
        lambda v: parameter_rules.finite("x", v),
    ):
        with pytest.raises(ParameterError):
            rule(10**400)


# -- test_domains.py ---------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e15, 1e16, 1e17, 1e300, 1.7e308])
def test_a_huge_vector_projects_onto_the_cross_polytope(scale: float) -> None:
    ball = L1Ball(dimension=4, radius=2.0)
    projected = ball.check(ball.project([scale, -scale, 0.0, scale / 2]))
    np.testing.assert_allclose(projected, [1.0, -1.0, 0.0, 0.0], rtol=2 * ROUNDING_HEADROOM)


def test_an_l1_norm_that_overflows_is_a_domain_error() -> None:
    with pytest.raises(DomainError, match="norm inf exceeds"):
        L1Ball(dimension=4, radius=1.0).check([1.7e308] * 4)


@pytest.mark.parametrize("values", [["a", "b"], [[1.0], [1.0, 2.0]], [1.0, None]])
def test_values_that_are_no_numbers_are_a_domain_error(values: Any) -> None:
    with pytest.raises(DomainError):
        L1Ball(dimension=2, radius=1.0).check(values)


# -- design/test_hermite.py --------------------------------------------------------------------


@pytest.mark.parametrize("extreme", [1e-10, 1e-30])
def test_a_narrow_design_whose_information_peaks_far_from_zero_is_caught(extreme: float) -> None:
    points = np.array([-0.6, 0.0, 0.6])
    weights = np.array([extreme, 1.0 - 2.0 * extreme, extreme])
    assert 0.09 <= certified_fisher_bound(points, weights) <= 0.09 * 1.0001


def test_a_renyi_divergence_of_large_logarithms_that_nearly_cancel_is_not_rounded_down() -> None:
    """log q = -200 and a log(p/q) = 200 add up to less than 1, whose own rounding is smaller."""
    for order, mass, loss in (
        (1.00390625, 0.7612784568975384, 193.699893100339),
        (1.0078125, 0.3438396803905328, 286.92700903558773),
        (1.001953125, 0.7958918085061473, 282.0470065353546),
    ):
        low = mass * math.exp(-loss)
        first, second = (mass, 1.0 - mass - low, low), (low, 1.0 - mass - low, mass)
        with mpmath.workdps(60):
            pairs = [(mpmath.mpf(p), mpmath.mpf(q)) for p, q in zip(first, second, strict=True)]
            total = mpmath.fsum(p**order * q ** (1 - mpmath.mpf(order)) for p, q in pairs)
            exact = mpmath.log(total) / (mpmath.mpf(order) - 1)
        assert finite_renyi(first, second, order) >= exact
