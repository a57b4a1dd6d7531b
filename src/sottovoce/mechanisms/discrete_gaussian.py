"""Gaussian noise, rounded to a grid after it was added: for deployment."""

from dataclasses import dataclass

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Domain, L2Ball, require_l2_ball
from sottovoce.mechanisms.noise import laws
from sottovoce.mechanisms.registry import Knob, Parameters, register
from sottovoce.mechanisms.rounded_noise import (
    ROUNDING,
    RoundedNoise,
    automatic_steps,
    multiplier_ends,
)
from sottovoce.privacy.events import GaussianNoise


def _noise(domain: Domain, noise_multiplier: float) -> laws.Gaussian:
    ball = require_l2_ball(domain)
    stddev = parameter_rules.noise_multiplier(noise_multiplier) * ball.radius / ball.records
    return laws.Gaussian(stddev=stddev)


def _automatic_steps(domain: Domain, given: Parameters) -> float:
    return automatic_steps(domain, given["bits"], _noise(domain, given["noise_multiplier"]))


@register(
    "discrete_gaussian",
    summary="integers: Gaussian noise rounded to a grid, modulo 2^bits, sampled exactly",
    examples=[
        {"noise_multiplier": 2.0, "bits": 6, "steps_per_radius": "auto"},
        {"noise_multiplier": 1.0, "bits": 5, "steps_per_radius": 16.0},
    ],
    example_domain=L2Ball(dimension=8, radius=1.0),
    knob=Knob(
        parameter="noise_multiplier",
        more_private="larger",
        ends=lambda domain, given: multiplier_ends(domain, given, _noise),
    ),
    automatic={"steps_per_radius": _automatic_steps},
    settings=[{"bits": bits, "steps_per_radius": "auto"} for bits in (4, 6, 8, 12)],
    coordinatewise=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteGaussian(RoundedNoise):
    """round((x + N(0, sigma^2))/step) modulo 2^bits; decodes to step times the centred residue.

    sigma = noise_multiplier * clip norm / records, step = clip norm / steps_per_radius. Rounding
    and the modulus come after the noise, so with neighbours Delta apart the release is mu-GDP,
    mu = Delta/sigma, as the Gaussian mechanism is: 1/noise_multiplier zero-out and
    2/noise_multiplier replace-one, and a fraction 2^-26 for what the norm check rounds. The code is
    drawn exactly from the law of the rounded real number, so no last bits leak.

    The mean is x up to e^(-2 pi^2 sigma^2/step^2) of a step and what wraps around, the variance
    sigma^2 + step^2/12 as nearly. steps_per_radius = "auto" is the finest grid on which a
    coordinate wraps around with probability 1e-9 at most.

    Reference: docs/privacy.md, "Noise on a grid"; Dong, Roth and Su 2022, theorem 2.7.
    """

    input_domain: L2Ball
    noise_multiplier: float
    bits: int
    steps_per_radius: float

    def __post_init__(self) -> None:
        _noise(self.input_domain, self.noise_multiplier)
        self.check_grid()

    @property
    def noise(self) -> laws.Gaussian:
        return _noise(self.input_domain, self.noise_multiplier)

    def privacy(self, adjacency: Adjacency) -> GaussianNoise:
        mu = self.input_domain.relative_sensitivity(adjacency) / self.noise_multiplier
        return GaussianNoise(
            mu=mu * (1.0 + ROUNDING),
            adjacency=adjacency,
            zero_centered=self.input_domain.zero_centered(adjacency),
        )
