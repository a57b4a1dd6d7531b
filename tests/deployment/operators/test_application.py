"""The relay's application by itself: what it refuses before anything is done."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import pytest

from sottovoce.core.errors import AbandonedError, LedgerError, SottovoceError, WireError
from sottovoce.deployment.operators.application import (
    HttpRefusal,
    RelayApplication,
    pack_announcement,
    pack_request,
    status_of,
    unpack_announcement,
    unpack_request,
)
from sottovoce.deployment.operators.calls import RefusedError
from sottovoce.deployment.operators.routes import CLOCK_SECONDS, Route, sign_request
from sottovoce.protocol.secure.roster import TrustKey

KEY = TrustKey.generate()
FEDERATION = b"f" * 16


class Desk:
    """A desk that remembers what it was asked."""

    federation = FEDERATION
    collector_key = KEY.public
    largest_report = 0

    def __init__(self) -> None:
        self.asked: list[tuple[Route, bytes]] = []
        self.batches: list[list[bytes]] = []

    def answer(self, route: Route, body: bytes, now: float) -> bytes:
        self.asked.append((route, body))
        if body == b"fail":
            raise RuntimeError("phone-1 has failed")
        if body == b"wrong":
            raise WireError("expected something else")
        return b"content"

    def reports(self, bodies: Sequence[bytes], now: float) -> list[bytes | HttpRefusal]:
        self.batches.append(list(bodies))
        time.sleep(0.05)
        return [b"" for _ in bodies]

    roots = take_confirmations = reports


def ask(desk: Desk, *requests: tuple[str, bytes, dict[str, str]]) -> list[tuple[int, bytes]]:
    """Send requests at once; return status and content of each answer."""

    async def run() -> list[tuple[int, bytes]]:
        application = RelayApplication(desk)
        stopping = asyncio.Event()
        events = iter(["lifespan.startup", "lifespan.shutdown"])

        async def live() -> dict[str, Any]:
            event = next(events)
            if event == "lifespan.shutdown":
                await stopping.wait()
            return {"type": event}

        async def ignore(_: dict[str, Any]) -> None:
            pass

        living = asyncio.create_task(application({"type": "lifespan"}, live, ignore))
        answers = await asyncio.gather(*(_one(application, *request) for request in requests))
        stopping.set()
        await living
        return answers

    return asyncio.run(run())


async def _one(
    application: RelayApplication, line: str, body: bytes, headers: dict[str, str]
) -> tuple[int, bytes]:
    method, _, path = line.partition(" ")
    named = {"content-length": str(len(body)), **headers}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(name.encode(), value.encode()) for name, value in named.items() if value],
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    await application(scope, receive, send)
    return int(sent[0]["status"]), b"".join(event.get("body", b"") for event in sent)


def one(desk: Desk, line: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    return ask(desk, (line, body, headers))[0]


def signed(
    route: Route, body: bytes = b"", key: TrustKey = KEY, now: float | None = None
) -> dict[str, str]:
    moment = time.time() if now is None else now
    return {"authorization": sign_request(key, FEDERATION, route, body, moment)}


@pytest.mark.parametrize("route", [Route.REPORT, Route.CONFIRM])
def test_messages_that_arrive_together_share_commits_and_have_one_answer(route: Route) -> None:
    desk = Desk()
    requests: list[tuple[str, bytes, dict[str, str]]] = [
        (route.value, bytes([number]), {}) for number in range(20)
    ]
    answers = ask(desk, *requests)
    assert answers == [(204, b"")] * 20
    taken = [body for batch in desk.batches for body in batch]
    assert sorted(taken) == [body for _, body, _ in requests]
    assert len(desk.batches) <= 3


def test_what_is_no_request_of_a_device_is_refused_before_it_is_read() -> None:
    desk = Desk()
    assert one(desk, "GET /1/nothing")[0] == 404
    assert one(desk, "POST /1/announcement")[0] == 404
    assert one(desk, Route.REPORT, bytes(2**13 + 1))[0] == 413
    assert one(desk, Route.REGISTER, bytes(2**13 + 1))[0] == 413
    chunked = {"transfer-encoding": "chunked", "content-length": ""}
    assert one(desk, Route.REPORT, b"x", **chunked)[0] == 411
    assert (desk.asked, desk.batches) == ([], [])


def test_only_requests_that_the_collector_signed_now_are_answered() -> None:
    desk, route = Desk(), Route.ACCEPTED
    assert one(desk, route, b"body", **signed(route, b"body")) == (200, b"content")
    assert desk.asked == [(route, b"body")]
    late = time.time() - CLOCK_SECONDS - 10.0
    for headers in (
        {},
        {"authorization": "x"},
        {"authorization": "x y z"},
        signed(route, b"BODY"),
        signed(route, b"body", TrustKey.generate()),
        signed(route, b"body", now=late),
        signed(Route.ROOT, b"body"),
    ):
        assert one(desk, route, b"body", **headers)[0] == 403
    assert len(desk.asked) == 1


def test_an_unforeseen_error_is_logged_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        status, text = one(Desk(), Route.REGISTER, b"fail")
    assert status == 500
    assert b"phone" not in text
    assert "RuntimeError" in caplog.text
    assert "phone" not in caplog.text


def test_a_refusal_of_the_protocol_is_told_with_its_reason() -> None:
    assert one(Desk(), Route.REGISTER, b"wrong") == (400, b"expected something else")


def test_a_long_answer_is_sent_in_parts() -> None:
    class Large(Desk):
        def answer(self, route: Route, body: bytes, now: float) -> bytes:
            return bytes(range(256)) * 4096

    status, content = one(Large(), Route.ANNOUNCEMENT)
    assert status == 200
    assert hashlib.sha256(content).digest() == hashlib.sha256(bytes(range(256)) * 4096).digest()


def test_an_announcement_and_its_content_are_told_apart() -> None:
    packed = pack_announcement(b"announcement", b"content")
    assert unpack_announcement(packed) == (b"announcement", b"content")
    for cut in (b"", packed[:3], packed[:10]):
        with pytest.raises(WireError, match="fewer bytes"):
            unpack_announcement(cut)
    request = pack_request(b"announcement", b"content", ["ada", "bob"])
    assert unpack_request(request) == (frozenset({"ada", "bob"}), b"announcement", b"content")
    with pytest.raises(WireError, match="as text"):
        unpack_request(pack_announcement(b"\xff", packed))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (WireError("malformed"), HTTPStatus.BAD_REQUEST),
        (AbandonedError("too few clients"), HTTPStatus.CONFLICT),
        (LedgerError("the disk is full"), HTTPStatus.SERVICE_UNAVAILABLE),
    ],
)
def test_what_fails_at_the_relay_itself_may_be_asked_again(
    error: SottovoceError, status: HTTPStatus
) -> None:
    assert status_of(error) is status
    assert RefusedError(status, str(error)).is_busy is isinstance(error, LedgerError)
