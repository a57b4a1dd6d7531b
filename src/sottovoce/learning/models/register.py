"""The register of models, and the models 'linear' and 'mlp'.

A model is a frozen dataclass with a decorator:

    @register_model("mlp", summary="one hidden layer with tanh")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Mlp:
        initial_weights: ClassVar[InitialWeights] = "tanh"
        hidden_units: int

        def build(self, input_shape: InputShape, num_outputs: int) -> "nn.Module": ...

Its fields are the keys that are allowed next to `kind = "mlp"` in [model]; `__post_init__` checks
them (see `core.sections`). List its module in `MODELS` below, or under the entry point group
`sottovoce.models` (see `core.registry`); nothing else changes. Import torch inside `build`, not at
the top of the file: specs, ledgers and reports are also read where torch is not installed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, get_args

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError, PluginError
from sottovoce.core.plugin_returns import Contract, ReturnCondition, enforce_contract
from sottovoce.core.registry import Register
from sottovoce.core.sections import RegisteredSection, section_from

if TYPE_CHECKING:
    from torch import nn

InputShape = tuple[int, ...]

MAX_SIDE = 2**24


def check_shape(input_shape: InputShape, num_outputs: int) -> InputShape:
    """Return `input_shape`, the shape of one sample, after checking both arguments.

    ParameterError is raised if it is no tuple of integers of at least 1, or if there is no output.
    """
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
    """Return the number of values of one sample, the product of the sides of its shape."""
    return math.prod(input_shape)


def check_image(name: str, input_shape: InputShape, *, smallest_side: int) -> int:
    """Return the number of channels of an image, after checking that its sides are long enough.

    Args:
        name: The name of the model, for the message.
        input_shape: The shape of one sample.
        smallest_side: The least height and width, in pixels.

    Raises:
        ParameterError: The shape is not (channels, height, width), or a side is too short.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest_side:
        raise ParameterError(
            f"{name} needs images (channels, height, width) with at least {smallest_side} pixels "
            f"per side, got samples of shape {input_shape}; reshape the data or use the model 'mlp'"
        )
    return input_shape[0]


def flat_size(layers: "nn.Module", input_shape: InputShape) -> int:
    """Return how many numbers `layers` compute from one sample, by applying them to zeros."""
    import torch

    with torch.no_grad():
        made: torch.Tensor = layers(torch.zeros(1, *input_shape))
    return made.numel()


def check_groups(groups: int, channels: int) -> None:
    """Raise ParameterError unless `groups` divides the channels, so that groups have equal size."""
    parameter_rules.integer("groups", groups, low=1, high=channels)
    if channels % groups:
        raise ParameterError(
            f"groups must divide the {channels} channels of the first layer, got {groups}; "
            "choose a divisor of that number"
        )


# "zero": all weights are 0. "tanh", "relu": weights are drawn by the rules in `modules` for these
# activations. "own": weights are those that `build` draws from torch's generator; the default.
InitialWeights = Literal["zero", "tanh", "relu", "own"]


class Model(Protocol):
    """The keys of a [model] table, and the module that they describe.

    The class variable `initial_weights` says how weights are initialized; without it, "own".
    """

    def build(self, input_shape: InputShape, num_outputs: int) -> "nn.Module":
        """Return the module for batches of shape (n, *input_shape).

        Args:
            input_shape: The shape of one sample.
            num_outputs: The number of outputs for each sample.

        Returns:
            A torch module whose output has the shape (n, num_outputs).
        """


M = TypeVar("M", bound=type)

_HERE = "sottovoce.learning.models"
MODELS: Register[RegisteredSection[Any]] = Register(
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
    needs=("build",), returns={"build": ReturnCondition(what="a torch.nn.Module", fits=_is_module)}
)


def register_model(kind: str, *, summary: str) -> Callable[[M], M]:
    """Return a class decorator that registers a model.

    The class must be a frozen dataclass with a method `build`.

    Args:
        kind: The name of the model, as in `model.kind`.
        summary: One line about it, for lists.

    Returns:
        The decorator.

    Raises:
        PluginError: When the decorator is applied: the class is no dataclass or lacks `build`, or
            another module has registered the name.
    """

    def enter(section: M) -> M:
        enforce_contract(MODELS, kind, section, _CONTRACT)
        MODELS.enter(
            kind, RegisteredSection(section=section, summary=summary), module=section.__module__
        )
        return section

    return enter


def model_of(kind: str, given: dict[str, Any]) -> Model:
    """Return the model that a [model] table describes.

    Args:
        kind: The value of the key `kind`. If a plug-in registers it, the plug-in is imported.
        given: All other keys of the table, with their values.

    Raises:
        UnknownNameError: The kind is not registered, or `given` has a key that this kind lacks.
        ConfigError: A key without a default is missing, or a value is null although null is not the
            key's default.
        ParameterError: A value is invalid.
        PluginError: The kind is a plug-in's that does not work, or two sources claim it.
    """
    model: Model = section_from(MODELS, "model", kind, given)
    return model


@register_model("mlp", summary="one hidden layer with tanh")
@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """A network with one hidden layer of tanh units, initialized by Glorot's uniform rule.

    Attributes:
        hidden_units: The number of hidden units.
    """

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
    """Multinomial logistic regression, or linear regression, whose weights start at zero.

    The task's objective, "classification" or "regression", decides which.

    Attributes:
        bias: Whether each output has a bias. Set it to False if the features contain a small
            constant: the input of a bias is 1, so its gradient would take up most of a small
            clipping norm.
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
    """Return the module of a model with its initial weights, drawn from `generator`.

    The same model, shape and state of the generator give the same weights. A model with
    `initial_weights` "own" must draw them from torch's generator for the CPU, which is seeded from
    `generator` for it and restored afterwards.
    """
    if _rule(model) == "own":
        seed = int(generator.integers(2**63))
        return _build_seeded(model, input_shape, num_outputs, torch_seed=seed)
    module = build(model, input_shape, num_outputs)
    initialize(model, module, generator)
    return module


def build(model: Model, input_shape: InputShape, num_outputs: int) -> "nn.Module":
    """Return the module of a model, before its initial weights are set.

    Its layers draw theirs with a fixed seed of torch; `initialize` sets the initial weights, and
    `create` does both.
    """
    return _build_seeded(model, input_shape, num_outputs, torch_seed=0)


def initialize(model: Model, module: "nn.Module", generator: np.random.Generator) -> None:
    """Set a module's initial weights in place, from a numpy generator.

    They follow the model's rule (`initial_weights`), and are the same on every machine.

    Raises:
        ParameterError: The rule is "own": the model draws its weights while it is built, so use
            `create` instead. Or the rule does not cover a layer of the module.
    """
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
                "use models.create, which builds it with a seed from the generator"
            )


def _rule(model: Model) -> InitialWeights:
    rule: InitialWeights = getattr(model, "initial_weights", "own")
    if rule not in get_args(InitialWeights):
        raise PluginError(
            f"initial_weights of the model '{type(model).__name__}' must be one of "
            f"{', '.join(get_args(InitialWeights))}, got {rule!r}"
        )
    return rule


def _build_seeded(
    model: Model, input_shape: InputShape, num_outputs: int, *, torch_seed: int
) -> "nn.Module":
    import torch

    input_shape = check_shape(input_shape, num_outputs)
    # Torch's layers draw from its global generator, whose state is restored afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed)
        return model.build(input_shape, num_outputs)
