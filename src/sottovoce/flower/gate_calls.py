"""What one site may call at the gate: how long a body, how many at once, how much in all.

Flower stores what sites push until its server has pulled it, or the run has ended. A site may push
a few times the largest reply that is due, anew for each order that it was given.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sottovoce.core import printable_text
from sottovoce.deployment.machines.site_signatures import SiteKeys
from sottovoce.deployment.replies_due import OVERHEAD_BYTES, RepliesDue
from sottovoce.flower.gate_connections import Limits

ACTIVATE, PULL = "/v1/fleet/activate-node", "/v1/fleet/pull-messages"
_PUSHES = {"/v1/fleet/push-messages", "/v1/fleet/push-object"}
_CALL = re.compile(r"/v1/fleet/[a-z-]+")
_TRIES = 4  # of a reply: a node sends it again where the connection broke
_MOST_ORDERS = 4  # whose replies may be outstanding
_SHARES = 4  # sites that may send their largest replies at once
_WAIT_SECONDS = 30.0
_SAID_SECONDS = 60.0

_LOG = printable_text.logger()


class Refusal(Exception):
    """Why a site's call does not pass, with an HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def is_call(path: str) -> bool:
    """Whether a path is one of those that sites call."""
    return _CALL.fullmatch(path) is not None


class SiteCalls:
    """The calls of all sites that are under way, and what each may still push."""

    def __init__(self, due: Path, keys: SiteKeys, limits: Limits) -> None:
        self._due = RepliesDue(due)
        self._keys = keys
        self._limits = limits
        self._calls: dict[str, int] = {}
        self._pushed: dict[str, float] = {}  # in largest replies, less what orders have allowed
        self._bytes = 0  # of long bodies under way
        self._sending: dict[str, int] = {}  # the same, by site
        self._room = asyncio.Condition()
        self.turn = asyncio.Semaphore(limits.calls)  # to be held while the link works on a call
        self._said: dict[str, float] = {}

    def largest_push_bytes(self) -> int:
        """Return the most bytes that one call with a reply, or a part of it, may have now."""
        return OVERHEAD_BYTES + max(self._due.largest_bytes(), self._keys.largest_reply_bytes)

    def order_delivered(self, site: str) -> None:
        """Note that the link gave a site an order: a reply to it may come."""
        left = self._pushed.get(site, 0.0) - _TRIES
        self._pushed[site] = max(left, -_TRIES * (_MOST_ORDERS - 1))

    @asynccontextmanager
    async def one(self, site: str, path: str, length: int) -> AsyncIterator[None]:
        """Hold a place for a call of a site; raise Refusal if it may not pass."""
        if self._calls.get(site, 0) >= self._limits.calls_per_site:
            raise Refusal(503, f"a site makes at most {self._limits.calls_per_site} calls at once")
        self._check_length(site, path, length)
        self._calls[site] = self._calls.get(site, 0) + 1
        try:
            async with self._body(site, length):
                share = self._count_push(site, path, length)
                try:
                    yield
                except Refusal:  # it was not passed on: the site tries again
                    self._pushed[site] = self._pushed.get(site, 0.0) - share
                    raise
        finally:
            self._calls[site] -= 1

    def _check_length(self, site: str, path: str, length: int) -> None:
        most = self.largest_push_bytes() if path in _PUSHES else OVERHEAD_BYTES
        if length > most:
            self._say(site, f"{path} with {length} bytes", f"at most {most} are due")
            raise Refusal(413, f"this call has at most {most} bytes now, got {length}")

    def _count_push(self, site: str, path: str, length: int) -> float:
        """Count what a site pushes against its orders; return its share of the largest reply."""
        if path not in _PUSHES:
            return 0.0
        most = self.largest_push_bytes()
        pushed = self._pushed.get(site, 0.0) + length / most
        if pushed > _TRIES:
            self._say(site, "more replies", f"its orders allow {_TRIES} times {most} bytes each")
            raise Refusal(413, "the site has pushed all that its orders allow")
        self._pushed[site] = pushed
        return length / most

    @asynccontextmanager
    async def _body(self, site: str, length: int) -> AsyncIterator[None]:
        """Wait for room: Flower's link holds every body in memory.

        Short calls always have it, and no site takes more than its share, so that one that sends
        slowly keeps nobody else waiting.
        """
        if length <= OVERHEAD_BYTES:
            yield
            return
        share = self.largest_push_bytes()
        most = max(self._limits.body_bytes, _SHARES * share)

        def has_room() -> bool:
            own = self._sending.get(site, 0) + length
            return self._bytes + length <= most and own <= share

        try:
            async with asyncio.timeout(_WAIT_SECONDS), self._room:
                await self._room.wait_for(has_room)
                self._add(site, length)
        except TimeoutError:
            raise Refusal(503, "too much is being sent at once; try again") from None
        try:
            yield
        finally:
            self._add(site, -length)
            async with self._room:
                self._room.notify_all()

    def _add(self, site: str, length: int) -> None:
        self._bytes += length
        self._sending[site] = self._sending.get(site, 0) + length

    def _say(self, site: str, what: str, why: str) -> None:
        """Log a refusal, once a minute for each site at most."""
        now = time.monotonic()
        if now - self._said.get(site, -_SAID_SECONDS) >= _SAID_SECONDS:
            self._said[site] = now
            _LOG.warning(
                "'%s' is refused %s: %s. For an app of yours that sends more, set "
                "largest_reply_bytes in federation.toml",
                site,
                what,
                why,
            )
