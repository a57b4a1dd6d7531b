"""The explorer's HTTP server, which serves a page and its answers on this machine only.

It listens on the loopback address. Another page could still send a browser here under a name of its
own (DNS rebinding), so a request must name this server as its host, and a page that posts must come
from this server. The page's files are in this folder; its style is that of the reports.
"""

import json
import sys
import threading
import traceback
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sottovoce.core import bounded_json
from sottovoce.core.charts.style import PAGE
from sottovoce.core.errors import ParameterError, SottovoceError
from sottovoce.reporting.explorer.answer import answer, curve
from sottovoce.reporting.explorer.question import ExplorerQuestion, describe_mechanisms

_FOLDER = Path(__file__).parent
_HTML, _CSS, _JS = "text/html; charset=utf-8", "text/css; charset=utf-8", "text/javascript"


@cache
def files() -> dict[str, tuple[str, bytes]]:
    """Return the files of the page: (content type, content) by the path of the URL."""
    own = {name: (_FOLDER / name).read_bytes() for name in ("explore.html", "explore.css")}
    scripts = ("explore.js", "charts.js", "controls.js")
    return {
        "/": (_HTML, own["explore.html"]),
        "/explore.css": (_CSS, PAGE.encode() + b"\n" + own["explore.css"]),
        **{f"/{name}": (_JS, (_FOLDER / name).read_bytes()) for name in scripts},
    }


LOOPBACK = "127.0.0.1"
_MOST_BODY_BYTES = 10_000
_MOST_PAGES = 1000
_ANSWERS: dict[str, Callable[[ExplorerQuestion], dict[str, Any]]] = {
    "/api/answer": answer,
    "/api/curve": curve,
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Superseded(Exception):
    """The error that a question is not answered, because its page has asked a newer one."""


class ComputationQueue:
    """A queue of one computation at a time, in which a page's newest question replaces others.

    A computation that has begun is not interrupted.
    """

    def __init__(self) -> None:
        self._computing = threading.Lock()
        self._newest: dict[tuple[str, str], int] = {}

    def compute(
        self, path: str, page_name: str, number: int, question: ExplorerQuestion
    ) -> dict[str, Any]:
        """Wait until no other question is being computed, and return the answer.

        Args:
            path: Which answer is asked for: "/api/answer" or "/api/curve".
            page_name: A name of the page that asks, of its own choice.
            number: The number of the question, which grows with each one of the page.
            question: The question.

        Raises:
            Superseded: If the page has asked a newer question for the same path meanwhile.
            SottovoceError: If the question cannot be answered.
        """
        key = (page_name, path)
        if len(self._newest) > _MOST_PAGES:
            self._newest.clear()
        self._newest[key] = max(number, self._newest.get(key, 0))
        with self._computing:
            if self._newest.get(key, 0) > number:
                raise Superseded
            return _ANSWERS[path](question)


class Explorer(ThreadingHTTPServer):
    """The HTTP server of the explorer."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.queue = ComputationQueue()
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def port(self) -> int:
        """The port at which it listens."""
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        """The URL of the page."""
        return f"http://{LOOPBACK}:{self.port}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The values of the header `Host` (HOST:PORT) with which a request is answered."""
        return (f"{LOOPBACK}:{self.port}", f"localhost:{self.port}")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error of a request on stderr, unless the connection was closed or timed out."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Explorer
    server_version, sys_version = "sottovoce", ""
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """Send a file of the page, or the list of mechanisms."""
        if not self._is_for_us():
            return
        path = self.path.partition("?")[0]
        if path == "/api/mechanisms":
            self._send_json(HTTPStatus.OK, {"mechanisms": describe_mechanisms()})
            return
        found = files().get(path)
        if found is None:
            self._send_json(HTTPStatus.NOT_FOUND, {"error": f"there is nothing at {path}"})
            return
        self._send(HTTPStatus.OK, *found)

    def do_POST(self) -> None:
        """Send the answer to a question."""
        if not self._is_for_us():
            return
        if self.path not in _ANSWERS:
            self.close_connection = True  # the body is not read and must not be taken for a request
            self._send_json(HTTPStatus.NOT_FOUND, {"error": f"there is nothing at {self.path}"})
            return
        try:
            asked = self._body()
            question = ExplorerQuestion.from_plain(asked.get("question"))
            found = self.server.queue.compute(
                self.path, str(asked.get("page", "")), int(asked.get("number", 0)), question
            )
        except Superseded:
            self._send_json(HTTPStatus.CONFLICT, {"error": "a newer question was asked"})
        except SottovoceError as error:
            self._send_json(HTTPStatus.UNPROCESSABLE_ENTITY, {"error": str(error)})
        except Exception:
            traceback.print_exc()
            said = "this is a bug in Sottovoce; see the terminal, and report it"
            self._send_json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": said})
        else:
            self._send_json(HTTPStatus.OK, found)

    def _is_for_us(self) -> bool:
        """Return whether a request names this server and, if it has an origin, comes from it."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        ours = host in self.server.hosts
        if ours and origin in (None, *(f"http://{name}" for name in self.server.hosts)):
            return True
        self.close_connection = True
        said = f"this page is for this machine only: open {self.server.address}"
        self._send_json(HTTPStatus.FORBIDDEN, {"error": said})
        return False

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        short = len(length) <= len(
            str(_MOST_BODY_BYTES)
        )  # int() refuses very long strings of digits
        if not length.isdecimal() or not short or int(length) > _MOST_BODY_BYTES:
            self.close_connection = True
            raise ParameterError(
                f"a question must state its Content-Length, at most {_MOST_BODY_BYTES} bytes"
            )
        try:
            found = bounded_json.loads(self.rfile.read(int(length)))
            int(found.get("number", 0))
        except bounded_json.BoundsError as error:
            raise ParameterError(f"a question {error}; send a smaller one") from None
        except (ValueError, OverflowError, AttributeError, TypeError):
            raise ParameterError("a request must be a JSON object with a 'question'") from None
        assert isinstance(found, dict)
        return found

    def _send_json(self, status: HTTPStatus, value: dict[str, Any]) -> None:
        body = json.dumps(value, allow_nan=False).encode()
        self._send(status, "application/json", body)

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", _POLICY),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing, because requests do not concern the user of the terminal."""


def open_server(port: int) -> Explorer:
    """Return the explorer's server, which listens at a port of this machine.

    Requests are answered when its `serve_forever` is called.

    Args:
        port: The port; 0 for any free one.

    Raises:
        ParameterError: If the port cannot be used; the message names a free one.
    """
    try:
        return Explorer(port)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    with Explorer(0) as other:
        free = other.port
    raise ParameterError(
        f"port {port} cannot be used: {reason}; choose --port {free}, which is free, or --port 0 "
        "for any"
    )
