"""The process of a site that answers: the *installed* code, never what a run brings along.

A SuperNode hands tasks to whoever asks for them. Flower's own executor installs the app bundle of
the run's submitter and runs that; a site could not rely on any policy inside it. This one leaves
the bundle alone. It stays alive from task to task, so a round does not wait for imports.
"""

import logging
import threading
import time
from collections.abc import Callable

import httpx
from flwr.app import Context, Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

_LOG = logging.getLogger("sottovoce")
# Often while a run is on; a node without work should not keep a machine busy.
_POLL_SECONDS = 0.1
_IDLE_POLL_SECONDS = 1.0
_BUSY_SECONDS = 60.0
_AGAIN_SECONDS = 1.0

Answer = Callable[[Message, Context], Message]


def serve(runtime_address: str, answer: Answer, stopped: threading.Event) -> None:
    """Answer the tasks of the SuperNode at `runtime_address`, one at a time, until `stopped`.

    A task that cannot be handed back is an error that ends the worker: the SuperNode would wait for
    it for ever, so the node's keeper starts both again.
    """
    waiting = _client(runtime_address)
    last_task = time.monotonic()
    try:
        while not stopped.is_set():
            try:
                found = waiting.AcquireTask(
                    AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
                )
            except httpx.TransportError:  # not up yet, or about to be started again
                stopped.wait(_AGAIN_SECONDS)
                continue
            if found.HasField("task") and found.token:
                _run(runtime_address, found.token, answer)
                last_task = time.monotonic()
            else:
                busy = time.monotonic() - last_task < _BUSY_SECONDS
                stopped.wait(_POLL_SECONDS if busy else _IDLE_POLL_SECONDS)
    finally:
        waiting.close()


def _run(runtime_address: str, token: str, answer: Answer) -> None:
    client = _client(runtime_address, token)
    heartbeat = HeartbeatSender(lambda: _is_alive(client))
    heartbeat.start()
    try:
        message, context, _, _bundle = pull_task_input(client)
        status, details = SubStatus.COMPLETED, ""
        try:
            reply = answer(message, context)
        except Exception:
            # What went wrong may tell about the data: it stays here.
            _LOG.exception("a task failed")
            status, details = SubStatus.FAILED, "failed; see the site's log"
            reply = Message(
                Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=details), reply_to=message
            )
        push_message(client, reply, context)
        push_task_output(client, context, status, details)
    finally:
        if heartbeat.is_running:
            heartbeat.stop()
        client.close()


def _is_alive(client: RuntimeHttpClient) -> bool:
    """Tell the SuperNode that its task is being worked on."""
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.HTTPError:
        return False
    return True


def _client(runtime_address: str, token: str | None = None) -> RuntimeHttpClient:
    """Calls that fail at once: Flower's own retries would interrupt this process."""
    interceptors: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
    ]
    if token:
        interceptors.append(RuntimeTokenHttpInterceptor(token))
    return RuntimeHttpClient.from_server_address(
        server_address=runtime_address,
        insecure=True,  # loopback: the SuperNode is on this machine
        root_certificates=None,
        interceptors=interceptors,
    )
