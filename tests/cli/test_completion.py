"""Completion, asked as a shell asks; and the script for bash in a real bash."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sottovoce.cli import completion
from sottovoce_papers import cli_experiment


@pytest.fixture
def completed(cli: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """What can stand in place of the last word."""

    def ask(*words: str) -> list[str]:
        with monkeypatch.context() as patch:
            patch.setenv(completion.VARIABLE, "complete_bash")
            patch.setenv("COMP_WORDS", " ".join(["sottovoce", *words]))
            patch.setenv("COMP_CWORD", str(len(words)))
            shown = cli()
        assert (shown.code, shown.err) == (0, "")
        return str(shown.out).split()

    return ask


def test_commands_options_and_names_are_completed(completed: Any) -> None:
    assert "plan" in completed("")
    assert completed("pla") == ["plan"]
    assert "--sampling-rate" in completed("privacy", "spend", "--sam")
    assert completed("privacy", "spend", "--mechanism", "gauss_") == ["gauss_hermite"]
    assert completed("mechanism", "show", "gauss_") == ["gauss_hermite"]
    assert completed("audit", "mechanism", "gauss_") == ["gauss_hermite"]
    assert "mvu-scalar" in completed("experiment", "run", "mvu-s")
    assert completed("data", "show", "dig") == ["digits"]


def test_names_in_the_sources_are_those_that_are_registered() -> None:
    from sottovoce.learning import datasets
    from sottovoce.mechanisms import registry
    from sottovoce_papers.experiment import experiments

    assert completion.mechanisms() == [one.kind for one in registry.registrations()]
    assert cli_experiment.names("") == sorted(one.name for one in experiments())
    assert completion.datasets() == [one.name for one in datasets.entries()]


def test_run_folders_are_completed(
    completed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("runs/first", "runs/second", "here", "deep/er/third"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "run.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert completion.run_folders("") == ["here", "runs/first", "runs/second"]
    assert completion.run_folders("runs/f") == ["runs/first", "runs/second"]
    assert completion.run_folders("d") == ["deep/", "here", "runs/"]
    assert completion.run_folders("deep/er/") == ["deep/er/third"]
    assert f"{tmp_path}/here" in completion.run_folders(f"{tmp_path}/h")
    assert completion.run_folders("nowhere/x") == []
    for words in (("export",), ("ledger", "show"), ("attack", "membership"), ("audit", "run")):
        assert completed(*words, "runs/s") == ["runs/second"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_says_how_to_use_it(cli: Any, shell: str) -> None:
    shown = cli("completion", shell)
    assert shown.code == 0
    assert shown.out.startswith("# ")
    assert f"{completion.VARIABLE}=complete_{shell}" in shown.out


def test_other_shells_are_refused(cli: Any) -> None:
    shown = cli("completion", "tcsh")
    assert shown.code == 2
    assert "bash" in shown.err
    shown = cli("completion")
    assert shown.code == 2
    assert "Missing argument 'SHELL'. Choose from: bash, zsh, fish; see --help\n" in shown.err


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_real_bash_completes(tmp_path: Path) -> None:
    program = tmp_path / "sottovoce"  # what pip would install
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sottovoce "$@"\n')
    program.chmod(0o755)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "run.json").write_text("{}")
    script = """
eval "$(sottovoce completion bash)"
ask() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    "$(complete -p sottovoce | sed 's/.*-F \\([^ ]*\\).*/\\1/')" sottovoce
    echo "${COMPREPLY[@]}"
}
ask sottovoce pla
ask sottovoce mechanism show gauss_
ask sottovoce ledger show runs/
"""
    shown = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.splitlines() == ["plan", "gauss_hermite", "runs/first"]
    assert shown.stderr == ""
