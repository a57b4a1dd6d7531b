"""Independent Laplace noise, in float32: the yardstick for pure differential privacy."""

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
from sottovoce.mechanisms.mechanism import Codes, Float32Codes, LaplaceLaw, Sampling
from sottovoce.mechanisms.noise import laws as scalar
from sottovoce.mechanisms.registry import Knob, register
from sottovoce.privacy.additive_noise import laplace_event
from sottovoce.privacy.events import LaplaceNoise, Repeated


@register(
    "laplace",
    summary="float32 values with Laplace noise: the yardstick of pure privacy (simulation grade)",
    examples=[{"noise_multiplier": 2.0}],
    example_domain=L1Ball(dimension=8, radius=1.0),
    further_domains=[
        L2Ball(dimension=8, radius=1.0),
        Box(dimension=8, lower=0.0, upper=1.0),
    ],
    knob=Knob(parameter="noise_multiplier", more_private="larger"),
    coordinatewise=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Laplace(WithPrivatize):
    """x + Laplace(b) on every coordinate, of variance 2 b^2.

    L1Ball   b = noise_multiplier * radius / records. Of all shifts Delta apart in L1 one in a
             single coordinate is worst: epsilon = Delta/b, which is 1/noise_multiplier zero-out
             and 2/noise_multiplier replace-one.
    L2Ball   the same b. Equal shifts of all coordinates are worst; in high dimension they cost
             what Gaussian noise of half the variance does, rho = Delta^2/(2 b^2).
    Box      b = noise_multiplier * (upper - lower). Every coordinate can move by Delta, the
             distance in the maximum norm: as many releases as there are coordinates.

    Float64 noise has gaps in its last bits that the real-valued Laplace law has not, so the claim
    holds for simulation only.

    Reference: Dwork, McSherry, Nissim and Smith 2006, proposition 1; `privacy.additive_noise` for
    which shift is worst; Mironov 2012 on float noise.
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
        """b."""
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
        return float(np.sqrt(2.0)) * self.noise_scale

    def code_format(self) -> Float32Codes:
        return Float32Codes()

    def encode(self, values: ArrayLike, keystream: Keystream) -> NDArray[np.float32]:
        vector = self.input_domain.check(values)
        centred = open_uniforms(keystream.words(len(vector))) - 0.5
        noise = -np.copysign(self.noise_scale, centred) * np.log1p(-2.0 * np.abs(centred))
        return np.asarray(vector + noise, dtype=np.float32)

    def decode(self, codes: Codes) -> Vector:
        return codes.astype(np.float64)

    def law(self, values: ArrayLike) -> LaplaceLaw:
        return LaplaceLaw(centre=self.input_domain.check(values), scale=self.noise_scale)

    def coordinate_law(self) -> AddedNoise:
        return AddedNoise(noise=scalar.Laplace(scale=self.noise_scale))

    def privacy(self, adjacency: Adjacency) -> LaplaceNoise | Repeated:
        return laplace_event(self.input_domain, self.noise_multiplier, adjacency)
