"""The server of the secure sum by pairwise masks. It learns the sum and is trusted with nothing.

It collects one message of each site and step, and makes the next message when the caller decides
not to wait any longer. A message that is wrong is not taken: unless the right one comes in time,
its site counts as dropped out. The sum does not depend on the order in which messages come.
"""

import hashlib
from collections.abc import Callable, Container
from enum import IntEnum

from sottovoce.core.errors import AbandonedError, WireError
from sottovoce.mechanisms.packing import unpack
from sottovoce.protocol.secure import pairwise_keys as keys
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.encoding import Field, sorted_names
from sottovoce.protocol.secure.fields import check_same_names
from sottovoce.protocol.secure.masks import MaskedSum
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
from sottovoce.protocol.secure.pairwise_result import (
    SummedRound,
    Sums,
    check_one_bit,
    check_range,
    missing_secrets,
)
from sottovoce.protocol.secure.pairwise_unmask import SecretReconstruction, remove_masks
from sottovoce.protocol.secure.roster import Roster, check_signature


class _Phase(IntEnum):
    KEYS = 1
    SHARES = 2
    INPUTS = 3
    SIGNATURES = 4
    ANSWERS = 5


class PairwiseServer:
    """The server in one attempt.

    Args:
        roster: The sites and their keys.
        attempt: What it announces.
        colluders: The largest number of colluding sites that a site's policy assumes.

    Raises:
        WireError: The attempt is one of another protocol or roster.
    """

    def __init__(self, *, roster: Roster, attempt: Attempt, colluders: int) -> None:
        keys.check_attempt(attempt, roster)
        self._roster, self._attempt, self._colluders = roster, attempt, colluders
        self._plan = attempt.digest()
        self._phase = _Phase.KEYS
        self._seen: dict[tuple[_Phase, str], bytes] = {}
        self._keys: dict[str, KeysMessage] = {}
        self._sealed: dict[str, dict[str, bytes]] = {}
        self._members: tuple[str, ...] = ()
        self._contributors: set[str] = set()
        self._signatures: dict[str, bytes] = {}
        self._sums = [MaskedSum(attempt.dimension, attempt.bits) for _ in range(attempt.uplinks)]
        self._list_digest = self._box_digest = b""
        self._survivors: tuple[str, ...] = ()
        self._reconstruction: SecretReconstruction | None = None
        self._is_unmasked = False

    def receive_keys(self, name: str, message: bytes) -> None:
        """Take the message `KeysMessage` of a site; WireError names the site if it is wrong."""
        self._take(_Phase.KEYS, name, message, self._take_keys, self._roster.keys)

    def _take_keys(self, name: str, message: bytes) -> None:
        found = KeysMessage.read(message)
        if found.name != name:
            raise WireError("expected the site's own name in its keys, got another one")
        keys.check_keys(found, self._roster, self._plan)
        keys.check_distinct((*self._keys.values(), found))
        # All sites would refuse a list with such a key, and could not say why.
        keys.check_order(found)
        self._keys[name] = found

    def list_message(self) -> bytes:
        """Return the message `KeyList` for all sites that have sent keys; no more are taken.

        Raises:
            AbandonedError: They are too few, or too many for the threshold.
        """
        if self._phase is _Phase.KEYS:
            try:
                keys.check_number(self._attempt, len(self._keys), self._colluders)
            except WireError as error:
                raise AbandonedError(f"the attempt cannot go on: {error}") from None
            self._keys = {name: self._keys[name] for name in sorted_names(self._keys)}
            listed = KeyList(entries=tuple(self._keys.values()))
            self._list_digest = keys.list_transcript(self._plan, self._attempt.threshold, listed)
            self._phase = _Phase.SHARES
        return KeyList(entries=tuple(self._keys.values())).to_bytes()

    @property
    def listed(self) -> tuple[str, ...]:
        """The sites that have sent keys, sorted."""
        return tuple(self._keys)

    @property
    def declared_rows(self) -> dict[str, int]:
        """How many persons each site declares that has sent keys."""
        return {name: keys.rows for name, keys in self._keys.items()}

    def receive_shares(self, name: str, message: bytes) -> None:
        """Take the message `Shares` of a site; WireError names the site if it is wrong."""
        self._take(_Phase.SHARES, name, message, self._take_shares, self._keys)

    def _take_shares(self, name: str, message: bytes) -> None:
        sealed = dict(Shares.read(message).sealed)
        peers = [peer for peer in self._keys if peer != name]
        check_same_names(tuple(sealed), peers, what="encrypted shares")
        self._sealed[name] = sealed

    def members(self) -> tuple[str, ...]:
        """Return the sites that have sent shares, sorted; no more shares are taken.

        Raises:
            AbandonedError: They are fewer than the threshold.
        """
        if self._phase is _Phase.SHARES:
            self._members = self._enough(self._sealed, "shares")
            self._box_digest = keys.box_transcript(self._list_digest, self._members)
            self._phase = _Phase.INPUTS
        return self._members

    def box(self, name: str) -> bytes:
        """Return the message `BoxMessage` for a site that has sent shares; no more are taken.

        Raises:
            AbandonedError: Fewer sites than the threshold have sent shares.
        """
        self.members()
        if name not in self._members:
            raise WireError(f"the site '{name}' has sent no shares, so there is no box for it")
        peers = [peer for peer in self._members if peer != name]
        sealed = tuple((peer, self._sealed[peer][name]) for peer in peers)
        return BoxMessage(members=self._members, sealed=sealed).to_bytes()

    def receive_input(self, name: str, message: bytes) -> None:
        """Add the message `Input` of a site to the sum; WireError names the site if it is wrong."""
        self._take(_Phase.INPUTS, name, message, self._take_input, self._members)

    def _take_input(self, name: str, message: bytes) -> None:
        found = Input.read(message)
        statement = self._box_digest, name, keys.vectors_digest(found.vectors)
        self._check_signature(name, found.signature, "input", *statement)
        if len(found.vectors) != len(self._sums):
            raise WireError(f"expected {len(self._sums)} vectors, got {len(found.vectors)}")
        # All vectors are checked before the first is added, so that no site is there by half.
        size = self._attempt.dimension, self._attempt.bits
        unpacked = [unpack(vector, *size) for vector in found.vectors]
        for total, codes in zip(self._sums, unpacked, strict=True):
            total.add_codes(codes)
        self._contributors.add(name)

    def survivors(self) -> bytes:
        """Return the message `Survivors` for all sites whose vectors came; no more are taken.

        Raises:
            AbandonedError: They are fewer than the threshold.
        """
        if self._phase < _Phase.INPUTS:
            raise WireError("survivors are chosen after the boxes; make these first")
        if self._phase is _Phase.INPUTS:
            self._survivors = self._enough(self._contributors, "vectors")
            self._phase = _Phase.SIGNATURES
        return Survivors(names=self._survivors).to_bytes()

    @property
    def survivor_names(self) -> tuple[str, ...]:
        """The sites whose vectors are in the sum, once that is decided."""
        return self._survivors

    def receive_signature(self, name: str, message: bytes) -> None:
        """Take the message `SurvivorsSignature`; WireError names the site if it is wrong."""
        self._take(_Phase.SIGNATURES, name, message, self._take_signature, self._survivors)

    def _take_signature(self, name: str, message: bytes) -> None:
        signature = SurvivorsSignature.read(message).signature
        self._check_signature(name, signature, "survivors", self._box_digest, self._survivors)
        self._signatures[name] = signature

    def quorum(self) -> bytes:
        """Return the message `Quorum` for the signers; no more signatures are taken.

        Raises:
            AbandonedError: Fewer survivors than the threshold have signed.
        """
        signers = self._enough(self._signatures, "signatures")[: self._attempt.threshold]
        if self._phase is _Phase.SIGNATURES:
            self._reconstruction = SecretReconstruction(
                plan=self._plan,
                entries=self._keys,
                survivors=self._survivors,
                dropped=self._dropped,
                threshold=self._attempt.threshold,
            )
            self._phase = _Phase.ANSWERS
        return Quorum(
            signatures=tuple((name, self._signatures[name]) for name in signers)
        ).to_bytes()

    def receive_answer(self, name: str, message: bytes) -> bool:
        """Take the message `AnswerMessage` of a site; WireError names the site if it is wrong.

        Returns:
            Whether all secrets are known, so that no more answers are needed.
        """
        self._take(_Phase.ANSWERS, name, message, self._take_answer, self._survivors)
        return self._answers().complete()

    def _take_answer(self, name: str, message: bytes) -> None:
        self._answers().add(name, AnswerMessage.read(message))

    @property
    def disputes(self) -> tuple[tuple[str, str], ...]:
        """Pairs of a site that dealt a share and one that answered it, of which one has lied."""
        found = self._reconstruction
        return () if found is None else tuple(sorted(found.disputes))

    def result(
        self,
        *,
        centered: bool = False,
        logit_norm: float | None = None,
        logit_bound: float | None = None,
    ) -> SummedRound:
        """Remove the masks, check the sums and return them.

        Args:
            centered: Whether codes have a sign; their range is then symmetric about 0.
            logit_norm: For codes of one bit, the largest L2 norm of a client's logits; sums of more
                energy than honest ones have are then refused.
            logit_bound: For codes of one bit, the largest absolute logit; sums are then clamped.

        Raises:
            AbandonedError: A secret is missing, or the sums are not those of honest sites.
        """
        if not self._answers().complete():
            raise missing_secrets(self._answers().missing, self.disputes)
        if not self._is_unmasked:
            self._is_unmasked = True
            remove_masks(
                self._sums,
                self._answers(),
                entries=self._keys,
                survivors=self._survivors,
                dropped=self._dropped,
                box_digest=self._box_digest,
            )
        levels, clients = self._attempt.levels, len(self._survivors)
        largest = clients * (levels // 2 if centered else levels - 1)
        vectors: list[Sums] = []
        for total in self._sums:
            sums = total.centered() if centered else total.values()
            check_range(sums, least=-largest if centered else 0, largest=largest)
            checked = check_one_bit(
                sums, levels=levels, clients=clients, norm=logit_norm, bound=logit_bound
            )
            vectors.append(checked)
        return SummedRound(vectors=vectors, survivors=self._survivors)

    @property
    def _dropped(self) -> tuple[str, ...]:
        return tuple(name for name in self._members if name not in self._contributors)

    def _answers(self) -> SecretReconstruction:
        if self._reconstruction is None:
            raise WireError("answers come after the quorum; make it first")
        return self._reconstruction

    def _check_signature(self, name: str, signature: bytes, label: str, *fields: Field) -> None:
        check_signature(self._roster.keys[name], signature, PAIRWISE, label, *fields)

    def _enough(self, found: Container[str], what: str) -> tuple[str, ...]:
        names = tuple(name for name in self._keys if name in found)
        if len(names) < self._attempt.threshold:
            raise AbandonedError(
                f"{len(names)} sites have sent {what}, but {self._attempt.threshold} are needed; "
                "begin a new attempt, for which sites charge again"
            )
        return names

    def _take(
        self,
        phase: _Phase,
        name: str,
        message: bytes,
        take: Callable[[str, bytes], None],
        expected: Container[str],
    ) -> None:
        """Take a message of a site in its phase; the same one again is ignored."""
        digest = hashlib.sha256(message).digest()
        earlier = self._seen.get((phase, name))
        if earlier == digest:
            return
        try:
            if earlier is not None:
                raise WireError("another message was taken before; it stays the only one")
            if phase is not self._phase:
                raise WireError("its message came too late, or too early")
            if name not in expected:
                raise WireError("it does not take part in this step")
            take(name, message)
        except WireError as error:
            raise WireError(f"site '{name}': {error}") from None
        self._seen[phase, name] = digest
