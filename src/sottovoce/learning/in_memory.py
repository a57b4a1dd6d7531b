"""Arrays and functions of this process that a spec refers to by a label.

The objects of `data.dataset = "memory:LABEL"`, `model.loss = "memory:LABEL"`, `model.metric` and
`model.kind = "in_memory"` are found inside a block `with provide_objects(...)`, and after it as
long as some code holds a reference to them.
Another process does not have the objects and raises an error.
"""

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakValueDictionary

Kind = Literal["data", "model", "loss", "metric"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class InMemoryObject:
    """An object of this process that a spec refers to by its label.

    Attributes:
        kind: "data" for arrays, "model" for a function that creates a module, "loss" and "metric"
            for functions of outputs and labels.
        label: The label in the spec, as in `data.dataset = "memory:LABEL"`.
        value: The object.
        clients: For data, the names of the clients if each gave its own; otherwise ().
    """

    kind: Kind
    label: str
    value: Any
    clients: tuple[str, ...] = ()


# A context variable, because two runs in different threads may use one label for different objects.
_lent: ContextVar[Mapping[tuple[Kind, str], InMemoryObject] | None] = ContextVar(
    "lent", default=None
)
_last: WeakValueDictionary[tuple[Kind, str], InMemoryObject] = WeakValueDictionary()


@contextlib.contextmanager
def provide_objects(*parts: InMemoryObject) -> Iterator[None]:
    """Make these objects available to specs inside the `with` block.

    Blocks can be nested; an inner block's object hides an outer one of the same kind and label.
    After the block, `find` still returns an object as long as other code holds a reference to it.
    """
    named = {(part.kind, part.label): part for part in parts}
    _last.update(named)
    token = _lent.set({**(_lent.get() or {}), **named})
    try:
        yield
    finally:
        _lent.reset(token)


def find(kind: Kind, label: str) -> InMemoryObject | None:
    """Return the object of that kind and label, or None if this process does not have it.

    It is the one that a surrounding `provide_objects` block provides, else the one that was
    provided last, if other code still holds a reference to it.
    """
    return (_lent.get() or {}).get((kind, label)) or _last.get((kind, label))
