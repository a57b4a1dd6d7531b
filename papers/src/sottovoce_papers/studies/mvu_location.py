"""MVU section 4.1 in the plane: a density map from geo-indistinguishable locations."""

import math
from collections.abc import Sequence

import numpy as np

from sottovoce.analytics import places as location
from sottovoce.analytics.places import SquareMap
from sottovoce.core.charts.grids import HeatMap, MapPanel
from sottovoce.core.charts.lines import ChartLine, LineChart
from sottovoce.core.domains import Vector
from sottovoce.core.randomness import SeededRandomness
from sottovoce.core.statistics import mean_and_half_width
from sottovoce.mechanisms.kernels.table import sample_table
from sottovoce.mechanisms.metric_mvu import MetricMvu
from sottovoce_papers.experiment import NOTHING_TUNED, Figure, Findings, Row, Settings, experiment

AREA = SquareMap(latitude=0.0, longitude=0.0, side_km=10.0)
CELLS, NUM_PEOPLE = 8, 20_000
EPSILONS_PER_KM = (0.5, 1.0, 2.0, 4.0)
BITS = (2, 3, 4)
FAST_EPSILONS_PER_KM, FAST_BITS, FAST_NUM_PEOPLE = (2.0,), (2, 3), 4_000
LAPLACE = "planar Laplace in cells, 6 bits"
SHOWN_EPSILON = 2.0


def draw_city(generator: np.random.Generator, count: int) -> Vector:
    """Return locations of a center, a suburb, a valley and everywhere, in kilometers."""
    kind = generator.choice(4, size=count, p=[0.45, 0.2, 0.2, 0.15])
    normal = generator.normal(size=(count, 2))
    along = generator.uniform(-4.5, 4.5, size=count)
    everywhere = generator.uniform(-5.0, 5.0, size=(count, 2))
    places = np.select(
        [(kind == 0)[:, None], (kind == 1)[:, None], (kind == 2)[:, None]],
        [
            0.8 * normal,
            np.array([3.0, -2.5]) + 0.5 * normal,
            np.column_stack((along, 2.5 + 0.4 * along)) + 0.3 * normal,
        ],
        default=everywhere,
    )
    return np.asarray(np.clip(places, AREA.domain.lower, AREA.domain.upper))


def histogram(places: Vector) -> Vector:
    """Return the share of people in each cell."""
    edges = np.linspace(AREA.domain.lower, AREA.domain.upper, CELLS + 1)
    clipped = np.clip(places, edges[0], edges[-1])
    counts = np.histogram2d(clipped[:, 0], clipped[:, 1], bins=(edges, edges))[0]
    return np.asarray(counts / len(places))


def distance(first: Vector, second: Vector) -> float:
    """Return the total variation distance: the share of people who would have to move."""
    return float(np.abs(first - second).sum()) / 2.0


def mvu_density(mechanism: MetricMvu, places: Vector, seed: int) -> Vector:
    """Return the map from the codes of all people, drawn at once by the mechanism's sampler."""
    on_unit = ((places - AREA.domain.lower) / AREA.side_km).ravel()
    keystream = SeededRandomness(seed).stream("places", repr(mechanism.epsilon))
    codes = sample_table(on_unit, mechanism.table, keystream)
    return location.density_map(mechanism, codes.reshape(-1, 2), cells=CELLS)


def planar_laplace(places: Vector, epsilon_per_km: float, generator: np.random.Generator) -> Vector:
    """Return noisy locations, with density proportional to e^(-epsilon r).

    The angle is uniform and the radius is Gamma(2, 1/epsilon).
    """
    angle = generator.uniform(0.0, 2.0 * math.pi, size=len(places))
    radius = generator.gamma(2.0, 1.0 / epsilon_per_km, size=len(places))
    return np.asarray(places + radius[:, None] * np.column_stack((np.cos(angle), np.sin(angle))))


def planar_laplace_density(
    places: Vector, epsilon_per_km: float, generator: np.random.Generator
) -> Vector:
    """Return the maximum-likelihood map from noisy locations put into cells.

    The channel between cells is estimated by simulation.
    """
    observed = histogram(planar_laplace(places, epsilon_per_km, generator)).ravel()
    middles = AREA.domain.lower + AREA.side_km * (np.arange(CELLS) + 0.5) / CELLS
    channel = np.empty((CELLS**2, CELLS**2))
    for number in range(CELLS**2):
        middle = np.array([middles[number // CELLS], middles[number % CELLS]])
        noisy = planar_laplace(np.tile(middle, (4000, 1)), epsilon_per_km, generator)
        channel[number] = histogram(noisy).ravel()
    channel = 0.999 * channel + 0.001 / CELLS**2  # No cell is impossible because of few samples.
    density = np.full(CELLS**2, 1.0 / CELLS**2)
    for _ in range(500):
        density *= channel @ (observed / (density @ channel))
        density /= density.sum()
    return density.reshape(CELLS, CELLS)


@experiment(
    "mvu-location",
    title="A density map from a few private bits of each person (MVU, section 4.1)",
    claim="MVU adapts to metric DP for location privacy: fine-grained places are hidden while "
    "coarse-grained ones are preserved, at a few bits a place. (The paper has no figure for it.)",
    seeds=5,
)
def mvu_location(settings: Settings) -> Findings:
    """Measure the total variation between estimated and true map, also for the planar Laplace."""
    epsilons = FAST_EPSILONS_PER_KM if settings.fast else EPSILONS_PER_KM
    bits_shown = FAST_BITS if settings.fast else BITS
    num_people = FAST_NUM_PEOPLE if settings.fast else NUM_PEOPLE
    rows: list[Row] = []
    panels: list[MapPanel] = []
    names = [*(f"MVU, {2 * bits} bits a place" for bits in bits_shown), LAPLACE]
    total = len(epsilons) * len(names)
    for epsilon in epsilons:
        for index, name in enumerate(names):
            settings.on_step("maps", len(rows), total, f"epsilon {epsilon:g} per km, {name}")
            distances = []
            for seed in range(1, settings.seeds + 1):
                generator = np.random.default_rng(seed)
                places = draw_city(generator, num_people)
                truth = histogram(places)
                if name == LAPLACE:
                    found = planar_laplace_density(places, epsilon, generator)
                else:
                    mechanism = location.mechanism_for(
                        AREA, epsilon_per_km=epsilon, bits=bits_shown[index]
                    )
                    found = mvu_density(mechanism, places, seed)
                distances.append(distance(found, truth))
            if epsilon == SHOWN_EPSILON:
                if not panels:
                    panels.append(MapPanel(name="truth", matrix=_northern_first(truth)))
                panels.append(MapPanel(name=name, matrix=_northern_first(found)))
            mean, half = mean_and_half_width(distances)
            rows.append(
                {
                    "epsilon_per_km": epsilon,
                    "mechanism": name,
                    "bits_a_place": 6 if name == LAPLACE else 2 * bits_shown[index],
                    "total_variation": mean,
                    "half_width_95": half,
                    "total_variation_of_a_uniform_guess": distance(
                        truth, np.full((CELLS, CELLS), 1.0 / CELLS**2)
                    ),
                }
            )
    settings.on_step("maps", total, total, "done")
    return Findings(
        rows=rows,
        figures=[
            Figure(
                name="total-variation",
                caption="The share of people who would have to move to turn the estimated map into "
                f"the true one, {CELLS} x {CELLS} cells; bands are 95% intervals over seeds.",
                chart=_chart(rows, names),
            ),
            Figure(
                name="maps",
                caption=f"One draw at epsilon = {SHOWN_EPSILON:g} per km; north is up, cells are "
                f"{AREA.side_km / CELLS:g} km wide.",
                chart=HeatMap(title="Density maps, true and estimated", panels=panels),
            ),
        ],
        verdict=_verdict(rows, names, epsilons),
        method=f"{num_people} people of an artificial city, {AREA.side_km:g} km square, "
        f"{settings.seeds} draws of people and noise. P(place) <= e^(epsilon distance) P(place') "
        "for all of them. MVU sends two codes, sampled exactly, each coordinate with "
        "epsilon/sqrt(2), and is unbiased; the planar Laplace (float noise: simulation grade) "
        "sends the number of the cell that the noisy place falls into, and is biased at the edges. "
        "Both maps are maximum likelihood estimates by expectation maximization.",
        tuning=NOTHING_TUNED,
    )


def _northern_first(density: Vector) -> list[list[float]]:
    return [[float(share) for share in row] for row in density.T[::-1]]


def _chart(rows: Sequence[Row], names: Sequence[str]) -> LineChart:
    lines = []
    for name in names:
        points = [row for row in rows if row["mechanism"] == name]
        means, halves, epsilons = (
            [float(point[key] or 0.0) for point in points]
            for key in ("total_variation", "half_width_95", "epsilon_per_km")
        )
        lines.append(
            ChartLine(
                name=name,
                x=epsilons,
                y=means,
                low=[mean - half for mean, half in zip(means, halves, strict=True)],
                high=[mean + half for mean, half in zip(means, halves, strict=True)],
            )
        )
    return LineChart(
        title="Total variation to the true map by epsilon per km",
        x_label="epsilon per km",
        y_label="total variation",
        lines=lines,
    )


def _verdict(rows: Sequence[Row], names: Sequence[str], epsilons: Sequence[float]) -> str:
    at = {(row["mechanism"], row["epsilon_per_km"]): row["total_variation"] for row in rows}
    listed = ", ".join(f"{epsilon:g}" for epsilon in epsilons)
    lines = [f"Total variation to the true map, at epsilon = {listed} per km:"]
    for name in names:
        values = ", ".join(f"{at[name, epsilon]:.3f}" for epsilon in epsilons)
        lines.append(f"{name}: {values}")
    guess = rows[0]["total_variation_of_a_uniform_guess"]
    winners = "; ".join(
        f"at epsilon {e:g}, {min(names, key=lambda name: float(at[name, e] or 0.0))}"
        for e in epsilons
    )
    lines.append(f"A uniform guess: {guess:.3f}. Nearest to the truth: {winners}.")
    return "\n".join(lines)
