"""Real kill -9: whatever left is in the ledger, and nothing left twice for one charge.

Run as a script, this file forks the client processes that get killed. A client privatises round
after round and appends each message to an outbox, which stands for the network: what is in it has
been seen.
"""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import sottovoce
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball
from sottovoce.core.randomness import Keystream, Randomness, SeededRandomness, SystemRandomness
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Budget
from sottovoce.mechanisms.encoding import Payloads, Prepared
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.events import Repeated
from sottovoce.protocol.client import PrivatizationRequest, Refused, privatize
from sottovoce.protocol.plan import ClientPlan, RoundPlan

CLIENTS = ("ada", "bob", "carl")
ROUNDS = 90
KILLS = 9
# A client that is to be killed waits for it after this many rounds: KILLS lives never finish.
ROUNDS_PER_LIFE = 8
DIMENSION = 24
MECHANISM = GaussHermite(
    input_domain=L2Ball(dimension=DIMENSION, radius=1.0), levels=4, noise_multiplier=3.0
)
EVENT = MECHANISM.privacy(Adjacency.ZERO_OUT)
DELTA = 1e-6
# Room for every round and not one charge more: a second charge would cost a round.
BUDGET = Budget(
    unit=Unit.CLIENT,
    epsilon=privacy_spent(Repeated(event=EVENT, count=ROUNDS), DELTA).epsilon,
    delta=DELTA,
    adjacency=Adjacency.ZERO_OUT,
)

Key = tuple[str, int]


# -- the client process --------------------------------------------------------------------


def read_outbox(outbox: Path) -> list[dict[str, Any]]:
    """Every record that was written whole."""
    records = []
    for line in outbox.read_bytes().split(b"\n") if outbox.exists() else []:
        try:
            records.append(json.loads(line))
        except ValueError:  # an empty line, or one that a kill cut off
            continue
    return records


def append(outbox: int, record: dict[str, Any]) -> None:
    os.write(outbox, b"\n" + json.dumps(record).encode() + b"\n")
    os.fsync(outbox)


def update_of(client: str, round_number: int) -> NDArray[np.float64]:
    """The same after a restart, as training from a checkpoint would be."""
    return np.random.default_rng([CLIENTS.index(client), round_number]).normal(0.0, 0.3, DIMENSION)


def send_rounds(folder: Path, randomness: Randomness, last: int) -> None:
    """Send `last` more rounds at most."""
    parts = tuple(ClientPlan(client=name, mechanism=MECHANISM, weight=1.0) for name in CLIENTS)
    sent = read_outbox(folder / "outbox")
    # The last round may be incomplete, so it is done again: its messages must be the stored ones.
    first = max((record["round"] for record in sent), default=1)
    outbox = os.open(folder / "outbox", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with Ledger(folder / "ledger.db", create=True) as ledger:
        print("ready", flush=True)
        for round_number in range(first, min(first + last, ROUNDS + 1)):
            plan = RoundPlan(
                unit=Unit.CLIENT,
                run="run",
                round=round_number,
                adjacency=Adjacency.ZERO_OUT,
                clients=parts,
            )
            requests = [
                PrivatizationRequest(
                    part=part, uplink=0, values=update_of(part.client, round_number)
                )
                for part in parts
            ]
            for outcome in privatize(plan, requests, ledger, randomness):
                message = None if isinstance(outcome, Refused) else outcome.message.hex()
                append(
                    outbox,
                    {"client": outcome.part.client, "round": round_number, "message": message},
                )


def pause_while_encoding() -> None:
    """Tell the parent that charges are made and codes are not, and give it time to kill."""
    encode = GaussHermite.encode_packed

    def slow_encode(
        self: GaussHermite, prepared: Prepared, keystreams: Sequence[Keystream]
    ) -> Payloads:
        print("encoding", flush=True)
        time.sleep(30.0)
        return encode(self, prepared, keystreams)

    GaussHermite.encode_packed = slow_encode  # type: ignore[method-assign]


def live(folder: str, grade: str, life: str) -> None:
    if life == "pausing":
        pause_while_encoding()
    randomness: Randomness = SeededRandomness(1) if grade == "seeded" else SystemRandomness()
    send_rounds(Path(folder), randomness, ROUNDS if life == "whole" else ROUNDS_PER_LIFE)
    if life != "whole":
        time.sleep(60.0)


def main(folder: str, grade: str) -> None:
    """A process of its own for each line that is read, which names the life it is to lead."""
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            print(os.getpid(), flush=True)
            live(folder, grade, line.strip())
            os._exit(0)
        print("ended with", os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


# -- the parent ----------------------------------------------------------------------------


class Clients:
    """Client processes, one after another; what they all import is imported once."""

    def __init__(self, folder: Path, grade: str) -> None:
        source = str(Path(sottovoce.__file__).parents[1])
        self._parent = subprocess.Popen(
            [sys.executable, "-W", "error", __file__, str(folder), grade],
            env={**os.environ, "PYTHONPATH": source},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._client = 0

    def __enter__(self) -> "Clients":
        return self

    def __exit__(self, *_: object) -> None:
        self._parent.communicate(timeout=60)
        assert self._parent.returncode == 0

    def start(self, life: str) -> None:
        assert self._parent.stdin is not None
        self._parent.stdin.write(f"{life}\n")
        self._parent.stdin.flush()
        self._client = int(self.says())
        assert self.says() == "ready"

    def says(self) -> str:
        assert self._parent.stdout is not None
        return self._parent.stdout.readline().strip()

    def kill(self) -> None:
        os.kill(self._client, signal.SIGKILL)
        said = self.says()
        while said == "encoding":
            said = self.says()
        assert said == f"ended with {-signal.SIGKILL}"


def prepare(folder: Path) -> Path:
    folder.mkdir()
    with Ledger(folder / "ledger.db", create=True) as ledger:
        for client in CLIENTS:
            ledger.set_budget(client, BUDGET)
    return folder


def run_to_the_end(clients: Clients) -> None:
    clients.start("whole")
    assert clients.says() == "ended with 0"


def run_under_fire(folder: Path, grade: str) -> None:
    """Kill the client again and again over the same ledger, then let it finish."""
    moments = random.Random(grade)
    with Clients(folder, grade) as clients:
        for number in range(KILLS):
            if number % 3 == 0:  # between the charge and the message, for certain
                clients.start("pausing")
                assert clients.says() == "encoding"
            else:  # wherever it happens to be
                clients.start("short")
                time.sleep(moments.uniform(0.0, 0.1))
            clients.kill()
            with Ledger(folder / "ledger.db") as ledger:
                assert ledger.verify() == []
        run_to_the_end(clients)


def messages_out(folder: Path) -> dict[Key, set[bytes]]:
    """The distinct messages that left, of every release."""
    found: dict[Key, set[bytes]] = defaultdict(set)
    for record in read_outbox(folder / "outbox"):
        if record["message"] is not None:
            found[record["client"], record["round"]].add(bytes.fromhex(record["message"]))
    return dict(found)


def messages_stored(folder: Path) -> dict[Key, set[bytes]]:
    found: dict[Key, set[bytes]] = defaultdict(set)
    database = sqlite3.connect(folder / "ledger.db")
    for client, round_number, message in database.execute(
        "SELECT client, round, message FROM charges JOIN messages ON charge = charges.id"
    ):
        found[client, round_number].add(message)
    database.close()
    return dict(found)


def attempts_charged(folder: Path) -> dict[Key, int]:
    found: dict[Key, int] = defaultdict(int)
    with Ledger(folder / "ledger.db") as ledger:
        for row in ledger.rows():
            found[str(row["client"]), int(str(row["round"]))] += 1
    return dict(found)


@pytest.fixture(scope="module")
def system_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = prepare(tmp_path_factory.mktemp("kill") / "system")
    run_under_fire(folder, "system")
    return folder


@pytest.fixture(scope="module")
def seeded_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = prepare(tmp_path_factory.mktemp("kill") / "seeded")
    run_under_fire(folder, "seeded")
    return folder


@pytest.fixture(params=["system", "seeded"])
def killed_run(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue(f"{request.param}_run")
    return folder


def test_the_ledger_verifies_after_every_kill_and_at_the_end(killed_run: Path) -> None:
    # The kills in between are checked while they happen, in run_under_fire.
    with Ledger(killed_run / "ledger.db") as ledger:
        assert ledger.verify() == []
        assert ledger.clients() == sorted(CLIENTS)


def test_every_message_that_left_has_its_charge_and_is_stored(killed_run: Path) -> None:
    out, charged, stored = (
        messages_out(killed_run),
        attempts_charged(killed_run),
        messages_stored(killed_run),
    )
    assert out
    for key, messages in out.items():
        assert len(messages) <= charged.get(key, 0)
        assert messages <= stored[key]


def test_a_release_never_has_two_different_messages_out(killed_run: Path) -> None:
    assert {len(messages) for messages in messages_out(killed_run).values()} == {1}


def test_no_client_is_beyond_its_budget(killed_run: Path) -> None:
    with Ledger(killed_run / "ledger.db") as ledger:
        for client in CLIENTS:
            assert sum(count for _, count in ledger.history(client)) <= ROUNDS
            spent = ledger.spent(client, DELTA)
            assert spent is not None
            assert spent.epsilon <= BUDGET.epsilon


def test_a_crash_costs_no_charge_and_no_message(killed_run: Path) -> None:
    # Every third kill came between the charges and the messages of a whole cohort: nothing had
    # left, so the same charges served. The budget has room for one charge a round and no more.
    expected = {(client, n): 1 for client in CLIENTS for n in range(1, ROUNDS + 1)}
    assert attempts_charged(killed_run) == expected
    assert set(messages_out(killed_run)) == set(expected)


def test_with_seeded_randomness_the_messages_are_those_of_an_uninterrupted_run(
    seeded_run: Path, tmp_path: Path
) -> None:
    calm = prepare(tmp_path / "calm")
    with Clients(calm, "seeded") as clients:
        run_to_the_end(clients)
    assert messages_out(seeded_run) == messages_out(calm)
    assert len(messages_out(calm)) == ROUNDS * len(CLIENTS)


if __name__ == "__main__":
    main(*sys.argv[1:])
