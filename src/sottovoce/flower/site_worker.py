"""The process of a site that answers tasks with *installed* code, never with code from a run.

A SuperNode hands tasks to any process that asks for them. Flower's own executor installs and runs
the app bundle of the run's submitter, and a site could not rely on any policy inside it. This
worker ignores the bundle. It stays alive between tasks, so a round does not wait for imports.

A site may name an app of its own that it has installed. The site puts `private_mod` around it, so
only what the mod allows leaves the site, whatever the app does; a mod inside the app would be there
only if the app's author wanted it.
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
from sottovoce.deployment.masked_orders import STEP
from sottovoce.deployment.orders import ORDER, REFUSED
from sottovoce.flower.client import Handler, SiteOf
from sottovoce.flower.mod import private_mod
from sottovoce.flower.node_messages import ANNOUNCED
from sottovoce.flower.records import RECORD


def with_installed_app(ours: Handler, site_of: SiteOf) -> Handler:
    """Return a handler that calls `ours` for orders and queries, and the site's app otherwise.

    The app is called inside `private_mod`. If the site has no app of its own, `ours` is called for
    every message.
    """

    def answer(message: Message, context: Context) -> Message:
        record = message.content.config_records.get(RECORD)
        order = record is not None and not {ORDER, STEP, ANNOUNCED}.isdisjoint(record)
        if order or message.metadata.message_type == "query":
            return ours(message, context)  # Without a site it refuses with a reason.
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
        raise PolicyError(
            f"the site's app '{reference}' cannot be loaded: {error}; correct 'app' in site.toml"
        ) from None
    if not isinstance(found, ClientApp):
        raise PolicyError(
            f"the site's app '{reference}' must be a ClientApp, got a {type(found).__name__}"
        )
    if private_mod in found._mods:
        raise PolicyError(
            f"the site's app '{reference}' must not contain private_mod, because the site adds it; "
            "remove it from the app's mods"
        )
    return found


_LOG = printable_text.logger()
# Polls are frequent while a run is active, and rare otherwise to leave an idle machine idle.
_POLL_SECONDS = 0.1
_IDLE_POLL_SECONDS = 1.0
_BUSY_SECONDS = 60.0
_AGAIN_SECONDS = 1.0
_OVERDUE = 3  # Exit status of a worker that took too long.

Client = TypeVar("Client", bound=RuntimeHttpClient)


def serve(
    runtime_address: str,
    answer: Handler,
    stopped: threading.Event,
    *,
    longest_seconds: float,
    after_failure: Callable[[], None] = lambda: None,
) -> None:
    """Answer the tasks of the SuperNode at `runtime_address`, one at a time, until `stopped`.

    A task that cannot be handed back ends the worker with an error, and so does one that takes
    longer than `longest_seconds`: the SuperNode would wait for it for ever, so the parent process
    restarts both. `after_failure` is called after an answer that is an error or a refusal, and may
    raise to end the worker.
    """
    waiting = _client(RuntimeHttpClient, runtime_address)
    token = ""
    last_task = time.monotonic()
    try:
        while not stopped.is_set():
            try:
                token = token or _next_task(waiting)
            except httpx.TransportError:  # Not started yet, or about to be restarted.
                stopped.wait(_AGAIN_SECONDS)
                continue
            if not token:
                busy = time.monotonic() - last_task < _BUSY_SECONDS
                stopped.wait(_POLL_SECONDS if busy else _IDLE_POLL_SECONDS)
                continue
            client = _client(_TaskClient, runtime_address, token)
            client.pause = _MessageWait(waiting, stopped)
            try:
                with _limited(longest_seconds):
                    failed = _run(client, answer)
                token = ""
                if failed:
                    after_failure()
            except _AbandonedTaskError as error:
                _LOG.warning("an order arrived only in part: its run or its link was stopped")
                push_task_output(client, None, SubStatus.FAILED, "the order arrived only in part")
                token = error.next_token
            finally:
                client.close()
            last_task = time.monotonic()
    finally:
        waiting.close()


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """End this process if the block takes longer; a computation cannot be stopped otherwise."""
    timer = threading.Timer(seconds, _give_up, [seconds])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(seconds: float) -> None:
    _LOG.error(
        "an order took more than %g seconds; nothing was sent, and the node restarts", seconds
    )
    os._exit(_OVERDUE)


def _next_task(client: RuntimeHttpClient) -> str:
    """Return the token of the next task; empty if there is none."""
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    found = client.AcquireTask(request)
    return str(found.token) if found.HasField("task") else ""


def _run(client: RuntimeHttpClient, answer: Handler) -> bool:
    """Answer a task; return whether the answer is an error or a refusal."""
    heartbeat = HeartbeatSender(lambda: _is_alive(client))
    heartbeat.start()
    try:
        message, context, _, _bundle = pull_task_input(client)
        status, details = SubStatus.COMPLETED, ""
        try:
            reply = answer(message, context)
        except Exception:
            # The exception may depend on the data, so only the log gets it.
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


class _AbandonedTaskError(Exception):
    """A task whose message will never arrive completely; `next_token` is the task after it."""

    def __init__(self, next_token: str) -> None:
        super().__init__(next_token)
        self.next_token = next_token


@dataclass(frozen=True, slots=True)
class _MessageWait:
    """The wait for the rest of a message: until there is another task, or the worker is stopped.

    A SuperNode takes one message at a time. If a run ends while a message of it arrives, the
    SuperNode forgets the message but not its task, which only the next task reveals.
    """

    waiting: RuntimeHttpClient
    stopped: threading.Event

    def wait(self) -> None:
        """Wait a little; raise if the message will never arrive completely."""
        token = _next_task(self.waiting)
        if token or self.stopped.wait(_POLL_SECONDS):
            raise _AbandonedTaskError(token)


class _TaskClient(RuntimeHttpClient):
    """A client that polls often for the parts of a message; Flower's own waits a second."""

    pause: _MessageWait

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
        """Return a part of a message, once it is available."""
        while True:
            response = super().PullObject(request)
            if not response.object_found or response.object_available:
                return response
            self.pause.wait()


def _is_alive(client: RuntimeHttpClient) -> bool:
    """Tell the SuperNode that its task is in progress."""
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.HTTPError:
        return False
    return True


def _client(kind: type[Client], runtime_address: str, token: str = "") -> Client:
    """Return a client without retries; Flower's own retries would interrupt this process."""
    interceptors: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
    ]
    if token:
        interceptors.append(RuntimeTokenHttpInterceptor(token))
    return kind.from_server_address(
        server_address=runtime_address,
        insecure=True,  # The SuperNode is on this machine.
        root_certificates=None,
        interceptors=interceptors,
    )
