"""A site's answer to a question behind a mask: policy, people, charge, then masked counts.

The site declares how many people it has before anything is charged; that number is public for every
question. What a person costs follows from the declarations of all sites (`honest_rows`), so the
charge is made once the list of sites is final, before any code is drawn. No tally is stored: each
attempt draws fresh codes under a charge of its own.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.analytics import question as questions
from sottovoce.analytics.estimates import secret_tally_of
from sottovoce.analytics.question import Question
from sottovoce.analytics.tallies import CodeCounts
from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import PolicyError
from sottovoce.deployment.audit_log import OrderName
from sottovoce.deployment.exchanges import Opening, sum_policy, trusted
from sottovoce.deployment.masked_questions import (
    agreed_question,
    channel_of_sum,
    check_countable,
    most_people,
    question_attempt,
)
from sottovoce.deployment.orders import QuestionRequest
from sottovoce.deployment.site import Site
from sottovoce.deployment.site_answers import Values, allowed_question, explained, read_people
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import PendingCharge, Release
from sottovoce.mechanisms.packing import UnsignedCodes
from sottovoce.protocol.secure.contribution import contribute_charged
from sottovoce.protocol.secure.pairwise_site import PairwiseSite


def opening_of_question(
    inquiry: QuestionRequest, site: Site, columns: Mapping[str, Values]
) -> Opening:
    """Return the attempt that a question opens, if the site's terms allow it.

    The people are read and counted; nothing is drawn or charged.

    Raises:
        PolicyError: The policy or [columns] do not allow the question, or the site has too many
            people for a sum over so many sites.
        DataError: A value cannot be read, or there are no people.
    """
    with explained():
        channel = channel_of_sum(inquiry.minimum_clients, inquiry.colluders)
    question = allowed_question(inquiry, site, columns, channel)
    policy = sum_policy(site)
    assert policy.honest is not None
    key, roster = trusted(site)
    with explained():
        check_countable(question)
        questions.check_tables(question, inquiry.question)
        attempt = question_attempt(inquiry, question, roster)
    batches = read_people(question, inquiry.about, columns[inquiry.about])
    people, most = sum(map(len, batches)), most_people(inquiry.cohort)
    if people > most:
        raise PolicyError(
            f"this site has more than {most} people, so a sum over {inquiry.cohort} sites may not "
            "fit into 32 bits; ask fewer sites"
        )
    return Opening(
        key=key,
        roster=roster,
        attempt=attempt,
        honest=policy.honest,
        # What the server has announced, which the policy has allowed: the same at all sites.
        colluders=inquiry.colluders,
        terms=agreed_question(inquiry),
        planned_rounds=1,
        rows=people,
        contribute=_Answer(inquiry=inquiry, question=question, batches=batches, people=people),
    )


@dataclass(slots=True, kw_only=True)
class _Answer:
    """A site's people, as long as they have not answered."""

    inquiry: QuestionRequest
    question: Question
    batches: list[NDArray[Any]] = field(repr=False)
    people: int

    def __call__(self, party: PairwiseSite, box: bytes, ledger: Ledger, site: Site) -> bytes:
        """Charge for the honest people of the list, then tally and mask."""
        inquiry = self.inquiry
        channel = channel_of_sum(inquiry.minimum_clients, inquiry.colluders)
        allowed_question(inquiry, site, (inquiry.about,), channel)
        due = masked_question_charge(inquiry, self.question, party.charged_rows)
        message = contribute_charged(
            party,
            box,
            ledger,
            pending=[due],
            draw=self._counts,
            permit=lambda pending: site.check_charges(
                ledger, pending, planned=1, charging=True, retries=True
            ),
        )
        if site.audit_log is not None:
            kind = self.question.mechanism_kind
            name = OrderName(run=due.release.run, round=inquiry.round, mechanism=kind)
            site.audit_log.answered(ledger, name, charged=True, records=self.people)
        return message

    def _counts(self) -> list[UnsignedCodes]:
        tally = secret_tally_of(self.question, self.batches)
        self.batches = []
        assert isinstance(tally, CodeCounts), "`check_countable` has checked the codes"
        return [tally.counts.ravel().astype(np.uint32)]


def masked_question_charge(
    inquiry: QuestionRequest, question: Question, people: int
) -> PendingCharge:
    """Return the charge of a site's people for one attempt among `people` honest people."""
    name = hashlib.sha256(agreed_question(inquiry).encode()).hexdigest()
    release = Release(
        unit=Unit.SAMPLE,
        run=f"{inquiry.run}/{name[:16]}",
        client=inquiry.client,
        round=inquiry.round,
        uplink=0,
    )
    event = question.event_among(people)
    return PendingCharge(release=release, attempt=inquiry.attempt - 1, event=event)
