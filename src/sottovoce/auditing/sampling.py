"""Many real draws of two neighbouring inputs, and what can be told of them.

Draws come from the mechanism's own `encode`, fed with keystreams. Where coordinates are drawn one
by one, a call holds many draws side by side, as blocks of one long vector: the domain then checks
each block. Two statistics compete: the likelihood ratio of the declared laws, and one that trusts
no declaration, the frequencies of the outcomes themselves (or, where there are too many to count,
the projection on the difference of the inputs).
"""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce import parameters
from sottovoce.adjacency import Adjacency
from sottovoce.auditing.enumeration import MAX_OUTCOMES, delta_of, num_outcomes
from sottovoce.auditing.laws import nearest, nearest_rows, refutation
from sottovoce.auditing.neighbours import neighbours
from sottovoce.auditing.scores import Scores, judge
from sottovoce.auditing.verdict import CONFIDENCE, Certificate, Shares, Verdict
from sottovoce.domains import Box, L1Ball, L2Ball, Vector
from sottovoce.mechanisms.mechanism import (
    FiniteLaw,
    GaussianLaw,
    JointLaw,
    LaplaceLaw,
    Law,
    Mechanism,
    StaircaseLaw,
)
from sottovoce.randomness import Keystream, SeededRandomness

DRAWS = 1_000_000
_DRAWS_TOGETHER = 1 << 12  # in one call of encode, and so from one keystream
_A_TASK = 20_000  # draws that a process makes before it is asked again
_FEW_DRAWS = 100_000  # up to which no process is worth starting

Progress = Callable[[int, int], None]  # draws made, and of how many


def audit_by_sampling(
    mechanism: Mechanism,
    adjacency: Adjacency,
    *,
    delta: float,
    draws: int = DRAWS,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    processes: int = 1,
    progress: Progress | None = None,
) -> Verdict:
    """What `draws` of each of two neighbours prove about the mechanism as it runs."""
    parameters.integer("draws", draws, low=100, high=10**9)
    certificate = Certificate(event=mechanism.privacy(adjacency), delta=delta)
    first, second = telling_pair(mechanism, adjacency, certificate)
    made: list[Vector] = []
    for side, values in (("first", first), ("second", second)):
        note = None
        if progress is not None:
            done, report = len(made) * draws, progress

            def note(count: int, done: int = done, report: Progress = report) -> None:
                report(done + count, 2 * draws)

        made.append(drawn(mechanism, values, draws, (seed, side), processes, note))
    statistics = [_by_outcome(made[0], made[1], first - second, draws)]
    laws = mechanism.law(first), mechanism.law(second)
    ratios = [log_ratio(*laws, decoded) for decoded in made]
    if ratios[0] is not None and ratios[1] is not None:
        statistics.append(Scores(first=ratios[0], second=ratios[1]))
    verdict = judge(statistics, certificate, confidence=confidence, method="sampling of encode")
    share = Shares.of(confidence, 1).of_the_law / 2.0
    found = [refutation(law, decoded, share) for law, decoded in zip(laws, made, strict=True)]
    return dataclasses.replace(verdict, law_refuted=next(filter(None, found), None))


def telling_pair(
    mechanism: Mechanism, adjacency: Adjacency, certificate: Certificate
) -> tuple[Vector, Vector]:
    """Neighbours that the declared laws tell apart best, or the farthest where none says."""
    middle = certificate.epsilon / 2.0 if np.isfinite(certificate.epsilon) else 1.0

    def worth(pair: tuple[Vector, Vector]) -> tuple[float, float]:
        laws = mechanism.law(pair[0]), mechanism.law(pair[1])
        known = num_outcomes(laws[0]) <= MAX_OUTCOMES
        apart = float(np.linalg.norm(pair[0] - pair[1]))
        return (delta_of(*laws, middle) if known else 0.0), apart

    pairs = neighbours(mechanism.input_domain, adjacency, np.random.default_rng(5))
    return max(pairs, key=worth)


# -- draws -------------------------------------------------------------------------------------


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
        mechanism.law(values), FiniteLaw | GaussianLaw | LaplaceLaw | StaircaseLaw
    ):
        return None
    match domain:
        case L1Ball() | L2Ball():
            blocks = _L1Blocks if isinstance(domain, L1Ball) else _L2Blocks
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
    many = dataclasses.replace(mechanism, input_domain=long)  # type: ignore[type-var]
    one, all_of_them = mechanism.law(values), many.law(np.tile(values, count))
    return many if _same(one, all_of_them, count) else None


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
    together = min(draws, _DRAWS_TOGETHER)
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


# -- statistics --------------------------------------------------------------------------------


def _by_outcome(first: Vector, second: Vector, difference: Vector, draws: int) -> Scores:
    """The log-ratio of frequencies among the first tenth; or the projection, of many outcomes.

    Frequencies are taken of the draws that `judge` chooses by, and of no other.
    """
    both = np.concatenate([first, second])
    outcomes = _numbered(both)
    if outcomes is None:
        projected = both @ difference
        return Scores(first=projected[:draws], second=projected[draws:])
    chosen = draws // 10
    size = int(outcomes.max()) + 1
    counts = [
        np.bincount(part[:chosen], minlength=size) + 0.5
        for part in (outcomes[:draws], outcomes[draws:])
    ]
    ratios = np.log(counts[0] / counts[1])[outcomes]
    return Scores(first=ratios[:draws], second=ratios[draws:])


def _numbered(rows: Vector) -> NDArray[np.intp] | None:
    """A number for each row's outcome; None if there are too many to count."""
    numbers = np.zeros(len(rows), dtype=np.intp)
    for column in rows.T:
        if len(np.unique(column[: 4 * MAX_OUTCOMES])) > MAX_OUTCOMES:
            return None
        distinct, codes = np.unique(column, return_inverse=True)
        numbers = numbers * len(distinct) + codes
        distinct, numbers = np.unique(numbers, return_inverse=True)
        if len(distinct) > MAX_OUTCOMES:
            return None
    return numbers


def log_ratio(first: Law, second: Law, decoded: Vector) -> Vector | None:
    """log p/q of each row under two declared laws; None where a law says too little."""
    match first, second:
        case FiniteLaw(), FiniteLaw():
            total = np.zeros(len(decoded))
            points, place = np.unique(first.points, return_index=True)
            with np.errstate(divide="ignore", invalid="ignore"):
                logs = np.log(first.table) - np.log(second.table)
            for i, column in enumerate(decoded.T):
                total += np.nan_to_num(logs[i])[place[nearest(points, column)]]
            return total
        case JointLaw(), JointLaw():
            with np.errstate(divide="ignore", invalid="ignore"):
                logs = np.nan_to_num(np.log(first.pmf) - np.log(second.pmf))
            return np.asarray(logs[nearest_rows(first.points, decoded)])
        case GaussianLaw(), GaussianLaw():
            middle = (first.centre + second.centre) / 2.0
            return (decoded - middle) @ (first.centre - second.centre) / first.stddev**2
        case LaplaceLaw(), LaplaceLaw():
            far, near = np.abs(decoded - second.centre), np.abs(decoded - first.centre)
            return np.asarray((far - near).sum(axis=1) / first.scale)
        case StaircaseLaw(), StaircaseLaw():
            noise = first.noise
            steps = [
                np.floor(np.abs(decoded - law.centre) / noise.step + 1.0 - noise.nu).sum(axis=1)
                for law in (first, second)
            ]
            return np.asarray(noise.epsilon * (steps[1] - steps[0]))
        case _:
            return None
