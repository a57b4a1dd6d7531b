"""First errors: what is nearest, what is missing, and where to begin."""

from pathlib import Path
from typing import Any

import pytest

from sottovoce import __version__
from sottovoce.cli.mistakes import explain
from sottovoce.core import WireError

ROOT = Path(__file__).parents[2]


def test_without_arguments_it_says_where_to_begin(cli: Any) -> None:
    shown = cli()
    assert shown.code == 0
    assert __version__ in shown.out
    for command in ("demo", "run", "plan", "doctor", "--help"):
        assert f"sottovoce {command}" in shown.out
    assert len(shown.out.splitlines()) < 12


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rum", "No such command 'rum', did you mean 'run'?"),
        ("spend", "No such command 'spend', did you mean 'privacy spend'?"),
        ("privacy spent", "No such command 'spent', did you mean 'spend'?"),
        ("xyzzy", "No such command 'xyzzy'; see --help"),
        ("plan --epsilom 3", "No such option '--epsilom', did you mean '--epsilon'?"),
        ("plan --qqqqqqq 3", "No such option '--qqqqqqq'; see --help"),
        ("estimate median", "No such command 'median', did you mean 'quantiles'?"),
    ],
)
def test_the_nearest_name_is_offered(cli: Any, line: str, message: str) -> None:
    shown = cli(*line.split())
    assert shown.code == 2
    assert message in shown.err
    assert shown.err.count("\n") == 1


def test_a_spec_that_is_not_there_lists_those_that_are(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "run 'sottovoce run --example' to print one" in cli("run", "mine.toml").err
    (tmp_path / "examples").mkdir()
    for number in range(8):
        (tmp_path / "examples" / f"spec{number}.toml").write_text("")
    (tmp_path / "examples" / "one_bit.toml").write_text("")
    (tmp_path / "pyproject.toml").write_text("")
    shown = cli("run", "examples/onebit.toml")
    assert shown.code == 2
    assert "there is no spec examples/onebit.toml" in shown.err
    assert "did you mean 'examples/one_bit.toml'?" in shown.err
    assert "examples/spec0.toml" in shown.err
    assert "and 3 more" in shown.err
    assert "pyproject" not in shown.err
    assert shown.err.count("\n") == 1
    nothing = cli("run")
    assert nothing.code == 2
    assert "Missing argument 'SPEC', a TOML file" in nothing.err
    assert "examples/one_bit.toml" in nothing.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run folder.toml", "cannot read the spec folder.toml: Is a directory; name a TOML file"),
        ("run bytes.toml", "bytes.toml is not UTF-8 text; save it as UTF-8, or name another file"),
        ("run half.toml", "(at line 1, column 8); correct it there ('sottovoce run --example'"),
        ("run {} --set rounds", "--set needs key=value, got 'rounds'; write --set rounds=VALUE"),
        ("run {} --set privacy.groups.a=1", "'privacy.groups' must be a list, got {{'a': 1}}"),
        (
            "run {} --resume --out absent --set mechanism.noise_multiplier=9.0",
            "leave out --resume (in Python resume=True) to start a run, or name the folder",
        ),
        ("report absent", "there is no folder absent; name the folder of a run"),
        ("attack membership absent", "there is no such folder; name the folder that 'sottovoce ru"),
        ("attack membership .", "it has no run.json; name the folder that 'sottovoce run' writes"),
        ("ledger create .", "it has no site.toml; create one with 'sottovoce deploy join'"),
    ],
)
def test_a_mistake_is_told_with_what_to_do(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    (tmp_path / "half.toml").write_text("name = \n")
    shown = cli(*line.format(ROOT / "examples" / "one_bit.toml").split())
    assert shown.code == 2
    assert message.format() in shown.err
    # On a busy machine a line of progress may come first.
    assert len([line for line in shown.err.splitlines() if "preparing" not in line]) == 1


def test_there_is_a_spec_to_begin_with_and_it_is_the_example(cli: Any) -> None:
    shown = cli("run", "--example")
    assert shown.code == 0
    assert shown.out == (ROOT / "examples" / "one_bit.toml").read_text()


def test_help_shows_defaults_without_backslashes(cli: Any) -> None:
    shown = cli("privacy", "spend", "--help")
    assert "[default: zero-out]" in " ".join(shown.out.split())
    assert "\\" not in shown.out


def test_an_error_about_a_message_is_printed_with_the_common_remedy() -> None:
    line = explain(WireError("expected 12 packed bytes, got 3"))
    assert line == f"error: expected 12 packed bytes, got 3. {WireError.remedy}"
    assert line.endswith("check that both ends run the same version of Sottovoce.")
