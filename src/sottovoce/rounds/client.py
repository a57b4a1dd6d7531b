"""The client's side: project, rotate, charge, encode, seal, store. Nothing else leaves.

Order is what makes it private. The charge is durable before a single code is drawn, and the sealed
message is durable before it is handed on; so a crash may cost a client a charge, but never hides
one, and a retry sends the stored bytes again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.domains import Vector
from sottovoce.errors import (
    BudgetExhaustedError,
    DomainError,
    LedgerError,
    ParameterError,
    WireError,
)
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Charge, Release
from sottovoce.privacy.events import PrivacyEvent, Repeated, unhidden
from sottovoce.randomness import Keystream, Randomness
from sottovoce.rounds.plan import ClientPlan, RoundPlan
from sottovoce.wire.message import Envelope, open_sealed, seal


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
class _Prepared:
    """A request that can be encoded and sealed: nothing after the charge can be refused."""

    request: Request
    values: Vector
    envelope: Envelope
    release: Release


@dataclass(frozen=True, slots=True, kw_only=True)
class _Charged:
    prepared: _Prepared
    charge: Charge
    keystream: Keystream


def privatise(
    plan: RoundPlan, requests: Sequence[Request], ledger: Ledger, randomness: Randomness
) -> list[Sent | Refused]:
    """Messages for `requests`, in order; a client out of budget is refused, the others go on.

    A client on its own passes one request; a simulator passes a cohort, which shares two commits.
    Bad requests (NaN, wrong dimension, named twice) raise before anything is charged.
    """
    prepared = [_prepare(plan, request) for request in requests]
    if len({one.release for one in prepared}) < len(prepared):
        raise ParameterError("a client's uplink is named twice in one call; nothing was charged")
    with ledger.transaction():
        outcomes = [_charge(plan, one, ledger, randomness) for one in prepared]
    finished = [
        (outcome.charge, _encode(outcome)) if isinstance(outcome, _Charged) else (None, outcome)
        for outcome in outcomes
    ]
    with ledger.transaction():
        for charge, result in finished:
            if charge is not None and isinstance(result, Sent):
                ledger.store_message(charge, result.message)
    return [result for _, result in finished]


def privatise_one(
    plan: RoundPlan, request: Request, ledger: Ledger, randomness: Randomness
) -> bytes:
    """The message for one request; raises BudgetExhaustedError if the client is out of budget."""
    (outcome,) = privatise(plan, [request], ledger, randomness)
    if isinstance(outcome, Refused):
        raise outcome.error
    return outcome.message


def _prepare(plan: RoundPlan, request: Request) -> _Prepared:
    release = plan.release(request.part.client, request.uplink)
    domain = request.part.mechanism.input_domain
    try:
        values = domain.project(request.values)
        if plan.rotation is not None:
            # The projection's headroom pays for the rotation's rounding: this never raises.
            values = domain.check(plan.rotation.forward(values))
    except DomainError as error:
        raise DomainError(f"update of {release}: {error}; nothing was charged") from None
    return _Prepared(
        request=request,
        # A copy: whoever owns the array may go on training while we charge and encode.
        values=np.array(values, copy=True),
        envelope=plan.envelope(request.part, request.uplink),
        release=release,
    )


def _charge(
    plan: RoundPlan, prepared: _Prepared, ledger: Ledger, randomness: Randomness
) -> _Charged | Sent | Refused:
    """Charge the release, unless an earlier attempt already holds what would be sent."""
    request = prepared.request
    earlier = ledger.latest(prepared.release)
    if earlier is not None and earlier.message is not None:
        _check_still_valid(earlier, prepared)
        return Sent(part=request.part, uplink=request.uplink, message=earlier.message)
    attempt = 0
    if earlier is not None:
        keystream, commitment = _open_stream(randomness, prepared, earlier.attempt)
        paid = _event(plan, request.part, earlier.attempt)
        if commitment is not None and (commitment, paid) == (earlier.commitment, earlier.event):
            # Same key, input and mechanism: encoding again releases nothing that was not paid for.
            return _Charged(prepared=prepared, charge=earlier, keystream=keystream)
        attempt = earlier.attempt + 1  # lost in a crash: fresh randomness is a new charge
    keystream, commitment = _open_stream(randomness, prepared, attempt)
    event = _event(plan, request.part, attempt)
    try:
        charge = ledger.charge(prepared.release, attempt, event, commitment)
    except BudgetExhaustedError as error:
        return Refused(part=request.part, uplink=request.uplink, error=error)
    return _Charged(prepared=prepared, charge=charge, keystream=keystream)


def _event(plan: RoundPlan, part: ClientPlan, attempt: int) -> PrivacyEvent:
    """What an attempt is charged with.

    A channel hides one message of a client in a round. Where the others repeat theirs, two sums, or
    two shuffles, differ by this client's two messages alone: so the second attempt pays for both as
    if they were seen, and each further one for itself.
    """
    event = plan.event(part)
    seen = unhidden(event)
    if attempt == 0 or seen == event:
        return event
    return Repeated(event=seen, count=2) if attempt == 1 else seen


def _check_still_valid(earlier: Charge, prepared: _Prepared) -> None:
    """A stored message is for the parameters it was sealed under and no others."""
    assert earlier.message is not None
    try:
        open_sealed(earlier.message, prepared.envelope)
    except WireError as error:
        raise LedgerError(
            f"{prepared.release} was sent under other parameters ({error}); "
            "retry with the plan it was sent under"
        ) from None


def _open_stream(
    randomness: Randomness, prepared: _Prepared, attempt: int
) -> tuple[Keystream, bytes | None]:
    """The keystream of an attempt and, if it could ever come back, a commitment to its use."""
    keystream = randomness.stream("encode", *prepared.release.key, attempt)
    if randomness.grade != "seeded":
        return keystream, None
    use = prepared.envelope.parameter_hash + prepared.values.tobytes()
    return keystream, keystream.commitment(use)


def _encode(charged: _Charged) -> Sent:
    prepared, request = charged.prepared, charged.prepared.request
    codes = request.part.mechanism.encode(prepared.values, charged.keystream)
    message = seal(codes, prepared.envelope)
    return Sent(part=request.part, uplink=request.uplink, message=message)
