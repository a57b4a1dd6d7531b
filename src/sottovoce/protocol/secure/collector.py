"""The collector: it holds the key of an attempt, and learns only a sum or a set of messages.

It runs the analysis and is a client of the relay. The key that opens seeds or payloads exists in
memory only, so a restart abandons the attempt: nothing of it can be opened any more. Each step is
written before it leaves and taken once; any disagreement abandons the attempt for ever.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from sottovoce.core.errors import AbandonedError, WireError
from sottovoce.mechanisms.packing import UnsignedCodes
from sottovoce.protocol.secure import shuffle_messages, two_server_messages
from sottovoce.protocol.secure.announcement import SEED_BYTES
from sottovoce.protocol.secure.collector_attempt import (
    ANNOUNCED,
    CollectorOfAttempt,
    OpenAttempt,
)
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.masks import MaskedSum
from sottovoce.protocol.secure.merkle import Tree
from sottovoce.protocol.secure.roster import check_signature
from sottovoce.protocol.secure.shuffle_messages import Confirmations, Root, ShuffledList
from sottovoce.protocol.secure.two_server_client import mask_key
from sottovoce.protocol.secure.two_server_messages import Accepted, Frozen, Sealed, Summed

ACCEPTED, ROOTED = "accepted", "rooted"
SUM, SHUFFLER = Protocol.TWO_SERVER_SUM, Protocol.SHUFFLER
Check: TypeAlias = Callable[[list[UnsignedCodes], int], None]


class Collector(CollectorOfAttempt):
    """The collector of one attempt at a time; it learns a sum, or messages without senders."""

    def accept(self, frozen: bytes) -> bytes:
        """Open the seeds of the clients that the relay has frozen and ask for their sum.

        A client is left out if one of the operators has not admitted it, if its signature or its
        ciphertext is not one, or if its seed or its key is that of another client.

        Args:
            frozen: The relay's list.

        Returns:
            The clients whose sum the collector asks for; asked again, the same bytes.

        Raises:
            AbandonedError: Too few clients are left; the attempt is closed for ever.
            WireError: The list is malformed, or another one was taken.
        """
        found = self._current(SUM)
        if found.taken:
            return self._again(found, frozen, ACCEPTED)
        ann, listed = found.announcement.ann, Frozen.read(frozen)
        self._check_ann(ann, listed.ann)
        seeds = self._seeds(found, listed)
        if not self._least(found) <= len(seeds) <= found.announcement.attempt.most_clients:
            self.abandon()
            raise AbandonedError(
                f"a sum needs {self._least(found)} to {found.announcement.attempt.most_clients} "
                f"clients, got {len(seeds)}; the attempt is abandoned, so start a new one"
            )
        unsigned = Accepted(
            ann=ann,
            frozen=two_server_messages.frozen_digest(ann, frozen),
            names=tuple(seeds),
            signature=b"",
        )
        signature = self._key.sign(SUM, "accepted", *unsigned.statement)
        message = replace(unsigned, signature=signature).to_bytes()
        self._journal.advance(found.announcement.place, ANNOUNCED, ACCEPTED, message)
        found.taken, found.seeds = frozen, seeds
        return message

    def _seeds(self, found: OpenAttempt, listed: Frozen) -> dict[str, bytes]:
        """Return the seed of each client that is accepted, in the order of their names."""
        opened = {each: self._seed(found, each) for each in listed.entries}
        kept = {each: seed for each, seed in opened.items() if seed is not None}
        # Two clients that share something are both left out: honest clients share nothing. Of equal
        # ciphertexts one opens at most, because the client's name is part of it. Seeds and keys are
        # counted apart: a seed that repeats another client's public key leaves no client out.
        seeds, keys = Counter(kept.values()), Counter(each.admission.key for each in kept)
        return {
            each.admission.name: seed
            for each, seed in kept.items()
            if seeds[seed] == keys[each.admission.key] == 1
        }

    def _seed(self, found: OpenAttempt, entry: Sealed) -> bytes | None:
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
            AbandonedError: A sum is out of range; the attempt is closed for ever.
            WireError: The message is not the relay's for these clients.
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
                raise AbandonedError(
                    f"a sum is above {largest}, so relay or clients lied; start a new attempt"
                )
            if check is not None:
                check(sums, len(found.seeds))
        except BaseException:
            self.abandon()
            raise
        self._release(found, b"".join(_as_words(total) for total in sums))
        return sums

    def _unmasked(self, found: OpenAttempt, message: Summed) -> list[UnsignedCodes]:
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
        root = replace(unsigned, signature=signature)
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
            AbandonedError: Too few clients confirmed; the key is deleted.
            WireError: The batch is malformed.
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

    def _check_confirmations(self, found: OpenAttempt, root: Root, content: bytes) -> None:
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
            raise AbandonedError(
                f"at least {least} clients must confirm, got {len(keys)}; the key was deleted and "
                "nothing was opened, so start a new attempt"
            )


def _as_words(total: UnsignedCodes) -> bytes:
    return total.astype(np.dtype("<u4")).tobytes()
