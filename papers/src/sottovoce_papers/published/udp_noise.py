"""UDP-FL: densities, amplitudes and variances of noise, and the convergence theorems."""

import math

from sottovoce.mechanisms.noise.laws import (
    ScalarGaussian,
    ScalarLaplace,
    ScalarStaircase,
    nu_for_mean_absolute,
)
from sottovoce_papers.published.formula import Formula, Input
from sottovoce_papers.published.udp_renyi import density_factor
from sottovoce_papers.published.udp_shuffling import PAPER


def theorem_3(step_epsilon: float, step: float, length: int) -> float:
    """Return theorem 3 as printed for one round, with the nu of lemma 1."""
    nu, decay = nu_for_mean_absolute(step_epsilon), math.exp(-step_epsilon)
    inner = nu**2 * step**2 + decay * step**2 - decay * nu**2 * step**2 + step * decay
    return length / (1.0 - decay) * inner


def lemma_1(step_epsilon: float, step: float) -> float:
    """Return lemma 1 as printed: the least mean absolute value of staircase noise."""
    return step * math.exp(step_epsilon / 2.0) / math.expm1(step_epsilon)


def theorem_4_variance(step_epsilon: float, step: float) -> float:
    """Return the variance of staircase noise as the proof of theorem 4 prints it."""
    return step**2 * math.exp(step_epsilon) / math.expm1(step_epsilon) ** 2


def staircase(step_epsilon: float, step: float = 1.0) -> ScalarStaircase:
    """Return staircase noise with the least mean absolute value."""
    return ScalarStaircase(step=step, epsilon=step_epsilon, nu=nu_for_mean_absolute(step_epsilon))


def mean_absolute_sum(scale: float, rounds: int) -> float:
    """Return the mean absolute value of a sum of `rounds` Laplace variables of that scale.

    The sum is a difference of two Gamma variables of shape T = rounds, whose mean absolute value is
    2 T C(2T, T)/4^T scales.
    """
    log_choose = math.lgamma(2.0 * rounds + 1.0) - 2.0 * math.lgamma(rounds + 1.0)
    return scale * 2.0 * rounds * math.exp(log_choose - rounds * math.log(4.0))


def _printed_mass(step_epsilon: float) -> float:
    nu = nu_for_mean_absolute(step_epsilon)
    steps = (nu + math.exp(-step_epsilon) * (1.0 - nu)) / -math.expm1(-step_epsilon)
    return 2.0 * density_factor(step_epsilon, nu) * steps


_STEP_EPSILON = Input(1.0, 0.05, 50.0)
_STEP = Input(2.0, 0.001, 1000.0)
_LENGTH = Input(1, 1, 10**9)
_ROUNDS = Input(100, 1, 10**6)
_STDDEV = Input(1.0, 0.001, 1000.0)
_ACCUMULATED = (
    "Noise of different rounds cancels in part, so its sum grows like the square root of "
)

FORMULAS = (
    Formula(
        name="udp-staircase-density",
        paper=PAPER,
        number="section 4.2",
        claim="the total probability 1 of staircase noise",
        relation="equal to",
        holds=False,
        correction="1 - e^-lambda in the place of 1 - e^-1",
        why="The density has the wrong factor, so its integral is 1 at lambda = 1 only.",
        inputs={"step_epsilon": Input(3.0, 0.05, 50.0)},
        published=_printed_mass,
        true=lambda step_epsilon: 1.0,  # noqa: ARG005
        truth="every probability density integrates to 1",
    ),
    Formula(
        name="udp-lemma-1",
        paper=PAPER,
        number="lemma 1",
        claim="the least mean absolute value of staircase noise",
        relation="equal to",
        holds=True,
        correction="used as printed (Geng and Viswanath 2016)",
        why="The two differ by rounding only.",
        inputs={"step_epsilon": _STEP_EPSILON, "step": _STEP},
        published=lemma_1,
        true=lambda step_epsilon, step: staircase(step_epsilon, step).mean_absolute,
        truth="exact moment of the noise",
    ),
    Formula(
        name="udp-theorem-3",
        paper=PAPER,
        number="theorem 3, for one round",
        claim="the mean L1 norm of staircase noise on `length` parameters",
        relation="equal to",
        holds=False,
        correction="length times lemma 1",
        why="The formula adds squared lengths to lengths, so it depends on the unit, and it leaves "
        "the density of the noise out of the integral.",
        inputs={"step_epsilon": _STEP_EPSILON, "step": _STEP, "length": _LENGTH},
        published=theorem_3,
        true=lambda step_epsilon, step, length: (
            length * staircase(step_epsilon, step).mean_absolute
        ),
        truth="exact moment of the noise",
    ),
    Formula(
        name="udp-theorem-4",
        paper=PAPER,
        number="theorem 4, the variance in its proof",
        claim="the variance of staircase noise",
        relation="equal to",
        holds=False,
        correction="the exact variance, about twice as large for small epsilon",
        why="The square of the mean absolute value is taken for the variance.",
        inputs={"step_epsilon": _STEP_EPSILON, "step": Input(1.0, 0.001, 1000.0)},
        published=theorem_4_variance,
        true=lambda step_epsilon, step: staircase(step_epsilon, step).variance,
        truth="exact moment of the noise",
    ),
    Formula(
        name="udp-theorem-5",
        paper=PAPER,
        number="theorem 5, equation 5",
        claim="the theta that minimizes the mean of L w^2/2 on the quadratic Bezier curve "
        "from v to w",
        relation="equal to",
        holds=False,
        correction="-3/4 (v + w) on this loss, whose minimum is at 0; in general train theta by "
        "gradient steps",
        why="The proof fixes the length of the step at 1/L whatever the gradient is, and replaces "
        "moments of a uniform variable by wrong ones.",
        inputs={
            "smoothness": Input(1.0, 0.001, 1000.0),
            "w": Input(1.0, -1000.0, 1000.0),
            "v": Input(0.5, -1000.0, 1000.0),
        },
        published=lambda smoothness, w, v: 1.2 / smoothness + 1.1 * w - 0.1 * v,
        true=lambda smoothness, w, v: -0.75 * (v + w),  # noqa: ARG005
        truth="exact minimizer: the integral is a quadratic function of theta",
    ),
    Formula(
        name="udp-lemma-4",
        paper=PAPER,
        number="lemma 4",
        claim="the mean absolute value of Gaussian noise",
        relation="equal to",
        holds=True,
        correction="used as printed",
        why="The two differ by rounding only.",
        inputs={"stddev": _STDDEV},
        published=lambda stddev: 2.0 * stddev / math.sqrt(2.0 * math.pi),
        true=lambda stddev: ScalarGaussian(stddev=stddev).mean_absolute,
        truth="exact moment of the noise",
    ),
    Formula(
        name="udp-lemma-5",
        paper=PAPER,
        number="lemma 5",
        claim="the mean absolute value of Laplace noise of scale sensitivity/b",
        relation="equal to",
        holds=True,
        correction="true with the scale sensitivity/b of theorem 7; theorem 9 calls b the scale",
        why="The two differ by rounding only.",
        inputs={"sensitivity": Input(1.0, 0.001, 1000.0), "b": Input(2.0, 0.001, 1000.0)},
        published=lambda sensitivity, b: sensitivity / b,
        true=lambda sensitivity, b: ScalarLaplace(scale=sensitivity / b).mean_absolute,
        truth="exact moment of the noise",
    ),
    Formula(
        name="udp-theorem-8",
        paper=PAPER,
        number="theorem 8",
        claim="the mean L1 norm of the Gaussian noise of `rounds` rounds on `length` parameters",
        relation="equal to",
        holds=False,
        correction="sqrt(rounds) times the printed value",
        why=f"{_ACCUMULATED}the rounds; the statement leaves them out, its proof counts them in "
        "full.",
        inputs={"stddev": _STDDEV, "rounds": _ROUNDS, "length": _LENGTH},
        published=lambda stddev, rounds, length: math.sqrt(  # noqa: ARG005
            2.0 * length**2 * stddev**2 / math.pi
        ),
        true=lambda stddev, rounds, length: (
            length * ScalarGaussian(stddev=math.sqrt(rounds) * stddev).mean_absolute
        ),
        truth="exact moment of the sum, which is Gaussian",
    ),
    Formula(
        name="udp-theorem-9",
        paper=PAPER,
        number="theorem 9",
        claim="the mean L1 norm of the Laplace noise of `rounds` rounds on `length` parameters",
        relation="equal to",
        holds=False,
        correction="length scale 2 T C(2T, T)/4^T for T rounds, about 2 length scale sqrt(T/pi)",
        why=f"{_ACCUMULATED}the rounds, not like their number.",
        inputs={"scale": _STDDEV, "rounds": _ROUNDS, "length": _LENGTH},
        published=lambda scale, rounds, length: rounds * length * scale,
        true=lambda scale, rounds, length: length * mean_absolute_sum(scale, rounds),
        truth="exact moment of the sum, a difference of two Gamma variables",
    ),
)
