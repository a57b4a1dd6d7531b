"""What a newcomer meets first: names, import time's causes, the README."""

import contextlib
import io
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import call

ROOT = Path(__file__).parent.parent
LONG = ("density_map", "lora")  # Examples that take ten seconds and more.


# Importing these takes long. Some environments load a few of them before any program begins.
HEAVY = ("torch", "scipy", "sklearn", "numpy", "pydantic", "rich", "cryptography", "sqlite3", "ssl")
NOT_FOR_HELP = tuple(name for name in HEAVY if name != "ssl")
NOT_FOR_IMPORT = (*HEAVY, "typer", "typing", "re", "json", "tempfile", "importlib.resources")
CALL = "from sottovoce.cli.main import main; sys.argv = ['sottovoce', {}]; main()"


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import sottovoce", NOT_FOR_IMPORT),
        (CALL.format("'--help'"), NOT_FOR_HELP),
        (CALL.format("'run', '--help'"), NOT_FOR_HELP),
        ("import sottovoce.runs.folder, sottovoce.runs.loading", ("torch", "scipy", "sklearn")),
        ("import sottovoce.deployment.site", ("torch", "scipy")),
        ("import sottovoce; sottovoce.GaussHermite; sottovoce.spend", ("torch", "scipy")),
        ("from sottovoce.learning.datasets import builtin; builtin._read_digits()", ("sklearn",)),
    ],
)
def test_what_takes_long_to_import_is_imported_only_where_it_is_needed(
    program: str, absent: tuple[str, ...]
) -> None:
    code = (
        "import atexit, sys; before = set(sys.modules)\n"
        "atexit.register(lambda: print('NEW', *sorted(set(sys.modules) - before)))\n" + program
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    loaded = set(shown.rpartition("NEW")[2].split())
    assert "sottovoce" in loaded
    assert not loaded.intersection(absent)


def test_the_python_examples_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (loop,) = (block for block in blocks if "sv.Client" in block)
    assert len([line for line in loop.splitlines() if line]) <= 15
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_every_example_spec_is_valid() -> None:
    from sottovoce.runs.loading import load

    specs = sorted((ROOT / "examples").glob("*.toml"))
    assert specs
    for path in specs:
        load(path)


# A tutorial plays these two as well, and each trains for seconds: tests/docs/test_pages.py
TRAINS_AGAIN = ("audit run ", "attack membership ")


@pytest.mark.parametrize("left_out", [TRAINS_AGAIN, pytest.param((), marks=pytest.mark.slow)])
def test_the_commands_of_the_readme_run_one_after_another(
    tmp_path: Path, left_out: tuple[str, ...]
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    prefix = ".venv/bin/sottovoce "
    text = (ROOT / "README.md").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    commands = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    # Those of a federation belong together: tests/flower/test_readme.py
    commands = [command for command in commands if not command.startswith("deploy ")]
    assert len(commands) >= 6
    for command in commands:
        if command.startswith(left_out):
            continue
        words = shlex.split(command, comments=True)
        shown = call(*words, folder=tmp_path)
        assert shown.code == 0, (command, shown.text)
        assert shown.text, command


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.name, marks=[pytest.mark.slow] * (path.stem in LONG))
        for path in sorted((ROOT / "examples").glob("*.py"))
    ],
)
def test_every_python_example_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, where torch is loaded already; a script's own folder comes first."""
    monkeypatch.syspath_prepend(str(path.parent))
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        runpy.run_path(str(path), run_name="__main__")
    assert "epsilon" in shown.getvalue()
