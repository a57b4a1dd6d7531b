"""The common base of mechanisms that round a noisy value to a grid and send it modulo 2^bits.

Such a mechanism defines its noise and its privacy, which is that of the real-valued noise because
rounding and the modulus are post-processing. Codes, decoding and the law follow from the noise.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
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
    MAX_STEPS,
    check_width,
    sample_packed_rows,
    sample_rounded,
)
from sottovoce.mechanisms.registry import Parameters

MAX_BITS = 20
# A fraction of the distance of neighbors that covers the rounding of the norm check, of the noise's
# width and of the subtraction of a box's middle. The sampler itself rounds nothing: see section 22
# of docs/explanation/privacy.md.
ROUNDING = 2.0**-26
# On the automatic grid a coordinate of any value wraps around with at most this probability.
WRAP_PROBABILITY = 1e-9
_MAX_TABLE_CELLS = 2**22
_CHUNK_CELLS = 2**20
# Rounding noise that is this many steps wide is like adding independent uniform noise (see `law`).
_FINE_STEPS = 64.0
_NEGLIGIBLE_TAIL = 2.0**-70
_HEADROOM = 1.0 + 2.0**-20  # more than rounding can add to the largest coordinate


def width(domain: Domain) -> float:
    """Return the length that `steps_per_radius` divides: a ball's radius or a box's width."""
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
    """Return the largest distance of a coordinate from its middle: radius or half a box's width."""
    return width(domain) / 2.0 if isinstance(domain, Box) else width(domain)


def check_bits(bits: Any) -> int:
    """Return the number of bits; raise ParameterError unless it is an integer from 2 to 20."""
    return parameter_rules.integer(
        "bits", bits, low=2, high=MAX_BITS, remedy="use 16 bits for a grid that costs no accuracy"
    )


def automatic_steps(domain: Domain, bits: Any, noise: Noise) -> float:
    """Return the `steps_per_radius` of the finest grid on which coordinates hardly ever wrap.

    With `bits` bits any coordinate plus noise leaves the grid with probability at most 1e-9. The
    grid is coarser if otherwise the noise would be too many steps wide to be sampled.
    """
    farthest = float(noise.quantile(np.array([WRAP_PROBABILITY / 2.0]))[0])
    # Values up to half a step beyond the last code still round to it.
    largest = 2.0 ** (check_bits(bits) - 1) - 0.5
    covering = largest * width(domain) / (reach(domain) + farthest)
    return min(covering, _most_steps(domain, noise))


def _most_steps(domain: Domain, noise: Noise) -> float:
    """Return the steps_per_radius of the finest grid on which the noise can be sampled."""
    return 0.999 * MAX_STEPS * width(domain) / noise.quantile_slope


def multiplier_ends(
    domain: Domain, given: Parameters, noise_at: Callable[[Domain, float], Noise]
) -> tuple[float, float]:
    """Return the least and the largest noise multiplier for calibration.

    A given `steps_per_radius` limits the largest one, since noise that is too many steps wide
    cannot be sampled. `noise_at` returns the noise for a domain and a multiplier.
    """
    least, most = 1e-4, 1e8
    if given["steps_per_radius"] == "auto":
        return least, most
    steps = parameter_rules.positive("steps_per_radius", given["steps_per_radius"])
    return least, min(most, _most_steps(domain, noise_at(domain, 1.0)) / steps)


class RoundedNoise(WithPrivatize):
    """A base class of mechanisms that round a noisy value to a grid and send it modulo 2^bits.

    Subclasses add parameters, `noise` and `privacy`.
    """

    __slots__ = ()

    input_domain: Domain
    bits: int
    steps_per_radius: float
    sampling: ClassVar[Sampling] = "exact"
    clips_on_device: ClassVar[bool] = True

    @property
    def noise(self) -> Noise:
        """The law of the noise that is added to a coordinate before rounding, in its unit."""
        raise NotImplementedError

    def check_grid(self) -> None:
        """Raise ParameterError unless the grid covers the domain and the noise can be sampled."""
        check_bits(self.bits)
        finest = 2.0 ** (self.bits - 1) * width(self.input_domain) / reach(self.input_domain)
        steps = parameter_rules.positive(
            "steps_per_radius",
            self.steps_per_radius,
            at_most=finest,
            remedy="a finer grid would wrap around even without noise; use more bits or 'auto'",
        )
        if steps < 1e-30:
            raise ParameterError(
                f"steps_per_radius must be at least 1e-30, got {steps!r}; use 'auto'"
            )
        check_width(self.noise, self.step)

    @property
    def noise_stddev(self) -> float:
        """The standard deviation of the noise before rounding, in the unit of the update."""
        return math.sqrt(self.noise.variance)

    @property
    def step(self) -> float:
        """The distance of two adjacent grid points, in the unit of the update."""
        return width(self.input_domain) / self.steps_per_radius

    @property
    def middle(self) -> float:
        """The value that code 0 decodes to: the middle of a box, 0 for a ball."""
        domain = self.input_domain
        return (domain.lower + domain.upper) / 2.0 if isinstance(domain, Box) else 0.0

    @property
    def levels(self) -> int:
        """The number of different codes."""
        return 1 << self.bits

    def code_format(self) -> LevelCodes:
        return LevelCodes(levels=self.levels)

    def encode(self, values: ArrayLike, keystream: Keystream) -> Codes:
        return self._sample(self._center(values), keystream)

    def _sample(self, centered: Vector, keystream: Keystream) -> Codes:
        codes = sample_rounded(centered, self.noise, self.step, keystream)
        codes &= self.levels - 1
        return codes.astype(self.code_format().dtype)

    def encode_packed(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Payloads:
        """Encode prepared rows on the CPU into a matrix of bytes with one row for each message."""
        found = None
        if prepared.batch is not None:
            found = sample_packed_rows(
                prepared.batch,
                self.middle,
                self.noise,
                self.step,
                _HEADROOM * reach(self.input_domain),
                self.bits,
                keystreams,
            )
        if found is not None:
            return found
        return pack_each(
            prepared, lambda i: self._sample(prepared.vector(i) - self.middle, keystreams[i])
        )

    def encode_on_device(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Tensor:
        """Encode prepared rows on their CUDA device, into the same bytes as on the CPU."""
        return _device_sampler(self)(prepared.rows, keystreams, prepared.scales)

    @property
    def points(self) -> Vector:
        return self.decode(np.arange(self.levels, dtype=np.uint32))

    def decode(self, codes: Codes) -> Vector:
        half = self.levels // 2
        residues = (level_indices(codes, self.levels) + half) % self.levels - half
        return np.asarray(self.middle + self.step * residues)

    def law(self, values: ArrayLike) -> FiniteLaw | MomentLaw:
        """Return the probability of every code; for large tables only mean and variance.

        A table is large if coordinates times codes exceed 2^22. If the noise is then at least 64
        steps wide and hardly ever wraps around, mean and variance are taken to be the value and
        noise variance + step^2/12. With phi the characteristic function of the noise and w_k =
        2 pi k/step, that mean is wrong by at most step sum_k |phi(w_k)|/(pi k), k > 0: by 1e-5
        steps for Laplace noise, by practically 0 for Gaussian noise, by about 1e-3 steps for noise
        whose density jumps. Otherwise they are summed over all cells, which is slow.
        """
        places = self._center(values) / self.step
        points = self.points
        if len(places) * self.levels <= _MAX_TABLE_CELLS:
            return FiniteLaw(points=points, table=self._table(places))
        if self._is_fine:
            spread = np.full(len(places), self.noise.variance + self.step**2 / 12.0)
            return MomentLaw(center=self.input_domain.check(values), spread=spread)
        rows = max(1, _CHUNK_CELLS // self.levels)
        laws = [
            FiniteLaw(points=points, table=self._table(places[start : start + rows]))
            for start in range(0, len(places), rows)
        ]
        return MomentLaw(
            center=np.concatenate([law.mean() for law in laws]),
            spread=np.concatenate([law.variance() for law in laws]),
        )

    @property
    def _is_fine(self) -> bool:
        automatic = automatic_steps(self.input_domain, self.bits, self.noise)
        return self.noise_stddev >= _FINE_STEPS * self.step and self.steps_per_radius <= automatic

    def _table(self, places: Vector) -> Vector:
        """Return P(code = j | place): the masses of the cells, summed over residue classes."""
        distinct, place_of = np.unique(places, return_inverse=True)
        if len(distinct) < len(places):  # audits repeat one value for many draws
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
        """The number of times that the noise may wrap around, in each direction."""
        farthest = float(self.noise.quantile(np.array([_NEGLIGIBLE_TAIL]))[0]) / self.step
        return max(1, math.ceil((farthest + self.levels) / self.levels))

    def _masses(self, edges: Vector) -> Vector:
        """Return P(noise between adjacent edges), as differences of the smaller tails."""
        tails = self.noise.tail(np.abs(edges))
        low, high = edges[:, :-1], edges[:, 1:]
        differences = np.abs(np.diff(tails, axis=1))
        astride = (low < 0.0) & (high > 0.0)
        return np.where(astride, 1.0 - tails[:, :-1] - tails[:, 1:], differences)

    def _center(self, values: ArrayLike) -> Vector:
        # Exact unless |middle| is below the box's width; then the error is below 2^-54 of the
        # width, which ROUNDING covers.
        return self.input_domain.check(values) - self.middle


@lru_cache(maxsize=16)
def _device_sampler(mechanism: RoundedNoise) -> Callable[..., Tensor]:
    from sottovoce.mechanisms.kernels.cuda.grid_noise import Clip, sample_rows

    domain, clip = mechanism.input_domain, Clip()
    if isinstance(domain, Box):
        clip = Clip(lower=domain.lower, upper=domain.upper, middle=mechanism.middle)
    return partial(
        sample_rows,
        clip=clip,
        noise=mechanism.noise,
        step=mechanism.step,
        farthest=_HEADROOM * reach(domain),
        bits=mechanism.bits,
    )
