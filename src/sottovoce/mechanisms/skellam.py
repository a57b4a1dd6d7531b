"""The Skellam mechanism: integers with Skellam noise on a grid, modulo 2^bits."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Domain, L1Ball, L2Ball, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Keystream, open_uniforms
from sottovoce.mechanisms.encoding import WithPrivatize
from sottovoce.mechanisms.mechanism import Codes, FiniteLaw, LevelCodes, Sampling, level_indices
from sottovoce.mechanisms.registry import CalibratedParameter, Parameters, register
from sottovoce.privacy.events import RenyiCurve

MAX_BITS = 16
# The bound holds at integer orders: all up to 32, then in steps of 15% up to a million.
_ORDERS = tuple(
    sorted({*range(2, 33), *(math.ceil(32.0 * 1.15**k) for k in range(1, 75))}),
)
# The probability beyond this many standard deviations is too small for float64.
_TAIL = 39.0


def _automatic_steps(domain: Domain, given: Parameters) -> float:
    """Return the finest grid on which radius plus six stddevs does not wrap around."""
    ball = _require_ball(domain)
    noise_multiplier = parameter_rules.noise_multiplier(given["noise_multiplier"])
    bits = _check_bits(given["bits"])
    return 2.0 ** (bits - 1) / (1.0 + 6.0 * noise_multiplier / ball.records)


def _require_ball(domain: Domain) -> L1Ball | L2Ball:
    if not isinstance(domain, L1Ball | L2Ball):
        raise ParameterError(
            f"input_domain must be an L1Ball or an L2Ball, got {type(domain).__name__}; "
            "for a Box use 'laplace' or 'cldp'"
        )
    return domain


def _check_bits(bits: Any) -> int:
    return parameter_rules.integer(
        "bits", bits, low=2, high=MAX_BITS, remedy="use 16 bits to make wrapping around negligible"
    )


@register(
    "skellam",
    summary="integers with Skellam noise modulo 2^bits, best with 16 (simulation only)",
    examples=[
        {"noise_multiplier": 2.0, "bits": 8, "steps_per_radius": 8.0},
        {"noise_multiplier": 1.0, "bits": 4, "steps_per_radius": 3.5},
    ],
    example_domain=L2Ball(dimension=8, radius=1.0),
    further_domains=[L1Ball(dimension=8, radius=1.0)],
    calibrated_parameter=CalibratedParameter(parameter="noise_multiplier", more_private="larger"),
    automatic={"steps_per_radius": _automatic_steps},
    settings=[{"bits": bits, "steps_per_radius": "auto"} for bits in (8, 12, MAX_BITS)],
    coordinatewise=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Skellam(WithPrivatize):
    """Integers with Skellam noise modulo 2^bits, which secure aggregation could add up.

        code = floor(x/step + U) + Skellam(V)  mod 2^bits

    with step = radius/steps_per_radius and U uniform on [0, 1). The noise is the difference of two
    Poisson variables of mean V/2, so its variance is V = (sigma/step)^2 with
    sigma = noise_multiplier * radius / records. A code decodes to step times its residue in
    [-2^(bits-1), 2^(bits-1)). Rounding with U is unbiased. `law` is exact and includes the effect
    of wrapping around: P(j | x) = (1 - f) w(j - k) + f w(j - k - 1) for x/step = k + f and the
    wrapped Skellam pmf w.

    Privacy: for an integer shift k and an integer order a, summed over coordinates,

        D_a <= a k^2/(2V) + min( ((2a-1) k^2 + 6 |k|)/(4 V^2), 3 |k|/(2V) ).

    Neighbors x, x' are rounded with the same U, so their laws are mixtures over U of integer
    shifts, each within 1 of the real shift. `privacy` takes the smaller of the largest divergence
    (quasi-convexity) and the mean of e^((a-1) D_a) (convexity) over U; section 7 of
    docs/explanation/privacy.md has the proof. Nothing is rejected, so the rounding stays unbiased.
    The modulus is post-processing. The tests check the bound against exact sums by mpmath for V
    from .05 to 40, orders up to 64 and shifts up to 5, in float64 for V up to 1e6 (fine grids),
    and the claim against the exact law.

    Noise is drawn in float64: for simulations only.

    Cost: `bits` bits per coordinate; 16 make wrapping around negligible.

    Reference: Agarwal, Kairouz and Liu 2021 (the bound for integer shifts).

    Attributes:
        input_domain: The L1 ball or L2 ball that updates are clipped to.
        noise_multiplier: The noise standard deviation in units of radius/records.
        bits: The number of bits per coordinate, from 2 to 16.
        steps_per_radius: The number of grid steps in the radius. In specs and commands it may be
            "auto": the finest grid on which the radius plus six standard deviations does not wrap
            around.
    """

    input_domain: L1Ball | L2Ball
    noise_multiplier: float
    bits: int
    steps_per_radius: float
    sampling: ClassVar[Sampling] = "float"

    def __post_init__(self) -> None:
        _require_ball(self.input_domain)
        parameter_rules.noise_multiplier(self.noise_multiplier)
        _check_bits(self.bits)
        parameter_rules.positive(
            "steps_per_radius",
            self.steps_per_radius,
            at_most=2.0 ** (self.bits - 1),
            remedy="a finer grid would wrap around even without noise; use more bits or 'auto'",
        )
        if self.steps_per_radius < 1e-9:
            raise ParameterError(
                f"steps_per_radius must be at least 1e-9, got {self.steps_per_radius!r}; use 'auto'"
            )

    @property
    def noise_stddev(self) -> float:
        """The noise standard deviation sigma of each coordinate, in the unit of the update."""
        return self.noise_multiplier * self.input_domain.radius / self.input_domain.records

    @property
    def step(self) -> float:
        """The distance of two adjacent grid points, in the unit of the update."""
        return self.input_domain.radius / self.steps_per_radius

    @property
    def grid_variance(self) -> float:
        """The variance V of the noise of a coordinate, in squared grid steps."""
        return (self.noise_multiplier * self.steps_per_radius / self.input_domain.records) ** 2

    def code_format(self) -> LevelCodes:
        return LevelCodes(levels=2**self.bits)

    def encode(
        self, values: ArrayLike, keystream: Keystream
    ) -> NDArray[np.uint8] | NDArray[np.uint16]:
        scaled = self.input_domain.check(values) / self.step
        uniforms = open_uniforms(keystream.words(2 * len(scaled)))
        rounded = np.floor(scaled + uniforms[: len(scaled)]).astype(np.int64)
        cumulative = np.cumsum(wrapped_skellam(self.grid_variance, self.bits))
        noise = np.searchsorted(cumulative, uniforms[len(scaled) :] * cumulative[-1], side="right")
        codes = np.asarray((rounded + noise) % 2**self.bits)
        return codes.astype(np.uint8) if self.bits <= 8 else codes.astype(np.uint16)

    @property
    def points(self) -> Vector:
        return self.decode(np.arange(2**self.bits, dtype=np.uint16))

    def decode(self, codes: Codes) -> Vector:
        half = 2.0 ** (self.bits - 1)
        values = level_indices(codes, 1 << self.bits).astype(np.float64)
        centered = np.mod(values + half, 2.0 * half) - half
        return np.asarray(self.step * centered)

    def law(self, values: ArrayLike) -> FiniteLaw:
        # Equal coordinates share one row: audits repeat one value for many draws.
        scaled, row_of = np.unique(self.input_domain.check(values) / self.step, return_inverse=True)
        below = np.floor(scaled)
        above = (scaled - below)[:, None]
        levels = np.arange(2**self.bits)
        noise = wrapped_skellam(self.grid_variance, self.bits)
        residues = (levels[None, :] - below.astype(np.int64)[:, None]) % len(levels)
        table = (1.0 - above) * noise[residues] + above * noise[(residues - 1) % len(levels)]
        return FiniteLaw(points=self.points, table=table[row_of])

    def privacy(self, adjacency: Adjacency) -> RenyiCurve:
        ball = self.input_domain
        shift = ball.relative_sensitivity(adjacency) * self.steps_per_radius / ball.records
        shift *= 1.0 + 2.0**-26  # the rounding of the norm check and of the division by `step`
        l1_shift = shift if isinstance(ball, L1Ball) else math.sqrt(ball.dimension) * shift
        bounds = (
            rounded_divergence(order, self.grid_variance, ball.dimension, shift, l1_shift)
            for order in _ORDERS
        )
        return RenyiCurve(
            orders=tuple(map(float, _ORDERS)), divergences=tuple(bounds), adjacency=adjacency
        )


def skellam_divergence(order: int, variance: float, l2_shift: float, l1_shift: float) -> float:
    """Return a bound on the Renyi divergence of Skellam noise under a shift by integers.

    Args:
        order: The order of the divergence, an integer above 1.
        variance: The variance of the noise of each coordinate, in squared grid steps.
        l2_shift: The L2 norm of the shift, in grid steps, or a bound on it.
        l1_shift: The L1 norm of the shift, in grid steps, or a bound on it.

    Returns:
        The bound for the whole vector.
    """
    square = l2_shift * l2_shift
    gaussian = order * square / (2.0 * variance)
    fine = ((2.0 * order - 1.0) * square + 6.0 * l1_shift) / (4.0 * variance * variance)
    return gaussian + min(fine, 3.0 * l1_shift / (2.0 * variance))


def rounded_divergence(
    order: int, variance: float, dimension: int, l2_shift: float, l1_shift: float
) -> float:
    """Return a bound on the Renyi divergence D_a for a real shift that is rounded at random.

    The arguments are those of `skellam_divergence`, with a = `order`, the shift delta and d =
    `dimension`. The smaller of two bounds is returned. For every random offset U of the rounding,
    the rounded shift n has |n_i| < |delta_i| + 1, which bounds D_a. On average over U, with c the
    bound on D_a at shift 1 and w = (a - 1) c,

        D_a <= c (|delta|_2^2 + min(d/4, |delta|_1)) + c w (4 |delta|_2^2 + 4 |delta|_1 + d)/8.
    """
    square = l2_shift * l2_shift
    widest = l2_shift + math.sqrt(dimension)
    widest_l1 = min(l1_shift + dimension, math.sqrt(dimension) * widest, widest * widest)
    always = skellam_divergence(order, variance, widest, widest_l1)
    unit = skellam_divergence(order, variance, 1.0, 1.0)
    on_average = unit * (square + min(dimension / 4.0, l1_shift))
    excess = unit * unit * (order - 1.0) * (4.0 * square + 4.0 * l1_shift + dimension) / 8.0
    return min(always, on_average + excess)


@lru_cache(maxsize=64)
def wrapped_skellam(variance: float, bits: int) -> Vector:
    """Return P(noise = j modulo 2^bits), j = 0 ... 2^bits - 1, for Skellam noise of this variance.

    P(n) = e^-V I_n(V) is summed over the residue class. If the noise is wide compared with the
    modulus, the same is computed from the characteristic function exp(-V (1 - cos t)).
    """
    from scipy.special import ive

    size = 2**bits
    stddev = math.sqrt(variance)
    if stddev > size / 4.0:
        angles = 2.0 * np.pi * np.arange(size) / size
        wave = np.fft.fft(np.exp(-2.0 * variance * np.sin(angles / 2.0) ** 2)).real
        pmf = np.maximum(wave, 0.0)
    else:
        wraps = math.ceil((_TAIL * stddev + 40.0) / size)
        shifts = np.arange(-wraps * size, (wraps + 1) * size)
        pmf = ive(np.abs(shifts).astype(np.float64), variance).reshape(-1, size).sum(axis=0)
    pmf = pmf / pmf.sum()
    pmf.flags.writeable = False
    return np.asarray(pmf)
