"""Algorithms and aggregations in whole runs: the same through every backend, and charged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_checks import EVERY_BYTE, check_resumed, progress_of
from specs import METRIC_MVU, small_spec

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import ConfigError, PrivacyError, SottovoceError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms import algorithm
from sottovoce.federated.algorithms.scaffold import Scaffold
from sottovoce.learning import datasets
from sottovoce.privacy import accounting
from sottovoce.privacy.events import Repeated
from sottovoce.runs import inputs
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.resolve import resolve
from sottovoce.runs.runner import run
from sottovoce.runs.spec import RunSpec
from sottovoce_papers.algorithms.connected import ConnectedAverage
from sottovoce_papers.algorithms.connected_section import ModeConnectivitySection
from sottovoce_papers.trial import trial

CLIENT_LEVEL = {"level": "client", "clip_norm": 0.5, "epsilon": 8.0, "delta": 1e-5}
LOCAL = {"server_learning_rate": 1.0, "local_steps": 3, "local_learning_rate": 0.5}
CURVES = {
    "kind": "mode_connectivity",
    "proxy_samples": 60,
    "steps": 2,
    "learning_rate": 0.1,
}


def fedavg(**aggregation: Any) -> dict[str, Any]:
    return {
        "algorithm": {
            "kind": "fedavg",
            "server_learning_rate": 1.0,
            "aggregation": aggregation,
        }
    }


CASES: dict[str, dict[str, Any]] = {
    "scaffold-client": {"algorithm": {"kind": "scaffold", **LOCAL}, "privacy": CLIENT_LEVEL},
    "scaffold-sample": {"algorithm": {"kind": "scaffold", "server_learning_rate": 1.0}},
    "median": fedavg(kind="median"),
    "trimmed": fedavg(kind="trimmed_mean", fraction=0.25),
    "connected": fedavg(**CURVES),
}


def a_spec(case: str, **changes: Any) -> RunSpec:
    given: dict[str, Any] = {"rounds": 2, "sampling": {"kind": "fixed_size", "size": 3}}
    return small_spec(**{**given, **CASES[case], **changes})


@pytest.fixture
def one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """All runs share a name: it is part of every keystream's label, and holds the runtime."""
    monkeypatch.setattr(RunSpec, "hash", property(lambda self: "0" * 16))


@pytest.mark.parametrize(
    ("case", "mechanism"),
    [
        ("scaffold-client", "gaussian"),
        ("scaffold-client", "gauss_hermite"),
        ("scaffold-sample", "gauss_hermite"),
        ("median", "gaussian"),
        ("trimmed", "gauss_hermite"),
        ("connected", "gaussian"),
    ],
)
def test_packed_messages_end_where_stored_ones_do(
    tmp_path: Path, one_name: None, case: str, mechanism: str
) -> None:
    kind = {"kind": mechanism, **({"levels": 2} if mechanism == "gauss_hermite" else {})}
    found = {}
    for messages in ("stored", "packed"):
        spec = a_spec(case, mechanism=kind, runtime={"messages": messages})
        found[messages] = run(spec, tmp_path / messages)
    stored, packed = progress_of(tmp_path / "stored"), progress_of(tmp_path / "packed")
    np.testing.assert_allclose(packed.model, stored.model, rtol=0, atol=1e-9)
    for name, array in stored.algorithm_state.items():
        np.testing.assert_allclose(packed.algorithm_state[name], array, rtol=0, atol=1e-6)
    for key in ("epsilon", "total_bytes_up_per_message", "total_bytes_down_per_message"):
        assert found["packed"][key] == found["stored"][key], key


@pytest.mark.parametrize("case", CASES)
def test_without_noise_all_three_backends_agree(tmp_path: Path, case: str) -> None:
    privacy = dict(CASES[case].get("privacy", {"level": "sample", "clip_norm": 1.0, "delta": 1e-5}))
    privacy.pop("epsilon", None)
    models = []
    for messages in ("stored", "packed", "none"):
        spec = a_spec(
            case,
            privacy=privacy,
            mechanism={"kind": "no_privacy"},
            runtime={"messages": messages},
        )
        run(spec, tmp_path / messages)
        models.append(progress_of(tmp_path / messages).model)
    np.testing.assert_allclose(models[1], models[0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(models[2], models[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("case", "messages"),
    [
        ("scaffold-client", "stored"),
        ("scaffold-client", "none"),
        ("scaffold-sample", "stored"),
        ("connected", "none"),
    ],
)
def test_resume_continues_bit_for_bit(tmp_path: Path, case: str, messages: str) -> None:
    """What clients keep to themselves is in the checkpoint, and nowhere else."""
    spec = a_spec(case, rounds=5, runtime={"messages": messages}, mechanism={"kind": "gaussian"})
    check_resumed(spec, tmp_path, same_files=EVERY_BYTE)


def test_scaffold_pays_for_both_uplinks_of_every_round(tmp_path: Path) -> None:
    spec = a_spec("scaffold-client", sampling={"kind": "everyone"})
    result = run(spec, tmp_path / "run")
    assert any("accumulates the noise of all rounds" in warning for warning in result["warnings"])
    with RunFolder(tmp_path / "run").ledger() as ledger:
        ((event, count),) = ledger.history("client-0000")
        assert count == 2 * 2
        assert ledger.verify() == []
    assert 7.99 < accounting.epsilon(Repeated(event=event, count=count), 1e-5) <= 8.0
    plain = run(small_spec(**CASES["median"], rounds=1), tmp_path / "plain")
    assert result["payload_bytes_up_per_message"] == 2 * plain["payload_bytes_up_per_message"]
    assert result["payload_bytes_down_per_message"] == 2 * plain["payload_bytes_down_per_message"]
    state = progress_of(tmp_path / "run").algorithm_state
    assert state["client_controls"].dtype == np.float32
    assert state["client_controls"].shape == (4, 650)
    assert state["client_controls"].any(axis=1).all()


def test_the_automatic_clip_of_controls_is_that_of_updates_over_a_rounds_path() -> None:
    resolved = resolve(load_inputs(a_spec("scaffold-client")))
    assert isinstance(resolved.algorithm, Scaffold)
    assert resolved.algorithm.control_clip_norm == pytest.approx(0.5 / (3 * 0.5))


@pytest.mark.parametrize("case", ["scaffold-client", "scaffold-sample"])
def test_scaffold_learns_in_a_run(case: str) -> None:
    privacy = {**CASES[case].get("privacy", {"level": "sample", "clip_norm": 1.0, "delta": 1e-5})}
    privacy.pop("epsilon", None)
    data = {"dataset": "digits", "clients": 8, "partition": {"kind": "dirichlet", "alpha": 0.3}}
    spec = a_spec(
        case,
        data=data,
        rounds=25,
        privacy={**privacy, "clip_norm": 5.0},
        mechanism={"kind": "no_privacy"},
        runtime={"messages": "none"},
    )
    assert trial(spec)["accuracy"] > 0.8


def test_median_and_trimmed_mean_say_what_they_cost() -> None:
    for case in ("median", "trimmed"):
        result = trial(a_spec(case, runtime={"messages": "none"}, rounds=1))
        assert any("pi/2" in warning for warning in result["warnings"])
    result = trial(small_spec(runtime={"messages": "none"}, rounds=1))
    assert not any("pi/2" in warning for warning in result["warnings"])


# -- mode connectivity ---------------------------------------------------------------------


def test_no_client_has_a_public_sample_and_the_test_data_stays() -> None:
    spec = a_spec("connected")
    resolved = resolve(load_inputs(spec))
    assert isinstance(resolved.algorithm, ConnectedAverage)
    proxy = resolved.algorithm.joining.proxy
    assert proxy is not None
    data = datasets.load("digits", SeededRandomness(spec.seed).generator("test split"))
    features, labels = resolved.clients.samples()
    assert len(proxy.labels) == 60
    assert len(labels) + 60 == len(data.train_labels)
    rows = sorted(map(bytes, np.concatenate([features.numpy(), proxy.features.numpy()])))
    assert rows == sorted(map(bytes, data.train_features))
    plain = resolve(load_inputs(small_spec(rounds=2)))
    model = plain.task.initial_model()
    assert resolved.task.evaluate(model) == plain.task.evaluate(model)


def test_all_three_models_are_tested_next_to_each_other(tmp_path: Path) -> None:
    spec = a_spec("connected", mechanism={"kind": "gaussian"})
    result = run(spec, tmp_path / "run")
    rows = RunFolder(tmp_path / "run").metrics()
    for row in (*rows, result):
        assert row["accuracy_connected"] == row["accuracy"]
        assert {"accuracy_average", "accuracy_fine_tuned"} <= set(row)
        assert row["barrier_curve"] >= 0.0
        assert row["barrier_straight"] >= 0.0
    state = progress_of(tmp_path / "run").algorithm_state
    assert not np.allclose(state["connected"], state["average"])
    assert any("declared public" in warning for warning in result["warnings"])


@pytest.mark.parametrize("follow", ["connected", "average", "fine_tuned"])
def test_the_run_goes_on_from_the_model_it_follows(tmp_path: Path, follow: str) -> None:
    spec = a_spec("connected", **fedavg(**CURVES, follow=follow))
    run(spec, tmp_path / "run")
    progress = progress_of(tmp_path / "run")
    np.testing.assert_array_equal(progress.model, progress.algorithm_state[follow])


def test_following_the_average_is_federated_averaging(tmp_path: Path) -> None:
    spec = a_spec("connected", **fedavg(**CURVES, follow="average"))
    resolved = resolve(load_inputs(spec))
    assert isinstance(resolved.algorithm, ConnectedAverage)
    run(spec, tmp_path / "run")
    ended = progress_of(tmp_path / "run")
    # The same data, without the public samples, and the same messages.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModeConnectivitySection, "build", lambda _, averaging, __: averaging)
        patch.setattr(ModeConnectivitySection, "metrics", lambda *_: {})
        run(spec, tmp_path / "plain")
    np.testing.assert_allclose(ended.model, progress_of(tmp_path / "plain").model, atol=1e-12)


# -- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        (
            "median",
            {"channel": {"kind": "secure_sum", "minimum_clients": 2}},
            r"aggregation 'median' needs each message.*channel\.kind = 'direct'",
        ),
        (
            "trimmed",
            {"channel": {"kind": "shuffler", "minimum_clients": 2}},
            "aggregation 'trimmed_mean' needs each message",
        ),
        (
            "scaffold-sample",
            {"channel": {"kind": "secure_sum", "minimum_clients": 2}},
            "algorithm 'scaffold' at sample level needs each message",
        ),
        (
            "scaffold-sample",
            {"algorithm": {"kind": "scaffold", **LOCAL}},
            "takes one clipped step a round",
        ),
        (
            "scaffold-sample",
            {
                "algorithm": {
                    "kind": "scaffold",
                    "server_learning_rate": 1.0,
                    "control_clip_norm": 1.0,
                }
            },
            "drop 'algorithm.control_clip_norm'",
        ),
        (
            "scaffold-client",
            {"algorithm": {"kind": "scaffold", "server_learning_rate": 1.0}},
            "needs 'algorithm.local_learning_rate'",
        ),
        (
            "scaffold-client",
            {"algorithm": {"kind": "scaffold", **LOCAL, "local_epochs": 2}},
            "'algorithm.local_steps' and 'algorithm.local_epochs' both",
        ),
        (
            "scaffold-client",
            {
                "algorithm": {
                    "kind": "scaffold",
                    **LOCAL,
                    "local_steps": 1,
                    "local_epochs": 2,
                    "batch_size": 5,
                }
            },
            "private; set 'algorithm.control_clip_norm'",
        ),
        (
            "median",
            {
                "algorithm": {
                    "kind": "fedavg",
                    "server_learning_rate": 1.0,
                    "local_epochs": 1,
                    "batch_size": 5,
                }
            },
            "drop 'algorithm.local_epochs' and 'algorithm.batch_size', set the algorithm 'fedavg'",
        ),
        (
            "scaffold-client",
            {"privacy": {**CLIENT_LEVEL, "record_sampling_rate": 0.5}},
            "drop it, or set privacy.level = 'sample'",
        ),
        (
            "connected",
            fedavg(**{**CURVES, "proxy_samples": 10**6}),
            "leaves none of the 1438 training samples",
        ),
        (
            "connected",
            {
                "algorithm": {
                    "kind": "fedavg",
                    "server_learning_rate": 1.0,
                    "server_momentum": 0.5,
                    "aggregation": CURVES,
                }
            },
            "remove 'algorithm.server_momentum'",
        ),
    ],
)
def test_what_it_cannot_mean_is_refused_before_anything_is_written(
    tmp_path: Path, case: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(a_spec(case, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("aggregation", "message"),
    [
        ({"knd": "median"}, "must be a table with the 'kind' of an aggregation"),
        ({"kind": "trimmed_mean", "fraction": 0.5}, "less than 0.5"),
        ({**CURVES, "folow": "average"}, "unknown key 'folow'"),
    ],
)
def test_an_aggregation_that_makes_no_sense_is_one_line(
    aggregation: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        small_spec(**fedavg(**aggregation))


@pytest.mark.parametrize("case", ["median", "scaffold-client", "scaffold-sample"])
def test_what_would_not_fit_into_memory_is_refused_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    fits = 4 * 650 * (8 if case == "median" else 4)
    if case == "scaffold-sample":
        fits *= 2  # its rows in float64 are more than its control variates in float32
    for limit, refused in ((fits, False), (fits - 1, True)):
        monkeypatch.setattr(algorithm, "MAX_BYTES", limit)
        spec = a_spec(case, sampling={"kind": "everyone"})
        if not refused:
            resolve(load_inputs(spec))
            continue
        with pytest.raises(SottovoceError, match=r"4 clients times 650 .*(use|ask) fewer clients"):
            resolve(load_inputs(spec))


def test_a_sample_that_is_not_taken_is_not_charged_for() -> None:
    """NbAFL works on all records: a sampling rate would only make its epsilon look small."""
    table = {
        "privacy": {
            "level": "client",
            "clip_norm": 1.0,
            "delta": 1e-3,
            "record_sampling_rate": 0.05,
        },
        "algorithm": {"kind": "nbafl", "local_learning_rate": 0.1},
        "mechanism": {"kind": "gaussian", "noise_multiplier": 2.0},
    }
    with pytest.raises(ConfigError, match="record_sampling_rate"):
        resolve(load_inputs(small_spec(**table)))


def test_a_table_that_hides_against_zero_alone_takes_no_sample_of_records() -> None:
    """Other records of the client remain where one is left out: zero is not its neighbour."""
    table = {
        "privacy": {
            "level": "sample",
            "clip_norm": 1.0,
            "delta": 1e-5,
            "record_sampling_rate": 0.002,  # less than one record is expected
        },
        "mechanism": METRIC_MVU,
    }
    with pytest.raises(PrivacyError, match="replace-one"):
        resolve(load_inputs(small_spec(**table)))


def test_the_guarantee_says_what_it_assumes_and_how_values_are_drawn(tmp_path: Path) -> None:
    privacy = {"level": "sample", "clip_norm": 1.0, "delta": 1e-5, "record_sampling_rate": 0.5}
    sampled: dict[str, Any] = {"privacy": privacy, "runtime": {"messages": "none"}, "rounds": 2}
    bits = {"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 2.0}
    spec = small_spec(**sampled, mechanism=bits)
    result = run(spec, tmp_path / "run")
    assert "samples its own records in secret" in result["guarantee"]
    assert "samples its own records in secret" in result["assumes"]
    seen = resolve(load_inputs(spec)).parts[0].mechanism.privacy(Adjacency.ZERO_OUT)
    if_seen = accounting.epsilon(Repeated(event=seen, count=2), 1e-5)
    assert result["local_epsilon"] == if_seen > 1.3 * result["epsilon"]
    assert result["central_epsilon"] is None
    assert "values drawn in float32" in result["guarantee"]
    assert result["sampling_grade"] == "float"
    assert (tmp_path / "run" / "checkpoint.npz").stat().st_mode & 0o777 == 0o600
    gaussian = {"kind": "gaussian", "noise_multiplier": 2.0}
    central = small_spec(**sampled, channel={"kind": "central"}, mechanism=gaussian)
    found = run(central, tmp_path / "central")
    assert "trusted party adds the noise once" in found["guarantee"]
    assert "the server is trusted with every update" in found["assumes"]
    assert found["local_epsilon"] is None


def test_what_is_charged_follows_what_the_algorithm_samples_not_what_the_spec_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if a spec's rate slipped past its check, all records would be charged for."""
    build = inputs.algorithm_of

    def unchecked(spec: RunSpec, *parts: Any, **others: Any) -> Any:
        privacy = spec.privacy.model_copy(update={"record_sampling_rate": 1.0})
        return build(spec.model_copy(update={"privacy": privacy}), *parts, **others)

    monkeypatch.setattr(inputs, "algorithm_of", unchecked)
    epsilons = []
    for rate in (1.0, 0.05):
        privacy = {
            "level": "client",
            "clip_norm": 1.0,
            "delta": 1e-3,
            "record_sampling_rate": rate,
        }
        spec = small_spec(
            privacy=privacy,
            algorithm={"kind": "nbafl", "local_learning_rate": 0.1},
            mechanism={"kind": "gaussian", "noise_multiplier": 2.0},
            rounds=2,
        )
        epsilons.append(run(spec, tmp_path / str(rate))["epsilon"])
    assert epsilons[0] == epsilons[1] > 1.0
