"""The explorer over HTTP: for this machine alone, and an answer or a sentence for everything."""

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest

from sottovoce.core.errors import ParameterError
from sottovoce.reporting.explorer.server import ComputationQueue, Explorer, Superseded, open_server

QUESTION = {"mechanism": "gauss_hermite", "bits": 1, "dimension": 1000, "rounds": 2}


def _ask(
    server: Explorer,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read()
    finally:
        connection.close()


def _post(server: Explorer, path: str, question: Any, **more: Any) -> tuple[int, dict[str, Any]]:
    body = json.dumps({"question": question, **more}).encode()
    status, _, answer = _ask(server, "POST", path, body)
    return status, json.loads(answer)


def test_the_page_and_its_files_come_with_a_strict_policy(server: Explorer) -> None:
    status, headers, body = _ask(server, "GET", "/")
    assert status == 200
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert b"<html" in body
    for path in re.findall(rb'(?:src|href)="(/[^"]+)"', body):
        assert _ask(server, "GET", path.decode())[0] == 200
    assert not re.search(rb"https?://", body)


def test_it_listens_on_the_loopback_address_only(server: Explorer) -> None:
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1:1"},
        {"Host": "evil.example:{port}"},
        {"Host": "127.0.0.1:{port}", "Origin": "http://evil.example"},
        {"Host": "127.0.0.1:{port}", "Origin": "null"},
    ],
)
def test_a_foreign_host_or_origin_is_refused(server: Explorer, headers: dict[str, str]) -> None:
    sent = {name: value.format(port=server.port) for name, value in headers.items()}
    body = json.dumps({"question": QUESTION}).encode()
    for method, path, content in (("GET", "/", None), ("POST", "/api/answer", body)):
        status, _, answer = _ask(server, method, path, content, sent)
        assert status == 403
        assert b"for this machine only" in answer


def test_localhost_will_do(server: Explorer) -> None:
    host = f"localhost:{server.port}"
    assert _ask(server, "GET", "/", None, {"Host": host, "Origin": f"http://{host}"})[0] == 200


def test_a_question_is_answered(server: Explorer) -> None:
    status, found = _post(server, "/api/answer", QUESTION)
    assert status == 200
    assert found["spent"]["epsilon"] <= 4.0
    status, line = _post(server, "/api/curve", QUESTION)
    assert status == 200
    assert 2 in line["rounds"]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"mechanism": "gausian"}, "did you mean 'gaussian'"),
        ({"mechanism": "gaussian", "epsilon": -1}, "epsilon must be"),
        ({"mechanism": "mvu", "bits": 2}, "must be a Box"),
        ({"mechanism": "gaussian", "epsilon": 10**400}, "a number of more than 300 digits"),
        (None, "a question must be an object"),
    ],
)
def test_bad_parameters_get_the_librarys_sentence(
    server: Explorer, question: Any, said: str
) -> None:
    status, found = _post(server, "/api/answer", question)
    assert status == 422
    assert said in found["error"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"number": "x"}', b'{"number": 1e999}', b"\xff", b"[" * 9000]
)
def test_a_body_that_is_no_question_is_refused(server: Explorer, body: bytes) -> None:
    status, _, answer = _ask(server, "POST", "/api/answer", body)
    assert status == 422
    assert "error" in json.loads(answer)


def test_a_long_body_is_not_read(server: Explorer) -> None:
    status, _, answer = _ask(server, "POST", "/api/answer", b" " * 20_000)
    assert status == 422
    assert b"at most" in answer


def test_a_length_of_thousands_of_digits_is_too_long(server: Explorer) -> None:
    headers = {"Content-Length": "9" * 5000}
    status, _, answer = _ask(server, "POST", "/api/answer", None, headers)
    assert status == 422
    assert b"at most" in answer


def test_a_body_that_is_not_read_is_no_second_request(server: Explorer) -> None:
    host = f"Host: 127.0.0.1:{server.port}\r\n"
    inner = f"GET /api/mechanisms HTTP/1.1\r\n{host}\r\n"
    asked = f"POST /nothing HTTP/1.1\r\n{host}Content-Length: {len(inner)}\r\n\r\n{inner}"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(asked.encode())
        answered = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(65536):
                answered += part
    assert answered.count(b"HTTP/1.1 ") == 1


def test_there_is_nothing_else(server: Explorer) -> None:
    for method, path in (("GET", "/../pyproject.toml"), ("GET", "/answer.py"), ("POST", "/api/x")):
        assert _ask(server, method, path)[0] == 404


def test_of_two_questions_of_a_page_only_the_newest_is_computed() -> None:
    from sottovoce.reporting.explorer.question import ExplorerQuestion

    turns, question = ComputationQueue(), ExplorerQuestion.from_plain(QUESTION)
    turns.compute("/api/answer", "page", 5, question)
    with pytest.raises(Superseded):
        turns.compute("/api/answer", "page", 4, question)
    turns.compute("/api/answer", "another", 1, question)
    turns.compute("/api/curve", "page", 4, question)


def test_a_port_in_use_names_one_that_is_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ParameterError, match=r"address already in use.*--port 0") as refused:
            open_server(taken.getsockname()[1])
    found = re.search(r"--port (\d+), which is free", str(refused.value))
    assert found is not None
    with open_server(int(found[1])) as opened:
        assert opened.port == int(found[1])


def test_the_command_says_where_and_ends_quietly() -> None:
    command = [sys.executable, "-m", "sottovoce", "explore", "--port", "0", "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", first)
        assert found is not None
        with socket.create_connection(("127.0.0.1", int(found[1])), timeout=30):
            pass
        clash = subprocess.run(
            [*command[:-2], found[1], "--no-browser"], capture_output=True, text=True, check=False
        )
        assert clash.returncode == 2
        assert len(clash.stderr.strip().splitlines()) == 1
        assert "address already in use" in clash.stderr
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert rest == errors == ""
