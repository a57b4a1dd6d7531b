"""Lies of a relay's process to processes of clients and of the collector: each is refused."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lying_relay import (
    ENDLESS,
    HANGS_UP,
    HONEST,
    LIE,
    OF_REPORTS,
    REFUSED,
    SWALLOWED,
    UNKNOWN,
)
from party_process import Party, answered_rounds, party, sent_by
from relay_lies import LIES
from relayed_mechanisms import SHUFFLER, SUM
from two_operators import create_operators

from sottovoce.deployment.machines.processes import wait_until
from sottovoce.deployment.operators.device import DeviceFolder
from sottovoce.deployment.operators.relay_program import is_healthy
from sottovoce.protocol.secure.encoding import Protocol

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.slow
CLIENTS = 4
SECONDS = 3  # for reports, and again for confirmations


@dataclass
class Deceived:
    """A lying relay, an honest collector and honest clients, each in a process of its own."""

    folder: Path
    collector: Party
    devices: list[DeviceFolder]
    clients: list[Party]
    protocol: Protocol
    round: int = 0

    def lie(self, name: str) -> tuple[str, Any]:
        """Return what the victim among the clients, and what the collector say to a lie."""
        (self.folder / LIE).write_text(name)
        self.round += 1
        is_shuffle = self.protocol is SHUFFLER
        more = {"confirm_seconds": SECONDS} if is_shuffle else {}
        announced = self.collector.ask(
            "announce", protocol=str(self.protocol), seconds=SECONDS, round=self.round, **more
        )
        assert re.fullmatch("[0-9a-f]{64}", announced), announced
        said = self.clients[0].ask("send")
        self._rest("send")
        if not is_shuffle:
            return said, self.collector.ask("sums")
        self.collector.tell("payloads")
        if said.startswith("answered"):
            said = self.clients[0].ask("confirm", seconds=SECONDS + 1)
        self._rest("confirm", seconds=SECONDS + 1)
        return said, self.collector.answer()

    def _rest(self, do: str, **values: Any) -> None:
        for client in self.clients[1:]:
            client.tell(do, **values)
        for client in self.clients[1:]:
            client.answer()

    def check_charges(self) -> None:
        """Raise unless each client has one charge for each announcement, and one answer to it."""
        for device, client in zip(self.devices, self.clients, strict=True):
            spent, sent = client.ask("spent"), sent_by(device.folder)
            assert spent["problems"] == 0
            assert all(len(digests) == 1 for digests in sent.values())
            answered = sum(answered_rounds(device.folder).values())
            assert answered <= spent["charges"] <= self.round


@contextlib.contextmanager
def deceived(folder: Path, protocol: Protocol) -> Iterator[Deceived]:
    operators = create_operators(folder)
    devices = operators.devices(CLIENTS)
    path = operators.relay.folder
    (path / LIE).write_text(HONEST)
    with contextlib.ExitStack() as stack:
        stack.enter_context(party("lying_relay", str(path)))
        wait_until(lambda: is_healthy(operators.relay), [], what="the relay", timeout_seconds=60.0)
        collector = stack.enter_context(party("asking_collector", str(operators.collector.folder)))
        clients = [
            stack.enter_context(party("sending_device", str(each.folder), str(protocol)))
            for each in devices
        ]
        made = Deceived(path, collector, devices, clients, protocol)
        made.check_charges()  # From now on all clients have started.
        yield made


EXACT, ALL = "a sum of three", "a sum of four"
# Each lie: what its victim among the clients says, and what comes of the round at the collector.
OF_SUMS = {
    HONEST: ("answered", ALL),  # so that there is a round before
    "another key": ("refused: .*signature", EXACT),
    "a lower minimum, signed by the relay": ("refused: .*signature", EXACT),
    "another attempt, signed by the relay": ("refused: .*signature", EXACT),
    "other operators": ("refused: .*pinned operators", EXACT),
    "another mechanism": ("refused: .*signature", EXACT),
    "another model": ("refused: .*content that was announced", EXACT),
    "the announcement before": ("refused: .*(not open|is over|relay refuses)", EXACT),
    "a garbled announcement": ("refused: expected", EXACT),
    "an announcement that is cut off": ("refused: expected", EXACT),
    "no announcement": ("refused: the relay refuses", EXACT),
    SWALLOWED: ("answered", EXACT),
    REFUSED: ("refused: the relay refuses", EXACT),
    UNKNOWN: ("refused: the relay refuses", EXACT),
    HANGS_UP: ("refused: .*does not answer", EXACT),
    ENDLESS: ("refused: .*too long", EXACT),
    "a client twice": ("answered", "refused: .*(sorted|twice|increas)"),
    "clients out of order": ("answered", "refused: .*(sorted|increas)"),
    "another ciphertext": ("answered", EXACT),
    "an equal ciphertext": ("answered", EXACT),
    "ciphertexts under other names": ("answered", "refused: a sum needs 3 .*got 2"),
    "a client that the relay invented": ("answered", ALL),
    "only invented clients": ("answered", "refused: a sum needs 3 .*got 2"),
    "fewer than the minimum": ("answered", "refused: a sum needs 3 .*got 2"),
    "nobody": ("answered", "refused: a sum needs 3 .*got 0"),
    "the list before": ("answered", "refused: .*of another"),
    "reports of the round before": ("answered", "refused: a sum needs 3 .*got 0"),
    "a garbled list": ("answered", "refused: .*expected"),
    "a list that is cut off": ("answered", "refused: .*expected"),
    "no list": ("answered", "refused: the relay refuses"),
    "the sum of others": ("answered", "refused: .*those of others"),
    "the sum before": ("answered", "refused: .*of another"),
    "a sum that nobody signed": ("answered", "refused: .*signature"),
    "a changed sum": ("answered", "refused: .*signature"),
    "noise in place of the sum": ("answered", "refused: a sum is above 4"),
    "a longer sum": ("answered", "refused: expected 1 sums"),
    "a shorter sum": ("answered", "refused: expected 1 sums"),
    "no sum": ("answered", "refused: the relay refuses"),
}


def check(lies: dict[str, tuple[str, str]], made: Deceived, collect: str) -> dict[str, Any]:
    """Tell all lies, and an honest word at the end; return those that were believed."""
    wrong = {}
    for lie, (to_client, to_collector) in [*lies.items(), (HONEST, lies[HONEST])]:
        said, released = made.lie(lie)
        outcome = released if isinstance(released, str) else described(released)
        if not (re.match(to_client, said) and re.match(to_collector, outcome)):
            wrong[lie] = said, outcome
        assert made.collector.ask(collect).startswith("refused: no attempt is open")
    return wrong


def described(released: Any) -> str:
    """Return in words how many clients are in what a collector has released."""
    if isinstance(released, list):
        assert released == sorted(released)
        return f"{len(released)} messages"
    assert max(released["total"]) <= released["clients"]
    return {3: EXACT, 4: ALL}[released["clients"]]


def test_clients_and_collector_refuse_every_lie_of_a_relay_about_a_sum(tmp_path: Path) -> None:
    with deceived(tmp_path, SUM) as made:
        assert check(OF_SUMS, made, "sums") == {}
        made.check_charges()


NOT_CONFIRMED = "refused: at least 4 clients must confirm, got 3; the key was deleted"
OF_SHUFFLES = {
    HONEST: ("confirmed", "4 messages"),
    "another key": ("refused: .*signature", "3 messages"),
    "no confirmations": ("refused: .*signature", "3 messages"),
    SWALLOWED: ("refused: .*not in it", "3 messages"),
    "messages out of order": ("refused: ", "refused: .*increase"),
    "a message twice": ("refused: ", "refused: .*increase"),
    "longer messages": ("refused: ", "refused: expected ciphertexts of 64 bytes"),
    "a list of one": ("refused: ", "refused: expected 3 to 6 ciphertexts, got 1"),
    "a list of two": ("refused: ", "refused: expected 3 to 6 ciphertexts, got 2"),
    "too many messages": ("refused: ", "refused: expected 3 to 6 ciphertexts, got 7"),
    "digests in place of messages": ("refused: ", "refused: .*a size of 32 bytes"),
    "a list that nobody signed": ("refused: ", "refused: .*signature"),
    "the messages before": ("refused: ", "refused: .*of another"),
    "messages that are cut off": ("refused: ", "refused: .*expected"),
    "no messages": ("refused: ", "refused: .*expected"),
    "one victim among the relay's own": ("", "refused: at least 4 .*got 1; the key was deleted"),
    "a message in place of another": ("", NOT_CONFIRMED),
    "a message added": ("confirmed", "refused: at least 5 .*got 4; the key was deleted"),
    "a root of the relay": ("refused: .*signature", NOT_CONFIRMED),
    "a larger count": ("refused: .*signature", NOT_CONFIRMED),
    "the root before": ("refused: .*of another", NOT_CONFIRMED),
    "the path of another": ("refused: .*own message under the root", NOT_CONFIRMED),
    "a shorter path": ("refused: expected more digests", NOT_CONFIRMED),
    "a longer path": ("refused: expected the end of a path", NOT_CONFIRMED),
    "an endless path": ("refused: .*at most 64 digests", NOT_CONFIRMED),
    "a root without a path": ("refused: expected a root and a path", NOT_CONFIRMED),
    "a garbled root": ("refused: .*expected", NOT_CONFIRMED),
    "no root": ("refused: the relay refuses", NOT_CONFIRMED),
    "a root that never comes": ("refused: the relay refuses", NOT_CONFIRMED),
    "a confirmation missing": ("confirmed", NOT_CONFIRMED),
    "a confirmation twice": ("confirmed", "refused: .*(sorted|twice|increas)"),
    "a confirmation under another name": ("confirmed", NOT_CONFIRMED),
    "confirmations of the round before": (
        "confirmed",
        "refused: at least 4 .*got 0; the key was deleted",
    ),
    "the confirmations before": ("confirmed", "refused: .*of another"),
    "a confirmation that the relay invented": ("confirmed", NOT_CONFIRMED),
    "garbled confirmations": ("confirmed", "refused: .*expected"),
    "no confirmations at the end": ("confirmed", "refused: the relay refuses"),
}


def test_clients_and_collector_refuse_every_lie_of_a_relay_about_a_shuffle(
    tmp_path: Path,
) -> None:
    with deceived(tmp_path, SHUFFLER) as made:
        assert check(OF_SHUFFLES, made, "payloads") == {}
        made.check_charges()


def test_every_lie_is_told() -> None:
    assert {*LIES, *OF_REPORTS, HONEST} == {*OF_SUMS, *OF_SHUFFLES}
