"""What the collector and the clients of a relay agree on when people are asked a question.

A person's answer is one cell of the question's tally: what the person was asked, and the code. What
each person is asked is drawn in secret. In a secure sum a client masks the counts of its people, so
any number of people may stand behind a client. In a shuffle a client sends the cell of one person.
In both cases only the counts over all people are revealed.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.analytics.histogram import HADAMARD, HistogramQuestion
from sottovoce.analytics.question import Question
from sottovoce.analytics.tallies import CodeCounts
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import DomainError, ParameterError, WireError
from sottovoce.deployment.masked_questions import agreed_question, check_countable, most_people
from sottovoce.deployment.operators.relay_orders import EVERYONE
from sottovoce.deployment.orders import CountFromOne, QuestionRequest, tally_shape
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.masks import MAX_BITS
from sottovoce.protocol.secure.operators import Operators

SECURE_SUM, SHUFFLER = "secure_sum", "shuffler"
_QUESTION = b"question\n"  # No order begins with it: it would be a length of 1.9 GB.
PROTOCOLS = {SECURE_SUM: Protocol.TWO_SERVER_SUM, SHUFFLER: Protocol.SHUFFLER}


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedQuestion(QuestionRequest):
    """A question to all clients of a relay, with its terms.

    Attributes:
        people_per_client: Clients with fewer people do not take part; 1 in a shuffle.
    """

    version: ClassVar[int] = 1

    people_per_client: CountFromOne

    def crowd(self, own: int, honest: int) -> int:
        """Return the number of people on whom a charge counts.

        Args:
            own: The people of the client that charges.
            honest: How many clients follow the protocol, this one included.
        """
        return own + (honest - 1) * self.people_per_client


def relayed_attempt(
    request: RelayedQuestion,
    question: Question,
    protocol: Protocol,
    operators: Operators,
    content: bytes,
) -> Attempt:
    """Return the public parameters of a question, as the collector and each client compute them.

    Args:
        request: The question with its terms, to any of the clients.
        question: The question in it.
        protocol: A sum or a shuffle.
        operators: The party's own keys of both operators.
        content: The content of the announcement, from which the request was read.

    Raises:
        ParameterError: The tally is not made of counts, or the numbers of clients do not fit.
    """
    check_countable(question)
    cells = _cells(question)
    is_sum = protocol is Protocol.TWO_SERVER_SUM
    return Attempt(
        protocol=protocol,
        parties=operators.digest,
        federation=operators.federation,
        run=request.run,
        round=request.round,
        attempt=request.attempt,
        dimension=cells if is_sum else 1,
        uplinks=1,
        levels=most_people(request.cohort) + 1 if is_sum else cells,
        bits=MAX_BITS,
        most_clients=request.cohort,
        threshold=request.minimum_clients + request.colluders,
        mechanism=_agreed(request),
        rotation_seed=b"",
        adjacency=str(Adjacency.REPLACE_ONE),
        unit=str(Unit.SAMPLE),
        model_digest=hashlib.sha256(content).digest(),
    )


def _agreed(request: RelayedQuestion) -> str:
    """Return a digest of what a charge depends on; a run can have one such text."""
    text = f"{agreed_question(request)} {request.people_per_client}"
    return hashlib.sha256(text.encode()).hexdigest()


def _cells(question: Question) -> int:
    groups, levels = tally_shape(question)
    return groups * levels


def payload_bytes(question: Question) -> int:
    """Return the size of every message of a shuffle: that of the number of a cell."""
    return max(1, ((_cells(question) - 1).bit_length() + 7) // 8)


def cell_payload(question: Question, tally: CodeCounts) -> bytes:
    """Return the message of one person, from the tally of this person alone."""
    (cell,) = np.flatnonzero(tally.counts)
    return int(cell).to_bytes(payload_bytes(question), "little")


def tally_of_payloads(question: Question, payloads: Sequence[bytes]) -> tuple[CodeCounts, int]:
    """Add up the messages of a shuffle.

    Args:
        question: The question.
        payloads: The opened messages, all of the announced size.

    Returns:
        The tally of the messages that are cells, and how many others were dropped.
    """
    sent = np.array([int.from_bytes(one, "little") for one in payloads], dtype=np.int64)
    cells = _cells(question)
    counts = np.bincount(sent[sent < cells], minlength=cells)
    counts[: _unused_cells(question)] = 0
    tally = CodeCounts(counts=counts.reshape(tally_shape(question)))
    return tally, len(payloads) - tally.people


def tally_of_sum(
    question: Question, total: NDArray[np.integer[Any]], fewest_people: int
) -> CodeCounts:
    """Return the sum of the counts of clients, who have so many people at least, as a tally.

    Raises:
        DomainError: No codes have these counts.
    """
    tally = CodeCounts(counts=total.astype(np.int64).reshape(tally_shape(question)))
    if tally.people < fewest_people:
        raise DomainError(
            f"the counts of codes add up to {tally.people}, but the clients have at least "
            f"{fewest_people} people, so some client, which cannot be found out, has sent no "
            "tally; ask again"
        )
    if isinstance(question, HistogramQuestion):
        question.check_rows(tally)
    return tally


def _unused_cells(question: Question) -> int:
    """Return how many of the first cells stand for a row that is assigned to no person."""
    if isinstance(question, HistogramQuestion) and question.mechanism == HADAMARD:
        return int(tally_shape(question)[1])
    return 0


def check_channel(channel: str) -> None:
    """Raise ParameterError unless a relay can carry a question by this channel."""
    if channel not in PROTOCOLS:
        raise ParameterError(
            f"a relay carries no questions by the channel '{channel}', since it shows no client's "
            f"own answer; use '{SECURE_SUM}', or '{SHUFFLER}' if each client has one person"
        )


def pack_question(request: RelayedQuestion) -> bytes:
    """Return a question to all clients as the content of an announcement."""
    return _QUESTION + dataclasses.replace(request, client=EVERYONE).table()[request.part]


def is_question(content: bytes) -> bool:
    """Return whether an announcement's content is a question, and no order to train."""
    return content.startswith(_QUESTION)


def unpack_question(content: bytes, client: str) -> RelayedQuestion:
    """Return the question in an announcement's content, as a request to one client.

    Args:
        content: The content.
        client: The name of the client that reads it.

    Raises:
        WireError: It is no question to all clients.
    """
    if not is_question(content):
        raise WireError("expected a question, got other content of an announcement")
    found = RelayedQuestion.read(content.removeprefix(_QUESTION))
    if found.client != EVERYONE:
        raise WireError("expected a question to all clients, got one to a single client")
    return dataclasses.replace(found, client=client)
