"""Package faces: what type checkers read is what Python gives, and nothing is loaded early."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from sottovoce.core import faces

PACKAGE = Path(faces.__file__).parents[1]
# Installed for the studies of papers: they have no users' names.
WITHOUT = {"cli", "experiments", "benchmarking"}
FACES = [
    "sottovoce",
    *(
        f"sottovoce.{path.parent.name}"
        for path in sorted(PACKAGE.glob("*/__init__.py"))
        if path.parent.name not in WITHOUT
    ),
]


def _declared(package: str) -> dict[str, str]:
    """The names below `if TYPE_CHECKING`, with their modules."""
    path = PACKAGE.joinpath(*package.split(".")[1:], "__init__.py")
    return {
        alias.name: str(one.module)
        for block in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for one in block.body
        if isinstance(one, ast.ImportFrom)
        for alias in one.names
    }


@pytest.mark.parametrize("package", FACES)
def test_what_type_checkers_read_is_what_python_gives(package: str) -> None:
    if package.endswith((".learning", ".federated", ".auditing")):
        pytest.importorskip("torch")
    if package.endswith(".flower"):
        pytest.importorskip("flwr")
    module, declared = importlib.import_module(package), _declared(package)
    assert set(module.__all__) - {"__version__"} == set(declared)
    assert dir(module) == sorted(module.__all__)
    for name, home in declared.items():
        assert getattr(module, name) is getattr(importlib.import_module(home), name)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nothing'"):
        _ = module.Nothing


@pytest.mark.parametrize("package", FACES)
def test_no_name_is_that_of_a_module(package: str) -> None:
    """Whoever imports the module would put it in the place of the name."""
    module = importlib.import_module(package)
    inside = {one.name for one in pkgutil.iter_modules(module.__path__)}
    assert not inside & set(module.__all__)


@pytest.mark.parametrize("package", FACES)
def test_every_package_says_what_it_is_for_how_it_is_used_and_what_it_imports(package: str) -> None:
    text = str(importlib.import_module(package).__doc__)
    assert "\n    " in text  # an example
    assert "import" in text
    assert 5 <= len(text.strip().splitlines()) <= 16


def test_a_face_imports_nothing() -> None:
    program = (
        f"import sys, {', '.join(FACES)}; "
        "print([m for m in ('numpy', 'torch', 'pydantic', 'flwr', 'scipy') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sottovoce.flower

    monkeypatch.delitem(sottovoce.flower.__dict__, "private_mod", raising=False)
    monkeypatch.delitem(sys.modules, "sottovoce.flower.mod", raising=False)
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"needs the package flwr; install it: pip install .*flower"
    ):
        from sottovoce.flower import private_mod  # noqa: F401


def test_an_old_name_is_answered_with_the_new_one() -> None:
    with pytest.raises(ImportError, match="'Knob' is 'CalibratedParameter'"):
        exec("from sottovoce.mechanisms import Knob")
    with pytest.raises(ImportError, match="'privacy_spent' is 'spend'"):
        exec("from sottovoce import privacy_spent")
