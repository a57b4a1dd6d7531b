"""The state of a run, read while it trains: no file is locked or written."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sottovoce.core.errors import OutputError
from sottovoce.runs import client_lists
from sottovoce.runs.folder import DIGEST_NAME, RunFolder
from sottovoce.runs.record import algorithm_facts, read_record
from sottovoce.runs.site_counts import has_sites, have_site_replies, idle_reason, site_counts
from sottovoce.runs.statistics import evaluation_text, latest_statistics

State = Literal[
    "waiting", "running", "silent", "halted", "diverged", "finished", "failed", "stopped"
]

_QUIET_SECONDS, _QUIET_ROUNDS = 60.0, 10.0
_SILENT_CLIENTS_TOLD = 5
_SILENT_SECONDS = 10.0  # without a round, and without a process here that holds the run
_LOCKS = Path("/proc/locks")
_ROUND_FIELDS = (
    "clients_asked",
    "clients_received",
    "clients_out_of_budget",
    "clients_unreachable",
    "replies_dropped",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the files of a run say at one moment.

    Attributes:
        folder: The run's folder.
        header: What run.json has; None if the run has not begun.
        rows: The metrics of the finished rounds, in order.
        result: What result.json has; None before the run's end.
        seconds_at_work: The seconds from the creation of the folder to the last round; None before
            the first round.
        quiet_seconds: The seconds since the last round, or before it since the creation of the
            folder; 0 if the run has not begun.
        is_held: Whether a process of this machine has the run locked; None if unknown.
    """

    folder: Path
    header: Mapping[str, Any] | None
    rows: tuple[Mapping[str, Any], ...]
    result: Mapping[str, Any] | None
    seconds_at_work: float | None
    quiet_seconds: float
    is_held: bool | None = None

    @property
    def state(self) -> State:
        """The state of the run: waiting, running, silent, halted, diverged or finished.

        waiting: it has not begun. silent: no process of this machine has it locked, and no round
        came for more than 10 seconds. halted: it stopped because too few clients had budget left.
        diverged: it stopped because the model had no finite test loss any more.
        """
        if self.header is None:
            return "waiting"
        if self.result is None:
            gone = self.is_held is False and self.quiet_seconds > _SILENT_SECONDS
            return "silent" if gone else "running"
        if self.result.get("diverged"):
            return "diverged"
        return "halted" if self.result.get("halted") else "finished"

    @property
    def has_ended(self) -> bool:
        """Whether the run has finished or halted, so that there is a result."""
        return self.result is not None

    @property
    def rounds_done(self) -> int:
        """The number of the last finished round; 0 before it."""
        return int(self.rows[-1]["round"]) if self.rows else 0


def read(folder: Path) -> Reading:
    """Return what the files of a run say now; nothing is locked or written.

    Args:
        folder: The run's folder, which may not exist yet; the state is then 'waiting'.

    Raises:
        OutputError: If the folder has other files but no run, or the run's files are damaged.
    """
    run_folder = RunFolder(folder)
    if not run_folder.exists:
        _check_empty(folder)
        return Reading(
            folder=folder,
            header=None,
            rows=(),
            result=None,
            seconds_at_work=None,
            quiet_seconds=0.0,
        )
    record = read_record(folder)
    rows = tuple(record.rows)
    begun = max(_changed(folder / name) or 0.0 for name in ("run.json", DIGEST_NAME))
    last = (_changed(folder / "metrics.jsonl") if rows else None) or begun
    return Reading(
        folder=folder,
        header=record.header,
        rows=rows,
        result=record.result,
        seconds_at_work=last - begun if last > begun else None,
        quiet_seconds=max(0.0, time.time() - last),
        is_held=_is_held(folder / "run.json"),
    )


def describe(reading: Reading, *, rounds_per_second: float | None = None) -> dict[str, Any]:
    """Return the state of a run as plain data.

    `epsilon` is the largest over clients after the last finished round, and None if there is no
    guarantee; charges for a round that is not finished are in the ledger only. `epsilon_left`, what
    is left of the budget, is None if clients have different budgets or none. In a federation both
    are the server's count, and `sites` has what each site answered and says it charged. Sums such
    as `bytes_up` are over all finished rounds.

    Args:
        reading: What the files say.
        rounds_per_second: The speed, from which `seconds_left` is estimated; None for the mean
            since the folder was created.
    """
    spec = _section((reading.header or {}).get("spec"))
    privacy, rows = _section(spec.get("privacy")), reading.rows
    last = rows[-1] if rows else {}
    done, rounds = reading.rounds_done, spec.get("rounds")
    if rounds_per_second is None and reading.seconds_at_work:
        rounds_per_second = done / reading.seconds_at_work
    budget = _common_budget(reading.header or {})
    epsilon = last.get("epsilon", 0.0)
    clients = len((reading.header or {}).get("clients") or ())
    seconds_left = None
    if reading.state == "running" and rounds and rounds_per_second:
        seconds_left = (rounds - done) / rounds_per_second
    described: dict[str, Any] = {
        "name": spec.get("name", reading.folder.name),
        "folder": str(reading.folder),
        "state": reading.state,
        "halted": (reading.result or {}).get("halted"),
        "rounds_done": done,
        "rounds": rounds,
        "rounds_per_second": rounds_per_second,
        "seconds_left": seconds_left,
        "quiet_seconds": None if reading.has_ended else reading.quiet_seconds,
        "accuracy": _last_known(rows, "accuracy"),
        "score": _last_known(rows, "score") or "accuracy",
        "metrics": _last_known(rows, "metrics"),
        "loss": _last_known(rows, "loss"),
        "clip_norm": _last_known(rows, "clip_norm"),
        "private_evaluation": evaluation_text(latest_statistics(rows)) or None,
        "epsilon": epsilon,
        "private": epsilon is not None,
        "epsilon_budget": budget,
        "epsilon_left": _left(budget, epsilon),
        "delta": privacy.get("delta"),
        "clients": clients,
        "last_round": {name: last.get(name) for name in _ROUND_FIELDS} if last else None,
        "replies_asked": _total(rows, "clients_asked"),
        "replies_received": _total(rows, "clients_received"),
        "has_sites": has_sites(spec),
        "sites": _site_counts(reading) if has_sites(spec) and have_site_replies(rows) else None,
        "rounds_with_missing_replies": sum(_missing(row) > 0 for row in rows),
    }
    for direction in ("up", "down"):
        total = _total(rows, f"total_bytes_{direction}")
        described[f"bytes_{direction}"] = total
        described[f"bytes_{direction}_per_client"] = total / clients if clients else None
    described["guarantee"] = (reading.header or {}).get("guarantee")
    described["warnings"] = _warnings(reading, described)
    return described


def _site_counts(reading: Reading) -> dict[str, Any]:
    names = [one["client"] for one in (reading.header or {}).get("clients") or ()]
    return site_counts(reading.rows, names)


def _check_empty(folder: Path) -> None:
    """Raise OutputError if a folder has files other than those written before run.json.

    Temporary files start with a dot, and a long list of clients is written before run.json.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; name the folder of a run or of a federation")
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if any(not name.startswith(".") and not name.endswith(client_lists.SUFFIX) for name in names):
        raise OutputError(
            f"{folder} is not a run folder: it has no run.json; name the folder that "
            "'sottovoce run' or 'deploy run' writes (runs/NAME), or that of a federation"
        )


def _is_held(path: Path) -> bool | None:
    """Return whether a process of this machine has locked a file; None if unknown.

    The list of locks is read, because locking the file to find out could disturb the run.
    """
    try:
        held = [line.split() for line in _LOCKS.read_text().splitlines()]
        inode = str(path.stat().st_ino)
    except OSError:
        return None
    return any("FLOCK" in words and words[-3].rpartition(":")[2] == inode for words in held)


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _section(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _common_budget(header: Mapping[str, Any]) -> float | None:
    """Return the budget of every client; None if budgets differ or none is enforced."""
    privacy = _section(_section(header.get("spec")).get("privacy"))
    own = [group.get("epsilon") or group.get("delta") for group in privacy.get("groups") or ()]
    if any(own) or not algorithm_facts(header).enforces_budget:
        return None
    budget = privacy.get("epsilon")
    return float(budget) if budget is not None else None


def _left(budget: float | None, epsilon: float | None) -> float | None:
    """Return what is left of a budget, rounded down."""
    if budget is None or epsilon is None:
        return None
    return max(0.0, math.nextafter(budget - epsilon, -math.inf)) if epsilon else budget


def _last_known(rows: tuple[Mapping[str, Any], ...], name: str) -> Any:
    """Return a value of the last round in which the model was tested."""
    return next((row[name] for row in reversed(rows) if row.get(name) is not None), None)


def _total(rows: tuple[Mapping[str, Any], ...], name: str) -> int:
    return sum(row.get(name) or 0 for row in rows)


def _missing(row: Mapping[str, Any]) -> int:
    return (row.get("clients_asked") or 0) - (row.get("clients_received") or 0)


def _warnings(reading: Reading, described: Mapping[str, Any]) -> list[str]:
    """Return warnings about the last round, or those of the result of a run that has ended."""
    if reading.result is not None:
        return list(reading.result.get("warnings") or ())
    found = []
    last = described["last_round"] or {}
    rows_last = reading.rows[-1] if reading.rows else {}
    if last.get("clients_out_of_budget"):
        found.append(f"{last['clients_out_of_budget']} clients are out of budget")
    if last.get("clients_unreachable"):
        found.append(f"{last['clients_unreachable']} clients could not be reached")
    for client, reason in list((rows_last.get("unanswered") or {}).items())[:_SILENT_CLIENTS_TOLD]:
        found.append(f"no reply of '{client}' was used in the last round: {reason}")
    if last.get("replies_dropped"):
        found.append(f"{last['replies_dropped']} replies did not match the plan and were dropped")
    if last and not last.get("clients_asked"):
        found.append(f"no client was asked in the last round: {idle_reason(rows_last)}")
    speed, quiet = described["rounds_per_second"], reading.quiet_seconds
    if reading.state == "silent":
        found.append(
            f"no round for {quiet:.0f} seconds, and no process of this machine runs it; if it was "
            "interrupted, continue with --resume. A round that was charged but not finished is "
            "counted in the ledger ('sottovoce ledger show') and not here"
        )
    elif reading.header and quiet > max(_QUIET_SECONDS, _QUIET_ROUNDS / speed if speed else 0.0):
        found.append(
            f"no round for {quiet:.0f} seconds; if it was interrupted, continue with --resume"
        )
    return found
