"""Who the nodes are: before a node is first asked to train, it is asked for its site's name.

That name is the account which pays. It belongs to the first node that claims it, for the whole run:
node ids are Flower's to authenticate, and nobody can go on under another's name.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from logging import WARNING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from sottovoce.core.errors import DeploymentError
from sottovoce.flower.announcement import NAME, RECORD

_MAX_NAME_LENGTH = 200
# A name takes no training, but a node may have to start an app for its first message.
ANSWER_SECONDS = 120.0
# Who let that time pass may be gone for long, and a round would wait for it each time.
SILENT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Introductions:
    """By node, the name that it has claimed; and since when a node that was asked is silent."""

    names: dict[int, str] = field(default_factory=dict)
    silent_since: dict[int, float] = field(default_factory=dict)

    def meet(self, messages: Sequence[Message], grid: Grid, *, timeout_seconds: float) -> None:
        """Ask those to whom `messages` go for their names, if they are new, and enter them.

        A message of the same type goes first, for an app answers no other; the mod never shows it
        to the app. A node that does not say who it is stays without a name, and is left out. No
        longer than ANSWER_SECONDS is waited, and who was silent is not asked for SILENT_SECONDS.
        """
        names = self.names
        asked = {
            message.metadata.dst_node_id: Message(
                content=RecordDict({RECORD: ConfigRecord()}),
                message_type=message.metadata.message_type,
                dst_node_id=message.metadata.dst_node_id,
            )
            for message in messages
            if message.metadata.dst_node_id not in names
            and not self._is_silent(message.metadata.dst_node_id)
        }
        if not asked:
            return
        timeout = min(timeout_seconds, ANSWER_SECONDS)
        silent = set(asked)
        for reply in grid.send_and_receive(list(asked.values()), timeout=timeout):
            node = reply.metadata.src_node_id
            silent.discard(node)
            if node not in asked or node in names:
                continue
            name = _claimed_name(reply)
            if name is not None and name not in names.values():
                names[node] = name
                continue
            why = f"another node is '{name}' already"
            if reply.has_error():
                why = str(reply.error.reason)
            elif name is None:
                why = "it has no name; is private_mod among its mods?"
            log(WARNING, "node %d is left out: %s", node, why)
        for node in sorted(silent):
            self.silent_since[node] = time.monotonic()
            log(WARNING, "node %d is left out: it said no name in %g seconds", node, timeout)
        if not names:
            raise DeploymentError(
                "no node has said its site's name, so nobody can be charged and nothing was "
                "asked; give the ClientApp mods=[private_mod] and every node a site"
            )

    def _is_silent(self, node: int) -> bool:
        since = self.silent_since.get(node)
        return since is not None and time.monotonic() - since < SILENT_SECONDS


def _claimed_name(reply: Message) -> str | None:
    if reply.has_error():
        return None
    name = reply.content.config_records.get(RECORD, ConfigRecord()).get(NAME)
    if isinstance(name, str) and 0 < len(name) <= _MAX_NAME_LENGTH and name.isprintable():
        return name
    return None
