"""Runs trained once more with canaries: honest ones hold, planted bugs do not."""

import json
from pathlib import Path
from typing import Any

import pytest
from specs import METRIC_MVU, small_spec, small_table

from sottovoce.auditing import run_audit as audit_run_module
from sottovoce.auditing.finished_run import open_run
from sottovoce.auditing.run_audit import AUDIT_NAME, audit_run, audit_spec
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import ConfigError, ParameterError
from sottovoce.federated.algorithms.fedavg import SampleClippedGradient
from sottovoce.federated.simulation.packed import PackedMessages
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.mechanisms.laplace import Laplace
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.protocol import client
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.loading import parse
from sottovoce.runs.resolve import resolve
from sottovoce.runs.runner import run
from sottovoce.runs.spec import RunSpec

ROUNDS = 4
MECHANISMS: dict[str, dict[str, Any]] = {
    "gaussian": {"kind": "gaussian", "noise_multiplier": 2.0},
    "one bit": {"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 2.0},
    "sixteen levels": {"kind": "gauss_hermite", "levels": 16, "noise_multiplier": 2.0},
    "laplace": {"kind": "laplace", "noise_multiplier": 1.5},
}
# Two of them in every test run, the others in the full one.
EACH = [
    name if name in ("gaussian", "one bit") else pytest.param(name, marks=pytest.mark.slow)
    for name in MECHANISMS
]
SAMPLE = {"level": "sample", "clip_norm": 1.0, "delta": 1e-5}
CLIENT = {"level": "client", "clip_norm": 1.0, "delta": 1e-5}
LOCAL = {
    "kind": "fedavg",
    "server_learning_rate": 1.0,
    "local_steps": 2,
    "local_learning_rate": 0.1,
}


def spec_of(name: str, privacy: dict[str, Any] | None = None, **changes: Any) -> RunSpec:
    """Four clients with 100 records each, and a model of 64 coordinates."""
    data = {"dataset": "blobs:500x31x2", "clients": 4}
    changes = {"rounds": ROUNDS, "data": data, "mechanism": MECHANISMS[name], **changes}
    return small_spec(privacy=privacy or SAMPLE, **changes)


def audited(spec: RunSpec, **given: Any) -> dict[str, Any]:
    return audit_spec(spec, **{"canaries": FEW, "seed": 8, **given})


# So many find every planted bug, and fewer still a keystream that serves twice.
# Where a message's way is not what is broken it is packed, which takes a third of the time.
FEW, FEWER = 400, 200
PACKED = {"messages": "packed"}


def also_slow(*given: Any) -> Any:
    """A pair of things that are each tried with another partner in every test run."""
    return pytest.param(*given, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", EACH)
def test_an_honest_run_holds_and_its_canaries_are_seen(name: str) -> None:
    result = audited(spec_of(name), canaries=600)
    assert not result["violated"], result["finding"]
    assert result["lower_bound"] <= result["certified"]
    assert result["profile"][0]["measured_delta"] > 0.1  # of .38 or so
    assert (result["confidence"], result["rounds"], result["notes"]) == (0.999, ROUNDS, [])


def test_client_level_and_replace_one(tmp_path: Path) -> None:
    privacy = {**CLIENT, "adjacency": "replace-one"}
    result = audited(spec_of("gaussian", privacy, algorithm=LOCAL))
    assert not result["violated"], result["finding"]
    assert result["profile"][0]["measured_delta"] > 0.4  # of .68
    assert (result["level"], result["adjacency"]) == ("client", "replace-one")


def test_a_secret_sample_of_records_is_audited_as_it_is_charged() -> None:
    result = audited(spec_of("gaussian", {**SAMPLE, "record_sampling_rate": 0.3}), canaries=400)
    assert not result["violated"], result["finding"]


# Planted bugs, each at its place in the code.


def halve(monkeypatch: pytest.MonkeyPatch, owner: type, attribute: str) -> None:
    honest = getattr(owner, attribute)
    monkeypatch.setattr(owner, attribute, property(lambda self: 0.5 * honest.fget(self)))


@pytest.mark.parametrize(
    ("name", "owner", "attribute"),
    [
        ("gaussian", Gaussian, "noise_stddev"),
        ("one bit", GaussHermite, "noise_stddev"),
        pytest.param("sixteen levels", GaussHermite, "noise_stddev", marks=pytest.mark.slow),
        pytest.param("laplace", Laplace, "noise_scale", marks=pytest.mark.slow),
    ],
)
def test_half_of_the_noise_is_found(
    name: str, owner: type, attribute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    halve(monkeypatch, owner, attribute)
    # Laplace noise on vectors is certified with more room than the others.
    canaries = {"laplace": 4000, "sixteen levels": 1200}.get(name, FEW)
    assert audited(spec_of(name, runtime=PACKED), canaries=canaries)["violated"]


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("gaussian", 2.0),
        ("one bit", 1e9),
        also_slow("gaussian", 1e9),
        also_slow("one bit", 2.0),
    ],
)
def test_a_clip_of_twice_the_norm_or_none_at_all_is_found(
    name: str, times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        SampleClippedGradient, "limit", property(lambda self: times * self.clip_norm)
    )
    assert audited(spec_of(name, runtime=PACKED))["violated"]


def test_a_client_that_is_clipped_to_twice_the_norm_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ball that updates are projected on is twice as wide, and the noise is for the other."""
    honest = Gaussian.encode
    monkeypatch.setattr(
        Gaussian,
        "encode",
        lambda self, values, keystream: honest(
            Gaussian(input_domain=L2Ball(dimension=len(values), radius=2.0), noise_multiplier=1.0),
            2.0 * values,
            keystream,
        ),
    )
    assert audited(spec_of("gaussian", CLIENT, algorithm=LOCAL))["violated"]


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("gaussian", "rounds"),
        ("one bit", "clients"),
        also_slow("gaussian", "clients"),
        also_slow("one bit", "rounds"),
        *(also_slow(n, s) for n in ("sixteen levels", "laplace") for s in ("rounds", "clients")),
    ],
)
def test_a_keystream_that_serves_twice_is_found(
    name: str, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the code that every client runs, wherever it is."""

    def repeated(prepared: Any, attempt: int) -> Any:
        release = prepared.release
        label = (release.client, 0) if shared == "rounds" else ("everyone", release.round)
        return ("encode", release.run, *label, release.uplink, attempt)

    monkeypatch.setattr(client, "_stream_label", repeated)
    result = audited(spec_of(name, rotation="off"), canaries=FEWER)
    assert result["violated"]
    assert result["lower_bound"] > 2.0


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("gaussian", "clients"),
        ("one bit", "rounds"),
        also_slow("gaussian", "rounds"),
        also_slow("one bit", "clients"),
    ],
)
def test_a_keystream_that_serves_twice_in_a_simulation_is_found(
    name: str, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that store no messages have their own place for it, and are audited as they ran."""

    def streams(self: Any, members: Any, number: int, uplink: int) -> Any:
        names = [self.roster.names[i] for i in members]
        labels = [(name, 0) if shared == "rounds" else ("everyone", number) for name in names]
        whole = [("encode", self.run, *label, uplink, 0) for label in labels]
        return self.randomness.streams(whole)

    monkeypatch.setattr(PackedMessages, "_keystreams", streams)
    result = audited(spec_of(name, rotation="off", runtime=PACKED), canaries=FEWER)
    assert result["violated"]


def test_more_records_taking_part_than_are_charged_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SampleClippedGradient, "_sample_records", lambda self, clients, step: None)
    spec = spec_of("gaussian", {**SAMPLE, "record_sampling_rate": 0.1})
    assert audited(spec, canaries=400)["violated"]


def test_replace_one_charged_as_zero_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(L2Ball, "relative_sensitivity", lambda self, adjacency: 1.0)
    spec = spec_of("gaussian", {**SAMPLE, "adjacency": "replace-one"}, runtime=PACKED)
    assert audited(spec)["violated"]


# One run, on any channel.


WIDE = {"dataset": "blobs:2500x63x8", "clients": 4}  # 512 coordinates


def within(noise_multiplier: float, **changes: Any) -> dict[str, Any]:
    mechanism = {"kind": "gaussian", "noise_multiplier": noise_multiplier}
    return audited(
        spec_of("gaussian", data=WIDE, mechanism=mechanism, rounds=16, **changes),
        method="one-run",
        canaries=300,
    )


CENTRAL = {"channel": {"kind": "central"}, "runtime": {"messages": "none"}}


@pytest.mark.parametrize("channel", [{}, CENTRAL], ids=["direct", "central"])
def test_canaries_within_the_run_give_a_bound(
    channel: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = within(2.0, **channel)
    assert not honest["violated"], honest["finding"]
    assert 0.3 < honest["lower_bound"] < honest["certified"]
    assert not within(30.0, **channel)["violated"]
    monkeypatch.setattr(SampleClippedGradient, "limit", property(lambda self: 1e9))
    assert within(30.0, **channel)["violated"]


def test_a_secure_sum_is_audited_by_its_sums() -> None:
    table = small_table(
        rounds=2,
        data={"dataset": "digits", "clients": 40},
        algorithm=LOCAL,
        privacy={**CLIENT, "delta": 1e-3},
        mechanism={"kind": "clamped_sign", "noise_multiplier": 0.5, "logit_bound": 1.0},
        channel={"kind": "secure_sum", "minimum_clients": 30},
    )
    result = audited(parse(table), canaries=20)
    assert (result["method"], result["violated"]) == ("canaries in one run", False)
    assert result["certified"] > 0.0
    with pytest.raises(ConfigError, match="one-run"):
        audited(parse(table), method="clients")


@pytest.mark.parametrize(
    "hidden",
    [
        {"channel": {"kind": "shuffler", "minimum_clients": 30}},
        {
            "channel": {"kind": "secret_order", "minimum_clients": 40},
            "sampling": {"kind": "epochs", "size": 20},
            "rounds": 4,
        },
    ],
    ids=["shuffler", "secret order"],
)
def test_shuffled_messages_are_audited_by_their_means(hidden: dict[str, Any]) -> None:
    table = small_table(
        rounds=2,
        data={"dataset": "digits", "clients": 40},
        algorithm=LOCAL,
        privacy={**CLIENT, "delta": 1e-3, "adjacency": "replace-one"},
        mechanism={"kind": "cldp", "epsilon": 1.0},
    )
    result = audited(parse({**table, **hidden}), canaries=20)
    assert (result["rounds"], result["violated"]) == (2, False)


# Around it.


def test_the_largest_budget_is_audited_where_clients_have_their_own() -> None:
    groups = [{"clients": 2, "epsilon": 1.0}, {"clients": 1, "epsilon": 6.0}]
    privacy = {**SAMPLE, "epsilon": 3.0, "groups": groups}
    spec = small_spec(privacy=privacy, mechanism={"kind": "gaussian"}, rounds=2)
    result = audited(spec, canaries=100)
    assert result["certified"] == pytest.approx(6.0, rel=1e-3)
    with pytest.raises(ConfigError, match="have different certificates"):
        audited(spec, method="one-run", canaries=20)


def test_fewer_rounds_are_said_and_more_are_refused() -> None:
    spec = spec_of("gaussian")
    result = audited(spec, canaries=100, rounds=2)
    assert (result["rounds"], result["rounds_of_the_run"]) == (2, ROUNDS)
    assert "2 of 4 rounds" in result["notes"][0]
    with pytest.raises(ParameterError, match="rounds"):
        audited(spec, rounds=9)
    with pytest.raises(ParameterError, match="canaries"):
        audited(spec, canaries=2)


def test_a_client_is_audited_for_as_many_rounds_as_it_takes_part_in() -> None:
    spec = spec_of("gaussian", rounds=6, sampling={"kind": "epochs", "size": 2})
    result = audited(spec, canaries=100)
    assert result["rounds"] == result["rounds_of_the_run"] == 3


def test_two_vectors_a_round_are_refused() -> None:
    algorithm = {
        "kind": "scaffold",
        "server_learning_rate": 1.0,
        "local_steps": 2,
        "local_learning_rate": 0.1,
    }
    with pytest.raises(ParameterError, match="fedavg"):
        audited(spec_of("gaussian", CLIENT, algorithm=algorithm))


def test_without_privacy_nothing_is_violated_and_much_is_found() -> None:
    spec = small_spec(privacy=SAMPLE, mechanism={"kind": "no_privacy"}, rounds=2)
    result = audited(spec, canaries=600)
    assert (result["certified"], result["violated"], result["profile"]) == (None, False, [])
    assert result["lower_bound"] > 3.0


def test_what_was_found_is_kept_with_the_run(tmp_path: Path) -> None:
    run(spec_of("gaussian"), tmp_path / "run")
    result = audit_run(open_run(tmp_path / "run"), canaries=100)
    assert json.loads((tmp_path / "run" / AUDIT_NAME).read_text()) == result
    assert result["seed"] != audit_run(open_run(tmp_path / "run"), canaries=100)["seed"]


@pytest.mark.slow
def test_the_certificate_of_one_run_is_that_of_its_dearest_client() -> None:
    """A table hides each coordinate's interval, so few records behind a mean cost more each."""
    spec = small_spec(
        rounds=1,
        data={
            "dataset": "blobs:500x31x2",
            "clients": 3,
            "partition": {"kind": "dirichlet", "alpha": 1.0},
        },
        privacy=SAMPLE,
        mechanism=METRIC_MVU,
    )
    clients = resolve(load_inputs(spec))
    alone = [
        privacy_spent(part.mechanism.privacy(spec.privacy.adjacency), 1e-5).epsilon
        for part in clients.parts
    ]
    dearest = max(alone)
    assert dearest > 2.0 * min(alone)
    for seed in range(2):
        result = audit_spec(spec, method="one-run", canaries=40, seed=seed)
        assert result["certified"] == pytest.approx(dearest, rel=1e-9)
        assert result["account"] == clients.clients.names[alone.index(dearest)]


@pytest.mark.parametrize("given", [{"canaries": 0}, {"canaries": 99}, {"confidence": 1.5}])
def test_what_no_verdict_could_follow_from_is_refused_before_training(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(audit_run_module, "_train", never)
    with pytest.raises(ParameterError, match=r"(canaries|confidence) must be"):
        audit_spec(spec_of("gaussian"), seed=1, **given)
    with pytest.raises(AssertionError, match="trained"):
        audit_spec(spec_of("gaussian"), seed=1, canaries=100)
