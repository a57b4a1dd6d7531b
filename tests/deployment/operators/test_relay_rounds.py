"""Rounds through a relay of real processes: sums, shuffles, restarts and what it costs in bytes."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from command_line import call, printed_json
from relay import relay_to
from two_operators import Operators, create_operators, running_relay

from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.machines.address import Address
from sottovoce.deployment.machines.guard import began_at
from sottovoce.deployment.operators.calls import RefusedError, RelayCalls
from sottovoce.deployment.operators.collecting import ReportWindow, open_collector
from sottovoce.deployment.operators.device import DeviceFolder, RelayLink
from sottovoce.deployment.operators.relay_program import is_healthy
from sottovoce.deployment.operators.routes import Route
from sottovoce.ledger.ledger import Ledger, temporary_ledger
from sottovoce.mechanisms.packing import UnsignedCodes
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.shuffle_client import ShuffleClient
from sottovoce.protocol.secure.two_server_client import TwoServerClient

pytest.importorskip("uvicorn")
CONTENT = b"a model"
CODES = np.random.default_rng(1)


def send_codes(device: DeviceFolder, codes: UnsignedCodes) -> bytes:
    """Send a vector of codes as this device does, without a mechanism, and return the report."""
    with RelayLink(device) as link, temporary_ledger() as ledger:
        announcement, content = link.announcement()
        assert content == CONTENT
        party = link.party(Protocol.TWO_SERVER_SUM, ledger)
        assert isinstance(party, TwoServerClient)
        report = party.report(
            announcement, int(time.time()), lambda: None, lambda: [codes], ledger.transaction
        )
        link.send(report)
        return report


def test_the_sum_of_twenty_devices_is_that_of_their_codes(tmp_path: Path) -> None:
    operators = create_operators(tmp_path)
    devices = operators.devices(20)
    codes = [CODES.integers(0, 2, 16, dtype=np.uint8) for _ in devices]
    with running_relay(operators.relay), open_collector(operators.collector) as collector:
        attempt = operators.attempt(CONTENT, threshold=20)
        collector.announce(attempt, CONTENT, ReportWindow(report_seconds=10))
        for device, own in zip(devices, codes, strict=True):
            report = send_codes(device, own)
        (total,), clients = collector.sums()
        assert clients == 20
        assert np.array_equal(total, np.sum(codes, axis=0))
    state = operators.relay.state_folder
    kept = b"".join(path.read_bytes() for path in state.glob("relay.sqlite*"))
    assert report[-10:] not in kept
    logs = "".join(path.read_text() for path in state.glob("*.log"))
    assert "phone" not in logs


@pytest.mark.slow
def test_a_relay_that_is_killed_goes_on_with_every_report_that_it_has_accepted(
    tmp_path: Path,
) -> None:
    operators = create_operators(tmp_path)
    (device,) = operators.devices(1)
    codes = CODES.integers(0, 2, 16, dtype=np.uint8)
    card = operators.pinned.relay
    with running_relay(operators.relay), open_collector(operators.collector) as collector:
        collector.announce(operators.attempt(CONTENT), CONTENT, ReportWindow(report_seconds=600))
        report = send_codes(device, codes)
        with RelayCalls(card.address, card.certificate) as calls:
            calls.ask(Route.HEALTH)
            kill_server(operators)
            calls.ask(Route.REPORT, report)  # over a new connection; the same report again
            other = send_codes_again(device, codes)
            for refused_report in (other, report[:-1] + bytes([report[-1] ^ 1])):
                with pytest.raises(RefusedError) as refused:
                    calls.ask(Route.REPORT, refused_report)
                assert refused.value.status == 400
            with pytest.raises(RefusedError) as refused:
                calls.ask(Route.FROZEN)
            assert refused.value.status == 403


def kill_server(operators: Operators) -> None:
    """Kill the process that serves, and wait until its supervisor has started another."""
    record = operators.relay.state_folder / "processes" / "relay.json"
    server = json.loads(record.read_bytes())[-1]
    os.kill(server[0], signal.SIGKILL)
    deadline = time.monotonic() + 30.0
    while began_at(server[0]) == server[1] or not is_healthy(operators.relay):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def send_codes_again(device: DeviceFolder, codes: UnsignedCodes) -> bytes:
    """Return another report of the same client, as after its journal was lost."""
    with RelayLink(device) as link, temporary_ledger() as ledger:
        announcement, _ = link.announcement()
        party = link.party(Protocol.TWO_SERVER_SUM, ledger)
        assert isinstance(party, TwoServerClient)
        return party.report(
            announcement, int(time.time()), lambda: None, lambda: [codes], ledger.transaction
        )


@pytest.mark.slow
def test_a_shuffle_is_opened_once_enough_devices_have_confirmed(tmp_path: Path) -> None:
    operators = create_operators(tmp_path)
    devices = operators.devices(4)
    payloads = [bytes([number]) * 16 for number in (3, 1, 2, 1)]
    with running_relay(operators.relay), open_collector(operators.collector) as collector:
        attempt = operators.attempt(CONTENT, protocol=Protocol.SHUFFLER)
        window = ReportWindow(report_seconds=4, confirm_seconds=4, slack=1)
        collector.announce(attempt, CONTENT, window, payload_bytes=16)
        errors = confirm_in_threads(devices[:-1], payloads)
        with RelayLink(devices[-1]) as silent, temporary_ledger() as ledger:
            send_payload(silent, ledger, payloads[-1])
        assert collector.payloads() == sorted(payloads)
    assert errors() == []
    with contextlib.closing(sqlite3.connect(operators.relay.state_folder / "relay.sqlite")) as db:
        assert db.execute("SELECT count(*) FROM arrivals").fetchone() == (0,)


def send_payload(link: RelayLink, ledger: Ledger, payload: bytes) -> None:
    announcement, _ = link.announcement()
    party = link.party(Protocol.SHUFFLER, ledger)
    assert isinstance(party, ShuffleClient)
    link.send(
        party.report(
            announcement, int(time.time()), lambda: None, lambda: payload, ledger.transaction
        )
    )


def confirm_in_threads(
    devices: Sequence[DeviceFolder], payloads: Sequence[bytes]
) -> Callable[[], list[Exception]]:
    """Send and confirm from a thread for each device; the result waits and returns all errors."""
    errors: list[Exception] = []

    def work(device: DeviceFolder, payload: bytes) -> None:
        try:
            with RelayLink(device) as link, temporary_ledger() as ledger:
                send_payload(link, ledger, payload)
                link.confirm(timeout_seconds=10.0)
        except Exception as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(devices, payloads, strict=False)
    ]
    for thread in threads:
        thread.start()

    def finish() -> list[Exception]:
        for thread in threads:
            thread.join()
        return errors

    return finish


def test_too_few_devices_release_nothing_and_a_report_is_few_bytes(tmp_path: Path) -> None:
    operators = create_operators(tmp_path)
    devices = operators.devices(2)
    codes = CODES.integers(0, 2, 16, dtype=np.uint8)
    with running_relay(operators.relay), open_collector(operators.collector) as collector:
        collector.announce(operators.attempt(CONTENT), CONTENT, ReportWindow(report_seconds=2))
        reports = [send_codes(device, codes) for device in devices]
        card = operators.pinned.relay
        with relay_to(card.address.port) as counted:
            near = Address(host="localhost", port=counted.port)
            with RelayCalls(near, card.certificate) as calls:
                calls.ask(Route.REPORT, reports[0])
                new = counted.up + counted.down
                calls.ask(Route.REPORT, reports[1])
                kept = counted.up + counted.down - new
        assert kept - len(reports[1]) <= 170
        assert new - len(reports[0]) <= 1200
        with pytest.raises(DeploymentError, match="needs at least 3 clients, got 2"):
            collector.sums()
        with pytest.raises(DeploymentError, match="no attempt is open"):
            collector.sums()


def test_the_commands_set_up_a_relay_and_show_it(tmp_path: Path) -> None:
    relay, collector, phone = (str(tmp_path / name) for name in ("relay", "collector", "phone"))
    port = create_operators(tmp_path / "other").relay.address.port  # a free one
    assert call("deploy", "init-relay", relay, "--address", f"localhost:{port}").code == 0
    assert call("deploy", "init-collector", collector, "--relay", f"{relay}/relay.pub").code == 0
    early = call("deploy", "relay", relay)
    assert early.code != 0
    assert "sottovoce deploy pin" in early.text
    shown = printed_json("deploy", "pin", relay, f"{collector}/collector.pub")
    digest, operators = shown["digest"], shown["operators"]
    assert digest[:8] in call("deploy", "check", collector).text
    wrong = call("deploy", "enroll", phone, "--as", "p", "--operators", operators, "--digest", "00")
    assert wrong.code != 0
    assert "telephone" in wrong.text
    asked = ("--as", "phone", "--operators", operators, "--digest", digest)
    request = printed_json("deploy", "enroll", phone, *asked)["request"]
    assert printed_json("deploy", "admit", relay, request) == {"phone": {"missing": ["collector"]}}
    assert printed_json("deploy", "admit", collector, request) == {"phone": {"missing": []}}
    assert printed_json("deploy", "status", relay)["relay"] == "not running"
    command = [sys.executable, "-m", "sottovoce", "deploy", "relay", relay, "--background"]
    subprocess.run(command, check=True, capture_output=True)
    try:
        assert printed_json("deploy", "status", relay)["relay"] == "running"
        assert printed_json("deploy", "status", collector)["relay"] == "answers"
        assert printed_json("deploy", "check", relay)["ok"]
        assert printed_json("deploy", "check", collector)["ok"]
        assert printed_json("deploy", "check", phone)["ok"]
    finally:
        assert printed_json("deploy", "stop", relay)["stopped"] == "the relay"
    assert printed_json("deploy", "status", collector)["relay"] == "does not answer"
