"""A relay in front of a port that counts what really goes over the wire, both ways."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Relay:
    """Bytes from those who dialled in (`up`) and back to them (`down`), TLS and all."""

    port: int
    up: int = 0
    down: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, direction: str, number: int) -> None:
        with self._lock:
            setattr(self, direction, getattr(self, direction) + number)


@contextlib.contextmanager
def relay_to(port: int) -> Iterator[Relay]:
    """A relay on a free port of this machine to another port of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        relay = Relay(port=listener.getsockname()[1])
        opened: list[socket.socket] = []
        waiting = threading.Thread(target=_accept, args=(listener, port, relay, opened))
        waiting.start()
        try:
            yield relay
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            waiting.join()
            for side in opened:
                side.close()


def _accept(listener: socket.socket, port: int, relay: Relay, opened: list[socket.socket]) -> None:
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        opened.append(near)
        try:
            far = socket.create_connection(("127.0.0.1", port))
        except OSError:  # nothing listens there now
            near.close()
            continue
        opened.append(far)
        for source, target, direction in ((near, far, "up"), (far, near, "down")):
            threading.Thread(
                target=_pump, args=(source, target, relay, direction), daemon=True
            ).start()


def _pump(source: socket.socket, target: socket.socket, relay: Relay, direction: str) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            relay.count(direction, len(data))
            target.sendall(data)
    for side in (source, target):
        with contextlib.suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
