"""Decoded values drawn from the laws of coordinates, with torch's generator on any device.

For simulations that send nothing: float32, not cryptographic, and the same law as what is sent up
to float32's rounding. Noise of many clients that is only added up is drawn once where its sum has a
known law.

Decoded values drawn from the mechanisms' laws with torch's generator: for sweeps.
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
from sottovoce.federated.simulation.counted import CountedClients, Gathering, Portion
from sottovoce.learning.clients import Rows
from sottovoce.mechanisms.coordinate_laws import (
    AddedNoise,
    CoordinateLaw,
    Coordinatewise,
    InterpolatedTable,
    NoisySign,
    TiltedFamily,
    Unchanged,
)
from sottovoce.mechanisms.mechanism import FiniteLaw, LevelCodes, Mechanism
from sottovoce.mechanisms.noise.laws import Gaussian, Laplace, Staircase
from sottovoce.mechanisms.registry import kind_of
from sottovoce.mechanisms.rotation import Rotation, block_size

# Coordinates drawn at once: few enough for a processor's cache, enough to keep a GPU busy.
_TOGETHER = {"cpu": 1 << 17, "cuda": 1 << 27}
_BITS_TOGETHER = (
    6  # of a rotation: products with 64 x 64 signs take fewer passes than sums of pairs
)

_MOST_CELLS = 1 << 24  # of the law of one row


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLaws:
    """Each coordinate by the finite law that the mechanism declares for its row."""

    mechanism: Mechanism


DrawnLaw = CoordinateLaw | RowLaws


def has_small_law(mechanism: Mechanism) -> bool:
    """Return whether the law of a row is a table of each coordinate's codes, and not too large."""
    code_format, domain = mechanism.code_format(), mechanism.input_domain
    if not isinstance(code_format, LevelCodes) or code_format.count is not None:
        return False
    if code_format.levels * domain.dimension > _MOST_CELLS:
        return False
    return isinstance(mechanism.law(domain.project(np.zeros(domain.dimension))), FiniteLaw)


def generator_of_round(
    randomness: SeededRandomness, run: str, number: int, device: torch.device
) -> torch.Generator:
    """Every round has its own seed, so a run can go on anywhere."""
    seed = int(randomness.generator("draws", run, number).integers(2**62))
    return torch.Generator(device=device).manual_seed(seed)


def turned_total(
    law: DrawnLaw,
    rows: Rows,
    weights: Tensor,
    generator: torch.Generator,
    turn: "RowRotation | None",
) -> Tensor:
    """The weighted sum of the decoded rows, which are rotated on their way if there is a turn."""
    if turn is None:
        return drawn_total(law, rows, weights, generator)
    total, start = torch.zeros((), device=weights.device), 0
    for block in rows.blocks(rows_together(turn.dimension, weights.device)):
        decoded = drawn_rows(law, turn.forward(block.float()), generator)
        total = total + weights[start : start + len(block)] @ decoded
        start += len(block)
    return turn.inverse(total[None])[0]  # turning is linear: once for all


def drawn_total(law: DrawnLaw, rows: Rows, weights: Tensor, generator: torch.Generator) -> Tensor:
    """The weighted sum of the decoded rows."""
    match law:
        case Unchanged():
            return rows.total(weights)
        case AddedNoise(noise=Gaussian(stddev=stddev)):
            exact = rows.total(weights)
            scale: Tensor = stddev * torch.linalg.vector_norm(weights)
            return exact + scale * _normal(exact.shape, exact, generator)
        case _:
            return _total_of_draws(law, rows, weights, generator)


def drawn_rows(law: DrawnLaw, values: Tensor, generator: torch.Generator) -> Tensor:
    """Each row as the server decodes it."""
    match law:
        case Unchanged():
            return values
        case AddedNoise(noise=noise):
            return values + added_noise(noise, values, generator)
        case NoisySign(stddev=stddev, magnitude=magnitude):
            positive: Tensor = torch.special.ndtr(values / stddev)
            signs: Tensor = 2.0 * (_uniform(values, generator) < positive) - 1.0
            return magnitude * signs
        case TiltedFamily():
            return _tilted(law, values, generator)
        case InterpolatedTable():
            return _tabled(law, values, generator)
        case RowLaws(mechanism=mechanism):
            return torch.stack([_by_law(mechanism, row, generator) for row in values])
        case _:
            assert_never(law)


def rows_together(dimension: int, device: torch.device) -> int:
    """How many rows are drawn at once."""
    return max(1, _TOGETHER.get(device.type, _TOGETHER["cpu"]) // dimension)


def _total_of_draws(
    law: DrawnLaw, rows: Rows, weights: Tensor, generator: torch.Generator
) -> Tensor:
    total, start = torch.zeros((), device=weights.device), 0
    dimension = next(rows.blocks(1)).shape[1]
    for block in rows.blocks(rows_together(dimension, weights.device)):
        part = weights[start : start + len(block)]
        total = total + part @ drawn_rows(law, block.float(), generator)
        start += len(block)
    return total


def _tilted(law: TiltedFamily, values: Tensor, generator: torch.Generator) -> Tensor:
    points = [float(y) * law.tilt_per_unit for y in law.points]
    letters, weights = [float(a) for a in law.letters], [float(w) for w in law.weights]
    if len(points) == 2:
        logits = (points[1] - points[0]) * values + math.log(weights[1] / weights[0])
        second = _uniform(values, generator) < torch.sigmoid(logits)
        return letters[0] + (letters[1] - letters[0]) * second
    reach = torch.maximum(values * max(points), values * min(points))  # the largest exponent
    cumulative, masses = torch.zeros_like(values), []
    for point, weight in zip(points, weights, strict=True):
        cumulative = cumulative + weight * torch.exp(point * values - reach)
        masses.append(cumulative)
    return _letters_above(_uniform(values, generator) * cumulative, masses, letters)


def _tabled(law: InterpolatedTable, values: Tensor, generator: torch.Generator) -> Tensor:
    knots = torch.tensor(law.knots, dtype=values.dtype, device=values.device)
    cumulative = torch.tensor(law.rows.cumsum(axis=1), dtype=values.dtype, device=values.device)
    positions = ((values - law.low) / (law.high - law.low)).clamp(0.0, 1.0)
    if len(knots) == 2:  # nothing to search for
        masses = [low + (high - low) * positions for low, high in cumulative.T.tolist()]
        return _letters_above(_uniform(values, generator), masses, [float(a) for a in law.letters])
    left = (torch.searchsorted(knots, positions, right=True) - 1).clamp(0, len(knots) - 2)
    share = (positions - knots[left]) / (knots[left + 1] - knots[left])
    masses = [torch.lerp(column[left], column[left + 1], share) for column in cumulative.T]
    return _letters_above(_uniform(values, generator), masses, [float(a) for a in law.letters])


def _by_law(mechanism: Mechanism, values: Tensor, generator: torch.Generator) -> Tensor:
    law = mechanism.law(mechanism.input_domain.project(values.double().cpu().numpy()))
    assert isinstance(law, FiniteLaw), "has_small_law says so"
    cumulative = torch.tensor(law.table.cumsum(axis=1), dtype=values.dtype, device=values.device)
    uniform = _uniform(values, generator) * cumulative[:, -1]
    letters = torch.tensor(law.points, dtype=values.dtype, device=values.device)
    return letters[(uniform[:, None] >= cumulative[:, :-1]).sum(dim=1)]


def _letters_above(uniform: Tensor, masses: list[Tensor], letters: list[float]) -> Tensor:
    """The letter whose cumulative mass is the first above the uniform number."""
    found = torch.full_like(uniform, letters[0])
    for mass, below, above in zip(masses[:-1], letters[:-1], letters[1:], strict=True):
        found = found + (above - below) * (uniform >= mass)
    return found


def added_noise(
    noise: Gaussian | Laplace | Staircase, like: Tensor, generator: torch.Generator
) -> Tensor:
    """Noise for every entry of `like`, in its precision."""
    match noise:
        case Gaussian(stddev=stddev):
            return stddev * _normal(like.shape, like, generator)
        case Laplace(scale=scale):
            # 1 - u lies in (0, 1]: no magnitude is infinite, and none is cut off.
            magnitude = -torch.log(1.0 - _uniform(like, generator))
            return scale * magnitude * torch.where(_uniform(like, generator) < 0.5, -1.0, 1.0)
        case Staircase():
            return _staircase(noise, like, generator)
        case _:
            assert_never(noise)


def _staircase(noise: Staircase, like: Tensor, generator: torch.Generator) -> Tensor:
    """Sign, whole steps and place in the step, which are independent (Geng and Viswanath 2016)."""
    decay = math.exp(-noise.epsilon)
    whole = torch.floor(torch.log1p(-_uniform(like, generator)) / -noise.epsilon)
    high = noise.nu / (noise.nu + decay * (1.0 - noise.nu))
    place = _uniform(like, generator)
    upper = _uniform(like, generator) < high
    within = torch.where(upper, noise.nu * place, noise.nu + (1.0 - noise.nu) * place)
    sign = torch.where(_uniform(like, generator) < 0.5, -1.0, 1.0)
    return noise.step * sign * (whole + within)


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(like.shape, generator=generator, device=like.device, dtype=like.dtype)


def _normal(shape: torch.Size, like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)


class RowRotation:
    """A rotation of rows in float32, on their device: `transforms.rotation` says which."""

    def __init__(self, rotation: Rotation, device: torch.device) -> None:
        self.dimension = rotation.dimension
        self._size = block_size(rotation.dimension)
        self._passes = [
            (start, torch.as_tensor(signs, dtype=torch.float32, device=device))
            for start, signs in rotation.passes()
        ]

    def forward(self, rows: Tensor) -> Tensor:
        rows = rows.clone()
        for start, signs in self._passes:
            block = rows[:, start : start + self._size]
            block.copy_(_hadamard(block * signs))
        return rows

    def inverse(self, rows: Tensor) -> Tensor:
        rows = rows.clone()
        for start, signs in reversed(self._passes):
            block = rows[:, start : start + self._size]
            block.copy_(_hadamard(block) * signs)
        return rows


def _hadamard(rows: Tensor) -> Tensor:
    """H v for each row; the length is a power of two.

    H is a Kronecker product of smaller ones: each is a matrix product over some bits of the index,
    which come to the front by it. When all have had their turn, they are in order again.
    """
    count, size = rows.shape
    left = size.bit_length() - 1
    while left:
        bits = min(left, _BITS_TOGETHER)
        last = rows.reshape(count, -1, 1 << bits).transpose(1, 2)
        rows = (_sylvester(bits, rows.device) @ last).reshape(count, size)
        left -= bits
    return rows / math.sqrt(size)


@lru_cache(maxsize=32)
def _sylvester(bits: int, device: torch.device) -> Tensor:
    """The Hadamard matrix of signs, of size 2^bits."""
    matrix = torch.ones(1, 1, device=device)
    for _ in range(bits):
        matrix = torch.cat(
            [torch.cat([matrix, matrix], dim=1), torch.cat([matrix, -matrix], dim=1)]
        )
    return matrix


def law_of(mechanism: Mechanism) -> DrawnLaw:
    """Return what the mechanism does to a coordinate: what it says, or else its finite law."""
    if isinstance(mechanism, Coordinatewise):
        return mechanism.coordinate_law()
    if has_small_law(mechanism):
        return RowLaws(mechanism=mechanism)
    raise ConfigError(
        f"mechanism '{kind_of(mechanism)}' does not say what it does to a coordinate, so "
        "nothing can be drawn for it; set runtime.messages = 'packed'"
    )


class DrawnMessages(CountedClients):
    """Nothing is encoded or sent."""

    def begin(self, number: int) -> None:
        device = self.task.device
        self._generator = generator_of_round(self.randomness, self.run, number, device)
        rotation = self.rotation(number)
        self._turn = None if rotation is None else RowRotation(rotation, self.task.device)

    def add(self, gathering: Gathering, portion: Portion, number: int, uplink: int) -> None:  # noqa: ARG002
        law = law_of(portion.mechanism)
        gathering.weight += portion.weight
        rows, weights, generator = portion.rows, portion.weights, self._generator
        if not self.algorithm.gathers:
            gathering.total += turned_total(law, rows, weights, generator, self._turn)
            return
        together = rows_together(self.task.dimension, self.task.device)
        for number_of_block, block in enumerate(rows.blocks(together)):
            decoded = self._turned_back(self._drawn(law, block.float()))
            self._add_rows(gathering, portion, number_of_block * together, decoded)

    def _drawn(self, law: DrawnLaw, block: Tensor) -> Tensor:
        values = block if self._turn is None else self._turn.forward(block)
        return drawn_rows(law, values, self._generator)

    def _turned_back(self, rows: Tensor) -> Tensor:
        return rows if self._turn is None else self._turn.inverse(rows)

    def _add_rows(
        self, gathering: Gathering, portion: Portion, start: int, decoded: Tensor
    ) -> None:
        weights = portion.weights[start : start + len(decoded)]
        gathering.total += weights @ decoded
        gathering.rows += list(decoded.to("cpu", torch.float64).numpy())
        own = portion.clients[start : start + len(decoded)]
        gathering.clients += [part.client for part in own]
        gathering.weights += weights.tolist()
