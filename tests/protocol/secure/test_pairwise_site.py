"""What a lying server, or a lying site, may send to an honest site, and how each is refused."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pairwise_rounds import Federation, JournalInMemory, Round, federation, random_codes

from sottovoce.core.errors import BudgetExhaustedError, LedgerError, PolicyError, WireError
from sottovoce.ledger.journal import CLOSED, Journal, Place
from sottovoce.protocol.secure import pairwise_keys
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.pairwise_messages import (
    AnswerMessage,
    BoxMessage,
    Input,
    KeyList,
    KeysMessage,
    Quorum,
    Shares,
    Survivors,
    SurvivorsSignature,
)
from sottovoce.protocol.secure.pairwise_shares import OwnSecrets, SharePair
from sottovoce.protocol.secure.pairwise_site import BEGUN, CHARGED, SIGNED, PairwiseSite
from sottovoce.protocol.secure.roster import Roster, TrustKey

ME, PEER, OTHER = "site-000", "site-001", "site-002"


@pytest.fixture
def asked() -> Federation:
    """Five sites, of which four must be in a sum."""
    return federation(5, 4)


@pytest.fixture
def begun(asked: Federation) -> Round:
    """A round of these sites, in which nothing has been sent."""
    return Round(asked, random_codes(asked))


def place_of(asked: Federation) -> Place:
    run, number, attempt = asked.attempt.place
    return Place(federation=asked.roster.federation, run=run, round=number, attempt=attempt)


def state(asked: Federation, name: str = ME) -> str | None:
    return Journal(asked.files[name]).state(place_of(asked))


# -- OPEN ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("honest", "colluders"), [(1, 1), (2, 0), (0, 3)])
def test_a_policy_needs_two_honest_sites_and_assumes_one_curious(
    asked: Federation, honest: int, colluders: int
) -> None:
    with pytest.raises(PolicyError, match="honest >= 2"):
        asked.site(ME, honest=honest, colluders=colluders)


def test_a_threshold_below_the_policy_is_refused_and_costs_no_attempt(asked: Federation) -> None:
    with pytest.raises(PolicyError, match="below the 5"):
        asked.site(ME, honest=3, colluders=2).begin()
    assert state(asked) is None


@pytest.mark.parametrize(("clients", "threshold"), [(1, 1), (2, 2)])
def test_one_or_two_sites_have_no_secure_sum(clients: int, threshold: int) -> None:
    few = federation(clients, threshold)
    with pytest.raises(PolicyError, match="below the 3"):
        few.site(ME).begin()


def test_a_key_that_is_not_in_the_own_roster_is_refused(asked: Federation) -> None:
    with pytest.raises(PolicyError, match="another key"):
        asked.site(ME, key=TrustKey.generate())
    with pytest.raises(PolicyError, match="another key"):
        asked.site(PEER, key=asked.keys[ME])


def test_an_attempt_of_another_roster_is_refused(asked: Federation) -> None:
    newer = dataclasses.replace(asked.roster, version=2)
    with pytest.raises(WireError, match="another roster"):
        asked.site(ME, roster=newer).begin()
    named = dataclasses.replace(asked.attempt, federation=b"g" * 16)
    with pytest.raises(WireError, match="another roster"):
        asked.site(ME, attempt=named).begin()


def test_an_attempt_of_another_protocol_is_refused(asked: Federation) -> None:
    other = dataclasses.replace(asked.attempt, protocol=Protocol.TWO_SERVER_SUM)
    with pytest.raises(WireError, match="pairwise"):
        asked.site(ME, attempt=other).begin()


def test_an_attempt_that_was_begun_before_is_refused_also_from_a_new_server(
    asked: Federation,
) -> None:
    asked.site(ME).begin()
    with pytest.raises(WireError, match="begun before"):
        asked.site(ME).begin()


def test_an_attempt_after_a_later_one_is_refused(asked: Federation) -> None:
    later = dataclasses.replace(asked.attempt, attempt=2)
    asked.site(ME, attempt=later).begin()
    with pytest.raises(WireError, match="begun before"):
        asked.site(ME).begin()


def test_a_later_attempt_closes_an_open_one(begun: Round) -> None:
    boxes = begun.boxes()
    later = dataclasses.replace(begun.asked.attempt, attempt=2)
    begun.asked.site(ME, attempt=later).begin()
    assert state(begun.asked) == CLOSED
    with pytest.raises(LedgerError, match="'closed'"):
        begun.asked.contribute(begun.sites[ME], ME, boxes[ME], begun.codes[ME])


def test_the_same_run_of_another_federation_is_another_place(asked: Federation) -> None:
    asked.site(ME).begin()
    other = federation(5, 4)
    roster = dataclasses.replace(other.roster, federation=b"g" * 16)
    attempt = dataclasses.replace(
        other.attempt, federation=roster.federation, parties=roster.digest
    )
    site = other.site(ME, roster=roster, attempt=attempt, journal=Journal(asked.files[ME]))
    assert KeysMessage.read(site.begin()).name == ME
    assert state(asked) == BEGUN


def test_the_attempt_is_on_disk_before_keys_are_drawn(
    asked: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []
    draw: Any = OwnSecrets.draw

    def watched() -> OwnSecrets:
        seen.append(state(asked))
        return draw()  # type: ignore[no-any-return]

    monkeypatch.setattr(OwnSecrets, "draw", watched)
    asked.site(ME).begin()
    assert seen == [BEGUN]
    with asked.files[PEER].transaction(), pytest.raises(LedgerError, match="commit first"):
        asked.site(PEER).begin()
    assert seen == [BEGUN]


def test_begin_can_be_committed_together_with_other_writes(asked: Federation) -> None:
    commits: list[str | None] = []

    @contextlib.contextmanager
    def commit() -> Iterator[None]:
        with asked.files[ME].transaction():
            yield
            commits.append(state(asked))

    asked.site(ME).begin(commit)
    assert commits == [BEGUN]


# -- LIST ------------------------------------------------------------------------------------------


def changed_list(listed: bytes, **changed: Callable[[KeysMessage], KeysMessage] | None) -> bytes:
    """Return a list in which entries are replaced or, with None, left out."""
    entries = []
    for entry in KeyList.read(listed).entries:
        name = entry.name.replace("-", "_")
        change = changed.get(name)
        if change is not None:
            entries.append(change(entry))
        elif name not in changed:
            entries.append(entry)
    return KeyList(entries=tuple(entries)).to_bytes()


def refused(site: PairwiseSite, listed: bytes, match: str, good: bytes) -> None:
    """Assert that a list is refused, and that the right one is still taken."""
    with pytest.raises(WireError, match=match):
        site.share(listed)
    assert Shares.read(site.share(good)).sealed


def test_keys_that_are_not_signed_are_refused(begun: Round) -> None:
    listed = begun.keys()

    def unsigned(entry: KeysMessage) -> KeysMessage:
        return dataclasses.replace(entry, signature=bytes(64))

    refused(begun.sites[ME], changed_list(listed, site_001=unsigned), "signature", listed)


@pytest.mark.parametrize("field", ["channel_key", "mask_key", "commitment", "rows"])
def test_keys_that_were_changed_are_refused(begun: Round, field: str) -> None:
    listed = begun.keys()
    new: Any = 7 if field == "rows" else X25519PrivateKey.generate().public_key().public_bytes_raw()

    def change(entry: KeysMessage) -> KeysMessage:
        return dataclasses.replace(entry, **{field: new})

    refused(begun.sites[ME], changed_list(listed, site_001=change), "signature", listed)


def test_keys_signed_by_a_key_of_the_server_are_refused(begun: Round) -> None:
    """A server that has a roster of its own signs keys of its own for a peer."""
    listed = begun.keys()

    def resigned(entry: KeysMessage) -> KeysMessage:
        signature = TrustKey.generate().sign(
            Protocol.PAIRWISE, "keys", begun.asked.attempt.digest(), *entry.statement
        )
        return dataclasses.replace(entry, signature=signature)

    refused(begun.sites[ME], changed_list(listed, site_001=resigned), "signature", listed)


@pytest.mark.parametrize("field", ["round", "attempt", "threshold", "model_digest", "run"])
def test_keys_of_another_round_or_with_another_threshold_are_refused(
    asked: Federation, field: str
) -> None:
    """Whatever differs in what two sites were told, they do not work together."""
    site = asked.site(ME)
    new: Any = {"threshold": 3, "model_digest": b"m" * 32, "run": "other"}.get(field, 2)
    told = dataclasses.replace(asked.attempt, **{field: new})
    entries = [KeysMessage.read(site.begin())]
    entries += [
        KeysMessage.read(asked.site(name, attempt=told).begin()) for name in asked.names[1:]
    ]
    with pytest.raises(WireError, match="signature"):
        site.share(KeyList(entries=tuple(entries)).to_bytes())


def test_keys_that_are_copied_from_a_peer_are_refused(begun: Round) -> None:
    listed = begun.keys()
    copied = {entry.name: entry for entry in KeyList.read(listed).entries}[OTHER]

    def copy(entry: KeysMessage) -> KeysMessage:
        return signed(begun.asked, dataclasses.replace(entry, mask_key=copied.mask_key))

    refused(begun.sites[ME], changed_list(listed, site_001=copy), "equal", listed)


def test_one_key_for_both_uses_is_refused(begun: Round) -> None:
    listed = begun.keys()

    def reuse(entry: KeysMessage) -> KeysMessage:
        return signed(begun.asked, dataclasses.replace(entry, mask_key=entry.channel_key))

    refused(begun.sites[ME], changed_list(listed, site_001=reuse), "equal", listed)


def signed(asked: Federation, entry: KeysMessage) -> KeysMessage:
    """Return keys with the true signature of their site, which then lies."""
    key = asked.keys[entry.name]
    signature = key.sign(Protocol.PAIRWISE, "keys", asked.attempt.digest(), *entry.statement)
    return dataclasses.replace(entry, signature=signature)


LOW_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    (2**255 - 20).to_bytes(32, "little"),  # -1
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
]


@pytest.mark.parametrize("point", LOW_ORDER)
@pytest.mark.parametrize("field", ["channel_key", "mask_key"])
def test_keys_of_low_order_are_refused(begun: Round, field: str, point: bytes) -> None:
    listed = begun.keys()

    def low(entry: KeysMessage) -> KeysMessage:
        changed: dict[str, Any] = {field: point}
        return signed(begun.asked, dataclasses.replace(entry, **changed))

    refused(begun.sites[ME], changed_list(listed, site_001=low), "low order", listed)


@pytest.mark.parametrize("alias", ["top bit", "plus the prime"])
def test_a_second_form_of_the_same_key_is_refused(begun: Round, alias: str) -> None:
    listed = begun.keys()

    def form(entry: KeysMessage) -> KeysMessage:
        if alias == "top bit":
            key = entry.mask_key[:-1] + bytes([entry.mask_key[-1] | 0x80])
        else:
            key = (2**255 - 19 + 9).to_bytes(32, "little")
        return signed(begun.asked, dataclasses.replace(entry, mask_key=key))

    refused(begun.sites[ME], changed_list(listed, site_001=form), "only valid form", listed)


def test_a_list_without_me_or_with_other_keys_of_mine_is_refused(begun: Round) -> None:
    listed = begun.keys()
    refused(begun.sites[ME], changed_list(listed, site_000=None), "own keys unchanged", listed)

    def replay(entry: KeysMessage) -> KeysMessage:
        """KeysMessage that this site has truly signed, but that are not those of this object."""
        return signed(begun.asked, dataclasses.replace(entry, rows=5))

    refused(begun.sites[PEER], changed_list(listed, site_001=replay), "own keys", listed)


def test_a_stranger_in_the_list_is_refused(asked: Federation) -> None:
    larger = federation(6, 4)
    attempt = dataclasses.replace(larger.attempt, most_clients=6)
    roster = Roster(
        federation=larger.roster.federation,
        version=1,
        keys={name: key for name, key in larger.roster.keys.items() if name != "site-005"},
    )
    attempt = dataclasses.replace(attempt, parties=roster.digest)
    sites = {name: larger.site(name, roster=roster, attempt=attempt) for name in roster.keys}
    entries = [KeysMessage.read(site.begin()) for site in sites.values()]
    stranger = dataclasses.replace(entries[1], name="site-005")
    key = larger.keys["site-005"]
    signature = key.sign(Protocol.PAIRWISE, "keys", attempt.digest(), *stranger.statement)
    entries.append(dataclasses.replace(stranger, signature=signature))
    with pytest.raises(WireError, match="not in the roster"):
        sites[ME].share(KeyList(entries=tuple(entries)).to_bytes())


def test_a_list_of_fewer_sites_than_the_threshold_is_refused(begun: Round) -> None:
    listed = begun.keys()
    few = changed_list(listed, site_003=None, site_004=None)
    refused(begun.sites[ME], few, "expected 4 to 5 sites", listed)


def test_a_list_of_more_sites_than_was_said_is_refused() -> None:
    asked = federation(6, 4, most_clients=5)
    sites = asked.sites()
    entries = tuple(KeysMessage.read(site.begin()) for site in sites.values())
    with pytest.raises(WireError, match="expected 4 to 5 sites"):
        sites[ME].share(KeyList(entries=entries).to_bytes())


@pytest.mark.parametrize(("count", "threshold", "colluders"), [(7, 4, 1), (6, 4, 2), (8, 5, 2)])
def test_a_threshold_with_which_two_quorums_exist_is_refused(
    count: int, threshold: int, colluders: int
) -> None:
    assert 2 * threshold == count + colluders
    asked = federation(count, threshold, colluders=colluders)
    sites = asked.sites()
    entries = tuple(KeysMessage.read(site.begin()) for site in sites.values())
    with pytest.raises(WireError, match="too low"):
        sites[ME].share(KeyList(entries=entries).to_bytes())
    one_less = KeyList(entries=entries[:-1]).to_bytes()
    assert Shares.read(sites[ME].share(one_less)).sealed


def test_a_second_list_is_refused_and_the_same_one_gets_the_same_bytes(begun: Round) -> None:
    listed = begun.keys()
    first = begun.sites[ME].share(listed)
    assert begun.sites[ME].share(listed) == first
    with pytest.raises(WireError, match="answered before"):
        begun.sites[ME].share(changed_list(listed, site_004=None))


# -- BOX -------------------------------------------------------------------------------------------


def contribute(begun: Round, box: bytes, name: str = ME) -> bytes:
    return begun.asked.contribute(begun.sites[name], name, box, begun.codes[name])


def refused_box(begun: Round, box: bytes, match: str, good: bytes) -> None:
    """Assert that a box is refused without a charge, and that the right one is still taken."""
    with pytest.raises(WireError, match=match):
        contribute(begun, box)
    assert begun.asked.charges[ME] == 0
    assert state(begun.asked) == BEGUN
    assert Input.read(contribute(begun, good)).vectors


def test_a_box_without_me_below_the_threshold_or_with_a_stranger_is_refused(begun: Round) -> None:
    good = begun.boxes()[ME]
    box = BoxMessage.read(good)
    without = dataclasses.replace(box, members=box.members[1:], sealed=box.sealed[1:])
    few = dataclasses.replace(box, members=box.members[:3], sealed=box.sealed[:2])
    strange = dataclasses.replace(
        box,
        members=(*box.members[:4], "site-9"),
        sealed=(*box.sealed[:3], ("site-9", box.sealed[3][1])),
    )
    for wrong, match in ((without, "count it"), (few, "at least 4"), (strange, "step before")):
        with pytest.raises(WireError, match=match):
            contribute(begun, wrong.to_bytes())
    assert begun.asked.charges[ME] == 0
    assert contribute(begun, good)


def test_shares_that_are_missing_are_refused(begun: Round) -> None:
    good = begun.boxes()[ME]
    box = BoxMessage.read(good)
    missing = dataclasses.replace(box, sealed=box.sealed[:-1])
    refused_box(begun, missing.to_bytes(), "exactly 4", good)


def test_shares_that_do_not_open_or_are_for_another_receiver_are_refused(begun: Round) -> None:
    boxes = begun.boxes()
    good = boxes[ME]
    box = BoxMessage.read(good)
    (first, sealed), *others = box.sealed
    flipped = bytes([sealed[0] ^ 1]) + sealed[1:]
    theirs = dict(BoxMessage.read(boxes[OTHER]).sealed)[first]
    for wrong in (flipped, theirs, others[0][1], bytes(len(sealed))):
        changed = dataclasses.replace(box, sealed=((first, wrong), *others))
        with pytest.raises(WireError, match=f"'{first}' do not open"):
            contribute(begun, changed.to_bytes())
    assert begun.asked.charges[ME] == 0
    assert contribute(begun, good)


def test_shares_that_are_no_numbers_below_the_prime_are_refused(
    begun: Round, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dealer encrypts garbage for one site, which then takes no part."""
    deal = OwnSecrets.deal

    def garbage(self: Any, threshold: int, names: Any) -> Any:
        dealt = deal(self, threshold, names)
        dealt[ME] = SharePair(seed=b"\xff" * 32, mask_secret=bytes(32))
        return dealt

    listed = begun.keys()
    for name, site in begun.sites.items():
        if name == PEER:
            monkeypatch.setattr(OwnSecrets, "deal", garbage)
        begun.server.receive_shares(name, site.share(listed))
        monkeypatch.setattr(OwnSecrets, "deal", deal)
    with pytest.raises(WireError, match="below 2\\^255"):
        contribute(begun, begun.server.box(ME))
    assert begun.asked.charges[ME] == 0


def test_sites_with_different_lists_cannot_open_each_others_shares(begun: Round) -> None:
    """The server leaves one site out of the list that it sends to another."""
    listed = begun.keys()
    shorter = changed_list(listed, site_004=None)
    sealed = {
        name: dict(Shares.read(site.share(shorter if name == PEER else listed)).sealed)
        for name, site in begun.sites.items()
    }
    members = tuple(name for name in begun.asked.names if name != "site-004")
    peers = [name for name in members if name != ME]
    box = BoxMessage(members=members, sealed=tuple((name, sealed[name][ME]) for name in peers))
    with pytest.raises(WireError, match="'site-001' do not open"):
        contribute(begun, box.to_bytes())


def test_a_second_box_is_refused_and_the_same_one_gets_the_same_bytes_without_a_charge(
    begun: Round,
) -> None:
    good = begun.boxes()[ME]
    first = contribute(begun, good)
    assert contribute(begun, good) == first
    assert begun.asked.charges[ME] == 1
    box = BoxMessage.read(good)
    fewer = dataclasses.replace(box, members=box.members[:4], sealed=box.sealed[:3])
    with pytest.raises(WireError, match="answered before"):
        contribute(begun, fewer.to_bytes())
    assert begun.asked.charges[ME] == 1


def test_nothing_is_drawn_if_the_charge_is_refused_and_the_attempt_is_closed(begun: Round) -> None:
    box = begun.boxes()[ME]
    drawn: list[int] = []

    def refuse() -> None:
        raise BudgetExhaustedError("nothing is left")

    def draw() -> list[Any]:
        drawn.append(1)
        return list(begun.codes[ME])

    site, file = begun.sites[ME], begun.asked.files[ME]
    with pytest.raises(BudgetExhaustedError):
        site.contribute(box, refuse, draw, file.transaction)
    with pytest.raises(WireError, match="no more messages"):
        site.contribute(box, lambda: None, draw, file.transaction)
    assert not drawn
    assert state(begun.asked) == CLOSED


def test_charge_and_step_are_one_commit_and_come_before_the_codes(begun: Round) -> None:
    box = begun.boxes()[ME]
    site, file = begun.sites[ME], begun.asked.files[ME]
    states: list[tuple[str, str | None, bool]] = []

    def note(what: str) -> None:
        states.append((what, state(begun.asked), file.in_transaction))

    def draw() -> Any:
        note("draw")
        return begun.codes[ME]

    site.contribute(box, lambda: note("charge"), draw, file.transaction)
    assert states == [("charge", BEGUN, True), ("draw", CHARGED, False)]


def not_drawn() -> Any:
    pytest.fail("codes were drawn")


def test_a_transaction_of_another_file_is_refused(begun: Round) -> None:
    box = begun.boxes()[ME]
    with pytest.raises(LedgerError, match="one transaction"):
        begun.sites[ME].contribute(box, lambda: None, not_drawn, JournalInMemory().transaction)


def test_codes_are_not_drawn_inside_a_transaction_of_the_caller(begun: Round) -> None:
    box = begun.boxes()[ME]
    with begun.asked.files[ME].transaction(), pytest.raises(LedgerError, match="commit first"):
        begun.sites[ME].contribute(box, lambda: None, not_drawn, contextlib.nullcontext)


def test_codes_that_are_no_integers_are_refused(begun: Round) -> None:
    box = begun.boxes()[ME]
    halves: Any = [np.full(8, 0.5)]
    with pytest.raises(WireError, match="expected integers"):
        begun.asked.contribute(begun.sites[ME], ME, box, halves)
    assert state(begun.asked) == CLOSED


@pytest.mark.parametrize("codes", [[], [np.zeros(7, np.uint8)], [np.zeros((8, 1), np.uint8)]])
def test_codes_of_another_number_close_the_attempt_after_its_charge(
    begun: Round, codes: list[Any]
) -> None:
    box = begun.boxes()[ME]
    with pytest.raises(WireError, match="codes"):
        begun.asked.contribute(begun.sites[ME], ME, box, codes)
    assert begun.asked.charges[ME] == 1
    assert state(begun.asked) == CLOSED


def test_uplinks_have_masks_of_their_own() -> None:
    asked = federation(5, 4, uplinks=2, dimension=64, levels=256)
    codes = {name: [np.zeros(64, np.uint32)] * 2 for name in asked.names}
    begun = Round(asked, codes)
    first, second = Input.read(contribute(begun, begun.boxes()[ME])).vectors
    assert first != second


# -- SURVIVORS -------------------------------------------------------------------------------------


def survivors(*names: str) -> bytes:
    return Survivors(names=names).to_bytes()


@pytest.mark.parametrize(
    ("left_out", "added", "match"),
    [
        ([ME], [], "must be among"),
        (["site-003", "site-004"], [], "at least 4"),
        (["site-004"], ["stranger"], "step before"),
    ],
)
def test_survivors_without_me_too_few_or_with_a_stranger_are_not_signed(
    begun: Round, left_out: list[str], added: list[str], match: str
) -> None:
    good = begun.inputs()
    names = sorted({*begun.asked.names, *added} - {*left_out})
    with pytest.raises(WireError, match=match):
        begun.sites[ME].sign(survivors(*names))
    assert state(begun.asked) == CHARGED
    assert begun.sites[ME].sign(good)


@pytest.mark.parametrize("names", [(ME, ME, PEER, OTHER), (PEER, ME, OTHER, "site-003")])
def test_survivors_named_twice_or_out_of_order_are_not_signed(
    begun: Round, names: tuple[str, ...]
) -> None:
    begun.inputs()
    with pytest.raises(WireError, match="duplicates"):
        begun.sites[ME].sign(survivors(*names))


def test_survivors_outside_the_box_are_not_signed() -> None:
    """A site that has sent keys but no shares cannot be a survivor."""
    asked = federation(6, 4)
    begun = Round(asked, random_codes(asked), {"site-005": 1})
    begun.inputs()
    names = (*asked.names[:4], "site-005")
    with pytest.raises(WireError, match="step before"):
        begun.sites[ME].sign(survivors(*names))


def test_a_second_set_of_survivors_is_not_signed(begun: Round) -> None:
    good = begun.inputs()
    first = begun.sites[ME].sign(good)
    assert begun.sites[ME].sign(good) == first
    with pytest.raises(WireError, match="answered before"):
        begun.sites[ME].sign(survivors(*begun.asked.names[:4]))
    assert state(begun.asked) == SIGNED


# -- QUORUM ----------------------------------------------------------------------------------------


def test_a_quorum_is_of_distinct_survivors_over_the_same_transcript(begun: Round) -> None:
    good = begun.signatures()
    (first, signature), *others = Quorum.read(good).signatures
    key = begun.asked.keys[first]
    fields = bytes(32), tuple(begun.asked.names)
    foreign = key.sign(Protocol.PAIRWISE, "survivors", *fields)
    wrong = {
        "at least 4": others,
        "duplicates": [(first, signature), (first, signature), *others[1:]],
        "valid signature": [(first, foreign), *others],
        "step before": [*others, ("stranger", signature)],
        "signature of": [(first, others[0][1]), *others],
    }
    for match, signatures in wrong.items():
        with pytest.raises(WireError, match=match):
            begun.sites[ME].answer(Quorum(signatures=tuple(signatures)).to_bytes())
    assert state(begun.asked) == SIGNED
    assert begun.sites[ME].answer(good)


def test_a_quorum_over_other_survivors_is_refused(begun: Round) -> None:
    """Some sites sign one set and some another: no set has a quorum."""
    begun.inputs()
    whole, part = survivors(*begun.asked.names), survivors(*begun.asked.names[:4])
    signatures = []
    for name, told in zip(begun.asked.names[:4], (whole, whole, part, part), strict=True):
        found = SurvivorsSignature.read(begun.sites[name].sign(told)).signature
        signatures.append((name, found))
    with pytest.raises(WireError, match="signature"):
        begun.sites[ME].answer(Quorum(signatures=tuple(signatures)).to_bytes())


def test_a_quorum_over_another_view_is_refused(begun: Round) -> None:
    """Two sites are told that fewer sites go on; their signatures are worth nothing to others."""
    boxes = begun.boxes()
    box = BoxMessage.read(boxes[ME])
    whole = survivors(*begun.asked.names[:4])
    signatures = []
    for name in begun.asked.names[:4]:
        told = BoxMessage.read(boxes[name])
        if name in (PEER, OTHER):
            told = BoxMessage(members=told.members[:4], sealed=told.sealed[:3])
        contribute(begun, told.to_bytes(), name)
        found = SurvivorsSignature.read(begun.sites[name].sign(whole)).signature
        signatures.append((name, found))
    assert len(box.members) == 5
    with pytest.raises(WireError, match="signature"):
        begun.sites[ME].answer(Quorum(signatures=tuple(signatures)).to_bytes())


def test_a_quorum_of_an_earlier_attempt_is_refused(begun: Round) -> None:
    begun.answers()
    earlier = begun.server.quorum()
    begun.asked.attempt = dataclasses.replace(begun.asked.attempt, attempt=2)
    again = Round(begun.asked, begun.codes)
    again.signatures()
    with pytest.raises(WireError, match="signature"):
        again.sites[ME].answer(earlier)


def test_an_answer_has_seeds_of_survivors_and_keys_of_others_and_of_no_site_both() -> None:
    asked = federation(5, 4)
    begun = Round(asked, random_codes(asked), {"site-002": 2})
    answer = AnswerMessage.read(begun.sites[ME].answer(begun.signatures()))
    assert (len(answer.seed_shares), len(answer.key_shares)) == (4, 1)
    held = {*answer.seed_shares, *answer.key_shares}
    assert len(held) == 5


def test_secrets_are_forgotten_after_the_answer(begun: Round) -> None:
    quorum = begun.signatures()
    answer = begun.sites[ME].answer(quorum)
    assert state(begun.asked) == CLOSED
    memory = begun.sites[ME]._memory
    assert {getattr(memory, name) for name in memory.__slots__} == {None}
    assert begun.sites[ME].answer(quorum) == answer
    with pytest.raises(WireError, match="answered before"):
        begun.sites[ME].answer(Quorum(signatures=()).to_bytes())


def test_a_step_out_of_order_is_refused(begun: Round) -> None:
    site = begun.sites[ME]
    with pytest.raises(WireError, match="expected the message 'open'"):
        site.share(KeyList(entries=()).to_bytes())
    site.begin()
    for early in (site.sign, site.answer):
        with pytest.raises(WireError, match="expected the message 'list'"):
            early(b"")


def test_a_closed_attempt_answers_nothing_and_keeps_no_message(begun: Round) -> None:
    box = begun.boxes()[ME]
    contribute(begun, box)
    begun.sites[ME].close()
    assert state(begun.asked) == CLOSED
    for step in (begun.sites[ME].sign, begun.sites[ME].answer, begun.sites[ME].share):
        with pytest.raises(WireError, match="no more messages"):
            step(b"")
    with pytest.raises(WireError, match="no more messages"):
        contribute(begun, box)
    assert not begun.sites[ME]._answers._replies


# -- what is charged -------------------------------------------------------------------------------


def test_the_charge_counts_on_the_threshold_without_colluders(asked: Federation) -> None:
    assert asked.site(ME).charged_clients == 3
    assert asked.site(ME, colluders=2).charged_clients == 2


def test_rows_are_the_own_ones_and_the_smallest_declarations_of_the_list() -> None:
    rows = {"site-000": 10, "site-001": 5, "site-002": 100, "site-003": 7, "site-004": 50}
    asked = federation(5, 4, rows=rows)
    begun = Round(asked, random_codes(asked), {"site-004": 1})
    site = begun.sites[ME]
    with pytest.raises(WireError, match="after the list"):
        _ = site.charged_rows
    begun.boxes()
    assert site.charged_rows == 10 + 5 + 7
    assert begun.sites["site-002"].charged_rows == 100 + 5 + 7


def test_masks_of_two_sites_differ_in_every_transcript_and_uplink(begun: Round) -> None:
    first, second, *_ = KeyList.read(begun.keys()).entries
    found = {
        pairwise_keys.pair_mask_key(b"s" * 32, digest, *order, uplink=uplink)
        for digest in (b"1" * 32, b"2" * 32)
        for uplink in (0, 1)
        for order in ((first, second), (second, first))
    }
    assert len(found) == 4  # the order of the two sites does not matter
