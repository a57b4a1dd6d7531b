"""Figures about staircases, plans, shuffles and the ledger."""

from figures.figure import (
    Figure,
    Output,
    Reader,
    Source,
    UnreadableError,
    at_least,
    at_most,
    failed_tests,
    field,
    tests,
    wall_seconds,
)
from figures.learning import kept, trained

STAIRCASE = tests(
    "staircase-golden",
    "tests/privacy/test_staircase.py::test_golden_renyi_divergences_from_breakpoint_sums "
    "tests/mechanisms/noise/test_staircase.py::test_moments_at_epsilon_one_are_the_known_ones",
    0.2,
)
NOISE_TABLES = tests("noise-tables", "papers/tests/test_udp_noise.py", 3.0)
PREDICTIONS = Source(name="predictions", command="python benchmarks/plan.py", minutes=5.0)
GRID = Source(
    name="privatise-grid",
    command="sottovoce benchmark privatise --mechanism discrete_gaussian --json",
    minutes=0.3,
)
LEDGER = Source(name="ledger", command="python benchmarks/ledger.py", minutes=1.5)
OVERSPENDING = tests(
    "ledger-charging",
    "tests/ledger/test_charge_all.py tests/protocol/test_charging.py",
    0.5,
)
SHUFFLE = Source(
    name="udp-shuffle",
    command="sottovoce experiment run udp-shuffle --out {out}/study --json",
    minutes=1.0,
)
_PLAN = "sottovoce plan --epsilon 2 --delta 1e-5 --rounds 100 --dimension 10000 --clip-norm 1"


def _plan(geometry: str) -> Source:
    options = "" if geometry == "l2" else f" --clip-geometry {geometry}"
    # The second of two: designs that a plan needs are solved at the first and kept.
    return Source(
        name=f"plan-{geometry}", command=f"{_PLAN}{options} --json", minutes=0.2, repeats=2
    )


def prediction_error(output: Output) -> float:
    """Return the largest distance of a predicted from a simulated error, relative."""
    return max(abs(ratio - 1.0) for ratio in output.numbers(r"ratio ([\d.]+)$"))


def shuffled_epsilon(clients: int, delta: float) -> Reader:
    def reader(output: Output) -> float:
        table = Output(text=(output.folder / "study" / "data.csv").read_text()).rows()
        found = [
            row
            for row in table
            if row["part"] == "amplification" and float(row["eps0"]) == 1.0
            if int(float(row["clients"])) == clients and int(float(row["rounds"])) == 1
            if float(row["delta"]) == delta
        ]
        if len(found) != 1:
            raise UnreadableError(f"{len(found)} rows")
        return float(found[0]["shuffled_epsilon"])

    return reader


def fewest_seeds(output: Output) -> float:
    """Return the fewest seeds of a row; none may spend more than the epsilon asked."""
    counts = []
    for row in output.rows():
        asked = row.get("epsilon") if not row.get("published_epsilon") else ""
        if asked and not float(row["epsilon_spent"]) <= float(asked):
            raise UnreadableError(f"{row['mechanism']} spends {row['epsilon_spent']}")
        counts.append(int(row["seeds"]))
    return min(counts)


# {study: its data}
_STUDIES = {
    **{f"udp-{name}": "mnist" for name in ("accuracy", "clients", "sampling", "privacy")},
    **{f"udp-{name}": "mnist" for name in ("shuffler", "heterogeneous", "connectivity")},
    **{"udp-cifar10": "cifar10", "udp-scaffold-wind": "wind"},
}

FIGURES = (
    Figure(
        name="staircase-golden",
        asked="golden divergences and moments of the staircase to 1e-10: tests that fail",
        bound=at_most(0.0),
        source=STAIRCASE,
        read=failed_tests,
        unit="tests",
    ),
    Figure(
        name="noise-tables",
        asked="variances within 1% and sampled epsilons within 0.5% of the known: tests that fail",
        bound=at_most(0.0),
        source=NOISE_TABLES,
        read=failed_tests,
        unit="tests",
    ),
    *(
        Figure(
            name=f"plan-{geometry}-seconds",
            asked=f"a plan ranks all mechanisms under an {geometry} clip in under 5 seconds",
            bound=at_most(5.0),
            source=_plan(geometry),
            read=wall_seconds,
            unit="s",
            timed=True,
        )
        for geometry in ("l2", "l1", "linf")
    ),
    Figure(
        name="plan-predictions",
        asked="predicted errors within 2% of simulated ones, every mechanism",
        bound=at_most(0.02),
        source=PREDICTIONS,
        read=prediction_error,
        unit="relative",
    ),
    Figure(
        name="grid-noise-speed",
        asked="Gaussian noise on a grid, exact, one core: coordinates a second",
        bound=at_least(15e6),
        source=GRID,
        read=field("coordinates_per_second"),
        unit="a second",
        timed=True,
    ),
    Figure(
        name="ledger-seconds",
        asked="a million charges of 10,000 clients, durable, a commit a round",
        bound=at_most(60.0),
        source=LEDGER,
        read=lambda output: output.numbers(r"^  ([\d.]+) s, \d+ charges/s")[0],
        unit="s",
        timed=True,
    ),
    Figure(
        name="ledger-renyi",
        asked="a client's epsilon by Renyi, nothing cached",
        bound=at_most(50.0),
        source=LEDGER,
        read=lambda output: output.numbers(r"^  renyi +[\d.]+ in (\d+) ms")[0],
        unit="ms",
        timed=True,
    ),
    Figure(
        name="ledger-pld",
        asked="a client's epsilon by PLD, nothing cached",
        bound=at_most(1000.0),
        source=LEDGER,
        read=lambda output: output.numbers(r"^  pld +[\d.]+ in (\d+) ms")[0],
        unit="ms",
        timed=True,
    ),
    Figure(
        name="ledger-charging",
        asked="a round is charged before its first encode, two processes never overspend: "
        "tests that fail",
        bound=at_most(0.0),
        source=OVERSPENDING,
        read=failed_tests,
        unit="tests",
    ),
    Figure(
        name="shuffle-1000",
        asked="1000 shuffled clients with a local epsilon of 1, delta 1e-5",
        bound=at_most(0.1545),
        source=SHUFFLE,
        read=shuffled_epsilon(1000, 1e-5),
    ),
    Figure(
        name="shuffle-10",
        asked="ten shuffled clients buy nothing: the local epsilon stays 1.000",
        bound=at_least(0.9995),
        source=SHUFFLE,
        read=shuffled_epsilon(10, 1e-5),
    ),
    *(
        Figure(
            name=f"{name}-seeds",
            asked=f"{name}: every mechanism is trained with at least 3 seeds and spends at most "
            "the epsilon asked (but NbAFL, whose published epsilon is none)",
            bound=at_least(3),
            source=kept(name),
            read=fewest_seeds,
            unit="seeds",
            models=trained(data),
        )
        for name, data in _STUDIES.items()
    ),
    Figure(
        name="udp-cost-seeds",
        asked="udp-cost: seconds and bytes of every mechanism, each with at least 3 seeds",
        bound=at_least(3),
        source=kept("udp-cost"),
        read=fewest_seeds,
        unit="seeds",
    ),
)
