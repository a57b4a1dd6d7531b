"""Runs of NbAFL: noise by its formula, its epsilon as a figure, the sound one charged."""

import math
from pathlib import Path
from typing import Any

import pytest
from run_checks import check_refused, check_resumed
from specs import small_spec

from sottovoce.core.errors import ConfigError, PrivacyError, UnknownNameError
from sottovoce.privacy import accounting
from sottovoce.privacy.events import GaussianNoise, Repeated
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.loading import load
from sottovoce.runs.resolve import resolve
from sottovoce.runs.runner import run
from sottovoce.runs.spec import RunSpec
from sottovoce_papers.algorithms.nbafl import NbAfl

NBAFL: dict[str, Any] = {
    "algorithm": {"kind": "nbafl", "local_steps": 3, "local_learning_rate": 0.5},
    "privacy": {
        "level": "client",
        "adjacency": "replace-one",
        "clip_norm": 3.0,
        "epsilon": 10.0,
        "delta": 1e-3,
    },
    "mechanism": {"kind": "gaussian"},
    "rounds": 4,
}
EXAMPLE = Path(__file__).parents[2] / "examples" / "nbafl.toml"


def a_spec(**changes: Any) -> RunSpec:
    return small_spec(**{**NBAFL, **changes})


def without_epsilon() -> dict[str, Any]:
    return {name: value for name, value in NBAFL["privacy"].items() if name != "epsilon"}


def test_the_result_has_the_published_epsilon_and_the_sound_one(tmp_path: Path) -> None:
    result = run(a_spec(), tmp_path / "run")
    smallest = min(client.num_samples for client in resolve(load_inputs(a_spec())).clients)
    multiplier = math.sqrt(2.0 * math.log(1.25e3)) * 4 * 2.0 / (smallest * 10.0)
    assert result["mechanism"]["noise_multiplier"] == pytest.approx(multiplier, rel=1e-12)
    assert result["published_epsilon"] == pytest.approx(10.0, rel=1e-12)
    with RunFolder(tmp_path / "run").ledger() as ledger:
        ((event, count),) = ledger.history("client-0000")
        assert ledger.budget("client-0000") is None
    assert isinstance(event, GaussianNoise)
    assert event.mu == pytest.approx(2.0 / multiplier, rel=1e-6)
    assert event.mu >= 2.0 / result["mechanism"]["noise_multiplier"]
    assert result["epsilon"] == accounting.epsilon(Repeated(event=event, count=count), 1e-3)
    assert result["epsilon"] > 10.0 * result["published_epsilon"]
    assert result["clients_out_of_budget"] == 0
    assert any("which no training guarantees" in warning for warning in result["warnings"])
    assert "the size of the smallest data set is public" in result["guarantee"]


def test_the_published_epsilon_counts_how_often_a_model_was_really_sent(tmp_path: Path) -> None:
    algorithm = {**NBAFL["algorithm"], "exposures": 2}
    result = run(a_spec(algorithm=algorithm), tmp_path / "run")
    assert result["published_epsilon"] == pytest.approx(20.0, rel=1e-12)  # 4 rounds, noise for 2


def test_few_exposures_add_noise_on_the_way_down() -> None:
    some = {**NBAFL["algorithm"], "exposures": 2}
    resolved = resolve(load_inputs(a_spec(algorithm=some, rounds=10)))  # 10 > 2 sqrt 4
    assert isinstance(resolved.algorithm, NbAfl)
    smallest = min(client.num_samples for client in resolved.clients)
    constant = math.sqrt(2.0 * math.log(1.25e3))
    expected = 2.0 * constant * 3.0 * math.sqrt(100 - 4 * 4) / (smallest * 4 * 10.0)
    assert resolved.algorithm.downlink_stddev == pytest.approx(expected, rel=1e-9)
    every = resolve(load_inputs(a_spec(rounds=10)))
    assert isinstance(every.algorithm, NbAfl)
    assert every.algorithm.downlink_stddev == 0.0


def test_a_model_is_learned(tmp_path: Path) -> None:
    spec = a_spec(privacy={**NBAFL["privacy"], "epsilon": 500.0}, rounds=8)
    assert run(spec, tmp_path / "run")["accuracy"] > 0.7


def test_resume_continues_bit_for_bit_with_downlink_noise(tmp_path: Path) -> None:
    spec = a_spec(algorithm={**NBAFL["algorithm"], "exposures": 1}, rounds=5)
    assert check_resumed(spec, tmp_path)["downlink_stddev"] > 0.0


def test_the_resolved_spec_says_the_same_again() -> None:
    written = resolve(load_inputs(a_spec())).spec
    assert resolve(load_inputs(written)).spec == written


def test_a_noise_multiplier_alone_will_do(tmp_path: Path) -> None:
    spec = a_spec(
        privacy=without_epsilon(), mechanism={"kind": "gaussian", "noise_multiplier": 2.0}
    )
    result = run(spec, tmp_path / "run")
    assert 0.0 < result["published_epsilon"] < result["epsilon"]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"privacy": {**NBAFL["privacy"], "level": "sample"}},
            ConfigError,
            r"privacy\.level = 'client'",
        ),
        (
            {"mechanism": {"kind": "gauss_hermite", "levels": 2}},
            ConfigError,
            r"got mechanism\.kind = 'gauss_hermite'; set it to 'gaussian'",
        ),
        ({"privacy": without_epsilon()}, ConfigError, r"give 'privacy\.epsilon'"),
        (
            {"mechanism": {"kind": "gaussian", "noise_multiplier": 2.0}},
            ConfigError,
            "give one of the two",
        ),
        (
            {"algorithm": {**NBAFL["algorithm"], "exposures": 5}},
            ConfigError,
            "must be at most the 4 rounds",
        ),
        (
            {"channel": {"kind": "shuffler", "minimum_clients": 3}},
            PrivacyError,
            "GaussianNoise has no finite pure epsilon",
        ),
    ],
    ids=["sample", "mechanism", "neither", "both", "exposures", "shuffler"],
)
def test_what_it_cannot_mean_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    check_refused(lambda: a_spec(**changes), tmp_path / "run", error, message)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ({"kind": "nbafl"}, r"'algorithm\.local_learning_rate' is missing"),
        ({**NBAFL["algorithm"], "server_momentum": 0.5}, "unknown key 'server_momentum'"),
    ],
)
def test_an_algorithm_that_makes_no_sense_is_one_line(
    algorithm: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        a_spec(algorithm=algorithm)


def test_an_unknown_algorithm_is_answered_with_the_nearest(tmp_path: Path) -> None:
    spec = a_spec(algorithm={**NBAFL["algorithm"], "kind": "nbafel"})
    with pytest.raises(UnknownNameError, match="unknown algorithm 'nbafel'; did you mean 'nbafl'"):
        run(spec, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_example_has_the_epsilons_that_it_states() -> None:
    resolved = resolve(load_inputs(load(EXAMPLE)))
    spec, event = (
        resolved.spec,
        resolved.parts[0].mechanism.privacy(resolved.spec.privacy.adjacency),
    )
    assert resolved.budgets == {}
    spent = accounting.epsilon(Repeated(event=event, count=spec.rounds), spec.privacy.delta)
    assert spent == pytest.approx(3900.0, rel=0.02)
