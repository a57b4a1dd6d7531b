"""The domains of a mechanism's inputs, from which the sensitivity follows.

A domain has the dimension and the clip norm; the sensitivity is computed from them and never
entered by hand.

`square_sum` gives the same number on every machine. It adds the squares in one binary tree over the
coordinates, whose shape depends only on their count: a node is the sum of its two children in
float64, absent leaves are 0. In a tile of 1024 coordinates, coordinate 32 k + l is leaf 32 l + k,
so that SIMD lanes add leaves that are adjacent in the tree; tiles follow in order. The relative
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
_CHUNK = 1 << 20  # A power of two, so that each chunk is a whole subtree.


def square_sum(values: NDArray[np.float32] | NDArray[np.float64]) -> float:
    """Return the sum of squares of a vector, the same number on every machine.

    The sum is infinite if it overflows a float64, NaN if a value is NaN, and 0 for no values.
    """
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
    """Return the root of the binary tree over each row."""
    while leaves.shape[1] > 1:
        if leaves.shape[1] % 2:
            leaves = np.pad(leaves, ((0, 0), (0, 1)))
        leaves = leaves[:, 0::2] + leaves[:, 1::2]
    return leaves[:, 0]


Vector = NDArray[np.float64]
Floats = NDArray[np.float32] | Vector

MAX_DIMENSION = 2**34
MAX_RECORDS = 2**22
MAX_END = 1e11  # The largest magnitude of an end of a box.
MAX_CATEGORIES = 2**32
# Projection stops this fraction short of the boundary, which makes up for all roundings between the
# projection and the sampler (division by sigma, sums over records in float64).
ROUNDING_HEADROOM = 2.0**-20
# Ranges of sums of squares, and of norms to divide by, without overflow or underflow.
LEAST_SQUARES, MOST_SQUARES, _MOST_NORM = 1e-200, 1e200, 1e100


class Domain(Protocol):
    """A set of vectors with the norm in which neighboring inputs are compared.

    Attributes:
        dimension: The number of coordinates.
    """

    @property
    def dimension(self) -> int:
        """The number of coordinates."""

    def check(self, values: ArrayLike) -> Vector:
        """Return the values as a float64 vector if they lie in the domain; nothing is clipped.

        Args:
            values: A vector.

        Returns:
            The vector; it may share memory with `values`.

        Raises:
            DomainError: The values lie outside the domain, are not finite, or have another
                dimension.
        """
        ...

    def project(self, values: ArrayLike) -> Vector:
        """Return a vector of the domain for these finite values, such as the clipped vector.

        Args:
            values: A vector, which may lie outside the domain.

        Returns:
            The values unchanged if they lie in the domain, else a point of the domain. A ball also
            moves values whose norm is above (1 - 2^-20) times its radius, to make up for later
            rounding.

        Raises:
            DomainError: The values are not finite, have another dimension, or cannot be clipped: a
                value is no category (`Categories`), or an `L1Ball` of several records would have to
                move them.
        """
        ...

    def sensitivity(self, adjacency: Adjacency) -> float:
        """Return the largest distance, in the domain's norm, between neighboring inputs.

        Args:
            adjacency: The definition of neighbors.

        Returns:
            The sensitivity, a distance in that norm.
        """
        ...


def plain_array(values: Any) -> NDArray[Any]:
    """Return a list, an array or a torch tensor on any device as a plain numpy array, uncopied.

    Floats of a type that numpy lacks, such as bfloat16, become float32, which is exact. DomainError
    is raised for what is no dense array, and for a masked array with masked values: what lies under
    a mask is no data.
    """
    try:
        if hasattr(values, "detach"):
            values = values.detach().cpu().resolve_conj().resolve_neg()
            if values.dtype.is_floating_point and values.dtype.itemsize < 4:
                values = values.float()
            return np.asarray(values.numpy())
        if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
            raise DomainError(
                "some values are masked; leave them out, or give them a value with .filled(0.0)"
            )
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, DomainError):
            raise
        raise DomainError(
            f"this cannot be read as a dense array of numbers ({error}); flatten and concatenate "
            "its parts, and convert a tensor with .to_dense() or .float()"
        ) from None


def finite_vector(values: ArrayLike, dimension: int) -> Vector:
    """Return the values as a float64 vector of this dimension.

    DomainError is raised for another shape, for no numbers, for NaN and for infinity.
    """
    vector = _vector(values, dimension)
    _check_finite(vector)
    return vector


def sized_vector(values: ArrayLike, dimension: int) -> Floats:
    """Return the values as a contiguous vector of this dimension, for kernels.

    An array of float16 or float32 becomes float32, which is exact; everything else becomes float64.
    DomainError is raised for another shape or no numbers; NaN and infinity are not refused.
    """
    array = plain_array(values)
    if array.dtype.kind == "f" and array.dtype.itemsize <= 4 and array.shape == (dimension,):
        return np.require(array, np.float32, ["C", "A"])
    return np.require(_vector(array, dimension), np.float64, ["C", "A"])


def contiguous_vector(values: NDArray[Any]) -> Floats:
    """Return a vector of any length as a contiguous array of float32 or float64, for kernels.

    Floats of up to 32 bits become float32, which is exact; other floats and all integers become
    float64. DomainError is raised if the array is no vector or has no numbers; NaN and infinity are
    not refused.
    """
    array = plain_array(values)
    if array.ndim != 1:
        raise DomainError(f"expected a vector, got shape {array.shape}; flatten it first")
    if array.dtype.kind not in "fiu":
        raise DomainError(f"expected numbers, got {array.dtype}; convert them to floats")
    if array.dtype.kind == "f" and array.dtype.itemsize <= 4:
        return np.require(array, np.float32, ["C", "A"])
    return np.require(array, np.float64, ["C", "A"])


def _vector(values: ArrayLike, dimension: int) -> Vector:
    array = plain_array(values)
    if array.dtype.kind not in "fiubO":
        raise DomainError(
            f"expected a vector of numbers, got {array.dtype} values; convert them to float64"
        )
    if array.shape != (dimension,):  # Before the conversion, which copies a large array.
        remedy = "pass one contribution in each call" if array.ndim == 1 else "flatten it first"
        raise DomainError(
            f"expected a vector of dimension {dimension}, got shape {array.shape}; {remedy}"
        )
    try:
        return np.require(np.asarray(array, dtype=np.float64), requirements=["A"])
    except (TypeError, ValueError) as error:
        raise DomainError(f"the input must be a vector of numbers: {error}") from None


def _check_finite(vector: Vector) -> None:
    if not np.isfinite(vector).all():
        where = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise DomainError(
            f"coordinate {where} is {vector[where]}; every coordinate must be finite. If the model "
            "has diverged, lower the learning rate; if a value is missing, leave it out"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ball:
    """Vectors of norm at most `radius` that are the mean of `records` such vectors.

    Attributes:
        dimension: The number of coordinates.
        radius: The clip norm of each record.
        records: The number of contributions of which the vector is the mean. With 1 the vector
            itself is protected (client level). With n the vector is the mean of n contributions,
            each of norm at most `radius`, and neighbors differ in one of them (sample level); n is
            public and the same for both neighbors.

    Sensitivity: radius/records for zero-out, 2 radius/records for replace-one.
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
            remedy="leave out a client without records, and split a larger one",
        )

    def norm(self, values: Vector) -> float:
        """Return the norm of a vector.

        Args:
            values: The vector.

        Returns:
            Its norm; NaN or infinity if a value is not finite.
        """
        raise NotImplementedError

    def check(self, values: ArrayLike) -> Vector:
        vector = _vector(values, self.dimension)
        norm = self.norm(vector)
        if not norm <= self.radius:  # This also catches NaN and infinity.
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
        """Return the sensitivity / (radius/records): exactly 1 for zero-out, 2 for replace-one."""
        return self.sensitivity(adjacency) / (self.radius / self.records)

    def against_zero(self, adjacency: Adjacency) -> bool:
        """Return whether one of any two neighboring inputs is always the zero vector.

        This is so for zero-out if the vector has one record.
        """
        return self.records == 1 and adjacency is Adjacency.ZERO_OUT

    def zero_centered(self, adjacency: Adjacency) -> bool:
        """Return whether each contribution to a vector lies at most half the sensitivity from zero.

        True for replace-one, whose sensitivity is twice the largest contribution; False for
        zero-out.
        """
        return adjacency is Adjacency.REPLACE_ONE


@dataclass(frozen=True, slots=True, kw_only=True)
class L2Ball(_Ball):
    """The Euclidean ball, into which a vector is projected by scaling: its direction is kept.

    Attributes:
        dimension: The number of coordinates.
        radius: The clip norm of each record.
        records: The number of contributions of which a vector is the mean. With 1 the vector itself
            is protected (client level). With n neighbors differ in one of n contributions, each of
            norm at most `radius` (sample level); n is public and the same for both neighbors.

    Sensitivity: radius/records for zero-out, 2 radius/records for replace-one.

    Examples:
        >>> L2Ball(dimension=2, radius=1.0, records=10).sensitivity(Adjacency.REPLACE_ONE)
        0.2
    """

    def norm(self, values: Floats) -> float:
        """Return the Euclidean norm of a vector, the same number on every machine.

        Args:
            values: The vector.

        Returns:
            Its norm; NaN or infinity if a value is not finite.
        """
        total = square_sum(values)
        if LEAST_SQUARES <= total <= MOST_SQUARES:
            return math.sqrt(total)
        # Scale first, so that squares neither overflow nor underflow.
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
        """Return the factor by which `project` multiplies a vector.

        Kernels use it to clip while they read the vector.

        Args:
            values: The vector.

        Returns:
            The factor: 1 if the norm is at most `limit`, else limit/norm; None if the norm is above
            1e100, which one multiplication does not clip accurately, or a value is not finite.
        """
        return self.scale_for(self.norm(values))

    def scale_for(self, norm: float) -> float | None:
        """Return the factor by which `project` multiplies a vector of this norm.

        Args:
            norm: The Euclidean norm.

        Returns:
            The factor: 1 if the norm is at most `limit`, else limit/norm; None if the norm is above
            1e100, which one multiplication does not clip accurately, or NaN.
        """
        if norm <= self.limit:
            return 1.0
        return self.limit / norm if norm <= _MOST_NORM else None

    @property
    def limit(self) -> float:
        """The norm to which `project` scales a longer vector: (1 - 2^-20) times the radius."""
        return self.radius * (1.0 - ROUNDING_HEADROOM)


@dataclass(frozen=True, slots=True, kw_only=True)
class L1Ball(_Ball):
    """The L1 ball, with the Euclidean projection (Duchi et al. 2008).

    That projection can increase L1 distances, so a mean of several records is not projected: clip
    each record.

    Attributes:
        dimension: The number of coordinates.
        radius: The clip norm of each record, in L1.
        records: The number of contributions of which a vector is the mean, as for `L2Ball`.

    Sensitivity: radius/records for zero-out, 2 radius/records for replace-one.
    """

    def norm(self, values: Vector) -> float:
        """Return the L1 norm of a vector.

        Args:
            values: The vector.

        Returns:
            Its norm; NaN or infinity if a value is not finite.
        """
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
                f"L1 norm {self.norm(vector):.6g} of a mean of {self.records} records must be at "
                f"most {limit:.6g}; clip each record before taking the mean"
            )
        # Depths are measured from the largest magnitude: coordinates `limit` or more below it
        # become 0, and no precision is lost however large the vector is.
        magnitudes = np.abs(vector)
        depths = np.minimum(magnitudes.max() - magnitudes, limit)
        ordered = np.sort(depths)
        counts = np.arange(1, self.dimension + 1)
        levels = (limit + np.cumsum(ordered)) / counts
        last = int(np.flatnonzero(ordered < levels)[-1])
        shrunk = np.sign(vector) * np.minimum(magnitudes, np.maximum(levels[last] - depths, 0.0))
        # The soft threshold meets the limit up to rounding; the rescaling corrects the last bits.
        return np.asarray(shrunk * min(1.0, limit / self.norm(shrunk)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepsOnSamples(_Ball):
    steps: int
    sampling_rate: float

    def __post_init__(self) -> None:
        _Ball.__post_init__(self)
        parameter_rules.integer("steps", self.steps, low=1, high=2**31)
        parameter_rules.fraction("sampling_rate", self.sampling_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedL2Ball(_StepsOnSamples, L2Ball):
    """The L2 ball of a client that gives the mechanism several inputs in a round: local DP-SGD.

    Each input is a sum over a secret Poisson sample of the client's records, divided by `records`,
    the public expected size of the sample (or less).

    Attributes:
        dimension: The number of coordinates.
        radius: The clip norm of each record.
        records: The number by which the sum is divided.
        steps: The number of inputs in a round.
        sampling_rate: The probability with which each record is in the sample of a step.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedL1Ball(_StepsOnSamples, L1Ball):
    """The L1 ball of a client that gives the mechanism several inputs in a round.

    Attributes:
        dimension: The number of coordinates.
        radius: The clip norm of each record, in L1, times any whole number by which `records` is
            multiplied too, so that every sum lies in the ball.
        records: The number by which the sum is divided.
        steps: The number of inputs in a round.
        sampling_rate: The probability with which each record is in the sample of a step.
    """


SteppedBall = SteppedL2Ball | SteppedL1Ball


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Vectors with every coordinate in [lower, upper], compared in the maximum norm.

    Attributes:
        dimension: The number of coordinates.
        lower: The smallest value of a coordinate.
        upper: The largest value of a coordinate.
    """

    dimension: int
    lower: float
    upper: float

    def __post_init__(self) -> None:
        parameter_rules.integer("dimension", self.dimension, low=1, high=MAX_DIMENSION)
        for name, end in (("lower", self.lower), ("upper", self.upper)):
            if not abs(parameter_rules.finite(name, end)) <= MAX_END:
                raise ParameterError(
                    f"{name} must lie within {MAX_END:g} of 0, got {end!r}; scale the data down"
                )
        if not self.lower < self.upper:
            raise ParameterError(
                f"lower must be below upper, got lower = {self.lower} and upper = {self.upper}; "
                "give the smaller end as lower"
            )
        parameter_rules.clip_norm("upper - lower", self.upper - self.lower)

    def check(self, values: ArrayLike) -> Vector:
        vector = _vector(values, self.dimension)
        # The negated condition also catches NaN.
        if not (self.lower <= vector.min() and vector.max() <= self.upper):
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
        """Return the largest distance between neighboring inputs in the maximum norm.

        Args:
            adjacency: The definition of neighbors. Zero-out replaces a vector by the point of the
                box that is nearest to 0, replace-one by any point.

        Returns:
            upper - lower for replace-one; the largest distance from the point nearest to 0 for
            zero-out.
        """
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

    All categories are equally far from each other, at distance 1, so nothing can be clipped: a
    value that is no category is refused. Answers of people are such vectors; updates of a model are
    not.

    Attributes:
        dimension: The number of coordinates.
        num_categories: The number of categories of each coordinate.
    """

    dimension: int
    num_categories: int

    def __post_init__(self) -> None:
        parameter_rules.integer("dimension", self.dimension, low=1, high=MAX_DIMENSION)
        parameter_rules.integer("num_categories", self.num_categories, low=2, high=MAX_CATEGORIES)

    @property
    def bits(self) -> int:
        """The number of bits of one category's number: ceil(log2(num_categories))."""
        return (self.num_categories - 1).bit_length()

    def check(self, values: ArrayLike) -> Vector:
        vector = _vector(values, self.dimension)
        known = (vector == np.floor(vector)) & (vector >= 0.0) & (vector < self.num_categories)
        if not known.all():  # This also catches NaN and infinity.
            where = int(np.flatnonzero(~known)[0])
            raise DomainError(
                f"coordinate {where} is {vector[where]:.6g}, expected a category, a whole number "
                f"from 0 to {self.num_categories - 1}; for numbers that can be clipped, use a Box"
            )
        return vector

    def project(self, values: ArrayLike) -> Vector:
        """Return the categories unchanged; a value that is no category is refused.

        Args:
            values: A vector of categories.

        Returns:
            The vector.

        Raises:
            DomainError: A value is no category.
        """
        return self.check(values)

    # Any category may become any other under both adjacencies.
    def sensitivity(self, adjacency: Adjacency) -> float:  # noqa: ARG002
        return 1.0


def clipped_domain(geometry: str, dimension: int, clip_norm: float, records: int = 1) -> Domain:
    """Return the domain of vectors that are clipped to a norm.

    Args:
        geometry: The norm: 'l2', 'l1' or 'linf' (a box around 0).
        dimension: The number of coordinates.
        clip_norm: The largest norm.
        records: The number of records, each clipped, of which a vector is the mean; 1 for 'linf'.

    Returns:
        An `L2Ball`, an `L1Ball` or a `Box`.

    Raises:
        UnknownNameError: The geometry is unknown.
        ParameterError: A number is outside its range, or 'linf' has several records.

    Examples:
        >>> clipped_domain("l2", 10, 1.5)
        L2Ball(dimension=10, radius=1.5, records=1)
    """
    match geometry:
        case "l2":
            return L2Ball(dimension=dimension, radius=clip_norm, records=records)
        case "l1":
            return L1Ball(dimension=dimension, radius=clip_norm, records=records)
        case "linf":
            parameter_rules.integer(
                "records", records, low=1, high=1, remedy="for more records clip in l2 or l1"
            )
            radius = parameter_rules.clip_norm("clip norm", clip_norm)
            return Box(dimension=dimension, lower=-radius, upper=radius)
        case _:
            raise UnknownNameError.among("clip geometry", geometry, ["l1", "l2", "linf"])


def geometry_of(domain: Domain) -> str:
    """Return the geometry of a domain as `clipped_domain` names it: 'l2', 'l1' or 'linf'.

    'linf' stands for a `Box` and for every other domain that is not a ball, `Categories` too.
    """
    match domain:
        case L2Ball():
            return "l2"
        case L1Ball():
            return "l1"
        case _:
            return "linf"


def clip_norm_of(domain: Domain) -> float:
    """Return the clip norm of a domain: a ball's radius, or a box's largest absolute value.

    ParameterError is raised for any other domain, such as `Categories`.
    """
    match domain:
        case L1Ball() | L2Ball():
            return domain.radius
        case Box():
            return max(abs(domain.lower), abs(domain.upper))
        case Categories():
            raise ParameterError(
                "categories are not clipped, so they have no clip norm; to account for them, "
                "pass the event release_event(mechanism, adjacency=...)"
            )
        case _:
            raise ParameterError(f"{domain} has no clip norm; use an L2Ball, an L1Ball or a Box")


def enclosing_ball(domain: Domain) -> L2Ball:
    """Return the smallest Euclidean ball around 0 that contains the domain, rounded up.

    An `L2Ball` is returned as it is. A ball's number of records is kept. ParameterError is raised
    unless the domain is an `L2Ball`, an `L1Ball` or a `Box`, and if the radius would exceed 1e12.
    """
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
            raise ParameterError(
                f"no ball around {domain} is known; use an L2Ball, an L1Ball or a Box"
            )


def require_l2_ball(domain: Domain) -> L2Ball:
    """Return the domain if it is a Euclidean ball (`L2Ball`); raise ParameterError otherwise.

    The privacy proofs of Gaussian-like noise need the Euclidean norm.
    """
    if not isinstance(domain, L2Ball):
        raise ParameterError(
            f"input_domain must be an L2Ball, got {type(domain).__name__}: this mechanism's "
            "privacy is proved for Euclidean clipping; set the clip geometry to l2"
        )
    return domain
