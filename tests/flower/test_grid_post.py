"""A reply that does not come whole: Flower would wait for it, and the others with it."""

import threading
import time
from collections.abc import Iterable
from typing import Any, cast

import pytest
from fake_grid import ORDER
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import RunNotRunningException

from sottovoce.deployment.orders import reply_blobs
from sottovoce.flower import grid_post
from sottovoce.flower.grid_post import GridPost, NodeDirectory, count_no_traffic
from sottovoce.flower.records import to_records

NODES = {"ada": 7, "bob": 9, "eve": 11}


@pytest.fixture(autouse=True)
def _of_some_task(flower_task: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_post, "_COLLECT_SECONDS", 0.2)


class Nodes:
    """All three, always."""

    def online(self) -> dict[str, int]:
        return NODES

    known = online


class HalfSent:
    """A grid in which the first order's reply is announced, and whole only after `arrived`."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.failure: BaseException | None = None
        self.pulls = 0  # of the first
        self._pushed = 0
        self._replies: dict[str, Message] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            numbers.append(f"m{self._pushed}")
            message.metadata.__dict__["_message_id"] = numbers[-1]
            content = to_records(reply_blobs([b"%d" % self._pushed]))
            self._replies[numbers[-1]] = Message(content, reply_to=message)
            self._pushed += 1
        return numbers

    def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
        (number,) = numbers
        if number == "m0":
            self.pulls += 1
            assert self.arrived.wait(60.0)
        if self.failure:
            raise self.failure
        return [self._replies.pop(number)] if number in self._replies else []


def asked(grid: HalfSent) -> GridPost:
    post = GridPost(cast(Grid, grid), cast(NodeDirectory, Nodes()), count_no_traffic)
    post.send(dict.fromkeys(NODES, ORDER), expires_seconds=9.0)
    return post


def collect(post: GridPost, wanted: int) -> dict[str, Any]:
    """Replies, until there are so many."""
    found: dict[str, Any] = {}
    deadline = time.monotonic() + 60.0
    while len(found) < wanted:
        assert time.monotonic() < deadline
        found |= {reply.client: reply.blobs for reply in post.collect()}
    return found


def test_others_are_collected_while_one_is_half_sent() -> None:
    grid = HalfSent()
    post = asked(grid)
    assert collect(post, 2) == {"bob": {"uplink0": b"1"}, "eve": {"uplink0": b"2"}}
    assert list(post.collect()) == []
    assert grid.pulls == 1  # what is being pulled is not pulled again
    grid.arrived.set()
    assert collect(post, 1) == {"ada": {"uplink0": b"0"}}
    assert list(post.collect()) == []


def test_what_comes_whole_after_its_round_is_nobodys() -> None:
    grid = HalfSent()
    post = asked(grid)
    collect(post, 2)
    post.send({"bob": ORDER}, expires_seconds=9.0)
    grid.arrived.set()
    assert set(collect(post, 1)) == {"bob"}
    assert list(post.collect()) == []


def test_a_run_that_was_stopped_is_no_bad_reply() -> None:
    grid = HalfSent()
    post = asked(grid)
    grid.arrived.set()
    grid.failure = RunNotRunningException()
    with pytest.raises(RunNotRunningException):
        list(post.collect())


class Failed:
    """A grid in which every order ends in one error of Flower's."""

    def __init__(self, code: int, reason: str) -> None:
        self._error = Error(code, reason)
        self._replies: dict[str, Message] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"m{number}"
            self._replies[f"m{number}"] = Message(self._error, reply_to=message)
        return list(self._replies)

    def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
        return [self._replies.pop(number) for number in numbers]


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        ("MESSAGE_UNAVAILABLE", "TTL", "it did not answer by the deadline, 9 s after it was asked"),
        ("REPLY_MESSAGE_UNAVAILABLE", "expired", "it did not answer by the deadline, 9 s after"),
        ("NODE_UNAVAILABLE", "heartbeat", "its node went offline before it answered"),
        ("LOAD_CLIENT_APP_EXCEPTION", "trace", "its node could not load the app"),
        ("CLIENT_APP_CRASHED", "trace", "its process ended before it answered"),
        ("INVALID_FAB", "FAB", "its node did not accept the app of the run"),
        ("CLIENT_APP_RAISED_EXCEPTION", "the policy", "the policy"),  # a site's own words
        ("UNKNOWN", "", "it failed and gave no reason (error 0)"),
    ],
)
def test_flowers_errors_are_told_in_plain_words(code: str, reason: str, words: str) -> None:
    post = asked(cast(HalfSent, Failed(getattr(ErrorCode, code), reason)))
    told = {reply.failure for _ in range(20) for reply in post.collect()}
    assert len(told) == 1
    failure = str(told.pop())
    assert failure.startswith(words)
    assert reason in words or reason not in failure
