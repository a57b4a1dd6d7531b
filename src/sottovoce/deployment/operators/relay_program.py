"""The relay as a running program: its supervisor, and the process that serves."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.machines import certificates
from sottovoce.deployment.machines.address import Address
from sottovoce.deployment.machines.limited_server import Limits, serve
from sottovoce.deployment.machines.processes import (
    Child,
    hold_supervisor_lock,
    stop_children_at_exit,
    wait_until,
)
from sottovoce.deployment.machines.restarts import restart_pauses
from sottovoce.deployment.operators.application import RelayApplication
from sottovoce.deployment.operators.bridge import federation_of, start_keeper
from sottovoce.deployment.operators.calls import RelayCalls
from sottovoce.deployment.operators.desk import open_desk
from sottovoce.deployment.operators.folders import RelayFolder
from sottovoce.deployment.operators.routes import Route

START_SECONDS = 60.0
# Devices come by the thousand, also through one address of a provider.
LIMITS = Limits(
    anonymous=16_384,
    anonymous_per_address=1_024,
    header_bytes=2**12,
    header_seconds=5.0,
    idle_seconds=30.0,
)


def keep_relay(relay: RelayFolder, *, on_ready: Callable[[], None]) -> None:
    """Run the relay until a signal ends it; start it again if it ends by itself.

    Args:
        relay: The relay's folder.
        on_ready: Called once, when the relay answers.

    Raises:
        ConfigError: relay.toml names a link that is no federation's folder.
        DeploymentError: The operators are not paired, the certificate is not valid, the port is in
            use, Flower is needed for a link and is not installed, another process runs this relay,
            or it ends soon after several starts.
    """
    check_certificate(relay)
    if relay.link is not None:
        federation_of(relay)
    if relay.operators.relay != relay.card:
        raise DeploymentError(
            f"{relay.folder / 'operators.toml'} has another card of this relay than relay.pub; "
            "restore both files from a backup"
        )
    with (
        hold_supervisor_lock(relay.state_folder, what="the relay") as announce,
        stop_children_at_exit() as children,
    ):
        if not relay.address.is_free():
            raise DeploymentError(
                f"port {relay.address.port} of this machine is in use; stop the program that "
                f"listens there, or change the address in {relay.folder / 'relay.toml'}"
            )
        _start(relay, children)
        announce({})
        on_ready()
        for pause_seconds in restart_pauses(children):
            time.sleep(pause_seconds)
            children[:] = _programs(relay)


def is_healthy(relay: RelayFolder) -> bool:
    """Return whether the relay of a folder answers on this machine with its own certificate."""
    local = Address(host="localhost", port=relay.address.port)
    try:
        with RelayCalls(local, relay.card.certificate) as calls:
            return calls.ask(Route.HEALTH) == b"ok"
    except DeploymentError:
        return False


def check_certificate(relay: RelayFolder) -> None:
    """Raise DeploymentError if clients would refuse the relay's certificate."""
    problem = certificates.date_problem(relay.certificate)
    if problem is None and relay.certificate.read_text().strip() != relay.card.certificate.strip():
        problem = f"{relay.certificate} is not the certificate in relay.pub, which clients pin"
    if problem:
        raise DeploymentError(f"{problem}; restore the files from a backup, or make a new relay")


def _programs(relay: RelayFolder) -> list[Child]:
    """Start the relay, and what passes its announcements to the sites of its link."""
    return [_child(relay)] if relay.link is None else [_child(relay), start_keeper(relay)]


def _start(relay: RelayFolder, children: list[Child]) -> None:
    children[:] = _programs(relay)
    wait_until(
        lambda: is_healthy(relay),
        children,
        what="the relay did not answer",
        timeout_seconds=START_SECONDS,
    )


def _child(relay: RelayFolder) -> Child:
    return Child.start(
        "the relay",
        [sys.executable, "-m", "sottovoce.deployment.operators.relay_program", str(relay.folder)],
        log=relay.state_folder / "relay.log",
        environment={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def main(folder: str) -> None:
    """Serve the relay of a folder until a signal ends this process."""
    relay = RelayFolder.read(Path(folder))
    with open_desk(relay) as desk:
        serve(
            RelayApplication(desk),
            host=relay.address.bind_host,
            port=relay.address.port,
            certificate=relay.certificate,
            key=relay.certificate_key,
            limits=LIMITS,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
