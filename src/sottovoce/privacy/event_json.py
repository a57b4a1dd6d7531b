"""Events as text, for the ledger: equal events give equal text, and floats survive exactly."""

import dataclasses
import json
from typing import Any

from sottovoce.adjacency import Adjacency
from sottovoce.errors import LedgerError, PrivacyError
from sottovoce.privacy.events import (
    Assumed,
    Composed,
    FinitePair,
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
        RenyiCurve,
        OneBit,
        SeededBits,
        SecureSum,
        Sampled,
        Shuffled,
        Repeated,
        Composed,
        Assumed,
    )
}


def to_json(event: PrivacyEvent) -> str:
    """Canonical JSON: equal events give equal text, and floats survive exactly."""

    def plain(value: Any, kind: Any = None) -> Any:
        if dataclasses.is_dataclass(value):
            fields = {
                field.name: plain(getattr(value, field.name), field.type)
                for field in dataclasses.fields(value)
            }
            return {"shape": type(value).__name__, **fields}
        if isinstance(value, tuple):
            element = float if kind == tuple[float, ...] else None
            return [plain(item, element) for item in value]
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
