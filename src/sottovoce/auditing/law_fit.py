"""How likely samples are under the law that a mechanism declares."""

import math
from collections.abc import Callable, Iterator
from typing import assert_never

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.spatial.distance import cdist
from scipy.special import chdtrc

from sottovoce.auditing.laws import nearest
from sottovoce.core.domains import Vector
from sottovoce.mechanisms.mechanism import (
    FiniteLaw,
    GaussianLaw,
    JointLaw,
    LaplaceLaw,
    Law,
    MomentLaw,
    PointLaw,
    StaircaseLaw,
)


def p_values(law: Law, decoded: Vector) -> Iterator[tuple[str, float]]:
    """How likely such samples are under the law, for each coordinate or for the whole vector."""
    coordinates = range(decoded.shape[1])
    match law:
        case FiniteLaw():
            # Codes that decode to the same number are one outcome.
            points, outcome_of = np.unique(law.points, return_inverse=True)
            for i in coordinates:
                outcomes = nearest(points, decoded[:, i])
                pmf = np.zeros(len(points))
                np.add.at(pmf, outcome_of, law.table[i])
                yield f"coordinate {i}", _chi_square(outcomes, pmf)
        case JointLaw():
            distances = cdist(decoded, law.points, "cityblock")
            if distances.min(axis=1).max() > 1e-9 * np.abs(law.points).max():
                yield "a point that the law does not have", 0.0
                return
            yield "joint", _chi_square(distances.argmin(axis=1), law.pmf)
        case GaussianLaw():
            for i in coordinates:
                standard = (decoded[:, i] - law.centre[i]) / law.stddev
                yield f"coordinate {i}", float(stats.kstest(standard, "norm").pvalue)
        case LaplaceLaw():
            for i in coordinates:
                standard = (decoded[:, i] - law.centre[i]) / law.scale
                yield f"coordinate {i}", float(stats.kstest(standard, "laplace").pvalue)
        case StaircaseLaw():
            for i in coordinates:
                p_value = stats.kstest(decoded[:, i] - law.centre[i], _staircase_cdf(law)).pvalue
                yield f"coordinate {i}", float(p_value)
        case MomentLaw():
            squares = (decoded - law.centre) ** 2
            errors = squares.std(axis=0) / math.sqrt(len(squares)) + 1e-12 * law.spread
            scores = (squares.mean(axis=0) - law.spread) / errors
            for i in coordinates:
                yield f"variance of coordinate {i}", float(2.0 * stats.norm.sf(abs(scores[i])))
        case PointLaw():
            raise AssertionError("a point law has no p-value")
        case _:
            assert_never(law)


def _staircase_cdf(law: StaircaseLaw) -> Callable[[Vector], Vector]:
    """From the definition of the density: whole steps, and the higher and lower part of one."""
    step, decay, nu = law.noise.step, math.exp(-law.noise.epsilon), law.noise.nu
    top = (1.0 - decay) / (2.0 * (nu + decay * (1.0 - nu)))

    def cdf(values: Vector) -> Vector:
        whole, part = np.divmod(np.abs(values) / step, 1.0)
        within = top * (np.minimum(part, nu) + decay * np.maximum(part - nu, 0.0))
        tail = decay**whole * (0.5 - within)
        return np.where(values > 0.0, 1.0 - tail, tail)

    return cdf


def _chi_square(outcomes: NDArray[np.intp], pmf: Vector) -> float:
    if not math.isclose(float(pmf.sum()), 1.0, rel_tol=1e-8):
        return 0.0  # no law at all
    expected = pmf * len(outcomes)
    observed = np.bincount(outcomes, minlength=len(pmf)).astype(np.float64)
    # Cells too rare for the chi-square approximation are pooled with their neighbour.
    order = np.argsort(expected)
    keep = expected[order] >= 5.0
    pooled_expected = np.append(expected[order][keep], expected[order][~keep].sum())
    pooled_observed = np.append(observed[order][keep], observed[order][~keep].sum())
    if pooled_expected[-1] < 5.0 and len(pooled_expected) > 1:
        pooled_expected[0] += pooled_expected[-1]
        pooled_observed[0] += pooled_observed[-1]
        pooled_expected, pooled_observed = pooled_expected[:-1], pooled_observed[:-1]
    if len(pooled_expected) < 2:
        return 1.0
    statistic = float(((pooled_observed - pooled_expected) ** 2 / pooled_expected).sum())
    return float(chdtrc(len(pooled_expected) - 1, statistic))
