"""Many charges at once: what one by one would give, only in one commit.

Run as a script, this file is the other process of the test that needs one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_files import contents

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import AdjacencyMismatchError, BudgetExhaustedError, LedgerError
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Budget, Charge, PendingCharge, Release
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.events import GaussianNoise, PrivacyEvent, PureDp, Repeated

ZERO_OUT, REPLACE_ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
DELTA = 1e-6
EVENT = GaussianNoise(mu=0.2, adjacency=ZERO_OUT)
LOUDER = GaussianNoise(mu=0.5, adjacency=ZERO_OUT)
PURE = PureDp(epsilon=0.3, adjacency=ZERO_OUT)
NAMES = ("ada", "bob", "carl")


def a_due(
    client: str = "ada",
    round_number: int = 1,
    *,
    event: PrivacyEvent = EVENT,
    run: str = "run",
    uplink: int = 0,
    attempt: int = 0,
    unit: Unit = Unit.CLIENT,
) -> PendingCharge:
    release = Release(unit=unit, run=run, client=client, round=round_number, uplink=uplink)
    return PendingCharge(release=release, attempt=attempt, event=event)


def room_for(count: int, event: PrivacyEvent = EVENT) -> Budget:
    epsilon = privacy_spent(Repeated(event=event, count=count), DELTA).epsilon
    return Budget(unit=Unit.CLIENT, epsilon=epsilon, delta=DELTA, adjacency=ZERO_OUT)


def one_by_one(ledger: Ledger, dues: list[PendingCharge]) -> list[str]:
    """What each charge comes to, made by itself."""
    found = []
    for due in dues:
        try:
            found.append(str(ledger.charge(due.release, due.attempt, due.event)))
        except BudgetExhaustedError as error:
            found.append(str(error))
    return found


@settings(deadline=None, max_examples=40)
@given(
    batches=st.lists(
        st.lists(
            st.tuples(st.sampled_from(NAMES), st.sampled_from([EVENT, LOUDER, PURE])), max_size=6
        ),
        max_size=4,
    )
)
def test_a_batch_is_what_its_charges_are_one_by_one(
    batches: list[list[tuple[str, PrivacyEvent]]],
) -> None:
    with TemporaryDirectory() as folder:
        paths = Path(folder) / "together.db", Path(folder) / "apart.db"
        with Ledger(paths[0], create=True) as together, Ledger(paths[1], create=True) as apart:
            for ledger in (together, apart):
                ledger.set_budget("ada", room_for(3))
                ledger.set_budget("bob", room_for(2, LOUDER))
            for number, batch in enumerate(batches):
                dues = [
                    a_due(client, number, event=event, uplink=uplink)
                    for uplink, (client, event) in enumerate(batch)
                ]
                outcomes = [str(outcome) for outcome in together.charge_all(dues)]
                assert outcomes == one_by_one(apart, dues)
            assert together.verify() == apart.verify() == []
            # Rows and ids alike; a commit has a random number of its own.
            assert list(together.rows()) == list(apart.rows())
            assert together.histories() == apart.histories()


def test_who_is_out_of_budget_stops_no_one_else(path: Path) -> None:
    with Ledger(path, create=True) as ledger:
        ledger.set_budget("bob", room_for(1))
        ledger.charge_all([a_due(name) for name in NAMES])
        outcomes = ledger.charge_all([a_due(name, 2) for name in NAMES])
        assert [type(outcome) for outcome in outcomes] == [Charge, BudgetExhaustedError, Charge]
        assert "client 'bob', round 2" in str(outcomes[1])
        assert [(row["client"], row["round"]) for row in ledger.rows()] == [
            *((name, 1) for name in NAMES),
            ("ada", 2),
            ("carl", 2),
        ]
        assert ledger.verify() == []


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (a_due("bob", 1), LedgerError, "client 'bob', round 1, uplink 0, attempt 0 was charged"),
        (a_due("ada", 2), LedgerError, "client 'ada', round 2, uplink 0, attempt 0 was charged"),
        (a_due("bob", 2, unit=Unit.SAMPLE), AdjacencyMismatchError, "per client in this ledger"),
        (
            a_due("bob", 2, event=PureDp(epsilon=0.1, adjacency=REPLACE_ONE)),
            AdjacencyMismatchError,
            r"replace-one.*zero-out",
        ),
    ],
    ids=["charged", "twice in the call", "unit", "adjacency"],
)
def test_a_charge_that_makes_no_sense_enters_nothing_for_anyone(
    path: Path, bad: PendingCharge, error: type[Exception], message: str
) -> None:
    with Ledger(path, create=True) as ledger:
        ledger.charge_all([a_due(name) for name in NAMES])
        before = contents(path)
        with pytest.raises(error, match=message):
            ledger.charge_all([a_due("ada", 2), bad, a_due("carl", 2)])
        assert contents(path) == before


@pytest.mark.parametrize("name", ["", "a\0b", "a", "ümlaut ☃", "q\"uo'te", "\ud7ff"])
def test_every_name_keeps_its_own_account(path: Path, name: str) -> None:
    with Ledger(path, create=True) as ledger:
        ledger.set_budget(name, room_for(1))
        ledger.charge_all([a_due(name)])
        (outcome,) = ledger.charge_all([a_due(name, 2)])
        assert isinstance(outcome, BudgetExhaustedError)
        assert ledger.clients_with_budget([a_due(name, 2), a_due("other", 2)]) == {"other"}
        assert ledger.latest(a_due(name).release) is not None


def test_a_cohort_larger_than_one_query_is_charged_to_the_last(path: Path) -> None:
    names = [f"client-{number:04d}" for number in range(2300)]
    with Ledger(path, create=True) as ledger:
        with ledger.transaction():
            for name in names[::2]:
                ledger.set_budget(name, room_for(1))
        assert all(isinstance(o, Charge) for o in ledger.charge_all([a_due(n) for n in names]))
        outcomes = ledger.charge_all([a_due(name, 2) for name in names])
        assert [isinstance(outcome, Charge) for outcome in outcomes] == [False, True] * 1150
        assert len(ledger.latest_of([a_due(name).release for name in names])) == 2300
        assert ledger.num_charges == 2300 + 1150
        assert ledger.verify() == []


def test_what_a_client_affords_counts_all_of_its_uplinks_and_changes_nothing(path: Path) -> None:
    with Ledger(path, create=True) as ledger:
        ledger.set_budget("ada", room_for(2))
        ledger.set_budget("bob", room_for(3))
        ledger.charge_all([a_due(name) for name in NAMES])
        before = contents(path)
        two = [a_due(name, 2, uplink=uplink) for name in NAMES for uplink in (0, 1)]
        assert ledger.clients_with_budget(two) == {"bob", "carl"}
        assert ledger.clients_with_budget(two[::2]) == set(NAMES)
        assert ledger.clients_with_budget([]) == frozenset()
        assert contents(path) == before


def test_what_a_client_afforded_before_a_round_does_not_depend_on_what_came_after(
    path: Path,
) -> None:
    with Ledger(path, create=True) as ledger:
        ledger.set_budget("ada", room_for(3))
        for number in (1, 2, 3):
            ledger.charge_all([a_due("ada", number)])
        for number in (1, 2, 3):
            assert ledger.clients_with_budget([a_due("ada", number)], before=("run", number)) == {
                "ada"
            }
        assert ledger.clients_with_budget([a_due("ada", 4)], before=("run", 4)) == frozenset()
        # Other runs are not this run's future.
        assert (
            ledger.clients_with_budget([a_due("ada", 1, run="b")], before=("b", 1)) == frozenset()
        )


def test_two_processes_that_charge_cohorts_at_once_overspend_no_one(path: Path) -> None:
    fitting = 25
    with Ledger(path, create=True) as ledger:
        for name in NAMES:
            ledger.set_budget(name, room_for(fitting))
    writers = [
        subprocess.Popen(
            [sys.executable, "-W", "error", __file__, str(path), run],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for run in ("one", "two")
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    reports = [json.loads(writer.communicate(timeout=60)[0]) for writer in writers]
    with Ledger(path) as ledger:
        assert ledger.verify() == []
        for name in NAMES:
            assert ledger.history(name) == [(EVENT, fitting)]
            assert sum(report[name] for report in reports) == fitting


def _charge_cohorts(path: str, run: str) -> dict[str, int]:
    made = dict.fromkeys(NAMES, 0)
    with Ledger(path, create=True) as ledger:
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(20):
            for outcome in ledger.charge_all([a_due(name, number, run=run) for name in NAMES]):
                if isinstance(outcome, Charge):
                    made[outcome.release.client] += 1
    return made


if __name__ == "__main__":
    print(json.dumps(_charge_cohorts(*sys.argv[1:])))
