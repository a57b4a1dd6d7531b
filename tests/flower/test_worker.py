"""A worker whose SuperNode holds half an order, is not up yet, or has given a task up."""

import os
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest
from flwr.app import Message
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import AcquireTaskResponse
from flwr.proto.task_pb2 import Task
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

from sottovoce.core.errors import LedgerLostError
from sottovoce.deployment.orders import refusal_blobs, reply_blobs
from sottovoce.flower import site_worker
from sottovoce.flower.records import to_records

ADDRESS = "127.0.0.1:1"  # nobody listens; every call is replaced
HALF = PullObjectResponse(object_found=True, object_available=False)
WHOLE = PullObjectResponse(object_found=True, object_available=True, object_content=b"order")
NO_TASK = AcquireTaskResponse()


def task(token: str) -> AcquireTaskResponse:
    return AcquireTaskResponse(task=Task(task_id=1), token=token)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_worker, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(site_worker, "_AGAIN_SECONDS", 0.001)


def answers(monkeypatch: pytest.MonkeyPatch, call: str, found: Iterator[Any]) -> None:
    """What the SuperNode answers to a call, one after the other; an exception is raised."""

    def answer(*_: object) -> Any:
        one = next(found)
        if isinstance(one, Exception):
            raise one
        return one

    monkeypatch.setattr(RuntimeHttpClient, call, answer)


def pull(stopped: threading.Event) -> PullObjectResponse:
    client = site_worker._client(site_worker._TaskClient, ADDRESS, "token")
    client.pause = site_worker._MessageWait(client, stopped)
    try:
        return client.PullObject(PullObjectRequest())
    finally:
        client.close()


def test_the_rest_of_an_order_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "PullObject", iter([HALF, HALF, WHOLE]))
    answers(monkeypatch, "AcquireTask", iter([NO_TASK, NO_TASK]))
    assert pull(threading.Event()) == WHOLE


def test_the_next_task_shows_that_an_order_is_forsaken(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "PullObject", iter([HALF, HALF, HALF]))
    answers(monkeypatch, "AcquireTask", iter([NO_TASK, task("next")]))
    with pytest.raises(site_worker._AbandonedTaskError) as error:
        pull(threading.Event())
    assert error.value.next_token == "next"


def test_who_is_told_to_stop_waits_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "PullObject", iter([HALF]))
    answers(monkeypatch, "AcquireTask", iter([NO_TASK]))
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(site_worker._AbandonedTaskError):
        pull(stopped)


def test_after_a_forsaken_task_comes_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()
    done: list[str] = []
    given_up: list[object] = []

    def run(client: site_worker._TaskClient, _: object) -> bool:
        if not done:
            done.append("forsaken")
            raise site_worker._AbandonedTaskError("next")
        done.append("answered")
        stopped.set()
        return False

    monkeypatch.setattr(site_worker, "_run", run)
    monkeypatch.setattr(site_worker, "push_task_output", lambda *said: given_up.append(said[-1]))
    away = httpx.ConnectError("not up yet")
    answers(monkeypatch, "AcquireTask", iter([away, NO_TASK, task("first")]))  # and no further
    site_worker.serve(ADDRESS, lambda message, _: message, stopped, longest_seconds=60.0)
    assert done == ["forsaken", "answered"]
    assert given_up == ["the order arrived only in part"]


def test_an_answer_that_is_an_error_may_end_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([False, True])
    monkeypatch.setattr(site_worker, "_run", lambda *_: next(failures))
    answers(monkeypatch, "AcquireTask", iter([task("first"), task("second")]))

    def stop() -> None:
        raise LedgerLostError("the ledger is gone")

    with pytest.raises(LedgerLostError, match="is gone"):
        site_worker.serve(
            ADDRESS,
            lambda message, _: message,
            threading.Event(),
            longest_seconds=60.0,
            after_failure=stop,
        )
    assert not list(failures)  # the first task, which succeeded, ended nothing


@pytest.mark.parametrize(
    ("blobs", "failed"), [(reply_blobs([b"bits"]), False), (refusal_blobs("rolled back"), True)]
)
def test_a_refusal_counts_as_a_failure(
    blobs: dict[str, bytes], failed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(("_run_id", "_node_id", "_task_id"), start=1):
        monkeypatch.setattr(TaskIdentity, name, number)
    monkeypatch.setattr(site_worker, "HeartbeatSender", lambda _: MagicMock())
    order = Message(content=to_records({}), dst_node_id=1, message_type="train")
    monkeypatch.setattr(site_worker, "pull_task_input", lambda _: (order, None, None, None))
    monkeypatch.setattr(site_worker, "push_message", lambda *_: None)
    monkeypatch.setattr(site_worker, "push_task_output", lambda *_: None)
    answered = Message(content=to_records(blobs), reply_to=order)
    assert site_worker._run(MagicMock(), lambda *_: answered) is failed


def test_a_task_that_cannot_be_handed_back_ends_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = httpx.Request("POST", "http://localhost")
    refused = httpx.HTTPStatusError("expired", request=request, response=httpx.Response(401))
    answers(monkeypatch, "AcquireTask", iter([task("first")]))
    answers(monkeypatch, "PullTaskInput", iter([refused]))
    answers(monkeypatch, "SendTaskHeartbeat", iter([None] * 9))
    with pytest.raises(httpx.HTTPStatusError, match="expired"):
        site_worker.serve(
            ADDRESS, lambda message, _: message, threading.Event(), longest_seconds=60.0
        )


def test_an_order_that_takes_too_long_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    over = threading.Event()

    def end(status: int) -> None:
        ended.append(status)
        over.set()

    monkeypatch.setattr(os, "_exit", end)
    with site_worker._limited(0.01):
        assert over.wait(10.0)
    assert ended == [3]
    with site_worker._limited(0.2):
        pass
    assert not threading.Event().wait(0.4)
    assert ended == [3]
