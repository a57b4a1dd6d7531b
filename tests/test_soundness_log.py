"""`make soundness`: every named test is run, with more cases, and a failure is one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import cases
import pytest
import soundness

ROOT = Path(__file__).parents[1]
PLANTED = """
import pytest
from cases import cases, denser
from hypothesis import given, settings, strategies as st

@given(st.integers())
@settings(max_examples=7)
def test_property(number):
    assert isinstance(number, int)

def test_loop():
    assert cases(5) in (5, 50)

@pytest.mark.parametrize("value", denser([1.0, 2.0]))
def test_grid(value):
    assert 1.0 <= value <= 2.0

def test_that_more_cases_refute():
    assert cases(1) == 1
"""


def test_all_tests_that_theorems_name_are_found() -> None:
    named = soundness.named_tests((ROOT / "docs/explanation/theorems.md").read_text())
    assert len(named) == len(set(named)) >= 100
    assert "tests/privacy/test_soundness.py::test_this_check_can_fail" in named


def test_values_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cases.denser([1.0, 4.0]) == [1.0, 4.0]
    monkeypatch.setattr(cases, "FACTOR", 10)
    assert len(cases.denser([0.1, 1.0])) == 20
    assert cases.denser([0.0, 1.0])[10] == pytest.approx(10 / 19)
    assert cases.denser([2, 5]) == [2, 3, 4, 5]
    assert all(isinstance(value, int) for value in cases.denser([1, 300]))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the project's own conftest and a test file."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (folder / "test_planted.py").write_text(PLANTED)
    return folder


@pytest.mark.parametrize("factor", [pytest.param(1, marks=pytest.mark.slow), 10])
def test_cases_are_multiplied_and_counted(planted: Path, factor: int) -> None:
    log = planted / f"cases-{factor}.json"
    paths = f"{ROOT / 'tests/helpers'}{os.pathsep}{ROOT / 'src'}"
    environment = {**os.environ, "CASES": str(factor), "CASES_LOG": str(log), "PYTHONPATH": paths}
    environment.pop("PYTEST_CURRENT_TEST", None)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
    done = subprocess.run(
        words, cwd=planted, env=environment, capture_output=True, text=True, check=False
    )
    tried = json.loads(log.read_text())
    by_test: dict[str, int] = {}
    for name, count in tried.items():
        test = name.partition("::")[2].partition("[")[0]
        by_test[test] = by_test.get(test, 0) + count
    assert by_test["test_property"] == 7 * factor
    assert by_test["test_loop"] == 5 * factor
    assert by_test["test_grid"] == 2 * factor
    assert done.returncode == (0 if factor == 1 else 1), done.stdout


def test_the_command_logs_resumes_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def outcome(words: list[str], environment: dict[str, str]) -> tuple[str, str]:
        ran.append(words[-1])
        Path(environment["CASES_LOG"]).write_text(json.dumps({words[-1]: 30}))
        return ("failed", "E  planted") if "can_fail" in words[-1] else ("passed", "")

    monkeypatch.setattr(soundness, "_outcome", outcome)
    monkeypatch.setattr(soundness, "code_commit", lambda: "one")
    page = tmp_path / "soundness.md"
    given = ["--page", str(page), "--only", "tests/privacy/test_soundness.py"]
    assert soundness.main(given) == 1
    first = len(ran)
    assert "**tests/privacy/test_soundness.py::test_this_check_can_fail**" in page.read_text()
    assert soundness.main(given) == 1
    assert len(ran) == first + 1  # the one that failed; the others have passed at this commit
    monkeypatch.setattr(soundness, "code_commit", lambda: "two")
    assert soundness.main([*given[:2], "--only", "test_bits_sampled"]) == 0
    assert len(ran) == first + 2
    assert "| two |" in page.read_text()
