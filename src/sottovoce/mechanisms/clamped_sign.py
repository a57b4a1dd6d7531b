"""The clamped sign mechanism: one bit per coordinate with a bounded logit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball, Vector, require_l2_ball
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.design import families
from sottovoce.mechanisms.design.families import tilted_law
from sottovoce.mechanisms.encoding import Payloads, Prepared, WithPrivatize, fill_each
from sottovoce.mechanisms.kernels.one_bit import sample_bits, sample_payload
from sottovoce.mechanisms.logit_bounds import (
    ROUNDING,
    automatic_logit_bound,
    check_logit_bound,
    clamped_event,
    largest_logit_norm,
)
from sottovoce.mechanisms.mechanism import Codes, FiniteLaw, LevelCodes, Sampling, level_indices
from sottovoce.mechanisms.registry import CalibratedParameter, register
from sottovoce.privacy.events import OneBit, SummedBits


@register(
    "clamped_sign",
    summary="one bit per coordinate with clamped logits, which secure sums can amplify",
    examples=[
        {"noise_multiplier": 2.0, "logit_bound": 1.0},
        {"noise_multiplier": 0.5, "logit_bound": 2.0},
    ],
    example_domain=L2Ball(dimension=8, radius=1.0),
    calibrated_parameter=CalibratedParameter(parameter="noise_multiplier", more_private="larger"),
    automatic={"logit_bound": automatic_logit_bound},
    may_omit=["logit_bound"],
    coordinatewise=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class ClampedSign(WithPrivatize):
    """One sign bit per coordinate with a bounded logit, which secure aggregation can amplify.

        P(+ | u) = 1/(1 + e^-z),        z = 2 u/sigma clamped to [-Z, Z],        Z = logit_bound

    with sigma = noise_multiplier * radius / records. A bit decodes to +-sigma, so the mean is
    sigma tanh(z/2): it does not grow beyond |u| = sigma Z/2. Rotate updates first, so that "auto"
    can choose a small Z.

    Privacy: clamping is a contraction, so for neighbors at L2 distance Delta the logits differ by
    at most 2 Delta/sigma, and one message leaks at most as much as the sign without a clamp
    (`GaussHermite` with two levels). It also leaks no more than logits within Z of 0 can, whatever
    the noise multiplier. In addition, every bit is a fair coin with probability at least
    2/(1 + e^Z), for every update. In a sum over many clients these coins hide each client, which
    `OnlySums` accounts for.

    Cost: one bit per coordinate.

    Attributes:
        input_domain: The L2 ball that updates are clipped to.
        noise_multiplier: sigma in units of radius/records.
        logit_bound: Z, the largest absolute logit; at most 100. In specs and commands it may be
            "auto" or left out: three times the root mean square of the
            logits of a rotated update.
    """

    input_domain: L2Ball
    noise_multiplier: float
    logit_bound: float
    sampling: ClassVar[Sampling] = "exact"

    def __post_init__(self) -> None:
        require_l2_ball(self.input_domain)
        parameter_rules.noise_multiplier(self.noise_multiplier)
        check_logit_bound(self.logit_bound)

    @property
    def noise_stddev(self) -> float:
        """The scale sigma = noise_multiplier * radius / records; a bit decodes to +-sigma."""
        return self.noise_multiplier * self.input_domain.radius / self.input_domain.records

    @property
    def logit_norm(self) -> float:
        """The largest L2 norm of a client's logits, with the rounding of the norm check."""
        ball = self.input_domain
        return largest_logit_norm(ball, self.noise_multiplier, self.logit_bound, ball.dimension)

    def code_format(self) -> LevelCodes:
        return LevelCodes(levels=2)

    def encode(self, values: ArrayLike, keystream: Keystream) -> NDArray[np.uint8]:
        return sample_bits(self._tilts(self.input_domain.check(values)), 1.0, keystream)

    def encode_packed(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Payloads:
        """Encode prepared rows on the CPU; the bits are drawn in packed form.

        Args:
            prepared: The rows.
            keystreams: The random bits of each row.

        Returns:
            A matrix of bytes with one row for each message.
        """
        return fill_each(
            prepared,
            lambda i: sample_payload(self._tilts(prepared.vector(i)), 1.0, keystreams[i]),
        )

    @property
    def points(self) -> Vector:
        return np.asarray(self.noise_stddev * families.gauss_hermite(2).points)

    def decode(self, codes: Codes) -> Vector:
        return self.points[level_indices(codes, 2)]

    def law(self, values: ArrayLike) -> FiniteLaw:
        tilts = self._tilts(self.input_domain.check(values))
        table = tilted_law(families.gauss_hermite(2), tilts)
        return FiniteLaw(points=self.points, table=table)

    def privacy(self, adjacency: Adjacency) -> OneBit:
        ball = self.input_domain
        return clamped_event(
            ball, self.noise_multiplier, self.logit_bound, ball.dimension, adjacency
        )

    def summed_event(self, adjacency: Adjacency, clients: int) -> SummedBits:
        return SummedBits.of(self.privacy(adjacency), self.logit_bound, clients)

    def sum_bits(self, clients: int) -> int:
        return clients.bit_length()

    def decode_sum(self, total: NDArray[np.integer[Any]], clients: int) -> Vector:
        low, high = self.points
        return np.asarray(low + (high - low) * (total / clients))

    @property
    def inflation(self) -> float:
        """The fraction by which the squared distance of neighbors is overcharged, for rounding."""
        return (1.0 + ROUNDING) ** 2 - 1.0

    def _tilts(self, vector: Vector) -> Vector:
        """Return half the logits: the two nodes -1 and 1 are 2 apart."""
        half = self.logit_bound / 2.0  # exact in float64, so the bound on the logit is exact too
        return np.clip(vector / self.noise_stddev, -half, half)
