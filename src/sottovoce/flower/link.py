"""The operator's link: Flower's SuperLink behind the gate, and the sites that it knows."""

import json
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from sottovoce.core import files
from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.machines import certificates, processes
from sottovoce.deployment.machines.address import LOOPBACK, Address, free_port
from sottovoce.deployment.machines.federation import Federation
from sottovoce.deployment.machines.processes import (
    Child,
    hold_supervisor_lock,
    state_of,
    stop_children_at_exit,
    wait_until,
    watch,
)
from sottovoce.deployment.post import FOLDER_VARIABLE
from sottovoce.flower.control import Control, open_control
from sottovoce.flower.gate import TRAFFIC_PATH

START_SECONDS = 90.0
CONNECTION = "sottovoce"  # The link's name in Flower's configuration.
_HEALTH_SECONDS = 5.0


def keep_link(federation: Federation, *, on_ready: Callable[[Sequence[str]], None]) -> None:
    """Run the link until a signal ends it, and then stop its runs.

    `on_ready` is called once, when the link answers, with a sentence for each site's key that
    Flower refused. Raises DeploymentError if the certificate is not valid, no site is listed, the
    port is in use, another process runs this link, or one of its programs does not start or ends.
    """
    problem = federation.certificate_problem()
    if problem:
        raise DeploymentError(problem)
    if not federation.sites:
        raise DeploymentError(
            f"{federation.folder / 'federation.toml'}: 'sites' is empty, so no site could join; "
            'name the sites in it, as in sites = ["hospital-a", "hospital-b"]'
        )
    with (
        hold_supervisor_lock(federation.link_folder, what="the link") as announce,
        stop_children_at_exit() as children,
    ):
        if not federation.address.is_free():
            raise DeploymentError(
                f"port {federation.address.port} of this machine is in use; stop the program that "
                f"listens there, or change the address in {federation.folder / 'federation.toml'}"
            )
        inner = Address(host=LOOPBACK, port=free_port())
        _write_connection(federation, inner)
        _empty(federation.replies_due_folder)
        _start(children, federation, "Flower's link", link_command(federation, inner), inner)
        with open_control(str(inner), federation.authority) as control:
            refused = register_sites(federation, control)
        _start(
            children, federation, "the link's executor", executor_command(federation, inner), inner
        )
        gate = Address(host="localhost", port=federation.address.port)
        _start(children, federation, "the link's gate", gate_command(federation, inner), gate)
        announce({"control": str(inner), "warnings": refused})
        on_ready(refused)
        try:
            watch(children)
        except SystemExit:
            _stop_runs(inner, federation.authority)
            raise


def link_command(federation: Federation, inner: Address) -> list[str]:
    """Return the command of a SuperLink that listens on this machine only."""
    return [
        *(sys.executable, "-m", "sottovoce.flower.superlink"),
        *("--host", inner.host, "--port", str(inner.port)),
        *("--ssl-ca-certfile", str(federation.authority)),
        *("--ssl-certfile", str(federation.certificate)),
        *("--ssl-keyfile", str(federation.certificate_key)),
        *("--database", str(federation.link_folder / "flower.sqlite")),
        *("--isolation", "process"),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]


def executor_command(federation: Federation, inner: Address) -> list[str]:
    """Return the command of the executor that starts the ServerApps of runs."""
    return [
        *(sys.executable, "-m", "sottovoce.flower.executor"),
        *("--runtime-api-address", str(inner)),
        *("--root-certificates", str(federation.authority)),
    ]


def gate_command(federation: Federation, inner: Address) -> list[str]:
    """Return the command of the gate, which passes sites' calls to the SuperLink at `inner`."""
    return [
        *(sys.executable, "-m", "sottovoce.flower.gate"),
        *(str(federation.folder), str(inner)),
    ]


def register_sites(federation: Federation, control: Control) -> list[str]:
    """Register the sites' keys at the SuperLink; return a sentence for each key that it refuses.

    Keys of sites that are no longer listed stay registered, because Flower never accepts a key
    again after it was unregistered, and a typing error in `sites` must not cost a site its key.
    Such keys give no access: the gate admits only listed sites, and servers ask only nodes with
    their keys.
    """
    known = {node.public_key for node in control.nodes()}
    refused = []
    for name, key in flower_keys(federation).items():
        if key in known:
            continue
        try:
            control.register(name, key)
        except DeploymentError as error:
            refused.append(
                f"the key of '{name}' was not accepted ({error}), so it cannot take part; the "
                "other sites can. An earlier version may have unregistered the key, and Flower "
                "never accepts such a key again. Ask the site to create a new folder with "
                "'sottovoce deploy join', to move its ledger there with 'sottovoce ledger move OLD "
                "NEW', and to copy the policy of its site.toml; then move "
                f"{federation.public_key_path(name)} away and add the new key with 'sottovoce "
                f"deploy certificates {federation.folder} --add {name} node.pub'"
            )
    return refused


def flower_keys(federation: Federation) -> dict[str, bytes]:
    """Return the public keys that the operator has of sites, by site name, in Flower's format."""
    return {site: certificates.to_flower_key(key) for site, key in federation.public_keys().items()}


@contextmanager
def running_link(federation: Federation) -> Iterator[Control]:
    """Open the control interface of a link; raise DeploymentError if the link is not ready."""
    state = state_of(federation.link_folder)
    if not state or not state["ready"]:
        raise DeploymentError(
            f"the link is not running; start it with 'sottovoce deploy link {federation.folder}'"
        )
    with open_control(state["control"], federation.authority) as control:
        yield control


def flower_home(federation: Federation) -> Path:
    """Return the folder of Flower's own configuration for this link; it may not exist yet."""
    return federation.link_folder / "flower"


def _start(
    children: list[Child], federation: Federation, name: str, command: list[str], serves: Address
) -> None:
    """Start a program and wait until it answers."""
    child = Child.start(
        name,
        command,
        log=federation.link_folder / f"{name.split()[-1]}.log",
        environment={
            **processes.environment(flower_home(federation)),
            FOLDER_VARIABLE: str(federation.replies_due_folder),
        },
    )
    children.append(child)
    wait_until(
        lambda: _is_healthy(serves, federation.authority),
        children,
        what=f"{name} did not answer",
        timeout_seconds=START_SECONDS,
    )


def _stop_runs(inner: Address, authority: Path) -> None:
    """Stop all active runs, for which the SuperLink would wait and which it would list for ever."""
    with suppress(DeploymentError), open_control(str(inner), authority) as control:
        for run in control.runs():
            if not run.has_ended:
                control.stop_run(run.run_id)


def traffic_of(federation: Federation) -> tuple[int, int] | None:
    """Return the bytes from sites and to sites since the gate started; None without an answer."""
    gate = Address(host="localhost", port=federation.address.port)
    try:
        with _client(federation.authority) as client:
            counted = client.get(f"https://{gate}{TRAFFIC_PATH}").raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        return None
    return counted["up"], counted["down"]


def _is_healthy(address: Address, authority: Path) -> bool:
    try:
        with _client(authority) as client:
            return client.get(f"https://{address}/health").is_success
    except httpx.HTTPError:
        return False


def _client(authority: Path) -> httpx.Client:
    context = ssl.create_default_context(cafile=str(authority))
    return httpx.Client(verify=context, timeout=_HEALTH_SECONDS, trust_env=False)


def _empty(folder: Path) -> None:
    """Create a folder, or delete the files that servers of an earlier link have left there."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()


def _write_connection(federation: Federation, inner: Address) -> None:
    """Write Flower's configuration, so that `flwr` finds this link."""
    home = flower_home(federation)
    home.mkdir(mode=0o700, exist_ok=True)
    text = (
        f'[superlink]\ndefault = "{CONNECTION}"\n\n'
        f'[superlink.{CONNECTION}]\naddress = "{inner}"\n'
        f"root-certificates = {json.dumps(str(federation.authority))}\n"
    )
    files.write_atomic(home / "config.toml", text.encode(), mode=0o600)
