"""Pages that tell the truth: their files are written, their commands run, their output compared.

In a page of docs/ a fenced block is

- a file, if it has a title (```toml title="first.toml"), written as it stands;
- `sh`: run by bash, with `sottovoce` on the path, in one folder for the whole page. Where every
  line is a plain `sottovoce` command they are called in this process, which spares its start; a
  variable for its first words, and `|| echo "exit code $?"` after it, are understood there, too;
- `python`: run in one namespace for the whole page, in the same folder;
- `text` after one of these: lines that its output must hold, in this order. `...` stands for
  anything within a line, or between lines;
- `toml`: a part of a spec, which must be well-formed.

Indented blocks are for reading only.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_line import call, inside

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHOW_CODE = ' || echo "exit code $?"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block of a page."""

    place: str
    language: str
    title: str | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What stands after `sottovoce`, and whether the page shows how it fails."""

    words: list[str]
    may_fail: bool


def blocks(page: Path) -> list[Block]:
    """A page's fenced blocks, from above."""
    text = page.read_text()
    assert len(re.findall("^```", text, re.MULTILINE)) % 2 == 0, (
        f"{page} has a fence that is not closed"
    )
    return [
        Block(
            place=f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}",
            language=found[1],
            title=found[2],
            text=found[3],
        )
        for found in _FENCE.finditer(text)
    ]


def play(page: Path, folder: Path) -> None:
    """Do what a page says, in an empty folder."""
    names: dict[str, Any] = {"__name__": "__page__"}
    output = ""
    for block in blocks(page):
        if block.title is not None:
            (folder / block.title).write_text(block.text)
        elif block.language == "sh":
            commands = _plain_commands(block.text)
            output = _called(block, commands, folder) if commands else _shell(block, folder)
        elif block.language == "python":
            output = _python(block, folder, names)
        elif block.language == "text":
            holds(output, block.text, block.place)
        elif block.language == "toml":
            tomllib.loads(block.text)
        else:
            raise AssertionError(f"{block.place}: no runner for '{block.language}'")


def holds(output: str, shown: str, place: str) -> None:
    """The lines shown are in the output, in their order; columns may be wider or narrower."""
    found = iter(_words(output))
    for line in _words(shown):
        if line == "...":
            continue
        pattern = ".*".join(re.escape(part.strip()) for part in line.split("..."))
        assert any(re.fullmatch(pattern, one) for one in found), f"{place}: {line}\n{output}"


def _words(text: str) -> list[str]:
    squeezed = (" ".join(line.split()) for line in text.splitlines())
    return [line for line in squeezed if line]


def _plain_commands(text: str) -> list[Command]:
    """Every line's command, if all are ours and need no shell."""
    found, variables = [], {}
    for line in text.replace("\\\n", " ").strip().splitlines():
        if assigned := re.fullmatch(r'(\w+)="([^"$`\\]*)"', line):
            variables[f"${assigned[1]}"] = assigned[2]
            continue
        plain = line.removesuffix(_SHOW_CODE)
        first, _, others = plain.partition(" ")
        command = f"{variables.get(first, first)} {others}"
        if not command.startswith("sottovoce ") or re.search(r"[$|&;<>`*]", command):
            return []
        found.append(Command(words=shlex.split(command)[1:], may_fail=plain != line))
    return found


def _called(block: Block, commands: list[Command], folder: Path) -> str:
    output = ""
    for command in commands:
        shown = call(*command.words, folder=folder, environment=environment(folder))
        output += shown.text
        if command.may_fail and shown.code:
            output += f"exit code {shown.code}\n"
        else:
            assert shown.code == 0, f"{block.place}\n{output}"
    return output


def _shell(block: Block, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-e", "-u", "-o", "pipefail", "-c", block.text],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{block.place}\n{done.stdout}"
    return done.stdout


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a shell with this `sottovoce` and a temporary home."""
    programs = folder.parent / f"{folder.name}-bin"
    if not programs.exists():
        programs.mkdir()
        ours = programs / "sottovoce"
        ours.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sottovoce "$@"\n')
        ours.chmod(0o755)
    path = f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    home = str(programs)
    return {**os.environ, "PATH": path, "HOME": home, "COLUMNS": "250", "OMP_NUM_THREADS": "1"}


def _python(block: Block, folder: Path, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    with inside(folder), contextlib.redirect_stdout(printed):
        exec(compile(block.text, block.place, "exec"), names)
    return printed.getvalue()
