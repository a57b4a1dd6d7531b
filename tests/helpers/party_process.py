"""A party of a test as a process of its own, which does what it is told line by line."""

import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sottovoce.core.errors import SottovoceError
from sottovoce.deployment.operators.application import unpack_announcement
from sottovoce.deployment.operators.calls import RelayCalls
from sottovoce.deployment.operators.routes import Route
from sottovoce.ledger import records
from sottovoce.protocol.secure.announcement import Announcement

SENT = "sent.log"  # route, announcement, round and digest of each message that was about to leave
_ANSWERED = (Route.FROZEN, Route.ACCEPTED, Route.LIST, Route.CONFIRMATIONS)


class PartyEndedError(Exception):
    """A process has ended before it has answered."""


class Party:
    """A process that answers each command with one line."""

    def __init__(self, program: str, *arguments: str) -> None:
        path = Path(__file__).parent / f"{program}.py"
        self.process = subprocess.Popen(
            [sys.executable, str(path), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, do: str, **values: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It has ended, as `answer` tells.
            self.process.stdin.write(json.dumps({"do": do, **values}) + "\n")
            self.process.stdin.flush()

    def answer(self) -> Any:
        """Wait for what it has done; a refusal is the text 'refused: ...'.

        Raises:
            PartyEndedError: It has ended.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise PartyEndedError(f"{self.process.args!r} has ended")
        return json.loads(line)

    def ask(self, do: str, **values: Any) -> Any:
        self.tell(do, **values)
        return self.answer()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@contextlib.contextmanager
def party(program: str, *arguments: str) -> Iterator[Party]:
    """Run a party until the block ends."""
    started = Party(program, *arguments)
    try:
        yield started
    finally:
        started.stop()


def obey(commands: Mapping[str, Callable[..., Any]]) -> None:
    """Do in this process what each line of the standard input says."""
    for line in sys.stdin:
        values = json.loads(line)
        try:
            reply = commands[values.pop("do")](**values)
        except SottovoceError as error:
            reply = f"refused: {error}"
        print(json.dumps(reply), flush=True)


def write_down_what_leaves(folder: Path) -> None:
    """From now on what this process says and is told in an attempt is noted, the former before."""
    ask, place = RelayCalls.ask, ["none 0"]

    def note(kind: str, content: bytes) -> None:
        with (folder / SENT).open("a") as file:
            file.write(f"{kind} {place[0]} {records.digest(content).hex()}\n")

    def begin(packed: bytes) -> None:
        with contextlib.suppress(SottovoceError):
            found = Announcement.read(unpack_announcement(packed)[0])
            place[0] = f"{found.ann.hex()} {found.attempt.round}"

    def noting(calls: RelayCalls, route: Route, body: bytes = b"", **more: str) -> bytes:
        if route is Route.ANNOUNCE:
            begin(body)
        if body and route is not Route.REGISTER:
            note(route.name, body)
        content = ask(calls, route, body, **more)
        if route is Route.ANNOUNCEMENT:
            begin(content)
        elif route in _ANSWERED:
            note(f"answer:{route.name}", content)
        return content

    class_of_calls: Any = RelayCalls
    class_of_calls.ask = noting


def sent_by(folder: Path) -> dict[tuple[str, str, int], set[str]]:
    """Return the digests of what a party may have sent, by route, announcement and round.

    What the relay has answered to it has the names of routes after 'answer:'.
    """
    found: dict[tuple[str, str, int], set[str]] = {}
    log = folder / SENT
    for line in log.read_text().splitlines() if log.exists() else []:
        kind, ann, number, digest = line.split()
        found.setdefault((kind, ann, int(number)), set()).add(digest)
    return found


def answered_rounds(folder: Path) -> Counter[int]:
    """Return to how many announcements of each round a client may have sent a report."""
    return Counter(number for kind, _, number in sent_by(folder) if kind == Route.REPORT.name)
