"""How a spec's [algorithm] becomes an algorithm: one decorator on a frozen dataclass.

    @register("foo", summary="...")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class FooRecipe:
        server_learning_rate: float

        def build(self, setting: Setting) -> Algorithm: ...

Its fields are the keys that may stand beside `kind = "foo"`; `__post_init__` checks them. Drop the
file into `algorithms/`, or name its module under the entry point group `sottovoce.algorithms` (see
`core.registry`); nothing else changes. Only 'fedavg', 'scaffold' and 'nbafl' have tables of
their own in `config.spec`: their specs are read where no torch is installed.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import ConfigError, UnknownNameError
from sottovoce.core.randomness import Randomness
from sottovoce.core.registry import Register
from sottovoce.federated.algorithms.algorithm import Algorithm

if TYPE_CHECKING:  # bring torch
    from sottovoce.learning.clients import Clients
    from sottovoce.learning.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the rest of the spec says, for an algorithm to be built from.

    unit                  what is protected: samples, or whole clients.
    clip_norm             of a sample's gradient, or of a client's update.
    record_sampling_rate  with which probability a record takes part in a round, in secret.
    exact_sums            whether sums of gradients must not depend on their order.
    """

    unit: Unit
    clip_norm: float
    record_sampling_rate: float
    exact_sums: bool
    rounds: int
    task: "Task"
    clients: "Clients"
    randomness: Randomness


class Recipe(Protocol):
    """The keys of an [algorithm] table, and what they make."""

    def build(self, setting: Setting) -> Algorithm: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A recipe's class, None where `config.spec` has the table; and a few words on what it does."""

    recipe: Callable[..., Recipe] | None
    summary: str


R = TypeVar("R", bound=type)

RECIPES: Register[Registered] = Register("algorithm", package="sottovoce.federated.algorithms")


def register(kind: str, *, summary: str) -> Callable[[R], R]:
    """Class decorator that enters a recipe, a frozen dataclass with a method `build`."""

    def enter(recipe: R) -> R:
        registered = Registered(recipe=recipe, summary=summary)
        RECIPES.enter(kind, registered, module=recipe.__module__)
        return recipe

    return enter


def register_with_table(kind: str, *, summary: str, module: str) -> None:
    """Enter the name of an algorithm whose table stands in `config.spec`."""
    RECIPES.enter(kind, Registered(recipe=None, summary=summary), module=module)


def recipe_of(kind: str, given: Mapping[str, Any]) -> Recipe:
    """The recipe of an [algorithm] table; an unknown or missing key is an error that names it."""
    found = RECIPES.find(kind).recipe
    assert found is not None, f"'{kind}' has a table of its own"
    fields = {field.name: field for field in dataclasses.fields(found)}  # type: ignore[arg-type]
    for name in given:
        if name not in fields:
            raise UnknownNameError.among(f"key of algorithm '{kind}'", name, fields)
    missing = [
        f"'algorithm.{name}'"
        for name, field in fields.items()
        if name not in given
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"algorithm '{kind}' needs {', '.join(missing)}")
    return found(**given)
