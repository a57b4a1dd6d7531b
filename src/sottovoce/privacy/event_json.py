"""Events as text, for the ledger: equal events give equal text, and floats survive exactly."""

import dataclasses
import json
from typing import Any

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import LedgerError, PrivacyError
from sottovoce.privacy.events import (
    Allocated,
    Assumed,
    Composed,
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
    SecureSum,
    SeededBits,
    Shuffled,
    ZeroConcentrated,
)

# The names under which ledgers store events, whatever the classes are called here. A name is never
# changed or taken away; see the stability contract in `privacy.events`.
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
    "SecureSum": SecureSum,
    "Sampled": Sampled,
    "Shuffled": Shuffled,
    "Allocated": Allocated,
    "Repeated": Repeated,
    "Composed": Composed,
    "Assumed": Assumed,
}
_NAME_OF = {shape: name for name, shape in STORED_NAMES.items()}

# Fields that came later are left out at these values, so that older events keep their text.
_LATER = {"zero_centered": False, "ratios": None}

# What the items of a tuple are, by the type of its field: a whole number among floats is a float.
_ELEMENTS: dict[Any, Any] = {
    tuple[float, ...]: float,
    tuple[float, float] | None: float,
    tuple[tuple[float, ...], ...]: tuple[float, ...],
}


def to_json(event: PrivacyEvent) -> str:
    """Canonical JSON: equal events give equal text, and floats survive exactly."""

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
        # A whole number in a float field is written as a float: equal events, equal text.
        return float(value) if kind is float else value

    return json.dumps(plain(event), sort_keys=True, separators=(",", ":"))


def _stored_name(shape: type[Any]) -> str:
    if shape not in _NAME_OF:
        raise LedgerError(
            f"{shape.__name__} has no stored name, so a ledger could not read it again; use one of "
            f"{', '.join(STORED_NAMES)}"
        )
    return _NAME_OF[shape]


def from_json(text: str | None) -> PrivacyEvent:
    """The inverse of `to_json`; anything else is a LedgerError."""
    if text is None:
        raise LedgerError("a charge refers to an event that is gone; restore the ledger")

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
        raise LedgerError(f"not a privacy event: {text[:80]!r} ({error})") from None
    if not isinstance(event, PrivacyEvent):
        raise LedgerError(f"not a privacy event: {text[:80]!r}")
    return event
