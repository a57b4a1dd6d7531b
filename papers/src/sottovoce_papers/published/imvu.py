"""I-MVU, one bit per coordinate: Fisher information, Renyi divergence, and epsilon of figures.

The bit is 1 with probability 1/(1 + e^(-2 epsilon (x - 1/2))), whose Fisher information about x is
at most M = epsilon^2.
"""

import math
from collections.abc import Callable

from sottovoce.core.adjacency import Adjacency
from sottovoce.privacy import accounting
from sottovoce.privacy.conversion import epsilon_from_renyi
from sottovoce.privacy.events import OneBit, Repeated
from sottovoce.privacy.renyi import renyi_divergence
from sottovoce_papers.published.formula import Formula, Input

PAPER = "I-MVU (Guo, Chaudhuri, Stock and Rabbat 2023)"


def theorem_1(order: float, epsilon: float, distance: float) -> float:
    """Return theorem 1 as printed, a M C^2/2, for one bit per coordinate, where M = epsilon^2."""
    return order * epsilon**2 * distance**2 / 2.0


def figure_epsilon(
    epsilon: float,
    beta: float,
    records: int,
    rounds: int,
    delta: float,
    dimension: int,  # noqa: ARG001
) -> float:
    """Return the epsilon of the figures: theorem 1, composed over rounds, with equation 1.

    Without one of `records` clipped records their mean, scaled by beta, moves by at most
    beta/(2 records).
    """
    distance = beta / (2.0 * records)
    return epsilon_from_renyi(lambda a: rounds * theorem_1(a, epsilon, distance), delta)


def exact_renyi(order: float, epsilon: float, distance: float, dimension: int) -> float:
    """Return the largest Renyi divergence of the bits of two inputs at that distance."""
    bits = OneBit(
        shift=2.0 * epsilon * distance, dimension=dimension, adjacency=Adjacency.REPLACE_ONE
    )
    return renyi_divergence(bits, order)


def accounted_epsilon(adjacency: Adjacency) -> Callable[..., float]:
    """Return the function of the inputs of `figure_epsilon` that gives the library's epsilon."""

    def of(
        epsilon: float, beta: float, records: int, rounds: int, delta: float, dimension: int
    ) -> float:
        against_zero = adjacency is Adjacency.ZERO_OUT
        bits = OneBit(
            shift=epsilon * beta * (1.0 if against_zero else 2.0) / records,
            dimension=dimension,
            adjacency=adjacency,
            against_zero=against_zero and records == 1,
        )
        return accounting.epsilon(Repeated(event=bits, count=rounds), delta)

    return of


_EPSILON = Input(1.0, 0.01, 20.0)
_ORDER = Input(2.0, 1.01, 1000.0)
_DISTANCE = Input(1.0, 0.001, 100.0)
_DIMENSION = Input(10, 1, 10**9)
_FIGURES = {
    "epsilon": Input(0.25, 0.01, 20.0),
    "beta": Input(4.0, 0.001, 1000.0),
    "records": Input(1, 1, 10**6),
    "rounds": Input(1, 1, 10**6),
    "delta": Input(1e-5, 1e-12, 0.5),
    "dimension": Input(1000, 1, 10**9),
}
_RENYI = "the library's certified Renyi divergence at the worst inputs and the worst split"

FORMULAS = (
    Formula(
        name="imvu-lemma-1",
        paper=PAPER,
        number="lemma 1",
        claim="the Renyi divergence of one bit between inputs at this distance",
        relation="at most",
        holds=True,
        correction="true; the library charges the smaller, exact supremum",
        why="The bound takes the largest Fisher information everywhere between the two inputs.",
        inputs={"order": _ORDER, "epsilon": _EPSILON, "distance": _DISTANCE},
        published=theorem_1,
        true=lambda order, epsilon, distance: exact_renyi(order, epsilon, distance, 1),
        truth=_RENYI,
    ),
    Formula(
        name="imvu-theorem-1",
        paper=PAPER,
        number="theorem 1",
        claim="the Renyi divergence of a vector of bits between inputs at this L2 distance",
        relation="at most",
        holds=True,
        correction="true; nearly exact in high dimension, where the library charges little less",
        why="The bound takes the largest Fisher information everywhere between the two inputs.",
        inputs={
            "order": _ORDER,
            "epsilon": _EPSILON,
            "distance": _DISTANCE,
            "dimension": _DIMENSION,
        },
        published=lambda order, epsilon, distance, dimension: theorem_1(  # noqa: ARG005
            order, epsilon, distance
        ),
        true=exact_renyi,
        truth=_RENYI,
    ),
    Formula(
        name="imvu-scaling",
        paper=PAPER,
        number="section 3, input scaling",
        claim="the L2 norm of a scaled input x = 1/2 + beta u/(2 C)",
        relation="at most",
        holds=False,
        correction="beta/2 is the distance of x from the scaled input 0; two inputs may lie beta "
        "apart",
        why="The printed norm forgets the 1/2 that is added to every coordinate.",
        inputs={"beta": Input(1.0, 0.001, 1000.0), "dimension": Input(1, 1, 10**9)},
        published=lambda beta, dimension: beta / 2.0,  # noqa: ARG005
        true=lambda beta, dimension: (math.sqrt(dimension) + beta) / 2.0,
        truth="exact, attained by the vector of norm C with equal positive coordinates",
    ),
    Formula(
        name="imvu-figures",
        paper=PAPER,
        number="figures 2 to 4, theorem 1 with equation 1",
        claim="the epsilon of all rounds without a client, or without one of its `records` records",
        relation="at most",
        holds=True,
        correction="true for one bit per coordinate under zero-out, where the missing input counts "
        "as 0; not between any two inputs (imvu-figures-local)",
        why="The published epsilon is converted from a Renyi bound; the library composes privacy "
        "loss distributions.",
        inputs=_FIGURES,
        published=figure_epsilon,
        true=accounted_epsilon(Adjacency.ZERO_OUT),
        truth="the library's smallest sound bound under zero-out",
    ),
    Formula(
        name="imvu-figures-local",
        paper=PAPER,
        number="figures 2 to 4, read as local DP",
        claim="the epsilon of all rounds between any two inputs of a client",
        relation="at most",
        holds=False,
        correction="theorem 1 at the distance beta instead of beta/2, which is replace-one",
        why="The figures are said to show local DP, which is between any two inputs, but the "
        "sensitivity beta/2 is that from the input 0.",
        inputs=_FIGURES,
        published=figure_epsilon,
        true=accounted_epsilon(Adjacency.REPLACE_ONE),
        truth="the library's smallest sound bound under replace-one",
    ),
)
