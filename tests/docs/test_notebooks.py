"""Notebooks run from their first cell to their last, and are kept without outputs.

That a kernel shows what the library gives it is tests/runs/test_notebook.py's to test.
"""

from pathlib import Path

import pytest
from command_line import inside
from pages import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("torch")

NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_of_a_notebook_run_one_after_another(path: Path, tmp_path: Path) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    with inside(tmp_path):
        for number, cell in enumerate(nbformat.read(path, as_version=4).cells):
            if cell.cell_type == "code":
                exec(compile(cell.source, f"{path.name}, cell {number}", "exec"), names)
    assert not any(tmp_path.iterdir())  # nothing is left where the reader happens to be


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_its_kernel(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=where).execute()
    assert any(cell.get("outputs") for cell in notebook.cells)
    assert not any(tmp_path.iterdir())  # nothing is left where the reader happens to be


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 3
