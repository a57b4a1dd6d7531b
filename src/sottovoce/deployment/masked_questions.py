"""What server and sites of a question agree on when only the sum of their tallies is revealed.

A tally is the counts of codes. Each site masks its counts, so the server learns only their sum over
at least `minimum_clients + colluders` sites. People draw in secret what they are asked, so the sum
is a function of all people's messages in random order, and a person is charged for shuffled
messages among those of honest sites.
"""

from sottovoce.analytics.question import Question
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import ParameterError
from sottovoce.deployment.masked_orders import canonical
from sottovoce.deployment.orders import QuestionRequest, tally_shape
from sottovoce.mechanisms.mechanism import LevelCodes
from sottovoce.protocol.channels.secure_sum import PAIRWISE, SecureSum
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.encoding import Protocol, digest
from sottovoce.protocol.secure.masks import MAX_BITS
from sottovoce.protocol.secure.roster import Roster


def channel_of_sum(minimum_clients: int, colluders: int) -> SecureSum:
    """Return the channel of a question; raise ParameterError if it promises too little."""
    return SecureSum(minimum_clients=minimum_clients, protocol=PAIRWISE, colluders=colluders)


def check_countable(question: Question) -> None:
    """Raise ParameterError unless the question's tally is made of counts."""
    if not isinstance(question.code_format, LevelCodes):
        raise ParameterError(
            f"a secure sum adds counts of codes, and '{question.mechanism_kind}' sends numbers in "
            "floating point; use a mechanism with finitely many codes (--mechanism mvu), or leave "
            "the secure sum out"
        )


def most_people(cohort: int) -> int:
    """Return how many people a site may have, so that sums over `cohort` sites fit into 32 bits."""
    largest: int = 2**MAX_BITS - 1
    return largest // cohort


def question_attempt(request: QuestionRequest, question: Question, roster: Roster) -> Attempt:
    """Return the public parameters of an attempt at a question, as each party computes them.

    Args:
        request: The request to any of the sites; only what all sites have in common is used.
        question: The question in it.
        roster: The party's own roster.

    Returns:
        The parameters. A tally is one vector, its counts row after row.

    Raises:
        ParameterError: The tally is not made of counts, or the numbers of sites do not fit.
    """
    check_countable(question)
    groups, levels = tally_shape(question)
    return Attempt(
        protocol=Protocol.PAIRWISE,
        parties=roster.digest,
        federation=roster.federation,
        run=request.run,
        round=request.round,
        attempt=request.attempt,
        dimension=groups * levels,
        uplinks=1,
        levels=most_people(request.cohort) + 1,
        bits=MAX_BITS,
        most_clients=request.cohort,
        threshold=request.minimum_clients + request.colluders,
        mechanism=agreed_question(request),
        rotation_seed=b"",
        adjacency=str(Adjacency.REPLACE_ONE),
        unit=str(Unit.SAMPLE),
        model_digest=digest(Protocol.PAIRWISE, "model", ()),
    )


def agreed_question(request: QuestionRequest) -> str:
    """Return what all sites must have received alike, as text; a run can have one such text."""
    return canonical(
        {
            "question": request.question,
            "about": request.about,
            "minimum_clients": request.minimum_clients,
            "colluders": request.colluders,
        }
    )
