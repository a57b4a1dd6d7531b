"""The plan of a round: public, frozen, and enough for either side to know every message."""

import hashlib
import json
from dataclasses import dataclass, field

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import ParameterError
from sottovoce.ledger.records import Release
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.registry import parameter_hash
from sottovoce.mechanisms.release import ReleaseTerms
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.protocol.channels.channel import Channel, Direct, terms_of
from sottovoce.protocol.message import Envelope


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPlan:
    """One client's part: its mechanism (which carries its sigma) and its public weight."""

    client: str
    mechanism: Mechanism
    weight: float

    def __post_init__(self) -> None:
        parameter_rules.positive("weight", self.weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """Who is asked in a round, what is protected, and under which adjacency.

    With a `rotation` clients encode rotated updates, and the server turns back what they add up to.
    The `channel` says what the server sees of the messages, and so what each is charged with. Where
    every client samples its own records in secret, `record_sampling_rate` says how likely each is.
    """

    run: str
    round: int
    unit: Unit
    adjacency: Adjacency
    clients: tuple[ClientPlan, ...]
    rotation: Rotation | None = None
    channel: Channel = field(default_factory=Direct)
    record_sampling_rate: float = 1.0
    # Clients mostly share one mechanism, and its hash takes longer than sealing a small message.
    # By identity, beside the mechanism itself, whose address is then nobody else's.
    _hashes: dict[int, tuple[Mechanism, bytes]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        names = [part.client for part in self.clients]
        if len(set(names)) != len(names):
            raise ParameterError("a client is named twice in the plan of one round")
        if self.rotation is not None:
            _check_rotation(self.rotation, self.clients)
        _check_carries_messages(self.channel)
        self.channel.check_cohort((part.mechanism, part.weight) for part in self.clients)

    def release(self, client: str, uplink: int) -> Release:
        return Release(unit=self.unit, run=self.run, client=client, round=self.round, uplink=uplink)

    @property
    def terms(self) -> ReleaseTerms:
        """What decides the cost of a message beside its mechanism."""
        return terms_of(
            self.channel, self.adjacency, record_sampling_rate=self.record_sampling_rate
        )

    def event(self, part: ClientPlan) -> PrivacyEvent:
        """What one message of this client is charged with."""
        return self.terms(part.mechanism)

    def _context_hash(self, part: ClientPlan) -> bytes:
        """The public parameters, bound to run and client: no message passes for another's.

        Where the channel hides the sender all clients share one hash: their own would be a name.
        """
        digest = hashlib.blake2b(self._parameter_hash(part.mechanism), digest_size=16)
        context = [self.run, None if self.channel.hides_sender else part.client]
        if self.rotation is not None:
            context += ["rotation", self.rotation.seed.hex()]
        if self.channel != Direct():
            context += ["channel", self.channel.wire_name]
        digest.update(json.dumps(context).encode())
        return digest.digest()

    def _parameter_hash(self, mechanism: Mechanism) -> bytes:
        known = self._hashes.get(id(mechanism))
        if known is None:
            known = self._hashes[id(mechanism)] = (mechanism, parameter_hash(mechanism))
        return known[1]

    def envelope(self, part: ClientPlan, uplink: int) -> Envelope:
        """What the server expects of this client, from its own knowledge alone."""
        return Envelope(
            parameter_hash=self._context_hash(part),
            round=self.round,
            uplink=uplink,
            dimension=part.mechanism.input_domain.dimension,
            code_format=part.mechanism.code_format(),
        )

    @property
    def largest_message_bytes(self) -> int:
        """Return the length of the longest sealed message that a client of the round sends."""
        distinct = {id(part.mechanism): part for part in self.clients}.values()
        return max((self.envelope(part, 0).total_bytes for part in distinct), default=0)


def _check_carries_messages(channel: Channel) -> None:
    """Messages with noise of their own must not be charged as if there were one noise for all."""
    if channel.noise_at_server:
        raise ParameterError(
            f"no messages are planned for {channel.describe()}; it is simulated with "
            "runtime.messages = 'none'"
        )


def _check_rotation(rotation: Rotation, clients: tuple[ClientPlan, ...]) -> None:
    """Only a Euclidean ball looks the same from every side."""
    for part in clients:
        domain = part.mechanism.input_domain
        if not isinstance(domain, L2Ball) or domain.dimension != rotation.dimension:
            raise ParameterError(
                f"a rotation of {rotation.dimension} coordinates needs inputs from an L2Ball of "
                f"that dimension; client '{part.client}' has {domain}"
            )
