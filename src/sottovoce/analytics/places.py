"""Where people are: the mean place with intervals, and a density map, from one code a person.

Each coordinate, east and north of the map's centre in kilometres, goes through the unbiased table
of `metric_mvu`; the pair of codes is one code of 2 * bits bits. Any two places d kilometres apart
are epsilon d hidden from each other (geo-indistinguishability). The mean place is the mean of what
the codes decode to, each coordinate with Student's interval, as for any mean; the density is by
maximum likelihood (`location`) and has no interval.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.analytics import intervals, location
from sottovoce.analytics.location import SquareMap
from sottovoce.analytics.question import check_people, epsilon_of, finished, question
from sottovoce.analytics.result import Estimate, Interval, Number
from sottovoce.analytics.scalar_channel import Contributions
from sottovoce.analytics.tallies import CodeCounts, Tally
from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.core.randomness import Randomness
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.kernels.table import sample_table
from sottovoce.mechanisms.mechanism import Codes, LevelCodes, Sampling
from sottovoce.mechanisms.metric_mvu import MetricMvu
from sottovoce.mechanisms.release import release_event
from sottovoce.privacy.events import PrivacyEvent

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
        return location.mechanism_for(self.area, epsilon_per_km=self.epsilon, bits=self.bits)

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
        density = location.density_of_counts(self.mechanism, pairs, cells=self.cells)
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
