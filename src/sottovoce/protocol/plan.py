"""The plan of a round: public, immutable, and enough for both sides to know each message format."""

import hashlib
import json
from collections.abc import Sequence
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
    """One client's part of a round.

    Attributes:
        client: The client's name.
        mechanism: The mechanism that encodes the client's updates, with its noise.
        weight: The public, positive weight of the client in the mean.
    """

    client: str
    mechanism: Mechanism
    weight: float

    def __post_init__(self) -> None:
        parameter_rules.positive("weight", self.weight)


def message_dimension(parts: Sequence[ClientPlan]) -> int:
    """Return the number of coordinates of a message, from the plans of at least one client.

    It is the model's dimension, or more if clients send statistics in the same message.
    """
    return parts[0].mechanism.input_domain.dimension


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """The clients of a round, what is protected, and under which adjacency.

    Attributes:
        run: The name of the run.
        round: The number of the round.
        unit: What a charge protects: one sample of a client, or all of its data.
        adjacency: The change of the protected data that is hidden.
        clients: The clients that are asked, with mechanism and weight.
        rotation: If given, clients encode rotated updates and the server rotates the mean back.
        channel: How messages reach the server. It decides what the server sees of them, and so what
            each of them is charged with.
        record_sampling_rate: The probability with which each client includes each of its records,
            by a secret sample of its own; 1.0 if clients use all records.

    Raises:
        ParameterError: Two clients have the same name, the rotation does not fit the mechanisms, or
            the channel carries no messages or cannot serve these clients.
    """

    run: str
    round: int
    unit: Unit
    adjacency: Adjacency
    clients: tuple[ClientPlan, ...]
    rotation: Rotation | None = None
    channel: Channel = field(default_factory=Direct)
    record_sampling_rate: float = 1.0
    # Clients mostly share one mechanism, and hashing it takes longer than sealing a small message.
    # The key is the mechanism's identity. Its value keeps the mechanism alive, so that no other
    # object can get the same identity.
    _hashes: dict[int, tuple[Mechanism, bytes]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        names = [part.client for part in self.clients]
        if len(set(names)) != len(names):
            raise ParameterError("the clients of a round must have different names")
        if self.rotation is not None:
            _check_rotation(self.rotation, self.clients)
        _check_carries_messages(self.channel)
        self.channel.check_cohort((part.mechanism, part.weight) for part in self.clients)

    def release(self, client: str, uplink: int) -> Release:
        """Return the release that the ledger charges for one message of a client.

        Args:
            client: The client's name.
            uplink: The index of the message among those that the client sends in this round.

        Returns:
            The release, which identifies the message in the ledger.
        """
        return Release(unit=self.unit, run=self.run, client=client, round=self.round, uplink=uplink)

    @property
    def terms(self) -> ReleaseTerms:
        """The terms that decide, together with its mechanism, what a message is charged with.

        Raises:
            ParameterError: Records are sampled, and no cost is proved for that on the channel.
        """
        return terms_of(
            self.channel, self.adjacency, record_sampling_rate=self.record_sampling_rate
        )

    def event(self, part: ClientPlan) -> PrivacyEvent:
        """Return the privacy event that one message of a client is charged with.

        Args:
            part: The client's part of the round.

        Returns:
            The event, given what the channel shows of the message.
        """
        return self.terms(part.mechanism)

    def _context_hash(self, part: ClientPlan) -> bytes:
        """Return the hash of the public parameters, bound to run and client.

        It keeps a message of one client or run from being accepted as a message of another. Where
        the channel hides senders all clients share one hash, because a hash of their own would
        identify them.
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
        """Return what the server expects of a client's message, computed from the plan alone.

        Args:
            part: The client's part of the round.
            uplink: The index of the message among those that the client sends in this round.

        Returns:
            The envelope against which the message is checked.
        """
        return Envelope(
            parameter_hash=self._context_hash(part),
            round=self.round,
            uplink=uplink,
            dimension=part.mechanism.input_domain.dimension,
            code_format=part.mechanism.code_format(),
        )

    @property
    def largest_message_bytes(self) -> int:
        """The length in bytes, header included, of the longest message of this round; 0 if none."""
        distinct = {id(part.mechanism): part for part in self.clients}.values()
        return max((self.envelope(part, 0).total_bytes for part in distinct), default=0)


def _check_carries_messages(channel: Channel) -> None:
    """Refuse channels that add noise once to the sum.

    Messages have noise of their own and must not be charged as if there were one noise for all.
    """
    if channel.noise_at_server:
        raise ParameterError(
            f"the channel '{channel.kind}' carries no messages ({channel.describe()}); simulate it "
            "with runtime.messages = 'none'"
        )


def _check_rotation(rotation: Rotation, clients: tuple[ClientPlan, ...]) -> None:
    """Refuse a rotation unless inputs come from a Euclidean ball, which rotations map to itself."""
    for part in clients:
        domain = part.mechanism.input_domain
        if not isinstance(domain, L2Ball) or domain.dimension != rotation.dimension:
            raise ParameterError(
                f"a rotation of {rotation.dimension} coordinates needs inputs from an L2Ball of "
                f"that dimension, but client '{part.client}' has {domain}; use Euclidean clipping "
                "or set rotation = 'off'"
            )
