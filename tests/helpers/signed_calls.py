"""Calls to a gate as a site's node makes them: signed, over TLS."""

import contextlib
import datetime
import http.client
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from sottovoce.deployment.machines import certificates
from sottovoce.deployment.machines.federation import Federation

Headers = dict[str, str]


def signed_headers(private_key: Path, *, seconds_ago: float = 0.0) -> Headers:
    """What Flower's node puts into the headers of a call."""
    key = load_ssh_private_key(private_key.read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    signed_at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds_ago)
    signature = key.sign(signed_at.isoformat().encode(), ec.ECDSA(hashes.SHA256()))
    public = certificates.to_flower_key(key.public_key())
    return {
        "flwr-public-key": b64encode(public).decode(),
        "flwr-timestamp": signed_at.isoformat(),
        "flwr-signature": b64encode(signature).decode(),
    }


def call(
    federation: Federation, path: str, body: bytes, headers: Headers
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Status, headers and body of the gate's answer."""
    context = ssl.create_default_context(cafile=str(federation.authority))
    connection = http.client.HTTPSConnection(str(federation.address), context=context, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", path, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


@contextlib.contextmanager
def tls_connection(federation: Federation) -> Iterator[ssl.SSLSocket]:
    """A connection to the gate over which nothing has been said yet."""
    context = ssl.create_default_context(cafile=str(federation.authority))
    host = federation.address.host
    with (
        socket.create_connection((host, federation.address.port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        yield secure


def head(path: str, headers: Headers) -> bytes:
    """The lines of a request before its body."""
    lines = [f"POST {path} HTTP/1.1", "host: gate", *(f"{k}: {v}" for k, v in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has ended a connection; waits for its timeout at most."""
    try:
        while connection.recv(4096):
            pass  # what it said before
        return True
    except TimeoutError:
        return False
    except OSError:
        return True
