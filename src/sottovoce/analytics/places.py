"""Where people are: the mean place with intervals, and a density map, from one code a person.

Each coordinate, east and north of the map's centre in kilometres, goes through the unbiased table
of `metric_mvu`; the pair of codes is one code of 2 * bits bits. Any two places d kilometres apart
are epsilon d hidden from each other (geo-indistinguishability). The mean place is the mean of what
the codes decode to, each coordinate with Student's interval, as for any mean; the density is by
maximum likelihood (`location`) and has no interval.

Where people are, without where anyone is: a density map from privatised places.

Places are points of a square map. Each client sends its two coordinates through `metric_mvu` with
metric 'euclidean', some bits each: P(place) <= e^(epsilon distance) P(place') for any two places
(geo-indistinguishability). The server counts the codes, a B x B table N, which is all that matters,
and estimates the density D on a g x g grid of cells by maximum likelihood,

    max_D  sum_jk N_jk log (A^T D A)_jk        A_cj = P(code j | middle of cell c, one coordinate)

by expectation maximisation: D <- D * (A (N / A^T D A) A^T) / n, which keeps D a density. What the
server does with the codes is post-processing and costs no privacy.

Reference: Andres, Bordenabe, Chatzikokolakis and Palamidessi 2013; Dempster, Laird and Rubin 1977.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.analytics import intervals
from sottovoce.analytics.question import check_people, epsilon_of, finished, question
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

KILOMETRES_PER_DEGREE = 111.195  # of a great circle on a sphere of 6371 km
_RADIUS_KM = math.degrees(KILOMETRES_PER_DEGREE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareMap:
    """A square of the earth's surface: places in kilometres from its centre.

    The earth is a sphere, seen straight from above the centre (orthographic). Seen so, no two
    places lie farther apart than along the ground, wherever they are, so what hides them on the map
    hides them on the earth. Degrees that are merely scaled do not have that: where parallels are
    shorter than at the centre, and across the meridian that is opposite, the map would be longer.
    Ten kilometres from the centre it shortens distances by a millionth.
    """

    latitude: float
    longitude: float
    side_km: float

    def __post_init__(self) -> None:
        if not abs(parameter_rules.finite("latitude", self.latitude)) <= 80.0:
            raise ParameterError(f"latitude must lie within 80 degrees, got {self.latitude!r}")
        if not abs(parameter_rules.finite("longitude", self.longitude)) <= 180.0:
            raise ParameterError(f"longitude must lie within 180 degrees, got {self.longitude!r}")
        parameter_rules.positive(
            "side_km", self.side_km, at_most=1000.0, remedy="take a smaller map"
        )

    @property
    def domain(self) -> Box:
        half = self.side_km / 2.0
        return Box(dimension=2, lower=-half, upper=half)

    def places(self, latitudes: ArrayLike, longitudes: ArrayLike) -> Vector:
        """East and north of the centre in kilometres, one row each; outside is moved to the edge.

        The edge is public: that a place lies outside is hidden like any other.
        """
        degrees = np.asarray(latitudes, np.float64), np.asarray(longitudes, np.float64)
        if not all(np.isfinite(part).all() for part in degrees):
            raise DomainError("a latitude or longitude is not a finite number")
        up, round_ = np.radians(degrees[0]), np.radians(degrees[1] - self.longitude)
        centre = math.radians(self.latitude)
        east = np.cos(up) * np.sin(round_)
        north = math.cos(centre) * np.sin(up) - math.sin(centre) * np.cos(up) * np.cos(round_)
        places = _RADIUS_KM * np.column_stack((east, north))
        return np.clip(places, self.domain.lower, self.domain.upper)

    def degrees_of(self, east_km: float, north_km: float) -> tuple[float, float]:
        """Latitude and longitude of a place on the map; of one beyond it, of its nearer edge.

        Longitudes run from -180 to 180, or a little beyond.
        """
        half, centre = self.side_km / 2.0, math.radians(self.latitude)
        east, north = (min(max(km, -half), half) / _RADIUS_KM for km in (east_km, north_km))
        height = math.sqrt(1.0 - east**2 - north**2)  # above the plane through the earth's middle
        up = math.asin(north * math.cos(centre) + height * math.sin(centre))
        round_ = math.atan2(east, height * math.cos(centre) - north * math.sin(centre))
        return math.degrees(up), self.longitude + math.degrees(round_)


def mechanism_for(
    area: SquareMap, *, epsilon_per_km: float, bits: int, input_bits: int = 6
) -> MetricMvu:
    """Geo-indistinguishability at `epsilon_per_km`, in 2 * bits bits a place."""
    return MetricMvu(
        input_domain=area.domain,
        epsilon=epsilon_per_km,
        metric="euclidean",
        input_bits=input_bits,
        output_bits=bits,
    )


def privatise(
    mechanism: MetricMvu, places: ArrayLike, randomness: Randomness, *, batch: str
) -> NDArray[np.uint8]:
    """Two codes for each place; each has its own keystream, labelled by the batch and its number.

    A seeded source gives the same batch the same noise: name every batch differently.
    """
    rows = np.asarray(places, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != 2:
        raise DomainError(f"expected rows of two coordinates, got shape {rows.shape}")
    for place in rows:
        mechanism.input_domain.check(place)
    streams = [randomness.stream("place", batch, number) for number in range(len(rows))]
    codes = encode_packed(prepare(mechanism, rows), streams).codes()
    return np.asarray(codes, dtype=np.uint8).reshape(-1, 2)


def code_counts(codes: ArrayLike, levels: int) -> NDArray[np.int64]:
    """How often each pair of codes came: all that the density depends on."""
    pairs = np.asarray(codes)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or len(pairs) == 0:
        raise DomainError(f"expected rows of two codes, at least one, got shape {pairs.shape}")
    if pairs.min() < 0 or pairs.max() >= levels:
        raise DomainError(f"a code lies outside 0 ... {levels - 1}")
    flat = pairs[:, 0].astype(np.int64) * levels + pairs[:, 1]
    return np.bincount(flat, minlength=levels * levels).reshape(levels, levels)


def density_map(
    mechanism: MetricMvu,
    codes: ArrayLike,
    *,
    cells: int,
    max_iterations: int = 500,
) -> Vector:
    """The share of people in each cell of a cells x cells grid, by maximum likelihood.

    Entry [i, k] is the cell i-th from the west and k-th from the south.
    """
    counts = code_counts(codes, mechanism.levels)
    return density_of_counts(mechanism, counts, cells=cells, max_iterations=max_iterations)


def density_of_counts(
    mechanism: MetricMvu, counts: NDArray[np.int64], *, cells: int, max_iterations: int = 500
) -> Vector:
    """The same from how often each pair of codes came.

    Iterations stop when no cell's share moves by more than 1e-6: by then the estimate follows the
    data, and much longer it would follow its noise.
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


MOST_BITS = 6  # a coordinate: finer letters gain nothing and take long to design
MECHANISM = "metric_mvu"


@question
@dataclass(frozen=True, slots=True, kw_only=True)
class PlacesQuestion:
    """Everybody's place on a square map; `epsilon` is per kilometre, `bits` are per coordinate.

    `cells` is how many the density map has to a side.
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
        parameter_rules.integer("bits (of a coordinate)", self.bits, low=1, high=MOST_BITS)
        parameter_rules.integer("cells", self.cells, low=2, high=128)
        _ = self.mechanism

    @classmethod
    def of(
        cls,
        *,
        centre: tuple[float, float],
        side_km: float,
        epsilon: float,
        bits: int | None = None,
        cells: int = 16,
    ) -> "PlacesQuestion":
        """The question with every choice made; `centre` is (latitude, longitude)."""
        if len(centre) != 2:
            raise ParameterError(f"centre must be latitude, longitude, got {centre!r}")
        return cls(
            latitude=float(centre[0]),
            longitude=float(centre[1]),
            side_km=float(side_km),
            epsilon=float(epsilon),
            bits=3 if bits is None else bits,
            cells=cells,
        )

    @property
    def area(self) -> SquareMap:
        return SquareMap(latitude=self.latitude, longitude=self.longitude, side_km=self.side_km)

    @property
    def mechanism(self) -> MetricMvu:
        return mechanism_for(self.area, epsilon_per_km=self.epsilon, bits=self.bits)

    @property
    def event(self) -> PrivacyEvent:
        return release_event(self.mechanism, adjacency=Adjacency.REPLACE_ONE)

    @property
    def mechanism_kind(self) -> str:
        """The registered mechanism whose law the codes follow; a site's policy names it."""
        return MECHANISM

    @property
    def sampling(self) -> Sampling:
        return self.mechanism.sampling

    @property
    def code_format(self) -> LevelCodes:
        return LevelCodes(levels=self.mechanism.levels**2)

    @property
    def digest(self) -> str:
        return registry.parameter_hash(self.mechanism).hex()

    def answer(self, values: ArrayLike, randomness: Randomness, first: int = 0) -> Codes:
        """One code for each row of latitude and longitude; outside is moved to the map's edge."""
        rows = degrees(values)
        places, mechanism = self.area.places(rows[:, 0], rows[:, 1]), self.mechanism
        stream = randomness.stream("location", first)
        pairs = sample_table(places.ravel(), mechanism.table, stream, mechanism.affine)
        east, north = pairs.reshape(-1, 2).T.astype(np.int64)
        return (east * mechanism.levels + north).astype(self.code_format.dtype)

    def tally(self, codes: Codes, first: int = 0) -> Tally:  # noqa: ARG002  (all are asked alike)
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
        latitudes = _mapped(norths, lambda km: area.degrees_of(east, km)[0])
        longitudes = _mapped(easts, lambda km: area.degrees_of(km, north)[1])
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
        return finished(
            self,
            numbers,
            people=tally.people,
            confidence=confidence,
            mechanism=MECHANISM,
            notes=(
                "each interval is for its own coordinate, from the map's centre",
                "the density map is by maximum likelihood and has no interval",
            ),
            details=details,
            epsilon_per_km=self.epsilon,
        )

    def _mean(
        self, counts: NDArray[np.int64], confidence: float
    ) -> tuple[float, Interval | None, str | None]:
        """The mean coordinate, its interval and what may be off about that."""
        channel = self.mechanism.table.channel
        least = float(channel.variances(channel.knots).min()) * self.side_km**2
        found = Contributions.of_counts(self.mechanism.points, counts, least)
        if found.people < self.least_people:
            return found.mean, None, None
        factor = intervals.student_factor(found.people - 1, confidence)
        error = factor * math.sqrt(found.squared_error)
        half = self.side_km / 2.0
        low, high = intervals.within(found.mean, error, -half, half, confidence)
        return found.mean, (float(low[0]), float(high[0])), found.caveat


def degrees(values: ArrayLike) -> Vector:
    """Rows of latitude and longitude that are some."""
    try:
        rows = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise DomainError("places must be rows of latitude and longitude in degrees") from None
    if rows.ndim != 2 or rows.shape[1] != 2 or len(rows) == 0:
        raise DomainError(
            f"places must be rows of latitude and longitude, at least one, got shape {rows.shape}"
        )
    if not np.isfinite(rows).all():
        raise DomainError("a latitude or longitude is not a finite number")
    return rows


def _mapped(interval: Interval | None, mapping: Callable[[float], float]) -> Interval | None:
    return None if interval is None else (mapping(interval[0]), mapping(interval[1]))
