"""Arrays and functions of this process that a spec refers to by a label.

The objects of `data.dataset = "memory:LABEL"` and `model.kind = "in_memory"` are found inside a
block `with provide_objects(...)`, and after it as long as some code holds a reference to them.
Another process does not have the objects and raises an error.
"""

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakValueDictionary

Kind = Literal["data", "model"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class InMemoryObject:
    """An object that a spec refers to by its label."""

    kind: Kind
    label: str
    value: Any


# A context variable, because two runs in different threads may use one label for different objects.
_lent: ContextVar[Mapping[tuple[Kind, str], InMemoryObject] | None] = ContextVar(
    "lent", default=None
)
_last: WeakValueDictionary[tuple[Kind, str], InMemoryObject] = WeakValueDictionary()


@contextlib.contextmanager
def provide_objects(*parts: InMemoryObject) -> Iterator[None]:
    """Make these objects available to specs inside the block."""
    named = {(part.kind, part.label): part for part in parts}
    _last.update(named)
    token = _lent.set({**(_lent.get() or {}), **named})
    try:
        yield
    finally:
        _lent.reset(token)


def find(kind: Kind, label: str) -> InMemoryObject | None:
    """Return the object of that label: one provided by a surrounding block, or the last alive."""
    return (_lent.get() or {}).get((kind, label)) or _last.get((kind, label))
