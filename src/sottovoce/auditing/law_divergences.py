"""Exact Renyi divergences of declared laws, and p-values of samples under a declared law.

The divergences are computed without the accountants, so that they can check them.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import assert_never

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.spatial.distance import cdist
from scipy.special import chdtrc

from sottovoce.auditing.laws import have_same_noise, nearest
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
from sottovoce.privacy.divergences import finite_renyi, log_sum_exp


def p_values(law: Law, decoded: Vector) -> Iterator[tuple[str, float]]:
    """Yield (what was tested, p-value) of samples under a law; `decoded` has a sample in each row.

    Each coordinate is tested by itself, a joint law as a whole: by the chi-square test if outcomes
    are finite (p-value 0 if a sample is no point of a joint law), and by the Kolmogorov-Smirnov
    test for noise. Of a law that gives moments only, the variances are tested. Raise AssertionError
    for a law with a single point.
    """
    coordinates = range(decoded.shape[1])
    match law:
        case FiniteLaw():
            # Codes that decode to the same value are one outcome.
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
                standard = (decoded[:, i] - law.center[i]) / law.stddev
                yield f"coordinate {i}", float(stats.kstest(standard, "norm").pvalue)
        case LaplaceLaw():
            for i in coordinates:
                standard = (decoded[:, i] - law.center[i]) / law.scale
                yield f"coordinate {i}", float(stats.kstest(standard, "laplace").pvalue)
        case StaircaseLaw():
            for i in coordinates:
                p_value = stats.kstest(decoded[:, i] - law.center[i], _staircase_cdf(law)).pvalue
                yield f"coordinate {i}", float(p_value)
        case MomentLaw():
            squares = (decoded - law.center) ** 2
            errors = squares.std(axis=0) / math.sqrt(len(squares)) + 1e-12 * law.spread
            scores = (squares.mean(axis=0) - law.spread) / errors
            for i in coordinates:
                yield f"variance of coordinate {i}", float(2.0 * stats.norm.sf(abs(scores[i])))
        case PointLaw():
            raise AssertionError("a point law has no p-value")
        case _:
            assert_never(law)


def _staircase_cdf(law: StaircaseLaw) -> Callable[[Vector], Vector]:
    """Return the cumulative distribution function of staircase noise, from its density."""
    step, decay, nu = law.noise.step, math.exp(-law.noise.epsilon), law.noise.nu
    top = (1.0 - decay) / (2.0 * (nu + decay * (1.0 - nu)))

    def cdf(values: Vector) -> Vector:
        whole, part = np.divmod(np.abs(values) / step, 1.0)
        within = top * (np.minimum(part, nu) + decay * np.maximum(part - nu, 0.0))
        tail = decay**whole * (0.5 - within)
        return np.where(values > 0.0, 1.0 - tail, tail)

    return cdf


def _chi_square(outcomes: NDArray[np.intp], pmf: Vector) -> float:
    """Return the p-value of Pearson's chi-square test; 0 if the pmf does not sum to 1."""
    if not math.isclose(float(pmf.sum()), 1.0, rel_tol=1e-8):
        return 0.0
    expected = pmf * len(outcomes)
    observed = np.bincount(outcomes, minlength=len(pmf)).astype(np.float64)
    # Cells with an expected count below 5, too few for the chi-square approximation, are pooled.
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


def renyi_of(first: Law, second: Law, orders: Sequence[float]) -> list[float]:
    """Return the exact Renyi divergences D_a(first || second), one for each order a > 1.

    For product laws they add up over coordinates. The divergences are infinite if `first` has an
    outcome that `second` does not have, and where they are not computed: for noise of different
    sizes, for laws of different kinds, for laws with different points, and for laws that give
    moments or a single point only.
    """
    if not have_same_noise(first, second):
        return [math.inf] * len(orders)
    match first, second:
        case FiniteLaw(), FiniteLaw():
            if not np.array_equal(first.points, second.points):
                return [math.inf] * len(orders)
            return _renyi_of_product(first.table, second.table, orders)
        case JointLaw(), JointLaw():
            if not np.array_equal(first.points, second.points):
                return [math.inf] * len(orders)
            return [finite_renyi(first.pmf, second.pmf, order) for order in orders]
        case GaussianLaw(), GaussianLaw():
            shift = float(np.linalg.norm(first.center - second.center)) / first.stddev
            return [order * shift**2 / 2.0 for order in orders]
        case LaplaceLaw(), LaplaceLaw():
            shifts = np.abs(first.center - second.center) / first.scale
            return [math.fsum(_laplace_renyi(float(x), order) for x in shifts) for order in orders]
        case StaircaseLaw(), StaircaseLaw():
            noise = first.noise
            shifts = np.abs(first.center - second.center) / noise.step
            return [
                math.fsum(
                    _staircase_renyi(noise.epsilon, noise.nu, float(x), order) for x in shifts
                )
                for order in orders
            ]
        case _:
            return [math.inf] * len(orders)


def _renyi_of_product(p: Vector, q: Vector, orders: Sequence[float]) -> list[float]:
    """Return the sum over rows of log( sum p^a q^(1-a) ) / (a - 1), for all orders a at once."""
    if np.any(p[q == 0.0] > 0.0):
        return [math.inf] * len(orders)
    a = np.asarray(orders)[:, None, None]
    weights = np.where(q > 0.0, q, 1.0)
    with np.errstate(divide="ignore"):
        ratios = np.log1p((p - q) / weights)  # This is accurate where p and q are close.
    # The sum of q (r^a - 1 - a (r - 1)) for r = p/q has no negative term, so nothing cancels. It is
    # used where no power is large; elsewhere the logarithm of the sum itself is used.
    powers = np.minimum(a * ratios, 30.0)
    near = np.log1p((q * (np.expm1(powers) - a * np.expm1(ratios))).sum(axis=2))
    top = np.max(a * ratios, axis=2, keepdims=True)
    far = top[..., 0] + np.log((q * np.exp(a * ratios - top)).sum(axis=2))
    found = np.where(top[..., 0] > 30.0, far, near)
    return [math.fsum(row) / (order - 1.0) for row, order in zip(found, orders, strict=True)]


@functools.lru_cache(maxsize=4096)
def _staircase_renyi(epsilon: float, nu: float, shift: float, order: float) -> float:
    """Return D_a of staircase noise whose centers are `shift` steps apart.

    It is a sum over the intervals on which both densities are constant.
    """
    reach = math.ceil(60.0 / epsilon) + 2
    edges = (np.arange(reach)[:, None] + np.array([0.0, nu])).ravel()
    marks = np.concatenate([edges, -edges, edges + shift, shift - edges])
    marks = np.unique(marks.round(12))  # Merge edges that differ by rounding only.
    middles, widths = (marks[1:] + marks[:-1]) / 2.0, np.diff(marks)
    levels = [np.floor(np.abs(at) + 1.0 - nu) for at in (middles, middles - shift)]
    decay = math.exp(-epsilon)
    top = (1.0 - decay) / (2.0 * (nu + decay * (1.0 - nu)))
    logs = np.log(top * widths) - epsilon * (order * levels[0] + (1.0 - order) * levels[1])
    return log_sum_exp(logs) / (order - 1.0)


def _laplace_renyi(shift: float, order: float) -> float:
    """Return D_a of Laplace noise, `shift` scales apart (Mironov 2017, proposition 6)."""
    a = order
    weights = a / (2.0 * a - 1.0), (a - 1.0) / (2.0 * a - 1.0)
    excess = weights[0] * math.expm1(min(700.0, (a - 1.0) * shift))
    excess += weights[1] * math.expm1(-a * shift)
    if (a - 1.0) * shift > 700.0:
        return shift + math.log(weights[0]) / (a - 1.0)
    return math.log1p(excess) / (a - 1.0)
