"""What relay, collector and clients keep on disk after a round of real processes."""

import contextlib
import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from party_process import Party, party
from relayed_mechanisms import SHUFFLER, SUM
from two_operators import Operators, create_operators, running_relay

from sottovoce.deployment.operators.device import DeviceFolder
from sottovoce.ledger.ledger import LEDGER_NAME
from sottovoce.protocol.secure.encoding import DIGEST_BYTES, Protocol
from sottovoce.protocol.secure.shuffle_messages import ShuffleReport
from sottovoce.protocol.secure.two_server_messages import SumReport

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.slow
SECONDS = 4


@dataclass
class Parties:
    """A relay, a collector and clients, each in a process of its own."""

    operators: Operators
    collector: Party
    devices: list[DeviceFolder]
    clients: list[Party]
    protocol: Protocol

    def announce(self, number: int) -> None:
        more = {"confirm_seconds": SECONDS} if self.protocol is SHUFFLER else {}
        self.collector.ask(
            "announce", protocol=str(self.protocol), seconds=SECONDS, round=number, **more
        )

    def all_clients(self, do: str, **values: Any) -> list[Any]:
        for client in self.clients:
            client.tell(do, **values)
        return [client.answer() for client in self.clients]

    def reports(self) -> list[bytes]:
        """Return what clients have sent, which they keep to send it again."""
        found = []
        for device in self.devices:
            path = device.folder / LEDGER_NAME
            with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
                ((record,),) = database.execute("SELECT record FROM attempts").fetchall()
            found.append(record[DIGEST_BYTES:])
        return found


@contextlib.contextmanager
def running(folder: Path, protocol: Protocol) -> Iterator[Parties]:
    operators = create_operators(folder)
    devices = operators.devices(4)
    with contextlib.ExitStack() as stack:
        stack.enter_context(running_relay(operators.relay))
        collector = stack.enter_context(party("asking_collector", str(operators.collector.folder)))
        clients = [
            stack.enter_context(party("sending_device", str(each.folder), str(protocol)))
            for each in devices
        ]
        parties = Parties(operators, collector, devices, clients, protocol)
        parties.all_clients("spent")  # From now on all clients have started.
        yield parties


def kept_in(folder: Path) -> dict[Path, bytes]:
    """Return all files of a party: databases with their logs, and what its program has logged."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_not_kept(folder: Path, secrets: Iterable[bytes]) -> None:
    kept = kept_in(folder)
    assert any(path.suffix.startswith(".sqlite") for path in kept)
    for secret in secrets:
        assert len(secret) >= 4
        holders = [path.name for path, content in kept.items() if secret in content]
        assert holders == [], secret


def times_between(begin: int, end: int) -> list[bytes]:
    """Return all ways in which a file may hold one of these seconds."""
    found = []
    for seconds in range(begin, end + 1):
        found += [str(seconds).encode(), seconds.to_bytes(8, "little")]
        # In a database an integer is preceded by nothing that tells it from other bytes, so only
        # its milliseconds, which are longer, are looked for.
        found += [(seconds * 1000 + each).to_bytes(6, "big") for each in range(1000)]
    return found


def test_after_a_shuffle_nobody_keeps_who_sent_which_message_or_when(tmp_path: Path) -> None:
    begin = int(time.time())
    with running(tmp_path, SHUFFLER) as parties:
        relay, collector = parties.operators.relay, parties.operators.collector
        names = [device.name.encode() for device in parties.devices]
        parties.announce(1)
        assert all(said.startswith("answered") for said in parties.all_clients("send"))
        reports = [ShuffleReport.read(report) for report in parties.reports()]
        key = bytes.fromhex(parties.collector.ask("secret"))
        parties.collector.tell("payloads")
        assert parties.all_clients("confirm", seconds=2 * SECONDS) == ["confirmed"] * 4
        assert len(parties.collector.answer()) == 4
        for folder in (relay.state_folder, collector.state_folder):
            assert_not_kept(folder, [key, *(report.signature for report in reports)])
        assert_not_kept(collector.state_folder, [*names, *times_between(begin, int(time.time()))])
        ciphertexts = [report.ciphertext for report in reports]
        assert_not_kept(collector.state_folder, ciphertexts)
        for path, content in kept_in(relay.state_folder).items():
            if ".sqlite" not in path.name:
                assert not any(name in content for name in names), path
                assert b"127.0.0.1" not in content, path
        with contextlib.closing(sqlite3.connect(copied(relay.state_folder, tmp_path))) as database:
            assert tables_with(database, names) == {"clients", "confirmations", "listed"}
            assert tables_with(database, ciphertexts) == {"attempts"}  # the list itself
        parties.announce(2)
        assert_not_kept(relay.state_folder, ciphertexts)


def copied(state_folder: Path, target: Path) -> Path:
    """Copy a relay's database with its log: the relay does not share it."""
    copy = target / "copy.sqlite"
    for path in state_folder.glob("relay.sqlite*"):
        Path(str(copy) + path.name.removeprefix("relay.sqlite")).write_bytes(path.read_bytes())
    return copy


def tables_with(database: sqlite3.Connection, wanted: Iterable[bytes]) -> set[str]:
    """Return the tables one of whose rows holds any of some bytes."""
    found = set()
    listed = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in listed:
        for row in database.execute(f"SELECT * FROM {table}"):
            cells = [str(cell).encode() if isinstance(cell, str) else cell for cell in row]
            blobs = [cell for cell in cells if isinstance(cell, bytes)]
            if any(each in blob for each in wanted for blob in blobs):
                found.add(table)
    return found


def test_after_a_sum_no_mask_seed_vector_or_code_is_on_any_disk(tmp_path: Path) -> None:
    with running(tmp_path, SUM) as parties:
        relay, collector = parties.operators.relay, parties.operators.collector
        parties.announce(1)
        assert all(said.startswith("answered") for said in parties.all_clients("send"))
        reports = [SumReport.read(report) for report in parties.reports()]
        key = bytes.fromhex(parties.collector.ask("secret"))
        during = kept_in(relay.state_folder)
        assert any(reports[0].vectors in content for content in during.values())
        assert parties.collector.ask("sums")["clients"] == 4
        secrets = [bytes.fromhex(each) for drawn in parties.all_clients("secret") for each in drawn]
        assert len(secrets) == 4 * 5
        folders = [relay.folder, collector.folder, *(device.folder for device in parties.devices)]
        for folder in folders:
            assert_not_kept(folder, [key, *secrets])
        for folder in folders[:2]:
            assert_not_kept(folder, [report.vectors for report in reports])
            assert_not_kept(folder, [report.ciphertext for report in reports])
            assert_not_kept(folder, [report.for_relay for report in reports])
            assert_not_kept(folder, [report.for_collector for report in reports])
