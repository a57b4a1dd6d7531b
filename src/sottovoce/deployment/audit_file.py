"""An append-only file of JSON lines, each with a digest chained from the line before.

A line is written whole, with the file locked, and synced before the writer goes on; nothing is ever
rewritten. The digest covers the line before it, so a line that was edited, removed or moved is
found by `verified`. Two things it cannot find: lines cut off at the end, and a chain that somebody
has computed again. A line that a crash left half written stays where it is: the next one begins on
a line of its own and is chained from the last whole one.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.core import bounded_json, files
from sottovoce.core.errors import OutputError
from sottovoce.ledger import chain

Entry = dict[str, Any]
CHAIN = "chain"
_MOST_NESTED = 8  # no line of ours is nested half as deep
_ENDING = re.compile(rb'"chain": *"([0-9a-f]{32})"}')  # of a whole line


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the file.

    Without an entry it is half a line, which a crash left, or, with a problem, no line of ours.
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
    mid_line: bool = False  # the last line has no end: one more line needs one first

    def advance(self, content: bytes) -> Iterator[Line]:
        """The lines of what comes next in the file, which may end in half a line."""
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
                yield Line(number=self.num_lines, entry=None)
                continue
            expected = entry is not None and raw == _rendered(entry, self.end)
            problem = None if expected else f"line {self.num_lines}, or one before it, was altered"
            self.end = found
            yield Line(number=self.num_lines, entry=entry, problem=problem)
        self.num_bytes -= 1


def _parsed(raw: bytes) -> tuple[Entry | None, bytes | None]:
    """The entry of a line and its digest.

    No digest for half a line; no entry for a whole one that no entry is written as: what is not
    JSON, a number that overflows or is very long, or lists within lists.
    """
    try:
        entry = bounded_json.loads(raw, most_nested=_MOST_NESTED, finite=True)
        return entry, bytes.fromhex(entry.pop(CHAIN))
    except (ValueError, AttributeError, KeyError, TypeError):
        ending = _ENDING.search(raw)
        return None, bytes.fromhex(ending[1].decode()) if ending else None


def _rendered(entry: Entry, previous: bytes) -> bytes:
    text = json.dumps(entry, allow_nan=False)
    digest = chain.digest(previous + text.encode()).hex()
    return f'{text[:-1]}, "{CHAIN}": "{digest}"}}'.encode()


def read_lines(path: Path, position: Position | None = None) -> Iterator[Line]:
    """The lines from `position` on, which moves along; none where there is no file."""
    position = position or Position()
    try:
        with files.explained("read", path), path.open("rb") as file:
            file.seek(position.num_bytes)
            content = file.read()
    except OutputError:
        if path.exists():
            raise
        return
    yield from position.advance(content)


def verified(path: Path) -> tuple[list[Entry], list[str]]:
    """All entries, and what is wrong with the chain: nothing, if no line was altered or removed."""
    entries, problems = [], []
    for line in read_lines(path):
        if line.entry is not None:
            entries.append(line.entry)
        if line.problem is not None:
            problems.append(line.problem)
    return entries, problems


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """The file, private and locked, to be read and appended to; OutputError where that fails."""
    with files.explained("write", path):
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
    """Which file it is, and its size."""
    found = os.fstat(handle)
    return found.st_dev, found.st_ino, found.st_size


def tail(handle: int, position: Position) -> list[Line]:
    """What others have appended since, within `opened`."""
    content = bytearray()
    while part := os.pread(handle, 1 << 20, position.num_bytes + len(content)):
        content += part
    return list(position.advance(bytes(content)))


def append(handle: int, position: Position, entries: Sequence[Entry]) -> None:
    """Write entries, one line each, and return when they are on disk; within `opened`."""
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
