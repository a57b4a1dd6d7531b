"""Figures about waiting times of users, and about the coverage of intervals."""

from figures.figure import (
    Figure,
    Output,
    Source,
    UnreadableError,
    at_least,
    at_most,
    field,
    wall_seconds,
)

CLONE = Source(
    name="clean-demo",
    command="bash -c 'git clone -q . {out}/clone && make -s -C {out}/clone demo && "
    "rm -rf {out}/clone'",
    minutes=4.0,
)
OWN_CSV = Source(
    name="own-csv",
    command="sottovoce estimate mean examples/people.csv --column age --lower 0 --upper 120 "
    "--epsilon 1 --json",
    minutes=0.1,
)
OWN_MODEL = Source(name="own-model", command="python benchmarks/own_model_lines.py", minutes=0.2)
PAGE = Source(name="report-page", command="python benchmarks/report_page.py", minutes=2.0)
COVERAGE = Source(
    name="estimate-coverage",
    command="sottovoce experiment run estimate-coverage --out {out}/study --json",
    minutes=6.0,
)


def _plain_intervals(output: Output) -> list[float]:
    """Return the coverages of intervals that have no caveat in most repetitions."""
    rows = Output(text=(output.folder / "study" / "data.csv").read_text()).rows()
    found = [float(row["coverage"]) for row in rows if float(row["caveats"]) < 0.5]
    if len(found) < 100:
        raise UnreadableError(f"only {len(found)} intervals")
    return found


FIGURES = (
    Figure(
        name="first-model",
        asked="from a clean clone to the demo's table, installation included",
        bound=at_most(5.0),
        source=CLONE,
        read=lambda output: wall_seconds(output) / 60.0,
        unit="minutes",
        timed=True,
    ),
    Figure(
        name="own-csv",
        asked="a private mean of a column of one's own file",
        bound=at_most(120.0),
        source=OWN_CSV,
        read=wall_seconds,
        unit="s",
        timed=True,
    ),
    Figure(
        name="own-model-lines",
        asked="one's own PyTorch model, trained privately: lines of code",
        bound=at_most(14.0),
        source=OWN_MODEL,
        read=field("lines"),
        unit="lines",
    ),
    Figure(
        name="report-size",
        asked="the report of a run of 500 rounds",
        bound=at_most(3.0),
        source=PAGE,
        read=field("megabytes"),
        unit="MB",
    ),
    Figure(
        name="report-opens",
        asked="that report opens in Chromium, the slowest of three windows",
        bound=at_most(2.0),
        source=PAGE,
        read=field("opens_seconds"),
        unit="s",
        timed=True,
    ),
    Figure(
        name="coverage-least",
        asked="95% intervals of estimates, 2,000 repetitions: the least coverage without a caveat",
        bound=at_least(0.93),
        source=COVERAGE,
        read=lambda output: min(_plain_intervals(output)),
    ),
    Figure(
        name="coverage-most",
        asked="the same, the most",
        bound=at_most(0.97),
        source=COVERAGE,
        read=lambda output: max(_plain_intervals(output)),
    ),
)
