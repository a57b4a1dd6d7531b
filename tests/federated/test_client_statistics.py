"""Statistics in the same message as the update: adaptive clipping and private evaluation."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from specs import LOCAL_STEPS, small_spec, small_table

from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import L2Ball, Vector
from sottovoce.core.errors import ConfigError, SottovoceError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms.algorithm import AggregatedUplink, Block, ClientStepInput, State
from sottovoce.federated.algorithms.client_statistics import CLIP_NORM, WithStatistics
from sottovoce.federated.algorithms.statistics import AdaptiveClip, PrivateEvaluation
from sottovoce.federated.training import Halted
from sottovoce.learning.clients import ClientData, Clients, DenseRows, OuterRows, Rows, hold_out
from sottovoce.learning.task import Task
from sottovoce.mechanisms import registry
from sottovoce.runs.build import temporary_training
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.loading import parse
from sottovoce.runs.outcome import metrics_row
from sottovoce.runs.resolve import resolve
from sottovoce.runs.runner import run
from sottovoce.runs.spec import RunSpec
from sottovoce.runs.statistics import statistics_metrics

PRIVACY: dict[str, Any] = {"level": "client", "clip_norm": "auto", "delta": 1e-5}
BITS = {"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 5.0}  # Not calibrated: quick.
BOTH: dict[str, Any] = {
    "privacy": PRIVACY,
    "algorithm": LOCAL_STEPS,
    "mechanism": BITS,
    "evaluation": {"private": {"every": 2, "share": 0.1, "holdout_fraction": 0.2}},
}


class _Sends:
    """An algorithm whose clients send given updates, and whose server adds their mean."""

    uplinks: ClassVar[int] = 1
    gathers: ClassVar[bool] = False
    unit: ClassVar[Unit] = Unit.CLIENT
    record_sampling_rate: ClassVar[float] = 1.0
    shared_state: ClassVar[tuple[str, ...]] = ()

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def domain(self, dimension: int, num_samples: int) -> L2Ball:
        raise AssertionError("its messages are extended")

    def weight(self, num_samples: int) -> float:
        return 1.0

    def initialize(self, model: Vector) -> State:
        return {"steps": np.zeros(1)}

    def client_steps(
        self, task: Task, clients: Sequence[ClientData], step: ClientStepInput
    ) -> Iterator[Block]:
        yield Block(start=0, uplinks=(self.rows,))

    def server_step(
        self, model: Vector, combined: Sequence[AggregatedUplink], state: State
    ) -> tuple[Vector, State]:
        return model + combined[0].mean, {"steps": state["steps"] + 1.0}


class _Measures:
    """A task whose clients have given accuracies."""

    def __init__(self, scores: Sequence[float]) -> None:
        self.scores = torch.tensor(scores, dtype=torch.float64)

    def evaluate_clients(self, model: object, clients: object) -> tuple[torch.Tensor, torch.Tensor]:
        return -self.scores.log(), self.scores


def _sent(algorithm: WithStatistics, state: State, scores: Sequence[float] = ()) -> Vector:
    step = ClientStepInput(
        run="r", round=1, model=np.zeros(2), state=state, randomness=SeededRandomness(0)
    )
    (block,) = algorithm.client_steps(_Measures(scores), [], step)  # type: ignore[arg-type]
    (rows,) = block.uplinks
    (values,) = rows.blocks(len(rows))
    return values.double().numpy()


def test_the_clipping_norm_and_the_model_follow_the_published_updates() -> None:
    """A direct transcription of algorithm 1 of Andrew et al. 2021, without noise."""
    generator = np.random.default_rng(0)
    quantile, rate, clip_norm = 0.7, 0.4, 0.5
    algorithm = WithStatistics(
        inner=_Sends(DenseRows(torch.zeros(1, 2))),
        clip=AdaptiveClip(quantile=quantile, rate=rate, initial=clip_norm),
    )
    model = np.zeros(2)
    state = algorithm.initialize(model)
    for number in range(1, 30):
        updates = generator.normal(size=(11, 2)) * generator.exponential(size=(11, 1))
        inner = _Sends(DenseRows(torch.from_numpy(updates)))
        algorithm = WithStatistics(inner=inner, clip=algorithm.clip)
        messages = _sent(algorithm, state)
        np.testing.assert_array_less(np.linalg.norm(messages, axis=1), 1.0 + 1e-12)
        before = model
        model, state = algorithm.server_step(
            model, [AggregatedUplink(mean=messages.mean(axis=0))], state
        )
        norms = np.linalg.norm(updates, axis=1)
        clipped = updates * np.minimum(1.0, clip_norm / norms)[:, None]
        np.testing.assert_allclose(model - before, clipped.mean(axis=0), rtol=1e-12, atol=1e-15)
        clip_norm *= math.exp(-rate * (np.mean(norms <= clip_norm) - quantile))
        assert state[CLIP_NORM][0] == pytest.approx(clip_norm, rel=1e-5)  # Kept in float32.
        clip_norm = float(state[CLIP_NORM][0])
        assert state["steps"][0] == number


class _Centered(torch.nn.Module):
    """A linear layer after the mean of the batch is subtracted, so that samples influence others.

    At client level that is allowed: the whole result of a client is protected.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one row for each sample."""
        found: torch.Tensor = self.layer(x - x.mean(dim=0, keepdim=True))
        return found


def test_a_client_has_no_influence_on_the_results_of_others() -> None:
    torch.manual_seed(0)
    task = Task(_Centered(), torch.randn(2, 3), torch.zeros(2, dtype=torch.int64))
    labels = torch.tensor([0, 1, 1, 0, 1])
    clients = [ClientData(name=name, features=torch.randn(5, 3), labels=labels) for name in "ab"]
    moved = dataclasses.replace(clients[0], features=clients[0].features + 100.0)
    model = task.initial_model()
    for before, after in zip(
        task.evaluate_clients(model, clients),
        task.evaluate_clients(model, [moved, clients[1]]),
        strict=True,
    ):
        assert before[1] == after[1]


def test_under_heavy_noise_the_clipping_norm_settles_at_the_quantile() -> None:
    """Each mean of bits has a noise of .7; a constant rate of .5 ends .4 off in log C."""
    dimension, noise, norms = 400, 0.14, np.exp(np.random.default_rng(1).normal(size=100) * 0.6)
    algorithm = WithStatistics(inner=_Sends(DenseRows(torch.zeros(1, 2))), clip=AdaptiveClip())
    errors = []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        model = np.zeros(dimension)
        state = algorithm.initialize(model)
        for _ in range(80):
            mean = noise * generator.normal(size=dimension + 1)
            mean[-1] += 0.1 * (np.mean(norms <= state[CLIP_NORM][0]) - 0.5) / 0.5
            _, state = algorithm.server_step(model, [AggregatedUplink(mean=mean)], state)
        errors.append(math.log(state[CLIP_NORM][0] / np.median(norms)))
    assert np.sqrt(np.mean(np.square(errors))) < 0.3


@pytest.mark.parametrize("factored", [False, True])
def test_whatever_clients_compute_their_messages_lie_in_the_unit_ball(factored: bool) -> None:
    left = torch.tensor(
        [[0.0, 0.0], [1e-3, 0.0], [3e30, 3e30], [float("nan"), 1.0], [3.0, -4.0], [-40.0, 30.0]]
    )
    rows: Rows = OuterRows(left, torch.ones(6, 1)) if factored else DenseRows(left)
    algorithm = WithStatistics(
        inner=_Sends(rows), clip=AdaptiveClip(quantile=0.9, share=0.2), evaluation=_evaluation()
    )
    state = algorithm.initialize(np.zeros(2))
    messages = _sent(algorithm, state, [0.0, 1.0, math.inf, math.nan, 1.0, 0.0])
    norms = np.linalg.norm(messages, axis=1)
    assert (norms <= 1.0 + 1e-6).all()
    # Where all three parts are as long as they can be, they fill the ball.
    np.testing.assert_allclose(norms[4:], 1.0, rtol=1e-6)
    fits = messages[:, -2] > 0.0
    assert fits.tolist() == [True, True, False, False, False, False]  # NaN does not fit.
    results = messages[:, -1] / math.sqrt(0.25)
    np.testing.assert_allclose(results, [-1.0, 1.0, -1.0, -1.0, 1.0, -1.0], rtol=1e-6)


def test_the_server_decodes_the_mean_result_and_only_when_clients_evaluate() -> None:
    algorithm = WithStatistics(
        inner=_Sends(DenseRows(torch.ones(3, 2))), clip=10.0, evaluation=_evaluation(every=2)
    )
    model = np.zeros(2)
    state = algorithm.initialize(model)
    for number, wanted in ((0, 0.6), (1, 0.6), (2, 0.3)):
        scores = [wanted - 0.2, wanted, wanted + 0.2]
        messages = _sent(algorithm, state, scores)
        assert (messages[:, -1] != 0.0).any() == (number != 1)
        model, state = algorithm.server_step(
            model, [AggregatedUplink(mean=messages.mean(axis=0))], state
        )
        np.testing.assert_allclose(model, number + 1.0)
        assert state["statistics evaluation"].tolist() == pytest.approx(
            [wanted, 2.0 * (number // 2)]
        )


def _evaluation(every: int = 1) -> PrivateEvaluation:
    return PrivateEvaluation(every=every, share=0.25)


def test_update_and_statistics_are_charged_as_one_release_of_more_dimensions(
    tmp_path: Path,
) -> None:
    spec = small_spec(rounds=2, **BOTH)
    resolved = resolve(load_inputs(spec))
    mechanism = resolved.parts[0].mechanism
    dimension = resolved.task.dimension
    assert mechanism.input_domain == L2Ball(dimension=dimension + 2, radius=1.0)
    alone = registry.find("gauss_hermite").build(
        L2Ball(dimension=dimension + 2, radius=1.0), registry.parameters_of(mechanism)
    )
    event = resolved.terms(mechanism)
    assert event == resolved.terms(alone)
    result = run(spec, tmp_path / "run")
    with RunFolder(tmp_path / "run").ledger() as ledger:
        for name in ledger.clients():
            assert ledger.history(name) == [(event, 2)]  # One charge a round.
    assert result["dimension"] == dimension
    assert result["clip_norm"] == RunFolder(tmp_path / "run").metrics()[-1]["clip_norm"]


@pytest.mark.parametrize("kind", ["gauss_hermite", "gaussian"])
def test_backends_agree_on_messages_with_statistics(kind: str) -> None:
    levels = {"levels": 2} if kind == "gauss_hermite" else {}
    noise = {"kind": kind, "noise_multiplier": 5.0, **levels}
    table = small_table(rounds=3, **{**BOTH, "mechanism": noise})
    found, errors = {}, []
    for messages in ("stored", "packed", "none"):
        spec = parse({**table, "runtime": {"messages": messages}})
        resolved = dataclasses.replace(resolve(load_inputs(spec)), run="same")
        with temporary_training(resolved) as training:
            progress, rows = training.start(), []
            while progress.rounds_done < 3:
                outcome = training.step(progress)
                assert not isinstance(outcome, Halted)
                progress, record = outcome
                rows.append(metrics_row(resolved, training.record, progress, record))
        found[messages] = progress
        assert ["private_accuracy" in row for row in rows] == [True, False, True]
        errors.append(rows[0]["private_evaluation_error"])
    stored, packed = found["stored"], found["packed"]
    np.testing.assert_array_equal(stored.model, packed.model)
    for name, value in stored.algorithm_state.items():
        np.testing.assert_array_equal(value, packed.algorithm_state[name])
    assert errors[0] == errors[1] == errors[2] > 0.0


def test_a_trusted_server_adds_its_noise_to_the_statistics_too(tmp_path: Path) -> None:
    spec = small_spec(
        **{
            **BOTH,
            "rounds": 2,
            "mechanism": {"kind": "gaussian", "noise_multiplier": 1e-3},
            "channel": {"kind": "central"},
            "runtime": {"messages": "none"},
        }
    )
    result = run(spec, tmp_path / "run")
    row = RunFolder(tmp_path / "run").metrics()[0]
    # The initial model has about a tenth of the labels right, and there is hardly any noise.
    assert row["private_accuracy"] == pytest.approx(0.1, abs=0.1)
    assert row["private_evaluation_error"] == pytest.approx(1e-3 / 4 / 2 / math.sqrt(0.1))
    assert result["clip_norm"] == pytest.approx(0.3 * math.exp(0.25), rel=0.05)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "channel": {"kind": "central"},
            "sampling": {"kind": "poisson", "rate": 0.5},
            "mechanism": {"kind": "gaussian", "noise_multiplier": 0.1},
        },
    ],
    ids=["local noise", "secret sample of clients"],
)
def test_estimates_of_the_same_model_vary_as_their_standard_error_says(
    changes: dict[str, Any],
) -> None:
    table = {
        "rounds": 200,
        "data": {"dataset": "digits", "clients": 10},
        "privacy": {"level": "client", "clip_norm": 0.5, "delta": 1e-5},
        # The model does not move, so that each round estimates the same number.
        "algorithm": {**LOCAL_STEPS, "local_steps": 1, "server_learning_rate": 1e-12},
        "mechanism": {"kind": "gaussian", "noise_multiplier": 1.0},
        "evaluation": {"private": {"metric": "loss", "largest_loss": 25.0, "share": 0.04}},
        "runtime": {"messages": "none"},
        **changes,
    }
    resolved = resolve(load_inputs(small_spec(**table)))
    estimates, errors = [], []
    with temporary_training(resolved) as training:
        progress = training.start()
        while progress.rounds_done < 200:
            outcome = training.step(progress)
            assert not isinstance(outcome, Halted)
            progress, record = outcome
            figures = statistics_metrics(resolved, progress, record)
            estimates.append(figures["private_loss"])
            errors.append(figures["private_evaluation_error"])
    expected = math.sqrt(float(np.square(errors).mean()))
    assert np.std(estimates) == pytest.approx(expected, rel=0.15)
    assert np.mean(estimates) == pytest.approx(2.4, abs=0.2 + 3.0 * expected / math.sqrt(200))


def test_an_estimate_that_is_all_noise_is_warned_of(tmp_path: Path) -> None:
    spec = small_spec(**{**BOTH, "rounds": 2, "runtime": {"messages": "packed"}})
    (warning,) = (one for one in run(spec, tmp_path / "a")["warnings"] if "says nothing" in one)
    assert warning.startswith("the private accuracy has a standard error of")
    clear = {"kind": "gaussian", "noise_multiplier": 0.01}
    result = run(small_spec(**{**BOTH, "rounds": 2, "mechanism": clear}), tmp_path / "b")
    assert not any("says nothing" in one for one in result["warnings"])


def test_a_regression_has_no_private_accuracy(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    np.savez(tmp_path / "own.npz", x_train=x, y_train=x[:, 0], x_test=x[:10], y_test=x[:10, 0])
    table = small_table(**BOTH) | {"data": {"dataset": f"npz:{tmp_path / 'own.npz'}", "clients": 4}}
    with pytest.raises(ConfigError, match="a regression does not have; set it to 'loss'"):
        load_inputs(parse(table))


def test_a_resumed_run_continues_with_the_same_clipping_norm(tmp_path: Path) -> None:
    spec = small_spec(rounds=5, **BOTH)
    run(spec, tmp_path / "whole")

    def stop(row: dict[str, Any]) -> None:
        if row["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(spec, tmp_path / "cut", on_round=stop)
    run(spec, tmp_path / "cut", resume=True)
    for name in ("checkpoint.npz", "metrics.jsonl", "result.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()


def test_records_held_out_are_never_trained_on() -> None:
    shares = [np.arange(10), np.arange(10, 12), np.array([12])]
    clients = Clients(np.arange(13.0)[:, None].astype(np.float32), np.arange(13), shares)
    kept, held_out = hold_out(clients, 0.3)
    assert [len(one.labels) for one in held_out] == [3, 1, 1]
    for one, other, whole in zip(kept, held_out, clients, strict=True):
        both = sorted({*one.labels.tolist(), *other.labels.tolist()})
        assert both == whole.labels.tolist()
        assert whole.num_samples == 1 or one.num_samples + other.num_samples == whole.num_samples
    alone = hold_out(list(clients), 0.3)
    for part, same in zip((kept, held_out), alone, strict=True):
        for one, other in zip(part, same, strict=True):
            assert torch.equal(one.features, other.features)
            assert one.name == other.name


def test_at_sample_level_auto_normalizes_each_gradient() -> None:
    spec = small_spec(rounds=1, privacy={**PRIVACY, "level": "sample"}, mechanism=BITS)
    inputs = load_inputs(spec)
    model = inputs.task.initial_model()
    step = ClientStepInput(run="r", round=1, model=model, state={}, randomness=SeededRandomness(0))
    clients = inputs.clients.take([0])
    (block,) = inputs.algorithm.client_steps(inputs.task, clients, step)
    (matrix,) = block.uplinks[0].blocks(1)
    total = torch.zeros(inputs.task.dimension, dtype=torch.float64)
    for _, rows in inputs.task.sample_gradients(model, clients):
        (gradients,) = rows.blocks(len(rows))
        norms = gradients.double().norm(dim=1, keepdim=True)
        total -= (gradients / (norms + 0.01)).sum(dim=0)
    torch.testing.assert_close(matrix[0], total / clients.sizes[0], rtol=1e-5, atol=1e-7)


SCAFFOLD = {"kind": "scaffold", "server_learning_rate": 1.0, "local_learning_rate": 0.1}
MEDIAN = {**LOCAL_STEPS, "aggregation": {"kind": "median"}}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "quantile": ({"clip_norm": {"kind": "auto", "quantile": 1.0}}, "strictly between 0 and 1"),
    "rate": ({"clip_norm": {"kind": "auto", "rate": 0.0}}, "rate must be"),
    "initial": ({"clip_norm": {"kind": "auto", "initial": -1.0}}, "initial must be"),
    "share": ({"clip_norm": {"kind": "auto", "share": 0.3}}, r"share must lie in \(0, 0.25\]"),
    "key": ({"clip_norm": {"kind": "auto", "quantil": 0.3}}, "quantile"),
    "kind": ({"clip_norm": {"quantile": 0.3}}, "kind = 'auto'"),
    "word": ({"clip_norm": "automatic"}, "'auto' or a table"),
    "number": ({"clip_norm": -1.0}, "'privacy.clip_norm' must be greater than 0"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_values_are_refused_with_the_key(case: str) -> None:
    changes, told = BAD[case]
    with pytest.raises(ConfigError, match=told) as refused:
        small_spec(privacy={**PRIVACY, **changes}, algorithm=LOCAL_STEPS)
    assert "privacy.clip_norm" in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"algorithm": SCAFFOLD}, "uses only the mean of one update"),
        ({"algorithm": MEDIAN}, "aggregation 'median'"),
        ({"evaluation": {"private": {"metric": "f1"}}}, "must be one of accuracy, loss"),
        ({"evaluation": {"private": {"holdout_fraction": 1.0}}}, "below 1"),
        ({"evaluation": {"private": {"largest_loss": 5.0}}}, "set metric = 'loss'"),
        (
            {"privacy": {**PRIVACY, "level": "sample", "clip_norm": 1.0}, "algorithm": None},
            "set privacy.level = 'client'",
        ),
        (
            {
                "privacy": {
                    **PRIVACY,
                    "level": "sample",
                    "clip_norm": {"kind": "auto", "quantile": 0.3},
                },
                "algorithm": None,
                "evaluation": {},
            },
            "has no keys",
        ),
    ],
)
def test_what_statistics_do_not_fit_is_refused(changes: dict[str, Any], told: str) -> None:
    table = small_table(rounds=2, **BOTH) | changes
    if table["algorithm"] is None:
        table["algorithm"] = small_table()["algorithm"]
    with pytest.raises(SottovoceError, match=told):
        load_inputs(parse(table))


def test_a_spec_with_a_number_is_stored_as_before() -> None:
    plain = small_spec().plain()
    assert plain["privacy"]["clip_norm"] == 1.0
    assert "evaluation" not in plain
    spec = small_spec(**BOTH)
    again = RunSpec.model_validate(spec.plain())
    assert again == spec
    assert again.hash == spec.hash
    assert spec.plain()["privacy"]["clip_norm"]["kind"] == "auto"
