"""Sites of a link that answer a relay's collector, with the link in memory."""

import dataclasses
import importlib.util
import json
import logging
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

import pytest
from command_line import call
from relayed_people import MEAN, SHUFFLER, SUM, tables_of
from two_operators import create_operators

pytest.importorskip("flwr")
from linked_people import LinkedPeople, LinkedSites, Post, linked_people

from sottovoce.core.errors import ConfigError, DeploymentError
from sottovoce.deployment.machines.address import Address
from sottovoce.deployment.machines.federation import create_federation
from sottovoce.deployment.machines.site_folder import create_site
from sottovoce.deployment.operators.application import HttpRefusal, pack_announcement
from sottovoce.deployment.operators.bridge import federation_of
from sottovoce.deployment.operators.calls import RefusedError, RelayCalls
from sottovoce.deployment.operators.desk import Desk
from sottovoce.deployment.operators.device import enroll_site
from sottovoce.deployment.operators.folders import RELAY_FILE, RelayFolder
from sottovoce.deployment.operators.routes import Route
from sottovoce.deployment.post import Reply
from sottovoce.flower.node_messages import ConfirmationRequest, ReportRequest, SiteConfirmation
from sottovoce.flower.relay_bridge import AnnouncementRuns, Bridge
from sottovoce.flower.relay_server import Gathering
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.relay_intake import is_sealed

pytestmark = pytest.mark.usefixtures("flower_task")
TABLES = tables_of("mean", dict.fromkeys("abcd", 1))


@pytest.fixture
def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LinkedPeople]:
    """Four clients with a person each, of which two are sites of a link."""
    with linked_people(tmp_path, TABLES, monkeypatch, "a", "b") as world:
        yield world


@pytest.mark.parametrize("channel", [SUM, SHUFFLER])
def test_sites_of_a_link_and_other_clients_answer_a_question_alike(
    people: LinkedPeople, channel: str
) -> None:
    """In a shuffle every site confirms, in a bridge that was started after the report."""
    found = people.ask(MEAN, channel)
    assert found["clients"] == {"admitted": 4, "answered": 4, "dropped": 0}
    charged = [people.events(one.folder) for one in people.devices]
    assert len(charged[0]) == 1
    assert all(each == charged[0] for each in charged)
    reports = [body for route, body in people.sent if route is Route.REPORT]
    assert {is_sealed(body) for body in reports} == {True, False}
    confirmed = {name for name, one in people.sites.asked if isinstance(one, ConfirmationRequest)}
    assert confirmed == ({"a", "b"} if channel == SHUFFLER else set())
    leaves = [of for route, of in people.sent if route is Route.ROOT_OF]
    assert len(leaves) == (2 if channel == SHUFFLER else 0)


def test_a_site_that_is_not_enrolled_or_whose_policy_is_stricter_refuses(
    people: LinkedPeople, caplog: pytest.LogCaptureFixture
) -> None:
    (people.devices[0].folder / "relay").rename(people.devices[0].folder / "elsewhere")
    site = people.devices[1].site_file
    site.write_text(site.read_text().replace("honest = 2", "honest = 3"))
    with caplog.at_level(logging.WARNING), pytest.raises(DeploymentError, match="no estimate"):
        people.ask(MEAN, SUM)
    assert "not enrolled with the relay's operators" in people.sites.told["a"]
    assert "'honest' is 3" in people.sites.told["b"]
    assert "'b' refuses: " in caplog.text
    for one in people.devices[:2]:
        with Ledger(one.folder / LEDGER_NAME) as ledger:
            assert ledger.num_charges == 0


@pytest.mark.parametrize("name", ["device.toml", "admission.toml", "operators.toml"])
def test_a_link_is_not_told_what_is_wrong_with_the_files_of_a_site(
    people: LinkedPeople, name: str
) -> None:
    file = people.devices[0].folder / "relay" / name
    file.write_text('name = "a\nsecret = 7')
    asked = people.operators.attempt(b"content")
    announced = Announcement(
        attempt=asked,
        opens=0,
        closes=2**40,
        confirm_by=0,
        slack=0,
        payload_bytes=0,
        hpke_key=people.operators.pinned.keys.relay_hpke,
        signature=b"",
    ).signed(people.operators.collector.signing_key)
    request = ReportRequest(announced=announced.to_bytes(), content=b"content")
    reply = people.sites.reply("a", request)
    told = f"{reply.failure} {people.sites.told.get('a')}"
    assert "its log" in told
    for secret in (str(file.parent), name, "secret"):
        assert secret not in told


def test_a_site_answers_its_own_operators_only(people: LinkedPeople, tmp_path: Path) -> None:
    strangers = create_operators(tmp_path / "strangers")
    attempt = strangers.attempt(b"content")
    key = strangers.collector.signing_key
    announced = Announcement(
        attempt=attempt,
        opens=0,
        closes=2**40,
        confirm_by=0,
        slack=0,
        payload_bytes=0,
        hpke_key=strangers.pinned.keys.relay_hpke,
        signature=b"",
    ).signed(key)
    ours = dataclasses.replace(announced, attempt=people.operators.attempt(b"content")).signed(key)
    for forged, said in ((announced, "pinned operators"), (ours, "signature")):
        asked = forged.to_bytes()
        people.sites.reply("a", ReportRequest(announced=asked, content=b"content"))
        assert said in people.sites.told["a"]
        people.sites.reply("a", ConfirmationRequest(announced=asked, leaves=bytes(300)))
        assert "expected an announcement" in people.sites.told["a"]
    people.sites.reply("a", ReportRequest(announced=b"no announcement", content=b""))
    assert "expected the message ANNOUNCE" in people.sites.told["a"]
    assert people.events(people.devices[0].folder) == []


def test_sealed_reports_that_do_not_open_leave_the_others_of_a_group(
    people: LinkedPeople, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[bytes | HttpRefusal] = []
    take = Desk.reports

    def take_with_others(desk: Desk, bodies: Any, now: float) -> Any:
        if not is_sealed(bodies[0]) or refused:
            return take(desk, bodies, now)
        (body,) = bodies
        *others, taken = take(desk, [body[:-1], body + bytes(2**10), body[:1], b"", body], now)
        if taken == b"":  # The relay knows the client's certificate by now.
            refused.extend(others)
        return [taken]

    monkeypatch.setattr(Desk, "reports", take_with_others)
    assert people.ask(MEAN, SUM)["clients"]["answered"] == 4
    assert len(refused) == 4
    for one in refused:
        assert isinstance(one, HttpRefusal)
        assert one.status is HTTPStatus.BAD_REQUEST


class AwayRelay:
    """Calls of a relay that is away, then busy, and takes everything after that."""

    def __init__(self) -> None:
        self.errors: list[Exception] = [
            DeploymentError("the relay does not answer"),
            RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "too much arrives at once"),
        ]
        self.taken: list[bytes] = []

    def ask(self, _: Route, body: bytes = b"") -> bytes:
        if self.errors:
            raise self.errors.pop(0)
        self.taken.append(body)
        return b""


class ConfirmingSites(LinkedSites):
    """Sites that confirm whatever they are asked, unless they are broken."""

    def reply(self, name: str, request: Any) -> Reply:
        self.asked.append((name, request))
        if self.broken[name]:
            self.broken[name] -= 1
            return Reply(client=name, blobs=None, failure="it has failed")
        return Reply(client=name, blobs=SiteConfirmation(confirmation=name.encode()).blobs())


def test_answers_wait_for_a_relay_that_is_away_and_sites_that_fail_are_asked_again() -> None:
    sites = ConfirmingSites(dict.fromkeys(("a", "b", "c"), Path()))
    sites.online, sites.broken = {"a", "b"}, {"a": 0, "b": 2, "c": 99}
    relay, now = AwayRelay(), [0.0]
    gathering = Gathering(
        calls=cast(RelayCalls, relay),
        open_post=lambda: cast(Any, Post(sites)),
        request=ConfirmationRequest(announced=b"", leaves=b""),
        most_bytes=100,
        missing={"a", "b", "c"},
        clock=lambda: now[0],
    )
    for second in range(60):
        now[0] = float(second)
        if second == 5:
            sites.online = {"b", "c"}
        gathering.step(1000.0)
    assert relay.taken == [b"a", b"b"]
    assert gathering.missing == set()
    assert sorted(name for name, _ in sites.asked) == ["a", "b", "b", "b", "c", "c", "c"]


class Runs:
    """Runs of a link that may be down."""

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.is_down = False
        self.ended: str | None = None

    def start(self, ann: bytes) -> int:
        if self.is_down:
            raise DeploymentError("the link is not running")
        self.started.append(ann)
        return len(self.started)

    def outcome(self, run: int) -> str | None:
        if self.is_down:
            raise DeploymentError("the link is not running")
        return self.ended


class Announcing:
    """Calls of a relay that hands out one announcement after the other."""

    def __init__(self, people: LinkedPeople) -> None:
        self._operators = people.operators
        self.asked = 0
        self.announced: Announcement | None = None

    def announce(self, number: int, closes: int) -> bytes:
        self.announced = Announcement(
            attempt=self._operators.attempt(b"", round=number),
            opens=0,
            closes=closes,
            confirm_by=0,
            slack=0,
            payload_bytes=0,
            hpke_key=bytes(32),
            signature=bytes(64),
        )
        return self.announced.ann

    def ask(self, route: Route) -> bytes:
        if self.announced is None:
            raise RefusedError(HTTPStatus.TOO_EARLY, "nothing is announced")
        if route is Route.ANNOUNCED:
            return self.announced.ann
        self.asked += 1
        return pack_announcement(self.announced.to_bytes(), b"")


def test_a_bridge_submits_a_run_for_each_announcement_until_one_has_completed(
    people: LinkedPeople,
) -> None:
    relay, runs, now = Announcing(people), Runs(), [0.0]
    bridge = Bridge(cast(RelayCalls, relay), cast(AnnouncementRuns, runs), clock=lambda: now[0])

    def look() -> str | None:
        now[0] += 10.0
        return bridge.look()

    assert look() is None
    first = relay.announce(1, closes=200)
    runs.is_down = True
    with pytest.raises(DeploymentError, match="not running"):
        look()
    runs.is_down = False
    assert "run 1 of the link" in str(look())
    assert look() is None
    runs.ended = "the server's process has died"
    assert "ended early (the server's process has died)" in str(look())
    assert "run 2" in str(look())
    runs.ended, runs.is_down = None, True
    with pytest.raises(DeploymentError):
        look()
    runs.is_down = False
    assert "run 3" in str(look())
    second = relay.announce(2, closes=1000)
    assert "run 4" in str(look())
    runs.ended = "finished:completed"
    assert look() == "run 4 of the link has ended"
    assert look() is None
    relay.announce(3, closes=int(now[0]))
    assert look() is None
    assert runs.started == [first, first, first, second]
    assert relay.asked == 3


def test_a_site_is_enrolled_in_its_own_folder(tmp_path: Path) -> None:
    operators = create_operators(tmp_path)
    address = Address(host="localhost", port=9443)
    federation = create_federation(tmp_path / "federation", address=address, sites=["site-a"])
    site = create_site(
        tmp_path / "site-a", name="site-a", address=address, root_certificate=federation.authority
    )
    card, digest = operators.relay.folder / "operators.toml", operators.pinned.digest
    given = ["--operators", str(card), "--digest", digest]
    for name, more, said in (
        ("site-b", given, "give --as site-a"),
        ("site-a", [*given, "--with-site"], "leave out --with-site"),
        ("site-a", [*given[:-1], "0" * 64], "use no file whose digest they do not confirm"),
    ):
        refused = call("deploy", "enroll", str(site.folder), "--as", name, *more)
        assert refused.code == 2
        assert said in refused.text
    assert not (site.folder / "relay").exists()
    assert call("deploy", "enroll", str(site.folder), "--as", "site-a", *given).code == 0
    with pytest.raises(DeploymentError, match="is enrolled already"):
        enroll_site(site, name="site-a", operators=card, digest=digest)
    checks = json.loads(call("deploy", "check", str(site.folder), "--json").out)["checks"]
    (admission,) = [one for one in checks if one["name"] == "relay: admission"]
    assert admission["state"] == "FAILS"
    assert "is not signed by the relay yet" in admission["detail"]


def test_a_link_that_is_none_is_refused_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operators = create_operators(tmp_path)
    path = operators.relay.folder / RELAY_FILE
    path.write_text(path.read_text().replace('# link = "../federation"', 'link = "../nothing"'))
    refused = call("deploy", "relay", str(operators.relay.folder))
    assert refused.code == 2
    assert "'link' must be a federation's folder" in refused.text
    address = Address(host="localhost", port=9443)
    create_federation(tmp_path / "nothing", address=address, sites=["site-a"])
    relay = RelayFolder.read(operators.relay.folder)
    assert federation_of(relay).sites == ("site-a",)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DeploymentError, match="install it with: pip install"):
        federation_of(relay)
    with pytest.raises(ConfigError, match="names no 'link'"):
        federation_of(dataclasses.replace(relay, link=None))
