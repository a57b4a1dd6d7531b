"""Names that others chose cannot command a terminal, forge a line or hide what they say."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from sottovoce.cli import output, watch
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.printable_text import logger, printable, printable_data, printable_lines
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Release
from sottovoce.privacy.events import PureDp

EVIL = "ada\x1b[2J\x07\r\nok: 0 charges\u202e\x9b\x7f\ud800[red]"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Ådne 王 ok", "Ådne 王 ok"),
        ("a\x1b[31mb", "a\\u001b[31mb"),
        ("a\nb\tc", "a\\u000ab\\u0009c"),
        ("\x7f\x9b\u202e\u2028", "\\u007f\\u009b\\u202e\\u2028"),
        ("\ud800 \U000e0001", "\\ud800 \\U000e0001"),
    ],
)
def test_what_is_not_printable_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(text).isprintable()


def test_lines_and_nested_data_are_printable() -> None:
    assert printable_lines("a\x07\nb") == "a\\u0007\nb"
    data = {"a\n": ["\x1b", 1, ("\r",)]}
    assert printable_data(data) == {"a\\u000a": ["\\u001b", 1, ["\\u000d"]]}


def _is_plain(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_tables_fields_and_warnings_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["client", EVIL], [[EVIL, "1"], ["[/]", "2"]])
    output.print_fields({EVIL: EVIL, "other": {EVIL: 1}})
    output.print_warning(EVIL)
    output.say(EVIL)
    found = capsys.readouterr()
    assert _is_plain(found.out)
    assert _is_plain(found.err)
    assert "[red]" in found.out  # a name, and no colour
    assert "[/]" in found.out
    assert len(found.err.splitlines()) == 1


def test_a_panel_is_plain() -> None:
    from rich.console import Console

    state = {
        "name": EVIL,
        "state": "halted",
        "folder": EVIL,
        "warnings": [EVIL],
        "rounds": None,
        "rounds_per_second": None,
        "accuracy": None,
        "loss": None,
        "last_round": None,
        "halted": EVIL,
        "federation": {"link": "up", "address": EVIL, "sites": {EVIL: "away"}},
    }
    console = Console(width=400)
    with console.capture() as captured:
        console.print(watch.panel(state, []))
    assert _is_plain(captured.get())


def test_json_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"name": EVIL})
    text = capsys.readouterr().out
    assert _is_plain(text)
    assert json.loads(text) == {"name": EVIL}


def test_logs_are_plain_with_their_tracebacks(caplog: pytest.LogCaptureFixture) -> None:
    log = logger()
    assert logger() is log
    assert (
        len([one for one in log.filters if type(one).__module__ == "sottovoce.core.display"]) == 1
    )
    with caplog.at_level(logging.WARNING, logger="sottovoce"):
        log.warning("a reply of '%s' is no use", "x\x1b]0;owned\x07")
        try:
            raise ValueError(EVIL)
        except ValueError:
            log.exception("an answer failed")
    assert _is_plain(caplog.text)
    assert "\\u001b]0;owned\\u0007" in caplog.text
    assert "ValueError: ada" in caplog.text


def sottovoce(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sottovoce", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_clients_name_is_plain_wherever_the_ledger_prints_it(tmp_path: Path) -> None:
    name = EVIL.replace("\ud800", "")  # which no ledger takes
    with Ledger(tmp_path / "l.db", create=True) as ledger:
        release = Release(unit=Unit.CLIENT, run="run", client=name, round=1, uplink=0)
        ledger.charge(release, 0, PureDp(epsilon=1.0, adjacency=Adjacency.ZERO_OUT))
    for arguments in (["show", "--delta", "1e-6"], ["show"], ["export"], ["show", "--client", "b"]):
        done = sottovoce("ledger", arguments[0], tmp_path / "l.db", *arguments[1:])
        assert done.returncode in (0, 2)
        assert "ada" in done.stdout + done.stderr
        assert _is_plain(done.stdout)
        assert _is_plain(done.stderr)


def test_a_specs_keys_are_plain_in_errors(tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text('"na\\u001b[2Jme" = 1\n')
    done = sottovoce("run", spec)
    assert done.returncode == 2
    assert _is_plain(done.stderr)
    assert "\\u001b[2J" in done.stderr
