"""`sottovoce watch`: a run folder that grows, has grown, is yet to come, or is none."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from specs import small_spec

from sottovoce.cli import watch
from sottovoce.core import files
from sottovoce.core.display import show_remaining
from sottovoce.reporting import live as live_run
from sottovoce.runs.runner import launch

ROUNDS = 4


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched") / "run"
    launch(small_spec(rounds=ROUNDS), folder)
    return folder


def _rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def _halfway(run: Path, folder: Path, rounds: int = 2) -> Path:
    """The folder as it was after some rounds."""
    folder.mkdir()
    (folder / "run.json").write_bytes((run / "run.json").read_bytes())
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:rounds]))
    return folder


def _grow(run: Path, folder: Path, after: int) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("".join(lines[after:]))
    (folder / "result.json").write_bytes((run / "result.json").read_bytes())


def _contents(folder: Path) -> dict[str, tuple[int, int]]:
    return {p.name: (p.stat().st_size, p.stat().st_mtime_ns) for p in folder.iterdir()}


def test_a_finished_run_shows_its_end_and_nothing_is_touched(cli: Any, finished: Path) -> None:
    before = _contents(finished)
    state = cli("watch", finished, "--once", "--json").json
    rows, result = _rows(finished), json.loads((finished / "result.json").read_text())
    assert state["state"] == "finished"
    assert (state["rounds_done"], state["rounds"]) == (ROUNDS, ROUNDS)
    assert state["accuracy"] == rows[-1]["accuracy"]
    assert state["epsilon"] == result["epsilon"]
    assert state["epsilon_budget"] == 4.0
    assert state["epsilon"] + state["epsilon_left"] <= 4.0
    assert state["bytes_up"] == sum(row["total_bytes_up"] for row in rows)
    assert state["bytes_up_per_client"] == result["total_bytes_up_per_client"]
    assert state["seconds_left"] is None
    assert state["warnings"] == result["warnings"]
    assert _contents(finished) == before


def test_the_view_for_people_names_everything(cli: Any, finished: Path) -> None:
    shown = cli("watch", finished, "--once")
    assert shown.code == 0
    for word in ("small", "finished", f"{ROUNDS} of {ROUNDS}", "accuracy", "loss", "left", "up"):
        assert word in shown.out
    assert "4 of 4 answered" in shown.out


def test_without_a_terminal_the_end_is_two_lines(cli: Any, finished: Path) -> None:
    shown = cli("watch", finished)
    assert shown.code == 0
    assert shown.out.splitlines()[0].startswith(f"round {ROUNDS} of {ROUNDS}  accuracy 0.")
    assert shown.out.splitlines()[-1] == f"finished after {ROUNDS} of {ROUNDS} rounds"


def test_a_half_written_line_is_not_read_yet(cli: Any, finished: Path, tmp_path: Path) -> None:
    folder = _halfway(finished, tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "accur')
    state = cli("watch", folder, "--once", "--json").json
    assert state["state"] == "running"
    assert state["rounds_done"] == 2
    assert state["seconds_left"] is None or state["seconds_left"] >= 0.0


def test_a_run_that_grows_is_a_line_a_round(cli: Any, finished: Path, tmp_path: Path) -> None:
    folder = _halfway(finished, tmp_path / "run", rounds=1)
    later = threading.Timer(0.5, _grow, args=(finished, folder, 1))
    later.start()
    shown = cli("watch", folder, "--interval", "0.05", "--json")
    later.join()
    states = [json.loads(line) for line in shown.out.splitlines()]
    assert shown.code == 0
    assert [state["rounds_done"] for state in states if state["state"] == "running"][:1] == [1]
    assert list(dict.fromkeys(state["rounds_done"] for state in states)) == [1, 2, 3, 4]
    assert states[-1]["state"] == "finished"


def test_a_run_that_starts_later_is_waited_for(cli: Any, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def begin() -> None:
        _grow(finished, _halfway(finished, folder), 2)

    later = threading.Timer(0.3, begin)
    later.start()
    shown = cli("watch", folder, "--interval", "0.05")
    later.join()
    assert shown.code == 0
    assert "waiting for it" in shown.err
    assert shown.out.splitlines()[-1].startswith("finished")


def test_stragglers_and_empty_purses_are_warned_of(
    cli: Any, finished: Path, tmp_path: Path
) -> None:
    folder = _halfway(finished, tmp_path / "run")
    row = _rows(finished)[2] | {
        "clients_received": 1,
        "clients_out_of_budget": 2,
        "clients_unreachable": 1,
        "replies_dropped": 1,
        "unanswered": {"site-b": "its budget is spent"},
    }
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    state = cli("watch", folder, "--once", "--json").json
    assert state["rounds_with_missing_replies"] == 1
    assert state["replies_asked"] - state["replies_received"] == 3
    said = " ".join(state["warnings"])
    assert "2 clients are out of budget" in said
    assert "1 clients could not be reached" in said
    assert "no reply of 'site-b' was used in the last round: its budget is spent" in said
    assert "1 replies did not match the plan" in said
    assert "3 missing so far, in 1 rounds" in " ".join(cli("watch", folder, "--once").out.split())


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"clients_unreachable": 4}, "could be reached"),
        ({"clients_out_of_budget": 4}, "had budget left"),
        ({}, "the sample had too few clients"),
    ],
)
def test_a_round_that_asked_no_client_says_why(
    cli: Any, finished: Path, tmp_path: Path, changes: dict[str, int], cause: str
) -> None:
    folder = _halfway(finished, tmp_path / "run")
    row = _rows(finished)[2] | {"clients_asked": 0, "clients_received": 0, **changes}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    said = cli("watch", folder, "--once", "--json").json["warnings"]
    (warning,) = (one for one in said if one.startswith("no client was asked in the last round: "))
    assert warning.endswith(cause)


def test_a_halted_run_says_why(cli: Any, finished: Path, tmp_path: Path) -> None:
    folder = _halfway(finished, tmp_path / "run")
    result = json.loads((finished / "result.json").read_text())
    halted = result | {"rounds": 2, "halted": "no client can pay"}
    (folder / "result.json").write_text(json.dumps(halted))
    shown = cli("watch", folder)
    assert shown.out.splitlines()[-1] == "halted after 2 of 4 rounds: no client can pay"


def test_a_quiet_run_is_noticed(cli: Any, finished: Path, tmp_path: Path) -> None:
    folder = _halfway(finished, tmp_path / "run")
    for name, at in (("run.json", 1_000_000), ("metrics.jsonl", 1_000_010)):
        os.utime(folder / name, (at, at))
    with files.locked(folder / "run.json"):
        state = cli("watch", folder, "--once", "--json").json
    assert state["rounds_per_second"] == pytest.approx(0.2)
    assert state["seconds_left"] == pytest.approx(10.0)
    assert "continue with --resume" in state["warnings"][0]


def test_groups_with_budgets_of_their_own_have_no_common_rest(
    cli: Any, finished: Path, tmp_path: Path
) -> None:
    folder = _halfway(finished, tmp_path / "run")
    header = json.loads((folder / "run.json").read_text())
    header["spec"]["privacy"]["groups"] = [{"clients": 2, "epsilon": 1.0}]
    (folder / "run.json").write_text(json.dumps(header))
    state = cli("watch", folder, "--once", "--json").json
    assert state["epsilon_budget"] is state["epsilon_left"] is None
    assert cli("watch", folder, "--once").code == 0


@pytest.mark.parametrize("more", [[], ["--once"], ["--once", "--json"]])
def test_a_folder_of_something_else_is_refused(cli: Any, tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    for path in (tmp_path, tmp_path / "notes.txt"):
        shown = cli("watch", path, *more)
        assert shown.code == 2
        assert len(shown.err.strip().splitlines()) == 1
        assert str(path) in shown.err


def _write_last_row(folder: Path, **changes: Any) -> None:
    rows = _rows(folder)
    rows[-1] |= changes
    rows[-1] = {name: value for name, value in rows[-1].items() if value != "absent"}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epsilon": "absent"}, "'epsilon' is missing"),  # which must not read as nothing spent
        ({"epsilon": "low"}, "'epsilon' must be a valid number"),
        ({"epsilon": -1.0}, "'epsilon' must be greater than or equal to 0"),
        ({"accuracy": float("nan")}, "'accuracy' must be a finite number"),
        ({"round": "second"}, "'round' must be a valid number"),
    ],
)
def test_a_damaged_row_is_a_mistake_in_one_line(
    cli: Any, finished: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    folder = _halfway(finished, tmp_path / "run")
    _write_last_row(folder, **changes)
    refused = cli("watch", folder, "--once")
    assert refused.code == 2
    assert said in refused.err
    assert len(refused.err.splitlines()) == 1


@pytest.mark.parametrize("content", ["[]", "{}", '{"warnings": 5}'])
def test_a_damaged_result_is_a_mistake_in_one_line(
    cli: Any, finished: Path, tmp_path: Path, content: str
) -> None:
    folder = _halfway(finished, tmp_path / "run")
    (folder / "result.json").write_text(content)
    refused = cli("watch", folder, "--once")
    assert refused.code == 2
    assert "result.json is damaged" in refused.err
    assert len(refused.err.splitlines()) == 1


def test_once_does_not_wait(cli: Any, tmp_path: Path) -> None:
    shown = cli("watch", tmp_path / "nothing", "--once")
    assert shown.code == 2
    assert "leave out --once to wait for it" in shown.err


def test_a_federation_without_runs_shows_its_sites(cli: Any, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    cli("deploy", "init", tmp_path / "fed", "--rehearsal", "--site", "a", "--site", "b")
    state = cli("watch", tmp_path / "fed", "--once", "--json").json
    assert state["state"] == "waiting"
    assert state["name"] == "fed"
    assert state["folder"] == str(tmp_path / "fed")
    assert state["federation"]["link"] == "down"
    assert state["federation"]["sites"] == {"a": "unknown", "b": "unknown"}
    shown = cli("watch", tmp_path / "fed", "--once")
    assert "0 of 2 connected" in shown.out


def test_a_federations_last_run_is_the_one_watched(
    cli: Any, finished: Path, tmp_path: Path
) -> None:
    pytest.importorskip("flwr")
    fed = tmp_path / "fed"
    cli("deploy", "init", fed, "--rehearsal", "--site", "a")
    records = fed / "link" / "runs"
    records.mkdir(parents=True)
    (records / "1.json").write_text(json.dumps({"name": "small", "folder": str(finished)}))
    state = cli("watch", fed, "--once", "--json").json
    assert state["folder"] == str(finished)
    assert state["federation"]["sites"] == {"a": "unknown"}
    for damaged in ("[" * 5000, "null", '{"folder": 3}'):
        (records / "1.json").write_text(damaged)
        refused = cli("watch", fed, "--once")
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert "1.json" in refused.err
        assert "is damaged" in refused.err


@pytest.mark.parametrize(
    ("state", "shown"), [("finished:failed", "failed"), ("finished:stopped", "stopped")]
)
def test_a_run_that_the_link_ended_without_a_result_is_not_waited_for(
    cli: Any,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    shown: str,
) -> None:
    pytest.importorskip("flwr")
    from sottovoce.flower import runs

    fed = tmp_path / "fed"
    cli("deploy", "init", fed, "--rehearsal", "--site", "a", "--site", "b")
    (fed / "runs").mkdir(exist_ok=True)
    folder = _halfway(finished, fed / "runs" / "small")
    run = {"run": 1, "state": state, "details": "out of patience", "folder": str(folder)}

    def status_of(federation: Any) -> dict[str, Any]:
        sites = {"a": "online", "b": "offline"}
        known = {"federation": "fed", "link": "up", "address": "127.0.0.1:1", "problem": None}
        return {**known, "sites": sites, "runs": [run]}

    monkeypatch.setattr(runs, "status_of", status_of)
    ended = cli("watch", folder)
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == f"{shown} after 2 of 4 rounds: out of patience"
    view = " ".join(cli("watch", folder, "--once").out.split())
    assert "1 of 2 connected; missing: b (offline)" in view


def test_a_sparkline_keeps_lowest_and_highest() -> None:
    assert watch.sparkline([0.0, None, 0.5, 1.0]) == "▁▅█"
    assert watch.sparkline([0.3, 0.3]) == "▁▁"
    assert watch.sparkline([]) == ""
    assert len(watch.sparkline([float(n) for n in range(500)])) == 40
    assert watch.sparkline([float(n) for n in range(500)])[-1] == "█"


def test_what_is_left_is_rounded_down_and_sizes_read_well() -> None:
    assert show_remaining(0.019999, 2) == "0.01"
    assert watch.show_bytes(999.0) == "999 B"
    assert watch.show_bytes(1.25e6) == "1.25 MB"
    assert watch.show_seconds(59.6) == "1 min 00 s"
    assert watch.show_seconds(90_000) == "1 d 1 h"


def test_a_run_without_a_process_is_called_silent(finished: Path, tmp_path: Path) -> None:
    folder = _halfway(finished, tmp_path / "half")
    long_ago = time.time() - 100.0
    for path in folder.iterdir():
        os.utime(path, (long_ago, long_ago))
    reading = live_run.read(folder)
    if reading.is_held is None:
        pytest.skip("this system does not tell who holds a lock")
    assert reading.state == "silent"
    (warning,) = live_run.describe(reading)["warnings"]
    assert "--resume" in warning
    with files.locked(folder / "run.json"):
        assert live_run.read(folder).state == "running"


def test_a_folder_with_some_federation_toml_is_no_federation(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "federation.toml").write_text("seed = 1\n")
    shown = cli("watch", tmp_path, "--once")
    assert shown.code == 2
    assert "is not a run folder" in shown.err
