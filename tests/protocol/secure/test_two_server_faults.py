"""Kills of every party of a sum and of a shuffle, dropouts, and what is left on disk."""

import contextlib
import itertools
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import two_servers
from two_servers import CLOSES, CONFIRM_BY, CONTENT, OPENS, PAYLOAD_BYTES, World, codes_of

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import AbandonedError, LedgerError, WireError
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Release
from sottovoce.privacy.events import OneBit
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.reporting_client import CHARGED
from sottovoce.protocol.secure.state_file import StateFile
from sottovoce.protocol.secure.two_server_client import TwoServerClient

Result = TypeVar("Result")


class KilledError(BaseException):
    """A party is killed after a commit: what it was about to send is lost."""

    def __init__(self, file: str) -> None:
        self.file = file


class Killer:
    """Kills the party that makes commit number `at`, once."""

    def __init__(self, at: int) -> None:
        self.at = self.left = at
        self.killed: str | None = None

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        commit = StateFile.transaction

        @contextlib.contextmanager
        def transaction(file: StateFile) -> Iterator[None]:
            with commit(file):
                yield
            self.left -= 1
            if not self.left:
                raise KilledError(file.path.name)

        monkeypatch.setattr(StateFile, "transaction", transaction)

    def again(self, world: World, step: Callable[..., Result], *values: Any) -> Result:
        """Take a step, and once more after a restart if its party is killed."""
        try:
            return step(*values)
        except KilledError as killed:
            self.killed = killed.file
            world.restart(killed.file)
            # A method of an operator is called on the new object.
            operator = {"relay.sqlite": world.relay, "collector.sqlite": world.collector}
            if hasattr(step, "__self__"):
                found: Result = getattr(operator[killed.file], step.__name__)(*values)
                return found
            return step(*values)


def counted_charge(world: World, name: str) -> Callable[[], None]:
    file = world.state(name)
    file.execute("CREATE TABLE IF NOT EXISTS charges (id INTEGER PRIMARY KEY)")

    def charge() -> None:
        file.execute("INSERT INTO charges DEFAULT VALUES")

    return charge


def charges(world: World, name: str) -> int:
    ((found,),) = world.state(name).all("SELECT count(*) FROM charges")
    return int(found)


def send_sum(world: World, announcement: bytes, name: str, drawn: list[Any]) -> bytes:
    """Report random codes, charge them in the client's file, and remember what was drawn."""
    client = world.summer(name)

    def draw() -> list[Any]:
        codes = codes_of(np.random.default_rng())
        drawn.append(codes)
        return codes

    charge = counted_charge(world, name)
    return client.report(announcement, OPENS, charge, draw, world.state(name).transaction)


def announced(world: World, killer: Killer, *, shuffle: bool) -> bytes:
    """Announce a new round."""

    def announce() -> bytes:
        protocol = Protocol.SHUFFLER if shuffle else Protocol.TWO_SERVER_SUM
        return world.collector.announce(
            world.attempt(protocol=protocol, round=killer.at),
            opens=OPENS,
            closes=CLOSES,
            confirm_by=CONFIRM_BY if shuffle else 0,
            payload_bytes=PAYLOAD_BYTES if shuffle else 0,
        )

    announcement = killer.again(world, announce)
    killer.again(world, world.relay.announce, announcement, CONTENT, OPENS)
    return announcement


def sum_with_kill(world: World, killer: Killer) -> None:
    """Run a sum in which one party is killed."""
    drawn: dict[str, list[Any]] = {name: [] for name in world.names}
    announcement = announced(world, killer, shuffle=False)
    again, sent = killer.again, []
    for name in world.names:
        try:
            report = again(world, send_sum, world, announcement, name, drawn[name])
        except WireError:
            assert killer.killed == name
            continue
        again(world, world.relay.report, report, OPENS)
        assert again(world, send_sum, world, announcement, name, drawn[name]) == report
        sent.append(name)
    frozen = again(world, world.relay.frozen, CLOSES)
    accepted = again(world, world.collector.accept, frozen)
    summed = again(world, world.relay.accepted, accepted)
    sums = again(world, world.collector.release, summed)
    assert all(len(each) <= 1 for each in drawn.values())
    for uplink, total in enumerate(sums):
        np.testing.assert_array_equal(total, sum(drawn[name][0][uplink] for name in sent))


def send_message(world: World, announcement: bytes, name: str, drawn: list[bytes]) -> bytes:
    def draw() -> bytes:
        drawn.append(secrets.token_bytes(PAYLOAD_BYTES))
        return drawn[-1]

    charge, file = counted_charge(world, name), world.state(name)
    return world.shuffler(name).report(announcement, OPENS, charge, draw, file.transaction)


def confirm(world: World, announcement: bytes, name: str, report: bytes) -> bytes:
    client = world.shuffler(name)
    with contextlib.suppress(WireError):  # It has confirmed before.
        world.shuffle_report(client, announcement, bytes(PAYLOAD_BYTES))
    return world.confirm(client, report)


def shuffle_with_kill(world: World, killer: Killer) -> None:
    """Run a shuffle in which one party is killed."""
    drawn: dict[str, list[bytes]] = {name: [] for name in world.names}
    announcement = announced(world, killer, shuffle=True)
    again, sent = killer.again, dict[str, bytes]()
    for name in world.names:
        try:
            sent[name] = again(world, send_message, world, announcement, name, drawn[name])
        except WireError:
            assert killer.killed == name
            continue
        again(world, world.relay.report, sent[name], OPENS)
    listed = again(world, world.relay.shuffled_list, CLOSES)
    root = again(world, world.collector.root, listed)
    again(world, world.relay.root, root)
    for name, report in sent.items():
        confirmation = again(world, confirm, world, announcement, name, report)
        assert again(world, confirm, world, announcement, name, report) == confirmation
        again(world, world.relay.confirmation, confirmation)
    batch = again(world, world.relay.confirmations, CONFIRM_BY)
    opened = again(world, world.collector.open, batch)
    assert all(len(each) <= 1 for each in drawn.values())
    assert opened == sorted(drawn[name][0] for name in sent)


@pytest.mark.parametrize(("run", "commits"), [(sum_with_kill, 18), (shuffle_with_kill, 30)])
def test_a_party_killed_after_any_commit_gives_the_exact_result_or_none(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[[World, Killer], None],
    commits: int,
) -> None:
    outcomes, killed = set(), set()
    with two_servers.world_in(tmp_path) as world:
        for name in world.names:
            counted_charge(world, name)
        for at in itertools.count(1):
            killer = Killer(at)
            before = {name: charges(world, name) for name in world.names}
            with monkeypatch.context() as patched:
                killer.watch(patched)
                try:
                    run(world, killer)
                    outcomes.add("exact")
                except WireError:
                    assert killer.killed == "collector.sqlite"
                    assert world.collector._open is None
                    outcomes.add("none")
            assert all(charges(world, name) <= before[name] + 1 for name in world.names)
            killed.add(killer.killed)
            if killer.killed is None:
                break
    assert outcomes == {"exact", "none"}
    assert killed == {None, "relay.sqlite", "collector.sqlite", *world.names}
    assert at > commits


def test_sums_are_exact_for_200_patterns_of_dropouts(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    with two_servers.world_in(tmp_path, clients=5) as world:
        clients = {name: world.summer(name) for name in world.names}
        for number in range(200):
            announcement = world.announce(round=number)
            found = Announcement.read(announcement)
            codes = {name: codes_of(rng) for name in world.names}
            share = rng.uniform(0.4, 1)
            sent = [name for name in world.names if rng.random() < share]
            reports = [clients[name]._encode(found, codes[name]) for name in sent]
            world.relay.reports(reports, OPENS)
            if len(sent) < 3:
                with pytest.raises(AbandonedError, match="at least 3"):
                    world.relay.frozen(CLOSES)
                continue
            summed = world.relay.accepted(world.collector.accept(world.relay.frozen(CLOSES)))
            for uplink, total in enumerate(world.collector.release(summed)):
                expected = sum(codes[name][uplink] for name in sent)
                np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize(("levels", "bits", "dimension"), [(2, 8, 1), (5, 9, 7), (2**20, 29, 3)])
def test_sums_of_any_width_are_exact(
    tmp_path: Path, levels: int, bits: int, dimension: int
) -> None:
    rng = np.random.default_rng(levels)
    with two_servers.world_in(tmp_path) as world:
        announcement = world.announce(levels=levels, bits=bits, dimension=dimension, uplinks=1)
        codes: dict[str, list[Any]] = {
            name: [rng.integers(0, levels, dimension, dtype=np.uint32)] for name in world.names
        }
        reports = [world.sum_report(name, announcement, codes[name]) for name in world.names]
        world.relay.reports(reports, OPENS)
        summed = world.relay.accepted(world.collector.accept(world.relay.frozen(CLOSES)))
        (total,) = world.collector.release(summed)
        np.testing.assert_array_equal(total, sum(each[0] for each in codes.values()))


def test_a_charge_in_a_ledger_and_the_begun_attempt_are_one_commit(tmp_path: Path) -> None:
    with two_servers.world_in(tmp_path) as world:
        found = Announcement.read(world.announce())
        name = world.names[0]
        with Ledger(tmp_path / "ledger.sqlite", create=True) as ledger:
            client = TwoServerClient(
                name, world.keys[name], world.admission(name), world.operators,
                ledger.journal(), 2, 1,
            )  # fmt: skip

            def fail() -> None:
                raise LedgerError("the budget is spent; stop")

            def never() -> list[Any]:
                raise AssertionError("drawn")

            def draw_none() -> list[Any]:
                raise ZeroDivisionError

            def charge() -> None:
                release = Release(unit=Unit.CLIENT, run="run", client=name, round=1, uplink=0)
                event = OneBit(shift=0.1, dimension=5, adjacency=Adjacency.ZERO_OUT)
                ledger.charge(release, 1, event)

            content = found.to_bytes()
            with pytest.raises(LedgerError):
                client.report(content, OPENS, fail, never, ledger.transaction)
            assert ledger.journal().state(found.place) is None
            with pytest.raises(ZeroDivisionError):
                client.report(content, OPENS, charge, draw_none, ledger.transaction)
            assert ledger.num_charges == 1
            assert ledger.journal().state(found.place) == CHARGED
            with pytest.raises(WireError, match="is over"):
                client.report(content, OPENS, fail, never, ledger.transaction)


def test_no_seed_key_or_code_of_an_attempt_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[bytes] = []
    token_bytes = secrets.token_bytes

    def remembered(size: int) -> bytes:
        seeds.append(token_bytes(size))
        return seeds[-1]

    with two_servers.world_in(tmp_path) as world:
        announcement = world.announce(levels=2**20, most_clients=50, dimension=9, uplinks=1)
        monkeypatch.setattr(secrets, "token_bytes", remembered)
        codes: list[Any] = [np.arange(9, dtype=np.uint32) + 1000]
        reports = [world.sum_report(name, announcement, codes) for name in world.names]
        world.relay.reports(reports, OPENS)
        key = world.collector._open.key.secret  # type: ignore[union-attr]
        summed = world.relay.accepted(world.collector.accept(world.relay.frozen(CLOSES)))
        world.collector.release(summed)
        vectors = [report[-20:] for report in reports]
        on_disk = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        at_relay = b"".join(path.read_bytes() for path in tmp_path.glob("relay*"))
    assert len(seeds) == 4
    for secret in (*seeds, key, codes[0].tobytes()):
        assert secret not in on_disk
    assert not any(vector in at_relay for vector in vectors)


def test_a_state_file_is_private_and_used_by_one_process(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.sqlite")
    assert file.all("PRAGMA synchronous") == [(2,)]  # FULL
    assert file.all("PRAGMA secure_delete") == [(1,)]
    assert (tmp_path / "state.sqlite").stat().st_mode & 0o777 == 0o600
    with pytest.raises(LedgerError, match="no other process"):
        StateFile(tmp_path / "state.sqlite")
    file.close()
    with pytest.raises(LedgerError, match="check the folder"):
        StateFile(tmp_path / "missing" / "state.sqlite")
