"""Running an experiment and saving its results: data.json, data.csv, pictures and one page.

If pyarrow is installed, the rows are saved as data.parquet, too.
"""

import csv
import dataclasses
import importlib
import io
import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.core import files
from sottovoce.core.charts.style import standalone
from sottovoce.core.errors import OutputError
from sottovoce.version import __version__
from sottovoce_papers.experiment import (
    Cell,
    Experiment,
    Findings,
    Row,
    Settings,
    known_differences,
)
from sottovoce_papers.page import render_page

DATA, TABLE, PAGE, TRIALS_TABLE = "data.json", "data.csv", "index.html", "trials.csv"
PARQUET = "data.parquet"


def run(experiment: Experiment, settings: Settings, out: Path) -> dict[str, Any]:
    """Run an experiment and save its results in `out`; return the contents of data.json.

    Files are written atomically, and the page, which needs the others, comes last. Trials that are
    finished stay in `out` when the run is interrupted, and the next run reuses them. The results of
    an earlier run stay until those of this one are there: a refused option costs nothing.
    """
    _prepare(out, experiment.name)
    start = time.perf_counter()
    findings = experiment.run(dataclasses.replace(settings, folder=out))
    seconds = time.perf_counter() - start
    plain = _plain(experiment, settings, findings, seconds)
    _clear(out)
    for figure in findings.figures:
        files.write_atomic(out / f"{figure.name}.svg", standalone(figure.chart.svg()).encode())
    files.write_atomic(out / TABLE, _csv(findings.rows).encode())
    if (packed := _parquet(findings.rows)) is not None:
        files.write_atomic(out / PARQUET, packed)
    if findings.trials:
        files.write_atomic(out / TRIALS_TABLE, _csv(findings.trials).encode())
    files.write_json(out / DATA, plain)
    page = render_page(plain, [figure.chart for figure in findings.figures])
    files.write_atomic(out / PAGE, page.encode())
    return plain


def load(out: Path) -> dict[str, Any]:
    """Return the saved result of an experiment."""
    if not (out / DATA).is_file():
        raise OutputError(f"{out} holds no experiment; run one with --out {out}")
    result = files.read_json(out / DATA)
    if not isinstance(result, dict) or "experiment" not in result:
        raise OutputError(f"{out / DATA} does not describe an experiment; choose another --out")
    return result


def _prepare(out: Path, name: str) -> None:
    """Create an empty folder, or check that one holds the same experiment.

    The marker that is written tells the next run, after an interruption, that the folder can be
    used.
    """
    with files.explain_os_errors("create", out):
        out.mkdir(parents=True, exist_ok=True)
        empty = not any(out.iterdir())
    if empty:
        files.write_json(out / DATA, {"experiment": name})
        return
    if not (out / DATA).is_file():
        raise OutputError(
            f"{out} is not empty and holds no earlier experiment; choose another --out"
        )
    earlier = load(out)
    if earlier["experiment"] != name:
        raise OutputError(
            f"{out} holds the experiment '{earlier['experiment']}'; choose another --out"
        )


def _clear(out: Path) -> None:
    """Remove the results of an earlier run, of which this one may not write all."""
    earlier = load(out)
    pictures = [Path(str(figure["file"])).name for figure in earlier.get("figures", [])]
    for file in (*pictures, TABLE, PARQUET, TRIALS_TABLE, PAGE):
        (out / file).unlink(missing_ok=True)


def command(experiment: Experiment, settings: Settings) -> str:
    """Return the command that repeats the experiment."""
    words = ["sottovoce", "experiment", "run", experiment.name]
    words += ["--seeds", str(settings.seeds)] if settings.seeds else []
    words += ["--fast"] if settings.fast else []
    words += ["--device", settings.device] if settings.device else []
    only = [f"{axis}={value}" for axis, values in settings.only.items() for value in values]
    added = [one.text for one in settings.added]
    for option, texts in {"--only": only, "--set": settings.changes, "--add": added}.items():
        words += [word for text in texts for word in (option, text)]
    words += ["--allow-code"] if settings.allow_code else []
    return shlex.join(words)


def _plain(
    experiment: Experiment, settings: Settings, findings: Findings, seconds: float
) -> dict[str, Any]:
    """Return everything in a form that JSON can hold; numbers that are not finite become null."""
    result = {
        "experiment": experiment.name,
        "title": experiment.title,
        "claim": experiment.claim,
        "differences": list(known_differences().get(experiment.name, ())),
        "verdict": findings.verdict,
        "method": f"{findings.method}\nTuning: {findings.tuning}",
        "command": command(experiment, settings),
        "seeds": settings.seeds,
        "fast": settings.fast,
        "reduced": findings.reduced,
        "failures": list(findings.failures),
        "warnings": list(findings.warnings),
        "seconds": round(seconds, 3),
        "training_seconds": _training_seconds(findings),
        "sottovoce": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": str(sys.modules["torch"].__version__) if "torch" in sys.modules else None,
        "machine": _machine(),
        "rows": [dict(row) for row in findings.rows],
        "trials": [dict(trial) for trial in findings.trials],
        "figures": [
            {
                "name": figure.name,
                "file": f"{figure.name}.svg",
                "caption": figure.caption,
                "chart": dataclasses.asdict(figure.chart),
            }
            for figure in findings.figures
        ],
    }
    finite: dict[str, Any] = files.finite(result)
    return finite


def _training_seconds(findings: Findings) -> float:
    """Return the total time of all trials, with those of earlier runs; each spec counts once."""
    took = {trial["spec_hash"]: float(trial["seconds"] or 0.0) for trial in findings.trials}
    return round(sum(took.values()), 3)


def _machine() -> str:
    """Return a description of the machine that does not identify it."""
    torch = sys.modules.get("torch")
    accelerator = f", {torch.cuda.get_device_name()}" if torch and torch.cuda.is_available() else ""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors{accelerator}"


def _csv(rows: Sequence[Row]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def _parquet(rows: Sequence[Row]) -> bytes | None:
    """Return the rows as a Parquet file, or None if pyarrow is not installed."""
    try:
        arrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        return None
    columns = {name: _of_one_type([row[name] for row in rows]) for name in rows[0]}
    buffer = io.BytesIO()
    parquet.write_table(arrow.table(columns), buffer)
    return buffer.getvalue()


def _of_one_type(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells of a column as strings if some are, or as floats if some are."""
    for kind in (str, float):
        if any(isinstance(cell, kind) for cell in cells):
            return [None if cell is None else kind(cell) for cell in cells]
    return list(cells)
