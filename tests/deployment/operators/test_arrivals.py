"""The memory of the bodies of requests: who has space, and who gives way."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from sottovoce.deployment.operators import application, arrivals
from sottovoce.deployment.operators.application import HttpRefusal, RelayApplication
from sottovoce.deployment.operators.arrivals import Arrivals, CutOffError, NoSpaceError
from sottovoce.deployment.operators.routes import Route, sign_request
from sottovoce.protocol.secure.roster import TrustKey

KEY = TrustKey.generate()


class Desk:
    """A desk that takes every report, slowly."""

    federation = b"f" * 16
    collector_key = KEY.public
    largest_report = 0

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []

    def answer(self, route: Route, body: bytes, now: float) -> bytes:
        return b"content"

    def reports(self, bodies: Sequence[bytes], now: float) -> list[bytes | HttpRefusal]:
        self.batches.append(list(bodies))
        time.sleep(0.05)
        return [b"" for _ in bodies]

    roots = take_confirmations = reports


class Sender:
    """A device that sends the parts of a body, and then waits for what comes."""

    def __init__(self, route: Route, parts: Sequence[bytes], *, length: int, **headers: str):
        method, _, path = route.value.partition(" ")
        named = {"content-length": str(length), **headers}
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
            "state": {"connection": self},
        }
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        left = length
        for part in parts:
            left -= len(part)
            event = {"type": "http.request", "body": part, "more_body": left > 0}
            self.events.put_nowait(event)
        self.status = 0

    def cut(self) -> None:
        self.events.put_nowait({"type": "http.disconnect"})

    async def send(self, event: dict[str, Any]) -> None:
        self.status = event.get("status", self.status)


def statuses(desk: Desk, stalled: Sequence[Sender], honest: Sequence[Sender]) -> list[int]:
    """Return the status of each honest request, made while others are stalled."""

    async def run() -> None:
        relay = RelayApplication(desk)
        for group in relay._groups.values():
            group.start()
        holding = [asyncio.create_task(relay(s.scope, s.events.get, s.send)) for s in stalled]
        await asyncio.sleep(0)
        await asyncio.gather(*(relay(h.scope, h.events.get, h.send) for h in honest))
        for task in holding:
            task.cancel()
        await asyncio.gather(*holding, return_exceptions=True)
        for group in relay._groups.values():
            group.stop()

    asyncio.run(run())
    return [each.status for each in honest]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "_WAITING_BYTES", 100)


def test_bodies_that_were_declared_and_never_come_keep_no_device_out(small: None) -> None:
    stalled = [Sender(Route.REPORT, [], length=100) for _ in range(50)]
    honest = [Sender(Route.REPORT, [bytes(40)], length=40) for _ in range(2)]
    assert statuses(Desk(), stalled, honest) == [204, 204]


def test_bodies_that_wait_for_an_answer_take_room(small: None) -> None:
    many = [Sender(Route.REPORT, [bytes(40)], length=40) for _ in range(10)]
    desk = Desk()
    assert sorted(statuses(desk, [], many)) == [204] * 2 + [503] * 8
    assert sum(map(len, desk.batches)) == 2


def test_bodies_of_devices_do_not_take_the_room_of_the_collector(small: None) -> None:
    stalled = [Sender(Route.REPORT, [bytes(99)], length=100)]
    body = bytes(200)
    signed = sign_request(KEY, Desk.federation, Route.ANNOUNCE, body, time.time())
    announce = Sender(Route.ANNOUNCE, [body], length=200, authorization=signed)
    assert statuses(Desk(), stalled, [announce]) == [200]


def test_the_oldest_slow_body_gives_way(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    stalled = [Sender(Route.REPORT, [bytes(30)], length=100) for _ in range(3)]
    quick = Sender(Route.REPORT, [bytes(40)], length=40)
    assert statuses(Desk(), stalled, [quick]) == [503]
    assert all(each.events.empty() for each in stalled)

    monkeypatch.setattr(arrivals, "_PATIENCE_SECONDS", 0.0)
    stalled = [Sender(Route.REPORT, [bytes(30)], length=100) for _ in range(3)]
    quick = Sender(Route.REPORT, [bytes(40)], length=40)
    assert statuses(Desk(), stalled, [quick]) == [204]
    assert [each.status for each in stalled] == [400, 0, 0]


def test_what_an_arrival_took_is_free_afterwards() -> None:
    space = Arrivals(100)

    async def take(size: int) -> None:
        with space.arrival({}) as arrival:
            sender = Sender(Route.REPORT, [bytes(size)], length=size)
            assert len(await arrival.read(sender.events.get)) == size

    async def cut() -> None:
        with space.arrival({}) as arrival:
            sender = Sender(Route.REPORT, [bytes(60)], length=100)
            sender.cut()
            await arrival.read(sender.events.get)

    async def beside() -> None:
        with space.arrival({}) as arrival:
            await arrival.read(Sender(Route.REPORT, [bytes(60)], length=60).events.get)
            await take(41)

    for _ in range(3):
        asyncio.run(take(100))
        with pytest.raises(CutOffError):
            asyncio.run(cut())
        with pytest.raises(NoSpaceError):
            asyncio.run(beside())
    asyncio.run(take(1000))  # Alone it has space.
