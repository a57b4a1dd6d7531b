"""Gaussian noise that is added and then rounded to a grid: the deployable Gaussian mechanism."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Domain, L2Ball, Vector, require_l2_ball
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.noise import laws
from sottovoce.mechanisms.registry import CalibratedParameter, Parameters, register
from sottovoce.mechanisms.rounded_noise import (
    ROUNDING,
    WRAP_PROBABILITY,
    RoundedNoise,
    automatic_steps,
    check_bits,
    multiplier_ends,
)
from sottovoce.privacy.events import GaussianNoise, SummedNoise
from sottovoce.privacy.gaussian_sums import rounding_excess


def _noise(domain: Domain, noise_multiplier: float) -> laws.ScalarGaussian:
    ball = require_l2_ball(domain)
    stddev = parameter_rules.noise_multiplier(noise_multiplier) * ball.radius / ball.records
    return laws.ScalarGaussian(stddev=stddev)


def _automatic_steps(domain: Domain, given: Parameters) -> float:
    return automatic_steps(domain, given["bits"], _noise(domain, given["noise_multiplier"]))


def _automatic_steps_in_sum(domain: Domain, given: Parameters, clients: int) -> float:
    noise = _noise(domain, given["noise_multiplier"])
    finest = steps_for_sum(domain, check_bits(given["bits"]), noise, clients)
    return min(finest, _automatic_steps(domain, given))


def steps_for_sum(domain: Domain, bits: int, noise: laws.ScalarGaussian, clients: int) -> float:
    """Return the finest `steps_per_radius` on which a sum over so many clients hardly ever wraps.

    A coordinate of the sum, of whatever values, leaves the grid with probability at most 1e-9.
    """
    ball = require_l2_ball(domain)
    farthest = float(noise.quantile(np.array([WRAP_PROBABILITY / 2.0]))[0])
    # Each code is rounded, so the sum is up to half a step per client away from that of the values.
    largest = 2.0 ** (bits - 1) - 0.5 - clients / 2.0
    if largest <= 0.0:
        raise ParameterError(
            f"{bits} bits cannot hold a sum over {clients} clients; use more bits per coordinate"
        )
    return largest * ball.radius / (clients * ball.radius + math.sqrt(clients) * farthest)


@register(
    "discrete_gaussian",
    summary="Gaussian noise rounded to integers modulo 2^bits, sampled exactly",
    examples=[
        {"noise_multiplier": 2.0, "bits": 6, "steps_per_radius": "auto"},
        {"noise_multiplier": 1.0, "bits": 5, "steps_per_radius": 16.0},
    ],
    example_domain=L2Ball(dimension=8, radius=1.0),
    calibrated_parameter=CalibratedParameter(
        parameter="noise_multiplier",
        more_private="larger",
        ends=lambda domain, given: multiplier_ends(domain, given, _noise),
    ),
    automatic={"steps_per_radius": _automatic_steps},
    automatic_in_sums={"steps_per_radius": _automatic_steps_in_sum},
    settings=[{"bits": bits, "steps_per_radius": "auto"} for bits in (4, 6, 8, 12)],
    settings_in_sums=[{"bits": bits, "steps_per_radius": "auto"} for bits in (8, 10, 12, 14, 16)],
    coordinatewise=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteGaussian(RoundedNoise):
    """Gaussian noise rounded to a grid and sent modulo 2^bits, sampled exactly; for deployment.

        code = round((x + N(0, sigma^2))/step) mod 2^bits

    with sigma = noise_multiplier * radius / records and step = radius / steps_per_radius. A code
    decodes to step times its residue in [-2^(bits-1), 2^(bits-1)). The mean is x up to
    e^(-2 pi^2 sigma^2/step^2) of a step and the effect of wrapping around; the variance is
    sigma^2 + step^2/12 to the same accuracy.

    Privacy: rounding and the modulus are post-processing, so for neighbors at L2 distance Delta the
    release is mu-GDP with mu = Delta/sigma, like the Gaussian mechanism: 1/noise_multiplier under
    zero-out and 2/noise_multiplier under replace-one, plus a fraction 2^-26 for the rounding of the
    norm check. The code is drawn exactly from the law of the rounded real number, so the last bits
    of floating-point noise cannot leak.

    In a secure sum the noise of the honest clients adds up, and so does the noise that hides each
    of them: the sum is a residue modulo 2^bits, and `bits` must cover it (`sum_bits`).

    Cost: `bits` bits per coordinate.

    References: docs/explanation/privacy.md, "Noise on a grid"; Dong, Roth and Su 2022, theorem 2.7.

    Attributes:
        input_domain: The L2 ball that updates are clipped to; its radius is the clipping norm.
        noise_multiplier: The noise standard deviation in units of radius/records.
        bits: The number of bits per coordinate, from 2 to 20.
        steps_per_radius: The number of grid steps in the radius. In specs and commands it may be
            "auto": the finest grid on which a coordinate wraps around with probability at most
            1e-9.

    Examples:
        >>> from sottovoce import Adjacency, L2Ball
        >>> ball = L2Ball(dimension=1000, radius=1.0)
        >>> mechanism = DiscreteGaussian(
        ...     input_domain=ball, noise_multiplier=2.0, bits=8, steps_per_radius=8.0
        ... )
        >>> codes = mechanism.privatize([0.01] * 1000)
        >>> codes.dtype, mechanism.decode(codes).shape
        (dtype('uint8'), (1000,))
        >>> round(mechanism.privacy(Adjacency.ZERO_OUT).mu, 6)
        0.5
    """

    input_domain: L2Ball
    noise_multiplier: float
    bits: int
    steps_per_radius: float

    def __post_init__(self) -> None:
        _noise(self.input_domain, self.noise_multiplier)
        self.check_grid()

    @property
    def noise(self) -> laws.ScalarGaussian:
        """The law of the noise that is added to a coordinate before rounding, in its unit."""
        return _noise(self.input_domain, self.noise_multiplier)

    def summed_event(self, adjacency: Adjacency, clients: int) -> SummedNoise:
        stddev = self.noise_stddev / self.step
        return SummedNoise(
            mu=self.privacy(adjacency).mu,
            clients=clients,
            excess=rounding_excess(stddev, clients, dimension=self.input_domain.dimension),
            adjacency=adjacency,
        )

    def sum_bits(self, clients: int) -> int:
        finest = steps_for_sum(self.input_domain, self.bits, self.noise, clients)
        if self.steps_per_radius > finest * (1.0 + ROUNDING):
            raise ParameterError(
                f"a sum over {clients} clients could leave the grid of {self.bits} bits and wrap "
                f"around; use more bits, or steps_per_radius of at most {finest:.6g}"
            )
        return self.bits

    def decode_sum(self, total: NDArray[np.integer[Any]], clients: int) -> Vector:
        half = self.levels // 2
        residues = (total.astype(np.int64) + half) % self.levels - half
        return np.asarray(self.middle + self.step * (residues / clients))

    def privacy(self, adjacency: Adjacency) -> GaussianNoise:
        mu = self.input_domain.relative_sensitivity(adjacency) / self.noise_multiplier
        return GaussianNoise(
            mu=mu * (1.0 + ROUNDING),
            adjacency=adjacency,
            zero_centered=self.input_domain.zero_centered(adjacency),
        )
