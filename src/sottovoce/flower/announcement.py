"""What the server of a Flower app and its nodes tell each other beside the model.

A client is told the plan, all of it public. Before a node is first asked to train, it is asked for
its site's name. That name is the account which pays. It belongs to the first node that claims it,
for the whole run: node ids are Flower's to authenticate, and nobody can go on under another's name.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from logging import WARNING
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from sottovoce.core import bounded_json, parameter_rules
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import DeploymentError, PolicyError, SottovoceError
from sottovoce.deployment.site import Asked
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism, has_a_range
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.protocol.plan import ClientPlan, RoundPlan

RECORD = "sottovoce"  # the one record of ours in a message, either way
PLAN, NAME, SEALED, NUM_EXAMPLES = "plan", "name", "sealed", "num-examples"
VERSION = 2
_MOST_BYTES, _MOST_VALUES = 2**20, 2**14  # of a plan: one mechanism and its parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """One client's part of a round, as plain data.

    `layout` is the digest of the model's names and shapes; with `num_examples` the client is asked
    to say, in the clear, of how many examples its update is made. The run has `rounds` rounds.
    """

    client: str
    round: int
    rounds: int
    cohort: int
    mechanism: str
    parameters: Mapping[str, Any]
    dimension: int
    clip_norm: float
    adjacency: str
    layout: str
    num_examples: bool

    def record(self) -> ConfigRecord:
        return ConfigRecord({PLAN: json.dumps({"version": VERSION, **asdict(self)})})

    def asked(self, run: str) -> Asked:
        """The plan to which a site answers."""
        domain = L2Ball(dimension=self.dimension, radius=self.clip_norm)
        mechanism = registry.find(self.mechanism).build(domain, self.parameters)
        part = part_of(self.client, mechanism)
        plan = round_plan(run, self.round, Adjacency.parse(self.adjacency), (part,))
        rounds = parameter_rules.integer("rounds", self.rounds, low=1, high=2**32)
        return Asked(plan=plan, part=part, cohort=self.cohort, uplinks=1, rounds=rounds)


def run_name(run_id: int) -> str:
    """The run in ledgers: another one each time it is started, so that it is charged anew."""
    return f"flower-{run_id}"


def part_of(client: str, mechanism: Mechanism) -> ClientPlan:
    """Everyone's vector counts once; what weights there are, the strategy gives them."""
    return ClientPlan(client=client, mechanism=mechanism, weight=1.0)


def round_plan(
    run: str, number: int, adjacency: Adjacency, parts: tuple[ClientPlan, ...]
) -> RoundPlan:
    """The plan of a round, the same for the server, who has all parts, and a client, who has one.

    The whole update is clipped, so what is protected is a client. Where a coordinate's codes have
    a range, updates are rotated.
    """
    mechanism = parts[0].mechanism
    rotation = None
    if has_a_range(mechanism):
        rotation = Rotation.of_round(run, number, mechanism.input_domain.dimension)
    return RoundPlan(
        run=run,
        round=number,
        unit=Unit.CLIENT,
        adjacency=adjacency,
        clients=parts,
        rotation=rotation,
    )


def read_announcement(record: ConfigRecord) -> Announcement:
    """The announcement in a server's record; what cannot be read is refused."""
    try:
        text = str(record.get(PLAN)).encode(errors="replace")
        fields = bounded_json.loads(text, most_bytes=_MOST_BYTES, most_values=_MOST_VALUES)
        version = fields.pop("version")
        if version != VERSION:
            raise PolicyError(
                f"the server speaks version {version!r}, and this client {VERSION}; install the "
                "same sottovoce on both"
            )
        return Announcement(**fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise PolicyError("the server's plan cannot be read") from None


def asked_of(announcement: Announcement, run: str) -> Asked:
    """`Announcement.asked`; a plan that cannot be built is refused, with the reason."""
    try:
        return announcement.asked(run)
    except (SottovoceError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise PolicyError(f"the server's plan is not valid: {error}") from None


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
