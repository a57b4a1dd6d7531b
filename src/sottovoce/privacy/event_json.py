"""Conversion of events to JSON for the ledger: equal events give equal text, floats stay exact."""

import dataclasses
import json
from functools import lru_cache
from typing import Any

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import LedgerError, PrivacyError
from sottovoce.privacy.events import (
    Allocated,
    Composed,
    Conditional,
    FinitePair,
    FiniteTable,
    GaussianNoise,
    LaplaceNoise,
    MetricDp,
    NonPrivate,
    OneBit,
    PrivacyEvent,
    PureDp,
    RenyiCurve,
    Repeated,
    Sampled,
    SeededBits,
    Shuffled,
    SummedBits,
    SummedNoise,
    ZeroConcentrated,
)

# The names under which ledgers store events; the classes may have other names. A stored name is
# never changed or removed; see the stability contract in `privacy.events`.
STORED_NAMES: dict[str, type[PrivacyEvent]] = {
    "NonPrivate": NonPrivate,
    "GaussianNoise": GaussianNoise,
    "LaplaceNoise": LaplaceNoise,
    "ZeroConcentrated": ZeroConcentrated,
    "PureDp": PureDp,
    "MetricDp": MetricDp,
    "FinitePair": FinitePair,
    "FiniteTable": FiniteTable,
    "RenyiCurve": RenyiCurve,
    "OneBit": OneBit,
    "SeededBits": SeededBits,
    "SecureSum": SummedBits,
    "SummedNoise": SummedNoise,
    "Sampled": Sampled,
    "Shuffled": Shuffled,
    "Allocated": Allocated,
    "Repeated": Repeated,
    "Composed": Composed,
    "Assumed": Conditional,
}
_NAME_OF = {shape: name for name, shape in STORED_NAMES.items()}

# Fields that were added later are left out at their defaults, so that older events keep their text.
_LATER = {"zero_centered": False, "ratios": None}

# The types of a tuple's items, by the type of the field: an integer in a float field becomes a
# float.
_ELEMENTS: dict[Any, Any] = {
    tuple[float, ...]: float,
    tuple[float, float] | None: float,
    tuple[tuple[float, ...], ...]: tuple[float, ...],
}


def to_json(event: PrivacyEvent) -> str:
    """Return the canonical JSON text of an event.

    Equal events give equal text, and floats stay exact: `from_json` returns an equal event.
    `LedgerError` is raised if a class has no name in `STORED_NAMES`.
    """

    def plain(value: Any, kind: Any = None) -> Any:
        if dataclasses.is_dataclass(value):
            fields = {
                field.name: plain(getattr(value, field.name), field.type)
                for field in dataclasses.fields(value)
                if not (field.name in _LATER and getattr(value, field.name) == _LATER[field.name])
            }
            return {"shape": _stored_name(type(value)), **fields}
        if isinstance(value, tuple):
            return [plain(item, _ELEMENTS.get(kind)) for item in value]
        # An integer in a float field is written as a float, because equal events need equal text.
        return float(value) if kind is float else value

    return json.dumps(plain(event), sort_keys=True, separators=(",", ":"))


def _stored_name(shape: type[Any]) -> str:
    if shape not in _NAME_OF:
        raise LedgerError(
            f"{shape.__name__} has no stored name, so a ledger could not read it again; use one of "
            f"{', '.join(STORED_NAMES)}"
        )
    return _NAME_OF[shape]


@lru_cache(maxsize=256)  # The clients of a round mostly share one event.
def from_json(text: str | None) -> PrivacyEvent:
    """Return the event of a text that `to_json` wrote.

    `LedgerError` is raised if the text is no privacy event, or is None: the event is missing.
    """
    if text is None:
        raise LedgerError(
            "a charge refers to an event that is missing; restore the ledger from a backup"
        )

    def build(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(build(item) for item in value)
        if not isinstance(value, dict):
            return value
        fields = {name: build(item) for name, item in value.items() if name != "shape"}
        if "adjacency" in fields:
            fields["adjacency"] = Adjacency(fields["adjacency"])
        return STORED_NAMES[value["shape"]](**fields)

    try:
        event = build(json.loads(text))
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
        PrivacyError,
    ) as error:
        raise LedgerError(
            f"the ledger has text that is not a privacy event: {text[:80]!r} ({error}); restore "
            "the ledger from a backup"
        ) from None
    if not isinstance(event, PrivacyEvent):
        raise LedgerError(
            f"the ledger has text that is not a privacy event: {text[:80]!r}; restore the ledger "
            "from a backup"
        )
    return event
