"""Clients that ask for a model and do not read it: how much memory a relay keeps for them."""

import contextlib
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sottovoce.deployment.machines import certificates
from sottovoce.deployment.machines.address import Address, free_port

pytest.importorskip("uvicorn")
STATUS = Path("/proc/self/status")
CONTENT_BYTES = 4 * 2**20
SERVER = f"""
import sys
from pathlib import Path
from sottovoce.deployment.machines.limited_server import serve
from sottovoce.deployment.operators.application import RelayApplication
from sottovoce.deployment.operators.relay_program import LIMITS

class Desk:
    federation, collector_key, largest_report = bytes(16), bytes(32), 0
    content = bytes({CONTENT_BYTES})

    def answer(self, *_):
        return self.content

    reports = roots = take_confirmations = answer

folder, port = Path(sys.argv[1]), int(sys.argv[2])
serve(
    RelayApplication(Desk()),
    host="localhost",
    port=port,
    certificate=folder / "tls.crt",
    key=folder / "tls.key",
    limits=LIMITS,
)
"""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[int, Address]]:
    """Serve a large announcement; yield the number of the process and its address."""
    certificates.create_pinned_certificate(
        folder / "tls.crt", folder / "tls.key", hosts=["localhost"], days=1
    )
    address = Address(host="localhost", port=free_port())
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(folder), str(address.port)])
    try:
        deadline = time.monotonic() + 60
        while address.is_free():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield process.pid, address
    finally:
        process.kill()
        process.wait()


def asked(address: Address, stack: contextlib.ExitStack) -> ssl.SSLSocket:
    """Ask for the announcement over a new connection, and read only the start of the answer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect((address.host, address.port))
    secured = stack.enter_context(context.wrap_socket(raw))
    secured.sendall(b"GET /1/announcement HTTP/1.1\r\nhost: relay\r\n\r\n")
    assert secured.recv(12) == b"HTTP/1.1 200"
    return secured


def resident_bytes(pid: int) -> int:
    lines = (STATUS.parent.parent / str(pid) / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@pytest.mark.skipif(not STATUS.exists(), reason="reads the size of a process from /proc")
@pytest.mark.slow
def test_a_client_that_does_not_read_takes_little_memory(tmp_path: Path) -> None:
    with serving(tmp_path) as (pid, address), contextlib.ExitStack() as stack:
        asked(address, stack)
        before, count = resident_bytes(pid), 60
        for _ in range(count):
            asked(address, stack)
        time.sleep(0.5)  # The server fills its buffers for the last ones.
        assert resident_bytes(pid) - before < count * 2**19
