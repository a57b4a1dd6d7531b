"""Calls to a running link: the control interface that `flwr` uses, and a site's calls.

A site asks whether the link accepts its key, takes its node offline, and compares clocks.
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
from sottovoce.deployment.machines.submitted_runs import RunStatus

_TIMEOUT_SECONDS = 10.0
_DATE_SECONDS = 1.0  # The error of the time in a response's header, in both directions.


class LinkVerdict(Enum):
    """The link's answer to a call that is signed with a site's key."""

    KNOWN = "the link knows the key"
    UNKNOWN = "the link does not know the key"
    CLOCK = "the link refuses the time at which the call was signed"
    AWAY = "the link does not answer"


def link_verdict(address: Address, authority: Path, private_key: Path) -> LinkVerdict:
    """Return whether the link accepts calls signed with this key; change nothing there.

    An answer that the function cannot interpret counts as `LinkVerdict.AWAY`.
    """
    key = read_node_key(private_key)
    # A SuperLink looks up the key first and then rejects this invalid interval.
    request = ActivateNodeRequest(
        public_key=certificates.to_flower_key(key.public_key()), heartbeat_interval=-1.0
    )
    try:
        with _client(address, authority, key) as client:
            client.ActivateNode(request)
    except httpx.HTTPStatusError as error:
        said = FlowerError.from_json(error.response.text)
        if said and said.code == ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL:
            return LinkVerdict.KNOWN
        refused = error.response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
        if refused and _is_off(clock_offset_seconds(address, authority)):
            return LinkVerdict.CLOCK
        if refused or (said and said.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED):
            return LinkVerdict.UNKNOWN
        return LinkVerdict.AWAY
    except httpx.HTTPError:
        return LinkVerdict.AWAY
    return LinkVerdict.KNOWN


def deactivate(node_id: int, address: Address, authority: Path, private_key: Path) -> bool:
    """Tell the link that a node is offline; return whether the link answered.

    A link that does not know the node any more counts as an answer.
    """
    try:
        with _client(address, authority, read_node_key(private_key)) as client:
            client.DeactivateNode(DeactivateNodeRequest(node_id=node_id))
    except httpx.HTTPStatusError as error:
        return FlowerError.from_json(error.response.text) is not None
    except httpx.HTTPError:
        return False
    return True


# -- clocks -----------------------------------------------------------------------------------


def clock_offset_seconds(address: Address, authority: Path | None) -> float | None:
    """Return the seconds that this machine's clock is ahead of the link's; None without an answer.

    The result is negative if the clock is behind, and accurate to about a second. Without an
    `authority` (the federation's ca.crt) the link is asked over plain HTTP.
    """
    context = ssl.create_default_context(cafile=str(authority)) if authority else True
    scheme = "https" if authority else "http"
    asked = time.time()
    try:
        with httpx.Client(verify=context, timeout=_TIMEOUT_SECONDS, trust_env=False) as client:
            said = client.get(f"{scheme}://{address}/health").headers.get("date")
        link = email.utils.parsedate_to_datetime(said or "").timestamp()
    except (httpx.HTTPError, ValueError):
        return None
    # The header has whole seconds and is refreshed once a second, so it lags by 1 s on average.
    return (asked + time.time()) / 2 - (link + _DATE_SECONDS)


def clock_problem(ahead: float | None, *, certain: bool = True) -> str | None:
    """Return why the link refuses signatures by this machine's clock; None if it does not.

    `ahead` is what `clock_offset_seconds` returned, with an error of about a second. The link
    accepts signatures of a clock that is at most 5 s ahead of its own or 305 s behind. With
    `certain` the text is returned only if the clock is certainly off, otherwise also if it may be.
    """
    if ahead is None or not _is_off(ahead, margin=_DATE_SECONDS if certain else -_DATE_SECONDS):
        return None
    where = "ahead of" if ahead > 0 else "behind"
    return (
        f"this machine's clock is {abs(ahead):.0f} s {where} the link's, which rejects signatures "
        "with such times; correct it, for example with NTP (timedatectl set-ntp true)"
    )


def _is_off(ahead: float | None, margin: float = -_DATE_SECONDS) -> bool:
    latest = TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
    return ahead is not None and not (-latest - margin < ahead < SYSTEM_TIME_TOLERANCE + margin)


# -- clients ----------------------------------------------------------------------------------


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


_ALL = 2**31 - 1  # runs; the most that the link's database takes as a limit
_SILENT = "No heartbeat"  # Flower's text for a process that was silent for a minute.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """A site as the link sees it; `state` is "never seen", "online" or "offline".

    The link notices about a minute late that a site has died.
    """

    name: str
    node_id: int
    public_key: bytes
    state: str


class Control:
    """The link's control interface, which only the link's own machine can reach.

    Every method raises DeploymentError if the link refuses a call or does not answer.
    """

    def __init__(self, client: ControlHttpClient) -> None:
        self._client = client

    def nodes(self) -> list[NodeStatus]:
        """Return the registered sites, online or not."""
        with _explain_errors():
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
        """Register a site's public key and return its node id."""
        with _explain_errors():
            request = RegisterNodeRequest(public_key=public_key, name=name)
            return int(self._client.RegisterNode(request).node_id)

    def runs(self) -> list[RunStatus]:
        """Return all runs that the link has stored, the oldest first."""
        with _explain_errors():
            # Without a limit Flower returns the newest 20 only.
            found = self._client.ListRuns(ListRunsRequest(limit=_ALL)).run_dict.values()
        runs = sorted((run_from_proto(run) for run in found), key=lambda run: run.pending_at)
        return [_run_status(run) for run in runs]

    def run(self, run_id: int) -> RunStatus:
        """Return the run with this id; raise DeploymentError if the link does not know it."""
        with _explain_errors():
            found = self._client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict
        return _run_status(run_from_proto(found[run_id]))

    def stop_run(self, run_id: int) -> bool:
        """Stop a run; return whether the link has stopped it."""
        with _explain_errors():
            return bool(self._client.StopRun(StopRunRequest(run_id=run_id)).success)


def _run_status(run: Any) -> RunStatus:
    parts = [run.status.status, run.status.sub_status]
    return RunStatus(
        run_id=run.run_id,
        state=":".join(filter(None, parts)),
        details=plain_details(run.status.details),
    )


def plain_details(details: str) -> str:
    """Return Flower's text about a run, possibly empty, as a reason for people."""
    if details.startswith(_SILENT):
        return "the server's process has died, or its machine was suspended"
    return details.removeprefix("ServerApp failed with exception: ")


@contextlib.contextmanager
def open_control(address: str, authority: Path) -> Iterator[Control]:
    """Open the control interface of the link at `address`, an address of this machine.

    The environment of this process is changed, so that no proxy is used.
    """
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
def _explain_errors() -> Iterator[None]:
    """Raise a DeploymentError for an HTTP error."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        said = FlowerError.from_json(error.response.text)
        raise DeploymentError(
            f"the link refused: {said.message if said else error}; see the .log "
            "files in link/ of the federation's folder"
        ) from None
    except httpx.HTTPError as error:
        raise DeploymentError(
            f"the link does not answer: {error}; check that it runs, with 'sottovoce deploy status'"
        ) from None
