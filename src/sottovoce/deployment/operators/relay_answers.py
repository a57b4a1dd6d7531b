"""A client's answer to a question through the relay: policy, people, charge, then secret codes.

In a sum a person hides among the people of the own table and, for each other honest client, the
fewest people with which a client takes part; in a shuffle among the honest clients, each of which
has one person. The charge is made for this crowd before any code is drawn. Nothing but the report
is stored, and a later attempt draws fresh codes under a charge of its own.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.analytics import question as questions
from sottovoce.analytics.estimates import secret_tally_of
from sottovoce.analytics.question import Question
from sottovoce.analytics.tallies import CodeCounts
from sottovoce.core.errors import PolicyError, WireError
from sottovoce.deployment.audit_log import OrderName
from sottovoce.deployment.masked_answers import masked_question_charge
from sottovoce.deployment.masked_questions import check_countable, most_people
from sottovoce.deployment.operators.relayed_questions import (
    SECURE_SUM,
    RelayedQuestion,
    cell_payload,
    payload_bytes,
    relayed_attempt,
    unpack_question,
)
from sottovoce.deployment.site import Site
from sottovoce.deployment.site_answers import (
    allowed_question,
    explained,
    own_columns,
    read_people,
)
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import PendingCharge
from sottovoce.protocol.relayed import Party, channel_of
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.contribution import charge_marked
from sottovoce.protocol.secure.shuffle_client import ShuffleClient

QUESTION_ROUNDS = 1  # A question has one round; a policy's `retries` allow further attempts.


def report_answer(
    asked: bytes, content: bytes, *, site: Site, party: Party, ledger: Ledger
) -> bytes:
    """Return the report that answers a question, after its charge; or raise and release nothing.

    If the announcement was answered before, the stored bytes are returned and nothing is charged.

    Args:
        asked: The announcement, which the pinned collector has signed for this content.
        content: The question.
        site: Policy, ledger and columns of the client.
        party: The client's side of the protocol, whose journal lies in the ledger.
        ledger: The site's open ledger.

    Raises:
        SottovoceError: The policy or the budget does not allow the answer, or the client's table
            does not fit. Nothing is charged.
    """
    found = Announcement.read(asked)
    if ledger.journal().state(found.place) is not None:
        return _report(party, asked, ledger, _nothing, _nothing)
    request, question = _allowed(found, content, site, party)
    batches = read_people(question, request.about, own_columns(site)[request.about])
    people = sum(map(len, batches))
    _check_people(people, request, party)
    crowd = request.crowd(people, party.honest_clients(found))
    due = masked_question_charge(request, question, crowd)

    def charge() -> None:
        pending = [due]
        site.check_charges(ledger, pending, planned=QUESTION_ROUNDS, charging=True, retries=True)
        charge_marked(pending, ledger)

    message = _report(party, asked, ledger, charge, lambda: _drawn(question, batches, party))
    _log(site, ledger, due, question, people)
    return message


def _allowed(
    found: Announcement, content: bytes, site: Site, party: Party
) -> tuple[RelayedQuestion, Question]:
    """Return what is asked, if the policy allows it; no data are read."""
    request = unpack_question(content, site.name)
    honest, clients = party.honest_clients(found), found.attempt.threshold
    if honest < 2:
        raise PolicyError(
            f"'colluders' is {clients - honest} at this client, so it can count on {honest} of "
            f"{clients} clients; ask with a larger --minimum-clients or --colluders"
        )
    # It counts on the honest clients that this client's own policy believes in.
    question = allowed_question(request, site, site.columns, channel_of(party, found))
    with explained():
        check_countable(question)
        questions.check_tables(question, request.question)
        own = relayed_attempt(request, question, party.protocol, party.operators, content)
    size = payload_bytes(question) if isinstance(party, ShuffleClient) else 0
    if own != found.attempt or size != found.payload_bytes:
        raise WireError("the question and its announcement do not belong together; refuse both")
    return request, question


def _check_people(people: int, request: RelayedQuestion, party: Party) -> None:
    """Raise PolicyError if so many people cannot take part; their number is public."""
    if people < request.people_per_client:
        raise PolicyError(
            f"this client has {people} people, and clients with fewer than "
            f"{request.people_per_client} do not take part; ask with a smaller --people-per-client"
        )
    if isinstance(party, ShuffleClient) and people > 1:
        raise PolicyError(
            f"this client has {people} people, and a shuffle takes the message of one person of "
            f"each client; ask with --channel {SECURE_SUM}"
        )
    if people > (most := most_people(request.cohort)):
        raise PolicyError(
            f"this client has more than {most} people, so a sum over {request.cohort} clients may "
            "not fit into 32 bits; use fewer clients, or divide the table among several"
        )


def _drawn(question: Question, batches: Sequence[NDArray[Any]], party: Party) -> Any:
    """Draw the codes, and return what the party sends: a vector of counts, or one cell."""
    tally = secret_tally_of(question, batches)
    assert isinstance(tally, CodeCounts), "`check_countable` has checked the codes"
    if isinstance(party, ShuffleClient):
        return cell_payload(question, tally)
    return [tally.counts.ravel().astype(np.uint32)]


def _report(
    party: Party,
    asked: bytes,
    ledger: Ledger,
    charge: Callable[[], None],
    draw: Callable[[], Any],
) -> bytes:
    return party.report(asked, int(time.time()), charge, draw, ledger.transaction)


def _nothing() -> None:
    """Charge and draw nothing: the report is stored."""


def _log(site: Site, ledger: Ledger, due: PendingCharge, question: Question, people: int) -> None:
    """Write the charge to the audit log, if the site keeps one."""
    if site.audit_log is None:
        return
    release = due.release
    name = OrderName(run=release.run, round=release.round, mechanism=question.mechanism_kind)
    site.audit_log.answered(ledger, name, charged=True, records=people)
