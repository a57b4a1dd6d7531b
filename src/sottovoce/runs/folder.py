"""The folder of a run: resolved spec and its hash, metrics, checkpoints, ledger, result.

run.json         resolved spec, its hash, version, randomness, what is guaranteed
metrics.jsonl    one line a round
checkpoint.npz   model and algorithm state after the last checkpoint
ledger.sqlite    every charge
data.digest      tells whether data are those of the run
result.json      the last line of the story, once the run is finished
run-clients.json.gz, result-clients.json.gz   their lists of clients, where they are long
audit.json, attack-*.json   what audits and attacks of the run have found

When a run's progress is saved, and where a resumed run goes on.
"""

import contextlib
import io
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.core import bounded_json, files
from sottovoce.core.domains import MAX_DIMENSION
from sottovoce.core.errors import OutputError
from sottovoce.federated.training import Progress
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.ledger.records import SpendingRecord
from sottovoce.runs import client_lists
from sottovoce.runs.resolve import Resolved
from sottovoce.runs.spec import RunSpec

_ABSENT = object()
_NEEDED = {"spec.privacy.delta", "spec.privacy.adjacency"}
_TEXTS = ("spec_hash", "sottovoce", "run", "randomness", "sampling_grade", "objective", "guarantee")
_KINDS: tuple[tuple[str, Any, str], ...] = (  # keys of run.json that are read without its spec
    *((path, dict, "table") for path in ("spec", "spec.privacy", "spec.runtime")),
    *((path, str, "text") for path in (*_TEXTS, "spec.name", "spec.privacy.adjacency")),
    *((path, int | float, "number") for path in ("spec.privacy.delta", "bits_per_coordinate")),
    ("spec.rounds", int, "whole number"),
    ("clients", list | dict, "list"),  # of many it is a summary, and the list lies beside
)
DIGEST_NAME = "data.digest"
AUDIT_NAME = "audit.json"
MEMBERSHIP_NAME = "attack-membership.json"
RECONSTRUCTION_NAME = "attack-reconstruction.json"
ATTRIBUTES_NAME = "attack-attributes.json"


class RunFolder:
    """Reads and writes one run. Whole files are replaced atomically; metrics are appended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        return (self.path / "run.json").is_file()

    def check_new(self) -> None:
        """Refuse a place where no new run can be made; make nothing."""
        if self.path.exists() and not self.path.is_dir():
            raise OutputError(f"cannot create {self.path}: it is a file; choose another --out")
        if self.exists:
            raise OutputError(
                f"{self.path} is not empty, it holds a run; continue with --resume or choose "
                "another --out"
            )
        with files.explained("create", self.path):
            if self.path.exists() and any(self.path.iterdir()):
                raise OutputError(f"{self.path} is not empty; choose another --out")

    def create(self, header: dict[str, Any], *, with_ledger: bool) -> None:
        """A new run; a folder that holds anything is left alone.

        The ledger is made before run.json, so that a run that can be resumed has one.
        """
        self.check_new()
        with files.explained("create", self.path):
            self.path.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
        if with_ledger:
            Ledger(self.path / LEDGER_NAME, create=True).close()
        path = self.path / "run.json"
        files.write_json(path, client_lists.put_beside(path, header), mode=files.PRIVATE)

    def header(self) -> dict[str, Any]:
        """What run.json says; of many clients it has a summary, see `full_header`."""
        if not self.exists:
            why = "it has no run.json" if self.path.is_dir() else "there is no such folder"
            raise OutputError(
                f"{self.path} is not a run folder: {why}; name the folder that 'sottovoce run' "
                "writes (runs/NAME)"
            )
        header = files.read_json(self.path / "run.json")
        if wrong := _wrong_in_header(header):
            raise OutputError(f"{self.path / 'run.json'} is damaged: {wrong}; restore it")
        assert isinstance(header, dict)
        return header

    def full_header(self) -> dict[str, Any]:
        """The header with the list of all clients, however many they are."""
        return client_lists.bring_back(self.path / "run.json", self.header())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running in this folder; a killed one leaves no lock behind."""
        with files.locked(self.path / "run.json"):
            yield

    @property
    def has_ledger(self) -> bool:
        return (self.path / LEDGER_NAME).is_file()

    def ledger(self) -> Ledger:
        return Ledger(self.path / LEDGER_NAME)

    # -- metrics ---------------------------------------------------------------------------

    def append_metrics(self, row: dict[str, Any]) -> None:
        path = self.path / "metrics.jsonl"
        with files.explained("write", path), files.open_private(path, append=True) as file:
            file.write((json.dumps(row, sort_keys=True) + "\n").encode())

    def metrics(self) -> list[dict[str, Any]]:
        """All whole rows; a line cut off by a crash is left out."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        rows = []
        with files.explained("read", path):
            lines = path.read_bytes().splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                row = bounded_json.loads(line)
            except bounded_json.BoundsError as error:  # no crash leaves such a line
                raise OutputError(f"{path} is damaged: line {number} {error}; restore it") from None
            except bounded_json.JsonError:
                break
            if not isinstance(row, dict) or "round" not in row:
                break
            if type(row["round"]) is not int:
                raise OutputError(
                    f"{path} is damaged: 'round' of line {number} is no whole number; restore it"
                )
            rows.append(row)
        return rows

    def keep_metrics_up_to(self, last_round: int) -> None:
        """Forget rounds after the checkpoint: they will be run again, bit for bit."""
        rows = [row for row in self.metrics() if row["round"] <= last_round]
        text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
        files.write_atomic(self.path / "metrics.jsonl", text.encode(), mode=files.PRIVATE)

    # -- checkpoints -----------------------------------------------------------------------

    def save_checkpoint(self, progress: Progress, num_charges: int) -> None:
        """Keep the model, and how long the ledger was: it can only grow."""
        metrics = self.path / "metrics.jsonl"
        with files.explained("write", metrics), files.open_private(metrics, append=True) as file:
            os.fsync(file.fileno())
        arrays: dict[str, Any] = {
            "rounds_done": np.int64(progress.rounds_done),
            "num_charges": np.int64(num_charges),
            "model": progress.model,
            **{f"state_{name}": array for name, array in progress.algorithm_state.items()},
        }
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        # The owner's alone: an algorithm's state may hold what clients keep to themselves.
        files.write_atomic(self.path / "checkpoint.npz", buffer.getvalue(), mode=0o600)

    def charges_at_checkpoint(self) -> int:
        """The length of the ledger at the last checkpoint; 0 without one."""
        stored = self._read_checkpoint()
        return int(stored["num_charges"]) if stored else 0

    def checkpoint_saved(self) -> tuple[int, float] | None:
        """The last round of the last checkpoint, and when it was saved (seconds since 1970)."""
        stored = self._read_checkpoint()
        if stored is None:
            return None
        path = self.path / "checkpoint.npz"
        with files.explained("read", path):
            return int(stored["rounds_done"]), path.stat().st_mtime

    def load_checkpoint(self) -> Progress | None:
        """Where the last checkpoint left the run, if there is one."""
        stored = self._read_checkpoint()
        if stored is None:
            return None
        return Progress(
            rounds_done=int(stored["rounds_done"]),
            model=stored["model"],
            algorithm_state={
                name.removeprefix("state_"): array
                for name, array in stored.items()
                if name.startswith("state_")
            },
        )

    def _read_checkpoint(self) -> dict[str, Any] | None:
        path = self.path / "checkpoint.npz"
        if not path.exists():
            return None
        try:
            # Read first: numpy leaves a file open that turns out to be damaged.
            with files.explained("read", path):
                content = io.BytesIO(path.read_bytes())
            with np.load(content, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
        except files.ARRAY_DAMAGE:
            arrays = {}
        if not _is_whole(arrays):
            raise OutputError(
                f"{path} is damaged; restore it (a new run on the same data spends a budget again)"
            )
        return arrays

    # -- data ------------------------------------------------------------------------------

    def save_data_digest(self, digest: str) -> None:
        """The owner's alone: whoever guesses all records could check the guess with it."""
        files.write_atomic(self.path / DIGEST_NAME, f"{digest}\n".encode(), mode=0o600)

    def data_digest(self) -> str | None:
        """None for runs of earlier versions, and of records that are elsewhere."""
        path = self.path / DIGEST_NAME
        if not path.is_file():
            return None
        with files.explained("read", path):
            return path.read_text(encoding="utf-8", errors="replace").strip()

    # -- result ----------------------------------------------------------------------------

    def save_result(self, result: dict[str, Any]) -> None:
        path = self.path / "result.json"
        stored = client_lists.put_beside(path, result)
        files.write_json(path, stored, sort_keys=False, mode=files.PRIVATE)  # in order of telling

    def result(self) -> dict[str, Any] | None:
        path = self.path / "result.json"
        if not path.is_file():
            return None
        result = files.read_json(path)
        return client_lists.bring_back(path, result) if isinstance(result, dict) else result


def _wrong_in_header(header: object) -> str:
    """What of a run.json cannot be used, in words; empty if it holds together."""
    if not isinstance(header, dict) or not {"spec", "spec_hash", "layout"} <= set(header):
        return "keys are missing"
    for path, kind, kind_name in _KINDS:
        found: Any = header
        for key in path.split("."):
            found = found.get(key, _ABSENT) if isinstance(found, dict) else _ABSENT
        if found is _ABSENT and path in _NEEDED:
            return f"'{path}' is missing"
        if found is not _ABSENT and (not isinstance(found, kind) or isinstance(found, bool)):
            return f"'{path}' is no {kind_name}"
    return "" if _is_layout(header["layout"]) else "'layout' is no list of names and shapes"


def _is_layout(layout: object) -> bool:
    try:
        pairs = [(name, list(shape)) for name, shape in layout]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return False
    sizes = [size for _, shape in pairs for size in shape]
    return (
        all(isinstance(name, str) for name, _ in pairs)
        and all(type(size) is int and 0 <= size <= MAX_DIMENSION for size in sizes)
        and 0 < sum(math.prod(shape) for _, shape in pairs) <= MAX_DIMENSION
    )


def _is_whole(arrays: Mapping[str, Any]) -> bool:
    """Whether a checkpoint has counts and a model of finite numbers, and not only their names."""
    if not {"rounds_done", "num_charges", "model"} <= set(arrays):
        return False
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        return False  # a member of another format comes as bytes
    counts = [arrays["rounds_done"], arrays["num_charges"]]
    model = arrays["model"]
    return (
        all(count.shape == () and count.dtype.kind in "iu" and count >= 0 for count in counts)
        and model.ndim == 1
        and model.dtype.kind == "f"
        and bool(np.isfinite(model).all())
    )


SECONDS_BETWEEN = 60.0  # of work that a crash may cost, or one round where rounds take longer


class Checkpoints:
    """Saves finished rounds: every so many, once a minute, after the last one and on interruption.

    When they are saved changes nothing in what a run comes to: the last round is always saved.
    """

    def __init__(
        self,
        folder: RunFolder,
        resolved: Resolved,
        record: SpendingRecord,
        *,
        done: Progress,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._folder, self._run, self._record = folder, resolved.run, record
        self._rounds, self._every = resolved.spec.rounds, resolved.spec.checkpoint_every
        if resolved.spec.runtime.backend != "fast":
            self._every = 1  # a round there takes seconds, and sites keep one round's messages
        self._clock = clock or time.monotonic
        self._done, self._saved, self._saved_at = done, done.rounds_done, self._clock()

    def after_round(self, progress: Progress) -> None:
        """Note that a round is finished, its metrics written, and save it if that is due."""
        self._done = progress
        number = progress.rounds_done
        overdue = self._clock() - self._saved_at >= SECONDS_BETWEEN
        if overdue or number == self._rounds or number % self._every == 0:
            self.save()

    def save(self) -> None:
        """Save the last finished round; then its stored messages are no longer needed."""
        self._folder.save_checkpoint(self._done, self._record.num_charges)
        self._record.discard_messages(self._run, before_round=self._done.rounds_done + 1)
        self._saved, self._saved_at = self._done.rounds_done, self._clock()

    @contextlib.contextmanager
    def saved_if_interrupted(self) -> Iterator[None]:
        """Save what is finished when the user, or a signal, ends the work within.

        The round at work is given up: what it charged stays charged, and a resumed run sends the
        messages that it stored.
        """
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            if self._done.rounds_done > self._saved:
                self.save()
            raise


def where_it_resumes(folder: RunFolder, spec: RunSpec) -> str:
    """Say at which round a resumed run goes on, and from what."""
    saved = folder.checkpoint_saved()
    if saved is None:
        kept = "; its charges are kept and their stored messages are sent again"
        stored = spec.runtime.messages == "stored"
        return f"no checkpoint yet: begins again at round 1{kept if stored else ''}"
    done, seconds = saved
    when = f"saved {datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if done >= spec.rounds:
        return f"all {spec.rounds} rounds are done (checkpoint of round {done}, {when})"
    return f"resuming at round {done + 1} of {spec.rounds} (checkpoint of round {done}, {when})"
