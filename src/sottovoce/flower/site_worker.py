"""The process of a site that answers: the *installed* code, never what a run brings along.

A SuperNode hands tasks to whoever asks for them. Flower's own executor installs the app bundle of
the run's submitter and runs that; a site could not rely on any policy inside it. This one leaves
the bundle alone. It stays alive from task to task, so a round does not wait for imports.

An app that the site itself has installed may train, with the site's own mod before it. A mod inside
an app is there if the app's author wants it to be. Here the site puts it around the app, so nothing
leaves but what `private_mod` lets out, whatever the app does.
"""

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import httpx
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from sottovoce.core import printable_text
from sottovoce.core.errors import PolicyError
from sottovoce.deployment.orders import ORDER, REFUSED
from sottovoce.flower.client import Answer, SiteOf
from sottovoce.flower.mod import private_mod
from sottovoce.flower.records import RECORD


def with_installed_app(ours: Answer, site_of: SiteOf) -> Answer:
    """Our own answers to orders; to whatever else, those of the site's app, if it names one."""

    def answer(message: Message, context: Context) -> Message:
        record = message.content.config_records.get(RECORD)
        order = record is not None and ORDER in record
        if order or message.metadata.message_type == "query":
            return ours(message, context)  # without a site it refuses, and says so
        app = site_of(context).app
        if app is None:
            return ours(message, context)
        return private_mod(message, context, _installed(app))

    return answer


@lru_cache(maxsize=1)
def _installed(reference: str) -> ClientApp:
    module, _, attribute = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise PolicyError(f"the site's app '{reference}' cannot be loaded: {error}") from None
    if not isinstance(found, ClientApp):
        raise PolicyError(f"the site's app '{reference}' is no ClientApp")
    if private_mod in found._mods:
        raise PolicyError(f"the site's app '{reference}' has private_mod already; take it out")
    return found


_LOG = printable_text.logger()
# Often while a run is on; a node without work should not keep a machine busy.
_POLL_SECONDS = 0.1
_IDLE_POLL_SECONDS = 1.0
_BUSY_SECONDS = 60.0
_AGAIN_SECONDS = 1.0
_OVERDUE = 3  # the exit status of a worker that ends itself

Client = TypeVar("Client", bound=RuntimeHttpClient)


def serve(
    runtime_address: str,
    answer: Answer,
    stopped: threading.Event,
    *,
    longest_seconds: float,
    after_failure: Callable[[], None] = lambda: None,
) -> None:
    """Answer the tasks of the SuperNode at `runtime_address`, one at a time, until `stopped`.

    A task that cannot be handed back is an error that ends the worker, and so is one that takes
    longer than the site allows: the SuperNode would wait for it for ever, so the node's keeper
    starts both again. `after_failure` is called after an answer that is an error or a refusal,
    and ends the worker by raising.
    """
    waiting = _client(RuntimeHttpClient, runtime_address)
    token = ""
    last_task = time.monotonic()
    try:
        while not stopped.is_set():
            try:
                token = token or _next_task(waiting)
            except httpx.TransportError:  # not up yet, or about to be started again
                stopped.wait(_AGAIN_SECONDS)
                continue
            if not token:
                busy = time.monotonic() - last_task < _BUSY_SECONDS
                stopped.wait(_POLL_SECONDS if busy else _IDLE_POLL_SECONDS)
                continue
            client = _client(_TaskClient, runtime_address, token)
            client.patience = _Patience(waiting, stopped)
            try:
                with _limited(longest_seconds):
                    failed = _run(client, answer)
                token = ""
                if failed:
                    after_failure()
            except _ForsakenError as error:
                _LOG.warning("an order never came whole: its run was stopped, or its link")
                push_task_output(client, None, SubStatus.FAILED, "the order never came whole")
                token = error.next_token
            finally:
                client.close()
            last_task = time.monotonic()
    finally:
        waiting.close()


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """End this process if the block takes longer: nothing else stops a computation."""
    timer = threading.Timer(seconds, _give_up, [seconds])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(seconds: float) -> None:
    _LOG.error(
        "an order took more than %g seconds; nothing was sent, the node begins anew", seconds
    )
    os._exit(_OVERDUE)


def _next_task(client: RuntimeHttpClient) -> str:
    """The token of the next task; empty if there is none."""
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    found = client.AcquireTask(request)
    return str(found.token) if found.HasField("task") else ""


def _run(client: RuntimeHttpClient, answer: Answer) -> bool:
    """Answer a task; True if the answer is an error or a refusal."""
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
        return bool(reply.has_error()) or REFUSED in reply.content.config_records.get(RECORD, {})
    finally:
        if heartbeat.is_running:
            heartbeat.stop()


class _ForsakenError(Exception):
    """A task whose order the SuperNode will never have whole; `next_token` is the task after it."""

    def __init__(self, next_token: str) -> None:
        super().__init__(next_token)
        self.next_token = next_token


@dataclass(frozen=True, slots=True)
class _Patience:
    """How long to wait for the rest of an order: until there is another task, or the end.

    A SuperNode takes one order at a time. When a run ends while an order of it is on its way, the
    SuperNode forgets it, but not its task: only the next order shows that.
    """

    waiting: RuntimeHttpClient
    stopped: threading.Event

    def wait(self) -> None:
        token = _next_task(self.waiting)
        if token or self.stopped.wait(_POLL_SECONDS):
            raise _ForsakenError(token)


class _TaskClient(RuntimeHttpClient):
    """Looks for the parts of an order often; Flower's own client waits for a second or more."""

    patience: _Patience

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
        while True:
            response = super().PullObject(request)
            if not response.object_found or response.object_available:
                return response
            self.patience.wait()


def _is_alive(client: RuntimeHttpClient) -> bool:
    """Tell the SuperNode that its task is being worked on."""
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.HTTPError:
        return False
    return True


def _client(kind: type[Client], runtime_address: str, token: str = "") -> Client:
    """Calls that fail at once: Flower's own retries would interrupt this process."""
    interceptors: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
    ]
    if token:
        interceptors.append(RuntimeTokenHttpInterceptor(token))
    return kind.from_server_address(
        server_address=runtime_address,
        insecure=True,  # loopback: the SuperNode is on this machine
        root_certificates=None,
        interceptors=interceptors,
    )
