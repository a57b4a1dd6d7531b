"""What a newcomer meets first: names, import time's causes, the README."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import sottovoce

ROOT = Path(__file__).parent.parent


def test_every_public_name_is_there() -> None:
    for name in sottovoce.__all__:
        assert getattr(sottovoce, name) is not None
    assert dir(sottovoce) == sorted(sottovoce.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = sottovoce.Nothing


@pytest.mark.parametrize(
    "program",
    ["import sottovoce", "import sottovoce; sottovoce.GaussHermite; sottovoce.privacy_spent"],
)
def test_importing_the_package_imports_neither_torch_nor_scipy_optimize(program: str) -> None:
    check = "; import sys; print([m for m in ('torch', 'scipy.optimize') if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", program + check], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_the_python_examples_of_the_readme_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_every_example_spec_is_valid() -> None:
    from sottovoce.config.loading import load

    specs = sorted((ROOT / "examples").glob("*.toml"))
    assert specs
    for path in specs:
        load(path)


def test_every_command_in_the_readme_exists() -> None:
    from typer.main import get_command

    from sottovoce.cli.main import app

    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    named = set(re.findall(r"^\.?[\w/]*sottovoce (\w+)", (ROOT / "README.md").read_text(), re.M))
    assert named
    assert named <= known


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_every_python_example_runs(path: Path) -> None:
    shown = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    assert "epsilon" in shown.stdout
