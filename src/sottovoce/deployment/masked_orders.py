"""Requests and replies of a secure sum by pairwise masks, after the order that opens an attempt.

An order with an `attempt` opens it. Then the server sends each site one `Step` after the other, and
the site's reply is one message of the protocol, or a refusal.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from sottovoce.core.errors import WireError
from sottovoce.deployment.orders import (
    OPTIONAL_PARTS,
    REFUSED,
    Blobs,
    Count,
    CountFromOne,
    SiteRequest,
)
from sottovoce.mechanisms.mechanism import LevelCodes, Mechanism, SummableCodes
from sottovoce.protocol.plan import RoundPlan
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.encoding import Protocol, digest
from sottovoce.protocol.secure.roster import Roster

STEP, CONTENT, STEP_REPLY = "step", "content", "answer"
#: What a site does with the content of a step, in this order.
Action = Literal["share", "contribute", "sign", "answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(SiteRequest):
    """One step of an attempt that an order has opened.

    Attributes:
        round: Number of the round.
        attempt: Number of the attempt at it.
        action: What the site is asked to do.
        content: The protocol's message: a list, a box, survivors, or a quorum.
    """

    part: ClassVar[str] = STEP
    version: ClassVar[int] = 1
    message_type: ClassVar[str] = "train"
    sent_apart: ClassVar[tuple[str, ...]] = ("content",)

    round: Count
    attempt: CountFromOne
    action: Action
    content: bytes

    def blobs(self) -> dict[str, bytes]:
        """Return the step as it is sent: JSON under "step", and the message under "content"."""
        return {**self.table(), CONTENT: self.content}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionStep(Step):
    """One step of an attempt that a question has opened; it is sent as a query."""

    message_type: ClassVar[str] = "query"


def read_step(blobs: Blobs) -> Step:
    """Return the step in a server's message; raise WireError if it is not one."""
    if set(blobs) != {STEP, CONTENT}:
        raise WireError(f"a step must have the parts '{STEP}' and '{CONTENT}' and no other part")
    return Step.read(blobs[STEP], content=blobs[CONTENT])


def step_blobs(answer: bytes) -> dict[str, bytes]:
    """Return a site's message of the protocol as it is sent."""
    return {STEP_REPLY: answer}


def read_step_reply(blobs: Blobs) -> bytes:
    """Return the protocol's message in a site's reply; raise WireError if it has other parts."""
    if set(blobs) - OPTIONAL_PARTS != {STEP_REPLY} or REFUSED in blobs:
        raise WireError(f"a reply to a step must have the part '{STEP_REPLY}' and no other part")
    return blobs[STEP_REPLY]


def attempt_of(
    plan: RoundPlan,
    mechanism: Mechanism,
    *,
    roster: Roster,
    number: int,
    cohort: int,
    uplinks: int,
    order: Mapping[str, Any],
    vectors: tuple[bytes, ...],
) -> Attempt:
    """Return the public parameters of an attempt, as server and sites each compute them.

    Args:
        plan: The plan of the round.
        mechanism: The mechanism of every client.
        roster: The party's own roster.
        number: Number of the attempt, from 1.
        cohort: How many sites are asked.
        uplinks: How many vectors each site sends.
        order: Everything else in the order on which the sites must agree, as plain data.
        vectors: The vectors that the server sends down.

    Returns:
        The parameters.

    Raises:
        WireError: The mechanism sends no codes that can be added.
    """
    code_format = mechanism.code_format()
    summable: object = mechanism
    if not isinstance(code_format, LevelCodes) or not isinstance(summable, SummableCodes):
        raise WireError(f"a secure sum needs a mechanism whose codes can be added, got {mechanism}")
    dimension = code_format.num_codes(mechanism.input_domain.dimension)
    levels = code_format.levels
    return Attempt(
        protocol=Protocol.PAIRWISE,
        parties=roster.digest,
        federation=roster.federation,
        run=plan.run,
        round=plan.round,
        attempt=number,
        dimension=dimension,
        uplinks=uplinks,
        levels=levels,
        bits=summable.sum_bits(cohort),
        most_clients=cohort,
        threshold=plan.channel.fewest_messages,
        mechanism=canonical(order),
        rotation_seed=b"" if plan.rotation is None else plan.rotation.seed,
        adjacency=str(plan.adjacency),
        unit=str(plan.unit),
        model_digest=digest(Protocol.PAIRWISE, "model", vectors),
    )


def canonical(value: Mapping[str, Any]) -> str:
    """Return plain data as JSON text that does not depend on the order of keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
