"""Which node is which client.

With keys the operator knows: each site's public key is on his list, and the link lets in no other.
Without keys a node is asked for its name and believed, once: fit for simulations and rehearsals.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from sottovoce.core import display
from sottovoce.core.errors import DeploymentError, WireError
from sottovoce.flower.records import failure_of, from_records, to_records

_LOG = display.logger()
_ANSWER_SECONDS = 30.0
_POLL_SECONDS = 0.2


class Directory(Protocol):
    """Nodes by the names of clients."""

    def online(self) -> Mapping[str, int]:
        """Clients whose nodes are connected now."""
        ...

    def known(self) -> Mapping[str, int]:
        """Clients as of the last look."""
        ...


class KeyedDirectory:
    """Names by public keys, as the operator wrote them down."""

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


class AskedDirectory:
    """Names as nodes tell them; of two nodes with one name the first has it, while it is there."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._name_of: dict[int, str] = {}
        self._nameless: dict[int, float] = {}  # node: when it said no name
        self._asked: dict[str, tuple[int, float]] = {}  # message: node and when
        self._known: dict[str, int] = {}

    def online(self) -> Mapping[str, int]:
        present = set(self._grid.get_node_ids())
        # A site may mend its file: who said no name is asked again after a while.
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
        reason = failure_of(message.error, _ANSWER_SECONDS)
        _LOG.warning("node %d does not say who it is: %s", node, reason)
        return None
    try:
        blobs = from_records(message.content)
        return blobs["name"].decode()
    except (WireError, KeyError, UnicodeDecodeError):
        _LOG.warning("node %d does not say who it is", node)
        return None


def wait_for_all(
    directory: Directory,
    clients: Sequence[str],
    *,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Return once every client is online: who is sampled must not depend on who came first."""
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
