"""Sixteen bytes for a direction, with a small pure epsilon: what a shuffler can amplify."""

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
from sottovoce.mechanisms.registry import Knob, register
from sottovoce.mechanisms.seeds import (
    LARGEST_WEIGHT,
    ON_CPU,
    SCORED_TOGETHER,
    WORDS_PER_TRY,
    Layout,
    Scorer,
    Weights,
)
from sottovoce.privacy.events import Assumed, FiniteTable, PureDp

LEAST_SIGNS = 16_384
Length = Literal["scaled", "kept"]
_LENGTHS = ("scaled", "kept")


@lru_cache(maxsize=1024)
def _layout(dimension: int) -> Layout:
    return Layout.of(dimension, blocks=1, least_signs=LEAST_SIGNS)


@register(
    "seeded_step",
    summary="16 bytes in all with a pure epsilon between any two vectors: to be shuffled",
    examples=[
        {"epsilon": 2.0, "length": "kept", "generator": "auto", "timing": "auto"},
        {"epsilon": 5.0, "length": "scaled", "generator": "auto", "timing": "auto"},
    ],
    example_domain=L2Ball(dimension=8, radius=1.0),
    knob=Knob(parameter="epsilon", more_private="smaller", ends=(10.0, 1e-6)),
    automatic={
        "length": lambda domain, given: "kept",  # noqa: ARG005
        "generator": lambda domain, given: seeds.GENERATORS[-1],  # noqa: ARG005
        "timing": lambda domain, given: "constant",  # noqa: ARG005
    },
    settings=[{"length": "auto", "generator": "auto", "timing": "auto"}],
)
@dataclass(frozen=True, slots=True, kw_only=True)
class SeededStep(WithPrivatize):
    """The seed of signs b in {-1, 1}^D that are likelier, up to e^epsilon times, if they agree with
    the direction z of the update; decodes to (C/G) b, C the clip norm and G the mean of <b, z>.

    A candidate is accepted by whether its score <b, z>/|z| lies above a cut: PrivUnit's law, on
    signs and with a step that is not quite sharp, so that epsilon is certified *between any two
    updates* (replace-one): see `design.seeds`. That is the epsilon that shuffling needs.
    An update learns like one with Gaussian noise of stddev C/G on each coordinate: G = .79, 1.51,
    1.85 at epsilon = 2, 4, 5.

    z must have norm 1, and no coordinate beyond 5/sqrt D. `length` says what becomes of the norm:

    scaled   every update is scaled to norm C: only its direction is sent.
    kept     an update shorter than C is filled up with random signs of the client's own, which are
             0 on average: what is decoded has the update as its mean, and costs nothing more.

    Coordinates beyond 3.9/sqrt D are cut off, and filled up likewise: rotate first. Nothing at all
    is all filling, and is accepted as often as everything else. Below 16,384 coordinates each has
    several signs.

    With 'constant' timing all tries are made, so that their number is hidden; with 'variable' the
    search stops at the seed that is sent, and `privacy` charges what the number of tries tells.
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

    def layout(self) -> Layout:
        return _layout(self.input_domain.dimension)

    def choice(self) -> SteppedSeeds:
        """How the seed is chosen."""
        return stepped_seeds(float(self.epsilon), self.layout().num_signs)

    def code_format(self) -> LevelCodes:
        return self.layout().code_format()

    def encode(self, values: ArrayLike, keystream: Keystream) -> NDArray[np.uint32]:
        return self.search(self.input_domain.check(values), keystream)

    def encode_packed(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Payloads:
        """Return the seeds of rows that were checked."""
        return pack_each(prepared, lambda i: self.search(prepared.vector(i), keystreams[i]))

    def encode_on_device(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Tensor:
        """Return the same bytes; candidates are scored on the device."""
        from sottovoce.mechanisms.kernels.cuda.seeded import scores_on

        def codes(i: int) -> NDArray[np.uint32]:
            scorer = Scorer(score=scores_on(prepared.rows.device), together=SCORED_TOGETHER)
            return self.search(prepared.vector(i), keystreams[i], scorer)

        return seeds.placed(prepared, codes)

    def search(
        self, vector: Vector, keystream: Keystream, scorer: Scorer = ON_CPU
    ) -> NDArray[np.uint32]:
        """The codes of the seed that rejection finds."""
        choice, num_signs = self.choice(), self.layout().num_signs
        size = WORDS_PER_TRY * choice.tries
        words = keystream.words(size + -(-num_signs // 64))
        octets = words[size:].astype("<u8").view(np.uint8)
        weights = self.weights(vector, np.unpackbits(octets, count=num_signs, bitorder="little"))
        # |w| in float64 is within 2^-50 of itself: scores err by as much, and a by far less.
        length = math.sqrt(float(_square_sum(weights)))

        def accept(scores: NDArray[np.int64]) -> Vector:
            return choice.acceptance(scores / length)

        tries = words[:size].reshape(choice.tries, WORDS_PER_TRY)
        timing = seeds.search_timing(self.timing, keystream)
        seed = seeds.chosen_seed(weights, accept, tries, timing=timing, scorer=scorer)
        return seeds.as_codes([seed])

    def direction(self, vector: Vector) -> Vector:
        """What of z is the update's own, in each copy: cut off, and of norm 1 at most over all."""
        norm = self.input_domain.norm(vector)
        if norm == 0.0:
            return np.zeros(len(vector))
        whole = norm if self.length == "scaled" else self.input_domain.radius
        limit = CLAMP / math.sqrt(self.layout().num_signs)
        return np.clip(vector / whole / math.sqrt(self.layout().copies), -limit, limit)

    def weights(self, vector: Vector, bits: NDArray[np.uint8]) -> Weights:
        """z in whole multiples of a step, filled up to norm 1 with signs drawn from fair bits.

        Whatever the update is, no coordinate exceeds the peak that was certified: it is checked on
        the integers themselves, and signs alone take the place of what fails (nothing known does).
        A coordinate has one of two weights, so that little is done for each of its copies.
        """
        peak, copies, own = self.choice().peak, self.layout().copies, self.direction(vector)
        filling = bits.reshape(copies, len(own))
        ones = filling.sum(axis=0, dtype=np.int64)
        inner = float(own @ (2.0 * ones - copies))
        missing = max(0.0, 1.0 - copies * float(own @ own))
        size = (math.sqrt(inner**2 + len(bits) * missing) - inner) / len(bits)
        high, low = (np.rint((own + one) * (LARGEST_WEIGHT / peak)) for one in (size, -size))
        largest = max(float(np.max(np.abs(high))), float(np.max(np.abs(low))))
        # A sum of squares, right to a part in 2^50: the margin below is wider.
        square = float(ones @ high**2 + (copies - ones) @ low**2)
        if largest <= LARGEST_WEIGHT and largest**2 <= peak**2 * square * (1.0 - 2.0**-40):
            span = (high - low).astype(np.int16)
            return (filling.astype(np.int16) * span + low.astype(np.int16)).ravel()
        return 2 * bits.astype(np.int16) - 1

    @property
    def magnitude(self) -> float:
        """What a sign decodes to, before it is folded."""
        return self.input_domain.radius / self.choice().mean_score

    def signs(self, messages: Codes) -> NDArray[np.uint8]:
        return self.layout().signs(messages)

    def decode(self, codes: Codes) -> Vector:
        return self.layout().decoded(codes, self.magnitude)

    def law(self, values: ArrayLike) -> MomentLaw:
        """Moments for a normal score: wrong by about the square of z's largest coordinate.

        Two signs of a coordinate agree as both agree with z: E b_i b_j = (E g^2 - 1) z_i z_j.
        """
        copies, score = self.layout().copies, self.choice().mean_score
        own = math.sqrt(copies) * self.direction(self.input_domain.check(values))
        agreeing = self.choice().excess_square * (1.0 - 1.0 / copies) - score**2
        return MomentLaw(
            centre=self.input_domain.radius * own,
            spread=self.magnitude**2 * (1.0 + agreeing * own**2),
        )

    def density_ratios(self) -> tuple[float, float]:
        """Against fair signs: for every direction, filling and number of tries.

        Tries that may be seen multiply any ratio of likelihoods by e^timing_loss at most, either
        way, so by that much against one of their laws.
        """
        largest, least = self.choice().ratios()
        if self.timing_loss == 0.0:
            return least, largest
        growth = math.exp(self.timing_loss) * (1.0 + 2.0**-50)
        return least / growth * (1.0 - 2.0**-50), largest * growth * (1.0 + 2.0**-50)

    @property
    def timing_loss(self) -> float:
        """What the number of tries adds to epsilon, where it may be seen."""
        return self.choice().timing_loss if self.timing == "variable" else 0.0

    @property
    def hides_only_against_zero(self) -> bool:
        """Whether the zero-out claim is against the update 0 alone, and not between two updates."""
        return self.input_domain.against_zero(Adjacency.ZERO_OUT)

    def privacy(self, adjacency: Adjacency) -> Assumed:
        """Between any two updates epsilon, and `timing_loss`; against nothing, less.

        There signs are fair: filling alone makes every sign vector equally likely, by symmetry.
        Against that an update has likelihood ratios between lo and hi, in the worst case hi on a
        share of all sign vectors and lo on the rest, another update on a share disjoint from that.
        """
        if not self.input_domain.against_zero(adjacency):
            epsilon = float(self.epsilon) + self.timing_loss
            return Assumed(
                event=PureDp(epsilon=epsilon, adjacency=adjacency), assumption="chacha20"
            )
        low, high = self.density_ratios()
        high = max(high, 2.0 - low)  # room for two disjoint shares
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
        return Assumed(event=event, assumption="chacha20")


def _square_sum(weights: Weights) -> int:
    """sum w_i^2, exactly: each product fits into 31 bits."""
    wide = weights.astype(np.int64)
    return int(wide @ wide)
