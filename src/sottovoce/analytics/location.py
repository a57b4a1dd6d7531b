"""Where people are, without where anyone is: a density map from privatised places.

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
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Box, Vector
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.core.randomness import Randomness
from sottovoce.mechanisms.encoding import encode_packed, prepare
from sottovoce.mechanisms.metric_mvu import MetricMvu

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
