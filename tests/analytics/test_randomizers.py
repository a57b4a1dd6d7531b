"""What a person's code tells and says: exact epsilon, no bias, bits as stated."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from cases import cases, denser

import sottovoce
from sottovoce.analytics import scalar_randomizer, transforms
from sottovoce.analytics.question import epsilon_of
from sottovoce.analytics.randomizers import CategoryRandomizer
from sottovoce.analytics.scalar_randomizer import MECHANISMS, randomizer_for
from sottovoce.auditing import contract
from sottovoce.auditing.enumeration import audit_by_enumeration, table_rows
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Categories
from sottovoce.core.errors import DomainError, ParameterError, UnknownNameError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.encoding import encode_packed, pack_codes, prepare
from sottovoce.mechanisms.kernels.table import sample_table
from sottovoce.mechanisms.release import release_event
from sottovoce.privacy.events import PureDp
from sottovoce.privacy.pure import pure_epsilon


@pytest.mark.parametrize(
    ("num", "epsilon"),
    [
        pytest.param(num, epsilon, marks=[pytest.mark.slow] if many else [])
        for num in (2, 3, 10, 50, 64, 256)
        for epsilon in denser([0.1, 1.0, 4.0, 9.0])
        for many in [num == 256 and epsilon != 4.0]
    ],
)
def test_a_category_is_hidden_by_epsilon_in_rational_arithmetic(num: int, epsilon: float) -> None:
    """The law of what runs at every category, enumerated, against what is charged."""
    randomizer = CategoryRandomizer(epsilon=epsilon, num_categories=num)
    mechanism, every = randomizer.build(num), np.arange(num)
    laws = [list(row) for row in mechanism.table.rows]
    if num < 256:  # an interpolation of the table, which at a category is no mixture
        exact = table_rows(mechanism, every.astype(np.float64))
        assert exact == [[Fraction(cell, 2**128) for cell in row] for row in laws]
    assert all(sum(row) == 2**128 for row in laws)
    ratio = max(Fraction(max(column), min(column)) for column in zip(*laws, strict=True))
    event = release_event(randomizer.build(1), adjacency=Adjacency.REPLACE_ONE)
    assert randomizer.event == event == PureDp(epsilon=epsilon, adjacency=Adjacency.REPLACE_ONE)
    with mpmath.workdps(60):
        log_ratio = mpmath.log(mpmath.mpf(ratio.numerator) / mpmath.mpf(ratio.denominator))
        assert log_ratio <= epsilon <= pure_epsilon(event)
        assert log_ratio >= epsilon * (1.0 - 1e-12)
    whole = release_event(mechanism, adjacency=Adjacency.ZERO_OUT)
    assert pure_epsilon(whole) >= num * epsilon
    total = math.exp(epsilon) + num - 1
    assert randomizer.kept == pytest.approx(math.exp(epsilon) / total, rel=1e-12)
    assert randomizer.other == pytest.approx(1.0 / total, rel=1e-12)
    assert np.array_equal(mechanism.law(every).table, mechanism.table.channel.rows)


def test_categories_are_sampled_as_the_table_says() -> None:
    randomizer = CategoryRandomizer(epsilon=1.5, num_categories=5)
    people = cases(100_000)
    own = np.full(people, 3)
    codes = randomizer.answer(own, SeededRandomness(2).stream("people"))
    table = randomizer.build(1).table
    shares = np.bincount(codes, minlength=5) / people
    assert shares == pytest.approx(table.channel.rows[3], abs=0.006)
    straight = sample_table(table.knots[own], table, SeededRandomness(2).stream("people"))
    assert np.array_equal(codes, straight)


@pytest.mark.parametrize("num", [2, 5, 50, 256])
def test_categories_keep_what_every_mechanism_keeps(num: int) -> None:
    """The checks of the contract that need no clipping, no ball and no point halfway."""
    mechanism = CategoryRandomizer(epsilon=4.0, num_categories=num).build(101)
    values = np.arange(101.0) % num
    codes = mechanism.encode(values, SeededRandomness(9).stream("people"))
    packed = encode_packed(prepare(mechanism, values), [SeededRandomness(9).stream("people")])
    assert packed.payloads[0].tobytes() == pack_codes(codes, mechanism.code_format())
    assert packed.payloads.size == -(-101 * mechanism.bits // 8)
    assert np.array_equal(mechanism.decode(packed.codes()[0]), mechanism.points[codes])
    contract.nothing_is_changed(mechanism)
    contract.bad_input_is_refused(mechanism)
    assert mechanism.law(values).mean() == pytest.approx(values, abs=1e-9 * num)


def test_categories_are_for_randomized_response_and_not_for_updates() -> None:
    domain = Categories(dimension=2, num_categories=5)
    assert domain.bits == 3
    for values in ([0.0, 2.5], [0.0, 5.0], [-1.0, 0.0], [0.0, math.nan], [math.inf, 0.0]):
        with pytest.raises(DomainError, match=r"expected a category.*from 0 to 4.*use a Box"):
            domain.project(values)
    for one in registry.MECHANISMS.ours().values():
        if one.kind not in ("generalized_rr", "no_privacy"):  # the baseline claims nothing
            with pytest.raises(ParameterError, match="got Categories"):
                one.build(domain, one.examples[0])
    response = registry.find("generalized_rr")
    mechanism = response.build(domain, {"epsilon": 1.0, "bits": 3})
    for broken, match in (({"bits": 2}, "from 3 to 3, got 2"), ({"epsilon": 0.0}, "epsilon")):
        with pytest.raises(ParameterError, match=match):
            response.build(domain, {"epsilon": 1.0, "bits": 3, **broken})
    with pytest.raises(ParameterError, match="num_categories must be an integer from 2 to 256"):
        CategoryRandomizer(epsilon=1.0, num_categories=257)
    with pytest.raises(ParameterError, match=r"categories are not clipped.*release_event"):
        sottovoce.spend(mechanism, delta=1e-9)
    with pytest.raises(ParameterError, match="use a Box"):
        audit_by_enumeration(mechanism, Adjacency.REPLACE_ONE, delta=1e-9)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_is_unbiased_and_keeps_epsilon(mechanism: str) -> None:
    randomizer = randomizer_for(10.0, 30.0, 1.0, None, mechanism)
    assert epsilon_of(randomizer.event) <= 1.0
    assert epsilon_of(randomizer.event) >= 0.9999999
    people = 40_000
    values = np.linspace(10.0, 30.0, people)
    codes = randomizer.answer(values, SeededRandomness(5).stream("people"))
    found = randomizer.contributions(randomizer.tally(codes))
    assert found.people == people
    assert abs(found.mean - 20.0) < 4.5 * math.sqrt(found.squared_error)


def test_the_least_variance_within_the_bits_is_chosen() -> None:
    assert randomizer_for(0.0, 1.0, 1.0, None, "auto").mechanism == "mvu"
    one = randomizer_for(0.0, 1.0, 1.0, 1, "auto")
    assert one.bits == 1
    three = randomizer_for(0.0, 1.0, 1.0, 3, "auto")
    assert three.worst_variance() <= one.worst_variance()
    for other in ("generalized_rr", "bitwise_rr"):
        assert three.worst_variance() <= randomizer_for(0.0, 1.0, 1.0, 3, other).worst_variance()


def test_a_grid_too_coarse_to_be_unbiased_is_refused() -> None:
    with pytest.raises(ParameterError, match="more bits"):
        randomizer_for(0.0, 1.0, 1.0, 4, "discrete_laplace")


def test_odd_parameters_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'mvu'"):
        randomizer_for(0.0, 1.0, 1.0, 3, "mvv")
    with pytest.raises(ParameterError, match="lower must be below upper"):
        randomizer_for(1.0, 1.0, 1.0, 3, "mvu")
    for epsilon in (0.0, -1.0, 100.0, math.nan):
        with pytest.raises(ParameterError, match="epsilon"):
            randomizer_for(0.0, 1.0, epsilon, 3, "mvu")
    with pytest.raises(ParameterError, match="float32"):
        randomizer_for(0.0, 1.0, 1.0, 8, "laplace")
    with pytest.raises(ParameterError, match="bits"):
        randomizer_for(0.0, 1.0, 1.0, 17, "auto")


def test_the_hadamard_transform_is_the_matrix() -> None:
    order = 16
    rows, columns = np.meshgrid(np.arange(order), np.arange(order), indexing="ij")
    matrix = 1.0 - 2.0 * transforms.is_negative(rows, columns)
    assert matrix @ matrix.T == pytest.approx(order * np.eye(order))
    values = np.random.default_rng(0).normal(size=order)
    assert transforms.transform(values) == pytest.approx(matrix @ values)
    assert [transforms.order_for(k) for k in (1, 2, 3, 4, 5, 9)] == [2, 2, 4, 4, 8, 16]


def test_codes_that_hardly_differ_are_noted() -> None:
    few = scalar_randomizer.Contributions.of_counts(np.array([0.0, 1.0]), np.array([990, 10]))
    many = scalar_randomizer.Contributions.of_counts(np.array([0.0, 1.0]), np.array([900, 100]))
    assert few.caveat is not None
    assert many.caveat is None
    assert isinstance(randomizer_for(0.0, 1.0, 2.0, 1, "mvu").event.event, PureDp)  # type: ignore[union-attr]
