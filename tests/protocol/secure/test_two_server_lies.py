"""What a lying relay, collector or client may try in a secure sum; the honest side refuses it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import two_servers
from two_servers import CLOSES, CONTENT, FOREVER, OPENS, Secrets, World, codes_of

from sottovoce.core.errors import AbandonedError, ParameterError, PolicyError, WireError
from sottovoce.protocol.secure import hpke, two_server_messages
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.hpke import HpkeKey
from sottovoce.protocol.secure.masks import MaskedSum
from sottovoce.protocol.secure.operators import Admission
from sottovoce.protocol.secure.relay_intake import RECEIPT, SEALING_BYTES, seal_to_relay
from sottovoce.protocol.secure.roster import TrustKey
from sottovoce.protocol.secure.two_server_messages import Accepted, Frozen, Summed, SumReport

SUM = Protocol.TWO_SERVER_SUM
RNG = np.random.default_rng(1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with two_servers.world_in(tmp_path) as made:
        yield made


def all_reports(world: World, announcement: bytes) -> dict[str, bytes]:
    return {name: world.sum_report(name, announcement, codes_of(RNG)) for name in world.names}


def signed_report(world: World, ann: bytes, name: str, **changed: Any) -> bytes:
    """Return a report that its client signed, whatever it says."""
    public = changed.pop("hpke_key")
    info = two_server_messages.seed_info(ann, changed.pop("info_name", name))
    ciphertext = changed.pop("ciphertext", None) or hpke.seal(
        public, changed.pop("seed", bytes(32)), info
    )
    vectors = changed.pop("vectors", bytes(2 * 4))
    key = world.keys[changed.pop("signer", name)]
    to_collector = two_server_messages.collector_statement(ann, name, ciphertext)
    to_relay = two_server_messages.relay_statement(ann, name, vectors, ciphertext)
    report = SumReport(
        name=name,
        ciphertext=ciphertext,
        for_collector=key.sign(SUM, "for the collector", *to_collector),
        for_relay=key.sign(SUM, "for the relay", *to_relay),
        vectors=vectors,
    )
    return dataclasses.replace(report, **changed).to_bytes()


def accepted_by(world: World, ann: bytes, frozen: bytes, names: tuple[str, ...]) -> bytes:
    """Return what a lying collector signs."""
    digest = two_server_messages.frozen_digest(ann, frozen)
    message = Accepted(ann=ann, frozen=digest, names=names, signature=b"")
    signature = world.secrets.collector.sign(SUM, "accepted", *message.statement)
    return dataclasses.replace(message, signature=signature).to_bytes()


def summed_by(world: World, ann: bytes, names: tuple[str, ...], sums: bytes) -> bytes:
    """Return what a lying relay signs."""
    chosen = two_server_messages.accepted_digest(ann, names)
    message = Summed(ann=ann, accepted=chosen, sums=sums, signature=b"")
    signature = world.secrets.relay.sign(SUM, "summed", *message.statement)
    return dataclasses.replace(message, signature=signature).to_bytes()


def test_relay_and_client_refuse_a_second_announcement_of_an_attempt(world: World) -> None:
    first = world.announce()
    report = world.sum_report("client-000", first, codes_of(RNG))
    second = world.new_collector("other.sqlite").announce(
        world.attempt(), opens=OPENS, closes=CLOSES
    )
    with pytest.raises(WireError, match="begun before"):
        world.relay.announce(second, CONTENT, OPENS)
    with pytest.raises(WireError, match="got a second"):
        world.sum_report("client-000", second, codes_of(RNG))
    with pytest.raises(WireError, match="begun"):
        world.collector.announce(world.attempt(), opens=OPENS, closes=CLOSES)
    assert world.sum_report("client-000", first, codes_of(RNG)) == report
    world.relay.announce(first, CONTENT, OPENS)


def test_an_announcement_of_anyone_but_the_pinned_collector_is_refused(world: World) -> None:
    announcement = Announcement.read(world.announce(run="another"))
    other = dataclasses.replace(announcement, hpke_key=hpke.HpkeKey.generate().public)
    theirs = Secrets.new().operators.digest
    lies = [
        other,
        other.signed(world.secrets.relay),
        other.signed(world.secrets.collector_admission),
        dataclasses.replace(
            announcement, attempt=dataclasses.replace(announcement.attempt, parties=theirs)
        ).signed(world.secrets.collector),
    ]
    for lie in lies:
        with pytest.raises(WireError):
            world.relay.announce(lie.to_bytes(), CONTENT, OPENS)
        with pytest.raises(WireError):
            world.sum_report("client-000", lie.to_bytes(), codes_of(RNG))
    with pytest.raises(WireError, match="content"):
        world.relay.announce(announcement.to_bytes(), b"another model", OPENS)


def test_a_client_refuses_what_its_policy_does_not_allow(world: World) -> None:
    announcement = world.announce()
    file = world.state("client-000")

    def report(now: int = OPENS, **policy: int) -> bytes:
        client = world.summer("client-000", **policy)
        return client.report(announcement, now, refuse_charge, list, file.transaction)

    def refuse_charge() -> None:
        raise AssertionError("charged")

    for policy in ({"honest": 3}, {"colluders": 2}, {"most_attempts": 0}):
        with pytest.raises(PolicyError):
            report(**policy)
    for now in (OPENS - 1, CLOSES):
        with pytest.raises(WireError, match="not open"):
            report(now)
    with pytest.raises(ParameterError):
        report(colluders=0)
    with pytest.raises(ParameterError):
        report(honest=1)
    assert world.journal("client-000").attempts(world.operators.federation, "run") == 0


def test_what_a_charge_depends_on_is_fixed_for_a_run(world: World) -> None:
    world.sum_report("client-000", world.announce(threshold=4), codes_of(RNG))
    for changed in ({"threshold": 3}, {"mechanism": "{'x': 1}"}, {"levels": 3}, {"uplinks": 1}):
        later = world.announce(round=world.relay._current.attempt.round + 1, **changed)  # type: ignore[union-attr]
        with pytest.raises(WireError, match="other terms"):
            world.sum_report("client-000", later, codes_of(RNG))


def test_operators_refuse_an_attempt_below_their_minimum(world: World) -> None:
    with pytest.raises(WireError, match="at least 3"):
        world.announce(threshold=2)
    announcement = Announcement.read(world.announce(run="another"))
    attempt = dataclasses.replace(announcement.attempt, threshold=2)
    low = dataclasses.replace(announcement, attempt=attempt).signed(world.secrets.collector)
    with pytest.raises(WireError, match="at least 3"):
        world.relay.announce(low.to_bytes(), CONTENT, OPENS)


def test_operators_refuse_vectors_that_no_relay_can_keep(world: World) -> None:
    """Their size is how much memory a relay gives to the report of any stranger."""
    with pytest.raises(WireError, match="at most 536870912 bytes"):
        world.announce(dimension=2**31, uplinks=2**31)
    announcement = Announcement.read(world.announce(run="another"))
    attempt = dataclasses.replace(announcement.attempt, dimension=2**30, round=2)
    large = dataclasses.replace(announcement, attempt=attempt).signed(world.secrets.collector)
    with pytest.raises(WireError, match="at most 536870912 bytes"):
        world.relay.announce(large.to_bytes(), CONTENT, OPENS)


def test_the_first_report_of_a_client_counts(world: World) -> None:
    announcement = world.announce()
    report = world.sum_report("client-000", announcement, codes_of(RNG))
    found = Announcement.read(announcement)
    second = signed_report(world, found.ann, "client-000", hpke_key=found.hpke_key)
    answers = world.relay.reports([report, second, report], OPENS)
    assert [answer == RECEIPT for answer in answers] == [True, False, True]
    with pytest.raises(WireError, match="first report"):
        world.relay.report(second, OPENS)


@pytest.mark.parametrize(
    "lie",
    [
        {"vectors": b"\x01" + bytes(7), "unsigned": True},
        {"signer": "client-001"},
        {"vectors": bytes(9)},
        {"vectors": bytes(7)},
        {"vectors": bytes(3) + b"\x80" + bytes(4)},
        {"for_collector": bytes(64)},
        {"name": "client-001", "unsigned": True},
        {"name": "stranger", "unsigned": True},
    ],
)
def test_a_report_that_is_not_what_was_signed_is_refused(world: World, lie: dict[str, Any]) -> None:
    lie = dict(lie)
    found = Announcement.read(world.announce())
    honest = SumReport.read(signed_report(world, found.ann, "client-000", hpke_key=found.hpke_key))
    if lie.pop("unsigned", False):
        report = dataclasses.replace(honest, **lie).to_bytes()
    else:
        report = signed_report(world, found.ann, "client-000", hpke_key=found.hpke_key, **lie)
    with pytest.raises(WireError):
        world.relay.report(report, OPENS)


def test_reports_are_taken_while_the_attempt_is_open_and_nothing_leaves_before(
    world: World,
) -> None:
    reports = all_reports(world, world.announce())
    *early, late = reports.values()
    with pytest.raises(WireError, match="not open"):
        world.relay.report(late, OPENS - 1)
    assert world.relay.reports(early, CLOSES - 1) == [RECEIPT] * 3
    with pytest.raises(WireError, match="still open"):
        world.relay.frozen(CLOSES - 1)
    with pytest.raises(WireError, match="not open"):
        world.relay.report(late, CLOSES)
    frozen = world.relay.frozen(CLOSES)
    with pytest.raises(WireError, match="no attempt is open"):
        world.relay.report(late, CLOSES - 1)
    assert world.relay.frozen(CLOSES) == frozen
    assert len(Frozen.read(frozen).names) == 3


def test_too_few_clients_close_the_attempt_for_ever(world: World) -> None:
    reports = list(all_reports(world, world.announce()).values())
    world.relay.reports(reports[:2], OPENS)
    with pytest.raises(AbandonedError, match="at least 3 clients, got 2"):
        world.relay.frozen(CLOSES)
    with pytest.raises(WireError):
        world.relay.report(reports[2], OPENS)
    with pytest.raises(WireError, match="closed"):
        world.relay.frozen(CLOSES)


def test_one_sum_is_returned_for_clients_of_the_frozen_list(world: World) -> None:
    announcement = world.announce()
    ann, names = Announcement.read(announcement).ann, tuple(world.names)
    world.relay.reports(list(all_reports(world, announcement).values()), OPENS)
    frozen = world.relay.frozen(CLOSES)
    for refused in (
        accepted_by(world, ann, frozen, names[:2]),
        accepted_by(world, ann, frozen, (*names, "stranger")),
        accepted_by(world, ann, b"another list", names),
        accepted_by(world, bytes(32), frozen, names),
        dataclasses.replace(
            Accepted.read(accepted_by(world, ann, frozen, names)), signature=bytes(64)
        ).to_bytes(),
    ):
        with pytest.raises(WireError):
            world.relay.accepted(refused)
    first = accepted_by(world, ann, frozen, names[:3])
    summed = world.relay.accepted(first)
    assert world.relay.accepted(first) == summed
    for other in (names, names[1:]):
        with pytest.raises(WireError, match="another sum"):
            world.relay.accepted(accepted_by(world, ann, frozen, other))
    with pytest.raises(WireError):
        world.relay.frozen(CLOSES)
    assert world.relay._state.all("SELECT * FROM vectors") == []
    assert world.relay._state.all("SELECT * FROM arrivals") == []


def enter(world: World, lies: list[bytes]) -> bytes:
    """Return the list of a relay that takes whatever it gets."""
    entries = []
    for lie in lies:
        report = SumReport.read(lie)
        entries.append(
            two_server_messages.Sealed(
                admission=world.admission(report.name),
                ciphertext=report.ciphertext,
                signature=report.for_collector,
            )
        )
    ann = Announcement.read(world.relay.announcement()).ann
    return Frozen(ann=ann, entries=tuple(entries)).to_bytes()


def test_the_collector_leaves_out_clients_that_share_something_or_signed_nothing(
    tmp_path: Path,
) -> None:
    with two_servers.world_in(tmp_path, clients=13) as world:
        announcement = world.announce()
        found = Announcement.read(announcement)
        reports = all_reports(world, announcement)
        names = world.names
        known: dict[str, Any] = {"hpke_key": found.hpke_key}
        victim = SumReport.read(reports[names[3]])
        lies: dict[str, dict[str, Any]] = {
            names[4]: {"ciphertext": victim.ciphertext},  # Another client's ciphertext.
            names[5]: {"info_name": names[3]},  # Sealed under another's name.
            names[6]: {"seed": b"s" * 32},
            names[7]: {"seed": b"s" * 32},  # The same seed.
            names[8]: {"seed": b"s" * 31},
            names[9]: {"hpke_key": hpke.HpkeKey.generate().public},
            names[10]: {"signer": names[3]},
        }
        for name, lie in lies.items():
            reports[name] = signed_report(world, found.ann, name, **{**known, **lie})
        other_round = world.attempt(round=9)
        reports[names[11]] = signed_report(world, other_round.digest(), names[11], **known)
        frozen = Frozen.read(enter(world, [reports[name] for name in names]))
        unadmitted = dataclasses.replace(frozen.entries[12].admission, by_collector=bytes(64))
        twelfth = dataclasses.replace(frozen.entries[12], admission=unadmitted)
        entries = (*frozen.entries[:12], twelfth)
        message = dataclasses.replace(frozen, entries=entries).to_bytes()
        accepted = Accepted.read(world.collector.accept(message))
    assert accepted.names == (*names[:4],)  # The client that was copied is not harmed.


def test_a_seed_that_repeats_a_clients_public_key_leaves_nobody_out(world: World) -> None:
    announcement = world.announce()
    found = Announcement.read(announcement)
    reports = all_reports(world, announcement)
    victim, liar = world.names[:2]
    seed = world.keys[victim].public
    reports[liar] = signed_report(world, found.ann, liar, hpke_key=found.hpke_key, seed=seed)
    accepted = Accepted.read(world.collector.accept(enter(world, list(reports.values()))))
    assert victim in accepted.names


def test_two_names_with_one_key_count_for_nothing(world: World) -> None:
    world.keys["client-003"] = world.keys["client-002"]
    announcement = world.announce()
    with pytest.raises(WireError, match="same key"):
        world.relay.register(world.admission("client-003").to_bytes(), OPENS)
    with pytest.raises(AbandonedError, match="got 2; the attempt is abandoned"):
        world.collector.accept(enter(world, list(all_reports(world, announcement).values())))
    with pytest.raises(WireError, match="no attempt"):
        world.collector.accept(b"")


def test_the_collector_takes_one_list(world: World) -> None:
    announcement = world.announce()
    world.relay.reports(list(all_reports(world, announcement).values()), OPENS)
    frozen = world.relay.frozen(CLOSES)
    for malformed in (frozen + b"x", dataclasses.replace(Frozen.read(frozen), ann=bytes(32))):
        content = malformed if isinstance(malformed, bytes) else malformed.to_bytes()
        with pytest.raises(WireError):
            world.collector.accept(content)
    accepted = world.collector.accept(frozen)
    assert world.collector.accept(frozen) == accepted
    fewer = dataclasses.replace(Frozen.read(frozen), entries=Frozen.read(frozen).entries[:3])
    with pytest.raises(WireError, match="second one"):
        world.collector.accept(fewer.to_bytes())


@pytest.mark.parametrize("lie", ["others", "range", "length", "energy"])
def test_sums_that_fail_a_check_abandon_the_attempt(world: World, lie: str) -> None:
    announcement = world.announce()
    ann, names = Announcement.read(announcement).ann, tuple(world.names)
    world.relay.reports(list(all_reports(world, announcement).values()), OPENS)
    summed = world.relay.accepted(world.collector.accept(world.relay.frozen(CLOSES)))
    with pytest.raises(WireError):
        world.collector.release(
            dataclasses.replace(Summed.read(summed), signature=bytes(64)).to_bytes()
        )
    sums = Summed.read(summed).sums
    with pytest.raises(WireError, match="got one of another"):
        world.collector.release(summed_by(world, bytes(32), names, sums))
    beyond = MaskedSum(5, 6)
    beyond.add_packed(sums[:4])
    beyond.add_codes(np.array([50, 0, 0, 0, 0], dtype=np.uint8))
    lies = {
        "others": summed_by(world, ann, names[:3], sums),
        "range": summed_by(world, ann, names, beyond.packed() + sums[4:]),
        "length": summed_by(world, ann, names, sums + b"x"),
        "energy": summed,
    }

    def refuse(sums: object, clients: int) -> None:
        raise WireError(f"the energy of {clients} clients is too large")

    with pytest.raises((AbandonedError, WireError)):
        world.collector.release(lies[lie], refuse if lie == "energy" else None)
    with pytest.raises(WireError, match="no attempt"):
        world.collector.release(summed)


def test_sums_are_released_once_and_kept(world: World) -> None:
    announcement = world.announce()
    world.relay.reports(list(all_reports(world, announcement).values()), OPENS)
    summed = world.relay.accepted(world.collector.accept(world.relay.frozen(CLOSES)))
    checked: list[int] = []
    sums = world.collector.release(summed, lambda _, clients: checked.append(clients))
    assert checked == [4]
    with pytest.raises(WireError, match="no attempt"):
        world.collector.release(summed)
    kept = world.collector.result(Announcement.read(announcement).place)
    assert np.frombuffer(kept or b"", dtype="<u4").tolist() == np.concatenate(sums).tolist()


@pytest.mark.parametrize("side", ["by_relay", "by_collector"])
def test_a_client_counts_only_if_both_operators_admitted_it(world: World, side: str) -> None:
    stranger = TrustKey.generate()
    theirs = Secrets.new()
    admission = world.admission("client-000", key=stranger.public)
    forged = Admission.issue(
        world.operators,
        theirs.relay_admission,
        theirs.collector_admission,
        name="client-000",
        key=stranger.public,
        valid_until=FOREVER,
    )
    lie = dataclasses.replace(admission, **{side: getattr(forged, side)})
    with pytest.raises(WireError, match="admission"):
        world.relay.register(lie.to_bytes(), OPENS)


def test_lists_of_clients_count_as_they_were_when_an_attempt_was_announced(world: World) -> None:
    world.removed["relay"].add("client-000")
    first = world.announce()
    world.removed["relay"].clear()
    with pytest.raises(WireError, match="not on the operator's list of this announcement"):
        world.relay.report(all_reports(world, first)["client-000"], OPENS)
    world.keys["client-004"], world.names = TrustKey.generate(), [*world.names, "client-004"]
    world.relay.register(world.admission("client-004").to_bytes(), OPENS)
    world.removed["collector"].add("client-001")
    second = world.announce(attempt=2)
    world.removed["collector"].clear()
    for report in all_reports(world, second).values():
        world.relay.report(report, OPENS)
    accepted = Accepted.read(world.collector.accept(world.relay.frozen(CLOSES)))
    assert accepted.names == ("client-000", "client-002", "client-003", "client-004")


def test_a_client_that_is_not_asked_takes_nobodys_place(world: World) -> None:
    asked = world.names[1:]
    message = world.collector.announce(
        world.attempt(most_clients=3), opens=OPENS, closes=CLOSES, clients=world.listed("collector")
    )
    world.relay.announce(message, CONTENT, OPENS, asked)
    first, *others = all_reports(world, message).values()
    for _ in range(2):
        with pytest.raises(WireError, match="not on the operator's list of this announcement"):
            world.relay.report(first, OPENS)
        world.restart("relay.sqlite")
    for report in others:
        world.relay.report(report, OPENS)
    assert Accepted.read(world.collector.accept(world.relay.frozen(CLOSES))).names == tuple(asked)


def test_an_expired_admission_is_refused(world: World) -> None:
    short = world.admission("client-000", valid_until=CLOSES - 1)
    with pytest.raises(WireError, match="expired"):
        world.relay.register(short.to_bytes(), CLOSES)
    with pytest.raises(WireError, match="valid for longer"):
        world.relay.register(short.to_bytes(), OPENS)
    world.keys["client-009"] = TrustKey.generate()
    world.relay.register(world.admission("client-009", valid_until=CLOSES - 1).to_bytes(), OPENS)
    found = Announcement.read(world.announce())
    report = signed_report(world, found.ann, "client-009", hpke_key=found.hpke_key)
    with pytest.raises(WireError, match="expires"):
        world.relay.report(report, OPENS)


def test_a_report_can_be_sealed_to_the_relay(world: World) -> None:
    found = Announcement.read(world.announce())
    report = world.sum_report("client-000", found.to_bytes(), codes_of(RNG))
    sealed = seal_to_relay(report, world.operators, found.ann)
    assert world.relay.open_sealed(sealed) == report
    assert len(sealed) == len(report) + SEALING_BYTES
    other = dataclasses.replace(world.operators, relay_hpke=HpkeKey.generate().public)
    for lie, reason in (
        (report, "another message"),
        (b"", "another message"),
        (sealed[:1], "this key opens"),
        (sealed[:-1], "this key opens"),
        (sealed[:-1] + bytes([sealed[-1] ^ 1]), "this key opens"),
        (seal_to_relay(report, other, found.ann), "this key opens"),
        (seal_to_relay(report, world.operators, bytes(32)), "this key opens"),
        (seal_to_relay(report + bytes(2**10), world.operators, found.ann), "at most"),
    ):
        with pytest.raises(WireError, match=reason):
            world.relay.open_sealed(lie)


def test_codes_out_of_range_are_never_sent(world: World) -> None:
    announcement = world.announce()
    for codes in ([np.full(5, 2, np.uint8)] * 2, [np.full(5, -1, np.int8)] * 2, codes_of(RNG)[:1]):
        with pytest.raises((ParameterError, WireError)):
            world.sum_report(world.names.pop(), announcement, codes)  # type: ignore[arg-type]


def test_nothing_that_reaches_the_collector_depends_on_the_codes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Announcement.read(world.announce())
    once: dict[tuple[bytes, bytes, bytes], bytes] = {}
    seal = hpke.seal

    def seal_once(key: bytes, content: bytes, info: bytes) -> bytes:
        return once.setdefault((key, content, info), seal(key, content, info))

    monkeypatch.setattr(hpke, "seal", seal_once)
    seeds = {name: name.encode().ljust(32) for name in world.names}
    seen = []
    for value in (0, 1):
        entered = []
        for name in world.names:
            client = world.summer(name)
            monkeypatch.setattr("secrets.token_bytes", lambda _, name=name: seeds[name])
            report = client._encode(found, [np.full(5, value, np.uint8)] * 2)
            entered.append(report)
        seen.append((enter(world, entered), entered))
    assert seen[0][0] == seen[1][0]
    assert seen[0][1] != seen[1][1]


def test_a_relay_that_starts_again_keeps_the_list_of_the_announcement(world: World) -> None:
    late, removed = world.names[:2]
    world.removed["relay"].add(late)
    announcement = world.announce()
    world.removed["relay"] = {removed}
    world.restart("relay.sqlite")
    rng = np.random.default_rng(0)
    reports = {
        name: world.sum_report(name, announcement, codes_of(rng)) for name in (late, removed)
    }
    with pytest.raises(WireError, match="counts from the next one on"):
        world.relay.report(reports[late], OPENS)
    assert world.relay.report(reports[removed], OPENS) == RECEIPT
