"""Run an experiment and keep what it found: data.json, data.csv, pictures, one page."""

import csv
import dataclasses
import io
import math
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce import __version__, files
from sottovoce.errors import OutputError
from sottovoce.experiments.experiment import Experiment, Findings, Settings
from sottovoce.reporting.experiment import render_page
from sottovoce.reporting.style import standalone

DATA, TABLE, PAGE = "data.json", "data.csv", "index.html"


def run(experiment: Experiment, settings: Settings, out: Path) -> dict[str, Any]:
    """Run and save; each file is whole or absent, and the page, which needs the others, is last."""
    _prepare(out, experiment.name)
    start = time.perf_counter()
    findings = experiment.run(settings)
    seconds = time.perf_counter() - start
    plain = _plain(experiment, settings, findings, seconds)
    for figure in findings.figures:
        files.write_atomic(out / f"{figure.name}.svg", standalone(figure.chart.svg()).encode())
    files.write_atomic(out / TABLE, _csv(findings).encode())
    files.write_json(out / DATA, plain)
    page = render_page(plain, [figure.chart for figure in findings.figures])
    files.write_atomic(out / PAGE, page.encode())
    return plain


def _prepare(out: Path, name: str) -> None:
    """An empty folder, or one of the same experiment, whose earlier files are removed."""
    with files.explained("create", out):
        out.mkdir(parents=True, exist_ok=True)
        if not any(out.iterdir()):
            return
        if not (out / DATA).is_file():
            raise OutputError(
                f"{out} is not empty and holds no earlier experiment; choose another --out"
            )
        earlier = files.read_json(out / DATA)
        if not isinstance(earlier, dict) or "experiment" not in earlier:
            raise OutputError(f"{out / DATA} is not an experiment's; choose another --out")
        if earlier["experiment"] != name:
            raise OutputError(
                f"{out} holds the experiment '{earlier['experiment']}'; choose another --out"
            )
        pictures = [Path(str(figure["file"])).name for figure in earlier.get("figures", [])]
        for name in (*pictures, TABLE, PAGE):
            (out / name).unlink(missing_ok=True)


def command(experiment: Experiment, settings: Settings) -> str:
    """What to type to get these numbers again."""
    seeds = f" --seeds {settings.seeds}" if settings.seeds else ""
    quick = " --quick" if settings.quick else ""
    return f"sottovoce experiment run {experiment.name}{seeds}{quick}"


def _plain(
    experiment: Experiment, settings: Settings, findings: Findings, seconds: float
) -> dict[str, Any]:
    """Everything as JSON can hold it; what is not finite is null."""
    result = {
        "experiment": experiment.name,
        "title": experiment.title,
        "claim": experiment.claim,
        "verdict": findings.verdict,
        "method": findings.method,
        "command": command(experiment, settings),
        "seeds": settings.seeds,
        "quick": settings.quick,
        "seconds": round(seconds, 3),
        "sottovoce": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "rows": [dict(row) for row in findings.rows],
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
    finite: dict[str, Any] = _finite(result)
    return finite


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case float():
            return value if math.isfinite(value) else None
        case _:
            return value


def _csv(findings: Findings) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(findings.rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(findings.rows)
    return buffer.getvalue()
