"""Dithering: the right probabilities, the proven norm bounds, rejection that keeps the norm."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from sottovoce.core.domains import Vector
from sottovoce.core.errors import DomainError, ParameterError, RandomnessError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms.dithering import (
    GridCodes,
    dither,
    dither_within,
    dithered_norm_bound,
    gamma_scaling,
    lemma_10_bound,
)

RANDOMNESS = SeededRandomness(11)


def decoded(codes: GridCodes, levels: int, radius: float = 1.0) -> Vector:
    return np.asarray((2.0 * codes - (levels - 1)) * radius / (levels - 1))


@pytest.mark.parametrize("levels", [2, 3, 16])
def test_each_value_goes_to_its_two_neighbors_with_the_probabilities_that_keep_the_mean(
    levels: int,
) -> None:
    count, lower, upper = 40_000, -0.7, 1.9
    spacing = (upper - lower) / (levels - 1)
    for k, value in enumerate(np.linspace(lower, upper, 8)[1:-1]):
        stream = RANDOMNESS.stream("probabilities", levels, k)
        codes = dither(np.full(count, value), levels, lower, upper, stream)
        below = math.floor((value - lower) / spacing)
        share = (value - lower) / spacing - below
        ups = int((codes == below + 1).sum())
        assert set(codes.tolist()) <= {below, below + 1}
        expected = [count * (1.0 - share), count * share]
        assert chisquare([count - ups, ups], expected).pvalue > 1e-4
        points = lower + spacing * codes
        assert abs(points.mean() - value) < 5.0 * spacing / 2.0 / math.sqrt(count)
        assert ((points - value) ** 2).mean() <= spacing**2 / 4.0 * 1.05


@given(levels=st.integers(2, 2**16), data=st.data())
def test_grid_points_stay_where_they_are(levels: int, data: st.DataObject) -> None:
    codes = np.array(data.draw(st.lists(st.integers(0, levels - 1), min_size=1, max_size=20)))
    step = 2.0**-10
    stream = RANDOMNESS.stream("grid", levels)
    upper = step * (levels - 1)
    found = dither(codes * step, levels, 0.0, upper, stream)
    moved = np.abs(found - codes)
    assert moved.max() <= 1  # a position off by float64's rounding moves with that probability
    assert moved.sum() == 0


def test_the_same_keystream_gives_the_same_codes_and_serves_once() -> None:
    values = np.linspace(-1.0, 1.0, 1000)
    first = dither(values, 16, -1.0, 1.0, RANDOMNESS.stream("same"))
    stream = RANDOMNESS.stream("same")
    assert np.array_equal(first, dither(values, 16, -1.0, 1.0, stream))
    with pytest.raises(RandomnessError):
        dither(values, 16, -1.0, 1.0, stream)


def shapes(dimension: int, power: int, norm: float, levels: int) -> list[Vector]:
    """Vectors of that norm that try the bound: flat, spiked, half-way, tiny and negative."""
    rng = np.random.default_rng(3)
    spacing = 2.0 / (levels - 1)
    half_way = np.zeros(dimension)
    half_way[: max(1, int((norm / (1.5 * spacing)) ** power))] = 1.5 * spacing
    found = [
        np.ones(dimension),
        -np.ones(dimension),
        np.eye(dimension)[0],
        rng.standard_normal(dimension),
        rng.standard_normal(dimension) ** 5,
        half_way,
    ]
    return [norm * v / np.linalg.norm(v, power) for v in found] + [np.full(dimension, -1e-9)]


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("levels", [3, 16, 65])
@pytest.mark.parametrize("dimension", [1, 10, 300])
def test_the_norm_exceeds_the_proven_bound_no_more_often_than_allowed(
    power: int, levels: int, dimension: int
) -> None:
    failure, tries = 0.05, 2000
    for k, vector in enumerate(shapes(dimension, power, 0.8, levels)):
        norm = float(np.linalg.norm(vector, power))
        stream = RANDOMNESS.stream("norm", power, levels, dimension, k)
        codes = dither(np.tile(vector, tries), levels, -1.0, 1.0, stream)
        points = decoded(codes, levels).reshape(tries, dimension)
        norms = np.linalg.norm(points, power, axis=1)
        bound = dithered_norm_bound(norm, dimension, levels, failure, power=power)
        allowed = failure + 4.0 * math.sqrt(failure / tries)
        assert (norms > bound * (1.0 + 1e-12)).mean() <= allowed
        if power == 2:
            assert (norms > lemma_10_bound(norm, dimension, levels, failure)).mean() <= allowed


@given(
    norm=st.floats(0.0, 1.0),
    dimension=st.integers(1, 10**7),
    levels=st.integers(2, 2**16),
    failure=st.floats(1e-12, 0.99),
)
def test_the_proven_bound_is_never_above_the_printed_lemma_which_it_therefore_proves(
    norm: float, dimension: int, levels: int, failure: float
) -> None:
    proven = dithered_norm_bound(norm, dimension, levels, failure)
    assert norm <= proven <= lemma_10_bound(norm, dimension, levels, failure) * (1.0 + 1e-12)


def test_the_printed_proof_uses_a_claim_that_fails_for_negative_coordinates() -> None:
    levels, vector = 17, np.full(100, -1e-6)
    spacing = 2.0 / (levels - 1)
    rounded_down = np.floor((vector + 1.0) / spacing) * spacing - 1.0
    assert np.sum(rounded_down**2) > 1e6 * np.sum(vector**2)


@given(
    dimension=st.integers(1, 10**5),
    levels=st.integers(2, 2**12),
    failure=st.floats(1e-9, 0.5),
    power=st.sampled_from([1, 2]),
)
def test_the_scaling_is_the_largest_that_the_bound_allows(
    dimension: int, levels: int, failure: float, power: int
) -> None:
    if dithered_norm_bound(0.0, dimension, levels, failure, power=power) > 1.0:
        with pytest.raises(ParameterError, match="more levels"):
            gamma_scaling(1.0, dimension, levels, failure, power=power)
        return
    gamma = gamma_scaling(3.0, dimension, levels, failure, power=power)
    assert 0.0 <= gamma < 1.0
    assert dithered_norm_bound(gamma, dimension, levels, failure, power=power) <= 1.0
    above = dithered_norm_bound(gamma + 1e-9, dimension, levels, failure, power=power)
    assert above > 1.0


@pytest.mark.parametrize("power", [1, 2])
def test_rejection_keeps_the_norm_and_hardly_moves_the_mean(power: int) -> None:
    dimension, levels, radius, failure = 50, 513, 2.5, 0.01
    gamma = gamma_scaling(radius, dimension, levels, failure, power=power)
    assert gamma > 0.8
    vector = np.random.default_rng(5).standard_normal(dimension)
    vector *= gamma * radius / np.linalg.norm(vector, power) * (1.0 - 1e-12)
    points = []
    for k in range(400):
        stream = RANDOMNESS.stream("reject", power, k)
        codes = dither_within(vector, levels, radius, stream, power=power)
        points.append(decoded(codes, levels, radius))
        assert np.linalg.norm(points[-1], power) <= radius * (1.0 + 1e-12)
    spacing = 2.0 * radius / (levels - 1)
    assert np.abs(np.mean(points, axis=0) - vector).max() < 5.0 * spacing / 2.0 / math.sqrt(400)


def test_a_vector_on_the_boundary_is_drawn_again_until_it_fits() -> None:
    vector = np.full(4, 0.4999)  # norm just below 1; most roundings to thirds are longer
    retried = 0
    for k in range(50):
        plain = dither(vector, 7, -1.0, 1.0, RANDOMNESS.stream("boundary", k))
        kept = dither_within(vector, 7, 1.0, RANDOMNESS.stream("boundary", k))
        fits = np.linalg.norm(decoded(plain, 7)) <= 1.0 + 1e-12
        assert np.linalg.norm(decoded(kept, 7)) <= 1.0 + 1e-12
        retried += not fits
        if fits:
            assert np.array_equal(plain, kept)
    assert 0 < retried < 50


def test_an_exact_fit_is_accepted_and_a_hopeless_one_refused_after_the_last_try() -> None:
    assert dither_within([1.0], 8, 1.0, RANDOMNESS.stream("fit")).tolist() == [7]
    with pytest.raises(DomainError, match="gamma_scaling"):
        dither_within(np.zeros(5), 2, 1.0, RANDOMNESS.stream("hopeless"), max_tries=5)


def test_bad_input_is_refused() -> None:
    stream = RANDOMNESS.stream("bad")
    with pytest.raises(DomainError, match="outside"):
        dither([2.0], 4, -1.0, 1.0, stream)
    with pytest.raises(DomainError, match="finite"):
        dither([math.nan], 4, -1.0, 1.0, stream)
    with pytest.raises(DomainError, match="flatten"):
        dither([[0.0, 0.0]], 4, -1.0, 1.0, stream)
    with pytest.raises(ParameterError, match="levels"):
        dither([0.0], 1, -1.0, 1.0, stream)
    with pytest.raises(ParameterError, match="below upper"):
        dither([0.0], 4, 1.0, -1.0, stream)
    with pytest.raises(DomainError, match="exceeds the radius"):
        dither_within([1.0, 1.0], 4, 1.0, stream)
    with pytest.raises(ParameterError, match="power"):
        dither_within([0.0], 4, 1.0, stream, power=3)
    with pytest.raises(ParameterError, match="divide by the radius"):
        lemma_10_bound(1.5, 4, 4, 0.1)
    with pytest.raises(ParameterError, match="failure_probability"):
        dithered_norm_bound(0.5, 4, 4, 1.0)
    assert dither([0.0], 3, -1.0, 1.0, stream).tolist() == [1]  # refusals spent nothing
