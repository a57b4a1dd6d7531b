"""The client's side: encoded only once it is paid for, handed on only once it is stored."""

import contextlib
import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from one_message import privatise_one
from watched_encoding import watch_encoding

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball, SteppedL2Ball
from sottovoce.core.errors import (
    AdjacencyMismatchError,
    BudgetExhaustedError,
    DomainError,
    LedgerError,
)
from sottovoce.core.randomness import Keystream, Randomness, SeededRandomness, SystemRandomness
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Budget, Charge
from sottovoce.mechanisms.compressed_update import compressed
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.events import Repeated
from sottovoce.protocol.client import PrivatizationRequest, Refused, Sent, privatize
from sottovoce.protocol.message import HEADER_BYTES, open_sealed
from sottovoce.protocol.plan import ClientPlan, RoundPlan

DIMENSION = 64
DELTA = 1e-6
MECHANISM = GaussHermite(
    input_domain=L2Ball(dimension=DIMENSION, radius=1.0), levels=4, noise_multiplier=2.0
)
EVENT = MECHANISM.privacy(Adjacency.ZERO_OUT)
VALUES = np.linspace(-0.1, 0.1, DIMENSION)
OTHER_VALUES = VALUES[::-1].copy()
NAMES = ("ada", "bob", "carl")


class Crash(Exception):
    """Stands for the process dying at this point."""


def a_plan(
    round_number: int = 1, *, run: str = "run", adjacency: Adjacency = Adjacency.ZERO_OUT
) -> RoundPlan:
    parts = tuple(ClientPlan(client=name, mechanism=MECHANISM, weight=1.0) for name in NAMES)
    return RoundPlan(
        unit=Unit.CLIENT, run=run, round=round_number, adjacency=adjacency, clients=parts
    )


def a_request(
    values: ArrayLike = VALUES, *, client: str = "ada", uplink: int = 0
) -> PrivatizationRequest:
    part = ClientPlan(client=client, mechanism=MECHANISM, weight=1.0)
    return PrivatizationRequest(part=part, uplink=uplink, values=values)


def room_for(count: int) -> Budget:
    """A budget that holds exactly `count` charges."""
    epsilon = privacy_spent(Repeated(event=EVENT, count=count), DELTA).epsilon
    return Budget(unit=Unit.CLIENT, epsilon=epsilon, delta=DELTA, adjacency=Adjacency.ZERO_OUT)


@dataclass
class Spy:
    """Every call of encode: its input, its keystream's fingerprint, and what was on disk then."""

    path: Path
    inputs: list[bytes] = field(default_factory=list)
    fingerprints: list[bytes] = field(default_factory=list)
    charges_on_disk: list[int] = field(default_factory=list)
    crashes_to_come: int = 0

    def watch(self, values: ArrayLike, keystream: Keystream) -> None:
        self.inputs.append(np.asarray(values).tobytes())
        # Keyed by the stream, so equal fingerprints are equal keystreams.
        self.fingerprints.append(keystream.commitment(b"which stream is this?"))
        with Ledger(self.path) as other:  # sees what is committed and no more
            self.charges_on_disk.append(len(list(other.rows())))
        if self.crashes_to_come:
            self.crashes_to_come -= 1
            raise Crash


@pytest.fixture
def spy(path: Path, monkeypatch: pytest.MonkeyPatch) -> Spy:
    watching = Spy(path)
    watch_encoding(monkeypatch, lambda *given: watching.watch(*given))
    return watching


# -- the good case -------------------------------------------------------------------------


def test_a_message_opens_to_the_codes_that_the_mechanism_drew(ledger: Ledger) -> None:
    plan, request = a_plan(), a_request()
    message = privatise_one(plan, request, ledger, SeededRandomness(7))
    codes = open_sealed(message, plan.envelope(request.part, 0))
    stream = SeededRandomness(7).stream("encode", "run", "ada", 1, 0, 0)
    projected = MECHANISM.input_domain.project(VALUES)
    assert np.array_equal(codes, MECHANISM.encode(projected, stream))


def test_outcomes_come_in_the_order_of_the_requests(ledger: Ledger, randomness: Randomness) -> None:
    requests = [a_request(client=name, uplink=n) for n in (1, 0) for name in ("bob", "ada")]
    outcomes = privatize(a_plan(), requests, ledger, randomness)
    assert [(o.part.client, o.uplink) for o in outcomes] == [
        ("bob", 1),
        ("ada", 1),
        ("bob", 0),
        ("ada", 0),
    ]
    assert all(isinstance(outcome, Sent) for outcome in outcomes)


def test_every_uplink_is_charged(ledger: Ledger, randomness: Randomness) -> None:
    privatize(a_plan(), [a_request(uplink=0), a_request(uplink=1)], ledger, randomness)
    assert ledger.history("ada") == [(EVENT, 2)]


def test_no_requests_are_no_charges(ledger: Ledger, randomness: Randomness) -> None:
    assert privatize(a_plan(), [], ledger, randomness) == []
    assert list(ledger.rows()) == []


def test_an_update_outside_the_ball_is_projected(ledger: Ledger, spy: Spy) -> None:
    privatise_one(a_plan(), a_request(100.0 * VALUES), ledger, SystemRandomness())
    (used,) = spy.inputs
    assert used == MECHANISM.input_domain.project(100.0 * VALUES).tobytes()
    assert np.linalg.norm(np.frombuffer(used)) <= 1.0


def test_the_callers_array_is_left_as_it_was(ledger: Ledger, randomness: Randomness) -> None:
    for values in (VALUES.copy(), 100.0 * VALUES):
        before = values.copy()
        privatize(a_plan(), [a_request(values)], ledger, randomness)
        assert np.array_equal(values, before)


def test_a_zero_update_is_charged_and_sent_like_any_other(
    ledger: Ledger, randomness: Randomness
) -> None:
    # If nothing were sent, silence would tell the server that there was nothing to say.
    message = privatise_one(a_plan(), a_request(np.zeros(DIMENSION)), ledger, randomness)
    assert len(message) == HEADER_BYTES + DIMENSION // 4
    assert ledger.history("ada") == [(EVENT, 1)]


def test_two_clients_with_the_same_update_use_different_keystreams(
    ledger: Ledger, spy: Spy, randomness: Randomness
) -> None:
    requests = [a_request(client=name, uplink=uplink) for name in NAMES for uplink in (0, 1)]
    for round_number in (1, 2):
        for run in ("one", "two"):
            privatize(a_plan(round_number, run=run), requests, ledger, randomness)
    assert len(set(spy.fingerprints)) == len(spy.fingerprints) == 24


# -- values that cannot be sent ------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        np.where(np.arange(DIMENSION) == 5, math.nan, 0.0),
        np.where(np.arange(DIMENSION) == 5, math.inf, 0.0),
        np.where(np.arange(DIMENSION) == 5, -math.inf, 0.0),
        np.zeros(DIMENSION - 1),
        np.zeros(DIMENSION + 1),
        np.zeros((DIMENSION, 1)),
        np.zeros(0),
        0.0,
    ],
    ids=["nan", "inf", "-inf", "short", "long", "matrix", "empty", "scalar"],
)
def test_bad_values_are_named_and_charge_no_one(
    ledger: Ledger, spy: Spy, randomness: Randomness, values: ArrayLike
) -> None:
    cohort = [a_request(client="ada"), a_request(values, client="bob"), a_request(client="carl")]
    with pytest.raises(DomainError, match=r"client 'bob', round 1, uplink 0.*nothing was sent"):
        privatize(a_plan(), cohort, ledger, randomness)
    assert list(ledger.rows()) == []
    assert spy.inputs == []


# -- budgets -------------------------------------------------------------------------------


def test_a_client_out_of_budget_is_refused_and_encode_is_never_called(
    ledger: Ledger, spy: Spy, randomness: Randomness
) -> None:
    ledger.set_budget("ada", room_for(2))
    for round_number in (1, 2):
        privatise_one(a_plan(round_number), a_request(), ledger, randomness)
    spy.inputs.clear()
    (outcome,) = privatize(a_plan(3), [a_request()], ledger, randomness)
    assert isinstance(outcome, Refused)
    assert outcome.part.client == "ada"
    with pytest.raises(BudgetExhaustedError, match="client 'ada', round 3"):
        privatise_one(a_plan(3), a_request(), ledger, randomness)
    assert spy.inputs == []
    assert ledger.history("ada") == [(EVENT, 2)]
    assert ledger.latest(a_plan(3).release("ada", 0)) is None


def test_the_rest_of_a_cohort_goes_on_without_the_client_out_of_budget(
    ledger: Ledger, spy: Spy, randomness: Randomness
) -> None:
    ledger.set_budget("bob", room_for(1))
    cohort = [a_request(client=name) for name in NAMES]
    privatize(a_plan(1), cohort, ledger, randomness)
    spy.inputs.clear()
    outcomes = privatize(a_plan(2), cohort, ledger, randomness)
    assert [type(outcome) for outcome in outcomes] == [Sent, Refused, Sent]
    assert len(spy.inputs) == 2
    assert {name: ledger.history(name)[0][1] for name in NAMES} == {"ada": 2, "bob": 1, "carl": 2}
    assert ledger.verify() == []


def test_a_budget_that_runs_out_within_one_cohort_stops_exactly_there(
    ledger: Ledger, spy: Spy, randomness: Randomness
) -> None:
    ledger.set_budget("ada", room_for(2))
    requests = [a_request(uplink=uplink) for uplink in range(4)]
    outcomes = privatize(a_plan(), requests, ledger, randomness)
    assert [type(outcome) for outcome in outcomes] == [Sent, Sent, Refused, Refused]
    assert len(spy.inputs) == 2


def test_a_client_out_of_budget_may_still_resend_what_it_paid_for(
    ledger: Ledger, spy: Spy, randomness: Randomness
) -> None:
    ledger.set_budget("ada", room_for(1))
    message = privatise_one(a_plan(), a_request(), ledger, randomness)
    assert privatise_one(a_plan(), a_request(), ledger, randomness) == message
    assert len(spy.inputs) == 1


def test_a_plan_of_another_adjacency_than_the_budget_charges_no_one(
    ledger: Ledger, spy: Spy, randomness: Randomness
) -> None:
    ledger.set_budget("bob", room_for(9))
    plan = a_plan(adjacency=Adjacency.REPLACE_ONE)
    with pytest.raises(AdjacencyMismatchError):
        privatize(plan, [a_request(client=name) for name in NAMES], ledger, randomness)
    assert list(ledger.rows()) == []
    assert spy.inputs == []


# -- order ---------------------------------------------------------------------------------


def test_the_whole_cohorts_charges_are_on_disk_before_the_first_code_is_drawn(
    ledger: Ledger, spy: Spy, randomness: Randomness
) -> None:
    privatize(a_plan(), [a_request(client=name) for name in NAMES], ledger, randomness)
    assert spy.charges_on_disk == [3, 3, 3]


def test_a_message_is_on_disk_before_it_is_handed_on(
    ledger: Ledger, path: Path, randomness: Randomness
) -> None:
    message = privatise_one(a_plan(), a_request(), ledger, randomness)
    with Ledger(path) as other:
        latest = other.latest(a_plan().release("ada", 0))
    assert latest is not None
    assert latest.message == message


def test_nothing_leaves_when_the_charge_cannot_be_written(
    ledger: Ledger, spy: Spy, randomness: Randomness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disk_full(*_: object) -> list[Charge]:
        raise LedgerError("disk full")

    monkeypatch.setattr(Ledger, "charge_all", disk_full)
    with pytest.raises(LedgerError, match="disk full"):
        privatize(a_plan(), [a_request()], ledger, randomness)
    assert spy.inputs == []


def test_nothing_leaves_when_a_message_cannot_be_stored(
    ledger: Ledger, randomness: Randomness, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Ledger._append

    def full_after_the_messages(self: Ledger, table: Any, *arguments: Any) -> None:
        append(self, table, *arguments)
        if table == "messages":
            raise LedgerError("disk full")

    monkeypatch.setattr(Ledger, "_append", full_after_the_messages)
    with pytest.raises(LedgerError, match="disk full"):
        privatize(a_plan(), [a_request(client=name) for name in NAMES], ledger, randomness)
    # All are charged, and no message is stored: not even the first, which could then be sent again
    # although its own cohort never learnt of it.
    assert [row["message_stored"] for row in ledger.rows()] == [False] * 3


def test_privatizing_inside_somebodys_transaction_is_refused(
    ledger: Ledger, spy: Spy, randomness: Randomness
) -> None:
    # The outer rollback could undo charges whose messages have left.
    def privatise_inside() -> None:
        with ledger.transaction():
            privatize(a_plan(), [a_request()], ledger, randomness)

    with pytest.raises(LedgerError):
        privatise_inside()
    assert spy.inputs == []
    assert list(ledger.rows()) == []


# -- retries -------------------------------------------------------------------------------


def test_a_retry_sends_the_stored_bytes_and_charges_nothing(
    ledger: Ledger, path: Path, spy: Spy, randomness: Randomness
) -> None:
    message = privatise_one(a_plan(), a_request(), ledger, randomness)
    assert privatise_one(a_plan(), a_request(), ledger, randomness) == message
    # Another input for the same release gets the old answer too: it was asked for once.
    assert privatise_one(a_plan(), a_request(OTHER_VALUES), ledger, randomness) == message
    with Ledger(path, create=True) as reopened:
        assert privatise_one(a_plan(), a_request(), reopened, SystemRandomness()) == message
    assert ledger.history("ada") == [(EVENT, 1)]
    assert len(spy.inputs) == 1


def test_a_retry_of_a_cohort_encodes_only_what_is_missing(
    ledger: Ledger, spy: Spy, randomness: Randomness
) -> None:
    first = privatise_one(a_plan(), a_request(client="bob"), ledger, randomness)
    outcomes = privatize(a_plan(), [a_request(client=name) for name in NAMES], ledger, randomness)
    assert len(spy.inputs) == 3
    assert len(list(ledger.rows())) == 3
    (bob,) = (o for o in outcomes if isinstance(o, Sent) and o.part.client == "bob")
    assert bob.message == first


def test_another_round_run_or_uplink_is_no_retry(
    ledger: Ledger, spy: Spy, randomness: Randomness
) -> None:
    messages = {
        privatise_one(a_plan(1), a_request(), ledger, randomness),
        privatise_one(a_plan(2), a_request(), ledger, randomness),
        privatise_one(a_plan(1), a_request(uplink=1), ledger, randomness),
    }
    other_run = privatise_one(a_plan(1, run="other"), a_request(), ledger, randomness)
    assert len(messages) == 3
    assert other_run not in messages
    assert ledger.history("ada") == [(EVENT, 4)]
    assert len(set(spy.fingerprints)) == 4


# -- crashes between charge and message ----------------------------------------------------


def crash_once(
    ledger: Ledger, spy: Spy, randomness: Randomness, request: PrivatizationRequest
) -> None:
    spy.crashes_to_come = 1
    with pytest.raises(Crash):
        privatize(a_plan(), [request], ledger, randomness)


def attempts(ledger: Ledger) -> list[object]:
    return [row["attempt"] for row in ledger.rows("ada")]


def test_a_crash_before_encoding_leaves_the_charge_and_no_message(
    ledger: Ledger, spy: Spy, randomness: Randomness
) -> None:
    crash_once(ledger, spy, randomness, a_request())
    latest = ledger.latest(a_plan().release("ada", 0))
    assert latest is not None
    assert latest.message is None
    assert ledger.history("ada") == [(EVENT, 1)]


def test_after_a_crash_system_randomness_encodes_anew_under_the_same_charge(
    ledger: Ledger, spy: Spy
) -> None:
    crash_once(ledger, spy, SystemRandomness(), a_request())
    privatise_one(a_plan(), a_request(), ledger, SystemRandomness())
    assert attempts(ledger) == [0]  # nothing had left: messages are stored first
    assert len(set(spy.fingerprints)) == 2
    assert spy.charges_on_disk == [1, 1]


def test_after_a_crash_seeded_randomness_and_the_same_input_encode_again_for_free(
    ledger: Ledger, spy: Spy, path: Path, tmp_path: Path
) -> None:
    crash_once(ledger, spy, SeededRandomness(7), a_request())
    message = privatise_one(a_plan(), a_request(), ledger, SeededRandomness(7))
    assert attempts(ledger) == [0]
    assert len(set(spy.fingerprints)) == 1
    with Ledger(tmp_path / "calm.db", create=True) as calm:
        assert privatise_one(a_plan(), a_request(), calm, SeededRandomness(7)) == message


def test_after_a_crash_another_input_may_take_the_place_of_what_never_left(
    ledger: Ledger, spy: Spy, randomness: Randomness, tmp_path: Path
) -> None:
    crash_once(ledger, spy, randomness, a_request())
    message = privatise_one(a_plan(), a_request(OTHER_VALUES), ledger, randomness)
    assert attempts(ledger) == [0]
    if randomness.grade == "seeded":
        with Ledger(tmp_path / "calm.db", create=True) as calm:
            other = privatise_one(a_plan(), a_request(OTHER_VALUES), calm, randomness)
        assert other == message


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (SystemRandomness(), SeededRandomness(7)),
        (SeededRandomness(7), SystemRandomness()),
        (SeededRandomness(7), SeededRandomness(8)),
    ],
    ids=["system-seeded", "seeded-system", "other-seed"],
)
def test_a_discarded_message_under_another_source_of_randomness_is_a_new_attempt(
    ledger: Ledger, spy: Spy, first: Randomness, second: Randomness
) -> None:
    privatise_one(a_plan(), a_request(), ledger, first)
    ledger.discard_messages("run", before_round=2)
    privatise_one(a_plan(), a_request(), ledger, second)
    assert attempts(ledger) == [0, 1]
    assert len(set(spy.fingerprints)) == 2
    assert spy.charges_on_disk == [1, 2]  # the second, too, was paid before it was encoded


def test_after_a_crash_another_event_for_the_same_input_is_a_new_attempt(
    ledger: Ledger, spy: Spy, randomness: Randomness
) -> None:
    crash_once(ledger, spy, randomness, a_request())
    louder = dataclasses.replace(MECHANISM, noise_multiplier=1.0)
    part = ClientPlan(client="ada", mechanism=louder, weight=1.0)
    request = PrivatizationRequest(part=part, uplink=0, values=VALUES)
    privatise_one(a_plan(), request, ledger, randomness)
    assert attempts(ledger) == [0, 1]  # what was paid does not cover it
    assert len(set(spy.fingerprints)) == 2


def test_another_adjacency_than_that_of_earlier_charges_is_refused(
    ledger: Ledger, spy: Spy, randomness: Randomness
) -> None:
    privatise_one(a_plan(), a_request(), ledger, randomness)
    plan = a_plan(2, adjacency=Adjacency.REPLACE_ONE)
    with pytest.raises(AdjacencyMismatchError, match=r"replace-one.*zero-out.*use zero-out"):
        privatize(plan, [a_request(), a_request(client="bob")], ledger, randomness)
    assert len(list(ledger.rows())) == 1


def test_a_crash_that_used_up_the_budget_still_sends_what_was_paid_for(
    ledger: Ledger, spy: Spy, randomness: Randomness
) -> None:
    ledger.set_budget("ada", room_for(1))
    crash_once(ledger, spy, randomness, a_request())
    privatise_one(a_plan(), a_request(), ledger, randomness)
    assert ledger.history("ada") == [(EVENT, 1)]
    with pytest.raises(BudgetExhaustedError):
        privatise_one(a_plan(2), a_request(), ledger, randomness)


def test_a_crash_in_the_middle_of_a_cohort_keeps_every_charge_and_hands_on_nothing(
    ledger: Ledger, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    cohort = [a_request(client=name) for name in NAMES]
    watch = Spy.watch

    def crash_on_the_second(self: Spy, values: ArrayLike, keystream: Keystream) -> None:
        watch(self, values, keystream)
        if len(self.inputs) == 2:
            raise Crash

    monkeypatch.setattr(Spy, "watch", crash_on_the_second)
    with pytest.raises(Crash):
        privatize(a_plan(), cohort, ledger, SystemRandomness())
    assert [row["message_stored"] for row in ledger.rows()] == [False] * 3
    outcomes = privatize(a_plan(), cohort, ledger, SystemRandomness())
    assert all(isinstance(outcome, Sent) for outcome in outcomes)
    assert {name: ledger.history(name)[0][1] for name in NAMES} == dict.fromkeys(NAMES, 1)
    assert len(set(spy.fingerprints)) == 5


# -- after messages were discarded ---------------------------------------------------------


def test_a_discarded_message_is_drawn_anew_and_charged_with_system_randomness(
    ledger: Ledger, spy: Spy
) -> None:
    first = privatise_one(a_plan(), a_request(), ledger, SystemRandomness())
    ledger.discard_messages("run", before_round=2)
    assert privatise_one(a_plan(), a_request(), ledger, SystemRandomness()) != first
    assert attempts(ledger) == [0, 1]


def test_a_discarded_message_comes_back_bit_by_bit_with_seeded_randomness(
    ledger: Ledger, spy: Spy
) -> None:
    first = privatise_one(a_plan(), a_request(), ledger, SeededRandomness(7))
    ledger.discard_messages("run", before_round=2)
    assert privatise_one(a_plan(), a_request(), ledger, SeededRandomness(7)) == first
    assert attempts(ledger) == [0]


def test_a_discarded_message_for_another_input_is_a_new_attempt(ledger: Ledger, spy: Spy) -> None:
    first = privatise_one(a_plan(), a_request(), ledger, SeededRandomness(7))
    ledger.discard_messages("run", before_round=2)
    second = privatise_one(a_plan(), a_request(OTHER_VALUES), ledger, SeededRandomness(7))
    assert second != first
    assert attempts(ledger) == [0, 1]
    assert len(set(spy.fingerprints)) == 2


def test_noisy_steps_on_other_data_are_refused_where_their_noise_would_repeat(
    ledger: Ledger, spy: Spy
) -> None:
    ball = SteppedL2Ball(dimension=DIMENSION, radius=1.0, records=10, steps=3, sampling_rate=0.5)
    noise = GaussHermite(input_domain=ball, levels=4, noise_multiplier=2.0)
    part = ClientPlan(client="ada", mechanism=compressed(noise, 2), weight=1.0)
    plan = dataclasses.replace(a_plan(), unit=Unit.SAMPLE, clients=(part,))

    def send(values: ArrayLike) -> bytes:
        request = PrivatizationRequest(part=part, uplink=0, values=values)
        return privatise_one(plan, request, ledger, SeededRandomness(7))

    first = send(VALUES)
    ledger.discard_messages("run", before_round=2)
    with pytest.raises(LedgerError, match="data have changed since"):
        send(OTHER_VALUES)
    assert send(VALUES) == first
    assert attempts(ledger) == [0]


# -- any history at all --------------------------------------------------------------------


@st.composite
def a_step(draw: st.DrawFn) -> tuple[str, str, int, str]:
    """A source of randomness, a client, an input, and what happens to it."""
    return (
        draw(st.sampled_from(["system", "seed 1", "seed 2"])),
        draw(st.sampled_from(NAMES[:2])),
        draw(st.integers(0, 2)),
        draw(st.sampled_from(["sent", "crash", "sent, then discarded"])),
    )


SOURCES: dict[str, Callable[[], Randomness]] = {
    "system": SystemRandomness,
    "seed 1": lambda: SeededRandomness(1),
    "seed 2": lambda: SeededRandomness(2),
}


@settings(deadline=None, max_examples=60)
@given(st.lists(a_step(), max_size=10))
def test_no_history_sends_two_inputs_under_a_keystream_or_more_than_was_charged(
    steps: list[tuple[str, str, int, str]],
) -> None:
    inputs = [VALUES, OTHER_VALUES, np.zeros(DIMENSION)]
    out: dict[str, set[bytes]] = defaultdict(set)
    served: dict[bytes, set[bytes]] = defaultdict(set)  # by what left, not by what was tried
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "ledger.db"
        spy = Spy(path)
        watch_encoding(patch, spy.watch)
        with Ledger(path, create=True) as ledger:
            for source, client, which, fate in steps:
                spy.crashes_to_come = int(fate == "crash")
                request = a_request(inputs[which], client=client)
                calls = len(spy.inputs)
                with contextlib.suppress(Crash):
                    out[client].add(privatise_one(a_plan(), request, ledger, SOURCES[source]()))
                    if len(spy.inputs) > calls:
                        served[spy.fingerprints[-1]].add(spy.inputs[-1])
                if "discarded" in fate:
                    ledger.discard_messages("run", before_round=2)
            charged = {name: sum(n for _, n in ledger.history(name)) for name in NAMES}
            assert ledger.verify() == []
    assert all(len(used) == 1 for used in served.values())
    assert all(len(messages) <= charged[client] for client, messages in out.items())
    # What left under each keystream was paid for by a charge that was on disk before its first use.
    left = [n for n, fingerprint in enumerate(spy.fingerprints) if fingerprint in served]
    for number in left:
        before = {spy.fingerprints[n] for n in left if n <= number}
        assert len(before) <= spy.charges_on_disk[number]
