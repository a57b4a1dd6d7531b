"""Channels and integer tables: what is claimed is exact, and what breaks it is refused."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from cases import denser
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.core.errors import DesignError
from sottovoce.mechanisms.design import metric, randomized_response, window
from sottovoce.mechanisms.design.channel import (
    TABLE_BITS,
    ChannelMatrix,
    IntegerTable,
    round_metric,
    round_pure,
)

ONE = 1 << TABLE_BITS


def three_bits(epsilon: float) -> ChannelMatrix:
    solution = window._Problem(epsilon, 8, 8)
    design = solution.window(solution.plain_start())
    means = np.linspace(-0.5, 0.5, 8)
    return ChannelMatrix(knots=means + 0.5, rows=design.rows(means), letters=design.letters + 0.5)


def exact_log(ratio: Fraction) -> mpmath.mpf:
    with mpmath.workdps(60):
        return mpmath.log(mpmath.mpf(ratio.numerator) / mpmath.mpf(ratio.denominator))


def responses(epsilon: float, bits: int) -> tuple[ChannelMatrix, ChannelMatrix]:
    by_bit = randomized_response.bitwise(epsilon, bits)
    return by_bit, randomized_response.k_ary(epsilon, 1 << bits)


@given(epsilon=st.floats(0.05, 50.0), bits=st.integers(1, 5))
def test_rounding_keeps_epsilon_exactly(epsilon: float, bits: int) -> None:
    for channel in responses(epsilon, bits):
        table = round_pure(channel, epsilon)
        assert all(sum(row) == ONE and min(row) >= 1 for row in table.rows)
        for column in zip(*table.rows, strict=True):
            assert exact_log(Fraction(max(column), min(column))) <= epsilon
        assert table.bias() <= 1e-12 * table.channel.scale()


@pytest.mark.parametrize("epsilon", [0.05, 0.7, 3.0, 12.0, 50.0])
def test_the_table_states_an_epsilon_that_is_never_below_its_own(epsilon: float) -> None:
    table = round_pure(three_bits(epsilon), epsilon)
    exact = max(exact_log(Fraction(max(c), min(c))) for c in zip(*table.rows, strict=True))
    assert exact <= table.pure_epsilon() <= exact * (1 + 1e-13)


@pytest.mark.parametrize("epsilon", denser([0.3, 2.0, 15.0]))
@pytest.mark.parametrize("letters", [2, 4])
def test_a_metric_table_is_metric_private_at_any_two_inputs(epsilon: float, letters: int) -> None:
    table = round_metric(metric.solve(epsilon, letters, 16), epsilon)
    generator = np.random.default_rng(1)
    x, y = generator.uniform(size=(2, 4000))
    y[:2000] = np.clip(x[:2000] + 1e-3 * generator.normal(size=2000), 0.0, 1.0)
    first, second = table.channel.at(x), table.channel.at(y)
    losses = np.abs(np.log(first / second)).max(axis=1)
    assert (losses <= epsilon * np.abs(x - y) + 1e-12).all()
    # and the claim is not idle: neighbouring inputs come near it
    assert (losses / np.abs(x - y)).max() > 0.9 * epsilon
    assert table.bias() < 1e-12 * table.channel.scale()


def test_metric_epsilon_is_rounded_up() -> None:
    table = round_metric(metric.solve(2.0, 4, 16), 2.0)
    exact = Fraction(0)
    knots = [Fraction(float(k)) for k in table.knots]
    for k in range(len(knots) - 1):
        for p, q in zip(table.rows[k], table.rows[k + 1], strict=True):
            exact = max(exact, Fraction(abs(p - q), min(p, q)) / (knots[k + 1] - knots[k]))
    assert exact <= Fraction(table.metric_epsilon())


def test_rows_that_no_rounding_can_save_are_refused() -> None:
    honest = three_bits(2.0)
    with pytest.raises(DesignError, match="bias the table"):
        round_pure(honest, 1.0)
    with pytest.raises(DesignError, match="per unit of the metric"):
        round_metric(metric.solve(2.0, 4, 16), 1.9)


def test_an_integer_table_needs_full_rows() -> None:
    knots = letters = np.array([0.0, 1.0])
    with pytest.raises(DesignError, match=r"sum to 2\^128"):
        IntegerTable.of(knots, letters, [[ONE - 1, 2], [1, ONE - 1]])
    with pytest.raises(DesignError, match="no cell below 1"):
        IntegerTable.of(knots, letters, [[ONE, 0], [1, ONE - 1]])


def test_the_mean_variance_is_the_integral() -> None:
    channel = three_bits(1.5)
    x = np.linspace(0.0, 1.0, 200_001)
    integral = np.trapezoid(channel.variances(x), x)
    assert channel.mean_variance() == pytest.approx(integral, rel=1e-8)


@pytest.mark.parametrize("epsilon", denser([0.05, 1.0, 50.0]))
@pytest.mark.parametrize("bits", [1, 4, 8])
def test_randomized_response_is_unbiased_and_exactly_private(epsilon: float, bits: int) -> None:
    for channel in responses(epsilon, bits):
        assert channel.bias() < 1e-12
        assert channel.row_error() < 1e-12
        assert channel.pure_epsilon() == pytest.approx(epsilon, rel=1e-9)
