"""A round is charged first and whole; every way to lose a process in between, thought through."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from one_message import privatise_one
from watched_encoding import watch_encoding

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import AdjacencyMismatchError, LedgerError
from sottovoce.core.randomness import Randomness, SeededRandomness, SystemRandomness
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Budget
from sottovoce.mechanisms.clamped_sign import ClampedSign
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.privacy import events
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.events import Repeated, Sampled, basic_counts
from sottovoce.protocol.channels.channel import terms_of
from sottovoce.protocol.channels.secure_sum import SecureSum
from sottovoce.protocol.charging import charge_round, clients_within_budget
from sottovoce.protocol.client import PrivatizationRequest, Refused, Sent, privatize
from sottovoce.protocol.plan import ClientPlan, RoundPlan

DIMENSION, DELTA = 32, 1e-6
BALL = L2Ball(dimension=DIMENSION, radius=1.0)
MECHANISM = GaussHermite(input_domain=BALL, levels=4, noise_multiplier=2.0)
LOUDER = GaussHermite(input_domain=BALL, levels=4, noise_multiplier=1.0)
EVENT = MECHANISM.privacy(Adjacency.ZERO_OUT)
VALUES = np.linspace(-0.1, 0.1, DIMENSION)
NAMES = ("ada", "bob", "carl")


def a_plan(
    number: int = 1,
    *,
    mechanism: Mechanism = MECHANISM,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
) -> RoundPlan:
    parts = tuple(ClientPlan(client=name, mechanism=mechanism, weight=1.0) for name in NAMES)
    return RoundPlan(unit=Unit.CLIENT, run="run", round=number, adjacency=adjacency, clients=parts)


def requests(
    plan: RoundPlan, values: ArrayLike = VALUES, uplinks: int = 1
) -> list[PrivatizationRequest]:
    return [
        PrivatizationRequest(part=part, uplink=uplink, values=values)
        for part in plan.clients
        for uplink in range(uplinks)
    ]


def room_for(count: int) -> Budget:
    epsilon = privacy_spent(Repeated(event=EVENT, count=count), DELTA).epsilon
    return Budget(unit=Unit.CLIENT, epsilon=epsilon, delta=DELTA, adjacency=Adjacency.ZERO_OUT)


def attempts(ledger: Ledger, client: str = "ada") -> list[object]:
    return [row["attempt"] for row in ledger.rows(client)]


def test_a_round_that_is_paid_for_is_encoded_at_no_further_charge(
    ledger: Ledger, path: Path, randomness: Randomness, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, seen = a_plan(), []

    def watch(*_: object) -> None:
        with Ledger(path) as other:  # sees what is committed and no more
            seen.append(other.num_charges)

    watch_encoding(monkeypatch, watch)
    assert charge_round(plan, ledger, randomness, uplinks=2) == []
    for request in requests(plan, uplinks=2):  # one at a time, as little memory as there is
        privatise_one(plan, request, ledger, randomness)
    assert seen == [6] * 6
    assert ledger.num_charges == 6
    assert {ledger.history(name)[0] for name in NAMES} == {(EVENT, 2)}
    assert ledger.verify() == []


def test_charging_a_round_twice_charges_it_once(ledger: Ledger, randomness: Randomness) -> None:
    for _ in range(2):
        charge_round(a_plan(), ledger, randomness, uplinks=1)
    first = privatize(a_plan(), requests(a_plan()), ledger, randomness)
    charge_round(a_plan(), ledger, randomness, uplinks=1)
    assert privatize(a_plan(), requests(a_plan()), ledger, randomness) == first
    assert ledger.num_charges == 3


def test_who_cannot_pay_is_refused_by_name_and_the_others_are_charged(
    ledger: Ledger, randomness: Randomness
) -> None:
    ledger.set_budget("bob", room_for(1))
    assert charge_round(a_plan(1), ledger, randomness, uplinks=1) == []
    (refused,) = charge_round(a_plan(2), ledger, randomness, uplinks=1)
    assert (refused.part.client, refused.uplink) == ("bob", 0)
    assert "client 'bob', round 2" in str(refused.error)
    assert [len(attempts(ledger, name)) for name in NAMES] == [2, 1, 2]
    outcomes = privatize(a_plan(2), requests(a_plan(2)), ledger, randomness)
    assert [type(outcome) for outcome in outcomes] == [Sent, Refused, Sent]


def test_able_to_pay_is_asked_of_all_uplinks_and_of_the_time_before_the_round(
    ledger: Ledger, randomness: Randomness
) -> None:
    ledger.set_budget("ada", room_for(2))
    ledger.set_budget("bob", room_for(3))
    assert clients_within_budget(a_plan(1), ledger, uplinks=2) == set(NAMES)
    assert clients_within_budget(a_plan(1), ledger, uplinks=3) == {"bob", "carl"}
    charge_round(a_plan(1), ledger, randomness, uplinks=2)
    assert clients_within_budget(a_plan(2), ledger, uplinks=1) == {"bob", "carl"}
    # The round that was charged is not held against those who paid for it.
    assert clients_within_budget(a_plan(1), ledger, uplinks=2) == set(NAMES)
    assert ledger.num_charges == 6


def test_the_charges_of_an_adjacency_are_not_added_to_those_of_another(
    ledger: Ledger, randomness: Randomness
) -> None:
    charge_round(a_plan(1), ledger, randomness, uplinks=1)
    other = a_plan(2, adjacency=Adjacency.REPLACE_ONE)
    with pytest.raises(AdjacencyMismatchError, match=r"replace-one.*zero-out"):
        clients_within_budget(other, ledger, uplinks=1)
    with pytest.raises(AdjacencyMismatchError, match=r"replace-one.*zero-out"):
        charge_round(other, ledger, randomness, uplinks=1)
    assert ledger.num_charges == 3


# -- crash points --------------------------------------------------------------------------


def test_charged_but_not_encoded(ledger: Ledger, path: Path, randomness: Randomness) -> None:
    for name in NAMES:
        ledger.set_budget(name, room_for(1))
    charge_round(a_plan(), ledger, randomness, uplinks=1)
    with Ledger(path, create=True) as after_a_crash:
        charge_round(a_plan(), after_a_crash, randomness, uplinks=1)
        outcomes = privatize(a_plan(), requests(a_plan()), after_a_crash, randomness)
    assert all(isinstance(outcome, Sent) for outcome in outcomes)
    assert ledger.num_charges == 3


def test_charged_under_another_event_pays_again(ledger: Ledger, randomness: Randomness) -> None:
    charge_round(a_plan(), ledger, randomness, uplinks=1)
    louder = a_plan(mechanism=LOUDER)
    charge_round(louder, ledger, randomness, uplinks=1)
    privatize(louder, requests(louder), ledger, randomness)
    assert attempts(ledger) == [0, 1]
    assert ledger.history("ada")[-1] == (LOUDER.privacy(Adjacency.ZERO_OUT), 1)


def test_stored_but_not_sent_is_sent_as_it_was_stored(
    ledger: Ledger, randomness: Randomness
) -> None:
    charge_round(a_plan(), ledger, randomness, uplinks=1)
    stored = privatize(a_plan(), requests(a_plan()), ledger, randomness)
    again = privatize(a_plan(), requests(a_plan(), -VALUES), ledger, SystemRandomness())
    assert again == stored
    assert ledger.num_charges == 3


@pytest.mark.parametrize("same", [True, False])
def test_discarded_and_asked_for_again(ledger: Ledger, randomness: Randomness, same: bool) -> None:
    charge_round(a_plan(), ledger, randomness, uplinks=1)
    first = privatize(a_plan(), requests(a_plan()), ledger, randomness)
    ledger.discard_messages("run", before_round=2)
    charge_round(a_plan(), ledger, randomness, uplinks=1)
    values = VALUES if same else -VALUES
    second = privatize(a_plan(), requests(a_plan(), values), ledger, randomness)
    repeated = same and randomness.grade == "seeded"
    assert (first == second) is repeated
    assert attempts(ledger) == ([0] if repeated else [0, 1])
    assert ledger.verify() == []


def test_a_discarded_message_that_would_come_back_as_other_bytes_is_not_sent(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an upgrade that samples differently: the same input, the same key, other codes."""
    randomness = SeededRandomness(7)
    privatize(a_plan(), requests(a_plan()), ledger, randomness)
    ledger.discard_messages("run", before_round=2)
    encode_packed = GaussHermite.encode_packed

    def upgraded(self: GaussHermite, *given: Any) -> NDArray[np.uint8]:
        return encode_packed(self, *given) ^ np.uint8(1)

    monkeypatch.setattr(GaussHermite, "encode_packed", upgraded)
    with pytest.raises(LedgerError, match="another message is stored"):
        privatize(a_plan(), requests(a_plan()), ledger, randomness)


def test_of_two_processes_at_one_release_the_second_sends_nothing_of_its_own(
    ledger: Ledger, path: Path, randomness: Randomness, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = a_plan()
    charge_round(plan, ledger, randomness, uplinks=1)
    others: list[list[Sent | Refused]] = []

    def overtaken(*_: object) -> None:
        if not others:
            others.append([])
            with Ledger(path, create=True) as other:
                others[0] = privatize(plan, requests(plan, -VALUES), other, randomness)

    watch_encoding(monkeypatch, overtaken)
    with pytest.raises(LedgerError, match=r"another message is stored .* must not be sent"):
        privatize(plan, requests(plan), ledger, randomness)
    assert privatize(plan, requests(plan), ledger, randomness) == others[0]
    assert ledger.num_charges == 3
    assert ledger.verify() == []


def test_a_second_attempt_behind_a_secure_sum_pays_for_both_only_if_the_first_may_have_left(
    ledger: Ledger,
) -> None:
    sign = ClampedSign(input_domain=BALL, noise_multiplier=0.5, logit_bound=1.0)
    parts = tuple(ClientPlan(client=name, mechanism=sign, weight=1.0) for name in NAMES)
    channel = SecureSum(minimum_clients=3)
    plan = RoundPlan(
        unit=Unit.CLIENT,
        run="run",
        round=1,
        adjacency=Adjacency.ZERO_OUT,
        clients=parts,
        channel=channel,
    )
    hidden = terms_of(channel, Adjacency.ZERO_OUT)(sign)
    assert isinstance(hidden, events.SummedBits)
    for _ in range(2):  # a crash before anything was stored
        charge_round(plan, ledger, SystemRandomness(), uplinks=1)
    assert ledger.history("ada") == [(hidden, 1)]
    privatize(plan, requests(plan), ledger, SystemRandomness())
    ledger.discard_messages("run", before_round=2)
    charge_round(plan, ledger, SystemRandomness(), uplinks=1)
    (_, (second, count)) = ledger.history("ada")
    assert (basic_counts(second), count) == ({hidden.local(): 2}, 1)


def test_a_second_attempt_on_a_secret_sample_pays_for_both_as_if_it_were_known(
    ledger: Ledger,
) -> None:
    """Both messages may be of the same sample, and one coin for two hides less than two coins."""
    ball = dataclasses.replace(BALL, records=10)
    plan = a_plan(mechanism=dataclasses.replace(MECHANISM, input_domain=ball))
    plan = dataclasses.replace(plan, unit=Unit.SAMPLE, record_sampling_rate=0.1)
    first = plan.event(plan.clients[0])
    assert isinstance(first, Sampled)
    for _ in range(2):
        charge_round(plan, ledger, SystemRandomness(), uplinks=1)
        privatize(plan, requests(plan), ledger, SystemRandomness())
        ledger.discard_messages("run", before_round=2)
    ((once, one), (second, count)) = ledger.history("ada")
    assert (once, one) == (first, 1)
    assert (basic_counts(second), count) == ({first.event: 2}, 1)


def test_a_charge_of_one_unit_pays_nothing_for_another(
    ledger: Ledger, randomness: Randomness
) -> None:
    """Events do not know the unit: a client's and a sample's may be equal."""
    whole = a_plan()
    charge_round(whole, ledger, randomness, uplinks=1)
    ball = dataclasses.replace(BALL, records=1000)
    sample = a_plan(mechanism=dataclasses.replace(MECHANISM, input_domain=ball))
    sample = dataclasses.replace(sample, unit=Unit.SAMPLE)
    assert sample.event(sample.clients[0]) == whole.event(whole.clients[0])
    for attempt in (
        lambda: charge_round(sample, ledger, randomness, uplinks=1),
        lambda: privatise_one(sample, requests(sample)[0], ledger, randomness),
    ):
        with pytest.raises(AdjacencyMismatchError, match=r"per client.*per sample"):
            attempt()
    assert attempts(ledger) == [0]


def test_where_messages_are_hidden_an_attempt_under_another_plan_is_refused(
    ledger: Ledger, randomness: Randomness
) -> None:
    """What later attempts pay for earlier ones is reckoned from one event: it may not change."""
    sign = ClampedSign(input_domain=BALL, noise_multiplier=2.0, logit_bound=1.0)
    direct = a_plan(mechanism=sign)
    hidden = dataclasses.replace(direct, channel=SecureSum(minimum_clients=3))
    weak = dataclasses.replace(sign, noise_multiplier=50.0)
    other = dataclasses.replace(a_plan(mechanism=weak), channel=SecureSum(minimum_clients=3))
    privatize(hidden, requests(hidden), ledger, randomness)
    ledger.discard_messages("run", before_round=2)
    for plan in (direct, other):
        with pytest.raises(LedgerError, match="another plan"):
            privatize(plan, requests(plan, VALUES / 2.0), ledger, randomness)
    privatize(hidden, requests(hidden, VALUES / 2.0), ledger, randomness)
    assert attempts(ledger) == [0, 1]
    ledger.discard_messages("run", before_round=2)
    with pytest.raises(LedgerError, match="another plan"):
        privatize(other, requests(other), ledger, randomness)
    privatize(direct, requests(direct), ledger, randomness)  # all before it were paid as seen
    assert attempts(ledger) == [0, 1, 2]
