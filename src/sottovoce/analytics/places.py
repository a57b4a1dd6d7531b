"""Locations: the mean place with intervals, and a density map, from one code per person.

Places are points of a square map, in kilometers east and north of its center. Each coordinate is
sent through the unbiased table of `metric_mvu` with metric 'euclidean'; the pair of codes is one
code of 2 * bits bits. It is geo-indistinguishable: P(code | place) <= e^(epsilon d) P(code |
place') for any two places that are d kilometers apart.

The mean place is the mean of the decoded codes; each coordinate has Student's interval, as every
mean has. For the density the server counts the pairs of codes, a B x B table N, and estimates the
density D on a g x g grid of cells by maximum likelihood,

    max_D  sum_jk N_jk log (A^T D A)_jk        A_cj = P(code j | middle of cell c, one coordinate)

by expectation maximization: D <- D * (A (N / A^T D A) A^T) / n, which keeps D a density. The
density has no interval. What the server computes from the codes is post-processing and costs no
privacy.

References: Andres, Bordenabe, Chatzikokolakis and Palamidessi 2013; Dempster, Laird and Rubin 1977.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.analytics import intervals
from sottovoce.analytics.assignment import PersonNumbers, stream_of
from sottovoce.analytics.question import (
    build_estimate,
    check_people,
    epsilon_of,
    event_of_counts,
    question,
)
from sottovoce.analytics.result import Estimate, Interval, Number
from sottovoce.analytics.scalar_randomizer import Contributions
from sottovoce.analytics.tallies import CodeCounts, Tally
from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Vector
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.core.randomness import Randomness
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.encoding import encode_packed, prepare
from sottovoce.mechanisms.kernels.table import sample_table
from sottovoce.mechanisms.mechanism import Codes, LevelCodes, Sampling
from sottovoce.mechanisms.metric_mvu import MetricMvu
from sottovoce.mechanisms.release import release_event
from sottovoce.privacy.events import PrivacyEvent

KILOMETERS_PER_DEGREE = 111.195  # On a great circle of a sphere of radius 6371 km.
_RADIUS_KM = math.degrees(KILOMETERS_PER_DEGREE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareMap:
    """A square map of a part of the earth: places in kilometers east and north of its center.

    The earth is a sphere in orthographic projection, that is seen from infinitely far above the
    center. In this projection no two places are farther apart than along the ground, so the
    guarantee on the map holds on the earth. Scaled degrees do not have this property: where
    parallels are shorter than at the center, and across the opposite meridian, distances on such a
    map would be too long. Ten kilometers from the center the projection shortens distances by a
    millionth.

    Attributes:
        latitude: Latitude of the center in degrees, from -80 to 80.
        longitude: Longitude of the center in degrees, from -180 to 180.
        side_km: Side of the square in kilometers, at most 1000.

    Examples:
        >>> area = SquareMap(latitude=48.2, longitude=16.4, side_km=10.0)
        >>> area.places([48.2, 48.22], [16.4, 16.4]).round(1)
        array([[0. , 0. ],
               [0. , 2.2]])
    """

    latitude: float
    longitude: float
    side_km: float

    def __post_init__(self) -> None:
        if not abs(parameter_rules.finite("latitude", self.latitude)) <= 80.0:
            raise ParameterError(
                "latitude (of the map's center) must be from -80 to 80 degrees, got "
                f"{self.latitude!r}"
            )
        if not abs(parameter_rules.finite("longitude", self.longitude)) <= 180.0:
            raise ParameterError(
                "longitude (of the map's center) must be from -180 to 180 degrees, got "
                f"{self.longitude!r}"
            )
        parameter_rules.positive(
            "side_km", self.side_km, at_most=1000.0, remedy="use a smaller map"
        )

    @property
    def domain(self) -> Box:
        """The domain of places: each coordinate from -side_km/2 to side_km/2, in kilometers."""
        half = self.side_km / 2.0
        return Box(dimension=2, lower=-half, upper=half)

    def places(self, latitudes: ArrayLike, longitudes: ArrayLike) -> Vector:
        """Return places in kilometers east and north of the center.

        Places outside the map are moved to its edge. The edge is public, so it stays hidden that a
        place lies outside.

        Args:
            latitudes: Latitudes in degrees.
            longitudes: Longitudes in degrees.

        Returns:
            One row (east, north) for each place.

        Raises:
            DomainError: A latitude or longitude is not finite.
        """
        degrees = np.asarray(latitudes, np.float64), np.asarray(longitudes, np.float64)
        if not all(np.isfinite(part).all() for part in degrees):
            raise DomainError("latitudes and longitudes must be finite numbers; leave others out")
        phi, lam = np.radians(degrees[0]), np.radians(degrees[1] - self.longitude)
        phi_0 = math.radians(self.latitude)
        east = np.cos(phi) * np.sin(lam)
        north = math.cos(phi_0) * np.sin(phi) - math.sin(phi_0) * np.cos(phi) * np.cos(lam)
        places = _RADIUS_KM * np.column_stack((east, north))
        return np.clip(places, self.domain.lower, self.domain.upper)

    def degrees_of(self, east_km: float, north_km: float) -> tuple[float, float]:
        """Return latitude and longitude of a place on the map.

        Args:
            east_km: Kilometers east of the center; values outside the map are clipped.
            north_km: Kilometers north of the center; values outside the map are clipped.

        Returns:
            Latitude and longitude in degrees. On a map across the meridian 180 the longitude may
            lie slightly outside -180 to 180.
        """
        half, phi_0 = self.side_km / 2.0, math.radians(self.latitude)
        east, north = (min(max(km, -half), half) / _RADIUS_KM for km in (east_km, north_km))
        # The height above the plane through the center of the sphere, in radii.
        height = math.sqrt(1.0 - east**2 - north**2)
        phi = math.asin(north * math.cos(phi_0) + height * math.sin(phi_0))
        lam = math.atan2(east, height * math.cos(phi_0) - north * math.sin(phi_0))
        return math.degrees(phi), self.longitude + math.degrees(lam)


def mechanism_for(
    area: SquareMap, *, epsilon_per_km: float, bits: int, input_bits: int = 6
) -> MetricMvu:
    """Return a mechanism for places that is geo-indistinguishable at `epsilon_per_km`.

    For any two places that are d kilometers apart, the probability of a code differs by at most the
    factor e^(epsilon_per_km d).

    Args:
        area: The map.
        epsilon_per_km: Epsilon for two places that are one kilometer apart.
        bits: Bits of each coordinate's code; a place has two.
        input_bits: Bits of the grid of inputs for which the table is designed.

    Returns:
        The mechanism on the map's domain.

    Raises:
        ParameterError: A parameter is out of range: epsilon_per_km * side_km / sqrt(2), the epsilon
            across one coordinate, must lie from 0.001 to 60.
    """
    return MetricMvu(
        input_domain=area.domain,
        epsilon=epsilon_per_km,
        metric="euclidean",
        input_bits=input_bits,
        output_bits=bits,
    )


def privatize_places(
    mechanism: MetricMvu, places: ArrayLike, randomness: Randomness, *, batch: str
) -> NDArray[np.uint8]:
    """Encode places: two codes for each place.

    Each place has its own keystream; a seeded source derives it from the batch's name and the
    place's number.

    Args:
        mechanism: The mechanism, from `mechanism_for`.
        places: Rows (east, north) in kilometers, from `SquareMap.places`.
        randomness: The source of randomness.
        batch: A name that differs for every batch: a seeded source gives the same name the same
            noise.

    Returns:
        One row of two codes for each place.

    Raises:
        DomainError: A row does not have two coordinates, or lies outside the map.
    """
    rows = np.asarray(places, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != 2:
        raise DomainError(
            "places must be a matrix with a row (east, north) in kilometers for each place, got "
            f"shape {rows.shape}"
        )
    for place in rows:
        mechanism.input_domain.check(place)
    streams = [randomness.stream("place", batch, number) for number in range(len(rows))]
    codes = encode_packed(prepare(mechanism, rows), streams).codes()
    return np.asarray(codes, dtype=np.uint8).reshape(-1, 2)


def code_counts(codes: ArrayLike, levels: int) -> NDArray[np.int64]:
    """Return how often each pair of codes occurs, as a (levels, levels) array [east, north].

    The density depends on these counts only. Raise DomainError unless `codes` has rows of two codes
    from 0 to levels - 1, at least one row.
    """
    pairs = np.asarray(codes)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or len(pairs) == 0:
        raise DomainError(
            "codes must be a matrix with a row of two codes (east, north) for each place, at least "
            f"one, got shape {pairs.shape}"
        )
    if pairs.min() < 0 or pairs.max() >= levels:
        raise DomainError(
            f"codes must lie between 0 and {levels - 1}, got {pairs.min()} to {pairs.max()}"
        )
    flat = pairs[:, 0].astype(np.int64) * levels + pairs[:, 1]
    return np.bincount(flat, minlength=levels * levels).reshape(levels, levels)


def density_map(
    mechanism: MetricMvu,
    codes: ArrayLike,
    *,
    cells: int,
    max_iterations: int = 500,
) -> Vector:
    """Estimate the share of people in each cell of a grid by maximum likelihood.

    Args:
        mechanism: The mechanism that made the codes.
        codes: One row of two codes for each person, from `privatize_places`.
        cells: Number of cells along each side of the grid, at most 256.
        max_iterations: Largest number of steps of expectation maximization.

    Returns:
        An array of shape (cells, cells) with sum 1. Entry [i, k] is the cell that is i-th from the
        west and k-th from the south, counted from 0.

    Raises:
        DomainError: There are no codes, or they do not have two columns or are out of range.
        ParameterError: `cells` or `max_iterations` is out of range.
    """
    counts = code_counts(codes, mechanism.levels)
    return density_of_counts(mechanism, counts, cells=cells, max_iterations=max_iterations)


def density_of_counts(
    mechanism: MetricMvu, counts: NDArray[np.int64], *, cells: int, max_iterations: int = 500
) -> Vector:
    """Estimate the share of people in each cell of a grid from the counts of pairs of codes.

    `counts` is that of `code_counts`. Return an array of shape (cells, cells) with sum 1; entry [i,
    k] is the cell i-th from the west and k-th from the south, counted from 0. Iterations stop when
    no cell's share changes by 1e-6 or more, or after `max_iterations`. The estimate has usually
    converged to the data by then; many more iterations would fit the noise.
    """
    parameter_rules.integer("cells", cells, low=1, high=256)
    parameter_rules.integer("max_iterations", max_iterations, low=1, high=10**6)
    middles = (np.arange(cells) + 0.5) / cells
    law = mechanism.table.channel.at(middles)
    shares = counts / counts.sum()
    density = np.full((cells, cells), 1.0 / cells**2)
    for _ in range(max_iterations):
        expected = law.T @ density @ law
        updated = density * (law @ (shares / expected) @ law.T)
        updated /= updated.sum()
        moved = float(np.abs(updated - density).max())
        density = updated
        if moved < 1e-6:
            break
    return density


MOST_BITS = 6  # Bits per coordinate: more gain nothing, and their tables take long to design.
MECHANISM = "metric_mvu"


@question
@dataclass(frozen=True, slots=True, kw_only=True)
class PlacesQuestion:
    """A question about places on a square map.

    Attributes:
        latitude: Latitude of the map's center in degrees.
        longitude: Longitude of the map's center in degrees.
        side_km: Side of the map in kilometers.
        epsilon: Epsilon per kilometer: two places that are d kilometers apart have epsilon times d.
        bits: Bits per coordinate; a person sends twice as many.
        cells: Cells along each side of the density map.
    """

    kind: ClassVar[str] = "location"
    least_people: ClassVar[int] = 100

    latitude: float
    longitude: float
    side_km: float
    epsilon: float
    bits: int
    cells: int

    def __post_init__(self) -> None:
        parameter_rules.positive("epsilon", self.epsilon)
        parameter_rules.integer("bits (per coordinate)", self.bits, low=1, high=MOST_BITS)
        parameter_rules.integer("cells", self.cells, low=2, high=128)
        _ = self.mechanism

    @classmethod
    def of(
        cls,
        *,
        center: tuple[float, float],
        side_km: float,
        epsilon: float,
        bits: int | None = None,
        cells: int = 16,
    ) -> "PlacesQuestion":
        """Build the question and make the choices that are left open.

        Args:
            center: Latitude and longitude of the map's center in degrees.
            side_km: Side of the map in kilometers.
            epsilon: Epsilon per kilometer.
            bits: Bits per coordinate; None is 3.
            cells: Cells along each side of the density map.

        Returns:
            The question.

        Raises:
            ParameterError: A parameter is out of range.
        """
        if len(center) != 2:
            raise ParameterError(
                f"center must be two numbers, latitude and longitude in degrees, got {center!r}"
            )
        return cls(
            latitude=float(center[0]),
            longitude=float(center[1]),
            side_km=float(side_km),
            epsilon=float(epsilon),
            bits=3 if bits is None else bits,
            cells=cells,
        )

    @property
    def area(self) -> SquareMap:
        """The map."""
        return SquareMap(latitude=self.latitude, longitude=self.longitude, side_km=self.side_km)

    @property
    def mechanism(self) -> MetricMvu:
        """The mechanism of one place."""
        return mechanism_for(self.area, epsilon_per_km=self.epsilon, bits=self.bits)

    @property
    def event(self) -> PrivacyEvent:
        """The privacy event of one person's code, for any two places of the map (replace-one)."""
        return release_event(self.mechanism, adjacency=Adjacency.REPLACE_ONE)

    def event_among(self, people: int) -> PrivacyEvent:
        """Return the event of one code if only counts over `people` codes are revealed."""
        return event_of_counts(self.mechanism, people)

    @property
    def mechanism_kind(self) -> str:
        """The name of the registered mechanism; a site's policy lists it."""
        return MECHANISM

    @property
    def sampling(self) -> Sampling:
        """The sampling grade of the mechanism."""
        return self.mechanism.sampling

    @property
    def code_format(self) -> LevelCodes:
        """The format of one person's code."""
        return LevelCodes(levels=self.mechanism.levels**2)

    @property
    def digest(self) -> str:
        """A digest of the mechanism and its tables: the same for clients and server."""
        return registry.parameter_hash(self.mechanism).hex()

    def answer(self, values: ArrayLike, randomness: Randomness, first: PersonNumbers = 0) -> Codes:
        """Return one code for each row (latitude, longitude) in degrees.

        Places outside the map are moved to its edge. `first` is the number of the first person, and
        determines the keystream. Raise DomainError unless the rows are finite numbers.
        """
        rows = degrees(values)
        places, mechanism = self.area.places(rows[:, 0], rows[:, 1]), self.mechanism
        stream = stream_of(randomness, "location", first)
        pairs = sample_table(places.ravel(), mechanism.table, stream, mechanism.affine)
        east, north = pairs.reshape(-1, 2).T.astype(np.int64)
        return (east * mechanism.levels + north).astype(self.code_format.dtype)

    def tally(self, codes: Codes, first: PersonNumbers = 0) -> Tally:  # noqa: ARG002  (everyone is asked the same)
        return CodeCounts.of(codes, self.code_format.levels)

    def estimate(self, tally: Tally, confidence: float = 0.95) -> Estimate:
        intervals.check_confidence(confidence)
        check_people(tally.people)
        assert isinstance(tally, CodeCounts)
        levels, area = self.mechanism.levels, self.area
        pairs = tally.counts.reshape(levels, levels)
        east, easts, east_caveat = self._mean(pairs.sum(axis=1), confidence)
        north, norths, north_caveat = self._mean(pairs.sum(axis=0), confidence)
        latitude, longitude = area.degrees_of(east, north)
        latitudes = _map_interval(norths, lambda km: area.degrees_of(east, km)[0])
        longitudes = _map_interval(easts, lambda km: area.degrees_of(km, north)[1])
        numbers = (
            Number(label="east_km", estimate=east, interval=easts, caveat=east_caveat),
            Number(label="north_km", estimate=north, interval=norths, caveat=north_caveat),
            Number(label="latitude", estimate=latitude, interval=latitudes, caveat=north_caveat),
            Number(label="longitude", estimate=longitude, interval=longitudes, caveat=east_caveat),
        )
        density = density_of_counts(self.mechanism, pairs, cells=self.cells)
        details = {
            "density": [[float(share) for share in row] for row in density],
            "density_order": "density[i][k] is the cell i-th from the west, k-th from the south",
            "epsilon_across_the_map": epsilon_of(self.event),
        }
        return build_estimate(
            self,
            numbers,
            people=tally.people,
            confidence=confidence,
            mechanism=MECHANISM,
            notes=(
                "each interval holds for its own coordinate, from the map's center",
                "the density map is a maximum likelihood estimate and has no interval",
            ),
            details=details,
            epsilon_per_km=self.epsilon,
        )

    def _mean(
        self, counts: NDArray[np.int64], confidence: float
    ) -> tuple[float, Interval | None, str | None]:
        """Return the mean of a coordinate, its interval and a caveat about the interval."""
        channel = self.mechanism.table.channel
        least = float(channel.variances(channel.knots).min()) * self.side_km**2
        found = Contributions.of_counts(self.mechanism.points, counts, least)
        if found.people < self.least_people:
            return found.mean, None, None
        factor = intervals.student_factor(found.people - 1, confidence)
        error = factor * math.sqrt(found.squared_error)
        half = self.side_km / 2.0
        low, high = intervals.bounded_interval(found.mean, error, -half, half, confidence)
        return found.mean, (float(low[0]), float(high[0])), found.caveat


def degrees(values: ArrayLike) -> Vector:
    """Return rows of latitude and longitude in degrees, as float64.

    Raise DomainError unless there is at least one row and all entries are finite numbers.
    """
    try:
        rows = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise DomainError("places must be rows of latitude and longitude in degrees") from None
    if rows.ndim != 2 or rows.shape[1] != 2 or len(rows) == 0:
        raise DomainError(
            "places must be a matrix with a row (latitude, longitude) in degrees for each person, "
            f"at least one, got shape {rows.shape}"
        )
    if not np.isfinite(rows).all():
        raise DomainError("latitudes and longitudes must be finite numbers; leave others out")
    return rows


def _map_interval(interval: Interval | None, mapping: Callable[[float], float]) -> Interval | None:
    return None if interval is None else (mapping(interval[0]), mapping(interval[1]))
