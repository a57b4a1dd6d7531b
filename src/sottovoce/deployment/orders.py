"""What the server asks of one client in one round, and what comes back, as bytes.

An order is public: the spec, the client's mechanism, and the model that the server has released. A
site takes from it what to compute, never what its data are: how many records it has, and so how far
one of them moves the update, it knows itself.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sottovoce.errors import WireError

VERSION = 1
_KEYS = {"version", "spec", "run", "round", "client", "cohort", "mechanism", "classes", "keep_from"}

Blobs = Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One client's part of a round.

    `spec` is the resolved spec and `mechanism` the client's own, its `kind` among its parameters,
    both as plain data. `cohort` is how many clients are asked. A site that has records of only some
    of the `classes` needs to know how many there are. Rounds before `keep_from` will never
    be asked for again. `vectors` are the model and what else goes down, packed as the spec says.
    """

    spec: Mapping[str, Any]
    run: str
    round: int
    client: str
    cohort: int
    mechanism: Mapping[str, Any]
    classes: int | None
    keep_from: int
    vectors: tuple[bytes, ...]

    def blobs(self) -> dict[str, bytes]:
        """As it travels."""
        public = {
            "version": VERSION,
            "spec": self.spec,
            "run": self.run,
            "round": self.round,
            "client": self.client,
            "cohort": self.cohort,
            "mechanism": self.mechanism,
            "classes": self.classes,
            "keep_from": self.keep_from,
        }
        text = json.dumps(public, separators=(",", ":"), allow_nan=False)
        blobs = {f"vector{number}": vector for number, vector in enumerate(self.vectors)}
        return {"order": text.encode(), **blobs}


def read_order(blobs: Blobs) -> Order:
    """The order in a server's message, or WireError."""
    names = [f"vector{number}" for number in range(len(blobs) - 1)]
    if sorted(blobs) != sorted(["order", *names]):
        raise WireError("an order has 'order' and vectors, counted from 0")
    try:
        public = json.loads(blobs["order"])
    except ValueError:
        raise WireError("the order is not valid JSON") from None
    if not isinstance(public, dict) or public.get("version") != VERSION:
        raise WireError(f"this side reads orders of version {VERSION}; install the same version")
    if set(public) != _KEYS:
        raise WireError(f"an order has {', '.join(sorted(_KEYS))}")
    for key, kind in (("spec", dict), ("run", str), ("round", int), ("client", str)):
        _expect(key, public[key], kind)
    for key, kind in (("cohort", int), ("mechanism", dict), ("keep_from", int)):
        _expect(key, public[key], kind)
    if public["classes"] is not None:
        _expect("classes", public["classes"], int)
    del public["version"]
    return Order(vectors=tuple(blobs[name] for name in names), **public)


def _expect(key: str, value: object, kind: type) -> None:
    if type(value) is not kind:
        raise WireError(f"'{key}' of an order is no {kind.__name__}")


def reply_blobs(messages: list[bytes]) -> dict[str, bytes]:
    """A client's sealed messages, by uplink, as they travel."""
    return {f"uplink{number}": message for number, message in enumerate(messages)}


def read_reply(blobs: Blobs, *, uplinks: int) -> list[bytes]:
    """The sealed messages of a reply, unopened; WireError if there is anything else in it."""
    wanted = [f"uplink{number}" for number in range(uplinks)]
    if sorted(blobs) != sorted(wanted):
        raise WireError(f"a reply has {', '.join(wanted)} and nothing else")
    return [blobs[name] for name in wanted]
