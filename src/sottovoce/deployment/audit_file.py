"""An append-only file of JSON lines with chained digests, and the state that its lines describe.

A line is written as a whole, with the file locked, and synced before the writer continues; nothing
is rewritten. Each digest covers the line and the digest before it, so `verify_lines` finds a line
that was edited, removed or moved. It cannot find lines that were cut off at the end, nor a chain
that was computed again. A line that a crash left incomplete stays in the file: the next line
starts on its own and is chained from the last complete one.

`LogState` is what a site's audit log says so far, from which its next line follows.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sottovoce.core import bounded_json, files
from sottovoce.core.errors import OutputError
from sottovoce.ledger import records

Entry = dict[str, Any]
CHAIN = "chain"
_MOST_NESTED = 8  # lines are nested less than half as deep
_ENDING = re.compile(rb'"chain": *"([0-9a-f]{32})"}')  # the end of a complete line


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """A line of an audit file.

    Without an entry it is an incomplete line that a crash left or, with a problem, a line that this
    program did not write.

    Attributes:
        number: Number of the line, from 1; empty lines are not counted.
        entry: The JSON object of the line, without its digest.
        problem: A sentence if the line does not follow from those before it; else None.
    """

    number: int
    entry: Entry | None
    problem: str | None = None


@dataclass(slots=True, kw_only=True)
class Position:
    """How far a file was read: bytes, lines, and the last digest."""

    num_bytes: int = 0
    num_lines: int = 0
    end: bytes = b""
    mid_line: bool = False  # the last line has no newline, so the next one starts with one

    def advance(self, content: bytes) -> Iterator[AuditLine]:
        """Yield the lines of the next content of the file, and advance this position past them.

        The last line may be incomplete.
        """
        if not content:
            return
        self.mid_line = not content.endswith(b"\n")
        for raw in content.split(b"\n"):
            self.num_bytes += len(raw) + 1
            if not raw:
                continue
            self.num_lines += 1
            entry, found = _parsed(raw)
            if found is None:
                yield AuditLine(number=self.num_lines, entry=None)
                continue
            expected = entry is not None and raw == _rendered(entry, self.end)
            problem = None if expected else f"line {self.num_lines}, or one before it, was altered"
            self.end = found
            yield AuditLine(number=self.num_lines, entry=entry, problem=problem)
        self.num_bytes -= 1


def _parsed(raw: bytes) -> tuple[Entry | None, bytes | None]:
    """Return the entry of a line and its digest.

    There is no digest for an incomplete line. There is no entry for a complete line that no entry
    is written as: text that is not JSON, a number that overflows or is very long, or deep nesting.
    """
    try:
        entry = bounded_json.loads(raw, most_nested=_MOST_NESTED, finite=True)
        return entry, bytes.fromhex(entry.pop(CHAIN))
    except (ValueError, AttributeError, KeyError, TypeError):
        ending = _ENDING.search(raw)
        return None, bytes.fromhex(ending[1].decode()) if ending else None


def _rendered(entry: Entry, previous: bytes) -> bytes:
    text = json.dumps(entry, allow_nan=False)
    digest = records.digest(previous + text.encode()).hex()
    return f'{text[:-1]}, "{CHAIN}": "{digest}"}}'.encode()


def read_lines(path: Path, position: Position | None = None) -> Iterator[AuditLine]:
    """Yield the lines of an audit file from `position` on and advance it; none without a file.

    Without a position all lines are read. Raises OutputError if the file cannot be read.
    """
    position = position or Position()
    try:
        with files.explain_os_errors("read", path), path.open("rb") as file:
            file.seek(position.num_bytes)
            content = file.read()
    except OutputError:
        if path.exists():
            raise
        return
    yield from position.advance(content)


def verify_lines(path: Path) -> tuple[list[Entry], list[str]]:
    """Return all entries of an audit file, and a sentence for each altered line.

    A file that does not exist has neither.
    """
    entries, problems = [], []
    for line in read_lines(path):
        if line.entry is not None:
            entries.append(line.entry)
        if line.problem is not None:
            problems.append(line.problem)
    return entries, problems


@contextlib.contextmanager
def open_locked(path: Path) -> Iterator[int]:
    """Open an audit file for reading and appending, and yield its file descriptor.

    A missing file is created, readable only by its owner. The file is locked until the block ends;
    a lock of another process is waited for. An OSError, also one in the block, is raised as
    OutputError.
    """
    with files.explain_os_errors("write", path):
        is_new = not path.exists()
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, files.PRIVATE)
        try:
            files.wait_for_lock(handle)
            if is_new:
                files.sync_folder(path.parent)
            yield handle
        finally:
            os.close(handle)


def identity(handle: int) -> tuple[int, int, int]:
    """Return the device, inode and size of an open file."""
    found = os.fstat(handle)
    return found.st_dev, found.st_ino, found.st_size


def read_tail(handle: int, position: Position) -> list[AuditLine]:
    """Return the lines after `position` and advance it past them; call it inside `open_locked`."""
    content = bytearray()
    while part := os.pread(handle, 1 << 20, position.num_bytes + len(content)):
        content += part
    return list(position.advance(bytes(content)))


def append(handle: int, position: Position, entries: Sequence[Entry]) -> None:
    """Write entries, one line each, and wait for the disk; call it inside `open_locked`.

    `position` must be the end of the file and is advanced. Raises OSError if writing fails; part of
    a line may be in the file then.
    """
    if not entries:
        return
    lines, end = [], position.end
    for entry in entries:
        line = _rendered(entry, end)
        end = bytes.fromhex(json.loads(line)[CHAIN])
        lines.append(line + b"\n")
    content = (b"\n" if position.mid_line else b"") + b"".join(lines)
    written = os.write(handle, content)
    if written != len(content):
        raise OSError("only a part of a line could be written")
    os.fsync(handle)
    position.num_bytes += len(content)
    position.num_lines += len(lines)
    position.end, position.mid_line = end, False


DAY_SECONDS = 24 * 3600.0
_LAST_TIME = 253402300799.0  # 9999-12-31T23:59:59Z, the last time that can be written
# Everyone who reaches the link can cause lines: at most this many at once, then one a minute.
_BURST_LINES, _SECONDS_A_LINE = 20.0, 60.0

CHARGED, AGAIN, REFUSED = "charged", "answered again", "refused"
POLICY, STARTED, STOPPED, WARNING = "policy changed", "started", "stopped", "warning"


def wall_clock() -> float:
    """Return the seconds since 1970 by the machine's clock."""
    return time.time()


def steady_clock() -> float:
    """Return the seconds of a clock that never goes back while this process lives."""
    return time.monotonic()


def time_text(seconds: float) -> str:
    """Return seconds since 1970 as text in UTC to the millisecond, as lines contain it."""
    shown = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return shown.replace("+00:00", "Z")


def seconds_of(text: object) -> float | None:
    """Return the time in a line as seconds since 1970; None if it is not a time.

    A text without a time zone is in UTC.
    """
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    return min(found.timestamp(), _LAST_TIME)


@dataclass(slots=True)
class LogState:
    """The content of an audit log as far as it was read.

    Attributes:
        position: How far the file was read.
        charges: Number of the ledger's charges that have a line.
        link: Chain link of the last of these charges, by which the ledger is recognized.
        latest: Largest time of any line of a charge. A charged round counts as of the latest time
            up to its line, so a clock that was set back neither ends a day of rounds early nor
            makes a round forgotten.
        rounds: Time of each (run, round) that was charged.
        policy: The policy as the last lines state it.
        warned: What warnings were about since the policy changed.
        records: Number of records of the site, if a line has stated it.
        problems: Number of lines that do not follow from those before.
    """

    position: Position = field(default_factory=Position)
    charges: int = 0
    link: str | None = None
    latest: float = 0.0
    rounds: dict[tuple[str, int], float] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    warned: set[str] = field(default_factory=set)
    records: int | None = None
    problems: int = 0

    def take(self, line: AuditLine) -> None:
        """Update the state by one line; unknown content is ignored."""
        self.problems += line.problem is not None
        if line.entry is not None:
            self.take_entry(line.entry)

    def take_entry(self, entry: Entry) -> None:
        """Update the state by one entry."""
        if (
            entry.get("what") == "charged"
        ):  # only these lines count rounds, so a wrong clock in others has no effect
            self.latest = max(self.latest, seconds_of(entry.get("time")) or 0.0)
        charges, records = entry.get("charges"), entry.get("records")
        if type(charges) is int and 0 <= charges < 2**63:  # the range of a ledger's count
            self.charges, self.link = charges, entry.get("link")
        if type(records) is int and records > 0:
            self.records = records
        match entry.get("what"):
            case "charged":
                run, number = entry.get("run"), entry.get("round")
                if isinstance(run, str) and type(number) is int:
                    # The first line of a round counts: a later one is not another round, unless the
                    # first is more than a day old.
                    first = self.rounds.pop((run, number), self.latest)
                    is_old = first <= self.latest - DAY_SECONDS
                    self.rounds[run, number] = self.latest if is_old else first
                    self._forget()
            case "policy changed" if isinstance(changes := entry.get("changes"), Mapping):
                self.policy.update({key: new for key, (_, new) in _pairs(changes)})
                self.warned.clear()  # the warnings may differ under the new policy
            case "warning":
                self.warned.add(str(entry.get("about")))

    def rounds_within_a_day(self, now: float) -> set[tuple[str, int]]:
        """Return each (run, round) that was charged within the last 24 hours.

        The hours end at `now`, in seconds since 1970, or at the latest charge in the log if that is
        later.
        """
        since = max(now, self.latest) - DAY_SECONDS
        return {key for key, at in self.rounds.items() if at > since}

    def _forget(self) -> None:
        """Drop rounds that are a day old by the log itself, since the clock may be wrong."""
        since = self.latest - DAY_SECONDS
        oldest = min(self.rounds.values())
        if (
            oldest <= since - DAY_SECONDS
        ):  # a day's rounds at once, so that not every line scans all
            self.rounds = {key: at for key, at in self.rounds.items() if at > since}


def _pairs(changes: Mapping[str, Any]) -> list[tuple[str, tuple[Any, Any]]]:
    """Return the (old, new) values of a policy change, by key."""
    found = []
    for key, value in changes.items():
        if isinstance(value, list) and len(value) == 2:
            found.append((key, (value[0], value[1])))
    return found


@dataclass(slots=True)
class Throttle:
    """A limit on the lines that others can cause: a bucket that gains one token a minute.

    It starts full, with 20 tokens, and a line takes one.
    """

    tokens: float = _BURST_LINES
    filled_at: float = field(default_factory=lambda: steady_clock())
    unlisted: int = 0
    last: tuple[object, ...] | None = None

    def listed(self, key: tuple[object, ...]) -> int | None:
        """Count one event; return how many events its line stands for, or None if it gets no line.

        The number includes the events since the last line, which have none. An event whose `key`
        equals the last listed one is listed again only when the bucket is full: at the earliest
        after a minute, and only if nothing else comes.
        """
        now = steady_clock()
        gained = (now - self.filled_at) / _SECONDS_A_LINE
        self.tokens, self.filled_at = min(_BURST_LINES, self.tokens + gained), now
        self.unlisted += 1
        is_new = key != self.last
        if self.tokens < (1.0 if is_new else _BURST_LINES):
            return None
        self.tokens -= 1.0
        times, self.unlisted, self.last = self.unlisted, 0, key
        return times
