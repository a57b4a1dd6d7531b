"""A command line that tests can call."""

import functools
import json
import sys
from typing import Any

import pytest
import typer.main

from sottovoce.cli.main import main


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


# The parser of all commands takes as long to make as many a command to run: one for all tests.
_parser = functools.cache(typer.main.get_command)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: object) -> Result:
        words = [str(a) for a in arguments]
        monkeypatch.setattr(sys, "argv", ["sottovoce", *words])
        monkeypatch.setattr(typer.main, "get_command", _parser)
        with pytest.raises(SystemExit) as exit_:
            main()  # always ends the process, as click's standalone mode does
        captured = capsys.readouterr()
        return Result(int(exit_.value.code or 0), captured.out, captured.err)

    return call
