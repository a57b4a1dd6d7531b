"""The page about one run or several: for who signs for the data, and for who trains the model."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.core.charts.style import FIGURES, THEMES
from sottovoce.core.display import show_epsilon, show_left
from sottovoce.core.files import write_atomic
from sottovoce.privacy.accounting import ACCOUNTANTS
from sottovoce.reporting import run_charts
from sottovoce.reporting.interactive import script, templates
from sottovoce.runs.site_counts import BY_SERVER, HEADINGS, show_charged

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
        comparison=comparison,
        compared=run_charts.comparison_figures(runs, comparison) if comparison else [],
        accountants=_bounds_explained(),
    )


def _shown(run: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A run with its charts and the rows of its clients."""
    privacy = run_charts.privacy_figure(run, f"run-{number}-epsilon")
    return {
        **run,
        "id": f"run-{number}",
        "privacy": privacy,
        "training": run_charts.training_figures(run, f"run-{number}"),
        "traffic": run_charts.traffic_figures(run, f"run-{number}-bytes"),
        "findings": [
            {
                **finding,
                "figure": run_charts.audit_figure(
                    finding.get("profile", []), f"run-{number}-finding-{place}"
                ),
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
