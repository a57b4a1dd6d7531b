"""Figures about designs of least variance, and about scalar and vector mechanisms."""

from collections.abc import Callable, Mapping

from figures.figure import (
    Figure,
    Output,
    Reader,
    Source,
    UnreadableError,
    at_most,
    failed_tests,
    field,
    tests,
)

KNOWN = Source(name="designs-known", command="python benchmarks/designs.py --known", minutes=2.0)
ENVELOPE = Source(name="envelopes", command="python benchmarks/designs.py", minutes=0.5)
WHOLE_RANGE = Source(name="designs-all", command="python benchmarks/designs.py --all", minutes=35.0)
LARGE = Source(
    name="design-8-8",
    command="sottovoce mechanism design mvu --epsilon 10 --input-bits 8 --output-bits 8 --json",
    minutes=1.2,
)
SCALAR = Source(
    name="mvu-scalar",
    command="sottovoce experiment run mvu-scalar --out {out}/study --json",
    minutes=0.2,
)
VECTOR = Source(
    name="mvu-vector-l1",
    command="sottovoce experiment run mvu-vector-l1 --out {out}/study --json",
    minutes=1.2,
)
BIAS = Source(
    name="imvu-bias",
    command="sottovoce experiment run imvu-bias --out {out}/study --json",
    minutes=0.1,
)
STRICT_LAWS = tests("contract", "tests/mechanisms/test_contract.py", 3.0)
# Mean variance of one number in [-1, 1] over 50 inputs, and mean squared errors of vectors: what
# is to be reproduced within sampling error, or undercut. {(mechanism, epsilon): value}
SCALAR_ANCHORS = {
    ("bRR, 3 bits", 1.0): 15.30,
    ("bRR, 3 bits", 3.0): 1.591,
    ("bRR, 3 bits", 5.0): 0.505,
    ("gRR, 3 bits", 1.0): 12.97,
    ("gRR, 3 bits", 3.0): 0.419,
    ("gRR, 3 bits", 5.0): 0.0571,
    ("CLDP, 1 bit", 1.0): 4.336,
    ("CLDP, 1 bit", 3.0): 0.874,
    ("CLDP, 1 bit", 5.0): 0.680,
    ("MVU, 1 bit", 1.0): 4.336,
    ("MVU, 1 bit", 3.0): 0.874,
    ("MVU, 1 bit", 5.0): 0.680,
    ("MVU, 3 bits", 1.0): 3.942,
    ("MVU, 3 bits", 3.0): 0.281,
    ("MVU, 3 bits", 5.0): 0.0597,
}
VECTOR_ANCHORS = {
    ("MVU L1, 3 bits", 1.0): 1.70e-4,
    ("MVU L1, 3 bits", 2.0): 5.09e-5,
    ("MVU L1, 3 bits", 3.0): 2.51e-5,
    ("MVU L1, 3 bits", 4.0): 1.52e-5,
    ("MVU L1, 3 bits", 5.0): 1.03e-5,
    ("Laplace", 1.0): 2.00e-4,
    ("Laplace", 2.0): 5.00e-5,
    ("Laplace", 3.0): 2.22e-5,
    ("Laplace", 4.0): 1.25e-5,
    ("Laplace", 5.0): 8.0e-6,
}
BIAS_ANCHORS = {
    ("I-MVU, 1 bit", 1.0): 0.0153,
    ("I-MVU, 1 bit", 3.0): 0.101,
    ("I-MVU, 1 bit", 5.0): 0.186,
    ("I-MVU, 1 bit", 10.0): 0.303,
}


def largest(name: str) -> Reader:
    """Return the largest of a field over a JSON list of rows."""
    return lambda output: max(float(row[name]) for row in output.json())


def largest_of(*names: str) -> Reader:
    """Return the largest of some fields of a JSON object."""

    def reader(output: Output) -> float:
        found = output.json()
        return max(float(found[name]) for name in names)

    return reader


def excess_over(anchors: Mapping[tuple[str, float], float], column: str) -> Reader:
    """Return the largest relative excess of a study's rows over known values."""
    return _against(anchors, column, lambda found, known: found / known - 1.0)


def distance_from(anchors: Mapping[tuple[str, float], float], column: str) -> Reader:
    """Return the largest relative distance of a study's rows from known values."""
    return _against(anchors, column, lambda found, known: abs(found / known - 1.0))


def _against(
    anchors: Mapping[tuple[str, float], float],
    column: str,
    compare: Callable[[float, float], float],
) -> Reader:
    def reader(output: Output) -> float:
        table = Output(text=(output.folder / "study" / "data.csv").read_text())
        rows = {(row["mechanism"], float(row["epsilon"])): row for row in table.rows()}
        if missing := anchors.keys() - rows.keys():
            raise UnreadableError(f"no rows for {sorted(missing)}")
        return max(compare(float(rows[key][column]), known) for key, known in anchors.items())

    return reader


def milliseconds_an_order(output: Output) -> float:
    return output.numbers(r", ([\d.]+) ms an order")[0]


def difference_to_linear_program(output: Output) -> float:
    return output.numbers(r"linear program(?:me)?: ([\d.e+-]+),")[0]


FIGURES = (
    Figure(
        name="design-variances",
        asked="29 designs have at most 0.1% more variance than the best known before",
        bound=at_most(1.001),
        source=KNOWN,
        read=largest("variance_over_best_known"),
        unit="times the best known",
    ),
    Figure(
        name="design-seconds",
        asked="each of these designs is solved in under 5 seconds of a processor",
        bound=at_most(5.0),
        source=KNOWN,
        read=largest("solve_seconds"),
        unit="s",
        timed=True,
    ),
    Figure(
        name="design-exact",
        asked="bias, row sums and excess over epsilon of these designs",
        bound=at_most(1e-12),
        source=KNOWN,
        read=lambda output: max(
            largest(name)(output) for name in ("max_bias", "row_error", "dp_excess", "table_bias")
        ),
    ),
    Figure(
        name="design-exact-everywhere",
        asked="the same for bits 1 to 8 and epsilon 0.05 to 50, without a failure",
        bound=at_most(1e-12),
        source=WHOLE_RANGE,
        read=largest_of("max_bias", "row_error", "dp_excess", "table_bias"),
    ),
    Figure(
        name="design-8-8-seconds",
        asked="a design of 8 bits in and out is solved in under a minute of a processor",
        bound=at_most(60.0),
        source=LARGE,
        read=field("solve_seconds"),
        unit="s",
        timed=True,
    ),
    Figure(
        name="design-8-8-table",
        asked="the integer table that runs says its own epsilon, never above the 10 asked for",
        bound=at_most(10.0),
        source=LARGE,
        read=field("table_epsilon"),
    ),
    Figure(
        name="envelope-exact",
        asked="the envelope accountant equals the linear programme",
        bound=at_most(1e-9),
        source=ENVELOPE,
        read=difference_to_linear_program,
    ),
    Figure(
        name="envelope-milliseconds",
        asked="the envelope takes under a millisecond an order",
        bound=at_most(1.0),
        source=ENVELOPE,
        read=milliseconds_an_order,
        unit="ms",
        timed=True,
    ),
    Figure(
        name="scalar-variances",
        asked="variances of one number: randomised responses, CLDP and MVU as known or less",
        bound=at_most(1e-3),
        source=SCALAR,
        read=excess_over(SCALAR_ANCHORS, "variance_mean"),
        unit="relative excess",
    ),
    Figure(
        name="vector-l1-errors",
        asked="errors of vectors in an L1 ball: Laplace and MVU as known or less",
        bound=at_most(2e-3),
        source=VECTOR,
        read=excess_over(VECTOR_ANCHORS, "mse_exact"),
        unit="relative excess",
    ),
    Figure(
        name="imvu-bias",
        asked="the largest bias of interpolated MVU at epsilon 1, 3, 5, 10 as known",
        bound=at_most(5e-3),
        source=BIAS,
        read=distance_from(BIAS_ANCHORS, "bias_max"),
        unit="relative difference",
    ),
    Figure(
        name="contract",
        asked="every registered mechanism keeps the contract: tests that fail",
        bound=at_most(0.0),
        source=STRICT_LAWS,
        read=failed_tests,
        unit="tests",
    ),
)
