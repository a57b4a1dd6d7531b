"""`make mutations`: faults fit the code, belong to theorems, and one of them is really caught."""

from pathlib import Path

import faults
import mutations
import pytest

ROOT = Path(__file__).parents[1]


def test_every_fault_can_be_planted_and_has_a_theorem_whose_tests_must_find_it() -> None:
    assert mutations.misfits() == []
    named = mutations.tests_of((ROOT / "docs/explanation/theorems.md").read_text())
    for fault in faults.FAULTS:
        assert named[fault.theorem]
    assert len(faults.FAULTS) >= 50
    assert len({fault.theorem for fault in faults.FAULTS}) >= 45


def test_a_fault_that_no_longer_fits_is_said() -> None:
    gone = faults.Fault("Shuffling", "privacy/pure.py", "no such line", "x")
    assert mutations.misfits([gone]) == ["privacy/pure.py: no such line -> x: found 0 times"]


@pytest.mark.slow
def test_a_fault_is_caught_in_a_copy_and_one_that_changes_nothing_is_not(tmp_path: Path) -> None:
    (tmp_path / "src/sottovoce").mkdir(parents=True)
    (tmp_path / "src/sottovoce/__init__.py").touch()
    (tmp_path / "src/sottovoce/halves.py").write_text("def half(x):\n    return x / 2\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_halves.py").write_text(
        "from sottovoce.halves import half\n\ndef test_half():\n    assert half(4) == 2\n"
    )
    fault = faults.Fault("Halves", "halves.py", "return x / 2", "return x / 3")
    harmless = faults.Fault("Halves", "halves.py", "return x / 2", "return 0.5 * x")
    unreadable = faults.Fault("Halves", "halves.py", "return x / 2", "return (")
    tests = ["tests/test_halves.py::test_half"]
    assert mutations.planted(tmp_path, fault, tests) == "test_half"
    assert mutations.planted(tmp_path, harmless, tests) == ""
    assert mutations.planted(tmp_path, unreadable, tests) == ""
    assert "x / 2" in (tmp_path / "src/sottovoce/halves.py").read_text()


def test_words_that_no_fault_has_are_refused() -> None:
    with pytest.raises(SystemExit):
        mutations.main(["--only", "nothing like this"])
