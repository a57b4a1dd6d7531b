"""Questions and orders to a running link, through the same interface that `flwr` uses."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.common.serde import run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StopRunRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.machines.processes import without_proxy

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
