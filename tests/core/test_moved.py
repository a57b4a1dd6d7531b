"""An old import path gets an error that names the new one."""

import importlib
import importlib.util
import json
from importlib.resources import files

import pytest

MOVED = json.loads((files("sottovoce.core") / "moved.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_path_names_the_new_one(old: str) -> None:
    with pytest.raises(ImportError, match="change the import") as raised:
        importlib.import_module(f"sottovoce.{old}")
    assert str(raised.value).startswith(f"'sottovoce.{old}' is '{MOVED[old]}' since")
    for new in MOVED[old].split(" and "):
        assert importlib.util.find_spec(new) is not None


def test_a_name_from_an_old_module_names_the_new_one() -> None:
    with pytest.raises(ImportError, match=r"'sottovoce\.core\.adjacency' since version"):
        exec("from sottovoce import adjacency")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "from sottovoce.adjacency import Unit",
            "import to 'from sottovoce import Unit'",
        ),
        (
            "from sottovoce.wire import seal",
            "import to 'from sottovoce.protocol import seal'",
        ),
        ("from sottovoce.api import plan, spend", "to 'from sottovoce import plan, spend'"),
        (
            "import sottovoce.adjacency",
            "public names are imported by 'from sottovoce import Adjacency, Unit'",
        ),
        ("from sottovoce.adjacency import nothing", "is 'sottovoce.core.adjacency' since version"),
    ],
)
def test_a_public_name_is_to_be_imported_from_its_package(line: str, told: str) -> None:
    with pytest.raises(ImportError) as raised:
        exec(line)
    assert told in str(raised.value)


def test_other_names_are_merely_unknown() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named"):
        importlib.import_module("sottovoce.nothing_of_the_kind")
