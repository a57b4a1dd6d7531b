"""Readiness checks of the folders of relay, collector and device."""

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from sottovoce.core.errors import DeploymentError, SottovoceError
from sottovoce.deployment.machines import certificates
from sottovoce.deployment.machines.processes import state_of
from sottovoce.deployment.machines.readiness import (
    CheckError,
    Look,
    ReadinessCheck,
    free_disk,
    look_at,
)
from sottovoce.deployment.operators.admission_file import AdmissionFile
from sottovoce.deployment.operators.bridge import federation_of
from sottovoce.deployment.operators.calls import RelayCalls
from sottovoce.deployment.operators.cards import PinnedOperators
from sottovoce.deployment.operators.collector_program import program_state
from sottovoce.deployment.operators.collector_runs import runs_of, start_command
from sottovoce.deployment.operators.device import DeviceFolder
from sottovoce.deployment.operators.folders import (
    RELAY_FILE,
    CollectorFolder,
    OperatorFolder,
    RelayFolder,
)
from sottovoce.deployment.operators.relay_program import check_certificate, is_healthy
from sottovoce.deployment.operators.routes import Route
from sottovoce.deployment.policy import Policy
from sottovoce.deployment.site import read_site


def check_relay(relay: RelayFolder) -> list[ReadinessCheck]:
    """Check a relay's folder, and the relay if it runs; change nothing."""
    parts: list[Look] = [
        ("certificate", lambda: _certificate(relay)),
        *_folder_checks(relay),
        ("program", lambda: _program(relay)),
    ]
    if relay.link is not None:
        parts.append(("link", lambda: _link(relay)))
    return [look_at(part) for part in parts]


def check_collector(collector: CollectorFolder) -> list[ReadinessCheck]:
    """Check a collector's folder and its connection to the relay; change nothing."""
    parts: list[Look] = [
        *_folder_checks(collector),
        ("program", lambda: _collector_program(collector)),
        ("relay", lambda: _reach(collector)),
    ]
    return [look_at(part) for part in parts]


def check_enrolled(device: DeviceFolder) -> list[ReadinessCheck]:
    """Check the enrollment of a link's site with a relay's operators; change nothing."""
    parts: list[Look] = [
        ("relay: private key", lambda: _private(device.folder)),
        ("relay: operators", lambda: f"compare with both operators: {device.operators.digest}"),
        ("relay: admission", lambda: _admission(device)),
        ("relay: policy", lambda: _policy(device)),
    ]
    return [look_at(part) for part in parts]


def check_device(device: DeviceFolder) -> list[ReadinessCheck]:
    """Check a client's folder and its connection to the relay; change nothing."""
    parts: list[Look] = [
        ("private key", lambda: _private(device.folder)),
        ("operators", lambda: f"compare with both operators: {device.operators.digest}"),
        ("admission", lambda: _admission(device)),
        ("free disk", lambda: free_disk(device.folder)),
        ("relay", lambda: _reach(device)),
    ]
    if device.site_file.is_file():
        parts.insert(3, ("policy", lambda: _policy(device)))
    return [look_at(part) for part in parts]


def _admission(device: DeviceFolder) -> str:
    found = AdmissionFile.read(device.admission_path).certificate(device.operators.keys)
    until = time.strftime("%Y-%m-%d", time.gmtime(found.valid_until))
    return f"signed by both operators, until {until}"


def _policy(device: DeviceFolder) -> str:
    policy = read_site(device.site_file).policy
    assert isinstance(policy, Policy), "read from a file"
    if policy.honest is None:
        raise CheckError(
            "the policy allows no secure sum", f"set honest and colluders in {device.site_file}"
        )
    return f"epsilon {policy.epsilon_total:g} in all at delta {policy.delta:g}"


def relay_status(operator: RelayFolder | CollectorFolder) -> dict[str, Any]:
    """Return whether the relay runs, with its address and this operator's clients, as plain data.

    In the collector's folder it is known only whether the relay answers.
    """
    relay = operator.operators.relay
    return {
        "relay": _running(operator),
        "address": str(relay.address),
        "digest": operator.operators.digest,
        "clients": len(operator.clients()),
    }


def collector_status(collector: CollectorFolder) -> dict[str, Any]:
    """Return whether the collector runs and the relay answers, and the runs, as plain data."""
    return {
        "collector": program_state(collector),
        **relay_status(collector),
        "runs": runs_of(collector),
    }


def _collector_program(collector: CollectorFolder) -> str:
    state = program_state(collector)
    if state == "not running":
        return f"the collector is not running; to start it: {start_command(collector)}"
    return f"the collector is {state}"


def _running(operator: RelayFolder | CollectorFolder) -> str:
    if isinstance(operator, RelayFolder):
        state = state_of(operator.state_folder)
        if state is None:
            return "not running"
        if not state["ready"]:
            return "starting"
        return "running" if is_healthy(operator) else "does not answer"
    with contextlib.suppress(DeploymentError):
        reach_relay(operator.operators)
        return "answers"
    return "does not answer"


def reach_relay(operators: PinnedOperators) -> str:
    """Ask the pinned relay for a sign of life; raise DeploymentError without one."""
    with RelayCalls(operators.relay.address, operators.relay.certificate) as calls:
        calls.ask(Route.HEALTH)
    return f"{operators.relay.address} answers with its pinned certificate"


def _reach(party: CollectorFolder | DeviceFolder) -> str:
    try:
        return reach_relay(party.operators)
    except DeploymentError as error:
        raise CheckError(
            str(error), "ask the relay's operator whether it runs; allow this machine to reach it"
        ) from None


def _folder_checks(operator: OperatorFolder) -> list[Look]:
    return [
        ("private keys", lambda: _private(operator.folder)),
        ("operators", lambda: f"compare with the other operator: {operator.operators.digest}"),
        ("clients", lambda: f"{len(operator.clients())} admitted"),
        ("free disk", lambda: free_disk(operator.folder)),
    ]


def _certificate(relay: RelayFolder) -> str:
    check_certificate(relay)
    return f"until {certificates.expires_at(relay.certificate):%Y-%m-%d}"


def _link(relay: RelayFolder) -> str:
    try:
        federation = federation_of(relay)
    except SottovoceError as error:
        raise CheckError(str(error), f"correct {relay.folder / RELAY_FILE}") from None
    enough = state_of(federation.link_folder) is not None
    runs = "runs" if enough else "does not run, so its sites answer nothing"
    return f"{len(federation.sites)} sites; the link {runs}"


def _private(folder: Path) -> str:
    for path in sorted(folder.glob("*.key")):
        if os.name != "nt" and path.stat().st_mode & 0o077:
            raise CheckError(f"{path} can be read by others", f"chmod 600 {path}")
    return "readable by their owner only"


def _program(relay: RelayFolder) -> str:
    if state_of(relay.state_folder) is not None:
        if not is_healthy(relay):
            raise CheckError(
                f"the relay runs, but does not answer at port {relay.address.port}",
                f"read {relay.state_folder / 'relay.log'}",
            )
        return "the relay is running and answers"
    if not relay.address.is_free():
        raise CheckError(
            f"port {relay.address.port} of this machine is in use",
            "stop the program that listens there, or make a relay with another address",
        )
    return f"port {relay.address.port} is free; the relay is not running"
