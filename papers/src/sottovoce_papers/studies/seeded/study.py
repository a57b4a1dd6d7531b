"""Updates in a seed of 16 bytes: bytes, errors, accuracy, and amplification by a shuffler."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sottovoce.core.charts.lines import ChartLine, LineChart
from sottovoce.core.display import show_epsilon
from sottovoce_papers.experiment import (
    Experiment,
    Figure,
    Findings,
    Row,
    Settings,
    number,
    register_experiment,
)
from sottovoce_papers.kept_cells import KeptCells
from sottovoce_papers.learning.study import default_train
from sottovoce_papers.studies.seeded import shuffles as seeded_shuffles
from sottovoce_papers.studies.seeded import training as seeded_training
from sottovoce_papers.studies.seeded import vectors as seeded_vectors
from sottovoce_papers.studies.seeded.shuffles import DELTA, STEP
from sottovoce_papers.studies.seeded.vectors import GAUSSIAN, ONE_BIT, SEEDS
from sottovoce_papers.sweep import label, run_trials
from sottovoce_papers.workers import Train

NAME = "seeded"
DIMENSIONS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
FAST_DIMENSIONS = (1_000, 10_000, 100_000)
MUS, FAST_MUS = (0.25, 0.5, 1.0, 2.0, 3.0), (0.25, 1.0, 3.0)
CHARTED_MU = 1.0
EPS0S, FAST_EPS0S = (1.0, 2.0, 4.0, 5.0), (2.0, 4.0)
CLIENTS, FAST_CLIENTS = (100, 1_000, 10_000, 60_000, 1_000_000), (1_000, 60_000)
ROUNDS = (1, 3, 10)
VECTORS, SHUFFLES, TRAINING = "vectors", "shuffles", "training"
WITHIN = 0.01  # Relative to the error of one bit.
CLAIMED_EPS0, CLAIMED_CLIENTS, CLAIMED = 2.0, 1_000, 0.56
_COORDINATES, _MOST_UPDATES = 2_000_000, 200  # Limits of a cell; at least one update per seed.
_VERSION = 1
_KEYS = (
    "mechanism", "dimension", "mu", "seeds_sent", "payload_bytes", "error_over_gaussian",
    "error_low", "error_high", "encode_seconds", "server_seconds", "clients", "rounds", "delta",
    "message_epsilon", "local_epsilon", "shuffled_epsilon", "bytes_per_client", "accuracy",
    "accuracy_low", "accuracy_high",
)  # fmt: skip


def study(settings: Settings, train: Train | None = None) -> Findings:
    """Measure vectors, account for shuffles, and train small models."""
    assert settings.folder is not None, "a study needs a folder for its trials"
    found = [*_vectors(settings), *_shuffles(settings)]
    results = run_trials(
        seeded_training.grid(settings),
        settings.folder,
        jobs=settings.jobs,
        on_step=settings.on_step,
        train=train or default_train(),
    )
    trained = [_full(TRAINING, row) for row in seeded_training.rows(results)]
    rows = [*found, *trained]
    return Findings(
        rows=rows,
        figures=_figures(rows),
        verdict=verdict(rows),
        method=METHOD,
        tuning=TUNING,
        reduced=_reduced(settings),
        failures=[f"{label(one.key)}: {one.error}" for one in results if one.error],
        trials=[seeded_training.trial_row(one) for one in results],
    )


METHOD = (
    "Vectors: spiky unit vectors, rotated; seeded_sign, one bit and the Gaussian are calibrated so "
    "that the largest D_a/a over a = 2 ... 64 is mu^2/2 against nothing (zero-out). Errors are "
    "|decoded - update|^2 over the Gaussian's expected d/mu^2, with 95% intervals over updates; "
    "seconds are means on one core, the server's a 64th of one sum. "
    f"Shuffles: nothing is sampled; replace-one, delta = {DELTA:g}, the clones bound (Feldman, "
    "McMillan and Talwar 2021), rounds composed by loss distributions. One bit and the Gaussian "
    "have the noise with which they learn as the step law does; of one bit the pure epsilon grows "
    "with the dimension, the Gaussian has none, so a shuffler amplifies neither. "
    f"Training: digits, {seeded_training.CLIENTS} clients, a linear model of "
    f"{seeded_training.DIMENSION} parameters, {seeded_training.ROUNDS} rounds of all clients, one "
    "clip and one rate for all; client level, packed messages; bytes with headers. All epsilons of "
    "seeds rest on ChaCha20 being a pseudorandom generator."
)

TUNING = (
    "Clip and rate of the training were chosen by hand among few on held-out training data, with "
    "the Gaussian and the step law, and are tuned for no mechanism. The choice is not charged."
)


def _reduced(settings: Settings) -> str:
    if not settings.fast:
        return ""
    return (
        f"d up to {FAST_DIMENSIONS[-1]:,}, not {DIMENSIONS[-1]:,}; mu = "
        f"{', '.join(f'{mu:g}' for mu in FAST_MUS)} only; fewer clients and eps0; "
        f"{settings.seeds} seeds."
    )


def _full(part: str, found: Mapping[str, Any]) -> Row:
    assert set(found) <= set(_KEYS)
    return {"part": part, **{key: found.get(key) for key in _KEYS}}


def _vectors(settings: Settings) -> Iterator[Row]:
    kept = KeptCells(settings.folder, version=_VERSION)
    dimensions = FAST_DIMENSIONS if settings.fast else DIMENSIONS
    mus = FAST_MUS if settings.fast else MUS
    cells = [(dimension, mu) for dimension in dimensions for mu in mus]
    for done, (dimension, mu) in enumerate(cells):
        settings.on_step(VECTORS, done, len(cells), f"d = {dimension:,}, mu = {mu:g}")
        updates = max(settings.seeds, min(_MOST_UPDATES, _COORDINATES // dimension))
        key = {"part": VECTORS, "dimension": dimension, "mu": mu, "updates": updates}
        found = kept.find(key)
        if found is None:
            found = kept.keep(key, seeded_vectors.measure_vectors(dimension, mu, updates))
        yield from (_full(VECTORS, row) for row in found)
    settings.on_step(VECTORS, len(cells), len(cells), "done")


def _shuffles(settings: Settings) -> Iterator[Row]:
    epsilons = FAST_EPS0S if settings.fast else EPS0S
    clients = FAST_CLIENTS if settings.fast else CLIENTS
    cells = [(eps0, n, rounds) for eps0 in epsilons for n in clients for rounds in ROUNDS]
    for done, (eps0, n, rounds) in enumerate(cells):
        settings.on_step(SHUFFLES, done, len(cells), f"eps0 = {eps0:g}, {n:,} clients")
        yield from (_full(SHUFFLES, row) for row in seeded_shuffles.amplified(eps0, n, rounds))
    settings.on_step(SHUFFLES, len(cells), len(cells), "done")


def _of(rows: Sequence[Row], part: str, **wanted: object) -> list[Row]:
    return [r for r in rows if r["part"] == part and all(r[k] == v for k, v in wanted.items())]


def _eps0s(rows: Sequence[Row]) -> dict[float, list[Row]]:
    """Return rows of the step law by the message's epsilon, rounded to hundredths."""
    found: dict[float, list[Row]] = {}
    for row in _of(rows, SHUFFLES, mechanism=STEP):
        found.setdefault(round(number(row, "message_epsilon"), 2), []).append(row)
    return found


def _line(name: str, rows: Sequence[Row], x: str, y: str, *, band: bool = False) -> ChartLine:
    return ChartLine(
        name=name,
        x=[number(row, x) for row in rows],
        y=[number(row, y) for row in rows],
        low=[number(row, "error_low") for row in rows] if band else (),
        high=[number(row, "error_high") for row in rows] if band else (),
    )


def _figures(rows: Sequence[Row]) -> list[Figure]:
    return [_payloads(rows), _errors_by_mu(rows), _times(rows), _shuffled(rows)]


def _by_dimension(rows: Sequence[Row], y: str) -> list[ChartLine]:
    """Return a line for each mechanism."""
    charted = {
        name: _of(rows, VECTORS, mechanism=name, mu=CHARTED_MU)
        for name in (GAUSSIAN, ONE_BIT, SEEDS)
    }
    return [_line(name, found, "dimension", y) for name, found in charted.items()]


def _payloads(rows: Sequence[Row]) -> Figure:
    return Figure(
        name="bytes-by-dimension",
        caption=f"Payload of one update, mu = {CHARTED_MU:g}, without the header of 44 bytes.",
        chart=LineChart(
            title="Bytes of an update",
            x_label="dimension",
            y_label="bytes",
            lines=_by_dimension(rows, "payload_bytes"),
            x_log=True,
            y_log=True,
        ),
    )


def _errors_by_mu(rows: Sequence[Row]) -> Figure:
    by_mu = _of(rows, VECTORS, mechanism=SEEDS)
    lines = [
        _line(
            f"d = {d:,.0f}",
            [row for row in by_mu if row["dimension"] == d],
            "mu",
            "error_over_gaussian",
            band=True,
        )
        for d in sorted({number(row, "dimension") for row in by_mu})
    ]
    return Figure(
        name="error-by-mu",
        caption="Squared error of seeds over the Gaussian's expected one at equal rho; bands "
        "are 95% intervals over updates.",
        chart=LineChart(
            title="Error of seeds at equal rho",
            x_label="mu",
            y_label="error over the Gaussian's",
            lines=lines,
        ),
    )


def _times(rows: Sequence[Row]) -> Figure:
    return Figure(
        name="encode-by-dimension",
        caption=f"Seconds of one client on one core, mu = {CHARTED_MU:g}.",
        chart=LineChart(
            title="Time to encode an update",
            x_label="dimension",
            y_label="seconds",
            lines=_by_dimension(rows, "encode_seconds"),
            x_log=True,
            y_log=True,
        ),
    )


def _shuffled(rows: Sequence[Row]) -> Figure:
    lines = [
        _line(
            f"eps0 = {eps0:g}",
            [row for row in found if row["rounds"] == 1],
            "clients",
            "shuffled_epsilon",
        )
        for eps0, found in _eps0s(rows).items()
    ]
    return Figure(
        name="shuffled-by-clients",
        caption=f"One round of the step law, delta = {DELTA:g}; a message alone has eps0.",
        chart=LineChart(
            title="Epsilon of a shuffled update",
            x_label="clients",
            y_label="epsilon",
            lines=lines,
            x_log=True,
            y_log=True,
        ),
    )


def verdict(rows: Sequence[Row]) -> str:
    """Return which claims hold and which do not."""
    return "\n".join([*_about_vectors(rows), *_about_shuffles(rows), *_about_training(rows)])


def _about_vectors(rows: Sequence[Row]) -> Iterator[str]:
    pairs = []
    for row in _of(rows, VECTORS, mechanism=SEEDS):
        cell = {"dimension": row["dimension"], "mu": row["mu"]}
        (bits,) = _of(rows, VECTORS, mechanism=ONE_BIT, **cell)
        pairs.append((row, bits))
    ratios = {
        (number(one, "dimension"), number(one, "mu")): number(one, "error_over_gaussian")
        / number(bits, "error_over_gaussian")
        for one, bits in pairs
    }
    beyond = [cell for cell, ratio in ratios.items() if ratio > 1.0 + WITHIN]
    (d, mu), worst = max(ratios.items(), key=lambda item: item[1])
    yield (
        f"Seeds have at most {worst:.4f} times one bit's error (d = {d:,.0f}, mu = {mu:g}); "
        f"{len(ratios) - len(beyond)} of {len(ratios)} cells are within {WITHIN:.0%}."
    )
    charted = [pair for pair in pairs if pair[0]["mu"] == CHARTED_MU]
    seeds, bits = max(charted, key=lambda pair: number(pair[0], "dimension"))
    yield (
        f"At d = {number(seeds, 'dimension'):,.0f} and mu = {number(seeds, 'mu'):g} an update "
        f"takes {number(seeds, 'payload_bytes'):,.0f} bytes, "
        f"{number(bits, 'payload_bytes'):,.0f} with one bit a coordinate."
    )
    slower = [
        number(one, "encode_seconds") / number(other, "encode_seconds") for one, other in pairs
    ]
    yield (
        f"That costs time: finding seeds takes {min(slower):.0f} to {max(slower):.0f} times as "
        "long as drawing bits, "
        f"{max(number(one, 'encode_seconds') for one, _ in pairs):.2g} s at most."
    )
    larger = [
        one
        for one, other in pairs
        if number(one, "payload_bytes") >= number(other, "payload_bytes")
    ]
    if larger:
        cells = ", ".join(f"d = {number(r, 'dimension'):,.0f} at mu = {r['mu']}" for r in larger)
        yield f"Seeds are no smaller than bits for {cells}: use bits there."


def _about_shuffles(rows: Sequence[Row]) -> Iterator[str]:
    claimed = [
        row
        for row in _eps0s(rows).get(CLAIMED_EPS0, [])
        if (row["clients"], row["rounds"]) == (CLAIMED_CLIENTS, 1)
    ]
    for row in claimed:
        epsilon = number(row, "shuffled_epsilon")
        holds = "as claimed" if epsilon <= CLAIMED else "MORE than claimed"
        yield (
            f"{CLAIMED_CLIENTS} shuffled clients, eps0 = {CLAIMED_EPS0:g} between any two updates: "
            f"epsilon {show_epsilon(epsilon)} at delta {DELTA:g} ({holds}: at most {CLAIMED})."
        )
    for eps0, found in _eps0s(rows).items():
        shown = ", ".join(
            f"{_shown(row, 'shuffled_epsilon')} among {number(row, 'clients'):,.0f}"
            for row in found
            if row["rounds"] == 1
        )
        yield f"One update of eps0 = {eps0:g}: {shown}."
    bits = _of(rows, SHUFFLES, mechanism=ONE_BIT)
    gained = [r for r in bits if number(r, "shuffled_epsilon") < 0.99 * number(r, "local_epsilon")]
    yield (
        f"One bit per coordinate, with noise that learns as well, gains from a shuffler in "
        f"{len(gained)} of {len(bits)} cases; the Gaussian has no pure epsilon to shuffle."
    )


def _about_training(rows: Sequence[Row]) -> Iterator[str]:
    found = {
        str(row["mechanism"]): row for row in _of(rows, TRAINING) if row["accuracy"] is not None
    }
    for name, row in found.items():
        central = row["shuffled_epsilon"]
        behind = "" if central is None else f", central {_shown(row, 'shuffled_epsilon')}"
        yield (
            f"{name}: {number(row, 'accuracy'):.1%} ({number(row, 'accuracy_low'):.1%} to "
            f"{number(row, 'accuracy_high'):.1%}) at local epsilon "
            f"{_shown(row, 'local_epsilon')}{behind}, "
            f"{number(row, 'bytes_per_client'):,.0f} bytes a client."
        )
    ours, theirs = found.get(seeded_training.SEEDS), found.get(seeded_training.ONE_BIT)
    if ours is not None and theirs is not None:
        gap = number(ours, "accuracy") - number(theirs, "accuracy")
        half = math.hypot(_half_width(ours), _half_width(theirs))
        clear = "a clear difference" if abs(gap) > half else "no clear difference"
        yield (
            f"Accuracy of seeds minus that of one bit at the same epsilon: {100 * gap:+.2f} points "
            f"(+-{100 * half:.2f}), {clear}."
        )


def _shown(row: Row, key: str) -> str:
    return show_epsilon(number(row, key), 3)


def _half_width(row: Row) -> float:
    return (number(row, "accuracy_high") - number(row, "accuracy_low")) / 2.0


register_experiment(
    Experiment(
        name=NAME,
        title="Updates in a seed of 16 bytes, compared with one bit per coordinate and float32",
        claim="A client sends 16 bytes for a whole model update with the error of the one-bit (and "
        "the Gaussian) mechanism at equal zCDP; with the step law 1000 shuffled clients of "
        f"eps0 = {CLAIMED_EPS0:g} have epsilon at most {CLAIMED} at delta {DELTA:g}.",
        default_seeds=10,
        fast_seeds=3,
        run=study,
        trains=True,
    ),
    module=__name__,
)
