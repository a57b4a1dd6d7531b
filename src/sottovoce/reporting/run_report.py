"""The page about one run or several, with its charts and tables."""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from sottovoce.core.charts.axes import HALF
from sottovoce.core.charts.lines import ChartLine, LineChart, Quantity
from sottovoce.core.charts.scatter import Level, ScatterChart, Series
from sottovoce.core.charts.style import FIGURES, THEMES
from sottovoce.core.display import show_epsilon, show_remaining
from sottovoce.core.files import write_atomic
from sottovoce.privacy.accounting import ACCOUNTANTS
from sottovoce.reporting.interactive import line_figure, scatter_figure, script, templates
from sottovoce.runs.site_counts import BY_SERVER, HEADINGS, show_charged

Run = Mapping[str, Any]
Figure = dict[str, Any]

_WIDE_RANGE = 8.0  # ratio of the largest to the smallest value above which an axis is logarithmic


def privacy_figure(run: Run, identity: str) -> Figure | None:
    """Return the chart of every accountant's bound on epsilon by round, and of the budget.

    It is None if there is no finite bound: before the first round, or without a guarantee.

    Args:
        run: The run's data, as `run_data` returns it.
        identity: The id of the figure on the page.
    """
    accounts = run["accounts"]
    marks = accounts["bounds"]
    names = dict.fromkeys(name for mark in marks for name in mark["bounds"])
    lines = []
    for name in names:
        points = [
            (mark["round"], mark["bounds"][name])
            for mark in marks
            if mark["bounds"].get(name) is not None
        ]
        if points:
            lines.append(ChartLine(name=name, x=[x for x, _ in points], y=[y for _, y in points]))
    if not lines:
        return None
    if accounts["budget"] is not None:
        rounds = [mark["round"] for mark in marks]
        lines.append(ChartLine(name="budget", x=rounds, y=[accounts["budget"]] * len(rounds)))
    whose = f"'{accounts['client']}'" if accounts["client"] else "the client that had spent most"
    delta = f"{run['figures']['delta']:g}"
    counted = f" {BY_SERVER}" if run["has_sites"] else ""
    chart = _chart("Epsilon by round, every bound", "epsilon", lines, "epsilon")
    return line_figure(
        chart,
        identity=identity,
        caption=f"What {whose} has spent{counted}, at delta {delta}. Each curve is a proved upper "
        "bound; the smallest one is reported.",
        log_switch=True,
    )


def training_figures(run: Run, identity: str) -> list[Figure]:
    """Return charts of accuracy and loss on test data; empty if they were not measured.

    Args:
        run: The run's data, as `run_data` returns it.
        identity: The beginning of the figures' ids.
    """
    found = []
    score = run["figures"]["score"]
    for key, name in (("accuracy", score), ("loss", "loss")):
        lines = [line for line in [_measured(run, name, key)] if line.x]
        if lines:
            chart = _chart(f"Test {name} by round", name, lines)
            figure = line_figure(chart, identity=f"{identity}-{key}", log_switch=key == "loss")
            found.append(figure)
    return found + _statistics_figures(run, identity)


def _statistics_figures(run: Run, identity: str) -> list[Figure]:
    """Return charts of what clients measured privately; empty if they measured nothing."""
    found = []
    for key, name in (
        ("private_accuracy", "accuracy on clients' records, private"),
        ("private_loss", "loss on clients' records, private"),
        ("clip_norm", "clipping norm"),
    ):
        rows = [row for row in run["rows"] if row.get(key) is not None]
        lines = [_measured({"rows": rows}, name, key)]
        if not rows:
            continue
        error = rows[-1].get("private_evaluation_error")
        caption = ""
        if key != "clip_norm" and error is not None:
            caption = f"The standard error of each point is about {error:.2g}."
        chart = _chart(f"{name[0].upper()}{name[1:]}, by round", name, lines)
        found.append(line_figure(chart, identity=f"{identity}-{key}", caption=caption))
    return found


def traffic_figures(run: Run, identity: str) -> list[Figure]:
    """Return charts of the bytes of each round, and of the bytes per client so far.

    There are none before the first round.

    Args:
        run: The run's data, as `run_data` returns it.
        identity: The beginning of the figures' ids.
    """
    rows, clients = run["rows"], run["figures"]["clients"]
    if not rows:
        return []
    rounds = [row["round"] for row in rows]
    each = [
        ChartLine(name=name, x=rounds, y=[row[key] for row in rows])
        for name, key in (
            ("up, with headers", "total_bytes_up"),
            ("up, payload", "payload_bytes_up"),
            ("down, with headers", "total_bytes_down"),
            ("down, payload", "payload_bytes_down"),
        )
    ]
    chart = _chart("Bytes by round, all clients", "bytes", each, "bytes")
    found = [
        line_figure(
            chart,
            identity=f"{identity}-round",
            caption="Up: sent by clients. Down: the model that clients receive.",
            log_switch=True,
        )
    ]
    if clients:
        so_far = [
            ChartLine(
                name=name,
                x=rounds,
                y=[total / clients for total in accumulate(row[key] for row in rows)],
            )
            for name, key in (("up", "total_bytes_up"), ("down", "total_bytes_down"))
        ]
        chart = _chart("Bytes per client so far", "bytes", so_far, "bytes")
        found.append(
            line_figure(
                chart,
                identity=f"{identity}-sum",
                caption="With headers, averaged over all clients.",
                log_switch=True,
            )
        )
    return found


def audit_figure(profile: Sequence[Mapping[str, float]], identity: str) -> Figure | None:
    """Return the chart of an audit: certified delta, and its measured lower bound, by epsilon.

    Args:
        profile: The points of both curves: `epsilon`, `certified_delta` and `measured_delta`.
        identity: The id of the figure on the page.

    Returns:
        The chart; None if there are no points.
    """
    if not profile:
        return None
    epsilons = [point["epsilon"] for point in profile]
    lines = [
        ChartLine(name=name, x=epsilons, y=[point[key] for point in profile])
        for name, key in (
            ("certified", "certified_delta"),
            ("at least, measured", "measured_delta"),
        )
    ]
    chart = LineChart(
        title="Certified delta by epsilon, and the measured lower bound",
        x_label="epsilon",
        y_label="delta",
        lines=lines,
        frame=HALF,
    )
    caption = "A lower bound above the certified curve would be a violation."
    return line_figure(chart, identity=identity, caption=caption)


def comparison_figures(runs: Sequence[Run], comparison: Mapping[str, Any]) -> list[Figure]:
    """Return charts that compare runs: the frontiers, then accuracy and epsilon by round.

    A frontier is drawn of accuracy against epsilon, and against bytes, if runs are comparable.

    Args:
        runs: The data of the runs, as `run_data` returns it, each with its `label`.
        comparison: What `compare_runs` returns for them.
    """
    found = [
        figure
        for key, x_label in (
            ("epsilon", "epsilon"),
            ("total_bytes_up_per_client", "bytes sent per client"),
        )
        if (figure := _frontier_figure(runs, key, x_label, comparison))
    ]
    score = _common_score(runs)
    kinds: list[tuple[str, str, Quantity]] = [
        ("accuracy", f"Test {score} by round", "number"),
        ("epsilon", "Epsilon by round, smallest bound", "epsilon"),
    ]
    for key, title, quantity in kinds:
        lines = [line for run in runs if (line := _measured(run, run["label"], key)).x]
        if lines:
            chart = _chart(title, key, lines, quantity)
            identity = f"compared-{key}"
            found.append(line_figure(chart, identity=identity, log_switch=key == "epsilon"))
    return found


def _common_score(runs: Sequence[Run]) -> str:
    """Return the name of the runs' most important figure, or "score" if they have several."""
    names = {str(run["figures"]["score"]) for run in runs}
    return names.pop() if len(names) == 1 else "score"


def _frontier_figure(
    runs: Sequence[Run], key: str, x_label: str, comparison: Mapping[str, Any]
) -> Figure | None:
    """Return the chart of accuracy against a cost, with the Pareto frontier if comparable."""
    measured = [run for run in runs if run["figures"]["accuracy"] is not None]
    placed = [run for run in measured if run["figures"][key]]
    if not placed:
        return None
    costs = [run["figures"][key] for run in placed]
    comparable, score = not comparison["obstacles"], _common_score(runs)
    chart = ScatterChart(
        title=f"{score[0].upper()}{score[1:]} against {x_label}",
        x_label=x_label,
        y_label=f"test {score}",
        series=[
            Series(name=run["label"], x=[cost], y=[run["figures"]["accuracy"]])
            for run, cost in zip(placed, costs, strict=True)
        ],
        levels=[
            Level(name=f"{run['label']}, no privacy", y=run["figures"]["accuracy"])
            for run in measured
            if run["figures"][key] is None
        ],
        x_log=max(costs) > _WIDE_RANGE * min(costs),
        frontiers="common" if comparable else "none",
        frame=HALF,
        apart_pixels=0,
    )
    caption = (
        f"Up and to the left is better. Dashed: the best {score} at this cost or less."
        if comparable
        else "No frontier is drawn: these runs have different guarantees."
    )
    if chart.levels:
        caption += f" Dotted: {', '.join(level.name for level in chart.levels)}."
    return scatter_figure(chart, identity=f"frontier-{key}", caption=caption)


def _measured(run: Run, name: str, key: str) -> ChartLine:
    points = [(row["round"], row[key]) for row in run["rows"] if row[key] is not None]
    return ChartLine(name=name, x=[x for x, _ in points], y=[y for _, y in points])


def _chart(
    title: str, y_label: str, lines: Sequence[ChartLine], quantity: Quantity = "number"
) -> LineChart:
    return LineChart(
        title=title, x_label="round", y_label=y_label, lines=lines, frame=HALF, quantity=quantity
    )


_CLIENTS_SHOWN = 50  # rows of clients that are shown at a time
_MOST_CLIENTS = 5000  # rows of clients that the page contains
_FURTHER_BOUNDS = {
    "local": "the bound if every message were seen with its sender",
    "smallest": "the smallest of all bounds, as the run recorded it",
    "budget": "what the client may spend in total",
}


def _bounds_explained() -> dict[str, str]:
    """Return an explanation of each line in the chart of epsilon."""
    own = {name: known.summary for name, known in ACCOUNTANTS.ours().items()}
    return {**own, **_FURTHER_BOUNDS}


def write_report(report: Mapping[str, Any], path: Path) -> int:
    """Write the page about runs as one HTML file.

    Args:
        report: The data, as `report_of` returns it.
        path: The HTML file to write; an existing one is replaced.

    Returns:
        The size of the page in bytes.

    Raises:
        OutputError: The file cannot be written.
        ModuleNotFoundError: jinja2, of the extra `report`, is not installed.
    """
    content = render(report).encode()
    write_atomic(path, content)
    return len(content)


def render(report: Mapping[str, Any]) -> str:
    """Return the page about runs as HTML text that loads no other file.

    Args:
        report: The data, as `report_of` returns it; the same data gives the same text.
    """
    environment = templates()
    environment.filters |= {"epsilon": _epsilon, "size": _size, "cell": _cell, "left": _left}
    environment.filters["charged"] = show_charged
    runs = report["runs"]
    comparison = report["comparison"]
    return environment.get_template("run_report.html").render(
        style=f"{THEMES}\n{FIGURES}",
        script=script(),
        title=" and ".join(run["label"] for run in runs) if len(runs) < 3 else f"{len(runs)} runs",
        runs=[_shown(run, number) for number, run in enumerate(runs, start=1)],
        statement=report["statement"],
        comparison=comparison,
        compared=comparison_figures(runs, comparison) if comparison else [],
        accountants=_bounds_explained(),
    )


def _shown(run: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return a run's data with its charts and the table of its clients."""
    privacy = privacy_figure(run, f"run-{number}-epsilon")
    return {
        **run,
        "id": f"run-{number}",
        "privacy": privacy,
        "training": training_figures(run, f"run-{number}"),
        "traffic": traffic_figures(run, f"run-{number}-bytes"),
        "findings": [
            {
                **finding,
                "figure": audit_figure(finding.get("profile", []), f"run-{number}-finding-{place}"),
            }
            for place, finding in enumerate(run["findings"], start=1)
        ],
        "client_table": _client_table(run["accounts"]["clients"], has_sites=run["has_sites"]),
    }


def _client_table(clients: Sequence[Mapping[str, Any]], *, has_sites: bool) -> dict[str, Any]:
    """Return the table of clients: those out of budget first, then by what they spent.

    For a federation, what the server counted, what sites answered and what they say they charged
    are separate columns.
    """

    def rank(row: Mapping[str, Any]) -> tuple[bool, float]:
        spent = row["epsilon"]
        return not row["ran_out"], -(math.inf if spent is None else spent)

    grouped = len({row["group"] for row in clients}) > 1
    counts, by = ["rounds"], ""
    headings = ["rounds charged"]
    if has_sites:
        counts = [name for name in HEADINGS if all(name in row for row in clients)]
        headings, by = [HEADINGS[name] for name in counts], f", {BY_SERVER}"
    columns = ["client", *headings, f"epsilon{by or ' spent'}", "budget", f"left, at least{by}"]
    columns += ["delta", f"ran out{by}"]
    rows = [
        [
            row["client"],
            *(show_charged(row) if name == "site_charged" else str(row[name]) for name in counts),
            _epsilon(row["epsilon"]),
            "none" if row["budget"] is None else f"{row['budget']:.15g}",
            _left(row),
            f"{row['delta']:g}",
            {True: "yes", False: "no"}.get(row["ran_out"], "not yet known"),
        ]
        for row in sorted(clients, key=rank)[:_MOST_CLIENTS]
    ]
    if grouped:
        columns.insert(1, "group")
        for cells, row in zip(rows, sorted(clients, key=rank), strict=False):
            cells.insert(1, "" if row["group"] is None else str(row["group"]))
    return {
        "columns": columns,
        "rows": rows,
        "first": rows[:_CLIENTS_SHOWN],
        "most": _CLIENTS_SHOWN,
        "all": len(clients),
    }


def _epsilon(value: float | None) -> str:
    return "no guarantee" if value is None else show_epsilon(value)


def _left(row: Mapping[str, Any]) -> str:
    """Return what is left of a budget, rounded down."""
    if row["budget"] is None or row["epsilon"] is None:
        return "none"
    return show_remaining(max(0.0, row["budget"] - row["epsilon"]))


def _size(value: float | None) -> str:
    """Return a number of bytes with its unit, in powers of a thousand."""
    if value is None:
        return "none"
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000.0:
            whole = unit == "bytes" or value >= 100.0
            return f"{value:,.0f} {unit}" if whole else f"{value:.3g} {unit}"
        value /= 1000.0
    return f"{value:,.0f} TB"


def _cell(value: object) -> str:
    """Return the text of a value in a table."""
    match value:
        case None:
            return "none"
        case float():
            return f"{value:.4g}"
        case int():
            return f"{value:,}"
        case dict():
            return ", ".join(f"{key} {_cell(item)}" for key, item in value.items())
        case _:
            return str(value)
