"""What a report reads from run folders: figures, words, and what it refuses."""

import io
import json
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import InProcessPost, run_with_sites, sites_in
from reported_runs import PRIVACY, edit_json, make_run, make_unfinished
from rich.console import Console
from specs import small_spec

from sottovoce.cli import watch
from sottovoce.core.display import show_epsilon
from sottovoce.core.errors import LedgerError, OutputError, ParameterError
from sottovoce.deployment.site import Site
from sottovoce.federated.algorithms.algorithm import ALGORITHMS
from sottovoce.ledger.ledger import Ledger
from sottovoce.reporting.live import describe, read
from sottovoce.reporting.report_data import frontier, report_of, run_data
from sottovoce.reporting.run_report import render
from sottovoce.runs.accounts import spread_rounds
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.simulate import simulate


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("stored") / "run")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("packed") / "run", runtime={"messages": "packed"})


@pytest.fixture
def copied(stored: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored, tmp_path / "copy"))


def test_a_ledger_and_a_tally_tell_the_same(stored: Path, packed: Path) -> None:
    one, other = run_data(stored), run_data(packed)
    assert one["accounts"]["bounds"] == other["accounts"]["bounds"]
    assert one["accounts"]["epsilon"] == other["accounts"]["epsilon"]
    rows = [
        {key: row[key] for key in ("client", "rounds", "epsilon", "budget")}
        for row in one["accounts"]["clients"]
    ]
    assert rows == [
        {key: row[key] for key in ("client", "rounds", "epsilon", "budget")}
        for row in other["accounts"]["clients"]
    ]
    assert one["accounts"]["ledger"] == {"charges": 24, "clients": 4}
    assert other["accounts"]["ledger"] is None


def test_every_bound_is_there_and_the_smallest_is_the_epsilon_of_the_result(stored: Path) -> None:
    data, result = run_data(stored), RunFolder(stored).result()
    assert result is not None
    last = data["accounts"]["bounds"][-1]
    assert last["round"] == 6
    assert len(last["bounds"]) > 1
    finite = [bound for bound in last["bounds"].values() if bound is not None]
    assert min(finite) == result["epsilon"] == data["figures"]["epsilon"]
    for row, mark in zip(data["rows"], data["accounts"]["bounds"], strict=True):
        assert (row["round"], row["bounds"]) == (mark["round"], mark["bounds"])


def test_a_run_of_many_rounds_is_accounted_at_some_of_them() -> None:
    assert spread_rounds(0) == []
    assert spread_rounds(1) == [1]
    assert spread_rounds(7) == [1, 2, 3, 4, 5, 6, 7]
    found = spread_rounds(500)
    assert len(found) == 41
    assert (found[0], found[-1]) == (1, 500)
    assert found == sorted(set(found))


def test_bytes_add_up(stored: Path) -> None:
    data = run_data(stored)
    total = sum(row["total_bytes_up"] for row in data["rows"])
    assert data["figures"]["total_bytes_up"] == total
    assert data["figures"]["total_bytes_up_per_client"] == total / 4


def test_words_say_what_was_released_to_whom_and_protecting_what(stored: Path) -> None:
    facts = dict(run_data(stored)["facts"])
    assert "24 replies" in facts["What was released"]
    assert "650 numbers in 1 bit" in facts["What was released"]
    assert "The server sees every message" in facts["Who sees it"]
    assert "One training sample" in facts["What is protected"]
    assert "zero-out" in facts["What is protected"]
    assert "Epsilon 4.0000 at delta 1e-05" in facts["How well"]
    assert "at most 54.6" in facts["How well"]  # e^4 = 54.598...


@pytest.mark.parametrize(
    ("changes", "seen", "reasons"),
    [
        ({}, "sees every message", 1),
        (
            {
                "channel": {"kind": "secure_sum", "minimum_clients": 4},
                "mechanism": {"kind": "clamped_sign", "logit_bound": 1.0, "noise_multiplier": 4.0},
                "privacy": PRIVACY | {"level": "client", "epsilon": 50.0},
                "algorithm": {
                    "kind": "fedavg",
                    "server_learning_rate": 1.0,
                    "local_learning_rate": 0.5,
                },
            },
            "only sums over at least 4 clients",
            2,
        ),
        (
            {
                "channel": {"kind": "central"},
                "mechanism": {"kind": "gaussian"},
                "runtime": {"messages": "none"},
            },
            "trusted with every update",
            3,
        ),
    ],
)
def test_channels_and_simulations_are_named(
    tmp_path: Path, changes: dict[str, Any], seen: str, reasons: int
) -> None:
    folder = make_run(tmp_path / "run", rounds=2, **changes)
    data = run_data(folder)
    assert seen in dict(data["facts"])["Who sees it"]
    assert len(data["simulated_because"]) == reasons


def test_no_privacy_has_no_epsilon_and_says_so(tmp_path: Path) -> None:
    privacy = {key: value for key, value in PRIVACY.items() if key != "epsilon"}
    folder = make_run(tmp_path / "run", rounds=2, privacy=privacy, mechanism={"kind": "no_privacy"})
    data = run_data(folder)
    assert data["figures"]["epsilon"] is None
    facts = dict(data["facts"])
    assert facts["How well"] == "There is no guarantee."
    assert facts["What is protected"].startswith("Nothing")
    assert "trusted with the data in them" in facts["Who sees it"]


def test_no_client_is_said_to_add_noise_without_privacy(tmp_path: Path) -> None:
    privacy = {"level": "sample", "clip_norm": 1.0, "delta": 1e-5}
    mechanism = {"kind": "no_privacy"}
    data = run_data(make_run(tmp_path / "run", rounds=2, mechanism=mechanism, privacy=privacy))
    assert "adds its noise" not in str(data["facts"])
    assert "Nothing: values are sent without noise." in str(data["facts"])
    assert data["simulated_because"] == []


def test_in_a_central_run_the_server_adds_the_noise(tmp_path: Path) -> None:
    changes = {"channel": {"kind": "central"}, "mechanism": {"kind": "gaussian"}}
    data = run_data(make_run(tmp_path / "run", rounds=2, runtime={"messages": "none"}, **changes))
    rests_on = dict(data["facts"])["What this assumes"]
    assert "trusts the server, which adds the noise" in rests_on
    assert "adds its noise" not in rests_on


def test_of_a_secure_sum_sums_are_released_and_the_local_epsilon_is_told(tmp_path: Path) -> None:
    folder = make_run(
        tmp_path / "run",
        rounds=2,
        channel={"kind": "secure_sum", "minimum_clients": 4},
        mechanism={"kind": "clamped_sign", "logit_bound": 1.0, "noise_multiplier": 20.0},
        privacy=PRIVACY | {"level": "client", "epsilon": 50.0},
        algorithm={"kind": "fedavg", "server_learning_rate": 1.0, "local_learning_rate": 0.5},
    )
    facts, result = dict(run_data(folder)["facts"]), RunFolder(folder).result()
    assert result is not None
    assert "sums over 8 replies" in facts["What was released"]
    assert f"has epsilon {show_epsilon(result['local_epsilon'])}" in facts["How well"]


def test_of_sampled_records_the_epsilon_without_their_secrecy_is_told(tmp_path: Path) -> None:
    privacy = PRIVACY | {"record_sampling_rate": 0.5}
    folder = make_run(tmp_path / "run", rounds=1, privacy=privacy)
    facts, result = dict(run_data(folder)["facts"]), RunFolder(folder).result()
    assert result is not None
    shown = show_epsilon(result["local_epsilon"])
    assert f"knows which records are sampled has epsilon {shown}" in facts["How well"]


def test_a_regression_is_known_as_one(stored: Path, tmp_path: Path) -> None:
    features = np.random.default_rng(0).normal(size=(60, 4))
    spec = small_spec(rounds=2, data={"dataset": "digits", "clients": 4})
    simulate(spec, data=(features, 0.3 * features[:, 0] + 0.1), out=tmp_path / "run")
    figures = run_data(tmp_path / "run")["figures"]
    assert list(figures["metrics"]) == ["R-squared", "mean absolute error"]
    assert run_data(stored)["figures"]["score"] == "accuracy"
    assert "mean absolute error" in render(report_of([tmp_path / "run"]))
    assert "mean absolute error" not in render(report_of([stored]))


def _without_nbafl(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {name: entry for name, entry in ALGORITHMS._entries.items() if name != "nbafl"}
    monkeypatch.setattr(ALGORITHMS, "_entries", entries)
    monkeypatch.setattr(ALGORITHMS, "_entry_points", dict)


def _as_before(folder: Path) -> None:
    """Make it a folder of a version whose run.json said nothing of the algorithm."""
    header = json.loads((folder / "run.json").read_text())
    del header["algorithm"]
    (folder / "run.json").write_text(json.dumps(header))


@pytest.mark.parametrize("messages", ["stored", "packed"])
def test_a_run_is_reported_where_its_algorithm_is_not_installed(
    messages: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(
        tmp_path / "run",
        rounds=2,
        algorithm={"kind": "nbafl", "local_learning_rate": 0.1},
        privacy=PRIVACY | {"level": "client", "epsilon": 50.0},
        mechanism={"kind": "gaussian"},
        runtime={"messages": messages},
    )
    (folder / "result.json").unlink()  # what a run that still goes on has told so far
    there = run_data(folder)
    assert "a trained model of" in there["facts"][0][1]
    assert there["accounts"]["budget"] is None  # its epsilon is no budget
    _without_nbafl(monkeypatch)
    there["spec"] = run_data(folder)["spec"]  # keys in another order, and the same hash
    assert run_data(folder) == there
    assert describe(read(folder))["epsilon_left"] is None
    _as_before(folder)
    assert run_data(folder) == there
    assert describe(read(folder))["epsilon_left"] is None


def test_scaffold_sends_two_vectors(tmp_path: Path) -> None:
    algorithm = {
        "kind": "scaffold",
        "server_learning_rate": 1.0,
        "local_learning_rate": 0.5,
        "local_steps": 2,
    }
    privacy = PRIVACY | {"level": "client", "epsilon": 50.0}
    folder = make_run(tmp_path / "run", rounds=2, algorithm=algorithm, privacy=privacy)
    data = run_data(folder)
    assert "an update and the change of a control variate" in data["facts"][0][1]
    _as_before(folder)
    assert run_data(folder) == data


def test_a_run_of_an_earlier_version_shows_the_one_bound_it_noted(
    packed: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(packed, tmp_path / "copy"))
    rows = [json.loads(line) for line in _lines(copy)]
    for row in rows:
        del row["bounds"]
    (copy / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = run_data(copy)["accounts"]["bounds"]
    assert [mark["bounds"] for mark in found] == [{"smallest": row["epsilon"]} for row in rows]


def test_groups_and_who_ran_out(tmp_path: Path) -> None:
    groups = [{"clients": 2, "epsilon": 1.0}]
    mechanism = {"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 4.0}
    folder = make_run(tmp_path / "run", privacy=PRIVACY | {"groups": groups}, mechanism=mechanism)
    data = run_data(folder)
    assert [group["group"] for group in data["groups"]] == [0, 1]
    gone = [row["client"] for row in data["accounts"]["clients"] if row["ran_out"]]
    assert gone[:2] == ["client-0000", "client-0001"]
    assert data["figures"]["ran_out"] == len(gone)
    for row in data["accounts"]["clients"]:
        assert row["epsilon"] <= row["budget"]
    assert any("out of budget" in warning for warning in data["warnings"])


@pytest.mark.parametrize("kind", ["stored", "packed"])
@pytest.mark.parametrize("cut", [False, True])
def test_an_unfinished_run_is_told_as_far_as_it_has_come(
    kind: str, cut: bool, stored: Path, packed: Path, tmp_path: Path
) -> None:
    source = stored if kind == "stored" else packed
    data = run_data(make_unfinished(tmp_path / "copy", source, rounds=3, cut=cut))
    assert (data["state"], data["rounds_done"], data["rounds"]) == ("unfinished", 3, 6)
    # The ledger of the copy is ahead of its rows, and what it was charged is spent.
    last = data["accounts"]["bounds"][-1]
    assert last["round"] == (6 if kind == "stored" else 3)
    assert min(last["bounds"].values()) == data["figures"]["epsilon"]
    assert data["figures"]["accuracy"] == data["rows"][-1]["accuracy"]


def test_a_run_that_has_only_begun_is_told_too(copied: Path) -> None:
    for name in ("result.json", "metrics.jsonl", "ledger.sqlite", "checkpoint.npz"):
        (copied / name).unlink()
    data = run_data(copied)
    assert (data["state"], data["rounds_done"]) == ("unfinished", 0)
    assert data["figures"]["epsilon"] == 0.0


def test_charges_of_a_round_that_was_not_noted_are_spent(stored: Path, copied: Path) -> None:
    """As after a crash in the first round, or at the start of a resumed run."""
    for name in ("result.json", "metrics.jsonl", "checkpoint.npz"):
        (copied / name).unlink()
    data = run_data(copied)
    assert (data["state"], data["rounds_done"]) == ("unfinished", 0)
    assert data["figures"]["epsilon"] == run_data(stored)["figures"]["epsilon"]
    assert "Epsilon 4.0000" in dict(data["facts"])["How well"]


def test_a_report_can_be_made_while_charges_are_entered(copied: Path) -> None:
    """A writer holds the ledger in the middle of a round, as a run that goes on does."""
    (copied / "result.json").unlink()
    with RunFolder(copied).ledger() as ledger, ledger.transaction():
        ledger._db.execute("UPDATE meta SET charges = charges + 1")
        assert run_data(copied)["accounts"]["ledger"]["charges"] == 24


def test_the_run_folder_of_a_federation_is_a_run_folder(tmp_path: Path) -> None:
    spec = small_spec(rounds=2, runtime={"deterministic": True})
    run_with_sites(spec, tmp_path / "run", InProcessPost(sites_in(tmp_path, "sample")))
    data = run_data(tmp_path / "run")
    assert (data["state"], data["on_one_machine"]) == ("finished", False)
    assert data["accounts"]["ledger"] == {"charges": 8, "clients": 4}
    assert data["repeat"]["command"].startswith("sottovoce deploy run")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten rounds of four sites: one runs out by its own ledger, one refuses every order."""
    folder = tmp_path_factory.mktemp("federation")
    limits: dict[str, dict[str, Any]] = {
        "client-0001": {"epsilon_total": 2.0},
        "client-0002": {"smallest_cohort": 99},
    }

    def site_of(name: str) -> Site:
        site = sites_in(folder, "sample", **limits.get(name, {}))(name)
        Ledger(site.ledger, create=True).close()  # made with a site's folder
        return site

    spec = small_spec(rounds=10, runtime={"deterministic": True})
    run_with_sites(spec, folder / "run", InProcessPost(site_of))
    return folder


def test_what_the_server_counted_what_sites_answered_and_what_they_charged_are_three_things(
    federation: Path,
) -> None:
    result = json.loads((federation / "run" / "result.json").read_text())
    keys = ("rounds", "answered", "refused", "site_charged")
    expected = {
        "client-0000": (10, 10, 0, 10),
        "client-0001": (10, 2, 8, 2),
        "client-0002": (10, 0, 10, 0),
        "client-0003": (10, 10, 0, 10),
    }
    assert {row["client"]: tuple(row[key] for key in keys) for row in result["clients"]} == expected
    for name, (*_, charged) in expected.items():
        with Ledger(federation / f"{name}.sqlite") as own:
            assert own.num_charges == charged
    state = describe(read(federation / "run"))
    found = {name: tuple(one[key] for key in keys) for name, one in state["sites"].items()}
    assert found == expected

    page = " ".join(render(report_of([federation / "run"])).split())
    assert (
        "By the server&#39;s count no client ran out of budget. Of 40 requests, sites answered 22"
        in page
    )
    assert "No client ran out" not in page
    assert "Epsilon spent" not in page
    assert "rounds charged" not in page
    cells = "</td><td>".join(("10", "2", "8", "2"))
    assert f"client-0001</th><td>{cells}</td>" in page
    for heading in ("server counted", "answered", "refused", "site says it charged"):
        assert f'<th scope="col">{heading}</th>' in page
    assert "epsilon 4.00 by the server's count, budget 4, 0.00 left" in watch.line(state)
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(watch.panel(state, []))
    shown = console.export_text()
    assert "by the server's count, budget 4" in shown
    assert re.search(r"server counted +answered +refused +site says it charged", shown)
    assert re.search(r"client-0001 +10 +2 +8 +2 ", shown)
    words = dict(run_data(federation / "run")["facts"])["How well"]
    assert "by the server's count" in words
    assert "22 were answered, 18 refused; rounds that sites say they charged: 22" in words


def test_a_site_that_says_nothing_is_not_reported_and_an_older_run_has_no_such_columns(
    federation: Path, tmp_path: Path
) -> None:
    shutil.copytree(federation / "run", tmp_path / "run")
    rows = [json.loads(line) for line in _lines(tmp_path / "run")]
    for row in rows:
        row["sites"]["client-0003"]["rounds_charged"] = None
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    page = render(report_of([tmp_path / "run"]))
    assert "<td>not reported</td>" in page
    assert "say they charged: 12 (3 of 4 sites)" in page
    for row in rows:
        del row["sites"]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    page = render(report_of([tmp_path / "run"]))
    assert "site says it charged" not in page
    assert "epsilon, by the server&#39;s count" in page


def test_a_result_that_claims_less_than_the_ledger_is_noticed(copied: Path) -> None:
    honest = run_data(copied)["figures"]["epsilon"]
    edit_json(copied / "result.json", epsilon=0.5)
    data = run_data(copied)
    assert data["figures"]["epsilon"] == honest
    assert any("result.json says epsilon 0.5000" in warning for warning in data["warnings"])


def test_an_edited_spec_is_noticed(copied: Path) -> None:
    header = json.loads((copied / "run.json").read_text())
    header["spec"]["seed"] = 4
    (copied / "run.json").write_text(json.dumps(header))
    (copied / "result.json").unlink()
    assert any("edited" in warning for warning in run_data(copied)["warnings"])


# -- what is refused ------------------------------------------------------------------------------


def _lines(folder: Path) -> list[str]:
    return (folder / "metrics.jsonl").read_text().splitlines(keepends=True)


def _drop_line(folder: Path) -> None:
    (folder / "metrics.jsonl").write_text("".join(_lines(folder)[:2] + _lines(folder)[3:]))


def _truncate(folder: Path) -> None:
    content = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(content[: len(content) // 2])


def _garble(folder: Path) -> None:
    lines = _lines(folder)
    (folder / "metrics.jsonl").write_text("".join([lines[0], "{oops\n", *lines[2:]]))


def _write_row(**changes: Any) -> Any:
    def change(folder: Path) -> None:
        lines = _lines(folder)
        row = json.loads(lines[1]) | changes
        row = {key: value for key, value in row.items() if value != "absent"}
        lines[1] = json.dumps(row) + "\n"
        (folder / "metrics.jsonl").write_text("".join(lines))

    return change


def _write(name: str, text: str) -> Any:
    return lambda folder: (folder / name).write_text(text)


def _edit(name: str, **changes: Any) -> Any:
    return lambda folder: edit_json(folder / name, **changes)


GROUP = {
    "group": "all", "clients": 4, "mechanism": {}, "budget": None, "delta": 1e-5, "epsilon": 1.0,
    "rounds": 3, "ran_out": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "run.json").unlink(), "not a run folder"),
        (_write("run.json", "{"), "run.json is damaged"),
        (_write("run.json", "[]"), "keys are missing"),
        (_edit("run.json", spec="?"), "'spec' must be a table"),
        (_edit("run.json", spec={"name": "x"}), "missing"),
        (_edit("run.json", layout=[["weight", "wide"]]), "'layout'"),
        (_edit("run.json", clients=[3]), "'clients'"),
        (_write("result.json", "not json"), "result.json is damaged"),
        (_write("result.json", "[]"), "it must be a table, got []"),
        (_write("result.json", "{}"), "'accuracy', 'loss', 'epsilon', 'rounds'"),
        (_edit("result.json", accuracy="high"), "'accuracy' must be a valid number, got"),
        (_edit("result.json", spec_hash="0" * 16), "another spec"),
        (_edit("result.json", clients=[{}]), "'clients[0].client' are missing"),
        (_edit("result.json", clients="all"), "'clients' must be a list"),
        (_edit("result.json", groups=[GROUP]), "'groups[0].mechanism.kind' is missing"),
        (_truncate, "complete rounds"),
        (_garble, "line 2 is not valid JSON"),
        (_drop_line, "line 3 belongs to round 4"),
        (lambda folder: (folder / "metrics.jsonl").unlink(), "holds 0 complete rounds"),
        (_write_row(accuracy="0.5"), "'accuracy' must be a valid number, got"),
        (
            _write_row(total_bytes_up=None),
            "'total_bytes_up' must be a valid number, got None",
        ),
        (_write_row(loss="absent"), "line 2: 'loss' is missing"),
        (
            _write_row(epsilon=-1.0),
            "'epsilon' must be greater than or equal to 0, got -1.0",
        ),
        (
            _write_row(total_bytes_up=-1),
            "'total_bytes_up' must be greater than or equal to 0",
        ),
        (_write_row(bounds=[1]), "'bounds'"),
        (_write_row(bounds={"renyi": "low"}), "'bounds.renyi' must be a valid number"),
        (_write("audit.json", "{"), "audit.json is damaged"),
        (_write("audit.json", "{}"), "'finding'"),
        (
            _write("attack-membership.json", '{"attacks": {}, "verdict": "", "notes": []}'),
            "attack-membership.json is damaged",
        ),
    ],
)
def test_a_folder_that_does_not_hold_together_is_refused(
    copied: Path, damage: Any, message: str
) -> None:
    damage(copied)
    with pytest.raises(OutputError) as refused:
        run_data(copied)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_or_doctored_ledger_is_refused(copied: Path) -> None:
    with sqlite3.connect(copied / "ledger.sqlite") as connection:
        connection.execute("UPDATE charges SET round = 9 WHERE id = 3")
    connection.close()
    with pytest.raises(LedgerError, match="charge 3 was altered"):
        run_data(copied)
    (copied / "ledger.sqlite").write_bytes(b"no database at all, and long enough to be looked at")
    with pytest.raises(LedgerError):
        run_data(copied)
    (copied / "ledger.sqlite").unlink()
    with pytest.raises(LedgerError, match="no ledger"):
        run_data(copied)
    assert not (copied / "ledger.sqlite").exists()


@pytest.mark.parametrize("ended", [True, False])
def test_an_older_copy_of_the_ledger_is_refused(ended: bool, copied: Path, tmp_path: Path) -> None:
    """It is whole in itself, and a page by it would tell less than was spent."""
    make_run(tmp_path / "shorter", rounds=2)
    (copied / "ledger.sqlite").unlink()
    with sqlite3.connect(tmp_path / "shorter" / "ledger.sqlite") as connection:
        run_name = RunFolder(copied).header()["run"]
        (other,) = connection.execute("SELECT DISTINCT run FROM charges").fetchone()
    connection.close()
    edit_json(copied / "run.json", run=other)
    assert run_name != other
    shutil.copy(tmp_path / "shorter" / "ledger.sqlite", copied)
    if not ended:
        (copied / "result.json").unlink()
    with pytest.raises(LedgerError, match="it has 8 for all clients, the run at least 24"):
        run_data(copied)


def test_missing_foreign_and_double_folders_are_refused(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="there is no folder"):
        report_of([tmp_path / "nowhere"])
    with pytest.raises(OutputError, match="is a file"):
        report_of([stored / "run.json"])
    with pytest.raises(OutputError, match="not a run folder"):
        report_of([tmp_path])
    with pytest.raises(ParameterError, match="twice"):
        report_of([stored, stored.parent / "." / "run"])


# -- several runs ---------------------------------------------------------------------------------


def test_the_frontier_counts_accuracy_epsilon_and_bytes() -> None:
    points = [
        (0.9, 5.0, 100.0),
        (0.8, 5.0, 100.0),  # beaten by the first
        (0.8, 5.0, 50.0),  # smaller
        (0.7, 1.0, 100.0),  # more private
        (0.95, None, 3200.0),  # more accurate, without privacy
        (0.95, None, 3200.0),  # as good
        (None, 1.0, 1.0),
    ]
    assert frontier(points) == [0, 2, 3, 4, 5]


def test_runs_are_compared_only_if_they_promise_the_same(stored: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", rounds=2, privacy=PRIVACY | {"delta": 1e-6})
    report = report_of([stored, other])
    assert [run["label"] for run in report["runs"]] == ["small (run)", "small (other)"]
    assert report["comparison"]["frontier"] == []
    assert report["comparison"]["obstacles"] == ["the delta differs (1e-05, 1e-06)"]
    same = make_run(tmp_path / "same", name="quick", rounds=2)
    report = report_of([stored, same])
    assert report["comparison"]["obstacles"] == []
    assert set(report["comparison"]["frontier"]) <= {"small", "quick"}
    assert report["comparison"]["frontier"]
