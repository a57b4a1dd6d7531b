"""MVU section 2.3: which estimates of the mean converge to the truth with many clients.

The three truncated mechanisms here are examples of what not to do: they are biased, and none of
them is a mechanism of this library. Only their sampling laws are implemented, in integers or
float64, to measure that bias.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.charts.lines import ChartLine, LineChart
from sottovoce.core.domains import Box, L2Ball, Vector
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import FiniteLaw
from sottovoce.mechanisms.release import ReleaseTerms
from sottovoce_papers.experiment import NOTHING_TUNED, Figure, Findings, Row, Settings, experiment

EPSILON, DELTA = 1.0, 1e-5
BITS = 4  # Of the two biased grids.
END_POINT = 1.0  # Every client holds the upper end of [-1, 1].
CLIENTS = tuple(10**k for k in range(2, 7))
FAST_CLIENTS = (100, 1_000, 10_000)
MVU, GENERALIZED = "MVU, 3 bits", "gRR, 3 bits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """The law of one client's decoded value when it holds END_POINT.

    `draw_mean` draws the mean of n clients.
    """

    name: str
    unbiased: bool
    mean: float
    variance: float
    draw_mean: Callable[[int, np.random.Generator], float]


def _finite(name: str, letters: Vector, pmf: Vector, *, unbiased: bool) -> Scheme:
    """Return a scheme with finitely many letters: n clients are one multinomial draw."""
    pmf = pmf / pmf.sum()
    mean = float(pmf @ letters)

    def draw_mean(clients: int, generator: np.random.Generator) -> float:
        return float(generator.multinomial(clients, pmf) @ letters) / clients

    return Scheme(
        name=name,
        unbiased=unbiased,
        mean=mean,
        variance=float(pmf @ (letters - mean) ** 2),
        draw_mean=draw_mean,
    )


@cache
def noise_stddev() -> float:
    """Return the Gaussian's noise for (EPSILON, DELTA) between any two points of [-1, 1]."""
    found = registry.find("gaussian").calibrated(
        L2Ball(dimension=1, radius=1.0),
        {},
        rounds=1,
        epsilon=EPSILON,
        delta=DELTA,
        event_of=ReleaseTerms(adjacency=Adjacency.REPLACE_ONE),
    )
    return float(found["noise_multiplier"])


def truncated_gaussian() -> Scheme:
    """Return a BIASED EXAMPLE: x + N(0, sigma^2), clipped to [-1, 1]."""
    from scipy.special import ndtr

    sigma = noise_stddev()
    width = 2.0 / sigma  # Seen from x = 1, all of [-1, 1] lies below.
    density = math.exp(-0.5 * width**2) / math.sqrt(2.0 * math.pi)
    inside = float(ndtr(width)) - 0.5
    first = sigma * (1.0 / math.sqrt(2.0 * math.pi) - density)  # Mean shortfall inside [-1, 1].
    second = sigma**2 * (inside - width * density)
    below = float(ndtr(-width))
    shortfall, square = first + 2.0 * below, second + 4.0 * below

    def draw_mean(clients: int, generator: np.random.Generator) -> float:
        noisy = END_POINT + sigma * generator.standard_normal(clients)
        return float(np.clip(noisy, -1.0, 1.0).mean())

    return Scheme(
        name="truncated Gaussian",
        unbiased=False,
        mean=END_POINT - shortfall,
        variance=square - shortfall**2,
        draw_mean=draw_mean,
    )


def _grid() -> tuple[Vector, float]:
    """Return 2^BITS even points that reach one standard deviation beyond [-1, 1], and their step.

    Both ends of [-1, 1] are points of the grid.
    """
    reach = 1.0 + noise_stddev()
    half = 2 ** (BITS - 1) - 1
    steps_to_end = max(1, round(half / reach))
    step = END_POINT / steps_to_end
    return step * np.arange(-half - 1, half + 1), step


def truncated_discrete_gaussian() -> Scheme:
    """Return a BIASED EXAMPLE: discrete Gaussian noise on a grid, clipped to the grid."""
    grid, step = _grid()
    wide = step * np.arange(-4000, 4001)
    mass = np.exp(-0.5 * (wide / noise_stddev()) ** 2)
    ends = np.clip(END_POINT + wide, grid[0], grid[-1])
    codes = np.rint((ends - grid[0]) / step).astype(np.intp)
    pmf = np.bincount(codes, weights=mass, minlength=len(grid)).astype(np.float64)
    return _finite(f"truncated discrete Gaussian, {BITS} bits", grid, pmf, unbiased=False)


def wrapped_skellam() -> Scheme:
    """Return a BIASED EXAMPLE: Skellam noise on a grid, modulo 2^BITS."""
    from scipy.special import ive

    grid, step = _grid()
    shifts = np.arange(-4000, 4001)
    mass = ive(np.abs(shifts).astype(np.float64), (noise_stddev() / step) ** 2)
    start = round((END_POINT - grid[0]) / step)
    codes = (start + shifts) % len(grid)
    pmf = np.bincount(codes, weights=mass, minlength=len(grid)).astype(np.float64)
    return _finite(f"Skellam modulo 2^{BITS}", grid, pmf, unbiased=False)


def registered(name: str, kind: str, **given: object) -> Scheme:
    """Return a mechanism of the library as a scheme, by its declared law."""
    box = Box(dimension=1, lower=-1.0, upper=1.0)
    law = registry.find(kind).build(box, given).law([END_POINT])
    assert isinstance(law, FiniteLaw)
    return _finite(name, law.points, law.table[0], unbiased=True)


def schemes() -> list[Scheme]:
    """Return the three biased examples and two unbiased mechanisms."""
    return [
        truncated_gaussian(),
        truncated_discrete_gaussian(),
        wrapped_skellam(),
        registered(GENERALIZED, "generalized_rr", epsilon=EPSILON, bits=3),
        registered(MVU, "mvu", epsilon=EPSILON, input_bits=3, output_bits=3),
    ]


@experiment(
    "mvu-consistency",
    title="Error of the mean as clients become many, all at the interval's end (MVU, section 2.3)",
    claim="An unbiased mechanism of bounded variance is asymptotically consistent. Truncated "
    "Gaussian and discrete Gaussian noise, and Skellam noise after truncation, are biased at the "
    "interval's end, so their mean does not approach the truth for any number of clients.",
    seeds=20,
)
def mvu_consistency(settings: Settings) -> Findings:
    """Compute bias and MSE by the number of clients, exactly and over sampled cohorts."""
    counts = FAST_CLIENTS if settings.fast else CLIENTS
    rows: list[Row] = []
    lines = []
    found = schemes()
    for done, scheme in enumerate(found):
        settings.on_step("schemes", done, len(found), scheme.name)
        bias = scheme.mean - END_POINT
        errors = []
        for clients in counts:
            squares = []
            for seed in range(1, settings.seeds + 1):
                generator = SeededRandomness(seed).generator(scheme.name, clients)
                squares.append((scheme.draw_mean(clients, generator) - END_POINT) ** 2)
            errors.append(bias**2 + scheme.variance / clients)
            rows.append(
                {
                    "mechanism": scheme.name,
                    "clients": clients,
                    "bias": bias,
                    "mse_exact": errors[-1],
                    "mse_sampled": float(np.mean(squares)),
                    "mse_sampled_stderr": float(np.std(squares, ddof=1) / len(squares) ** 0.5),
                }
            )
        lines.append(ChartLine(name=scheme.name, x=[float(n) for n in counts], y=errors))
    settings.on_step("schemes", len(found), len(found), "done")
    return Findings(
        rows=rows,
        figures=[
            Figure(
                name="mse-by-clients",
                caption="Exact MSE of the mean if every client holds the upper end of [-1, 1]. An "
                "unbiased mechanism falls as 1/n; a biased one stops at its bias squared.",
                chart=LineChart(
                    title="MSE of the mean by number of clients",
                    x_label="clients",
                    y_label="MSE of the mean",
                    lines=lines,
                    x_log=True,
                    y_log=True,
                ),
            )
        ],
        verdict=_verdict(rows, counts, found),
        method=f"Every client holds x = 1 in [-1, 1]. gRR and MVU are {EPSILON:g}-DP over the "
        "interval; the biased examples have noise of standard deviation "
        f"{noise_stddev():.3g}, as the Gaussian needs for ({EPSILON:g}, {DELTA:g})-DP, cut off at "
        "[-1, 1] "
        f"(Gaussian) or on a grid of {2**BITS} points (discrete Gaussian cut off, Skellam wrapped "
        "around). They are illustrations inside this experiment, not mechanisms of the library. "
        "Bias and MSE are exact, from the laws; 'mse sampled' is the mean squared error over "
        f"{settings.seeds} sampled cohorts (a cohort with finitely many letters is one multinomial "
        "draw).",
        tuning=NOTHING_TUNED,
    )


def _verdict(rows: Sequence[Row], counts: Sequence[int], found: Sequence[Scheme]) -> str:
    exact = {(row["mechanism"], row["clients"]): row["mse_exact"] for row in rows}
    first, last = counts[0], counts[-1]

    def fall(name: str) -> float:
        before, after = exact[name, first], exact[name, last]
        assert isinstance(before, float)
        assert isinstance(after, float)
        return before / after

    falls = "; ".join(f"{scheme.name} {fall(scheme.name):.3g}" for scheme in found)
    consistent = all(
        (fall(scheme.name) > 0.99 * last / first) == scheme.unbiased for scheme in found
    )
    biases = ", ".join(
        f"{scheme.name} {scheme.mean - END_POINT:+.2g}" for scheme in found if not scheme.unbiased
    )
    falling = f"From {first} to {last} clients the MSE falls by a factor of: {falls}"
    if not consistent:
        return f"{falling}; this is NOT what the paper says."
    return (
        f"{falling}. A factor of {last // first} means 1/n: only the unbiased mechanisms have it, "
        f"as the paper says.\nBiases that remain: {biases}."
    )
