import dataclasses
import subprocess
import sys
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from sottovoce.core.errors import ParameterError
from sottovoce.learning import models
from sottovoce.learning.models import Model
from sottovoce.runs.model_spec import AnyModelSpec, ModelSpec, to_model

ADAPTER: TypeAdapter[AnyModelSpec] = TypeAdapter(ModelSpec)
NEEDED: dict[type, dict[str, Any]] = {
    models.Mlp: {"hidden_units": 7},
    models.UserModule: {"factory": "package.module:function"},
    models.InMemoryModule: {"label": "network"},
}
CASES: list[tuple[dict[str, Any], Model]] = [
    ({"kind": "linear"}, models.Linear()),
    ({"kind": "mlp", "hidden_units": 5}, models.Mlp(hidden_units=5)),
    ({"kind": "tanh_convnet"}, models.TanhConvnet()),
    (
        {"kind": "tanh_convnet", "bounded_outputs": False},
        models.TanhConvnet(bounded_outputs=False),
    ),
    ({"kind": "femnist_convnet"}, models.FemnistConvnet()),
    ({"kind": "udp_mnist_cnn"}, models.UdpMnistCnn()),
    ({"kind": "udp_medical_cnn"}, models.UdpMedicalCnn()),
    ({"kind": "small_cifar_cnn", "groups": 4}, models.SmallCifarCnn(groups=4)),
    ({"kind": "strided_cnn"}, models.StridedCnn()),
    ({"kind": "resnet18"}, models.Resnet18()),
    ({"kind": "resnet18", "groups": 16}, models.Resnet18(groups=16)),
    ({"kind": "wind_cnn", "filters": 3}, models.WindCnn(filters=3)),
    (
        {"kind": "module", "factory": "nets:small", "arguments": {"width": 3}},
        models.UserModule(factory="nets:small", arguments={"width": 3}),
    ),
    ({"kind": "in_memory", "label": "network"}, models.InMemoryModule(label="network")),
]


@pytest.mark.parametrize(("table", "model"), CASES, ids=lambda value: str(value)[:40])
def test_a_table_makes_its_model(table: dict[str, Any], model: Model) -> None:
    spec = ADAPTER.validate_python(table)
    assert to_model(spec) == model
    assert to_model(ADAPTER.validate_json(spec.model_dump_json())) == model


def test_every_model_has_a_table_with_the_same_fields_and_defaults() -> None:
    tables = {type(model): table["kind"] for table, model in CASES}
    assert set(tables) == set(get_args(Model))
    for kind, name in tables.items():
        needed = NEEDED.get(kind, {})
        spec = ADAPTER.validate_python({"kind": name, **needed})
        assert set(spec.model_dump()) - {"kind"} == {f.name for f in dataclasses.fields(kind)}
        assert to_model(spec) == kind(**needed)


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "mlp"},
        {"kind": "mlp", "hidden_units": 0},
        {"kind": "resnet18", "group": 8},
        {"kind": "module"},
        {"kind": "vgg"},
    ],
)
def test_what_a_table_may_get_wrong(table: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(table)


def test_rules_of_the_model_itself_are_kept() -> None:
    with pytest.raises(ParameterError, match="must divide"):
        to_model(ADAPTER.validate_python({"kind": "resnet18", "groups": 7}))


def test_tables_can_be_read_without_torch() -> None:
    code = "import sys, sottovoce.runs.model_spec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
