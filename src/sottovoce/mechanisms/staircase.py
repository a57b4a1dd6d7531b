"""Staircase noise, in float32: of all additive pure noise the one of least variance."""

import math
from dataclasses import dataclass
from typing import ClassVar, assert_never

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Domain, L1Ball, L2Ball, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Keystream, open_uniforms
from sottovoce.mechanisms.coordinate_laws import AddedNoise
from sottovoce.mechanisms.encoding import WithPrivatize
from sottovoce.mechanisms.mechanism import Codes, Float32Codes, MomentLaw, Sampling, StaircaseLaw
from sottovoce.mechanisms.noise import laws as scalar
from sottovoce.mechanisms.noise.radial_staircase import (
    RadialStaircase,
    least_epsilon,
    radial_nu_for_variance,
)
from sottovoce.mechanisms.registry import Knob, Parameters, register
from sottovoce.privacy.additive_noise import l2_staircase_event, staircase_pair
from sottovoce.privacy.events import FinitePair, PureDp, RenyiCurve, Repeated

_STEP_MULTIPLIERS = (1e-5, 1e5)
# Steps are a hair wider than they are charged: at the edge of one the loss jumps, and neighbours
# that rounding puts next to nothing too far apart must not pass it.
_HEADROOM = 2.0**-40


def _is_radial(domain: Domain) -> bool:
    """Whether all coordinates share one staircase, in L1 norm."""
    return isinstance(domain, L1Ball) and domain.dimension > 1


def _automatic_nu(domain: Domain, given: Parameters) -> float:
    """The nu of least variance at this step_epsilon."""
    epsilon = parameter_rules.step_epsilon("step_epsilon", given["step_epsilon"])
    return radial_nu_for_variance(epsilon, domain.dimension if _is_radial(domain) else 1)


def _ends(domain: Domain, _given: Parameters) -> tuple[float, float]:
    """Where calibration looks for step_epsilon, the least private first."""
    least = least_epsilon(domain.dimension) if _is_radial(domain) else 1e-9
    return parameter_rules.STEP_EPSILONS[1], least * (1.0 + 1e-9)


@register(
    "staircase",
    summary="float32 values with staircase noise: least variance under pure privacy, for numbers "
    "(simulation grade)",
    examples=[{"step_epsilon": 1.0, "nu": 0.4, "step_multiplier": 2.0}],
    example_domain=L1Ball(dimension=8, radius=1.0),
    further_domains=[
        L2Ball(dimension=8, radius=1.0),
        Box(dimension=8, lower=0.0, upper=1.0),
    ],
    knob=Knob(parameter="step_epsilon", more_private="smaller", ends=_ends),
    automatic={"nu": _automatic_nu},
    # As wide as the distance of neighbours: on a box around 0 half its width, zero-out.
    settings=[
        # Over many releases wide stairs, of nearly one level each, are better by a tenth.
        {"nu": nu, "step_multiplier": steps}
        for nu in ("auto", 0.999)
        for steps in (0.5, 1.0, 2.0)
    ],
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Staircase(WithPrivatize):
    """x + staircase noise: the density falls by e^-step_epsilon with each step.

    The step is step_multiplier * radius / records, or step_multiplier * (upper - lower) on a box.
    Balls: 1 suits zero-out, 2 replace-one. nu is the part of a step on the higher level; 'auto' is
    the one of least variance.

    Number   (a ball of dimension 1) the exact law of the loss, which is +-step_epsilon or 0, if
             neighbours lie within one step; else pure, step_epsilon for each step begun.
    Box      the same noise on every coordinate, each of which can move: as many releases.
    L1Ball   one staircase of the L1 norm: pure, step_epsilon for each step begun. Its gain over
             Laplace noise dies with the dimension.
    L2Ball   the same noise on every coordinate, which is *not* step_epsilon-DP: the losses of many
             small shifts add up like the root of the dimension. Charged with the Renyi curve of the
             worst split if neighbours lie within one step. At equal privacy that takes about
             2 sqrt(dimension) times the Gaussian's variance (66 times for 1000 coordinates): it is
             here to be compared with. Wider steps cost more still, narrower ones than the distance
             of neighbours are charged step by step; see `privacy.additive_noise`.

    Float64 noise has gaps in its last bits that the real-valued law has not, and on vectors no norm
    that is e^-45 as likely as the likeliest, so the claim holds for simulation only.

    Reference: Geng and Viswanath 2016; Geng, Kairouz, Oh and Viswanath 2015 (vectors); Mironov 2012
    on float noise.
    """

    input_domain: L1Ball | L2Ball | Box
    step_epsilon: float
    nu: float
    step_multiplier: float
    sampling: ClassVar[Sampling] = "float"

    def __post_init__(self) -> None:
        domain = self.input_domain
        if not isinstance(domain, L1Ball | L2Ball | Box):
            raise ParameterError(
                f"input_domain must be an L1Ball, an L2Ball or a Box, got {type(domain).__name__}"
            )
        parameter_rules.step_epsilon("step_epsilon", self.step_epsilon)
        parameter_rules.inner_fraction("nu", self.nu)
        low, high = _STEP_MULTIPLIERS
        if not low <= parameter_rules.positive("step_multiplier", self.step_multiplier) <= high:
            raise ParameterError(
                f"step_multiplier must lie between {low:g} and {high:g}, got "
                f"{self.step_multiplier!r}; 1 suits zero-out, 2 replace-one"
            )
        _ = self.noise  # refuses what cannot be drawn before anything is charged

    @property
    def step(self) -> float:
        """The width of one step."""
        return self.step_multiplier * self._unit * (1.0 + _HEADROOM)

    @property
    def _unit(self) -> float:
        """What step_multiplier multiplies."""
        domain = self.input_domain
        match domain:
            case L1Ball() | L2Ball():
                return domain.radius / domain.records
            case Box():
                return domain.upper - domain.lower
            case _:
                assert_never(domain)

    @property
    def noise(self) -> scalar.Staircase | RadialStaircase:
        """Of each coordinate, or of all of them together."""
        if _is_radial(self.input_domain):
            return RadialStaircase(
                step=self.step,
                epsilon=self.step_epsilon,
                nu=self.nu,
                dimension=self.input_domain.dimension,
            )
        return scalar.Staircase(step=self.step, epsilon=self.step_epsilon, nu=self.nu)

    @property
    def noise_stddev(self) -> float:
        return math.sqrt(self.noise.variance)

    def code_format(self) -> Float32Codes:
        return Float32Codes()

    def encode(self, values: ArrayLike, keystream: Keystream) -> NDArray[np.float32]:
        vector = self.input_domain.check(values)
        law = self.noise
        match law:
            case RadialStaircase():
                noise = law.sample(open_uniforms(keystream.words(len(vector) + 2)))
            case scalar.Staircase():
                centred = open_uniforms(keystream.words(len(vector))) - 0.5
                noise = np.copysign(law.quantile(0.5 - np.abs(centred)), centred)
            case _:
                assert_never(law)
        return np.asarray(vector + noise, dtype=np.float32)

    def decode(self, codes: Codes) -> Vector:
        return codes.astype(np.float64)

    def law(self, values: ArrayLike) -> StaircaseLaw | MomentLaw:
        centre, noise = self.input_domain.check(values), self.noise
        if isinstance(noise, RadialStaircase):
            return MomentLaw(centre=centre, spread=np.full_like(centre, noise.variance))
        return StaircaseLaw(centre=centre, noise=noise)

    def coordinate_law(self) -> AddedNoise:
        noise = self.noise
        if isinstance(noise, RadialStaircase):
            raise ParameterError(
                "staircase noise in an L1 ball is one draw for all coordinates, so nothing can be "
                "drawn for each; set runtime.messages = 'packed', or clip in l2 or linf"
            )
        return AddedNoise(noise=noise)

    def privacy(self, adjacency: Adjacency) -> FinitePair | PureDp | RenyiCurve | Repeated:
        domain = self.input_domain
        shift = domain.sensitivity(adjacency) / self._unit / self.step_multiplier
        match domain:
            case L1Ball() if _is_radial(domain):
                return self._pure(shift, adjacency)
            case L2Ball(dimension=dimension) if dimension > 1:
                return l2_staircase_event(self.step_epsilon, self.nu, shift, dimension, adjacency)
            case L1Ball() | L2Ball():
                return self._number(shift, adjacency)
            case Box():
                return Repeated(event=self._number(shift, adjacency), count=domain.dimension)
            case _:
                assert_never(domain)

    def _number(self, shift: float, adjacency: Adjacency) -> FinitePair | PureDp:
        """One coordinate that moves by `shift` steps."""
        if shift <= 1.0:
            return staircase_pair(self.step_epsilon, self.nu, shift, adjacency)
        return self._pure(shift, adjacency)

    def _pure(self, shift: float, adjacency: Adjacency) -> PureDp:
        """Each step begun costs its whole epsilon."""
        return PureDp(epsilon=math.ceil(shift) * self.step_epsilon, adjacency=adjacency)
