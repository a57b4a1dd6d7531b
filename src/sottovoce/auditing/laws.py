"""Statistical tests of whether draws follow the law that a mechanism declares.

A certificate is valid for the declared law only. The tests use cells that are fixed before anything
is drawn: every outcome of every coordinate, or both tails of the noise beyond some quantiles. The
number of hits in a cell is binomial, so Clopper and Pearson's bounds hold, and the error is divided
among all cells.
"""

import functools
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import statistics
from sottovoce.core.domains import Vector
from sottovoce.mechanisms.mechanism import (
    FiniteLaw,
    GaussianLaw,
    JointLaw,
    LaplaceLaw,
    Law,
    Mechanism,
    MomentLaw,
    PointLaw,
    StaircaseLaw,
)
from sottovoce.mechanisms.noise.laws import Noise, ScalarGaussian, ScalarLaplace


def cache_laws(mechanism: Mechanism) -> Callable[[Vector], Law]:
    """Return a function that gives the mechanism's law at an input and caches it.

    An input occurs in many pairs of neighbors. Inputs must be float64 vectors.
    """

    @functools.cache
    def at(values: bytes) -> Law:
        return mechanism.law(np.frombuffer(values))

    return lambda values: at(values.tobytes())


_TAILS = (0.5, 0.3, 0.1, 0.03, 0.01, 0.001)
# Allows for rounding of float32 values and float64 probabilities, far below what draws can show.
_ROUNDING = 1e-6

Cell = tuple[str, float, int]  # (description, declared probability, hits)


def refute_law(law: Law, decoded: Vector, error: float) -> str | None:
    """Return a sentence that refutes the declared law, or None if the draws do not contradict it.

    `decoded` has one draw in each row. If the law is right, the probability of a refutation is at
    most `error`. Return None, too, if the law gives moments or a single point only, which is not
    tested here.
    """
    cells = list(_cells(law, decoded))
    if not cells:
        return None
    hits = np.array([cell[2] for cell in cells])
    low, high = (
        bound(hits, len(decoded), error / 2.0 / len(cells))
        for bound in (statistics.lower, statistics.upper)
    )
    declared = np.array([cell[1] for cell in cells])
    distance = np.maximum(low - declared, declared - high)
    worst = int(distance.argmax())
    if distance[worst] <= _ROUNDING:
        return None
    return (
        f"{cells[worst][0]} has probability {low[worst]:.6f} to {high[worst]:.6f}, declared "
        f"{declared[worst]:.6f}"
    )


def _cells(law: Law, decoded: Vector) -> Iterator[Cell]:
    """Yield the cells of a law with their declared probabilities and hits."""
    match law:
        case FiniteLaw():
            points, outcome_of = np.unique(law.points, return_inverse=True)
            for i, column in enumerate(decoded.T):
                pmf = np.zeros(len(points))
                np.add.at(pmf, outcome_of, law.table[i])
                counts = np.bincount(nearest(points, column), minlength=len(points))
                for j, count in enumerate(counts.tolist()):
                    yield f"value {points[j]:.4g} of coordinate {i}", float(pmf[j]), count
        case JointLaw():
            counts = np.bincount(nearest_rows(law.points, decoded), minlength=len(law.pmf))
            for k, count in enumerate(counts.tolist()):
                yield f"outcome {k}", float(law.pmf[k]), count
        case GaussianLaw():
            yield from _tails(ScalarGaussian(stddev=law.stddev), decoded - law.center)
        case LaplaceLaw():
            yield from _tails(ScalarLaplace(scale=law.scale), decoded - law.center)
        case StaircaseLaw():
            yield from _tails(law.noise, decoded - law.center)
        case MomentLaw() | PointLaw():
            return


def nearest(points: Vector, values: Vector) -> NDArray[np.intp]:
    """Return the index of the nearest of the sorted points for each value."""
    return np.searchsorted((points[1:] + points[:-1]) / 2.0, values)


def nearest_rows(points: Vector, rows: Vector) -> NDArray[np.intp]:
    """Return, for each row, the index of the row of `points` that is nearest in L1 distance."""
    distinct, outcome = np.unique(rows, axis=0, return_inverse=True)
    which = [int(np.abs(points - row).sum(axis=1).argmin()) for row in distinct]
    return np.array(which)[outcome.ravel()]


def _tails(noise: Noise, errors: Vector) -> Iterator[Cell]:
    for tail, threshold in zip(_TAILS, noise.quantile(np.array(_TAILS)), strict=True):
        for i, column in enumerate(errors.T):
            above, below = (column > threshold).sum(), (column < -threshold).sum()
            yield f"noise above {threshold:.4g} on coordinate {i}", tail, int(above)
            yield f"noise below {-threshold:.4g} on coordinate {i}", tail, int(below)


def have_same_noise(first: Law, second: Law) -> bool:
    """Return whether two laws differ in their centers only, as far as their noise is declared.

    It is False for Gaussian, Laplace or staircase noise of different sizes, such as noise that
    depends on the input, and True for all laws that declare no noise.
    """
    match first, second:
        case GaussianLaw(), GaussianLaw():
            return first.stddev == second.stddev
        case LaplaceLaw(), LaplaceLaw():
            return first.scale == second.scale
        case StaircaseLaw(), StaircaseLaw():
            return first.noise == second.noise
        case _:
            return True


def log_ratio(first: Law, second: Law, decoded: Vector) -> Vector | None:
    """Return log p/q of each row of `decoded`, with p under the first law and q under the second.

    p and q are probabilities or densities. A row that is impossible under one law has a very large
    positive or negative value. Return None if the laws are of different kinds, have noise of
    different sizes, or give moments or a single point only.
    """
    if not have_same_noise(first, second):
        return None
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
            middle = (first.center + second.center) / 2.0
            return (decoded - middle) @ (first.center - second.center) / first.stddev**2
        case LaplaceLaw(), LaplaceLaw():
            far, near = np.abs(decoded - second.center), np.abs(decoded - first.center)
            return np.asarray((far - near).sum(axis=1) / first.scale)
        case StaircaseLaw(), StaircaseLaw():
            noise = first.noise
            steps = [
                np.floor(np.abs(decoded - law.center) / noise.step + 1.0 - noise.nu).sum(axis=1)
                for law in (first, second)
            ]
            return np.asarray(noise.epsilon * (steps[1] - steps[0]))
        case _:
            return None
