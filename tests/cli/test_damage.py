"""What is damaged, too deep, too large or closed is one line and exit 2, and never a traceback."""

import errno
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reported_runs import make_run
from specs import small_spec

import sottovoce
from sottovoce.cli import mistakes
from sottovoce.core.errors import ConfigError, OutputError
from sottovoce.runs.loading import parse, toml_text

DEEP = "[" * 5000 + "]" * 5000
UNCLOSED = '{"a":' * 100_000
LARGE = "1" + "0" * 400  # larger than any float
DIGITS = "9" * 5000  # more than Python reads

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("damaged") / "run")


@pytest.fixture
def folder(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


def whole(name: str, text: str) -> Damage:
    return lambda folder: (folder / name).write_text(text)


def key(name: str, text: str, file: str = "run.json") -> Damage:
    """One key of a file, or of its spec (spec.privacy), as other JSON."""

    def change(folder: Path) -> None:
        found = json.loads((folder / file).read_text())
        *parents, last = name.split(".")
        table = found
        for parent in parents:
            table = table[parent]
        table[last] = "HERE"
        (folder / file).write_text(json.dumps(found).replace('"HERE"', text))

    return change


def line(text: str) -> Damage:
    """The second row of the metrics, as it stands in `text`, in which HERE is the row."""

    def change(folder: Path) -> None:
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        lines[1] = text.replace("HERE", lines[1][1:])
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")

    return change


HEADERS: dict[str, tuple[Damage, str]] = {
    "deep": (whole("run.json", DEEP), "run.json is damaged: it is nested more than 64 deep"),
    "unclosed": (whole("run.json", UNCLOSED), "nested more than 64 deep"),
    "deep key": (key("guarantee", DEEP), "nested more than 64 deep"),
    "digits": (key("spec.rounds", DIGITS), "a number of more than 300 digits"),
    "no spec": (key("spec", "null"), "'spec' must be a table"),
    "no privacy": (key("spec.privacy", "null"), "'spec.privacy' must be a table"),
    "delta": (key("spec.privacy.delta", '"x"'), "'spec.privacy.delta' must be a number"),
    "layout": (key("layout", "[[1]]"), "'layout' must be a list of names and shapes"),
    "hash": (key("spec_hash", "3"), "'spec_hash' must be a text"),
}


@pytest.mark.parametrize("case", HEADERS)
@pytest.mark.parametrize(
    "words", ["report", "watch --once", "export", "ledger show", "audit run", "attack membership"]
)
def test_a_damaged_run_json_is_one_line(cli: Any, folder: Path, words: str, case: str) -> None:
    damage, message = HEADERS[case]
    damage(folder)
    more = [folder.parent / "model.safetensors"] if words == "export" else []
    shown = cli(*words.split(), folder, *more)
    assert shown.code == 2
    assert message in shown.err
    assert "restore it" in shown.err
    assert shown.err.count("\n") == 1


METRICS: dict[str, tuple[Damage, str]] = {
    "deep": (line(DEEP), "line 2 is nested more than 64 deep"),
    "large": (line(f'{{"loss": {LARGE}, HERE'), "line 2 holds a number of more than 300 digits"),
    "digits": (line(f'{{"x": {DIGITS}, HERE'), "line 2 holds a number of more than 300 digits"),
}


@pytest.mark.parametrize("case", [*METRICS, "round"])
def test_damaged_metrics_are_one_line(cli: Any, folder: Path, tmp_path: Path, case: str) -> None:
    round_ = line('{"round": "two"}')
    damage, message = METRICS.get(case, (round_, "'round' of line 2 is not an integer"))
    damage(folder)
    (folder / "result.json").unlink()
    (tmp_path / "spec.toml").write_text(toml_text(small_spec().plain()))
    resumed = cli("run", tmp_path / "spec.toml", "--out", folder, "--resume")
    assert (resumed.code, resumed.err.count("\n")) == (2, 1)
    assert message in resumed.err
    if case != "round":
        for words in (["report", folder], ["watch", folder, "--once"]):
            shown = cli(*words)
            assert (shown.code, shown.err.count("\n")) == (2, 1)
            assert message in shown.err


@pytest.mark.parametrize(
    "damage",
    [
        HEADERS["deep"][0],
        HEADERS["no spec"][0],
        METRICS["large"][0],
        whole("result.json", DEEP),
        key("epsilon", '"x"', "result.json"),
        key("clients", "null", "result.json"),
        key("warnings", "[3]", "result.json"),
        key("halted", "3", "result.json"),
    ],
)
def test_a_damaged_folder_is_an_output_error_in_python(folder: Path, damage: Damage) -> None:
    damage(folder)
    with pytest.raises(OutputError, match="is damaged"):
        sottovoce.open_run(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"a = {DEEP}", "is nested more than 32 deep"),
        ("a = " + "{a = " * 5000 + "1" + "}" * 5000, "is nested more than 32 deep"),
        ("a." * 5000 + "a = 1", "'a' is nested more than 32 deep"),
        (f"rounds = {DIGITS}", "a number of thousands of digits"),
        (f"rounds = {LARGE}", "'rounds' is a number of more than 300 digits"),
    ],
)
def test_a_spec_that_is_too_deep_or_too_large_is_one_line(
    cli: Any, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "spec.toml").write_text(text)
    shown = cli("run", tmp_path / "spec.toml")
    assert (shown.code, shown.err.count("\n")) == (2, 1)
    assert message in shown.err


def test_values_that_are_too_deep_are_refused_in_dictionaries_and_options_too(
    cli: Any, tmp_path: Path
) -> None:
    nested: Any = 1
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(ConfigError, match="'a' is nested more than 32 deep"):
        parse({"a": nested})
    (tmp_path / "spec.toml").write_text(toml_text(small_spec().plain()))
    shown = cli("run", tmp_path / "spec.toml", "--set", f"rounds={DEEP}")
    assert shown.code == 2
    assert "the value is nested more than 32 deep" in shown.err


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOENT, "gone", "here.csv"), "there is no file or folder here.csv"),
        (OSError(errno.EACCES, "denied", "key.pem"), "cannot open key.pem: denied"),
        (OSError(errno.EISDIR, "x", "runs"), "runs is a folder, but a file is needed"),
        (OSError(errno.ENOTDIR, "x", "a/b"), "a part of the path a/b is a file"),
        (OSError(errno.ENOSPC, "full", "x.json"), "cannot write x.json: full; free some space"),
        (OSError(errno.ENOSPC, "full"), "cannot write a file: full; free some space"),
        (OSError(errno.EMFILE, "too many files"), "raise the limit (ulimit -n)"),
        (OSError(errno.EIO, "broken disk", "x.npz"), "cannot use x.npz: broken disk"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "a network connection failed"),
        (BrokenPipeError(errno.EPIPE, "broken pipe"), "a network connection failed"),
        (TimeoutError("timed out"), "a network connection failed: timed out"),
        (OSError(errno.EADDRINUSE, "in use"), "cannot listen at an address: in use"),
        (
            OSError(errno.EINVAL, "odd"),
            "the operating system reported an error: odd; run with --debug",
        ),
    ],
)
def test_an_error_of_the_operating_system_says_what_failed(error: OSError, told: str) -> None:
    message = str(mistakes.explain(error))
    assert told in message
    assert "output" not in message
    assert "standard output: full" in str(mistakes.explain(OSError(28, "full"), is_output=True))


def test_only_what_the_streams_themselves_raise_is_called_the_output(
    cli: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("sottovoce.runs.opened.export_model", cut_off)
    shown = cli("export", folder, folder.parent / "model.safetensors", "--json")
    assert shown.code == 2
    assert "a network connection failed: Broken pipe" in shown.err
    assert "Broken pipe" in json.loads(shown.out)["error"]


SOTTOVOCE = f'"{sys.executable}" -m sottovoce'


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        # 141 is what a shell says of a program that SIGPIPE ended.
        (f"{SOTTOVOCE} completion bash | true; echo ${{PIPESTATUS[0]}}", "141"),
        (f"{SOTTOVOCE} completion bash >&-; echo $?", "0"),
        (f"{SOTTOVOCE} nothing 2>&-; echo $?", "2"),
        (f"{SOTTOVOCE} nothing 2>&1 >/dev/null | true; echo ${{PIPESTATUS[0]}}", "2"),
    ],
)
def test_a_stream_that_is_closed_or_not_read_ends_quietly(script: str, printed: str) -> None:
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (printed, "")


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    program = (
        "from sottovoce.cli.main import reopen_closed_streams; reopen_closed_streams()\n"
        f"file = open({str(tmp_path / 'ledger')!r}, 'w'); print('printed', flush=True)\n"
    )
    script = f'"{sys.executable}" -c "$1" <&- >&-'
    subprocess.run(["bash", "-c", script, "bash", program], check=True)
    assert (tmp_path / "ledger").read_text() == ""
