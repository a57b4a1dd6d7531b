import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_checks import Interrupted, check_refused, run_until
from specs import CLIENT_LEVEL, small_spec, small_table

from sottovoce.core.errors import (
    ConfigError,
    LedgerError,
    OutputError,
    ParameterError,
    UnknownNameError,
)
from sottovoce.federated import rounds
from sottovoce.federated.algorithms.algorithm import ClientStepInput
from sottovoce.federated.algorithms.fedavg import SampleClippedGradient
from sottovoce.learning.clients import ClientData, DenseRows
from sottovoce.learning.task import Task
from sottovoce.ledger.ledger import Ledger
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.protocol.charging import clients_within_budget
from sottovoce.protocol.plan import RoundPlan
from sottovoce.runs import outcome, site_counts
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.runner import run
from sottovoce.runs.spec import RunSpec


def test_a_run_leaves_spec_hash_metrics_checkpoint_ledger_and_result(tmp_path: Path) -> None:
    result = run(small_spec(), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    header = folder.header()
    assert header["spec_hash"] == result["spec_hash"]
    assert header["spec"]["mechanism"]["noise_multiplier"] > 0  # the resolved spec, calibrated
    assert len(folder.metrics()) == 6
    assert folder.result() == result
    assert 3.99 < result["epsilon"] <= 4.0
    assert result["adjacency"] == "zero-out"
    assert result["level"] == "sample"
    assert result["randomness"] == "seeded"
    with folder.ledger() as ledger:
        assert ledger.verify() == []
        assert len(list(ledger.rows())) == 6 * 4


def test_bytes_are_those_of_the_packed_codes_and_their_header(tmp_path: Path) -> None:
    result = run(small_spec(), tmp_path / "run")
    assert result["payload_bytes_up_per_message"] == -(-650 // 8)
    assert result["total_bytes_up_per_message"] == -(-650 // 8) + 44
    assert result["payload_bytes_down_per_message"] == 4 * 650


def test_the_same_spec_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    run(small_spec(), tmp_path / "a")
    run(small_spec(), tmp_path / "b")
    run(small_spec(seed=4), tmp_path / "c")
    a, b, c = (RunFolder(tmp_path / name).load_checkpoint() for name in "abc")
    assert a is not None
    assert b is not None
    assert c is not None
    np.testing.assert_array_equal(a.model, b.model)
    assert not np.array_equal(a.model, c.model)


@pytest.mark.parametrize("stop_after", [1, 2, 3, 5])
def test_resume_continues_bit_for_bit_and_charges_nothing_twice(
    tmp_path: Path, stop_after: int
) -> None:
    run(small_spec(), tmp_path / "whole")
    run_until(stop_after, small_spec(), tmp_path / "cut")
    run(small_spec(), tmp_path / "cut", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_what_a_ledger_remembers_is_not_asked_of_it_for_every_round_before_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def watched(plan: RoundPlan, *given: Any, **named: Any) -> frozenset[str]:
        asked.append(plan.round)
        return clients_within_budget(plan, *given, **named)

    spec = small_spec(checkpoint_every=2)
    run_until(5, spec, tmp_path / "run")
    monkeypatch.setattr(rounds, "clients_within_budget", watched)
    run(spec, tmp_path / "run", resume=True)
    assert set(asked) == {5, 6}  # the checkpoint has four rounds


def assert_same(first: Path, second: Path) -> None:
    for name in ("checkpoint.npz", "metrics.jsonl", "result.json", "run.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    with Ledger(first / "ledger.sqlite") as one, Ledger(second / "ledger.sqlite") as two:
        keys = [
            [{k: row[k] for k in ("client", "round", "attempt", "event")} for row in ledger.rows()]
            for ledger in (one, two)
        ]
        assert keys[0] == keys[1]
        assert two.verify() == []


def test_system_randomness_runs_resume_without_charging_finished_messages_again(
    tmp_path: Path,
) -> None:
    spec = small_spec(randomness="system")
    run_until(3, spec, tmp_path / "run")
    result = run(spec, tmp_path / "run", resume=True)
    assert result["randomness"] == "system"
    assert result["epsilon"] <= 4.0
    with Ledger(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert len(list(ledger.rows())) == 6 * 4


@pytest.mark.parametrize(
    ("mechanism", "private"),
    [
        ({"kind": "gaussian"}, True),
        ({"kind": "gauss_hermite", "levels": "auto"}, True),
        ({"kind": "gauss_hermite", "levels": 5}, True),
    ],
)
@pytest.mark.parametrize("model", [{"kind": "linear"}, {"kind": "mlp", "hidden_units": 8}])
def test_client_level_training_runs_with_every_mechanism_and_model(
    tmp_path: Path, mechanism: dict[str, Any], private: bool, model: dict[str, Any]
) -> None:
    spec = small_spec(**CLIENT_LEVEL, mechanism=mechanism, model=model, rounds=2)
    result = run(spec, tmp_path / "run")
    assert result["private"] is private
    assert result["level"] == "client"
    assert "client" in result["guarantee"]


def test_without_privacy_a_run_says_so_and_learns(tmp_path: Path) -> None:
    table = small_table(mechanism={"kind": "no_privacy"}, rounds=20)
    del table["privacy"]["epsilon"]
    result = run(small_spec(**table), tmp_path / "run")
    assert result["epsilon"] is None
    assert result["private"] is False
    assert result["accuracy"] > 0.8


@pytest.mark.parametrize(
    "sampling", [{"kind": "poisson", "rate": 0.3}, {"kind": "fixed_size", "size": 2}]
)
def test_client_sampling_charges_those_who_were_asked_and_no_one_else(
    tmp_path: Path, sampling: dict[str, Any]
) -> None:
    result = run(small_spec(sampling=sampling, rounds=8), tmp_path / "run")
    rows = RunFolder(tmp_path / "run").metrics()
    with Ledger(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert len(list(ledger.rows())) == sum(row["clients_asked"] for row in rows)
    assert result["epsilon"] <= 4.0
    if sampling["kind"] == "fixed_size":
        assert {row["clients_asked"] for row in rows} == {2}


def test_the_dirichlet_partition_carries_each_clients_own_sigma(tmp_path: Path) -> None:
    data = {"dataset": "digits", "clients": 4, "partition": {"kind": "dirichlet", "alpha": 1.0}}
    run(small_spec(data=data, rounds=1), tmp_path / "run")
    header = RunFolder(tmp_path / "run").header()
    sigma_times_count = {c["noise_stddev"] * c["weight"] for c in header["clients"]}
    assert len({c["weight"] for c in header["clients"]}) > 1
    assert max(sigma_times_count) == pytest.approx(min(sigma_times_count))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_diverged_update_is_sent_as_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    """An error would tell the server about the client's data; a zero tells it nothing."""

    def all_equal(value: float) -> Any:
        def updates(
            work: object, task: Task, clients: list[ClientData], step: ClientStepInput
        ) -> Any:
            yield 0, DenseRows(torch.full((len(clients), task.dimension), value))

        return updates

    for folder, value in (("diverged", bad), ("zero", 0.0)):
        monkeypatch.setattr(SampleClippedGradient, "updates", all_equal(value))
        run(small_spec(), tmp_path / folder)
    assert_same(tmp_path / "zero", tmp_path / "diverged")


def test_a_crash_while_encoding_hides_no_charge_and_costs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise Interrupted

    spec = small_spec(randomness="system")
    monkeypatch.setattr(GaussHermite, "encode_packed", crash)
    with pytest.raises(Interrupted):
        run(spec, tmp_path / "run")
    monkeypatch.undo()
    with Ledger(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert len(list(ledger.rows())) == 4
    result = run(spec, tmp_path / "run", resume=True)
    assert result["epsilon"] <= 4.0
    assert result["clients_out_of_budget"] == 0
    assert result["rounds"] == 6
    with Ledger(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert len(list(ledger.rows())) == 4 * 6


def test_resume_refuses_another_spec_and_an_empty_folder(tmp_path: Path) -> None:
    run(small_spec(), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"another spec \('seed' was 3 and is 9\); resume"):
        run(small_spec(seed=9), tmp_path / "run", resume=True)
    changed = {
        "rounds": 7,
        "sampling": {"kind": "poisson", "rate": 0.5},
        "runtime": {"downlink": "int8"},
        "mechanism": {"kind": "gaussian", "noise_multiplier": 9.0},
    }
    with pytest.raises(ConfigError, match="another spec") as caught:
        run(small_spec(**changed), tmp_path / "run", resume=True)
    for told in (
        "'rounds' was 6 and is 7",
        "'sampling.rate' was unset and is 0.5",
        '\'mechanism.kind\' was "gauss_hermite" and is "gaussian"',
    ):
        assert told in str(caught.value)
    with pytest.raises(OutputError, match="nothing to resume"):
        run(small_spec(), tmp_path / "nowhere", resume=True)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(OutputError, match="not empty"):
        run(small_spec(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_an_output_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot create"):
        run(small_spec(), tmp_path / "file" / "run")


def test_a_full_disk_is_one_clear_error_and_resume_goes_on_afterwards(tmp_path: Path) -> None:
    """A real limit on file size, so that real writes fail in the middle of the run."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(row: dict[str, Any]) -> None:
        if row["round"] == 3:  # Python ignores the signal that would end it
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))

    try:
        with pytest.raises((LedgerError, OutputError), match="space"):
            run(small_spec(), tmp_path / "cut", on_round=limit)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    run(small_spec(), tmp_path / "cut", resume=True)
    run(small_spec(), tmp_path / "whole")
    assert_same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"mechanism": {"kind": "gausian"}}, UnknownNameError, "did you mean 'gaussian'"),
        ({"mechanism": {"kind": "gaussian", "sigma": 1.0}}, UnknownNameError, "'sigma'"),
        ({"mechanism": {"kind": "no_privacy"}}, ConfigError, "gives no privacy"),
        ({"data": {"dataset": "digits", "clients": 5000}}, ParameterError, "5000"),
        (
            {"data": {"dataset": "digits", "clients": 90,
                      "partition": {"kind": "dirichlet", "alpha": 0.01}}},
            ParameterError,
            "got no samples",
        ),
        ({"sampling": {"kind": "fixed_size", "size": 9}}, ConfigError, "exceeds the 4 clients"),
        (
            {"algorithm": {"kind": "fedavg", "server_learning_rate": 1.0, "local_steps": 2}},
            ConfigError,
            "sample-level",
        ),
        ({"privacy": CLIENT_LEVEL["privacy"]}, ConfigError, "local_learning_rate"),
        (
            {"privacy": {"level": "sample", "clip_norm": 1.0, "delta": 1e-5}},
            ConfigError,
            "privacy.epsilon",
        ),
    ],
)  # fmt: skip
def test_a_spec_that_cannot_run_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    check_refused(lambda: small_spec(**changes), tmp_path / "run", error, message)


def test_resume_never_starts_a_new_ledger_for_a_run_that_has_begun(tmp_path: Path) -> None:
    run_until(3, small_spec(), tmp_path / "run")
    for name in ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"):
        (tmp_path / "run" / name).unlink(missing_ok=True)
    with pytest.raises(LedgerError, match="no ledger at"):
        run(small_spec(), tmp_path / "run", resume=True)
    (tmp_path / "run" / "ledger.sqlite").touch()
    with pytest.raises(LedgerError, match="is empty"):
        run(small_spec(), tmp_path / "run", resume=True)


def test_clients_of_different_sizes_share_one_event(tmp_path: Path) -> None:
    data = {"dataset": "digits", "clients": 4, "partition": {"kind": "dirichlet", "alpha": 1.0}}
    run(small_spec(data=data, rounds=1), tmp_path / "run")
    with Ledger(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert len({str(row["event"]) for row in ledger.rows()}) == 1


def begun(folder: Path, **changes: Any) -> RunSpec:
    """A run that was stopped in round 5, with its checkpoint at round 4."""
    spec = small_spec(**changes)
    run_until(5, spec, folder)
    return spec


def test_a_ledger_older_than_the_checkpoint_is_refused(tmp_path: Path) -> None:
    """As when the file is copied without its -wal: fewer charges, but a chain that holds."""
    spec = begun(tmp_path / "run")
    older = tmp_path / "older"
    run(small_spec(rounds=1), older)
    (tmp_path / "run" / "ledger.sqlite").write_bytes((older / "ledger.sqlite").read_bytes())
    with pytest.raises(LedgerError, match=r"holds 4 charges, but there were 16.*-wal"):
        run(spec, tmp_path / "run", resume=True)


def test_a_doctored_ledger_is_refused_on_resume(tmp_path: Path) -> None:
    spec = begun(tmp_path / "run")
    with sqlite3.connect(tmp_path / "run" / "ledger.sqlite") as db:
        db.execute("DROP TRIGGER no_message_is_forgotten")
        db.execute("DELETE FROM messages")
        db.execute("DELETE FROM charges WHERE round = 2")
    db.close()
    with pytest.raises(LedgerError, match="damaged"):
        run(spec, tmp_path / "run", resume=True)


def test_a_lost_checkpoint_is_refused_rather_than_charging_rounds_again(tmp_path: Path) -> None:
    spec = begun(tmp_path / "run", randomness="system")
    (tmp_path / "run" / "checkpoint.npz").unlink()
    with pytest.raises(OutputError, match="lost its checkpoint"):
        run(spec, tmp_path / "run", resume=True)


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04"])
def test_a_damaged_checkpoint_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    spec = begun(tmp_path / "run")
    (tmp_path / "run" / "checkpoint.npz").write_bytes(content)
    with pytest.raises(OutputError, match="spend its budget in addition"):
        run(spec, tmp_path / "run", resume=True)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{}{}", b"[]"])
def test_damaged_metrics_are_one_clear_error(tmp_path: Path, content: bytes) -> None:
    spec = begun(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_bytes(content)
    with pytest.raises(OutputError, match="lacks rounds"):
        run(spec, tmp_path / "run", resume=True)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff\xfe", b"null"])
def test_a_damaged_header_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    spec = begun(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_bytes(content)
    with pytest.raises(OutputError, match="damaged"):
        run(spec, tmp_path / "run", resume=True)


def test_two_runs_cannot_use_one_folder_at_once(tmp_path: Path) -> None:
    spec = begun(tmp_path / "run")
    with (
        RunFolder(tmp_path / "run").locked(),
        pytest.raises(OutputError, match="another part of this program"),
    ):
        run(spec, tmp_path / "run", resume=True)
    run(spec, tmp_path / "run", resume=True)


def test_a_model_that_grew_far_too_large_is_warned_of(tmp_path: Path) -> None:
    algorithm = {"kind": "fedavg", "server_learning_rate": 1e9}
    result = run(small_spec(algorithm=algorithm), tmp_path / "run")
    assert any("lower the learning rate" in warning for warning in result["warnings"])
    usual = run(small_spec(), tmp_path / "usual")
    assert not any("learning rate" in warning for warning in usual["warnings"])


def test_without_privacy_the_guarantee_is_none(tmp_path: Path) -> None:
    table = small_table(mechanism={"kind": "no_privacy"}, rounds=1)
    del table["privacy"]["epsilon"]
    assert run(small_spec(**table), tmp_path / "run")["guarantee"].startswith("none:")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "simulation only: seeded randomness"),
        ({"mechanism": {"kind": "gaussian"}}, "seeded randomness and float noise"),
        ({"mechanism": {"kind": "gaussian"}, "randomness": "system"}, "only: float noise"),
    ],
)
def test_what_is_fit_for_simulation_only_says_so_in_its_guarantee(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    assert words in run(small_spec(rounds=1, **changes), tmp_path / "run")["guarantee"]


def test_a_deployable_run_has_no_such_reservation(tmp_path: Path) -> None:
    result = run(small_spec(rounds=1, randomness="system"), tmp_path / "run")
    assert "simulation" not in result["guarantee"]
    assert result["warnings"] == []


def test_warnings_name_exhausted_clients_and_a_large_delta(tmp_path: Path) -> None:
    privacy = {"level": "sample", "clip_norm": 1.0, "epsilon": 4.0, "delta": 0.01}
    mechanism = {"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 1.2}
    result = run(small_spec(privacy=privacy, mechanism=mechanism), tmp_path / "run")
    halted, delta = result["warnings"]
    assert "0 of 4 clients had budget left" in halted
    assert "larger than 1/1438, one over the number of protected samples" in delta


def test_clients_that_were_asked_in_vain_are_named_with_their_reason() -> None:
    rows = [{"unanswered": {"b": "it is offline"}}, {}, {"unanswered": {"b": "no budget left"}}]
    (said,) = outcome._silent_clients(rows)
    assert said == "no reply of 'b' counted in 2 of 3 rounds; the last reason: no budget left"
    many = [{"unanswered": {str(i): "it is offline" for i in range(7)}}]
    last = outcome._silent_clients(many)[-1]
    assert last == "the same holds for 2 more clients; see metrics.jsonl"


def test_rounds_that_asked_no_one_are_told_by_their_cause() -> None:
    nobody = {"clients_asked": 0, "clients_out_of_budget": 0, "clients_unreachable": 0}
    rows = [
        {**nobody, "clients_unreachable": 3, "clients_out_of_budget": 1},
        {**nobody, "clients_out_of_budget": 2},
        {**nobody, "clients_asked": 4},
        {"clients_asked": 0, "clients_out_of_budget": 0},  # as runs of a version before wrote it
        {**nobody, "clients_unreachable": 4},
    ]
    offline, poor, small = site_counts.idle_warnings(rows)
    assert offline.startswith("in 2 of 5 rounds too few of the clients in the sample could be")
    assert poor.startswith("in 1 of 5 rounds too few of the clients in the sample had budget left")
    assert small.startswith("in 1 of 5 rounds the sample had too few clients: no client was asked")
    assert site_counts.idle_warnings(rows[2:3]) == []


def test_a_run_whose_samples_were_empty_says_so(tmp_path: Path) -> None:
    spec = small_spec(rounds=2, sampling={"kind": "poisson", "rate": 1e-6})
    warned = run(spec, tmp_path / "run")["warnings"]
    assert any(one.startswith("in 2 of 2 rounds the sample had too few clients") for one in warned)
