"""The commands `sottovoce data`, which list, download and show data sets."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli.options import Decimal, Missing, parse_missing
from sottovoce.cli.output import (
    Json,
    ProgressReporter,
    print_fields,
    print_json,
    print_table,
    report_progress,
    say,
)

app = typer.Typer(help="List, download and show data sets.", no_args_is_help=True)

DataDir = Annotated[
    Path | None,
    typer.Option(help="The folder of data sets [$SOTTOVOCE_DATA, else the user's cache folder]."),
]
DatasetName = Annotated[
    str, typer.Argument(metavar="NAME", help="A data set, as 'sottovoce data list' shows it.")
]


def _row(entry: Any, data_dir: Path | None) -> dict[str, Any]:
    from sottovoce.learning import datasets

    row = {"name": entry.name + entry.placeholder, "what": entry.summary}
    if entry.takes_argument:
        return {**row, "status": "as named", "files": []}
    found = datasets.where_found(entry.name, data_dir)
    if found is None:
        fetchable = any(source.downloadable for source in entry.sources_of(""))
        return {**row, "status": "can be fetched" if fetchable else "missing", "files": []}
    return {**row, "status": "found" if found else "bundled", "files": [str(f) for f in found]}


@app.command("list")
def list_(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List every data set and whether its files are there."""
    from sottovoce.learning import datasets

    rows = [_row(entry, data_dir) for entry in datasets.entries()]
    if as_json:
        print_json({"folder": str(datasets.data_folder(data_dir)), "datasets": rows})
        return
    folder = datasets.data_folder(data_dir)
    say(f"data folder: {folder}")
    print_table(
        ["name", "what", "status", "where"],
        [[row["name"], row["what"], row["status"], _where(row["files"], folder)] for row in rows],
    )


def _where(files: list[str], folder: Path) -> str:
    """Return the path of a data set's file, or of the folder of several, within the data folder."""
    if not files:
        return ""
    path = Path(files[0]) if len(files) == 1 else Path(files[0]).parent
    shown = path.relative_to(folder) if path.is_relative_to(folder) else path
    return str(shown) if len(files) == 1 else f"{shown} ({len(files)} files)"


def set_data_folder(data_dir: Path | None) -> None:
    """Set the data folder of this process and of those that it starts, in $SOTTOVOCE_DATA.

    Args:
        data_dir: The folder; None leaves it as it is.
    """
    if data_dir is not None:
        os.environ["SOTTOVOCE_DATA"] = str(data_dir.expanduser().absolute())


def fetch_missing(name: str, bars: ProgressReporter, data_dir: Path | None = None) -> None:
    """Download the files of a data set, with progress, unless they are there.

    Args:
        name: The data set.
        bars: What reports the progress.
        data_dir: The data folder; None for $SOTTOVOCE_DATA, else the user's cache folder.

    Raises:
        DataError: The files are missing and cannot be downloaded, or have wrong digests.
    """
    from sottovoce.learning import datasets

    if datasets.where_found(name, data_dir) is not None:
        return
    for file in datasets.files_to_fetch(name, data_dir):

        def on_bytes(done: int, total: int | None, label: str = file.path) -> None:
            bars.update(Path(label).name, done, total or done, "bytes")

        datasets.fetch(file, datasets.data_folder(data_dir), on_bytes=on_bytes)


@app.command()
def fetch(name: DatasetName, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Download the files of a data set and check their digests, unless they are there."""
    from sottovoce.learning import datasets

    folder = datasets.data_folder(data_dir)
    datasets.files_to_fetch(
        name, data_dir
    )  # raises for a name that is unknown or cannot be fetched
    with report_progress() as bars:
        fetch_missing(name, bars, data_dir)
    places = [str(path) for path in datasets.where_found(name, data_dir) or []]
    if as_json:
        print_json({"name": name, "folder": str(folder), "files": places})
        return
    say("\n".join(places) or f"'{name}' needs no file in the data folder")


@app.command()
def show(
    name: DatasetName,
    data_dir: DataDir = None,
    label_column: Annotated[
        str | None, typer.Option(help="For csv:PATH, the column of labels [the last].")
    ] = None,
    owner_column: Annotated[
        str | None,
        typer.Option(help="For csv:PATH, the column that names the owner of a row [none]."),
    ] = None,
    label: Annotated[
        str, typer.Option(help="For csv:PATH, what labels are: class, or number to predict.")
    ] = "class",
    header: Annotated[
        bool, typer.Option(help="For csv:PATH, whether the first row has names.")
    ] = True,
    decimal: Decimal = ".",
    missing: Missing = "refuse",
    ignore_columns: Annotated[
        str, typer.Option(help="For csv:PATH, columns to leave out: a,b [none].")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show one data set: shapes, classes, owners and a note."""
    import numpy as np

    from sottovoce.core.errors import UnknownNameError
    from sottovoce.learning import datasets

    if label not in ("class", "number"):
        raise UnknownNameError.among("--label", label, ["class", "number"])
    options = datasets.CsvOptions(
        header=header,
        label_columns=(label_column,) if label_column else (),
        label="number" if label == "number" else "class",
        owner_column=owner_column,
        decimal=decimal,
        missing=parse_missing(missing),
        ignore_columns=tuple(filter(None, map(str.strip, ignore_columns.split(",")))),
    )
    data = datasets.load(name, np.random.default_rng(0), data_dir=data_dir, csv=options)
    owners = data.train_owners
    fields = {
        "name": data.name,
        "task": "classes" if data.num_classes else "numbers",
        "train_rows": len(data.train_labels),
        "test_rows": len(data.test_labels),
        "input_shape": list(data.input_shape),
        "outputs": data.num_outputs,
        "lowest_feature": float(data.train_features.min()),
        "highest_feature": float(data.train_features.max()),
        "owners": None if owners is None else len(np.unique(owners)),
        "attributes": sorted(data.train_attributes) or None,
        "note": data.note,
    }
    if as_json:
        print_json(fields)
        return
    print_fields(fields)
