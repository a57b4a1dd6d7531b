"""Domains: where a mechanism's inputs live, and so how far neighbours can lie apart.

A domain carries the dimension and the clip; sensitivity follows from it and is never typed in.

The sum of squares, the same number on every machine.

One binary tree over the coordinates, whose shape depends on their count alone: a node is the sum of
its two children in float64, absent leaves are 0. In a tile of 1024 coordinates, coordinate 32 k + l
is leaf 32 l + k, so that neighbours are added lane by lane; tiles follow in order. The relative
error is below (log2(count) + 2) 2^-53.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import DomainError, ParameterError, UnknownNameError
from sottovoce.core.native import native

_TILE = 1024
_LANES = 32
_CHUNK = 1 << 20  # whole subtrees


def square_sum(values: NDArray[np.float32] | NDArray[np.float64]) -> float:
    """The sum of squares of a vector; what overflows is infinite, NaN stays NaN."""
    kernels = native()
    if kernels is not None and values.flags.c_contiguous and values.flags.aligned:
        wide = values.dtype == np.float64
        return float(kernels.library.square_sum(kernels.level, values, wide))
    with np.errstate(over="ignore", invalid="ignore"):
        chunks = [_subtree(values[at : at + _CHUNK]) for at in range(0, len(values), _CHUNK)]
        return float(_tree(np.array([chunks]))[0]) if chunks else 0.0


def _subtree(values: NDArray[np.floating]) -> float:
    tiles = np.zeros((-(-len(values) // _TILE), _TILE))
    tiles.ravel()[: len(values)] = values
    tiles *= tiles
    leaves = tiles.reshape(len(tiles), _LANES, _LANES).transpose(0, 2, 1).reshape(len(tiles), -1)
    return float(_tree(_tree(leaves)[None])[0])


def _tree(leaves: NDArray[np.float64]) -> NDArray[np.float64]:
    """The roots over each row."""
    while leaves.shape[1] > 1:
        if leaves.shape[1] % 2:
            leaves = np.pad(leaves, ((0, 0), (0, 1)))
        leaves = leaves[:, 0::2] + leaves[:, 1::2]
    return leaves[:, 0]


Vector = NDArray[np.float64]
Floats = NDArray[np.float32] | Vector

MAX_DIMENSION = 2**34
MAX_RECORDS = 2**22
MAX_END = 1e11  # of a box
MAX_CATEGORIES = 2**32
# Projection stops this fraction short of the boundary, which pays for every rounding that happens
# between the projection and the sampler (division by sigma, sums over records in float64).
ROUNDING_HEADROOM = 2.0**-20
# Sums of squares, and norms to divide by, within which nothing overflows or vanishes.
LEAST_SQUARES, MOST_SQUARES, _MOST_NORM = 1e-200, 1e200, 1e100


class Domain(Protocol):
    """A set of vectors with a norm in which neighbours are compared."""

    @property
    def dimension(self) -> int: ...

    def check(self, values: ArrayLike) -> Vector:
        """`values` as float64 if they lie in the domain, else DomainError."""
        ...

    def project(self, values: ArrayLike) -> Vector:
        """The visible step that brings finite `values` into the domain."""
        ...

    def sensitivity(self, adjacency: Adjacency) -> float:
        """Largest distance, in the domain's norm, between neighbouring inputs."""
        ...


def finite_vector(values: ArrayLike, dimension: int) -> Vector:
    """`values` as a float64 vector of the given dimension without NaN or infinity."""
    vector = _vector(values, dimension)
    _check_finite(vector)
    return vector


def sized_vector(values: ArrayLike, dimension: int) -> Floats:
    """`values` as a contiguous vector of the given dimension, in float32 if that holds them."""
    array = np.asarray(values)
    if array.dtype.kind == "f" and array.dtype.itemsize <= 4 and array.shape == (dimension,):
        return np.require(array, np.float32, ["C", "A"])
    return np.require(_vector(values, dimension), np.float64, ["C", "A"])


def contiguous_vector(values: NDArray[Any]) -> Floats:
    """`values` as kernels take them: float16 becomes float32, exactly; anything wider, float64."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise DomainError(f"expected a vector, got shape {array.shape}; flatten it first")
    if array.dtype.kind not in "fiu":
        raise DomainError(f"expected numbers, got {array.dtype}")
    if array.dtype.kind == "f" and array.dtype.itemsize <= 4:
        return np.require(array, np.float32, ["C", "A"])
    return np.require(array, np.float64, ["C", "A"])


def _vector(values: ArrayLike, dimension: int) -> Vector:
    try:
        vector = np.require(np.asarray(values, dtype=np.float64), requirements=["A"])
    except (TypeError, ValueError) as error:
        raise DomainError(f"expected a vector of numbers: {error}") from None
    if vector.shape != (dimension,):
        remedy = "one call is for one contribution" if vector.ndim == 1 else "flatten it first"
        raise DomainError(
            f"expected a vector of dimension {dimension}, got shape {vector.shape}; {remedy}"
        )
    return vector


def _check_finite(vector: Vector) -> None:
    if not np.isfinite(vector).all():
        where = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise DomainError(
            f"coordinate {where} is {vector[where]}; every coordinate must be finite "
            "(a diverged model? lower the learning rate; a missing value? leave it out)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ball:
    """Vectors of norm at most `radius` that are the mean of `records` such vectors.

    records = 1     the vector itself is what is protected (client level).
    records = n     the vector is the mean of n contributions, each of norm at most `radius`, and
                    neighbours differ in one of them (sample level); n is public and the same for
                    both neighbours.

    Sensitivity: radius/records zero-out, 2 radius/records replace-one.
    """

    dimension: int
    radius: float
    records: int = 1

    def __post_init__(self) -> None:
        parameter_rules.integer("dimension", self.dimension, low=1, high=MAX_DIMENSION)
        parameter_rules.clip_norm("radius (the clip norm)", self.radius)
        parameter_rules.integer(
            "records",
            self.records,
            low=1,
            high=MAX_RECORDS,
            remedy="an empty client cannot take part, a larger one can be split",
        )

    def norm(self, values: Vector) -> float:
        raise NotImplementedError

    def check(self, values: ArrayLike) -> Vector:
        vector = _vector(values, self.dimension)
        norm = self.norm(vector)
        if not norm <= self.radius:  # NaN and infinity end here, too
            _check_finite(vector)
            raise DomainError(
                f"norm {norm:.6g} exceeds the radius {self.radius:.6g}; call project() first"
            )
        return vector

    def sensitivity(self, adjacency: Adjacency) -> float:
        shift = self.radius / self.records
        match adjacency:
            case Adjacency.ZERO_OUT:
                return shift
            case Adjacency.REPLACE_ONE:
                return 2.0 * shift
            case _:
                assert_never(adjacency)

    def relative_sensitivity(self, adjacency: Adjacency) -> float:
        """Sensitivity in units of radius/records: 1 or 2, exactly."""
        return self.sensitivity(adjacency) / (self.radius / self.records)

    def against_zero(self, adjacency: Adjacency) -> bool:
        """Whether one of any two neighbours is the vector 0: nothing else is in it."""
        return self.records == 1 and adjacency is Adjacency.ZERO_OUT

    def zero_centered(self, adjacency: Adjacency) -> bool:
        """Whether zero lies half-way between the neighbors that are farthest apart."""
        return adjacency is Adjacency.REPLACE_ONE


@dataclass(frozen=True, slots=True, kw_only=True)
class L2Ball(_Ball):
    """The Euclidean ball; projection scales, so the direction is kept."""

    def norm(self, values: Floats) -> float:
        total = square_sum(values)
        if LEAST_SQUARES <= total <= MOST_SQUARES:
            return math.sqrt(total)
        # Scaled first so that squares neither overflow nor vanish.
        largest = float(np.max(np.abs(values)))
        if largest == 0.0 or not math.isfinite(largest):
            return largest
        return largest * math.sqrt(square_sum(values.astype(np.float64) / largest))

    def project(self, values: ArrayLike) -> Vector:
        vector = _vector(values, self.dimension)
        scale = self.clip_scale(vector)
        if scale is not None:
            return vector if scale == 1.0 else vector * scale
        _check_finite(vector)
        unit = vector / float(np.max(np.abs(vector)))
        return unit * (self.limit / math.sqrt(square_sum(unit)))

    def clip_scale(self, values: Floats) -> float | None:
        """What `project` multiplies a vector with; None if it is too long for that, or not finite.

        So that kernels may clip as they go.
        """
        return self.scale_for(self.norm(values))

    def scale_for(self, norm: float) -> float | None:
        """The same, for a vector of this norm."""
        if norm <= self.limit:
            return 1.0
        return self.limit / norm if norm <= _MOST_NORM else None

    @property
    def limit(self) -> float:
        """The norm that `project` leaves a longer vector with."""
        return self.radius * (1.0 - ROUNDING_HEADROOM)


@dataclass(frozen=True, slots=True, kw_only=True)
class L1Ball(_Ball):
    """The cross-polytope; projection is the Euclidean one (Duchi et al. 2008).

    That projection can lengthen L1 distances, so a mean of several records is not projected:
    clip each record.
    """

    def norm(self, values: Vector) -> float:
        largest = float(np.max(np.abs(values)))
        if largest == 0.0 or not math.isfinite(largest):
            return largest
        return largest * float(np.sum(np.abs(values / largest)))

    def project(self, values: ArrayLike) -> Vector:
        vector = finite_vector(values, self.dimension)
        limit = self.radius * (1.0 - ROUNDING_HEADROOM)
        if self.norm(vector) <= limit:
            return vector
        if self.records > 1:
            raise DomainError(
                f"L1 norm {self.norm(vector):.6g} of a mean of {self.records} records exceeds "
                f"{limit:.6g}; clip each record before taking the mean"
            )
        # Measured down from the largest magnitude: what lies `limit` or more below it ends at 0,
        # and nothing is lost to rounding however large the vector is.
        magnitudes = np.abs(vector)
        depths = np.minimum(magnitudes.max() - magnitudes, limit)
        ordered = np.sort(depths)
        counts = np.arange(1, self.dimension + 1)
        levels = (limit + np.cumsum(ordered)) / counts
        last = int(np.flatnonzero(ordered < levels)[-1])
        shrunk = np.sign(vector) * np.minimum(magnitudes, np.maximum(levels[last] - depths, 0.0))
        # The soft threshold meets the limit up to rounding; the rescaling settles the last bits.
        return np.asarray(shrunk * min(1.0, limit / self.norm(shrunk)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Vectors with every coordinate in [lower, upper], compared in the maximum norm."""

    dimension: int
    lower: float
    upper: float

    def __post_init__(self) -> None:
        parameter_rules.integer("dimension", self.dimension, low=1, high=MAX_DIMENSION)
        for name, end in (("lower", self.lower), ("upper", self.upper)):
            if not abs(parameter_rules.finite(name, end)) <= MAX_END:
                raise ParameterError(
                    f"{name} must lie within {MAX_END:g} of 0, got {end!r}; scale the data"
                )
        if not self.lower < self.upper:
            raise ParameterError(
                f"lower must be below upper, got [{self.lower}, {self.upper}]; give the smaller "
                "end as lower"
            )
        parameter_rules.clip_norm("upper - lower", self.upper - self.lower)

    def check(self, values: ArrayLike) -> Vector:
        vector = _vector(values, self.dimension)
        if not (self.lower <= vector.min() and vector.max() <= self.upper):  # NaN ends here, too
            _check_finite(vector)
            outside = np.flatnonzero((vector < self.lower) | (vector > self.upper))
            raise DomainError(
                f"coordinate {int(outside[0])} is {vector[outside[0]]:.6g}, outside "
                f"[{self.lower:g}, {self.upper:g}]; call project() first"
            )
        return vector

    def project(self, values: ArrayLike) -> Vector:
        return np.clip(finite_vector(values, self.dimension), self.lower, self.upper)

    def sensitivity(self, adjacency: Adjacency) -> float:
        """Zero-out compares with the point of the box nearest to 0, replace-one with any."""
        match adjacency:
            case Adjacency.REPLACE_ONE:
                return self.upper - self.lower
            case Adjacency.ZERO_OUT:
                origin = min(max(0.0, self.lower), self.upper)
                return max(self.upper - origin, origin - self.lower)
            case _:
                assert_never(adjacency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Categories:
    """Vectors with a category in every coordinate: one of `num_categories`, numbered from 0.

    No category lies nearer to one than to another, so any two are 1 apart, and nothing is clipped:
    what is no category is refused. Answers of people are such vectors; updates of a model are not.
    """

    dimension: int
    num_categories: int

    def __post_init__(self) -> None:
        parameter_rules.integer("dimension", self.dimension, low=1, high=MAX_DIMENSION)
        parameter_rules.integer("num_categories", self.num_categories, low=2, high=MAX_CATEGORIES)

    @property
    def bits(self) -> int:
        """Bits that the number of one category takes."""
        return (self.num_categories - 1).bit_length()

    def check(self, values: ArrayLike) -> Vector:
        vector = _vector(values, self.dimension)
        known = (vector == np.floor(vector)) & (vector >= 0.0) & (vector < self.num_categories)
        if not known.all():  # NaN and infinity end here, too
            where = int(np.flatnonzero(~known)[0])
            raise DomainError(
                f"coordinate {where} is {vector[where]:.6g}, expected a category, a whole number "
                f"from 0 to {self.num_categories - 1}; for numbers that can be clipped use a Box"
            )
        return vector

    def project(self, values: ArrayLike) -> Vector:
        """Return categories as they are: none is the nearest to what is none."""
        return self.check(values)

    def sensitivity(self, adjacency: Adjacency) -> float:  # noqa: ARG002  (any may become any)
        return 1.0


def clipped(geometry: str, dimension: int, clip_norm: float, records: int = 1) -> Domain:
    """The domain of vectors clipped to a norm: 'l2', 'l1' or 'linf' (a box around 0).

    Or of means of so many `records`, each clipped; a box is for one.
    """
    match geometry:
        case "l2":
            return L2Ball(dimension=dimension, radius=clip_norm, records=records)
        case "l1":
            return L1Ball(dimension=dimension, radius=clip_norm, records=records)
        case "linf":
            parameter_rules.integer("records", records, low=1, high=1, remedy="clip in l2 or l1")
            radius = parameter_rules.clip_norm("clip norm", clip_norm)
            return Box(dimension=dimension, lower=-radius, upper=radius)
        case _:
            raise UnknownNameError.among("clip geometry", geometry, ["l1", "l2", "linf"])


def geometry_of(domain: Domain) -> str:
    """The name under which `clipped` makes such a domain."""
    match domain:
        case L2Ball():
            return "l2"
        case L1Ball():
            return "l1"
        case _:
            return "linf"


def clip_norm_of(domain: Domain) -> float:
    """The norm with which `clipped` makes such a domain."""
    match domain:
        case L1Ball() | L2Ball():
            return domain.radius
        case Box():
            return max(abs(domain.lower), abs(domain.upper))
        case Categories():
            raise ParameterError(
                "categories are not clipped, so they have no clip norm; for what their answers "
                "cost give the event, release_event(mechanism, adjacency=...)"
            )
        case _:
            raise ParameterError(f"{domain} has no clip norm")


def enclosing_ball(domain: Domain) -> L2Ball:
    """The least Euclidean ball around 0 that holds the domain, rounded up."""
    match domain:
        case L2Ball():
            return domain
        case L1Ball():
            return L2Ball(dimension=domain.dimension, radius=domain.radius, records=domain.records)
        case Box():
            farthest = max(abs(domain.lower), abs(domain.upper))
            radius = farthest * math.sqrt(domain.dimension) * (1.0 + 2.0**-40)
            return L2Ball(dimension=domain.dimension, radius=radius)
        case _:
            raise ParameterError(f"no ball is known around {domain}")


def require_l2_ball(domain: Domain) -> L2Ball:
    """`domain` if it is a Euclidean ball, the only one whose geometry Gaussian-like noise fits."""
    if not isinstance(domain, L2Ball):
        raise ParameterError(
            f"input_domain must be an L2Ball (clip geometry l2), got {type(domain).__name__}; "
            "this mechanism's privacy is proved for Euclidean clipping"
        )
    return domain
