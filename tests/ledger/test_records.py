"""A ledger and a tally are one kind of record: the same charges, the same answers."""

from collections.abc import Iterator

import pytest

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import LedgerError
from sottovoce.ledger.ledger import temporary_ledger
from sottovoce.ledger.records import Budget, Release, SpendingRecord
from sottovoce.ledger.tally import Tally
from sottovoce.privacy.events import GaussianNoise, PrivacyEvent, PureDp

EVENTS: dict[str, PrivacyEvent] = {
    "a": GaussianNoise(mu=0.5, adjacency=Adjacency.ZERO_OUT),
    "b": PureDp(epsilon=0.25, adjacency=Adjacency.ZERO_OUT),
    "c": PureDp(epsilon=0.25, adjacency=Adjacency.ZERO_OUT),
}
CHARGED = {1: "ab", 2: "a"}  # by round; of c nothing is asked
UPLINKS = 2
BUDGET = Budget(epsilon=5.0, delta=1e-5, adjacency=Adjacency.ZERO_OUT, unit=Unit.CLIENT)


@pytest.fixture
def records() -> Iterator[tuple[SpendingRecord, SpendingRecord]]:
    tally = Tally(list(EVENTS), list(EVENTS.values()), uplinks=UPLINKS)
    with temporary_ledger() as ledger:
        for record in (ledger, tally):
            record.set_budgets({"a": BUDGET})
        for number, clients in CHARGED.items():
            tally.charge(number, [list(EVENTS).index(client) for client in clients])
            for client in clients:
                for uplink in range(UPLINKS):
                    release = Release(
                        unit=Unit.CLIENT, run="run", client=client, round=number, uplink=uplink
                    )
                    ledger.charge(release, 0, EVENTS[client])
        yield ledger, tally


def test_a_ledger_and_a_tally_give_the_same_answers(
    records: tuple[SpendingRecord, SpendingRecord],
) -> None:
    ledger, tally = records
    assert ledger.num_charges == tally.num_charges == 6
    for client in EVENTS:
        assert ledger.history(client) == tally.history(client)
        assert ledger.spent(client, 1e-5) == tally.spent(client, 1e-5)
        counts = [record.rounds_charged("run").get(client, 0) for record in records]
        assert counts == [sum(client in asked for asked in CHARGED.values())] * 2
    assert ledger.largest_spent(1e-5) == tally.largest_spent(1e-5) == ledger.spent("a", 1e-5)
    for record in records:
        record.discard_messages("run", before_round=3)
        assert record.num_charges == 6


def test_a_tally_keeps_the_budgets_that_it_was_given() -> None:
    tally = Tally(list(EVENTS), list(EVENTS.values()), uplinks=UPLINKS)
    assert tally.clients_with_budget(1).tolist() == [True, True, True]
    small = Budget(epsilon=0.25, delta=1e-5, adjacency=Adjacency.ZERO_OUT, unit=Unit.CLIENT)
    tally.set_budgets({"b": small})
    assert tally.clients_with_budget(1).tolist() == [True, False, True]
    for other in ({"b": BUDGET}, {"a": BUDGET, "b": BUDGET}):
        with pytest.raises(LedgerError, match="cannot be replaced"):
            tally.set_budgets(other)
    assert tally.clients_with_budget(1).tolist() == [True, False, True]
