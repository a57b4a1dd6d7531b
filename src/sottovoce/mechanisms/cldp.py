"""Communication-limited local differential privacy: a random direction and one randomized bit."""

import decimal
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, assert_never

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, L1Ball, L2Ball, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Keystream, open_uniforms, uniform_below
from sottovoce.mechanisms.encoding import WithPrivatize
from sottovoce.mechanisms.mechanism import (
    Codes,
    JointLaw,
    LevelCodes,
    MomentLaw,
    Sampling,
    level_indices,
)
from sottovoce.mechanisms.registry import CalibratedParameter, register
from sottovoce.privacy.events import PureDp

MAX_DIMENSION = 2**31  # one code holds a coordinate and a sign in 32 bits
_WORD = 2**64
_MAX_JOINT_DIMENSION = 256  # the joint law takes 4 d^2 numbers


@register(
    "cldp",
    summary="a random direction and one bit: log2(d) + 1 bits per message (L2: per coordinate)",
    examples=[{"epsilon": 1.0}, {"epsilon": 5.0}],
    example_domain=L1Ball(dimension=8, radius=1.0),
    further_domains=[
        Box(dimension=8, lower=-1.0, upper=1.0),
        L2Ball(dimension=8, radius=1.0),
    ],
    calibrated_parameter=CalibratedParameter(parameter="epsilon", more_private="smaller"),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Cldp(WithPrivatize):
    """Randomized response about a public random direction: unbiased, pure DP and very short.

    A value y in [-r, r] is rounded to a sign, + with probability (1 + y/r)/2, and the sign is
    flipped with probability f, the least multiple of 2^-64 at or above 1/(e^epsilon + 1). With c =
    1 - 2f, the sign times r/c has mean y and variance (r/c)^2 - y^2. What y is depends on the
    domain:

    * `Box` [-r, r]^d: y is a uniformly chosen coordinate. The message decodes to +-d r/c in that
      coordinate and 0 elsewhere.
    * `L1Ball`: y is the inner product of x with a uniformly chosen row h of the Hadamard matrix
      whose order is the next power of two. The message decodes to +-(r/c) h.
    * `L2Ball`: V is uniform on the sphere, reflected so that the sign of V.x is a randomized sign
      whose y is |x|. With k = E|V_1| = Gamma(d/2)/(sqrt(pi) Gamma((d+1)/2)) and B = r/(c k), the
      vector B V has mean x. It is sent as d draws from the vertices +-sqrt(d) B e_j with mean B V,
      and decodes to their average: variance B^2 (2/d - 1/d^2) - x_i^2.

    Privacy: the direction does not depend on the data, and the sign is flipped by comparison with
    an integer threshold. So the likelihood ratio is at most (1 - f)/f <= e^epsilon for any rounding
    of float64: sampling is exact. Replace-one spends log((1 - f)/f). Closer neighbors (zero-out, or
    one record of several) move the probability of the sign less. For `Box` and `L1Ball` the epsilon
    of neighbors at distance 2 r s is log(1 + (e^epsilon - 1) s); for `L2Ball` that holds only
    against x = 0.

    Cost: ceil(log2(d)) + 1 bits for the whole vector (`Box`, `L1Ball`), or as many for each
    coordinate (`L2Ball`).

    References: Girgis, Data, Diggavi, Kairouz and Suresh 2021, section 4; Duchi, Jordan and
    Wainwright 2018, section 4.2 (the sphere); Gandikota et al. 2021 (the vertices).

    Attributes:
        input_domain: A box that is symmetric about 0, an L1 ball or an L2 ball.
        epsilon: The pure epsilon between any two inputs, at most 1000. Below about 2e-19 it is
            refused.
    """

    input_domain: Box | L1Ball | L2Ball
    epsilon: float
    sampling: ClassVar[Sampling] = "exact"

    def __post_init__(self) -> None:
        domain = self.input_domain
        if not isinstance(domain, Box | L1Ball | L2Ball):
            raise ParameterError(
                f"input_domain must be a Box, an L1Ball or an L2Ball, got {type(domain).__name__}"
            )
        if isinstance(domain, Box) and domain.lower != -domain.upper:
            raise ParameterError(
                f"the box must be symmetric about 0, got [{domain.lower}, {domain.upper}]; "
                "subtract the middle of the box from the box and the data, and add it to the result"
            )
        parameter_rules.integer(
            "dimension",
            domain.dimension,
            low=1,
            high=MAX_DIMENSION,
            remedy="send the vector in parts",
        )
        parameter_rules.epsilon(self.epsilon)
        if self.flip_threshold >= _WORD // 2:
            raise ParameterError(
                f"epsilon {self.epsilon!r} is too small for a 64-bit probability; use at least 1e-9"
            )

    @property
    def radius(self) -> float:
        """The radius r of the ball, or half the width of the box."""
        domain = self.input_domain
        return domain.upper if isinstance(domain, Box) else domain.radius

    @property
    def flip_threshold(self) -> int:
        """The probability f of flipping a sign, in units of 2^-64."""
        return _flip_threshold(float(self.epsilon))

    @property
    def contrast(self) -> float:
        """The factor c = 1 - 2f in (0, 1) by which flipping multiplies the mean of a sign."""
        return (_WORD - 2 * self.flip_threshold) / _WORD

    @property
    def num_directions(self) -> int:
        """The number of directions that a code can name.

        The dimension for a box or an L2 ball; for an L1 ball the number of rows of the Hadamard
        matrix, the next power of two.
        """
        dimension = self.input_domain.dimension
        padded: int = 1 << (dimension - 1).bit_length()
        return padded if isinstance(self.input_domain, L1Ball) else dimension

    def code_format(self) -> LevelCodes:
        count = None if isinstance(self.input_domain, L2Ball) else 1
        return LevelCodes(levels=2 * self.num_directions, count=count)

    def encode(self, values: ArrayLike, keystream: Keystream) -> Codes:
        domain = self.input_domain
        vector = domain.check(values)
        match domain:
            case L2Ball():
                return self._encode_on_sphere(vector, domain, keystream)
            case Box() | L1Ball():
                words = [int(word) for word in keystream.words(3)]
                direction = uniform_below(self.num_directions, words[0], keystream)
                if isinstance(domain, Box):
                    component = float(vector[direction])
                else:
                    component = float(
                        _hadamard(np.array([direction]), domain.dimension)[0] @ vector
                    )
                minus = self._randomize_sign(component / self.radius, words[1], words[2]) < 0
                code = 2 * direction + int(minus)
                return self._as_codes(np.array([code]))
            case _:
                assert_never(domain)

    def _randomize_sign(self, ratio: float, rounding_word: int, flip_word: int) -> int:
        """Return a random sign with mean c * ratio."""
        probability = min(1.0, max(0.0, 0.5 + 0.5 * ratio))
        sign = 1 if rounding_word < int(probability * _WORD) else -1
        return -sign if flip_word < self.flip_threshold else sign

    def _encode_on_sphere(self, vector: Vector, domain: L2Ball, keystream: Keystream) -> Codes:
        from scipy.special import ndtri

        dimension = domain.dimension
        words = keystream.words(2 + 2 * dimension)
        uniforms = open_uniforms(words[2:])
        direction = ndtri(uniforms[:dimension])
        side = 1.0 if float(direction @ vector) >= 0.0 else -1.0
        sign = self._randomize_sign(domain.norm(vector) / domain.radius, *map(int, words[:2]))
        # In units of the vertices |target|_1 <= 1; the missing mass is spread over all of them.
        target = direction * (side * sign / (math.sqrt(dimension) * np.linalg.norm(direction)))
        idle = max(0.0, 1.0 - float(np.sum(np.abs(target)))) / (2.0 * dimension)
        masses = np.stack([np.maximum(target, 0.0), np.maximum(-target, 0.0)], axis=1) + idle
        cumulative = np.cumsum(masses.ravel())
        draws = uniforms[dimension:] * cumulative[-1]
        codes = np.minimum(np.searchsorted(cumulative, draws, side="right"), 2 * dimension - 1)
        return self._as_codes(codes)

    def _as_codes(self, codes: NDArray[np.intp]) -> Codes:
        smallest: Codes = codes.astype(self.code_format().dtype)
        return smallest

    def decode(self, codes: Codes) -> Vector:
        domain = self.input_domain
        dimension = domain.dimension
        scale = self.radius / self.contrast
        indices = level_indices(codes, 2 * self.num_directions)
        directions = indices >> 1
        signs = 1.0 - 2.0 * (indices & 1).astype(np.float64)
        match domain:
            case Box():
                return dimension * scale * _totals(directions, signs, dimension)
            case L1Ball():
                return np.asarray(scale * signs[0] * _hadamard(directions, dimension)[0])
            case L2Ball():
                vertex = math.sqrt(dimension) * scale / mean_component(dimension)
                return vertex / dimension * _totals(directions, signs, dimension)
            case _:
                assert_never(domain)

    def law(self, values: ArrayLike) -> JointLaw | MomentLaw:
        """Return the law of decode(encode(values)).

        Args:
            values: A vector in the input domain.

        Returns:
            The joint law of all outcomes, a direction and a sign, for a box or an L1 ball of at
            most 256 coordinates; else only mean and variance of each coordinate.
        """
        domain = self.input_domain
        vector = domain.check(values)
        scale = self.radius / self.contrast
        dimension = domain.dimension
        match domain:
            case Box():
                second = dimension * scale**2
            case L1Ball():
                second = scale**2
            case L2Ball():
                length = scale / mean_component(dimension)
                second = length**2 * (2.0 - 1.0 / dimension) / dimension
            case _:
                assert_never(domain)
        if isinstance(domain, L2Ball) or dimension > _MAX_JOINT_DIMENSION:
            return MomentLaw(center=vector, spread=second - vector**2)
        if isinstance(domain, Box):
            rows, factor = np.eye(dimension), dimension * scale
        else:
            rows, factor = _hadamard(np.arange(self.num_directions), dimension), scale
        ratios = np.clip(rows @ vector / self.radius, -1.0, 1.0)
        plus, minus = (0.5 + 0.5 * s * self.contrast * ratios for s in (1.0, -1.0))
        return JointLaw(
            points=factor * np.concatenate([rows, -rows]),
            pmf=np.concatenate([plus, minus]) / len(rows),
        )

    def density_ratios(self) -> tuple[float, float]:
        """Return (lo, hi), bounds on the law of a message over its law with a fair sign.

        Returns:
            (2 f, 2 (1 - f)) as ratios, rounded outward, with f the probability of flipping the
            sign: for every input a sign has a probability between f and 1 - f, instead of 1/2.
        """
        low, high = self.flip_threshold, _WORD - self.flip_threshold
        return (
            math.nextafter(2 * low / _WORD, 0.0),
            math.nextafter(2 * high / _WORD, math.inf),
        )

    @property
    def hides_only_against_zero(self) -> bool:
        """Whether the zero-out event holds only if one of the two neighbors is the input 0.

        True on an L2 ball with `records` = 1.
        """
        domain = self.input_domain
        return isinstance(domain, L2Ball) and domain.against_zero(Adjacency.ZERO_OUT)

    def privacy(self, adjacency: Adjacency) -> PureDp:
        domain = self.input_domain
        share = domain.sensitivity(adjacency) / (2.0 * self.radius)
        if isinstance(domain, L2Ball):
            # The sign of V.x can differ between any two neighbors except x and 0.
            against_zero = self.hides_only_against_zero and adjacency is Adjacency.ZERO_OUT
            share = 0.5 if against_zero else 1.0
        elif share < 1.0:
            # float64 rounds y/r, and y itself is a sum of d terms.
            rounding = 2.0**-44 + domain.dimension * 2.0**-52
            share = min(1.0, share * (1.0 + 2.0**-40) + rounding)
        excess = (_WORD - 2 * self.flip_threshold) / self.flip_threshold  # (1 - f)/f - 1
        spent = math.log1p(excess * share) * (1.0 + 2.0**-48)
        return PureDp(epsilon=min(spent, float(self.epsilon)), adjacency=adjacency)


@lru_cache(maxsize=256)
def _flip_threshold(epsilon: float) -> int:
    """Return the least integer T with (2^64 - T)/T <= e^epsilon: ceil(2^64/(e^epsilon + 1))."""
    with decimal.localcontext(prec=80):
        exact = _WORD / (decimal.Decimal(epsilon).exp() + 1)
        return int(exact.to_integral_value(rounding=decimal.ROUND_CEILING))


def mean_component(dimension: int) -> float:
    """Return E|V_1| of a uniform point V on the unit sphere of this dimension d.

    It is Gamma(d/2)/(sqrt(pi) Gamma((d+1)/2)). Above d = 1000 a series in 1/d is used, whose next
    term is below 1e-14 of the result: differences of log-gamma functions lose digits there.
    """
    if dimension <= 1000:
        ratio = math.lgamma(dimension / 2.0) - math.lgamma((dimension + 1.0) / 2.0)
        return math.exp(ratio) / math.sqrt(math.pi)
    d = float(dimension)
    series = 1.0 + 1.0 / (4.0 * d) + 1.0 / (32.0 * d**2) - 5.0 / (128.0 * d**3)
    return math.sqrt(2.0 / (math.pi * d)) * series


def _hadamard(rows: NDArray[np.int64], dimension: int) -> Vector:
    """Return rows of Sylvester's matrix: (-1)^(number of ones that row and column index share)."""
    common = rows[:, None] & np.arange(dimension, dtype=np.int64)[None, :]
    for shift in (16, 8, 4, 2, 1):  # the parity of an index, which has at most 31 bits
        common ^= common >> shift
    return 1.0 - 2.0 * (common & 1).astype(np.float64)


def _totals(directions: NDArray[Any], signs: Vector, dimension: int) -> Vector:
    """Return the sum of the signs for each coordinate."""
    return np.bincount(directions, weights=signs, minlength=dimension).astype(np.float64)
