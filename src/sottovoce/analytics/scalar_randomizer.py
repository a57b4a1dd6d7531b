"""A randomizer of one number per person, on top of any registered scalar mechanism."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.analytics.randomizers import Randomizer
from sottovoce.analytics.tallies import CodeCounts, Moments, Tally
from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Vector
from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.design.store import table_epsilon
from sottovoce.mechanisms.mechanism import CodeFormat, Codes, LevelCodes, Mechanism
from sottovoce.mechanisms.release import release_event
from sottovoce.mechanisms.rounded_noise import ROUNDING
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.privacy.pure import pure_epsilon

AUTO = "auto"
TABLES = ("mvu", "generalized_rr", "bitwise_rr")
GRIDS = ("discrete_laplace", "discrete_staircase")
FLOATS = ("laplace", "staircase")
MECHANISMS = (*TABLES, *GRIDS, *FLOATS)
FLOAT_BITS = 32
_DEFAULT_BITS = {"discrete_laplace": 10, "discrete_staircase": 14}
_MOST_BITS = {**dict.fromkeys(TABLES, 8), **dict.fromkeys(GRIDS, 16)}
# Below this epsilon more than 3 bits gain almost nothing, and their tables take seconds to design.
_QUICKLY_DESIGNED_BITS = 3
_MANY_LETTERS_EPSILON = 4.0
# Largest bias of an answer in its standard deviations: with 10^7 people it is a tenth of the mean's
# standard error.
_LARGEST_BIAS = 3e-5
_INPUTS = 33
_LEAST_UNCOMMON = 30
# Below both limits the noise does not hide a few values at the far end, and Student's interval
# covers 88% instead of 95%.
_FEW_PEOPLE, _LITTLE_NOISE = 1000, 5.0
_FEW_FAR = (
    "with so few people and so little noise the interval covers less often than stated, by up to "
    "seven percentage points, if a few people are far from the others"
)
# Noise is calibrated to slightly less than epsilon, because safety margins and the rounding to
# rational parameters may raise it.
_BELOW = 1.0 - 2.0 * ROUNDING


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarRandomizer(Randomizer):
    """A randomizer of numbers in [lower, upper] that sends one code of `bits` bits.

    A code is `epsilon`-DP for any two numbers. The decoded code is unbiased, or its bias is so
    small that it does not show with 10^7 people.
    """

    lower: float
    upper: float
    epsilon: float
    bits: int
    mechanism: str

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise UnknownNameError.among("mechanism for a number", self.mechanism, MECHANISMS)
        Box(dimension=1, lower=self.lower, upper=self.upper)
        table_epsilon(self.epsilon)
        check_bits(self.mechanism, self.bits)
        _check_bias(self)

    def build(self, people: int) -> Mechanism:
        """Return the mechanism for the numbers of `people` people, one coordinate each."""
        return _build(self, people)

    @property
    def event(self) -> PrivacyEvent:
        """The privacy event that one person's code is charged with (replace-one).

        Raise ParameterError if its pure epsilon exceeds `epsilon` by more than rounding.
        """
        return _event(self)

    def tally(self, codes: Codes, groups: NDArray[np.int64] | None = None, num: int = 1) -> Tally:
        """Return the tally of codes; `groups` says which of `num` sub-questions each answers.

        It has the counts of codes; for float32 codes the moments of decoded numbers, minus the
        middle of [lower, upper]. Without `groups` all answer the first sub-question.
        """
        code_format = self.code_format
        if isinstance(code_format, LevelCodes):
            return CodeCounts.of(codes, code_format.levels, groups, num)
        array = np.asarray(codes, dtype=np.float32)
        middle = (self.lower + self.upper) / 2.0
        return Moments.of(self.build(len(array)).decode(array) - middle, groups, num)

    def points(self) -> Vector:
        """Return the number that each code decodes to; raise ParameterError for float32 codes."""
        return _points(self)

    def contributions(self, tally: Tally, group: int = 0) -> "Contributions":
        """Return number, mean and sample variance of the decoded codes of a group.

        The variance is at least `least_variance`. Without people the mean is 0, or for float32
        codes the middle of [lower, upper].
        """
        if isinstance(tally, CodeCounts):
            return Contributions.of_counts(
                self.points(), tally.counts[group], self.least_variance()
            )
        count, total, squares = (float(number) for number in tally.sums[group])
        mean = total / max(count, 1.0)
        spread = (squares - count * mean**2) / max(count - 1.0, 1.0)
        middle = (self.lower + self.upper) / 2.0
        variance = max(spread, self.least_variance())
        people = round(count)
        return Contributions(people=people, mean=mean + middle, variance=variance, uncommon=people)

    def caveat(self, found: "Contributions") -> str | None:
        """Return why Student's interval for the mean may not cover as stated, or None."""
        width = self.upper - self.lower
        little = found.people * self.least_variance() < _LITTLE_NOISE * width**2
        if found.caveat is None and found.people < _FEW_PEOPLE and little:
            return _FEW_FAR
        return found.caveat

    def least_variance(self) -> float:
        """Return the least variance of a decoded code, over 33 even inputs in [lower, upper]."""
        return float(_variances(self).min())

    def worst_variance(self) -> float:
        """Return the largest variance of a decoded code, over 33 even inputs in [lower, upper]."""
        return float(_variances(self).max())


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributions:
    """The number, mean and variance of independent values, one per person.

    The variance is the sample variance, or that of the noise alone if it is larger. `uncommon`
    people sent another code than the most frequent one.
    """

    people: int
    mean: float
    variance: float
    uncommon: int

    @classmethod
    def of_counts(
        cls, points: Vector, counts: NDArray[np.int64], least_variance: float = 0.0
    ) -> "Contributions":
        """Compute number, mean and variance from how often each of the `points` occurred.

        The variance is at least `least_variance`, the noise's own: few people may happen not to
        show it.
        """
        people = int(counts.sum())
        mean = float(counts @ points) / max(people, 1)
        spread = float(counts @ (points - mean) ** 2) / max(people - 1, 1)
        uncommon = people - int(counts.max())
        variance = max(spread, least_variance)
        return cls(people=people, mean=mean, variance=variance, uncommon=uncommon)

    @property
    def caveat(self) -> str | None:
        """Why the interval may not cover as stated, or None.

        If almost all codes are the same, the number of the others is Poisson distributed and not
        normal.
        """
        if self.uncommon >= _LEAST_UNCOMMON:
            return None
        return (
            f"fewer than {_LEAST_UNCOMMON} people sent another code than the most frequent one: "
            "the interval covers more often than stated if all people are alike, and far less "
            "often if a few are far from the others"
        )

    @property
    def squared_error(self) -> float:
        """An estimate of the variance of the mean: `variance` divided by the number of people.

        Without people it is `variance`.
        """
        return self.variance / max(self.people, 1)


def check_bits(mechanism: str, bits: int) -> int:
    """Return the bits; raise ParameterError unless the mechanism can send codes of so many bits."""
    if mechanism in FLOATS:
        return parameter_rules.integer(
            f"bits of '{mechanism}'",
            bits,
            low=FLOAT_BITS,
            high=FLOAT_BITS,
            remedy="it sends a float32; use 'mvu' for 1 to 8 bits",
        )
    low = 2 if mechanism in GRIDS else 1
    return parameter_rules.integer(
        f"bits of '{mechanism}'", bits, low=low, high=_MOST_BITS[mechanism]
    )


def randomizer_for(
    lower: float, upper: float, epsilon: float, bits: int | None, mechanism: str
) -> ScalarRandomizer:
    """Return the randomizer for a mechanism with codes of `bits` bits; None is its default.

    "auto" chooses the mechanism with the least worst-case variance within `bits` (3 if None); at
    epsilon below 4 it uses at most 3 bits for "mvu". Raise UnknownNameError if the mechanism is not
    known, and ParameterError if an argument is out of range or the bias would be too large.
    """
    table_epsilon(epsilon)
    Box(dimension=1, lower=lower, upper=upper)

    def made(name: str, size: int) -> ScalarRandomizer:
        return ScalarRandomizer(
            lower=float(lower),
            upper=float(upper),
            epsilon=float(epsilon),
            bits=size,
            mechanism=name,
        )

    if mechanism != AUTO:
        if mechanism not in MECHANISMS:
            raise UnknownNameError.among("mechanism for a number", mechanism, (AUTO, *MECHANISMS))
        return made(mechanism, bits if bits is not None else default_bits(mechanism))
    most = parameter_rules.integer("bits", 3 if bits is None else bits, low=1, high=16)
    few = min(most, _QUICKLY_DESIGNED_BITS)
    candidates = [made("mvu", few if epsilon < _MANY_LETTERS_EPSILON else min(most, 8))]
    candidates += [made(name, min(most, 8)) for name in ("generalized_rr", "bitwise_rr")]
    if most >= max(_DEFAULT_BITS.values()):
        candidates += [made(name, most) for name in GRIDS]
    return min(candidates, key=ScalarRandomizer.worst_variance)


def default_bits(mechanism: str) -> int:
    """Return the bits of a mechanism's code if none are given: 3 for tables, more for noise."""
    return FLOAT_BITS if mechanism in FLOATS else _DEFAULT_BITS.get(mechanism, 3)


def _parameters(mechanism: str, epsilon: float, bits: int) -> dict[str, Any]:
    """Return the parameters of a mechanism on the box.

    Under replace-one, neighbors are as far apart as the box is wide.
    """
    match mechanism:
        case "mvu":
            return {"epsilon": epsilon, "input_bits": "continuous", "output_bits": bits}
        case "generalized_rr" | "bitwise_rr":
            return {"epsilon": epsilon, "bits": bits}
        case "laplace":
            return {"noise_multiplier": 1.0 / (epsilon * _BELOW)}
        case "discrete_laplace":
            noise = {"noise_multiplier": 1.0 / (epsilon * _BELOW)}
            return {**noise, "bits": bits, "steps_per_radius": AUTO}
        case "staircase":
            return {"step_epsilon": epsilon * _BELOW, "nu": AUTO, "step_multiplier": 1.0}
        case "discrete_staircase":
            stairs = {"step_epsilon": epsilon * _BELOW, "nu": AUTO, "step_multiplier": 1.0}
            return {**stairs, "bits": bits, "steps_per_radius": AUTO}
        case _:
            raise UnknownNameError.among("mechanism for a number", mechanism, MECHANISMS)


@lru_cache(maxsize=256)
def _build(randomizer: ScalarRandomizer, people: int) -> Mechanism:
    domain = Box(dimension=people, lower=float(randomizer.lower), upper=float(randomizer.upper))
    given = _parameters(randomizer.mechanism, randomizer.epsilon, randomizer.bits)
    return registry.find(randomizer.mechanism).build(domain, given)


@lru_cache(maxsize=256)
def _event(randomizer: ScalarRandomizer) -> PrivacyEvent:
    event = release_event(randomizer.build(1), adjacency=Adjacency.REPLACE_ONE)
    # Sums of epsilons are rounded up, which the factor allows for.
    if not pure_epsilon(event) <= randomizer.epsilon * (1.0 + 2.0**-40):
        raise ParameterError(
            f"'{randomizer.mechanism}' spends {pure_epsilon(event)!r}, above epsilon "
            f"{randomizer.epsilon!r}; use 'mvu'"
        )
    return event


@lru_cache(maxsize=64)
def _points(randomizer: ScalarRandomizer) -> Vector:
    levels = _levels(randomizer.code_format)
    codes = np.arange(levels, dtype=np.min_scalar_type(levels - 1))
    points = randomizer.build(levels).decode(codes)
    points.flags.writeable = False
    return points


@lru_cache(maxsize=256)
def _variances(randomizer: ScalarRandomizer) -> Vector:
    """Return the variances of the decoded code at evenly spaced inputs."""
    inputs = np.linspace(randomizer.lower, randomizer.upper, _INPUTS)
    return randomizer.build(_INPUTS).law(inputs).variance()


@lru_cache(maxsize=256)
def _check_bias(randomizer: ScalarRandomizer) -> None:
    """Raise if rounding to a coarse grid gives a bias that 10^7 people could show."""
    if randomizer.mechanism not in GRIDS:
        return
    inputs = np.linspace(randomizer.lower, randomizer.upper, _INPUTS)
    law = randomizer.build(_INPUTS).law(inputs)
    bias = float(np.abs(law.mean() - inputs).max() / math.sqrt(law.variance().min()))
    if bias > _LARGEST_BIAS:
        raise ParameterError(
            f"'{randomizer.mechanism}' in {randomizer.bits} bits at epsilon "
            f"{randomizer.epsilon:g} has a bias of {bias:.1e} standard deviations of an answer, "
            f"above {_LARGEST_BIAS:g}; use 'mvu', which is unbiased and has up to "
            f"{_MOST_BITS['mvu']} bits, or try more bits ('{randomizer.mechanism}' has at most "
            f"{_MOST_BITS[randomizer.mechanism]})"
        )


def _levels(code_format: CodeFormat) -> int:
    """Return the number of levels; raise for float codes."""
    if not isinstance(code_format, LevelCodes):
        raise ParameterError("float32 codes have no levels; use their moments")
    return code_format.levels
