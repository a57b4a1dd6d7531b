"""The collector: it holds the key of an attempt, and learns only a sum or a set of messages.

It runs the analysis and is a client of the relay. The key that opens seeds or payloads exists in
memory only, so a restart abandons the attempt: nothing of it can be opened any more. Each step is
written before it leaves and taken once; any disagreement abandons the attempt for ever.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from sottovoce.core.errors import ParameterError, WireError
from sottovoce.ledger.journal import Journal, Place
from sottovoce.mechanisms.packing import UnsignedCodes
from sottovoce.protocol.secure import shuffle_messages, two_server_messages
from sottovoce.protocol.secure.announcement import SEED_BYTES, Announcement
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.hpke import HpkeKey
from sottovoce.protocol.secure.masks import MaskedSum
from sottovoce.protocol.secure.merkle import Tree
from sottovoce.protocol.secure.operators import Admission, Operators
from sottovoce.protocol.secure.relay_intake import check_operator_numbers, check_operator_policy
from sottovoce.protocol.secure.roster import SIGNATURE_BYTES, TrustKey, check_signature
from sottovoce.protocol.secure.shuffle_messages import Confirmations, Root, ShuffledList
from sottovoce.protocol.secure.state_file import StateFile
from sottovoce.protocol.secure.two_server_client import mask_key
from sottovoce.protocol.secure.two_server_messages import Accepted, Frozen, Sealed, Summed

ANNOUNCED, ACCEPTED, ROOTED, RELEASED = "announced", "accepted", "rooted", "released"
SUM, SHUFFLER = Protocol.TWO_SERVER_SUM, Protocol.SHUFFLER
Check: TypeAlias = Callable[[list[UnsignedCodes], int], None]


@dataclass(slots=True)
class _Open:
    """What the collector knows of an attempt, in memory only.

    Attributes:
        announcement: What it announced.
        key: The key that opens what clients sealed.
        taken: The bytes of the list that it has taken.
        seeds: The seed of each accepted client.
        root: The root that it signed, and the list.
    """

    announcement: Announcement
    key: HpkeKey
    taken: bytes = b""
    seeds: dict[str, bytes] = field(default_factory=dict)
    listed: tuple[Root, tuple[bytes, ...]] | None = None


class Collector:
    """The collector of one attempt at a time.

    Args:
        state: Where it keeps what it must not forget; a new object on the same file abandons the
            attempts that were not released.
        key: The collector's signing key.
        operators: Keys of both operators.
        colluders: How many clients may collude with an operator.
        minimum: The smallest number of clients for which it announces anything.
    """

    def __init__(
        self,
        state: StateFile,
        key: TrustKey,
        operators: Operators,
        colluders: int,
        minimum: int,
    ) -> None:
        check_operator_numbers(minimum, colluders)
        if key.public != operators.collector:
            raise ParameterError("the key is not the collector's of the operators; check it")
        self.operators = operators
        self._key = key
        self._colluders = colluders
        self._minimum = minimum
        self._journal = Journal(state)
        self._journal.close_all(keep=RELEASED)
        self._open: _Open | None = None
        self._checked: dict[bytes, Admission] = {}

    def announce(
        self,
        attempt: Attempt,
        *,
        opens: int,
        closes: int,
        confirm_by: int = 0,
        slack: int = 0,
        payload_bytes: int = 0,
    ) -> bytes:
        """Begin an attempt with a new key and return its announcement for the relay.

        Args:
            attempt: What all parties agree on; its protocol says whether it is a sum or a shuffle.
            opens: Time in seconds from which clients may report.
            closes: Time in seconds at which the attempt closes.
            confirm_by: Time in seconds at which confirmations of a shuffle end; 0 trusts the relay
                to forward all and add nothing.
            slack: How many confirmations may be missing.
            payload_bytes: Size of every payload of a shuffle.

        Returns:
            The announcement.

        Raises:
            WireError: The attempt or a later one was begun before, or has too few clients.
        """
        if attempt.parties != self.operators.digest:
            raise ParameterError("parties must be the digest of the operators; set it")
        if attempt.federation != self.operators.federation:
            raise ParameterError("federation must be the operators'; set it")
        key = HpkeKey.generate()
        found = Announcement(
            attempt=attempt,
            opens=opens,
            closes=closes,
            confirm_by=confirm_by,
            slack=slack,
            payload_bytes=payload_bytes,
            hpke_key=key.public,
            signature=bytes(SIGNATURE_BYTES),
        ).signed(self._key)
        check_operator_policy(found, self._minimum, self._colluders)
        self.abandon()
        self._journal.begin(found.place, ANNOUNCED)
        self._open = _Open(found, key)
        return found.to_bytes()

    def accept(self, frozen: bytes) -> bytes:
        """Open the seeds of the clients that the relay has frozen and ask for their sum.

        A client is left out if one of the operators has not admitted it, if its signature or its
        ciphertext is not one, or if its seed or its key is that of another client.

        Args:
            frozen: The relay's list.

        Returns:
            The clients whose sum the collector asks for; asked again, the same bytes.

        Raises:
            WireError: The list is malformed, another one was taken, or too few clients are left.
        """
        found = self._current(SUM)
        if found.taken:
            return self._again(found, frozen, ACCEPTED)
        ann, listed = found.announcement.ann, Frozen.read(frozen)
        self._check_ann(ann, listed.ann)
        seeds = self._seeds(found, listed)
        if not self._least(found) <= len(seeds) <= found.announcement.attempt.most_clients:
            self.abandon()
            raise WireError(
                f"expected {self._least(found)} to {found.announcement.attempt.most_clients} "
                f"accepted clients, got {len(seeds)}; the attempt is abandoned"
            )
        unsigned = Accepted(
            ann=ann,
            frozen=two_server_messages.frozen_digest(ann, frozen),
            names=tuple(seeds),
            signature=b"",
        )
        signature = self._key.sign(SUM, "accepted", *unsigned.statement)
        message = Accepted(
            ann=ann, frozen=unsigned.frozen, names=unsigned.names, signature=signature
        ).to_bytes()
        self._journal.advance(found.announcement.place, ANNOUNCED, ACCEPTED, message)
        found.taken, found.seeds = frozen, seeds
        return message

    def _seeds(self, found: _Open, listed: Frozen) -> dict[str, bytes]:
        """Return the seed of each client that is accepted, in the order of their names."""
        opened = {each: self._seed(found, each) for each in listed.entries}
        kept = {each: seed for each, seed in opened.items() if seed is not None}
        # Two clients that share something are both left out: honest clients share nothing. Of equal
        # ciphertexts one opens at most, because the client's name is part of it.
        seen = Counter(part for each, seed in kept.items() for part in (seed, each.admission.key))
        return {
            each.admission.name: seed
            for each, seed in kept.items()
            if seen[seed] == seen[each.admission.key] == 1
        }

    def _seed(self, found: _Open, entry: Sealed) -> bytes | None:
        ann, name = found.announcement.ann, entry.admission.name
        try:
            self._check_admission(found, entry.admission)
            check_signature(
                entry.admission.key,
                entry.signature,
                SUM,
                "for the collector",
                *two_server_messages.collector_statement(ann, name, entry.ciphertext),
            )
            seed = found.key.open(entry.ciphertext, two_server_messages.seed_info(ann, name))
        except WireError:
            return None
        return seed if len(seed) == SEED_BYTES else None

    def release(self, summed: bytes, check: Check | None = None) -> list[UnsignedCodes]:
        """Subtract the masks from the relay's sums and return them, one vector an uplink.

        The first sums that the relay signed for these clients are taken, no others. If they fail a
        check, the attempt is abandoned: what is told is a function of the sums only.

        Args:
            summed: The relay's message.
            check: Raises unless the sums of so many clients pass the energy test.

        Returns:
            The sums, each coordinate from 0 to (levels - 1) times the number of clients.

        Raises:
            WireError: The message is not the relay's for these clients, or a sum is out of range.
        """
        found, message = self._current(SUM), Summed.read(summed)
        if not found.seeds:
            raise WireError("expected a list of clients before their sums")
        asked, ann = found.announcement.attempt, found.announcement.ann
        self._check_ann(ann, message.ann)
        check_signature(self.operators.relay, message.signature, SUM, "summed", *message.statement)
        try:
            sums = self._unmasked(found, message)
            largest = len(found.seeds) * (asked.levels - 1)
            if any(int(total.max()) > largest for total in sums):
                raise WireError(f"expected sums up to {largest}, got others")
            if check is not None:
                check(sums, len(found.seeds))
        except BaseException:
            self.abandon()
            raise
        self._release(found, b"".join(_as_words(total) for total in sums))
        return sums

    def _unmasked(self, found: _Open, message: Summed) -> list[UnsignedCodes]:
        asked, ann = found.announcement.attempt, found.announcement.ann
        names = tuple(found.seeds)
        if message.accepted != two_server_messages.accepted_digest(ann, names):
            raise WireError("expected the sums of the accepted clients, got those of others")
        size = two_server_messages.vector_bytes(found.announcement)
        if len(message.sums) != asked.uplinks * size:
            raise WireError(f"expected {asked.uplinks} sums of {size} bytes each")
        sums = []
        for uplink in range(asked.uplinks):
            total = MaskedSum(asked.dimension, asked.bits)
            total.add_packed(message.sums[uplink * size : (uplink + 1) * size])
            for name, seed in found.seeds.items():
                total.subtract_mask(mask_key(seed, ann, name, uplink))
            sums.append(total.values())
        return sums

    def root(self, listed: bytes) -> bytes:
        """Take the relay's list and return its signed root; asked again, the same bytes.

        Raises:
            WireError: The list is malformed or not the relay's, has another length than announced,
                or another one was taken.
        """
        found = self._current(SHUFFLER)
        if found.taken:
            return self._again(found, listed, ROOTED)
        message, announced = ShuffledList.read(listed), found.announcement
        self._check_ann(announced.ann, message.ann)
        check_signature(
            self.operators.relay, message.signature, SHUFFLER, "list", *message.statement
        )
        ciphertexts = message.ciphertexts
        if len(ciphertexts[0]) != announced.ciphertext_bytes:
            raise WireError(f"expected ciphertexts of {announced.ciphertext_bytes} bytes")
        if not self._least(found) <= len(ciphertexts) <= announced.attempt.most_clients:
            raise WireError(
                f"expected {self._least(found)} to {announced.attempt.most_clients} ciphertexts, "
                f"got {len(ciphertexts)}"
            )
        tree = Tree(ciphertexts)
        unsigned = Root(ann=announced.ann, count=tree.count, top=tree.top, signature=b"")
        signature = self._key.sign(SHUFFLER, "root", *unsigned.statement)
        root = Root(ann=announced.ann, count=tree.count, top=tree.top, signature=signature)
        self._journal.advance(announced.place, ANNOUNCED, ROOTED, root.to_bytes())
        found.taken, found.listed = listed, (root, ciphertexts)
        return root.to_bytes()

    def open(self, confirmations: bytes | None) -> list[bytes]:
        """Open all messages if enough clients confirmed them; else delete the key for ever.

        Args:
            confirmations: The relay's batch; None for a shuffle that is not confirmed.

        Returns:
            The payloads that open, sorted, so that they tell nothing about the list's order.

        Raises:
            WireError: Too few clients confirmed, or the batch is malformed.
        """
        found = self._current(SHUFFLER)
        if found.listed is None:
            raise WireError("expected a list before its messages are opened")
        root, ciphertexts = found.listed
        if found.announcement.is_confirmed:
            self._check_confirmations(found, root, confirmations or b"")
        info = shuffle_messages.payload_info(found.announcement.ann)
        payloads = []
        for ciphertext in ciphertexts:
            try:
                payloads.append(found.key.open(ciphertext, info))
            except WireError:
                continue
        payloads.sort()
        self._release(found, b"".join(payloads))
        return payloads

    def _check_confirmations(self, found: _Open, root: Root, content: bytes) -> None:
        batch = Confirmations.read(content)
        self._check_ann(found.announcement.ann, batch.ann)
        keys = set()
        for admission, signature in batch.entries:
            statement = shuffle_messages.confirmation_statement(root, admission.name)
            try:
                self._check_admission(found, admission)
                check_signature(admission.key, signature, SHUFFLER, "confirmation", *statement)
            except WireError:
                continue
            keys.add(admission.key)
        least = max(self._least(found), root.count - found.announcement.slack)
        if len(keys) < least:
            self.abandon()
            raise WireError(
                f"expected confirmations of at least {least} clients, got {len(keys)}; the key was "
                "deleted and nothing was opened"
            )

    def result(self, place: Place) -> bytes | None:
        """Return what was released of an attempt, also after a restart; None if nothing was.

        Sums are unsigned integers of 32 bits, little-endian, one uplink after another; payloads
        stand in their sorted order.
        """
        return self._journal.record(place) if self._journal.state(place) == RELEASED else None

    def abandon(self) -> None:
        """Delete the key of the attempt and close it: nothing of it can be opened any more."""
        self._open = None
        self._journal.close_all(keep=RELEASED)

    def _release(self, found: _Open, result: bytes) -> None:
        """Write the result and forget the key and all seeds."""
        place = found.announcement.place
        before = self._journal.state(place) or ""
        self._open = None
        self._journal.advance(place, before, RELEASED, result)

    def _current(self, protocol: Protocol) -> _Open:
        if self._open is None or self._open.announcement.attempt.protocol is not protocol:
            raise WireError("no attempt of this kind is open; announce a new one")
        return self._open

    def _least(self, found: _Open) -> int:
        return max(self._minimum, found.announcement.attempt.threshold)

    def _again(self, found: _Open, content: bytes, state: str) -> bytes:
        record = self._journal.record(found.announcement.place)
        if content != found.taken or record is None:
            raise WireError(f"expected the list that was {state}, got a second one")
        return record

    def _check_admission(self, found: _Open, admission: Admission) -> None:
        """Raise unless both operators admitted a client; a certificate's signatures once."""
        content = admission.to_bytes()
        if content not in self._checked:
            admission.check(self.operators, found.announcement.closes)
            self._checked[content] = admission
        if admission.valid_until < found.announcement.closes:
            raise WireError(f"the admission of '{admission.name}' has expired; renew it")

    @staticmethod
    def _check_ann(expected: bytes, found: bytes) -> None:
        if found != expected:
            raise WireError("expected a message of this attempt, got one of another")


def _as_words(total: UnsignedCodes) -> bytes:
    return total.astype(np.dtype("<u4")).tobytes()
