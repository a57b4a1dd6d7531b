"""The models 'module' and 'in_memory': torch modules that a function of the user creates.

'module' imports the function by name. 'in_memory' uses a function of this process, which no other
process can call.
"""

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.learning import in_memory
from sottovoce.learning.models.register import InitialWeights, InputShape, register_model

if TYPE_CHECKING:
    from torch import nn

GIVEN = ("input_shape", "num_outputs")


@register_model("module", summary="your own torch module, from a function")
@dataclass(frozen=True, slots=True, kw_only=True)
class UserModule:
    """A module created by factory(input_shape=..., num_outputs=..., **arguments).

    The function is imported and called, so a spec with a factory must be trusted like a program.
    The module keeps the weights with which it is built.

    Attributes:
        factory: The function as "package.module:function", of an installed package or in the
            current folder.
        arguments: Further arguments of the function, by name.

    Raises:
        ParameterError: `factory` has another form, or `arguments` has a name that is passed anyway.
    """

    initial_weights: ClassVar[InitialWeights] = "own"
    factory: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parameter_rules.text("factory", self.factory)
        if not isinstance(self.arguments, Mapping):
            raise ParameterError(f"arguments must be a table, got {self.arguments!r}")
        check_function_path("factory", self.factory)
        if taken := [name for name in GIVEN if name in self.arguments]:
            raise ParameterError(
                f"'{taken[0]}' is passed to every factory; remove it from the model's arguments"
            )

    def build(self, input_shape: InputShape, num_outputs: int) -> "nn.Module":
        """Return the module that the factory creates, after a trial on two samples of zeros.

        ParameterError or UnknownNameError is raised if the factory cannot be imported or called, or
        if the module cannot be trained.
        """
        with _current_folder_importable():
            arguments = {"input_shape": input_shape, "num_outputs": num_outputs, **self.arguments}
            return build_and_try(self.factory, _import(self.factory, "factory"), arguments)


@contextlib.contextmanager
def _current_folder_importable() -> Iterator[None]:
    """Put the current folder on sys.path, where `python -m` has it and a console script does not.

    It comes last, so that none of its files hides an installed package, and is removed afterwards.
    """
    if "" in sys.path:
        yield
        return
    sys.path.append("")
    try:
        yield
    finally:
        if "" in sys.path:  # The user's code may have changed it.
            sys.path.remove("")


def build_and_try(
    name: str, factory: Callable[..., Any], arguments: Mapping[str, Any]
) -> "nn.Module":
    """Return the module that a factory creates, after a trial on two samples of zeros.

    Args:
        name: What the factory is called in messages.
        factory: The function that creates the module.
        arguments: Its arguments by name, which include `input_shape` and `num_outputs`.

    Raises:
        ParameterError: The factory fails or returns no module; or the module fails, returns another
            shape than (2, num_outputs), changes a buffer, or has layers or parameters that
            `check_layers` refuses.
    """
    from torch import nn

    from sottovoce.learning.models.modules import check_layers

    _check_call(name, factory, arguments)
    try:
        module = factory(**arguments)
    except Exception as error:  # The user's code may raise anything.
        raise ParameterError(
            f"factory '{name}' raised {_in_one_line(error)}; correct it or the model's arguments"
        ) from error
    if not isinstance(module, nn.Module):
        raise ParameterError(
            f"factory '{name}' returned {type(module).__name__}, not a torch.nn.Module; "
            "return the module itself"
        )
    check_layers(module)
    _try(name, module, arguments["input_shape"], arguments["num_outputs"])
    return module


def _in_one_line(error: Exception) -> str:
    """Return type and message of an error in one line."""
    return ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))


def import_function(path: str, what: str) -> Callable[..., Any]:
    """Return the user's function "package.module:function"; the current folder is searched last.

    Args:
        path: The function.
        what: What it is called in messages, such as "factory".

    Raises:
        ParameterError: The text has another form, or the module cannot be imported.
        UnknownNameError: The module has no such function.
    """
    check_function_path(what, path)
    with _current_folder_importable():
        return _import(path, what)


def check_function_path(what: str, path: str) -> None:
    """Raise ParameterError unless the text has the form 'package.module:function'."""
    module, _, function = path.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), function)):
        raise ParameterError(f"{what} must have the form 'package.module:function', got '{path}'")


def _import(path: str, what: str) -> Callable[..., Any]:
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ParameterError(
            f"cannot import the {what} '{path}': {error}; install its package, run from the "
            "folder that holds it, or put that on PYTHONPATH"
        ) from error
    except Exception as error:  # The user's code may raise anything.
        raise ParameterError(
            f"importing the {what} '{path}' raised {_in_one_line(error)}; correct {module_name}"
        ) from error
    if not hasattr(module, name):
        functions = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        raise UnknownNameError.among(f"function in {module_name}", name, functions)
    factory = getattr(module, name)
    if not callable(factory):
        raise ParameterError(
            f"{what} '{path}' has type {type(factory).__name__}, not function; name a function"
        )
    found: Callable[..., Any] = factory
    return found


def _check_call(path: str, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    try:
        inspect.signature(factory).bind(**arguments)
    except (TypeError, ValueError) as error:  # Some builtins have no signature.
        raise ParameterError(
            f"factory '{path}' cannot be called with {', '.join(arguments)}: {error}; it must take "
            "input_shape and num_outputs by name, and the model's arguments"
        ) from None


def _try(path: str, module: "nn.Module", input_shape: InputShape, num_outputs: int) -> None:
    """Refuse a module with outputs of the wrong shape, or with buffers that learn from samples."""
    import torch

    from sottovoce.learning.models.modules import logits_of

    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    zeros, failures = torch.zeros(2, *input_shape), []
    for samples in (zeros, zeros.long()):  # Some modules take whole numbers only: tokens.
        try:
            with torch.no_grad():
                outputs = logits_of(module(samples))
            break
        except Exception as error:  # The user's code may raise anything.
            failures.append(error)
    else:
        raise ParameterError(
            f"the module of '{path}' fails on two samples of shape {input_shape}: "
            f"{_in_one_line(failures[0])}; it must take batches (n, *input_shape)"
        ) from failures[0]
    shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    # With an axis more there is an output for each position of a sequence.
    if shape not in ((2, num_outputs), (2, *input_shape, num_outputs)):
        several = "; several labels of 0 or 1 for each sample need loss = 'binary_cross_entropy'"
        raise ParameterError(
            f"the module of '{path}' returns shape {shape} for two samples, expected "
            f"{(2, num_outputs)}; its last layer must have num_outputs units: one for each class "
            "if labels have an integer type (such as y.astype(int)), else one for each number to "
            f"predict{several if num_outputs == 2 else ''}"
        )
    for name, buffer in module.named_buffers():
        if name not in before or not torch.equal(before[name], buffer):
            raise ParameterError(
                f"buffer '{name}' of the module of '{path}' changes in a forward pass, so it would "
                "learn from samples without any noise; make it constant, or use GroupNorm"
            )


@register_model("in_memory", summary="a module that a Python program gave to sottovoce.simulate")
@dataclass(frozen=True, slots=True, kw_only=True)
class InMemoryModule:
    """A module created by a function of (input_shape, num_outputs) of this process.

    Attributes:
        label: The label under which the function is provided (`in_memory.provide_objects`).
    """

    initial_weights: ClassVar[InitialWeights] = "own"
    label: str

    def __post_init__(self) -> None:
        parameter_rules.text("label", self.label)

    def build(self, input_shape: InputShape, num_outputs: int) -> "nn.Module":
        """Return the module that the function creates, after a trial on two samples of zeros.

        ParameterError is raised if this process does not have the function, or if the module cannot
        be trained.
        """
        part = in_memory.find("model", self.label)
        if part is None:
            raise ParameterError(
                f"the model '{self.label}' is a function of the Python program that created the "
                "run, and this process does not have it; pass it to sottovoce.simulate(..., "
                "model=...) again, or put it into a module and set model.kind = 'module' with a "
                "factory"
            )
        arguments = {"input_shape": input_shape, "num_outputs": num_outputs}
        return build_and_try(self.label, part.value, arguments)
