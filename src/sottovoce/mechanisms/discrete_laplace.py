"""Laplace noise that is added and then rounded to a grid: the deployable Laplace mechanism."""

from dataclasses import dataclass

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Domain, L1Ball, L2Ball
from sottovoce.mechanisms.noise import laws
from sottovoce.mechanisms.registry import CalibratedParameter, Parameters, register
from sottovoce.mechanisms.rounded_noise import (
    ROUNDING,
    RoundedNoise,
    automatic_steps,
    multiplier_ends,
    width,
)
from sottovoce.privacy.additive_noise import laplace_event
from sottovoce.privacy.events import LaplaceNoise, Repeated


def _noise(domain: Domain, noise_multiplier: float) -> laws.ScalarLaplace:
    records = domain.records if isinstance(domain, L1Ball | L2Ball) else 1
    scale = parameter_rules.noise_multiplier(noise_multiplier) * width(domain) / records
    return laws.ScalarLaplace(scale=scale)


def _automatic_steps(domain: Domain, given: Parameters) -> float:
    return automatic_steps(domain, given["bits"], _noise(domain, given["noise_multiplier"]))


@register(
    "discrete_laplace",
    summary="Laplace noise rounded to integers modulo 2^bits, sampled exactly",
    examples=[
        {"noise_multiplier": 2.0, "bits": 6, "steps_per_radius": "auto"},
        {"noise_multiplier": 1.0, "bits": 5, "steps_per_radius": 4.0},
    ],
    example_domain=L1Ball(dimension=8, radius=1.0),
    further_domains=[
        L2Ball(dimension=8, radius=1.0),
        Box(dimension=8, lower=0.0, upper=1.0),
    ],
    calibrated_parameter=CalibratedParameter(
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
    """Laplace noise rounded to a grid and sent modulo 2^bits, sampled exactly; for deployment.

        code = round((x + Laplace(b))/step) mod 2^bits

    A code decodes to step times its residue in [-2^(bits-1), 2^(bits-1)), on a box counted from its
    middle. By domain:

    * `L1Ball`: b = noise_multiplier * radius / records. Neighbors at L1 distance Delta have the
      pure epsilon = Delta/b: 1/noise_multiplier under zero-out, 2/noise_multiplier under
      replace-one.
    * `L2Ball`: the same b. Equal shifts of all coordinates are the worst.
    * `Box`: b = noise_multiplier * (upper - lower). Every coordinate can move, so the release costs
      as much as one scalar release per coordinate.

    The step is radius / steps_per_radius, or (upper - lower) / steps_per_radius for a box. The mean
    is x up to step^3/(100 b^2) and the effect of wrapping around; the variance is nearly
    2 b^2 + step^2/12 if b exceeds a step.

    Privacy: rounding and the modulus are post-processing, so the privacy is that of `Laplace`, plus
    a fraction 2^-26 for the rounding of the norm check. The code is drawn exactly from the law of
    the rounded real number, so the last bits of floating-point noise cannot leak.

    Cost: `bits` bits per coordinate.

    References: docs/explanation/privacy.md, "Noise on a grid"; Dwork, McSherry, Nissim and Smith
    2006, proposition 1; `privacy.additive_noise` proves which shift is the worst.

    Attributes:
        input_domain: The L1 ball, L2 ball or box that updates are clipped to.
        noise_multiplier: The noise scale b in units of radius/records of a ball, or of the width of
            a box.
        bits: The number of bits per coordinate, from 2 to 20.
        steps_per_radius: The number of grid steps in the radius or in the width of the box. In
            specs and commands it may be "auto": the finest grid on which a coordinate wraps around
            with probability at most 1e-9.
    """

    input_domain: L1Ball | L2Ball | Box
    noise_multiplier: float
    bits: int
    steps_per_radius: float

    def __post_init__(self) -> None:
        _noise(self.input_domain, self.noise_multiplier)
        self.check_grid()

    @property
    def noise(self) -> laws.ScalarLaplace:
        """The law of the noise that is added to a coordinate before rounding, in its unit."""
        return _noise(self.input_domain, self.noise_multiplier)

    def privacy(self, adjacency: Adjacency) -> LaplaceNoise | Repeated:
        return laplace_event(self.input_domain, self.noise_multiplier, adjacency, headroom=ROUNDING)
