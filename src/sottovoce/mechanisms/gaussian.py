"""The Gaussian mechanism in float32: independent noise on vectors in an L2 ball."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball, Vector, require_l2_ball
from sottovoce.core.randomness import Keystream, open_uniforms
from sottovoce.mechanisms.coordinate_laws import AddedNoise
from sottovoce.mechanisms.encoding import WithPrivatize
from sottovoce.mechanisms.mechanism import Codes, Float32Codes, GaussianLaw, Sampling, float_codes
from sottovoce.mechanisms.noise import laws as normal
from sottovoce.mechanisms.registry import CalibratedParameter, register
from sottovoce.privacy.events import GaussianNoise


@register(
    "gaussian",
    summary="float32 values with Gaussian noise: the uncompressed reference (simulation only)",
    examples=[{"noise_multiplier": 2.0}],
    example_domain=L2Ball(dimension=8, radius=1.0),
    calibrated_parameter=CalibratedParameter(parameter="noise_multiplier", more_private="larger"),
    coordinatewise=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian(WithPrivatize):
    """The Gaussian mechanism without compression: the reference that others are compared with.

        M(x) = x + N(0, sigma^2 I),        sigma = noise_multiplier * radius / records

    Privacy: for neighbors at L2 distance Delta the release is exactly mu-GDP with mu = Delta/sigma.
    That is mu = 1/noise_multiplier under zero-out and 2/noise_multiplier under replace-one.

    Float64 noise has gaps in its last bits that the real-valued Gaussian does not have. So the
    claim holds in simulations only (sampling "float"); to deploy Gaussian noise use
    `DiscreteGaussian` or `GaussHermite`.

    Cost: 32 bits per coordinate.

    References: Dong, Roth and Su 2022, theorem 2.7; Mironov 2012 on floating-point noise.

    Attributes:
        input_domain: The L2 ball that updates are clipped to; its radius is the clipping norm.
        noise_multiplier: The noise standard deviation in units of radius/records.

    Examples:
        >>> from sottovoce import Adjacency, L2Ball
        >>> ball = L2Ball(dimension=1000, radius=1.0)
        >>> Gaussian(input_domain=ball, noise_multiplier=2.0).privacy(Adjacency.ZERO_OUT).mu
        0.5
    """

    input_domain: L2Ball
    noise_multiplier: float
    sampling: ClassVar[Sampling] = "float"

    def __post_init__(self) -> None:
        require_l2_ball(self.input_domain)
        parameter_rules.noise_multiplier(self.noise_multiplier)

    @property
    def noise_stddev(self) -> float:
        """The noise standard deviation sigma of each coordinate, in the unit of the update."""
        return self.noise_multiplier * self.input_domain.radius / self.input_domain.records

    def code_format(self) -> Float32Codes:
        return Float32Codes()

    def encode(self, values: ArrayLike, keystream: Keystream) -> NDArray[np.float32]:
        from scipy.special import ndtri

        vector = self.input_domain.check(values)
        uniforms = open_uniforms(keystream.words(len(vector)))
        noisy = vector + self.noise_stddev * ndtri(uniforms)
        return np.asarray(noisy, dtype=np.float32)

    def decode(self, codes: Codes) -> Vector:
        return float_codes(codes)

    def law(self, values: ArrayLike) -> GaussianLaw:
        return GaussianLaw(center=self.input_domain.check(values), stddev=self.noise_stddev)

    def coordinate_law(self) -> AddedNoise:
        return AddedNoise(noise=normal.ScalarGaussian(stddev=self.noise_stddev))

    def privacy(self, adjacency: Adjacency) -> GaussianNoise:
        mu = self.input_domain.relative_sensitivity(adjacency) / self.noise_multiplier
        return GaussianNoise(
            mu=mu, adjacency=adjacency, zero_centered=self.input_domain.zero_centered(adjacency)
        )
