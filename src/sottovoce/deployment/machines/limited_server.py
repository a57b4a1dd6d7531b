"""An HTTPS server with limits on the number, duration and content of connections.

The gate of a link and the relay serve through it. A connection is anonymous until the application
has assigned it to a site. Each address may have few anonymous connections, and so may all addresses
together. A further one closes the oldest, so that holding connections open keeps no client
out. Each site may have few connections of its own. The relay never assigns one.

No other module of this package imports uvicorn.
"""

import asyncio
import contextlib
import ipaddress
import resource
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_RESET, _CLOSE = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)
_NO_DESCRIPTOR_SECONDS = 0.1
_SHUTDOWN_SECONDS = 0.5
_ANSWER_SECONDS = 0.01  # Time for a response to leave where the rest of a body is not wanted.
_STOP_SECONDS = 3
_UNSENT_BYTES = 2**14
_IPV6_PREFIX_BITS = 64  # One customer has all addresses with the same prefix.


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on connections, seconds and bytes.

    A connection is anonymous until it is assigned to a site. It is closed if the TLS
    handshake, the headers or the next request (`idle_seconds`) take longer than allowed, or if the
    client does not read for `stalled_seconds`. A body must arrive within `body_seconds` plus one
    second for every `slowest_bytes` declared.
    """

    anonymous: int = 256
    anonymous_per_address: int = 64
    connections_per_site: int = 16
    handshake_seconds: float = 10.0
    header_seconds: float = 10.0
    idle_seconds: float = 15.0
    stalled_seconds: float = 30.0
    header_bytes: int = 2**14
    body_seconds: float = 30.0
    slowest_bytes: int = 2**16


class Connection:
    """One accepted connection, with its address and, once known, its site."""

    __slots__ = ("_cut", "address", "site", "socket")

    def __init__(self, accepted: socket.socket, address: str) -> None:
        self.socket = accepted
        self.address = address
        self.site: str | None = None
        self._cut: Callable[[], object] | None = None
        self.set_reset_on_close(True)

    def set_closer(self, cut: Callable[[], object]) -> None:
        """Set the function that `cut` calls to close the connection."""
        self._cut = cut

    def cut(self) -> None:
        """Reset the connection: nodes retry after a reset, but not after a failed handshake."""
        self.set_reset_on_close(True)
        if self._cut is not None:
            self._cut()

    def set_reset_on_close(self, yes: bool, /) -> None:
        """Set whether closing the socket sends a TCP reset instead of a regular end."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET if yes else _CLOSE)


class Connections:
    """All connections, anonymous ones by address and others by site, oldest first."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._anonymous: dict[str, dict[Connection, None]] = {}
        self._of_site: dict[str, dict[Connection, None]] = {}

    @property
    def anonymous(self) -> int:
        """The number of anonymous connections."""
        return sum(map(len, self._anonymous.values()))

    def admit(self, connection: Connection) -> None:
        """Add a new anonymous connection, and close the oldest one if there are too many.

        It is the oldest of the same address or, if all addresses together have too many, of the
        address that has the most.
        """
        here = self._anonymous.get(connection.address, {})
        if len(here) >= self._limits.anonymous_per_address:
            self._cut_oldest(here)
        elif self.anonymous >= self._limits.anonymous:
            self._cut_oldest(max(self._anonymous.values(), key=len))
        self._anonymous.setdefault(connection.address, {})[connection] = None

    def assign_site(self, connection: Connection, site: str) -> None:
        """Record that a connection is a site's.

        The site's oldest connection is closed if it has too many.
        """
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
    """HTTP/1.1 with limits on headers, pipelined requests and waiting times."""

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
        """Start the timer for the first request."""
        super().connection_made(transport)
        # Else TLS keeps half a megabyte of an answer for each client that does not read.
        transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        self._connection.set_closer(transport.abort)
        self._expect_within(self._limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers and forget the connection."""
        self._expect_within(None)
        self.resume_writing()
        self._table.release(self._connection)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data, and close the connection if the headers are too long."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.header_bytes:
                self._connection.cut()

    def on_message_begin(self) -> None:
        """Start the timer for headers; refuse a pipelined request."""
        # A client may send its next request before we have finished the previous response.
        if self.pipeline:
            raise ValueError("a request is already waiting")  # Answered with status 400.
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._expect_within(self._limits.header_seconds)

    def on_headers_complete(self) -> None:
        """Start the timer for the body, by its declared length."""
        self._in_head = False
        length = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        self._expect_within(self._limits.body_seconds + length / self._limits.slowest_bytes)
        self.scope["state"]["connection"] = self._connection
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stop the timer, or start the one for the next request."""
        # After an early response the next event is the next request.
        is_answered = self.cycle is None or self.cycle.response_complete
        self._expect_within(self._limits.idle_seconds if is_answered else None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Close a connection whose remaining body is not wanted."""
        super().on_response_complete()
        if self.transport.is_closing() and self.cycle.more_body:
            # A regular TLS shutdown would decrypt and discard everything that still arrives.
            self.loop.call_later(_ANSWER_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        """Start the timer for a client that does not read."""
        super().pause_writing()
        self._going = self.loop.call_later(self._limits.stalled_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timer for a client that does not read."""
        if self._going is not None:
            self._going.cancel()
            self._going = None
        super().resume_writing()

    def _expect_within(self, seconds: float | None) -> None:
        """Close the connection unless the next event comes in time; None if no event is due."""
        if self._coming is not None:
            self._coming.cancel()
        self._coming = None
        if seconds is not None:
            self._coming = self.loop.call_later(seconds, self.transport.abort)


class LimitedServer(uvicorn.Server):
    """A server that counts connections from the moment they are accepted, before TLS."""

    def __init__(self, config: uvicorn.Config, limits: Limits, table: Connections) -> None:
        super().__init__(config)
        self._limits, self._table = limits, table
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen and start to accept connections."""
        assert sockets is None
        host = self.config.host
        self._listener = socket.create_server(
            (host, self.config.port),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=self.config.backlog,
        )
        self._listener.setblocking(False)
        await super().startup(sockets=[])  # Accepts no connections by itself.
        self._keep(asyncio.create_task(self._accept(self._listener)))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections and close the listener."""
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
            except OSError:  # No file descriptor is free for now.
                await asyncio.sleep(_NO_DESCRIPTOR_SECONDS)
                continue
            connection = Connection(accepted, address_group(address[0]))
            self._table.admit(connection)
            task = asyncio.create_task(self._shake_hands(connection))
            connection.set_closer(task.cancel)
            self._keep(task)

    async def _shake_hands(self, connection: Connection) -> None:
        """Set up TLS and hand the connection to its protocol."""
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
            connection.set_reset_on_close(False)
        except (OSError, ssl.SSLError, asyncio.CancelledError):
            self._table.release(connection)
            connection.socket.close()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def address_group(host: str) -> str:
    """Return the text by which connections are counted: the address, for IPv6 its /64 network."""
    found = ipaddress.ip_address(host.partition("%")[0])
    if found.version == 6 and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, _IPV6_PREFIX_BITS), strict=False))
    return host


def serve(
    app: Any,
    *,
    host: str,
    port: int,
    certificate: Path,
    key: Path,
    limits: Limits,
    table: Connections | None = None,
    tells_time: bool = False,
) -> None:
    """Serve an ASGI application over TLS until a signal ends this process.

    No request is logged. The server issues no session tickets: a new connection costs some 500
    bytes less without them, and no two connections of a client can be linked by one.

    Args:
        app: The application.
        host: The host to listen at.
        port: The port to listen at.
        certificate: The certificate's file in PEM.
        key: The file of its private key in PEM.
        limits: What a connection may do.
        table: The table of all connections, if the application assigns them to sites.
        tells_time: Whether answers have a header with the server's time, by which clients check
            their clocks.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        ssl_context_factory=lambda *_: _tls(certificate, key),
        http="httptools",
        ws="none",
        access_log=False,
        log_level="error",  # Warnings about malformed requests would let attackers fill the log.
        server_header=False,
        date_header=tells_time,
        timeout_keep_alive=int(limits.idle_seconds),
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    LimitedServer(config, limits, table or Connections(limits)).run()


def _tls(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0
    context.load_cert_chain(certificate, key)
    return context
