"""The command line called in this process: what it prints without the seconds a new one takes.

How a process starts and ends is what tests/cli/test_cli.py and the federations are for.
"""

import contextlib
import functools
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import typer.main

from sottovoce.cli.main import main

# The parser of all commands, which takes as long to make as many a command to run.
parser = functools.cache(typer.main.get_command)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How a command ended, and what it printed, errors and the rest as they came."""

    code: int
    text: str
    out: str  # without errors and progress


class _Copied(io.StringIO):
    """Standard output, which is also written to where standard error goes."""

    def __init__(self, copy: io.StringIO) -> None:
        super().__init__()
        self._copy = copy

    def write(self, text: str) -> int:
        self._copy.write(text)
        return super().write(text)


def call(
    *words: str, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> Shown:
    """`sottovoce` with these words, in `folder` [here], with more in its environment."""
    printed, code = io.StringIO(), 0
    out = _Copied(printed)
    with (
        mock.patch.object(typer.main, "get_command", parser),
        mock.patch.object(sys, "argv", ["sottovoce", *words]),
        mock.patch.dict(os.environ, environment or {}),
        inside(folder or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(printed),
    ):
        try:
            main()  # always ends the process, as click's standalone mode does
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Shown(code=code, text=printed.getvalue(), out=out.getvalue())


def printed_json(*words: str) -> Any:
    shown = call(*words, "--json")
    assert shown.code == 0, shown.text
    return json.loads(shown.out)


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
