"""The charts of a run, and of several beside each other."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from sottovoce.core.charts.axes import HALF
from sottovoce.core.charts.lines import Line, LineChart, Quantity
from sottovoce.core.charts.scatter import Level, ScatterChart, Series
from sottovoce.reporting.interactive import line_figure, scatter_figure
from sottovoce.runs.site_counts import BY_SERVER

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
