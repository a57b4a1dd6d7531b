"""The law of one decoded coordinate as data, from which a simulator can draw it on any device.

A mechanism that treats all coordinates alike and independently may declare its law with
`coordinate_law`. The privacy that is charged is still the mechanism's own.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sottovoce.core.domains import Vector
from sottovoce.core.errors import PrivacyError
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.noise.laws import ScalarGaussian, ScalarLaplace, ScalarStaircase
from sottovoce.mechanisms.registry import kind_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TiltedFamily:
    """An exponential family: code j with probability proportional to w_j exp(y_j z).

    Here z = tilt_per_unit * value for the value of the coordinate, y_j = points[j] and
    w_j = weights[j]; code j decodes to letters[j].
    """

    points: Vector
    weights: Vector
    letters: Vector
    tilt_per_unit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisySign:
    """The law of +-magnitude, with the sign of the coordinate's value plus N(0, stddev^2)."""

    stddev: float
    magnitude: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InterpolatedTable:
    """A finite table: the value's row of probabilities is interpolated linearly between the knots.

    The interval [low, high] of values is mapped onto [0, 1], where the knots lie. rows[k, j] is the
    probability of code j at knots[k]; code j decodes to letters[j].
    """

    low: float
    high: float
    knots: Vector
    rows: Vector
    letters: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedNoise:
    """The law of a coordinate's value plus `noise`, drawn independently for each coordinate."""

    noise: ScalarGaussian | ScalarLaplace | ScalarStaircase


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """The law of a coordinate that decodes to its own value, without noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedRows:
    """The law of vectors that `CompressedUpdate` sends with this number of bits a coordinate.

    Coordinates of a vector share a scale that depends on all of them.
    """

    bits: int


CoordinateLaw = (
    TiltedFamily | NoisySign | InterpolatedTable | AddedNoise | Unchanged | CompressedRows
)


@runtime_checkable
class Coordinatewise(Protocol):
    """A mechanism that declares the law of each decoded coordinate."""

    def coordinate_law(self) -> CoordinateLaw:
        """Return the law of a decoded coordinate given its value, the same for all coordinates.

        Raises:
            ParameterError: With these parameters the coordinates are not independent.
        """
        ...


CentralNoise = ScalarGaussian | ScalarLaplace


def noise_of(mechanism: Mechanism) -> CentralNoise:
    """Return the noise that a mechanism adds to each coordinate, in the unit of the coordinate.

    Raises:
        PrivacyError: The mechanism does anything but add Gaussian or Laplace noise.
        ParameterError: Its noise is not independent between coordinates.
    """
    law = mechanism.coordinate_law() if isinstance(mechanism, Coordinatewise) else None
    if not isinstance(law, AddedNoise) or not isinstance(law.noise, ScalarGaussian | ScalarLaplace):
        raise PrivacyError(
            f"'{kind_of(mechanism)}' does not only add Gaussian or Laplace noise, so a trusted "
            "party cannot add its noise to a sum; use mechanism 'gaussian' or 'laplace', or let "
            "every client send its own message (in a spec, channel 'direct') and hide a sample by "
            "own-records"
        )
    return law.noise
