"""Requests to a relay over a pinned TLS connection, with few bytes.

The relay's certificate is its own authority and is pinned: no public authority can certify
another server. A connection is kept, since a new one costs five times the bytes of a report.
"""

import contextlib
import http.client
import os
import ssl
from http import HTTPStatus
from typing import Self
from urllib.parse import quote

from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.machines.address import Address
from sottovoce.deployment.operators.routes import Route

_TIMEOUT_SECONDS = 60.0
_LARGEST_ANSWER = 2**32
_LARGEST_TEXT = 2**12
# All other answers are short, so a lying relay cannot fill the memory of a client with a receipt.
_LONG = {
    Route.ANNOUNCEMENT,
    Route.LEAVES,
    Route.FROZEN,
    Route.ACCEPTED,
    Route.LIST,
    Route.CONFIRMATIONS,
}
# How a kept connection shows that the relay has closed it, or has been started again.
_BROKEN = (
    ConnectionError,
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    http.client.BadStatusLine,
)


class RefusedError(DeploymentError):
    """The relay has answered that it does not accept a request.

    Args:
        status: The HTTP status.
        reason: The relay's text.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status

    @property
    def is_too_early(self) -> bool:
        """Whether the same request may be accepted later."""
        return self.status == HTTPStatus.TOO_EARLY

    @property
    def is_busy(self) -> bool:
        """Whether the relay could not take the request now, whatever it was."""
        return self.status >= HTTPStatus.INTERNAL_SERVER_ERROR

    @property
    def is_unregistered(self) -> bool:
        """Whether the relay does not know the client's certificate."""
        return self.status == HTTPStatus.UNAUTHORIZED


class RelayAwayError(DeploymentError):
    """The relay does not answer; it may be about to start again."""


class RelayCalls:
    """A connection to a relay that is opened when it is needed, and kept.

    It is used by one thread at a time.

    Args:
        address: Where the relay listens.
        certificate: The relay's pinned certificate in PEM.

    Examples:
        Ask whether a relay runs:

            calls = RelayCalls(Address(host="localhost", port=9444), certificate)
            calls.ask(Route.HEALTH)  # b'ok'
    """

    def __init__(self, address: Address, certificate: str) -> None:
        self._address = address
        self._context = pinned_context(certificate)
        self._open: http.client.HTTPSConnection | None = None
        self._owner = os.getpid()

    def ask(
        self, route: Route, body: bytes = b"", *, of: str = "", authorization: str = ""
    ) -> bytes:
        """Send a request and return the content of its answer.

        A request over a kept connection that turns out to be closed is sent once more over a new
        one. The relay takes every request twice: it answers a second time as the first time.

        Args:
            route: Method and path.
            body: The body of a POST.
            of: What follows the path: a client's name.
            authorization: The header of this name; none if it is empty.

        Returns:
            The content.

        Raises:
            RefusedError: The relay has refused the request, with its reason.
            RelayAwayError: The relay does not answer.
            DeploymentError: The program that answers is not the pinned relay.
        """
        try:
            if self._open is not None and self._owner == os.getpid():
                with contextlib.suppress(*_BROKEN):
                    return self._send(self._open, route, body, of, authorization)
                self.close()
            self._open, self._owner = self._new(), os.getpid()
            return self._send(self._open, route, body, of, authorization)
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise DeploymentError(
                f"the program at {self._address} is not the relay whose certificate is pinned "
                f"({error.verify_message}); ask its operator, and send it nothing until you know"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise RelayAwayError(
                f"the relay at {self._address} does not answer ({error or type(error).__name__}); "
                "check the network and whether it runs, then try again: nothing is charged twice"
            ) from None

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._open is not None:
            self._open.close()
        self._open = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _new(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(
            self._address.host,
            self._address.port,
            context=self._context,
            timeout=_TIMEOUT_SECONDS,
        )

    def _send(
        self,
        connection: http.client.HTTPSConnection,
        route: Route,
        body: bytes,
        of: str,
        authorization: str,
    ) -> bytes:
        method, _, path = route.value.partition(" ")
        connection.putrequest(method, path + quote(of, safe=""), skip_accept_encoding=True)
        if authorization:
            connection.putheader("authorization", authorization)
        if method == "POST":
            connection.putheader("content-length", str(len(body)))
        connection.endheaders(body or None)
        answer = connection.getresponse()
        if answer.status >= HTTPStatus.BAD_REQUEST:
            text = answer.read(_LARGEST_TEXT).decode(errors="replace")
            if not answer.isclosed():  # The rest of the text was not read.
                self.close()
            raise RefusedError(answer.status, f"the relay refuses: {text}")
        most = _LARGEST_ANSWER if route in _LONG else _LARGEST_TEXT
        content = answer.read(most + 1)
        if len(content) > most:
            raise http.client.HTTPException("its answer is too long")
        return content


def pinned_context(certificate: str) -> ssl.SSLContext:
    """Return a TLS context that accepts the holder of one certificate's key only.

    The name of the host is not compared: only the relay has the key, whatever it is called.

    Args:
        certificate: The certificate in PEM.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate)
    return context
