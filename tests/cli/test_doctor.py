"""`sottovoce doctor`: what it finds, what it says of problems, and when it fails."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sottovoce
from sottovoce.cli import diagnosis, self_test
from sottovoce.core import extras, native
from sottovoce.core.errors import UnknownNameError

# As on a machine where nothing but the core packages can be imported.
WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys({absent!r}))
sys.argv = ["sottovoce", "doctor", "--json"]
from sottovoce.cli.main import main
main()
"""


def test_a_sound_installation_is_usable(cli: Any) -> None:
    found = cli("doctor", "--json").json
    assert found["usable"] is True
    assert found["version"] == sottovoce.__version__
    assert found["kernels"]["levels"] == list(native.levels())
    assert [check["name"] for check in found["checks"] if not check["ok"]] == []
    names = [check["name"] for check in found["checks"]]
    assert {f"encode and decode ({level})" for level in native.levels()} < set(names)
    packages = {package["name"]: package for package in found["packages"]}
    assert packages["numpy"]["needed"]
    assert packages["torch"]["version"]


def test_people_read_tables(cli: Any) -> None:
    shown = cli("doctor")
    assert shown.code == 0
    for words in ("kernels in use", "self test", "SOTTOVOCE_DATA", "usable"):
        assert words in shown.out


def test_only_core_packages_are_needed(tmp_path: Path) -> None:
    absent = [one.module for one in extras.OPTIONAL]
    shown = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS.format(absent=absent)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SOTTOVOCE_DATA": str(tmp_path)},
    )
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["usable"] is True


def test_a_failing_self_test_is_exit_one_and_has_a_remedy(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> str:
        raise RuntimeError("no such\ntable")

    monkeypatch.setattr(self_test, "_designs", broken)
    shown = cli("doctor", "--json")
    assert shown.code == 1
    found = json.loads(shown.out)
    assert found["usable"] is False
    (problem,) = (problem for problem in found["problems"] if problem["serious"])
    assert "'shipped designs' fails: RuntimeError: no such table" in problem["problem"]
    assert "reinstall" in problem["remedy"]
    assert "FAILS" in cli("doctor").out


def test_missing_kernels_and_packages_are_problems_with_remedies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "_native", None)
    monkeypatch.setattr(native, "_choice", native._Choice())
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    versions = diagnosis._version_of
    monkeypatch.setattr(
        diagnosis, "_version_of", lambda name: None if name == "torch" else versions(name)
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    found = diagnosis.diagnose()
    assert found.usable
    assert found.kernels.in_use == "numpy"
    remedies = {problem.problem.split()[0]: problem.remedy for problem in found.problems}
    assert remedies["the"].startswith("install a C compiler")
    assert remedies["torch"] == "pip install 'sottovoce[learn]'"


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere"
)
def test_folders_that_cannot_be_written_are_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o500)
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path))
    assert any("data sets" in problem.problem for problem in diagnosis.diagnose().problems)


def test_a_file_in_place_of_a_folder_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").write_text("a file")
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "data"))
    (problem,) = diagnosis.diagnose().problems
    assert "cannot be written to" in problem.problem
    assert "$SOTTOVOCE_DATA" in problem.remedy


def test_an_unknown_level_of_kernels_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "_choice", native._Choice())
    monkeypatch.setenv(native.VARIABLE, "sse9")
    problems = diagnosis.diagnose().problems
    assert any(problem.remedy == f"unset {native.VARIABLE}" for problem in problems)


def test_what_an_extra_brings_along_is_found_by_its_module() -> None:
    assert extras.find("starlette.routing").install == "pip install 'sottovoce[flower]'"
    assert extras.find("pandas").install == "pip install pandas"
    with pytest.raises(UnknownNameError):
        extras.find("nothing_of_ours")
