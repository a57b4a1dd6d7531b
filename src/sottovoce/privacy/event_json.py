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

_SHAPES: dict[str, type[PrivacyEvent]] = {
    shape.__name__: shape
    for shape in (
        NonPrivate,
        GaussianNoise,
        LaplaceNoise,
        ZeroConcentrated,
        PureDp,
        MetricDp,
        FinitePair,
        FiniteTable,
        RenyiCurve,
        OneBit,
        SeededBits,
        SecureSum,
        Sampled,
        Shuffled,
        Allocated,
        Repeated,
        Composed,
        Assumed,
    )
}

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
            return {"shape": type(value).__name__, **fields}
        if isinstance(value, tuple):
            return [plain(item, _ELEMENTS.get(kind)) for item in value]
        # A whole number in a float field is written as a float: equal events, equal text.
        return float(value) if kind is float else value

    return json.dumps(plain(event), sort_keys=True, separators=(",", ":"))


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
        return _SHAPES[value["shape"]](**fields)

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
