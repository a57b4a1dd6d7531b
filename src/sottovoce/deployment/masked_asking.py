"""A question whose sites reveal only the sum of their tallies, on the server's side.

The server charges its own ledger for every site before it asks for masked counts, with the same
event as the site itself. If the attempt is abandoned, nothing is revealed, and sites that had
already answered stay charged.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sottovoce.analytics.histogram import HistogramQuestion
from sottovoce.analytics.question import Question
from sottovoce.analytics.tallies import CodeCounts
from sottovoce.core import printable_text
from sottovoce.core.errors import AbandonedError, DeploymentError, DomainError, WireError
from sottovoce.deployment.masked_answers import masked_question_charge
from sottovoce.deployment.masked_conversation import Conversation
from sottovoce.deployment.masked_orders import QuestionStep
from sottovoce.deployment.masked_questions import (
    channel_of_sum,
    check_countable,
    question_attempt,
)
from sottovoce.deployment.orders import QuestionRequest, tally_shape
from sottovoce.deployment.post import Transport
from sottovoce.ledger.ledger import Ledger
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.protocol.secure.pairwise_keys import honest_rows
from sottovoce.protocol.secure.pairwise_messages import KeysMessage
from sottovoce.protocol.secure.pairwise_result import SummedRound
from sottovoce.protocol.secure.pairwise_server import PairwiseServer
from sottovoce.protocol.secure.roster import Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class SumTerms:
    """The terms of a question of which sites reveal only the sum of their tallies.

    Attributes:
        roster: The operator's copy of the sites' roster.
        minimum_clients: How many sites that follow the protocol must be in the sum; None for the
            least that its number of sites allows.
        colluders: The most sites that may work together with the server.
        delta: Delta at which the central epsilon is stated.
    """

    roster: Roster
    minimum_clients: int | None = None
    colluders: int = 1
    delta: float = 1e-6

    def honest_sites(self, sites: int) -> int:
        """Return how many honest sites a sum counts on.

        Args:
            sites: How many sites are asked.

        Returns:
            `minimum_clients`, or the least number that is safe.

        Raises:
            DeploymentError: So many sites cannot keep the promise.
        """
        colluders = self.colluders
        least = max(2, (sites + colluders) // 2 + 1 - colluders)
        honest = least if self.minimum_clients is None else self.minimum_clients
        channel_of_sum(honest, colluders)
        if honest + colluders > sites:
            raise DeploymentError(
                f"{sites} sites are online, but a sum over {honest} honest sites and up to "
                f"{colluders} that collude needs {honest + colluders}; no site was asked or "
                "charged. Start the nodes of more sites, or lower --minimum-clients or --colluders"
            )
        if honest < least:
            raise DeploymentError(
                f"with {sites} sites, of which {colluders} may collude, at least {least} honest "
                f"sites must be in a sum, got {honest}; with fewer, a server could unmask two "
                f"different sums. Use --minimum-clients {least}. No site was asked or charged"
            )
        return honest


@dataclass(frozen=True, slots=True, kw_only=True)
class SummedAnswers:
    """What came of a question.

    Attributes:
        tally: The sum of the tallies.
        people: How many people each site has that is in the sum.
        failed: Why other sites are not.
        charged_people: The least number of honest people on which a site's charge counts.
        central_epsilon: The largest epsilon of a person at `delta`, if the assumption holds.
        delta: Delta of the central epsilon.
        promise: What is assumed of the sites for the central epsilon.
        replies_dropped: Number of replies that were not taken.
        bytes_up: Bytes of all replies.
    """

    tally: CodeCounts
    people: dict[str, int]
    failed: dict[str, str]
    charged_people: int
    central_epsilon: float
    delta: float
    promise: str
    replies_dropped: int
    bytes_up: int


@dataclass(slots=True, kw_only=True)
class _Charges:
    """The charges of all sites in the server's own ledger."""

    question: Question
    requests: Mapping[str, QuestionRequest]
    honest: int
    ledger: Ledger
    people: dict[str, int] = field(default_factory=dict)

    def make(self, server: PairwiseServer) -> None:
        """Charge every site that is about to be asked for its counts, as the site does itself."""
        declared = server.declared_rows
        members = server.members()
        self.people = {site: honest_rows(declared, site, self.honest) for site in members}
        self.ledger.charge_all(
            [
                masked_question_charge(self.requests[site], self.question, people)
                for site, people in self.people.items()
            ]
        )


def sum_answers(
    question: Question,
    terms: SumTerms,
    requests: Mapping[str, QuestionRequest],
    post: Transport[QuestionRequest],
    ledger: Ledger,
    *,
    seconds_left: Callable[[], float],
    pause: Callable[[float], None],
) -> SummedAnswers:
    """Ask all sites for masked tallies and return their sum.

    Args:
        question: The question in the requests.
        terms: What is promised to sites.
        requests: The request to each site, all alike but for the name of the site.
        post: The transport.
        ledger: The server's own ledger.
        seconds_left: Returns the seconds until the deadline.
        pause: Sleeps for a number of seconds.

    Raises:
        ParameterError: The tally is not made of counts.
        DeploymentError: Too few sites are left, or the sum is not that of honest sites.
    """
    check_countable(question)
    first = next(iter(requests.values()))
    attempt = question_attempt(first, question, terms.roster)
    talk = Conversation(
        post=post,
        roster=terms.roster,
        attempt=attempt,
        colluders=first.colluders,
        seconds_left=seconds_left,
        pause=pause,
        step=QuestionStep,
    )
    charges = _Charges(
        question=question, requests=requests, honest=first.minimum_clients, ledger=ledger
    )

    def check_people(_site: str, message: bytes) -> None:
        if not 1 <= KeysMessage.read(message).rows < attempt.levels:
            raise WireError(f"a site must declare 1 to {attempt.levels - 1} people")

    try:
        server = talk.run(
            requests,
            check_keys=check_people,
            before_contributions=lambda: charges.make(talk.server),
        )
        summed = server.result()
        declared = {site: server.declared_rows[site] for site in summed.survivors}
        tally = _tally(question, summed, sum(declared.values()))
    except AbandonedError as error:
        raise DeploymentError(
            f"the question is abandoned, and there is no estimate: {error}; "
            f"{printable_text.format_reasons(talk.failed)}check the sites' logs and ask again. "
            "Sites that have sent masked counts are charged"
        ) from None
    failed = {site: why for site, why in talk.failed.items() if site not in declared}
    # Fewer people hide a person less, so the smallest crowd costs most.
    fewest = min(charges.people.values())
    return SummedAnswers(
        tally=tally,
        people=declared,
        failed=failed,
        charged_people=fewest,
        central_epsilon=privacy_spent(question.event_among(fewest), terms.delta).epsilon,
        delta=terms.delta,
        promise=(
            f"at most {first.colluders} of the sites work together with the server or depart from "
            f"the protocol, so at least {first.minimum_clients} sites in the sum follow it"
        ),
        replies_dropped=talk.dropped,
        bytes_up=talk.bytes_up,
    )


def _tally(question: Question, summed: SummedRound, people: int) -> CodeCounts:
    """Return the sum as a tally; raise AbandonedError if no codes of so many people have it."""
    (flat,) = summed.vectors
    tally = CodeCounts(counts=flat.astype("int64").reshape(tally_shape(question)))
    if tally.people != people:
        raise AbandonedError(
            f"the counts of codes add up to {tally.people}, but the sites have declared {people} "
            "people, so some site has sent no tally; it cannot be told which"
        )
    if isinstance(question, HistogramQuestion):
        try:
            question.check_rows(tally)
        except DomainError as error:
            raise AbandonedError(str(error)) from None
    return tally
