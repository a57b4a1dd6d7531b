"""UDP-FL: Renyi divergences of Gaussian, Laplace and staircase noise, and their calibration."""

import math

from sottovoce.core.adjacency import Adjacency
from sottovoce.mechanisms.noise.laws import nu_for_mean_absolute
from sottovoce.privacy.additive_noise import (
    laplace_renyi,
    product_staircase_renyi_l2,
    staircase_renyi,
)
from sottovoce.privacy.events import GaussianNoise
from sottovoce.privacy.gaussian import gaussian_epsilon
from sottovoce.privacy.renyi import renyi_divergence
from sottovoce_papers.published.formula import Formula, Input
from sottovoce_papers.published.udp_shuffling import PAPER


def density_factor(step_epsilon: float, nu: float) -> float:
    """Return the density of staircase noise at 0 as printed, in units of the step.

    1 - e^-1 stands where 1 - e^-step_epsilon must (section 4.2).
    """
    return -math.expm1(-1.0) / (2.0 * (nu + math.exp(-step_epsilon) * (1.0 - nu)))


def staircase_bracket(order: float, step_epsilon: float, nu: float) -> float:
    """Return the braces of equation 4: the printed integral over the first step."""
    both = math.exp((order - 1.0) * step_epsilon) + math.exp(-order * step_epsilon)
    sign = 0 if nu < 0.5 else 1  # equation 12
    return both * (1.0 - nu) + abs(2.0 * nu - 1.0) * math.exp(-sign * step_epsilon)


def theorem_1(order: float, step_epsilon: float, nu: float) -> float:
    """Return theorem 1 as printed, which is also theorem 2 and the staircase of table 3."""
    outside = math.exp((order - 1.0) * step_epsilon) + math.exp(-order * step_epsilon)
    bracket = staircase_bracket(order, step_epsilon, nu)
    return 0.5 * outside + bracket * density_factor(step_epsilon, nu)


def theorem_1_parameter(order: float, budget: float) -> float:
    """Return the staircase's epsilon as the proof of theorem 1 chooses it; NaN if negative."""
    if budget <= 1.0:
        return math.nan
    chosen = math.log(budget - 1.0) / (order - 1.0)
    return chosen if chosen > 0.0 else math.nan


def equation_13(order: float, shift: float) -> float:
    """Return the Renyi divergence of Laplace noise shifted by `shift` of its scales, as printed.

    1 is subtracted from both exponentials, whose weights have the sum 1: small shifts keep digits.
    """
    up = order / (2.0 * order - 1.0) * math.expm1((order - 1.0) * shift)
    down = (order - 1.0) / (2.0 * order - 1.0) * math.expm1(-order * shift)
    return math.log1p(up + down) / (order - 1.0)


def table_3_laplace(order: float, shift: float) -> float:
    """Return table 3's divergence of Laplace noise as printed: equation 13 without its braces."""
    up = order / (2.0 * order - 1.0) * math.exp((order - 1.0) * shift)
    down = (order - 1.0) / (2.0 * order - 1.0) * math.exp(-order * shift)
    return math.log(up) / (order - 1.0) + down


def table_3_nu(order: float, step_epsilon: float) -> float:
    """Return table 3's nu of the staircase as printed; NaN where its radicand is negative."""
    decay = math.expm1(-step_epsilon)
    radicand = 1.0 + decay * math.expm1(2.0 * (order - 1.0) * step_epsilon)
    return math.nan if radicand < 0.0 else 0.5 * (2.0 + decay - math.sqrt(radicand))


def theorem_7_scale(order: float, budget: float) -> float:
    """Return the smallest scale of Laplace noise that theorem 7 allows, at sensitivity 1."""
    inner = (2.0 * order - 1.0) * math.exp(budget * (order - 1.0)) + order - 1.0
    return (order - 1.0) / math.log(inner / order)


def gaussian_renyi(order: float, mu: float) -> float:
    """Return the Renyi divergence of Gaussian noise of sensitivity/stddev `mu`."""
    return renyi_divergence(GaussianNoise(mu=mu, adjacency=Adjacency.ZERO_OUT), order)


def _of_parameter(order: float, budget: float) -> float:
    chosen = theorem_1_parameter(order, budget)
    return math.nan if math.isnan(chosen) else staircase_renyi(order, chosen, 0.5, 1.0)


def _classical_stddev(order: float, delta: float) -> float:
    return 1.0 / (order * math.sqrt(2.0 * math.log(1.25 / delta)))


_ORDER = Input(2.0, 1.001, 1000.0)
_BUDGET = Input(1.0, 0.001, 100.0)
_DELTA = Input(1e-5, 1e-30, 0.5)
_SHIFT = Input(0.1, 0.001, 100.0)
_STEP_EPSILON = Input(1.0, 0.01, 100.0)
_LAPLACE = "exact Renyi divergence of Laplace noise (the library's formula)"
_STAIRCASE = "exact Renyi divergence of staircase noise (the library's formula)"
_GAUSSIAN = "exact Renyi divergence of Gaussian noise, order mu^2/2 with mu = sensitivity/stddev"

FORMULAS = (
    Formula(
        name="udp-theorem-1",
        paper=PAPER,
        number="theorems 1 and 2, equation 4, table 3",
        claim="the Renyi divergence of staircase noise for a shift of one step",
        relation="at most",
        holds=False,
        correction="log(1 + m (e^((a-1) L) - 1)(1 - e^(-a L)))/(a - 1) with m the probability of "
        "the largest loss: docs/explanation/privacy.md, section 20",
        why="The integral of the proof is printed as the divergence, without log and 1/(a-1), so "
        "it is too small near order 1 and exponentially too large at high orders.",
        inputs={
            "order": Input(1.1, 1.001, 1000.0),
            "step_epsilon": Input(5.0, 0.01, 100.0),
            "nu": Input(0.5, 0.001, 0.999),
        },
        published=theorem_1,
        true=lambda order, step_epsilon, nu: staircase_renyi(order, step_epsilon, nu, 1.0),
        truth=_STAIRCASE,
    ),
    Formula(
        name="udp-theorem-1-parameter",
        paper=PAPER,
        number="appendix A.4",
        claim="the Renyi divergence of staircase noise with lambda = log(gamma - 1)/(a - 1)",
        relation="at most",
        holds=False,
        correction="any lambda of at most gamma will do, since no Renyi divergence exceeds the "
        "pure epsilon; the library's calibration finds the largest lambda",
        why="The parameter follows from the formula of theorem 1, which is no divergence; for a "
        "budget of 2 or less it is not even positive.",
        inputs={"order": Input(1.1, 1.01, 1000.0), "budget": Input(3.0, 2.01, 100.0)},
        published=lambda order, budget: budget,  # noqa: ARG005
        true=_of_parameter,
        truth=f"{_STAIRCASE} with that lambda and nu = 1/2",
    ),
    Formula(
        name="udp-table-3-gaussian",
        paper=PAPER,
        number="table 3",
        claim="the Renyi divergence of Gaussian noise",
        relation="at most",
        holds=False,
        correction="order sensitivity^2/(2 stddev^2)",
        why="The sensitivity must be squared, so the formula is too small wherever the "
        "sensitivity exceeds 1.",
        inputs={
            "order": _ORDER,
            "sensitivity": Input(2.0, 0.001, 1000.0),
            "stddev": Input(1.0, 0.001, 1000.0),
        },
        published=lambda order, sensitivity, stddev: order * sensitivity / (2.0 * stddev**2),
        true=lambda order, sensitivity, stddev: gaussian_renyi(order, sensitivity / stddev),
        truth=_GAUSSIAN,
    ),
    Formula(
        name="udp-table-3-gaussian-stddev",
        paper=PAPER,
        number="table 3",
        claim="the Renyi divergence of Gaussian noise with the printed stddev",
        relation="at most",
        holds=False,
        correction="stddev = sensitivity sqrt(order/(2 budget)), which is theorem 6",
        why="The printed stddev does not contain the budget, so every budget gets the same noise.",
        inputs={"order": _ORDER, "budget": _BUDGET, "delta": _DELTA},
        published=lambda order, budget, delta: budget,  # noqa: ARG005
        true=lambda order, budget, delta: gaussian_renyi(  # noqa: ARG005
            order, 1.0 / _classical_stddev(order, delta)
        ),
        truth=_GAUSSIAN,
    ),
    Formula(
        name="udp-table-3-laplace",
        paper=PAPER,
        number="table 3",
        claim="the Renyi divergence of Laplace noise shifted by `shift` of its scales",
        relation="at most",
        holds=False,
        correction="equation 13 of the same paper, where the logarithm holds both terms",
        why="The braces are missing, so the logarithm holds the first term only; the value can "
        "even be negative.",
        inputs={"order": _ORDER, "shift": _SHIFT},
        published=table_3_laplace,
        true=lambda order, shift: laplace_renyi(shift, 1, order),
        truth=_LAPLACE,
    ),
    Formula(
        name="udp-table-3-laplace-scale",
        paper=PAPER,
        number="table 3",
        claim="the Renyi divergence of Laplace noise with the scale (order - 1)/budget",
        relation="at most",
        holds=False,
        correction="a scale of 1/budget or more always suffices; the library's calibration finds "
        "the smallest one from equation 13",
        why="The printed scale goes to 0 as the order goes to 1, so that the divergence grows "
        "without limit.",
        inputs={"order": Input(1.2, 1.001, 1000.0), "budget": _BUDGET},
        published=lambda order, budget: budget,  # noqa: ARG005
        true=lambda order, budget: laplace_renyi(budget / (order - 1.0), 1, order),
        truth=_LAPLACE,
    ),
    Formula(
        name="udp-table-3-nu",
        paper=PAPER,
        number="table 3",
        claim="the nu of the staircase with the least mean absolute noise",
        relation="equal to",
        holds=False,
        correction="nu = 1/(1 + e^(epsilon/2)), which lemma 1 of the same paper uses",
        why="The radicand is negative unless order and epsilon are small, and the value depends on "
        "the order, which the noise does not.",
        inputs={"order": _ORDER, "step_epsilon": _STEP_EPSILON},
        published=table_3_nu,
        true=lambda order, step_epsilon: nu_for_mean_absolute(step_epsilon),  # noqa: ARG005
        truth="the minimizer of the exact mean absolute value (Geng and Viswanath 2016)",
    ),
    Formula(
        name="udp-equation-13",
        paper=PAPER,
        number="equation 13",
        claim="the Renyi divergence of Laplace noise shifted by `shift` of its scales",
        relation="at most",
        holds=True,
        correction="exact for one number (Mironov 2017, table II); for a vector see "
        "udp-algorithm-1-laplace",
        why="The two differ by rounding only.",
        inputs={"order": _ORDER, "shift": _SHIFT},
        published=equation_13,
        true=lambda order, shift: laplace_renyi(shift, 1, order),
        truth=_LAPLACE,
    ),
    Formula(
        name="udp-theorem-6",
        paper=PAPER,
        number="theorem 6",
        claim="the Renyi divergence of Gaussian noise of variance order sensitivity^2/(2 budget)",
        relation="at most",
        holds=True,
        correction="exact; used as printed",
        why="The two differ by rounding only.",
        inputs={"order": _ORDER, "budget": _BUDGET},
        published=lambda order, budget: budget,  # noqa: ARG005
        true=lambda order, budget: gaussian_renyi(order, math.sqrt(2.0 * budget / order)),
        truth=_GAUSSIAN,
    ),
    Formula(
        name="udp-theorem-7",
        paper=PAPER,
        number="theorem 7",
        claim="the Renyi divergence of Laplace noise of the smallest scale 1/b that it allows",
        relation="at most",
        holds=False,
        correction="the last term must be -(order - 1): order e^((order - 1)/scale) at most "
        "(2 order - 1) e^(budget (order - 1)) - (order - 1) is sufficient",
        why="A term of equation 13 is moved to the other side of the inequality with the wrong "
        "sign, which makes the allowed scale too small.",
        inputs={"order": _ORDER, "budget": Input(0.1, 0.001, 100.0)},
        published=lambda order, budget: budget,  # noqa: ARG005
        true=lambda order, budget: laplace_renyi(1.0 / theorem_7_scale(order, budget), 1, order),
        truth=_LAPLACE,
    ),
    Formula(
        name="udp-algorithm-1-laplace",
        paper=PAPER,
        number="algorithm 1 with equation 13",
        claim="the Renyi divergence of a gradient, clipped to `shift` noise scales in L2 norm, "
        "with Laplace noise on every coordinate",
        relation="at most",
        holds=False,
        correction="dimension times equation 13 at shift/sqrt(dimension), which is the worst split "
        "of the shift, or clipping in L1 norm",
        why="Equation 13 is for one number; a shift that is spread over many coordinates costs "
        "more, up to order shift^2/2.",
        inputs={
            "order": _ORDER,
            "shift": Input(1.0, 0.001, 100.0),
            "dimension": Input(2, 1, 10**9),
        },
        published=lambda order, shift, dimension: equation_13(order, shift),  # noqa: ARG005
        true=lambda order, shift, dimension: laplace_renyi(shift, dimension, order),
        truth="exact Renyi divergence at the worst split (the library's formula)",
    ),
    Formula(
        name="udp-algorithm-1-staircase",
        paper=PAPER,
        number="algorithm 1 with theorem 1",
        claim="the Renyi divergence of a gradient, clipped to one step in L2 norm, with staircase "
        "noise on every coordinate",
        relation="at most",
        holds=False,
        correction="dimension times the scalar divergence at a shift of 1/sqrt(dimension) steps, "
        "which grows like sqrt(dimension); the library charges that",
        why="Theorem 1 is for one number, and independent staircase noise on the coordinates of an "
        "L2 ball costs more with every coordinate.",
        inputs={
            "order": _ORDER,
            "step_epsilon": _STEP_EPSILON,
            "dimension": Input(100, 1, 10**9),
        },
        published=lambda order, step_epsilon, dimension: theorem_1(  # noqa: ARG005
            order, step_epsilon, nu_for_mean_absolute(step_epsilon)
        ),
        true=lambda order, step_epsilon, dimension: product_staircase_renyi_l2(
            order, step_epsilon, nu_for_mean_absolute(step_epsilon), 1.0, dimension
        ),
        truth="exact Renyi divergence at the worst split (the library's formula)",
    ),
    Formula(
        name="udp-algorithm-3",
        paper=PAPER,
        number="algorithm 3",
        claim="the epsilon of Gaussian noise whose summed Renyi divergences meet the budget",
        relation="at most",
        holds=False,
        correction="convert the sum to epsilon first: add log(1/delta)/(order - 1), as section 4.1 "
        "of the same paper does",
        why="The algorithm compares a Renyi divergence with epsilon and leaves delta out.",
        inputs={"order": _ORDER, "budget": _BUDGET, "delta": _DELTA},
        published=lambda order, budget, delta: budget,  # noqa: ARG005
        true=lambda order, budget, delta: gaussian_epsilon(math.sqrt(2.0 * budget / order), delta),
        truth="exact epsilon of the same Gaussian noise at delta, without sampling",
    ),
    Formula(
        name="udp-appendix-b",
        paper=PAPER,
        number="appendix B",
        claim="the Renyi divergence of `rounds` rounds of Gaussian noise at sensitivity 1",
        relation="at most",
        holds=True,
        correction="exact without sampling; with secret samples less is spent, which it leaves out",
        why="The two differ by rounding only.",
        inputs={
            "order": _ORDER,
            "rounds": Input(150, 1, 10**6),
            "stddev": Input(10.0, 0.001, 1e6),
        },
        published=lambda order, rounds, stddev: order * rounds / (2.0 * stddev**2),
        true=lambda order, rounds, stddev: gaussian_renyi(order, math.sqrt(rounds) / stddev),
        truth=_GAUSSIAN,
    ),
)
