"""What a run has come to, wherever it ran."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli.output import print_fields, print_json, print_table, print_warning, show

Log = Annotated[
    list[str] | None,
    typer.Option("--log", help="Log rounds to tensorboard or mlflow; repeatable."),
]


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
    print_fields({**shown, "folder": folder})
    if len(result["groups"]) > 1:
        _print_groups(result["groups"])


def _print_groups(groups: list[dict[str, Any]]) -> None:
    columns = list(groups[0])
    print_table(columns, [[show(row[column], column) for column in columns] for row in groups])


def round_note(row: dict[str, Any]) -> str:
    """What a progress bar says after a round."""
    from sottovoce.privacy.accounting import show_epsilon

    spent = row["epsilon"]
    epsilon = "no privacy" if spent is None else f"epsilon {show_epsilon(spent, 2)}"
    asked, received = row["clients_asked"], row["clients_received"]
    missing = f"  {received} of {asked} answered" if received < asked else ""
    return f"accuracy {row['accuracy']:.3f}  {epsilon}{missing}"
