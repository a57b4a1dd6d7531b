"""The client's side: prepare, charge, encode, seal, store. Nothing else leaves.

Order is what makes it private. The charge is durable before a single code is drawn, and the sealed
message is durable before it is handed on; so a crash never hides a charge, and a retry sends the
stored bytes again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.core.domains import sized_vector
from sottovoce.core.errors import (
    BudgetExhaustedError,
    DomainError,
    LedgerError,
    ParameterError,
    WireError,
)
from sottovoce.core.randomness import Keystream, Randomness
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Charge, Due, Release
from sottovoce.mechanisms.encoding import Prepared, encode_packed, prepare
from sottovoce.protocol.charging import Refused as Refused
from sottovoce.protocol.charging import amount_due, another_attempt, charge, events_of
from sottovoce.protocol.message import Envelope, open_packed, seal_packed
from sottovoce.protocol.plan import ClientPlan, RoundPlan


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


# Looks at what is about to be charged, and raises if it may not be; then nothing is.
Permit = Callable[[Sequence[Due]], None]


def _permit_all(dues: Sequence[Due]) -> None:
    """Budgets alone decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A request that can be encoded and sealed: nothing after the charge can be refused.

    Its vector is a row of `batch`, which all requests for one mechanism share.
    """

    request: Request
    batch: Prepared
    row: int
    envelope: Envelope
    release: Release


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sealed:
    """A message that must be stored before it leaves."""

    charge: Charge
    sent: Sent
    commitment: bytes | None


def privatise(
    plan: RoundPlan,
    requests: Sequence[Request],
    ledger: Ledger,
    randomness: Randomness,
    *,
    permit: Permit = _permit_all,
) -> list[Sent | Refused]:
    """Messages for `requests`, in order; a client out of budget is refused, the others go on.

    A client on its own passes one request; a simulator passes a cohort, which shares two commits,
    or one if `charge_round` has paid for it. Bad requests (NaN, wrong dimension, named twice) raise
    before anything is charged here. `permit` has the last word before the charge.
    """
    prepared = _prepare(plan, requests)
    if len({one.release for one in prepared}) < len(prepared):
        raise ParameterError("a client's uplink is named twice in one call; nothing was charged")
    with ledger.transaction():
        charges = _charge(plan, prepared, ledger, randomness, permit)
    outcomes = _outcomes(prepared, charges, randomness)
    ledger.store_messages(
        [(o.charge, o.sent.message, o.commitment) for o in outcomes if isinstance(o, _Sealed)]
    )
    return [outcome.sent if isinstance(outcome, _Sealed) else outcome for outcome in outcomes]


def _prepare(plan: RoundPlan, requests: Sequence[Request]) -> list[_Prepared]:
    """Prepare the requests for each mechanism together."""
    groups: dict[int, list[int]] = {}
    for position, request in enumerate(requests):
        groups.setdefault(id(request.part.mechanism), []).append(position)
    places: dict[int, tuple[Prepared, int]] = {}
    for positions in groups.values():
        batch = _batch(plan, [requests[i] for i in positions])
        places |= {position: (batch, row) for row, position in enumerate(positions)}
    return [
        _Prepared(
            request=request,
            batch=places[i][0],
            row=places[i][1],
            envelope=plan.envelope(request.part, request.uplink),
            release=plan.release(request.part.client, request.uplink),
        )
        for i, request in enumerate(requests)
    ]


def _batch(plan: RoundPlan, requests: Sequence[Request]) -> Prepared:
    """Prepare requests for one mechanism; if one cannot be sent, say which."""
    mechanism = requests[0].part.mechanism
    dimension = mechanism.input_domain.dimension
    try:
        # A copy: the owner of an array may go on training while we charge and encode.
        rows = np.stack([sized_vector(request.values, dimension) for request in requests])
        return prepare(mechanism, rows, rotation=plan.rotation)
    except DomainError as error:
        if len(requests) > 1:
            for request in requests:
                _batch(plan, [request])
        release = plan.release(requests[0].part.client, requests[0].uplink)
        raise DomainError(f"update of {release}: {error}; nothing was sent") from None


def _charge(
    plan: RoundPlan,
    prepared: Sequence[_Prepared],
    ledger: Ledger,
    randomness: Randomness,
    permit: Permit,
) -> dict[Release, Charge | BudgetExhaustedError]:
    """The charge of each release: an earlier one if it will do, else a new one."""
    found: dict[Release, Charge | BudgetExhaustedError] = {}
    due: dict[Release, Due] = {}
    earlier = ledger.latest_of([one.release for one in prepared])
    events = events_of(plan, [one.request.part for one in prepared])
    for one, event in zip(prepared, events, strict=True):
        present = earlier.get(one.release)
        if present is not None and present.message is not None:
            _check_still_valid(present.message, one)
        needed = amount_due(event, one.release, present, randomness)
        if needed is None and present is not None and _is_another(present, one, randomness):
            needed = another_attempt(event, one.release, present)
        if needed is not None:
            due[one.release] = needed
        elif present is not None:
            found[one.release] = present
    permit(list(due.values()))
    return found | charge(due, ledger)


def _is_another(earlier: Charge, prepared: _Prepared, randomness: Randomness) -> bool:
    """Whether what was discarded encoded something else than what is to be encoded now."""
    if not earlier.sealed or earlier.message is not None:
        return False
    _, commitment = _open_stream(randomness, prepared, earlier.attempt)
    return commitment != earlier.commitment


def _outcomes(
    prepared: Sequence[_Prepared],
    charges: Mapping[Release, Charge | BudgetExhaustedError],
    randomness: Randomness,
) -> list[Sent | Refused | _Sealed]:
    """Encode and seal what is charged and was not sent before, batch by batch."""
    found: dict[Release, Sent | Refused | _Sealed] = {}
    batches: dict[int, list[tuple[_Prepared, Charge]]] = {}
    for one in prepared:
        part, uplink, charge = one.request.part, one.request.uplink, charges[one.release]
        if isinstance(charge, BudgetExhaustedError):
            found[one.release] = Refused(part=part, uplink=uplink, error=charge)
        elif charge.message is not None:
            found[one.release] = Sent(part=part, uplink=uplink, message=charge.message)
        else:
            batches.setdefault(id(one.batch), []).append((one, charge))
    for charged in batches.values():
        found |= {sealed.charge.release: sealed for sealed in _sealed(charged, randomness)}
    return [found[one.release] for one in prepared]


def _sealed(charged: Sequence[tuple[_Prepared, Charge]], randomness: Randomness) -> list[_Sealed]:
    """Encode and seal charged rows of one batch."""
    streams = [_open_stream(randomness, one, charge.attempt) for one, charge in charged]
    rows = charged[0][0].batch.take([one.row for one, _ in charged])
    packed = encode_packed(rows, [keystream for keystream, _ in streams]).on_cpu()
    return [
        _Sealed(
            charge=charge,
            sent=Sent(
                part=one.request.part,
                uplink=one.request.uplink,
                message=seal_packed(payload.tobytes(), one.envelope),
            ),
            commitment=commitment,
        )
        for (one, charge), payload, (_, commitment) in zip(charged, packed, streams, strict=True)
    ]


def _check_still_valid(message: bytes, prepared: _Prepared) -> None:
    """A stored message is for the parameters it was sealed under and no others."""
    try:
        open_packed(message, prepared.envelope)
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
    use = prepared.envelope.parameter_hash + prepared.batch.vector(prepared.row).tobytes()
    return keystream, keystream.commitment(use)
