"""Staircase noise, rounded to a grid after it was added: for deployment."""

import math
from dataclasses import dataclass
from typing import assert_never

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Domain, L1Ball, L2Ball
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.noise import laws
from sottovoce.mechanisms.noise.rounded import MAX_STEPS
from sottovoce.mechanisms.registry import Knob, Parameters, register
from sottovoce.mechanisms.rounded_noise import ROUNDING, RoundedNoise, automatic_steps, width
from sottovoce.privacy.additive_noise import staircase_pair
from sottovoce.privacy.events import FinitePair, PureDp, Repeated

_STAIR_MULTIPLIERS = (1e-5, 1e5)


def _stair(domain: Domain, step_multiplier: float) -> float:
    """The width of one stair, as it is charged."""
    if isinstance(domain, L1Ball | L2Ball) and domain.dimension > 1:
        other = "discrete_laplace" if isinstance(domain, L1Ball) else "discrete_gaussian"
        raise ParameterError(
            f"'discrete_staircase' is for boxes and single numbers, got {domain}; use the "
            f"mechanism '{other}'"
        )
    low, high = _STAIR_MULTIPLIERS
    if not low <= parameter_rules.positive("step_multiplier", step_multiplier) <= high:
        raise ParameterError(
            f"step_multiplier must lie between {low:g} and {high:g}, got {step_multiplier!r}; "
            "1 suits zero-out, 2 replace-one"
        )
    records = domain.records if isinstance(domain, L1Ball | L2Ball) else 1
    return step_multiplier * width(domain) / records


def _automatic_nu(_domain: Domain, given: Parameters) -> float:
    """The nu of least variance at this step_epsilon."""
    return laws.nu_for_variance(parameter_rules.step_epsilon("step_epsilon", given["step_epsilon"]))


def _automatic_steps(domain: Domain, given: Parameters) -> float:
    nu = _automatic_nu(domain, given) if given["nu"] == "auto" else given["nu"]
    noise = _noise(domain, given["step_epsilon"], nu, given["step_multiplier"])
    return automatic_steps(domain, given["bits"], noise)


def _noise(
    domain: Domain, step_epsilon: float, nu: float, step_multiplier: float
) -> laws.Staircase:
    parameter_rules.step_epsilon("step_epsilon", step_epsilon)
    # Neighbours a hair more than a stair apart would lose two stairs: so the hair is added here.
    stair = _stair(domain, step_multiplier) * (1.0 + ROUNDING)
    return laws.Staircase(step=stair, epsilon=step_epsilon, nu=nu)


def _ends(domain: Domain, given: Parameters) -> tuple[float, float]:
    """Where calibration looks for step_epsilon: no noise that a given grid refuses."""
    most, least = parameter_rules.STEP_EPSILONS[1], 1e-9
    if given["steps_per_radius"] != "auto":
        steps = parameter_rules.positive("steps_per_radius", given["steps_per_radius"])
        # The noise is stair/(1 - e^-step_epsilon) wide.
        share = _stair(domain, given["step_multiplier"]) * steps / (width(domain) * MAX_STEPS)
        least = max(least, -math.log1p(-min(1.001 * share, 0.999)))
    return most, least


@register(
    "discrete_staircase",
    summary="integers: staircase noise rounded to a grid, modulo 2^bits, sampled exactly",
    examples=[
        {
            "step_epsilon": 1.0,
            "nu": "auto",
            "step_multiplier": 2.0,
            "bits": 6,
            "steps_per_radius": "auto",
        },
        {
            "step_epsilon": 2.0,
            "nu": 0.3,
            "step_multiplier": 1.0,
            "bits": 5,
            "steps_per_radius": 6.0,
        },
    ],
    example_domain=Box(dimension=8, lower=0.0, upper=1.0),
    knob=Knob(parameter="step_epsilon", more_private="smaller", ends=_ends),
    automatic={"nu": _automatic_nu, "steps_per_radius": _automatic_steps},
    # Stairs as wide as the distance of neighbours: on a box around 0 half its width, zero-out.
    settings=[
        {"nu": "auto", "step_multiplier": stairs, "bits": bits, "steps_per_radius": "auto"}
        for stairs in (0.5, 1.0, 2.0)
        for bits in (4, 8, 12)
    ],
    coordinatewise=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteStaircase(RoundedNoise):
    """round((x + staircase noise)/step) modulo 2^bits; decodes to step times the centred residue.

    The density falls by e^-step_epsilon with each stair, which is step_multiplier * radius /
    records wide, or step_multiplier * (upper - lower) on a box, and a fraction 2^-26 more for what
    floats round before the noise. nu is the part of a stair on the higher level; 'auto' is the one
    of least variance. The grid has step = radius / steps_per_radius; on a box
    (upper - lower) / steps_per_radius, counted from its middle.

    Rounding and the modulus come after the noise, so the privacy is that of 'staircase':

    Number   (a ball of dimension 1) the exact law of the loss, which is +-step_epsilon or 0, if
             neighbours lie within one stair; else pure, step_epsilon for each stair begun.
    Box      the same noise on every coordinate, each of which can move: as many releases.

    The code is drawn exactly from the law of the rounded real number, so no last bits leak. A grid
    that is coarse against the stairs biases the mean, as the law declares; steps_per_radius =
    "auto" is the finest on which a coordinate wraps around with probability 1e-9 at most.

    Reference: docs/privacy.md, "Noise on a grid"; Geng and Viswanath 2016.
    """

    input_domain: L1Ball | L2Ball | Box
    step_epsilon: float
    nu: float
    step_multiplier: float
    bits: int
    steps_per_radius: float

    def __post_init__(self) -> None:
        _ = self.noise  # refuses what cannot be drawn before anything is charged
        self.check_grid()

    @property
    def noise(self) -> laws.Staircase:
        return _noise(self.input_domain, self.step_epsilon, self.nu, self.step_multiplier)

    def privacy(self, adjacency: Adjacency) -> FinitePair | PureDp | Repeated:
        domain = self.input_domain
        match domain:
            case L1Ball() | L2Ball():
                shift = domain.relative_sensitivity(adjacency) / self.step_multiplier
                return self._number(shift, adjacency)
            case Box():
                shift = domain.sensitivity(adjacency) / _stair(domain, self.step_multiplier)
                return Repeated(event=self._number(shift, adjacency), count=domain.dimension)
            case _:
                assert_never(domain)

    def _number(self, shift: float, adjacency: Adjacency) -> FinitePair | PureDp:
        """One coordinate that moves by `shift` stairs."""
        if shift <= 1.0:
            return staircase_pair(self.step_epsilon, self.nu, shift, adjacency)
        return PureDp(epsilon=math.ceil(shift) * self.step_epsilon, adjacency=adjacency)
