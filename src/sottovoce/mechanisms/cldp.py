"""Communication-limited local privacy: a random direction and one randomised bit."""

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
from sottovoce.mechanisms.mechanism import Codes, JointLaw, LevelCodes, MomentLaw, Sampling
from sottovoce.mechanisms.registry import Knob, register
from sottovoce.privacy.events import PureDp

MAX_DIMENSION = 2**31  # one code holds a coordinate and a sign in 32 bits
_WORD = 2**64
_MAX_JOINT_DIMENSION = 256  # the joint law takes 4 d^2 numbers


@register(
    "cldp",
    summary="a random direction and one bit: log2(d) + 1 bits in all (L2: a coordinate)",
    examples=[{"epsilon": 1.0}, {"epsilon": 5.0}],
    example_domain=L1Ball(dimension=8, radius=1.0),
    further_domains=[
        Box(dimension=8, lower=-1.0, upper=1.0),
        L2Ball(dimension=8, radius=1.0),
    ],
    knob=Knob(parameter="epsilon", more_private="smaller"),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Cldp(WithPrivatize):
    """Randomised response about a public random direction; unbiased, and purely private.

    A value y in [-r, r] is rounded to a sign, + with probability (1 + y/r)/2, and the sign is
    flipped with probability f, the least multiple of 2^-64 at or above 1/(e^epsilon + 1). With
    c = 1 - 2f the sign times r/c has mean y and variance (r/c)^2 - y^2.

    Box      [-r, r]^d: y is a uniformly chosen coordinate; decodes to +-d r/c there, 0 elsewhere.
    L1Ball   y is the product of x with a uniformly chosen row h of the Hadamard matrix of the next
             power of two; decodes to +-(r/c) h. One code of log2(d) + 1 bits for the whole vector.
    L2Ball   V is uniform on the sphere, turned so that the sign of V.x is the randomised sign of
             +-x (of |x|, rounded as above). E|V_1| = Gamma(d/2)/(sqrt(pi) Gamma((d+1)/2)) =: k, so
             B V with B = r/(c k) has mean x. It is sent as d draws from the vertices
             +-sqrt(d) B e_j with mean B V, and decodes to their average: variance
             B^2 (2/d - 1/d^2) - x_i^2.

    The direction does not depend on the data and the sign is flipped by an integer threshold, so
    the likelihood ratio is at most (1 - f)/f <= e^epsilon whatever float64 rounds: exact sampling.
    Replace-one spends log((1 - f)/f); nearer neighbours (zero-out, or one record of several) move
    the sign's probability less, which the first two shapes turn into log(1 + (e^epsilon - 1) s)
    for neighbours 2 r s apart, the third only against x = 0.

    Reference: Girgis, Data, Diggavi, Kairouz and Suresh 2021, section 4; Duchi, Jordan and
    Wainwright 2018, section 4.2 (the sphere); Gandikota et al. 2021 (the vertices).
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
                f"the box must be symmetric about 0, got [{domain.lower:g}, {domain.upper:g}]; "
                "shift the data by its middle"
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
                f"epsilon {self.epsilon!r} leaves nothing of the sign in 64 bits; use at least 1e-9"
            )

    @property
    def radius(self) -> float:
        domain = self.input_domain
        return domain.upper if isinstance(domain, Box) else domain.radius

    @property
    def flip_threshold(self) -> int:
        """f in units of 2^-64."""
        return _flip_threshold(float(self.epsilon))

    @property
    def contrast(self) -> float:
        """c = 1 - 2f: the mean of a randomised sign over the sign."""
        return (_WORD - 2 * self.flip_threshold) / _WORD

    @property
    def num_directions(self) -> int:
        """Coordinates, or rows of the Hadamard matrix, that a code can name."""
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
                minus = self._randomised_sign(component / self.radius, words[1], words[2]) < 0
                code = 2 * direction + int(minus)
                return self._as_codes(np.array([code]))
            case _:
                assert_never(domain)

    def _randomised_sign(self, ratio: float, rounding_word: int, flip_word: int) -> int:
        """+-1 with mean c * ratio."""
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
        sign = self._randomised_sign(domain.norm(vector) / domain.radius, *map(int, words[:2]))
        # In units of the vertices: |.|_1 <= 1, and what is missing is spread over all of them.
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
        directions = codes.astype(np.int64) >> 1
        signs = 1.0 - 2.0 * (codes.astype(np.int64) & 1).astype(np.float64)
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
        """The joint law, of 2d outcomes of d coordinates each; for L2, or large d, the moments."""
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
            return MomentLaw(centre=vector, spread=second - vector**2)
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
        """Against the same direction with a fair sign: a sign has probability f to 1 - f."""
        low, high = self.flip_threshold, _WORD - self.flip_threshold
        return (
            math.nextafter(2 * low / _WORD, 0.0),
            math.nextafter(2 * high / _WORD, math.inf),
        )

    @property
    def hides_only_against_zero(self) -> bool:
        """Whether the zero-out event is for the input 0 alone, not for any other at a distance."""
        domain = self.input_domain
        return isinstance(domain, L2Ball) and domain.against_zero(Adjacency.ZERO_OUT)

    def privacy(self, adjacency: Adjacency) -> PureDp:
        domain = self.input_domain
        share = domain.sensitivity(adjacency) / (2.0 * self.radius)
        if isinstance(domain, L2Ball):
            # The side of V.x can turn over between any two neighbours but x and 0.
            against_zero = self.hides_only_against_zero and adjacency is Adjacency.ZERO_OUT
            share = 0.5 if against_zero else 1.0
        elif share < 1.0:
            # float64 rounds y/r, and y itself is a sum of d terms
            rounding = 2.0**-44 + domain.dimension * 2.0**-52
            share = min(1.0, share * (1.0 + 2.0**-40) + rounding)
        excess = (_WORD - 2 * self.flip_threshold) / self.flip_threshold  # (1 - f)/f - 1
        spent = math.log1p(excess * share) * (1.0 + 2.0**-48)
        return PureDp(epsilon=min(spent, float(self.epsilon)), adjacency=adjacency)


@lru_cache(maxsize=256)
def _flip_threshold(epsilon: float) -> int:
    """The least integer T with (2^64 - T)/T <= e^epsilon: ceil(2^64/(e^epsilon + 1))."""
    with decimal.localcontext(prec=80):
        exact = _WORD / (decimal.Decimal(epsilon).exp() + 1)
        return int(exact.to_integral_value(rounding=decimal.ROUND_CEILING))


def mean_component(dimension: int) -> float:
    """E|V_1| of a uniform point on the sphere: Gamma(d/2)/(sqrt(pi) Gamma((d+1)/2)).

    Above 1000 the series in 1/d, whose next term is below 1e-14 of it: differences of
    log-gammas lose digits there.
    """
    if dimension <= 1000:
        ratio = math.lgamma(dimension / 2.0) - math.lgamma((dimension + 1.0) / 2.0)
        return math.exp(ratio) / math.sqrt(math.pi)
    d = float(dimension)
    series = 1.0 + 1.0 / (4.0 * d) + 1.0 / (32.0 * d**2) - 5.0 / (128.0 * d**3)
    return math.sqrt(2.0 / (math.pi * d)) * series


def _hadamard(rows: NDArray[np.int64], dimension: int) -> Vector:
    """Those rows of Sylvester's matrix, (-1)^(number of common ones of row and column)."""
    common = rows[:, None] & np.arange(dimension, dtype=np.int64)[None, :]
    for shift in (16, 8, 4, 2, 1):  # indices have at most 31 bits
        common ^= common >> shift
    return 1.0 - 2.0 * (common & 1).astype(np.float64)


def _totals(directions: NDArray[Any], signs: Vector, dimension: int) -> Vector:
    """The sum of the signs that fell on each coordinate."""
    return np.bincount(directions, weights=signs, minlength=dimension).astype(np.float64)
