"""The transport between a server and its clients, limits on reply sizes, and witnessed transports.

`Transport` is what a server needs of a program that carries requests and replies. It trusts no
reply.

Before a server asks, it announces the largest reply that it waits for, in bytes, and until when, in
a file of its own in the link's folder. The gate in front of the link refuses a longer reply by its
declared length. The environment of the servers that a link starts names that folder; without it
nothing is announced.

`WitnessedTransport` adds receipts for the sites' ledgers to requests, and takes statements from
replies.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from sottovoce.core import files, printable_text
from sottovoce.core.errors import OutputError, SottovoceError, WireError
from sottovoce.deployment.orders import STATEMENT, Blobs
from sottovoce.deployment.witness import Receipt

FOLDER_VARIABLE = "SOTTOVOCE_REPLIES_DUE"
# Bytes around a reply's messages: Flower's metadata, a refusal's reason, statements of the site.
OVERHEAD_BYTES = 2**16
_FRESH_NS = 2 * 10**9
_GRACE_SECONDS = 60.0  # a late reply should be refused by Flower, whose answer the node understands


def announce(reply_bytes: int, *, seconds: float) -> None:
    """Announce to the gate that replies of up to `reply_bytes` may come within `seconds`.

    The gate is the proxy in front of the link, the server program that sites call; it refuses
    longer replies. Without the environment variable that names its folder, nothing is done.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return
    for path, _, until in _announced(Path(folder)):
        if until < time.time():
            path.unlink(missing_ok=True)
    due = {"bytes": reply_bytes, "until": time.time() + seconds + _GRACE_SECONDS}
    # The file stays when this process ends, because replies may still be on their way.
    files.write_json(Path(folder) / f"{os.getpid()}.json", due, mode=files.PRIVATE)


def _announced(folder: Path) -> Iterator[tuple[Path, int, float]]:
    """Yield each announcement: its file, the bytes, and the time until which it holds."""
    for path in folder.glob("*.json"):
        with contextlib.suppress(OutputError, KeyError, TypeError, ValueError):
            due = files.read_json(path)
            yield path, int(due["bytes"]), float(due["until"])


def check_length(blobs: Mapping[str, bytes] | None, most_bytes: int) -> None:
    """Raise WireError if the parts of a reply have more than `most_bytes` bytes in total."""
    length = sum(map(len, blobs.values())) if blobs else 0
    if length > most_bytes:
        raise WireError(f"a reply must have at most {most_bytes} bytes, got {length}")


class ExpectedReplies:
    """The reply sizes that servers have announced in a folder, read again when it changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed_ns = -1
        self._due: list[tuple[int, float]] = []  # (bytes, until when)

    def largest_bytes(self) -> int:
        """Return the most bytes that a reply may have now; 0 if no server waits for one."""
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except OSError:
            return 0
        # A folder that has just changed may change again without a new modification time.
        is_fresh = time.time_ns() - changed_ns < _FRESH_NS
        if is_fresh or changed_ns != self._changed_ns:
            self._changed_ns = changed_ns
            self._due = [(size, until) for _, size, until in _announced(self._folder)]
        now = time.time()
        return max((size for size, until in self._due if until > now), default=0)


class OutgoingRequest(Protocol):
    """A request to one client: bytes, with a type of message of Flower's and a round."""

    message_type: ClassVar[str]

    @property
    def round(self) -> int:
        """The round that the request belongs to."""
        ...

    def blobs(self) -> dict[str, bytes]:
        """Return the request as it is sent, as bytes by the name of their part."""
        ...


P = TypeVar("P", bound=OutgoingRequest, contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A client's reply to a request: `blobs`, or in `failure` the reason why there is no reply.

    Attributes:
        client: Name of the client that was asked; empty if the reply came from another one.
        blobs: The parts of the reply, unchecked; empty if they cannot be read, None if there is no
            reply. A refusal of a site is a reply.
        failure: Why there is no reply; None if there is a reply, or if the reason is not known.
        total_bytes: Bytes that were received for the reply.
    """

    client: str
    blobs: Blobs | None
    failure: str | None = None
    total_bytes: int = 0


class Transport(Protocol[P]):
    """A transport that carries requests to clients by name and replies back; it trusts no reply."""

    def reachable(self, clients: Sequence[str]) -> frozenset[str]:
        """Return those of the clients that can be asked now; may be empty."""
        ...

    def send(self, orders: Mapping[str, P], *, expires_seconds: float) -> int:
        """Send a request to each named client and return the number of bytes sent.

        A request is void after `expires_seconds`. Replies to earlier requests are no longer
        collected.
        """
        ...

    def traffic(self) -> tuple[int, int] | None:
        """Return (bytes from clients, bytes to clients) so far, with control messages.

        None if the bytes are not counted.
        """
        ...

    def collect(self) -> Iterable[Reply]:
        """Return the replies that have come since the last call; may be empty."""
        ...


_LOG = printable_text.logger()


class Witness(Protocol):
    """A keeper of the statements that sites make about their ledgers."""

    def receipt(self, site: str) -> Receipt | None:
        """Return the newest receipt for a site's ledger, if there is one."""
        ...

    def take(self, site: str, statement: bytes, *, answered: Receipt | None) -> None:
        """Check and keep a site's signed statement about its ledger, which came with its reply.

        `answered` is the receipt that was sent with the request; None if none was.
        """
        ...


class ReceiptCarrier(OutgoingRequest, Protocol):
    """A request that can carry a receipt: a site's countersigned statement about its ledger."""

    def with_receipt(self, receipt: Mapping[str, Any] | None) -> Self:
        """Return a copy of the request with this receipt for the site's ledger, or without one."""
        ...


R = TypeVar("R", bound=ReceiptCarrier)


class WitnessedTransport(Generic[R]):
    """A transport that adds a witness's receipts to requests, and gives it replies' statements.

    A statement is what a site signs about its ledger, and a receipt is the countersigned statement.
    Errors of the witness are logged and stop no run.
    """

    def __init__(self, post: Transport[R], witness: Witness) -> None:
        self._post = post
        self._witness = witness
        self._sent: dict[str, Receipt | None] = {}
        self.reachable, self.traffic = post.reachable, post.traffic

    def send(self, orders: Mapping[str, R], *, expires_seconds: float) -> int:
        """Send the requests, each with the newest receipt for its site's ledger, if there is one.

        Returns the number of bytes sent.
        """
        self._sent = {site: self._receipt(site) for site in orders}
        return self._post.send(
            {
                site: order.with_receipt(receipt.to_plain() if receipt else None)
                for (site, order), receipt in zip(orders.items(), self._sent.values(), strict=True)
            },
            expires_seconds=expires_seconds,
        )

    def collect(self) -> Iterator[Reply]:
        """Yield the replies without their statements, which go to the witness."""
        for reply in self._post.collect():
            statement = (reply.blobs or {}).get(STATEMENT)
            if reply.blobs is None or statement is None or reply.client not in self._sent:
                yield reply
                continue
            try:
                self._witness.take(reply.client, statement, answered=self._sent[reply.client])
            except SottovoceError as error:
                _LOG.warning(
                    "the statement of '%s' about its ledger is not kept: %s", reply.client, error
                )
            blobs = {name: blob for name, blob in reply.blobs.items() if name != STATEMENT}
            yield dataclasses.replace(reply, blobs=blobs)

    def _receipt(self, site: str) -> Receipt | None:
        try:
            return self._witness.receipt(site)
        except SottovoceError as error:
            _LOG.warning("no receipt for its ledger is sent to '%s': %s", site, error)
            return None


def with_witness(post: Transport[R], witness: Witness | None) -> Transport[R]:
    """Return the transport with this witness, or the transport itself if the witness is None."""
    return post if witness is None else WitnessedTransport(post, witness)
