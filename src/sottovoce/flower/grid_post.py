"""Orders and replies through Flower's grid: push, pull, and nothing held against the others.

A reply is looked for by the identifier of the order that it answers, and must come from the node
that was asked. Replies to the orders of earlier rounds are never pulled.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Thread

import httpx
from flwr.app import Message
from flwr.serverapp import Grid as Grid

from sottovoce.core import display
from sottovoce.core.errors import WireError
from sottovoce.deployment.post import Parcel, Reply
from sottovoce.flower.directory import Directory
from sottovoce.flower.records import failure_of, from_records, to_records, total_bytes

CountTraffic = Callable[[], tuple[int, int] | None]

_LOG = display.logger()
_COLLECT_SECONDS = 2.0
_PULLS_TOGETHER = 8


def nobody_counts() -> None:
    """Where messages do not travel."""


class GridPost:
    """Clients by the names that a `directory` gives to nodes; `traffic` is the link's own count."""

    def __init__(self, grid: Grid, directory: Directory, traffic: CountTraffic) -> None:
        self._grid = grid
        self.traffic = traffic
        self._directory = directory
        self._asked: dict[str, tuple[str, int]] = {}  # message: client and node
        self._pulls: dict[str, _Pull] = {}
        self._deadline_seconds = 0.0

    def reachable(self, clients: Sequence[str]) -> frozenset[str]:
        return frozenset(clients) & self._directory.online().keys()

    def send(self, orders: Mapping[str, Parcel], *, expires_seconds: float) -> int:
        nodes = self._directory.known()
        messages = {
            client: Message(
                content=to_records(order.blobs()),
                dst_node_id=nodes[client],
                message_type=order.message_type,
                group_id=str(order.round),
                ttl=expires_seconds,
            )
            for client, order in orders.items()
        }
        sent = sum(total_bytes(message) for message in messages.values())
        pushed = self._grid.push_messages(list(messages.values()))
        self._pulls = {}
        self._deadline_seconds = expires_seconds
        self._asked = {
            number: (client, nodes[client])
            for client, number in zip(messages, pushed, strict=True)
            if number
        }
        return sent

    def collect(self) -> Iterator[Reply]:
        ends = time.monotonic() + _COLLECT_SECONDS
        waiting = list(self._asked.items())
        for place, (number, asked) in enumerate(waiting):
            self._look_for(number for number, _ in waiting[place:])
            pull = self._pulls.get(number)
            if pull is None:
                continue  # next time
            pull.join(max(0.0, ends - time.monotonic()))  # a deadline must not wait for us
            if pull.is_alive():  # its sender has announced it, and not yet sent all of it
                continue
            del self._pulls[number]
            match pull.outcome:
                case None:
                    continue
                case httpx.TransportError() as error:
                    raise error  # the link is gone, not a reply
                case Exception() as error:
                    _LOG.warning("what '%s' sent cannot be read", asked[0], exc_info=error)
                    reply = Reply(client=asked[0], blobs={})
                case BaseException() as error:
                    raise error  # the run was stopped
                case message:
                    reply = _reply(asked, message, self._deadline_seconds)
            del self._asked[number]  # looked for once: a second reply to an order is nobody's
            yield reply

    def _look_for(self, numbers: Iterable[str]) -> None:
        """Start looking for some replies, a few at a time; one that is stuck keeps no place."""
        busy = sum(pull.is_busy for pull in self._pulls.values())
        for number in numbers:
            if busy >= _PULLS_TOGETHER:
                return
            if number not in self._pulls:
                self._pulls[number] = _Pull(self._grid, number)
                busy += 1


class _Pull(Thread):
    """One reply, pulled alone and in a thread of its own.

    Flower waits minutes for the rest of a reply of which a part has come, and one that cannot be
    read would take others of the same pull with it.
    """

    def __init__(self, grid: Grid, number: str) -> None:
        super().__init__(daemon=True)
        self._grid = grid
        self._number = number
        self.outcome: Message | BaseException | None = None
        self._stuck_at = time.monotonic() + _COLLECT_SECONDS
        self.start()

    @property
    def is_busy(self) -> bool:
        """Whether it runs, and may still end soon."""
        return self.is_alive() and time.monotonic() < self._stuck_at

    def run(self) -> None:
        try:
            self.outcome = next(iter(self._grid.pull_messages([self._number])), None)
        except BaseException as error:  # whoever collects decides
            self.outcome = error


def _reply(asked: tuple[str, int], message: Message, deadline_seconds: float) -> Reply:
    client, node = asked
    if message.has_error():
        failure = failure_of(message.error, deadline_seconds)
        return Reply(client=client, blobs=None, failure=failure)
    size = total_bytes(message)
    if message.metadata.src_node_id != node:
        return Reply(client="", blobs={}, total_bytes=size)
    try:
        return Reply(client=client, blobs=from_records(message.content), total_bytes=size)
    except WireError as error:
        # Not what a site sends: an empty reply is dropped like any other that is wrong.
        _LOG.warning("a reply of '%s' is no use: %s", client, error)
        return Reply(client=client, blobs={}, total_bytes=size)
