"""`simulate`: torch Datasets as data, and where each round is logged."""

import logging
from typing import Any

import numpy as np
import pytest
import torch
from specs import small_table
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import sottovoce
from sottovoce.core.errors import ConfigError, DataError, ParameterError
from sottovoce.learning.datasets.torch_datasets import arrays_and_clients

RNG = np.random.default_rng(5)
LABELS = np.arange(60) % 3
FEATURES = (RNG.normal(size=(3, 6))[LABELS] + 0.3 * RNG.normal(size=(60, 6))).astype(np.float32)


class Pairs(Dataset[Any]):
    """Items (x, y), as user code writes them: tensors and plain integers."""

    def __init__(self, start: int = 0, stop: int = 60) -> None:
        self.rows = range(start, stop)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Any:
        return torch.from_numpy(FEATURES[self.rows[number]]), int(LABELS[self.rows[number]])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


def table(**data: Any) -> dict[str, Any]:
    return small_table(rounds=2) | {"data": data}


def test_a_dataset_gives_the_same_run_as_its_arrays() -> None:
    models = [
        sottovoce.simulate(table(clients=4), data=data).model
        for data in (
            (FEATURES, LABELS),
            Pairs(),
            TensorDataset(*map(torch.as_tensor, (FEATURES, LABELS))),
        )
    ]
    np.testing.assert_array_equal(models[0], models[1])
    np.testing.assert_array_equal(models[0], models[2])


def test_truth_values_are_numbers_zero_and_one() -> None:
    x, y = FEATURES > 0.0, LABELS > 0
    first, second = (
        sottovoce.simulate(table(clients=4), data=data).model
        for data in ((x, y), (x.astype(float), y.astype(int)))
    )
    np.testing.assert_array_equal(first, second)


def test_types_of_numbers_are_kept() -> None:
    words = TensorDataset(torch.arange(6, dtype=torch.int32).reshape(3, 2), torch.arange(3))
    found = arrays_and_clients((words, words))
    assert found is not None
    assert {name: str(array.dtype) for name, array in found[0].items()} == {
        "x_train": "int32",
        "y_train": "int64",
        "x_test": "int32",
        "y_test": "int64",
    }


@pytest.mark.parametrize("named", [False, True])
def test_each_client_may_have_its_own_dataset(named: bool) -> None:
    own: Any = [Pairs(0, 10), Pairs(10, 40)]
    if named:
        own = {"north": own[0], "abroad": own[1]}
    run = sottovoce.simulate(table(), data=(own, Pairs(40, 60)))
    names = [row.client for row in run.clients]
    assert names == (["abroad", "north"] if named else ["client-0000", "client-0001"])
    with pytest.raises(ConfigError, match=r"leave data\.partition out"):
        sottovoce.simulate(table(partition={"kind": "shards"}, clients=2), data=own)
    with pytest.raises(ConfigError, match="2 names for 3 clients"):
        sottovoce.simulate(table(clients=3), data=own)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Stream(), "not map-style"),
        (Pairs(0, 0), "has no items"),
        (TensorDataset(torch.zeros(3, 2)), r"item 0 .* must be a pair \(x, y\)"),
        ((FEATURES, Pairs()), r"give \(train, test\)"),
    ],
)
def test_other_datasets_are_refused(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        sottovoce.simulate(table(clients=2), data=data)


def test_rounds_are_logged_to_loggers_functions_and_stderr(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = []
    caplog.set_level(logging.INFO)
    data = FEATURES, LABELS
    sottovoce.simulate(table(clients=2), data=data, log=[logging.getLogger("mine"), rows.append])
    assert [row["round"] for row in rows] == [1, 2]
    assert [one.getMessage().split("  ")[0] for one in caplog.records] == [
        "round 1 of 2",
        "round 2 of 2",
    ]
    sottovoce.simulate(table(clients=2), data=data, log=True)
    assert capsys.readouterr().err.count("\n") == 2
    with pytest.raises(ParameterError, match="log must be"):
        sottovoce.simulate(table(clients=2), data=data, log=3)  # type: ignore[arg-type]
