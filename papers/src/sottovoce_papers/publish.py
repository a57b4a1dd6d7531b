"""Publishing an experiment as a small folder for a repository: table, pictures and one page."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.core import files
from sottovoce.core.errors import OutputError
from sottovoce_papers import study
from sottovoce_papers.experiment import Experiment, known_differences
from sottovoce_papers.page import show_cell

README = "README.md"
MAX_BYTES = 1_000_000  # Of one file: larger files do not belong into a code repository.


def publish(experiment: Experiment, folder: Path, to: Path) -> Path:
    """Copy the small files of an experiment from `folder` to a folder in `to`; return the page."""
    result = study.load(folder)
    if result["experiment"] != experiment.name:
        raise OutputError(
            f"{folder} holds the experiment '{result['experiment']}', not '{experiment.name}'; "
            "give the folder of that experiment with --out"
        )
    if "verdict" not in result:
        raise OutputError(f"{folder} holds an unfinished experiment; run it to its end first")
    target = to / experiment.folder_name
    pictures = [str(figure["file"]) for figure in result["figures"]]
    tables = [study.TABLE, *([study.TRIALS_TABLE] if result["trials"] else [])]
    contents = {name: _content(folder / name) for name in (*tables, *pictures)}
    with files.explain_os_errors("create", target):
        target.mkdir(parents=True, exist_ok=True)
        # Remove the pictures of an earlier version that this result no longer has.
        for earlier in target.glob("*.svg"):
            if earlier.name not in pictures:
                earlier.unlink()
    for name, content in contents.items():
        files.write_atomic(target / name, content)
    columns = next(csv.reader(io.StringIO(contents[study.TABLE].decode())))
    files.write_atomic(target / README, page(result, tables, columns).encode())
    return target / README


def _content(path: Path) -> bytes:
    with files.explain_os_errors("read", path):
        content = path.read_bytes()
    if len(content) > MAX_BYTES:
        raise OutputError(
            f"{path} has {len(content)} bytes, but published files have at most {MAX_BYTES}; "
            "publish a smaller grid"
        )
    return content


def page(result: Mapping[str, Any], tables: Sequence[str], columns: Sequence[str]) -> str:
    """Return the page as Markdown: claim, verdict, pictures, table, method, and how to repeat it.

    `columns` are the columns of the table in their order, which data.json does not keep.
    """
    reduced = result["reduced"] or ("a fast version." if result["fast"] else "")
    reduced = f"**Reduced:** {reduced}" if reduced else ""
    parts = [
        f"# {result['title']}",
        reduced,
        "## The paper says",
        result["claim"],
        "## Measured",
        *result["verdict"].split("\n"),
        *(f"![{figure['caption']}]({figure['file']})" for figure in result["figures"]),
        _table(columns, result["rows"]),
        *_bullets(
            "## Differences from the paper", known_differences().get(result["experiment"], ())
        ),
        *_bullets("## What failed", result["failures"]),
        *_bullets("## Warnings", result["warnings"]),
        "## How it was measured",
        *result["method"].split("\n"),
        _facts(result, tables),
        _hashes(result["trials"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    head = [name.replace("_", " ") for name in columns]
    body = [line([show_cell(row[name]) for name in columns]) for row in rows]
    return "\n".join([line(head), line(["---"] * len(head)), *body])


def _bullets(title: str, items: Sequence[str]) -> list[str]:
    return [title, "\n".join(f"- {item}" for item in items)] if items else []


def _facts(result: Mapping[str, Any], tables: Sequence[str]) -> str:
    torch = f", torch {result['torch']}" if result["torch"] else ""
    facts = {
        "Again": f"`{result['command']}`",
        "Seeds": result["seeds"] or "nothing is sampled",
        "Time": f"{max(result['seconds'], result['training_seconds']):.0f} s with one job",
        "Machine": result["machine"],
        "Versions": f"sottovoce {result['sottovoce']}, Python {result['python']}, numpy "
        f"{result['numpy']}{torch}",
        "Numbers": ", ".join(f"[{name}]({name})" for name in tables),
    }
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def _hashes(trials: Sequence[Mapping[str, Any]]) -> str:
    stages = {trial["spec_hash"]: trial.get("stage", "final") for trial in trials}
    final = [spec_hash for spec_hash, stage in stages.items() if stage == "final"]
    if not final:
        return ""
    tuned = "tuning" in stages.values()
    more = "; those of the tuning stage are in trials.csv" if tuned else ""
    return f"Spec hashes{more}: " + " ".join(f"`{spec_hash}`" for spec_hash in final)
