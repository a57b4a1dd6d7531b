"""The command `sottovoce experiment`: measure what the papers claim."""

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.commands import register_command
from sottovoce.cli.completion import decorator_arguments, find_matches
from sottovoce.cli.data import DataDir, fetch_missing, set_data_folder
from sottovoce.cli.options import AllowCode, Device
from sottovoce.cli.output import (
    Json,
    ProgressReporter,
    print_fields,
    print_json,
    print_table,
    report_progress,
    say,
)
from sottovoce.core import files
from sottovoce.core.errors import OutputError, ParameterError
from sottovoce.core.registry import plugin_names

if TYPE_CHECKING:
    from sottovoce_papers.experiment import Experiment

OUT = Path("experiments-out")
_EXPERIMENTS = Path(__file__).parent
_FAILED = 1

app = typer.Typer(help="Measure what the papers claim.", no_args_is_help=True)
register_command("experiment", app, module=__name__)


def names(incomplete: str) -> list[str]:
    """Return the experiments whose name begins so, read from source files in Python and TOML."""
    grid_file = (
        file.stem
        for file in (_EXPERIMENTS / "grids").glob("*.toml")
        # Skip files that only contain the spec of a run.
        if "\n[experiment]\n" in f"\n{file.read_text(encoding='utf-8')}"
    )
    studies = find_matches(_EXPERIMENTS / "studies", r'^NAME = "([^"]+)"')
    plugins = plugin_names("sottovoce.experiments")
    found = {*grid_file, *studies, *decorator_arguments(_EXPERIMENTS, "experiment"), *plugins}
    return sorted(name for name in found if name.startswith(incomplete))


Name = Annotated[
    str,
    typer.Argument(
        help="A name that 'experiment list' shows, or the file of a grid of your own, FILE.toml.",
        autocompletion=names,
    ),
]
Fast = Annotated[bool, typer.Option("--fast", help="Run a reduced version, in seconds or minutes.")]
Seeds = Annotated[int | None, typer.Option(help="Number of random repetitions.")]
Jobs = Annotated[int | None, typer.Option(help="Models trained at the same time; default 1.")]

Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="AXIS=VALUE",
        help="Train only this value of an axis of a grid, as in --only epsilon=1.0; repeat it "
        "for more values. The page says what was left out.",
    ),
]

Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change the base spec of a grid for all trials, as rounds=20; repeatable. The page "
        "says what was changed.",
    ),
]
Added = Annotated[
    list[str] | None,
    typer.Option(
        "--add",
        metavar="mechanism=KIND",
        help="Compare a further mechanism, such as a plug-in of your own; with parameters: "
        "mechanism='{kind = \"KIND\", levels = 4}'; repeatable.",
    ),
]


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List every experiment and the data set that it needs."""
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
        Path | None, typer.Option(help="Output folder; default experiments-out/NAME.")
    ] = None,
    seeds: Seeds = None,
    fast: Fast = False,
    jobs: Jobs = None,
    data_dir: DataDir = None,
    device: Device = None,
    only: Only = None,
    set_: Changes = None,
    add: Added = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Run one experiment and write index.html, the pictures, data.json and data.csv.

    If pyarrow is installed, the table is also written as data.parquet. Trained models are kept:
    after an interruption, the same command continues where it stopped.
    """
    with report_progress() as bars:
        from sottovoce_papers import study
        from sottovoce_papers.learning.study import find_experiment

        found = find_experiment(name)
        folder = OUT / found.folder_name if out is None else out
        settings = found.settings(
            seeds=seeds,
            fast=fast,
            on_step=bars.update,
            jobs=jobs,
            data_dir=data_dir,
            device=device,
            only=only or (),
            changes=set_ or (),
            added=add or (),
            allow_code=allow_code,
        )
        set_data_folder(data_dir)
        for needed in found.data.replace(",", " ").split():
            fetch_missing(needed, bars)
        result = study.run(found, settings, folder)
    page = folder / study.PAGE
    if as_json:
        # The curves are in data.json; printed here they would hide the rows.
        brief = {key: value for key, value in result.items() if key != "figures"}
        print_json({**brief, "folder": str(folder), "page": str(page)})
    else:
        _print(result, page)
    if result["failures"]:
        say(
            f"{_failed(result)}; read why on the page, and repeat the command to try them again",
            err=True,
        )
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


@app.command("init")
def init(
    file: Annotated[Path, typer.Argument(help="The file to write, FILE.toml; it must not exist.")],
    as_json: Json = False,
) -> None:
    """Write a commented grid of your own, which runs as it is on the bundled digits."""
    from sottovoce_papers.experiment import GRID_SUFFIX

    if file.suffix != GRID_SUFFIX:
        raise ParameterError(f"a grid's file must end in {GRID_SUFFIX}, got '{file}'; rename it")
    if file.exists():
        raise OutputError(f"{file} exists already; choose another name, or remove it")
    files.write_atomic(file, (_EXPERIMENTS / "grid_example.toml").read_bytes())
    if as_json:
        print_json({"written": str(file)})
        return
    say(f"Written: {file}\nRun it:  sottovoce experiment run {shlex.quote(str(file))} --fast")


@app.command("all")
def all_(
    out: Annotated[Path, typer.Option(help="Output folder; one subfolder per experiment.")] = OUT,
    fast: Fast = False,
    jobs: Jobs = None,
    data_dir: DataDir = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Run every experiment in turn and print a summary; a failure does not stop the others."""
    from sottovoce_papers.experiment import experiments

    training = {"jobs": jobs, "data_dir": data_dir, "device": device}
    rows = []
    with report_progress() as bars:
        for found in experiments():
            start = time.perf_counter()
            given = {"fast": fast, **(training if found.trains else {})}
            verdict, failed = _run_one(found, out / found.name, bars, given)
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


def _run_one(
    found: "Experiment", folder: Path, bars: ProgressReporter, given: dict[str, Any]
) -> tuple[str, bool]:
    """Run one experiment; return its verdict's first line, or its error, and if it failed."""
    from sottovoce_papers import study

    def on_step(what: str, completed: int, total: int, note: str) -> None:
        bars.update(f"{found.name}: {what}", completed, total, note)

    try:
        result = study.run(found, found.settings(on_step=on_step, **given), folder)
    except Exception as error:  # The table shows the error, and the other experiments still run.
        return f"{type(error).__name__}: {error}", True
    verdict = str(result["verdict"]).partition("\n")[0]
    if result["failures"]:
        return f"{_failed(result)}; {verdict}", True
    return verdict, False


def formula_names(incomplete: str) -> list[str]:
    """Return the published formulas whose name begins so, read from the source files."""
    found = find_matches(_EXPERIMENTS / "published", r'^        name="([^"]+)",$')
    return sorted(name for name in found if name.startswith(incomplete))


@app.command("published")
def published(
    name: Annotated[
        str | None,
        typer.Argument(help="A formula; without it, all are listed.", autocompletion=formula_names),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An input, as in order=2; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the number that a paper's own formula gives next to the true one.

    A formula that does not hold is evaluated at a counterexample unless other inputs are set.
    """
    from sottovoce_papers.published import FORMULAS, describe, find, show_value

    if name is None:
        if set_:
            raise ParameterError("--set needs a formula; name one that the list shows")
        rows = [describe(formula) for formula in FORMULAS.values()]
        if as_json:
            print_json(rows)
        else:
            columns = ["name", "paper", "number", "claim", "sound", "correction"]
            print_table(columns, [[_word(row[column]) for column in columns] for row in rows])
        return
    comparison = find(name).compare(set_ or ())
    if as_json:
        print_json(comparison.plain())
        return
    described = {key: _word(value) for key, value in describe(comparison.formula).items()}
    inputs = ", ".join(f"{key} = {value:g}" for key, value in comparison.inputs.items())
    print_fields(
        {
            **described,
            "inputs": inputs,
            "published": show_value(comparison.published),
            "true": show_value(comparison.true),
            "truth": comparison.formula.truth,
            "outcome": comparison.outcome,
            "why": comparison.formula.why,
        }
    )


@app.command("publish")
def publish(
    name: Name,
    to: Annotated[Path, typer.Option(help="Where to create the folder NAME.")] = Path("results"),
    out: Annotated[
        Path | None, typer.Option(help="Folder with its results; default experiments-out/NAME.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Copy the table, the pictures and a short page of an experiment into a repository."""
    from sottovoce_papers import publish as publishing
    from sottovoce_papers.learning.study import find_experiment

    found = find_experiment(name)
    page = publishing.publish(found, OUT / found.folder_name if out is None else out, to)
    if as_json:
        print_json({"page": str(page)})
    else:
        say(f"Published: {page}")
