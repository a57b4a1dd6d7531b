"""The models that a spec may name, as tables with a `kind`."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, assert_never

from pydantic import BeforeValidator, Field

from sottovoce.runs.section import Section, as_written

if TYPE_CHECKING:  # a spec can be read where torch is not installed
    from sottovoce.learning.models import Model

Count = Annotated[int, Field(ge=1)]


class LinearSpec(Section):
    kind: Literal["linear"]
    bias: bool = True


class MlpSpec(Section):
    kind: Literal["mlp"]
    hidden_units: Count


class TanhConvnetSpec(Section):
    kind: Literal["tanh_convnet"]
    bounded_outputs: bool = True


class FemnistConvnetSpec(Section):
    kind: Literal["femnist_convnet"]


class UdpMnistCnnSpec(Section):
    kind: Literal["udp_mnist_cnn"]


class UdpMedicalCnnSpec(Section):
    kind: Literal["udp_medical_cnn"]


class SmallCifarCnnSpec(Section):
    kind: Literal["small_cifar_cnn"]
    groups: Count = 8


class StridedCnnSpec(Section):
    kind: Literal["strided_cnn"]


class Resnet18Spec(Section):
    kind: Literal["resnet18"]
    groups: Count = 32


class WindCnnSpec(Section):
    kind: Literal["wind_cnn"]
    filters: Count = 16


class ModuleSpec(Section):
    """A user's own module: `factory` is "package.module:function", called with `arguments`.

    Warning: the module is imported and the function called, so that a spec with a factory can do
    whatever a program can. Commands refuse it without `--allow-code`, and `simulate` without
    `allow_code=True`; a site calls only what its own file lists under `factories`.
    """

    kind: Literal["module"]
    factory: str
    arguments: Annotated[dict[str, Any], BeforeValidator(as_written)] = Field(default_factory=dict)


class InMemorySpec(Section):
    """A module that a Python program gave to `sottovoce.simulate`; no other program has it."""

    kind: Literal["in_memory"]
    label: str


AnyModelSpec = (
    LinearSpec
    | MlpSpec
    | TanhConvnetSpec
    | FemnistConvnetSpec
    | UdpMnistCnnSpec
    | UdpMedicalCnnSpec
    | SmallCifarCnnSpec
    | StridedCnnSpec
    | Resnet18Spec
    | WindCnnSpec
    | ModuleSpec
    | InMemorySpec
)
ModelSpec = Annotated[AnyModelSpec, Field(discriminator="kind")]


def to_model(spec: AnyModelSpec) -> "Model":
    """The model that a table describes; its parameters are checked by the model itself."""
    from sottovoce.learning import models

    match spec:
        case LinearSpec(bias=bias):
            return models.Linear(bias=bias)
        case MlpSpec(hidden_units=hidden_units):
            return models.Mlp(hidden_units=hidden_units)
        case TanhConvnetSpec(bounded_outputs=bounded_outputs):
            return models.TanhConvnet(bounded_outputs=bounded_outputs)
        case FemnistConvnetSpec():
            return models.FemnistConvnet()
        case UdpMnistCnnSpec():
            return models.UdpMnistCnn()
        case UdpMedicalCnnSpec():
            return models.UdpMedicalCnn()
        case SmallCifarCnnSpec(groups=groups):
            return models.SmallCifarCnn(groups=groups)
        case StridedCnnSpec():
            return models.StridedCnn()
        case Resnet18Spec(groups=groups):
            return models.Resnet18(groups=groups)
        case WindCnnSpec(filters=filters):
            return models.WindCnn(filters=filters)
        case ModuleSpec(factory=factory, arguments=arguments):
            return models.UserModule(factory=factory, arguments=arguments)
        case InMemorySpec(label=label):
            return models.InMemoryModule(label=label)
        case _:
            assert_never(spec)
