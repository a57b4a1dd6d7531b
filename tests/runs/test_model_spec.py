"""Tables of [model]: each is what its model registers, and is read without torch."""

import json
import subprocess
import sys
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from specs import small_table

from sottovoce.core.errors import ConfigError, UnknownNameError
from sottovoce.learning import models
from sottovoce.learning.models import MODELS, Model
from sottovoce.runs.loading import parse
from sottovoce.runs.spec import ModelSpec
from sottovoce_papers.models.femnist_convnet import FemnistConvnet
from sottovoce_papers.models.resnet18 import Resnet18
from sottovoce_papers.models.small_cifar_cnn import SmallCifarCnn
from sottovoce_papers.models.strided_cnn import StridedCnn
from sottovoce_papers.models.tanh_convnet import TanhConvnet
from sottovoce_papers.models.udp_medical_cnn import UdpMedicalCnn
from sottovoce_papers.models.udp_mnist_cnn import UdpMnistCnn
from sottovoce_papers.models.wind_cnn import WindCnn

ADAPTER: TypeAdapter[ModelSpec] = TypeAdapter(ModelSpec)
CASES: list[tuple[dict[str, Any], Model]] = [
    ({"kind": "linear"}, models.Linear()),
    ({"kind": "mlp", "hidden_units": 5}, models.Mlp(hidden_units=5)),
    ({"kind": "tanh_convnet"}, TanhConvnet()),
    (
        {"kind": "tanh_convnet", "bounded_outputs": False},
        TanhConvnet(bounded_outputs=False),
    ),
    ({"kind": "femnist_convnet"}, FemnistConvnet()),
    ({"kind": "udp_mnist_cnn"}, UdpMnistCnn()),
    ({"kind": "udp_medical_cnn"}, UdpMedicalCnn()),
    ({"kind": "small_cifar_cnn", "groups": 4}, SmallCifarCnn(groups=4)),
    ({"kind": "strided_cnn"}, StridedCnn()),
    ({"kind": "resnet18"}, Resnet18()),
    ({"kind": "resnet18", "groups": 16}, Resnet18(groups=16)),
    ({"kind": "wind_cnn", "filters": 3}, WindCnn(filters=3)),
    (
        {"kind": "module", "factory": "nets:small", "arguments": {"width": 3}},
        models.UserModule(factory="nets:small", arguments={"width": 3}),
    ),
    ({"kind": "in_memory", "label": "network"}, models.InMemoryModule(label="network")),
]

DEFAULTS: dict[str, dict[str, Any]] = {
    "linear": {"bias": True},
    "tanh_convnet": {"bounded_outputs": True},
    "small_cifar_cnn": {"groups": 8},
    "resnet18": {"groups": 32},
    "wind_cnn": {"filters": 16},
    "strided_cnn": {},
}


@pytest.mark.parametrize(("table", "model"), CASES, ids=lambda value: str(value)[:40])
def test_a_table_makes_its_model(table: dict[str, Any], model: Model) -> None:
    spec = ADAPTER.validate_python(table)
    assert spec.build() == model
    assert ADAPTER.validate_json(spec.model_dump_json()).build() == model


def test_every_model_is_registered_and_writes_out_its_defaults() -> None:
    assert {table["kind"] for table, _ in CASES} == set(MODELS.ours())
    written = {kind: ADAPTER.validate_python({"kind": kind}).model_dump() for kind in DEFAULTS}
    assert written == {kind: {"kind": kind, **keys} for kind, keys in DEFAULTS.items()}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "mlp"}, "'model.hidden_units' is missing"),
        ({"kind": "mlp", "hidden_units": 0}, "'model.hidden_units' must be an integer from 1"),
        ({"kind": "mlp", "hidden_units": 2.0}, "'model.hidden_units' must be an integer from 1"),
        ({"kind": "linear", "bias": 1}, "'model.bias' must be true or false, got 1"),
        ({"kind": "resnet18", "group": 8}, r"key 'group'; did you mean 'groups'.*in \[model\]"),
        ({"kind": "resnet18", "groups": 7}, "'model.groups' must divide the 64 channels"),
        ({"kind": "module"}, "'model.factory' is missing"),
        ({"kind": "module", "factory": 3}, "'model.factory' must be a string"),
        ({"kind": "module", "factory": "a:b", "arguments": 3}, "'model.arguments' must be a table"),
        ({"hidden_units": 3}, "'model.kind' is missing"),
    ],
)
def test_what_a_table_may_get_wrong(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(small_table(model=table))
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(table)


def test_a_kind_that_no_one_has_is_kept_as_written_and_cannot_be_built() -> None:
    spec = ADAPTER.validate_python({"kind": "resnet19", "groups": 7})
    assert spec.model_dump() == {"kind": "resnet19", "groups": 7}
    with pytest.raises(UnknownNameError, match="unknown model 'resnet19'; did you mean 'resnet18'"):
        spec.build()


def test_tables_are_read_without_torch() -> None:
    tables = [table for table, _ in CASES]
    code = (
        "import json, sys; from sottovoce.runs.loading import parse\n"
        "from sottovoce.runs.spec import ModelSpec\n"
        "tables, spec = json.load(sys.stdin)\n"
        "for table in tables: ModelSpec.model_validate(table)\n"
        "parse(spec)\n"
        "sys.exit('torch' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([tables, small_table()]),
        text=True,
        check=False,
    )
    assert found.returncode == 0
