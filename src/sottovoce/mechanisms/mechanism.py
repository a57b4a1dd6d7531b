"""What a mechanism is, the formats of its codes, and the laws it can declare."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import MAX_DIMENSION, Domain, Vector
from sottovoce.core.errors import DomainError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.noise.laws import Staircase
from sottovoce.privacy.events import PrivacyEvent

Codes = NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.uint32] | NDArray[np.float32]

MAX_CODE_BITS = 32

Sampling = Literal["exact", "float", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelCodes:
    """Integers 0 ... levels - 1, packed into ceil(log2 levels) bits each.

    A message holds `count` of them, or one for each coordinate if `count` is None. In memory they
    have the smallest unsigned type that holds every level.
    """

    levels: int
    count: int | None = None

    def __post_init__(self) -> None:
        parameter_rules.integer("levels", self.levels, low=2, high=2**MAX_CODE_BITS)
        if self.count is not None:
            parameter_rules.integer("count", self.count, low=1, high=MAX_DIMENSION)

    @property
    def bits(self) -> int:
        """Bits of one code."""
        return (self.levels - 1).bit_length()

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.min_scalar_type(self.levels - 1)

    def num_codes(self, dimension: int) -> int:
        """Codes in the message of one vector."""
        return dimension if self.count is None else self.count

    def payload_bits(self, dimension: int) -> int:
        """Bits that the codes of one vector take, before padding to whole bytes."""
        return self.num_codes(dimension) * self.bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Float32Codes:
    """Plain float32 numbers, one for each coordinate: no compression."""

    bits: ClassVar[int] = 32

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def num_codes(self, dimension: int) -> int:
        return dimension

    def payload_bits(self, dimension: int) -> int:
        return dimension * self.bits


CodeFormat = LevelCodes | Float32Codes


def level_indices(codes: ArrayLike, levels: int) -> NDArray[np.intp]:
    """Codes as indices; anything but integers 0 ... levels - 1 is refused."""
    array = np.asarray(codes)
    if array.dtype.kind not in "iu" or (
        array.size and not 0 <= int(array.min()) <= int(array.max()) < levels
    ):
        raise DomainError(f"codes must be integers from 0 to {levels - 1}")
    return array.astype(np.intp)


@dataclass(frozen=True, slots=True, kw_only=True)
class FiniteLaw:
    """Coordinate i decodes to points[j] with probability table[i, j], independently."""

    points: Vector
    table: Vector

    def mean(self) -> Vector:
        return np.asarray(self.table @ self.points)

    def variance(self) -> Vector:
        return np.asarray(self.table @ self.points**2 - self.mean() ** 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianLaw:
    """Coordinate i decodes to N(centre[i], stddev^2), independently."""

    centre: Vector
    stddev: float

    def mean(self) -> Vector:
        return self.centre

    def variance(self) -> Vector:
        return np.full_like(self.centre, self.stddev**2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceLaw:
    """Coordinate i decodes to centre[i] plus Laplace noise of this scale, independently."""

    centre: Vector
    scale: float

    def mean(self) -> Vector:
        return self.centre

    def variance(self) -> Vector:
        return np.full_like(self.centre, 2.0 * self.scale**2)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaircaseLaw:
    """Coordinate i decodes to centre[i] plus this staircase noise, independently."""

    centre: Vector
    noise: Staircase

    def mean(self) -> Vector:
        return self.centre

    def variance(self) -> Vector:
        return np.full_like(self.centre, self.noise.variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointLaw:
    """The whole vector decodes to points[k] with probability pmf[k]; coordinates depend."""

    points: Vector
    pmf: Vector

    def mean(self) -> Vector:
        return np.asarray(self.pmf @ self.points)

    def variance(self) -> Vector:
        return np.asarray(self.pmf @ self.points**2 - self.mean() ** 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentLaw:
    """Only mean and variance of each coordinate are known in closed form."""

    centre: Vector
    spread: Vector

    def mean(self) -> Vector:
        return self.centre

    def variance(self) -> Vector:
        return self.spread


@dataclass(frozen=True, slots=True, kw_only=True)
class PointLaw:
    """Every coordinate decodes to itself."""

    centre: Vector

    def mean(self) -> Vector:
        return self.centre

    def variance(self) -> Vector:
        return np.zeros_like(self.centre)


Law = FiniteLaw | GaussianLaw | LaplaceLaw | StaircaseLaw | JointLaw | MomentLaw | PointLaw


class Mechanism(Protocol):
    """Privatise and compress a vector. Implementations are frozen dataclasses of public values.

    sampling   'exact': the privacy claimed is that of what really runs, bit by bit; for deployment.
               'float': float64 noise, whose last bits leak; fit for simulation, and labelled so.
               'none':  nothing is sampled.
    """

    sampling: ClassVar[Sampling]

    @property
    def input_domain(self) -> Domain:
        """Carries the dimension and the clip: sensitivity follows from it."""
        ...

    def code_format(self) -> CodeFormat: ...

    def encode(self, values: ArrayLike, keystream: Keystream) -> Codes:
        """Codes for `values`, which must lie in the domain; consumes the keystream."""
        ...

    def decode(self, codes: Codes) -> Vector:
        """What the server reads in the codes."""
        ...

    def law(self, values: ArrayLike) -> Law:
        """The law of decode(encode(values)); its mean declares the bias."""
        ...

    def privacy(self, adjacency: Adjacency) -> PrivacyEvent:
        """The worst case over neighbours in the input domain, of the law that runs."""
        ...


@runtime_checkable
class Pointwise(Protocol):
    """A mechanism whose code j stands for points[j] in its own coordinate, whatever the others are.

    One code for each coordinate, then, and decode(codes) is points[codes] to the last bit: a server
    may add up codes instead of vectors.
    """

    @property
    def points(self) -> Vector: ...


class SignLayout(Protocol):
    """How the signs that a message stands for lie over a vector."""

    @property
    def num_signs(self) -> int: ...

    def folded(self, values: Vector) -> Vector:
        """The vector of what was decoded of each sign: linear."""
        ...


@runtime_checkable
class Expanding(Protocol):
    """A mechanism whose few codes stand for many signs, which anybody can expand.

    decode(codes) is +-magnitude for each sign, folded: a server may count signs, and fold once.
    """

    @property
    def magnitude(self) -> float: ...

    def layout(self) -> SignLayout: ...

    def signs(self, messages: Codes) -> NDArray[np.uint8]:
        """The signs of several messages, a row for each: packed, the lowest bit first; 1 is +."""
        ...


@runtime_checkable
class SendsSigns(Protocol):
    """A mechanism that may send one bit a coordinate: a sign.

    `sign_size` is then what a bit stands for, + if it is 1 and - if it is 0, and None otherwise. A
    simulator may count bits instead of adding up vectors.
    """

    @property
    def sign_size(self) -> float | None: ...


@runtime_checkable
class BoundedDensity(Protocol):
    """A mechanism whose messages all have densities within bounds against one common law.

    What a secret order needs to hide a message well: see `privacy.shuffling`.
    """

    def density_ratios(self) -> tuple[float, float] | None:
        """Return (lo, hi) with lo <= dR/dQ <= hi, rounded outward; None if none are certified.

        R is the law of a message for any input in the domain, with all that runs (fillings, tries
        that fail), and Q is one law that depends on public parameters alone.
        """
        ...


def has_a_range(mechanism: Mechanism) -> bool:
    """Whether a coordinate is sent as one of finitely many codes: then a rotation may gain."""
    if isinstance(mechanism, Expanding):
        return True
    code_format = mechanism.code_format()
    return isinstance(code_format, LevelCodes) and code_format.count is None


def points_of(mechanism: Mechanism, *, most: int) -> Vector | None:
    """What each of at most so many codes stands for, where codes are decoded one by one."""
    code_format = mechanism.code_format()
    if not isinstance(code_format, LevelCodes) or code_format.levels > most:
        return None  # asked first: some mechanisms have 2^32 points
    return mechanism.points if isinstance(mechanism, Pointwise) else None


def bits_per_coordinate(mechanism: Mechanism) -> float:
    """Bits that one message's codes take, divided by the dimension; the header is not counted."""
    dimension = mechanism.input_domain.dimension
    return mechanism.code_format().payload_bits(dimension) / dimension
