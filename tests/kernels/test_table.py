"""The table sampler: exactly the declared law, for every word and every position."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sottovoce.design import randomised_response
from sottovoce.design.channel import IntegerTable, round_pure
from sottovoce.errors import DomainError
from sottovoce.kernels import table as kernel
from sottovoce.kernels.table import exact_code, sample_table
from sottovoce.randomness import Keystream, SeededRandomness


def a_table(epsilon: float = 2.0, bits: int = 3) -> IntegerTable:
    return round_pure(randomised_response.generalised(epsilon, bits), epsilon)


def limits(table: IntegerTable, position: float) -> list[Fraction]:
    """The exact cumulative law at a position."""
    k = int(np.clip(np.searchsorted(table.knots, position, "right") - 1, 0, len(table.knots) - 2))
    u, v = (Fraction(float(x)) for x in table.knots[k : k + 2])
    t = (Fraction(position) - u) / (v - u)
    rows = zip(table.cumulative[k], table.cumulative[k + 1], strict=True)
    return [((1 - t) * a + t * b) / (1 << 128) for a, b in rows]


def stream() -> Keystream:
    return SeededRandomness(5).stream("table")


@given(position=st.floats(0.0, 1.0), word=st.integers(0, 2**64 - 1), bits=st.integers(1, 4))
@settings(max_examples=300)
def test_float64_and_exact_arithmetic_agree_where_float64_is_sure(
    position: float, word: int, bits: int
) -> None:
    table = a_table(bits=bits)
    codes, undecided = kernel._float_codes(
        np.array([position]), table.knots, table.thresholds, np.array([word], dtype=np.uint64)
    )
    exact = exact_code(position, table.knots, table.cumulative, word, 0, stream())
    if not undecided[0]:
        assert codes[0] == exact


@given(position=st.floats(0.0, 1.0), column=st.integers(0, 6), nudge=st.integers(-2, 2))
@settings(max_examples=200)
def test_words_at_a_threshold_are_decided_exactly(position: float, column: int, nudge: int) -> None:
    table = a_table()
    limit = limits(table, position)[column]
    word = min(max(int(limit * 2**64) + nudge, 0), 2**64 - 1)
    _, undecided = kernel._float_codes(
        np.array([position]), table.knots, table.thresholds, np.array([word], dtype=np.uint64)
    )
    assert undecided[0]
    keystream = stream()
    extension = int.from_bytes(keystream.extension(3, 64), "big")
    uniform = Fraction((word << 512) | extension, 1 << (64 + 512))
    expected = sum(threshold <= uniform for threshold in limits(table, position)[:-1])
    assert exact_code(position, table.knots, table.cumulative, word, 3, keystream) == expected


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
