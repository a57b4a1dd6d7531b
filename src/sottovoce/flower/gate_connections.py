"""Connections to the gate: how many, for how long, and how much before anything is known of them.

A connection is anonymous until a site's signature has come over it. Of anonymous ones an address
has few, and all addresses together have few; where one more comes the oldest is cut, so that
merely holding connections keeps no site out. A site has few of its own.
"""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_RESET, _CLOSE = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)
_NO_DESCRIPTOR_SECONDS = 0.1
_SHUTDOWN_SECONDS = 0.5
_ANSWER_SECONDS = 0.01  # in which an answer leaves, where the rest of a body is not wanted
_IPV6_PREFIX_BITS = 64  # one customer of a provider has all addresses with the same prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the gate holds at once, and for how long.

    Bodies arrive within `body_seconds` and a second more for every `slowest_bytes` declared.
    """

    anonymous: int = 256
    anonymous_per_address: int = 64
    connections_per_site: int = 16
    calls: int = 32  # that the link works on at once: Flower's has 40 threads
    calls_per_site: int = 8
    handshake_seconds: float = 10.0
    header_seconds: float = 10.0
    idle_seconds: float = 15.0
    stalled_seconds: float = 30.0
    header_bytes: int = 2**14
    body_seconds: float = 30.0
    slowest_bytes: int = 2**16
    body_bytes: int = 2**26  # of all bodies together: Flower's link holds each in memory


class Connection:
    """One accepted connection, and whose it is."""

    __slots__ = ("_cut", "address", "site", "socket")

    def __init__(self, accepted: socket.socket, address: str) -> None:
        self.socket = accepted
        self.address = address
        self.site: str | None = None
        self._cut: Callable[[], object] | None = None
        self.ends_by_reset(True)

    def cut_by(self, cut: Callable[[], object]) -> None:
        self._cut = cut

    def cut(self) -> None:
        """End it by a reset: a node tries again after one, but takes a torn handshake for final."""
        self.ends_by_reset(True)
        if self._cut is not None:
            self._cut()

    def ends_by_reset(self, yes: bool, /) -> None:
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET if yes else _CLOSE)


class Connections:
    """All connections: anonymous ones by address and sites' own by name, the oldest first."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._anonymous: dict[str, dict[Connection, None]] = {}
        self._of_site: dict[str, dict[Connection, None]] = {}

    @property
    def anonymous(self) -> int:
        return sum(map(len, self._anonymous.values()))

    def admit(self, connection: Connection) -> None:
        """Make a place for a new connection."""
        here = self._anonymous.get(connection.address, {})
        if len(here) >= self._limits.anonymous_per_address:
            self._cut_oldest(here)
        elif self.anonymous >= self._limits.anonymous:
            self._cut_oldest(max(self._anonymous.values(), key=len))
        self._anonymous.setdefault(connection.address, {})[connection] = None

    def belongs_to(self, connection: Connection, site: str) -> None:
        """Note that a site's signature came over a connection."""
        if connection.site == site:
            return
        self.release(connection)
        own = self._of_site.setdefault(site, {})
        if len(own) >= self._limits.connections_per_site:
            self._cut_oldest(own)
        connection.site = site
        self._of_site.setdefault(site, {})[connection] = None

    def release(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        groups, name = (
            (self._anonymous, connection.address)
            if connection.site is None
            else (self._of_site, connection.site)
        )
        group = groups.get(name, {})
        group.pop(connection, None)
        if not group:
            groups.pop(name, None)

    def _cut_oldest(self, group: dict[Connection, None]) -> None:
        oldest = next(iter(group))
        self.release(oldest)
        oldest.cut()


class LimitedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with limits: short headers, few requests at once, and nothing waits for ever."""

    def __init__(
        self, connection: Connection, table: Connections, limits: Limits, **uvicorns: Any
    ) -> None:
        super().__init__(**uvicorns)
        self._connection, self._table, self._limits = connection, table, limits
        self._in_head = True
        self._head_bytes = 0
        self._coming: asyncio.TimerHandle | None = None
        self._going: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connection.cut_by(transport.abort)
        self._expect_within(self._limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_within(None)
        self.resume_writing()
        self._table.release(self._connection)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.header_bytes:
                self._connection.cut()

    def on_message_begin(self) -> None:
        # A client may have all of an answer, and send the next request, before we are done with it.
        if self.pipeline:
            raise ValueError("a request waits already")  # answered with 400
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._expect_within(self._limits.header_seconds)

    def on_headers_complete(self) -> None:
        self._in_head = False
        length = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        self._expect_within(self._limits.body_seconds + length / self._limits.slowest_bytes)
        self.scope["state"]["connection"] = self._connection
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        # After an early answer nothing is under way: what is due is the next request.
        is_answered = self.cycle is None or self.cycle.response_complete
        self._expect_within(self._limits.idle_seconds if is_answered else None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() and self.cycle.more_body:
            # A polite end of TLS would decrypt, and forget, all that still comes.
            self.loop.call_later(_ANSWER_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._going = self.loop.call_later(self._limits.stalled_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        if self._going is not None:
            self._going.cancel()
            self._going = None
        super().resume_writing()

    def _expect_within(self, seconds: float | None) -> None:
        """Cut the connection unless what is due comes in time; None: nothing is due."""
        if self._coming is not None:
            self._coming.cancel()
        self._coming = None
        if seconds is not None:
            self._coming = self.loop.call_later(seconds, self.transport.abort)


class GateServer(uvicorn.Server):
    """Serves the gate: counts connections from the moment they are accepted, before TLS."""

    def __init__(self, config: uvicorn.Config, limits: Limits, table: Connections) -> None:
        super().__init__(config)
        self._limits, self._table = limits, table
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is None
        host = self.config.host
        self._listener = socket.create_server(
            (host, self.config.port),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=self.config.backlog,
        )
        self._listener.setblocking(False)
        await super().startup(sockets=[])  # which accepts nothing by itself
        self._keep(asyncio.create_task(self._accept(self._listener)))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._listener is not None:
            self._listener.close()
        await super().shutdown(sockets=sockets)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError:  # no descriptor is left: some will be
                await asyncio.sleep(_NO_DESCRIPTOR_SECONDS)
                continue
            connection = Connection(accepted, address_group(address[0]))
            self._table.admit(connection)
            task = asyncio.create_task(self._shake_hands(connection))
            connection.cut_by(task.cancel)
            self._keep(task)

    async def _shake_hands(self, connection: Connection) -> None:
        """Set up TLS; from then on the connection is its protocol's."""
        assert self.config.ssl is not None
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: LimitedProtocol(
                    connection,
                    self._table,
                    self._limits,
                    config=self.config,
                    server_state=self.server_state,
                    app_state=self.lifespan.state,
                    _loop=loop,
                ),
                connection.socket,
                ssl=self.config.ssl,
                ssl_handshake_timeout=self._limits.handshake_seconds,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
            )
            connection.ends_by_reset(False)
        except (OSError, ssl.SSLError, asyncio.CancelledError):
            self._table.release(connection)
            connection.socket.close()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def address_group(host: str) -> str:
    """Return the address by which connections are counted: for IPv6 its network of 2^64."""
    found = ipaddress.ip_address(host.partition("%")[0])
    if found.version == 6 and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, _IPV6_PREFIX_BITS), strict=False))
    return host
