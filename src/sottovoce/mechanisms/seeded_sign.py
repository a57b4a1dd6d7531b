"""Sixteen bytes for a whole vector: the one-bit mechanism's signs, named by a seed."""

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
from sottovoce.mechanisms.registry import Knob, Parameters, register
from sottovoce.mechanisms.seeds import (
    LARGEST_WEIGHT,
    ON_CPU,
    SCORED_TOGETHER,
    WORDS_PER_TRY,
    Grid,
    Layout,
    Scorer,
    Tilts,
    quantised,
)
from sottovoce.privacy.calibration import ENDS
from sottovoce.privacy.events import Assumed, SeededBits

MAX_BLOCKS = 128  # beyond, one bit a coordinate is as small for all but the largest models
MAX_RECORDS = 64
LEAST_SIGNS = 4096
_REACH = 1.2  # of a block: about 300 tries
_LARGEST_REACH = 1.7  # close to what the limit of tries allows
# The norm check and u/sigma round by less than this part of the distance of neighbours.
_ROUNDING = 2.0**-26
# Of several records: coordinates are cut off at so many times their root mean square, and rounded
# to a step that is the same for everybody.
_CLAMP = 8.0
_JOINT_SIGNS = 12  # whose law is listed as a whole


def _check_records(ball: L2Ball) -> int:
    """Refuses means that no number of seeds holds at a noise that anybody would want."""
    if ball.records > MAX_RECORDS:
        raise ParameterError(
            f"a mean of {ball.records} records is far longer than the noise that hides one "
            f"of them (seeds hold {MAX_RECORDS} at most): use 'gauss_hermite' with levels = 2, or "
            "protect whole clients (privacy.level = 'client')"
        )
    return ball.records


def _automatic_blocks(domain: Domain, given: Parameters) -> int:
    """The fewest seeds that are each found in a few hundred tries."""
    ball = require_l2_ball(domain)
    reach = ball.records / parameter_rules.noise_multiplier(given["noise_multiplier"])
    blocks = max(1, math.ceil((reach / _REACH) ** 2 * (1.0 - 1e-9)))
    while blocks <= MAX_BLOCKS and not _holds(ball, blocks, reach):
        blocks += 1
    if blocks > MAX_BLOCKS:
        raise ParameterError(
            f"an update {reach:.4g} noise widths long would take more than {MAX_BLOCKS} seeds; use "
            "mechanism 'gauss_hermite' with levels = 2"
        )
    return blocks


def _holds(ball: L2Ball, blocks: int, reach: float) -> bool:
    """Whether there are so many blocks of so few signs, each short enough."""
    try:
        layout = _layout(ball.dimension, blocks)
    except ParameterError:  # blocks of whole bytes leave some without a sign
        return False
    longest = _block_reach(layout, reach)
    return longest <= _REACH and _feasible(longest, (reach / ball.records) ** 2 / (2.0 * blocks))


def _ends(domain: Domain, given: Parameters) -> tuple[float, float]:
    """From the least noise that so many blocks can hold."""
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
def _layout(dimension: int, blocks: int) -> Layout:
    return Layout.of(dimension, blocks=blocks, least_signs=LEAST_SIGNS)


def _block_reach(layout: Layout, reach: float) -> float:
    """The longest that a block may be, in noise widths.

    If blocks hold the same parts of every coordinate, the norm over sqrt k, exactly. Else what a
    rotated vector's blocks stay within but for one in a thousand; a longer one is scaled down.
    """
    share = reach / math.sqrt(layout.blocks) * (1.0 + 2.0**-40)
    if layout.is_even:
        return share
    return min(reach, share * (1.0 + 3.1 / math.sqrt(2.0 * layout.block_size)))


@register(
    "seeded_sign",
    summary="16 bytes in all, at about the one-bit (and the Gaussian) mechanism's accuracy",
    examples=[
        {"noise_multiplier": 2.0, "blocks": "auto", "generator": "auto", "timing": "auto"},
        {"noise_multiplier": 4.0, "blocks": "auto", "generator": "auto", "timing": "variable"},
    ],
    example_domain=L2Ball(dimension=8, radius=1.0),
    knob=Knob(parameter="noise_multiplier", more_private="larger", ends=_ends),
    automatic={
        "blocks": _automatic_blocks,
        "generator": lambda domain, given: seeds.GENERATORS[-1],  # noqa: ARG005
        "timing": lambda domain, given: "constant",  # noqa: ARG005
    },
    settings=[{"blocks": "auto", "generator": "auto", "timing": "auto"}],
)
@dataclass(frozen=True, slots=True, kw_only=True)
class SeededSign(WithPrivatize):
    """The seed of signs b in {-1, 1}^D that were chosen with probability about
    2^-D exp(<b, z> - sum log cosh z_i), z = u/sigma; decodes to (sigma/k) b.

    sigma = noise_multiplier * clip norm/records, as for one bit a coordinate (`gauss_hermite` with
    two levels), whose privacy and accuracy it has up to a 2000th of rho: odds are truncated so that
    rejection ends, see `design.seeds`. The constant k undoes what truncation takes from an
    update of full norm; for a shorter one it is too large by less than 1e-4.

    Below 4096 coordinates each has several signs: the bias of tanh is that of a coordinate
    spread over them. One seed holds what is up to 1.2 noise widths long; `blocks` seeds
    ('auto': as few as that takes) hold sqrt(blocks) times that. A block of a vector whose blocks
    are uneven is scaled down to its own clip: rotate first.

    With 'constant' timing all tries are made, so that their number is hidden; with 'variable' the
    search stops at the seed that is sent, and `privacy` charges what the number of tries tells.
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
        return self.noise_multiplier * self.input_domain.radius / self.input_domain.records

    def layout(self) -> Layout:
        return _layout(self.input_domain.dimension, self.blocks)

    def choice(self) -> TiltedSeeds:
        """How the seed of each block is chosen."""
        longest = self._clip() + self._step() * math.sqrt(self.layout().num_signs) / 2.0
        return _choice(longest, 1.0 / (2.0 * self.noise_multiplier**2 * self.blocks))

    def _clip(self) -> float:
        """The norm, in noise widths, that a longer block is scaled down to before it is rounded."""
        reach = self.input_domain.records / self.noise_multiplier
        return _block_reach(self.layout(), reach * (1.0 + _ROUNDING))

    def code_format(self) -> LevelCodes:
        return self.layout().code_format()

    def encode(self, values: ArrayLike, keystream: Keystream) -> NDArray[np.uint32]:
        return self.search(self.tilts(self.input_domain.check(values)), keystream)

    def encode_packed(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Payloads:
        """Return the seeds of rows that were checked."""
        return pack_each(
            prepared, lambda i: self.search(self.tilts(prepared.vector(i)), keystreams[i])
        )

    def encode_on_device(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Tensor:
        """Return the same bytes; candidates are scored on the device.

        So are the weights of long vectors made there.
        """
        from sottovoce.mechanisms.kernels.cuda.seeded import scores_on, scores_there

        def codes(i: int) -> NDArray[np.uint32]:
            if self.layout().copies == 1:
                scorer = Scorer(score=scores_there, together=SCORED_TOGETHER)
                return self.search(self._tilts_on_device(prepared.tensor(i)), keystreams[i], scorer)
            scorer = Scorer(score=scores_on(prepared.rows.device), together=SCORED_TOGETHER)
            return self.search(self.tilts(prepared.vector(i)), keystreams[i], scorer)

        return seeds.placed(prepared, codes)

    def _tilts_on_device(self, vector: Tensor) -> list[Tilts]:
        from sottovoce.mechanisms.kernels.cuda.norm import norm
        from sottovoce.mechanisms.kernels.cuda.seeded import largest_of, quantised

        found = []
        for start, end in self.layout().bounds:
            block = vector[start:end]
            grid = self.grid(norm(block), largest_of(block))
            step = 0.0 if grid.vanishes else grid.step
            ratio = 0.0 if grid.vanishes else grid.per_unit / grid.step
            weights, total = quantised(block, ratio, step, nearest=grid.nearest)
            found.append(Tilts(weights=weights, step=step, log_cosh_sum=total))
        return found

    def tilts(self, vector: Vector) -> list[Tilts]:
        """The tilts of each block in whole multiples of a step."""
        layout = self.layout()
        if layout.is_even:  # one copy after another, and all blocks alike
            repeats = layout.copies // layout.blocks
            one = self._rounded(vector / math.sqrt(layout.copies), repeats)
            return [one] * layout.blocks
        spread = layout.spread(vector)
        return [self._rounded(spread[start:end], 1) for start, end in layout.bounds]

    def _rounded(self, values: Vector, repeats: int) -> Tilts:
        """The tilts of a block that holds the same values so many times."""
        norm = math.sqrt(repeats) * self.input_domain.norm(values)
        largest = max(float(values.max()), -float(values.min()))
        once = quantised(values, self.grid(norm, largest))
        if repeats == 1:
            return once
        return Tilts(
            weights=np.tile(once.weights, repeats),
            step=once.step,
            log_cosh_sum=repeats * once.log_cosh_sum,
        )

    def grid(self, norm: float, largest: float) -> Grid:
        """How a block of this norm and largest magnitude is clipped and rounded."""
        length = norm / self.noise_stddev
        scale = min(1.0, self._clip() / length) * (1.0 - 2.0**-40) if length > 0.0 else 1.0
        per_unit, public = scale / self.noise_stddev, self._step()
        if public > 0.0:  # the same rounding for neighbours, and no more than to the nearest
            return Grid(per_unit=per_unit, step=public, nearest=True)
        # Truncated, tilts get shorter, never longer.
        step = largest * per_unit / LARGEST_WEIGHT * (1.0 + 2.0**-40)
        return Grid(per_unit=per_unit, step=step, nearest=False)

    def _step(self) -> float:
        """What tilts are rounded to if neighbours share records; 0 if each has a step of its own.

        A whole client's tilts may be any in the ball, so its step may depend on them.
        """
        if self.hides_only_against_zero:
            return 0.0
        reach = self.input_domain.records / self.noise_multiplier
        return _CLAMP * reach / (math.sqrt(self.layout().num_signs) * LARGEST_WEIGHT)

    def search(
        self, blocks: Sequence[Tilts], keystream: Keystream, scorer: Scorer = ON_CPU
    ) -> NDArray[np.uint32]:
        """The codes of the seeds that rejection finds for the tilts of each block."""
        choice, timing = self.choice(), seeds.search_timing(self.timing, keystream)
        words = keystream.words(WORDS_PER_TRY * choice.tries * self.blocks)
        found = []
        for tries, tilts in zip(
            words.reshape(self.blocks, choice.tries, WORDS_PER_TRY), blocks, strict=True
        ):
            accept = partial(_acceptance, choice, tilts)
            found.append(
                seeds.chosen_seed(tilts.weights, accept, tries, timing=timing, scorer=scorer)
            )
        return seeds.as_codes(found)

    @property
    def magnitude(self) -> float:
        """What a sign decodes to, before it is folded."""
        return self.noise_stddev / self.choice().shrinkage

    def signs(self, messages: Codes) -> NDArray[np.uint8]:
        return self.layout().signs(messages)

    def decode(self, codes: Codes) -> Vector:
        return self.layout().decoded(codes, self.magnitude)

    def law(self, values: ArrayLike) -> JointLaw | MomentLaw:
        """The whole law if there are few signs; else moments, up to what truncation leaves."""
        blocks = self.tilts(self.input_domain.check(values))
        layout = self.layout()
        if layout.num_signs <= _JOINT_SIGNS:
            return self._joint_law(blocks)
        means = np.concatenate([np.tanh(tilts.weights * tilts.step) for tilts in blocks])
        means *= self.choice().shrinkage
        square = (means**2).reshape(layout.copies, layout.dimension).mean(axis=0)
        return MomentLaw(
            centre=layout.folded(means * self.magnitude),
            spread=self.magnitude**2 * (1.0 - square),
        )

    def _joint_law(self, blocks: list[Tilts]) -> JointLaw:
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
        points = np.stack([self.layout().folded(row) for row in self.magnitude * total])
        return JointLaw(points=points, pmf=pmf)

    @property
    def _timing_loss(self) -> float:
        """What the number of tries adds to the losses of a block, where it may be seen."""
        return self.choice().timing_loss if self.timing == "variable" else 0.0

    def density_ratios(self) -> tuple[float, float] | None:
        """Against fair signs, in every block: the largest loss against them, in both directions."""
        choice = self.choice()
        largest = choice.largest_loss(against_zero=True) + self._timing_loss
        largest *= self.blocks * (1.0 + 2.0**-50)
        if largest > 600.0:
            return None
        return math.exp(-largest) * (1.0 - 2.0**-50), math.exp(largest) * (1.0 + 2.0**-50)

    @property
    def hides_only_against_zero(self) -> bool:
        """Whether the zero-out claim is against the update 0 alone: then each update has a step of
        its own, and what two of them are rounded to may be further apart than they are."""
        return self.input_domain.against_zero(Adjacency.ZERO_OUT)

    def privacy(self, adjacency: Adjacency) -> Assumed:
        domain, choice = self.input_domain, self.choice()
        shift = domain.relative_sensitivity(adjacency) / self.noise_multiplier * (1.0 + _ROUNDING)
        if domain.records > 1:
            shift += self._step() * math.sqrt(self.layout().num_signs)  # two halves, rounded up
        against_zero = domain.against_zero(adjacency)
        # Tries are independent of the seed and purely private: both bounds grow by their loss.
        timing = self._timing_loss
        largest = choice.largest_loss(against_zero=against_zero) + timing
        return Assumed(
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
        tilted_seeds(1.01 * reach, rho)  # above what rounding adds
    except ParameterError:
        return False
    return True


def _acceptance(choice: TiltedSeeds, tilts: Tilts, scores: NDArray[np.int64]) -> Vector:
    return choice.acceptance(np.asarray(scores * tilts.step - tilts.log_cosh_sum))
