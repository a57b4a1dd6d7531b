"""Commands that pages show exist, with the options that they show; how they end is others' to test.

Tutorials and how-tos are run from end to end (test_pages.py), the README's commands too
(tests/test_package.py). This reads what stands elsewhere: long commands, and those for machines
that are not here.
"""

import functools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT

from sottovoce.cli.main import parser

PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "results").rglob("*.md"),
        *(ROOT / "examples").glob("*.toml"),
    ]
)
_COMMAND = re.compile(r"(?<!from )(?<!\S)`?(?:\.venv/bin/)?sottovoce ([a-z][^`\n]*)")
_END = re.compile(r"\s(?:\|\||&&?|\||>|#)(?:\s|$)|;|\s\s+\(")


def _shown(page: Path) -> set[tuple[str, bool, Path]]:
    """What stands after `sottovoce` in blocks and comments of specs; and, in short, in a line."""
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^(?:    |#   ).*$", text, re.MULTILINE)
    blocks += re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`[^`\n]+`", text)
    return {
        (_END.split(found)[0].strip(), in_short, page)
        for parts, in_short in ((blocks, False), (spans, True))
        for part in parts
        for found in _COMMAND.findall(part)
    }


SHOWN = sorted(set().union(*(_shown(page) for page in PAGES)))


@functools.cache
def _root() -> Any:
    return parser()


def _parse(command: str) -> None:
    """Click reads the words as it would, and runs nothing."""
    node = _root()
    words = shlex.split(re.sub(r"--(?:debug|help)\b", "", command), comments=True)
    while hasattr(node, "commands"):
        if not words:
            return  # a group by its name
        name = words.pop(0)
        assert name in node.commands, f"there is no command '{name}'"
        node = node.commands[name]
    if words:
        node.make_context("sottovoce", words)


def test_every_command_that_is_shown_exists() -> None:
    assert len(SHOWN) > 100
    wrong = []
    for command, in_short, page in SHOWN:
        if in_short and ("..." in command or "|" in command):
            continue  # a pattern
        try:
            _parse(command)
        except Exception as error:
            kind = type(error).__name__
            if kind == "Exit" or (in_short and kind == "MissingParameter"):
                continue  # an option that answers by itself; a command that is only named
            reason = getattr(error, "message", None) or str(error)
            wrong.append(f"{page.relative_to(ROOT)}: sottovoce {command}: {reason}")
    assert wrong == []


@pytest.mark.parametrize("command", ["fly", "run spec.toml --fast", "ledger burn", "run a b"])
def test_a_command_that_does_not_exist_is_found(command: str) -> None:
    with pytest.raises(Exception, match=r".") as caught:
        _parse(command)
    assert not isinstance(caught.value, TypeError)
