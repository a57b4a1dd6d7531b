"""Questions and orders to a running link, through the same interface that `flwr` uses.

Calls of a site to its link, next to those of Flower's node: standing, goodbye, the time.
"""

import contextlib
import email.utils
import os
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE
from flwr.common.serde import run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StopRunRequest,
)
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.machines import certificates
from sottovoce.deployment.machines.address import Address
from sottovoce.deployment.machines.certificates import read_node_key
from sottovoce.deployment.machines.processes import without_proxy

_TIMEOUT_SECONDS = 10.0
_DATE_SECONDS = 1.0  # how far the time in an answer's header may be off, either way


class LinkVerdict(Enum):
    """What the link says to a call that is signed with a site's key."""

    KNOWN = "the link knows the key"
    UNKNOWN = "the link does not know the key"
    CLOCK = "the link refuses the time at which the call was signed"
    AWAY = "the link does not answer"


def link_verdict(address: Address, authority: Path, private_key: Path) -> LinkVerdict:
    """Whether the link takes calls that are signed with this key; changes nothing there."""
    key = read_node_key(private_key)
    # Flower's link looks for the key first, and then refuses this interval.
    request = ActivateNodeRequest(
        public_key=certificates.as_flower_knows_it(key.public_key()), heartbeat_interval=-1.0
    )
    try:
        with _client(address, authority, key) as client:
            client.ActivateNode(request)
    except httpx.HTTPStatusError as error:
        said = FlowerError.from_json(error.response.text)
        if said and said.code == ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL:
            return LinkVerdict.KNOWN
        refused = error.response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
        if refused and _is_off(seconds_ahead(address, authority)):
            return LinkVerdict.CLOCK
        if refused or (said and said.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED):
            return LinkVerdict.UNKNOWN
        return LinkVerdict.AWAY
    except httpx.HTTPError:
        return LinkVerdict.AWAY
    return LinkVerdict.KNOWN


def deactivate(node_id: int, address: Address, authority: Path, private_key: Path) -> bool:
    """Take a node offline; False if the link is away, and so did not hear it.

    A link that has forgotten the node already is as good.
    """
    try:
        with _client(address, authority, read_node_key(private_key)) as client:
            client.DeactivateNode(DeactivateNodeRequest(node_id=node_id))
    except httpx.HTTPStatusError as error:
        return FlowerError.from_json(error.response.text) is not None
    except httpx.HTTPError:
        return False
    return True


# -- the time ---------------------------------------------------------------------------------


def seconds_ahead(address: Address, authority: Path | None) -> float | None:
    """How far this machine's clock is ahead of the link's, to a second; None if nobody answers."""
    context = ssl.create_default_context(cafile=str(authority)) if authority else True
    scheme = "https" if authority else "http"
    asked = time.time()
    try:
        with httpx.Client(verify=context, timeout=_TIMEOUT_SECONDS, trust_env=False) as client:
            said = client.get(f"{scheme}://{address}/health").headers.get("date")
        link = email.utils.parsedate_to_datetime(said or "").timestamp()
    except (httpx.HTTPError, ValueError):
        return None
    # The header counts whole seconds and is renewed once a second: it is one behind on average.
    return (asked + time.time()) / 2 - (link + _DATE_SECONDS)


def clock_problem(ahead: float | None, *, certain: bool = True) -> str | None:
    """Why the link refuses what is signed by this machine's clock; None if it does not.

    Unless `certain`, also if it might: a signature counts from 5 s before to 305 s after its time.
    """
    if ahead is None or not _is_off(ahead, margin=_DATE_SECONDS if certain else -_DATE_SECONDS):
        return None
    where = "ahead of" if ahead > 0 else "behind"
    return (
        f"this machine's clock is {abs(ahead):.0f} s {where} the link's, which refuses what is "
        "signed at such a time; correct it, for example with NTP (timedatectl set-ntp true)"
    )


def _is_off(ahead: float | None, margin: float = -_DATE_SECONDS) -> bool:
    latest = TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
    return ahead is not None and not (-latest - margin < ahead < SYSTEM_TIME_TOLERANCE + margin)


# -- parts ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _client(
    address: Address, authority: Path, key: ec.EllipticCurvePrivateKey
) -> Iterator[FleetHttpClient]:
    with FleetHttpClient.from_server_address(
        str(address),
        False,
        authority.read_bytes(),
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="sottovoce"),
            NodeAuthHttpInterceptor(key, key.public_key()),
        ],
    ) as client:
        yield client


_STATES = {"registered": "never seen", "online": "online", "offline": "offline"}


_SILENT = "No heartbeat"  # Flower's words for a process that it has not heard of for a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """A site as the link sees it. The link notices a site that dies after about a minute."""

    name: str
    node_id: int
    public_key: bytes
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A run as the link sees it: `state` is pending, starting, running, or finished:HOW."""

    run_id: int
    state: str
    details: str

    @property
    def has_ended(self) -> bool:
        return self.state.startswith("finished")

    @property
    def was_stopped(self) -> bool:
        return self.state == "finished:stopped"

    @property
    def failure(self) -> str | None:
        """Why the run failed, as far as the link knows; None if it did not."""
        if self.state != "finished:failed":
            return None
        if self.details.startswith(_SILENT):
            return "the server's process has died, or its machine stood still"
        reason = self.details.removeprefix("ServerApp failed with exception: ")
        return reason or "for a reason unknown"


class Control:
    """The link's control interface, which only the link's own machine can reach."""

    def __init__(self, client: ControlHttpClient) -> None:
        self._client = client

    def nodes(self) -> list[NodeStatus]:
        """The sites that are registered."""
        with _explained():
            found = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [
            NodeStatus(
                name=node.name,
                node_id=node.node_id,
                public_key=node.public_key,
                state=_STATES[node.status],
            )
            for node in found
            if node.status in _STATES
        ]

    def register(self, name: str, public_key: bytes) -> int:
        with _explained():
            request = RegisterNodeRequest(public_key=public_key, name=name)
            return int(self._client.RegisterNode(request).node_id)

    def runs(self) -> list[RunStatus]:
        """All runs that the link remembers, the oldest first."""
        with _explained():
            found = self._client.ListRuns(ListRunsRequest()).run_dict.values()
        runs = sorted((run_from_proto(run) for run in found), key=lambda run: run.pending_at)
        return [_run_status(run) for run in runs]

    def run(self, run_id: int) -> RunStatus:
        with _explained():
            found = self._client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict
        return _run_status(run_from_proto(found[run_id]))

    def stop_run(self, run_id: int) -> bool:
        with _explained():
            return bool(self._client.StopRun(StopRunRequest(run_id=run_id)).success)


def _run_status(run: Any) -> RunStatus:
    parts = [run.status.status, run.status.sub_status]
    return RunStatus(
        run_id=run.run_id, state=":".join(filter(None, parts)), details=run.status.details
    )


@contextlib.contextmanager
def connected(address: str, authority: Path) -> Iterator[Control]:
    """The control interface of the link at `address`, an address of this machine."""
    os.environ.update(without_proxy())
    client = ControlHttpClient.from_server_address(
        address,
        insecure=False,
        root_certificates=authority.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="sottovoce")],
    )
    try:
        yield Control(client)
    finally:
        client.close()


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPStatusError as error:
        said = FlowerError.from_json(error.response.text)
        raise DeploymentError(f"the link refused: {said.message if said else error}") from None
    except httpx.HTTPError as error:
        raise DeploymentError(f"the link does not answer: {error}") from None
