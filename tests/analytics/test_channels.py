"""What a person's code tells and says: exact epsilon, no bias, bits as stated."""

import math
from fractions import Fraction

import numpy as np
import pytest
from cases import cases, denser

from sottovoce.analytics import scalar_channel, transforms
from sottovoce.analytics.category_channel import CategoryChannel
from sottovoce.analytics.question import epsilon_of
from sottovoce.analytics.scalar_channel import MECHANISMS, channel_for
from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.privacy.events import PureDp


@pytest.mark.parametrize(
    ("levels", "epsilon"),
    [
        pytest.param(levels, epsilon, marks=[pytest.mark.slow] if many else [])
        for levels in (2, 3, 10, 64, 256)
        for epsilon in denser([0.1, 1.0, 4.0, 9.0])
        for many in [levels == 256 and epsilon != 4.0]
    ],
)
def test_a_category_is_hidden_by_epsilon_in_rational_arithmetic(
    levels: int, epsilon: float
) -> None:
    channel = CategoryChannel(epsilon=epsilon, levels=levels)
    rows = channel.table.rows
    assert all(sum(row) == 2**128 for row in rows)
    ratio = max(Fraction(max(column), min(column)) for column in zip(*rows, strict=True))
    assert ratio <= Fraction(math.exp(epsilon))
    assert channel.event.epsilon == epsilon
    total = math.exp(epsilon) + levels - 1
    assert channel.kept == pytest.approx(math.exp(epsilon) / total, rel=1e-12)
    assert channel.other == pytest.approx(1.0 / total, rel=1e-12)


def test_categories_are_sampled_as_the_table_says() -> None:
    channel = CategoryChannel(epsilon=1.5, levels=5)
    people = cases(100_000)
    own = np.full(people, 3)
    codes = channel.answer(own, SeededRandomness(2).stream("people"))
    shares = np.bincount(codes, minlength=5) / people
    assert shares == pytest.approx(channel.table.channel.rows[3], abs=0.006)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_is_unbiased_and_keeps_epsilon(mechanism: str) -> None:
    channel = channel_for(10.0, 30.0, 1.0, None, mechanism)
    assert epsilon_of(channel.event) <= 1.0
    assert epsilon_of(channel.event) >= 0.9999999
    people = 40_000
    values = np.linspace(10.0, 30.0, people)
    codes = channel.answer(values, SeededRandomness(5).stream("people"))
    found = channel.contributions(channel.tally(codes))
    assert found.people == people
    assert abs(found.mean - 20.0) < 4.5 * math.sqrt(found.squared_error)


def test_the_least_variance_within_the_bits_is_chosen() -> None:
    assert channel_for(0.0, 1.0, 1.0, None, "auto").mechanism == "mvu"
    one = channel_for(0.0, 1.0, 1.0, 1, "auto")
    assert one.bits == 1
    three = channel_for(0.0, 1.0, 1.0, 3, "auto")
    assert three.worst_variance() <= one.worst_variance()
    for other in ("generalized_rr", "bitwise_rr"):
        assert three.worst_variance() <= channel_for(0.0, 1.0, 1.0, 3, other).worst_variance()


def test_a_grid_too_coarse_to_be_unbiased_is_refused() -> None:
    with pytest.raises(ParameterError, match="more bits"):
        channel_for(0.0, 1.0, 1.0, 4, "discrete_laplace")


def test_odd_parameters_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'mvu'"):
        channel_for(0.0, 1.0, 1.0, 3, "mvv")
    with pytest.raises(ParameterError, match="lower must be below upper"):
        channel_for(1.0, 1.0, 1.0, 3, "mvu")
    for epsilon in (0.0, -1.0, 100.0, math.nan):
        with pytest.raises(ParameterError, match="epsilon"):
            channel_for(0.0, 1.0, epsilon, 3, "mvu")
    with pytest.raises(ParameterError, match="float32"):
        channel_for(0.0, 1.0, 1.0, 8, "laplace")
    with pytest.raises(ParameterError, match="bits"):
        channel_for(0.0, 1.0, 1.0, 17, "auto")


def test_the_hadamard_transform_is_the_matrix() -> None:
    order = 16
    rows, columns = np.meshgrid(np.arange(order), np.arange(order), indexing="ij")
    matrix = 1.0 - 2.0 * transforms.is_negative(rows, columns)
    assert matrix @ matrix.T == pytest.approx(order * np.eye(order))
    values = np.random.default_rng(0).normal(size=order)
    assert transforms.transform(values) == pytest.approx(matrix @ values)
    assert [transforms.order_for(k) for k in (1, 2, 3, 4, 5, 9)] == [2, 2, 4, 4, 8, 16]


def test_codes_that_hardly_differ_are_noted() -> None:
    few = scalar_channel.Contributions.of_counts(np.array([0.0, 1.0]), np.array([990, 10]))
    many = scalar_channel.Contributions.of_counts(np.array([0.0, 1.0]), np.array([900, 100]))
    assert few.caveat is not None
    assert many.caveat is None
    assert isinstance(channel_for(0.0, 1.0, 2.0, 1, "mvu").event.event, PureDp)  # type: ignore[union-attr]
