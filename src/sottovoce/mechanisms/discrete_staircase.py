"""Staircase noise that is added and then rounded to a grid: for deployment."""

import math
from dataclasses import dataclass
from typing import assert_never

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Domain, L1Ball, L2Ball
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.noise import laws
from sottovoce.mechanisms.noise.rounded import MAX_STEPS
from sottovoce.mechanisms.registry import CalibratedParameter, Parameters, register
from sottovoce.mechanisms.rounded_noise import ROUNDING, RoundedNoise, automatic_steps, width
from sottovoce.privacy.additive_noise import staircase_pair
from sottovoce.privacy.events import FinitePair, PureDp, Repeated

_STAIR_MULTIPLIERS = (1e-5, 1e5)


def _stair(domain: Domain, step_multiplier: float) -> float:
    """Return the width of one stair, as the accounting uses it."""
    if isinstance(domain, L1Ball | L2Ball) and domain.dimension > 1:
        other = "discrete_laplace" if isinstance(domain, L1Ball) else "discrete_gaussian"
        raise ParameterError(
            f"'discrete_staircase' needs a Box or a ball of dimension 1, got {domain}; use the "
            f"mechanism '{other}'"
        )
    low, high = _STAIR_MULTIPLIERS
    if not low <= parameter_rules.positive("step_multiplier", step_multiplier) <= high:
        raise ParameterError(
            "step_multiplier (the width of a stair of the noise in units of radius/records of a "
            f"ball, or of the width of a box) must lie between {low:g} and {high:g}, got "
            f"{step_multiplier!r}; use the sensitivity in these units: on a ball 1 for zero-out "
            "and 2 for replace-one, on a box 1 for replace-one"
        )
    records = domain.records if isinstance(domain, L1Ball | L2Ball) else 1
    return step_multiplier * width(domain) / records


def _automatic_nu(_domain: Domain, given: Parameters) -> float:
    """Return the nu of least variance at this step_epsilon."""
    return laws.nu_for_variance(parameter_rules.step_epsilon("step_epsilon", given["step_epsilon"]))


def _automatic_steps(domain: Domain, given: Parameters) -> float:
    nu = _automatic_nu(domain, given) if given["nu"] == "auto" else given["nu"]
    noise = _noise(domain, given["step_epsilon"], nu, given["step_multiplier"])
    return automatic_steps(domain, given["bits"], noise)


def _noise(
    domain: Domain, step_epsilon: float, nu: float, step_multiplier: float
) -> laws.ScalarStaircase:
    parameter_rules.step_epsilon("step_epsilon", step_epsilon)
    # Neighbors slightly more than a stair apart would cost two stairs, so stairs are made wider.
    stair = _stair(domain, step_multiplier) * (1.0 + ROUNDING)
    return laws.ScalarStaircase(step=stair, epsilon=step_epsilon, nu=nu)


def _ends(domain: Domain, given: Parameters) -> tuple[float, float]:
    """Return the range of step_epsilon to calibrate in, within what the grid allows."""
    most, least = parameter_rules.STEP_EPSILONS[1], 1e-9
    if given["steps_per_radius"] != "auto":
        steps = parameter_rules.positive("steps_per_radius", given["steps_per_radius"])
        # The noise is stair/(1 - e^-step_epsilon) wide.
        share = _stair(domain, given["step_multiplier"]) * steps / (width(domain) * MAX_STEPS)
        least = max(least, -math.log1p(-min(1.001 * share, 0.999)))
    return most, least


@register(
    "discrete_staircase",
    summary="staircase noise rounded to integers modulo 2^bits, sampled exactly",
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
    calibrated_parameter=CalibratedParameter(
        parameter="step_epsilon", more_private="smaller", ends=_ends
    ),
    automatic={"nu": _automatic_nu, "steps_per_radius": _automatic_steps},
    # Stairs as wide as the sensitivity; on a box around 0 under zero-out, that is half its width.
    settings=[
        {"nu": "auto", "step_multiplier": stairs, "bits": bits, "steps_per_radius": "auto"}
        for stairs in (0.5, 1.0, 2.0)
        for bits in (4, 8, 12)
    ],
    coordinatewise=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteStaircase(RoundedNoise):
    """Staircase noise rounded to a grid and sent modulo 2^bits, sampled exactly; for deployment.

        code = round((x + staircase noise)/step) mod 2^bits

    The density of the noise falls by e^-step_epsilon with each stair. A stair is step_multiplier *
    radius / records wide, or step_multiplier * (upper - lower) on a box, plus a fraction 2^-26 for
    the rounding before the noise. The fraction nu of each stair lies on its higher level. The grid
    has step = radius / steps_per_radius, or (upper - lower) / steps_per_radius on a box, where
    x is counted from the middle of the box. A code decodes to step times its residue in
    [-2^(bits-1), 2^(bits-1)), plus the middle on a box. A grid that is coarse compared with the
    stairs biases the mean, as `law` declares.

    Privacy: rounding and the modulus are post-processing, so the privacy is that of `Staircase`:

    * A single number (a ball of dimension 1): the exact law of the privacy loss, which is
      +-step_epsilon or 0, if neighbors are within one stair; else pure, step_epsilon for each stair
      or part of a stair.
    * `Box`: the same noise on every coordinate. Each of them can move, so the release costs as much
      as one scalar release per coordinate.

    The code is drawn exactly from the law of the rounded real number, so the last bits of
    floating-point noise cannot leak.

    Cost: `bits` bits per coordinate.

    References: docs/explanation/privacy.md, "Noise on a grid"; Geng and Viswanath 2016.

    Attributes:
        input_domain: A box, or a ball of dimension 1, where x is the mean of
            the ball's `records`.
        step_epsilon: The privacy loss of one stair.
        nu: The fraction of a stair on its higher level, strictly between 0 and 1. In specs and
            commands it may be "auto": the choice of least variance.
        step_multiplier: The width of a stair in units of radius/records of a ball, or of the width
            of a box.
        bits: The number of bits per coordinate, from 2 to 20.
        steps_per_radius: The number of grid steps in the radius or in the width of the box. It may
            be "auto" too: the finest grid on which a coordinate wraps around with probability at
            most 1e-9.
    """

    input_domain: L1Ball | L2Ball | Box
    step_epsilon: float
    nu: float
    step_multiplier: float
    bits: int
    steps_per_radius: float

    def __post_init__(self) -> None:
        _ = self.noise  # raises for parameters that cannot be sampled, before anything is charged
        self.check_grid()

    @property
    def noise(self) -> laws.ScalarStaircase:
        """The law of the noise that is added to a coordinate before rounding, in its unit."""
        return _noise(self.input_domain, self.step_epsilon, self.nu, self.step_multiplier)

    def privacy(self, adjacency: Adjacency) -> FinitePair | PureDp | Repeated:
        domain = self.input_domain
        match domain:
            case L1Ball() | L2Ball():
                shift = domain.relative_sensitivity(adjacency) / self.step_multiplier
                return self._scalar_event(shift, adjacency)
            case Box():
                shift = domain.sensitivity(adjacency) / _stair(domain, self.step_multiplier)
                return Repeated(event=self._scalar_event(shift, adjacency), count=domain.dimension)
            case _:
                assert_never(domain)

    def _scalar_event(self, shift: float, adjacency: Adjacency) -> FinitePair | PureDp:
        """Return the event of one coordinate that moves by `shift` stairs."""
        if shift <= 1.0:
            return staircase_pair(self.step_epsilon, self.nu, shift, adjacency)
        return PureDp(epsilon=math.ceil(shift) * self.step_epsilon, adjacency=adjacency)
