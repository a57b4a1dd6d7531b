"""Runs that are interrupted and go on, and specs that are refused before anything is written."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.federated.training import Progress
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.runner import run
from sottovoce.runs.spec import RunSpec

EVERY_BYTE = ("checkpoint.npz", "metrics.jsonl")


class Interrupted(Exception):
    """The process was killed."""


def progress_of(folder: Path) -> Progress:
    progress = RunFolder(folder).load_checkpoint()
    assert progress is not None
    return progress


def run_until(last: int, spec: RunSpec, folder: Path) -> None:
    """Run, and be interrupted after this round."""

    def stop(row: dict[str, Any]) -> None:
        if row["round"] == last:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(spec, folder, on_round=stop)


def check_resumed(
    spec: RunSpec, folder: Path, *, stop_after: int = 3, same_files: Sequence[str] = ()
) -> dict[str, Any]:
    """Check that a run in two parts ends as one that is whole, bit for bit; return its result."""
    whole, parts = folder / "whole", folder / "parts"
    expected = run(spec, whole)
    run_until(stop_after, spec, parts)
    assert run(spec, parts, resume=True) == expected
    assert np.array_equal(progress_of(whole).model, progress_of(parts).model)
    for name in same_files:
        assert (parts / name).read_bytes() == (whole / name).read_bytes()
    return expected


def check_refused(
    make: Callable[[], RunSpec], folder: Path, error: type[Exception], message: str
) -> None:
    """Check that a spec is refused, by itself or by its run, before there is a folder."""
    with pytest.raises(error, match=message):
        run(make(), folder)
    assert not folder.exists()
