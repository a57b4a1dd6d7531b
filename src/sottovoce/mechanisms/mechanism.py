"""What a mechanism is, the formats of its codes, and the laws it can declare."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce import parameters
from sottovoce.adjacency import Adjacency
from sottovoce.domains import Domain, Vector
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.randomness import Keystream

Codes = NDArray[np.uint8] | NDArray[np.float32]

Sampling = Literal["exact", "float", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelCodes:
    """Integers 0 ... levels - 1, packed into ceil(log2 levels) bits each."""

    levels: int

    def __post_init__(self) -> None:
        parameters.integer("levels", self.levels, low=2, high=256)

    @property
    def bits(self) -> int:
        return (self.levels - 1).bit_length()


@dataclass(frozen=True, slots=True, kw_only=True)
class Float32Codes:
    """Plain float32 numbers: no compression."""

    bits: ClassVar[int] = 32


CodeFormat = LevelCodes | Float32Codes


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
class PointLaw:
    """Every coordinate decodes to itself."""

    centre: Vector

    def mean(self) -> Vector:
        return self.centre

    def variance(self) -> Vector:
        return np.zeros_like(self.centre)


Law = FiniteLaw | GaussianLaw | PointLaw


class Mechanism(Protocol):
    """Privatise and compress a vector. Implementations are frozen dataclasses of public values.

    sampling   'exact': the sampled law is the declared one, bit by bit; fit for deployment.
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
