"""Clip, privatise and pack an update where it lies: on a CUDA device.

The payload has the bytes that `privatise` gives for the same values on the CPU.
"""

from sottovoce.core.domains import Box, Domain, L2Ball
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms import packing
from sottovoce.mechanisms.design import hermite
from sottovoce.mechanisms.finite_channel import TableMechanism
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.interpolated_mvu import InterpolatedMvu
from sottovoce.mechanisms.kernels.cuda.grid_noise import Clip, sample_grid
from sottovoce.mechanisms.kernels.cuda.ladder import (
    sample_exponential_family,
    sample_table,
    with_codes,
)
from sottovoce.mechanisms.kernels.cuda.norm import check_finite, clipped, norm, projected
from sottovoce.mechanisms.kernels.cuda.one_bit import sample_rows
from sottovoce.mechanisms.kernels.cuda.packing import pack
from sottovoce.mechanisms.kernels.cuda.place import Tensor, checked
from sottovoce.mechanisms.kernels.cuda.seeded import (
    largest_of,
    placed_bytes,
    quantised,
    scores_on,
    scores_there,
)
from sottovoce.mechanisms.kernels.ladder import Affine
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.noise.chords import CELL_BITS, LEAST_BITS, chords, slack_of
from sottovoce.mechanisms.noise.rounded import settled_codes
from sottovoce.mechanisms.rounded_noise import RoundedNoise, reach
from sottovoce.mechanisms.seeded_sign import SeededSign
from sottovoce.mechanisms.seeded_step import SeededStep
from sottovoce.mechanisms.seeds import Scorer, Tilts

_SCORED_TOGETHER = 256  # candidates for one seed
_HEADROOM = 1.0 + 2.0**-20  # over what rounding adds to a coordinate's reach


def payload_of(mechanism: Mechanism, update: Tensor, keystream: Keystream) -> Tensor:
    """The payload (uint8) of an update, on the device of the update."""
    values = _vector(update, mechanism.input_domain)
    match mechanism:
        case GaussHermite(levels=2):
            given, scale = clipped(values, mechanism.input_domain)
            return sample_rows(given[None], mechanism.noise_stddev, [keystream], scale=scale)[0]
        case GaussHermite():
            return pack(_gauss_hermite(mechanism, values, keystream), _bits(mechanism.levels))
        case InterpolatedMvu():
            codes = _interpolated_mvu(mechanism, values, keystream)
            return pack(codes, mechanism.output_bits)
        case TableMechanism():
            return pack(_table(mechanism, values, keystream), _bits(mechanism.levels))
        case RoundedNoise():
            return pack(_rounded_noise(mechanism, values, keystream), mechanism.bits)
        case SeededSign() | SeededStep():
            return _seeded(mechanism, values, keystream)
    raise _missing(f"{type(mechanism).__name__} has no CUDA kernel")


def _gauss_hermite(mechanism: GaussHermite, values: Tensor, keystream: Keystream) -> Tensor:
    given, scale = clipped(values, mechanism.input_domain)
    design = hermite.gauss_hermite(mechanism.levels)
    return sample_exponential_family(
        given,
        Affine(scale=scale, divisor=mechanism.noise_stddev),
        design.points,
        design.weights,
        keystream,
        reach=mechanism.input_domain.radius / mechanism.noise_stddev,
        fisher_bound=design.fisher_bound,
    )


def _interpolated_mvu(mechanism: InterpolatedMvu, values: Tensor, keystream: Keystream) -> Tensor:
    family = mechanism.interpolated.family
    return sample_exponential_family(
        projected(values, mechanism.input_domain),
        Affine(scale=mechanism.tilt_per_unit),
        family.points,
        family.weights,
        keystream,
        reach=mechanism.tilt_per_unit * mechanism.input_domain.radius,
        fisher_bound=family.fisher_bound,
    )


def _table(mechanism: TableMechanism, values: Tensor, keystream: Keystream) -> Tensor:
    match mechanism.input_domain:
        case Box():
            check_finite(values)  # what lies outside counts as the nearer end
        case L2Ball() as ball:
            values = projected(values, ball)
        case domain:
            raise _no_projection(domain)
    return sample_table(values, mechanism.table, keystream, mechanism.affine)


def _rounded_noise(mechanism: RoundedNoise, values: Tensor, keystream: Keystream) -> Tensor:
    match mechanism.input_domain:
        case Box() as box:
            check_finite(values)
            clip = Clip(lower=box.lower, upper=box.upper, middle=mechanism.middle)
        case L2Ball() as ball:
            values, scale = clipped(values, ball)
            clip = Clip(scale=scale)
        case domain:
            raise _no_projection(domain)
    noise, step = mechanism.noise, mechanism.step
    table = chords(noise, step)
    slack = slack_of(noise, step, _HEADROOM * reach(mechanism.input_domain))
    codes, left = sample_grid(values, clip, table, CELL_BITS, LEAST_BITS, step, slack, keystream)
    settled = settled_codes(clip(left.values), noise, step, left.spelled, keystream)
    return with_codes(codes, left, settled) & (mechanism.levels - 1)


def _seeded(mechanism: SeededSign | SeededStep, values: Tensor, keystream: Keystream) -> Tensor:
    """Candidates are scored on the device, where the weights of long vectors are made as well."""
    scorer = Scorer(score=scores_there, together=_SCORED_TOGETHER)
    if isinstance(mechanism, SeededSign) and mechanism.layout().copies == 1:
        vector = projected(values, mechanism.input_domain)
        codes = mechanism.search(_tilts(mechanism, vector), keystream, scorer)
    else:
        placing = Scorer(score=scores_on(values.device), together=_SCORED_TOGETHER)
        own = mechanism.input_domain.project(values.double().cpu().numpy())
        if isinstance(mechanism, SeededSign):
            codes = mechanism.search(mechanism.tilts(own), keystream, placing)
        else:
            codes = mechanism.search(own, keystream, placing)
    return placed_bytes(packing.pack(codes, mechanism.code_format().bits), values.device)


def _tilts(mechanism: SeededSign, vector: Tensor) -> list[Tilts]:
    found = []
    for start, end in mechanism.layout().bounds:
        block = vector[start:end]
        grid = mechanism.grid(norm(block), largest_of(block))
        step = 0.0 if grid.vanishes else grid.step
        ratio = 0.0 if grid.vanishes else grid.per_unit / grid.step
        weights, total = quantised(block, ratio, step, nearest=grid.nearest)
        found.append(Tilts(weights=weights, step=step, log_cosh_sum=total))
    return found


def _bits(levels: int) -> int:
    return (levels - 1).bit_length()


def _vector(update: Tensor, domain: Domain) -> Tensor:
    """The update as kernels read it: a vector without gaps, apart from any gradient."""
    if update.shape != (domain.dimension,):
        remedy = "one call is for one contribution" if update.ndim == 1 else "flatten it first"
        raise DomainError(
            f"expected a vector of dimension {domain.dimension}, got shape "
            f"{tuple(update.shape)}; {remedy}"
        )
    values = update.detach().contiguous()
    checked(values, dimensions=1)
    return values


def _no_projection(domain: Domain) -> ParameterError:
    return _missing(f"{type(domain).__name__} has no projection on CUDA devices")


def _missing(what: str) -> ParameterError:
    return ParameterError(f"{what}: copy the update to the CPU with .cpu()")
