"""Small runs whose folders reports are made of."""

import json
import shutil
from pathlib import Path
from typing import Any

from specs import small_spec

from sottovoce.runs.runner import run

PRIVACY = {"level": "sample", "clip_norm": 1.0, "epsilon": 4.0, "delta": 1e-5}


def make_run(folder: Path, **changes: Any) -> Path:
    run(small_spec(**changes), folder)
    return folder


def make_unfinished(folder: Path, source: Path, *, rounds: int, cut: bool = True) -> Path:
    """A copy of a run as it was after so many rounds, perhaps in the middle of writing a line."""
    shutil.copytree(source, folder)
    (folder / "result.json").unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    half = lines[rounds][:20] if cut else ""
    (folder / "metrics.jsonl").write_text("".join(lines[:rounds]) + half)
    return folder


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
