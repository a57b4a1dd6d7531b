"""Arrays and functions of this process, which a spec can name but cannot bring along.

`data.dataset = "memory:LABEL"` and `model.kind = "in_memory"` are found while they are lent, and
after that for as long as somebody holds the parts. Another process does not have them, and says so.
"""

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakValueDictionary

Kind = Literal["data", "model"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Part:
    """Something that a spec calls by its label."""

    kind: Kind
    label: str
    value: Any


# By thread: two runs at once may call different things by one label.
_lent: ContextVar[Mapping[tuple[Kind, str], Part] | None] = ContextVar("lent", default=None)
_last: WeakValueDictionary[tuple[Kind, str], Part] = WeakValueDictionary()


@contextlib.contextmanager
def lent(*parts: Part) -> Iterator[None]:
    """These parts, wherever a spec names them inside of the block."""
    named = {(part.kind, part.label): part for part in parts}
    _last.update(named)
    token = _lent.set({**(_lent.get() or {}), **named})
    try:
        yield
    finally:
        _lent.reset(token)


def find(kind: Kind, label: str) -> Part | None:
    """The part of that label: the one that is lent, else the last that still is."""
    return (_lent.get() or {}).get((kind, label)) or _last.get((kind, label))
