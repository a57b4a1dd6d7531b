"""The ledger: charges are kept, counted exactly, and missed when somebody takes one away.

Run as a script, this file is the other process of the tests that need one.
"""

import errno
import json
import os
import resource
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from ledger_files import contents

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import AdjacencyMismatchError, BudgetExhaustedError, LedgerError
from sottovoce.ledger import database
from sottovoce.ledger.database import SCHEMA_VERSION
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Budget, Charge, Release
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.calibration import calibrate
from sottovoce.privacy.events import (
    Composed,
    FinitePair,
    GaussianNoise,
    NonPrivate,
    PrivacyEvent,
    PureDp,
    RenyiCurve,
    Repeated,
    ZeroConcentrated,
)

ZERO_OUT, REPLACE_ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
DELTA = 1e-6
BUDGET = Budget(unit=Unit.CLIENT, epsilon=2.0, delta=DELTA, adjacency=ZERO_OUT)
EVENT = ZeroConcentrated(rho=0.01, adjacency=ZERO_OUT)
OTHER_EVENT = GaussianNoise(mu=0.3, adjacency=ZERO_OUT)


def a_release(
    round_number: int = 1, *, client: str = "ada", run: str = "run", uplink: int = 0
) -> Release:
    return Release(unit=Unit.CLIENT, run=run, client=client, round=round_number, uplink=uplink)


def pay(ledger: Ledger, release: Release, event: PrivacyEvent = EVENT, attempt: int = 0) -> Charge:
    return ledger.charge(release, attempt, event)


def by_hand(path: Path, *statements: str) -> None:
    """What somebody with sqlite3 and bad intentions could do."""
    database = sqlite3.connect(path)
    try:
        database.execute("DROP TRIGGER IF EXISTS no_message_is_forgotten")
        for statement in statements:
            database.execute(statement)
        database.commit()
    finally:
        database.close()


# -- charges -------------------------------------------------------------------------------


def test_a_charge_is_on_disk_when_the_call_returns(ledger: Ledger, path: Path) -> None:
    charge = ledger.charge(a_release(3, uplink=2), 1, EVENT)
    with Ledger(path) as other:
        assert other.latest(a_release(3, uplink=2)) == charge
        assert list(other.rows()) == [
            {
                "id": charge.id,
                "run": "run",
                "client": "ada",
                "round": 3,
                "uplink": 2,
                "attempt": 1,
                "unit": "client",
                "event": {"shape": "ZeroConcentrated", "rho": 0.01, "adjacency": "zero-out"},
                "message_stored": False,
            }
        ]


@pytest.mark.parametrize(
    "event",
    [
        NonPrivate(adjacency=ZERO_OUT),
        GaussianNoise(mu=0.1 + 0.2, adjacency=ZERO_OUT),  # a float that has no short decimal
        ZeroConcentrated(rho=1e-300, adjacency=REPLACE_ONE),
        PureDp(epsilon=0.7, adjacency=ZERO_OUT),
        FinitePair(first=(0.25, 0.75), second=(0.5, 0.5), adjacency=ZERO_OUT),
        RenyiCurve(orders=(2.0, 4.0), divergences=(0.1, 0.2), adjacency=ZERO_OUT),
        Composed(events=(EVENT, Repeated(event=OTHER_EVENT, count=3))),
    ],
)
def test_every_shape_of_event_comes_back_exactly(ledger: Ledger, event: PrivacyEvent) -> None:
    pay(ledger, a_release(), event)
    assert ledger.history("ada") == [(event, 1)]
    latest = ledger.latest(a_release())
    assert latest is not None
    assert latest.event == event
    assert ledger.verify() == []


def test_a_second_charge_for_the_same_attempt_is_refused(ledger: Ledger, path: Path) -> None:
    pay(ledger, a_release())
    before = contents(path)
    with pytest.raises(LedgerError, match="client 'ada', round 1, uplink 0, attempt 0 was charged"):
        pay(ledger, a_release())
    with pytest.raises(LedgerError, match="charged before"):
        pay(ledger, a_release(), OTHER_EVENT)  # another event is no way around it
    assert contents(path) == before


@pytest.mark.parametrize(
    "release",
    [
        a_release(2),
        a_release(uplink=1),
        a_release(client="bob"),
        a_release(run="another run"),
    ],
)
def test_every_part_of_the_key_makes_another_release(ledger: Ledger, release: Release) -> None:
    pay(ledger, a_release())
    pay(ledger, release)
    pay(ledger, release, attempt=1)
    assert len(list(ledger.rows())) == 3
    assert ledger.verify() == []


def test_the_latest_attempt_is_the_one_with_the_highest_number(ledger: Ledger) -> None:
    assert ledger.latest(a_release()) is None
    for attempt in (0, 2, 10, 1):
        pay(ledger, a_release(), attempt=attempt)
    latest = ledger.latest(a_release())
    assert latest is not None
    assert latest.attempt == 10


def test_rows_can_be_asked_for_one_client(ledger: Ledger) -> None:
    for client in ("ada", "bob", "ada"):
        pay(ledger, a_release(len(list(ledger.rows())), client=client))
    assert [row["round"] for row in ledger.rows("ada")] == [0, 2]
    assert [row["client"] for row in ledger.rows()] == ["ada", "bob", "ada"]
    assert list(ledger.rows("carl")) == []


@pytest.mark.parametrize("client", ["", "O'Hara; DROP TABLE charges", "Zoë ☃", 'a"b\\c\n'])
def test_a_client_may_have_any_name(ledger: Ledger, client: str) -> None:
    ledger.set_budget(client, BUDGET)
    pay(ledger, a_release(client=client))
    assert ledger.clients() == [client]
    assert ledger.history(client) == [(EVENT, 1)]
    assert ledger.verify() == []


# -- budgets -------------------------------------------------------------------------------


def calibrated(shape: str, rounds: int) -> PrivacyEvent:
    """The least private event of which `rounds` still fit into BUDGET."""
    shapes: dict[str, Callable[[float], PrivacyEvent]] = {
        "gaussian": lambda value: GaussianNoise(mu=value, adjacency=ZERO_OUT),
        "zcdp": lambda value: ZeroConcentrated(rho=value, adjacency=ZERO_OUT),
        "pure": lambda value: PureDp(epsilon=value, adjacency=ZERO_OUT),
    }
    make = shapes[shape]
    value = calibrate(
        lambda value: Repeated(event=make(value), count=rounds),
        epsilon=BUDGET.epsilon,
        delta=BUDGET.delta,
        more_private="smaller",
    )
    return make(value)


@pytest.mark.parametrize("shape", ["gaussian", "zcdp", "pure"])
@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_exactly_the_calibrated_number_of_charges_fits(
    ledger: Ledger, path: Path, shape: str, rounds: int
) -> None:
    ledger.set_budget("ada", BUDGET)
    event = calibrated(shape, rounds)
    for round_number in range(rounds):
        pay(ledger, a_release(round_number), event)
    spent = ledger.spent("ada", DELTA)
    assert spent is not None
    assert 0.999 * BUDGET.epsilon < spent.epsilon <= BUDGET.epsilon
    before = contents(path)
    with pytest.raises(
        BudgetExhaustedError, match="above the budget of 2; nothing is charged or sent"
    ):
        pay(ledger, a_release(rounds), event)
    assert contents(path) == before
    assert ledger.verify() == []


def test_a_budget_is_met_when_it_is_spent_to_the_last_digit(ledger: Ledger) -> None:
    exact = privacy_spent(Repeated(event=EVENT, count=3), DELTA).epsilon
    ledger.set_budget(
        "ada", Budget(unit=Unit.CLIENT, epsilon=exact, delta=DELTA, adjacency=ZERO_OUT)
    )
    for round_number in range(3):
        pay(ledger, a_release(round_number))
    with pytest.raises(BudgetExhaustedError):
        pay(ledger, a_release(3))
    assert ledger.verify() == []


def test_charges_of_other_runs_uplinks_and_attempts_all_count(ledger: Ledger) -> None:
    ledger.set_budget("ada", BUDGET)
    event = calibrated("zcdp", 4)
    pay(ledger, a_release(1, run="one"), event)
    pay(ledger, a_release(1, run="two"), event)
    pay(ledger, a_release(1, run="two"), event, attempt=1)
    pay(ledger, a_release(1, run="two", uplink=1), event)
    with pytest.raises(BudgetExhaustedError):
        pay(ledger, a_release(1, run="three"), event)


def test_different_events_count_together(ledger: Ledger) -> None:
    both = privacy_spent(Composed(events=(EVENT, OTHER_EVENT)), DELTA).epsilon
    ledger.set_budget(
        "ada", Budget(unit=Unit.CLIENT, epsilon=0.999 * both, delta=DELTA, adjacency=ZERO_OUT)
    )
    pay(ledger, a_release(1), OTHER_EVENT)
    with pytest.raises(BudgetExhaustedError):
        pay(ledger, a_release(2), EVENT)
    assert ledger.history("ada") == [(OTHER_EVENT, 1)]


def test_one_client_out_of_budget_does_not_stop_another(ledger: Ledger) -> None:
    event = calibrated("zcdp", 1)
    for client in ("ada", "bob"):
        ledger.set_budget(client, BUDGET)
    pay(ledger, a_release(client="ada"), event)
    pay(ledger, a_release(client="bob"), event)
    with pytest.raises(BudgetExhaustedError):
        pay(ledger, a_release(2, client="ada"), event)


def test_a_client_without_a_budget_is_charged_without_a_limit(ledger: Ledger) -> None:
    pay(ledger, a_release(1), NonPrivate(adjacency=ZERO_OUT))
    pay(ledger, a_release(2), NonPrivate(adjacency=ZERO_OUT))
    assert ledger.budget("ada") is None
    assert ledger.history("ada") == [(NonPrivate(adjacency=ZERO_OUT), 2)]


def test_an_event_without_a_guarantee_fits_into_no_budget(ledger: Ledger) -> None:
    ledger.set_budget(
        "ada", Budget(unit=Unit.CLIENT, epsilon=1000.0, delta=0.5, adjacency=ZERO_OUT)
    )
    with pytest.raises(BudgetExhaustedError):
        pay(ledger, a_release(), NonPrivate(adjacency=ZERO_OUT))
    assert list(ledger.rows()) == []


def test_an_event_of_another_adjacency_than_the_budget_is_refused(
    ledger: Ledger, path: Path
) -> None:
    ledger.set_budget("ada", BUDGET)
    before = contents(path)
    with pytest.raises(AdjacencyMismatchError, match=r"replace-one.*zero-out"):
        pay(ledger, a_release(), ZeroConcentrated(rho=1e-9, adjacency=REPLACE_ONE))
    assert contents(path) == before


def test_a_budget_of_another_adjacency_than_the_history_is_refused(ledger: Ledger) -> None:
    pay(ledger, a_release(1), ZeroConcentrated(rho=1e-9, adjacency=REPLACE_ONE))
    with pytest.raises(AdjacencyMismatchError):
        ledger.set_budget("ada", BUDGET)
    assert ledger.budget("ada") is None


def test_a_budget_comes_back_exactly(ledger: Ledger) -> None:
    budget = Budget(unit=Unit.CLIENT, epsilon=0.1 + 0.2, delta=1e-300, adjacency=REPLACE_ONE)
    ledger.set_budget("ada", budget)
    ledger.set_budget("ada", budget)  # the same again changes nothing
    assert ledger.budget("ada") == budget
    assert ledger.clients() == ["ada"]


@pytest.mark.parametrize(
    "other",
    [
        replace(BUDGET, epsilon=2.5),
        replace(BUDGET, epsilon=1.5),
        replace(BUDGET, delta=1e-5),
        replace(BUDGET, adjacency=REPLACE_ONE),
    ],
)
def test_a_budget_cannot_be_changed_once_it_is_given(
    ledger: Ledger, path: Path, other: Budget
) -> None:
    ledger.set_budget("ada", BUDGET)
    before = contents(path)
    with pytest.raises(LedgerError, match="client 'ada' already has the budget"):
        ledger.set_budget("ada", other)
    assert contents(path) == before


# -- transactions --------------------------------------------------------------------------


def test_a_transaction_commits_its_charges_together(ledger: Ledger, path: Path) -> None:
    before = contents(path)
    with ledger.transaction():
        pay(ledger, a_release(1))
        pay(ledger, a_release(2))
        assert contents(path) == before  # nobody else sees half a cohort
    assert len(list(ledger.rows())) == 2
    assert contents(path) != before
    assert ledger.verify() == []


@pytest.mark.parametrize("error", [RuntimeError, LedgerError, KeyboardInterrupt])
def test_a_transaction_that_fails_leaves_nothing(
    ledger: Ledger, path: Path, error: type[BaseException]
) -> None:
    pay(ledger, a_release(1))
    before = contents(path)

    def fail_half_way() -> None:
        with ledger.transaction():
            pay(ledger, a_release(2))
            ledger.set_budget("bob", BUDGET)
            raise error

    with pytest.raises(error):
        fail_half_way()
    assert contents(path) == before
    # And the chain goes on from the row that is there, not from the one that was rolled back.
    pay(ledger, a_release(3))
    assert ledger.verify() == []


def test_a_refused_client_inside_a_transaction_does_not_cost_the_others(ledger: Ledger) -> None:
    event = calibrated("zcdp", 1)
    ledger.set_budget("bob", BUDGET)
    pay(ledger, a_release(0, client="bob"), event)
    with ledger.transaction():
        pay(ledger, a_release(1, client="ada"), event)
        with pytest.raises(BudgetExhaustedError):
            pay(ledger, a_release(1, client="bob"), event)
        pay(ledger, a_release(1, client="carl"), event)
    assert [(row["client"], row["round"]) for row in ledger.rows()] == [
        ("bob", 0),
        ("ada", 1),
        ("carl", 1),
    ]
    assert ledger.verify() == []


def test_a_duplicate_inside_a_transaction_does_not_cost_the_others(ledger: Ledger) -> None:
    with ledger.transaction():
        pay(ledger, a_release(1))
        with pytest.raises(LedgerError, match="charged before"):
            pay(ledger, a_release(1))
        pay(ledger, a_release(2))
    assert [row["round"] for row in ledger.rows()] == [1, 2]
    assert ledger.verify() == []


def test_charges_made_earlier_in_a_transaction_count_against_the_budget(ledger: Ledger) -> None:
    ledger.set_budget("ada", BUDGET)
    event = calibrated("zcdp", 2)
    with ledger.transaction():
        pay(ledger, a_release(1), event)
        pay(ledger, a_release(2), event)
        with pytest.raises(BudgetExhaustedError):
            pay(ledger, a_release(3), event)
    assert ledger.history("ada") == [(event, 2)]


def test_a_transaction_inside_a_transaction_is_refused(ledger: Ledger, path: Path) -> None:
    # Else a charge would seem durable while an outer rollback can still undo it.
    def nest() -> None:
        with ledger.transaction():
            pay(ledger, a_release(1))
            with ledger.transaction():
                pay(ledger, a_release(2))

    before = contents(path)
    with pytest.raises(LedgerError):
        nest()
    assert contents(path) == before
    pay(ledger, a_release(3))
    assert ledger.verify() == []


# -- messages ------------------------------------------------------------------------------


def test_a_stored_message_comes_back_with_its_charge(ledger: Ledger, path: Path) -> None:
    message = bytes(range(256))
    ledger.store_message(pay(ledger, a_release()), message)
    with Ledger(path) as other:
        latest = other.latest(a_release())
        assert latest is not None
        assert latest.message == message
        assert [row["message_stored"] for row in other.rows()] == [True]


def test_a_message_cannot_be_replaced(ledger: Ledger) -> None:
    charge = pay(ledger, a_release())
    ledger.store_message(charge, b"first")
    with pytest.raises(LedgerError):
        ledger.store_message(charge, b"second")
    latest = ledger.latest(a_release())
    assert latest is not None
    assert latest.message == b"first"


def test_a_message_without_a_charge_cannot_be_stored(ledger: Ledger, path: Path) -> None:
    before = contents(path)
    charge = Charge(id=77, release=a_release(), attempt=0, event=EVENT)
    with pytest.raises(LedgerError):
        ledger.store_message(charge, b"never paid for")
    assert contents(path) == before


def test_discarding_messages_keeps_every_charge(ledger: Ledger) -> None:
    for run in ("run", "other run"):
        for round_number in (1, 2, 3):
            charge = pay(ledger, a_release(round_number, run=run))
            ledger.store_message(charge, b"message")
    spent = ledger.spent("ada", DELTA)
    ledger.discard_messages("run", before_round=3)
    stored = {(row["run"], row["round"]) for row in ledger.rows() if row["message_stored"]}
    assert stored == {("run", 3), ("other run", 1), ("other run", 2), ("other run", 3)}
    assert ledger.history("ada") == [(EVENT, 6)]
    assert ledger.spent("ada", DELTA) == spent
    latest = ledger.latest(a_release(1))
    assert latest is not None
    assert latest.message is None
    assert ledger.verify() == []


# -- what was spent ------------------------------------------------------------------------


def test_nothing_spent_is_none(ledger: Ledger) -> None:
    ledger.set_budget("ada", BUDGET)
    assert ledger.spent("ada", DELTA) is None
    assert ledger.spent("nobody", DELTA) is None
    assert ledger.largest_spent(DELTA) is None
    assert ledger.history("ada") == []


@pytest.mark.parametrize("delta", [1e-9, 1e-6, 0.1])
def test_what_was_spent_is_what_the_accountants_say(ledger: Ledger, delta: float) -> None:
    for round_number in range(5):
        pay(ledger, a_release(round_number))
    pay(ledger, a_release(9), OTHER_EVENT)
    expected = privacy_spent(
        Composed(events=(Repeated(event=EVENT, count=5), Repeated(event=OTHER_EVENT, count=1))),
        delta,
    )
    assert ledger.history("ada") == [(EVENT, 5), (OTHER_EVENT, 1)]
    assert ledger.spent("ada", delta) == expected
    assert ledger.largest_spent(delta) == expected


def test_the_largest_spent_is_that_of_the_client_who_spent_most(ledger: Ledger) -> None:
    for client, rounds in {"ada": 2, "bob": 5, "carl": 1, "dora": 5}.items():
        for round_number in range(rounds):
            pay(ledger, a_release(round_number, client=client))
    assert ledger.largest_spent(DELTA) == ledger.spent("bob", DELTA)
    assert ledger.largest_spent(DELTA) == privacy_spent(Repeated(event=EVENT, count=5), DELTA)


def test_what_was_spent_through_a_round_leaves_out_later_rounds_of_that_run_only(
    ledger: Ledger,
) -> None:
    for run in ("one", "two"):
        for round_number in (1, 2, 3, 4):
            pay(ledger, a_release(round_number, run=run))
    for through_round in (1, 2, 3, 4):
        assert ledger.largest_spent(DELTA, through=("one", through_round)) == privacy_spent(
            Repeated(event=EVENT, count=through_round + 4), DELTA
        )


def test_histories_of_several_runs_add_up(ledger: Ledger) -> None:
    for run, rounds in {"one": 2, "two": 3, "three": 4}.items():
        for round_number in range(rounds):
            pay(ledger, a_release(round_number, run=run))
    assert ledger.history("ada") == [(EVENT, 9)]
    assert ledger.spent("ada", DELTA) == privacy_spent(Repeated(event=EVENT, count=9), DELTA)


def test_reopening_keeps_everything(path: Path) -> None:
    with Ledger(path, create=True) as ledger:
        ledger.set_budget("ada", BUDGET)
        ledger.store_message(pay(ledger, a_release(1)), b"message")
        pay(ledger, a_release(2), OTHER_EVENT)
        before = list(ledger.rows()), ledger.history("ada"), ledger.latest(a_release(1))
    stored = contents(path)
    for create in (False, True):
        with Ledger(path, create=create) as ledger:
            assert ledger.budget("ada") == BUDGET
            after = list(ledger.rows()), ledger.history("ada"), ledger.latest(a_release(1))
            assert after == before
            assert ledger.verify() == []
        assert contents(path) == stored
    with Ledger(path) as ledger:  # and the chain goes on
        pay(ledger, a_release(3))
        assert ledger.verify() == []


# -- tampering -----------------------------------------------------------------------------


@pytest.fixture
def tampered(path: Path) -> Callable[..., list[str]]:
    """Five charges, then whatever is done by hand, then what `verify` says."""
    with Ledger(path, create=True) as ledger:
        ledger.set_budget("ada", BUDGET)
        for round_number in range(1, 5):
            charge = ledger.charge(a_release(round_number), 0, EVENT)
            ledger.store_message(charge, b"message", bytes(16))
        pay(ledger, a_release(5), OTHER_EVENT)
        assert ledger.verify() == []

    def verify_after(*statements: str) -> list[str]:
        by_hand(path, *statements)
        with Ledger(path) as reopened:
            return reopened.verify()

    return verify_after


@pytest.mark.parametrize(
    "change",
    [
        "run = 'elsewhere'",
        "client = 'bob'",
        "round = 9",
        "uplink = 1",
        "attempt = 1",
        "event = 2",
        "unit = 'sample'",
        "commitment = zeroblob(15)",
        "chain = zeroblob(16)",
    ],
)
@pytest.mark.parametrize("row", [1, 3, 4])
def test_an_edited_charge_is_noticed(
    tampered: Callable[..., list[str]], change: str, row: int
) -> None:
    problems = tampered(f"UPDATE charges SET {change} WHERE id = {row}")
    assert any(f"charge {row} " in problem for problem in problems)


def test_an_edited_last_charge_is_noticed(tampered: Callable[..., list[str]]) -> None:
    problems = tampered("UPDATE charges SET client = 'bob' WHERE id = 5")
    assert any("charge 5 " in problem for problem in problems)


@pytest.mark.parametrize("rows", ["1", "3", "4", "1, 2, 3", "2, 4"])
def test_a_deleted_charge_is_noticed(tampered: Callable[..., list[str]], rows: str) -> None:
    assert tampered(f"DELETE FROM charges WHERE id IN ({rows})")


def test_reordered_charges_are_noticed(tampered: Callable[..., list[str]]) -> None:
    problems = tampered(
        "UPDATE charges SET id = 100 WHERE id = 2",
        "UPDATE charges SET id = 2 WHERE id = 3",
        "UPDATE charges SET id = 3 WHERE id = 100",
    )
    assert any("charge 2 " in problem for problem in problems)
    assert any("charge 3 " in problem for problem in problems)


COPIED_CHARGE = (
    "INSERT INTO charges SELECT 6, run, client, 77, uplink, attempt, unit, event, commitment, "
    "chain FROM charges WHERE id = 5"
)


def test_a_charge_copied_in_from_elsewhere_is_noticed(
    tampered: Callable[..., list[str]],
) -> None:
    assert tampered(COPIED_CHARGE)


def test_a_weakened_event_is_noticed_in_every_charge_that_uses_it(
    tampered: Callable[..., list[str]],
) -> None:
    problems = tampered(
        "UPDATE events SET json = replace(json, '0.01', '0.0001') WHERE id = 1",
    )
    for row in range(1, 5):
        assert any(f"charge {row} " in problem for problem in problems)


def test_a_removed_event_is_noticed(tampered: Callable[..., list[str]]) -> None:
    assert tampered("DELETE FROM events WHERE id = 2")


def test_a_client_beyond_its_budget_is_named(tampered: Callable[..., list[str]]) -> None:
    problems = tampered("UPDATE budgets SET epsilon = 0.5 WHERE client = 'ada'")
    (named,) = (problem for problem in problems if "client 'ada' has spent epsilon" in problem)
    assert "more than its budget 0.5" in named


def test_a_discarded_message_is_no_damage(tampered: Callable[..., list[str]]) -> None:
    assert tampered("UPDATE messages SET message = NULL") == []


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM messages",  # as if nothing had ever left
        "DELETE FROM messages WHERE id = 4",
        "DELETE FROM messages WHERE id = 2",
        "UPDATE messages SET charge = 5 WHERE id = 1",
        "UPDATE messages SET commitment = zeroblob(15) WHERE id = 2",
        "UPDATE messages SET commitment = NULL WHERE id = 2",
        "UPDATE messages SET digest = zeroblob(16) WHERE id = 3",
        "UPDATE messages SET message = zeroblob(3) WHERE id = 3",
    ],
)
def test_a_message_that_was_tampered_with_is_noticed(
    tampered: Callable[..., list[str]], statement: str
) -> None:
    assert any("message" in problem for problem in tampered(statement))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE spending SET count = 1",
        "DELETE FROM spending WHERE event = 2",
        "INSERT INTO spending VALUES ('bob', 1, 'client', 1)",
    ],
)
def test_a_count_that_is_not_that_of_the_charges_is_noticed(
    tampered: Callable[..., list[str]], statement: str
) -> None:
    assert any("spending that is counted differs" in problem for problem in tampered(statement))


def test_a_charge_entered_by_hand_counts_and_is_noticed(
    tampered: Callable[..., list[str]], path: Path
) -> None:
    assert tampered(COPIED_CHARGE)
    with Ledger(path, create=True) as ledger:
        assert ledger.history("ada") == [(EVENT, 4), (OTHER_EVENT, 2)]


# -- files that are no ledger --------------------------------------------------------------


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    text = b"not a database, but long enough to be looked at as one\n" * 100
    path.write_bytes(text)
    with pytest.raises(LedgerError, match="cannot open the ledger"):
        Ledger(path, create=True)
    assert path.read_bytes() == text


def test_a_database_of_something_else_is_refused(path: Path) -> None:
    by_hand(path, "CREATE TABLE recipes (name TEXT)")
    before = contents(path)
    for create in (False, True):
        with pytest.raises(LedgerError, match="is not a Sottovoce ledger"):
            Ledger(path, create=create)
    assert contents(path) == before


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1])
def test_another_schema_version_is_refused_by_number(path: Path, version: int) -> None:
    Ledger(path, create=True).close()
    by_hand(path, f"UPDATE meta SET schema_version = {version}")
    with pytest.raises(
        LedgerError, match=f"ledger version {version}.*reads versions 1 to {SCHEMA_VERSION}"
    ):
        Ledger(path)


def test_a_missing_ledger_is_not_created_unless_it_is_asked_for(path: Path) -> None:
    with pytest.raises(LedgerError, match=r"no ledger at .*Ledger\(path, create=True\)"):
        Ledger(path)
    assert not path.exists()


def test_a_closed_ledger_is_to_be_opened_again_and_not_restored(path: Path) -> None:
    ledger = Ledger(path, create=True)
    ledger.close()
    with pytest.raises(LedgerError, match="this program closed it before; open it again"):
        ledger.clients()


@pytest.mark.parametrize("create", [False, True])
def test_an_empty_file_or_a_link_to_nothing_is_no_ledger(path: Path, create: bool) -> None:
    path.touch()
    with pytest.raises(LedgerError, match="is empty; restore it from a backup"):
        Ledger(path, create=create)
    assert path.read_bytes() == b""
    path.unlink()
    path.symlink_to(path.with_name("elsewhere"))
    with pytest.raises(LedgerError, match="is a link to a missing file; restore it"):
        Ledger(path, create=create)
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_no_ledger_is_created_over_the_log_of_one_that_is_gone(path: Path) -> None:
    """SQLite would replay a log that is left over into the new file."""
    log = path.with_name(f"{path.name}-wal")
    log.write_bytes(b"charges")
    with pytest.raises(LedgerError, match=r"is missing, but its log .* exists"):
        Ledger(path, create=True)
    assert not path.exists()
    assert log.read_bytes() == b"charges"


def test_a_ledger_is_created_where_there_are_no_hard_links(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with Ledger(path, create=True) as ledger:
        pay(ledger, a_release(1))
    with Ledger(path, create=True) as ledger:
        assert ledger.num_charges == 1
        assert ledger.verify() == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("create", [False, True])
def test_a_folder_in_place_of_the_file_is_a_ledger_error(path: Path, create: bool) -> None:
    path.mkdir()
    with pytest.raises(LedgerError):
        Ledger(path, create=create)


def test_after_a_checkpoint_the_file_alone_has_every_charge(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with Ledger(path, create=True) as ledger:
        for number in range(3):
            pay(ledger, a_release(number))
        ledger.checkpoint()
        copy.write_bytes(path.read_bytes())  # while the log is in use
        with Ledger(copy) as other:
            assert other.position() == ledger.position()
            assert other.verify() == []


def test_a_checkpoint_that_a_reader_holds_up_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.05)
    with Ledger(path, create=True) as ledger, Ledger(path) as reader:
        pay(ledger, a_release(1))
        with reader.snapshot():
            assert reader.num_charges == 1
            pay(ledger, a_release(2))
            with pytest.raises(LedgerError, match="another process has kept it locked"):
                ledger.checkpoint()
        ledger.checkpoint()


def test_a_folder_that_does_not_exist_is_a_ledger_error(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot create the ledger"):
        Ledger(tmp_path / "nowhere" / "ledger.db", create=True)


def test_a_ledger_whose_log_cannot_be_written_is_a_ledger_error(path: Path) -> None:
    # A folder in the write-ahead log's place keeps even root from writing.
    with Ledger(path, create=True) as ledger:
        pay(ledger, a_release(1))
    log = Path(f"{path}-wal")
    log.mkdir()

    def charge_without_a_log() -> None:
        with Ledger(path) as ledger:
            pay(ledger, a_release(2))

    with pytest.raises(LedgerError, match="check the disk's free space"):
        charge_without_a_log()
    log.rmdir()
    with Ledger(path) as ledger:
        assert [row["round"] for row in ledger.rows()] == [1]
        assert ledger.verify() == []


# -- other processes -----------------------------------------------------------------------


def start(*arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-W", "error", __file__, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(*processes: "subprocess.Popen[str]") -> list[dict[str, int]]:
    """Let all of them go at the same moment, and collect their reports."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [json.loads(output) for output in outputs]


@pytest.mark.parametrize("cohort", [1, 40])
def test_a_full_disk_is_a_ledger_error_and_leaves_nothing_half_written(
    path: Path, cohort: int
) -> None:
    (report,) = finish(start("fill-the-disk", path, cohort))
    assert report["cohorts_refused"] == 1
    with Ledger(path) as ledger:
        assert ledger.verify() == []
        rounds = [row["round"] for row in ledger.rows()]
        assert len(rounds) == report["charges_made"]
        # Whole cohorts only; the last one was written when there was room again.
        assert rounds == [*range(len(rounds) - cohort), *range(10_000, 10_000 + cohort)]
        assert ledger.history("ada") == [(EVENT, len(rounds))]


def test_two_processes_can_charge_at_once(path: Path) -> None:
    Ledger(path, create=True).close()
    writers = [start("charge", path, client, 40) for client in ("ada", "bob")]
    assert [report["charges_made"] for report in finish(*writers)] == [40, 40]
    with Ledger(path) as ledger:
        assert ledger.verify() == []
        assert ledger.history("ada") == ledger.history("bob") == [(EVENT, 40)]


def test_two_processes_cannot_spend_one_budget_twice(path: Path) -> None:
    fitting = 30
    exact = privacy_spent(Repeated(event=EVENT, count=fitting), DELTA).epsilon
    with Ledger(path, create=True) as ledger:
        ledger.set_budget(
            "ada", Budget(unit=Unit.CLIENT, epsilon=exact, delta=DELTA, adjacency=ZERO_OUT)
        )
    writers = [start("charge", path, "ada", 25, run) for run in ("one", "two")]
    assert sum(report["charges_made"] for report in finish(*writers)) == fitting
    with Ledger(path) as ledger:
        assert ledger.verify() == []
        assert ledger.history("ada") == [(EVENT, fitting)]


def _wait_for_go() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def _charge(path: str, client: str, count: str, run: str = "run") -> dict[str, int]:
    made = 0
    with Ledger(path, create=True) as ledger:
        _wait_for_go()
        for round_number in range(int(count)):
            try:
                pay(ledger, a_release(round_number, client=client, run=run))
            except BudgetExhaustedError:
                break
            made += 1
    return {"charges_made": made}


def _fill_the_disk(path: str, cohort: str) -> dict[str, int]:
    size = int(cohort)

    def charge_cohort(ledger: Ledger, first_round: int) -> None:
        with ledger.transaction():
            for round_number in range(first_round, first_round + size):
                pay(ledger, a_release(round_number))

    made, refused = 0, 0
    with Ledger(path, create=True) as ledger:
        _wait_for_go()
        charge_cohort(ledger, made)
        made += size
        # No file may grow beyond this: the log reaches it after a few commits.
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
        while not refused:
            try:
                charge_cohort(ledger, made)
                made += size
            except LedgerError:
                refused += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        charge_cohort(ledger, 10_000)  # the same ledger goes on once there is room
        made += size
    return {"charges_made": made, "cohorts_refused": refused}


if __name__ == "__main__":
    _tasks: dict[str, Callable[..., dict[str, int]]] = {
        "charge": _charge,
        "fill-the-disk": _fill_the_disk,
    }
    print(json.dumps(_tasks[sys.argv[1]](*sys.argv[2:])))


def test_an_earlier_version_s_way_to_discard_is_stopped(path: Path) -> None:
    """A process that had the file open before it was migrated would make sent charges look new."""
    with Ledger(path, create=True) as ledger:
        ledger.store_message(ledger.charge(a_release(1), 0, EVENT), b"message", bytes(16))
    database = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="discarded, not deleted"):
        database.execute("DELETE FROM messages")
    database.close()
    with Ledger(path) as ledger:
        ledger.discard_messages("run", before_round=9)  # the way of this version
        assert ledger.verify() == []


@pytest.mark.skipif(sys.platform == "win32", reason="no such permissions")
def test_a_new_ledger_is_its_owners_alone(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite", create=True):
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}
