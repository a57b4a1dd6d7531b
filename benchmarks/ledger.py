"""The ledger: charges per second, the size of its file, and how long an epsilon takes.

make bench        prints a table; it fails if a total is wrong, never because it is slow

A round charges its whole cohort in one durable commit (synchronous = FULL), each client against its
own budget and its own history.
"""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Budget, Charge, PendingCharge, Release
from sottovoce.privacy import accounting
from sottovoce.privacy.compositions import compose_repeated
from sottovoce.privacy.events import GaussianNoise, OneBit, PrivacyEvent, PureDp
from sottovoce.privacy.pld import PldAccountant
from sottovoce.privacy.renyi import RenyiAccountant

CLIENTS, ROUNDS = 10_000, 100
DELTA = 1e-6
ZERO_OUT = Adjacency.ZERO_OUT
BUDGET = Budget(epsilon=8.0, delta=DELTA, adjacency=ZERO_OUT, unit=Unit.CLIENT)
EVENT = OneBit(shift=0.1, dimension=1000, adjacency=ZERO_OUT)
SEVERAL: tuple[tuple[PrivacyEvent, int], ...] = (
    (GaussianNoise(mu=0.05, adjacency=ZERO_OUT), 30),
    (GaussianNoise(mu=0.1, adjacency=ZERO_OUT), 20),
    (OneBit(shift=0.1, dimension=1000, adjacency=ZERO_OUT), 30),
    (PureDp(epsilon=0.1, adjacency=ZERO_OUT), 20),
)


def release(client: str, number: int) -> Release:
    return Release(unit=Unit.CLIENT, run="benchmark", client=client, round=number, uplink=0)


def charge_rounds(ledger: Ledger) -> float:
    """Return the seconds for all rounds of all clients."""
    names = [f"client-{number:05d}" for number in range(CLIENTS)]
    with ledger.transaction():
        for name in names:
            ledger.set_budget(name, BUDGET)
    start = time.perf_counter()
    for number in range(1, ROUNDS + 1):
        dues = [
            PendingCharge(release=release(name, number), attempt=0, event=EVENT) for name in names
        ]
        outcomes = ledger.charge_all(dues)
        assert all(isinstance(outcome, Charge) for outcome in outcomes)
    return time.perf_counter() - start


def charge_several(ledger: Ledger) -> None:
    """Charge a client a hundred times for events of several kinds."""
    events = [event for event, count in SEVERAL for _ in range(count)]
    ledger.charge_all(
        [
            PendingCharge(release=release("mixed", number), attempt=0, event=event)
            for number, event in enumerate(events)
        ]
    )


def timed_epsilon(ledger: Ledger, accountant: str) -> tuple[float, float]:
    """Print the mixed client's epsilon by one accountant, computed without a cache."""
    start = time.perf_counter()
    history = compose_repeated(ledger.history("mixed"))
    epsilon = accounting.privacy_spent(history, DELTA, accountant).epsilon
    return epsilon, time.perf_counter() - start


def main() -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        with Ledger(path, create=True) as ledger:
            charge_several(ledger)
            epsilons = {
                name: timed_epsilon(ledger, name)
                for name in (RenyiAccountant.name, PldAccountant.name)
            }
            seconds = charge_rounds(ledger)
            assert ledger.num_charges == CLIENTS * ROUNDS + sum(count for _, count in SEVERAL)
            assert ledger.history("client-00000") == [(EVENT, ROUNDS)]
        megabytes = path.stat().st_size / 1e6
    charges = CLIENTS * ROUNDS
    print(f"{charges} charges of {CLIENTS} clients with budgets, one commit a round")
    print(f"  {seconds:.1f} s, {charges / seconds:.0f} charges/s, {megabytes:.0f} MB on disk")
    print("epsilon of a client with 100 charges of 4 events, nothing cached")
    for name, (epsilon, elapsed) in epsilons.items():
        print(f"  {name:<6} {epsilon:.4f} in {1000 * elapsed:.0f} ms")


if __name__ == "__main__":
    main()
