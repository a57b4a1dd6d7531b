"""An update of a client, encoded for two operators that do not collude: relay and collector.

The collector announces a round, and the client answers it through the relay: by a masked vector in
a secure sum, by an encrypted message in a shuffle. The charge counts only on as many honest clients
as the announcement guarantees. Every attempt at a round draws fresh codes and is a charge of its
own; asked again within an attempt, the client sends the stored bytes.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from numpy.typing import ArrayLike

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import PolicyError, WireError
from sottovoce.core.randomness import Randomness
from sottovoce.ledger.ledger import Ledger
from sottovoce.mechanisms.encoding import flatten_update, prepare
from sottovoce.mechanisms.mechanism import LevelCodes, Mechanism
from sottovoce.mechanisms.packing import UnsignedCodes, pack, packed_size
from sottovoce.mechanisms.registry import public_parameters
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.protocol.channels.channel import Channel
from sottovoce.protocol.channels.secure_sum import TWO_SERVER, SecureSum
from sottovoce.protocol.channels.shuffler import Shuffler
from sottovoce.protocol.client import Permit
from sottovoce.protocol.plan import ClientPlan, RoundPlan
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.contribution import charge_marked, draw_codes, masked_charges
from sottovoce.protocol.secure.encoding import Protocol as Protocols
from sottovoce.protocol.secure.shuffle_client import ShuffleClient
from sottovoce.protocol.secure.two_server_client import TwoServerClient

Party: TypeAlias = TwoServerClient | ShuffleClient
_OF_CLIENT = b""  # In the place of a federation: terms that hold for a client in all federations.


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


def level_codes(mechanism: Mechanism, protocol: Protocols) -> LevelCodes:
    """Return the format of codes that a relay can carry.

    Args:
        mechanism: The mechanism.
        protocol: The announced protocol: a sum needs a code for each coordinate, a shuffle carries
            any fixed number of codes, such as those of a seed.

    Raises:
        WireError: The mechanism does not send such codes.
    """
    found = mechanism.code_format()
    if not isinstance(found, LevelCodes):
        raise WireError(
            "a relay carries codes of finitely many levels; use a mechanism such as clamped_sign "
            "or gauss_hermite"
        )
    if found.count is not None and protocol is not Protocols.SHUFFLER:
        raise WireError(
            "a sum needs one code of finitely many levels for each coordinate; use a mechanism "
            "such as clamped_sign or gauss_hermite, or a shuffle"
        )
    return found


def channel_of(party: Party, found: Announcement) -> Channel:
    """Return the channel by which a message of an attempt is charged.

    It counts on as many honest clients as the announcement guarantees by this client's policy.
    """
    honest = party.honest_clients(found)
    kind = Shuffler if isinstance(party, ShuffleClient) else SecureSum
    colluders = found.attempt.threshold - honest
    return kind(minimum_clients=honest, protocol=TWO_SERVER, colluders=colluders)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedRequest:
    """The vectors of one client for an announced attempt.

    Attributes:
        announcement: The announcement, as it came.
        plan: The plan of the round, with the channel by which the attempt is charged.
        part: The client's part of it.
        vectors: The vector of each uplink, neither clipped nor rotated yet.
    """

    announcement: bytes
    plan: RoundPlan
    part: ClientPlan
    vectors: Sequence[ArrayLike]


def report(
    request: RelayedRequest,
    party: Party,
    ledger: Ledger,
    randomness: Randomness,
    *,
    permit: Permit = lambda _: None,
) -> bytes:
    """Prepare, charge, encode and hide a client's vectors, and return its report for the relay.

    If the attempt was answered before, the stored bytes are returned and nothing is charged.

    Args:
        request: The vectors.
        party: The client's side of the protocol, whose journal lies in the ledger's file.
        ledger: Where the attempt is charged.
        randomness: Source of the mechanism's keys; masks never come from it.
        permit: Called last before the charge; it raises to veto it.

    Returns:
        The report.

    Raises:
        SottovoceError: The attempt is not allowed or not covered, or a vector is not valid; nothing
            is charged.
    """
    plan, part = request.plan, request.part
    mechanism = part.mechanism
    rows = [prepare(mechanism, vector, rotation=plan.rotation) for vector in request.vectors]
    found = Announcement.read(request.announcement)
    _check_sizes(found, mechanism)
    pending = masked_charges(plan, part, len(rows), found.attempt.attempt)
    bits = level_codes(mechanism, found.attempt.protocol).bits

    def charge() -> None:
        permit(pending)
        charge_marked(pending, ledger)

    def codes() -> list[UnsignedCodes]:
        return draw_codes(rows, pending, randomness)

    def payload() -> bytes:
        return b"".join(pack(each, bits) for each in codes())

    asked, now, transaction = request.announcement, int(time.time()), ledger.transaction
    if isinstance(party, ShuffleClient):
        return party.report(asked, now, charge, payload, transaction)
    return party.report(asked, now, charge, codes, transaction)


def _check_sizes(found: Announcement, mechanism: Mechanism) -> None:
    """Raise WireError before anything is charged if the mechanism's codes are not announced."""
    asked, dimension = found.attempt, mechanism.input_domain.dimension
    codes = level_codes(mechanism, asked.protocol)
    summed = asked.protocol is not Protocols.SHUFFLER
    count = dimension if codes.count is None else codes.count
    expected = {
        "dimension": (asked.dimension, dimension),
        "levels": (asked.levels, codes.levels),
        "payload_bytes": (
            found.payload_bytes,
            0 if summed else asked.uplinks * packed_size(count, codes.bits),
        ),
    }
    for name, (announced, own) in expected.items():
        if announced != own:
            raise WireError(
                f"the announcement has another '{name}' than this client's mechanism: announced is "
                f"{announced}, the mechanism has {own}; ask the collector to announce what it sends"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedClient:
    """What a client's charge and message depend on, in addition to the announcement.

    Attributes:
        part: The client's name and mechanism.
        ledger: The ledger in which messages are charged.
        adjacency: The change of the data that is hidden.
        unit: What a charge protects.
        is_rotated: Whether updates are rotated at random before they are encoded.
        run: The client's own name of the training, for which the terms of charges are fixed.
        randomness: The source of the mechanism's noise.
    """

    part: ClientPlan
    ledger: Ledger
    adjacency: Adjacency
    unit: Unit
    is_rotated: bool
    run: str
    randomness: Randomness

    def send(self, relay: RelayAccess, update: Any) -> Announcement:
        """Charge and encode an update for the announced attempt, and send it.

        Args:
            relay: The way to the relay.
            update: Floating-point numbers, as many as the mechanism has dimensions.

        Returns:
            The announcement that was answered.

        Raises:
            SottovoceError: The update is not valid, the announcement is not for this client or not
                allowed, or the budget does not cover it. Nothing is charged.
        """
        asked, content = relay.announcement()
        found = Announcement.read(asked)
        found.check_content(content)
        party = relay.party(found.attempt.protocol, self.ledger)
        party.open(asked)
        plan = self._plan(party, found)
        self._check(found, plan)
        vector = flatten_update(update, self.part.mechanism.input_domain.dimension)
        request = RelayedRequest(announcement=asked, plan=plan, part=self.part, vectors=[vector])
        relay.send(
            report(
                request,
                party,
                self.ledger,
                self.randomness,
                permit=lambda _: self._check_terms(found),
            )
        )
        return found

    def _check_terms(self, found: Announcement) -> None:
        """Raise PolicyError if charges depend on other terms than before in this client's training.

        The collector names its runs as it likes. If it could choose new terms, such as another
        minimum, after it has seen results, budgets would not bound what it learns.
        """
        terms = found.terms.hex()
        if self.ledger.journal().fix(_OF_CLIENT, self.run, terms) != terms:
            raise PolicyError(
                "the announcement has other terms than those before, such as another minimum of "
                "clients, and the collector must not choose them by what it has seen; if you agree "
                "to the new terms, create the client with another 'run'"
            )

    def _plan(self, party: Party, found: Announcement) -> RoundPlan:
        asked, dimension = found.attempt, self.part.mechanism.input_domain.dimension
        rotation = None
        if self.is_rotated:
            rotation = Rotation.of_round(asked.run, asked.round, dimension)
        return RoundPlan(
            run=asked.run,
            round=asked.round,
            unit=self.unit,
            adjacency=self.adjacency,
            clients=(self.part,),
            rotation=rotation,
            channel=channel_of(party, found),
        )

    def _check(self, found: Announcement, plan: RoundPlan) -> None:
        """Raise WireError for an announcement of other parameters."""
        mechanism, asked = self.part.mechanism, found.attempt
        expected: dict[str, object] = {
            "mechanism": canonical_parameters(mechanism),
            "dimension": mechanism.input_domain.dimension,
            "uplinks": 1,
            "levels": level_codes(mechanism, asked.protocol).levels,
            "rotation_seed": b"" if plan.rotation is None else plan.rotation.seed,
            "adjacency": str(self.adjacency),
            "unit": str(self.unit),
        }
        for name, own in expected.items():
            announced = getattr(asked, name)
            if announced != own:
                raise WireError(
                    f"the announcement has another '{name}' than this client: announced is "
                    f"{_shown(announced)}, the client has {_shown(own)}; create the client with "
                    "the announced mechanism, adjacency and rotation"
                )


def _shown(value: object) -> str:
    """Return a public parameter for a message; bytes as hexadecimal digits."""
    return (value.hex() or "none") if isinstance(value, bytes) else str(value)
