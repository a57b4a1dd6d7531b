"""Transport of orders and replies over Flower's grid.

A reply is looked up by the message id of its order and must come from the node that was asked.
Replies to orders of earlier rounds are never pulled. A slow or unreadable reply does not delay the
others.

With keys the operator knows which node is which client: the list has each site's public key, and
the link admits no others. Without keys each node is asked once for its name and trusted, which is
meant for simulations and rehearsals.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Thread
from typing import Protocol

import httpx
from flwr.app import Message, MessageType
from flwr.serverapp import Grid as Grid

from sottovoce.core import printable_text
from sottovoce.core.errors import DeploymentError, WireError
from sottovoce.deployment.post import OutgoingRequest, Reply
from sottovoce.flower.records import describe_failure, from_records, to_records, total_bytes

_ANSWER_SECONDS = 30.0
_POLL_SECONDS = 0.2


class NodeDirectory(Protocol):
    """A mapping from client names to node ids."""

    def online(self) -> Mapping[str, int]:
        """Return the node id of each client whose node is connected now, by client name."""
        ...

    def known(self) -> Mapping[str, int]:
        """Return what the last call of `online` returned, without asking again."""
        ...


class KeyedDirectory:
    """A directory by public keys; nodes whose key is not in `name_of_key` are left out."""

    def __init__(self, grid: Grid, name_of_key: Mapping[bytes, str]) -> None:
        self._grid = grid
        self._names = name_of_key
        self._known: dict[str, int] = {}

    def online(self) -> Mapping[str, int]:
        self._known = {
            self._names[node.public_key]: node.node_id
            for node in self._grid.get_nodes()
            if node.public_key in self._names
        }
        return self._known

    def known(self) -> Mapping[str, int]:
        return self._known


class ReportedNameDirectory:
    """A directory by the names that nodes report; the first online node with a name keeps it."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._name_of: dict[int, str] = {}
        self._nameless: dict[int, float] = {}  # When each node gave no name.
        self._asked: dict[str, tuple[int, float]] = {}  # By message id: node and time.
        self._known: dict[str, int] = {}

    def online(self) -> Mapping[str, int]:
        present = set(self._grid.get_node_ids())
        # A site may correct its file, so a node that gave no name is asked again after a while.
        recent = time.monotonic() - _ANSWER_SECONDS
        self._nameless = {node: when for node, when in self._nameless.items() if when > recent}
        asked = {node for node, _ in self._asked.values()}
        self._ask(present - set(self._name_of) - set(self._nameless) - asked)
        self._listen()
        found: dict[str, int] = {
            name: node for name, node in self._known.items() if node in present
        }
        for node in sorted(present & set(self._name_of)):
            found.setdefault(self._name_of[node], node)
        self._known = found
        return found

    def known(self) -> Mapping[str, int]:
        return self._known

    def _ask(self, nodes: set[int]) -> None:
        if not nodes:
            return
        messages = [
            Message(
                content=to_records({}),
                dst_node_id=node,
                message_type=MessageType.QUERY,
                ttl=_ANSWER_SECONDS,
            )
            for node in sorted(nodes)
        ]
        pushed = self._grid.push_messages(messages)
        for node, number in zip(sorted(nodes), pushed, strict=True):
            if number:
                self._asked[number] = (node, time.monotonic())

    def _listen(self) -> None:
        deadline = time.monotonic() + _ANSWER_SECONDS
        while self._asked and time.monotonic() < deadline:
            replies = list(self._grid.pull_messages(list(self._asked)))
            for message in replies:
                node, _ = self._asked.pop(message.metadata.reply_to_message_id, (None, 0.0))
                name = None if node is None else _name_in(message, node)
                if node is not None and name is not None:
                    self._name_of[node] = name
                elif node is not None:
                    self._nameless[node] = time.monotonic()
            if not self._asked or not replies:
                break
            time.sleep(_POLL_SECONDS)
        overdue = [
            number
            for number, (_, when) in self._asked.items()
            if time.monotonic() - when > _ANSWER_SECONDS
        ]
        for number in overdue:
            del self._asked[number]


def _name_in(message: Message, node: int) -> str | None:
    if message.has_error():
        reason = describe_failure(message.error, _ANSWER_SECONDS)
        _LOG.warning("node %d gave no name: %s", node, reason)
        return None
    try:
        blobs = from_records(message.content)
        return blobs["name"].decode()
    except (WireError, KeyError, UnicodeDecodeError):
        _LOG.warning("node %d gave no name", node)
        return None


def wait_for_all(
    directory: NodeDirectory,
    clients: Sequence[str],
    *,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until all clients are online, so that samples do not depend on who arrived first.

    Raises:
        DeploymentError: Clients are missing after `seconds`; the message names them.
    """
    started, told = clock(), 0.0
    while True:
        missing = sorted(set(clients) - directory.online().keys())
        if not missing:
            return
        waited = clock() - started
        names = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if missing[5:] else "")
        if waited >= seconds:
            raise DeploymentError(
                f"{len(missing)} of {len(clients)} clients were not online after {seconds:g} s: "
                f"{names}; start their nodes, then resume the run"
            )
        if waited >= told:
            _LOG.info("waiting for %d of %d clients: %s", len(missing), len(clients), names)
            told = waited + 30.0
        pause(_POLL_SECONDS)


CountTraffic = Callable[[], tuple[int, int] | None]

_LOG = printable_text.logger()
_COLLECT_SECONDS = 2.0
_MAX_PULLS = 8


def count_no_traffic() -> None:
    """Return None: no traffic is counted where messages do not travel."""


class GridPost:
    """Transport over a grid; `directory` maps clients to nodes, `traffic` counts bytes.

    `send` needs an earlier call of `reachable`, which finds the nodes. `collect` waits at most
    about 2 s for replies; one that cannot be read is returned without content.
    """

    def __init__(self, grid: Grid, directory: NodeDirectory, traffic: CountTraffic) -> None:
        self._grid = grid
        self.traffic = traffic
        self._directory = directory
        self._asked: dict[str, tuple[str, int]] = {}  # By message id: client and node.
        self._pulls: dict[str, _Pull] = {}
        self._deadline_seconds = 0.0

    def reachable(self, clients: Sequence[str]) -> frozenset[str]:
        return frozenset(clients) & self._directory.online().keys()

    def send(self, orders: Mapping[str, OutgoingRequest], *, expires_seconds: float) -> int:
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
            self._start_pulls(number for number, _ in waiting[place:])
            pull = self._pulls.get(number)
            if pull is None:
                continue
            pull.join(max(0.0, ends - time.monotonic()))
            if pull.is_alive():  # The reply has arrived in part.
                continue
            del self._pulls[number]
            match pull.outcome:
                case None:
                    continue
                case httpx.TransportError() as error:
                    raise error  # The link is gone.
                case Exception() as error:
                    _LOG.warning("the reply of '%s' cannot be read", asked[0], exc_info=error)
                    reply = Reply(client=asked[0], blobs={})
                case BaseException() as error:
                    raise error  # The run was stopped.
                case message:
                    reply = _reply(asked, message, self._deadline_seconds)
            del self._asked[number]  # A second reply to an order is never read.
            yield reply

    def _start_pulls(self, numbers: Iterable[str]) -> None:
        """Start to pull some replies, a few at a time; a pull that is stuck does not count."""
        busy = sum(pull.is_busy for pull in self._pulls.values())
        for number in numbers:
            if busy >= _MAX_PULLS:
                return
            if number not in self._pulls:
                self._pulls[number] = _Pull(self._grid, number)
                busy += 1


class _Pull(Thread):
    """A thread that pulls one reply.

    Flower waits minutes for the rest of a reply that has arrived in part, and a reply that cannot
    be read would fail all others of the same pull.
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
        """Whether the pull runs and may still end soon."""
        return self.is_alive() and time.monotonic() < self._stuck_at

    def run(self) -> None:
        """Store the reply or the error in `outcome`."""
        try:
            self.outcome = next(iter(self._grid.pull_messages([self._number])), None)
        except BaseException as error:  # Handled by the caller of `collect`.
            self.outcome = error


def _reply(asked: tuple[str, int], message: Message, deadline_seconds: float) -> Reply:
    client, node = asked
    if message.has_error():
        failure = describe_failure(message.error, deadline_seconds)
        return Reply(client=client, blobs=None, failure=failure)
    size = total_bytes(message)
    if message.metadata.src_node_id != node:
        return Reply(client="", blobs={}, total_bytes=size)
    try:
        return Reply(client=client, blobs=from_records(message.content), total_bytes=size)
    except WireError as error:
        # A site sends no such reply; an empty one is dropped like any other wrong reply.
        _LOG.warning("the reply of '%s' is dropped: %s", client, error)
        return Reply(client=client, blobs={}, total_bytes=size)
