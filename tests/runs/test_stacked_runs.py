"""Runs side by side must be the runs that the ordinary engine makes."""

from typing import Any

import numpy as np
import pytest
import torch
from specs import small_table
from torch import Tensor, nn

from sottovoce.core.errors import ConfigError
from sottovoce.federated.simulation import stacked
from sottovoce.learning import datasets
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.task import Task
from sottovoce.runs import stacked_runs
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.loading import parse
from sottovoce.runs.resolve import resolve
from sottovoce.runs.spec import RunSpec
from sottovoce.runs.stacked_runs import train_many

MECHANISMS: list[dict[str, Any]] = [
    {"kind": "no_privacy"},
    {"kind": "gaussian"},
    {"kind": "laplace"},
    {"kind": "staircase", "nu": "auto", "step_multiplier": 1.0},
    {"kind": "gauss_hermite", "levels": 2},
]


@pytest.fixture(scope="module")
def data() -> Dataset:
    return datasets.load("digits", np.random.default_rng(0))


def spec_of(mechanism: dict[str, Any], **changes: Any) -> RunSpec:
    privacy = {"level": "sample", "clip_norm": 0.5, "delta": 1e-5, "record_sampling_rate": 0.3}
    if mechanism["kind"] != "no_privacy":
        privacy["epsilon"] = 8.0
    table = small_table(
        model={"kind": "mlp", "hidden_units": 8},
        privacy=privacy,
        mechanism=mechanism,
        rounds=4,
        algorithm={"kind": "fedavg", "server_learning_rate": 2.0, "server_momentum": 0.5},
    )
    # Resolved once, as a finished run's spec is: shadows take over its noise.
    return resolve(load_inputs(parse(table | changes))).spec


def runs_of(count: int) -> list[tuple[int, Any]]:
    # 203 rows on 4 clients: they have two sizes, and so two mechanisms.
    generator = np.random.default_rng(1)
    return [(10 + i, np.sort(generator.choice(600, 203, replace=False))) for i in range(count)]


def one_by_one(spec: RunSpec, data: Dataset, runs: list[tuple[int, Any]]) -> Any:
    return np.stack([stacked_runs._alone(spec, data, *one, None) for one in runs])


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m["kind"])
def test_runs_side_by_side_are_the_engines_runs(mechanism: dict[str, Any], data: Dataset) -> None:
    spec, runs = spec_of(mechanism), runs_of(3)
    together = train_many(spec, data, runs)
    apart = one_by_one(spec, data, runs)
    moved = np.abs(apart - train_many(spec.model_copy(update={"rounds": 1}), data, runs)).max()
    # A bit of one coordinate may fall otherwise where its probability is rounded otherwise.
    close = np.isclose(together, apart, rtol=0.0, atol=1e-5 * moved)
    assert close.mean() > (0.99 if mechanism["kind"] == "gauss_hermite" else 0.999)
    assert not np.allclose(apart[0], apart[1], atol=1e-3 * moved)


def test_a_run_does_not_depend_on_its_neighbors(data: Dataset) -> None:
    spec, runs = spec_of({"kind": "gaussian"}), runs_of(3)
    np.testing.assert_allclose(
        train_many(spec, data, runs)[1:2], train_many(spec, data, runs[1:2]), rtol=0, atol=1e-5
    )


def test_all_records_in_many_pieces_give_the_same(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    privacy = {"level": "sample", "clip_norm": 0.5, "delta": 1e-5}
    spec, runs = spec_of({"kind": "no_privacy"}, privacy=privacy), runs_of(2)
    whole = train_many(spec, data, runs)
    monkeypatch.setitem(stacked._TOGETHER, "cpu", 1 << 14)
    np.testing.assert_allclose(train_many(spec, data, runs), whole, rtol=0, atol=1e-5)
    np.testing.assert_allclose(whole, one_by_one(spec, data, runs), rtol=0, atol=1e-5)


def test_what_cannot_be_stacked_is_trained_all_the_same(data: Dataset) -> None:
    table = small_table(
        privacy={"level": "client", "clip_norm": 0.5, "delta": 1e-5},
        mechanism={"kind": "no_privacy"},
        algorithm={"kind": "fedavg", "server_learning_rate": 1.0, "local_learning_rate": 0.1},
    )
    runs = runs_of(2)
    found = train_many(parse(table), data, runs)
    np.testing.assert_array_equal(found, one_by_one(parse(table), data, runs))
    assert not np.array_equal(found[0], found[1])


class Asking(nn.Module):
    """Looks at numbers while it computes, which torch.func cannot do for many at once."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.inner(x)
        return outputs if outputs.sum().item() > 0.0 else 2.0 * outputs


def test_modules_that_vmap_refuses_are_not_stacked(data: Dataset) -> None:
    def task_of(module: nn.Module) -> Task:
        return Task(module, torch.zeros(2, 64), torch.zeros(2, dtype=torch.int64))

    assert not stacked_runs._vmap_takes(task_of(Asking()), data)
    assert stacked_runs._vmap_takes(task_of(nn.Linear(64, 10)), data)


def test_rows_without_owners_are_refused(data: Dataset) -> None:
    spec = spec_of({"kind": "no_privacy"}, rounds=1)
    owners = spec.data.model_copy(update={"partition": parse_partition("by_owner")})
    with pytest.raises(ConfigError, match="by_owner"):
        train_many(spec.model_copy(update={"data": owners}), data, runs_of(2))


def parse_partition(kind: str) -> Any:
    return parse(
        small_table(data={"dataset": "digits", "partition": {"kind": kind}})
    ).data.partition


@pytest.mark.parametrize("kind", ["secure_sum", "shuffler"])
def test_channels_of_stored_messages_have_shadows_too(kind: str, data: Dataset) -> None:
    spec = spec_of(
        {"kind": "clamped_sign", "logit_bound": 1.0, "noise_multiplier": 20.0},
        rounds=2,
        data={"dataset": "digits", "clients": 60},
        privacy={
            "level": "client",
            "clip_norm": 1.0,
            "epsilon": 8.0,
            "delta": 1e-5,
            "adjacency": "replace-one",
        },
        channel={"kind": kind, "minimum_clients": 30},
        algorithm={
            "kind": "fedavg",
            "server_learning_rate": 1.0,
            "local_steps": 1,
            "local_learning_rate": 0.1,
        },
    )
    models = train_many(spec, data, runs_of(2))
    assert np.abs(models[0] - models[1]).max() > 0.0
    assert np.array_equal(models, train_many(spec, data, runs_of(2)))


def test_public_samples_would_be_held_out_of_candidates(data: Dataset) -> None:
    spec = spec_of(
        {"kind": "gaussian"},
        privacy={"level": "client", "clip_norm": 1.0, "epsilon": 50.0, "delta": 1e-5},
        algorithm={
            "kind": "fedavg",
            "server_learning_rate": 1.0,
            "local_steps": 2,
            "local_learning_rate": 0.1,
            "aggregation": {
                "kind": "mode_connectivity",
                "proxy_samples": 40,
                "steps": 5,
                "learning_rate": 0.1,
            },
        },
    )
    with pytest.raises(ConfigError, match="mode_connectivity"):
        train_many(spec, data, runs_of(2))
