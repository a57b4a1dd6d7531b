"""The staircase mechanism in float32: the additive noise of least variance under pure DP."""

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
from sottovoce.mechanisms.mechanism import (
    Codes,
    Float32Codes,
    MomentLaw,
    Sampling,
    StaircaseLaw,
    float_codes,
)
from sottovoce.mechanisms.noise import laws as scalar
from sottovoce.mechanisms.noise.radial_staircase import (
    RadialStaircase,
    least_epsilon,
    radial_nu_for_variance,
)
from sottovoce.mechanisms.registry import CalibratedParameter, Parameters, register
from sottovoce.privacy.additive_noise import l2_staircase_event, staircase_pair
from sottovoce.privacy.events import FinitePair, PureDp, RenyiCurve, Repeated

_STEP_MULTIPLIERS = (1e-5, 1e5)
# Steps are slightly wider than the accounting assumes. The loss jumps at the edge of a step, and
# neighbors whose distance grows by rounding must not cross it.
_HEADROOM = 2.0**-40


def _is_radial(domain: Domain) -> bool:
    """Return whether all coordinates share one staircase of the L1 norm."""
    return isinstance(domain, L1Ball) and domain.dimension > 1


def _automatic_nu(domain: Domain, given: Parameters) -> float:
    """Return the nu of least variance at this step_epsilon."""
    epsilon = parameter_rules.step_epsilon("step_epsilon", given["step_epsilon"])
    return radial_nu_for_variance(epsilon, domain.dimension if _is_radial(domain) else 1)


def _ends(domain: Domain, _given: Parameters) -> tuple[float, float]:
    """Return the range of step_epsilon to calibrate in, the least private value first."""
    least = least_epsilon(domain.dimension) if _is_radial(domain) else 1e-9
    return parameter_rules.STEP_EPSILONS[1], least * (1.0 + 1e-9)


@register(
    "staircase",
    summary="float32 values with staircase noise: least variance under pure DP, for single numbers "
    "(simulation only)",
    examples=[{"step_epsilon": 1.0, "nu": 0.4, "step_multiplier": 2.0}],
    example_domain=L1Ball(dimension=8, radius=1.0),
    further_domains=[
        L2Ball(dimension=8, radius=1.0),
        Box(dimension=8, lower=0.0, upper=1.0),
    ],
    calibrated_parameter=CalibratedParameter(
        parameter="step_epsilon", more_private="smaller", ends=_ends
    ),
    automatic={"nu": _automatic_nu},
    # Steps as wide as the sensitivity; on a box around 0 under zero-out, that is half its width.
    settings=[
        # For many releases wide steps with nu close to 1 are better by about 10%.
        {"nu": nu, "step_multiplier": steps}
        for nu in ("auto", 0.999)
        for steps in (0.5, 1.0, 2.0)
    ],
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Staircase(WithPrivatize):
    """The staircase mechanism: x plus noise whose density falls by e^-step_epsilon with each step.

    One step is step_multiplier * radius / records wide, or step_multiplier * (upper - lower) on a
    box. The fraction nu of each step lies on its higher level. On a ball, step_multiplier = 1 makes
    one step equal to the sensitivity under zero-out, and 2 under replace-one; on a box, 1 does so
    under replace-one. Other values are allowed, and the accounting covers them.

    Privacy by domain:

    * A single number (a ball of dimension 1): the exact law of the privacy loss, which is
      +-step_epsilon or 0, if neighbors are within one step; else pure, step_epsilon for each step
      or part of a step.
    * `Box`: the same noise on every coordinate. Each of them can move, so the release costs as much
      as one scalar release per coordinate.
    * `L1Ball`: one staircase of the L1 norm. Pure, step_epsilon for each step or part of a step.
      The gain over Laplace noise vanishes as the dimension grows.
    * `L2Ball`: the same noise on every coordinate, which is *not* step_epsilon-DP: the losses of
      many small shifts add up like the square root of the dimension. The Renyi curve of the worst
      split is charged if neighbors are within one step. At equal privacy that takes about 2
      sqrt(dimension) times the Gaussian's variance (66 times for 1000 coordinates), so use this for
      comparison only. Wider steps cost even more, and steps narrower than the distance of neighbors
      are charged one by one; see `privacy.additive_noise`.

    Float64 noise has gaps in its last bits that the real-valued law does not have. In an L1 ball of
    several dimensions it also never has an L1 norm that is e^-45 times as likely as the likeliest
    one. So the claim holds
    in simulations only (sampling "float"); to deploy staircase noise use `DiscreteStaircase`.

    Cost: 32 bits per coordinate.

    References: Geng and Viswanath 2016; Geng, Kairouz, Oh and Viswanath 2015 (vectors); Mironov
    2012 on floating-point noise.

    Attributes:
        input_domain: The L1 ball, L2 ball or box that updates are clipped to.
        step_epsilon: The privacy loss of one step.
        nu: The fraction of a step on its higher level, strictly between 0 and 1. In specs and
            commands it may be "auto": the choice of least variance.
        step_multiplier: The width of a step in units of radius/records of a ball, or of the width
            of a box.
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
                "step_multiplier (the width of a noise step in units of radius/records of a ball, "
                f"or of the width of a box) must lie between {low:g} and {high:g}, got "
                f"{self.step_multiplier!r}; use the sensitivity in these units: on a ball 1 for "
                "zero-out and 2 for replace-one, on a box 1 for replace-one"
            )
        _ = self.noise  # raises for parameters that cannot be sampled, before anything is charged

    @property
    def step(self) -> float:
        """The width of one step of the noise's density, in the unit of the update."""
        return self.step_multiplier * self._unit * (1.0 + _HEADROOM)

    @property
    def _unit(self) -> float:
        """The length that step_multiplier multiplies."""
        domain = self.input_domain
        match domain:
            case L1Ball() | L2Ball():
                return domain.radius / domain.records
            case Box():
                return domain.upper - domain.lower
            case _:
                assert_never(domain)

    @property
    def noise(self) -> scalar.ScalarStaircase | RadialStaircase:
        """The law of the noise: one draw for each coordinate, or one for all of them.

        There is one for all coordinates in an L1 ball of more than one dimension.
        """
        if _is_radial(self.input_domain):
            return RadialStaircase(
                step=self.step,
                epsilon=self.step_epsilon,
                nu=self.nu,
                dimension=self.input_domain.dimension,
            )
        return scalar.ScalarStaircase(step=self.step, epsilon=self.step_epsilon, nu=self.nu)

    @property
    def noise_stddev(self) -> float:
        """The noise standard deviation of each coordinate, in the unit of the update."""
        return math.sqrt(self.noise.variance)

    def code_format(self) -> Float32Codes:
        return Float32Codes()

    def encode(self, values: ArrayLike, keystream: Keystream) -> NDArray[np.float32]:
        vector = self.input_domain.check(values)
        law = self.noise
        match law:
            case RadialStaircase():
                noise = law.sample(open_uniforms(keystream.words(len(vector) + 2)))
            case scalar.ScalarStaircase():
                centered = open_uniforms(keystream.words(len(vector))) - 0.5
                noise = np.copysign(law.quantile(0.5 - np.abs(centered)), centered)
            case _:
                assert_never(law)
        return np.asarray(vector + noise, dtype=np.float32)

    def decode(self, codes: Codes) -> Vector:
        return float_codes(codes)

    def law(self, values: ArrayLike) -> StaircaseLaw | MomentLaw:
        center, noise = self.input_domain.check(values), self.noise
        if isinstance(noise, RadialStaircase):
            return MomentLaw(center=center, spread=np.full_like(center, noise.variance))
        return StaircaseLaw(center=center, noise=noise)

    def coordinate_law(self) -> AddedNoise:
        noise = self.noise
        if isinstance(noise, RadialStaircase):
            raise ParameterError(
                "staircase noise in an L1 ball is one draw for all coordinates, so they cannot "
                "be drawn independently; set runtime.messages = 'packed', or clip in l2 or linf"
            )
        return AddedNoise(noise=noise)

    def privacy(self, adjacency: Adjacency) -> FinitePair | PureDp | RenyiCurve | Repeated:
        domain = self.input_domain
        shift = domain.sensitivity(adjacency) / self._unit / self.step_multiplier
        match domain:
            case L1Ball() if _is_radial(domain):
                return self._pure_event(shift, adjacency)
            case L2Ball(dimension=dimension) if dimension > 1:
                return l2_staircase_event(self.step_epsilon, self.nu, shift, dimension, adjacency)
            case L1Ball() | L2Ball():
                return self._scalar_event(shift, adjacency)
            case Box():
                return Repeated(event=self._scalar_event(shift, adjacency), count=domain.dimension)
            case _:
                assert_never(domain)

    def _scalar_event(self, shift: float, adjacency: Adjacency) -> FinitePair | PureDp:
        """Return the event of one coordinate that moves by `shift` steps."""
        if shift <= 1.0:
            return staircase_pair(self.step_epsilon, self.nu, shift, adjacency)
        return self._pure_event(shift, adjacency)

    def _pure_event(self, shift: float, adjacency: Adjacency) -> PureDp:
        """Return the pure event that charges step_epsilon for each step or part of a step."""
        return PureDp(epsilon=math.ceil(shift) * self.step_epsilon, adjacency=adjacency)
