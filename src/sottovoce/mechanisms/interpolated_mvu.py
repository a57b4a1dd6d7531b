"""The interpolated MVU mechanism as published: a two-row MVU table as an exponential family."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball, Vector, require_l2_ball
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.coordinate_laws import TiltedFamily
from sottovoce.mechanisms.design import store
from sottovoce.mechanisms.design.families import ExponentialFamily, exponential_family, tilted_law
from sottovoce.mechanisms.encoding import Payloads, Prepared, Tensor, WithPrivatize, pack_each
from sottovoce.mechanisms.kernels.family import sample_exponential_family
from sottovoce.mechanisms.kernels.ladder import Affine
from sottovoce.mechanisms.mechanism import Codes, FiniteLaw, LevelCodes, Sampling, level_indices
from sottovoce.mechanisms.registry import CalibratedParameter, register
from sottovoce.privacy.events import OneBit, ZeroConcentrated

BETA_RANGE = (1e-10, 1e6)
# The norm check and the product beta * records * u/(2C) round by less than 2^-48 of their largest
# value. That is less than this fraction of the distance of neighbors, with up to 2^22 records.
_ROUNDING = 2.0**-26
# Where the constraint binds, the solver leaves |theta| within this fraction of epsilon, and it is
# set to epsilon. That changes probabilities by 1e-9 and makes equal points exactly equal.
_BINDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpolatedFamily:
    """A two-row MVU table as an exponential family in x - 1/2, x in [0, 1] between the two rows.

    Attributes:
        family: The points and weights of the codes.
        centered_letters: The output value of each code on [0, 1], minus 1/2.
        digest: 32 hexadecimal digits that stand for points, weights and output values.
    """

    family: ExponentialFamily
    centered_letters: Vector
    digest: str

    @property
    def one_bit_range(self) -> float | None:
        """2t if every point of the family is -t or t, else None.

        Given the sign of its point, the code is drawn independently of x. So the sign, a bit with
        logit 2t(x - 1/2), carries all information of a code.
        """
        largest = float(self.family.points.max())
        equal = bool((np.abs(self.family.points) == largest).all())
        return 2.0 * largest if equal else None


@lru_cache(maxsize=64)
def interpolated_family(epsilon: float, output_bits: int) -> InterpolatedFamily:
    """Return the exponential family of the two-row MVU table at `epsilon` with 2^output_bits codes.

    With eta_1 and eta_2 the logarithms of the two rows, its points are eta_2 - eta_1 and its
    weights e^((eta_1 + eta_2)/2), normalized to sum 1. The rows are anadromic (definition 2 of the
    paper: one is the other in reverse order) up to the solver's last bits, and are made exactly so
    here.
    """
    channel = store.find(store.spec_of(epsilon, 1, output_bits)).channel
    first, second = np.log(channel.rows)
    theta = second - first
    theta = (theta - theta[::-1]) / 2.0
    binding = np.abs(np.abs(theta) - epsilon) <= _BINDING * epsilon
    points = np.where(binding, np.copysign(epsilon, theta), theta)
    weights = np.exp((first + second) / 2.0)
    weights = (weights + weights[::-1]) / 2.0
    letters = (channel.letters - channel.letters[::-1]) / 2.0
    letters.flags.writeable = False
    family = exponential_family(points, weights / weights.sum())
    digest = hashlib.blake2b(digest_size=16)
    for array in (family.points, family.weights, letters):
        digest.update(array.astype("<f8").tobytes())
    return InterpolatedFamily(family=family, centered_letters=letters, digest=digest.hexdigest())


@register(
    "interpolated_mvu",
    summary="the published I-MVU: a two-row MVU table, interpolated in its natural parameters",
    examples=[
        {"epsilon": 1.0, "beta": 1.0, "output_bits": 1},
        {"epsilon": 3.0, "beta": 0.5, "output_bits": 2},
        {"epsilon": 5.0, "beta": 0.4, "output_bits": 3},
    ],
    example_domain=L2Ball(dimension=8, radius=1.0),
    calibrated_parameter=CalibratedParameter(
        parameter="beta", more_private="smaller", ends=(1e5, 1e-9)
    ),
    settings=[{"epsilon": 1.0, "output_bits": 1}],  # more bits gain nothing, see below
    coordinatewise=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class InterpolatedMvu(WithPrivatize):
    """The published I-MVU mechanism: a two-row MVU table, interpolated in its natural parameters.

        P(j | x) proportional to e^((1-x) eta_1j + x eta_2j),        x = 1/2 + beta u/(2C)

    with eta_i the log rows and a_j the output values of the two-row MVU table at `epsilon`, and C
    the radius. Any real x is allowed; nothing is clamped. Code j decodes to (a_j - 1/2) 2C/beta,
    which is biased unless x is 0, 1/2 or 1. If u is the mean of n records, beta n takes the place
    of beta. So neighbors differ in x by Delta = beta/2 under zero-out and beta under replace-one,
    for every n.

    Privacy (theorem 1): rho-zCDP with rho = M Delta^2/2, M a certified bound on the Fisher
    information about x. One bit has theta = +-epsilon, M = epsilon^2 and
    P(1 | u) = 1/(1 + e^(-epsilon beta u/C)): this is `GaussHermite` with two levels and
    sigma = 2C/(epsilon beta), except that the decoded values are larger by the factor
    (epsilon/2) coth(epsilon/2). It has its own event, tighter than its rho.

    More bits gain nothing (figure 4 of the paper). No code has probability 0, but all except about
    1e-4 of the weight lies where |theta| = epsilon, so that codes carry little more than their
    sign. If all of the weight lies there (2 bits at epsilon 1 and 3, for example), codes carry one
    bit.

    More input rows would not help either: an unbiased mechanism with Fisher information at most M
    has variance at least 1/M (Cramer and Rao), which is the Gaussian's at equal rho. Gauss-Hermite
    is within .3% of that once its levels cover the input, so no unbiased design can gain more than
    .3%. Use `GaussHermite` instead; this mechanism is for comparison.

    Cost: `output_bits` bits per coordinate.

    Reference: Guo, Chaudhuri, Stock and Rabbat 2023, sections 3 and 3.1, appendices A and B.

    Attributes:
        input_domain: The L2 ball that updates are clipped to.
        epsilon: The epsilon of the two-row MVU table, from 0.001 to 60.
        beta: The scale of the input, from 1e-10 to 1e6: 1 maps the ball onto [0, 1] in each
            coordinate, less is more private.
        output_bits: The number of bits per coordinate, from 1 to 8.
    """

    input_domain: L2Ball
    epsilon: float
    beta: float
    output_bits: int
    sampling: ClassVar[Sampling] = "exact"

    def __post_init__(self) -> None:
        require_l2_ball(self.input_domain)
        store.spec_of(self.epsilon, 1, self.output_bits)  # raises if there is no such design
        low, high = BETA_RANGE
        if not low <= parameter_rules.finite("beta", self.beta) <= high:
            raise ParameterError(
                f"beta must lie between {low:g} and {high:g}, got {self.beta!r}; use 1 to map the "
                "ball onto [0, 1], or less for more privacy"
            )

    @property
    def interpolated(self) -> InterpolatedFamily:
        """The exponential family of the two-row table."""
        return interpolated_family(float(self.epsilon), self.output_bits)

    @property
    def tilt_per_unit(self) -> float:
        """The change of the position x between the two rows for a unit of the input: dx/du."""
        return self.beta * self.input_domain.records / (2.0 * self.input_domain.radius)

    def design_digest(self) -> str:
        """Return the digest of the family, which must be the same at server and client.

        Returns:
            32 hexadecimal digits.
        """
        return self.interpolated.digest

    def code_format(self) -> LevelCodes:
        return LevelCodes(levels=1 << self.output_bits)

    def encode(self, values: ArrayLike, keystream: Keystream) -> NDArray[np.uint8]:
        return self._sample(self.input_domain.check(values), keystream)

    def _sample(self, vector: Vector, keystream: Keystream) -> NDArray[np.uint8]:
        family = self.interpolated.family
        return sample_exponential_family(
            vector,
            Affine(scale=self.tilt_per_unit),
            family.points,
            family.weights,
            keystream,
            reach=self.tilt_per_unit * self.input_domain.radius,
            fisher_bound=family.fisher_bound,
        )

    def encode_packed(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Payloads:
        """Encode prepared rows on the CPU.

        Args:
            prepared: The rows.
            keystreams: The random bits of each row.

        Returns:
            A matrix of bytes with one row for each message.
        """
        return pack_each(prepared, lambda i: self._sample(prepared.vector(i), keystreams[i]))

    def encode_on_device(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Tensor:
        """Encode prepared rows on their CUDA device, with the same bytes as on the CPU.

        Args:
            prepared: The rows, a tensor on the device.
            keystreams: The random bits of each row.

        Returns:
            A tensor of bytes with one row for each message.
        """
        return _device_sampler(self)(prepared.rows, keystreams, prepared.scales)

    @property
    def points(self) -> Vector:
        """The values that the codes decode to, in the units of the input."""
        return np.asarray(self.interpolated.centered_letters / self.tilt_per_unit)

    def decode(self, codes: Codes) -> Vector:
        return self.points[level_indices(codes, 1 << self.output_bits)]

    def law(self, values: ArrayLike) -> FiniteLaw:
        table = tilted_law(self.interpolated.family, self._tilts(values))
        return FiniteLaw(points=self.points, table=table)

    def coordinate_law(self) -> TiltedFamily:
        family = self.interpolated.family
        return TiltedFamily(
            points=family.points,
            weights=family.weights,
            letters=self.points,
            tilt_per_unit=self.tilt_per_unit,
        )

    def privacy(self, adjacency: Adjacency) -> OneBit | ZeroConcentrated:
        shift = self.beta * self.input_domain.relative_sensitivity(adjacency) / 2.0
        shift *= 1.0 + _ROUNDING
        logit_range = self.interpolated.one_bit_range
        if logit_range is not None:
            return OneBit(
                shift=logit_range * shift,
                dimension=self.input_domain.dimension,
                adjacency=adjacency,
                against_zero=self.input_domain.against_zero(adjacency),
                zero_centered=self.input_domain.zero_centered(adjacency),
            )
        rho = self.interpolated.family.fisher_bound * shift**2 / 2.0
        return ZeroConcentrated(
            rho=rho, adjacency=adjacency, zero_centered=self.input_domain.zero_centered(adjacency)
        )

    def _tilts(self, values: ArrayLike) -> Vector:
        """Return x - 1/2 for each coordinate."""
        return np.asarray(self.input_domain.check(values) * self.tilt_per_unit)


@lru_cache(maxsize=16)
def _device_sampler(mechanism: InterpolatedMvu) -> Callable[..., Tensor]:
    from sottovoce.mechanisms.kernels.cuda.ladder import family_sampler

    family, domain = mechanism.interpolated.family, mechanism.input_domain
    return family_sampler(
        Affine(scale=mechanism.tilt_per_unit),
        family.points,
        family.weights,
        reach=mechanism.tilt_per_unit * domain.radius,
        fisher_bound=family.fisher_bound,
        dimension=domain.dimension,
    )
