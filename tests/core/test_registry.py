"""The register, on plug-ins that are installed into a folder, good and bad."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributions import install

from sottovoce.core.errors import PluginError, UnknownNameError
from sottovoce.core.registry import Register

GROUP = "sottovoce.toys"


def entering(name: str, value: int) -> str:
    return f"from test_register_toys import TOYS\nTOYS.enter('{name}', {value}, module=__name__)\n"


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Register[int]]:
    """A register with one toy of our own, which modules in the folder can reach."""
    register: Register[int] = Register("toy", package="sottovoce.protocol.channels")
    register.enter("bear", 1, module="sottovoce.protocol.channels.bear")
    before = set(sys.modules)
    monkeypatch.setitem(sys.modules, "test_register_toys", type(sys)("test_register_toys"))
    monkeypatch.setattr(sys.modules["test_register_toys"], "TOYS", register, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield register
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_a_plug_in_is_found_by_name_and_says_where_it_is_from(
    toys: Register[int], tmp_path: Path
) -> None:
    install(tmp_path, "kites", {"kite": entering("kite", 2)}, {GROUP: {"kite": "kite"}})
    assert toys.names() == ["bear", "kite"]
    assert "kite" not in sys.modules  # nobody has asked for it
    assert toys.find("kite") == 2
    assert toys.source("kite") == "distribution kites 0.1"
    assert toys.describe_plugin("kite") == "plug-in toy 'kite' (distribution kites 0.1)"
    assert toys.describe_plugin("bear") is None
    assert (toys.all_working(), toys.ours()) == ({"bear": 1, "kite": 2}, {"bear": 1})


def test_a_module_that_its_author_imported_first_is_the_same_plug_in(
    toys: Register[int], tmp_path: Path
) -> None:
    install(tmp_path, "kites", {"kite": entering("kite", 2)}, {GROUP: {"kite": "kite"}})
    __import__("kite")
    assert toys.find("kite") == 2
    assert toys.source("kite") == "distribution kites 0.1"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import a_module_that_nobody_has\n", "ModuleNotFoundError.*a_module_that_nobody_has"),
        ("raise ValueError('no')\n", "ValueError: no"),
        ("import sys\nsys.exit('bye')\n", "SystemExit: bye"),
        ("def half(:\n", "SyntaxError"),
        ("", "module top registers no toy 'top'"),
        (entering("pot", 3), "registers no toy 'top'"),
        (entering("bear", 3), "two toys claim the name 'bear'"),
    ],
)
def test_a_broken_plug_in_breaks_no_one_else(
    toys: Register[int], tmp_path: Path, text: str, reason: str
) -> None:
    install(tmp_path, "tops", {"top": text}, {GROUP: {"top": "top"}})
    install(tmp_path, "kites", {"kite": entering("kite", 2)}, {GROUP: {"kite": "kite"}})
    assert toys.find("bear") == 1
    for _ in range(2):
        with pytest.raises(PluginError, match=rf"'top' \(distribution tops 0.1\).*{reason}"):
            toys.find("top")
    assert {"bear": 1, "kite": 2}.items() <= toys.all_working().items()
    problems = {one.name: one.problem for one in toys.listed()}
    assert problems["top"] is not None
    assert problems["kite"] is problems["bear"] is None


def test_a_name_that_two_distributions_claim_is_nobodys(
    toys: Register[int], tmp_path: Path
) -> None:
    install(tmp_path, "kites", {"kite": entering("kite", 2)}, {GROUP: {"kite": "kite"}})
    install(tmp_path, "hawks", {"hawk": entering("kite", 3)}, {GROUP: {"kite": "hawk"}})
    with pytest.raises(PluginError, match=r"distribution (kites|hawks) 0.1 and distribution"):
        toys.find("kite")
    assert toys.all_working() == {"bear": 1}
    refused = {one.source for one in toys.listed() if one.problem}
    assert refused == {"distribution kites 0.1", "distribution hawks 0.1"}


def test_a_plug_in_that_takes_a_name_of_ours_is_refused_aloud(
    toys: Register[int], tmp_path: Path
) -> None:
    install(tmp_path, "bears", {"grizzly": entering("bear", 9)}, {GROUP: {"bear": "grizzly"}})
    with pytest.raises(PluginError, match="'bear': sottovoce and distribution bears"):
        toys.find("bear")
    assert toys.all_working() == {"bear": 1}  # ours goes on where nobody asked for it by name
    assert "grizzly" not in sys.modules
    with pytest.raises(PluginError, match="'bear': sottovoce and"):
        __import__("grizzly")


def test_an_unknown_name_is_answered_with_the_nearest_plug_ins_included(
    toys: Register[int], tmp_path: Path
) -> None:
    install(tmp_path, "kites", {"kite": entering("kite", 2)}, {GROUP: {"kite": "kite"}})
    with pytest.raises(UnknownNameError, match=r"unknown toy 'kit'; did you mean 'kite'\?"):
        toys.find("kit")
