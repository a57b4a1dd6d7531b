"""Decoded values drawn directly from the mechanisms' laws, with torch's generator on any device.

For simulations and sweeps that send no messages. Values are float32 and the generator is not
cryptographic; their law is that of real decoded messages up to the rounding of float32. Where only
a sum of noise is needed and its law is known, the noise of many clients is drawn once.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import assert_never

import numpy as np
import torch
from torch import Tensor

from sottovoce.core.errors import ConfigError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.simulation.counted import Portion, PortionedBackend, UplinkAccumulator
from sottovoce.learning.clients import Rows
from sottovoce.mechanisms.coordinate_laws import (
    AddedNoise,
    CompressedRows,
    CoordinateLaw,
    Coordinatewise,
    InterpolatedTable,
    NoisySign,
    TiltedFamily,
    Unchanged,
)
from sottovoce.mechanisms.mechanism import FiniteLaw, LevelCodes, Mechanism
from sottovoce.mechanisms.noise.laws import ScalarGaussian, ScalarLaplace, ScalarStaircase
from sottovoce.mechanisms.registry import kind_of
from sottovoce.mechanisms.rotation import Rotation, block_size

# The most coordinates drawn at once: they fit a processor's cache, and keep a GPU busy.
_TOGETHER = {"cpu": 1 << 17, "cuda": 1 << 27}
# Index bits that one product of a rotation takes: a product with a 64 x 64 matrix of signs needs
# fewer passes over memory than sums of pairs.
_BITS_PER_PRODUCT = 6

_MAX_CELLS = 1 << 24  # The most cells in the table of one row's law.


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLaws:
    """The law of a mechanism that declares a finite law for each coordinate of a row."""

    mechanism: Mechanism


DrawnLaw = CoordinateLaw | RowLaws


def has_small_law(mechanism: Mechanism) -> bool:
    """Return whether a row's law is one table of code probabilities per coordinate.

    All tables together must have at most 2^24 cells.
    """
    code_format, domain = mechanism.code_format(), mechanism.input_domain
    if not isinstance(code_format, LevelCodes) or code_format.count is not None:
        return False
    if code_format.levels * domain.dimension > _MAX_CELLS:
        return False
    return isinstance(mechanism.law(domain.project(np.zeros(domain.dimension))), FiniteLaw)


def round_generator(
    randomness: SeededRandomness, run: str, number: int, device: torch.device
) -> torch.Generator:
    """Return the generator of a round, with a seed of its own so that runs can resume anywhere."""
    seed = int(randomness.generator("draws", run, number).integers(2**62))
    return torch.Generator(device=device).manual_seed(seed)


def draw_rotated_total(
    law: DrawnLaw,
    rows: Rows,
    weights: Tensor,
    generator: torch.Generator,
    rotation: "RowRotation | None",
) -> Tensor:
    """Draw the weighted sum of the decoded messages of `rows`, as one vector.

    With a `rotation` the rows are rotated before noise is added, and the sum is rotated back.
    """
    if rotation is None or law == CompressedRows(bits=32):
        return draw_total(law, rows, weights, generator)
    total, start = torch.zeros((), device=weights.device), 0
    for block in rows.blocks(rows_per_batch(rotation.dimension, weights.device)):
        decoded = draw_rows(law, rotation.forward(block.float()), generator)
        total = total + weights[start : start + len(block)] @ decoded
        start += len(block)
    # A rotation is linear, so the sum is rotated back once.
    return rotation.inverse(total[None])[0]


def draw_total(law: DrawnLaw, rows: Rows, weights: Tensor, generator: torch.Generator) -> Tensor:
    """Draw the weighted sum of the decoded messages of `rows`, as one vector."""
    match law:
        case Unchanged() | CompressedRows(bits=32):
            return rows.total(weights)
        case AddedNoise(noise=ScalarGaussian(stddev=stddev)):
            exact = rows.total(weights)
            scale: Tensor = stddev * torch.linalg.vector_norm(weights)
            return exact + scale * _draw_normal(exact.shape, exact, generator)
        case _:
            return _sum_draws(law, rows, weights, generator)


def draw_rows(law: DrawnLaw, values: Tensor, generator: torch.Generator) -> Tensor:
    """Draw for each row of `values` what the server would decode of its message."""
    match law:
        case Unchanged() | CompressedRows(bits=32):
            return values
        case CompressedRows(bits=bits):
            return _compress(values, bits, generator)
        case AddedNoise(noise=noise):
            return values + draw_noise(noise, values, generator)
        case NoisySign(stddev=stddev, magnitude=magnitude):
            positive: Tensor = torch.special.ndtr(values / stddev)
            signs: Tensor = 2.0 * (_draw_uniform(values, generator) < positive) - 1.0
            return magnitude * signs
        case TiltedFamily():
            return _draw_tilted(law, values, generator)
        case InterpolatedTable():
            return _draw_from_table(law, values, generator)
        case RowLaws(mechanism=mechanism):
            return torch.stack([_draw_by_law(mechanism, row, generator) for row in values])
        case _:
            assert_never(law)


def rows_per_batch(dimension: int, device: torch.device) -> int:
    """Return how many rows of this dimension are drawn at once on a device, at least 1."""
    return max(1, _TOGETHER.get(device.type, _TOGETHER["cpu"]) // dimension)


def _sum_draws(law: DrawnLaw, rows: Rows, weights: Tensor, generator: torch.Generator) -> Tensor:
    total, start = torch.zeros((), device=weights.device), 0
    dimension = next(rows.blocks(1)).shape[1]
    for block in rows.blocks(rows_per_batch(dimension, weights.device)):
        part = weights[start : start + len(block)]
        total = total + part @ draw_rows(law, block.float(), generator)
        start += len(block)
    return total


def _compress(values: Tensor, bits: int, generator: torch.Generator) -> Tensor:
    """Return what `CompressedUpdate` decodes of rows that it sends with 1, 2 or 4 bits."""
    if bits == 1:
        totals = values.abs().sum(dim=1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
        scales = values.square().sum(dim=1, keepdim=True) / totals
        return torch.where(values >= 0.0, scales, -scales)
    top = (1 << bits) - 1
    largest = values.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
    places = (values / largest + 1.0) * (top / 2.0)
    rounded = torch.floor(places + _draw_uniform(values, generator)).clamp(0, top)
    return (rounded * (2.0 / top) - 1.0) * largest


def _draw_tilted(law: TiltedFamily, values: Tensor, generator: torch.Generator) -> Tensor:
    points = [float(y) * law.tilt_per_unit for y in law.points]
    letters, weights = [float(a) for a in law.letters], [float(w) for w in law.weights]
    if len(points) == 2:
        logits = (points[1] - points[0]) * values + math.log(weights[1] / weights[0])
        second = _draw_uniform(values, generator) < torch.sigmoid(logits)
        return letters[0] + (letters[1] - letters[0]) * second
    reach = torch.maximum(values * max(points), values * min(points))  # The largest exponent.
    cumulative, masses = torch.zeros_like(values), []
    for point, weight in zip(points, weights, strict=True):
        cumulative = cumulative + weight * torch.exp(point * values - reach)
        masses.append(cumulative)
    return _first_letter_above(_draw_uniform(values, generator) * cumulative, masses, letters)


def _draw_from_table(law: InterpolatedTable, values: Tensor, generator: torch.Generator) -> Tensor:
    knots = torch.tensor(law.knots, dtype=values.dtype, device=values.device)
    cumulative = torch.tensor(law.rows.cumsum(axis=1), dtype=values.dtype, device=values.device)
    positions = ((values - law.low) / (law.high - law.low)).clamp(0.0, 1.0)
    if len(knots) == 2:  # All values lie between the same two knots.
        masses = [low + (high - low) * positions for low, high in cumulative.T.tolist()]
        return _first_letter_above(
            _draw_uniform(values, generator), masses, [float(a) for a in law.letters]
        )
    left = (torch.searchsorted(knots, positions, right=True) - 1).clamp(0, len(knots) - 2)
    share = (positions - knots[left]) / (knots[left + 1] - knots[left])
    masses = [torch.lerp(column[left], column[left + 1], share) for column in cumulative.T]
    return _first_letter_above(
        _draw_uniform(values, generator), masses, [float(a) for a in law.letters]
    )


def _draw_by_law(mechanism: Mechanism, values: Tensor, generator: torch.Generator) -> Tensor:
    law = mechanism.law(mechanism.input_domain.project(values.double().cpu().numpy()))
    assert isinstance(law, FiniteLaw), "has_small_law() was checked"
    cumulative = torch.tensor(law.table.cumsum(axis=1), dtype=values.dtype, device=values.device)
    uniform = _draw_uniform(values, generator) * cumulative[:, -1]
    letters = torch.tensor(law.points, dtype=values.dtype, device=values.device)
    return letters[(uniform[:, None] >= cumulative[:, :-1]).sum(dim=1)]


def _first_letter_above(uniform: Tensor, masses: list[Tensor], letters: list[float]) -> Tensor:
    """Return the first letter whose cumulative mass is above the uniform number."""
    found = torch.full_like(uniform, letters[0])
    for mass, below, above in zip(masses[:-1], letters[:-1], letters[1:], strict=True):
        found = found + (above - below) * (uniform >= mass)
    return found


def draw_noise(
    noise: ScalarGaussian | ScalarLaplace | ScalarStaircase,
    like: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Draw independent noise for every entry of `like`, with its shape and precision."""
    match noise:
        case ScalarGaussian(stddev=stddev):
            return stddev * _draw_normal(like.shape, like, generator)
        case ScalarLaplace(scale=scale):
            # 1 - u lies in (0, 1], so the logarithm is finite.
            magnitude = -torch.log(1.0 - _draw_uniform(like, generator))
            return scale * magnitude * torch.where(_draw_uniform(like, generator) < 0.5, -1.0, 1.0)
        case ScalarStaircase():
            return _draw_staircase(noise, like, generator)
        case _:
            assert_never(noise)


def _draw_staircase(noise: ScalarStaircase, like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw sign, whole steps and position in the step independently (Geng and Viswanath 2016)."""
    decay = math.exp(-noise.epsilon)
    whole = torch.floor(torch.log1p(-_draw_uniform(like, generator)) / -noise.epsilon)
    high = noise.nu / (noise.nu + decay * (1.0 - noise.nu))
    place = _draw_uniform(like, generator)
    upper = _draw_uniform(like, generator) < high
    within = torch.where(upper, noise.nu * place, noise.nu + (1.0 - noise.nu) * place)
    sign = torch.where(_draw_uniform(like, generator) < 0.5, -1.0, 1.0)
    return noise.step * sign * (whole + within)


def _draw_uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(like.shape, generator=generator, device=like.device, dtype=like.dtype)


def _draw_normal(shape: torch.Size, like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)


class RowRotation:
    """The rotation of `mechanisms.rotation` applied to float32 rows on their device."""

    def __init__(self, rotation: Rotation, device: torch.device) -> None:
        self.dimension = rotation.dimension
        self._size = block_size(rotation.dimension)
        self._passes = [
            (start, torch.as_tensor(signs, dtype=torch.float32, device=device))
            for start, signs in rotation.passes()
        ]

    def forward(self, rows: Tensor) -> Tensor:
        """Return the rotated rows."""
        rows = rows.clone()
        for start, signs in self._passes:
            block = rows[:, start : start + self._size]
            block.copy_(_hadamard(block * signs))
        return rows

    def inverse(self, rows: Tensor) -> Tensor:
        """Return the rows rotated back."""
        rows = rows.clone()
        for start, signs in reversed(self._passes):
            block = rows[:, start : start + self._size]
            block.copy_(_hadamard(block) * signs)
        return rows


def _hadamard(rows: Tensor) -> Tensor:
    """Return H v for each row v, whose length must be a power of two.

    H is a Kronecker product of smaller Hadamard matrices. Each is one matrix product over some bits
    of the index, which also moves these bits to the front; after the last product all bits are in
    order.
    """
    count, size = rows.shape
    left = size.bit_length() - 1
    while left:
        bits = min(left, _BITS_PER_PRODUCT)
        last = rows.reshape(count, -1, 1 << bits).transpose(1, 2)
        rows = (_sylvester(bits, rows.device) @ last).reshape(count, size)
        left -= bits
    return rows / math.sqrt(size)


@lru_cache(maxsize=32)
def _sylvester(bits: int, device: torch.device) -> Tensor:
    """Return the 2^bits by 2^bits Hadamard matrix of signs."""
    matrix = torch.ones(1, 1, device=device)
    for _ in range(bits):
        matrix = torch.cat(
            [torch.cat([matrix, matrix], dim=1), torch.cat([matrix, -matrix], dim=1)]
        )
    return matrix


def law_of(mechanism: Mechanism) -> DrawnLaw:
    """Return the declared law of a coordinate, or else the mechanism's finite law of rows.

    Raises ConfigError if the mechanism has neither.
    """
    if isinstance(mechanism, Coordinatewise):
        return mechanism.coordinate_law()
    if has_small_law(mechanism):
        return RowLaws(mechanism=mechanism)
    raise ConfigError(
        f"mechanism '{kind_of(mechanism)}' declares no law of a coordinate, so its messages cannot "
        "be drawn without encoding them; set runtime.messages = 'packed'"
    )


class DrawnMessages(PortionedBackend):
    """The backend that draws decoded values; it encodes and sends no messages."""

    def begin(self, number: int) -> None:
        device = self.task.device
        self._generator = round_generator(self.randomness, self.run, number, device)
        rotation = self.rotation(number)
        self._rotation = None if rotation is None else RowRotation(rotation, self.task.device)

    def add(self, gathering: UplinkAccumulator, portion: Portion, number: int, uplink: int) -> None:  # noqa: ARG002
        law = law_of(portion.mechanism)
        gathering.weight += portion.weight
        rows, weights, generator = portion.rows, portion.weights, self._generator
        if not self.algorithm.gathers:
            gathering.total += draw_rotated_total(law, rows, weights, generator, self._rotation)
            return
        together = rows_per_batch(self.dimension, self.task.device)
        for number_of_block, block in enumerate(rows.blocks(together)):
            decoded = self._rotate_back(self._draw(law, block.float()))
            self._add_rows(gathering, portion, number_of_block * together, decoded)

    def _draw(self, law: DrawnLaw, block: Tensor) -> Tensor:
        values = block if self._rotation is None else self._rotation.forward(block)
        return draw_rows(law, values, self._generator)

    def _rotate_back(self, rows: Tensor) -> Tensor:
        return rows if self._rotation is None else self._rotation.inverse(rows)

    def _add_rows(
        self, gathering: UplinkAccumulator, portion: Portion, start: int, decoded: Tensor
    ) -> None:
        weights = portion.weights[start : start + len(decoded)]
        gathering.total += weights @ decoded
        gathering.rows += list(decoded.to("cpu", torch.float64).numpy())
        own = portion.clients[start : start + len(decoded)]
        gathering.clients += [part.client for part in own]
        gathering.weights += weights.tolist()
