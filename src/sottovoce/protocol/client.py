"""The client's side of a round: prepare, charge, encode, seal and store.

Privacy depends on this order. The charge is durable before a single code is drawn, so a crash never
loses a charge. The sealed message is durable before it is returned, so a retry sends the stored
bytes again instead of drawing new ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.core.domains import Vector, sized_vector
from sottovoce.core.errors import (
    BudgetExhaustedError,
    DomainError,
    LedgerError,
    ParameterError,
    WireError,
)
from sottovoce.core.randomness import Keystream, Randomness, streams_of_labels
from sottovoce.core.stages import stage
from sottovoce.core.threads import over_rows
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Charge, PendingCharge, Release
from sottovoce.mechanisms.encoding import Prepared, encode_packed, prepare
from sottovoce.mechanisms.registry import PostProcesses
from sottovoce.mechanisms.row_batches import FactoredRows, rows_at_once, select_rows
from sottovoce.protocol.charging import Refused as Refused
from sottovoce.protocol.charging import another_attempt, charge, events_of, required_charge
from sottovoce.protocol.message import Envelope, open_packed, seal_packed
from sottovoce.protocol.plan import ClientPlan, RoundPlan


@dataclass(frozen=True, slots=True, eq=False)
class SharedRow:
    """The update of one client among updates of many, which a simulator computed together.

    A row that is not finite counts as zeros, so that a client which diverged stops nothing.

    Attributes:
        rows: The updates, which must not be written to before they are privatized.
        index: The row of this client.
    """

    rows: FactoredRows | Vector
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivatizationRequest:
    """One vector of one client, to be privatized.

    Attributes:
        part: The client's part of the plan.
        uplink: The index of the vector among those that the client sends in the round.
        values: The vector, neither clipped nor rotated yet; a `SharedRow` if it lies among those of
            other clients.
    """

    part: ClientPlan
    uplink: int
    values: ArrayLike | SharedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A message that is charged, sealed and stored in the ledger, ready to be sent.

    Attributes:
        part: The client's part of the plan.
        uplink: The index of the message among those that the client sends in the round.
        message: The bytes to send.
    """

    part: ClientPlan
    uplink: int
    message: bytes


# Vetoes charges before they are made: it raises to refuse them all, and nothing is charged.
Permit = Callable[[Sequence[PendingCharge]], None]


def _permit_all(pending: Sequence[PendingCharge]) -> None:
    """Veto nothing, so that only budgets limit what is charged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A request that was checked and clipped, so that no step after the charge can refuse it.

    Its vector is a row of `batch`, which all requests with the same mechanism share.
    """

    request: PrivatizationRequest
    batch: Prepared
    row: int
    envelope: Envelope
    release: Release


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sealed:
    """A message that must be stored before it is sent."""

    charge: Charge
    sent: Sent
    commitment: bytes | None


def privatize(
    plan: RoundPlan,
    requests: Sequence[PrivatizationRequest],
    ledger: Ledger,
    randomness: Randomness,
    *,
    permit: Permit = _permit_all,
) -> list[Sent | Refused]:
    """Clip, charge, encode, seal and store each request; return a message or a refusal for each.

    The results are in the order of the requests. A request is refused if the client's budget does
    not cover it. If its message is stored already, these bytes are returned and nothing is charged.

    A real client passes one request. A simulator passes a cohort, which then shares two commits:
    one for the charges, unless `charge_round` has made them, and one for the messages. `permit` is
    called last before the charge with the charges to be made, and raises to veto all of them.

    Raises:
        DomainError: Values are not finite or have the wrong dimension. Nothing is charged.
        ParameterError: Two requests name the same uplink of a client. Nothing is charged.
        LedgerError: A message was stored under another plan, or charged under another plan where a
            channel or a secret sample hides messages, and nothing is charged; or another process
            has stored another message under the same charge.
    """
    prepared = _prepare(plan, requests)
    if len({one.release for one in prepared}) < len(prepared):
        raise ParameterError(
            "two requests name the same uplink of the same client, so nothing was charged; pass "
            "one request for each"
        )
    with stage("charge"), ledger.transaction():
        charges = _charge(plan, prepared, ledger, randomness, permit)
    outcomes = _encode_charged(prepared, charges, randomness)
    with stage("store"):
        ledger.store_messages(
            [(o.charge, o.sent.message, o.commitment) for o in outcomes if isinstance(o, _Sealed)]
        )
    return [outcome.sent if isinstance(outcome, _Sealed) else outcome for outcome in outcomes]


def _prepare(plan: RoundPlan, requests: Sequence[PrivatizationRequest]) -> list[_Prepared]:
    """Prepare all requests, those with the same mechanism together."""
    groups: dict[tuple[int, int], list[int]] = {}
    for position, request in enumerate(requests):
        shared = id(request.values.rows) if isinstance(request.values, SharedRow) else 0
        groups.setdefault((id(request.part.mechanism), shared), []).append(position)
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


def _batch(plan: RoundPlan, requests: Sequence[PrivatizationRequest]) -> Prepared:
    """Prepare requests with the same mechanism; if one is invalid, name it in the error."""
    mechanism, first = requests[0].part.mechanism, requests[0].values
    if isinstance(first, SharedRow):
        shared = [cast("SharedRow", request.values) for request in requests]
        rows = select_rows(first.rows, [row.index for row in shared])
        return prepare(mechanism, rows, rotation=plan.rotation, zero_nonfinite=True)
    dimension = mechanism.input_domain.dimension
    try:
        # np.stack copies, because the caller may change its arrays while we charge and encode.
        vectors = [cast("ArrayLike", request.values) for request in requests]
        rows = np.stack([sized_vector(vector, dimension) for vector in vectors])
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
    """Return the charge of each release: an earlier one if it covers the request, or a new one."""
    found: dict[Release, Charge | BudgetExhaustedError] = {}
    due: dict[Release, PendingCharge] = {}
    earlier = ledger.latest_of([one.release for one in prepared])
    events = events_of(plan, [one.request.part for one in prepared])
    for one, event in zip(prepared, events, strict=True):
        present = earlier.get(one.release)
        if present is not None and present.message is not None:
            _check_still_valid(present.message, one)
        needed = required_charge(event, one.release, present, randomness)
        if needed is None and present is not None and _encodes_other_data(present, one, randomness):
            if isinstance(one.request.part.mechanism, PostProcesses):
                raise LedgerError(
                    f"{one.release} was sent before, and its data have changed since: the noise of "
                    "its local steps would be the same, which would reveal the change; skip the "
                    "round, or use randomness = 'system'"
                )
            needed = another_attempt(event, one.release, present)
        if needed is not None:
            due[one.release] = needed
        elif present is not None:
            found[one.release] = present
    permit(list(due.values()))
    return found | charge(due, ledger)


def _encodes_other_data(earlier: Charge, prepared: _Prepared, randomness: Randomness) -> bool:
    """Return whether the discarded message of a charge encoded other data than the request."""
    if not earlier.sealed or earlier.message is not None:
        return False
    streams = streams_of_labels(randomness, [_stream_label(prepared, earlier.attempt)])
    (commitment,) = _commitments(prepared.batch.take([prepared.row]), [prepared], streams)
    return commitment != earlier.commitment


def _encode_charged(
    prepared: Sequence[_Prepared],
    charges: Mapping[Release, Charge | BudgetExhaustedError],
    randomness: Randomness,
) -> list[Sent | Refused | _Sealed]:
    """Encode and seal each request that is charged and has no stored message, batch by batch."""
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
        found |= {sealed.charge.release: sealed for sealed in _seal_charged(charged, randomness)}
    return [found[one.release] for one in prepared]


def _seal_charged(
    charged: Sequence[tuple[_Prepared, Charge]], randomness: Randomness
) -> Iterator[_Sealed]:
    """Encode and seal charged rows of one batch, as many at once as memory allows."""
    batch = charged[0][0].batch
    together = rows_at_once(batch.mechanism.input_domain.dimension)
    for first in range(0, len(charged), together):
        some = charged[first : first + together]
        with stage("keys"):
            labels = [_stream_label(one, charge.attempt) for one, charge in some]
            streams = streams_of_labels(randomness, labels)
        rows = batch.take([one.row for one, _ in some])
        commitments = _commitments(rows, [one for one, _ in some], streams)
        packed = encode_packed(rows, streams).on_cpu()
        with stage("seal"):
            for (one, charge), payload, commitment in zip(some, packed, commitments, strict=True):
                yield _Sealed(
                    charge=charge,
                    sent=Sent(
                        part=one.request.part,
                        uplink=one.request.uplink,
                        message=seal_packed(payload.tobytes(), one.envelope),
                    ),
                    commitment=commitment,
                )


def _commitments(
    rows: Prepared, requests: Sequence[_Prepared], streams: Sequence[Keystream]
) -> Sequence[bytes | None]:
    """Return a commitment to what each keystream encodes.

    It is None unless the keystreams are seeded: other keystreams can never be drawn again.
    """
    found: list[bytes | None] = [None] * len(rows)
    if not streams or streams[0].grade != "seeded":
        return found
    with stage("prepare"):
        _ = rows.rows  # Made here, by all threads.

    def work(begin: int, end: int) -> None:
        for i in range(begin, end):
            vector = np.ascontiguousarray(rows.vector(i)).data
            found[i] = streams[i].commitment(requests[i].envelope.parameter_hash, vector)

    with stage("seal"):
        over_rows(work, len(rows), rows.mechanism.input_domain.dimension)
    return found


def _check_still_valid(message: bytes, prepared: _Prepared) -> None:
    """Refuse to resend a stored message under parameters other than those it was sealed under."""
    try:
        open_packed(message, prepared.envelope)
    except WireError as error:
        raise LedgerError(
            f"{prepared.release} was sent under other parameters ({error}); "
            "retry with the plan under which it was sent"
        ) from None


def _stream_label(prepared: _Prepared, attempt: int) -> tuple[str | int, ...]:
    return ("encode", *prepared.release.key, attempt)
