"""The error of an estimated mean of many clients' vectors: exact from the laws, and sampled."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.core.charts.lines import ChartLine, LineChart
from sottovoce.core.domains import Vector
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms.finite_channel import TableMechanism, interval
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.kernels.table import sample_table
from sottovoce.mechanisms.mechanism import LevelCodes, Mechanism, bits_per_coordinate
from sottovoce_papers.experiment import Row, Settings, number

LOOPED_CLIENTS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedMechanism:
    """A mechanism calibrated to one epsilon; `spent` is the epsilon that its accountant states."""

    name: str
    mechanism: Mechanism
    spent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """The mean squared error per coordinate of the estimated mean, scaled to all clients.

    `sampled_clients` is the number of clients that were encoded to measure it.
    """

    mse: float
    sampled_clients: int


def sampled_error(mechanism: Mechanism, vectors: Vector, randomness: SeededRandomness) -> Error:
    """Return the measured error of the mean after encoding, decoding and averaging.

    Table mechanisms and Gauss-Hermite treat all coordinates alike and draw the codes of all clients
    in one kernel call. The other mechanisms encode the first LOOPED_CLIENTS clients one at a time.
    They are unbiased, so the error of n clients is that of m clients times m/n.
    """
    mean = _batched_mean(mechanism, vectors, randomness)
    if mean is not None:
        error = float(np.mean((mean - vectors.mean(axis=0)) ** 2))
        return Error(mse=error, sampled_clients=len(vectors))
    part = vectors[:LOOPED_CLIENTS]
    total = np.zeros(vectors.shape[1])
    for client, vector in enumerate(part):
        stream = randomness.stream("client", client)
        total += mechanism.decode(mechanism.encode(vector, stream))
    error = float(np.mean((total / len(part) - part.mean(axis=0)) ** 2))
    return Error(mse=error * len(part) / len(vectors), sampled_clients=len(part))


def _batched_mean(
    mechanism: Mechanism, vectors: Vector, randomness: SeededRandomness
) -> Vector | None:
    """Return the mean of all clients' decoded vectors, or None if no kernel draws them at once."""
    stream = randomness.stream("all clients")
    match mechanism:
        case TableMechanism():
            low, high = interval(mechanism.input_domain)
            positions = np.clip((vectors.ravel() - low) / (high - low), 0.0, 1.0)
            codes = sample_table(positions, mechanism.table, stream)
        case GaussHermite():
            codes = mechanism.sample(vectors.ravel(), stream)
        case _:
            return None
    decoded: Vector = mechanism.decode(codes)
    return np.asarray(decoded.reshape(vectors.shape).mean(axis=0))


def exact_error(mechanism: Mechanism, vectors: Vector) -> float:
    """Return the expected MSE per coordinate, from the laws of the first clients.

        (mean over clients of the variance)/n + (mean over clients of the bias)^2

    Only eight clients are used where a law has many levels, because such laws are large.
    """
    code_format = mechanism.code_format()
    large = isinstance(code_format, LevelCodes) and code_format.levels > 1024
    part = vectors[: 8 if large else LOOPED_CLIENTS]
    variance, bias = np.zeros(vectors.shape[1]), np.zeros(vectors.shape[1])
    for vector in part:
        law = mechanism.law(vector)
        variance += law.variance() / len(part)
        bias += (law.mean() - vector) / len(part)
    return float(np.mean(variance / len(vectors) + bias**2))


def bisect_noise(
    epsilon_at: Callable[[float], float], epsilon: float, ends: Sequence[float]
) -> float:
    """Return the smallest noise with epsilon_at(noise) <= epsilon, rounded up.

    `epsilon_at` must decrease in the noise. `ends` are a noise that is too small and one that is
    large enough.
    """
    low, high = (math.log(end) for end in ends)
    while high - low > 1e-9:
        middle = (low + high) / 2.0
        if epsilon_at(math.exp(middle)) <= epsilon:
            high = middle
        else:
            low = middle
    return math.exp(high)


def measure(
    settings: Settings,
    epsilon: float,
    mechanisms: Sequence[CalibratedMechanism],
    draw: Callable[[np.random.Generator], Vector],
) -> list[Row]:
    """Return one row per mechanism: the exact error, and the sampled error over repeats.

    Each repeat draws new private vectors, which are the same for every mechanism.
    """
    rows: list[Row] = []
    for done, compared in enumerate(mechanisms):
        settings.on_step(f"epsilon {epsilon:g}", done, len(mechanisms), compared.name)
        errors = []
        for seed in range(1, settings.seeds + 1):
            randomness = SeededRandomness(seed)
            vectors = draw(randomness.generator("vectors"))
            label = int(randomness.generator(compared.name, repr(epsilon)).integers(2**62))
            errors.append(sampled_error(compared.mechanism, vectors, SeededRandomness(label)))
        values = [error.mse for error in errors]
        rows.append(
            {
                "epsilon": epsilon,
                "mechanism": compared.name,
                "bits_per_coordinate": bits_per_coordinate(compared.mechanism),
                "epsilon_spent": compared.spent,
                "mse_exact": exact_error(compared.mechanism, vectors),
                "mse_mean": float(np.mean(values)),
                "mse_stddev": float(np.std(values, ddof=1)),
                "clients_sampled": errors[0].sampled_clients,
            }
        )
    settings.on_step(f"epsilon {epsilon:g}", len(mechanisms), len(mechanisms), "done")
    return rows


def error_chart(rows: Sequence[Row], title: str) -> LineChart:
    """Return the chart of MSE by epsilon, with a band of one standard deviation over repeats."""
    names = list(dict.fromkeys(str(row["mechanism"]) for row in rows))
    lines = []
    for name in names:
        own = [row for row in rows if row["mechanism"] == name]
        means, spreads = ([number(row, key) for row in own] for key in ("mse_mean", "mse_stddev"))
        lines.append(
            ChartLine(
                name=name,
                x=[number(row, "epsilon") for row in own],
                y=means,
                low=[m - s for m, s in zip(means, spreads, strict=True)],
                high=[m + s for m, s in zip(means, spreads, strict=True)],
            )
        )
    return LineChart(
        title=title, x_label="epsilon", y_label="MSE per coordinate", lines=lines, y_log=True
    )


def exact_errors(rows: Sequence[Row]) -> Mapping[tuple[float, str], float]:
    """Return the exact MSE by epsilon and mechanism."""
    return {
        (number(row, "epsilon"), str(row["mechanism"])): number(row, "mse_exact") for row in rows
    }
