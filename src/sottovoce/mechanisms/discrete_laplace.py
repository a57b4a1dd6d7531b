"""Laplace noise, rounded to a grid after it was added: for deployment."""

from dataclasses import dataclass

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Domain, L1Ball, L2Ball
from sottovoce.mechanisms.noise import laws
from sottovoce.mechanisms.registry import Knob, Parameters, register
from sottovoce.mechanisms.rounded_noise import (
    ROUNDING,
    RoundedNoise,
    automatic_steps,
    multiplier_ends,
    width,
)
from sottovoce.privacy.additive_noise import laplace_event
from sottovoce.privacy.events import LaplaceNoise, Repeated


def _noise(domain: Domain, noise_multiplier: float) -> laws.Laplace:
    records = domain.records if isinstance(domain, L1Ball | L2Ball) else 1
    scale = parameter_rules.noise_multiplier(noise_multiplier) * width(domain) / records
    return laws.Laplace(scale=scale)


def _automatic_steps(domain: Domain, given: Parameters) -> float:
    return automatic_steps(domain, given["bits"], _noise(domain, given["noise_multiplier"]))


@register(
    "discrete_laplace",
    summary="integers: Laplace noise rounded to a grid, modulo 2^bits, sampled exactly",
    examples=[
        {"noise_multiplier": 2.0, "bits": 6, "steps_per_radius": "auto"},
        {"noise_multiplier": 1.0, "bits": 5, "steps_per_radius": 4.0},
    ],
    example_domain=L1Ball(dimension=8, radius=1.0),
    further_domains=[
        L2Ball(dimension=8, radius=1.0),
        Box(dimension=8, lower=0.0, upper=1.0),
    ],
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
class DiscreteLaplace(RoundedNoise):
    """round((x + Laplace(b))/step) modulo 2^bits; decodes to step times the centred residue.

    L1Ball   b = noise_multiplier * radius / records. Neighbours Delta apart in L1 give pure
             epsilon = Delta/b: 1/noise_multiplier zero-out, 2/noise_multiplier replace-one.
    L2Ball   the same b. Equal shifts of all coordinates are worst.
    Box      b = noise_multiplier * (upper - lower), and codes count from the middle of the box.
             Every coordinate can move: as many releases as there are coordinates.

    step = radius / steps_per_radius; for a box (upper - lower) / steps_per_radius. Rounding and the
    modulus come after the noise, so the privacy is that of 'laplace', plus a fraction 2^-26 for
    what the norm check rounds. The code is drawn exactly from the law of the rounded real number,
    so no last bits leak.

    The mean is x up to step^3/(100 b^2) and what wraps around, the variance nearly
    2 b^2 + step^2/12 if b exceeds a step. steps_per_radius = "auto" is the finest grid on which a
    coordinate wraps around with probability 1e-9 at most.

    Reference: docs/privacy.md, "Noise on a grid"; Dwork, McSherry, Nissim and Smith 2006,
    proposition 1; `privacy.additive_noise` for which shift is worst.
    """

    input_domain: L1Ball | L2Ball | Box
    noise_multiplier: float
    bits: int
    steps_per_radius: float

    def __post_init__(self) -> None:
        _noise(self.input_domain, self.noise_multiplier)
        self.check_grid()

    @property
    def noise(self) -> laws.Laplace:
        return _noise(self.input_domain, self.noise_multiplier)

    def privacy(self, adjacency: Adjacency) -> LaplaceNoise | Repeated:
        return laplace_event(self.input_domain, self.noise_multiplier, adjacency, headroom=ROUNDING)
