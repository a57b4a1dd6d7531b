"""The page about specs lists every key of every table, with its default."""

import dataclasses
from typing import Any

import pytest
from pages import ROOT
from pydantic_core import PydanticUndefined

from sottovoce.core.registry import Register
from sottovoce.core.sections import DERIVED
from sottovoce.federated.algorithms.algorithm import AGGREGATIONS, ALGORITHMS
from sottovoce.federated.cohorts import SAMPLINGS
from sottovoce.learning.features import FEATURES
from sottovoce.learning.models.register import MODELS
from sottovoce.learning.partition import PARTITIONS
from sottovoce.protocol.channels.channel import CHANNELS
from sottovoce.runs import spec
from sottovoce.runs.sections import Section

PAGE = (ROOT / "docs/reference/spec.md").read_text(encoding="utf-8")
TABLES = [
    spec.RunSpec,
    spec.DataSpec,
    spec.CsvSpec,
    spec.PrivacySpec,
    spec.GroupSpec,
    spec.RuntimeSpec,
    spec.EvaluationSpec,
    spec.DeploymentSpec,
]
TOP_LEVEL = {"features", "data", "model", "algorithm", "privacy", "mechanism", "sampling"}
TOP_LEVEL |= {"channel", "runtime", "deployment", "evaluation"}
REGISTERS = [PARTITIONS, FEATURES, MODELS, ALGORITHMS, AGGREGATIONS, SAMPLINGS, CHANNELS]


def _rows(key: str) -> list[list[str]]:
    lines = [line for line in PAGE.splitlines() if line.startswith(f"| `{key}` |")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_every_key_of_a_table_is_listed_with_its_default(table: type[Section]) -> None:
    for key, field in table.model_fields.items():
        if table is spec.RunSpec and key in TOP_LEVEL:
            assert f"`[{key}]`" in PAGE or f"`[[{key}]]`" in PAGE
            continue
        rows = _rows(key)
        assert rows, f"the page lacks '{key}' of {table.__name__}"
        defaults = {row[2] for row in rows}
        if field.default is PydanticUndefined and field.default_factory is None:
            assert "required" in defaults, key
        elif isinstance(field.default, bool):
            assert str(field.default).lower() in defaults, key
        elif isinstance(field.default, int | float):
            assert f"{field.default:g}" in defaults, key
        elif type(field.default) is str:
            assert f'"{field.default}"' in defaults, key


@pytest.mark.parametrize("register", REGISTERS, ids=lambda register: register.kind)
def test_every_kind_and_its_keys_are_listed(register: Register[Any]) -> None:
    for kind in register.names():
        assert f'"{kind}"' in PAGE, f"the page lacks the {register.kind} '{kind}'"
        for field in dataclasses.fields(register.find(kind).section):
            if field.metadata != DERIVED:
                assert f"`{field.name}`" in PAGE, (kind, field.name)
