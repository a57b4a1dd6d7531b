"""Charging a round before anything of it is encoded; what an earlier charge covers is not charged.

Messages are stored before they are sent, so the ledger knows what became of each charge:

    no message stored    Nothing has left the client. The release may be encoded under this charge.
    a message stored     These bytes may have been sent. A retry sends them again.
    message discarded    The bytes may have been sent. The same input under the same keystream gives
                         them again, and its commitment proves that it is the same. Otherwise a new
                         attempt is charged.

So a crash at any point loses no charge and causes no second one. If two processes work on one
release, the second to store its message fails before it sends anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sottovoce.core.errors import BudgetExhaustedError, LedgerError
from sottovoce.core.randomness import Randomness
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Charge, PendingCharge, Release
from sottovoce.privacy.compositions import reveal_messages
from sottovoce.privacy.events import PrivacyEvent, Repeated
from sottovoce.protocol.plan import ClientPlan, RoundPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The refusal to charge a message, because the client's budget does not cover it.

    Nothing was charged or encoded.

    Attributes:
        part: The client's part of the plan.
        uplink: The index of the message among those that the client sends in the round.
        error: The error that says what is left of the budget.
    """

    part: ClientPlan
    uplink: int
    error: BudgetExhaustedError


def clients_within_budget(plan: RoundPlan, ledger: Ledger, *, uplinks: int) -> frozenset[str]:
    """Return the names of clients whose remaining budgets cover all their messages of the round.

    Each client of the plan sends `uplinks` messages. Nothing is charged. The answer depends only on
    charged events and budgets, which are public. It is no reservation: the charge itself checks the
    budget again. Charges of the same run for this round or later ones are left out, so that a run
    that is repeated decides as it did the first time.
    """
    pending = [
        first_attempt(event, plan.release(part.client, uplink))
        for part, event in zip(plan.clients, events_of(plan, plan.clients), strict=True)
        for uplink in range(uplinks)
    ]
    return ledger.clients_with_budget(pending, before=(plan.run, plan.round))


def charge_round(
    plan: RoundPlan, ledger: Ledger, randomness: Randomness, *, uplinks: int
) -> list[Refused]:
    """Charge all messages of a round in one durable commit and return the refusals.

    A message is not charged again if its bytes are stored, or if it was charged with the same event
    and may be encoded under that charge (see `required_charge`). Any other message that was charged
    before is charged as a new attempt.

    Args:
        plan: The plan of the round.
        ledger: The ledger to charge.
        randomness: The clients' randomness. Only if it is seeded can an earlier charge still cover
            a message that was discarded, because it can then be drawn again.
        uplinks: The number of messages of each client.

    Returns:
        One entry for each message that a client's budget does not cover; all others are charged.

    Raises:
        LedgerError: A new attempt has another event than the one before, and a channel or a secret
            sample hides the message (see `another_attempt`); or the ledger was altered. Nothing is
            charged then.
        AdjacencyMismatchError: A client's account has another unit or adjacency. Nothing is charged
            then.
    """
    asked = [
        (part, event, plan.release(part.client, uplink))
        for part, event in zip(plan.clients, events_of(plan, plan.clients), strict=True)
        for uplink in range(uplinks)
    ]
    with ledger.transaction():
        earlier = ledger.latest_of([release for _, _, release in asked])
        due = {
            release: needed
            for _, event, release in asked
            if (needed := required_charge(event, release, earlier.get(release), randomness))
        }
        outcomes = charge(due, ledger)
    return [
        Refused(part=part, uplink=release.uplink, error=outcome)
        for part, _, release in asked
        if isinstance(outcome := outcomes.get(release), BudgetExhaustedError)
    ]


def events_of(plan: RoundPlan, parts: Sequence[ClientPlan]) -> list[PrivacyEvent]:
    """Return, for each client, the privacy event that one of its messages is charged with.

    Args:
        plan: The plan of the round.
        parts: The clients: entries of `plan.clients`.

    Returns:
        One event for each entry of `parts`, in the same order. The event is computed once for each
        mechanism, so clients with the same mechanism have the same object.
    """
    by_mechanism = {id(part.mechanism): part for part in parts}
    events = {key: plan.event(part) for key, part in by_mechanism.items()}
    return [events[id(part.mechanism)] for part in parts]


def charge(
    due: Mapping[Release, PendingCharge], ledger: Ledger
) -> dict[Release, Charge | BudgetExhaustedError]:
    """Charge the ledger in one commit, in this order; return each charge, or why it was refused."""
    return dict(zip(due, ledger.charge_all(list(due.values())), strict=True))


def required_charge(
    event: PrivacyEvent, release: Release, earlier: Charge | None, randomness: Randomness
) -> PendingCharge | None:
    """Return what must be charged before a message is encoded, or None if `earlier` covers it.

    `earlier` is the newest charged attempt at the release, or None. It covers the message if its
    own message is stored, and is to be sent again. It also does if it was charged with the same
    event, and either no message was ever stored or the discarded one can be drawn again from a
    seeded keystream. Whether it encoded the same input is not checked here: see
    `_encodes_other_data` in `client`. Nothing is charged here.

    Raises:
        LedgerError: A channel or a secret sample hides messages, and the earlier attempt had
            another event.
    """
    if earlier is None:
        return first_attempt(event, release)
    if earlier.message is not None:
        return None
    paid = earlier.event == _charged_for(event, earlier.attempt)
    repeatable = earlier.commitment is not None and randomness.grade == "seeded"
    if paid and (not earlier.sealed or repeatable):
        return None
    return another_attempt(event, release, earlier)


def first_attempt(event: PrivacyEvent, release: Release) -> PendingCharge:
    """Return the charge of the first attempt (number 0) at a release; it is not yet made."""
    return PendingCharge(release=release, attempt=0, event=event)


def another_attempt(event: PrivacyEvent, release: Release, earlier: Charge) -> PendingCharge:
    """Return the charge of one more attempt after `earlier`, the newest one; it is not yet made.

    `event` is the event of a single message. Where a channel or a secret sample hides
    messages, the second attempt is charged for two messages that the server sees, and later ones
    for one. The earlier event must then be the same: what later attempts pay for earlier ones is
    computed from it.

    Raises:
        LedgerError: A channel or a secret sample hides messages, and the earlier attempt had
            another event.
    """
    same = earlier.event == _charged_for(event, earlier.attempt)
    if not same and any(
        reveal_messages(one, reveal_samples=True) != one for one in (event, earlier.event)
    ):
        raise LedgerError(
            f"{release} was charged under another plan (such as another mechanism, channel or "
            "sampling rate), and a channel or a secret sample hides its messages; retry with the "
            "plan under which it was charged"
        )
    attempt = earlier.attempt + 1
    return PendingCharge(release=release, attempt=attempt, event=_charged_for(event, attempt))


def _charged_for(event: PrivacyEvent, attempt: int) -> PrivacyEvent:
    """Return what an attempt at a release with this event is charged with.

    A channel hides one message of a client in a round. If the other clients repeat their messages,
    two sums or two shuffles differ only in this client's two messages. So the second attempt is
    charged for both messages as if the server saw them, and each further attempt for its own. The
    same holds where both attempts may use the same secret sample: one sampling decision shared by
    two messages hides less than two independent ones.
    """
    if attempt == 0:
        return event
    seen = reveal_messages(event, reveal_samples=True)
    if seen == event:
        return event
    return Repeated(event=seen, count=2) if attempt == 1 else seen
