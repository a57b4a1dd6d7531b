"""A server for this machine alone: a page, and the answers that it asks for.

It listens on the loopback address only. A page elsewhere could still send a browser here under a
name of its own (DNS rebinding), so a request must name this server as its host, and a page that
posts must come from it.

The page's files, which lie beside this one; its look is that of the reports.
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
from sottovoce.reporting.explorer.question import Question, offered

_FOLDER = Path(__file__).parent
_HTML, _CSS, _JS = "text/html; charset=utf-8", "text/css; charset=utf-8", "text/javascript"


@cache
def files() -> dict[str, tuple[str, bytes]]:
    """What can be asked for, each with its kind."""
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
_ANSWERS: dict[str, Callable[[Question], dict[str, Any]]] = {
    "/api/answer": answer,
    "/api/curve": curve,
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Superseded(Exception):
    """The page has moved on: a newer question of the same kind waits."""


class Turns:
    """One computation at a time; of what a page asks, only the newest is worth it."""

    def __init__(self) -> None:
        self._computing = threading.Lock()
        self._newest: dict[tuple[str, str], int] = {}

    def compute(self, path: str, page_name: str, number: int, question: Question) -> dict[str, Any]:
        key = (page_name, path)
        if len(self._newest) > _MOST_PAGES:
            self._newest.clear()
        self._newest[key] = max(number, self._newest.get(key, 0))
        with self._computing:
            if self._newest.get(key, 0) > number:
                raise Superseded
            return _ANSWERS[path](question)


class Explorer(ThreadingHTTPServer):
    """Serves the page at `address`."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.turns = Turns()
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """What this server may be called in a request."""
        return (f"{LOOPBACK}:{self.port}", f"localhost:{self.port}")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that hangs up is no error; anything else is ours."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Explorer
    server_version, sys_version = "sottovoce", ""
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        if not self._is_for_us():
            return
        path = self.path.partition("?")[0]
        if path == "/api/mechanisms":
            self._send_json(HTTPStatus.OK, {"mechanisms": offered()})
            return
        found = files().get(path)
        if found is None:
            self._send_json(HTTPStatus.NOT_FOUND, {"error": f"there is nothing at {path}"})
            return
        self._send(HTTPStatus.OK, *found)

    def do_POST(self) -> None:
        if not self._is_for_us():
            return
        if self.path not in _ANSWERS:
            self.close_connection = True  # its body is not read, and is no next request
            self._send_json(HTTPStatus.NOT_FOUND, {"error": f"there is nothing at {self.path}"})
            return
        try:
            asked = self._body()
            question = Question.from_plain(asked.get("question"))
            found = self.server.turns.compute(
                self.path, str(asked.get("page", "")), int(asked.get("number", 0)), question
            )
        except Superseded:
            self._send_json(HTTPStatus.CONFLICT, {"error": "a newer question was asked"})
        except SottovoceError as error:
            self._send_json(HTTPStatus.UNPROCESSABLE_ENTITY, {"error": str(error)})
        except Exception:
            traceback.print_exc()
            said = "this is a bug of Sottovoce; the terminal shows where"
            self._send_json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": said})
        else:
            self._send_json(HTTPStatus.OK, found)

    def _is_for_us(self) -> bool:
        """Whether the request names this server, and comes from its own page if from any."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        ours = host in self.server.hosts
        if ours and origin in (None, *(f"http://{name}" for name in self.server.hosts)):
            return True
        self.close_connection = True
        said = f"this page is for this machine alone: open {self.server.address}"
        self._send_json(HTTPStatus.FORBIDDEN, {"error": said})
        return False

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        short = len(length) <= len(str(_MOST_BODY_BYTES))  # not every digit string is read as int
        if not length.isdecimal() or not short or int(length) > _MOST_BODY_BYTES:
            self.close_connection = True
            raise ParameterError(f"a question has at most {_MOST_BODY_BYTES} bytes")
        try:
            found = bounded_json.loads(self.rfile.read(int(length)))
            int(found.get("number", 0))
        except bounded_json.BoundsError as error:
            raise ParameterError(f"a question {error}; send a smaller one") from None
        except (ValueError, OverflowError, AttributeError, TypeError):
            raise ParameterError("a question is a JSON object, with a 'question' in it") from None
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
        """Nothing: the terminal is for what its user should know."""


def open_server(port: int) -> Explorer:
    """The server at `port`, or at any free one for 0; a port in use names one that is free."""
    try:
        return Explorer(port)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    with Explorer(0) as other:
        free = other.port
    raise ParameterError(
        f"port {port} cannot be had: {reason}; --port {free} is free now, and --port 0 takes any"
    )
