"""MVU: metric DP, the accounting of vectors, and the norm after dithering.

The table of the vector formulas is the truncated geometric mechanism on three inputs: its loss
between adjacent inputs is exactly what epsilon-metric DP allows.
"""

import itertools
import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.mechanisms.dithering import lemma_10_bound
from sottovoce.privacy.envelope import greedy_bound, linear_program_bound, pairwise_renyi
from sottovoce_papers.published.formula import Formula, Input

PAPER = "MVU (Chaudhuri, Guo and Rabbat 2022)"
GRID = np.array([0.0, 0.5, 1.0])


def geometric_table(step_epsilon: float) -> Vector:
    """Return the truncated geometric mechanism on three inputs, whose adjacent rows have that loss.

    Row i has P(j) proportional to e^(-step_epsilon |i - j|); both ends hold the mass beyond them.
    """
    decay = math.exp(-step_epsilon)
    distance = np.abs(np.subtract.outer(np.arange(3), np.arange(3)))
    inner = np.array([1.0, 1.0 - decay, 1.0])
    return np.asarray(decay**distance * inner / (1.0 + decay))


def largest_losses(rows: Vector) -> Vector:
    """Return the largest log-ratio of the probability of an outcome, for each pair of rows."""
    logs = np.log(rows)
    return np.asarray((logs[:, None, :] - logs[None, :, :]).max(axis=-1))


@lru_cache(maxsize=64)
def _costs(power: int) -> Vector:
    return np.asarray(np.abs(np.subtract.outer(GRID, GRID)) ** power)


def worst_vector(values: Vector, power: int, dimension: int, budget: float) -> float:
    """Return the largest sum of `values` over the coordinates of two neighbors, by enumeration.

    Args:
        values: What one coordinate costs, for each pair of inputs of the table.
        power: The power p of the distance of two inputs.
        dimension: The number of coordinates.
        budget: The largest sum of the distances to the power p.

    Returns:
        The maximum over all pairs of vectors on the grid.
    """
    options = list(zip(_costs(power).ravel().tolist(), values.ravel().tolist(), strict=True))
    allowed = budget * (1.0 + 1e-12)
    return max(
        math.fsum(value for _, value in chosen)
        for chosen in itertools.combinations_with_replacement(options, dimension)
        if math.fsum(cost for cost, _ in chosen) <= allowed
    )


def _dithered_loss(epsilon: float, x: float) -> float:
    truth = 1.0 / (1.0 + math.exp(-epsilon))
    rows = np.array([[truth, 1.0 - truth], [1.0 - truth, truth]])
    return float(np.abs(np.log((1.0 - x) * rows[0] + x * rows[1]) - np.log(rows[0])).max())


def _vector_loss(epsilon: float, power: int, dimension: int, diameter: float) -> float:
    rows = geometric_table(epsilon * 0.5**power)
    return worst_vector(largest_losses(rows), power, dimension, diameter**power)


_Bound = Callable[[Vector, Vector, float, int], float]


def _renyi_bound(bound: _Bound) -> Callable[..., float]:
    def of(order: float, epsilon: float, dimension: int, sensitivity: float) -> float:
        rows = geometric_table(0.5 * epsilon)
        return bound(_costs(2), pairwise_renyi(rows, rows, order), sensitivity**2, dimension)

    return of


def _worst_renyi(order: float, epsilon: float, dimension: int, sensitivity: float) -> float:
    rows = geometric_table(0.5 * epsilon)
    return worst_vector(pairwise_renyi(rows, rows, order), 2, dimension, sensitivity**2)


def bitwise_response(epsilon: float, bits: int) -> Vector:
    """Return the table of bitwise randomized response: each bit is true with epsilon/bits."""
    numbers = np.arange(1 << bits)
    flips = np.bitwise_xor.outer(numbers, numbers)
    wrong = np.array([[int(one).bit_count() for one in row] for row in flips])
    log_truth = -math.log1p(math.exp(-epsilon / bits))
    return np.asarray(np.exp(bits * log_truth - wrong * epsilon / bits))


def generalized_response(epsilon: float, levels: int) -> Vector:
    """Return the table of generalized randomized response as printed."""
    total = levels + math.expm1(epsilon)
    return np.asarray(np.eye(levels) * (math.expm1(epsilon) / total) + 1.0 / total)


def _norm_quantile(norm: float, dimension: int, levels: int, failure: float) -> float:
    from scipy.stats import binom

    spacing, place = 2.0 / (levels - 1), norm / math.sqrt(dimension)
    index = min(math.floor((place + 1.0) / spacing), levels - 2)
    low = -1.0 + index * spacing
    ups = np.arange(dimension + 1)
    norms = np.sqrt(np.maximum(0.0, (dimension - ups) * low**2 + ups * (low + spacing) ** 2))
    masses = binom.pmf(ups, dimension, (place - low) / spacing)
    order = np.argsort(norms)
    beyond = 1.0 - np.cumsum(masses[order])
    return float(norms[order][np.argmax(beyond <= failure)])


def figure_2_variance(epsilon: float) -> float:
    """Return the variance of Laplace noise in figure 2, where numbers lie in [-1, 1]."""
    return 2.0 / epsilon**2


_EPSILON = Input(1.0, 0.01, 20.0)
_VECTOR = {
    "order": Input(8.0, 1.01, 1000.0),
    "epsilon": _EPSILON,
    "dimension": Input(4, 1, 6),
    "sensitivity": Input(1.0, 0.01, 3.0),
}
_ENUMERATED = (
    "exact worst case over all pairs of vectors on the grid 0, 1/2, 1, by enumeration, for the "
    "truncated geometric mechanism"
)

FORMULAS = (
    Formula(
        name="mvu-equation-3",
        paper=PAPER,
        number="equation 3 with algorithm 1",
        claim="the privacy loss between the inputs 0 and x of a dithered table on the inputs 0, 1",
        relation="at most",
        holds=False,
        correction="ratios of at most 1 + epsilon step between adjacent rows, for which the "
        "dithered table has metric DP for all inputs; the library's metric_mvu has them",
        why="Dithering interpolates the probabilities linearly, and where they are small their "
        "logarithm changes faster than epsilon per unit.",
        inputs={"epsilon": _EPSILON, "x": Input(0.5, 0.0, 1.0)},
        published=lambda epsilon, x: epsilon * x,
        true=_dithered_loss,
        truth="exact, by enumeration of the two outcomes of randomized response",
    ),
    Formula(
        name="mvu-lemma-6",
        paper=PAPER,
        number="lemma 6",
        claim="the pure epsilon of a vector whose coordinates have metric DP with |y - y'|^power",
        relation="at most",
        holds=True,
        correction="epsilon diameter^power between any two inputs of the table; not between inputs "
        "that are dithered (mvu-equation-3)",
        why="The formula is attained where the grid has inputs that share the distance exactly.",
        inputs={
            "epsilon": _EPSILON,
            "power": Input(2, 1, 2),
            "dimension": Input(2, 1, 6),
            "diameter": Input(1.0, 0.01, 3.0),
        },
        published=lambda epsilon, power, dimension, diameter: epsilon * diameter**power,  # noqa: ARG005
        true=_vector_loss,
        truth=_ENUMERATED,
    ),
    Formula(
        name="mvu-program-4",
        paper=PAPER,
        number="section 4.3, program 4",
        claim="the Renyi divergence of a vector of quantized coordinates under an L2 sensitivity",
        relation="at most",
        holds=True,
        correction="used by the library, which solves it by an envelope",
        why="The program lets a fraction of a coordinate be an option.",
        inputs={
            **_VECTOR,
            "dimension": Input(2, 1, 6),
            "sensitivity": Input(0.75, 0.01, 3.0),
        },
        published=_renyi_bound(linear_program_bound),
        true=_worst_renyi,
        truth=_ENUMERATED,
    ),
    Formula(
        name="mvu-lemma-7",
        paper=PAPER,
        number="lemma 7",
        claim="the Renyi divergence of a vector of quantized coordinates under an L2 sensitivity",
        relation="at most",
        holds=True,
        correction="true, but program 4 is never larger; the library uses the program's value",
        why="The best ratio of value to cost is paid for the whole sensitivity, even if there are "
        "too few coordinates for it.",
        inputs={**_VECTOR, "dimension": Input(1, 1, 6)},
        published=_renyi_bound(greedy_bound),
        true=_worst_renyi,
        truth=_ENUMERATED,
    ),
    Formula(
        name="mvu-theorem-8",
        paper=PAPER,
        number="theorem 8",
        claim="the pure epsilon of randomized response with epsilon/bits on each bit",
        relation="at most",
        holds=True,
        correction="used as printed",
        why="The two differ by rounding only.",
        inputs={"epsilon": _EPSILON, "bits": Input(3, 1, 7)},
        published=lambda epsilon, bits: epsilon,  # noqa: ARG005
        true=lambda epsilon, bits: float(largest_losses(bitwise_response(epsilon, bits)).max()),
        truth="exact, by enumeration of all inputs and outputs",
    ),
    Formula(
        name="mvu-theorem-9",
        paper=PAPER,
        number="theorem 9",
        claim="the pure epsilon of generalized randomized response",
        relation="at most",
        holds=True,
        correction="used as printed",
        why="The two differ by rounding only.",
        inputs={"epsilon": _EPSILON, "levels": Input(8, 2, 128)},
        published=lambda epsilon, levels: epsilon,  # noqa: ARG005
        true=lambda epsilon, levels: float(
            largest_losses(generalized_response(epsilon, levels)).max()
        ),
        truth="exact, by enumeration of all inputs and outputs",
    ),
    Formula(
        name="mvu-figure-2-laplace",
        paper=PAPER,
        number="figure 2",
        claim="the pure epsilon between any two numbers of [-1, 1] with Laplace noise of variance "
        "2/epsilon^2",
        relation="at most",
        holds=False,
        correction="the variance must be 8/epsilon^2, since two numbers may lie 2 apart",
        why="The plotted variance belongs to a sensitivity of 1, that of a number against 0.",
        inputs={"epsilon": _EPSILON},
        published=lambda epsilon: epsilon,
        true=lambda epsilon: 2.0 / math.sqrt(figure_2_variance(epsilon) / 2.0),
        truth="exact: the distance 2 divided by the scale of the noise",
    ),
    Formula(
        name="mvu-lemma-10",
        paper=PAPER,
        number="lemma 10",
        claim="the L2 norm of a dithered vector, except with probability `failure`",
        relation="at most",
        holds=True,
        correction="the printed proof has a gap; sottovoce.mechanisms.dithered_norm_bound is "
        "proved and never larger",
        why="The bound covers every vector of the norm, by an inequality with much slack.",
        inputs={
            "norm": Input(1.0, 0.0, 1.0),
            "dimension": Input(128, 1, 10**6),
            "levels": Input(8, 2, 1 << 16),
            "failure": Input(0.01, 1e-6, 0.5),
        },
        published=lambda norm, dimension, levels, failure: lemma_10_bound(
            norm, dimension, levels, failure
        ),
        true=_norm_quantile,
        truth="exact quantile for the vector whose coordinates are equal, by the binomial law",
    ),
)
