"""`sottovoce report`: what it prints, what it writes, and how it refuses."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from reported_runs import make_run, make_unfinished


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("cli-report") / "run")


def test_a_page_is_written_and_its_figures_printed(cli: Any, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    result = cli("report", folder, "--out", out, "--json").json
    assert result["report"] == str(out)
    assert result["bytes"] == out.stat().st_size
    (run,) = result["runs"]
    assert (run["run"], run["state"], run["rounds_done"]) == ("small", "finished", 6)
    assert run["epsilon"] <= run["budget"] == 4.0
    assert result["frontier"] is None
    told = cli("report", folder, "--out", out)
    assert told.code == 0
    assert f"Report: {out}" in told.out
    assert told.out.startswith("This run protects one training sample of a client")
    assert run["statement"] == result["statement"]


def test_the_page_is_report_html_here_unless_told(
    cli: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("report", folder).code == 0
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_several_runs_name_the_frontier(cli: Any, folder: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", name="other", rounds=2)
    out = tmp_path / "both.html"
    result = cli("report", folder, other, "--out", out, "--json").json
    assert set(result["frontier"]) <= {"small", "other"}
    assert result["not_comparable_because"] == []
    assert "On the frontier: " in cli("report", folder, other, "--out", out).out


def test_a_folder_of_runs_and_a_federations_are_reported_with_all_their_runs(
    cli: Any, folder: Path, tmp_path: Path
) -> None:
    fed = tmp_path / "fed"
    (fed / "runs").mkdir(parents=True)
    (fed / "federation.toml").write_text('name = "fed"\n')
    waiting = cli("report", fed, "--out", tmp_path / "a.html")
    assert waiting.code == 2
    assert f"sottovoce deploy run {fed} SPEC" in waiting.err
    shutil.copytree(folder, fed / "runs" / "first")
    make_run(fed / "runs" / "second", name="second", rounds=2)
    (fed / "runs" / "mean-age-1").mkdir()  # a question's folder is no run
    for named in (fed, fed / "runs"):
        result = cli("report", named, "--out", tmp_path / "a.html", "--json").json
        assert [run["run"] for run in result["runs"]] == ["small", "second"]


def test_a_sites_folder_is_answered_with_where_its_spending_is_told(
    cli: Any, tmp_path: Path
) -> None:
    (tmp_path / "site.toml").write_text("")
    refused = cli("report", tmp_path, "--out", tmp_path / "a.html")
    assert refused.code == 2
    assert f"sottovoce ledger show {tmp_path}" in refused.err


def test_an_unfinished_run_is_no_mistake(cli: Any, folder: Path, tmp_path: Path) -> None:
    copy = make_unfinished(tmp_path / "copy", folder, rounds=3)
    result = cli("report", copy, "--out", tmp_path / "a.html", "--json").json
    assert (result["runs"][0]["state"], result["runs"][0]["rounds_done"]) == ("unfinished", 3)


def test_making_a_report_changes_nothing_in_the_folder(
    cli: Any, folder: Path, tmp_path: Path
) -> None:
    def content() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}

    before = content()
    assert cli("report", folder, "--out", tmp_path / "a.html").code == 0
    assert content() == before


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nowhere"], "there is no folder nowhere"),
        (["here/run.json"], "is a file"),
        (["here"], "not a run folder"),
        (["RUN", "RUN"], "twice"),
        (["RUN", "--out", "absent/report.html"], "cannot write"),
        (["RUN", "--out", "here"], "it is a folder"),
        ([], "RUN"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    cli: Any,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    if words == ["here/run.json"]:
        (tmp_path / "here" / "run.json").write_text("{}")
    refused = cli("report", *(folder if word == "RUN" else word for word in words))
    assert refused.code == 2
    assert reason in refused.err
    assert refused.err.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_a_damaged_folder_leaves_an_earlier_page_alone(
    cli: Any, folder: Path, tmp_path: Path
) -> None:
    copy = make_unfinished(tmp_path / "copy", folder, rounds=3)
    out = tmp_path / "report.html"
    assert cli("report", copy, "--out", out).code == 0
    before = out.read_bytes()
    header = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(header | {"layout": 3}))
    refused = cli("report", copy, "--out", out)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert out.read_bytes() == before


def test_without_jinja2_the_extra_is_named(
    cli: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    refused = cli("report", folder, "--out", tmp_path / "report.html")
    assert refused.code == 2
    assert "pip install 'sottovoce[report]'" in refused.err
