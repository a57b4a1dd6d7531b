"""The stochastic sign mechanism: one bit per coordinate, the sign of a noisy value."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball, Vector, require_l2_ball
from sottovoce.core.randomness import Keystream, open_uniforms
from sottovoce.mechanisms.coordinate_laws import NoisySign
from sottovoce.mechanisms.encoding import WithPrivatize
from sottovoce.mechanisms.mechanism import Codes, FiniteLaw, LevelCodes, Sampling, level_indices
from sottovoce.mechanisms.registry import CalibratedParameter, register
from sottovoce.privacy.events import GaussianNoise


@register(
    "stochastic_sign",
    summary="one bit per coordinate: the sign of the value plus Gaussian noise (simulation only)",
    examples=[{"noise_multiplier": 2.0}],
    example_domain=L2Ball(dimension=8, radius=1.0),
    calibrated_parameter=CalibratedParameter(parameter="noise_multiplier", more_private="larger"),
    coordinatewise=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class StochasticSign(WithPrivatize):
    """The sign of each coordinate after Gaussian noise: one bit, charged as the Gaussian mechanism.

        M(x) = sign(x + N(0, sigma^2 I)),        sigma = noise_multiplier * radius / records

    So P(+ | x) = Phi(x/sigma). A bit decodes to +-sigma sqrt(pi/2), whose mean
    sigma sqrt(pi/2) (2 Phi(x/sigma) - 1) = x - x^3/(6 sigma^2) + ... is close to x if x is small
    compared with sigma; `law` declares the bias.

    Privacy: the bits are a function of the Gaussian mechanism's output, so for neighbors at L2
    distance Delta the release is mu-GDP with mu = Delta/sigma, by post-processing. (The Renyi
    divergence of the bits themselves is .64 to .87 of that. `GaussHermite` with two levels spends
    the same and has a smaller error.) The probabilities are computed in float64: for simulations
    only.

    Cost: one bit per coordinate.

    References: Jin et al. 2020, stochastic-sign SGD; Dong, Roth and Su 2022, theorem 2.7.

    Attributes:
        input_domain: The L2 ball that updates are clipped to.
        noise_multiplier: sigma in units of radius/records.
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

    @property
    def decoded_magnitude(self) -> float:
        """The magnitude sigma sqrt(pi/2) of a decoded bit; the mean then has slope 1 at 0."""
        return self.noise_stddev * math.sqrt(math.pi / 2.0)

    def code_format(self) -> LevelCodes:
        return LevelCodes(levels=2)

    def encode(self, values: ArrayLike, keystream: Keystream) -> NDArray[np.uint8]:
        from scipy.special import ndtr

        vector = self.input_domain.check(values)
        uniforms = open_uniforms(keystream.words(len(vector)))
        return np.asarray(uniforms < ndtr(vector / self.noise_stddev), dtype=np.uint8)

    @property
    def points(self) -> Vector:
        return np.array([-self.decoded_magnitude, self.decoded_magnitude])

    def decode(self, codes: Codes) -> Vector:
        return self.points[level_indices(codes, 2)]

    def law(self, values: ArrayLike) -> FiniteLaw:
        from scipy.special import ndtr

        tilts = self.input_domain.check(values) / self.noise_stddev
        return FiniteLaw(
            points=self.points,
            table=np.stack([ndtr(-tilts), ndtr(tilts)], axis=1),
        )

    def coordinate_law(self) -> NoisySign:
        return NoisySign(stddev=self.noise_stddev, magnitude=self.decoded_magnitude)

    def privacy(self, adjacency: Adjacency) -> GaussianNoise:
        mu = self.input_domain.relative_sensitivity(adjacency) / self.noise_multiplier
        return GaussianNoise(
            mu=mu, adjacency=adjacency, zero_centered=self.input_domain.zero_centered(adjacency)
        )
