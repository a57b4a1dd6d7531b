"""A site of the secure sum by pairwise masks: it takes a message and returns the next one.

The secrets of an attempt live in this object only. What it has done is in the journal, so an object
that is lost is a site that dropped out: nothing of the attempt is ever done again.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from sottovoce.core.errors import LedgerError, PolicyError, WireError
from sottovoce.ledger.journal import CLOSED, Journal, Place
from sottovoce.mechanisms.packing import UnsignedCodes
from sottovoce.protocol.secure import pairwise_inputs as inputs
from sottovoce.protocol.secure import pairwise_keys as keys
from sottovoce.protocol.secure import pairwise_shares as shares
from sottovoce.protocol.secure.answers import AnswersOnce
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.pairwise_inputs import Boxed, Listed, check_within
from sottovoce.protocol.secure.pairwise_keys import PAIRWISE
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
from sottovoce.protocol.secure.pairwise_shares import OwnSecrets
from sottovoce.protocol.secure.roster import Roster, TrustKey, check_signature

BEGUN, CHARGED, SIGNED, ANSWERED = "begun", "charged", "signed", "answered"
LEAST_HONEST, LEAST_COLLUDERS = 2, 1
_T = TypeVar("_T")
Transaction = Callable[[], AbstractContextManager[None]]


class _Step(StrEnum):
    BEGIN = "open"
    SHARE = "list"
    CONTRIBUTE = "box"
    SIGN = "survivors"
    ANSWER = "quorum"


@dataclass(slots=True, kw_only=True)
class _Memory:
    """What is forgotten at the end of an attempt."""

    secrets: OwnSecrets | None = None
    own: KeysMessage | None = None
    listed: Listed | None = None
    boxed: Boxed | None = None
    survivors: tuple[str, ...] | None = None


class PairwiseSite:
    """One site in one attempt. Each step is answered once; later ones get the stored bytes.

    Args:
        name: The site's name in the roster.
        roster: The sites that it has pinned.
        key: Its own key.
        journal: The journal in its ledger.
        attempt: What the server has announced.
        honest: How many honest sites, this one included, must be in a sum, by the site's policy.
        colluders: How many other sites may work with the server, by the site's policy.
        declared_rows: How many persons the site declares, where a person is protected.

    Raises:
        PolicyError: The policy promises too little, or the site is not in its own roster.
    """

    def __init__(
        self,
        *,
        name: str,
        roster: Roster,
        key: TrustKey,
        journal: Journal,
        attempt: Attempt,
        honest: int,
        colluders: int,
        declared_rows: int = 0,
    ) -> None:
        if honest < LEAST_HONEST or colluders < LEAST_COLLUDERS:
            raise PolicyError(
                f"a secure sum needs honest >= {LEAST_HONEST} and colluders >= {LEAST_COLLUDERS}, "
                f"got {honest} and {colluders}; published models reach every site, so one curious "
                "site must be assumed"
            )
        if roster.keys.get(name) != key.public:
            raise PolicyError(f"the roster has another key for '{name}', or none; replace it")
        self._name, self._roster, self._key, self._journal = name, roster, key, journal
        self._attempt, self._honest, self._colluders = attempt, honest, colluders
        self._rows, self._plan = declared_rows, attempt.digest()
        run, number, count = attempt.place
        self._place = Place(federation=roster.federation, run=run, round=number, attempt=count)
        self._answers = AnswersOnce(tuple(_Step))
        self._charged_rows: int | None = None
        self._memory = _Memory()

    @property
    def charged_clients(self) -> int:
        """The number of honest clients, this one included, that the charge may count on."""
        return self._attempt.threshold - self._colluders

    @property
    def charged_rows(self) -> int:
        """The number of honest persons that the charge may count on, known after the list.

        The own rows and the smallest declarations of as many other sites of the list as must be
        honest: the server chooses the survivors after the charge.

        Raises:
            WireError: The list has not come yet.
        """
        if self._charged_rows is None:
            raise WireError("declared rows are known after the list of keys; wait for it")
        return self._charged_rows

    def begin(self, commit: Transaction = nullcontext) -> bytes:
        """Enter the attempt into the journal, then draw its secrets.

        Args:
            commit: Opens a transaction of the journal's file, for more writes in the same commit.

        Returns:
            The message `KeysMessage`.

        Raises:
            PolicyError: The threshold is below what the site's policy asks for.
            WireError: The attempt is not above all earlier ones, or of another roster.
        """
        return self._answers.reply(_Step.BEGIN, b"", lambda: self._begin(commit))

    def _begin(self, commit: Transaction) -> bytes:
        keys.check_attempt(self._attempt, self._roster)
        least = self._honest + self._colluders
        if self._attempt.threshold < least:
            raise PolicyError(
                f"the threshold of {self._attempt.threshold} sites is below the {least} that this "
                f"site's policy asks for ({self._honest} honest and {self._colluders} that may "
                "collude); raise the threshold"
            )
        with commit():
            self._journal.begin(self._place, BEGUN)
        if self._journal.in_transaction:
            raise LedgerError("an attempt must be on disk before keys are drawn; commit first")
        self._memory.secrets = OwnSecrets.draw()
        own = self._memory.secrets.announce(self._name, self._plan, self._rows, self._key)
        self._memory.own = own
        return own.to_bytes()

    def share(self, list_message: bytes) -> bytes:
        """Check the list of keys and encrypt a share of both secrets for every peer.

        Args:
            list_message: The message `KeyList`.

        Returns:
            The message `Shares`.

        Raises:
            WireError: A signature, key or number of the list is wrong.
        """
        return self._answers.reply(_Step.SHARE, list_message, lambda: self._share(list_message))

    def _share(self, list_message: bytes) -> bytes:
        listed = KeyList.read(list_message)
        keys.check_number(self._attempt, len(listed.entries), self._colluders)
        entries = {entry.name: entry for entry in listed.entries}
        if entries.get(self._name) != self._memory.own:
            raise WireError("the list must contain this site's own keys unchanged")
        for entry in listed.entries:
            keys.check_keys(entry, self._roster, self._plan)
        keys.check_distinct(listed.entries)
        secrets = _known(self._memory.secrets)
        exchanges = secrets.exchange_all(self._name, self._plan, entries)
        transcript = keys.list_transcript(self._plan, self._attempt.threshold, listed)
        dealt = secrets.deal(self._attempt.threshold, listed.names)
        sealed = shares.seal_all(exchanges.channels, transcript, entries, self._name, dealt)
        declared = {name: entry.rows for name, entry in entries.items()}
        self._charged_rows = keys.honest_rows(declared, self._name, self.charged_clients)
        self._memory.listed = Listed(
            entries=entries,
            digest=transcript,
            exchanges=exchanges,
            own_shares=dealt[self._name],
        )
        return Shares(sealed=sealed).to_bytes()

    def check_box(self, box: bytes) -> bytes | None:
        """Check a box before anything is computed for it; nothing is answered or charged.

        Args:
            box: The message `BoxMessage`.

        Returns:
            The message `Input` if this box was answered before, else None.

        Raises:
            WireError: The box is wrong or comes too early, or another one was answered.
        """
        stored = self._answers.stored(_Step.CONTRIBUTE, box)
        if stored is None:
            self._open_box(box)
        return stored

    def _open_box(self, box: bytes) -> Boxed:
        listed = _known(self._memory.listed)
        return inputs.open_box(BoxMessage.read(box), listed, self._name, self._attempt.threshold)

    def contribute(
        self,
        box: bytes,
        charge: Callable[[], None],
        draw: Callable[[], Sequence[UnsignedCodes]],
        transaction: Transaction,
    ) -> bytes:
        """Charge, then draw the codes and mask them.

        Args:
            box: The message `BoxMessage`.
            charge: Charges the ledger for `charged_clients`; raises to refuse.
            draw: Returns the codes of each uplink, modulo 2^bits; called once, after the charge.
            transaction: Opens a transaction of the file in which both ledger and journal lie.

        Returns:
            The message `Input`.

        Raises:
            WireError: The box is wrong; the attempt is still open.
            Exception: Whatever `charge` or `draw` raise; the attempt is then closed.
        """

        def contribute() -> bytes:
            boxed = self._open_box(box)
            try:
                with transaction():
                    if not self._journal.in_transaction:
                        raise LedgerError(
                            "the charge and the step of the journal need one transaction; open "
                            "one of the ledger in which the journal lies"
                        )
                    charge()
                    self._journal.advance(self._place, BEGUN, CHARGED)
                self._check_committed()
                reply = self._masked(boxed, draw())
            except BaseException:
                self.close()
                raise
            self._memory.boxed = boxed
            self._memory.secrets = None
            return reply

        return self._answers.reply(_Step.CONTRIBUTE, box, contribute)

    def _check_committed(self) -> None:
        if self._journal.in_transaction:
            raise LedgerError("a charge must be on disk before codes are drawn; commit first")

    def _masked(self, boxed: Boxed, codes: Sequence[UnsignedCodes]) -> bytes:
        listed, seed = _known(self._memory.listed), _known(self._memory.secrets).seed
        vectors = inputs.masked_vectors(self._attempt, self._name, listed, boxed, seed, codes)
        statement = boxed.digest, self._name, keys.vectors_digest(vectors)
        signature = self._key.sign(PAIRWISE, "input", *statement)
        return Input(vectors=vectors, signature=signature).to_bytes()

    def sign(self, survivors: bytes) -> bytes:
        """Sign whose vectors are in the sum, once.

        Args:
            survivors: The message `Survivors`.

        Returns:
            The message `SurvivorsSignature`.

        Raises:
            WireError: The survivors are not enough sites of the box, or this site is none of them.
        """
        return self._answers.reply(_Step.SIGN, survivors, lambda: self._sign(survivors))

    def _sign(self, survivors: bytes) -> bytes:
        found, boxed = Survivors.read(survivors).names, _known(self._memory.boxed)
        check_within(found, boxed.members, self._attempt.threshold, what="the survivors")
        if self._name not in found:
            raise WireError("this site's vectors are sent, so it must be among the survivors")
        record = keys.survivors_digest(boxed.digest, found)
        self._journal.advance(self._place, CHARGED, SIGNED, record)
        self._memory.survivors = found
        signature = self._key.sign(PAIRWISE, "survivors", boxed.digest, found)
        return SurvivorsSignature(signature=signature).to_bytes()

    def answer(self, quorum: bytes) -> bytes:
        """Return shares of survivors' seeds and of the others' mask keys; forget all secrets.

        Args:
            quorum: The message `Quorum`.

        Returns:
            The message `AnswerMessage`.

        Raises:
            WireError: Not enough survivors have signed the same survivors.
        """
        return self._answers.reply(_Step.ANSWER, quorum, lambda: self._answer(quorum))

    def _answer(self, quorum: bytes) -> bytes:
        signatures = Quorum.read(quorum).signatures
        boxed, survivors = _known(self._memory.boxed), _known(self._memory.survivors)
        signers = [name for name, _ in signatures]
        check_within(signers, survivors, self._attempt.threshold, what="the signers")
        for name, signature in signatures:
            public = self._roster.keys[name]
            check_signature(public, signature, PAIRWISE, "survivors", boxed.digest, survivors)
        self._journal.advance(self._place, SIGNED, ANSWERED)
        dropped = [name for name in boxed.members if name not in survivors]
        reply = AnswerMessage(
            seed_shares=tuple(boxed.held[name].seed for name in survivors),
            key_shares=tuple(boxed.held[name].mask_secret for name in dropped),
        ).to_bytes()
        self._memory = _Memory()
        self._journal.advance(self._place, ANSWERED, CLOSED)
        return reply

    def close(self) -> None:
        """Give the attempt up: forget all secrets and stored messages, and close it for ever."""
        self._memory = _Memory()
        self._answers.close()
        self._journal.close(self._place)


def _known(found: _T | None) -> _T:
    if found is None:
        raise AssertionError("a step of the protocol ran without the steps before it")
    return found
