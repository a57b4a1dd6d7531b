"""What happens to one coordinate, as data: enough to draw it wherever numbers are.

A mechanism that treats coordinates alike and one by one may say so with `coordinate_law`. Whoever
reads it can draw the decoded value of a coordinate on any device; the privacy that is charged stays
the mechanism's own.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sottovoce.core.domains import Vector
from sottovoce.core.errors import PrivacyError
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.noise.laws import Gaussian, Laplace, Staircase
from sottovoce.mechanisms.registry import kind_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TiltedFamily:
    """Letter j with probability proportional to w_j exp(y_j z), z = tilt_per_unit * value."""

    points: Vector
    weights: Vector
    letters: Vector
    tilt_per_unit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisySign:
    """+-magnitude, the sign that of the value plus N(0, stddev^2)."""

    stddev: float
    magnitude: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InterpolatedTable:
    """A letter by the row of the value, interpolated between knots; [low, high] is [0, 1] there."""

    low: float
    high: float
    knots: Vector
    rows: Vector
    letters: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedNoise:
    """The value plus noise."""

    noise: Gaussian | Laplace | Staircase


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """The value itself."""


CoordinateLaw = TiltedFamily | NoisySign | InterpolatedTable | AddedNoise | Unchanged


@runtime_checkable
class Coordinatewise(Protocol):
    """A mechanism that says what happens to a coordinate."""

    def coordinate_law(self) -> CoordinateLaw: ...


CentralNoise = Gaussian | Laplace


def noise_of(mechanism: Mechanism) -> CentralNoise:
    """Return what the mechanism would add to one message, if that is all it does."""
    law = mechanism.coordinate_law() if isinstance(mechanism, Coordinatewise) else None
    if not isinstance(law, AddedNoise) or not isinstance(law.noise, Gaussian | Laplace):
        raise PrivacyError(
            f"'{kind_of(mechanism)}' is no noise that could be added once to a sum; use mechanism "
            "'gaussian' or 'laplace', or the channel 'direct' (and hide a sample by own-records)"
        )
    return law.noise
