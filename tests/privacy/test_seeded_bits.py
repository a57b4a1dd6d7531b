"""Bits of seeds as an event: what accountants make of it, and what it rests on."""

import math
from typing import Any

import pytest
from cases import denser

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import LedgerError, ParameterError, UnsupportedEventError
from sottovoce.privacy.accounting import find_accountant, privacy_spent
from sottovoce.privacy.compositions import (
    assumptions,
    describe_assumptions,
    drop_zero_reference,
    reveal_messages,
)
from sottovoce.privacy.cubic import CubicAccountant
from sottovoce.privacy.event_json import from_json, to_json
from sottovoce.privacy.events import (
    ASSUMPTIONS,
    Composed,
    Conditional,
    FinitePair,
    GaussianNoise,
    OneBit,
    PrivacyEvent,
    PureDp,
    Repeated,
    Sampled,
    SeededBits,
    Shuffled,
    basic_counts,
)
from sottovoce.privacy.pure import pure_epsilon
from sottovoce.privacy.renyi import renyi_divergence

ZERO_OUT, REPLACE_ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
SENTENCE = ASSUMPTIONS["chacha20"]


def bits(*, adjacency: Adjacency = ZERO_OUT, **changes: Any) -> SeededBits:
    given = {
        "shift": 1.6,
        "dimension": 4096,
        "excess": 2e-4,
        "largest_loss": 4.0,
        "adjacency": adjacency,
        "against_zero": adjacency is ZERO_OUT,
    }
    return SeededBits(**{**given, **changes})


def assumed(event: PrivacyEvent) -> Conditional:
    return Conditional(event=event, assumption="chacha20")


SEEDED = assumed(bits())
EVENTS: dict[str, PrivacyEvent] = {
    "bits": bits(),
    "assumed": SEEDED,
    "replaced": assumed(bits(adjacency=REPLACE_ONE)),
    "pair": assumed(FinitePair(first=(0.7, 0.3), second=(0.4, 0.6), adjacency=ZERO_OUT)),
    "repeated": Repeated(event=SEEDED, count=5),
    "assumed repeatedly": assumed(Repeated(event=bits(), count=5)),
    "sampled": Sampled(event=SEEDED, rate=0.1, scheme="poisson", hidden_by="own-records"),
    "shuffled": Shuffled(event=assumed(PureDp(epsilon=1.0, adjacency=REPLACE_ONE)), clients=1000),
    "composed": Composed(
        events=(SEEDED, GaussianNoise(mu=0.3, adjacency=ZERO_OUT), Repeated(event=SEEDED, count=2))
    ),
    "beside a shuffled one": Composed(
        events=(
            assumed(bits(adjacency=REPLACE_ONE)),
            Shuffled(event=PureDp(epsilon=1.0, adjacency=REPLACE_ONE), clients=1000),
        )
    ),
    "shuffled epochs": Repeated(
        event=Shuffled(event=assumed(PureDp(epsilon=1.0, adjacency=REPLACE_ONE)), clients=1000),
        count=3,
    ),
}
of_every_event = pytest.mark.parametrize("event", EVENTS.values(), ids=[*EVENTS])


@of_every_event
def test_events_come_back_from_json(event: PrivacyEvent) -> None:
    assert from_json(to_json(event)) == event


def test_json_with_an_assumption_that_no_one_knows_is_refused() -> None:
    text = to_json(SEEDED).replace("chacha20", "magic")
    with pytest.raises((LedgerError, ParameterError)):
        from_json(text)


@of_every_event
def test_assumptions_outlive_all_that_is_done_to_an_event(event: PrivacyEvent) -> None:
    expected = () if event == bits() else ("chacha20",)
    assert assumptions(event) == expected
    assert assumptions(reveal_messages(event)) == expected
    assert assumptions(from_json(to_json(event))) == expected
    assert assumptions(Repeated(event=event, count=3)) == expected
    if not isinstance(event, Sampled | Shuffled):
        assert assumptions(drop_zero_reference(event)) == expected


@of_every_event
def test_what_is_spent_is_printed_with_what_it_rests_on(event: PrivacyEvent) -> None:
    spent = privacy_spent(event, 1e-6)
    assert math.isfinite(spent.epsilon)
    assert (SENTENCE in str(spent)) == (event != bits())
    assert str(spent).count("; if ") == len(describe_assumptions(event))


@pytest.mark.parametrize(
    "event", [bits(), bits(adjacency=REPLACE_ONE)], ids=["zero-out", "replace-one"]
)
def test_accountants_count_the_event_that_is_assumed(event: SeededBits) -> None:
    plain, wrapped = (privacy_spent(one, 1e-6) for one in (event, assumed(event)))
    assert plain.bounds == wrapped.bounds
    assert basic_counts(Repeated(event=assumed(event), count=3)) == {event: 3}
    assert "local" not in dict(privacy_spent(Repeated(event=assumed(event), count=2), 1e-6).bounds)


# -- the bounds ------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1.001, 1.5, 2.0, 10.0, 100.0, 1e6])
def test_renyi_is_that_of_the_bits_and_the_excess_or_of_the_largest_loss(order: float) -> None:
    event = bits()
    own = renyi_divergence(event.bits(), order) + event.excess * order / (order - 1.0)
    found = renyi_divergence(event, order)
    assert found <= own
    assert found <= event.largest_loss
    assert found in (
        own,
        pytest.approx(renyi_divergence(PureDp(epsilon=4.0, adjacency=ZERO_OUT), order)),
    )
    assert renyi_divergence(Repeated(event=event, count=7), order) == pytest.approx(7.0 * found)


@pytest.mark.parametrize("epsilon", denser([0.0, 0.5, 1.0, 3.0, 10.0]))
@pytest.mark.parametrize("excess", [1e-9, 1e-3, 0.5])
def test_cubic_pays_for_the_excess_in_both_places(epsilon: float, excess: float) -> None:
    cubic, event = CubicAccountant(), bits(excess=excess)
    plain = OneBit(shift=1.6, dimension=4096, adjacency=ZERO_OUT, against_zero=True)
    found = cubic.delta(Repeated(event=event, count=3), epsilon)
    total = 3.0 * excess
    assert found >= cubic.delta(Repeated(event=plain, count=3), epsilon)
    if epsilon > total:
        least = math.exp(total) * cubic.delta(Repeated(event=plain, count=3), epsilon - total)
        assert found == pytest.approx(min(1.0, least), rel=1e-6)


def test_cubic_at_an_excess_beyond_all_use() -> None:
    cubic = CubicAccountant()
    assert cubic.delta(bits(excess=200.0), 1.0) == 1.0
    assert cubic.delta(Repeated(event=bits(), count=2**53), 1.0) == 1.0
    with pytest.raises(UnsupportedEventError):
        cubic.delta(bits(adjacency=REPLACE_ONE), 1.0)


def test_no_accountant_claims_less_than_for_the_bits_alone() -> None:
    """Unless the largest loss says so."""
    event = bits(largest_loss=40.0)
    for name in ("renyi", "cubic"):
        accountant = find_accountant(name)
        assert accountant.epsilon(event, 1e-6) > accountant.epsilon(event.bits(), 1e-6)
    with pytest.raises(UnsupportedEventError, match="renyi"):
        find_accountant("zcdp").epsilon(event, 1e-6)


def test_next_to_others_both_sides_may_be_truncated() -> None:
    beside = drop_zero_reference(bits())
    assert isinstance(beside, SeededBits)
    assert not beside.against_zero
    assert pure_epsilon(beside) == pytest.approx(2.0 * pure_epsilon(bits()))
    assert drop_zero_reference(beside) == beside
    between = bits(adjacency=REPLACE_ONE)
    assert drop_zero_reference(between) == between
    assert drop_zero_reference(assumed(bits())) == assumed(beside)


@pytest.mark.parametrize(
    "changes",
    [{"excess": 0.0}, {"excess": math.nan}, {"largest_loss": -1.0}, {"shift": math.inf},
     {"dimension": 0}, {"adjacency": REPLACE_ONE, "against_zero": True}],
)  # fmt: skip
def test_an_event_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        bits(**changes)


@pytest.mark.parametrize(
    "given", [{"event": 3, "assumption": "chacha20"}, {"event": bits(), "assumption": "hope"}]
)
def test_an_assumption_that_is_none_is_refused(given: Any) -> None:
    with pytest.raises(ParameterError):
        Conditional(**given)
