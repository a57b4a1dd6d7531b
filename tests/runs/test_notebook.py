"""In a real kernel the functions show HTML; and what the page about them says runs."""

import re
from pathlib import Path
from typing import Any, assert_type

import pytest

import sottovoce
from sottovoce.mechanisms import registry
from sottovoce.planning.plan import ExcludedMechanism, PlannedMechanism

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "notebooks.md"


def test_a_notebook_shows_tables_and_pictures() -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cells = [
        "import sottovoce\n"
        "sottovoce.spend('gaussian', noise_multiplier=10, rounds=100, delta=1e-5)",
        "sottovoce.plan(epsilon=2, delta=1e-5, dimension=50, bits=1)",
    ]
    notebook: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    for cell, words in zip(notebook.cells, ("4.3772", "gauss_hermite"), strict=True):
        (output,) = cell.outputs
        assert words in output.data["text/html"]
        assert words in output.data["text/plain"]
        assert "<table" in output.data["text/html"]


@pytest.mark.slow
def test_the_page_about_notebooks_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), {})


def test_results_have_precise_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checked by mypy; at run time these say nothing, so few mechanisms will do."""
    few = tuple(registry.find(kind) for kind in ("gauss_hermite", "gaussian"))
    monkeypatch.setattr(registry, "registrations", lambda: few)
    plan = sottovoce.plan(epsilon=2, delta=1e-5, dimension=50, bits=1)
    assert_type(plan[0], PlannedMechanism)
    assert_type(plan[0].mse, float)
    assert_type(plan.left_out[0], ExcludedMechanism)
    assert_type(plan.to_dicts(), list[dict[str, Any]])
    spent = sottovoce.spend("gaussian", noise_multiplier=1.0, delta=1e-5)
    assert_type(spent.epsilon, float)
    assert [one.mechanism for one in plan]
