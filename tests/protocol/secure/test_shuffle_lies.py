"""What a lying relay, collector or client may try in a shuffle; the honest side refuses it."""

import contextlib
import dataclasses
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import two_servers
from two_servers import CLOSES, CONFIRM_BY, CONTENT, OPENS, PAYLOAD_BYTES, World

from sottovoce.core.errors import AbandonedError, ParameterError, PolicyError, WireError
from sottovoce.ledger.journal import CLOSED
from sottovoce.protocol.secure import hpke, shuffle_messages
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.merkle import Tree, leaf_digest
from sottovoce.protocol.secure.relay_intake import RECEIPT
from sottovoce.protocol.secure.roster import TrustKey
from sottovoce.protocol.secure.shuffle_client import ShuffleClient
from sottovoce.protocol.secure.shuffle_messages import (
    Confirmation,
    Confirmations,
    Root,
    ShuffledList,
    ShuffleReport,
)
from sottovoce.protocol.secure.state_file import StateFile

SHUFFLER = Protocol.SHUFFLER


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with two_servers.world_in(tmp_path) as made:
        yield made


@dataclasses.dataclass
class Shuffle:
    """A shuffle whose clients have reported."""

    world: World
    announcement: bytes
    clients: dict[str, ShuffleClient]
    payloads: dict[str, bytes]
    reports: dict[str, bytes]

    @property
    def ann(self) -> bytes:
        return Announcement.read(self.announcement).ann

    @property
    def ciphertexts(self) -> list[bytes]:
        return sorted(ShuffleReport.read(report).ciphertext for report in self.reports.values())

    def listed(self, ciphertexts: list[bytes], key: TrustKey | None = None) -> bytes:
        """Return a list that a lying relay signs."""
        message = ShuffledList(ann=self.ann, ciphertexts=tuple(ciphertexts), signature=b"")
        signer = key or self.world.secrets.relay
        signature = signer.sign(SHUFFLER, "list", *message.statement)
        return dataclasses.replace(message, signature=signature).to_bytes()

    def rooted(self, tree: Tree, *, count: int | None = None, ann: bytes | None = None) -> bytes:
        """Return a root that a lying collector signs."""
        root = Root(ann=ann or self.ann, count=count or tree.count, top=tree.top, signature=b"")
        signature = self.world.secrets.collector.sign(SHUFFLER, "root", *root.statement)
        return dataclasses.replace(root, signature=signature).to_bytes()

    def path(self, tree: Tree, name: str) -> bytes:
        leaf = leaf_digest(ShuffleReport.read(self.reports[name]).ciphertext)
        index = tree.index(leaf)
        return shuffle_messages.Path(index=index, siblings=tree.path(index)).to_bytes()

    def confirmed(self) -> bytes:
        """Go the honest way up to the batch of confirmations."""
        relay, collector = self.world.relay, self.world.collector
        relay.root(collector.root(relay.shuffled_list(CLOSES)))
        for name, client in self.clients.items():
            relay.confirmation(self.world.confirm(client, self.reports[name]))
        return relay.confirmations(CONFIRM_BY)


def shuffle_in(world: World, *, slack: int = 0) -> Shuffle:
    announcement = world.announce_shuffle(slack=slack)
    clients = {name: world.shuffler(name) for name in world.names}
    payloads = {name: secrets.token_bytes(PAYLOAD_BYTES) for name in world.names}
    reports = {
        name: world.shuffle_report(client, announcement, payloads[name])
        for name, client in clients.items()
    }
    world.relay.reports(list(reports.values()), OPENS)
    return Shuffle(world, announcement, clients, payloads, reports)


def test_another_hpke_key_for_one_client_is_refused(world: World) -> None:
    found = Announcement.read(world.announce_shuffle())
    own = dataclasses.replace(found, hpke_key=hpke.HpkeKey.generate().public)
    client = world.shuffler("client-000")
    for lie in (own, own.signed(world.secrets.relay)):
        with pytest.raises(WireError, match="signature"):
            world.shuffle_report(client, lie.to_bytes(), bytes(PAYLOAD_BYTES))
    world.shuffle_report(client, found.to_bytes(), bytes(PAYLOAD_BYTES))
    again = own.signed(world.secrets.collector)
    with pytest.raises(WireError, match="got a second"):
        world.shuffle_report(client, again.to_bytes(), bytes(PAYLOAD_BYTES))


def test_a_key_of_low_order_is_refused_before_the_charge(world: World) -> None:
    found = Announcement.read(world.announce_shuffle())
    low = dataclasses.replace(found, hpke_key=bytes(32)).signed(world.secrets.collector)
    with pytest.raises(WireError, match="public key"):
        world.shuffle_report(world.shuffler("client-000"), low.to_bytes(), bytes(PAYLOAD_BYTES))
    assert world.journal("client-000").state(found.place) is None


def test_a_client_sends_one_ciphertext_of_the_announced_size(world: World) -> None:
    announcement = world.announce_shuffle()
    for size in (PAYLOAD_BYTES - 1, PAYLOAD_BYTES + 1):
        with pytest.raises(ParameterError):
            world.shuffle_report(world.shuffler(world.names.pop()), announcement, bytes(size))
    client = world.shuffler("client-000")
    report = world.shuffle_report(client, announcement, bytes(PAYLOAD_BYTES))
    assert world.shuffle_report(client, announcement, b"x" * PAYLOAD_BYTES) == report
    assert len(report) <= 150


def test_the_relay_takes_the_first_ciphertext_of_a_client_for_its_own_attempt(
    world: World,
) -> None:
    shuffle = shuffle_in(world)
    key, ann = world.keys["client-000"], shuffle.ann
    fresh, longer = secrets.token_bytes(64), secrets.token_bytes(65)
    for name, ciphertext, signed_ann in (
        ("client-000", fresh, ann),  # A second one.
        ("client-000", longer, ann),
        ("client-000", fresh, bytes(32)),  # Of another attempt.
    ):
        statement = shuffle_messages.report_statement(signed_ann, ciphertext)
        signature = key.sign(SHUFFLER, "for the relay", *statement)
        lie = ShuffleReport(name=name, signature=signature, ciphertext=ciphertext)
        with pytest.raises(WireError):
            world.relay.report(lie.to_bytes(), OPENS)
    copied = ShuffleReport.read(shuffle.reports["client-001"])
    with pytest.raises(WireError):
        world.relay.report(dataclasses.replace(copied, name="client-002").to_bytes(), OPENS)
    assert world.relay.report(shuffle.reports["client-000"], OPENS) == RECEIPT


def test_a_shuffle_without_confirmations_needs_a_client_that_trusts_the_relay(
    world: World,
) -> None:
    announcement = world.announce_shuffle(confirm_by=0)
    with pytest.raises(PolicyError, match="the relay is trusted"):
        world.shuffle_report(world.shuffler("client-000"), announcement, bytes(PAYLOAD_BYTES))
    sent = [
        world.shuffle_report(
            world.shuffler(name, trusts_relay=True), announcement, name.encode().ljust(16)
        )
        for name in world.names
    ]
    world.relay.reports(sent, OPENS)
    world.collector.root(world.relay.shuffled_list(CLOSES))
    assert world.collector.open(None) == sorted(name.encode().ljust(16) for name in world.names)


def test_the_relay_forwards_nothing_early_or_below_the_minimum(world: World) -> None:
    announcement = world.announce_shuffle()
    for name in world.names[:2]:
        report = world.shuffle_report(world.shuffler(name), announcement, bytes(PAYLOAD_BYTES))
        world.relay.report(report, OPENS)
    with pytest.raises(WireError, match="still open"):
        world.relay.shuffled_list(CLOSES - 1)
    with pytest.raises(AbandonedError, match="at least 3 clients, got 2"):
        world.relay.shuffled_list(CLOSES)
    with pytest.raises(WireError, match="closed"):
        world.relay.shuffled_list(CLOSES)
    with pytest.raises(WireError):
        world.relay.frozen(CLOSES)


def test_the_collector_refuses_lists_that_no_honest_relay_writes(world: World) -> None:
    shuffle = shuffle_in(world)
    found = shuffle.ciphertexts
    digest_size = [secrets.token_bytes(32) for _ in range(4)]
    own = [secrets.token_bytes(64) for _ in range(60)]
    for ciphertexts in (
        found[::-1],
        [found[0], *found],
        found[:1],
        found[:2],
        digest_size,
        sorted(each + b"x" for each in found),
        sorted(found + own),  # More than the attempt may have.
    ):
        with pytest.raises(WireError):
            world.collector.root(shuffle.listed(ciphertexts))
    for lie in (
        shuffle.listed(found, key=world.secrets.collector),
        shuffle.listed(found) + b"x",
        dataclasses.replace(ShuffledList.read(shuffle.listed(found)), ann=bytes(32)).to_bytes(),
    ):
        with pytest.raises(WireError):
            world.collector.root(lie)
    root = world.collector.root(shuffle.listed(found))
    assert world.collector.root(shuffle.listed(found)) == root
    with pytest.raises(WireError, match="second one"):
        world.collector.root(shuffle.listed(found[:3]))


def test_the_relay_hands_out_the_root_of_the_list_that_it_wrote(world: World) -> None:
    shuffle = shuffle_in(world)
    with pytest.raises(WireError, match="no list"):
        world.relay.root(shuffle.rooted(Tree(shuffle.ciphertexts)))
    tree = Tree(ShuffledList.read(world.relay.shuffled_list(CLOSES)).ciphertexts)
    leaf = leaf_digest(shuffle.ciphertexts[0])
    with pytest.raises(WireError, match="no root"):
        world.relay.root_for(leaf)
    honest = shuffle.rooted(tree)
    for lie in (
        shuffle.rooted(Tree(shuffle.ciphertexts[:3])),
        shuffle.rooted(tree, count=5),
        shuffle.rooted(tree, ann=bytes(32)),
        dataclasses.replace(Root.read(honest), signature=bytes(64)).to_bytes(),
    ):
        with pytest.raises(WireError):
            world.relay.root(lie)
    world.relay.root(honest)
    world.relay.root(honest)
    with pytest.raises(WireError, match="not in it"):
        world.relay.root_for(bytes(32))
    with pytest.raises(WireError, match="at the announced time"):
        world.relay.confirmations(CONFIRM_BY - 1)


def test_a_client_confirms_one_root_that_has_its_own_message(world: World) -> None:
    shuffle = shuffle_in(world)
    name = "client-000"
    client = shuffle.clients[name]
    tree = Tree(shuffle.ciphertexts)
    own = ShuffleReport.read(shuffle.reports[name]).ciphertext
    others = [each for each in shuffle.ciphertexts if each != own]
    without = Tree([*others, secrets.token_bytes(64)])
    honest, path = shuffle.rooted(tree), shuffle.path(tree, name)
    alone = Tree([own])
    digests = Tree([leaf_digest(each) for each in shuffle.ciphertexts])
    for root, way in (
        (shuffle.rooted(without), path),
        (shuffle.rooted(alone), shuffle.path(alone, name)),
        (shuffle.rooted(digests), path),  # Digests that pose as ciphertexts.
        (shuffle.rooted(tree, count=5), path),
        (shuffle.rooted(tree, ann=bytes(32)), path),
        (dataclasses.replace(Root.read(honest), signature=bytes(64)).to_bytes(), path),
        (honest, shuffle.path(tree, "client-001")),
        (honest, path + bytes(32)),
        (honest, path[:-32]),
    ):
        with pytest.raises(WireError):
            client.confirm(root, way, CLOSES)
    with pytest.raises(WireError, match="any more"):
        client.confirm(honest, path, CONFIRM_BY)
    confirmation = client.confirm(honest, path, CLOSES)
    more = Tree(sorted([*shuffle.ciphertexts, secrets.token_bytes(64)]))
    with pytest.raises(WireError, match="another one"):
        client.confirm(shuffle.rooted(more), shuffle.path(more, name), CLOSES)
    assert client.confirm(honest, path, CONFIRM_BY) == confirmation
    with pytest.raises(WireError, match="is over"):
        world.shuffle_report(client, shuffle.announcement, bytes(PAYLOAD_BYTES))


def test_the_relay_takes_confirmations_of_registered_clients_for_its_root(world: World) -> None:
    shuffle = shuffle_in(world)
    world.relay.root(world.collector.root(world.relay.shuffled_list(CLOSES)))
    honest = world.confirm(shuffle.clients["client-000"], shuffle.reports["client-000"])
    read = Confirmation.read(honest)
    with pytest.raises(WireError, match="registered"):
        world.relay.confirmation(dataclasses.replace(read, name="stranger").to_bytes())
    forged = dataclasses.replace(read, signature=bytes(64)).to_bytes()
    assert world.relay.confirmation(forged) == RECEIPT  # Nobody has checked it yet,
    assert world.relay.confirmation(honest) == RECEIPT  # and the client's own takes its place.
    with pytest.raises(WireError):
        world.relay.confirmation(forged)
    assert world.relay.confirmation(honest) == RECEIPT
    kept = Confirmations.read(world.relay.confirmations(CONFIRM_BY)).entries
    assert [(one.name, signature) for one, signature in kept] == [(read.name, read.signature)]
    batch = world.relay.confirmations(CONFIRM_BY)
    assert world.relay.confirmations(CONFIRM_BY) == batch
    with pytest.raises(WireError, match="over"):
        world.confirm(shuffle.clients["client-001"], shuffle.reports["client-001"])
    with pytest.raises(WireError, match="over"):
        world.relay.confirmation(honest)


@pytest.mark.parametrize("lie", ["missing", "replayed", "renamed", "unadmitted", "one key"])
def test_too_few_confirmations_delete_the_key_unopened(world: World, lie: str) -> None:
    shuffle = shuffle_in(world)
    batch = Confirmations.read(shuffle.confirmed())
    (first, signature), *others = batch.entries
    earlier = Root.read(shuffle.rooted(Tree(shuffle.ciphertexts), ann=bytes(32)))
    statement = shuffle_messages.confirmation_statement(earlier, first.name)
    replayed = world.keys[first.name].sign(SHUFFLER, "confirmation", *statement)
    root = Root.read(shuffle.rooted(Tree(shuffle.ciphertexts)))
    statement = shuffle_messages.confirmation_statement(root, first.name)
    with_its_key = world.keys[others[0][0].name].sign(SHUFFLER, "confirmation", *statement)
    entries = {
        "missing": others,
        "replayed": [(first, replayed), *others],
        "renamed": [(first, others[0][1]), *others],
        "unadmitted": [(dataclasses.replace(first, by_collector=bytes(64)), signature), *others],
        "one key": [
            (world.admission(first.name, key=others[0][0].key), with_its_key),
            *others,
        ],
    }
    with pytest.raises(AbandonedError, match="got 3; the key was deleted"):
        world.collector.open(dataclasses.replace(batch, entries=entries[lie]).to_bytes())
    with pytest.raises(WireError, match="no attempt"):
        world.collector.open(batch.to_bytes())


def test_slack_allows_confirmations_to_be_missing_but_not_below_the_minimum(
    tmp_path: Path,
) -> None:
    for missing, opens in ((1, True), (2, False)):
        folder = tmp_path / str(missing)
        folder.mkdir()
        with two_servers.world_in(folder) as world:
            shuffle = shuffle_in(world, slack=2)
            batch = Confirmations.read(shuffle.confirmed())
            fewer = dataclasses.replace(batch, entries=batch.entries[missing:]).to_bytes()
            if opens:
                assert len(world.collector.open(fewer)) == 4
            else:
                with pytest.raises(AbandonedError, match="at least 3 clients must confirm, got 2"):
                    world.collector.open(fewer)


def test_a_copy_of_a_message_with_an_ignored_bit_changed_does_not_open(world: World) -> None:
    shuffle = shuffle_in(world, slack=1)
    found = shuffle.ciphertexts
    copy = found[0][:31] + bytes([found[0][31] ^ 0x80]) + found[0][32:]  # X25519 ignores this bit.
    root = Root.read(world.collector.root(shuffle.listed(sorted([copy, *found]))))
    entries = []
    for name in world.names:
        statement = shuffle_messages.confirmation_statement(root, name)
        signature = world.keys[name].sign(SHUFFLER, "confirmation", *statement)
        entries.append((world.admission(name), signature))
    opened = world.collector.open(Confirmations(ann=shuffle.ann, entries=entries).to_bytes())
    assert opened == sorted(shuffle.payloads.values())


def test_a_message_of_one_shuffle_does_not_open_in_another(world: World) -> None:
    shuffle = shuffle_in(world)
    found = Announcement.read(shuffle.announcement)
    key = world.collector._open.key  # type: ignore[union-attr]
    ciphertext = shuffle.ciphertexts[0]
    assert key.open(ciphertext, shuffle_messages.payload_info(found.ann))
    with pytest.raises(WireError):
        key.open(ciphertext, shuffle_messages.payload_info(bytes(32)))


def test_a_restarted_collector_can_open_nothing(world: World) -> None:
    shuffle = shuffle_in(world)
    batch = shuffle.confirmed()
    world.restart("collector.sqlite")
    place = Announcement.read(shuffle.announcement).place
    assert world.collector._journal.state(place) == CLOSED
    with pytest.raises(WireError, match="no attempt"):
        world.collector.open(batch)
    with pytest.raises(WireError, match="begun before"):
        world.collector.announce(
            Announcement.read(shuffle.announcement).attempt,
            opens=OPENS, closes=CLOSES, payload_bytes=PAYLOAD_BYTES,
        )  # fmt: skip


def test_what_is_published_does_not_depend_on_the_order_of_the_list(world: World) -> None:
    shuffle = shuffle_in(world)
    opened = world.collector.open(shuffle.confirmed())
    assert opened == sorted(shuffle.payloads.values())
    kept = world.collector.result(Announcement.read(shuffle.announcement).place)
    assert kept == b"".join(opened)


def occurrences(folder: Path, pattern: bytes) -> int:
    """Return how often bytes stand in the relay's files."""
    return sum(path.read_bytes().count(pattern) for path in folder.glob("relay.sqlite*"))


def test_after_forwarding_the_relay_keeps_no_name_and_no_signature(world: World) -> None:
    world.relay._state.overwrite_deleted()
    # The list of an announcement names all clients, whether they answer or not.
    before = {name: occurrences(world.folder, name.encode()) + 1 for name in world.names}
    shuffle = shuffle_in(world)
    during = {name: occurrences(world.folder, name.encode()) for name in world.names}
    listed = world.relay.shuffled_list(CLOSES)
    for name, report in shuffle.reports.items():
        found = ShuffleReport.read(report)
        assert during[name] > before[name]
        assert occurrences(world.folder, name.encode()) == before[name]
        assert occurrences(world.folder, found.signature) == 0
        assert occurrences(world.folder, found.ciphertext) == 1
        assert name.encode() not in listed
        assert found.signature not in listed
    world.relay.announce(
        world.collector.announce(world.attempt(round=2), opens=OPENS, closes=CLOSES),
        CONTENT,
        OPENS,
    )
    assert occurrences(world.folder, shuffle.ciphertexts[0]) == 0


def test_a_relay_that_is_killed_as_it_forwards_keeps_no_name_after_its_restart(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the commit that deletes arrivals, before SQLite's log is overwritten."""
    world.relay._state.overwrite_deleted()
    # The list of an announcement names all clients, whether they answer or not.
    before = {name: occurrences(world.folder, name.encode()) + 1 for name in world.names}
    shuffle_in(world)
    monkeypatch.setattr(StateFile, "overwrite_deleted", lambda _: None)
    world.relay.shuffled_list(CLOSES)
    monkeypatch.undo()
    killed = tmp_path / "killed"
    killed.mkdir()
    for path in world.folder.glob("relay.sqlite*"):
        shutil.copy(path, killed)
    assert any(occurrences(killed, name.encode()) > count for name, count in before.items())
    with contextlib.closing(StateFile(killed / "relay.sqlite")):
        for name, count in before.items():
            assert occurrences(killed, name.encode()) == count


def test_the_list_is_in_the_order_of_bytes_whatever_came_first(tmp_path: Path) -> None:
    with two_servers.world_in(tmp_path, clients=12) as world:
        shuffle = shuffle_in(world)
        listed = ShuffledList.read(world.relay.shuffled_list(CLOSES))
        assert list(listed.ciphertexts) == shuffle.ciphertexts
        assert world.relay.shuffled_list(0) == listed.to_bytes()


def own_leaf(shuffle: Shuffle, name: str) -> bytes:
    return leaf_digest(ShuffleReport.read(shuffle.reports[name]).ciphertext)


def refusal_of(shuffle: Shuffle, name: str, leaves: bytes, root: bytes) -> str:
    """Why a client does not confirm, given these digests; empty if it does."""
    try:
        shuffle.clients[name].confirm_among(shuffle.announcement, root + leaves, CLOSES)
    except WireError as refused:
        return str(refused)
    return ""


def test_no_part_of_a_list_tells_which_message_is_a_clients(world: World) -> None:
    """A link that hands out digests, or nodes of the tree, of its choice learns nothing by it."""
    shuffle = shuffle_in(world)
    root = world.collector.root(world.relay.shuffled_list(CLOSES))
    tree = Tree(shuffle.ciphertexts)
    leaves, name = list(tree.leaves), "client-000"
    place = Announcement.read(shuffle.announcement).place
    own = leaves.index(own_leaf(shuffle, name))
    other = leaves[own ^ 1]
    guesses = [b"".join(guess) for guess in ([leaves[own]], [other])]
    # The same top: a pair of digests is replaced by the node above it.
    for pair in (own // 2, (own // 2 + 1) % (len(leaves) // 2)):
        node = Tree.of_leaves(leaves[2 * pair : 2 * pair + 2]).top
        guesses.append(b"".join([*leaves[: 2 * pair], node, *leaves[2 * pair + 2 :]]))
    found = {refusal_of(shuffle, name, guess, root) for guess in guesses}
    assert len(found) == 1
    assert "whole list" in found.pop()
    assert world.journal(name).state(place) == "reported"
    assert refusal_of(shuffle, name, b"".join(leaves), root) == ""


def test_a_client_says_once_that_its_message_is_not_in_a_list_that_was_signed(
    world: World,
) -> None:
    """A collector that signs one list after another, and reaches a site, gets one answer."""
    shuffle = shuffle_in(world)
    name = "client-000"
    mine = ShuffleReport.read(shuffle.reports[name]).ciphertext
    others = [each for each in shuffle.ciphertexts if each != mine]
    lies = [Tree(sorted([*others, bytes(len(mine))])), Tree(shuffle.ciphertexts)]
    refusals = [
        refusal_of(shuffle, name, b"".join(tree.leaves), shuffle.rooted(tree)) for tree in lies
    ]
    assert "is not in it" in refusals[0]
    assert "is over" in refusals[1]
