"""Many real draws of one input: from the mechanism's own `encode`, fed with keystreams.

Where coordinates are drawn one by one, a call holds many draws side by side, as blocks of one long
vector, of which the domain then checks each. Others are drawn call by call, on several processes.
"""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.core.domains import Box, Domain, L1Ball, L2Ball, Vector
from sottovoce.core.errors import SottovoceError
from sottovoce.core.randomness import Keystream, SeededRandomness
from sottovoce.mechanisms.mechanism import (
    FiniteLaw,
    GaussianLaw,
    LaplaceLaw,
    Law,
    Mechanism,
    PointLaw,
    StaircaseLaw,
)

_DRAWS_TOGETHER = 1 << 12  # in one call of encode, and so from one keystream
_MAX_CELLS = 1 << 26  # of the law of all draws in one call: half a gigabyte
_A_TASK = 20_000  # draws that a process makes before it is asked again
_FEW_DRAWS = 100_000  # up to which no process is worth starting


@dataclass(frozen=True, slots=True, kw_only=True)
class _L2Blocks(L2Ball):
    """Blocks of `block` coordinates, each in the ball by itself."""

    block: int

    def check(self, values: ArrayLike) -> Vector:
        return _checked(values, self.block, self.radius, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class _L1Blocks(L1Ball):
    """Blocks of `block` coordinates, each in the ball by itself."""

    block: int

    def check(self, values: ArrayLike) -> Vector:
        return _checked(values, self.block, self.radius, 1)


def _checked(values: ArrayLike, block: int, radius: float, order: int) -> Vector:
    vector = np.asarray(values, dtype=np.float64)
    norms = np.linalg.norm(vector.reshape(-1, block), ord=order, axis=1)
    assert norms.max() <= radius * (1.0 + 1e-12)  # each was in the ball by itself
    return vector


def _side_by_side(mechanism: Mechanism, values: Vector, count: int) -> Mechanism | None:
    """The mechanism on `count` inputs at once; None unless it declares the same law for each."""
    domain, dimension = mechanism.input_domain, len(values)
    if not isinstance(
        mechanism.law(values), FiniteLaw | GaussianLaw | LaplaceLaw | PointLaw | StaircaseLaw
    ):
        return None
    long: Domain
    match domain:
        case L1Ball() | L2Ball():
            # One coordinate's balls are all the same, and noise there is drawn for each by itself.
            blocks = _L1Blocks if isinstance(domain, L1Ball) and dimension > 1 else _L2Blocks
            long = blocks(
                dimension=count * dimension,
                radius=domain.radius,
                records=domain.records,
                block=dimension,
            )
        case Box():
            long = dataclasses.replace(domain, dimension=count * dimension)
        case _:
            return None
    try:
        many = dataclasses.replace(mechanism, input_domain=long)  # type: ignore[type-var]
        all_of_them = many.law(np.tile(values, count))
    except (SottovoceError, TypeError, ValueError):  # a plug-in need not take every dimension
        return None
    return many if _same(mechanism.law(values), all_of_them, count) else None


def _same(one: Law, all_of_them: Law, count: int) -> bool:
    """Whether every block's law is the one of a call of its own."""
    if type(one) is not type(all_of_them):
        return False
    if isinstance(one, FiniteLaw) and isinstance(all_of_them, FiniteLaw):
        tables = np.tile(one.table, (count, 1)), all_of_them.table
        return np.array_equal(one.points, all_of_them.points) and np.array_equal(*tables)
    alike = [np.array_equal(np.tile(part(one), count), part(all_of_them)) for part in _MOMENTS]
    return all(alike)


_MOMENTS: tuple[Callable[[Law], Vector], ...] = (lambda law: law.mean(), lambda law: law.variance())


def drawn(
    mechanism: Mechanism,
    values: Vector,
    draws: int,
    label: tuple[int, str],
    processes: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Vector:
    """Decoded draws of one input, a row each."""
    law = mechanism.law(values)
    cells = law.table.size if isinstance(law, FiniteLaw) else 1
    together = max(1, min(draws, _DRAWS_TOGETHER, _MAX_CELLS // cells))
    many = _side_by_side(mechanism, values, together)
    if many is not None:
        tiled = np.tile(values, together)
        rows = []
        for number in range(-(-draws // together)):
            codes = many.encode(tiled, _stream(label, number))
            rows.append(many.decode(codes).reshape(together, -1))
            if progress:
                progress(min(draws, (number + 1) * together))
        return np.concatenate(rows)[:draws]
    starts = range(0, draws, _A_TASK)
    tasks = [(mechanism, values, start, min(_A_TASK, draws - start), label) for start in starts]
    rows = []
    if processes <= 1 or draws <= _FEW_DRAWS:
        for task in tasks:
            rows.append(_one_by_one(task))
            if progress:
                progress(sum(map(len, rows)))
        return np.concatenate(rows)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for part in pool.map(_one_by_one, tasks):
            rows.append(part)
            if progress:
                progress(sum(map(len, rows)))
    return np.concatenate(rows)


def _one_by_one(task: tuple[Mechanism, Vector, int, int, tuple[int, str]]) -> Vector:
    mechanism, values, start, count, label = task
    numbers = range(start, start + count)
    return np.stack(
        [mechanism.decode(mechanism.encode(values, _stream(label, n))) for n in numbers]
    )


def _stream(label: tuple[int, str], number: int) -> Keystream:
    seed, side = label
    return SeededRandomness(seed).stream("audit", side, number)
