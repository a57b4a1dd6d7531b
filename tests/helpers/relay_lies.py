"""The lies of a relay: what it tells in place of its true answers."""

import dataclasses
import os
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar, cast

from sottovoce.core.errors import WireError
from sottovoce.deployment.operators.application import (
    HttpRefusal,
    pack_announcement,
    unpack_announcement,
)
from sottovoce.deployment.operators.folders import RelayFolder
from sottovoce.deployment.operators.routes import Route
from sottovoce.protocol.secure import hpke, shuffle_messages, two_server_messages
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.merkle import Tree
from sottovoce.protocol.secure.operators import Admission
from sottovoce.protocol.secure.relay import LISTED, Relay
from sottovoce.protocol.secure.roster import TrustKey
from sottovoce.protocol.secure.shuffle_messages import (
    Confirmations,
    Root,
    ShuffledList,
    join_proof,
    split_proof,
)
from sottovoce.protocol.secure.two_server_messages import Frozen, Summed

SUM, SHUFFLER = Protocol.TWO_SERVER_SUM, Protocol.SHUFFLER
Message = TypeVar("Message")


@dataclasses.dataclass
class Situation:
    """What a lie is made of: the relay, its folder, and its answers of the round before."""

    relay: Relay
    folder: RelayFolder
    kept: dict[Route, bytes]

    @property
    def current(self) -> Announcement:
        return Announcement.read(self.relay.announcement())

    def invented(self, name: str) -> tuple[TrustKey, Admission]:
        """Return a client that the relay alone admits."""
        operators, key, stranger = self.relay.operators, TrustKey.generate(), TrustKey.generate()
        until = 2**40
        made = Admission.issue(
            operators,
            self.folder.admission_key,
            stranger,
            name=name,
            key=key.public,
            valid_until=until,
        )
        return key, made

    def sealed_payload(self) -> bytes:
        """Return a message of the relay's own."""
        ann = self.current
        info = shuffle_messages.payload_info(ann.ann)
        return hpke.seal(ann.hpke_key, os.urandom(ann.payload_bytes), info)


Change = Callable[[bytes, Situation], bytes]


def announced(**changed: Any) -> Change:
    """Change an announcement, which the relay then signs in the collector's place."""

    def change(packed: bytes, made: Situation) -> bytes:
        message, content = unpack_announcement(packed)
        found, fields = Announcement.read(message), dict(changed)
        asked = dataclasses.replace(found.attempt, **fields.pop("attempt", {}))
        found = dataclasses.replace(found, attempt=asked, **fields)
        return pack_announcement(found.signed(made.folder.signing_key).to_bytes(), content)

    return change


def another_key(packed: bytes, _: Situation) -> bytes:
    message, content = unpack_announcement(packed)
    key = hpke.HpkeKey.generate().public
    changed = dataclasses.replace(Announcement.read(message), hpke_key=key)
    return pack_announcement(changed.to_bytes(), content)


def frozen(change: Callable[[list[Any], Situation], list[Any]]) -> Change:
    """Change the entries of the list of clients."""

    def changed(content: bytes, made: Situation) -> bytes:
        found = Frozen.read(content)
        return dataclasses.replace(
            found, entries=tuple(change(list(found.entries), made))
        ).to_bytes()

    return changed


def replaced(message: Message, **changed: Any) -> Message:
    made: Any = dataclasses.replace(message, **changed)  # type: ignore[type-var]
    return cast(Message, made)


def invented_entry(entries: list[Any], made: Situation) -> list[Any]:
    key, admission = made.invented("zoe")
    ann = made.current
    seed = hpke.seal(ann.hpke_key, bytes(32), two_server_messages.seed_info(ann.ann, "zoe"))
    statement = two_server_messages.collector_statement(ann.ann, "zoe", seed)
    signature = key.sign(SUM, "for the collector", *statement)
    return [
        *entries,
        two_server_messages.Sealed(admission=admission, ciphertext=seed, signature=signature),
    ]


def summed(change: Callable[[Summed], Summed]) -> Change:
    """Change the sum, which the relay signs."""

    def changed(content: bytes, made: Situation) -> bytes:
        found = change(Summed.read(content))
        key = made.folder.signing_key
        return replaced(found, signature=key.sign(SUM, "summed", *found.statement)).to_bytes()

    return changed


def sum_of_others(content: bytes, made: Situation) -> bytes:
    others = two_server_messages.accepted_digest(made.current.ann, ("a", "b", "c"))
    return summed(lambda found: replaced(found, accepted=others))(content, made)


def noise(found: Summed) -> Summed:
    return replaced(found, sums=os.urandom(len(found.sums)))


def listed(change: Callable[[list[bytes], Situation], list[bytes]]) -> Change:
    """Change the list, which the relay signs and from then on stands by."""

    def changed(content: bytes, made: Situation) -> bytes:
        found = ShuffledList.read(content)
        found = replaced(found, ciphertexts=tuple(change(list(found.ciphertexts), made)))
        key = made.folder.signing_key
        signed = replaced(found, signature=key.sign(SHUFFLER, "list", *found.statement))
        lie = signed.to_bytes()
        made.relay._journal.advance(made.current.place, LISTED, LISTED, lie)
        return lie

    return changed


def one_among_own(ciphertexts: list[bytes], made: Situation) -> list[bytes]:
    return sorted([ciphertexts[0], *(made.sealed_payload() for _ in ciphertexts[1:])])


def proof(change: Callable[[Root, bytes, Situation], tuple[bytes, bytes]]) -> Change:
    """Change root and path."""

    def changed(content: bytes, made: Situation) -> bytes:
        root, path = split_proof(content)
        return join_proof(*change(Root.read(root), path, made))

    return changed


def root_of_the_relay(root: Root, path: bytes, made: Situation) -> tuple[bytes, bytes]:
    tree = Tree(sorted(made.sealed_payload() for _ in range(root.count)))
    found = replaced(root, top=tree.top)
    signature = made.folder.signing_key.sign(SHUFFLER, "root", *found.statement)
    return replaced(found, signature=signature).to_bytes(), path


def path_of_another(root: Root, path: bytes, made: Situation) -> tuple[bytes, bytes]:
    tree = made.relay._tree_of(made.current)
    own = shuffle_messages.Path.read(path).index
    other = (own + 1) % tree.count
    way = shuffle_messages.Path(index=other, siblings=tree.path(other))
    return root.to_bytes(), way.to_bytes()


def confirmations(change: Callable[[list[Any], Situation], list[Any]]) -> Change:
    def changed(content: bytes, made: Situation) -> bytes:
        found = Confirmations.read(content)
        return replaced(found, entries=change(list(found.entries), made)).to_bytes()

    return changed


def invented_confirmation(entries: list[Any], made: Situation) -> list[Any]:
    key, admission = made.invented("zoe")
    record = made.relay._journal.record(made.current.place) or b""
    root = Root.read(record[: shuffle_messages.ROOT_BYTES])
    statement = shuffle_messages.confirmation_statement(root, "zoe")
    return [*entries[1:], (admission, key.sign(SHUFFLER, "confirmation", *statement))]


def refuse(_: bytes, __: Situation) -> bytes:
    raise WireError("this relay does not feel like it")


def too_early(_: bytes, __: Situation) -> bytes:
    raise HttpRefusal(HTTPStatus.TOO_EARLY, "come back later")


def of_the_round_before(route: Route) -> Change:
    return lambda _, made: made.kept[route]


# What is told in place of the true answer. Lies about an announcement and about a proof are told to
# the first client that asks, so a test lets its victim ask first.
LIES: dict[str, tuple[Route, Change]] = {
    "another key": (Route.ANNOUNCEMENT, another_key),
    "a lower minimum, signed by the relay": (
        Route.ANNOUNCEMENT,
        announced(attempt={"threshold": 2}),
    ),
    "another attempt, signed by the relay": (
        Route.ANNOUNCEMENT,
        announced(attempt={"attempt": 2}),
    ),
    "other operators": (Route.ANNOUNCEMENT, announced(attempt={"parties": bytes(32)})),
    "another mechanism": (Route.ANNOUNCEMENT, announced(attempt={"mechanism": "{}"})),
    "no confirmations": (Route.ANNOUNCEMENT, announced(confirm_by=0, slack=0)),
    "another model": (
        Route.ANNOUNCEMENT,
        lambda packed, _: pack_announcement(unpack_announcement(packed)[0], b"my model"),
    ),
    "the announcement before": (Route.ANNOUNCEMENT, of_the_round_before(Route.ANNOUNCEMENT)),
    "a garbled announcement": (Route.ANNOUNCEMENT, lambda m, _: m[:4] + os.urandom(len(m) - 4)),
    "an announcement that is cut off": (Route.ANNOUNCEMENT, lambda m, _: m[:90]),
    "no announcement": (Route.ANNOUNCEMENT, refuse),
    "a client twice": (Route.FROZEN, frozen(lambda e, _: [e[0], *e])),
    "clients out of order": (Route.FROZEN, frozen(lambda e, _: e[::-1])),
    "another ciphertext": (
        Route.FROZEN,
        frozen(lambda e, _: [replaced(e[0], ciphertext=os.urandom(80)), *e[1:]]),
    ),
    "an equal ciphertext": (
        Route.FROZEN,
        frozen(lambda e, _: [replaced(e[0], ciphertext=e[1].ciphertext), *e[1:]]),
    ),
    "ciphertexts under other names": (
        Route.FROZEN,
        frozen(
            lambda e, _: [
                replaced(e[0], ciphertext=e[1].ciphertext, signature=e[1].signature),
                replaced(e[1], ciphertext=e[0].ciphertext, signature=e[0].signature),
                *e[2:],
            ]
        ),
    ),
    "a client that the relay invented": (Route.FROZEN, frozen(invented_entry)),
    "only invented clients": (
        Route.FROZEN,
        frozen(lambda e, made: [*e[:2], *invented_entry([], made)]),
    ),
    "fewer than the minimum": (Route.FROZEN, frozen(lambda e, _: e[:2])),
    "nobody": (Route.FROZEN, frozen(lambda *_: [])),
    "the list before": (Route.FROZEN, of_the_round_before(Route.FROZEN)),
    "reports of the round before": (
        Route.FROZEN,
        frozen(lambda _, made: list(Frozen.read(made.kept[Route.FROZEN]).entries)),
    ),
    "a garbled list": (Route.FROZEN, lambda m, _: m[:33] + os.urandom(len(m) - 33)),
    "a list that is cut off": (Route.FROZEN, lambda m, _: m[:-1]),
    "no list": (Route.FROZEN, refuse),
    "the sum of others": (Route.ACCEPTED, sum_of_others),
    "the sum before": (Route.ACCEPTED, of_the_round_before(Route.ACCEPTED)),
    "a sum that nobody signed": (
        Route.ACCEPTED,
        lambda m, _: replaced(Summed.read(m), signature=bytes(64)).to_bytes(),
    ),
    "a changed sum": (
        Route.ACCEPTED,
        lambda m, _: m[:-1] + bytes([m[-1] ^ 1]),
    ),
    "noise in place of the sum": (Route.ACCEPTED, summed(noise)),
    "a longer sum": (Route.ACCEPTED, summed(lambda f: replaced(f, sums=f.sums + b"x"))),
    "a shorter sum": (Route.ACCEPTED, summed(lambda f: replaced(f, sums=f.sums[:-1]))),
    "no sum": (Route.ACCEPTED, refuse),
    "messages out of order": (Route.LIST, listed(lambda c, _: c[::-1])),
    "a message twice": (Route.LIST, listed(lambda c, _: [c[0], *c])),
    "longer messages": (Route.LIST, listed(lambda c, _: sorted(one + b"x" for one in c))),
    "a list of one": (Route.LIST, listed(lambda c, _: c[:1])),
    "a list of two": (Route.LIST, listed(lambda c, _: c[:2])),
    "too many messages": (
        Route.LIST,
        listed(lambda c, made: sorted([*c, *(made.sealed_payload() for _ in range(3))])),
    ),
    "digests in place of messages": (
        Route.LIST,
        listed(lambda c, _: sorted(os.urandom(32) for _ in c)),
    ),
    "a list that nobody signed": (
        Route.LIST,
        lambda m, _: replaced(ShuffledList.read(m), signature=bytes(64)).to_bytes(),
    ),
    "the messages before": (Route.LIST, of_the_round_before(Route.LIST)),
    "messages that are cut off": (Route.LIST, lambda m, _: m[:-1]),
    "no messages": (Route.LIST, lambda m, _: m[:105]),
    "one victim among the relay's own": (Route.LIST, listed(one_among_own)),
    "a message in place of another": (
        Route.LIST,
        listed(lambda c, made: sorted([*c[1:], made.sealed_payload()])),
    ),
    "a message added": (
        Route.LIST,
        listed(lambda c, made: sorted([*c, made.sealed_payload()])),
    ),
    "a root of the relay": (Route.ROOT_OF, proof(root_of_the_relay)),
    "a larger count": (
        Route.ROOT_OF,
        proof(lambda root, path, _: (replaced(root, count=root.count + 1).to_bytes(), path)),
    ),
    "the root before": (Route.ROOT_OF, of_the_round_before(Route.ROOT_OF)),
    "the path of another": (Route.ROOT_OF, proof(path_of_another)),
    "a shorter path": (Route.ROOT_OF, lambda m, _: m[:-32]),
    "a longer path": (Route.ROOT_OF, lambda m, _: m + bytes(32)),
    "an endless path": (Route.ROOT_OF, lambda m, _: m + bytes(32 * 100)),
    "a root without a path": (Route.ROOT_OF, lambda m, _: m[: shuffle_messages.ROOT_BYTES]),
    "a garbled root": (Route.ROOT_OF, lambda m, _: os.urandom(len(m))),
    "no root": (Route.ROOT_OF, refuse),
    "a root that never comes": (Route.ROOT_OF, too_early),
    "a confirmation missing": (Route.CONFIRMATIONS, confirmations(lambda e, _: e[1:])),
    "a confirmation twice": (Route.CONFIRMATIONS, confirmations(lambda e, _: [e[0], *e[:-1]])),
    "a confirmation under another name": (
        Route.CONFIRMATIONS,
        confirmations(lambda e, _: [(e[0][0], e[1][1]), *e[1:]]),
    ),
    "confirmations of the round before": (
        Route.CONFIRMATIONS,
        confirmations(
            lambda _, made: list(Confirmations.read(made.kept[Route.CONFIRMATIONS]).entries)
        ),
    ),
    "the confirmations before": (
        Route.CONFIRMATIONS,
        of_the_round_before(Route.CONFIRMATIONS),
    ),
    "a confirmation that the relay invented": (
        Route.CONFIRMATIONS,
        confirmations(invented_confirmation),
    ),
    "garbled confirmations": (Route.CONFIRMATIONS, lambda m, _: os.urandom(len(m))),
    "no confirmations at the end": (Route.CONFIRMATIONS, refuse),
}
TO_THE_FIRST = (Route.ANNOUNCEMENT, Route.ROOT_OF)
