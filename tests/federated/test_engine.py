"""Rounds of a simulation: charged whole, whatever their size; those who cannot pay are left out."""

from pathlib import Path
from typing import Any

import pytest
from run_checks import EVERY_BYTE, check_resumed
from specs import small_spec
from watched_encoding import watch_encoding

from sottovoce.core.domains import Vector
from sottovoce.core.errors import BudgetExhaustedError, PluginError
from sottovoce.federated import rounds
from sottovoce.federated.algorithms.algorithm import State
from sottovoce.federated.algorithms.fedavg import FedAvg, SampleClippedGradient
from sottovoce.learning.clients import ClientData
from sottovoce.ledger.ledger import Ledger
from sottovoce.protocol.client import Refused, privatize
from sottovoce.protocol.plan import RoundPlan
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.runner import run

# One round at this noise costs about 2.2; two stay below 4, three do not.
LOUD = {"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 1.8}
# The first client pays for two rounds, the others for all six.
UNEQUAL: dict[str, Any] = {
    "privacy": {
        "level": "sample",
        "clip_norm": 1.0,
        "epsilon": 40.0,
        "delta": 1e-5,
        "groups": [{"clients": 1, "epsilon": 4.0}],
    },
    "mechanism": LOUD,
}


def test_a_round_is_one_commit_before_the_first_code_however_little_fits_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "MAX_COORDINATES_IN_MEMORY", 1)  # one client at a time
    seen = []

    def watch(*_: object) -> None:
        with Ledger(tmp_path / "run" / "ledger.sqlite") as other:
            seen.append(other.num_charges)

    watch_encoding(monkeypatch, watch)
    run(small_spec(rounds=2), tmp_path / "run")
    assert seen == [4] * 4 + [8] * 4


def test_the_size_of_a_chunk_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(small_spec(), tmp_path / "whole")
    monkeypatch.setattr(rounds, "MAX_COORDINATES_IN_MEMORY", 1)
    assert run(small_spec(), tmp_path / "chunks") == whole


def test_who_cannot_pay_is_neither_asked_nor_trained_nor_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[list[str]] = []
    updates = SampleClippedGradient.updates

    def watched(self: Any, task: Any, clients: list[ClientData], step: Any) -> Any:
        trained.append([client.name for client in clients])
        return updates(self, task, clients, step)

    monkeypatch.setattr(SampleClippedGradient, "updates", watched)
    result = run(small_spec(**UNEQUAL), tmp_path / "run")
    rows = RunFolder(tmp_path / "run").metrics()
    assert [row["clients_asked"] for row in rows] == [4, 4, 3, 3, 3, 3]
    assert [row["clients_received"] for row in rows] == [4, 4, 3, 3, 3, 3]
    assert [row["clients_out_of_budget"] for row in rows] == [0, 0, 1, 1, 1, 1]
    assert [row["payload_bytes_down"] for row in rows] == [4 * 650 * n for n in (4, 4, 3, 3, 3, 3)]
    assert [len(names) for names in trained] == [4, 4, 3, 3, 3, 3]
    assert "client-0000" not in trained[2]
    assert result["halted"] is None
    assert [row["rounds"] for row in result["clients"]] == [2, 6, 6, 6]
    assert [row["ran_out"] for row in result["clients"]] == [True, False, False, False]
    assert any("1 of 4 clients were out of budget in round 3" in w for w in result["warnings"])
    with RunFolder(tmp_path / "run").ledger() as ledger:
        assert ledger.num_charges == 4 + 4 + 3 * 4
        assert ledger.verify() == []


def test_a_race_for_a_budget_is_lost_at_the_charge_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        rounds,
        "clients_within_budget",
        lambda plan, *_, **__: frozenset(p.client for p in plan.clients),
    )  # somebody else spends the budget after it was looked at
    run(small_spec(**UNEQUAL), tmp_path / "run")
    rows = RunFolder(tmp_path / "run").metrics()
    assert [row["clients_asked"] for row in rows] == [4, 4, 3, 3, 3, 3]
    assert [row["clients_out_of_budget"] for row in rows] == [0, 0, 1, 1, 1, 1]


def test_whichever_client_is_refused_where_it_encodes_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another attempt at a round that was charged before may be more than is left."""

    def privatised(plan: RoundPlan, requests: Any, *given: Any) -> list[Any]:
        outcomes: list[Any] = list(privatize(plan, requests, *given))
        if plan.round == 2:
            error = BudgetExhaustedError("nothing is left")
            outcomes[1] = Refused(part=requests[1].part, uplink=0, error=error)
        return outcomes

    monkeypatch.setattr(rounds, "privatize", privatised)
    run(small_spec(rounds=3), tmp_path / "run")
    rows = RunFolder(tmp_path / "run").metrics()
    assert [row["clients_asked"] for row in rows] == [4, 3, 4]
    assert [row["clients_received"] for row in rows] == [4, 3, 4]
    assert [row["clients_out_of_budget"] for row in rows] == [0, 1, 0]


@pytest.mark.parametrize("minimum", [1, 3, 4])
def test_a_run_halts_where_too_few_can_go_on(tmp_path: Path, minimum: int) -> None:
    table = {**UNEQUAL, "privacy": {**UNEQUAL["privacy"], "minimum_clients": minimum}}
    result = run(small_spec(**table), tmp_path / "run")
    if minimum < 4:
        assert result["halted"] is None
        assert result["rounds"] == 6
        return
    assert result["rounds"] == 2
    assert result["halted"] == (
        "before round 3 only 3 of 4 clients had budget left for it, fewer than 4"
    )
    assert any("halted after 2 of 6 rounds" in warning for warning in result["warnings"])
    assert len(RunFolder(tmp_path / "run").metrics()) == 2
    assert [row["ran_out"] for row in result["clients"]] == [True, False, False, False]


@pytest.mark.parametrize("checkpoint_every", [1, 2, 5])
def test_resuming_a_halted_run_does_nothing_new(tmp_path: Path, checkpoint_every: int) -> None:
    spec = small_spec(mechanism=LOUD, checkpoint_every=checkpoint_every)
    result = run(spec, tmp_path / "run")
    assert result["rounds"] == 2
    assert result["clients_out_of_budget"] == 4
    names = ("result.json", "metrics.jsonl", "checkpoint.npz", "run.json")
    before = [(tmp_path / "run" / name).read_bytes() for name in names]
    assert run(spec, tmp_path / "run", resume=True) == result
    assert [(tmp_path / "run" / name).read_bytes() for name in names] == before
    with RunFolder(tmp_path / "run").ledger() as ledger:
        assert ledger.num_charges == 2 * 4


def test_a_run_that_no_one_can_afford_halts_before_its_first_round(tmp_path: Path) -> None:
    mechanism = {"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 0.5}
    result = run(small_spec(mechanism=mechanism), tmp_path / "run")
    assert (result["rounds"], result["epsilon"]) == (0, 0.0)
    assert result["halted"].startswith("before round 1 only 0 of 4")
    assert run(small_spec(mechanism=mechanism), tmp_path / "run", resume=True) == result


@pytest.mark.parametrize("stop_after", [1, 2, 3, 5])
def test_a_repeated_round_leaves_out_whom_it_left_out_before(
    tmp_path: Path, stop_after: int
) -> None:
    """A resumed run finds charges of the rounds that it repeats, and decides as it did."""
    spec = small_spec(**UNEQUAL, sampling={"kind": "poisson", "rate": 0.6}, checkpoint_every=10)
    check_resumed(spec, tmp_path, stop_after=stop_after, same_files=EVERY_BYTE)


def test_a_model_of_another_shape_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(
        _self: FedAvg, model: Vector, _combined: object, state: State
    ) -> tuple[Vector, State]:
        return model[:-1], state

    monkeypatch.setattr(FedAvg, "server_step", short)
    with pytest.raises(PluginError, match=r"server_step\(\) of FedAvg .*\(649,\).*\(650,\)"):
        run(small_spec(rounds=1), tmp_path / "run")
