"""What a run has come to, wherever it ran."""

from pathlib import Path
from typing import Any

from sottovoce.api.shown import round_note as round_note
from sottovoce.cli.output import print_fields, print_json, print_table, print_warning, show


def print_result(result: dict[str, Any], folder: Path, *, as_json: bool) -> None:
    """What a run has come to."""
    for warning in result["warnings"]:
        print_warning(warning)
    if as_json:
        print_json({**result, "folder": str(folder)})
        return
    shown = {**result, "epsilon": result["epsilon"] if result["private"] else float("inf")}
    for name in ("warnings", "groups", "clients"):
        del shown[name]
    score = shown.pop("score", "accuracy")
    shown = {score if name == "accuracy" else name: value for name, value in shown.items()}
    print_fields({**shown, "folder": folder})
    if len(result["groups"]) > 1:
        _print_groups(result["groups"])


def _print_groups(groups: list[dict[str, Any]]) -> None:
    columns = list(groups[0])
    print_table(columns, [[show(row[column], column) for column in columns] for row in groups])
