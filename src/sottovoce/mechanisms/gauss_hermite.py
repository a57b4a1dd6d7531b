"""The Gauss-Hermite mechanism: the Gaussian mechanism's privacy with 1 to 8 bits per coordinate."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Domain, Floats, L2Ball, Vector, require_l2_ball
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.coordinate_laws import TiltedFamily
from sottovoce.mechanisms.design import families
from sottovoce.mechanisms.design.families import tilted_law
from sottovoce.mechanisms.encoding import (
    Payloads,
    Prepared,
    Tensor,
    WithPrivatize,
    fill_each,
    pack_each,
)
from sottovoce.mechanisms.kernels.family import sample_exponential_family, sample_family_rows
from sottovoce.mechanisms.kernels.ladder import Affine
from sottovoce.mechanisms.kernels.one_bit import sample_bit_rows, sample_bits, sample_payload
from sottovoce.mechanisms.mechanism import Codes, FiniteLaw, LevelCodes, Sampling, level_indices
from sottovoce.mechanisms.registry import CalibratedParameter, Parameters, register
from sottovoce.mechanisms.row_batches import RowBatch
from sottovoce.privacy.events import OneBit, ZeroConcentrated

# The norm check and u/sigma round by less than 2^-48 of the radius. That is less than this fraction
# of the distance of neighbors, with up to MAX_RECORDS = 2^22 records.
_ROUNDING = 2.0**-26


# Automatic levels: if _CLIENTS clients send the same rotated update of full norm, the error of the
# mean is to exceed the Gaussian mechanism's by at most the fraction _EXCESS, on average over
# rotations.
_CLIENTS = 1e4
_EXCESS = 0.0025


def _automatic_levels(domain: Domain, given: Parameters) -> int:
    """Return the smallest power-of-two number of levels that costs almost no accuracy.

    The error is that of a rotated update of full norm. A coordinate of it is a sum with random
    signs of variance at most C^2/K, K the largest power of two up to d (see `mechanisms.rotation`);
    its even moments are at most those of N(0, C^2/K) (Khintchine). Only public values enter, so the
    choice leaks nothing.
    """
    if not isinstance(domain, L2Ball):
        raise ParameterError("levels = 'auto' needs an L2Ball; give the number of levels")
    block = 1 << (domain.dimension.bit_length() - 1)
    reach = domain.records / parameter_rules.noise_multiplier(given["noise_multiplier"])
    return families.levels_covering(
        reach, reach / math.sqrt(block), clients=_CLIENTS, excess=_EXCESS
    )


@register(
    "gauss_hermite",
    summary="a few bits per coordinate (one if levels = 2), nearly as accurate as Gaussian noise",
    examples=[
        {"levels": 2, "noise_multiplier": 2.0},
        {"levels": 3, "noise_multiplier": 1.0},
        {"levels": 8, "noise_multiplier": 0.5},
    ],
    example_domain=L2Ball(dimension=8, radius=1.0),
    calibrated_parameter=CalibratedParameter(parameter="noise_multiplier", more_private="larger"),
    automatic={"levels": _automatic_levels},
    settings=[{"levels": levels} for levels in (2, 4, 8, 16, 64)],
    coordinatewise=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class GaussHermite(WithPrivatize):
    """A few bits per coordinate, nearly as private and accurate as the Gaussian mechanism.

    Each coordinate u is sent as one of B = `levels` codes, drawn from an exponential family:

        P(j | u) proportional to w_j exp(y_j u/sigma),        code j decodes to sigma y_j

    with sigma = noise_multiplier * radius / records, and y_j, w_j the Gauss-Hermite nodes and
    weights of N(0, 1). The bias is below 1% of u for |u|/sigma up to .17/.69/1.23/2.99/5.5 at
    2/3/4/8/16 levels. Rotate updates first (`Rotation`), so that no coordinate is large.

    Privacy: for neighbors at L2 distance Delta the release is rho-zCDP with

        rho = M Delta^2 / (2 sigma^2),

    where M is a certified bound on the Fisher information of one coordinate about u/sigma. M is 1
    up to the slack of the certificate, so rho is that of the Gaussian mechanism. With two levels
    the message is a sign, P(+ | u) = 1/(1 + e^(-2u/sigma)), with mean sigma tanh(u/sigma). It is
    charged as `OneBit`, whose Renyi divergence is at most rho a at every order a. Sampling is
    exact, so the claim holds for deployment.

    Cost: ceil(log2(levels)) bits per coordinate.

    Reference: docs/explanation/privacy.md, sections 1 and 14.

    Attributes:
        input_domain: The L2 ball that updates are clipped to; its radius is the clipping norm.
        levels: The number of codes per coordinate, from 2 (one bit) to 256. In specs and commands
            it may be "auto": the fewest bits that cost almost no accuracy on rotated updates.
        noise_multiplier: sigma in units of radius/records.

    Examples:
        >>> from sottovoce import L2Ball
        >>> ball = L2Ball(dimension=1000, radius=1.0)
        >>> mechanism = GaussHermite(input_domain=ball, levels=2, noise_multiplier=10.0)
        >>> codes = mechanism.privatize([0.01] * 1000)
        >>> sorted(set(mechanism.decode(codes).tolist()))
        [-10.0, 10.0]
    """

    input_domain: L2Ball
    levels: int
    noise_multiplier: float
    sampling: ClassVar[Sampling] = "exact"

    def __post_init__(self) -> None:
        require_l2_ball(self.input_domain)
        parameter_rules.integer(
            "levels",
            self.levels,
            low=2,
            high=families.MAX_LEVELS,
            remedy="use 2 levels for one bit per coordinate, 256 for eight",
        )
        parameter_rules.noise_multiplier(self.noise_multiplier)

    @property
    def noise_stddev(self) -> float:
        """The standard deviation sigma of the Gaussian noise that the codes imitate.

        It is noise_multiplier * radius / records for each coordinate, in the unit of the update.
        """
        return self.noise_multiplier * self.input_domain.radius / self.input_domain.records

    def code_format(self) -> LevelCodes:
        return LevelCodes(levels=self.levels)

    def encode(self, values: ArrayLike, keystream: Keystream) -> NDArray[np.uint8]:
        return self.sample(self.input_domain.check(values), keystream)

    def encode_packed(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Payloads:
        """Encode prepared rows on the CPU; they are clipped while codes are drawn.

        Args:
            prepared: The rows.
            keystreams: The random bits of each row.

        Returns:
            A matrix of bytes with one row for each message.
        """
        batch = prepared.batch
        found = None if batch is None else self._sample_rows(batch, keystreams)
        if found is not None:
            return found
        rows, scale, stddev = prepared.rows, prepared.scale, self.noise_stddev
        if self.levels == 2:
            return fill_each(
                prepared, lambda i: sample_payload(rows[i], stddev, keystreams[i], scale=scale(i))
            )
        return pack_each(prepared, lambda i: self.sample(rows[i], keystreams[i], scale(i)))

    def encode_on_device(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Tensor:
        """Encode prepared rows on their CUDA device, with the same bytes as on the CPU.

        Args:
            prepared: The rows, a tensor on the device.
            keystreams: The random bits of each row.

        Returns:
            A tensor of bytes with one row for each message.
        """
        if self.levels == 2:
            from sottovoce.mechanisms.kernels.cuda.one_bit import sample_rows

            return sample_rows(prepared.rows, self.noise_stddev, keystreams, scales=prepared.scales)
        return _device_sampler(self)(prepared.rows, keystreams, prepared.scales)

    def _sample_rows(self, batch: RowBatch, keystreams: Sequence[Keystream]) -> Payloads | None:
        """Encode many rows in one call of the C kernels; None if these do not suit the rows."""
        if self.levels == 2:
            return sample_bit_rows(batch, self.noise_stddev, keystreams)
        design = families.gauss_hermite(self.levels)
        return sample_family_rows(
            batch,
            Affine(divisor=self.noise_stddev),
            design.points,
            design.weights,
            keystreams,
            reach=self.input_domain.radius / self.noise_stddev,
            fisher_bound=design.fisher_bound,
        )

    def sample(self, vector: Floats, keystream: Keystream, scale: float = 1.0) -> NDArray[np.uint8]:
        """Draw codes for coordinates of one input or of many.

        Args:
            vector: The coordinates, which must lie within the radius after scaling; this is not
                checked.
            keystream: The random bits; they are consumed.
            scale: The factor that the coordinates are multiplied with.

        Returns:
            One code per coordinate.
        """
        if self.levels == 2:  # nodes -1, 1 and weights 1/2, exactly
            return sample_bits(vector, self.noise_stddev, keystream, scale=scale)
        design = families.gauss_hermite(self.levels)
        return sample_exponential_family(
            vector,
            Affine(scale=scale, divisor=self.noise_stddev),
            design.points,
            design.weights,
            keystream,
            reach=self.input_domain.radius / self.noise_stddev,
            fisher_bound=design.fisher_bound,
        )

    @property
    def sign_size(self) -> float | None:
        """The magnitude that a bit decodes to, or None if codes are not single bits."""
        return self.noise_stddev if self.levels == 2 else None

    @property
    def points(self) -> Vector:
        return np.asarray(self.noise_stddev * families.gauss_hermite(self.levels).points)

    def decode(self, codes: Codes) -> Vector:
        return self.points[level_indices(codes, self.levels)]

    def law(self, values: ArrayLike) -> FiniteLaw:
        tilts = self.input_domain.check(values) / self.noise_stddev
        design = families.gauss_hermite(self.levels)
        return FiniteLaw(points=self.points, table=tilted_law(design, tilts))

    def coordinate_law(self) -> TiltedFamily:
        design = families.gauss_hermite(self.levels)
        return TiltedFamily(
            points=design.points,
            weights=design.weights,
            letters=self.points,
            tilt_per_unit=1.0 / self.noise_stddev,
        )

    def privacy(self, adjacency: Adjacency) -> OneBit | ZeroConcentrated:
        shift = self.input_domain.relative_sensitivity(adjacency) / self.noise_multiplier
        shift *= 1.0 + _ROUNDING
        if self.levels == 2:
            return OneBit(
                shift=2.0 * shift,
                dimension=self.input_domain.dimension,
                adjacency=adjacency,
                against_zero=self.input_domain.against_zero(adjacency),
                zero_centered=self.input_domain.zero_centered(adjacency),
            )
        fisher_bound = families.gauss_hermite(self.levels).fisher_bound
        return ZeroConcentrated(
            rho=fisher_bound * shift**2 / 2.0,
            adjacency=adjacency,
            zero_centered=self.input_domain.zero_centered(adjacency),
        )

    @property
    def inflation(self) -> float:
        """The fraction by which the rho charged exceeds that of the Gaussian mechanism.

        It covers the slack of the certified Fisher information, and rounding. With two levels no
        rho is charged; it is the fraction by which the squared distance of neighbors is
        overcharged, for rounding alone.
        """
        fisher_bound = 1.0 if self.levels == 2 else families.gauss_hermite(self.levels).fisher_bound
        return fisher_bound * (1.0 + _ROUNDING) ** 2 - 1.0


@lru_cache(maxsize=16)
def _device_sampler(mechanism: GaussHermite) -> Callable[..., Tensor]:
    from sottovoce.mechanisms.kernels.cuda.ladder import family_sampler

    stddev, domain = mechanism.noise_stddev, mechanism.input_domain
    design = families.gauss_hermite(mechanism.levels)
    return family_sampler(
        Affine(divisor=stddev),
        design.points,
        design.weights,
        reach=domain.radius / stddev,
        fisher_bound=design.fisher_bound,
        dimension=domain.dimension,
    )
