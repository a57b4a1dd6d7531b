"""Places: geo-indistinguishable at any distance, and a map that comes near the truth."""

import math

import numpy as np
import pytest
from cases import cases

from sottovoce.analytics.places import (
    SquareMap,
    code_counts,
    density_map,
    mechanism_for,
    privatize_places,
)
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.privacy.events import MetricDp

AREA = SquareMap(latitude=40.75, longitude=-73.97, side_km=8.0)


def two_towns(count: int) -> Vector:
    generator = np.random.default_rng(4)
    centres = np.array([[-2.0, -2.0], [2.0, 1.0]])[generator.integers(2, size=count)]
    return np.clip(centres + 0.7 * generator.normal(size=(count, 2)), -4.0, 4.0)


def true_density(places: Vector, cells: int) -> Vector:
    edges = np.linspace(-4.0, 4.0, cells + 1)
    counts = np.histogram2d(places[:, 0], places[:, 1], bins=(edges, edges))[0]
    return np.asarray(counts / counts.sum())


def test_any_two_places_are_hidden_by_their_distance() -> None:
    mechanism = mechanism_for(AREA, epsilon_per_km=1.0, bits=2, input_bits=5)
    generator = np.random.default_rng(6)
    for _ in range(cases(200)):
        first = generator.uniform(-4.0, 4.0, size=2)
        second = np.clip(first + generator.choice([0.01, 1.0]) * generator.normal(size=2), -4, 4)
        laws = [mechanism.law(place).table for place in (first, second)]
        loss = np.abs(np.log(laws[0] / laws[1])).max(axis=1).sum()
        assert loss <= 1.0 * np.linalg.norm(first - second) + 1e-9


def along_the_ground(first: Vector, second: Vector) -> float:
    """Kilometres between two places in degrees (haversine)."""
    (up, round_), (up_too, round_too) = np.radians(first), np.radians(second)
    half = math.sin((up - up_too) / 2.0) ** 2
    half += math.cos(up) * math.cos(up_too) * math.sin((round_ - round_too) / 2.0) ** 2
    return 2.0 * math.degrees(111.195) * math.asin(math.sqrt(min(half, 1.0)))


@pytest.mark.parametrize("latitude", [0.0, 40.75, -80.0])
@pytest.mark.parametrize("side_km", [8.0, 1000.0])
def test_no_two_places_of_the_earth_are_farther_apart_on_the_map(
    latitude: float, side_km: float
) -> None:
    area = SquareMap(latitude=latitude, longitude=170.0, side_km=side_km)
    generator = np.random.default_rng(5)
    first = np.column_stack((generator.uniform(-90, 90, 2000), generator.uniform(-180, 180, 2000)))
    first[:1000] = np.array([latitude, 170.0]) + generator.normal(size=(1000, 2))  # near the map
    first[:1000, 0] = np.clip(first[:1000, 0], -90.0, 90.0)
    second = first + generator.choice([1e-3, 1.0, 30.0], size=(2000, 1)) * generator.normal(
        size=(2000, 2)
    )
    second[:, 0] = np.clip(second[:, 0], -90.0, 90.0)
    first[-1], second[-1] = [latitude, -9.999], [latitude, -10.001]  # the opposite meridian
    first[-2], second[-2] = [89.99, 80.0], [89.99, -100.0]  # around the pole
    apart = np.linalg.norm(area.places(*first.T) - area.places(*second.T), axis=1)
    ground = np.array([along_the_ground(a, b) for a, b in zip(first, second, strict=True)])
    assert (apart <= ground * (1.0 + 1e-9) + 1e-9).all()


def test_kilometers_become_degrees_again() -> None:
    for latitude in (0.0, 45.0, -79.0):
        area = SquareMap(latitude=latitude, longitude=12.0, side_km=600.0)
        for place in ([0.0, 0.0], [100.0, -250.0], [-300.0, 300.0]):
            up, round_ = area.degrees_of(*place)
            np.testing.assert_allclose(area.places([up], [round_]), [place], atol=1e-6)
        assert area.degrees_of(1e9, 0.0) == area.degrees_of(300.0, 0.0)


def test_the_event_states_epsilon_per_kilometer_and_the_diagonal() -> None:
    event = mechanism_for(AREA, epsilon_per_km=1.0, bits=2, input_bits=5).privacy(
        Adjacency.REPLACE_ONE
    )
    assert isinstance(event, MetricDp)
    assert event.epsilon == 1.0
    assert event.distance == pytest.approx(8.0 * math.sqrt(2.0))


def test_the_map_comes_nearer_to_the_truth_than_a_guess() -> None:
    places = two_towns(4000)
    mechanism = mechanism_for(AREA, epsilon_per_km=2.0, bits=3, input_bits=5)
    codes = privatize_places(mechanism, places, SeededRandomness(1), batch="a")
    estimate, truth = density_map(mechanism, codes, cells=8), true_density(places, 8)
    assert estimate.sum() == pytest.approx(1.0)
    assert (estimate >= 0.0).all()
    distance = np.abs(estimate - truth).sum() / 2.0
    assert distance < 0.5 * np.abs(truth - 1.0 / 64.0).sum() / 2.0


def test_the_mean_place_is_unbiased() -> None:
    places = two_towns(4000)
    mechanism = mechanism_for(AREA, epsilon_per_km=2.0, bits=3, input_bits=5)
    codes = privatize_places(mechanism, places, SeededRandomness(2), batch="a")
    decoded = mechanism.points[codes]
    spread = decoded.std(axis=0) / math.sqrt(len(places))
    assert (np.abs(decoded.mean(axis=0) - places.mean(axis=0)) < 6.0 * spread).all()


def test_latitudes_become_kilometers_and_outsiders_move_to_the_edge() -> None:
    places = AREA.places([40.75, 40.76, 50.0], [-73.97, -73.97, -73.97])
    np.testing.assert_allclose(places[0], 0.0, atol=1e-9)
    np.testing.assert_allclose(places[1], [0.0, 1.112], atol=1e-3)
    np.testing.assert_allclose(places[2], [0.0, 4.0])


def test_bad_input_is_refused() -> None:
    mechanism = mechanism_for(AREA, epsilon_per_km=1.0, bits=2, input_bits=5)
    with pytest.raises(DomainError, match="finite"):
        AREA.places([float("nan")], [0.0])
    with pytest.raises(DomainError, match=r"a row \(east, north\)"):
        privatize_places(mechanism, [1.0, 2.0], SeededRandomness(1), batch="a")
    with pytest.raises(DomainError, match="project"):
        privatize_places(mechanism, [[5.0, 0.0]], SeededRandomness(1), batch="a")
    with pytest.raises(DomainError, match="between 0 and 3"):
        code_counts([[0, 4]], 4)
    with pytest.raises(DomainError, match="at least one"):
        code_counts(np.empty((0, 2)), 4)
    with pytest.raises(ParameterError, match="latitude"):
        SquareMap(latitude=90.0, longitude=0.0, side_km=1.0)
    with pytest.raises(ParameterError, match="side_km"):
        SquareMap(latitude=0.0, longitude=0.0, side_km=-1.0)
    with pytest.raises(ParameterError, match="epsilon"):
        mechanism_for(AREA, epsilon_per_km=0.0, bits=2)
    with pytest.raises(ParameterError, match="cells"):
        density_map(mechanism, [[0, 0]], cells=0)


def test_batches_have_their_own_noise_and_the_date_line_is_no_edge() -> None:
    mechanism = mechanism_for(AREA, epsilon_per_km=1.0, bits=2, input_bits=5)
    places = np.zeros((50, 2))
    first, second = (
        privatize_places(mechanism, places, SeededRandomness(1), batch=name) for name in ("a", "b")
    )
    assert (first != second).any()
    pacific = SquareMap(latitude=0.0, longitude=179.99, side_km=10.0)
    np.testing.assert_allclose(pacific.places([0.0], [-179.99]), [[2.2239, 0.0]], atol=1e-3)
