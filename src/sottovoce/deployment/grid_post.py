"""Orders and replies through Flower's grid: push, pull, and nothing held against the others.

A reply is looked for by the identifier of the order that it answers, and must come from the node
that was asked. Replies to the orders of earlier rounds are never pulled.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

import httpx
from flwr.app import Message, MessageType
from flwr.serverapp import Grid as Grid

from sottovoce.deployment.directory import Directory
from sottovoce.deployment.orders import Order
from sottovoce.deployment.post import Reply
from sottovoce.deployment.records import from_records, to_records, total_bytes
from sottovoce.errors import WireError

CountTraffic = Callable[[], tuple[int, int] | None]

_LOG = logging.getLogger("sottovoce")


def nobody_counts() -> None:
    """Where messages do not travel."""


class GridPost:
    """Clients by the names that a `directory` gives to nodes; `traffic` is the link's own count."""

    def __init__(self, grid: Grid, directory: Directory, traffic: CountTraffic) -> None:
        self._grid = grid
        self.traffic = traffic
        self._directory = directory
        self._asked: dict[str, tuple[str, int]] = {}  # message: client and node

    def reachable(self, clients: Sequence[str]) -> frozenset[str]:
        return frozenset(clients) & self._directory.online().keys()

    def send(self, orders: Mapping[str, Order], *, expires_seconds: float) -> int:
        nodes = self._directory.known()
        messages = {
            client: Message(
                content=to_records(order.blobs()),
                dst_node_id=nodes[client],
                message_type=MessageType.TRAIN,
                group_id=str(order.round),
                ttl=expires_seconds,
            )
            for client, order in orders.items()
        }
        sent = sum(total_bytes(message) for message in messages.values())
        pushed = self._grid.push_messages(list(messages.values()))
        self._asked = {
            number: (client, nodes[client])
            for client, number in zip(messages, pushed, strict=True)
            if number
        }
        return sent

    def collect(self) -> Iterator[Reply]:
        # One by one: a reply that cannot be read would take others of the same pull with it.
        for number, asked in list(self._asked.items()):
            try:
                found = list(self._grid.pull_messages([number]))
            except httpx.TransportError:
                raise  # the link is gone, not a reply
            except Exception:
                _LOG.warning("what '%s' sent cannot be read", asked[0], exc_info=True)
                del self._asked[number]
                yield Reply(client=asked[0], blobs={})
                continue
            if found:  # looked for once: a second reply to an order is nobody's
                del self._asked[number]
                yield _reply(asked, found[0])


def _reply(asked: tuple[str, int], message: Message) -> Reply:
    client, node = asked
    if message.has_error():
        reason = message.error.reason or f"error {message.error.code}"
        return Reply(client=client, blobs=None, failure=reason[:300])
    size = total_bytes(message)
    if message.metadata.src_node_id != node:
        return Reply(client="", blobs={}, total_bytes=size)
    try:
        return Reply(client=client, blobs=from_records(message.content), total_bytes=size)
    except WireError as error:
        # Not what a site sends: an empty reply is dropped like any other that is wrong.
        _LOG.warning("a reply of '%s' is no use: %s", client, error)
        return Reply(client=client, blobs={}, total_bytes=size)
