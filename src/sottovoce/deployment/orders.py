"""What the server asks of one client in one round, and what comes back, as bytes.

An order is public: the spec, the client's mechanism, and the model that the server has released. A
site takes from it what to compute, never what its data are: how many records it has, and so how far
one of them moves the update, it knows itself.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from sottovoce.core import bounded_json
from sottovoce.core.errors import WireError

VERSION = 3
ORDER = "order"  # the part of a message that holds it
REFUSED = "refused"  # the part of a reply that says why there is no message
ROUNDS_CHARGED = "rounds_charged"  # in how many rounds of the run the site was charged, it says
STATEMENT = "ledger"  # what the site states about its ledger, signed
_BESIDE = {ROUNDS_CHARGED, STATEMENT}  # parts of a reply that may come with any other
MOST_VECTORS = 16
# The spec of 65,536 sites, each with its name of 40 letters in three lists, takes 8.7 MiB.
MOST_JSON_BYTES = 16 * 2**20
MOST_VALUES = 2**19
_MOST_NESTED = 32  # a spec has tables in tables in tables, and then it ends
_LARGEST = 2**32 - 1  # of a count: rounds on the wire are no larger
_LONGEST_NAME = 256
_LONGEST_REASON = 300
_KEYS = {
    *("version", "spec", "run", "round", "client", "cohort", "mechanism", "classes", "keep_from"),
    "receipt",
}

Blobs = Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One client's part of a round.

    `spec` is the resolved spec and `mechanism` the client's own, its `kind` among its parameters,
    both as plain data. `cohort` is how many clients are asked. A site that has records of only some
    of the `classes` needs to know how many there are. Rounds before `keep_from` will never
    be asked for again. `vectors` are the model and what else goes down, packed as the spec says.
    `receipt` is what the server has witnessed of the site's ledger, if it has anything.
    """

    message_type: ClassVar[str] = "train"

    spec: Mapping[str, Any]
    run: str
    round: int
    client: str
    cohort: int
    mechanism: Mapping[str, Any]
    classes: int | None
    keep_from: int
    vectors: tuple[bytes, ...]
    receipt: Mapping[str, Any] | None = None

    def with_receipt(self, receipt: Mapping[str, Any] | None) -> Self:
        return replace(self, receipt=receipt)

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
            "receipt": self.receipt,
        }
        text = json.dumps(public, separators=(",", ":"), allow_nan=False)
        blobs = {f"vector{number}": vector for number, vector in enumerate(self.vectors)}
        return {ORDER: text.encode(), **blobs}


def read_order(blobs: Blobs) -> Order:
    """The order in a server's message, or WireError."""
    if len(blobs) > 1 + MOST_VECTORS:
        raise WireError(f"an order has at most {MOST_VECTORS} vectors")
    names = [f"vector{number}" for number in range(len(blobs) - 1)]
    if set(blobs) != {ORDER, *names}:
        raise WireError("an order has 'order' and vectors, counted from 0")
    public = strict_json("the order", blobs[ORDER])
    if not isinstance(public, dict) or repr(public.get("version")) != str(VERSION):
        raise WireError(f"this side reads orders of version {VERSION}; install the same version")
    if set(public) != _KEYS:
        raise WireError(f"an order has {', '.join(sorted(_KEYS))}")
    for key in ("spec", "mechanism"):
        if not isinstance(public[key], dict):
            raise WireError(f"'{key}' of an order is a table")
    for key in ("run", "client"):
        check_name(key, public[key])
    for key, low in (("round", 0), ("cohort", 1), ("keep_from", 0)):
        check_count(key, public[key], low)
    check_receipt(public["receipt"])
    if public["classes"] is not None:
        check_count("classes", public["classes"], 1)
    del public["version"]
    return Order(vectors=tuple(blobs[name] for name in names), **public)


def strict_json(
    what: str, text: bytes, *, most_bytes: int = MOST_JSON_BYTES, most_values: int = MOST_VALUES
) -> object:
    """What JSON in the strict sense says; WireError, before it is parsed, if it is too large."""
    try:
        return bounded_json.loads(
            text,
            most_bytes=most_bytes,
            most_values=most_values,
            most_nested=_MOST_NESTED,
            finite=True,
        )
    except bounded_json.JsonError as error:
        raise WireError(f"{what} {error}") from None


def check_count(key: str, value: object, low: int, high: int = _LARGEST) -> None:
    if type(value) is not int or not low <= value <= high:
        raise WireError(f"'{key}' of an order is a whole number from {low} to {high}")


def check_receipt(value: object) -> None:
    """A receipt is read where the keys are that it is checked against."""
    if not isinstance(value, dict | None):
        raise WireError("'receipt' is a table, or null where there is none")


def check_name(key: str, value: object) -> None:
    """Names go into ledgers and logs: text that can be written, on one line."""
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME or not value.isprintable():
        raise WireError(f"'{key}' of an order is a printable name of 1 to {_LONGEST_NAME} letters")


def reply_blobs(messages: list[bytes], rounds_charged: int | None = None) -> dict[str, bytes]:
    """A client's sealed messages, by uplink, as they travel, and what its ledger says, if it does.

    `rounds_charged` is in how many rounds of the run the site's own ledger has charges.
    """
    blobs = {f"uplink{number}": message for number, message in enumerate(messages)}
    return {**blobs, **_report(rounds_charged)}


def refusal_blobs(reason: str, rounds_charged: int | None = None) -> dict[str, bytes]:
    """Why a site sends no message, which is public, and what its ledger says, if it does."""
    return {REFUSED: reason[:_LONGEST_REASON].encode(errors="replace"), **_report(rounds_charged)}


def _report(rounds_charged: int | None) -> dict[str, bytes]:
    return {} if rounds_charged is None else {ROUNDS_CHARGED: b"%d" % rounds_charged}


def read_reply(blobs: Blobs, *, uplinks: int) -> list[bytes]:
    """The sealed messages of a reply, unopened; WireError if there is anything else in it."""
    wanted = [f"uplink{number}" for number in range(uplinks)]
    if set(blobs) - _BESIDE != set(wanted):
        raise WireError(f"a reply has {', '.join(wanted)} and nothing else")
    return [blobs[name] for name in wanted]


def read_refusal(blobs: Blobs) -> str | None:
    """Why a site refuses, in its own words; None where it does not."""
    if REFUSED not in blobs:
        return None
    if set(blobs) - _BESIDE != {REFUSED}:
        raise WireError("a refusal has its reason and no messages")
    reason = blobs[REFUSED][: 4 * _LONGEST_REASON].decode(errors="replace")
    return reason[:_LONGEST_REASON] or "no reason given"


def read_rounds_charged(blobs: Blobs) -> int | None:
    """In how many rounds of the run a site says it was charged; None where it says nothing.

    It is the site's word, to be shown beside the server's own count, and decides nothing.
    """
    text = blobs.get(ROUNDS_CHARGED)
    if text is None:
        return None
    if len(text) > len(str(_LARGEST)) or not text.isdigit() or int(text) > _LARGEST:
        raise WireError(f"'{ROUNDS_CHARGED}' of a reply is a whole number from 0 to {_LARGEST}")
    return int(text)
