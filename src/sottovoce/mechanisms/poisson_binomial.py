"""The Poisson binomial mechanism: several clamped bits per coordinate, sent as their sum."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball, Vector, require_l2_ball
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.encoding import WithPrivatize
from sottovoce.mechanisms.kernels.one_bit import sample_bits
from sottovoce.mechanisms.logit_bounds import (
    automatic_logit_bound,
    check_logit_bound,
    clamped_event,
)
from sottovoce.mechanisms.mechanism import Codes, FiniteLaw, LevelCodes, Sampling, level_indices
from sottovoce.mechanisms.registry import CalibratedParameter, register
from sottovoce.privacy.events import OneBit, SummedBits

MAX_TRIALS = 255


@register(
    "poisson_binomial",
    summary="several clamped bits per coordinate, sent as their sum, for secure sums",
    examples=[
        {"noise_multiplier": 2.0, "trials": 3, "logit_bound": 0.5},
        {"noise_multiplier": 0.5, "trials": 7, "logit_bound": "auto"},
    ],
    example_domain=L2Ball(dimension=8, radius=1.0),
    calibrated_parameter=CalibratedParameter(parameter="noise_multiplier", more_private="larger"),
    automatic={"logit_bound": automatic_logit_bound},
    may_omit=["logit_bound"],
    only_in_sums=True,
    settings_in_sums=[{"trials": 2**bits - 1, "logit_bound": "auto"} for bits in (2, 3, 4, 6)],
    coordinatewise=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonBinomial(WithPrivatize):
    """Several clamped sign bits per coordinate, of which the number of ones is sent.

        code ~ Bin(m, 1/(1 + e^-z)),        z = 2 u/(sigma sqrt m) clamped to [-Z, Z]

    with m = trials, Z = logit_bound and sigma = noise_multiplier * radius / records. A code decodes
    to sigma (2 code - m)/sqrt(m), so at u = 0 its standard deviation is sigma whatever m is, and
    the mean is sigma sqrt(m) tanh(z/2). With one trial this is `clamped_sign`. More trials make
    the logits smaller by sqrt(m), so the mean is right up to larger coordinates, and in a secure
    sum more bits are fair coins: use them if the dimension is small or few clients add up.

    Privacy: a code tells no more than its m bits, and their logits move by 2 Delta/(sigma sqrt m)
    each, so one message leaks at most as much as the sign of `clamped_sign`. The sum of codes over
    clients tells no more than the m sums over clients of single bits, which `OnlySums` accounts
    for.

    Cost: ceil(log2(trials + 1)) bits per coordinate.

    Reference: Chen, Ozgur and Kairouz 2022 (the mechanism). The accounting is our own.

    Attributes:
        input_domain: The L2 ball that updates are clipped to.
        noise_multiplier: sigma in units of radius/records.
        trials: m, the number of bits per coordinate, from 1 to 255; 2^b - 1 makes the most of b
            bits.
        logit_bound: Z, the largest absolute logit of a single bit; at most 100. In specs and
            commands it may be "auto" or left out: three times the root mean square of
            the logits of a rotated update.
    """

    input_domain: L2Ball
    noise_multiplier: float
    trials: int
    logit_bound: float
    sampling: ClassVar[Sampling] = "exact"

    def __post_init__(self) -> None:
        require_l2_ball(self.input_domain)
        parameter_rules.noise_multiplier(self.noise_multiplier)
        check_trials(self.trials)
        check_logit_bound(self.logit_bound)

    @property
    def noise_stddev(self) -> float:
        """The standard deviation sigma of a decoded coordinate at 0, in the unit of the update."""
        return self.noise_multiplier * self.input_domain.radius / self.input_domain.records

    def code_format(self) -> LevelCodes:
        return LevelCodes(levels=self.trials + 1)

    def encode(self, values: ArrayLike, keystream: Keystream) -> NDArray[np.uint8]:
        tilts = self._tilts(self.input_domain.check(values))
        bits = sample_bits(np.tile(tilts, self.trials), 1.0, keystream)
        return np.asarray(bits.reshape(self.trials, -1).sum(axis=0, dtype=np.uint8))

    @property
    def points(self) -> Vector:
        return self._values(np.arange(self.trials + 1))

    def decode(self, codes: Codes) -> Vector:
        return self._values(level_indices(codes, self.trials + 1))

    def _values(self, ones: Any) -> Vector:
        return np.asarray(self.noise_stddev / math.sqrt(self.trials) * (2.0 * ones - self.trials))

    def law(self, values: ArrayLike) -> FiniteLaw:
        from scipy.special import xlog1py, xlogy

        tilts = self._tilts(self.input_domain.check(values))[:, None]
        ones = np.arange(self.trials + 1)
        ways = np.array([math.comb(self.trials, j) for j in ones.tolist()], dtype=np.float64)
        chance = 1.0 / (1.0 + np.exp(-2.0 * tilts))
        table = ways * np.exp(xlogy(ones, chance) + xlog1py(self.trials - ones, -chance))
        return FiniteLaw(points=self.points, table=table / table.sum(axis=1, keepdims=True))

    def privacy(self, adjacency: Adjacency) -> OneBit:
        ball, bits = self.input_domain, self.input_domain.dimension * self.trials
        return clamped_event(ball, self.noise_multiplier, self.logit_bound, bits, adjacency)

    def summed_event(self, adjacency: Adjacency, clients: int) -> SummedBits:
        return SummedBits.of(self.privacy(adjacency), self.logit_bound, clients)

    def sum_bits(self, clients: int) -> int:
        return (self.trials * clients).bit_length()

    def decode_sum(self, total: NDArray[np.integer[Any]], clients: int) -> Vector:
        return self._values(total / clients)

    def _tilts(self, vector: Vector) -> Vector:
        """Return half the logits of a single bit."""
        half = self.logit_bound / 2.0
        return np.clip(vector / (self.noise_stddev * math.sqrt(self.trials)), -half, half)


def check_trials(trials: Any) -> int:
    """Return the number of trials; raise ParameterError unless it is from 1 to 255."""
    return parameter_rules.integer(
        "trials",
        trials,
        low=1,
        high=MAX_TRIALS,
        remedy="use 'discrete_gaussian' for more bits per coordinate",
    )
