"""What the server of a Flower app tells a client beside the model: the plan, all of it public."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flwr.app import ConfigRecord

from sottovoce.core import bounded_json, parameter_rules
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import PolicyError, SottovoceError
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
