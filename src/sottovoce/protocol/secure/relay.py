"""The relay: it knows who sends, and can read nothing that they send.

In a sum it adds up masked vectors; in a shuffle it forwards ciphertexts without their senders. Each
step is written before it is answered, and answered once: asked again it returns the same bytes, or
refuses. It gives nothing away before an attempt closes.
"""

from collections.abc import Sequence
from dataclasses import replace

from sottovoce.core.errors import AbandonedError, WireError
from sottovoce.protocol.secure import shuffle_messages, two_server_messages
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.masks import MaskedSum
from sottovoce.protocol.secure.merkle import Tree
from sottovoce.protocol.secure.relay_intake import ANNOUNCED, FORGET_ARRIVALS, RECEIPT, RelayIntake
from sottovoce.protocol.secure.roster import check_signature
from sottovoce.protocol.secure.shuffle_messages import (
    Confirmation,
    Confirmations,
    Path,
    Root,
    ShuffledList,
)
from sottovoce.protocol.secure.two_server_messages import Accepted, Frozen, Sealed, Summed

FROZEN, SUMMED = "frozen", "summed"
LISTED, ROOTED, CONFIRMED = "listed", "rooted", "confirmed"
SUM, SHUFFLER = Protocol.TWO_SERVER_SUM, Protocol.SHUFFLER


class Relay(RelayIntake):
    """The relay: what it takes from clients, and what it gives to the collector.

    A new object on the same file continues where the last one stopped.
    """

    _tree: tuple[bytes, Tree] | None = None
    _rooted: tuple[bytes, bytes] | None = None
    _leaves: tuple[bytes, bytes] | None = None

    def frozen(self, now: int) -> bytes:
        """Return the clients of a sum; the list is fixed when the attempt closes.

        Raises:
            AbandonedError: Too few clients reported; the attempt is closed for ever.
            WireError: It has not closed yet, or it is over.
        """
        current = self._of(SUM)
        if self._state_of(current) == ANNOUNCED:
            self._check_closed(current, now)
            entries = tuple(
                Sealed(admission=self.admission(name), ciphertext=ciphertext, signature=signature)
                for name, ciphertext, signature in self._state.all(
                    "SELECT name, ciphertext, signature FROM arrivals ORDER BY name"
                )
            )
            message = Frozen(ann=current.ann, entries=entries).to_bytes()
            self._journal.advance(current.place, ANNOUNCED, FROZEN, message)
        return self._answer(current, FROZEN)

    def accepted(self, accepted: bytes) -> bytes:
        """Return the sums of the clients that the collector accepted, and delete all vectors.

        Raises:
            WireError: The message is not the collector's, names clients that are not in the frozen
                list or too few, or the sums of other clients were returned before.
        """
        current, found = self._of(SUM), Accepted.read(accepted)
        check_signature(
            self.operators.collector, found.signature, SUM, "accepted", *found.statement
        )
        if found.ann != current.ann:
            raise WireError("expected clients of this attempt, got those of another")
        chosen = two_server_messages.accepted_digest(found.ann, found.names)
        if self._state_of(current) == SUMMED:
            answer = self._answer(current, SUMMED)
            if Summed.read(answer).accepted != chosen:
                raise WireError(f"{current.place} is closed: another sum was returned")
            return answer
        self._check_accepted(current, found)
        return self._sum(current, found.names, chosen)

    def _check_accepted(self, current: Announcement, found: Accepted) -> None:
        frozen = self._answer(current, FROZEN)
        if found.frozen != two_server_messages.frozen_digest(current.ann, frozen):
            raise WireError("expected clients of the frozen list, got those of another list")
        if not set(found.names) <= set(Frozen.read(frozen).names):
            raise WireError("expected clients of the frozen list only, got others")
        least = self._least(current)
        if len(found.names) < least:
            raise WireError(f"expected at least {least} clients, got {len(found.names)}")

    def _sum(self, current: Announcement, names: tuple[str, ...], chosen: bytes) -> bytes:
        asked, size = current.attempt, two_server_messages.vector_bytes(current)
        totals = [MaskedSum(asked.dimension, asked.bits) for _ in range(asked.uplinks)]
        for name in names:
            ((vectors,),) = self._state.all("SELECT vectors FROM vectors WHERE name = ?", (name,))
            for uplink, total in enumerate(totals):
                total.add_packed(vectors[uplink * size : (uplink + 1) * size])
        sums = b"".join(total.packed() for total in totals)
        message = Summed(ann=current.ann, accepted=chosen, sums=sums, signature=b"")
        signature = self._key.sign(SUM, "summed", *message.statement)
        message = replace(message, signature=signature)
        with self._state.transaction():
            self._journal.advance(current.place, FROZEN, SUMMED, message.to_bytes())
            self._forget_arrivals()
        self._state.overwrite_deleted()
        return self._answer(current, SUMMED)

    def shuffled_list(self, now: int) -> bytes:
        """Return all ciphertexts of a shuffle in the order of their bytes, without senders.

        Who sent which is deleted in the commit that writes the list.

        Raises:
            AbandonedError: Too few clients reported; the attempt is closed for ever.
            WireError: It has not closed yet, or it is over.
        """
        current = self._of(SHUFFLER)
        state = self._state_of(current)
        if state in (LISTED, ROOTED, CONFIRMED):
            return self._list(current)
        if state == ANNOUNCED:
            self._check_closed(current, now)
            rows = self._state.all("SELECT ciphertext FROM arrivals ORDER BY ciphertext")
            ciphertexts = tuple(row[0] for row in rows)
            message = ShuffledList(ann=current.ann, ciphertexts=ciphertexts, signature=b"")
            signature = self._key.sign(SHUFFLER, "list", *message.statement)
            content = replace(message, signature=signature).to_bytes()
            with self._state.transaction():
                self._journal.advance(current.place, ANNOUNCED, LISTED, content)
                self._forget_arrivals()
            self._state.overwrite_deleted()
        return self._answer(current, LISTED)

    def root(self, root: bytes) -> None:
        """Take the collector's root, which must be that of the list that the relay wrote.

        Raises:
            WireError: It is not, or it is not the collector's.
        """
        current, found = self._of(SHUFFLER), Root.read(root)
        check_signature(
            self.operators.collector, found.signature, SHUFFLER, "root", *found.statement
        )
        tree = self._tree_of(current)
        if (found.ann, found.count, found.top) != (current.ann, tree.count, tree.top):
            raise WireError("expected the root of the list that the relay wrote, got another one")
        if self._state_of(current) == LISTED:
            content = self._answer(current, LISTED)
            self._journal.advance(current.place, LISTED, ROOTED, root + content)

    def root_for(self, leaf: bytes) -> bytes:
        """Return the collector's root and the path of one leaf.

        A client asks by the digest of its own ciphertext (`merkle.leaf_digest`), never by its name:
        the answer to a name would tell anyone who asks which message is whose.

        Args:
            leaf: Digest of a ciphertext.

        Returns:
            Root and path, for `split_proof`.

        Raises:
            WireError: There is no root yet, or the digest is not in the list.
        """
        current, tree = self._rooted_tree()
        index = tree.index(leaf)
        path = Path(index=index, siblings=tree.path(index)).to_bytes()
        return shuffle_messages.join_proof(self._root_of(current), path)

    def leaves(self) -> bytes:
        """Return the collector's root and the digests of the whole list.

        A program that asks on behalf of a client does not tell which message is the client's.

        Returns:
            Root and digests, for `split_leaves`.

        Raises:
            WireError: There is no root yet, or the list is too long.
        """
        current, tree = self._rooted_tree()
        # Made once: many who read it slowly would else hold as many copies in memory.
        if self._leaves is None or self._leaves[0] != current.ann:
            joined = shuffle_messages.join_leaves(self._root_of(current), tree.leaves)
            self._leaves = current.ann, joined
        return self._leaves[1]

    def _rooted_tree(self) -> tuple[Announcement, Tree]:
        current = self._of(SHUFFLER)
        if self._state_of(current) != ROOTED:
            raise WireError("there is no root yet, or confirmations are over")
        return current, self._tree_of(current)

    def confirmation(self, confirmation: bytes) -> bytes:
        """Take the confirmation of one client and return a receipt.

        Raises:
            WireError: It is not signed by a registered client for the root, or it is too late.
        """
        (found,) = self.take_confirmations([confirmation])
        if isinstance(found, WireError):
            raise found
        return found

    def take_confirmations(self, confirmations: Sequence[bytes]) -> list[bytes | WireError]:
        """Take several confirmations in one commit.

        The first of a client is kept unchecked, because the collector checks each of them. Another
        one in the same name takes its place only if the client has signed it, so that no one can
        confirm in a client's place, or prevent it.

        Args:
            confirmations: What clients sent.

        Returns:
            A receipt for each confirmation, or why it was refused.
        """
        current = self._of(SHUFFLER)
        if self._state_of(current) != ROOTED:
            error = WireError("there is no root yet, or confirmations are over")
            return [error for _ in confirmations]
        root, answers = Root.read(self._root_of(current)), list[bytes | WireError]()
        with self._state.transaction():
            for content in confirmations:
                try:
                    self._take_confirmation(current, root, Confirmation.read(content))
                    answers.append(RECEIPT)
                except WireError as refused:
                    answers.append(refused)
        return answers

    def _take_confirmation(self, current: Announcement, root: Root, found: Confirmation) -> None:
        key = self._admitted(current, found.name).key
        known = self._state.all("SELECT signature FROM confirmations WHERE name = ?", (found.name,))
        if known == [(found.signature,)]:
            return
        if known:
            statement = shuffle_messages.confirmation_statement(root, found.name)
            check_signature(key, found.signature, SHUFFLER, "confirmation", *statement)
        self._state.execute(
            "REPLACE INTO confirmations VALUES (?, ?)", (found.name, found.signature)
        )

    def confirmations(self, now: int) -> bytes:
        """Return all confirmations at once, sorted by name, at the announced time or later.

        Raises:
            WireError: It is too early, or there is no root.
        """
        current = self._of(SHUFFLER)
        if self._state_of(current) == ROOTED:
            if now < current.confirm_by:
                raise WireError("confirmations are forwarded together, at the announced time")
            record = self._journal.record(current.place)
            self._journal.advance(current.place, ROOTED, CONFIRMED, record)
        self._answer(current, CONFIRMED)
        rows = self._state.all("SELECT name, signature FROM confirmations ORDER BY name")
        entries = [(self.admission(name), signature) for name, signature in rows]
        return Confirmations(ann=current.ann, entries=entries).to_bytes()

    def _of(self, protocol: Protocol) -> Announcement:
        if self._current is None or self._current.attempt.protocol is not protocol:
            raise WireError(f"expected an attempt of {protocol}, but none was announced")
        return self._current

    def _state_of(self, current: Announcement) -> str | None:
        return self._journal.state(current.place)

    def _answer(self, current: Announcement, state: str) -> bytes:
        """Return what is kept of an attempt in a state; WireError if it is in another one."""
        found = self._journal.record(current.place)
        if self._state_of(current) != state or found is None:
            raise WireError(f"{current.place} is closed, or this step is out of order")
        return found

    def _check_closed(self, current: Announcement, now: int) -> None:
        """Raise if an attempt is still open; close it for ever if too few clients reported."""
        if now < current.closes:
            raise WireError(f"{current.place} is still open; nothing is forwarded before it closes")
        least = self._least(current)
        if self._arrived < least:
            with self._state.transaction():
                self._journal.close_all()
                self._forget_arrivals()
            self._state.overwrite_deleted()
            raise AbandonedError(
                f"{current.place} needs at least {least} clients, got {self._arrived}; its reports "
                "were deleted, so start a new attempt"
            )

    def _least(self, current: Announcement) -> int:
        return max(current.attempt.threshold, self._minimum)

    def _forget_arrivals(self) -> None:
        for statement in FORGET_ARRIVALS:
            self._state.execute(statement)

    def _list(self, current: Announcement) -> bytes:
        """Return the list that the relay wrote."""
        record = self._journal.record(current.place) or b""
        is_rooted = self._state_of(current) in (ROOTED, CONFIRMED)
        return record[shuffle_messages.ROOT_BYTES :] if is_rooted else record

    def _root_of(self, current: Announcement) -> bytes:
        """Return the collector's root; it is read once."""
        if self._rooted is None or self._rooted[0] != current.ann:
            record = self._answer(current, ROOTED)
            self._rooted = current.ann, record[: shuffle_messages.ROOT_BYTES]
        return self._rooted[1]

    def _tree_of(self, current: Announcement) -> Tree:
        """Return the tree over the list; it is built once."""
        if self._tree is None or self._tree[0] != current.ann:
            if self._state_of(current) not in (LISTED, ROOTED, CONFIRMED):
                raise WireError("there is no list yet, or the attempt is closed")
            tree = Tree(ShuffledList.read(self._list(current)).ciphertexts)
            self._tree = current.ann, tree
        return self._tree[1]
