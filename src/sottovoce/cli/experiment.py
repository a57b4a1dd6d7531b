"""`sottovoce experiment`: measure what the papers claim."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli.output import Json, print_json, print_table, progress_bars

app = typer.Typer(help="Measure what the papers claim.", no_args_is_help=True)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Every experiment."""
    from sottovoce.experiments.experiment import experiments

    rows = [
        {"name": e.name, "title": e.title, "claim": e.claim, "seeds": e.default_seeds}
        for e in experiments()
    ]
    if as_json:
        print_json(rows)
        return
    print_table(["name", "what it measures"], [[str(r["name"]), str(r["title"])] for r in rows])


@app.command("run")
def run(
    name: Annotated[str, typer.Argument(help="As 'experiment list' shows it.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; experiments-out/NAME if not given.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Repetitions of what is sampled.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small version, in seconds.")] = False,
    as_json: Json = False,
) -> None:
    """Run one experiment; writes index.html, the pictures, data.json and data.csv."""
    with progress_bars() as bars:
        from sottovoce.experiments import study
        from sottovoce.experiments.experiment import find

        found = find(name)
        folder = Path("experiments-out") / name if out is None else out
        settings = found.settings(seeds=seeds, quick=quick, on_step=bars.update)
        result = study.run(found, settings, folder)
    page = folder / study.PAGE
    if as_json:
        # The curves are in data.json; here they would drown the rows.
        brief = {key: value for key, value in result.items() if key != "figures"}
        print_json({**brief, "folder": str(folder), "page": str(page)})
    else:
        _print(result, page)


def _print(result: dict[str, Any], page: Path) -> None:
    from sottovoce.reporting.experiment import show_cell

    rows = result["rows"]
    print_table(
        [key.replace("_", " ") for key in rows[0]],
        [[show_cell(value) for value in row.values()] for row in rows],
    )
    typer.echo(
        f"The paper says: {result['claim']}\n\nMeasured: {result['verdict']}\n\n"
        f"{result['method']}\n\nPage: {page}"
    )
