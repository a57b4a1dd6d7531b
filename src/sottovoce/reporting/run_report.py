"""The page about one run or several: for who signs for the data, and for who trains; its charts."""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from sottovoce.core.charts.axes import HALF
from sottovoce.core.charts.lines import Line, LineChart, Quantity
from sottovoce.core.charts.scatter import Level, ScatterChart, Series
from sottovoce.core.charts.style import FIGURES, THEMES
from sottovoce.core.display import show_epsilon, show_left
from sottovoce.core.files import write_atomic
from sottovoce.privacy.accounting import ACCOUNTANTS
from sottovoce.reporting.interactive import line_figure, scatter_figure, script, templates
from sottovoce.runs.site_counts import BY_SERVER, HEADINGS, show_charged

Run = Mapping[str, Any]
Figure = dict[str, Any]

_WIDE_RANGE = 8.0  # ratio beyond which an axis is logarithmic


def privacy_figure(run: Run, identity: str) -> Figure | None:
    """Every accountant's bound by round, with the budget; None where nothing is guaranteed."""
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
            lines.append(Line(name=name, x=[x for x, _ in points], y=[y for _, y in points]))
    if not lines:
        return None
    if accounts["budget"] is not None:
        rounds = [mark["round"] for mark in marks]
        lines.append(Line(name="budget", x=rounds, y=[accounts["budget"]] * len(rounds)))
    whose = f"'{accounts['client']}'" if accounts["client"] else "whoever had spent most"
    delta = f"{run['figures']['delta']:g}"
    counted = f" {BY_SERVER}" if run["has_sites"] else ""
    chart = _chart("Epsilon by round, every bound", "epsilon", lines, "epsilon")
    return line_figure(
        chart,
        identity=identity,
        caption=f"What {whose} has spent{counted}, at delta {delta}. Each curve is an upper bound "
        "that is proved; the lowest counts.",
        log_switch=True,
    )


def training_figures(run: Run, identity: str) -> list[Figure]:
    """Accuracy and loss on test data, where they were measured."""
    found = []
    score = "1 - mean absolute error" if run["regression"] else "accuracy"
    for key, name in (("accuracy", score), ("loss", "loss")):
        lines = [line for line in [_measured(run, name, key)] if line.x]
        if lines:
            chart = _chart(f"Test {name} by round", name, lines)
            figure = line_figure(chart, identity=f"{identity}-{key}", log_switch=key == "loss")
            found.append(figure)
    return found


def traffic_figures(run: Run, identity: str) -> list[Figure]:
    """Bytes of each round, all clients together, and a client's bytes so far."""
    rows, clients = run["rows"], run["figures"]["clients"]
    if not rows:
        return []
    rounds = [row["round"] for row in rows]
    each = [
        Line(name=name, x=rounds, y=[row[key] for row in rows])
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
            caption="Up is what clients send, down is the model that they get.",
            log_switch=True,
        )
    ]
    if clients:
        so_far = [
            Line(
                name=name,
                x=rounds,
                y=[total / clients for total in accumulate(row[key] for row in rows)],
            )
            for name, key in (("up", "total_bytes_up"), ("down", "total_bytes_down"))
        ]
        chart = _chart("Bytes of a client so far", "bytes", so_far, "bytes")
        found.append(
            line_figure(
                chart,
                identity=f"{identity}-sum",
                caption="With headers, on average over all clients.",
                log_switch=True,
            )
        )
    return found


def audit_figure(profile: Sequence[Mapping[str, float]], identity: str) -> Figure | None:
    """The certified curve of an audit above what was surely there."""
    if not profile:
        return None
    epsilons = [point["epsilon"] for point in profile]
    lines = [
        Line(name=name, x=epsilons, y=[point[key] for point in profile])
        for name, key in (("certified", "certified_delta"), ("surely there", "measured_delta"))
    ]
    chart = LineChart(
        title="Certified delta by epsilon, and what the audit found",
        x_label="epsilon",
        y_label="delta",
        lines=lines,
        frame=HALF,
    )
    caption = "The certificate holds where its curve lies above the other."
    return line_figure(chart, identity=identity, caption=caption)


def comparison_figures(runs: Sequence[Run], comparison: Mapping[str, Any]) -> list[Figure]:
    """Accuracy against epsilon and bytes with the frontier, then accuracy and epsilon by round."""
    found = [
        figure
        for key, x_label in (
            ("epsilon", "epsilon"),
            ("total_bytes_up_per_client", "bytes that a client sent"),
        )
        if (figure := _frontier_figure(runs, key, x_label, comparison))
    ]
    kinds: list[tuple[str, str, Quantity]] = [
        ("accuracy", "Test accuracy by round", "number"),
        ("epsilon", "Epsilon by round, smallest bound", "epsilon"),
    ]
    for key, title, quantity in kinds:
        lines = [line for run in runs if (line := _measured(run, run["label"], key)).x]
        if lines:
            chart = _chart(title, key, lines, quantity)
            identity = f"compared-{key}"
            found.append(line_figure(chart, identity=identity, log_switch=key == "epsilon"))
    return found


def _frontier_figure(
    runs: Sequence[Run], key: str, x_label: str, comparison: Mapping[str, Any]
) -> Figure | None:
    """Accuracy against what it cost, with the best that each cost buys."""
    measured = [run for run in runs if run["figures"]["accuracy"] is not None]
    placed = [run for run in measured if run["figures"][key]]
    if not placed:
        return None
    costs = [run["figures"][key] for run in placed]
    comparable = not comparison["obstacles"]
    chart = ScatterChart(
        title=f"Accuracy against {x_label}",
        x_label=x_label,
        y_label="test accuracy",
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
        "Up and to the left is better. Dashed: the best accuracy at this cost or less."
        if comparable
        else "No frontier is drawn: these runs do not promise the same."
    )
    if chart.levels:
        caption += f" Dotted: {', '.join(level.name for level in chart.levels)}."
    return scatter_figure(chart, identity=f"frontier-{key}", caption=caption)


def _measured(run: Run, name: str, key: str) -> Line:
    points = [(row["round"], row[key]) for row in run["rows"] if row[key] is not None]
    return Line(name=name, x=[x for x, _ in points], y=[y for _, y in points])


def _chart(
    title: str, y_label: str, lines: Sequence[Line], quantity: Quantity = "number"
) -> LineChart:
    return LineChart(
        title=title, x_label="round", y_label=y_label, lines=lines, frame=HALF, quantity=quantity
    )


_CLIENTS_SHOWN = 50  # at a time
_MOST_CLIENTS = 5000  # whose rows the page holds
_FURTHER_BOUNDS = {
    "local": "as if every message were seen with its sender",
    "smallest": "the smallest of all, as the run noted it",
    "budget": "what the client may spend in all",
}


def _bounds_explained() -> dict[str, str]:
    """What each line of the epsilon picture is, in a few words."""
    own = {name: known.summary for name, known in ACCOUNTANTS.ours().items()}
    return {**own, **_FURTHER_BOUNDS}


def write_report(report: Mapping[str, Any], path: Path) -> int:
    """Write the page and return its size in bytes."""
    content = render(report).encode()
    write_atomic(path, content)
    return len(content)


def render(report: Mapping[str, Any]) -> str:
    """One self-contained page; the same report gives the same text."""
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
    """A run with its charts and the rows of its clients."""
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
    """Who has run out first, then who has spent most; so many as a page can hold.

    Of a federation, what the server counted, what sites answered and what they say they charged are
    columns of their own.
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
    """What is left of a budget, rounded down."""
    if row["budget"] is None or row["epsilon"] is None:
        return "none"
    return show_left(max(0.0, row["budget"] - row["epsilon"]))


def _size(value: float | None) -> str:
    """Bytes for people, in powers of a thousand."""
    if value is None:
        return "none"
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000.0:
            whole = unit == "bytes" or value >= 100.0
            return f"{value:,.0f} {unit}" if whole else f"{value:.3g} {unit}"
        value /= 1000.0
    return f"{value:,.0f} TB"


def _cell(value: object) -> str:
    """A figure in a table."""
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
