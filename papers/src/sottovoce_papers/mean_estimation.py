"""The error of an estimated mean of many clients' vectors: exact from the laws, and sampled.

Also: calibration of the mechanisms that `--add` enters.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.charts.lines import ChartLine, LineChart
from sottovoce.core.domains import Domain, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms.finite_channel import TableMechanism, interval
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.kernels.table import sample_table
from sottovoce.mechanisms.mechanism import LevelCodes, Mechanism, bits_per_coordinate
from sottovoce.mechanisms.release import ReleaseTerms, release_event
from sottovoce.privacy import accounting
from sottovoce.privacy.compositions import describe_assumptions
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.privacy.pure import pure_epsilon
from sottovoce.privacy.zcdp import total_rho
from sottovoce_papers.added_mechanisms import AddedMechanism
from sottovoce_papers.experiment import Row, Settings, number

LOOPED_CLIENTS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedMechanism:
    """A mechanism calibrated to one epsilon; `spent` is the epsilon that its accountant states.

    `unbiased` says whether the error of some clients' mean may be scaled to that of all.
    """

    name: str
    mechanism: Mechanism
    spent: float
    unbiased: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """The mean squared error per coordinate of the estimated mean, scaled to all clients.

    `sampled_clients` is the number of clients that were encoded to measure it.
    """

    mse: float
    sampled_clients: int


def sampled_error(
    mechanism: Mechanism,
    vectors: Vector,
    randomness: SeededRandomness,
    *,
    looped: int = LOOPED_CLIENTS,
) -> Error:
    """Return the measured error of the mean after encoding, decoding and averaging.

    Table mechanisms and Gauss-Hermite treat all coordinates alike and draw the codes of all clients
    in one kernel call. The other mechanisms encode the first `looped` clients one at a time. If
    these are not all, the mechanism must be unbiased: the error of n clients is that of m times
    m/n.
    """
    mean = _batched_mean(mechanism, vectors, randomness)
    if mean is not None:
        error = float(np.mean((mean - vectors.mean(axis=0)) ** 2))
        return Error(mse=error, sampled_clients=len(vectors))
    part = vectors[:looped]
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
    epsilon_at: Callable[[float], float],
    epsilon: float,
    ends: Sequence[float],
    *,
    tolerance: float = 1e-9,
) -> float:
    """Return the smallest noise with epsilon_at(noise) <= epsilon, rounded up.

    `epsilon_at` must decrease in the noise. `ends` are a noise that is too small and one that is
    large enough; the result is within the relative tolerance.
    """
    low, high = (math.log(end) for end in ends)
    while high - low > tolerance:
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
            looped = LOOPED_CLIENTS if compared.unbiased else len(vectors)
            randomness = SeededRandomness(label)
            errors.append(sampled_error(compared.mechanism, vectors, randomness, looped=looped))
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


def choose_domain(added: AddedMechanism, domains: Sequence[Domain]) -> Domain:
    """Return the first of these domains that the mechanism is registered for.

    Each domain must contain the one before it, so that the inputs of the study lie in all of them.
    """
    known = [type(one) for one in added.registration.example_domains]
    for domain in domains:
        if type(domain) in known:
            return domain
    needed, found = (
        " or ".join(dict.fromkeys(one.__name__ for one in kinds))
        for kinds in (map(type, domains), known)
    )
    raise ParameterError(
        f"mechanism '{added.kind}' is registered for inputs in {found}, but this experiment needs "
        f"{needed}; register it with an example domain of that class, or leave out --add"
    )


def at_epsilon(
    added: AddedMechanism,
    domain: Domain,
    adjacency: Adjacency,
    epsilon: float,
    delta: float,
    *,
    pure: bool = False,
) -> CalibratedMechanism:
    """Return the mechanism calibrated to (epsilon, delta); if `pure`, to pure epsilon if it can be.

    If it cannot, its name says which delta it has.
    """

    def event_at(given: Mapping[str, object]) -> PrivacyEvent:
        return release_event(added.registration.build(domain, given), adjacency=adjacency)

    parameter = added.searched.parameter
    example = {**added.parameters, parameter: added.registration.examples[0][parameter]}
    if pure and math.isfinite(pure_epsilon(event_at(example))):
        found = _least_private(added, domain, adjacency, pure_epsilon, epsilon)
        spent = pure_epsilon(release_event(found, adjacency=adjacency))
        return CalibratedMechanism(name=added.name, mechanism=found, spent=spent, unbiased=False)
    given = added.registration.calibrated(
        domain,
        added.parameters,
        rounds=1,
        epsilon=epsilon,
        delta=delta,
        event_of=ReleaseTerms(adjacency=adjacency),
    )
    return CalibratedMechanism(
        name=f"{added.name}, delta = {delta:.3g}" if pure else added.name,
        mechanism=added.registration.build(domain, given),
        spent=accounting.epsilon(event_at(given), delta),
        unbiased=False,
    )


def at_rho(added: AddedMechanism, domain: Domain, rho: float) -> Mechanism:
    """Return the mechanism whose accountant states at most this rho under zero-out."""
    return _least_private(added, domain, Adjacency.ZERO_OUT, total_rho, rho)


def _least_private(
    added: AddedMechanism,
    domain: Domain,
    adjacency: Adjacency,
    cost: Callable[[PrivacyEvent], float],
    budget: float,
) -> Mechanism:
    """Return the mechanism with the least noise whose cost is at most the budget."""
    searched = added.searched
    power = 1.0 if searched.more_private == "larger" else -1.0

    def build(noise: float) -> Mechanism:
        given = {**added.parameters, searched.parameter: noise**power}
        return added.registration.build(domain, given)

    def cost_at(noise: float) -> float:
        return cost(release_event(build(noise), adjacency=adjacency))

    ends = [end**power for end in searched.ends_on(domain, added.parameters)]
    noise = bisect_noise(cost_at, budget, ends, tolerance=searched.relative_tolerance)
    if not cost_at(noise) <= budget:
        raise ParameterError(
            f"mechanism '{added.kind}' cannot be calibrated for this experiment: even its most "
            f"private setting costs more than {budget:g}, or no bound is known; leave out --add"
        )
    return build(noise)


def claims(found: Sequence[Mechanism], adjacency: Adjacency) -> list[str]:
    """Return a sentence for each clause that the privacy of some of these mechanisms assumes."""
    events = [release_event(one, adjacency=adjacency) for one in found]
    clauses = dict.fromkeys(clause for event in events for clause in describe_assumptions(event))
    return [f"The epsilon of what was added assumes that {clause}." for clause in clauses]


def told_of_added(added: Sequence[CalibratedMechanism], how: str) -> str:
    """Return the lines about added vectors' mechanisms for a page's method; empty without any."""
    if not added:
        return ""
    lines = [
        f"Added: {'; '.join(one.name for one in added)}. Each is calibrated to epsilon, {how}, on "
        "the ball or, if it is not made for that, on a larger domain, and encodes all clients.",
        *claims([one.mechanism for one in added], Adjacency.ZERO_OUT),
    ]
    return "".join(f"\n{line}" for line in lines)
