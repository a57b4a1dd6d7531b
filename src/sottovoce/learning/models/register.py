"""The register of models, one decorator on a frozen dataclass, and the two of this package.

    @register_model("mlp", summary="one hidden layer with tanh")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Mlp:
        initial_weights: ClassVar[InitialWeights] = "tanh"
        hidden_units: int

        def build(self, input_shape: InputShape, num_outputs: int) -> "nn.Module": ...

Its fields are the keys that may stand beside `kind = "mlp"` in [model]; `__post_init__` checks
them (see `core.sections`). Name its module in `MODELS` below, or under the entry point group
`models` (see `core.registry`); nothing else changes. Import torch inside `build`,
not at the top of the file: specs, ledgers and reports are read where torch is not installed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, get_args

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError, PluginError
from sottovoce.core.plugin_returns import Contract, Returns, hold
from sottovoce.core.registry import Register
from sottovoce.core.sections import Registered, section_from

if TYPE_CHECKING:
    from torch import nn

InputShape = tuple[int, ...]

MAX_SIDE = 2**24


def checked(input_shape: InputShape, num_outputs: int) -> InputShape:
    """A shape of one sample with at least one axis, none of them empty."""
    parameter_rules.integer("num_outputs", num_outputs, low=1, high=MAX_SIDE)
    if not isinstance(input_shape, tuple) or not input_shape:
        raise ParameterError(
            f"input_shape must be a tuple such as (64,) or (1, 28, 28), got {input_shape!r}; "
            "give the shape of one sample, features.shape[1:]"
        )
    for side in input_shape:
        parameter_rules.integer("each side of input_shape", side, low=1, high=MAX_SIDE)
    return input_shape


def num_features(input_shape: InputShape) -> int:
    return math.prod(input_shape)


def image(name: str, input_shape: InputShape, *, smallest_side: int) -> int:
    """The number of channels of an image that is large enough for the model called `name`."""
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest_side:
        raise ParameterError(
            f"{name} takes images (channels, height, width) of at least {smallest_side} pixels a "
            f"side, got samples of shape {input_shape}; reshape the data or use the model 'mlp'"
        )
    return input_shape[0]


def flat_size(layers: "nn.Module", input_shape: InputShape) -> int:
    """How many numbers `layers` make of one sample, found by sending one through."""
    import torch

    with torch.no_grad():
        made: torch.Tensor = layers(torch.zeros(1, *input_shape))
    return made.numel()


def check_groups(groups: int, channels: int) -> None:
    """Group normalisation needs groups of equal size in every layer."""
    parameter_rules.integer("groups", groups, low=1, high=channels)
    if channels % groups:
        raise ParameterError(
            f"groups must divide the {channels} channels of the first layer, got {groups}; "
            "use a power of two"
        )


# zero: all at 0. tanh, relu: drawn by the rules of `modules`, as the activations want it.
# own: as `build` leaves them, which draws from torch's generator; that of a model without a word.
InitialWeights = Literal["zero", "tanh", "relu", "own"]


class Model(Protocol):
    """The keys of a [model] table, and the module that they make.

    The class variable `initial_weights` says where weights start; without it, "own".
    """

    def build(self, input_shape: InputShape, num_outputs: int) -> "nn.Module":
        """Return the module for batches of shape (n, *input_shape)."""


M = TypeVar("M", bound=type)

_HERE = "sottovoce.learning.models"
MODELS: Register[Registered[Any]] = Register(
    "model",
    places={
        "linear": f"{_HERE}.register",
        "mlp": f"{_HERE}.register",
        "module": f"{_HERE}.user_module",
        "in_memory": f"{_HERE}.user_module",
    },
)


def _is_module(value: object) -> bool:
    from torch import nn

    return isinstance(value, nn.Module)


_CONTRACT = Contract(
    needs=("build",), returns={"build": Returns(what="a torch.nn.Module", fits=_is_module)}
)


def register_model(kind: str, *, summary: str) -> Callable[[M], M]:
    """Class decorator that enters a model, a frozen dataclass with a method `build`."""

    def enter(section: M) -> M:
        hold(MODELS, kind, section, _CONTRACT)
        MODELS.enter(kind, Registered(section=section, summary=summary), module=section.__module__)
        return section

    return enter


def model_of(kind: str, given: dict[str, Any]) -> Model:
    """Return the model of a [model] table; an unknown kind or key is an error with the nearest."""
    model: Model = section_from(MODELS, "model", kind, given)
    return model


@register_model("mlp", summary="one hidden layer with tanh")
@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """One hidden layer with tanh, Glorot-initialised."""

    initial_weights: ClassVar[InitialWeights] = "tanh"
    hidden_units: int

    def __post_init__(self) -> None:
        parameter_rules.integer("hidden_units", self.hidden_units, low=1, high=2**20)

    def build(self, input_shape: InputShape, num_outputs: int) -> "nn.Module":
        from torch import nn

        from sottovoce.learning.models.modules import FlatLinear

        return nn.Sequential(
            FlatLinear(num_features(input_shape), self.hidden_units),
            nn.Tanh(),
            nn.Linear(self.hidden_units, num_outputs),
        )


@register_model("linear", summary="logistic or linear regression, starting at zero")
@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Multinomial logistic regression, starting at zero.

    Without `bias` where features have a small constant of their own: the gradient of a bias, whose
    input is 1, would leave little room for others inside a small clip norm.
    """

    initial_weights: ClassVar[InitialWeights] = "zero"
    bias: bool = True

    def __post_init__(self) -> None:
        parameter_rules.boolean("bias", self.bias)

    def build(self, input_shape: InputShape, num_outputs: int) -> "nn.Module":
        from sottovoce.learning.models.modules import FlatLinear

        return FlatLinear(num_features(input_shape), num_outputs, bias=self.bias)


def create(
    model: Model, input_shape: InputShape, num_outputs: int, generator: np.random.Generator
) -> "nn.Module":
    """The module with initial weights that follow from `generator` alone."""
    if _rule(model) == "own":
        seed = int(generator.integers(2**63))
        return _built(model, input_shape, num_outputs, torch_seed=seed)
    module = build(model, input_shape, num_outputs)
    initialise(model, module, generator)
    return module


def build(model: Model, input_shape: InputShape, num_outputs: int) -> "nn.Module":
    """The module; its initial weights are set by `initialise`, or by `create` in one go."""
    return _built(model, input_shape, num_outputs, torch_seed=0)


def initialise(model: Model, module: "nn.Module", generator: np.random.Generator) -> None:
    """Initial weights from a generator of ours, so that a run can be repeated anywhere."""
    from sottovoce.learning.models import modules

    match _rule(model):
        case "zero":
            modules.zero(module)
        case "tanh":
            modules.for_tanh(module, generator)
        case "relu":
            modules.for_relu(module, generator)
        case _:
            name = getattr(model, "factory", getattr(model, "label", type(model).__name__))
            raise ParameterError(
                f"the module of '{name}' draws its own weights while it is built; "
                "use models.create, which builds it under a seed from the generator"
            )


def _rule(model: Model) -> InitialWeights:
    rule: InitialWeights = getattr(model, "initial_weights", "own")
    if rule not in get_args(InitialWeights):
        raise PluginError(
            f"the model '{type(model).__name__}' has initial_weights = {rule!r}, and it must be "
            f"one of {', '.join(get_args(InitialWeights))}"
        )
    return rule


def _built(
    model: Model, input_shape: InputShape, num_outputs: int, *, torch_seed: int
) -> "nn.Module":
    import torch

    input_shape = checked(input_shape, num_outputs)
    # Torch's layers draw from its global generator, which is nobody's here: left as it was found.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed)
        return model.build(input_shape, num_outputs)
