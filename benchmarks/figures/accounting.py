"""Figures about epsilons: never below the truth, close above it, and fast."""

from typing import Any

from tight_epsilons import CASES

from figures.figure import (
    Figure,
    Output,
    Reader,
    Source,
    UnreadableError,
    at_most,
    between,
    failed_tests,
    field,
    percent,
    tests,
)

ACCOUNTS = Source(name="accounts", command="python benchmarks/accounts.py", minutes=0.5)
TIGHT = Source(name="tight-epsilons", command="python benchmarks/tight_epsilons.py", minutes=0.5)
ROTATED = Source(name="rotated-mse", command="python benchmarks/rotated_mse.py", minutes=1.0)
ONE_BIT = Source(
    name="spend-one-bit",
    command="sottovoce privacy spend --mechanism gauss_hermite --param levels=2 "
    "--param noise_multiplier=1 --dimension 1000000 --rounds 1 --delta 1e-5 --json",
    minutes=0.1,
)
MORE_BITS = Source(
    name="spend-four-bits",
    command="sottovoce privacy spend --mechanism gauss_hermite --param levels=16 "
    "--param noise_multiplier=1 --dimension 1000000 --rounds 1 --delta 1e-5 --json",
    minutes=0.1,
)
SOUNDNESS = tests(
    "accounting-soundness",
    "tests/privacy/test_soundness.py tests/privacy/test_pld.py tests/privacy/test_sampling.py "
    "tests/privacy/test_shuffling.py tests/privacy/test_secure_sum.py "
    "tests/privacy/test_one_bit.py tests/privacy/test_cubic.py "
    "tests/privacy/test_sampled_swaps.py tests/privacy/test_moment_comparison.py "
    "tests/privacy/test_bellman.py tests/privacy/test_small_sums.py tests/privacy/test_blanket.py "
    "tests/privacy/test_allocation.py tests/privacy/test_filters.py",
    5.0,
)


def _row(output: Output, **given: object) -> dict[str, Any]:
    """Return the only row of accounts with these values."""
    found = [
        row for row in output.json() if all(row[name] == value for name, value in given.items())
    ]
    if len(found) != 1:
        raise UnreadableError(f"{len(found)} rows with {given}")
    return dict(found[0])


def epsilon(**given: object) -> Reader:
    return lambda output: float(_row(output, **given)["epsilon"])


def above_reference(**given: object) -> Reader:
    def reader(output: Output) -> float:
        row = _row(output, **given)
        return float(row["epsilon"]) - float(row["reference_epsilon"])

    return reader


def seconds(**given: object) -> Reader:
    return lambda output: float(_row(output, **given)["seconds"])


def found(name: str) -> Reader:
    return lambda output: float(_row(output, name=name)["found"])


def looseness(low: int, high: int) -> Reader:
    """Return the largest epsilon over the worst found, of one release in some dimensions."""

    def reader(output: Output) -> float:
        rows = [
            row
            for row in output.json()
            if row["mechanism"] == "one_bit" and row["rounds"] == 1
            if low <= row["dimension"] <= high
        ]
        return max(float(row["epsilon"]) / float(row["reference_epsilon"]) for row in rows)

    return reader


def _rotated(output: Output) -> list[tuple[float, int, list[float]]]:
    """Return rho, bits, and the mean excess by number of clients, of every row."""
    rows = []
    for line in output.text.splitlines()[1:]:
        _, rho, bits, *cells = line.replace(",", " ").split()
        rows.append((float(rho), int(bits), [percent(cell) for cell in cells[::2]]))
    if len(rows) < 42:
        raise UnreadableError(f"{len(rows)} rows, 7 dimensions by 6 rhos are expected")
    return rows


def rotated_excess(output: Output) -> float:
    return max(max(excesses) for _, _, excesses in _rotated(output))


def bits_needed(low_rho: float, high_rho: float) -> Reader:
    return lambda output: max(
        bits for rho, bits, _ in _rotated(output) if low_rho <= rho <= high_rho
    )


_ROUNDED = 1e-4  # of what is known, relative; an epsilon below it would be no bound
_GAUSSIAN = {"mechanism": "gaussian", "rounds": 1000}
_LONG = {"mechanism": "gaussian", "rounds": 100_000}
_RESPONSE = {"mechanism": "randomized_response"}
FIGURES = (
    Figure(
        name="gaussian-sampled",
        asked="1000 sampled Gaussians (rate 0.01, noise 1): above Google's PLD by at most 1e-3",
        bound=between(-4e-5, 1e-3),
        source=ACCOUNTS,
        read=above_reference(**_GAUSSIAN),
        unit="above theirs",
    ),
    Figure(
        name="gaussian-sampled-seconds",
        asked="that epsilon in under a second",
        bound=at_most(1.0),
        source=ACCOUNTS,
        read=seconds(**_GAUSSIAN),
        unit="s",
        timed=True,
    ),
    Figure(
        name="gaussian-long-seconds",
        asked="100,000 rounds in under ten seconds",
        bound=at_most(10.0),
        source=ACCOUNTS,
        read=seconds(**_LONG),
        unit="s",
        timed=True,
    ),
    Figure(
        name="response-sampled",
        asked="1000 sampled randomised responses: above the exact 1.278055 by at most 1e-4",
        bound=between(0.0, 1e-4),
        source=ACCOUNTS,
        read=above_reference(**_RESPONSE),
        unit="above",
    ),
    Figure(
        name="response-sampled-seconds",
        asked="that epsilon in under 0.3 seconds",
        bound=at_most(0.3),
        source=ACCOUNTS,
        read=seconds(**_RESPONSE),
        unit="s",
        timed=True,
    ),
    Figure(
        name="one-bit-few",
        asked="one release of up to 10 bits: at most 1.06 times the worst neighbour found",
        bound=at_most(1.06),
        source=ACCOUNTS,
        read=looseness(1, 10),
        unit="times",
    ),
    Figure(
        name="one-bit-many",
        asked="one release of 100 bits or more: at most 1.10 times the worst neighbour found",
        bound=at_most(1.10),
        source=ACCOUNTS,
        read=looseness(100, 10**9),
        unit="times",
    ),
    Figure(
        name="one-bit-sampled",
        asked="1000 rounds of sampled bits (rate 0.01, rho 0.5, d = 1000)",
        bound=at_most(1.966),
        source=ACCOUNTS,
        read=epsilon(mechanism="one_bit", dimension=1000, rounds=1000),
    ),
    Figure(
        name="rotated-excess",
        asked="automatic bits on rotated updates: error above the Gaussian's at equal rho, "
        "d 128 to 1e6, rho 0.01 to 100, up to 10,000 clients (mean over rotations)",
        bound=at_most(0.003),
        source=ROTATED,
        read=rotated_excess,
        unit="relative excess",
    ),
    Figure(
        name="rotated-bits",
        asked="bits that this takes up to rho = 20",
        bound=at_most(3.0),
        source=ROTATED,
        read=bits_needed(0.0, 20.0),
        unit="bits",
    ),
    Figure(
        name="rotated-bits-above",
        asked="bits that this takes above rho = 20",
        bound=at_most(4.0),
        source=ROTATED,
        read=bits_needed(20.1, 1e9),
        unit="bits",
    ),
    Figure(
        name="rounding-one-bit",
        asked="what exact sampling adds to rho at a million coordinates, one bit",
        bound=at_most(1e-3),
        source=ONE_BIT,
        read=field("rounding_inflation"),
        unit="relative",
    ),
    Figure(
        name="rounding-four-bits",
        asked="what exact sampling adds to rho at a million coordinates, four bits",
        bound=at_most(1e-3),
        source=MORE_BITS,
        read=field("rounding_inflation"),
        unit="relative",
    ),
    Figure(
        name="accounting-soundness",
        asked="no bound below the exact divergence: tests that fail",
        bound=at_most(0.0),
        source=SOUNDNESS,
        read=failed_tests,
        unit="tests",
    ),
    *(
        Figure(
            name=f"tight-{case.name}",
            asked=case.about,
            bound=between((1.0 - _ROUNDED) * case.known, case.goal),
            source=TIGHT,
            read=found(case.name),
            known_reason=case.reason,
        )
        for case in CASES
    ),
)
