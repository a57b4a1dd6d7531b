"""A trusted server's rounds: everyone pays, and nothing published depends on who was sampled."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_checks import check_refused, check_resumed
from specs import LOCAL_STEPS, small_spec

from sottovoce.core.domains import Floats, Vector
from sottovoce.core.errors import ConfigError, ParameterError, PrivacyError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms.algorithm import ClientStepInput
from sottovoce.federated.rounds import zero_nonfinite_rows
from sottovoce.federated.training import Training
from sottovoce.privacy import accounting
from sottovoce.privacy.events import Repeated, Sampled
from sottovoce.runs.build import build
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.resolve import Resolved, resolve
from sottovoce.runs.spec import RunSpec
from sottovoce_papers.trial import trial

CLIENT_LEVEL: dict[str, Any] = {
    "level": "client",
    "clip_norm": 0.5,
    "epsilon": 8.0,
    "delta": 1e-5,
}
CENTRAL: dict[str, Any] = {
    "channel": {"kind": "central"},
    "runtime": {"messages": "none"},
    "mechanism": {"kind": "gaussian"},
    "privacy": CLIENT_LEVEL,
    "algorithm": {**LOCAL_STEPS, "local_steps": 2},
    "sampling": {"kind": "poisson", "rate": 0.5},
}
SAMPLES: dict[str, Any] = {
    "privacy": {"level": "sample", "clip_norm": 1.0, "epsilon": 4.0, "delta": 1e-5},
    "algorithm": {"kind": "fedavg", "server_learning_rate": 1.0},
    "sampling": {"kind": "everyone"},
}
# So little noise that a mean can be compared; without a budget, for it has no privacy to speak of.
QUIET: dict[str, Any] = {
    "mechanism": {"kind": "gaussian", "noise_multiplier": 1e-5},
    "privacy": {name: CLIENT_LEVEL[name] for name in ("level", "clip_norm", "delta")},
}


def a_spec(**changes: Any) -> RunSpec:
    return small_spec(**{**CENTRAL, **changes})


def opened(spec: RunSpec) -> tuple[Resolved, Training]:
    resolved = resolve(load_inputs(spec))
    return resolved, build(resolved)


def clipped_updates(resolved: Resolved, model: Floats) -> list[Vector]:
    step = ClientStepInput(run="r", round=1, model=model, state={}, randomness=SeededRandomness(0))
    (block,) = resolved.algorithm.client_steps(resolved.task, list(resolved.clients), step)
    return [
        part.mechanism.input_domain.project(row)
        for part, row in zip(resolved.parts, zero_nonfinite_rows(block.uplinks[0]), strict=True)
    ]


def test_every_client_is_charged_in_every_round_drawn_or_not() -> None:
    resolved, simulation = opened(a_spec())
    progress, cohorts = simulation.start(), []
    for number in range(1, 7):
        assert simulation.backend.clients_with_budget(number).all()
        cohorts.append(simulation._draw(number))
        outcome = simulation.step(progress)
        assert isinstance(outcome, tuple)
        progress, record = outcome
        charged = simulation.record.rounds_charged(resolved.run)
        assert list(charged.values()) == [number] * 4
        assert (record.clients_asked, record.clients_received) == (4, 4)
    assert any(len(cohort) < 4 for cohort in cohorts)  # some were left out, and paid
    event = resolved.terms(resolved.parts[0].mechanism)
    assert isinstance(event, Sampled)
    assert (event.rate, event.scheme, event.hidden_by) == (0.5, "poisson", "central-noise")
    spent = simulation.record.largest_spent(1e-5)
    assert spent is not None
    assert spent.epsilon == accounting.epsilon(Repeated(event=event, count=6), 1e-5)
    assert 7.99 < spent.epsilon <= 8.0


def test_the_sum_is_divided_by_whom_one_expects_and_never_by_who_came() -> None:
    resolved, simulation = opened(a_spec(**QUIET))
    start = simulation.broadcast(simulation.start())
    updates = clipped_updates(resolved, start.model)
    for cohort in ([0, 2], [1], [0, 1, 2, 3]):
        collected = simulation.backend.collect(1, cohort, start)
        expected = sum(updates[i] for i in cohort) / (0.5 * 4)
        np.testing.assert_allclose(collected.combined[0].mean, expected, atol=5e-5)


def test_a_round_without_anyone_is_noise_and_looks_like_any_other() -> None:
    _, simulation = opened(a_spec())
    start = simulation.broadcast(simulation.start())
    nobody = simulation.backend.collect(1, [], start)
    somebody = simulation.backend.collect(1, [0, 1], start)
    assert np.linalg.norm(nobody.combined[0].mean) > 0.0
    assert nobody.clients_asked == somebody.clients_asked == 4
    assert nobody.total_bytes_up == somebody.total_bytes_up == 4 * (4 * 650 + 44)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_there_is_one_noise_however_many_clients_there_are(kind: str) -> None:
    """Its width on the sum is that of a single message."""
    data = {"dataset": "digits", "clients": 16}
    mechanism = {"kind": kind, "noise_multiplier": 50.0}
    privacy = {**CLIENT_LEVEL, "clip_norm": 1e-3}
    resolved, simulation = opened(
        a_spec(data=data, mechanism=mechanism, privacy=privacy, sampling={"kind": "everyone"})
    )
    start, draws = simulation.broadcast(simulation.start()), []
    for number in range(1, 31):
        collected = simulation.backend.collect(number, range(16), start)
        draws.append(collected.combined[0].mean * 16)
    stddev = getattr(resolved.parts[0].mechanism, "noise_stddev", None)
    assert np.std(draws) == pytest.approx(stddev, rel=0.05)


def test_at_sample_level_the_divisor_is_the_public_number_of_records() -> None:
    dirichlet = {"kind": "dirichlet", "alpha": 1.0}
    data = {"dataset": "digits", "clients": 4, "partition": dirichlet}
    privacy = {name: SAMPLES["privacy"][name] for name in ("level", "clip_norm", "delta")}
    spec = a_spec(**{**SAMPLES, "data": data, **QUIET, "privacy": privacy})
    resolved, simulation = opened(spec)
    sizes = resolved.clients.sizes
    assert len(set(sizes)) > 1
    start = simulation.broadcast(simulation.start())
    collected = simulation.backend.collect(1, range(4), start)
    sums = [
        size * row for size, row in zip(sizes, clipped_updates(resolved, start.model), strict=True)
    ]
    np.testing.assert_allclose(collected.combined[0].mean, sum(sums) / sum(sizes), atol=1e-6)


def test_at_sample_level_the_noise_is_on_the_sum_of_all_records() -> None:
    """One sample moves that sum by C, so it has the multiplier times C, once for all clients."""
    resolved, simulation = opened(a_spec(**SAMPLES, rounds=20))
    multiplier = resolved.spec.mechanism.parameters["noise_multiplier"]
    total = sum(resolved.clients.sizes)
    start, draws = simulation.broadcast(simulation.start()), []
    for number in range(1, 21):
        collected = simulation.backend.collect(number, [], start)
        draws.append(collected.combined[0].mean * total)
    assert np.std(draws) == pytest.approx(multiplier * 1.0, rel=0.05)


def test_sampled_records_are_charged_as_sampled_and_take_less_noise() -> None:
    whole = resolve(load_inputs(a_spec(**SAMPLES)))
    some = a_spec(**{**SAMPLES, "privacy": {**SAMPLES["privacy"], "record_sampling_rate": 0.2}})
    resolved, simulation = opened(some)
    progress = simulation.start()
    for _ in range(6):
        outcome = simulation.step(progress)
        assert isinstance(outcome, tuple)
        progress, _ = outcome
    spent = simulation.record.largest_spent(1e-5)
    assert spent is not None
    event = Sampled(
        event=resolved.parts[0].mechanism.privacy(some.privacy.adjacency),
        rate=0.2,
        scheme="poisson",
        hidden_by="central-noise",
    )
    assert spent.epsilon == accounting.epsilon(Repeated(event=event, count=6), 1e-5) <= 4.0
    multipliers = [a.spec.mechanism.parameters["noise_multiplier"] for a in (resolved, whole)]
    assert multipliers[0] < 0.6 * multipliers[1]


def test_budgets_stop_everyone_at_once_whichever_client_was_drawn() -> None:
    """A client that was never drawn has spent as much as one that always was."""
    loud = {"kind": "gaussian", "noise_multiplier": 1.0}
    result = trial(a_spec(mechanism=loud, rounds=40))
    event = Sampled(
        event=resolve(load_inputs(a_spec(mechanism=loud)))
        .parts[0]
        .mechanism.privacy(a_spec().privacy.adjacency),
        rate=0.5,
        scheme="poisson",
        hidden_by="central-noise",
    )
    rounds = result["rounds"]
    assert 0 < rounds < 40
    assert accounting.epsilon(Repeated(event=event, count=rounds), 1e-5) <= 8.0
    assert accounting.epsilon(Repeated(event=event, count=rounds + 1), 1e-5) > 8.0
    assert result["halted"].startswith(f"before round {rounds + 1} only 0 of 4")


def test_resume_continues_bit_for_bit_and_charges_everyone_again(tmp_path: Path) -> None:
    expected = check_resumed(a_spec(), tmp_path, stop_after=5)
    assert [row["rounds"] for row in expected["clients"]] == [6] * 4


def test_a_run_says_that_the_server_is_trusted() -> None:
    result = trial(a_spec())
    assert "central privacy" in result["guarantee"]
    assert "simulation only" in result["guarantee"]
    assert result["local_epsilon"] is None
    assert result["central_epsilon"] == result["epsilon"]
    assert any("not local privacy" in warning for warning in result["warnings"])


def test_central_noise_is_less_than_local_noise_at_the_same_budget() -> None:
    """What it is there for: the same epsilon, without noise in every message."""
    data = {"dataset": "digits", "clients": 100}
    everyone = {"kind": "everyone"}
    found = {
        kind: trial(a_spec(data=data, sampling=everyone, channel={"kind": kind}))
        for kind in ("central", "direct")
    }
    assert found["central"]["epsilon"] == pytest.approx(found["direct"]["epsilon"], rel=1e-9)
    assert found["central"]["accuracy"] > found["direct"]["accuracy"] + 0.1


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"runtime": {"messages": "stored"}}, ConfigError, r"runtime\.messages = 'none'"),
        ({"runtime": {"messages": "packed"}}, ConfigError, r"runtime\.messages = 'none'"),
        ({"randomness": "system"}, ConfigError, "randomness = 'seeded'"),
        ({"rotation": "on"}, ConfigError, "set rotation = 'off'"),
        ({"sampling": {"kind": "fixed_size", "size": 2}}, ConfigError, "'everyone' or 'poisson'"),
        ({"sampling": {"kind": "epochs", "size": 2}}, ConfigError, "'everyone' or 'poisson'"),
        (
            {**SAMPLES, "sampling": {"kind": "poisson", "rate": 0.5}},
            ConfigError,
            "record_sampling_rate",
        ),
        (
            {"mechanism": {"kind": "gauss_hermite", "levels": 2}},
            PrivacyError,
            "'gaussian' or 'laplace'",
        ),
        ({"mechanism": {"kind": "stochastic_sign"}}, PrivacyError, "'gaussian' or 'laplace'"),
        (
            {"algorithm": {**CENTRAL["algorithm"], "kind": "scaffold"}},
            ConfigError,
            "algorithm 'fedavg' with aggregation 'mean'",
        ),
        (
            {"algorithm": {**CENTRAL["algorithm"], "aggregation": {"kind": "median"}}},
            ConfigError,
            "aggregation 'mean'",
        ),
        (
            {"privacy": {**CLIENT_LEVEL, "groups": [{"clients": 1, "epsilon": 2.0}]}},
            ParameterError,
            "one noise",
        ),
    ],
)
def test_what_it_cannot_mean_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    check_refused(lambda: a_spec(**changes), tmp_path / "run", error, message)
