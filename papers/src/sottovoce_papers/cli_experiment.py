"""`sottovoce experiment`: measure what the papers claim."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.commands import register_command
from sottovoce.cli.completion import decorator_arguments, find_matches
from sottovoce.cli.data import DataDir, fetch_missing, set_data_folder
from sottovoce.cli.options import Device
from sottovoce.cli.output import (
    Json,
    ProgressReporter,
    print_json,
    print_table,
    report_progress,
    say,
)
from sottovoce.core.registry import plugin_names

if TYPE_CHECKING:
    from sottovoce_papers.experiment import Experiment

OUT = Path("experiments-out")
_EXPERIMENTS = Path(__file__).parent
_FAILED = 1

app = typer.Typer(help="Measure what the papers claim.", no_args_is_help=True)
register_command("experiment", app, module=__name__)


def names(incomplete: str) -> list[str]:
    """The experiments that begin so, read from source files: those in Python, and in TOML."""
    catalogue = (
        file.stem
        for file in (_EXPERIMENTS / "grids").glob("*.toml")
        if "\n[experiment]\n" in f"\n{file.read_text(encoding='utf-8')}"  # and no bare spec
    )
    entered = find_matches(_EXPERIMENTS / "studies", r'^NAME = "([^"]+)"')
    plugged = plugin_names("sottovoce.experiments")
    found = {*catalogue, *entered, *decorator_arguments(_EXPERIMENTS, "experiment"), *plugged}
    return sorted(name for name in found if name.startswith(incomplete))


Name = Annotated[str, typer.Argument(help="As 'experiment list' shows it.", autocompletion=names)]
Fast = Annotated[bool, typer.Option("--fast", help="A reduced version, in seconds or minutes.")]
Seeds = Annotated[int | None, typer.Option(help="Repetitions of what is sampled.")]
Jobs = Annotated[int | None, typer.Option(help="Models trained at a time; 1 if not given.")]


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Every experiment, and which data set it needs."""
    from sottovoce_papers.experiment import experiments

    rows = [
        {
            "name": e.name,
            "title": e.title,
            "claim": e.claim,
            "seeds": e.default_seeds,
            "data": e.data or None,
        }
        for e in experiments()
    ]
    if as_json:
        print_json(rows)
        return
    print_table(
        ["name", "what it measures", "needs data"],
        [[str(r["name"]), str(r["title"]), str(r["data"] or "")] for r in rows],
    )


@app.command("run")
def run(
    name: Name,
    out: Annotated[
        Path | None, typer.Option(help="Where to write; experiments-out/NAME if not given.")
    ] = None,
    seeds: Seeds = None,
    fast: Fast = False,
    jobs: Jobs = None,
    data_dir: DataDir = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Run one experiment; writes index.html, the pictures, data.json and data.csv.

    Models that are trained are kept: after an interruption the same command goes on.
    """
    folder = OUT / name if out is None else out
    with report_progress() as bars:
        from sottovoce_papers import study
        from sottovoce_papers.experiment import find

        found = find(name)
        set_data_folder(data_dir)
        for needed in found.data.replace(",", " ").split():
            fetch_missing(needed, bars)
        settings = found.settings(
            seeds=seeds,
            fast=fast,
            on_step=bars.update,
            jobs=jobs,
            data_dir=data_dir,
            device=device,
        )
        result = study.run(found, settings, folder)
    page = folder / study.PAGE
    if as_json:
        # The curves are in data.json; here they would drown the rows.
        brief = {key: value for key, value in result.items() if key != "figures"}
        print_json({**brief, "folder": str(folder), "page": str(page)})
    else:
        _print(result, page)
    if result["failures"]:
        say(f"{_failed(result)}; the page says why, the same command tries again", err=True)
        raise typer.Exit(_FAILED)


def _print(result: dict[str, Any], page: Path) -> None:
    from sottovoce_papers.page import show_cell

    rows = result["rows"]
    print_table(
        [key.replace("_", " ") for key in rows[0]],
        [[show_cell(value) for value in row.values()] for row in rows],
    )
    reduced = f"Reduced: {result['reduced']}\n\n" if result["reduced"] else ""
    say(
        f"{reduced}The paper says: {result['claim']}\n\nMeasured: {result['verdict']}\n\n"
        f"{result['method']}\n\nPage: {page}"
    )


def _failed(result: dict[str, Any]) -> str:
    return f"{len(result['failures'])} of {len(result['trials'])} trials failed"


@app.command("all")
def all_(
    out: Annotated[Path, typer.Option(help="Where to write; a folder for each experiment.")] = OUT,
    fast: Fast = False,
    jobs: Jobs = None,
    data_dir: DataDir = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Run every experiment, one after the other, and sum up; a failure stops none of the others."""
    from sottovoce_papers.experiment import experiments

    training = {"jobs": jobs, "data_dir": data_dir, "device": device}
    rows = []
    with report_progress() as bars:
        for found in experiments():
            start = time.perf_counter()
            given = {"fast": fast, **(training if found.trains else {})}
            verdict, failed = _run_in_row(found, out / found.name, bars, given)
            seconds = round(time.perf_counter() - start, 1)
            rows.append(
                {"name": found.name, "seconds": seconds, "failed": failed, "verdict": verdict}
            )
    if as_json:
        print_json(rows)
    else:
        columns = ["name", "seconds", "failed", "verdict"]
        print_table(columns, [[_word(row[column]) for column in columns] for row in rows])
    if any(row["failed"] for row in rows):
        raise typer.Exit(_FAILED)


def _word(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _run_in_row(
    found: "Experiment", folder: Path, bars: ProgressReporter, given: dict[str, Any]
) -> tuple[str, bool]:
    """The verdict's first line, and whether anything failed; an error stands for the verdict."""
    from sottovoce_papers import study

    def on_step(what: str, completed: int, total: int, note: str) -> None:
        bars.update(f"{found.name}: {what}", completed, total, note)

    try:
        result = study.run(found, found.settings(on_step=on_step, **given), folder)
    except Exception as error:  # a bug in one is no reason to skip the rest; it is in the table
        return f"{type(error).__name__}: {error}", True
    verdict = str(result["verdict"]).partition("\n")[0]
    if result["failures"]:
        return f"{_failed(result)}; {verdict}", True
    return verdict, False


@app.command("publish")
def publish(
    name: Annotated[str, typer.Argument(help="An experiment that was run.", autocompletion=names)],
    to: Annotated[Path, typer.Option(help="Where to make the folder NAME.")] = Path("results"),
    out: Annotated[
        Path | None, typer.Option(help="Where it was run; experiments-out/NAME if not given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Copy the table, the pictures and a short page of an experiment, to keep beside the code."""
    from sottovoce_papers import publish as publishing
    from sottovoce_papers.experiment import find

    find(name)
    page = publishing.publish(name, OUT / name if out is None else out, to)
    if as_json:
        print_json({"page": str(page)})
    else:
        say(f"Published: {page}")
