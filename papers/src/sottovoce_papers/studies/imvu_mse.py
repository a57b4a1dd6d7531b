"""Few bits against the Gaussian at equal rho: the error of a mean of unit vectors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.charts.lines import ChartLine, LineChart
from sottovoce.core.domains import L2Ball, Vector
from sottovoce.core.randomness import SeededRandomness
from sottovoce.core.statistics import mean_and_half_width
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism, bits_per_coordinate
from sottovoce.mechanisms.release import release_event
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.privacy.zcdp import total_rho
from sottovoce_papers.added_mechanisms import AddedMechanism
from sottovoce_papers.experiment import (
    NOTHING_TUNED,
    Cell,
    Figure,
    Findings,
    Row,
    Settings,
    experiment,
    number,
)
from sottovoce_papers.mean_estimation import at_rho, choose_domain, claims

DIMENSIONS, FAST_DIMENSIONS = (128, 10_000, 1_000_000), (128, 1_000)
RHOS = (0.01, 1.0, 5.0, 20.0, 100.0)
BITS = (1, 2, 3, 4)
CLIENTS = (1, 100, 10_000)
CHARTED_CLIENTS = (1, 10, 100, 1_000, 10_000, 100_000)
CHARTED_RHO = 20.0
# The paper's grid (table 1).
PUBLISHED_EPSILONS = (0.25, 0.5, 0.75, 1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
FAST_PUBLISHED_EPSILONS = (0.25, 1.0, 5.0)
SAMPLED_DIMENSION, SAMPLED_RHO, SAMPLED_CLIENTS = 128, 5.0, 100
WITHIN = 0.003  # Relative to the Gaussian's error.
FLAT, SPIKY, ROTATED = "flat", "spiky", "spiky-rotated"
PUBLISHED = "I-MVU (published), 1 bit"
OURS = {b: f"Gauss-Hermite, {b} bit{'s' if b > 1 else ''}" for b in BITS}
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitVector:
    """A vector of norm 1 as values with their counts, since the order does not matter."""

    name: str
    values: Vector
    counts: Vector

    def full(self) -> Vector:
        """Return all coordinates."""
        return np.repeat(self.values, self.counts.astype(np.intp))


def unit_vectors(dimension: int) -> list[UnitVector]:
    """Return a random direction, a single coordinate, and the latter rotated as rounds do it."""
    normals = SeededRandomness(1).generator("direction", dimension).standard_normal(dimension)
    # Slightly inside the ball, because the norm is rounded.
    inside = 1.0 - 2.0**-40
    flat = normals / np.linalg.norm(normals) * inside
    spike = inside * (np.arange(dimension) == 0)
    rotated = Rotation.of_round("imvu-mse", 1, dimension).forward(spike)
    return [
        UnitVector(name=FLAT, values=flat, counts=np.ones(dimension)),
        UnitVector(
            name=SPIKY, values=np.array([1.0, 0.0]), counts=np.array([1.0, dimension - 1.0])
        ),
        UnitVector(name=ROTATED, values=rotated, counts=np.ones(dimension)),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismAtRho:
    """A mechanism with a given rho under zero-out, for any dimension."""

    kind: str
    parameters: Mapping[str, float]

    def on(self, dimension: int) -> Mechanism:
        """Return the mechanism on the unit ball of a dimension."""
        ball = L2Ball(dimension=dimension, radius=1.0)
        return registry.find(self.kind).build(ball, self.parameters)


def calibrate(
    kind: str, parameter: str, power: float, rho: float, **given: float
) -> MechanismAtRho:
    """Return the mechanism whose accountant states this rho.

    rho must be proportional to the named parameter to the `power`.
    """
    at_one = MechanismAtRho(kind=kind, parameters={**given, parameter: 1.0}).on(1)
    stated = total_rho(release_event(at_one, adjacency=Adjacency.ZERO_OUT))
    return MechanismAtRho(
        kind=kind, parameters={**given, parameter: (rho / stated) ** (1.0 / power)}
    )


gauss_hermite = partial(calibrate, "gauss_hermite", "noise_multiplier", -2.0)
interpolated_mvu = partial(calibrate, "interpolated_mvu", "beta", 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Variance and squared bias, summed over coordinates, divided by the Gaussian's variance."""

    variance: float
    squared_bias: float

    def ratio(self, clients: int) -> float:
        """Return the MSE of the mean of clients who all hold the vector, over the Gaussian's."""
        return self.variance + clients * self.squared_bias


def exact_errors(option: MechanismAtRho, vector: UnitVector, rho: float) -> Errors:
    """Return the errors from the exact law; the Gaussian has d sigma^2 with sigma^2 = 1/(2 rho).

    Equal coordinates are computed once, and others in parts, if the mechanism promises that the law
    of a coordinate depends on nothing else.
    """
    chunk = _CHUNK
    if not registry.find(option.kind).coordinatewise:
        full = vector.full()
        vector = UnitVector(name=vector.name, values=full, counts=np.ones(len(full)))
        chunk = len(full)
    variance = squared_bias = 0.0
    for start in range(0, len(vector.values), chunk):
        part = slice(start, start + chunk)
        values, counts = vector.values[part], vector.counts[part]
        law = option.on(len(values)).law(values)
        variance += float(counts @ law.variance())
        squared_bias += float(counts @ (law.mean() - values) ** 2)
    gaussian = float(vector.counts.sum()) / (2.0 * rho)
    return Errors(variance=variance / gaussian, squared_bias=squared_bias / gaussian)


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSettings:
    """The settings of one mechanism at one rho; the best is chosen for each number of clients."""

    name: str
    bits: float
    options: Sequence[MechanismAtRho]
    errors: Sequence[Errors]

    def best(self, clients: int) -> int:
        """Return the index of the best setting."""
        ratios = [errors.ratio(clients) for errors in self.errors]
        return int(np.argmin(ratios))

    def ratio(self, clients: int) -> float:
        """Return the ratio of the best setting."""
        return self.errors[self.best(clients)].ratio(clients)


def measure_candidates(
    vector: UnitVector,
    rho: float,
    epsilons: Sequence[float],
    added: Sequence[AddedMechanism] = (),
) -> list[CandidateSettings]:
    """Return our mechanisms by bits, the published one over its epsilons, and added ones."""

    def candidates(name: str, bits: float, options: Sequence[MechanismAtRho]) -> CandidateSettings:
        errors = [exact_errors(option, vector, rho) for option in options]
        return CandidateSettings(name=name, bits=bits, options=options, errors=errors)

    ours = [candidates(OURS[b], b, [gauss_hermite(rho, levels=1 << b)]) for b in BITS]
    published = [interpolated_mvu(rho, epsilon=e, output_bits=1) for e in epsilons]
    further = []
    for one in added:
        ball = L2Ball(dimension=int(vector.counts.sum()), radius=1.0)
        mechanism = at_rho(one, choose_domain(one, [ball]), rho)
        option = MechanismAtRho(kind=one.kind, parameters=registry.parameters_of(mechanism))
        further.append(candidates(one.name, bits_per_coordinate(mechanism), [option]))
    return [*ours, candidates(PUBLISHED, 1, published), *further]


@experiment(
    "imvu-mse",
    title="The mean of unit vectors: few bits against the Gaussian at equal rho",
    claim="I-MVU achieves close to the same performance as the non-compressed Gaussian at equal "
    "privacy with one bit per coordinate; its bias is small in comparison to the noise; more bits "
    "do not improve it (I-MVU, sections 1 and 3, appendix D).",
    takes_mechanisms=True,
)
def imvu_mse(settings: Settings) -> Findings:
    """Compute exact ratios for every dimension, rho, vector and number of clients; sample some."""
    dimensions = FAST_DIMENSIONS if settings.fast else DIMENSIONS
    epsilons = FAST_PUBLISHED_EPSILONS if settings.fast else PUBLISHED_EPSILONS
    rows: list[Row] = []
    figures: list[Figure] = []
    for dimension in dimensions:
        for vector in unit_vectors(dimension):
            by_rho: dict[float, list[CandidateSettings]] = {}
            for done, rho in enumerate(RHOS):
                what = f"d = {dimension}, {vector.name}"
                settings.on_step(what, done, len(RHOS), f"rho {rho:g}")
                by_rho[rho] = measure_candidates(vector, rho, epsilons, settings.added)
                rows += _rows(dimension, vector, rho, by_rho[rho], settings.seeds)
            settings.on_step(what, len(RHOS), len(RHOS), "done")
            figures += _figures(dimension, vector.name, by_rho)
    return Findings(
        rows=rows,
        figures=figures,
        verdict=verdict(rows),
        method="Ratios are exact, from the declared laws: the sum over coordinates of variance/n "
        "plus squared bias, over the Gaussian's d sigma^2/n, rho = C^2/(2 sigma^2), adjacency "
        "zero-out, n clients who all hold the same vector. Every mechanism's own accountant states "
        "the same rho. 'flat' is one random direction (fixed seed), 'spiky' has all its norm in "
        "one coordinate, 'spiky-rotated' is that after a rotation. The published I-MVU has one bit "
        f"and the best epsilon of {', '.join(f'{e:g}' for e in epsilons)} for each number of "
        f"clients, chosen knowing the vector. Check by sampling at d = {SAMPLED_DIMENSION}, "
        f"rho = {SAMPLED_RHO:g}: "
        f"{SAMPLED_CLIENTS} clients encode, {settings.seeds} seeds, 95% intervals."
        + _told(by_rho[RHOS[0]], settings.added),
        tuning=NOTHING_TUNED,
    )


def _told(found: Sequence[CandidateSettings], added: Sequence[AddedMechanism]) -> str:
    if not added:
        return ""
    names = [one.name for one in added]
    built = [own.options[0].on(1) for own in found if own.name in names]
    lines = [
        f"Added: {'; '.join(names)}, each calibrated to rho on the ball of each dimension.",
        *claims(built, Adjacency.ZERO_OUT),
    ]
    return "".join(f"\n{line}" for line in lines)


def _rows(
    dimension: int, vector: UnitVector, rho: float, found: Sequence[CandidateSettings], seeds: int
) -> Iterator[Row]:
    for candidates in found:
        row: dict[str, Cell] = {
            "dimension": dimension,
            "vector": vector.name,
            "rho": rho,
            "mechanism": candidates.name,
            "bits": candidates.bits,
            "automatic_bits": automatic_bits(dimension, rho),
        }
        row |= {_ratio_key(n): candidates.ratio(n) for n in CLIENTS}
        best = [candidates.options[candidates.best(n)].parameters for n in CLIENTS]
        row["best_epsilons"] = " ".join(
            f"{given['epsilon']:g}" for given in best if "epsilon" in given
        )
        sampled: tuple[float | None, float | None] = None, None
        if (dimension, rho) == (SAMPLED_DIMENSION, SAMPLED_RHO):
            option = candidates.options[candidates.best(SAMPLED_CLIENTS)]
            sampled = sampled_ratio(option, vector, rho, seeds)
        row["sampled_ratio_100"], row["sampled_half_width"] = sampled
        yield row


def automatic_bits(dimension: int, rho: float) -> int:
    """Return the bits that levels = 'auto' chooses, which assumes rotated updates."""
    parameters = {**gauss_hermite(rho, levels=4).parameters, "levels": "auto"}
    ball = L2Ball(dimension=dimension, radius=1.0)
    levels = registry.find("gauss_hermite").resolve(ball, parameters)["levels"]
    return int(levels - 1).bit_length()


def _ratio_key(clients: int) -> str:
    return f"ratio_{clients}"


def sampled_ratio(
    option: MechanismAtRho, vector: UnitVector, rho: float, seeds: int
) -> tuple[float, float]:
    """Return the mean over seeds of the ratio from real encodings, and its half width."""
    truth = vector.full()
    mechanism = option.on(len(truth))
    ratios = []
    for seed in range(1, seeds + 1):
        randomness = SeededRandomness(seed)
        total = np.zeros(len(truth))
        for client in range(SAMPLED_CLIENTS):
            stream = randomness.stream(option.kind, repr(option.parameters), client)
            total += mechanism.decode(mechanism.encode(truth, stream))
        error = float(((total / SAMPLED_CLIENTS - truth) ** 2).sum())
        ratios.append(error * SAMPLED_CLIENTS * 2.0 * rho / len(truth))
    return mean_and_half_width(ratios)


def _figures(
    dimension: int, name: str, by_rho: Mapping[float, Sequence[CandidateSettings]]
) -> Iterator[Figure]:
    def figure(
        what: str, xs: Sequence[float], at: Sequence[tuple[float, int]], caption: str
    ) -> Figure:
        lines = [
            ChartLine(name=own.name, x=xs, y=[by_rho[rho][i].ratio(n) for rho, n in at])
            for i, own in enumerate(by_rho[RHOS[0]])
        ]
        chart = LineChart(
            title=f"MSE over the Gaussian's by {what}, {name}, d = {dimension}",
            x_label=what,
            y_label="MSE / the Gaussian's",
            lines=lines,
            x_log=True,
            y_log=True,
        )
        return Figure(name=f"ratio-by-{what}-{name}-{dimension}", caption=caption, chart=chart)

    most = max(CLIENTS)
    where = f"{name}, d = {dimension}"
    caption = f"{where}: the mean of {most} clients."
    yield figure("rho", RHOS, [(rho, most) for rho in RHOS], caption)
    at = [(CHARTED_RHO, n) for n in CHARTED_CLIENTS]
    caption = f"{where}, rho = {CHARTED_RHO:g}: a biased mechanism stops improving with clients."
    yield figure("clients", CHARTED_CLIENTS, at, caption)


def verdict(rows: Sequence[Row]) -> str:
    """Return the fewest bits within .3% of the Gaussian, the published ratios, and the check."""
    lines = [
        f"Fewest bits with an MSE at most {100.0 * WITHIN:g}% above the Gaussian's for "
        f"{', '.join(f'{n}' for n in CLIENTS)} clients alike:"
    ]
    for vector, dimension in dict.fromkeys((row["vector"], row["dimension"]) for row in rows):
        own = [r for r in rows if (r["vector"], r["dimension"]) == (vector, dimension)]
        parts = [f"{_fewest(own, rho)} at rho = {rho:g}" for rho in _rhos(own)]
        lines.append(f"{vector}, d = {dimension}: {', '.join(parts)}.")
    further = (_more_bits, _automatic, _published, _sampled)
    return "\n".join([*lines, *(line for part in further for line in part(rows))])


def _rhos(rows: Sequence[Row]) -> list[float]:
    return list(dict.fromkeys(number(row, "rho") for row in rows))


def _covers(row: Row) -> bool:
    return all(number(row, _ratio_key(n)) <= 1.0 + WITHIN for n in CLIENTS)


def _fewest(rows: Sequence[Row], rho: float) -> str:
    own = [row for row in rows if row["rho"] == rho and row["mechanism"] in OURS.values()]
    bits = [int(number(row, "bits")) for row in own if _covers(row)]
    most = max(int(number(row, "bits")) for row in own)
    return str(min(bits)) if bits else f"more than {most}"


def _more_bits(rows: Sequence[Row]) -> Iterator[str]:
    """Check the claim that more bits do not improve the error, for our mechanism."""
    gains = [
        number(one, _ratio_key(n)) / number(more, _ratio_key(n))
        for one in rows
        for more in rows
        if one["mechanism"] == OURS[1]
        and more["mechanism"] in (OURS[2], OURS[3])
        and all(one[key] == more[key] for key in ("vector", "dimension", "rho"))
        for n in CLIENTS
    ]
    better = sum(gain > 1.0 + WITHIN for gain in gains)
    percent = f"{100.0 * WITHIN:g}%"
    if better:
        yield (
            f"More bits do improve it: two or three have an MSE more than {percent} below one "
            f"bit's in {better} of {len(gains)} comparisons, at best {max(gains):.3g} times less. "
            "(Two-row tables, as published, cannot: their further letters carry no information.)"
        )
    elif gains:
        yield f"More bits do not improve it by more than {percent}."


def _automatic(rows: Sequence[Row]) -> Iterator[str]:
    chosen = [
        row
        for row in rows
        if row["vector"] != SPIKY
        and row["mechanism"] in OURS.values()
        and row["bits"] == row["automatic_bits"]
    ]
    if chosen:
        worst = max(number(row, _ratio_key(n)) for row in chosen for n in CLIENTS)
        most = max(int(number(row, "bits")) for row in chosen)
        yield (
            f"Automatic levels, for which updates are rotated: at most {most} bits, and an MSE of "
            f"at most {worst:.4f} of the Gaussian's."
        )


def _published(rows: Sequence[Row]) -> Iterator[str]:
    pairs = [
        (number(theirs, _ratio_key(n)), number(ours, _ratio_key(n)))
        for theirs in rows
        for ours in rows
        if theirs["mechanism"] == PUBLISHED
        and ours["mechanism"] == OURS[1]
        and all(theirs[key] == ours[key] for key in ("vector", "dimension", "rho"))
        for n in CLIENTS
    ]
    below = sum(theirs < ours for theirs, ours in pairs)
    close = sum(theirs <= 1.0 + WITHIN for theirs, _ in pairs)
    least = min(theirs / ours for theirs, ours in pairs)
    most = max(theirs / ours for theirs, ours in pairs)
    yield (
        f"The published I-MVU at its best epsilon has an MSE below our one bit's in {below} of "
        f"{len(pairs)} settings ({least:.3g} to {most:.3g} of it), and at most "
        f"{100.0 * WITHIN:g}% above the Gaussian's in {close}."
    )


def _sampled(rows: Sequence[Row]) -> Iterator[str]:
    sampled = [row for row in rows if row["sampled_ratio_100"] is not None]
    inside = sum(
        abs(number(row, "sampled_ratio_100") - number(row, _ratio_key(SAMPLED_CLIENTS)))
        <= number(row, "sampled_half_width")
        for row in sampled
    )
    if sampled:
        yield f"Sampled 95% intervals hold the exact ratio in {inside} of {len(sampled)} cases."
