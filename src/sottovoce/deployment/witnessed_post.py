"""A post whose orders bring receipts for the sites' ledgers, and whose replies bring statements."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

from sottovoce.core import printable_text
from sottovoce.core.errors import SottovoceError
from sottovoce.deployment.orders import STATEMENT
from sottovoce.deployment.post import Parcel, Post, Reply
from sottovoce.deployment.witness import Receipt

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
