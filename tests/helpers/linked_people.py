"""Clients of a relay of which some are sites of a link: real handlers, and a link in memory."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from flwr.app import Context, Message, RecordDict
from relayed_people import RelayedPeople
from two_operators import create_operators

from sottovoce.core.errors import SottovoceError
from sottovoce.deployment.operators.desk import open_desk
from sottovoce.deployment.operators.device import DeviceFolder, enrollment_folder
from sottovoce.deployment.operators.routes import Route
from sottovoce.deployment.post import Reply
from sottovoce.deployment.site import SITE_FILE, read_site
from sottovoce.flower.client import make_relay_handler
from sottovoce.flower.node_messages import ConfirmationRequest, ReportRequest
from sottovoce.flower.records import describe_failure, from_records, to_records
from sottovoce.flower.relay_server import Passage

Request = ReportRequest | ConfirmationRequest
STEPS = 4  # of a bridge before it is started again


class _PausedError(Exception):
    """A bridge that is stopped."""


class LinkedSites:
    """Sites whose messages pass through the handler of a Flower app.

    `broken` says how many of the next requests to a site fail, `asked` who was asked what.
    """

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders
        self.online = set(folders)
        self.broken = dict.fromkeys(folders, 0)
        self.asked: list[tuple[str, Request]] = []
        self.told: dict[str, str] = {}

    def reply(self, name: str, request: Request) -> Reply:
        self.asked.append((name, request))
        if self.broken[name]:
            self.broken[name] -= 1
            return Reply(client=name, blobs=None, failure="its process has ended")
        message = Message(
            content=to_records(request.blobs()), dst_node_id=1, message_type=request.message_type
        )
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
        handler = make_relay_handler(lambda _: read_site(self._folders[name] / SITE_FILE))
        answer = handler(message, context)
        if answer.has_error():
            return Reply(client=name, blobs=None, failure=describe_failure(answer.error, 1.0))
        blobs = from_records(answer.content)
        self.told[name] = blobs.get("refused", b"").decode()
        return Reply(client=name, blobs=blobs)


class Post:
    """A transport to sites."""

    def __init__(self, sites: LinkedSites) -> None:
        self._sites = sites
        self._due: list[Reply] = []

    def reachable(self, clients: Sequence[str]) -> frozenset[str]:
        return frozenset(clients) & self._sites.online

    def send(self, orders: Mapping[str, Request], *, expires_seconds: float) -> int:
        assert expires_seconds > 0.0
        self._due += [self._sites.reply(name, order) for name, order in orders.items()]
        return 0

    def collect(self) -> list[Reply]:
        due, self._due = self._due, []
        return due

    def traffic(self) -> None:
        """Count nothing."""


class LinkedPeople(RelayedPeople):
    """Relay, collector and clients, of which `linked` are sites of a link."""

    def link(self, *linked: str) -> None:
        """Make sites of a link of some clients."""
        folders = {}
        for one in self.devices:
            if one.name in linked:
                move_to_site(one)
                del self.participants[one.name]
                folders[one.name] = one.folder
        self.sites = LinkedSites(folders)

    def wait(self, seconds: float) -> None:
        """Let the link, in a bridge that was just started, and all other clients answer."""
        with contextlib.suppress(_PausedError, SottovoceError):
            self.bridge().run()
        super().wait(seconds)

    def bridge(self) -> Passage:
        """A bridge that is stopped after a few steps."""
        left = iter(range(STEPS))

        def pause(_: float) -> None:
            if next(left, None) is None:
                raise _PausedError

        return Passage(
            calls=self._calls,
            open_post=lambda: cast(Any, Post(self.sites)),
            sites=sorted(self.sites.online),
            ann=self._calls.ask(Route.ANNOUNCED),
            clock=lambda: self.now,
            pause=pause,
        )


def move_to_site(one: DeviceFolder) -> None:
    """Make the folder of a client that of a site, with its enrollment in relay/."""
    enrolled = enrollment_folder(one.folder)
    enrolled.mkdir()
    for name in ("trust.key", "admission.toml", "operators.toml", "device.toml"):
        shutil.move(one.folder / name, enrolled / name)
    with (enrolled / "device.toml").open("a") as file:
        file.write(f'site = "../{SITE_FILE}"\n')


@contextlib.contextmanager
def linked_people(
    folder: Path, tables: Mapping[str, Sequence[object]], patch: pytest.MonkeyPatch, *linked: str
) -> Iterator[LinkedPeople]:
    """Make operators and clients, with an open relay."""
    operators = create_operators(folder)
    with open_desk(operators.relay) as desk:
        people = LinkedPeople(operators, tables, desk, patch)
        people.link(*linked)
        yield people
