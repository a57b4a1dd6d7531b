"""A spec's own files are seen from the spec's folder first, then from here."""

from pathlib import Path

import pytest
from specs import small_spec

from sottovoce.core.errors import DataError
from sottovoce.runs.loading import load_for_run, locate_data, toml_text


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec in a folder below the one where commands run."""
    folder = tmp_path / "project"
    folder.mkdir()
    spec = small_spec(data={"dataset": "csv:own.csv", "clients": 2})
    (folder / "spec.toml").write_text(toml_text(spec.plain()))
    monkeypatch.chdir(tmp_path)
    return folder


def dataset(project: Path, *overrides: str, everywhere: bool = False) -> str:
    spec = load_for_run(project / "spec.toml", overrides, absolute=everywhere)
    return spec.data.dataset


def test_the_specs_folder_comes_first(project: Path, tmp_path: Path) -> None:
    (tmp_path / "own.csv").touch()
    assert dataset(project) == "csv:own.csv"  # as ever, and the hash with it
    (project / "own.csv").touch()
    assert dataset(project) == f"csv:{project / 'own.csv'}"


def test_a_spec_in_the_folder_of_the_command_keeps_its_hash(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "own.csv").touch()
    monkeypatch.chdir(project)
    assert dataset(Path()) == "csv:own.csv"
    assert dataset(Path(), everywhere=True) == f"csv:{project / 'own.csv'}"


def test_what_the_command_line_names_is_seen_from_here(project: Path, tmp_path: Path) -> None:
    for folder in (project, tmp_path):
        (folder / "other.csv").touch()
    assert dataset(project, "data.dataset=csv:other.csv") == "csv:other.csv"
    told = dataset(project, "data.dataset=csv:other.csv", everywhere=True)
    assert told == f"csv:{tmp_path / 'other.csv'}"


def test_a_run_that_was_begun_by_the_old_rule_goes_on_by_it(project: Path, tmp_path: Path) -> None:
    for folder in (project, tmp_path):
        (folder / "own.csv").touch()
    old = {"spec": {"data": {"dataset": "csv:own.csv"}}}
    found = load_for_run(project / "spec.toml", resumed_header=old)
    assert found.data.dataset == "csv:own.csv"
    new = {"spec": {"data": {"dataset": f"csv:{project / 'own.csv'}"}}}
    for header in (new, {"spec": 3}, {"spec": {"data": None}}, {}):
        found = load_for_run(project / "spec.toml", resumed_header=header)
        assert found.data.dataset == f"csv:{project / 'own.csv'}"


def test_a_file_that_is_nowhere_is_an_error_with_both_places(project: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"no own.csv in {project} or in {tmp_path}; check"):
        dataset(project)


def test_other_data_and_absolute_paths_are_left_alone(tmp_path: Path) -> None:
    for name in ("digits", "csv:/nowhere/own.csv", "memory:arrays", "medmnist:blood"):
        spec = small_spec(data={"dataset": name, "clients": 2})
        assert locate_data(spec, [tmp_path], absolute=True) is spec
