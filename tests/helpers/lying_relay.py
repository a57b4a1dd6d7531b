"""A relay that tells one lie in a round, in everything else like the real one.

Arguments: its folder. The file LIE in it says which lie; it is read at each request.
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from mortal import die_after_commits
from relay_lies import LIES, TO_THE_FIRST, Situation, refuse

from sottovoce.deployment.machines.limited_server import serve
from sottovoce.deployment.operators.application import HttpRefusal, RelayApplication
from sottovoce.deployment.operators.desk import Desk, open_desk
from sottovoce.deployment.operators.folders import RelayFolder
from sottovoce.deployment.operators.relay_program import LIMITS
from sottovoce.deployment.operators.routes import Route
from sottovoce.protocol.secure import two_server_messages
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.relay import Relay
from sottovoce.protocol.secure.two_server_messages import Accepted

LIE = "lie.txt"
HONEST = "none"
# Lies about the answers to reports; all of them to the first report.
SWALLOWED, REFUSED, UNKNOWN = "a report swallowed", "a report refused", "a report without a name"
ENDLESS, HANGS_UP = "an endless receipt", "a receipt that never comes"
OF_REPORTS = (SWALLOWED, REFUSED, UNKNOWN, ENDLESS, HANGS_UP)


class LyingDesk(Desk):
    """The real desk, but for one lie."""

    def __init__(self, relay: Relay, folder: RelayFolder) -> None:
        super().__init__(relay)
        self._folder = folder
        self._kept: dict[Route, bytes] = {}
        self._told: dict[str, bytes] = {}

    @property
    def lie(self) -> str:
        return (self._folder.folder / LIE).read_text()

    def is_first(self, victim: bytes) -> bool:
        """Whether a lie of this round is told to its first victim, asked again or not."""
        ann = self._relay.announcement()
        if self._told.get("ann") != ann:
            self._told = {"ann": ann}
        return self._told.setdefault("victim", victim) == victim

    def answer(self, route: Route, body: bytes, now: float) -> bytes:
        about, _ = LIES.get(self.lie, (None, refuse))
        if route is Route.ACCEPTED and about is Route.FROZEN:
            return self._sum_anyway(body)
        return self._changed(route, super().answer(route, body, now), os.urandom(8))

    def roots(self, leaves: Sequence[bytes], now: float) -> list[bytes | HttpRefusal]:
        return [self._root(leaf, now) for leaf in leaves]

    def _root(self, leaf: bytes, now: float) -> bytes | HttpRefusal:
        (true,) = super().roots([leaf], now)
        if isinstance(true, HttpRefusal):
            return true
        try:
            return self._changed(Route.ROOT_OF, true, leaf)
        except HttpRefusal as refusal:
            return refusal

    def _changed(self, route: Route, true: bytes, victim: bytes) -> bytes:
        """Return an answer as this relay gives it."""
        about, change = LIES.get(self.lie, (None, refuse))
        if about is not route or (route in TO_THE_FIRST and not self.is_first(victim)):
            self._kept[route] = true
            return true
        return change(true, Situation(self._relay, self._folder, self._kept))

    def reports(self, bodies: Sequence[bytes], now: float) -> list[bytes | HttpRefusal]:
        if self.lie not in OF_REPORTS:
            return super().reports(bodies, now)
        return [self._report(body, now) for body in bodies]

    def _report(self, body: bytes, now: float) -> bytes | HttpRefusal:
        if not self.is_first(body[:20]):
            (outcome,) = super().reports([body], now)
            return outcome
        match self.lie:
            case "a report refused":
                return HttpRefusal(HTTPStatus.BAD_REQUEST, "this relay does not like it")
            case "a report without a name":
                return HttpRefusal(HTTPStatus.UNAUTHORIZED, "who are you?")
        return b""

    def _sum_anyway(self, body: bytes) -> bytes:
        """Return the sum of clients of another list than the relay's own."""
        found, current = Accepted.read(body), Announcement.read(self._relay.announcement())
        chosen = two_server_messages.accepted_digest(found.ann, found.names)
        return self._relay._sum(current, found.names, chosen)


class LyingApplication(RelayApplication):
    """The real application, but for answers that no application of HTTP gives."""

    def __init__(self, desk: LyingDesk) -> None:
        super().__init__(desk)
        self._lying = desk

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        lie = self._lying.lie if scope["type"] == "http" else ""
        asked = f"{scope.get('method')} {scope.get('path')}"
        if asked != Route.REPORT or lie not in (ENDLESS, HANGS_UP):
            await super().__call__(scope, receive, send)
            return
        body = (await receive())["body"]
        if not self._lying.is_first(body[:20]):
            await super().__call__(scope, _again(body), send)
            return
        if lie == HANGS_UP:
            scope["state"]["connection"].cut()
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(2**8):
            await send({"type": "http.response.body", "body": bytes(2**16), "more_body": True})
            await asyncio.sleep(0.0)


def _again(body: bytes) -> Any:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def main(path: Path) -> None:
    die_after_commits(path)
    folder = RelayFolder.read(path)
    with open_desk(folder) as desk:
        serve(
            LyingApplication(LyingDesk(desk._relay, folder)),
            host=folder.address.bind_host,
            port=folder.address.port,
            certificate=folder.certificate,
            key=folder.certificate_key,
            limits=LIMITS,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
