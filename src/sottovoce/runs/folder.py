"""The folder of a run: its files, when progress is saved, and where a resumed run continues.

run.json         resolved spec, its hash, version, randomness, what is guaranteed
metrics.jsonl    one line per round
checkpoint.npz   model and algorithm state after the last saved round
ledger.sqlite    every charge
data.digest      a digest that reveals whether data are those of the run
result.json      the result, once the run is finished
run-clients.json.gz, result-clients.json.gz   their lists of clients, where they are long
audit.json, attack-*.json   what audits and attacks of the run have found
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce.core import bounded_json, files
from sottovoce.core.domains import MAX_DIMENSION
from sottovoce.core.errors import OutputError
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.ledger.records import SpendingRecord
from sottovoce.runs import client_lists
from sottovoce.runs.spec import RunSpec

if TYPE_CHECKING:  # These import torch.
    from sottovoce.federated.training import Progress
    from sottovoce.runs.resolve import Resolved

_ABSENT = object()
_NEEDED = {"spec.privacy.delta", "spec.privacy.adjacency"}
_TEXTS = ("spec_hash", "sottovoce", "run", "randomness", "sampling_grade", "objective", "guarantee")
_KINDS: tuple[tuple[str, Any, str], ...] = (  # Keys of run.json that are read without its spec.
    *((path, dict, "table") for path in ("spec", "spec.privacy", "spec.runtime")),
    *((path, str, "text") for path in (*_TEXTS, "spec.name", "spec.privacy.adjacency")),
    *((path, int | float, "number") for path in ("spec.privacy.delta", "bits_per_coordinate")),
    ("spec.rounds", int, "whole number"),
    ("clients", list | dict, "list"),  # Of many clients it is a summary.
)
DIGEST_NAME = "data.digest"
AUDIT_NAME = "audit.json"
MEMBERSHIP_NAME = "attack-membership.json"
RECONSTRUCTION_NAME = "attack-reconstruction.json"
ATTRIBUTES_NAME = "attack-attributes.json"


class RunFolder:
    """The files of one run. Whole files are replaced atomically; metrics are appended.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run: it has a run.json, whose content is not checked."""
        return (self.path / "run.json").is_file()

    def check_new(self) -> None:
        """Refuse a path where no new run can be created; create nothing.

        Raises:
            OutputError: The path is a file, or a folder that is not empty.
        """
        if self.path.exists() and not self.path.is_dir():
            raise OutputError(
                f"cannot create {self.path}: it is a file; choose another folder (--out, in Python "
                "out=)"
            )
        if self.exists:
            if (self.path / "result.json").is_file():
                raise OutputError(
                    f"{self.path} is not empty: it holds a finished run; choose another folder "
                    "(--out, in Python out=). A new run on the same data spends again"
                )
            raise OutputError(
                f"{self.path} is not empty: it holds a run; continue it with --resume (in Python "
                "resume=True), or choose another folder (--out, in Python out=)"
            )
        with files.explain_os_errors("create", self.path):
            if self.path.exists() and any(self.path.iterdir()):
                raise OutputError(
                    f"{self.path} is not empty; choose another folder (--out, in Python out=)"
                )

    def create(self, header: dict[str, Any], *, with_ledger: bool) -> None:
        """Create the folder of a new run, with run.json and perhaps an empty ledger.

        The ledger is created before run.json, so that every run that can be resumed has one.

        Args:
            header: The content of run.json.
            with_ledger: Whether to create a ledger: the run stores messages and charges them there.

        Raises:
            OutputError: The path is a file, or a folder that is not empty, or cannot be written.
        """
        self.check_new()
        with files.explain_os_errors("create", self.path):
            self.path.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
        if with_ledger:
            Ledger(self.path / LEDGER_NAME, create=True).close()
        path = self.path / "run.json"
        files.write_json(path, client_lists.store_clients(path, header), mode=files.PRIVATE)

    def header(self) -> dict[str, Any]:
        """Return the content of run.json; of more than 100 clients it has only a summary.

        Returns:
            The header, with the keys and types that readers rely on; `full_header` adds the list
            of all clients.

        Raises:
            OutputError: The folder holds no run, or run.json is damaged.
        """
        if not self.exists:
            why = "it has no run.json" if self.path.is_dir() else "there is no such folder"
            raise OutputError(
                f"{self.path} is not a run folder: {why}; name the folder that 'sottovoce run' "
                "writes (runs/NAME)"
            )
        header = files.read_json(self.path / "run.json")
        if wrong := _wrong_in_header(header):
            raise OutputError(
                f"{self.path / 'run.json'} is damaged: {wrong}; restore it from a backup"
            )
        assert isinstance(header, dict)
        return header

    def add_to_header(self, entries: dict[str, Any]) -> None:
        """Add entries to run.json, or replace them.

        Args:
            entries: The entries by name; not the list of clients.
        """
        path = self.path / "run.json"
        files.write_json(path, {**self.header(), **entries}, mode=files.PRIVATE)

    def full_header(self) -> dict[str, Any]:
        """Return the content of run.json with the list of all clients, however many they are.

        Returns:
            The header.

        Raises:
            OutputError: The folder holds no run, or a file is damaged or missing.
        """
        return client_lists.restore_clients(self.path / "run.json", self.header())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running in this folder while the `with` block runs.

        A killed process leaves no lock. On Windows nothing is locked.

        Raises:
            OutputError: Another process is running in the folder, or run.json cannot be opened.
        """
        with files.locked(self.path / "run.json"):
            yield

    @property
    def has_ledger(self) -> bool:
        """Whether the folder holds a ledger file; without one, charges were counted in memory."""
        return (self.path / LEDGER_NAME).is_file()

    def ledger(self) -> Ledger:
        """Open the ledger of the run.

        Returns:
            The ledger, for reading and charging; the caller closes it.

        Raises:
            LedgerError: There is no ledger, or the file cannot be read as one.
        """
        return Ledger(self.path / LEDGER_NAME)

    # -- metrics ---------------------------------------------------------------------------

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Append the metrics of a round to metrics.jsonl, as one line.

        Args:
            row: The metrics; `round` is the number of the round.

        Raises:
            OutputError: The file cannot be written.
        """
        path = self.path / "metrics.jsonl"
        with files.explain_os_errors("write", path), files.open_private(path, append=True) as file:
            file.write((json.dumps(row, sort_keys=True) + "\n").encode())

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of the rounds, up to the first line that a crash may have cut off.

        Returns:
            One row for each round, in the order of the file; empty if there is no file. The first
            line that is not a JSON object with `round`, and all lines after it, are left out.

        Raises:
            OutputError: The file cannot be read, a line exceeds the limits of size and nesting, or
                its `round` is not an integer.
        """
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        rows = []
        with files.explain_os_errors("read", path):
            lines = path.read_bytes().splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                row = bounded_json.loads(line)
            except bounded_json.BoundsError as error:  # No crash leaves such a line.
                raise OutputError(f"{path} is damaged: line {number} {error}; restore it") from None
            except bounded_json.JsonError:
                break
            if not isinstance(row, dict) or "round" not in row:
                break
            if type(row["round"]) is not int:
                raise OutputError(
                    f"{path} is damaged: 'round' of line {number} is not an integer; restore it"
                )
            rows.append(row)
        return rows

    def keep_metrics_up_to(self, last_round: int) -> None:
        """Delete the metrics of later rounds from metrics.jsonl, because they will be run again.

        Args:
            last_round: The last round to keep: that of the checkpoint, or 0 for none.
        """
        self.replace_metrics([row for row in self.metrics() if row["round"] <= last_round])

    def replace_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Replace metrics.jsonl.

        Args:
            rows: The metrics of each round.
        """
        text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
        files.write_atomic(self.path / "metrics.jsonl", text.encode(), mode=files.PRIVATE)

    # -- checkpoints -----------------------------------------------------------------------

    def save_checkpoint(self, progress: "Progress", num_charges: int) -> None:
        """Replace checkpoint.npz by one of the last finished round, readable by the owner only.

        Args:
            progress: The model and the state of the algorithm after the last finished round.
            num_charges: The number of charges in the ledger. It can only grow, so a resumed run
                that finds fewer knows that charges are missing.
        """
        metrics = self.path / "metrics.jsonl"
        with (
            files.explain_os_errors("write", metrics),
            files.open_private(metrics, append=True) as file,
        ):
            os.fsync(file.fileno())
        arrays: dict[str, Any] = {
            "rounds_done": np.int64(progress.rounds_done),
            "num_charges": np.int64(num_charges),
            "model": progress.model,
            **{f"state_{name}": array for name, array in progress.algorithm_state.items()},
        }
        # Readable by the owner only: an algorithm's state may hold private data of clients.
        files.write_atomic(
            self.path / "checkpoint.npz", lambda file: np.savez(file, **arrays), mode=0o600
        )

    def charges_at_checkpoint(self) -> int:
        """Return the number of charges that the ledger had at the last checkpoint.

        Returns:
            The number; 0 without a checkpoint.

        Raises:
            OutputError: The checkpoint is damaged.
        """
        stored = self._read_checkpoint()
        return int(stored["num_charges"]) if stored else 0

    def last_checkpoint(self) -> tuple[int, float] | None:
        """Return which round the last checkpoint holds, and when it was saved.

        Returns:
            (number of finished rounds, time of saving in seconds since 1970); None without a
            checkpoint.

        Raises:
            OutputError: The checkpoint is damaged.
        """
        stored = self._read_checkpoint()
        if stored is None:
            return None
        path = self.path / "checkpoint.npz"
        with files.explain_os_errors("read", path):
            return int(stored["rounds_done"]), path.stat().st_mtime

    def load_checkpoint(self) -> "Progress | None":
        """Return the model and the state of the algorithm at the last checkpoint.

        Returns:
            These, with the number of finished rounds; None without a checkpoint.

        Raises:
            OutputError: The checkpoint is damaged.
        """
        stored = self._read_checkpoint()
        if stored is None:
            return None
        from sottovoce.federated.training import Progress

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
            with files.explain_os_errors("read", path):
                content = path.open("rb")  # numpy would leave a damaged file open
            with content, np.load(content, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
        except files.ARRAY_DAMAGE:
            arrays = {}
        if not _is_whole(arrays):
            raise OutputError(
                f"{path} is damaged; restore it from a backup (a new run on the same data would "
                "spend its budget in addition)"
            )
        return arrays

    # -- data ------------------------------------------------------------------------------

    def save_data_digest(self, digest: str) -> None:
        """Store the digest of the data, readable by the owner only.

        An attacker who guesses all records could confirm the guess with it.

        Args:
            digest: The digest, as `inputs.digest_of` returns it.
        """
        files.write_atomic(self.path / DIGEST_NAME, f"{digest}\n".encode(), mode=0o600)

    def data_digest(self) -> str | None:
        """Return the digest of the data on which the run was started.

        Returns:
            The digest; None for runs of earlier versions, and where the records are at the sites.
        """
        path = self.path / DIGEST_NAME
        if not path.is_file():
            return None
        with files.explain_os_errors("read", path):
            return path.read_text(encoding="utf-8", errors="replace").strip()

    # -- result ----------------------------------------------------------------------------

    def save_result(self, result: dict[str, Any]) -> None:
        """Write result.json, which marks the run as finished.

        Args:
            result: The result, as `outcome.result_of` returns it. A list of more than 100 clients
                goes to result-clients.json.gz.
        """
        path = self.path / "result.json"
        stored = client_lists.store_clients(path, result)
        files.write_json(path, stored, sort_keys=False, mode=files.PRIVATE)

    def result(self) -> dict[str, Any] | None:
        """Return the result of the run.

        Returns:
            The content of result.json with all clients; None if the run is not finished.

        Raises:
            OutputError: result.json is damaged, or its list of clients is damaged or missing.
        """
        path = self.path / "result.json"
        if not path.is_file():
            return None
        result = files.read_json(path)
        return client_lists.restore_clients(path, result) if isinstance(result, dict) else result


def _wrong_in_header(header: object) -> str:
    """Return what is wrong with a run.json, in a few words; empty if it can be used."""
    if not isinstance(header, dict) or not {"spec", "spec_hash", "layout"} <= set(header):
        return "keys are missing"
    for path, kind, kind_name in _KINDS:
        found: Any = header
        for key in path.split("."):
            found = found.get(key, _ABSENT) if isinstance(found, dict) else _ABSENT
        if found is _ABSENT and path in _NEEDED:
            return f"'{path}' is missing"
        if found is not _ABSENT and (not isinstance(found, kind) or isinstance(found, bool)):
            return f"'{path}' must be a {kind_name}"
    return "" if _is_layout(header["layout"]) else "'layout' must be a list of names and shapes"


def _is_layout(layout: object) -> bool:
    """Return whether a value is a list of names and shapes of a model's parameters."""
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
    """Return whether a checkpoint has counts and a model of finite numbers."""
    if not {"rounds_done", "num_charges", "model"} <= set(arrays):
        return False
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        return False  # numpy returns a member of another format as bytes.
    counts = [arrays["rounds_done"], arrays["num_charges"]]
    model = arrays["model"]
    return (
        all(count.shape == () and count.dtype.kind in "iu" and count >= 0 for count in counts)
        and model.ndim == 1
        and model.dtype.kind == "f"
        and bool(np.isfinite(model).all())
    )


SECONDS_BETWEEN = 60.0  # The work that a crash may cost, or one round where rounds take longer.


class Checkpoints:
    """The saving of finished rounds: every few rounds, once a minute, at the end, on interruption.

    The times of saving do not change the result of a run: the last round is always saved.

    Args:
        folder: The run folder.
        resolved: The run, which says after how many rounds to save.
        record: The ledger of the run, or its record in memory.
        done: The progress at the start: that of the last checkpoint, or of a new run.
        clock: Returns seconds; by default a clock of this process.
    """

    def __init__(
        self,
        folder: RunFolder,
        resolved: "Resolved",
        record: SpendingRecord,
        *,
        done: "Progress",
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._folder, self._run, self._record = folder, resolved.run, record
        self._rounds, self._every = resolved.spec.rounds, resolved.spec.checkpoint_every
        if resolved.spec.runtime.backend != "fast":
            self._every = 1  # Such rounds take seconds, and sites keep only one round's messages.
        self._clock = clock or time.monotonic
        self._done, self._saved, self._saved_at = done, done.rounds_done, self._clock()

    def after_round(self, progress: "Progress") -> None:
        """Take note of a round whose metrics are written; save a checkpoint if one is due."""
        self._done = progress
        number = progress.rounds_done
        overdue = self._clock() - self._saved_at >= SECONDS_BETWEEN
        if overdue or number == self._rounds or number % self._every == 0:
            self.save()

    def save(self) -> None:
        """Save a checkpoint of the last finished round; discard stored messages up to it."""
        self._folder.save_checkpoint(self._done, self._record.num_charges)
        self._record.discard_messages(self._run, before_round=self._done.rounds_done + 1)
        self._saved, self._saved_at = self._done.rounds_done, self._clock()

    @contextlib.contextmanager
    def save_on_interrupt(self) -> Iterator[None]:
        """Save the finished rounds if KeyboardInterrupt or SystemExit ends the `with` block.

        The exception is raised again. The current round is abandoned: its charges stay, and a
        resumed run sends the messages that it has stored.
        """
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            if self._done.rounds_done > self._saved:
                self.save()
            raise


def describe_resume(folder: RunFolder, spec: RunSpec) -> str:
    """Return a sentence that says at which round a resumed run continues, and from what."""
    saved = folder.last_checkpoint()
    if saved is None:
        kept = ""
        if spec.channel.build().is_cryptographic:
            kept = "; its charges stay, and each new attempt at a round is charged again"
        elif spec.runtime.messages == "stored":
            kept = "; its charges stay, and the messages that it stored are sent again"
        return f"no checkpoint yet: starting again at round 1{kept}"
    done, seconds = saved
    when = f"saved {datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if done >= spec.rounds:
        return f"all {spec.rounds} rounds are done (checkpoint of round {done}, {when})"
    return f"resuming at round {done + 1} of {spec.rounds} (checkpoint of round {done}, {when})"
