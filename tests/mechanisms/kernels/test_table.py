"""The table sampler in numpy: exactly the declared law, for every number and every position."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import Planted, PlantedNumber, uniform_number
from scipy import stats

from sottovoce.core.errors import DomainError
from sottovoce.core.randomness import Keystream, SeededRandomness
from sottovoce.mechanisms.design import randomized_response
from sottovoce.mechanisms.design.channel import IntegerTable, round_pure
from sottovoce.mechanisms.kernels.reference import table as kernel
from sottovoce.mechanisms.kernels.reference.table import exact_code, sample_table


def a_table(epsilon: float = 2.0, bits: int = 3) -> IntegerTable:
    return round_pure(randomized_response.k_ary(epsilon, 1 << bits), epsilon)


def limits(table: IntegerTable, position: float) -> list[Fraction]:
    """The exact cumulative law at a position."""
    k = int(np.clip(np.searchsorted(table.knots, position, "right") - 1, 0, len(table.knots) - 2))
    u, v = (Fraction(float(x)) for x in table.knots[k : k + 2])
    t = (Fraction(position) - u) / (v - u)
    rows = zip(table.cumulative[k], table.cumulative[k + 1], strict=True)
    return [((1 - t) * a + t * b) / (1 << 128) for a, b in rows]


def stream() -> Keystream:
    return SeededRandomness(5).stream("table")


def expected_code(table: IntegerTable, position: float, number: int, bits: int) -> int:
    """The code of number / 2^bits, and the assurance that its last bit was not needed."""
    inner = limits(table, position)[:-1]
    low, high = Fraction(number, 1 << bits), Fraction(number + 1, 1 << bits)
    assert not any(low < limit < high for limit in inner)
    return sum(limit <= low for limit in inner)


@given(position=st.floats(0.0, 1.0), word=st.integers(0, 2**16 - 1), bits=st.integers(1, 4))
@settings(max_examples=300)
def test_where_a_draw_is_sure_every_number_in_its_cell_has_that_code(
    position: float, word: int, bits: int
) -> None:
    table = a_table(bits=bits)
    low = np.array([word * 2.0**-16])
    codes, undecided = kernel._float_codes(
        np.array([position]), table.knots, table.thresholds, low, low + 2.0**-16
    )
    if not undecided[0]:
        inner = limits(table, position)[:-1]
        assert codes[0] == sum(limit <= Fraction(word, 2**16) for limit in inner)
        assert codes[0] == sum(limit < Fraction(word + 1, 2**16) for limit in inner)


@given(position=st.floats(0.0, 1.0), number=st.integers(0, 2**80 - 1), bits=st.integers(1, 4))
@settings(max_examples=300)
def test_any_number_has_the_code_of_exact_arithmetic(
    position: float, number: int, bits: int
) -> None:
    table, keystream = a_table(bits=bits), Planted([number])
    (code,) = sample_table(
        np.array([position]), table.knots, table.thresholds, table.cumulative, Planted([number])
    )
    assert code == expected_code(table, position, *uniform_number(keystream, 16, 0))


@given(
    position=st.floats(0.0, 1.0),
    column=st.integers(0, 6),
    nudge=st.sampled_from([0, *(s * 2**k for s in (1, -1) for k in (0, 1, 20, 30, 33, 50, 64))]),
)
@settings(max_examples=300)
def test_numbers_at_a_threshold_are_decided_exactly(
    position: float, column: int, nudge: int
) -> None:
    table = a_table()
    limit = limits(table, position)[column]
    number = min(max(int(limit * 2**80) + nudge, 0), 2**80 - 1)
    uniform = np.array([number * 2.0**-80])
    _, undecided = kernel._float_codes(
        np.array([position]), table.knots, table.thresholds, uniform, uniform
    )
    if abs(nudge) <= 2**30:
        assert undecided[0]
    keystream = Planted([number])
    (code,) = sample_table(
        np.array([position]), table.knots, table.thresholds, table.cumulative, Planted([number])
    )
    expected = expected_code(table, position, *uniform_number(keystream, 16, 0))
    assert code == expected
    word = keystream.draw(16, 0)
    assert exact_code(position, table.knots, table.cumulative, word, 0, keystream) == expected


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("position", [0.3, 1.0 / 3.0, 1.0])
def test_a_number_that_agrees_with_a_threshold_for_500_bits_is_read_until_it_is_decided(
    position: float, side: int
) -> None:
    """Those that end earlier in binary, as all do at a knot, are decided earlier."""
    table, endless = a_table(), 0
    for column, limit in enumerate(limits(table, position)[:-1]):
        at = int(limit * 2**528)
        keystream = PlantedNumber(*divmod(at + 2 * side, 2**512))
        word = keystream.draw(16, 0)
        code = exact_code(position, table.knots, table.cumulative, word, 0, keystream)
        assert code == (column + 1 if side > 0 else column)
        if (limit * 2**528).denominator > 1:
            assert keystream.asked == [16, 32, 64]
            endless += 1
    assert endless > 0 or position == 1.0


@pytest.mark.parametrize("position", [0.0, 0.3, 1.0 / 7.0, 1.0])
def test_samples_follow_the_interpolated_row(position: float) -> None:
    table = a_table()
    count = 100_000
    codes = sample_table(
        np.full(count, position), table.knots, table.thresholds, table.cumulative, stream()
    )
    expected = table.channel.at(np.array([position]))[0] * count
    observed = np.bincount(codes, minlength=8)
    assert stats.chisquare(observed, expected).pvalue > 1e-6


def test_a_table_of_256_letters_and_many_positions() -> None:
    table = a_table(8.0, 8)
    positions = np.random.default_rng(2).uniform(size=20_000)
    codes = sample_table(positions, table.knots, table.thresholds, table.cumulative, stream())
    errors = table.letters[codes] - positions
    spread = np.sqrt(table.channel.variances(positions).mean() / len(positions))
    assert abs(errors.mean()) < 6.0 * spread


def test_the_slow_path_is_taken_and_gives_the_same_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    table = a_table()
    positions = np.random.default_rng(3).uniform(size=300)
    arguments = (positions, table.knots, table.thresholds, table.cumulative)
    fast = sample_table(*arguments, stream())
    monkeypatch.setattr(kernel, "_MARGIN", 2.0)  # nothing is sure any more
    np.testing.assert_array_equal(sample_table(*arguments, stream()), fast)


@pytest.mark.parametrize("position", [float("nan"), -1e-300, 1.0 + 2**-52, float("inf")])
def test_a_position_off_the_table_is_refused(position: float) -> None:
    table = a_table()
    with pytest.raises(DomainError, match="positions"):
        sample_table(
            np.array([position]), table.knots, table.thresholds, table.cumulative, stream()
        )
