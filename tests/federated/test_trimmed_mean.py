import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.core.errors import ParameterError
from sottovoce.federated.algorithms.fedavg import CoordinateMedian, TrimmedMean


@given(
    seed=st.integers(0, 10**6),
    clients=st.integers(1, 30),
    fraction=st.floats(0.0, 0.5, exclude_max=True),
)
def test_it_is_the_mean_of_what_a_sort_leaves(seed: int, clients: int, fraction: float) -> None:
    rows = np.random.default_rng(seed).normal(size=(clients, 3))
    drop = int(fraction * clients)
    expected = np.sort(rows, axis=0)[drop : clients - drop].mean(axis=0)
    np.testing.assert_allclose(TrimmedMean(fraction=fraction).combine(rows), expected, atol=1e-12)


def test_it_lies_between_the_mean_and_the_median() -> None:
    rows = np.random.default_rng(0).normal(size=(9, 4))
    np.testing.assert_allclose(TrimmedMean(fraction=0.0).combine(rows), rows.mean(axis=0))
    np.testing.assert_allclose(
        TrimmedMean(fraction=0.49).combine(rows), CoordinateMedian().combine(rows)
    )


def test_as_many_liars_as_are_trimmed_change_little() -> None:
    honest = np.random.default_rng(0).normal(size=(16, 7))
    rows = np.vstack([honest, np.full((4, 7), 1e9)])
    assert (np.abs(TrimmedMean(fraction=0.2).combine(rows)) < 2.0).all()
    assert (TrimmedMean(fraction=0.15).combine(rows) > 1e6).all()


def test_gaussian_noise_costs_something_for_what_is_trimmed() -> None:
    messages = np.random.default_rng(1).normal(size=(100, 20_000))
    mean = messages.mean(axis=0).var()
    ratios = [TrimmedMean(fraction=f).combine(messages).var() / mean for f in (0.1, 0.3, 0.45)]
    assert 1.0 < ratios[0] < ratios[1] < ratios[2] < np.pi / 2


@pytest.mark.parametrize("fraction", [0.5, -0.1, float("nan")])
def test_a_fraction_that_leaves_nothing_is_refused(fraction: float) -> None:
    with pytest.raises(ParameterError, match="fraction"):
        TrimmedMean(fraction=fraction)


def test_messages_stay_as_they_are() -> None:
    rows = np.random.default_rng(2).normal(size=(6, 3))
    before = rows.copy()
    TrimmedMean(fraction=0.3).combine(rows)
    assert np.array_equal(rows, before)
