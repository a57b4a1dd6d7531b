"""The diagnosis of a run: what is found, and suggestions that are true where they are made."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from specs import small_table

import sottovoce
from sottovoce.core.domains import L2Ball
from sottovoce.mechanisms import registry
from sottovoce.runs.diagnosis import AccuracyDiagnosis
from sottovoce.runs.public_facts import noise_energy

RNG = np.random.default_rng(5)
LABELS = np.arange(1400) % 4
FEATURES = RNG.normal(size=(4, 12))[LABELS] + 0.8 * RNG.normal(size=(1400, 12))
DATA = FEATURES[:400], LABELS[:400], FEATURES[400:], LABELS[400:]
DRAWN: dict[str, Any] = {"runtime": {"messages": "none"}, "mechanism": {"kind": "gaussian"}}
CLIENT: dict[str, Any] = {
    "privacy": {"level": "client", "clip_norm": 1.0, "epsilon": 4.0, "delta": 1e-5},
    "algorithm": {
        "kind": "fedavg",
        "server_learning_rate": 0.5,
        "local_steps": 2,
        "local_learning_rate": 0.02,
    },
    "data": {"clients": 100},
    "rounds": 10,
}

LOCAL_DP_SGD: dict[str, Any] = {
    "algorithm": {
        "kind": "fedavg",
        "server_learning_rate": 1.0,
        "local_work": "dp_sgd",
        "local_steps": 4,
        "batch_size": 5,
        "local_learning_rate": 0.2,
    }
}


def trained(overrides: Mapping[str, Any] = {}, **changes: Any) -> sottovoce.Run:
    table = small_table(**{"data": {"clients": 20}, **DRAWN, **changes})
    return sottovoce.simulate(table, data=DATA, overrides=overrides)


def accuracy(overrides: Mapping[str, Any] = {}, **changes: Any) -> float:
    """Return the mean accuracy over two seeds."""
    runs = [trained({**overrides, "seed": seed}, **changes) for seed in (1, 2)]
    return float(np.mean([run.accuracy for run in runs]))


def keys(run: sottovoce.Run) -> list[str]:
    assert run.diagnosis is not None
    return [one.key for one in run.diagnosis.suggestions]


@pytest.mark.parametrize("kind", ["gaussian", "gauss_hermite", "discrete_gaussian"])
def test_the_known_noise_is_that_of_decoded_messages(kind: str) -> None:
    registration = registry.find(kind)
    ball = L2Ball(dimension=400, radius=1.0)
    mechanism = registration.build(ball, dict(registration.examples[0]))
    decoded = [mechanism.decode(mechanism.privatize(np.zeros(400))) for _ in range(40)]
    measured = float(np.mean([row @ row for row in decoded]))
    assert noise_energy(mechanism) == pytest.approx(measured, rel=0.05)


def test_a_model_at_chance_level_is_named_and_the_signal_is_what_is_left_of_noise() -> None:
    lost = trained({"privacy.epsilon": 0.01})
    assert lost.diagnosis is not None
    assert lost.diagnosis.at_chance
    assert "The model is at chance level" in str(lost.diagnosis)
    free = sottovoce.simulate(small_table(data={"clients": 20}), data=DATA, private=False)
    good = trained({"privacy.epsilon": 500.0})
    assert good.diagnosis is not None
    assert not good.diagnosis.at_chance
    norms = [row.others["update_norm"] for row in free.rounds]
    assert good.diagnosis.signal_norm == pytest.approx(np.mean(norms), rel=0.5)
    assert AccuracyDiagnosis.read(good.diagnosis.to_dict()) == good.diagnosis


def test_a_model_that_moves_too_far_is_never_told_to_move_further() -> None:
    far = trained({"algorithm.server_learning_rate": 1e6}, rounds=20)
    assert any("may be diverging" in warning for warning in far.warnings)
    assert far.diagnosis is not None
    first = far.diagnosis.suggestions[0]
    assert (first.key, first.change) == ("algorithm.server_learning_rate", "1e+06 -> 100000")


def test_asking_every_client_helps_where_noise_is_calibrated_for_every_round() -> None:
    some = CLIENT | {"sampling": {"kind": "fixed_size", "size": 10}}
    clear = {"algorithm.local_learning_rate": 0.3, "privacy.epsilon": 10.0}
    assert keys(trained(clear, **some))[0] == "sampling.kind"
    assert accuracy(clear, **CLIENT) > accuracy(clear, **some) + 0.1


def test_longer_local_steps_help_where_updates_are_short() -> None:
    loud = {"privacy.epsilon": 100.0}
    assert keys(trained(loud, **CLIENT))[0] == "algorithm.local_learning_rate"
    longer = loud | {"algorithm.local_learning_rate": 0.04}
    assert accuracy(longer, **CLIENT) > accuracy(loud, **CLIENT)


def test_a_smaller_clip_norm_helps_where_gradients_are_short() -> None:
    loose = {"privacy.clip_norm": 40.0}
    assert "privacy.clip_norm" in keys(trained(loose))
    assert accuracy({"privacy.clip_norm": 20.0}) > accuracy(loose)


def test_larger_steps_help_where_the_accuracy_still_rises() -> None:
    table = small_table(**DRAWN, rounds=12, data={"dataset": "digits", "clients": 20})
    table["model"] = {"kind": "mlp", "hidden_units": 16}
    slow, fast = (
        sottovoce.simulate(
            table, overrides={"algorithm.server_learning_rate": rate, "privacy.epsilon": 20.0}
        )
        for rate in (1.0, 2.0)
    )
    assert keys(slow)[0] == "algorithm.server_learning_rate"
    assert slow.accuracy is not None
    assert fast.accuracy is not None
    assert fast.accuracy > slow.accuracy + 0.05


@pytest.mark.parametrize("bits", [32, 1])
def test_the_noise_of_local_dp_sgd_is_known_and_answered(bits: int) -> None:
    coarse = {"privacy.epsilon": 0.05, "algorithm.message_bits": bits}
    run = trained(coarse, **LOCAL_DP_SGD)
    measured = np.sqrt(np.mean([row.others["update_norm"] ** 2 for row in run.rounds]))
    assert run.diagnosis is not None
    assert run.diagnosis.noise_norm == pytest.approx(measured, rel=0.15)
    told = str(run.diagnosis)
    assert "In a local step the noise" in told
    assert ("Rounding messages to 1 bit" in told) == (bits == 1)
    assert ("algorithm.message_bits" in keys(run)) == (bits == 1)
    assert "algorithm.batch_size" in keys(run)
    assert not any(key.startswith("channel") for key in keys(run))


def test_a_larger_sample_has_less_noise_at_the_same_budget() -> None:
    small, large = (
        trained({"algorithm.batch_size": size}, **LOCAL_DP_SGD).diagnosis for size in (5, 10)
    )
    assert small is not None
    assert large is not None
    assert large.noise_norm < 0.9 * small.noise_norm  # type: ignore[operator]


def test_the_charged_bits_tell_the_share_of_clipped_updates() -> None:
    adaptive = CLIENT | {
        "privacy": CLIENT["privacy"] | {"clip_norm": "auto", "epsilon": 50.0},
        "rounds": 30,
        "channel": {"kind": "central"},
    }
    run = trained(**adaptive)
    assert run.diagnosis is not None
    assert "it clipped about 7" in str(run.diagnosis) or "it clipped about 8" in str(run.diagnosis)
    assert "The bits that tell this are private and charged." in " ".join(
        str(run.diagnosis).split()
    )
    unsure = trained({"privacy.epsilon": 1.0, "channel": {"kind": "direct"}}, **adaptive)
    assert "is lost in noise" in " ".join(str(unsure.diagnosis).split())


def test_without_privacy_clipped_updates_are_counted_and_noise_is_not_mentioned() -> None:
    table = small_table(**{**CLIENT, "mechanism": {"kind": "gauss_hermite", "levels": 2}})
    shares = {}
    for clip in (1e-4, 1e4):
        run = sottovoce.simulate(
            table,
            data=DATA,
            private=False,
            keep_clipping=True,
            overrides={"privacy.clip_norm": clip},
        )
        shares[clip] = {row.others["clipped_share"] for row in run.rounds}
    assert shares == {1e-4: {1.0}, 1e4: {0.0}}
    assert "shortened 0% of the clients' updates" in " ".join(str(run.diagnosis).split())
    steep = {"algorithm.local_learning_rate": 40.0, "rounds": 12}
    free = sottovoce.simulate(table, data=DATA, private=False, overrides=steep)
    assert "noise" not in str(free.diagnosis)
    assert all("clipped_share" not in row.others for row in free.rounds)


def test_where_noise_moves_the_model_smaller_steps_help() -> None:
    loud = {"rounds": 120, "algorithm.server_learning_rate": 2.0, "privacy.epsilon": 2.0}
    run = trained(loud)
    assert "algorithm.server_learning_rate: 2 -> 0.4." in str(run.diagnosis)
    assert keys(run)[:2] == ["algorithm.server_learning_rate", "algorithm.averaging"]
    calm = loud | {"algorithm.server_learning_rate": 0.4}
    assert accuracy(calm) > accuracy(loud) + 0.05
    averaged = trained({**loud, "algorithm.averaging": {"kind": "mean", "rounds": 60}})
    assert averaged.accuracy is not None
    assert averaged.rounds[-1].others["accuracy_averaged"] > averaged.accuracy + 0.02


def test_where_even_full_updates_are_lost_no_learning_rate_is_suggested() -> None:
    lost = trained({"privacy.epsilon": 0.5}, **CLIENT)
    assert "they would be lost in that noise" in " ".join(str(lost.diagnosis).split())
    assert keys(lost)[0] == "channel.kind, mechanism"
    assert not any("learning_rate" in key or key == "rounds" for key in keys(lost))


@pytest.mark.slow
def test_a_secure_sum_is_suggested_for_equal_clients_and_has_less_noise() -> None:
    run = trained({"privacy.epsilon": 1.0}, **CLIENT)
    assert "channel.kind, mechanism" in keys(run)
    summed: dict[str, Any] = {
        "channel": {"kind": "secure_sum", "minimum_clients": 100},
        "mechanism": {"kind": "auto"},
        "runtime": {"messages": "stored"},
    }
    better = trained({"privacy.epsilon": 1.0}, **CLIENT, **summed)
    found = [one.diagnosis.noise_norm for one in (run, better) if one.diagnosis]
    assert found[1] < found[0] / 5.0  # type: ignore[operator]
