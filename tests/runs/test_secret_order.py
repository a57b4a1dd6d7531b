"""Runs whose clients are asked once an epoch, in a simulated secret order."""

import json
from pathlib import Path
from typing import Any

import pytest
from run_checks import check_resumed
from specs import small_spec

from sottovoce.core.errors import ConfigError
from sottovoce.privacy import accounting, events
from sottovoce.privacy.events import Repeated
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.loading import load
from sottovoce.runs.resolve import resolve
from sottovoce.runs.runner import run
from sottovoce.runs.spec import RunSpec
from sottovoce_papers.trial import trial

PRIVACY: dict[str, Any] = {
    "level": "client",
    "adjacency": "replace-one",
    "clip_norm": 0.5,
    "delta": 1e-3,
}
LOCAL: dict[str, Any] = {
    "server_learning_rate": 1.0,
    "local_steps": 2,
    "local_learning_rate": 0.5,
}
IN_SECRET: dict[str, Any] = {
    "data": {"dataset": "digits", "clients": 60},
    "privacy": PRIVACY,
    "algorithm": {"kind": "fedavg", **LOCAL},
    "mechanism": {"kind": "cldp", "epsilon": 0.5},
    "sampling": {"kind": "epochs", "size": 25},  # rounds of 25, 25 and 10
    "channel": {"kind": "secret_order", "minimum_clients": 55},
    "rounds": 6,
}
EXAMPLE = Path(__file__).parents[2] / "examples" / "secret_order.toml"


def a_spec(**changes: Any) -> RunSpec:
    return small_spec(**{**IN_SECRET, **changes})


def test_everyone_pays_once_an_epoch_for_a_message_among_the_epochs(tmp_path: Path) -> None:
    result = run(a_spec(), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert [row["clients_received"] for row in folder.metrics()] == [25, 25, 10] * 2
    with folder.ledger() as ledger:
        histories = {tuple(ledger.history(name)) for name in ledger.clients()}
        assert len(list(ledger.clients())) == 60
    (((event, count),),) = histories
    assert isinstance(event, events.Shuffled)
    assert (event.clients, count) == (55, 2)
    central = accounting.epsilon(Repeated(event=event, count=2), 1e-3)
    local = accounting.epsilon(Repeated(event=event.event, count=2), 1e-3)
    assert result["central_epsilon"] == result["epsilon"] == central
    assert result["local_epsilon"] == local > 1.5 * central


@pytest.mark.parametrize("messages", ["stored", "packed"])
def test_a_run_says_what_is_trusted_and_that_it_is_a_simulation(
    tmp_path: Path, messages: str
) -> None:
    result = run(a_spec(runtime={"messages": messages}), tmp_path / "run")
    assert "secret order, simulated: the server is trusted" in result["guarantee"]
    assert "simulation only: seeded randomness" in result["guarantee"]
    assert "local privacy" not in result["guarantee"]
    per_message = result["payload_bytes_up_per_message"]
    assert result["payload_bytes_up_per_client"] == 2 * per_message  # two epochs
    assert result["total_bytes_up_per_client"] == 2 * result["total_bytes_up_per_message"]


def test_nothing_but_the_ledger_tells_when_a_client_was_asked(tmp_path: Path) -> None:
    """Whoever reads header, metrics and result learns of all clients the same."""
    # A budget that is spent: who could pay once more must not tell who has not been asked yet.
    run(a_spec(mechanism={"kind": "cldp"}, privacy={**PRIVACY, "epsilon": 1.0}), tmp_path / "run")
    texts = {
        path.name: path.read_text()
        for path in (tmp_path / "run").iterdir()
        if path.suffix in (".json", ".jsonl")
    }
    assert set(texts) == {"run.json", "metrics.jsonl", "result.json"}
    assert "client-" not in texts["metrics.jsonl"]
    for name in ("run.json", "result.json"):
        rows = [{**row, "client": ""} for row in json.loads(texts[name])["clients"]]
        assert len(rows) == 60
        assert all(row == rows[0] for row in rows)


def test_a_run_is_calibrated_to_its_epochs(tmp_path: Path) -> None:
    spec = a_spec(mechanism={"kind": "cldp"}, privacy={**PRIVACY, "epsilon": 1.0})
    result = run(spec, tmp_path / "run")
    assert 0.999 < result["central_epsilon"] <= 1.0
    assert result["local_epsilon"] > 1.3
    assert result["clients_out_of_budget"] == 0


def test_a_budget_ends_a_run_between_epochs(tmp_path: Path) -> None:
    """All clients have the same, so either everyone can pay for an epoch or nobody can."""
    spec = a_spec(privacy={**PRIVACY, "epsilon": 0.24}, rounds=9)  # two epochs
    result = run(spec, tmp_path / "run")
    assert result["rounds"] == 6
    assert result["halted"]
    assert {(row["rounds"], row["ran_out"]) for row in result["clients"]} == {(2, True)}


@pytest.mark.parametrize("messages", ["stored", "packed"])
def test_resume_goes_on_in_the_same_order(tmp_path: Path, messages: str) -> None:
    """A second order for the same epoch would ask some clients twice."""
    spec = a_spec(runtime={"messages": messages}, checkpoint_every=1)
    check_resumed(spec, tmp_path, stop_after=4)


def test_a_trial_has_both_epsilons() -> None:
    found = trial(a_spec(runtime={"messages": "packed"}))
    assert found["local_epsilon"] > 1.5 * found["central_epsilon"] > 0.0


def test_the_example_is_within_its_budget_and_says_what_senders_would_cost() -> None:
    resolved = resolve(load_inputs(load(EXAMPLE)))
    spec = resolved.spec
    event = resolved.terms(resolved.parts[0].mechanism)
    assert isinstance(event, events.Shuffled)
    central, local = (
        accounting.epsilon(Repeated(event=one, count=2), spec.privacy.delta)
        for one in (event, event.event)
    )
    assert 1.99 < central <= 2.0
    assert local == pytest.approx(9.11, abs=0.01)


def test_everyone_in_every_round_is_an_epoch_a_round() -> None:
    resolved = resolve(load_inputs(a_spec(sampling={"kind": "everyone"}, rounds=2)))
    assert resolved.channel == resolve(load_inputs(a_spec())).channel


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"channel": {"kind": "secret_order", "minimum_clients": 61}},
            "channel.minimum_clients = 61 exceeds the 60 clients of an epoch",
        ),
        ({"sampling": {"kind": "fixed_size", "size": 25}}, r"sampling\.kind = 'epochs'"),
        ({"sampling": {"kind": "poisson", "rate": 0.5}}, r"sampling\.kind = 'epochs'"),
        ({"rounds": 7}, "7 rounds end within an epoch of 3.*such as 9"),
        ({"randomness": "system"}, "seed; set randomness = 'seeded'"),
        (
            {"privacy": {**PRIVACY, "epsilon": 3.0, "groups": [{"clients": 9, "epsilon": 1.0}]}},
            r"remove 'privacy\.groups'",
        ),
        ({"privacy": {**PRIVACY, "minimum_clients": 40}}, "halt a run within an epoch"),
        ({"algorithm": {"kind": "scaffold", **LOCAL}}, "use the algorithm 'fedavg'"),
        ({"runtime": {"backend": "flower-sim"}}, "asks clients by name.*'shuffler'"),
        ({"channel": {"kind": "secret_order"}}, r"'channel\.minimum_clients' is missing"),
    ],
    ids=[
        "too many",
        "fixed size",
        "poisson",
        "cut short",
        "public seed",
        "groups",
        "halts",
        "memory",
        "flower",
        "no minimum",
    ],
)
def test_an_order_that_would_not_be_secret_or_whole_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(a_spec(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
