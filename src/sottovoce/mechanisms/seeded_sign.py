"""The seeded sign mechanism: a whole vector in 16 bytes, the seed of one sign per coordinate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Domain, L2Ball, Vector, require_l2_ball
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms import seeds
from sottovoce.mechanisms.design.seeds import TiltedSeeds, tilted_seeds
from sottovoce.mechanisms.encoding import Payloads, Prepared, Tensor, WithPrivatize, pack_each
from sottovoce.mechanisms.mechanism import Codes, JointLaw, LevelCodes, MomentLaw, Sampling
from sottovoce.mechanisms.registry import CalibratedParameter, Parameters, register
from sottovoce.mechanisms.seeds import (
    LARGEST_WEIGHT,
    ON_CPU,
    SCORED_TOGETHER,
    WORDS_PER_TRY,
    QuantizedTilts,
    Scorer,
    SeedLayout,
    WeightGrid,
    quantize,
)
from sottovoce.privacy.calibration import ENDS
from sottovoce.privacy.events import Conditional, SeededBits

MAX_BLOCKS = 128  # with more, one bit per coordinate is as small for all but the largest models
MAX_RECORDS = 64
LEAST_SIGNS = 4096
_REACH = 1.2  # the norm of a block in units of sigma; about 300 tries
_LARGEST_REACH = 1.7  # close to the largest norm that the limit of tries allows
# The norm check and u/sigma round by less than this fraction of the distance of neighbors.
_ROUNDING = 2.0**-26
# For several records: coordinates are clipped at this multiple of their root mean square, and
# rounded to a public step.
_CLAMP = 8.0
_JOINT_SIGNS = 12  # the joint law is listed for at most this many signs


def _check_records(ball: L2Ball) -> int:
    """Return the number of records; raise ParameterError if it is too large for seeds."""
    if ball.records > MAX_RECORDS:
        raise ParameterError(
            f"'seeded_sign' needs at most {MAX_RECORDS} records per update, got {ball.records}, "
            "whose mean is too long compared with the noise; use 'gauss_hermite' with "
            "levels = 2, or protect whole clients (privacy.level = 'client')"
        )
    return ball.records


def _automatic_blocks(domain: Domain, given: Parameters) -> int:
    """Return the fewest seeds that are each found in a few hundred tries."""
    ball = require_l2_ball(domain)
    reach = ball.records / parameter_rules.noise_multiplier(given["noise_multiplier"])
    blocks = max(1, math.ceil((reach / _REACH) ** 2 * (1.0 - 1e-9)))
    while blocks <= MAX_BLOCKS and not _fits(ball, blocks, reach):
        blocks += 1
    if blocks > MAX_BLOCKS:
        raise ParameterError(
            f"an update whose norm is {reach:.4g} times the noise standard deviation needs more "
            f"than {MAX_BLOCKS} seeds; use mechanism 'gauss_hermite' with levels = 2"
        )
    return blocks


def _fits(ball: L2Ball, blocks: int, reach: float) -> bool:
    """Return whether there are so many blocks of so few signs, each short enough."""
    try:
        layout = _layout(ball.dimension, blocks)
    except ParameterError:  # blocks consist of whole bytes, so some would have no sign
        return False
    longest = _block_reach(layout, reach)
    return longest <= _REACH and _feasible(longest, (reach / ball.records) ** 2 / (2.0 * blocks))


def _ends(domain: Domain, given: Parameters) -> tuple[float, float]:
    """Return the noise multipliers to calibrate in, from the least noise that the blocks allow."""
    records, blocks = _check_records(require_l2_ball(domain)), given.get("blocks")
    if not isinstance(blocks, int):
        noise = records / (_REACH * math.sqrt(MAX_BLOCKS))
        while True:
            noise *= 1.1
            try:
                _automatic_blocks(domain, {"noise_multiplier": noise})
            except ParameterError:
                continue
            return noise, ENDS["larger"][1]
    parameter_rules.integer("blocks", blocks, low=1, high=MAX_BLOCKS)
    longest, reach = _block_reach(_layout(domain.dimension, blocks), 1.0), _LARGEST_REACH
    while not _feasible(reach, reach**2 / (2.0 * blocks * (records * longest) ** 2)):
        reach *= 0.9
    return records * longest / reach, ENDS["larger"][1]


@lru_cache(maxsize=1024)
def _layout(dimension: int, blocks: int) -> SeedLayout:
    return SeedLayout.of(dimension, blocks=blocks, least_signs=LEAST_SIGNS)


def _block_reach(layout: SeedLayout, reach: float) -> float:
    """Return the largest norm that a block may have, in units of sigma.

    If all blocks hold the same part of every coordinate, it is exactly the norm over sqrt(blocks).
    Else it is a norm that the blocks of a rotated vector exceed with probability below 1/1000; a
    longer block is scaled down.
    """
    share = reach / math.sqrt(layout.blocks) * (1.0 + 2.0**-40)
    if layout.is_even:
        return share
    return min(reach, share * (1.0 + 3.1 / math.sqrt(2.0 * layout.block_size)))


@register(
    "seeded_sign",
    summary="16 bytes per message, nearly as accurate as one bit per coordinate",
    examples=[
        {"noise_multiplier": 2.0, "blocks": "auto", "generator": "auto", "timing": "auto"},
        {"noise_multiplier": 4.0, "blocks": "auto", "generator": "auto", "timing": "variable"},
    ],
    example_domain=L2Ball(dimension=8, radius=1.0),
    calibrated_parameter=CalibratedParameter(
        parameter="noise_multiplier", more_private="larger", ends=_ends
    ),
    automatic={
        "blocks": _automatic_blocks,
        "generator": lambda domain, given: seeds.GENERATORS[-1],  # noqa: ARG005
        "timing": lambda domain, given: "constant",  # noqa: ARG005
    },
    settings=[{"blocks": "auto", "generator": "auto", "timing": "auto"}],
)
@dataclass(frozen=True, slots=True, kw_only=True)
class SeededSign(WithPrivatize):
    """A whole update in 16 bytes, nearly as private and accurate as one bit per coordinate.

    The message is the seed of a sign vector b in {-1, 1}^D, which ChaCha20 expands. The client
    draws candidate seeds and chooses one by rejection sampling, so that its signs have about the
    law of the one-bit mechanism (`GaussHermite` with two levels):

        P(b) = 2^-D exp(<b, z> - sum log cosh z_i),        z = u/sigma

    with sigma = noise_multiplier * radius / records. The signs decode to (sigma/k) b. Likelihood
    ratios are truncated so that rejection ends (see `design.seeds`), which costs about 1/2000 of
    rho. The constant k compensates what truncation takes from an update of full norm; a shorter
    update is decoded too long, by a fraction below 1e-4.

    With fewer than 4096 coordinates each one gets several signs, which reduces the bias of tanh.
    One seed is found in a few hundred tries for updates with |u| <= 1.2 sigma; `blocks` seeds serve
    sqrt(blocks) times that. Each block is clipped to its share of the norm, so rotate updates
    first: the blocks of a rotated update are about equally long.

    Privacy: `SeededBits`, that is the one-bit mechanism's curve plus the cost of truncation, under
    the assumption that ChaCha20 is a pseudorandom generator. Sampling is exact. With timing
    "constant" all tries are made, so that their number is not visible (with a seeded keystream,
    which is for simulations, they are not). With "variable" the search stops soon after the seed
    that is sent, and `privacy` charges what the number of tries reveals.

    Cost: 16 bytes per block.

    References: Feldman and Talwar 2021 (seeds in place of outputs); docs/explanation/privacy.md,
        section 27.

    Attributes:
        input_domain: The L2 ball that updates are clipped to, of at most 64 records.
        noise_multiplier: sigma in units of radius/records.
        blocks: The number of seeds, from 1 to 128. In specs and commands it may be "auto": the
            fewest that are each found in a few hundred tries.
        generator: The function that expands a seed, "chacha20-1" (in specs and commands also
            "auto").
        timing: "constant" or "variable" (in specs and commands "auto" is "constant").

    Examples:
        >>> from sottovoce import L2Ball
        >>> mechanism = SeededSign(
        ...     input_domain=L2Ball(dimension=5000, radius=1.0),
        ...     noise_multiplier=2.0,
        ...     blocks=1,
        ...     generator="chacha20-1",
        ...     timing="constant",
        ... )
        >>> codes = mechanism.privatize([0.01] * 5000)
        >>> codes.nbytes, mechanism.decode(codes).shape
        (16, (5000,))
    """

    input_domain: L2Ball
    noise_multiplier: float
    blocks: int
    generator: str
    timing: str
    sampling: ClassVar[Sampling] = "exact"

    def __post_init__(self) -> None:
        require_l2_ball(self.input_domain)
        _check_records(self.input_domain)
        parameter_rules.noise_multiplier(self.noise_multiplier)
        parameter_rules.integer("blocks", self.blocks, low=1, high=MAX_BLOCKS)
        seeds.check_choices(self.generator, self.timing)
        self.layout()
        try:
            self.choice()
        except ParameterError as error:
            given = {"noise_multiplier": self.noise_multiplier}
            needed = _automatic_blocks(self.input_domain, given)
            raise ParameterError(f"{error}; use blocks = {needed} (or 'auto')") from None

    @property
    def noise_stddev(self) -> float:
        """The standard deviation sigma of the Gaussian noise that the signs imitate.

        It is noise_multiplier * radius / records for each coordinate, in the unit of the update.
        """
        return self.noise_multiplier * self.input_domain.radius / self.input_domain.records

    def layout(self) -> SeedLayout:
        return _layout(self.input_domain.dimension, self.blocks)

    def choice(self) -> TiltedSeeds:
        """Return the rejection sampler that chooses the seed of each block.

        Returns:
            The acceptance probabilities, the number of tries and their cost in privacy.
        """
        longest = self._clip() + self._step() * math.sqrt(self.layout().num_signs) / 2.0
        return _choice(longest, 1.0 / (2.0 * self.noise_multiplier**2 * self.blocks))

    def _clip(self) -> float:
        """Return the norm, in units of sigma, to which a longer block is scaled down."""
        reach = self.input_domain.records / self.noise_multiplier
        return _block_reach(self.layout(), reach * (1.0 + _ROUNDING))

    def code_format(self) -> LevelCodes:
        return self.layout().code_format()

    def encode(self, values: ArrayLike, keystream: Keystream) -> NDArray[np.uint32]:
        return self.search(self.tilts(self.input_domain.check(values)), keystream)

    def encode_packed(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Payloads:
        """Encode prepared rows on the CPU.

        Args:
            prepared: The rows.
            keystreams: The random bits of each row.

        Returns:
            A matrix of bytes with the seeds of one message in each row.
        """
        return pack_each(
            prepared, lambda i: self.search(self.tilts(prepared.vector(i)), keystreams[i])
        )

    def encode_on_device(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Tensor:
        """Encode prepared rows, scoring candidates on their CUDA device; same bytes as on the CPU.

        The weights of long vectors are computed on the device, too.

        Args:
            prepared: The rows, a tensor on the device.
            keystreams: The random bits of each row.

        Returns:
            A tensor of bytes with the seeds of one message in each row.
        """
        from sottovoce.mechanisms.kernels.cuda.seeded import make_scorer, scores_to_host

        def codes(i: int) -> NDArray[np.uint32]:
            if self.layout().copies == 1:
                scorer = Scorer(score=scores_to_host, together=SCORED_TOGETHER)
                return self.search(self._tilts_on_device(prepared.tensor(i)), keystreams[i], scorer)
            scorer = Scorer(score=make_scorer(prepared.rows.device), together=SCORED_TOGETHER)
            return self.search(self.tilts(prepared.vector(i)), keystreams[i], scorer)

        return seeds.pack_on_device(prepared, codes)

    def _tilts_on_device(self, vector: Tensor) -> list[QuantizedTilts]:
        from sottovoce.mechanisms.kernels.cuda.seeded import largest_magnitude, norm, quantize

        found = []
        for start, end in self.layout().bounds:
            block = vector[start:end]
            grid = self.grid(norm(block), largest_magnitude(block))
            step = 0.0 if grid.vanishes else grid.step
            ratio = 0.0 if grid.vanishes else grid.per_unit / grid.step
            weights, total = quantize(block, ratio, step, nearest=grid.nearest)
            found.append(QuantizedTilts(weights=weights, step=step, log_cosh_sum=total))
        return found

    def tilts(self, vector: Vector) -> list[QuantizedTilts]:
        """Return the tilts z = u/sigma of each block as integer multiples of a step.

        A block that is longer than its share of the norm is scaled down.

        Args:
            vector: A vector u of the domain.

        Returns:
            One set of tilts for each block.
        """
        layout = self.layout()
        if layout.is_even:  # copies follow one another, and all blocks are equal
            repeats = layout.copies // layout.blocks
            one = self._rounded(
                vector if layout.copies == 1 else vector / math.sqrt(layout.copies), repeats
            )
            return [one] * layout.blocks
        spread = layout.spread(vector)
        return [self._rounded(spread[start:end], 1) for start, end in layout.bounds]

    def _rounded(self, values: Vector, repeats: int) -> QuantizedTilts:
        """Return the tilts of a block that holds the same values `repeats` times."""
        norm = math.sqrt(repeats) * self.input_domain.norm(values)
        largest = max(float(values.max()), -float(values.min()))
        once = quantize(values, self.grid(norm, largest))
        if repeats == 1:
            return once
        return QuantizedTilts(
            weights=np.tile(once.weights, repeats),
            step=once.step,
            log_cosh_sum=repeats * once.log_cosh_sum,
        )

    def grid(self, norm: float, largest: float) -> WeightGrid:
        """Return how the values of a block are clipped and rounded to tilts.

        Args:
            norm: The L2 norm of the block, in the unit of the update.
            largest: The largest magnitude of its values.

        Returns:
            The factor from a value to its tilt (1/sigma, less if the block is scaled down), and the
            step of the tilts.
        """
        length = norm / self.noise_stddev
        scale = min(1.0, self._clip() / length) * (1.0 - 2.0**-40) if length > 0.0 else 1.0
        per_unit, public = scale / self.noise_stddev, self._step()
        if public > 0.0:  # neighbors are rounded to the same grid, by at most half a step
            return WeightGrid(per_unit=per_unit, step=public, nearest=True)
        # Rounding toward 0 makes tilts smaller, never larger.
        step = largest * per_unit / LARGEST_WEIGHT * (1.0 + 2.0**-40)
        return WeightGrid(per_unit=per_unit, step=step, nearest=False)

    def _step(self) -> float:
        """Return the public step of tilts, or 0 if each update has a step of its own.

        The step must be public if neighbors share records. If a whole client is protected, its
        tilts may be any in the ball, so its step may depend on them.
        """
        if self.hides_only_against_zero:
            return 0.0
        reach = self.input_domain.records / self.noise_multiplier
        return _CLAMP * reach / (math.sqrt(self.layout().num_signs) * LARGEST_WEIGHT)

    def search(
        self, blocks: Sequence[QuantizedTilts], keystream: Keystream, scorer: Scorer = ON_CPU
    ) -> NDArray[np.uint32]:
        """Choose the seed of each block by rejection sampling.

        Args:
            blocks: The tilts of each block.
            keystream: The random bits of this message; they are consumed.
            scorer: Computes the inner products of candidates with the tilts, on the CPU or on a
                device.

        Returns:
            The codes of the seeds, four 32-bit numbers for each block. If no candidate of a block
            is accepted, the last one is sent.
        """
        choice, timing = self.choice(), seeds.search_timing(self.timing, keystream)
        words = keystream.words(WORDS_PER_TRY * choice.tries * self.blocks)
        found = []
        for tries, tilts in zip(
            words.reshape(self.blocks, choice.tries, WORDS_PER_TRY), blocks, strict=True
        ):
            accept = partial(_acceptance, choice, tilts)
            found.append(
                seeds.choose_seed(tilts.weights, accept, tries, timing=timing, scorer=scorer)
            )
        return seeds.as_codes(found)

    @property
    def magnitude(self) -> float:
        """The magnitude that one sign decodes to, before the signs of a coordinate are added up."""
        return self.noise_stddev / self.choice().shrinkage

    def signs(self, messages: Codes) -> NDArray[np.uint8]:
        return self.layout().signs(messages)

    def decode(self, codes: Codes) -> Vector:
        return self.layout().decoded(codes, self.magnitude)

    def law(self, values: ArrayLike) -> JointLaw | MomentLaw:
        """Return the law of decode(encode(values)).

        Args:
            values: A vector in the input domain.

        Returns:
            The joint law if there are at most 12 signs; else mean and variance, up to the small
            effect of truncation.
        """
        blocks = self.tilts(self.input_domain.check(values))
        layout = self.layout()
        if layout.num_signs <= _JOINT_SIGNS:
            return self._joint_law(blocks)
        means = np.concatenate([np.tanh(tilts.weights * tilts.step) for tilts in blocks])
        means *= self.choice().shrinkage
        square = (means**2).reshape(layout.copies, layout.dimension).mean(axis=0)
        return MomentLaw(
            center=layout.fold(means * self.magnitude),
            spread=self.magnitude**2 * (1.0 - square),
        )

    def _joint_law(self, blocks: list[QuantizedTilts]) -> JointLaw:
        choice, total, pmf = self.choice(), np.zeros((1, 0)), np.ones(1)
        for tilts in blocks:
            places = np.arange(len(tilts.weights))
            numbers = np.arange(1 << len(places))
            signs = 2.0 * ((numbers[:, None] >> places) & 1) - 1.0
            odds = signs @ (tilts.weights * tilts.step) - tilts.log_cosh_sum
            accepted = choice.acceptance(odds)
            mean = float(accepted.mean())
            failing = (1.0 - mean) ** (choice.tries - 1)
            own = ((1.0 - failing) * accepted / mean + failing) / len(numbers)
            total = np.hstack([np.repeat(total, len(signs), axis=0), np.tile(signs, (len(pmf), 1))])
            pmf = np.outer(pmf, own).ravel()
        points = np.stack([self.layout().fold(row) for row in self.magnitude * total])
        return JointLaw(points=points, pmf=pmf)

    @property
    def _timing_loss(self) -> float:
        """What the number of tries adds to the losses of a block, if it is visible."""
        return self.choice().timing_loss if self.timing == "variable" else 0.0

    def density_ratios(self) -> tuple[float, float] | None:
        """Return bounds on the density of a message relative to fair signs in every block.

        Returns:
            (lo, hi) with lo <= dR/dQ <= hi, ratios rounded outward, where R is the law of a whole
            message and Q that of fair signs; None if log(hi) would exceed 600.
        """
        choice = self.choice()
        largest = choice.largest_loss(against_zero=True) + self._timing_loss
        largest *= self.blocks * (1.0 + 2.0**-50)
        if largest > 600.0:
            return None
        return math.exp(-largest) * (1.0 - 2.0**-50), math.exp(largest) * (1.0 + 2.0**-50)

    @property
    def hides_only_against_zero(self) -> bool:
        """Whether the zero-out event holds only if one of the two neighbors is the update 0.

        True if `records` = 1. Each update then has its own rounding step, so two rounded updates
        may be farther apart than the updates are.
        """
        return self.input_domain.against_zero(Adjacency.ZERO_OUT)

    def privacy(self, adjacency: Adjacency) -> Conditional:
        domain, choice = self.input_domain, self.choice()
        shift = domain.relative_sensitivity(adjacency) / self.noise_multiplier * (1.0 + _ROUNDING)
        if domain.records > 1:
            # Each neighbor is rounded by at most half a step in every coordinate.
            shift += self._step() * math.sqrt(self.layout().num_signs)
        against_zero = domain.against_zero(adjacency)
        # The number of tries is independent of the seed and satisfies pure DP, so both bounds
        # grow by its loss.
        timing = self._timing_loss
        largest = choice.largest_loss(against_zero=against_zero) + timing
        return Conditional(
            event=SeededBits(
                shift=2.0 * shift,
                dimension=self.layout().num_signs,
                excess=self.blocks * (choice.excess + timing),
                largest_loss=self.blocks * largest,
                adjacency=adjacency,
                against_zero=against_zero,
            ),
            assumption="chacha20",
        )


@lru_cache(maxsize=1024)
def _choice(reach: float, rho: float) -> TiltedSeeds:
    return tilted_seeds(reach, rho)


def _feasible(reach: float, rho: float) -> bool:
    try:
        tilted_seeds(1.01 * reach, rho)  # 1% is more than rounding adds
    except ParameterError:
        return False
    return True


def _acceptance(choice: TiltedSeeds, tilts: QuantizedTilts, scores: NDArray[np.int64]) -> Vector:
    return choice.acceptance(np.asarray(scores * tilts.step - tilts.log_cosh_sum))
