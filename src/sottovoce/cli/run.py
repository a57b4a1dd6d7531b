"""`sottovoce run`: one spec, one folder."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli.data import DataDir, fetch_missing, use
from sottovoce.cli.output import (
    Json,
    print_fields,
    print_json,
    print_table,
    progress_bars,
    show,
)


def run(
    spec: Annotated[Path, typer.Argument(help="A TOML file; see examples/.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key, as a.b=c; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder [runs/NAME].")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Train as a spec says; results, ledger and checkpoints go into a run folder."""
    from sottovoce.config.loading import load

    loaded = load(spec, set_ or [])
    folder = out or Path("runs") / loaded.name
    use(data_dir)
    with progress_bars() as bars:
        fetch_missing(loaded.data.dataset, bars)
        from sottovoce.experiments.launch import launch  # torch takes a while to load

        def on_round(row: dict[str, Any]) -> None:
            bars.update(loaded.name, row["round"], loaded.rounds, round_note(row))

        result = launch(loaded, folder, resume=resume, on_round=on_round)
    print_result(result, folder, as_json=as_json)


def print_result(result: dict[str, Any], folder: Path, *, as_json: bool) -> None:
    """What a run has come to."""
    for warning in result["warnings"]:
        typer.echo(f"warning: {warning}", err=True)
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
    return f"accuracy {row['accuracy']:.3f}  {epsilon}"
