"""The page on architecture names every package, in the order of their imports."""

import re
import tomllib
from pathlib import Path

import walks

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "sottovoce"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
LISTED = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)


def test_every_package_is_on_the_page_once() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert sorted(LISTED) == sorted(folders | files)


def test_packages_stand_in_the_order_of_the_layers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    ((papers, *layers),) = (
        one["layers"] for one in contracts if one["name"] == "imports point one way"
    )
    assert papers == "sottovoce_papers"
    floors = [
        {name.strip().removeprefix("sottovoce.") for name in one.split("|")} for one in layers
    ]
    floor_of = {package: number for number, floor in enumerate(floors) for package in floor}
    assert sorted(floor_of) == sorted(LISTED)
    assert [floor_of[package] for package in LISTED] == sorted(floor_of.values())


def test_every_file_that_is_walked_through_exists() -> None:
    walked = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", PAGE)
    assert len(walked) > 30
    missing = [path for path in walked if not (PACKAGE / path).exists()]
    assert missing == ["src/sottovoce/", "papers/"]  # the two distributions


def test_every_file_says_what_it_is() -> None:
    files = [
        path for path in PACKAGE.rglob("*.py") if not path.read_text().startswith(('"""', 'r"""'))
    ]
    assert not files


def test_files_are_short_enough_to_be_read_at_once() -> None:
    """Code is counted, so that nobody shortens an explanation to fit."""
    long = [path for path in PACKAGE.rglob("*.py") if path.read_text().count("\n") > 400]
    counted = [one for path in long for one in walks.modules_of(path.parent, path.name)]
    assert not [one.path for one in counted if one.code_lines > 400]


def test_the_contract_between_mechanisms_names_all_of_them() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (named,) = (one["modules"] for one in contracts if "each other" in one["name"])
    registered = {
        f"sottovoce.mechanisms.{path.stem}"
        for path in (PACKAGE / "mechanisms").glob("*.py")
        if "\n@register(\n" in path.read_text(encoding="utf-8")
    }
    assert set(named) == registered
