"""Between server and clients: what the rounds need of whoever carries orders and replies.

The largest reply that a running server waits for, announced to the gate in front of the link.

Before a server asks, it writes how many bytes one reply may have, and until when, into a file of
its own in the link's folder; the gate refuses a longer one by its declared length. The folder's
name is in the environment of the servers that a link starts; elsewhere nothing is announced.

A post whose orders bring receipts for the sites' ledgers, and whose replies bring statements.
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
# Around a reply's own bytes: Flower's metadata, a refusal's reason, what the site's ledger says.
OVERHEAD_BYTES = 2**16
_FRESH_NS = 2 * 10**9
_GRACE_SECONDS = 60.0  # a late reply is refused by Flower, in words that its node understands


def announce(reply_bytes: int, *, seconds: float) -> None:
    """Tell the gate that replies of up to `reply_bytes` may come within the next `seconds`."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return
    for path, _, until in _announced(Path(folder)):
        if until < time.time():
            path.unlink(missing_ok=True)
    due = {"bytes": reply_bytes, "until": time.time() + seconds + _GRACE_SECONDS}
    # It stays when this process ends, since replies may still be on their way.
    files.write_json(Path(folder) / f"{os.getpid()}.json", due, mode=files.PRIVATE)


def _announced(folder: Path) -> Iterator[tuple[Path, int, float]]:
    """Yield each announcement: its file, the bytes, and until when."""
    for path in folder.glob("*.json"):
        with contextlib.suppress(OutputError, KeyError, TypeError, ValueError):
            due = files.read_json(path)
            yield path, int(due["bytes"]), float(due["until"])


def check_length(blobs: Mapping[str, bytes] | None, most_bytes: int) -> None:
    """Raise WireError for a reply that is longer than any that is due, before it is parsed."""
    length = sum(map(len, blobs.values())) if blobs else 0
    if length > most_bytes:
        raise WireError(f"a reply of {length} bytes, where at most {most_bytes} are due")


class RepliesDue:
    """What the servers of a link have announced; read again whenever the folder changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed_ns = -1
        self._due: list[tuple[int, float]] = []  # bytes, and until when

    def largest_bytes(self) -> int:
        """Return the most bytes that a reply may have now, 0 where nobody waits for one."""
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except OSError:
            return 0
        # A folder that has just changed may change again within the same tick of its clock.
        is_fresh = time.time_ns() - changed_ns < _FRESH_NS
        if is_fresh or changed_ns != self._changed_ns:
            self._changed_ns = changed_ns
            self._due = [(size, until) for _, size, until in _announced(self._folder)]
        now = time.time()
        return max((size for size, until in self._due if until > now), default=0)


class Parcel(Protocol):
    """What one client is sent: bytes, as a message of this type of Flower's, in this round."""

    message_type: ClassVar[str]

    @property
    def round(self) -> int: ...

    def blobs(self) -> dict[str, bytes]: ...


P = TypeVar("P", bound=Parcel, contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Something that came back for an order: `blobs`, or why there are none."""

    client: str
    blobs: Blobs | None
    failure: str | None = None
    total_bytes: int = 0


class Post(Protocol[P]):
    """Carries parcels to clients by name, and replies back; trusts no reply."""

    def reachable(self, clients: Sequence[str]) -> frozenset[str]:
        """Which of these can be asked now."""
        ...

    def send(self, orders: Mapping[str, P], *, expires_seconds: float) -> int:
        """Ask; replies to earlier orders are no longer collected. The bytes that were sent."""
        ...

    def traffic(self) -> tuple[int, int] | None:
        """All bytes so far from clients and to them, control and all; None if nobody counts."""
        ...

    def collect(self) -> Iterable[Reply]:
        """Whatever has come since the last call."""
        ...


_LOG = printable_text.logger()


class Witness(Protocol):
    """Who keeps what sites have stated."""

    def receipt(self, site: str) -> Receipt | None:
        """Return the newest receipt for a site's ledger, if there is one."""
        ...

    def take(self, site: str, statement: bytes, *, answered: Receipt | None) -> None:
        """Keep a site's statement, which came with its reply to an order with this receipt."""
        ...


class Receiptable(Parcel, Protocol):
    """What can bring a receipt along."""

    def with_receipt(self, receipt: Mapping[str, Any] | None) -> Self: ...


R = TypeVar("R", bound=Receiptable)


class WitnessedPost(Generic[R]):
    """Another post's, with receipts and statements. No run stops because the witness fails."""

    def __init__(self, post: Post[R], witness: Witness) -> None:
        self._post = post
        self._witness = witness
        self._sent: dict[str, Receipt | None] = {}
        self.reachable, self.traffic = post.reachable, post.traffic

    def send(self, orders: Mapping[str, R], *, expires_seconds: float) -> int:
        self._sent = {site: self._receipt(site) for site in orders}
        return self._post.send(
            {
                site: order.with_receipt(receipt.to_plain() if receipt else None)
                for (site, order), receipt in zip(orders.items(), self._sent.values(), strict=True)
            },
            expires_seconds=expires_seconds,
        )

    def collect(self) -> Iterator[Reply]:
        for reply in self._post.collect():
            statement = (reply.blobs or {}).get(STATEMENT)
            if reply.blobs is None or statement is None or reply.client not in self._sent:
                yield reply
                continue
            try:
                self._witness.take(reply.client, statement, answered=self._sent[reply.client])
            except SottovoceError as error:
                _LOG.warning("what '%s' states about its ledger is lost: %s", reply.client, error)
            blobs = {name: blob for name, blob in reply.blobs.items() if name != STATEMENT}
            yield dataclasses.replace(reply, blobs=blobs)

    def _receipt(self, site: str) -> Receipt | None:
        try:
            return self._witness.receipt(site)
        except SottovoceError as error:
            _LOG.warning("'%s' is sent no receipt for its ledger: %s", site, error)
            return None


def witnessed(post: Post[R], witness: Witness | None) -> Post[R]:
    """Return the post, with a witness where there is one."""
    return post if witness is None else WitnessedPost(post, witness)
