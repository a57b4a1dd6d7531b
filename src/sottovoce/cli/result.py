"""What a run has come to, wherever it ran."""

from pathlib import Path
from typing import Any

from sottovoce.cli.output import print_fields, print_json, print_table, print_warning, say, show
from sottovoce.runs.site_counts import round_note as round_note

# Of a federation, where sites have ledgers of their own.
_BY_SERVER = {
    "epsilon": "server-counted epsilon",
    "local_epsilon": "server-counted local_epsilon",
    "clients_out_of_budget": "clients out of budget by the server's count",
}
_SITES_SHOWN = 20


def print_result(result: dict[str, Any], folder: Path, *, as_json: bool) -> None:
    """What a run has come to."""
    for warning in result["warnings"]:
        print_warning(warning)
    if as_json:
        print_json({**result, "folder": str(folder)})
        return
    is_federation = any("answered" in row for row in result["clients"])
    shown = {**result, "epsilon": result["epsilon"] if result["private"] else float("inf")}
    for name in ("warnings", "groups", "clients"):
        del shown[name]
    if is_federation:
        shown = {_BY_SERVER.get(name, name): value for name, value in shown.items()}
    score = shown.pop("score", "accuracy")
    shown = {score if name == "accuracy" else name: value for name, value in shown.items()}
    print_fields({**shown, "folder": folder})
    if len(result["groups"]) > 1:
        _print_groups(result["groups"])
    if is_federation:
        _print_sites(result["clients"])


def _print_sites(clients: list[dict[str, Any]]) -> None:
    """What the server counted, what sites answered and what they say."""
    from sottovoce.runs.site_counts import HEADINGS, counted_rows

    rows, more = counted_rows({row["client"]: row for row in clients}, _SITES_SHOWN)
    print_table(["site", *HEADINGS.values()], rows)
    if more:
        say(f"{more}: see result.json, or result-clients.json.gz beside it")


def _print_groups(groups: list[dict[str, Any]]) -> None:
    columns = list(groups[0])
    print_table(columns, [[show(row[column], column) for column in columns] for row in groups])
