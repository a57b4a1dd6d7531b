"""A site's processes: Flower's SuperNode, and the worker that answers it with installed code."""

import contextlib
import re
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.machines import processes
from sottovoce.deployment.machines.address import LOOPBACK, Address, free_port
from sottovoce.deployment.machines.processes import (
    Child,
    ChildEndedError,
    hold_supervisor_lock,
    stop_children_at_exit,
    wait_until,
)
from sottovoce.deployment.machines.restarts import restart_pauses
from sottovoce.deployment.machines.site_folder import SiteFolder
from sottovoce.deployment.site import LEDGER_LOST, read_site
from sottovoce.flower.control import (
    LinkVerdict,
    clock_offset_seconds,
    clock_problem,
    deactivate,
    link_verdict,
)
from sottovoce.flower.witness_endpoint import check_at_start

START_SECONDS = 180.0
_CONNECT_SECONDS = 20.0
# A SuperLink considers a node that was cut off as online for two heartbeats and refuses its next
# start, unless it is told (`_deactivate`).
_FORGET_SECONDS = 75.0
_AGAIN_SECONDS = 5.0
_NODE = "sottovoce.flower.supernode"
_WORKER = "sottovoce.flower.worker"
_CONNECTED = b"SuperNode ID: "
_NODE_ID = re.compile(_CONNECTED + rb"([0-9]+)")
_REFUSED = b"[code: 2004]"


def keep_node(site: SiteFolder, *, on_ready: Callable[[bool], None]) -> None:
    """Run a site's node until a signal ends it; `on_ready` gets whether the link was reached.

    `on_ready` is called once, after the first start. If the link is away, the node waits for it.
    Raises a SottovoceError if the policy, the ledger, the audit log or the clock does not allow a
    start, if the link refuses this site, or if the node ends soon after six starts in a row. If the
    worker or the SuperNode ends by itself, both are restarted: a SuperNode without a worker
    would take orders and answer none, and one whose worker has died waits a minute for an answer
    that never comes.
    """
    problem = (
        site.policy_problem()
        or site.ledger_problem()
        or site.link_problem()
        or clock_problem(clock_offset_seconds(site.address, site.root_certificate))
    )
    if problem:
        raise DeploymentError(problem)
    # Report at once what would stop the worker: a policy that cannot be read, an outdated ledger,
    # or an audit log that cannot be written.
    found = read_site(site.file)
    check_at_start(found, site.address)
    if found.audit_log is not None:
        found.audit_log.check_writable()
    try:
        with (
            hold_supervisor_lock(site.node_folder, what=f"the node of '{site.name}'") as announce,
            stop_children_at_exit() as children,
        ):
            runtime = Address(host=LOOPBACK, port=free_port())
            connected = _start(site, runtime, children)
            announce({"runtime": str(runtime), "connected": connected})
            on_ready(connected)
            for pause_seconds in restart_pauses(children, lambda: _lost_ledger(site, children)):
                time.sleep(pause_seconds)
                # A child that is killed while it starts is restarted like any other.
                with contextlib.suppress(ChildEndedError):
                    _start(site, runtime, children)
    except SystemExit:  # A regular end: the SuperNode has deactivated itself if it could.
        _deactivate(site)
        raise


def _start(site: SiteFolder, runtime: Address, children: list[Child]) -> bool:
    """Start the SuperNode and the worker; return whether the link has accepted the node."""
    if _online_marker(site).exists():
        _deactivate(site)
    connected = _connect(site, runtime, children)
    _online_marker(site).write_bytes(_node_id(site))
    command = [sys.executable, "-m", _WORKER, str(runtime), str(site.file)]
    children.append(_child(site, "worker", command))
    return connected


def _deactivate(site: SiteFolder) -> None:
    """Tell the link that no node of this site is running, so that it accepts the next one at once.

    This is needed where the SuperNode could not tell it, because it was killed or the link was
    away. If the link is away now as well, the next start tells it.
    """
    node_id = _node_id(site)
    authority, key = site.root_certificate, site.private_key
    heard = (
        not node_id
        or authority is None
        or key is None
        or (_listens(site.address) and deactivate(int(node_id), site.address, authority, key))
    )
    if heard:
        _online_marker(site).unlink(missing_ok=True)
    else:
        _online_marker(site).write_bytes(node_id)


def _node_id(site: SiteFolder) -> bytes:
    """Return the last node id that the link gave this site; empty if there is none."""
    log, online = _log(site, "node"), _online_marker(site)
    said = _NODE_ID.search(log.read_bytes()) if log.exists() else None
    return said[1] if said else online.read_bytes() if online.exists() else b""


def _lost_ledger(site: SiteFolder, children: list[Child]) -> str | None:
    """Return why the site must stop, if its worker has ended because of its ledger."""
    lost = any(child.process.returncode == LEDGER_LOST for child in children)
    return site.ledger_problem() if lost else None


def _connect(site: SiteFolder, runtime: Address, children: list[Child]) -> bool:
    """Start the SuperNode; return whether the link accepted it, False if the link is away."""
    patience_ends = time.monotonic() + _FORGET_SECONDS
    told = False
    while True:
        children[:] = [_child(site, "node", node_command(site, runtime))]
        try:
            return _wait_for_link(site, runtime, children)
        except DeploymentError:
            problem = _refusal(site)
            if problem:
                raise DeploymentError(problem) from None
            if _REFUSED not in _log(site, "node").read_bytes():
                raise
        if time.monotonic() > patience_ends:
            raise DeploymentError(
                f"the link at {site.address} refuses '{site.name}': another node with the key in "
                f"{site.folder / 'node.pub'} is online. Each key is for one folder on one machine: "
                "stop the other node, or create a separate folder with 'deploy join'"
            )
        if not told:
            print(
                f"the link still lists an earlier node of '{site.name}' as online; trying again "
                f"for up to {_FORGET_SECONDS:.0f} s",
                file=sys.stderr,
                flush=True,
            )
            told = True
        time.sleep(_AGAIN_SECONDS)


def _refusal(site: SiteFolder) -> str | None:
    """Return why the link would refuse every node of this site; None if it would not or is away."""
    if site.root_certificate is None or site.private_key is None:
        return None
    match link_verdict(site.address, site.root_certificate, site.private_key):
        case LinkVerdict.CLOCK:
            ahead = clock_offset_seconds(site.address, site.root_certificate)
            return clock_problem(ahead, certain=False)
        case LinkVerdict.UNKNOWN:
            return (
                f"the link at {site.address} refuses '{site.name}': it does not know the key in "
                f"{site.folder / 'node.pub'}. Ask the operator to add it with 'sottovoce deploy "
                f"certificates DIR --add {site.name} node.pub'"
            )
        case LinkVerdict.KNOWN | LinkVerdict.AWAY:
            return None


def _wait_for_link(site: SiteFolder, runtime: Address, children: list[Child]) -> bool:
    """Return whether the link accepts the node now; raise if the node ends instead."""
    away = time.monotonic() + _CONNECT_SECONDS
    wait_until(
        lambda: _is_connected(site) or (_listens(runtime) and time.monotonic() > away),
        children,
        what="the node did not start",
        timeout_seconds=START_SECONDS,
    )
    return _is_connected(site)


def node_command(site: SiteFolder, runtime: Address) -> list[str]:
    """Return the command of the SuperNode, which starts no apps: their code comes with the run."""
    trust = (
        ["--insecure"]
        if site.root_certificate is None
        else [
            *("--root-certificates", str(site.root_certificate)),
            *("--auth-supernode-private-key", str(site.private_key)),
        ]
    )
    return [
        *(sys.executable, "-m", _NODE),
        *("--superlink", str(site.address)),
        *("--isolation", "process"),
        *("--host", runtime.host, "--port", str(runtime.port)),
        *trust,
    ]


def _child(site: SiteFolder, name: str, command: list[str]) -> Child:
    return Child.start(
        f"the {name} of '{site.name}'",
        command,
        log=_log(site, name),
        environment=processes.environment(site.node_folder / "flower"),
    )


def _online_marker(site: SiteFolder) -> Path:
    """Return the file that exists while the link may believe that the node is online."""
    return site.node_folder / "online"


def _log(site: SiteFolder, name: str) -> Path:
    return site.node_folder / f"{name}.log"


def _listens(address: Address) -> bool:
    try:
        with socket.create_connection((address.host, address.port), timeout=1.0):
            return True
    except OSError:
        return False


def _is_connected(site: SiteFolder) -> bool:
    return _CONNECTED in _log(site, "node").read_bytes()
