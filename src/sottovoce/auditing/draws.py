"""Many samples of a mechanism's decoded output for one input, by its own `encode` and keystreams.

Where coordinates are drawn independently, one call makes many draws as blocks of one long vector,
and the domain checks each block. Other mechanisms are called once for each draw, in several
processes.
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

_DRAWS_TOGETHER = 1 << 12  # Draws in one call of encode, from one keystream.
_MAX_CELLS = 1 << 26  # Entries of the law of all draws in one call: half a gigabyte.
_DRAWS_PER_TASK = 20_000  # Draws that a process makes in one task.
_FEW_DRAWS = 100_000  # Up to this number, starting processes takes longer than drawing.


@dataclass(frozen=True, slots=True, kw_only=True)
class _L2Blocks(L2Ball):
    """A vector of blocks of `block` coordinates, each in the L2 ball by itself."""

    block: int

    def check(self, values: ArrayLike) -> Vector:
        return _check_blocks(values, self.block, self.radius, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class _L1Blocks(L1Ball):
    """A vector of blocks of `block` coordinates, each in the L1 ball by itself."""

    block: int

    def check(self, values: ArrayLike) -> Vector:
        return _check_blocks(values, self.block, self.radius, 1)


def _check_blocks(values: ArrayLike, block: int, radius: float, order: int) -> Vector:
    vector = np.asarray(values, dtype=np.float64)
    norms = np.linalg.norm(vector.reshape(-1, block), ord=order, axis=1)
    assert norms.max() <= radius * (1.0 + 1e-12)  # Each block was checked before.
    return vector


def _batch_mechanism(mechanism: Mechanism, values: Vector, count: int) -> Mechanism | None:
    """Return the mechanism for `count` inputs at once.

    Return None unless the law that it declares for each block is the law of a separate call.
    """
    domain, dimension = mechanism.input_domain, len(values)
    if not isinstance(
        mechanism.law(values), FiniteLaw | GaussianLaw | LaplaceLaw | PointLaw | StaircaseLaw
    ):
        return None
    long: Domain
    match domain:
        case L1Ball() | L2Ball():
            # In one dimension both balls are the same, and noise is drawn per coordinate.
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
    except (SottovoceError, TypeError, ValueError):  # Plug-ins may refuse this dimension.
        return None
    return many if _have_same_law(mechanism.law(values), all_of_them, count) else None


def _have_same_law(one: Law, all_of_them: Law, count: int) -> bool:
    """Return whether the law of every block is the law of a separate call."""
    if type(one) is not type(all_of_them):
        return False
    if isinstance(one, FiniteLaw) and isinstance(all_of_them, FiniteLaw):
        tables = np.tile(one.table, (count, 1)), all_of_them.table
        return np.array_equal(one.points, all_of_them.points) and np.array_equal(*tables)
    alike = [np.array_equal(np.tile(part(one), count), part(all_of_them)) for part in _MOMENTS]
    return all(alike)


_MOMENTS: tuple[Callable[[Law], Vector], ...] = (lambda law: law.mean(), lambda law: law.variance())


def sample_decoded(
    mechanism: Mechanism,
    values: Vector,
    draws: int,
    label: tuple[int, str],
    processes: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Vector:
    """Draw decoded outputs of a mechanism for one input, one row for each of `draws` draws.

    `label` is (seed, any name), from which the keystreams are derived: the same label gives the
    same draws. If outputs must be drawn one by one, and there are more than 100,000, `processes`
    processes draw them; their number does not change the draws. `progress` is called with the
    number of draws made so far.
    """
    law = mechanism.law(values)
    cells = law.table.size if isinstance(law, FiniteLaw) else 1
    together = max(1, min(draws, _DRAWS_TOGETHER, _MAX_CELLS // cells))
    many = _batch_mechanism(mechanism, values, together)
    if many is not None:
        tiled = np.tile(values, together)
        rows = []
        for number in range(-(-draws // together)):
            codes = many.encode(tiled, _stream(label, number))
            rows.append(many.decode(codes).reshape(together, -1))
            if progress:
                progress(min(draws, (number + 1) * together))
        return np.concatenate(rows)[:draws]
    starts = range(0, draws, _DRAWS_PER_TASK)
    tasks = [
        (mechanism, values, start, min(_DRAWS_PER_TASK, draws - start), label) for start in starts
    ]
    rows = []
    if processes <= 1 or draws <= _FEW_DRAWS:
        for task in tasks:
            rows.append(_draw_separately(task))
            if progress:
                progress(sum(map(len, rows)))
        return np.concatenate(rows)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for part in pool.map(_draw_separately, tasks):
            rows.append(part)
            if progress:
                progress(sum(map(len, rows)))
    return np.concatenate(rows)


def _draw_separately(task: tuple[Mechanism, Vector, int, int, tuple[int, str]]) -> Vector:
    mechanism, values, start, count, label = task
    numbers = range(start, start + count)
    return np.stack(
        [mechanism.decode(mechanism.encode(values, _stream(label, n))) for n in numbers]
    )


def _stream(label: tuple[int, str], number: int) -> Keystream:
    seed, side = label
    return SeededRandomness(seed).stream("audit", side, number)
