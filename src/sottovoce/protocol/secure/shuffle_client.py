"""A client of the shuffler: one message to the relay, and one confirmation.

The relay learns who sends but cannot open a message; the collector opens messages but learns no
sender. Before it opens any, clients confirm that their own message is in the list that it received,
so a relay cannot mix the message of one client with messages that it made itself.
"""

from collections.abc import Callable

from sottovoce.core.errors import ParameterError, PolicyError, WireError
from sottovoce.ledger.journal import Journal
from sottovoce.protocol.secure import hpke, shuffle_messages
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.encoding import DIGEST_BYTES, Protocol
from sottovoce.protocol.secure.merkle import Tree, leaf_digest, top_of
from sottovoce.protocol.secure.operators import Admission, Operators
from sottovoce.protocol.secure.reporting_client import CONFIRMED, REPORTED, ReportingClient
from sottovoce.protocol.secure.roster import TrustKey, check_signature
from sottovoce.protocol.secure.shuffle_messages import Confirmation, Path, Root, ShuffleReport

SHUFFLER = Protocol.SHUFFLER


class ShuffleClient(ReportingClient[bytes]):
    """A client of the shuffler; `draw` returns a payload of exactly the announced size.

    Args:
        name: Its name.
        key: Its signing key.
        admission: The certificate by which both operators admit it.
        operators: The pinned keys of both operators.
        journal: What it has done; it lies in the ledger's file.
        honest: The least number of honest clients, itself included, at which it takes part.
        colluders: How many clients may collude with an operator.
        most_attempts: How many attempts of a run it takes part in at most; None for any number.
        trusts_relay: Whether it also takes part in shuffles that are not confirmed, where the relay
            is trusted to forward all and add nothing.
    """

    protocol = SHUFFLER

    def __init__(
        self,
        name: str,
        key: TrustKey,
        admission: Admission,
        operators: Operators,
        journal: Journal,
        honest: int,
        colluders: int,
        *,
        most_attempts: int | None = None,
        trusts_relay: bool = False,
    ) -> None:
        super().__init__(
            name,
            key,
            admission,
            operators,
            journal,
            honest,
            colluders,
            most_attempts=most_attempts,
        )
        self._trusts_relay = trusts_relay

    def _check_policy(self, announcement: Announcement, now: int) -> None:
        super()._check_policy(announcement, now)
        if not announcement.is_confirmed and not self._trusts_relay:
            raise PolicyError(
                "this shuffle is not confirmed: the relay is trusted to forward all and add "
                "nothing; ask for confirmations, or set trusts_relay"
            )

    def _encode(self, announcement: Announcement, drawn: bytes) -> bytes:
        if len(drawn) != announcement.payload_bytes:
            raise ParameterError(
                f"a payload must have {announcement.payload_bytes} bytes; give all the same size"
            )
        ann = announcement.ann
        ciphertext = hpke.seal(announcement.hpke_key, drawn, shuffle_messages.payload_info(ann))
        statement = shuffle_messages.report_statement(ann, ciphertext)
        return ShuffleReport(
            name=self.name,
            signature=self._key.sign(SHUFFLER, "for the relay", *statement),
            ciphertext=ciphertext,
        ).to_bytes()

    def confirm(self, root: bytes, path: bytes, now: int) -> bytes:
        """Return the statement that the client's own message is in the collector's list.

        It is written before it leaves, once: asked again for the same root, the client returns the
        same bytes; another root is refused. After a restart call `report` first, which finds the
        stored report of the announcement or raises WireError if the client confirmed before; both
        are fine.

        Args:
            root: The root that the collector signed.
            path: The path of the client's message, from the relay.
            now: The time in seconds.

        Returns:
            The confirmation for the relay.

        Raises:
            WireError: The root is not one of the collector for this attempt, the message is not
                under it, another root was confirmed, or it is too late.
        """
        return self._confirm(root, lambda _root, _leaf: Path.read(path), now)

    def confirm_among(self, announcement: bytes, content: bytes, now: int) -> bytes:
        """Return the same statement, given the digests of the whole list in place of a path.

        Nothing else is needed in memory, so a client that was restarted confirms as well.

        The digests must be those of the whole list that the collector signed. Otherwise a client
        that accepts or refuses digests of someone's choice would tell which message is its own. If
        its message is not in the whole list, the attempt is over for it, so that it tells so once.

        Args:
            announcement: The attempt, as the relay handed it out.
            content: Root and digests, for `split_leaves`.
            now: The time in seconds.

        Raises:
            WireError: As for `confirm`, the digests are others, or the client has not reported.
        """
        found = self.open(announcement)
        if self._journal.state(found.place) is None:
            raise WireError(f"{found.place} was not answered by this client")
        self._current = found
        root, leaves = shuffle_messages.split_leaves(content)

        def path_of(signed: Root, leaf: bytes) -> Path:
            tree = Tree.of_leaves(leaves)
            # Of the same count, too: a node of the tree can stand in the place of two digests.
            if (tree.count, tree.top) != (signed.count, signed.top):
                raise WireError("expected the digests of the whole list under the root, got others")
            try:
                index = tree.index(leaf)
            except WireError:
                self._journal.close(found.place)
                raise
            return Path(index=index, siblings=tree.path(index))

        return self._confirm(root, path_of, now)

    def _confirm(self, root: bytes, path_of: Callable[[Root, bytes], Path], now: int) -> bytes:
        current = self._current
        if current is None:
            raise WireError("expected a report before a confirmation; report first")
        found = self._checked_root(current, root)
        record = self._journal.record(current.place) or b""
        if self._journal.state(current.place) == CONFIRMED:
            if record[:DIGEST_BYTES] != found.digest:
                raise WireError("expected the root that was confirmed, got another one")
            return record[DIGEST_BYTES:]
        if now >= current.confirm_by:
            raise WireError(f"{current.place} takes no confirmations any more")
        report = ShuffleReport.read(self._stored(current))
        leaf = leaf_digest(report.ciphertext)
        way = path_of(found, leaf)
        top = top_of(leaf, way.index, found.count, way.siblings)
        if top != found.top:
            raise WireError("expected the client's own message under the root, but it is not there")
        statement = shuffle_messages.confirmation_statement(found, self.name)
        confirmation = Confirmation(
            name=self.name, signature=self._key.sign(SHUFFLER, "confirmation", *statement)
        ).to_bytes()
        self._journal.advance(current.place, REPORTED, CONFIRMED, found.digest + confirmation)
        return confirmation

    def _checked_root(self, current: Announcement, root: bytes) -> Root:
        found = Root.read(root)
        if found.ann != current.ann:
            raise WireError("expected a root of this attempt, got one of another")
        check_signature(
            self.operators.collector, found.signature, SHUFFLER, "root", *found.statement
        )
        asked = current.attempt
        if not asked.threshold <= found.count <= asked.most_clients:
            raise WireError(
                f"expected a list of {asked.threshold} to {asked.most_clients} messages, got one "
                f"of {found.count}"
            )
        return found
