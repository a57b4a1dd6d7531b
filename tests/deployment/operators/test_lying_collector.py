"""Lies of a collector to processes of an honest relay and of honest clients: each is refused."""

import dataclasses
import re
import time
from pathlib import Path
from typing import Any

import pytest
from lying_collector import SECONDS, LyingCollector, lying_collector, wait_until
from relayed_mechanisms import SHUFFLER, SUM

from sottovoce.deployment.operators.routes import Route
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.hpke import HpkeKey
from sottovoce.protocol.secure.merkle import Tree
from sottovoce.protocol.secure.roster import TrustKey
from sottovoce.protocol.secure.shuffle_messages import Confirmations, ShuffledList
from sottovoce.protocol.secure.two_server_messages import Frozen, Summed

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.slow
DAY = 86_400


def refused(answer: Any, reason: str) -> None:
    assert isinstance(answer, str), answer
    assert re.match(f"refused: .*({reason})", answer), answer


def taken(answer: Any) -> bytes:
    assert isinstance(answer, bytes), answer
    return answer


def all_answer(lies: LyingCollector) -> None:
    said = lies.all_send()
    assert all(each.startswith("answered") for each in said), said


def second_key(made: Announcement, key: TrustKey) -> Announcement:
    """Return a second announcement of the same attempt, with another key and more time."""
    return dataclasses.replace(
        made,
        hpke_key=HpkeKey.generate().public,
        closes=made.closes + 600,
        confirm_by=made.confirm_by and made.confirm_by + 900,
    ).signed(key)


def check_requests(lies: LyingCollector, route: Route) -> None:
    """Raise unless only the collector's own, fresh and whole requests are answered."""
    strangers = lies.operators.collector.admission_key, lies.devices[0].key
    for key in strangers:
        refused(lies.ask(route, key=key), "signature")
    refused(lies.unsigned(route), "only the collector")
    for seconds in (130.0, -130.0):
        refused(lies.ask(route, seconds_ago=seconds), "set the clocks")
    other = Route.ROOT if route is Route.ANNOUNCE else Route.ANNOUNCE
    refused(lies.ask(route, signed=(other, b"")), "signature")
    refused(lies.ask(route, signed=(route, b"other")), "signature|body")


def test_an_honest_relay_answers_one_sum_whatever_the_collector_asks(tmp_path: Path) -> None:
    with lying_collector(tmp_path, SUM) as lies:
        for number in (1, 2):  # The second time everything must still work.
            answer_one_sum(lies, number)
        assert lies.spent() == [2] * 4


def answer_one_sum(lies: LyingCollector, number: int) -> None:
    made = lies.announcement(SUM, attempt={"round": number})
    ann, names = made.ann, tuple(device.name for device in lies.devices)
    refused(lies.ask(Route.FROZEN), "closed|none was announced")
    taken(lies.announce(made))
    taken(lies.announce(made))
    refused(lies.announce(second_key(made, lies.key)), "begun before")
    for route in (Route.FROZEN, Route.ACCEPTED):
        check_requests(lies, route)
    for route in (Route.LIST, Route.CONFIRMATIONS):
        refused(lies.ask(route), "none was announced")
    refused(lies.ask(Route.ROOT, bytes(137)), "none was announced|ROOT")
    early = lies.accepted(ann, b"", names)
    refused(lies.ask(Route.ACCEPTED, early.to_bytes()), "closed, or this step is out of order")
    all_answer(lies)
    all_answer(lies)  # the same bytes
    refused(lies.ask(Route.FROZEN), "still open")
    wait_until(made.closes)
    frozen = taken(lies.ask(Route.FROZEN))
    assert taken(lies.ask(Route.FROZEN)) == frozen
    assert Frozen.read(frozen).names == names
    assert all(re.match("refused: .*no attempt is open", said) for said in lies.all_send())
    honest = lies.accepted(ann, frozen, names[:3])
    for lie, reason in (
        (lies.accepted(ann, frozen, names[:2]), "at least 3 clients, got 2"),
        (lies.accepted(ann, frozen, ()), "at least 3 clients, got 0"),
        (lies.accepted(ann, frozen, (*names, "zoe")), "frozen list only"),
        (lies.accepted(ann, frozen + b"x", names), "another list"),
        (lies.accepted(bytes(32), frozen, names), "of another"),
        (lies.signed_acceptance(honest, lies.devices[0].key), "signature"),
        (dataclasses.replace(honest, names=names), "signature"),
        (lies.accepted(ann, frozen, (names[0], *names)), "sorted"),
        (lies.accepted(ann, frozen, names[::-1]), "sorted"),
    ):
        refused(lies.ask(Route.ACCEPTED, lie.to_bytes()), reason)
    for garbled in (b"", honest.to_bytes()[:-1], honest.to_bytes() + b"x", b"\x05" + bytes(200)):
        refused(lies.ask(Route.ACCEPTED, garbled), "expected|got")
    summed = taken(lies.ask(Route.ACCEPTED, honest.to_bytes()))
    assert Summed.read(summed).ann == ann
    for others in (names, names[1:], (names[0], *names[2:])):
        other = lies.accepted(ann, frozen, others).to_bytes()
        refused(lies.ask(Route.ACCEPTED, other), "another sum was returned")
    assert taken(lies.ask(Route.ACCEPTED, honest.to_bytes())) == summed
    refused(lies.ask(Route.FROZEN), "closed, or this step is out of order")
    refused(lies.announce(second_key(made, lies.key)), "begun before")
    older = lies.announcement(SUM, attempt={"round": number - 1, "attempt": 9})
    refused(lies.announce(older), "begun before")


ANNOUNCED_TO_THE_RELAY: dict[str, tuple[dict[str, Any], str]] = {
    "below the relay's minimum": ({"attempt": {"threshold": 2}}, "at least 3 clients"),
    "of other operators": ({"attempt": {"parties": bytes(32)}}, "pinned operators"),
    "of another federation": ({"attempt": {"federation": bytes(16)}}, "pinned operators"),
    "that is over": ({"closes": 1000, "opens": 0}, "that is over"),
    "of another model": ({"attempt": {"model_digest": bytes(32)}}, "content that was announced"),
    "of vectors that nobody can keep": (
        {"attempt": {"dimension": 2**31, "uplinks": 2**31}},
        "at most 536870912 bytes",
    ),
}
# Announcements that an honest relay hands out, and why clients send nothing.
ANNOUNCED_TO_CLIENTS: dict[str, tuple[dict[str, Any], str]] = {
    "a lower minimum": ({"attempt": {"threshold": 3}}, "other terms"),
    "less noise": ({"attempt": {"mechanism": "{}"}}, "another 'mechanism'"),
    "another size": ({"attempt": {"dimension": 63}}, "another 'dimension'"),
    "more levels": ({"attempt": {"levels": 4, "bits": 9}}, "another 'levels'"),
    "two messages": ({"attempt": {"uplinks": 2}}, "another 'uplinks'"),
    "no rotation": ({"attempt": {"rotation_seed": b""}}, "another 'rotation_seed'"),
    "another adjacency": ({"attempt": {"adjacency": "replace-one"}}, "another 'adjacency'"),
    "another unit": ({"attempt": {"unit": "sample"}}, "another 'unit'"),
    "a key of low order": ({"hpke_key": bytes(32)}, "public key"),
    "not open yet": ({"opens": 2**33, "closes": 2**34}, "not open"),
    "open for years": ({"closes": int(time.time()) + 400 * DAY}, "admission expires"),
    "another run with another minimum": (
        {"attempt": {"run": "other", "threshold": 3}},
        "other terms than those before",
    ),
}


def test_relay_and_clients_refuse_announcements_that_are_not_as_agreed(tmp_path: Path) -> None:
    with lying_collector(tmp_path, SUM) as lies:
        agreed = {"threshold": 4}
        first = lies.announcement(SUM, attempt={"round": 1, **agreed})
        taken(lies.announce(first))
        all_answer(lies)
        for changed, reason in ANNOUNCED_TO_THE_RELAY.values():
            refused(lies.announce(announcement_with(lies, SUM, 2, changed)), reason)
        check_malformed(lies, lies.announcement(SUM, attempt={"round": 2, **agreed}))
        for number, (changed, reason) in enumerate(ANNOUNCED_TO_CLIENTS.values(), start=3):
            taken(lies.announce(announcement_with(lies, SUM, number, changed)))
            for said in lies.all_send():
                refused(said, reason)
        assert lies.spent() == [1] * 4
        last = lies.announcement(SUM, attempt={"round": 99, **agreed})
        taken(lies.announce(last))
        all_answer(lies)
        again = lies.announcement(SUM, attempt={"round": 99, "attempt": 2, **agreed})
        taken(lies.announce(again))
        all_answer(lies)
        refused(lies.announce(last), "begun before")
        assert lies.spent() == [3] * 4


def announcement_with(
    lies: LyingCollector, protocol: Protocol, number: int, changed: dict[str, Any]
) -> Announcement:
    fields = dict(changed)
    attempt = {"round": number, "threshold": 4, **fields.pop("attempt", {})}
    return lies.announcement(protocol, attempt=attempt, **fields)


def check_malformed(lies: LyingCollector, made: Announcement) -> None:
    """Raise unless the relay refuses an announcement in every other form than its own."""
    whole = made.to_bytes()
    asked = made.attempt
    position = 2 + 32 + 16 + 1 + len(asked.run)  # of the numbers
    zero_uplinks = whole[: position + 24] + bytes(8) + whole[position + 32 :]
    for garbled, reason in (
        (b"", "ANNOUNCE"),
        (whole[:-1], "more bytes"),
        (whole + b"x", "the end of a message"),
        (b"\x02" + whole[1:], "ANNOUNCE"),
        (whole[:1] + b"\x03" + whole[2:], "the mode 3"),
        (zero_uplinks, "uplinks"),
        (whole[:position] + b"\xff" * 8 + whole[position + 8 :], "round"),
        (whole[:-64] + bytes(64), "signature"),
        (second_key(made, lies.operators.relay.signing_key).to_bytes(), "signature"),
        (second_key(made, lies.operators.collector.admission_key).to_bytes(), "signature"),
    ):
        refused(lies.announce(garbled), reason)
    for packed in (b"", b"\xff\xff\xff\xff", whole):
        refused(lies.ask(Route.ANNOUNCE, packed), "expected")
    refused(lies.announce(made, b"another model"), "content that was announced")
    check_requests(lies, Route.ANNOUNCE)


def test_an_honest_relay_hands_out_one_root_whatever_the_collector_signs(tmp_path: Path) -> None:
    with lying_collector(tmp_path, SHUFFLER) as lies:
        for number in (1, 2):
            hand_out_one_root(lies, number)
        refuse_other_shuffles(lies)
        assert lies.spent() == [2] * 4


def hand_out_one_root(lies: LyingCollector, number: int) -> None:
    made = lies.announcement(SHUFFLER, attempt={"round": number})
    ann, names = made.ann, tuple(device.name for device in lies.devices)
    taken(lies.announce(made))
    refused(lies.announce(second_key(made, lies.key)), "begun before")
    all_answer(lies)
    anything = Tree([bytes(64)] * 4)
    refused(lies.ask(Route.LIST), "still open")
    refused(lies.ask(Route.ROOT, lies.root(ann, anything).to_bytes()), "no list yet")
    refused(lies.ask(Route.CONFIRMATIONS), "closed, or this step is out of order")
    refused(lies.ask(Route.FROZEN), "none was announced")
    acceptance = lies.accepted(ann, b"", names).to_bytes()
    refused(lies.ask(Route.ACCEPTED, acceptance), "none was announced")
    for route in (Route.LIST, Route.ROOT, Route.CONFIRMATIONS):
        check_requests(lies, route)
    wait_until(made.closes)
    listed = taken(lies.ask(Route.LIST))
    assert taken(lies.ask(Route.LIST)) == listed
    ciphertexts = ShuffledList.read(listed).ciphertexts
    tree = Tree(ciphertexts)
    honest = lies.root(ann, tree)
    for lie, reason in (
        (lies.root(ann, Tree(ciphertexts[:3])), "another one"),
        (lies.root(ann, Tree([*ciphertexts[1:], b"\xff" * 64])), "another one"),
        (lies.root(ann, tree, count=3), "another one"),
        (lies.root(bytes(32), tree), "another one"),
        (lies.root(ann, tree, key=lies.operators.relay.signing_key), "signature"),
        (dataclasses.replace(honest, count=5), "signature"),
    ):
        refused(lies.ask(Route.ROOT, lie.to_bytes()), reason)
    for garbled in (b"", honest.to_bytes()[:-1], honest.to_bytes() + b"x"):
        refused(lies.ask(Route.ROOT, garbled), "expected")
    taken(lies.ask(Route.ROOT, honest.to_bytes()))
    other = lies.root(ann, Tree(ciphertexts[:3])).to_bytes()
    refused(lies.ask(Route.ROOT, other), "another one")
    taken(lies.ask(Route.ROOT, honest.to_bytes()))
    refused(lies.ask(Route.CONFIRMATIONS), "at the announced time")
    assert lies.all_confirm() == ["confirmed"] * 4
    assert lies.all_confirm() == ["confirmed"] * 4  # the same bytes
    wait_until(made.confirm_by)
    batch = taken(lies.ask(Route.CONFIRMATIONS))
    assert [admission.name for admission, _ in Confirmations.read(batch).entries] == list(names)
    assert taken(lies.ask(Route.CONFIRMATIONS)) == batch
    assert taken(lies.ask(Route.LIST)) == listed
    refused(lies.announce(second_key(made, lies.key)), "begun before")


def refuse_other_shuffles(lies: LyingCollector) -> None:
    """Clients that trust no relay refuse shuffles that nobody confirms, and other terms."""
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"confirm_by": 0}, "the relay is trusted"),
        ({"attempt": {"run": "other"}, "confirm_by": 0}, "the relay is trusted"),
        ({"slack": 1}, "other terms"),
        ({"attempt": {"threshold": 4}}, "other terms"),
        ({"attempt": {"threshold": 4, "run": "other"}}, "other terms than those before"),
        ({"payload_bytes": 17}, "another 'payload_bytes'"),
    ]
    for number, (changed, reason) in enumerate(refusals, start=10):
        fields = dict(changed)
        attempt = {"round": number, **fields.pop("attempt", {})}
        taken(lies.announce(lies.announcement(SHUFFLER, attempt=attempt, **fields)))
        for said in lies.all_send():
            refused(said, reason)


def test_too_few_clients_give_a_collector_nothing_at_all(tmp_path: Path) -> None:
    for protocol, route in ((SUM, Route.FROZEN), (SHUFFLER, Route.LIST)):
        folder = tmp_path / route.name
        folder.mkdir()
        with lying_collector(folder, protocol, clients=2) as lies:
            made = lies.announcement(protocol)
            taken(lies.announce(made))
            all_answer(lies)
            wait_until(made.closes)
            refused(lies.ask(route), "needs at least 3 clients, got 2")
            refused(lies.ask(route), "closed")
            time.sleep(SECONDS if protocol is SHUFFLER else 0)
            refused(lies.announce(second_key(made, lies.key)), "begun before")
