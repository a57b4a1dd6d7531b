"""The folder of a run: resolved spec and its hash, metrics, checkpoints, ledger, result.

run.json         resolved spec, its hash, version, randomness, what is guaranteed
metrics.jsonl    one line a round
checkpoint.npz   model and algorithm state after the last checkpoint
ledger.sqlite    every charge
result.json      the last line of the story, once the run is finished
"""

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce import files
from sottovoce.errors import OutputError
from sottovoce.ledger.ledger import Ledger
from sottovoce.simulation.engine import Progress

LEDGER_NAME = "ledger.sqlite"


class RunFolder:
    """Reads and writes one run. Whole files are replaced atomically; metrics are appended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        return (self.path / "run.json").is_file()

    @property
    def has_begun(self) -> bool:
        """Whether a round may have been run: the ledger is made before these are."""
        return any((self.path / name).exists() for name in ("metrics.jsonl", "checkpoint.npz"))

    def create(self, header: dict[str, Any]) -> None:
        """A new run; a folder that holds anything is left alone."""
        with files.explained("create", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            if any(self.path.iterdir()):
                raise OutputError(
                    f"{self.path} is not empty; continue with --resume or choose another --out"
                )
        files.write_json(self.path / "run.json", header)

    def header(self) -> dict[str, Any]:
        if not self.exists:
            raise OutputError(f"{self.path} is not a run folder: it has no run.json")
        header: dict[str, Any] = files.read_json(self.path / "run.json")
        return header

    def ledger(self, *, must_exist: bool = False) -> Ledger:
        return Ledger(self.path / LEDGER_NAME, must_exist=must_exist)

    # -- metrics ---------------------------------------------------------------------------

    def append_metrics(self, row: dict[str, Any]) -> None:
        path = self.path / "metrics.jsonl"
        with files.explained("write", path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, sort_keys=True) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All whole rows; a line cut off by a crash is left out."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        rows = []
        with files.explained("read", path):
            lines = path.read_text(encoding="utf-8").splitlines()
        for line in lines:
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
        return rows

    def keep_metrics_up_to(self, last_round: int) -> None:
        """Forget rounds after the checkpoint: they will be run again, bit for bit."""
        rows = [row for row in self.metrics() if row["round"] <= last_round]
        text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
        files.write_atomic(self.path / "metrics.jsonl", text.encode())

    # -- checkpoints -----------------------------------------------------------------------

    def save_checkpoint(self, progress: Progress) -> None:
        with files.explained("write", self.path / "metrics.jsonl"):
            handle = os.open(self.path / "metrics.jsonl", os.O_RDWR | os.O_CREAT, 0o644)
            os.fsync(handle)
            os.close(handle)
        arrays = {f"state_{name}": array for name, array in progress.algorithm_state.items()}
        buffer = io.BytesIO()
        np.savez(
            buffer,
            rounds_done=np.int64(progress.rounds_done),
            model=progress.model,
            allow_pickle=False,
            **arrays,
        )
        files.write_atomic(self.path / "checkpoint.npz", buffer.getvalue())

    def load_checkpoint(self) -> Progress | None:
        path = self.path / "checkpoint.npz"
        if not path.exists():
            return None
        try:
            with files.explained("read", path), np.load(path, allow_pickle=False) as stored:
                return Progress(
                    rounds_done=int(stored["rounds_done"]),
                    model=stored["model"],
                    algorithm_state={
                        name.removeprefix("state_"): stored[name]
                        for name in stored.files
                        if name.startswith("state_")
                    },
                )
        except (ValueError, KeyError, zipfile.BadZipFile) as error:
            raise OutputError(f"{path} is damaged: {error}; start a new run") from None

    # -- result ----------------------------------------------------------------------------

    def save_result(self, result: dict[str, Any]) -> None:
        files.write_json(self.path / "result.json", result)

    def result(self) -> dict[str, Any] | None:
        path = self.path / "result.json"
        return files.read_json(path) if path.is_file() else None
