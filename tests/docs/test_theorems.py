"""The page of theorems names code and tests that exist, and leaves no section of proofs out."""

import importlib
import re
from functools import reduce

import pytest
from pages import ROOT

PAGE = (ROOT / "docs/explanation/theorems.md").read_text()
ENTRIES = re.split(r"\n### ", PAGE.split("\n## What is assumed")[0])[1:]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.split(".", 1)[0])
def test_an_entry_names_its_proof_its_code_and_its_tests(entry: str) -> None:
    assert "\n- Proof: " in entry
    code = re.findall(
        r"`(sottovoce(?:_papers)?\.[\w.]+)`", entry.split("\n- Code: ")[1].split("\n- ")[0]
    )
    tests = re.findall(r"`((?:papers/)?tests/[\w/.]+)::(\w+)`", entry.split("\n- Tests: ")[1])
    assert code
    assert tests
    for name in code:
        assert _found(name) is not None
    for file, name in tests:
        assert f"\ndef {name}(" in (ROOT / file).read_text(), f"{file}::{name}"


def _found(name: str) -> object:
    """What a dotted name stands for: a module, and names within it."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("sottovoce"):
                raise
            continue
        return reduce(getattr, parts[length:], module)
    raise AssertionError(name)


def test_entries_are_numbered() -> None:
    numbers = [int(entry.split(".", 1)[0]) for entry in ENTRIES]
    assert numbers == list(range(1, len(ENTRIES) + 1))
    assert len(numbers) >= 40


def test_every_section_of_proofs_is_referred_to() -> None:
    sections = re.findall(
        r"^## (\d+)\. ", (ROOT / "docs/explanation/privacy.md").read_text(), re.MULTILINE
    )
    why_not = {"21"}  # what is *not* there needs no theorem
    for number in set(sections) - why_not:
        assert f"(privacy.md#{number}-" in PAGE, number
