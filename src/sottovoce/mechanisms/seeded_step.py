"""The seeded step mechanism: a direction in 16 bytes with a pure epsilon, for shuffling."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball, Vector, require_l2_ball
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms import seeds
from sottovoce.mechanisms.design.seeds import CLAMP, SteppedSeeds, stepped_seeds
from sottovoce.mechanisms.encoding import Payloads, Prepared, Tensor, WithPrivatize, pack_each
from sottovoce.mechanisms.mechanism import Codes, LevelCodes, MomentLaw, Sampling
from sottovoce.mechanisms.registry import CalibratedParameter, register
from sottovoce.mechanisms.seeds import (
    LARGEST_WEIGHT,
    ON_CPU,
    SCORED_TOGETHER,
    WORDS_PER_TRY,
    Scorer,
    SeedLayout,
    Weights,
)
from sottovoce.privacy.events import Conditional, FiniteTable, PureDp

LEAST_SIGNS = 16_384
Length = Literal["scaled", "kept"]
_LENGTHS = ("scaled", "kept")


@lru_cache(maxsize=1024)
def _layout(dimension: int) -> SeedLayout:
    return SeedLayout.of(dimension, blocks=1, least_signs=LEAST_SIGNS)


@register(
    "seeded_step",
    summary="16 bytes per message with a pure epsilon between any two vectors, for shuffling",
    examples=[
        {"epsilon": 2.0, "length": "kept", "generator": "auto", "timing": "auto"},
        {"epsilon": 5.0, "length": "scaled", "generator": "auto", "timing": "auto"},
    ],
    example_domain=L2Ball(dimension=8, radius=1.0),
    calibrated_parameter=CalibratedParameter(
        parameter="epsilon", more_private="smaller", ends=(10.0, 1e-6)
    ),
    automatic={
        "length": lambda domain, given: "kept",  # noqa: ARG005
        "generator": lambda domain, given: seeds.GENERATORS[-1],  # noqa: ARG005
        "timing": lambda domain, given: "constant",  # noqa: ARG005
    },
    settings=[{"length": "auto", "generator": "auto", "timing": "auto"}],
)
@dataclass(frozen=True, slots=True, kw_only=True)
class SeededStep(WithPrivatize):
    """The direction of an update in 16 bytes, with a pure epsilon that shuffling can amplify.

    The message is the seed of a sign vector b in {-1, 1}^D, which ChaCha20 expands. The client
    chooses it by rejection sampling: a candidate whose score <b, z>/|z| lies above a threshold is
    up to e^epsilon times as likely as one below, where z is the direction of the update. This is
    the law of PrivUnit on signs, with a step that is not quite sharp. So epsilon is certified
    *between any two updates* (replace-one), see `design.seeds`, as shuffling requires. b decodes to

        (C/G) b,        C the radius, G the mean of <b, z>.

    An update is as noisy as with Gaussian noise of standard deviation C/G on each coordinate: G is
    about .79, 1.51, 1.85 at epsilon = 2, 4, 5.

    z must have norm 1, and no coordinate beyond 5/sqrt(D). `length` says how the norm of an update
    is treated:

    * "scaled": every update is scaled to norm C, so that only its direction is sent.
    * "kept": an update shorter than C is padded to norm C with random signs of the client's own,
      which have mean 0. So the decoded vector has the update as its mean, at no further privacy
      cost.

    Coordinates beyond 3.9/sqrt(D) are clipped and the norm is padded in the same way, so rotate
    updates first. The zero update is all padding, and is accepted as often as any other. With fewer
    than 16,384 coordinates each one gets several signs.

    Privacy: under the assumption that ChaCha20 is a pseudorandom generator, epsilon between any two
    updates; less against the zero update. Sampling is exact. With timing "constant" all tries are
    made, so that their number is not visible (with a seeded keystream, which is for simulations,
    they are not). With "variable" the search stops soon after the seed that is sent, and `privacy`
    charges what the number of tries reveals.

    Cost: 16 bytes per message.

    References: Bhowmick et al. 2018 (PrivUnit); Feldman and Talwar 2021 (seeds in place of
    outputs).

    Attributes:
        input_domain: The L2 ball that updates are clipped to.
        epsilon: The pure epsilon between any two updates, with timing "constant"; refused where a
            seed would take more than 20,000 tries on average (above about 12).
        length: "scaled" or "kept" (in specs and commands "auto" is "kept").
        generator: The function that expands a seed, "chacha20-1" (in specs and commands also
            "auto").
        timing: "constant" or "variable" (in specs and commands "auto" is "constant").
    """

    input_domain: L2Ball
    epsilon: float
    length: Length
    generator: str
    timing: str
    sampling: ClassVar[Sampling] = "exact"

    def __post_init__(self) -> None:
        require_l2_ball(self.input_domain)
        parameter_rules.epsilon(self.epsilon)
        seeds.check_choices(self.generator, self.timing)
        seeds.check_name("length", self.length, _LENGTHS)
        self.choice()

    def layout(self) -> SeedLayout:
        return _layout(self.input_domain.dimension)

    def choice(self) -> SteppedSeeds:
        """Return the rejection sampler that chooses the seed.

        Returns:
            The acceptance probabilities, the number of tries and their certified bounds.
        """
        return stepped_seeds(float(self.epsilon), self.layout().num_signs)

    def code_format(self) -> LevelCodes:
        return self.layout().code_format()

    def encode(self, values: ArrayLike, keystream: Keystream) -> NDArray[np.uint32]:
        return self.search(self.input_domain.check(values), keystream)

    def encode_packed(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Payloads:
        """Encode prepared rows on the CPU.

        Args:
            prepared: The rows.
            keystreams: The random bits of each row.

        Returns:
            A matrix of bytes with the seed of one message in each row.
        """
        return pack_each(prepared, lambda i: self.search(prepared.vector(i), keystreams[i]))

    def encode_on_device(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Tensor:
        """Encode prepared rows, scoring candidates on their CUDA device; same bytes as on the CPU.

        Args:
            prepared: The rows, a tensor on the device.
            keystreams: The random bits of each row.

        Returns:
            A tensor of bytes with the seed of one message in each row.
        """
        from sottovoce.mechanisms.kernels.cuda.seeded import make_scorer

        def codes(i: int) -> NDArray[np.uint32]:
            scorer = Scorer(score=make_scorer(prepared.rows.device), together=SCORED_TOGETHER)
            return self.search(prepared.vector(i), keystreams[i], scorer)

        return seeds.pack_on_device(prepared, codes)

    def search(
        self, vector: Vector, keystream: Keystream, scorer: Scorer = ON_CPU
    ) -> NDArray[np.uint32]:
        """Choose the seed of a vector by rejection sampling.

        Args:
            vector: A vector of the domain.
            keystream: The random bits of this message; they are consumed.
            scorer: Computes the inner products of candidates with the weights.

        Returns:
            The codes of the seed, four 32-bit numbers. If no candidate is accepted, the last one is
            sent.
        """
        choice, num_signs = self.choice(), self.layout().num_signs
        size = WORDS_PER_TRY * choice.tries
        words = keystream.words(size + -(-num_signs // 64))
        octets = words[size:].astype("<u8").view(np.uint8)
        weights = self.weights(vector, np.unpackbits(octets, count=num_signs, bitorder="little"))
        # |w| has a relative error below 2^-50 in float64. So have scores, and the error of the
        # acceptance probability is far smaller.
        length = math.sqrt(float(_square_sum(weights)))

        def accept(scores: NDArray[np.int64]) -> Vector:
            return choice.acceptance(scores / length)

        tries = words[:size].reshape(choice.tries, WORDS_PER_TRY)
        timing = seeds.search_timing(self.timing, keystream)
        seed = seeds.choose_seed(weights, accept, tries, timing=timing, scorer=scorer)
        return seeds.as_codes([seed])

    def direction(self, vector: Vector) -> Vector:
        """Return the update over its norm ("scaled") or over the radius ("kept"), for one copy.

        Every coordinate gets `copies` signs. So it is divided by sqrt(copies), and clipped at
        3.9/sqrt(D) for D signs.

        Args:
            vector: A vector of the domain.

        Returns:
            One number per coordinate. All copies together have norm at most 1; the zero vector
            remains zero.
        """
        norm = self.input_domain.norm(vector)
        if norm == 0.0:
            return np.zeros(len(vector))
        whole = norm if self.length == "scaled" else self.input_domain.radius
        limit = CLAMP / math.sqrt(self.layout().num_signs)
        return np.clip(vector / whole / math.sqrt(self.layout().copies), -limit, limit)

    def weights(self, vector: Vector, bits: NDArray[np.uint8]) -> Weights:
        """Return z as integer multiples of a step: the direction, padded to norm 1 by random signs.

        For every update, no coordinate exceeds the certified peak: this is checked on the integers
        themselves, and if it fails (no input is known for which it does), signs alone are returned.
        Each coordinate has one of two weights, so that there is little work for each of its copies.

        Args:
            vector: A vector of the domain.
            bits: One fair bit for each sign.

        Returns:
            One weight for each sign, with which candidates are scored.
        """
        peak, copies, own = self.choice().peak, self.layout().copies, self.direction(vector)
        filling = bits.reshape(copies, len(own))
        ones = filling.sum(axis=0, dtype=np.int64)
        inner = float(own @ (2.0 * ones - copies))
        missing = max(0.0, 1.0 - copies * float(own @ own))
        size = (math.sqrt(inner**2 + len(bits) * missing) - inner) / len(bits)
        high, low = (np.rint((own + one) * (LARGEST_WEIGHT / peak)) for one in (size, -size))
        largest = max(float(np.max(np.abs(high))), float(np.max(np.abs(low))))
        # The relative error of this sum is below 2^-50; the margin below is wider.
        square = float(ones @ high**2 + (copies - ones) @ low**2)
        if largest <= LARGEST_WEIGHT and largest**2 <= peak**2 * square * (1.0 - 2.0**-40):
            span = (high - low).astype(np.int16)
            return (filling.astype(np.int16) * span + low.astype(np.int16)).ravel()
        return 2 * bits.astype(np.int16) - 1

    @property
    def magnitude(self) -> float:
        """The magnitude that one sign decodes to, before the signs of a coordinate are added up."""
        return self.input_domain.radius / self.choice().mean_score

    def signs(self, messages: Codes) -> NDArray[np.uint8]:
        return self.layout().signs(messages)

    def decode(self, codes: Codes) -> Vector:
        return self.layout().decoded(codes, self.magnitude)

    def law(self, values: ArrayLike) -> MomentLaw:
        """Return mean and variance of decode(encode(values)).

        They are computed for a normally distributed score; the error is about the square of the
        largest coordinate of z, the direction with its padding. Two signs b_i, b_j agree more often
        if both agree with z: E b_i b_j = (E g^2 - 1) z_i z_j for the score g = <b, z>/|z|.

        Args:
            values: A vector in the input domain.

        Returns:
            The moments of each coordinate.
        """
        copies, score = self.layout().copies, self.choice().mean_score
        own = math.sqrt(copies) * self.direction(self.input_domain.check(values))
        agreeing = self.choice().excess_square * (1.0 - 1.0 / copies) - score**2
        return MomentLaw(
            center=self.input_domain.radius * own,
            spread=self.magnitude**2 * (1.0 + agreeing * own**2),
        )

    def density_ratios(self) -> tuple[float, float]:
        """Return bounds (lo, hi) on dR/dQ, R the law of a message and Q that of fair signs.

        They hold for every direction, padding and number of tries. With timing "variable" R and Q
        include the number of tries (in Q with a law that does not depend on the update), which
        widens both bounds by the factor e^timing_loss.

        Returns:
            The least and the largest ratio, rounded outward; not logarithms.
        """
        largest, least = self.choice().ratios()
        if self.timing_loss == 0.0:
            return least, largest
        growth = math.exp(self.timing_loss) * (1.0 + 2.0**-50)
        return least / growth * (1.0 - 2.0**-50), largest * growth * (1.0 + 2.0**-50)

    @property
    def timing_loss(self) -> float:
        """What the number of tries adds to epsilon: 0 with timing "constant", which hides it."""
        return self.choice().timing_loss if self.timing == "variable" else 0.0

    @property
    def hides_only_against_zero(self) -> bool:
        """Whether the zero-out event holds only if one of the two neighbors is the update 0.

        True if `records` = 1.
        """
        return self.input_domain.against_zero(Adjacency.ZERO_OUT)

    def privacy(self, adjacency: Adjacency) -> Conditional:
        """Return the privacy event of one message.

        Between any two updates it is pure, epsilon plus `timing_loss`. Against the zero update it
        is less: padding alone makes all sign vectors equally likely, by symmetry. Against that, an
        update has likelihood ratios between the bounds lo and hi of `density_ratios`. In the worst
        case they are hi on a share of all sign vectors and lo on the rest, and another update has
        hi on a disjoint share.

        Args:
            adjacency: Which inputs are neighbors.

        Returns:
            The event, conditional on ChaCha20.
        """
        if not self.input_domain.against_zero(adjacency):
            epsilon = float(self.epsilon) + self.timing_loss
            return Conditional(
                event=PureDp(epsilon=epsilon, adjacency=adjacency), assumption="chacha20"
            )
        low, high = self.density_ratios()
        high = max(high, 2.0 - low)  # so that two disjoint shares exist
        share = (1.0 - low) / (high - low)
        rest = max(0.0, 1.0 - 2.0 * share)
        event = FiniteTable(
            rows=(
                (share * high, share * low, rest * low),
                (share * low, share * high, rest * low),
                (share, share, rest),
            ),
            zero=2,
            adjacency=adjacency,
        )
        return Conditional(event=event, assumption="chacha20")


def _square_sum(weights: Weights) -> int:
    """Return sum w_i^2 exactly; each product fits into 31 bits."""
    wide = weights.astype(np.int64)
    return int(wide @ wide)
