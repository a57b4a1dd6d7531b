"""Runs through a simulated secure sum."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_checks import check_refused, check_resumed
from specs import LOCAL_STEPS, small_spec

from sottovoce.core.errors import ConfigError, ParameterError, PrivacyError
from sottovoce.privacy import accounting, events
from sottovoce.privacy.events import Repeated
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.resolve import resolve
from sottovoce.runs.runner import run
from sottovoce.runs.spec import RunSpec

CLIENT_LEVEL: dict[str, Any] = {
    "data": {"dataset": "digits", "clients": 12},
    "privacy": {"level": "client", "clip_norm": 0.5, "epsilon": 8.0, "delta": 1e-5},
    "algorithm": {**LOCAL_STEPS, "local_steps": 2},
    "mechanism": {"kind": "clamped_sign", "logit_bound": 1.0},
    "channel": {"kind": "secure_sum", "minimum_clients": 8},
    "rounds": 4,
}


# For what is not about epsilons: calibrating sums takes long.
NOISE = {"kind": "clamped_sign", "logit_bound": 1.0, "noise_multiplier": 20.0}


def a_spec(**changes: Any) -> RunSpec:
    return small_spec(**{**CLIENT_LEVEL, **changes})


def test_a_run_says_what_is_trusted_and_prints_both_epsilons(tmp_path: Path) -> None:
    # More than 16 clients: of fewer, every sum's law is listed while it is calibrated.
    clients = {"dataset": "digits", "clients": 20}
    channel = {"kind": "secure_sum", "minimum_clients": 18}
    result = run(a_spec(data=clients, channel=channel), tmp_path / "run")
    assert result["channel"] == ("secure sum, simulated: the server is trusted to reveal only sums")
    assert "trusted" in result["guarantee"]
    assert "local privacy" not in result["guarantee"]
    assert any("simulated" in warning for warning in result["warnings"])
    with RunFolder(tmp_path / "run").ledger() as ledger:
        ((event, count),) = ledger.history("client-0000")
        assert ledger.verify() == []
    assert isinstance(event, events.SummedBits)
    assert (event.clients, event.logit_bound, count) == (18, 1.0, 4)
    central = accounting.epsilon(Repeated(event=event, count=4), 1e-5)
    assert result["central_epsilon"] == result["epsilon"] == central <= 8.0
    local = accounting.epsilon(Repeated(event=event.local(), count=4), 1e-5)
    assert result["local_epsilon"] == local >= central
    assert result["payload_bytes_up_per_message"] == -(-650 // 8)
    assert result["masked_bytes_up_per_message"] == -(-650 * 5 // 8)  # a sum of 20 bits has 5


def test_a_cohort_too_small_for_a_sum_is_neither_asked_nor_charged(tmp_path: Path) -> None:
    sampling = {"kind": "poisson", "rate": 0.6}  # 7.2 of the 12 on average, where 8 are needed
    result = run(a_spec(sampling=sampling, rounds=8, mechanism=NOISE), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    asked = [row["clients_asked"] for row in folder.metrics()]
    assert 0 in asked
    assert max(asked) >= 8
    assert all(count == 0 or count >= 8 for count in asked)
    with folder.ledger() as ledger:
        assert ledger.num_charges == sum(asked)
    idle = asked.count(0)
    assert any(f"in {idle} of 8 rounds" in warning for warning in result["warnings"])


def test_without_a_secure_sum_what_is_charged_is_local(tmp_path: Path) -> None:
    result = run(a_spec(channel={"kind": "direct"}), tmp_path / "run")
    assert result["channel"].startswith("direct")
    assert result["local_epsilon"] == result["epsilon"]
    assert result["central_epsilon"] is None


def test_resume_continues_bit_for_bit(tmp_path: Path) -> None:
    check_resumed(a_spec(mechanism=NOISE), tmp_path)


def test_with_too_few_clients_the_model_stays_as_it_is(tmp_path: Path) -> None:
    spec = a_spec(sampling={"kind": "poisson", "rate": 0.1}, rounds=2, mechanism=NOISE)
    run(spec, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert all(row["clients_received"] < 8 for row in folder.metrics())
    checkpoint = folder.load_checkpoint()
    assert checkpoint is not None
    assert np.array_equal(checkpoint.model, resolve(load_inputs(spec)).task.initial_model())


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"channel": {"kind": "secure_sum", "minimum_clients": 13}},
            ConfigError,
            "channel.minimum_clients = 13 exceeds the 12 clients",
        ),
        (
            {"channel": {"kind": "secure_sum", "minimum_clients": 11, "colluders": 2}},
            ConfigError,
            "channel.minimum_clients = 11 plus channel.colluders = 2 exceeds the 12 clients",
        ),
        ({"sampling": {"kind": "fixed_size", "size": 7}}, ConfigError, "exceeds the 7 clients"),
        ({"mechanism": {"kind": "gauss_hermite", "levels": 2}}, PrivacyError, "clamped_sign"),
        (
            {"mechanism": {"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 1.0}},
            PrivacyError,
            "clamped_sign",
        ),
        (
            {
                "privacy": {"level": "sample", "clip_norm": 1.0, "epsilon": 4.0, "delta": 1e-5},
                "algorithm": {"kind": "fedavg", "server_learning_rate": 1.0},
                "mechanism": NOISE,
            },
            ParameterError,
            "same mechanism and weight",
        ),
    ],
    ids=["too many", "colluders", "cohort", "mechanism", "not calibrated", "unequal clients"],
)
def test_what_cannot_be_summed_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    check_refused(lambda: a_spec(**changes), tmp_path / "run", error, message)


@pytest.mark.parametrize(
    ("channel", "message"),
    [
        ({"kind": "secure_sum"}, "'channel.minimum_clients' is missing"),
        ({"kind": "secure_sum", "minimum_clients": 1}, "'channel.minimum_clients'"),
        ({"kind": "secure_sum", "minimum_clients": "3"}, "must be an integer"),
        ({"minimum_clients": 3}, "'channel.kind' is missing"),
        ({"kind": "direct", "minimum_clients": 3}, "unknown key 'minimum_clients'"),
    ],
)
def test_a_channel_that_makes_no_sense_is_one_line(channel: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError), match=message):
        a_spec(channel=channel)
