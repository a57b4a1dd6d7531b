"""Which node is which client: names, keys, liars, and nodes that come and go."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import pytest
from fake_grid import ORDER
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.orders import reply_blobs
from sottovoce.flower.grid_post import (
    GridPost,
    KeyedDirectory,
    ReportedNameDirectory,
    count_no_traffic,
    wait_for_all,
)
from sottovoce.flower.records import RECORD, to_records

pytestmark = pytest.mark.usefixtures("flower_task")


@dataclass
class Node:
    """What the link says of a node that keys are registered for."""

    node_id: int
    public_key: bytes


Says = Callable[[Message], Message | None]


@dataclass
class FakeGrid:
    """Nodes by number, each with what it answers; None is silence."""

    nodes: dict[int, Says] = field(default_factory=dict)
    keys: dict[int, bytes] = field(default_factory=dict)
    pushed: list[Message] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    broken: dict[str, Exception] = field(default_factory=dict)
    _replies: dict[str, Message] = field(default_factory=dict)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Iterable[Node]:
        return [Node(node_id=number, public_key=self.keys[number]) for number in self.nodes]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            number = f"m{len(self.pushed)}"
            self.pushed.append(message)
            node = message.metadata.dst_node_id
            if node in self.refused:
                numbers.append("")
                continue
            numbers.append(number)
            message.metadata.__dict__["_message_id"] = number
            reply = self.nodes[node](message) if node in self.nodes else None
            if reply is not None:
                self._replies[number] = reply
        return numbers

    def pull_messages(self, numbers: Iterable[str]) -> Iterable[Message]:
        found = []
        for number in numbers:
            if number in self.broken:
                raise self.broken[number]
            if number in self._replies:
                found.append(self._replies.pop(number))
        return found

    def asked(self) -> list[int]:
        return [message.metadata.dst_node_id for message in self.pushed]


def directory_on(grid: FakeGrid) -> ReportedNameDirectory:
    return ReportedNameDirectory(cast(Grid, grid))


def says(name: str | bytes) -> Says:
    text = name if isinstance(name, bytes) else name.encode()
    return lambda message: Message(to_records({"name": text}), reply_to=message)


def silent(message: Message) -> Message | None:
    return None


def fails(message: Message) -> Message | None:
    return Message(Error(code=1, reason="no policy"), reply_to=message)


# -- by what they say ------------------------------------------------------------------------------


def test_nodes_are_asked_once_and_known_by_their_names() -> None:
    grid = FakeGrid(nodes={7: says("ada"), 9: says("bob")})
    directory = directory_on(grid)
    assert directory.known() == {}
    for _ in range(3):
        assert directory.online() == {"ada": 7, "bob": 9}
        assert directory.known() == {"ada": 7, "bob": 9}
    assert sorted(grid.asked()) == [7, 9]


def test_a_node_that_comes_later_is_asked_when_it_comes() -> None:
    grid = FakeGrid(nodes={7: says("ada")})
    directory = directory_on(grid)
    assert directory.online() == {"ada": 7}
    grid.nodes[8] = says("bob")
    assert directory.online() == {"ada": 7, "bob": 8}
    assert grid.asked() == [7, 8]


def test_a_node_that_goes_is_offline_and_is_itself_again_when_it_comes_back() -> None:
    grid = FakeGrid(nodes={7: says("ada"), 9: says("bob")})
    directory = directory_on(grid)
    directory.online()
    gone = grid.nodes.pop(7)
    assert directory.online() == {"bob": 9}
    assert directory.known() == {"bob": 9}
    grid.nodes[7] = gone
    assert directory.online() == {"ada": 7, "bob": 9}
    assert sorted(grid.asked()) == [7, 9]


@pytest.mark.parametrize("impostor", [1, 8, 10**18])
def test_whichever_client_says_a_taken_name_does_not_get_it(impostor: int) -> None:
    """Also with a smaller number, and also after many looks."""
    grid = FakeGrid(nodes={7: says("ada")})
    directory = directory_on(grid)
    directory.online()
    grid.nodes[impostor] = says("ada")
    for _ in range(3):
        assert directory.online() == {"ada": 7}


def test_a_name_is_free_again_when_its_node_has_gone() -> None:
    """A restarted node has another number."""
    grid = FakeGrid(nodes={7: says("ada"), 8: says("ada")})
    directory = directory_on(grid)
    assert directory.online() == {"ada": 7}
    del grid.nodes[7]
    assert directory.online() == {"ada": 8}
    grid.nodes[7] = says("ada")
    assert directory.online() == {"ada": 8}  # who has it, has it


def test_one_node_has_one_name_whatever_it_says_later() -> None:
    names = iter(["ada", "bob"])
    grid = FakeGrid(nodes={7: lambda message: says(next(names))(message)})
    directory = directory_on(grid)
    for _ in range(3):
        assert directory.online() == {"ada": 7}


NO_NAMES: dict[str, Says] = {
    "an error": fails,
    "no UTF-8": says(b"\xff\xfe"),
    "another key": lambda message: Message(to_records({"nam": b"ada"}), reply_to=message),
    "no record": lambda message: Message(RecordDict({}), reply_to=message),
    "text": lambda message: Message(
        RecordDict({RECORD: ConfigRecord({"name": "ada"})}), reply_to=message
    ),
    "arrays": lambda message: Message(RecordDict({RECORD: ArrayRecord({})}), reply_to=message),
}


@pytest.mark.parametrize("kind", list(NO_NAMES))
def test_a_node_that_says_no_name_has_none_and_holds_up_no_one(kind: str) -> None:
    grid = FakeGrid(nodes={7: NO_NAMES[kind], 9: says("bob")})
    directory = directory_on(grid)
    for _ in range(3):
        assert directory.online() == {"bob": 9}
    assert sorted(grid.asked()) == [7, 9]


def test_a_silent_node_is_asked_again_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("sottovoce.flower.grid_post.time.monotonic", lambda: now[0])
    monkeypatch.setattr("sottovoce.flower.grid_post.time.sleep", lambda seconds: None)
    grid = FakeGrid(nodes={7: silent, 9: says("bob")})
    directory = directory_on(grid)
    for _ in range(5):
        assert directory.online() == {"bob": 9}
    assert grid.asked().count(7) == 1
    now[0] += 31.0
    directory.online()  # forgets the old question
    grid.nodes[7] = says("ada")
    assert directory.online() == {"ada": 7, "bob": 9}
    assert grid.asked().count(7) == 2


def test_a_node_whose_file_is_mended_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("sottovoce.flower.grid_post.time.monotonic", lambda: now[0])
    grid = FakeGrid(nodes={7: fails})
    directory = directory_on(grid)
    for _ in range(5):
        assert directory.online() == {}
    assert grid.asked() == [7]
    grid.nodes[7] = says("ada")
    now[0] += 31.0
    assert directory.online() == {"ada": 7}
    assert grid.asked() == [7, 7]


def test_a_node_that_could_not_be_asked_is_asked_again() -> None:
    grid = FakeGrid(nodes={7: says("ada")}, refused={7})
    directory = directory_on(grid)
    assert directory.online() == {}
    grid.refused = set()
    assert directory.online() == {"ada": 7}


# -- by their keys ---------------------------------------------------------------------------------


def test_keys_say_who_a_node_is_whatever_it_says() -> None:
    grid = FakeGrid(
        nodes={7: says("bob"), 9: says("ada"), 11: says("ada")},
        keys={7: b"key of ada", 9: b"key of bob", 11: b"another key"},
    )
    names = {b"key of ada": "ada", b"key of bob": "bob", b"key of eve": "eve"}
    directory = KeyedDirectory(cast(Grid, grid), names)
    assert directory.online() == {"ada": 7, "bob": 9}
    assert grid.pushed == []  # nobody is asked
    del grid.nodes[7]
    assert directory.known() == {"ada": 7, "bob": 9}
    assert directory.online() == directory.known() == {"bob": 9}


# -- waiting ---------------------------------------------------------------------------------------


@dataclass
class Arriving:
    """Clients that come online at their times."""

    times: dict[str, float]
    now: float = 0.0
    pauses: int = 0

    def online(self) -> dict[str, int]:
        return {name: 1 for name, when in self.times.items() if when <= self.now}

    known = online

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses += 1
        self.now += seconds


def wait(arriving: Arriving, clients: Sequence[str], seconds: float) -> None:
    wait_for_all(arriving, clients, seconds=seconds, clock=arriving.clock, pause=arriving.pause)


def test_a_run_starts_when_the_last_client_is_online() -> None:
    arriving = Arriving({"ada": 3.0, "bob": 41.0, "stranger": 1000.0})
    wait(arriving, ["ada", "bob"], 60.0)
    assert 41.0 <= arriving.now < 41.5


def test_who_is_there_already_is_not_waited_for() -> None:
    arriving = Arriving({"ada": 0.0})
    wait(arriving, ["ada"], 60.0)
    wait(arriving, [], 60.0)
    assert arriving.pauses == 0


def test_after_its_time_a_run_says_who_is_missing() -> None:
    names = [f"site-{number}" for number in range(9)]
    arriving = Arriving({"site-0": 0.0})
    expected = (
        "8 of 9 clients were not online after 60 s: site-1, site-2, site-3, site-4, site-5 and 3 "
        "more; start their nodes, then resume the run"
    )
    with pytest.raises(DeploymentError) as caught:
        wait(arriving, names, 60.0)
    assert str(caught.value) == expected
    assert 60.0 <= arriving.now < 60.5


def test_all_must_be_there_at_the_same_time() -> None:
    class Flapping(Arriving):
        def online(self) -> dict[str, int]:
            return {"ada": 1} if int(self.now) % 2 else {"bob": 2}

        known = online

    with pytest.raises(DeploymentError, match="1 of 2 clients were not online after 20 s"):
        wait(Flapping({}), ["ada", "bob"], 20.0)


# -- orders and replies over a grid ----------------------------------------------------------------


def sealed(*messages: bytes) -> Says:
    return lambda message: Message(to_records(reply_blobs(list(messages))), reply_to=message)


def asked_of(grid: FakeGrid, names: dict[bytes, str]) -> GridPost:
    post = GridPost(cast(Grid, grid), KeyedDirectory(cast(Grid, grid), names), count_no_traffic)
    assert post.reachable(["ada", "bob", "eve"]) == {"ada", "bob"}
    assert post.send({"ada": ORDER, "bob": ORDER}, expires_seconds=9.0) > 0
    return post


NAMES = {b"a": "ada", b"b": "bob"}
KEYS = {7: b"a", 9: b"b"}


def test_replies_come_with_the_names_of_those_who_were_asked() -> None:
    grid = FakeGrid(nodes={7: sealed(b"one"), 9: sealed(b"two", b"three")}, keys=KEYS)
    post = asked_of(grid, NAMES)
    found = {reply.client: reply.blobs for reply in post.collect()}
    assert found == {
        "ada": {"uplink0": b"one"},
        "bob": {"uplink0": b"two", "uplink1": b"three"},
    }
    assert list(post.collect()) == []
    assert {message.metadata.ttl for message in grid.pushed} == {9.0}


def test_a_refusal_is_no_message_and_what_is_no_use_is_an_empty_one() -> None:
    grid = FakeGrid(
        nodes={
            7: lambda message: Message(Error(code=2, reason="x" * 1000), reply_to=message),
            9: lambda message: Message(RecordDict({}), reply_to=message),
        },
        keys=KEYS,
    )
    ada, bob = asked_of(grid, NAMES).collect()
    assert (ada.client, ada.blobs, ada.failure) == ("ada", None, "x" * 300)
    assert (bob.client, bob.blobs) == ("bob", {})


def test_a_reply_of_another_node_is_nobodys() -> None:
    def forged(message: Message) -> Message:
        reply = sealed(b"one")(message)
        assert reply is not None
        cast(Any, reply.metadata)._src_node_id = 666
        return reply

    grid = FakeGrid(nodes={7: forged, 9: sealed(b"two")}, keys=KEYS)
    replies = list(asked_of(grid, NAMES).collect())
    assert [reply.client for reply in replies] == ["", "bob"]


def test_a_reply_that_cannot_be_read_takes_no_other_with_it() -> None:
    grid = FakeGrid(nodes={7: sealed(b"one"), 9: sealed(b"two")}, keys=KEYS)
    post = asked_of(grid, NAMES)
    grid.broken = {"m0": ValueError("not protobuf")}
    replies = list(post.collect())
    assert [(reply.client, reply.blobs) for reply in replies] == [
        ("ada", {}),
        ("bob", {"uplink0": b"two"}),
    ]
    assert list(post.collect()) == []


def test_a_link_that_is_gone_is_no_reply() -> None:
    grid = FakeGrid(nodes={7: sealed(b"one"), 9: sealed(b"two")}, keys=KEYS)
    post = asked_of(grid, NAMES)
    grid.broken = {"m0": httpx.ConnectError("no route")}
    with pytest.raises(httpx.ConnectError):
        list(post.collect())


def test_replies_to_earlier_orders_are_never_looked_for() -> None:
    grid = FakeGrid(nodes={7: sealed(b"late"), 9: silent}, keys=KEYS)
    post = asked_of(grid, NAMES)
    grid.nodes = {7: silent, 9: sealed(b"two")}
    post.send({"ada": ORDER, "bob": ORDER}, expires_seconds=9.0)
    assert [reply.client for reply in post.collect()] == ["bob"]
