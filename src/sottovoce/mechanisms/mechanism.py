"""The protocol of mechanisms, the formats of their codes and the output laws that they declare."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import MAX_DIMENSION, Domain, Vector, plain_array
from sottovoce.core.errors import DomainError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.noise.laws import ScalarStaircase
from sottovoce.mechanisms.packing import packed_size
from sottovoce.privacy.events import PrivacyEvent

Codes = NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.uint32] | NDArray[np.float32]

MAX_CODE_BITS = 32

Sampling = Literal["exact", "float", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelCodes:
    """A code format: integers 0 ... levels - 1, packed into ceil(log2(levels)) bits each.

    In memory the codes have the smallest unsigned type that holds levels - 1.

    Attributes:
        levels: The number of different codes, from 2 to 2^32.
        count: The number of codes in a message, or None for one code per coordinate.

    Examples:
        >>> LevelCodes(levels=5).payload_bits(1000)
        3000
    """

    levels: int
    count: int | None = None

    def __post_init__(self) -> None:
        parameter_rules.integer("levels", self.levels, low=2, high=2**MAX_CODE_BITS)
        if self.count is not None:
            parameter_rules.integer("count", self.count, low=1, high=MAX_DIMENSION)

    @property
    def bits(self) -> int:
        """The number of bits of one packed code: ceil(log2(levels))."""
        return (self.levels - 1).bit_length()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of the codes in memory: the smallest unsigned one that holds them."""
        return np.min_scalar_type(self.levels - 1)

    def num_codes(self, dimension: int) -> int:
        """Return the number of codes in the message of one vector.

        Args:
            dimension: The number of coordinates of the vector.

        Returns:
            `count`, or the dimension if `count` is None.
        """
        return dimension if self.count is None else self.count

    def payload_bits(self, dimension: int) -> int:
        """Return the number of bits that the codes of one vector take.

        Args:
            dimension: The number of coordinates of the vector.

        Returns:
            The number of bits before padding to whole bytes.
        """
        return self.num_codes(dimension) * self.bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Float32Codes:
    """A code format without compression: one float32 number per coordinate."""

    bits: ClassVar[int] = 32

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of the codes in memory: float32."""
        return np.dtype(np.float32)

    def num_codes(self, dimension: int) -> int:
        """Return the number of codes in the message of one vector.

        Args:
            dimension: The number of coordinates of the vector.

        Returns:
            The dimension.
        """
        return dimension

    def payload_bits(self, dimension: int) -> int:
        """Return the number of bits that the codes of one vector take.

        Args:
            dimension: The number of coordinates of the vector.

        Returns:
            32 bits per coordinate.
        """
        return dimension * self.bits


CodeFormat = LevelCodes | Float32Codes


def level_indices(codes: ArrayLike, levels: int) -> NDArray[np.intp]:
    """Return codes as array indices; refuse all but integers from 0 to levels - 1.

    Raises:
        DomainError: A code is not such an integer.
    """
    array = plain_array(codes)
    if array.dtype.kind not in "iu" or (
        array.size and not 0 <= int(array.min()) <= int(array.max()) < levels
    ):
        raise DomainError(
            f"codes must be integers from 0 to {levels - 1}; pass the codes that `encode` returned"
        )
    return array.astype(np.intp)


def float_codes(codes: ArrayLike) -> Vector:
    """Return floating-point codes in float64; raise DomainError for anything else."""
    array = plain_array(codes)
    if array.dtype.kind != "f":
        raise DomainError(
            f"codes must be floating-point numbers, got {array.dtype}; pass the codes that "
            "`encode` returned"
        )
    return array.astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class FiniteLaw:
    """A law under which coordinate i decodes to points[j] with probability table[i, j].

    Coordinates are independent of each other.

    Attributes:
        points: The values that the codes decode to.
        table: One row per coordinate and one column per code; each row sums to 1.
    """

    points: Vector
    table: Vector

    def mean(self) -> Vector:
        """Return the mean of each decoded coordinate.

        Returns:
            One number per row of the table.
        """
        return np.asarray(self.table @ self.points)

    def variance(self) -> Vector:
        """Return the variance of each decoded coordinate.

        Returns:
            One number per row of the table.
        """
        return np.asarray(self.table @ self.points**2 - self.mean() ** 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianLaw:
    """A law that adds independent N(0, stddev^2) noise to each coordinate of `center`."""

    center: Vector
    stddev: float

    def mean(self) -> Vector:
        """Return the mean of each decoded coordinate: `center`."""
        return self.center

    def variance(self) -> Vector:
        """Return the variance of each decoded coordinate: stddev^2."""
        return np.full_like(self.center, self.stddev**2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceLaw:
    """A law that adds independent Laplace noise of this scale to each coordinate of `center`."""

    center: Vector
    scale: float

    def mean(self) -> Vector:
        """Return the mean of each decoded coordinate: `center`."""
        return self.center

    def variance(self) -> Vector:
        """Return the variance of each decoded coordinate: 2 scale^2."""
        return np.full_like(self.center, 2.0 * self.scale**2)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaircaseLaw:
    """A law that adds independent staircase noise to each coordinate of `center`."""

    center: Vector
    noise: ScalarStaircase

    def mean(self) -> Vector:
        """Return the mean of each decoded coordinate: `center`."""
        return self.center

    def variance(self) -> Vector:
        """Return the variance of each decoded coordinate: that of `noise`."""
        return np.full_like(self.center, self.noise.variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointLaw:
    """A law under which the whole vector decodes to points[k] with probability pmf[k].

    Row k of `points` is a whole decoded vector. Its coordinates may depend on each other.
    """

    points: Vector
    pmf: Vector

    def mean(self) -> Vector:
        """Return the mean of each decoded coordinate."""
        return np.asarray(self.pmf @ self.points)

    def variance(self) -> Vector:
        """Return the variance of each decoded coordinate."""
        return np.asarray(self.pmf @ self.points**2 - self.mean() ** 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentLaw:
    """A law of which only mean (`center`) and variance (`spread`) of each coordinate are known."""

    center: Vector
    spread: Vector

    def mean(self) -> Vector:
        """Return the mean of each decoded coordinate: `center`."""
        return self.center

    def variance(self) -> Vector:
        """Return the variance of each decoded coordinate: `spread`."""
        return self.spread


@dataclass(frozen=True, slots=True, kw_only=True)
class PointLaw:
    """A law without randomness: the vector always decodes to `center`, its own value."""

    center: Vector

    def mean(self) -> Vector:
        """Return the mean of each decoded coordinate: `center`."""
        return self.center

    def variance(self) -> Vector:
        """Return the variance of each decoded coordinate: 0."""
        return np.zeros_like(self.center)


Law = FiniteLaw | GaussianLaw | LaplaceLaw | StaircaseLaw | JointLaw | MomentLaw | PointLaw


class Mechanism(Protocol):
    """A local randomizer that privatizes and compresses a vector in one step.

    Implementations are frozen dataclasses whose fields are public: the input domain and the
    mechanism's parameters. Randomness and data are arguments of `encode`.

    Attributes:
        sampling: How the noise is drawn. "exact": the law that runs is the one whose privacy is
            claimed, bit for bit, so that the mechanism may be deployed. "float": noise in float64
            arithmetic, whose last bits can leak the input; for simulations only, and labeled so.
            "none": nothing is random.
    """

    sampling: ClassVar[Sampling]

    @property
    def input_domain(self) -> Domain:
        """The set of valid inputs: its dimension and clipping norm determine the sensitivity."""
        ...

    def code_format(self) -> CodeFormat:
        """Return the format of the codes that `encode` produces.

        Returns:
            `LevelCodes` or `Float32Codes`.
        """
        ...

    def encode(self, values: ArrayLike, keystream: Keystream) -> Codes:
        """Randomize a vector and return its codes.

        Args:
            values: A vector in the input domain.
            keystream: The random bits of this one message; they are consumed.

        Returns:
            The codes, in the type of `code_format`.

        Raises:
            DomainError: The vector is not in the input domain.
            RandomnessError: The keystream was used before. A mechanism that draws nothing
                (`sampling` "none") may accept it.
        """
        ...

    def decode(self, codes: Codes) -> Vector:
        """Return the server's estimate of the vector that was encoded.

        Args:
            codes: The codes of one message.

        Returns:
            A vector of the dimension of the domain.
        """
        ...

    def law(self, values: ArrayLike) -> Law:
        """Return the law of decode(encode(values)).

        Args:
            values: A vector in the input domain.

        Returns:
            The law. Its mean minus `values` is the bias of the mechanism.
        """
        ...

    def privacy(self, adjacency: Adjacency) -> PrivacyEvent:
        """Return the privacy event of one message that the server sees with its sender.

        Args:
            adjacency: Which inputs are neighbors.

        Returns:
            The worst case over all neighbors in the input domain, for the law that runs, without
            amplification by sampling, shuffling or secure sums.
        """
        ...


@runtime_checkable
class Pointwise(Protocol):
    """A mechanism in which code j of any coordinate decodes to points[j].

    It sends one code per coordinate and decode(codes) equals points[codes] to the last bit. So a
    server may count codes instead of adding up decoded vectors.
    """

    @property
    def points(self) -> Vector:
        """The value that each code decodes to: element j is that of code j."""
        ...


class SignLayout(Protocol):
    """The assignment of the signs in a message to the coordinates of a vector."""

    @property
    def num_signs(self) -> int:
        """The number of signs in a message."""
        ...

    def fold(self, values: Vector) -> Vector:
        """Map a vector with one number per sign to one with a number per coordinate; linear."""
        ...


@runtime_checkable
class ExpandsToSigns(Protocol):
    """A mechanism whose few codes expand to many signs by a public deterministic function.

    decode(codes) is +-magnitude for each sign, followed by the layout's linear map. So a server may
    count signs and apply the map once.
    """

    @property
    def magnitude(self) -> float:
        """The absolute value that each sign decodes to."""
        ...

    def layout(self) -> SignLayout:
        """Return the assignment of the signs of a message to the coordinates of the vector."""
        ...

    def signs(self, messages: Codes) -> NDArray[np.uint8]:
        """Return the packed signs of several messages: one row of bytes for each row of codes.

        The lowest bit of a byte is the first sign; a bit 1 stands for +.
        """
        ...


@runtime_checkable
class SendsSigns(Protocol):
    """A mechanism that, for some parameters, sends one sign bit per coordinate.

    A simulator may then count bits instead of adding up vectors.
    """

    @property
    def sign_size(self) -> float | None:
        """The magnitude that a bit decodes to (1 is +, 0 is -), or None if codes are not signs."""
        ...


@runtime_checkable
class SummableCodes(Protocol):
    """A mechanism whose codes a secure sum may add up, so that clients hide each other.

    The sum is computed modulo 2^k, k = `sum_bits`, from codes that are integers.
    """

    def summed_event(self, adjacency: Adjacency, clients: int) -> PrivacyEvent:
        """Return the privacy event of one sum of which nothing else is seen.

        `clients` is the number of clients in the sum that follow the mechanism and do not collude,
        the protected one included, however many more there are.
        """
        ...

    def sum_bits(self, clients: int) -> int:
        """Return k, the bits of a coordinate of the sum over at most so many clients.

        ParameterError is raised if the sum of so many could not be told from another one.
        """
        ...

    def decode_sum(self, total: NDArray[np.integer[Any]], clients: int) -> Vector:
        """Return the mean of the clients' decoded vectors, from the sum of their codes.

        `total` is the sum, one number per coordinate, modulo 2^k or not; `clients` is the number of
        its summands.
        """
        ...


@runtime_checkable
class BoundedDensity(Protocol):
    """A mechanism whose message laws all have bounded density ratios against one common law.

    `privacy.shuffling` uses the bounds to amplify privacy by shuffling.
    """

    def density_ratios(self) -> tuple[float, float] | None:
        """Return certified bounds (lo, hi) with lo <= dR/dQ <= hi, rounded outward, or None.

        R is the law of a message for any input in the domain. It includes everything that runs,
        such as random padding and failed tries of rejection sampling. Q is one law that depends on
        public parameters only. The bounds are ratios, not their logarithms. None means that there
        are no useful bounds; shuffling then uses only the pure epsilon of a message.
        """
        ...


def has_finite_codes(mechanism: Mechanism) -> bool:
    """Return whether each coordinate is sent as one of finitely many codes.

    Such codes have a limited range, so that a random rotation of the input may reduce the error.
    Signs that a seed expands to count as such codes. Float32 numbers do not, nor does a format with
    fewer codes than coordinates.
    """
    if isinstance(mechanism, ExpandsToSigns):
        return True
    code_format = mechanism.code_format()
    if not isinstance(code_format, LevelCodes):
        return False
    return code_format.count is None or code_format.count >= mechanism.input_domain.dimension


def points_of(mechanism: Mechanism, *, most: int) -> Vector | None:
    """Return the value that each code stands for, or None.

    It is None if codes are float32 numbers, if there are more than `most` different codes, or if a
    code does not stand for a single value (the mechanism is not `Pointwise`).
    """
    code_format = mechanism.code_format()
    if not isinstance(code_format, LevelCodes) or code_format.levels > most:
        # Checked before `points` is computed: some mechanisms have 2^32 of them.
        return None
    return mechanism.points if isinstance(mechanism, Pointwise) else None


def masked_bytes(mechanism: Mechanism, clients: int) -> int | None:
    """Return the bytes of a masked message behind a secure sum, without keys and shares.

    A masked code takes as many bits as a coordinate of the sum, however few the code has.

    Args:
        mechanism: The mechanism of all clients.
        clients: The most clients in the sum.

    Returns:
        The size without a header; None if the mechanism's codes cannot be added up.

    Examples:
        >>> from sottovoce import ClampedSign, L2Ball
        >>> ball = L2Ball(dimension=1000, radius=1.0)
        >>> sign = ClampedSign(input_domain=ball, noise_multiplier=1.0, logit_bound=0.5)
        >>> masked_bytes(sign, 500)  # 9 bits a coordinate
        1125
    """
    if not isinstance(mechanism, SummableCodes):
        return None
    return packed_size(mechanism.input_domain.dimension, mechanism.sum_bits(clients))


def bits_per_coordinate(mechanism: Mechanism) -> float:
    """Return the bits of one message per coordinate, without its header and its padding.

    Args:
        mechanism: The mechanism, on its domain.

    Returns:
        The bits of the codes of one message, divided by the dimension; it may be a fraction.

    Examples:
        >>> from sottovoce import GaussHermite, L2Ball
        >>> ball = L2Ball(dimension=1000, radius=1.0)
        >>> bits_per_coordinate(GaussHermite(input_domain=ball, levels=8, noise_multiplier=2.0))
        3.0
    """
    dimension = mechanism.input_domain.dimension
    return mechanism.code_format().payload_bits(dimension) / dimension
