"""The Laplace mechanism in float32: independent noise, for pure differential privacy."""

from dataclasses import dataclass
from typing import ClassVar, assert_never

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, L1Ball, L2Ball, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Keystream, open_uniforms
from sottovoce.mechanisms.coordinate_laws import AddedNoise
from sottovoce.mechanisms.encoding import WithPrivatize
from sottovoce.mechanisms.mechanism import Codes, Float32Codes, LaplaceLaw, Sampling, float_codes
from sottovoce.mechanisms.noise import laws as scalar
from sottovoce.mechanisms.registry import CalibratedParameter, register
from sottovoce.privacy.additive_noise import laplace_event
from sottovoce.privacy.events import LaplaceNoise, Repeated


@register(
    "laplace",
    summary="float32 values with Laplace noise: the reference for pure DP (simulation only)",
    examples=[{"noise_multiplier": 2.0}],
    example_domain=L1Ball(dimension=8, radius=1.0),
    further_domains=[
        L2Ball(dimension=8, radius=1.0),
        Box(dimension=8, lower=0.0, upper=1.0),
    ],
    calibrated_parameter=CalibratedParameter(parameter="noise_multiplier", more_private="larger"),
    coordinatewise=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Laplace(WithPrivatize):
    """The Laplace mechanism without compression: the reference for pure differential privacy.

        M(x)_i = x_i + Laplace(b), independently, of variance 2 b^2

    * `L1Ball`: b = noise_multiplier * radius / records. Of all shifts at L1 distance Delta, a shift
      of a single coordinate is the worst: epsilon = Delta/b, which is 1/noise_multiplier under
      zero-out and 2/noise_multiplier under replace-one.
    * `L2Ball`: the same b. Equal shifts of all coordinates are the worst. In high dimension they
      cost what Gaussian noise of half the variance does, rho = Delta^2/(2 b^2).
    * `Box`: b = noise_multiplier * (upper - lower). Every coordinate can move by Delta, the
      distance in the maximum norm, so the release costs as much as one scalar release per
      coordinate.

    Float64 noise has gaps in its last bits that the real-valued Laplace law does not have. So the
    claim holds in simulations only (sampling "float"); for deployment use `DiscreteLaplace`.

    Cost: 32 bits per coordinate.

    References: Dwork, McSherry, Nissim and Smith 2006, proposition 1; `privacy.additive_noise`
    proves which shift is the worst; Mironov 2012 on floating-point noise.

    Attributes:
        input_domain: The L1 ball, L2 ball or box that updates are clipped to.
        noise_multiplier: The noise scale b in units of radius/records of a ball, or of the width of
            a box.

    Examples:
        >>> from sottovoce import Adjacency, L1Ball
        >>> ball = L1Ball(dimension=10, radius=1.0)
        >>> event = Laplace(input_domain=ball, noise_multiplier=2.0).privacy(Adjacency.ZERO_OUT)
        >>> event.shift
        0.5
    """

    input_domain: L1Ball | L2Ball | Box
    noise_multiplier: float
    sampling: ClassVar[Sampling] = "float"

    def __post_init__(self) -> None:
        if not isinstance(self.input_domain, L1Ball | L2Ball | Box):
            raise ParameterError(
                f"input_domain must be an L1Ball, an L2Ball or a Box, got "
                f"{type(self.input_domain).__name__}"
            )
        parameter_rules.noise_multiplier(self.noise_multiplier)

    @property
    def noise_scale(self) -> float:
        """The scale b of the noise of each coordinate, in the unit of the update."""
        domain = self.input_domain
        match domain:
            case L1Ball() | L2Ball():
                return self.noise_multiplier * domain.radius / domain.records
            case Box():
                return self.noise_multiplier * (domain.upper - domain.lower)
            case _:
                assert_never(domain)

    @property
    def noise_stddev(self) -> float:
        """The noise standard deviation of each coordinate, in the unit of the update."""
        return float(np.sqrt(2.0)) * self.noise_scale

    def code_format(self) -> Float32Codes:
        return Float32Codes()

    def encode(self, values: ArrayLike, keystream: Keystream) -> NDArray[np.float32]:
        vector = self.input_domain.check(values)
        centered = open_uniforms(keystream.words(len(vector))) - 0.5
        noise = -np.copysign(self.noise_scale, centered) * np.log1p(-2.0 * np.abs(centered))
        return np.asarray(vector + noise, dtype=np.float32)

    def decode(self, codes: Codes) -> Vector:
        return float_codes(codes)

    def law(self, values: ArrayLike) -> LaplaceLaw:
        return LaplaceLaw(center=self.input_domain.check(values), scale=self.noise_scale)

    def coordinate_law(self) -> AddedNoise:
        return AddedNoise(noise=scalar.ScalarLaplace(scale=self.noise_scale))

    def privacy(self, adjacency: Adjacency) -> LaplaceNoise | Repeated:
        return laplace_event(self.input_domain, self.noise_multiplier, adjacency)
