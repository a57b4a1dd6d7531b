"""The memory that the bodies of requests may take.

A body counts from its first byte until its request is answered. When there is no space for more,
the oldest body that has been arriving for long gives way. So holding requests open, or declaring
long bodies that never come, keeps no device out.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Receive = Callable[[], Awaitable[dict[str, Any]]]
_PATIENCE_SECONDS = 5.0


class CutOffError(Exception):
    """A body has ended early: its connection was closed by the sender or by us."""


class NoSpaceError(Exception):
    """There is no space for a body, and none to give way."""


class Arrival:
    """One body, while it arrives and until it is answered.

    Args:
        arrivals: All of them.
        cut: Closes the connection of this one.
    """

    def __init__(self, arrivals: "Arrivals", cut: Callable[[], object]) -> None:
        self._arrivals = arrivals
        self._cut = cut
        self._parts: list[bytes] | None = []
        self.size = 0
        self.since = time.monotonic()

    async def read(self, receive: Receive) -> bytes:
        """Return the whole body.

        Raises:
            CutOffError: It has ended early.
            NoSpaceError: There is no space for it.
        """
        while True:
            event = await receive()
            if event["type"] == "http.disconnect" or self._parts is None:
                raise CutOffError
            part = event.get("body", b"")
            self._arrivals.reserve(self, len(part))
            self._parts.append(part)
            if not event.get("more_body", False):
                self._arrivals.finish(self)
                return b"".join(self._parts)

    def give_way(self) -> int:
        """Close the connection and forget the body; return the number of bytes that it had."""
        size, self.size, self._parts = self.size, 0, None
        self._cut()
        return size


class Arrivals:
    """All bodies that arrive or wait for an answer.

    Args:
        most: The number of bytes that they may take together.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        self._coming: dict[Arrival, None] = {}

    @contextmanager
    def arrival(self, scope: Mapping[str, Any]) -> Iterator[Arrival]:
        """Yield the body of a request, which counts until the block ends."""
        connection = scope.get("state", {}).get("connection")
        one = Arrival(self, connection.cut if connection else lambda: None)
        self._coming[one] = None
        try:
            yield one
        finally:
            self._coming.pop(one, None)
            self._bytes -= one.size

    def reserve(self, one: Arrival, size: int) -> None:
        """Count further bytes of a body; others that have been arriving for long may give way.

        A body that is alone has space, whatever its size.

        Raises:
            NoSpaceError: There is no space.
        """
        latest = time.monotonic() - _PATIENCE_SECONDS
        while size and self._bytes > one.size and self._bytes + size > self._most:
            oldest = next((each for each in self._coming if each.size), one)
            if oldest is one or oldest.since > latest:
                raise NoSpaceError
            del self._coming[oldest]
            self._bytes -= oldest.give_way()
        self._bytes += size
        one.size += size

    def finish(self, one: Arrival) -> None:
        """Note that a body is complete: it is answered, and does not give way any more."""
        self._coming.pop(one, None)
