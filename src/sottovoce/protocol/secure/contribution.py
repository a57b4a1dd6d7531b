"""From vectors to masked codes: prepare, charge, encode and mask, in this order.

It differs from `protocol.client.privatize` in what is kept. A masked vector is never stored and
never sent again under other masks: that would show the codes to a server that drops one site from a
second attempt. So each attempt draws fresh codes under a charge of its own, and the ledger keeps a
mark instead of a message.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from sottovoce.core.errors import BudgetExhaustedError
from sottovoce.core.randomness import Randomness, streams_of_labels
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import PendingCharge
from sottovoce.mechanisms.encoding import Prepared, encode_packed, prepare
from sottovoce.mechanisms.packing import UnsignedCodes, unpack
from sottovoce.protocol.client import Permit
from sottovoce.protocol.plan import ClientPlan, RoundPlan
from sottovoce.protocol.secure.pairwise_site import PairwiseSite

#: Stored in the ledger in place of a message, so that no other message is encoded under the charge.
MASKED = b"sent under masks"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedRequest:
    """The vectors of one client, to be privatized and masked.

    Attributes:
        plan: The plan of the round.
        part: The client's part of it.
        vectors: The vector of each uplink, neither clipped nor rotated yet.
        attempt: Number of the attempt at the round, from 1.
    """

    plan: RoundPlan
    part: ClientPlan
    vectors: Sequence[ArrayLike]
    attempt: int

    def charges(self) -> list[PendingCharge]:
        """Return what one attempt costs: the event of each uplink, charged again."""
        return masked_charges(self.plan, self.part, len(self.vectors), self.attempt)


def masked_charges(
    plan: RoundPlan, part: ClientPlan, uplinks: int, attempt: int
) -> list[PendingCharge]:
    """Return the charges of a client for one attempt at a secure sum; they are not yet made.

    All clients draw fresh codes in each attempt, so attempts compose like rounds.

    Args:
        plan: The plan of the round.
        part: The client's part of it.
        uplinks: How many vectors it sends.
        attempt: Number of the attempt, from 1.

    Returns:
        One charge for each uplink.
    """
    event = plan.event(part)
    return [
        PendingCharge(release=plan.release(part.client, uplink), attempt=attempt - 1, event=event)
        for uplink in range(uplinks)
    ]


def contribute(
    request: MaskedRequest,
    party: PairwiseSite,
    box: bytes,
    ledger: Ledger,
    randomness: Randomness,
    *,
    permit: Permit,
) -> bytes:
    """Prepare, charge, encode and mask a client's vectors, and return its signed message.

    Args:
        request: The vectors.
        party: The client's state in the protocol.
        box: The server's message with the other sites' shares.
        ledger: Where the attempt is charged.
        randomness: Source of the mechanism's keys; masks never come from it.
        permit: Called last before the charge; it raises to veto it.

    Returns:
        The message to send, once the ledger's seal is up to date.

    Raises:
        WireError: The box is not valid; nothing is charged.
        DomainError: A vector has the wrong dimension or is not finite; nothing is charged.
        BudgetExhaustedError: The client's budget does not cover it; nothing is charged.
    """
    mechanism, plan = request.part.mechanism, request.plan
    rows = [prepare(mechanism, vector, rotation=plan.rotation) for vector in request.vectors]
    pending = request.charges()

    def draw() -> list[UnsignedCodes]:
        return draw_codes(rows, pending, randomness)

    return contribute_charged(party, box, ledger, pending=pending, draw=draw, permit=permit)


def contribute_charged(
    party: PairwiseSite,
    box: bytes,
    ledger: Ledger,
    *,
    pending: Sequence[PendingCharge],
    draw: Callable[[], Sequence[UnsignedCodes]],
    permit: Permit,
) -> bytes:
    """Charge, then draw integers and mask them; return the party's signed message.

    Args:
        party: The client's state in the protocol.
        box: The server's message with the other sites' shares.
        ledger: Where the attempt is charged.
        pending: The charges of the attempt.
        draw: Returns the integers of each uplink; called once, after the charge.
        permit: Called last before the charge; it raises to veto it.

    Returns:
        The message to send, once the ledger's seal is up to date.

    Raises:
        WireError: The box is not valid; nothing is charged.
        BudgetExhaustedError: A budget does not cover it; nothing is charged.
    """

    def charge() -> None:
        permit(pending)
        charge_marked(pending, ledger)

    return party.contribute(box, charge, draw, ledger.transaction)


def charge_marked(pending: Sequence[PendingCharge], ledger: Ledger) -> None:
    """Charge an attempt inside a transaction, and store a mark in place of each message.

    Raises:
        BudgetExhaustedError: The client's budget does not cover it; the transaction is undone.
    """
    outcomes = ledger.charge_all(pending)
    for outcome in outcomes:
        if isinstance(outcome, BudgetExhaustedError):
            raise outcome
    ledger.store_messages(
        [(one, MASKED, None) for one in outcomes if not isinstance(one, BudgetExhaustedError)]
    )


def draw_codes(
    rows: Sequence[Prepared], pending: Sequence[PendingCharge], randomness: Randomness
) -> list[UnsignedCodes]:
    """Return the codes of prepared vectors, drawn again for the attempt that was charged."""
    labels = [("encode", *due.release.key, due.attempt) for due in pending]
    streams = streams_of_labels(randomness, labels)
    return [_codes(row, stream) for row, stream in zip(rows, streams, strict=True)]


def _codes(row: Prepared, stream: object) -> UnsignedCodes:
    packed = encode_packed(row, [stream])  # type: ignore[list-item]
    (payload,) = packed.on_cpu()
    return unpack(payload.tobytes(), packed.num_codes, packed.code_format.bits)
