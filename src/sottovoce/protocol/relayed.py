"""An update of a client, encoded for two operators that do not collude: relay and collector.

The collector announces a round, and the client answers it through the relay: by a masked vector in
a secure sum, by an encrypted message in a shuffle. The charge counts only on as many honest clients
as the announcement guarantees. Every attempt at a round draws fresh codes and is a charge of its
own; asked again within an attempt, the client sends the stored bytes.
"""

import json
import time
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import BudgetExhaustedError, ParameterError, WireError
from sottovoce.core.randomness import Randomness
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import PendingCharge, Release
from sottovoce.mechanisms.encoding import Prepared, encode_packed, flatten_update, prepare
from sottovoce.mechanisms.mechanism import LevelCodes, Mechanism
from sottovoce.mechanisms.packing import UnsignedCodes, unpack
from sottovoce.mechanisms.registry import public_parameters
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.protocol.channels.channel import Channel, terms_of
from sottovoce.protocol.channels.secure_sum import SecureSum
from sottovoce.protocol.channels.shuffler import Shuffler
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.encoding import Protocol as Protocols
from sottovoce.protocol.secure.shuffle_client import ShuffleClient
from sottovoce.protocol.secure.two_server_client import TwoServerClient

Party: TypeAlias = TwoServerClient | ShuffleClient


class RelayAccess(Protocol):
    """A way to the relay, with what a client needs to take part."""

    def announcement(self) -> tuple[bytes, bytes]:
        """Return the current announcement and its content, such as a model."""
        ...

    def party(self, protocol: Protocols, ledger: Ledger) -> Party:
        """Return the client's side of a protocol; its journal lies in the ledger's file."""
        ...

    def send(self, report: bytes) -> None:
        """Send a report to the relay."""
        ...


def canonical_parameters(mechanism: Mechanism) -> str:
    """Return a mechanism's public parameters as the JSON text that announcements name it by."""
    return json.dumps(public_parameters(mechanism), sort_keys=True, separators=(",", ":"))


def channel_of(protocol: Protocols, honest_clients: int) -> Channel:
    """Return the channel by which a message of a protocol with two operators is charged.

    Args:
        protocol: A sum or a shuffle.
        honest_clients: The number of clients that the charge may count on.

    Raises:
        WireError: It is another protocol.
    """
    match protocol:
        case Protocols.TWO_SERVER_SUM:
            return SecureSum(minimum_clients=honest_clients)
        case Protocols.SHUFFLER:
            return Shuffler(minimum_clients=honest_clients)
        case Protocols.PAIRWISE:
            raise WireError("pairwise masks have no relay; expected a sum or a shuffle")


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedClient:
    """What a client's charge and message depend on, in addition to the announcement.

    Attributes:
        name: The client's name, in the ledger and at the operators.
        mechanism: The mechanism that encodes updates.
        ledger: The ledger in which messages are charged.
        adjacency: The change of the data that is hidden.
        unit: What a charge protects.
        is_rotated: Whether updates are rotated at random before they are encoded.
        randomness: The source of the mechanism's noise.
    """

    name: str
    mechanism: Mechanism
    ledger: Ledger
    adjacency: Adjacency
    unit: Unit
    is_rotated: bool
    randomness: Randomness

    def report(self, relay: RelayAccess, update: Any) -> Announcement:
        """Charge and encode an update for the announced attempt, and send it.

        The ledger is charged once for an attempt. If a report of it is stored, it is sent again.

        Args:
            relay: The way to the relay.
            update: Floating-point numbers, as many as the mechanism has dimensions.

        Returns:
            The announcement that was answered.

        Raises:
            DomainError: The update has the wrong size or is not finite. Nothing is charged.
            BudgetExhaustedError: The budget does not cover it. Nothing is charged.
            WireError: The announcement is not for this mechanism. Nothing is charged.
            PolicyError: The client's policy refuses the announcement. Nothing is charged.
        """
        asked, content = relay.announcement()
        found = Announcement.read(asked)
        found.check_content(content)
        party = relay.party(found.attempt.protocol, self.ledger)
        rotation = self.check(found)
        values = flatten_update(update, self.mechanism.input_domain.dimension)
        prepared = prepare(self.mechanism, values, rotation=rotation)
        report = self._encode(party, asked, found, prepared)
        relay.send(report)
        return found

    def check(self, found: Announcement) -> Rotation | None:
        """Return the round's rotation; raise WireError for an announcement of other parameters."""
        asked, mine = found.attempt, self.mechanism
        code_format = mine.code_format()
        if not isinstance(code_format, LevelCodes) or code_format.count is not None:
            raise ParameterError(
                "a relay carries one code of finitely many levels for each coordinate; use a "
                "mechanism such as clamped_sign or gauss_hermite"
            )
        rotation = None
        if self.is_rotated:
            rotation = Rotation.of_round(asked.run, asked.round, mine.input_domain.dimension)
        expected = {
            "mechanism": canonical_parameters(mine),
            "dimension": mine.input_domain.dimension,
            "uplinks": 1,
            "levels": code_format.levels,
            "rotation_seed": b"" if rotation is None else rotation.seed,
            "adjacency": self.adjacency.value,
            "unit": self.unit.value,
        }
        for name, value in expected.items():
            if getattr(asked, name) != value:
                raise WireError(
                    f"the announcement has another '{name}' than this client; create the client "
                    "with the announced mechanism, adjacency and rotation"
                )
        return rotation

    def _encode(self, party: Party, asked: bytes, found: Announcement, prepared: Prepared) -> bytes:
        attempt = found.attempt
        release = Release(
            unit=self.unit, run=attempt.run, client=self.name, round=attempt.round, uplink=0
        )

        def charge() -> None:
            channel = channel_of(attempt.protocol, party.honest_clients(found))
            event = terms_of(channel, self.adjacency)(self.mechanism)
            due = PendingCharge(release=release, attempt=attempt.attempt - 1, event=event)
            (outcome,) = self.ledger.charge_all([due])
            if isinstance(outcome, BudgetExhaustedError):
                raise outcome

        def payload() -> bytes:
            label = ("encode", *release.key, attempt.attempt - 1, attempt.federation.hex())
            rows = encode_packed(prepared, [self.randomness.stream(*label)])
            return bytes(rows.payloads[0])

        def codes() -> list[UnsignedCodes]:
            code_format = self.mechanism.code_format()
            assert isinstance(code_format, LevelCodes)
            return [unpack(payload(), attempt.dimension, code_format.bits)]

        now, transaction = int(time.time()), self.ledger.transaction
        match party:
            case TwoServerClient():
                return party.report(asked, now, charge, codes, transaction)
            case ShuffleClient():
                return party.report(asked, now, charge, payload, transaction)
