"""Checks of what the methods of a plug-in return, made where they are called.

    _CONTRACT = Contract(base=ClientSampling, needs=("draw",), returns={"describe": TEXT})
    enforce_contract(SAMPLINGS, "in_turn", InTurn, _CONTRACT)

A method that returns None or another type would otherwise fail later, in code that the author of
the plug-in never saw. Only plug-ins are checked at run time: Sottovoce's own classes are tested.
"""

import dataclasses
import functools
import inspect
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sottovoce.core.errors import PluginError
from sottovoce.core.registry import Register, is_ours

F = TypeVar("F", bound=Callable[..., Any])

_ABSENT = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnCondition:
    """A condition on what a method returns.

    Attributes:
        what: What the value must be, such as "a string", for the error message.
        fits: A function that tells whether a value meets the condition.
        calls: The condition on the results of a returned function; None for no condition.
        yields: The condition on each item of a returned iterator; None for no condition.
        methods: The conditions on the results of a returned object's methods, by name; None for no
            condition.
    """

    what: str
    fits: Callable[[Any], bool]
    calls: "ReturnCondition | None" = None
    yields: "ReturnCondition | None" = None
    methods: "Mapping[str, ReturnCondition] | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a registered class must define, and what its methods must return.

    Attributes:
        base: The class of Sottovoce whose methods the registered class overrides.
        needs: The methods and attributes that it must define.
        returns: The conditions on the results of methods, required or optional, by name.
    """

    base: type = object
    needs: tuple[str, ...] = ()
    returns: Mapping[str, ReturnCondition] = field(default_factory=dict)


def enforce_contract(register: Register[Any], name: str, owner: type, contract: Contract) -> None:
    """Check the class that is registered under `name` against its contract, if it is a plug-in.

    The class is changed in place: the methods named in `contract.returns` that plug-ins define are
    wrapped, so that each call checks its result and raises PluginError if it does not fit. A class
    of the package `sottovoce` is neither checked nor changed; one of `sottovoce_papers` is.

    Args:
        register: The register of the class.
        name: Its registered name, for messages.
        owner: The class.
        contract: What the class must define.

    Raises:
        PluginError: The class is no dataclass, or lacks a method or attribute of `contract.needs`.
    """
    if is_ours(owner.__module__):
        return
    if not dataclasses.is_dataclass(owner):
        raise PluginError(
            f"the class of the {register.kind} '{name}' must be a dataclass; put "
            "@dataclass(frozen=True, slots=True, kw_only=True) below the decorator that registers "
            "it"
        )
    # A field without a default is no attribute of a class that has no slots.
    given = {one.name for one in dataclasses.fields(owner)}
    absent = [
        one
        for one in contract.needs
        if one not in given and _found(owner, one) is _found(contract.base, one)
    ]
    if absent:
        raise PluginError(
            f"the {register.kind} '{name}' does not define {', '.join(absent)}; "
            "define each of them in its class"
        )
    _wrap_methods(functools.partial(_named, register, name), owner, contract.returns)


def _wrap_methods(
    who: Callable[[], str], owner: type, returns: Mapping[str, ReturnCondition]
) -> None:
    """Wrap the named methods that a plug-in's class defines itself, to check their results."""
    for name, wanted in returns.items():
        definer = next((one for one in owner.__mro__ if name in vars(one)), object)
        defined = vars(definer).get(name)
        if is_ours(definer.__module__) or hasattr(defined, "has_checked_results"):
            continue
        if inspect.isfunction(defined):
            setattr(
                owner, name, _with_checked_results(defined, who, f"the result of {name}()", wanted)
            )


def with_checked_results(
    register: Register[Any], name: str, function: F, wanted: ReturnCondition
) -> F:
    """Return a function that calls a plug-in's function and checks each result.

    Args:
        register: The register of the function.
        name: Its registered name, for messages.
        function: The function.
        wanted: The condition on its results; one that does not meet it raises PluginError.

    Returns:
        The checking function; the function itself if it belongs to Sottovoce.
    """
    if is_ours(function.__module__):
        return function
    return _with_checked_results(
        function, functools.partial(_named, register, name), "its result", wanted
    )


def _found(owner: object, name: str) -> object:
    return inspect.getattr_static(owner, name, _ABSENT)


def _named(register: Register[Any], name: str) -> str:
    """Return the plug-in's description for people, looked up when an error is raised."""
    return register.describe_plugin(name) or f"the {register.kind} '{name}'"


def _with_checked_results(
    function: F, who: Callable[[], str], call: str, wanted: ReturnCondition
) -> F:
    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        return _checked(function(*args, **kwargs), who, call, wanted)

    checked.has_checked_results = True  # type: ignore[attr-defined]
    return checked  # type: ignore[return-value]


def _checked(value: Any, who: Callable[[], str], call: str, wanted: ReturnCondition) -> Any:
    if not wanted.fits(value):
        got = "None" if value is None else f"an object of type {type(value).__name__}"
        raise PluginError(f"{who()}: {call} must be {wanted.what}, got {got}; correct the plug-in")
    if wanted.calls is not None:
        return _with_checked_results(
            value, who, f"the result of the function that is {call}", wanted.calls
        )
    if wanted.methods is not None:
        _wrap_methods(who, type(value), wanted.methods)
    if wanted.yields is not None:
        return _each(value, who, call, wanted.yields)
    return value


def _each(
    values: Iterable[Any], who: Callable[[], str], call: str, wanted: ReturnCondition
) -> Iterator[Any]:
    for value in values:
        yield _checked(value, who, f"an item of {call}", wanted)


# -- frequent conditions ---------------------------------------------------------------------------


def instance(kind: type | tuple[type, ...], what: str) -> ReturnCondition:
    """Return the condition that a value is an instance of `kind`; `what` says so in messages."""
    return ReturnCondition(what=what, fits=lambda value: isinstance(value, kind))


def with_attributes(
    names: Iterable[str], what: str, methods: Mapping[str, ReturnCondition] | None = None
) -> ReturnCondition:
    """Return the condition that a value has these attributes, and methods with these results.

    Args:
        names: The attributes, methods included, that must exist.
        what: What the value must be, such as "a collector", for the error message.
        methods: The conditions on the results of the value's methods, by name; None for none.

    Returns:
        The condition.
    """
    wanted = tuple(names)
    return ReturnCondition(
        what=f"{what}, which has {', '.join(wanted)}",
        fits=lambda value: all(_found(value, name) is not _ABSENT for name in wanted),
        methods=methods,
    )


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


TEXT = instance(str, "a string")
TEXTS = ReturnCondition(what="a list of strings, which may be empty", fits=_is_texts)
NUMBER = instance(numbers.Real, "a number")  # This includes the numbers of numpy.
MAPPING = instance(Mapping, "a dictionary, which may be empty")
