"""Runs through a simulated shuffler."""

from pathlib import Path
from typing import Any

import pytest
from run_checks import check_refused, check_resumed
from specs import LOCAL_STEPS, small_spec

from sottovoce.core.errors import ConfigError, PrivacyError
from sottovoce.privacy import accounting, events
from sottovoce.privacy.events import Repeated
from sottovoce.protocol.channels.shuffler import Shuffler
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.loading import load
from sottovoce.runs.resolve import resolve
from sottovoce.runs.runner import run
from sottovoce.runs.spec import RunSpec

CLIENT_LEVEL: dict[str, Any] = {
    "data": {"dataset": "digits", "clients": 60},
    "privacy": {
        "level": "client",
        "adjacency": "replace-one",
        "clip_norm": 0.5,
        "delta": 1e-3,
    },
    "algorithm": {**LOCAL_STEPS, "local_steps": 2},
    "mechanism": {"kind": "cldp", "epsilon": 0.5},
    "channel": {"kind": "shuffler", "minimum_clients": 50},
    "rounds": 3,
}
EXAMPLE = Path(__file__).parents[2] / "examples" / "shuffled.toml"


def a_spec(**changes: Any) -> RunSpec:
    return small_spec(**{**CLIENT_LEVEL, **changes})


def few_clients(epsilon: float, rounds: int) -> RunSpec:
    return a_spec(
        data={"dataset": "digits", "clients": 10},
        channel={"kind": "shuffler", "minimum_clients": 10},
        mechanism={"kind": "cldp", "epsilon": epsilon},
        privacy={**CLIENT_LEVEL["privacy"], "delta": 1e-5},
        rounds=rounds,
    )


def test_a_run_says_what_is_trusted_and_prints_both_epsilons(tmp_path: Path) -> None:
    result = run(a_spec(), tmp_path / "run")
    assert result["channel"].startswith("shuffler, simulated: the server is trusted")
    assert "trusted" in result["guarantee"]
    assert "local privacy" not in result["guarantee"]
    assert not any("almost no amplification" in warning for warning in result["warnings"])
    with RunFolder(tmp_path / "run").ledger() as ledger:
        ((event, count),) = ledger.history("client-0000")
        assert ledger.verify() == []
    assert isinstance(event, events.Shuffled)
    assert (event.clients, count) == (50, 3)
    central = accounting.epsilon(Repeated(event=event, count=3), 1e-3)
    local = accounting.epsilon(Repeated(event=event.event, count=3), 1e-3)
    assert result["central_epsilon"] == result["epsilon"] == central
    assert result["local_epsilon"] == local > 1.5 * central


def test_ten_clients_buy_nothing_and_the_result_says_so_with_numbers(tmp_path: Path) -> None:
    result = run(few_clients(epsilon=1.0, rounds=1), tmp_path / "run")
    (warning,) = [warning for warning in result["warnings"] if "almost no amplification" in warning]
    assert warning.startswith(
        "shuffling 10 clients gives almost no amplification: epsilon is 1.000 "
    )


def test_a_large_local_epsilon_buys_nothing_either(tmp_path: Path) -> None:
    """One bit for each of 650 coordinates: eps0 is some 100, and there are no clones."""
    bits = {"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 1.0}
    result = run(a_spec(mechanism=bits, rounds=1), tmp_path / "run")
    (warning,) = [warning for warning in result["warnings"] if "almost no amplification" in warning]
    assert "shuffling 50 clients gives almost no amplification" in warning
    assert result["central_epsilon"] == result["local_epsilon"]


def test_a_run_is_calibrated_to_the_shuffled_messages(tmp_path: Path) -> None:
    spec = a_spec(mechanism={"kind": "cldp"}, privacy={**CLIENT_LEVEL["privacy"], "epsilon": 1.0})
    result = run(spec, tmp_path / "run")
    assert 0.999 < result["central_epsilon"] <= 1.0
    assert result["local_epsilon"] > 1.3
    assert result["clients_out_of_budget"] == 0


def test_a_cohort_too_small_is_neither_asked_nor_charged(tmp_path: Path) -> None:
    sampling = {"kind": "poisson", "rate": 0.8}  # 48 of the 60 on average, where 50 are needed
    run(a_spec(sampling=sampling, rounds=6), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    asked = [row["clients_asked"] for row in folder.metrics()]
    assert 0 in asked
    assert max(asked) >= 50
    assert all(count == 0 or count >= 50 for count in asked)
    with folder.ledger() as ledger:
        assert ledger.num_charges == sum(asked)


def test_resume_continues_bit_for_bit(tmp_path: Path) -> None:
    check_resumed(a_spec(rounds=4), tmp_path)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"channel": {"kind": "shuffler", "minimum_clients": 61}},
            ConfigError,
            "channel.minimum_clients = 61 exceeds the 60 clients.*no message",
        ),
        (
            {"mechanism": {"kind": "gaussian", "noise_multiplier": 1.0}},
            PrivacyError,
            "GaussianNoise has no finite pure epsilon; use a mechanism that has one",
        ),
        (
            {
                "mechanism": {"kind": "gauss_hermite", "levels": 4},
                "privacy": {**CLIENT_LEVEL["privacy"], "epsilon": 8.0},
            },
            PrivacyError,
            "ZeroConcentrated has no finite pure epsilon; use a mechanism that has one",
        ),
        (
            {"privacy": {**CLIENT_LEVEL["privacy"], "adjacency": "zero-out"}},
            PrivacyError,
            r"privacy\.adjacency = 'replace-one'",
        ),
        (
            {
                # 1438 samples in two equal shares, so that it is not the weights that are refused
                "data": {"dataset": "digits", "clients": 2},
                "channel": {"kind": "shuffler", "minimum_clients": 2},
                "privacy": {**CLIENT_LEVEL["privacy"], "level": "sample"},
                "algorithm": {"kind": "fedavg", "server_learning_rate": 1.0},
            },
            PrivacyError,
            r"one record's epsilon.*privacy\.level = 'client'",
        ),
    ],
    ids=["too many", "gaussian", "two bits", "zero-out", "sample level"],
)
def test_what_shuffling_does_not_hide_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    check_refused(lambda: a_spec(**changes), tmp_path / "run", error, message)


def test_a_channel_without_a_minimum_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"'channel\.minimum_clients' is missing"):
        a_spec(channel={"kind": "shuffler"})


def test_the_example_is_within_its_budget_and_says_what_senders_would_cost() -> None:
    resolved = resolve(load_inputs(load(EXAMPLE)))
    spec = resolved.spec
    assert isinstance(resolved.channel, Shuffler)
    event = resolved.terms(resolved.parts[0].mechanism)
    assert isinstance(event, events.Shuffled)
    central = accounting.epsilon(Repeated(event=event, count=spec.rounds), spec.privacy.delta)
    local = accounting.epsilon(Repeated(event=event.event, count=spec.rounds), spec.privacy.delta)
    assert 1.99 < central <= 2.0
    assert local == pytest.approx(14.64, abs=0.01)
