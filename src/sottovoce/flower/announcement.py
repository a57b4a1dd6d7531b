"""The records that a server and its nodes exchange in addition to the model.

A client receives the plan, all of which is public. Before a node is first asked to train it is
asked for the name of its site, which is the account that is charged. A name belongs to the first
node that claims it, for the whole run. Flower authenticates node ids, so no node can continue under
the name of another.
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
from sottovoce.deployment.site import RoundRequest
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism, has_finite_codes
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.protocol.plan import ClientPlan, RoundPlan

RECORD = "sottovoce"  # Our only record in a message, in both directions.
PLAN, NAME, SEALED, NUM_EXAMPLES = "plan", "name", "sealed", "num-examples"
VERSION = 2
_MOST_BYTES, _MOST_VALUES = 2**20, 2**14  # Limits of a plan: one mechanism and its parameters.


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundAnnouncement:
    """One client's part of a round as plain data.

    Attributes:
        client: Name of the client.
        round: The round, counted from 1.
        rounds: Number of rounds of the run.
        cohort: Number of clients in the round.
        mechanism: Registered name of the mechanism.
        parameters: Its parameters.
        dimension: Number of floating-point parameters of the model.
        clip_norm: The clipping norm of the whole update.
        adjacency: Which data sets count as neighbors.
        layout: Digest of the model's names, shapes and types.
        num_examples: Whether the client is asked for its number of examples, in the clear.
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
        """Return the announcement as a record of a Flower message."""
        return ConfigRecord({PLAN: json.dumps({"version": VERSION, **asdict(self)})})

    def asked(self, run: str) -> RoundRequest:
        """Return the request to the client's site in the run `run`; it builds the mechanism.

        What it raises for fields that are not valid is of several types: see `build_request`.
        """
        domain = L2Ball(dimension=self.dimension, radius=self.clip_norm)
        mechanism = registry.find(self.mechanism).build(domain, self.parameters)
        part = make_client_plan(self.client, mechanism)
        plan = round_plan(run, self.round, Adjacency.parse(self.adjacency), (part,))
        rounds = parameter_rules.integer("rounds", self.rounds, low=1, high=2**32)
        return RoundRequest(plan=plan, part=part, cohort=self.cohort, uplinks=1, rounds=rounds)


def run_name(run_id: int) -> str:
    """Return the name of a Flower run in ledgers.

    Each start of an app has a new run id, so its rounds are charged again.
    """
    return f"flower-{run_id}"


def make_client_plan(client: str, mechanism: Mechanism) -> ClientPlan:
    """Return a client's plan with weight 1; the strategy applies weights after decoding."""
    return ClientPlan(client=client, mechanism=mechanism, weight=1.0)


def round_plan(
    run: str, number: int, adjacency: Adjacency, parts: tuple[ClientPlan, ...]
) -> RoundPlan:
    """Return the plan of a round; a server passes all clients' parts, a client its own.

    The whole update is clipped, so the unit of privacy is the client. Updates are rotated if each
    coordinate is sent as one of finitely many codes. `parts` must not be empty.
    """
    mechanism = parts[0].mechanism
    rotation = None
    if has_finite_codes(mechanism):
        rotation = Rotation.of_round(run, number, mechanism.input_domain.dimension)
    return RoundPlan(
        run=run,
        round=number,
        unit=Unit.CLIENT,
        adjacency=adjacency,
        clients=parts,
        rotation=rotation,
    )


def read_announcement(record: ConfigRecord) -> RoundAnnouncement:
    """Return the announcement in a server's record; raise PolicyError if it cannot be read.

    Its fields are not checked yet; `build_request` does that.
    """
    try:
        text = str(record.get(PLAN)).encode(errors="replace")
        fields = bounded_json.loads(text, most_bytes=_MOST_BYTES, most_values=_MOST_VALUES)
        version = fields.pop("version")
        if version != VERSION:
            raise PolicyError(
                f"the server uses version {version!r} of the plan and this client version "
                f"{VERSION}; install the same version of sottovoce on both"
            )
        return RoundAnnouncement(**fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise PolicyError(
            "the server's plan cannot be read; install the same version of sottovoce on both sides"
        ) from None


def build_request(announcement: RoundAnnouncement, run: str) -> RoundRequest:
    """Return the request that the announcement makes; raise PolicyError if it is not valid."""
    try:
        return announcement.asked(run)
    except (SottovoceError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise PolicyError(
            f"the server's plan is not valid: {error}; correct the run config of the server"
        ) from None


_MAX_NAME_LENGTH = 200
# Giving a name needs no training, but a node may have to start an app for its first message.
ANSWER_SECONDS = 120.0
# A node that did not answer may be gone for long, and asking it again would delay every round.
SILENT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class NodeNames:
    """The names of sites that nodes have claimed, by node id.

    Attributes:
        names: The name of each node that gave one.
        silent_since: When the last wait for each node that did not answer ended, in seconds of
            `time.monotonic`. A node that answers later stays listed.
    """

    names: dict[int, str] = field(default_factory=dict)
    silent_since: dict[int, float] = field(default_factory=dict)

    def ask_names(self, messages: Sequence[Message], grid: Grid, *, timeout_seconds: float) -> None:
        """Ask the new nodes among the receivers of `messages` for their names.

        A message of the same type is sent, because an app answers no other; the mod does not pass
        it to the app. A node that gives no name, or one that another node has, is left out. The
        wait ends after `timeout_seconds`, at most 120 s, and a node that was silent is not asked
        again for 600 s. Raises DeploymentError if nodes were asked and no node has a name then.
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
            why = f"another node has the name '{name}'"
            if reply.has_error():
                why = str(reply.error.reason)
            elif name is None:
                why = "it gave no name; add private_mod to its mods"
            log(WARNING, "node %d is left out: %s", node, why)
        for node in sorted(silent):
            self.silent_since[node] = time.monotonic()
            log(WARNING, "node %d is left out: it gave no name in %g seconds", node, timeout)
        if not names:
            raise DeploymentError(
                "no node gave the name of its site, so no client can be charged and none was "
                "asked to train; give the ClientApp mods=[private_mod], and every node a site's "
                "file (see 'sottovoce deploy join')"
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
