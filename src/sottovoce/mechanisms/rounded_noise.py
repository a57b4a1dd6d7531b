"""What the mechanisms share that round a noisy value to a grid and send it modulo 2^bits.

Such a mechanism names its noise and its privacy, which is that of the real-valued noise: rounding
and the modulus come after. Codes, decoding and the law follow from the noise.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Box, Domain, L1Ball, L2Ball, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.encoding import Payloads, Prepared, Tensor, WithPrivatize, pack_each
from sottovoce.mechanisms.mechanism import (
    Codes,
    FiniteLaw,
    LevelCodes,
    MomentLaw,
    Sampling,
    level_indices,
)
from sottovoce.mechanisms.noise.laws import Noise
from sottovoce.mechanisms.noise.rounded import (
    CELL_BITS,
    LEAST_BITS,
    MAX_STEPS,
    check_width,
    chords,
    sample_rounded,
    settled_codes,
    slack_of,
)
from sottovoce.mechanisms.registry import Parameters

MAX_BITS = 20
# A fraction of the distance of neighbours that covers what the norm check, the noise's width and
# the subtraction of a box's middle round; the sampler itself rounds nothing (docs/privacy.md, 22).
ROUNDING = 2.0**-26
# On the automatic grid a coordinate wraps around with at most this probability, whatever its value.
WRAP_PROBABILITY = 1e-9
_MAX_TABLE_CELLS = 2**22
_CHUNK_CELLS = 2**20
# Noise this many steps wide is rounded as if by independent uniform noise (see `law`).
_FINE_STEPS = 64.0
_NEXT_TO_NOTHING = 2.0**-70
_HEADROOM = 1.0 + 2.0**-20  # over what rounding adds to a coordinate's reach


def width(domain: Domain) -> float:
    """What `steps_per_radius` divides: a ball's radius, or a box's whole width."""
    match domain:
        case L1Ball() | L2Ball():
            return domain.radius
        case Box():
            return domain.upper - domain.lower
        case _:
            raise ParameterError(
                f"input_domain must be an L1Ball, an L2Ball or a Box, got {type(domain).__name__}"
            )


def reach(domain: Domain) -> float:
    """How far a coordinate can lie from the middle of its interval."""
    return width(domain) / 2.0 if isinstance(domain, Box) else width(domain)


def check_bits(bits: Any) -> int:
    return parameter_rules.integer(
        "bits", bits, low=2, high=MAX_BITS, remedy="16 bits make a grid that costs nothing"
    )


def automatic_steps(domain: Domain, bits: Any, noise: Noise) -> float:
    """The finest grid on which a full value plus noise wraps around once in 10^9 times at most.

    And on which the noise is not too many steps wide to be drawn.
    """
    farthest = float(noise.quantile(np.array([WRAP_PROBABILITY / 2.0]))[0])
    room = 2.0 ** (check_bits(bits) - 1) - 0.5  # the codes' range, as far as it rounds into it
    roomy = room * width(domain) / (reach(domain) + farthest)
    return min(roomy, _most_steps(domain, noise))


def _most_steps(domain: Domain, noise: Noise) -> float:
    """The steps_per_radius of the finest grid that noise can be drawn on."""
    return 0.999 * MAX_STEPS * width(domain) / noise.quantile_slope


def multiplier_ends(
    domain: Domain, given: Parameters, noise_at: Callable[[Domain, float], Noise]
) -> tuple[float, float]:
    """Where calibration looks for a noise multiplier: no noise that a given grid refuses."""
    least, most = 1e-4, 1e8
    if given["steps_per_radius"] == "auto":
        return least, most
    steps = parameter_rules.positive("steps_per_radius", given["steps_per_radius"])
    return least, min(most, _most_steps(domain, noise_at(domain, 1.0)) / steps)


class RoundedNoise(WithPrivatize):
    """Base of the mechanisms: they add parameters, `noise` and `privacy`."""

    __slots__ = ()

    input_domain: Domain
    bits: int
    steps_per_radius: float
    sampling: ClassVar[Sampling] = "exact"

    @property
    def noise(self) -> Noise:
        """The real-valued noise of a coordinate."""
        raise NotImplementedError

    def check_grid(self) -> None:
        """A grid whose range holds the domain, and whose steps are not too small for the noise."""
        check_bits(self.bits)
        finest = 2.0 ** (self.bits - 1) * width(self.input_domain) / reach(self.input_domain)
        steps = parameter_rules.positive(
            "steps_per_radius",
            self.steps_per_radius,
            at_most=finest,
            remedy="a finer grid would wrap around without any noise; use more bits or 'auto'",
        )
        if steps < 1e-30:
            raise ParameterError(f"steps_per_radius must be at least 1e-30, got {steps!r}")
        check_width(self.noise, self.step)

    @property
    def noise_stddev(self) -> float:
        return math.sqrt(self.noise.variance)

    @property
    def step(self) -> float:
        """Distance of two neighbouring grid points."""
        return width(self.input_domain) / self.steps_per_radius

    @property
    def middle(self) -> float:
        """The value that code 0 stands for."""
        domain = self.input_domain
        return (domain.lower + domain.upper) / 2.0 if isinstance(domain, Box) else 0.0

    @property
    def levels(self) -> int:
        return 1 << self.bits

    def code_format(self) -> LevelCodes:
        return LevelCodes(levels=self.levels)

    def encode(self, values: ArrayLike, keystream: Keystream) -> Codes:
        return self._sample(self._centred(values), keystream)

    def _sample(self, centred: Vector, keystream: Keystream) -> Codes:
        codes = sample_rounded(centred, self.noise, self.step, keystream)
        codes &= self.levels - 1
        return codes.astype(self.code_format().dtype)

    def encode_packed(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Payloads:
        """Return packed codes of rows that were checked."""
        return pack_each(
            prepared, lambda i: self._sample(prepared.vector(i) - self.middle, keystreams[i])
        )

    def encode_on_device(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Tensor:
        """Return the same bytes on a CUDA device."""
        from sottovoce.mechanisms.kernels.cuda import grid_noise, ladder, packing, rows

        noise, step, domain = self.noise, self.step, self.input_domain
        table, slack = chords(noise, step), slack_of(noise, step, _HEADROOM * reach(domain))

        def payload(i: int) -> Tensor:
            if isinstance(domain, Box):
                clip = grid_noise.Clip(lower=domain.lower, upper=domain.upper, middle=self.middle)
            else:
                clip = grid_noise.Clip(scale=prepared.scale(i))
            codes, left = grid_noise.sample_grid(
                prepared.rows[i], clip, table, CELL_BITS, LEAST_BITS, step, slack, keystreams[i]
            )
            settled = settled_codes(clip(left.values), noise, step, left.spelled, keystreams[i])
            found = ladder.with_codes(codes, left, settled) & (self.levels - 1)
            return packing.pack(found, self.bits)

        return rows.stacked(payload, len(prepared))

    @property
    def points(self) -> Vector:
        return self.decode(np.arange(self.levels, dtype=np.uint32))

    def decode(self, codes: Codes) -> Vector:
        half = self.levels // 2
        residues = (level_indices(codes, self.levels) + half) % self.levels - half
        return np.asarray(self.middle + self.step * residues)

    def law(self, values: ArrayLike) -> FiniteLaw | MomentLaw:
        """Every cell's probability; for large tables, mean and variance alone.

        Where noise is 64 steps wide or wider and hardly ever wraps around, those are taken to be
        the value and noise variance + step^2/12. With phi the noise's characteristic function and
        w_k = 2 pi k/step, the mean is then off by at most step sum_k |phi(w_k)|/(pi k), k > 0: by
        1e-5 steps for Laplace noise, by nothing for Gaussian noise, by some 1e-3 steps for noise
        whose density jumps. Otherwise they are added up over all cells, which takes its time.
        """
        places = self._centred(values) / self.step
        points = self.points
        if len(places) * self.levels <= _MAX_TABLE_CELLS:
            return FiniteLaw(points=points, table=self._table(places))
        if self._is_fine:
            spread = np.full(len(places), self.noise.variance + self.step**2 / 12.0)
            return MomentLaw(centre=self.input_domain.check(values), spread=spread)
        rows = max(1, _CHUNK_CELLS // self.levels)
        laws = [
            FiniteLaw(points=points, table=self._table(places[start : start + rows]))
            for start in range(0, len(places), rows)
        ]
        return MomentLaw(
            centre=np.concatenate([law.mean() for law in laws]),
            spread=np.concatenate([law.variance() for law in laws]),
        )

    @property
    def _is_fine(self) -> bool:
        automatic = automatic_steps(self.input_domain, self.bits, self.noise)
        return self.noise_stddev >= _FINE_STEPS * self.step and self.steps_per_radius <= automatic

    def _table(self, places: Vector) -> Vector:
        """P(code = j | place), the cells' masses added up over residue classes."""
        distinct, place_of = np.unique(places, return_inverse=True)
        if len(distinct) < len(places):  # as where an audit lays many draws side by side
            return np.asarray(self._table(distinct)[place_of])
        half, turns = self.levels // 2, self._turns
        table = np.zeros((len(places), self.levels))
        together = max(1, _CHUNK_CELLS // table.size)
        for turn in range(-turns, turns + 1, together):
            count = min(together, turns + 1 - turn)
            first = turn * self.levels - half
            edges = np.arange(first, first + count * self.levels + 1) - 0.5 - places[:, None]
            masses = self._masses(edges * self.step)
            table += masses.reshape(len(places), count, self.levels).sum(axis=1)
        return np.roll(table, -half, axis=1)

    @property
    def _turns(self) -> int:
        """How often noise may go round, either way."""
        farthest = float(self.noise.quantile(np.array([_NEXT_TO_NOTHING]))[0]) / self.step
        return max(1, math.ceil((farthest + self.levels) / self.levels))

    def _masses(self, edges: Vector) -> Vector:
        """P(noise between neighbouring edges): differences of the tails that are the smaller."""
        tails = self.noise.tail(np.abs(edges))
        low, high = edges[:, :-1], edges[:, 1:]
        differences = np.abs(np.diff(tails, axis=1))
        astride = (low < 0.0) & (high > 0.0)
        return np.where(astride, 1.0 - tails[:, :-1] - tails[:, 1:], differences)

    def _centred(self, values: ArrayLike) -> Vector:
        # Exact unless |middle| is below the box's width; then off by 2^-54 of it (ROUNDING).
        return self.input_domain.check(values) - self.middle
