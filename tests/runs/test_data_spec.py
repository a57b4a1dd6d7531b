"""The section `[data]`: defaults, and what does not belong together."""

from typing import Any

import pytest
from pydantic import ValidationError

from sottovoce.learning.partition import ByOwner
from sottovoce.runs.spec import DataSpec


def parsed(**given: Any) -> DataSpec:
    return DataSpec.model_validate(given)


def test_what_the_old_section_said_is_still_said() -> None:
    spec = parsed(dataset="digits", clients=5, partition={"kind": "dirichlet", "alpha": 0.5})
    assert spec.clients == 5
    assert spec.num_train is None
    assert parsed(dataset="digits", clients=5).partition.kind == "iid"


def test_clients_may_be_left_to_a_partition_that_settles_them() -> None:
    spec = parsed(dataset="femnist", partition={"kind": "by_owner"})
    assert spec.partition.build() == ByOwner()
    assert parsed(dataset="mnist", partition={"kind": "one_sample"}).clients is None
    with pytest.raises(ValidationError, match="which the partition 'shards' needs"):
        parsed(dataset="mnist", partition={"kind": "shards"})


def test_a_table_says_how_it_is_read() -> None:
    spec = parsed(
        dataset="csv:t.csv",
        clients=3,
        csv={"label_columns": ["ill"], "owner_column": "ward", "bounds": {"age": [0, 100.0]}},
    )
    assert spec.csv is not None
    options = spec.csv.options()
    assert options.label_columns == ("ill",)
    assert options.bounds == {"age": (0.0, 100.0)}
    old = {"header", "label_columns", "label", "classes", "owner_column", "bounds", "test_fraction"}
    assert set(spec.csv.model_dump(mode="json")) == old  # as older versions wrote it, and its hash
    with pytest.raises(ValidationError, match="'csv' is only for data sets"):
        parsed(dataset="digits", clients=3, csv={})


def test_a_table_from_abroad_is_written_down_and_read_again() -> None:
    given = {
        "decimal": ",",
        "missing": "skip",
        "ignore_columns": ["name"],
        "categories": {"town": ["Ulm", "Bonn"]},
    }
    spec = parsed(dataset="csv:t.csv", clients=3, csv=given)
    assert parsed(**spec.model_dump(mode="json")) == spec
    assert spec.csv is not None
    options = spec.csv.options()
    assert (options.decimal, options.missing) == (",", "skip")
    assert options.ignore_columns == ("name",)
    assert options.categories == {"town": ("Ulm", "Bonn")}


@pytest.mark.parametrize(
    "wrong",
    [
        {"clients": 0},
        {"num_train": 0},
        {"num_owners": 0},
        {"validation_fraction": 1.0},
        {"partition": {"kind": "shards", "shards_per_client": 0}},
        {"partition": {"kind": "by_owner", "owner": 3}},
        {"folder": "/data"},
    ],
)
def test_values_out_of_range_and_unknown_keys_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        parsed(**{"dataset": "digits", "clients": 5, **wrong})
