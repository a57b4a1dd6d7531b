"""A round is paid for before anything of it is encoded, and nothing is paid for twice.

Messages are stored before they leave, so the ledger knows what became of each charge:

    nothing stored       nothing has left: it may be encoded under this charge, now as then.
    a message stored     these bytes may have left: a retry sends them.
    discarded            the bytes may have left. The same input under the same keystream gives them
                         again, and its commitment shows that it is the same; else a new attempt is
                         charged.

So a crash costs no charge, wherever it comes; and of two processes at work on one release the
second to store fails, before its message leaves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sottovoce.core.errors import BudgetExhaustedError, LedgerError
from sottovoce.core.randomness import Randomness
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Charge, Due, Release
from sottovoce.privacy.compositions import unhidden
from sottovoce.privacy.events import PrivacyEvent, Repeated
from sottovoce.protocol.plan import ClientPlan, RoundPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A client out of budget: nothing was encoded."""

    part: ClientPlan
    uplink: int
    error: BudgetExhaustedError


def able_to_pay(plan: RoundPlan, ledger: Ledger, *, uplinks: int) -> frozenset[str]:
    """Clients of a plan whose budgets hold its round, as they stood before it.

    It reads events that were charged and budgets, which are public, and promises nothing: the
    charge itself is checked again. What a run that is being repeated has charged for this round and
    later ones does not count, so that it decides now as it did then.
    """
    dues = [
        first_attempt(event, plan.release(part.client, uplink))
        for part, event in zip(plan.clients, events_of(plan, plan.clients), strict=True)
        for uplink in range(uplinks)
    ]
    return ledger.affords(dues, before=(plan.run, plan.round))


def charge_round(
    plan: RoundPlan, ledger: Ledger, randomness: Randomness, *, uplinks: int
) -> list[Refused]:
    """Charge all messages of a round in one durable commit; those who are out of budget."""
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
            if (needed := amount_due(event, release, earlier.get(release), randomness))
        }
        outcomes = charge(due, ledger)
    return [
        Refused(part=part, uplink=release.uplink, error=outcome)
        for part, _, release in asked
        if isinstance(outcome := outcomes.get(release), BudgetExhaustedError)
    ]


def events_of(plan: RoundPlan, parts: Sequence[ClientPlan]) -> list[PrivacyEvent]:
    """What one message of each part is charged with; clients with one mechanism share it."""
    by_mechanism = {id(part.mechanism): part for part in parts}
    events = {key: plan.event(part) for key, part in by_mechanism.items()}
    return [events[id(part.mechanism)] for part in parts]


def charge(
    due: Mapping[Release, Due], ledger: Ledger
) -> dict[Release, Charge | BudgetExhaustedError]:
    """Charge what is due, in the order given."""
    return dict(zip(due, ledger.charge_all(list(due.values())), strict=True))


def amount_due(
    event: PrivacyEvent, release: Release, earlier: Charge | None, randomness: Randomness
) -> Due | None:
    """What must be charged before a message is encoded, as far as it does not depend on its input.

    `earlier` is the newest attempt. None: that attempt may serve.
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


def first_attempt(event: PrivacyEvent, release: Release) -> Due:
    return Due(release=release, attempt=0, event=event)


def another_attempt(event: PrivacyEvent, release: Release, earlier: Charge) -> Due:
    """What one more attempt is charged with, if the earlier ones had the same event.

    Where something hides messages it must be the same: what later attempts pay for earlier ones is
    reckoned from it.
    """
    same = earlier.event == _charged_for(event, earlier.attempt)
    if not same and any(unhidden(one, samples_too=True) != one for one in (event, earlier.event)):
        raise LedgerError(
            f"{release} was charged under another plan, and a channel hides its messages; retry "
            "with the plan it was charged under"
        )
    attempt = earlier.attempt + 1
    return Due(release=release, attempt=attempt, event=_charged_for(event, attempt))


def _charged_for(event: PrivacyEvent, attempt: int) -> PrivacyEvent:
    """What an attempt at a release with `event` is charged with.

    A channel hides one message of a client in a round. Where the others repeat theirs, two sums, or
    two shuffles, differ by this client's two messages alone: so the second attempt pays for both as
    if they were seen, and each further one for itself. So it does where both may work on the same
    secret sample: one coin for two messages hides less than two coins.
    """
    if attempt == 0:
        return event
    seen = unhidden(event, samples_too=True)
    if seen == event:
        return event
    return Repeated(event=seen, count=2) if attempt == 1 else seen
