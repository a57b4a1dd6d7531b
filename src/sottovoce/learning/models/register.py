"""The register of models: one decorator on a frozen dataclass.

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

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from sottovoce.core.registry import Register
from sottovoce.core.sections import Registered, section_from
from sottovoce.learning.models.shapes import InputShape

if TYPE_CHECKING:
    from torch import nn

# zero: all at 0. tanh, relu: drawn by the rules of `initialisation`, as the activations want it.
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
        "linear": f"{_HERE}.linear",
        "mlp": f"{_HERE}.mlp",
        "module": f"{_HERE}.user_module",
        "in_memory": f"{_HERE}.in_memory_module",
    },
)


def register_model(kind: str, *, summary: str) -> Callable[[M], M]:
    """Class decorator that enters a model, a frozen dataclass with a method `build`."""

    def enter(section: M) -> M:
        MODELS.enter(kind, Registered(section=section, summary=summary), module=section.__module__)
        return section

    return enter


def model_of(kind: str, given: dict[str, Any]) -> Model:
    """Return the model of a [model] table; an unknown kind or key is an error with the nearest."""
    model: Model = section_from(MODELS, "model", kind, given)
    return model
