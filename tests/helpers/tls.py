"""TLS servers on this machine, and certificates that are not of today."""

import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sottovoce.deployment.machines import certificates


@contextlib.contextmanager
def serving(certificate: Path, key: Path, *, host: str = "127.0.0.1") -> Iterator[int]:
    """A TLS server on this machine that greets every client that trusts it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = socket.create_server((host, 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with contextlib.suppress(OSError), connection:
                    context.wrap_socket(connection, server_side=True).close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def made_in_the_past(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    """Make what is made from now on `days` older (or younger, if negative)."""

    class Earlier(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> "Earlier":
            moved = datetime.datetime.now(tz) - datetime.timedelta(days=days)
            return cls.fromtimestamp(moved.timestamp(), tz)

    class Module:
        UTC = datetime.UTC
        timedelta = datetime.timedelta

    Module.datetime = Earlier  # type: ignore[attr-defined]
    monkeypatch.setattr(certificates, "datetime", Module)
