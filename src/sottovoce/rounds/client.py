"""The client's side: project, charge, encode, seal, store. Nothing else leaves.

Order is what makes it private. The charge is durable before a single code is drawn, and the sealed
message is durable before it is handed on; so a crash may cost a client a charge, but never hides
one, and a retry sends the stored bytes again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from sottovoce.domains import Vector
from sottovoce.errors import BudgetExhaustedError, DomainError
from sottovoce.ledger.ledger import Charge, Ledger, Release
from sottovoce.randomness import Keystream, Randomness
from sottovoce.rounds.plan import ClientPlan, RoundPlan
from sottovoce.wire.message import seal


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One vector of one client that is to be privatised."""

    part: ClientPlan
    uplink: int
    values: ArrayLike


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A sealed message, ready to leave."""

    part: ClientPlan
    uplink: int
    message: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A client out of budget: nothing was encoded."""

    part: ClientPlan
    uplink: int
    error: BudgetExhaustedError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Charged:
    request: Request
    projected: Vector
    charge: Charge
    keystream: Keystream


def privatise(
    plan: RoundPlan, requests: Sequence[Request], ledger: Ledger, randomness: Randomness
) -> list[Sent | Refused]:
    """Messages for `requests`, in order; a client out of budget is refused, the others go on.

    A client on its own passes one request; a simulator passes a cohort, which shares two commits.
    Bad values (NaN, wrong dimension) raise before anything is charged.
    """
    projected = [_project(plan, request) for request in requests]
    with ledger.transaction():
        outcomes = [
            _charge(plan, request, values, ledger, randomness)
            for request, values in zip(requests, projected, strict=True)
        ]
    results: list[Sent | Refused] = []
    with ledger.transaction():
        for outcome in outcomes:
            if isinstance(outcome, _Charged):
                outcome = _encode(plan, outcome, ledger)
            results.append(outcome)
    return results


def privatise_one(
    plan: RoundPlan, request: Request, ledger: Ledger, randomness: Randomness
) -> bytes:
    """The message for one request; raises BudgetExhaustedError if the client is out of budget."""
    (outcome,) = privatise(plan, [request], ledger, randomness)
    if isinstance(outcome, Refused):
        raise outcome.error
    return outcome.message


def _project(plan: RoundPlan, request: Request) -> Vector:
    try:
        return request.part.mechanism.input_domain.project(request.values)
    except DomainError as error:
        release = plan.release(request.part.client, request.uplink)
        raise DomainError(f"update of {release}: {error}; nothing was charged") from None


def _charge(
    plan: RoundPlan, request: Request, values: Vector, ledger: Ledger, randomness: Randomness
) -> _Charged | Sent | Refused:
    """Charge the release, unless an earlier attempt already holds what would be sent."""
    release = plan.release(request.part.client, request.uplink)
    earlier = ledger.latest(release)
    if earlier is not None and earlier.message is not None:
        return Sent(part=request.part, uplink=request.uplink, message=earlier.message)
    event = request.part.mechanism.privacy(plan.adjacency)
    attempt = 0
    if earlier is not None:
        keystream, commitment = _open_stream(randomness, release, earlier.attempt, values)
        if commitment is not None and (commitment, event) == (earlier.commitment, earlier.event):
            # Same key, same input: encoding again releases nothing that was not paid for.
            return _Charged(request=request, projected=values, charge=earlier, keystream=keystream)
        attempt = earlier.attempt + 1  # lost in a crash: fresh randomness is a new charge
    keystream, commitment = _open_stream(randomness, release, attempt, values)
    try:
        charge = ledger.charge(release, attempt, event, commitment)
    except BudgetExhaustedError as error:
        return Refused(part=request.part, uplink=request.uplink, error=error)
    return _Charged(request=request, projected=values, charge=charge, keystream=keystream)


def _open_stream(
    randomness: Randomness, release: Release, attempt: int, values: Vector
) -> tuple[Keystream, bytes | None]:
    """The keystream of an attempt and, if it could ever come back, a commitment to its input."""
    keystream = randomness.stream(
        "encode", release.run, release.client, release.round, release.uplink, attempt
    )
    seeded = randomness.grade == "seeded"
    return keystream, keystream.commitment(values.tobytes()) if seeded else None


def _encode(plan: RoundPlan, charged: _Charged, ledger: Ledger) -> Sent:
    part, uplink = charged.request.part, charged.request.uplink
    codes = part.mechanism.encode(charged.projected, charged.keystream)
    message = seal(codes, plan.envelope(part, uplink))
    ledger.store_message(charged.charge, message)
    return Sent(part=part, uplink=uplink, message=message)
