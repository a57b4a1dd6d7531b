"""The page of every name and the packages agree, and no documented import is deeper than two."""

import importlib
import re

import pytest
from pages import ROOT

import sottovoce

PAGE = (ROOT / "docs/reference/names.md").read_text(encoding="utf-8")
SECTIONS = {
    text.split("\n", 1)[0]: re.findall(r"^\| (\**)`(\w+)`\** \| (.+) \|$", text, re.MULTILINE)
    for text in PAGE.split("\n## ")[1:]
}
PACKAGES = sorted(
    f"sottovoce.{path.parent.name}" for path in (ROOT / "src/sottovoce").glob("*/__init__.py")
)
# Whatever a reader may copy: not the proofs, which name what is tested, nor the history.
DOCUMENTED = [
    ROOT / "README.md",
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs/how-to").glob("*.md"),
    *(ROOT / "docs/tutorials").glob("*.md"),
    *(ROOT / "docs/reference").glob("*.md"),
    *(ROOT / "docs/explanation").glob("[act]*.md"),
    *(ROOT / "examples").rglob("*.py"),
    *(ROOT / "examples").rglob("*.ipynb"),
]


def test_the_page_has_a_section_for_every_package() -> None:
    assert sorted(SECTIONS) == ["sottovoce", *PACKAGES]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_s_section_has_its_names_and_no_others(package: str) -> None:
    assert [name for _, name, _ in SECTIONS[package]] == importlib.import_module(package).__all__


def test_names_in_bold_are_in_the_root_too() -> None:
    bold = {name for rows in SECTIONS.values() for mark, name, _ in rows if mark == "**"}
    own = {name for _, name, _ in SECTIONS["sottovoce"]}
    assert bold | own == set(dir(sottovoce))
    assert not bold & own


def test_every_line_is_a_sentence() -> None:
    for rows in SECTIONS.values():
        for _, name, text in rows:
            assert text[-1] in ".", (name, text)


def test_documented_imports_are_two_levels_deep_at_most() -> None:
    deep = re.compile(
        r"(?:from|import|:::) (sottovoce(?:\.\w+){2,})(?: import|$|\\n)", re.MULTILINE
    )
    for path in DOCUMENTED:
        for found in deep.findall(path.read_text(encoding="utf-8")):
            package, _, name = found.rpartition(".")
            assert package.count(".") == 1, (path, found)
            assert name in importlib.import_module(package).__all__, (path, found)
