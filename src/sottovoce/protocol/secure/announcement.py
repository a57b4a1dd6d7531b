"""The announcement of one attempt, which the collector signs and every client gets from the relay.

It says what is asked, of how many clients, until when, and carries an HPKE key that the collector
made for this attempt. All that a client or an operator signs later names its digest, `ann`. A relay
and a client accept one announcement of an attempt.
"""

import hashlib
import hmac
from dataclasses import dataclass, field, replace
from typing import Self

from sottovoce.core.errors import ParameterError, WireError
from sottovoce.ledger.journal import Place
from sottovoce.protocol.secure import hpke, wire
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.encoding import DIGEST_BYTES, KEY_BYTES, Protocol, digest
from sottovoce.protocol.secure.operators import Operators
from sottovoce.protocol.secure.roster import (
    FEDERATION_ID_BYTES,
    SIGNATURE_BYTES,
    TrustKey,
    check_signature,
)
from sottovoce.protocol.secure.wire import Kind, Reader

SEED_BYTES = 32  # What a client of a sum seals to the collector.
MAX_PAYLOAD_BYTES = 2**16
_MAX_MECHANISM_BYTES = 2**16
_MAX_TEXT_BYTES = 255
_MODES = {1: Protocol.TWO_SERVER_SUM, 2: Protocol.SHUFFLER}
_NUMBERS = (
    "round",
    "attempt",
    "dimension",
    "uplinks",
    "levels",
    "bits",
    "most_clients",
    "threshold",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What the collector announces.

    Attributes:
        attempt: What all parties agree on. Its protocol says whether this is a sum or a shuffle;
            its threshold is the minimum of clients.
        opens: Time in seconds from which reports are accepted.
        closes: Time in seconds from which none is accepted, and before which nothing is forwarded.
        confirm_by: Time in seconds at which the relay sends all confirmations of a shuffle; 0 for
            a shuffle that is not confirmed, where the relay is trusted to forward all and add
            nothing; 0 for a sum.
        slack: How many confirmations may be missing; 0 for a sum.
        payload_bytes: Size of every payload of a shuffle; 0 for a sum.
        hpke_key: Public key to which clients seal seeds or payloads.
        signature: The collector's signature of all this.
        ann: Digest of all but the signature, to which everything of the attempt is bound.
    """

    attempt: Attempt
    opens: int
    closes: int
    confirm_by: int
    slack: int
    payload_bytes: int
    hpke_key: bytes
    signature: bytes
    ann: bytes = field(init=False)

    def __post_init__(self) -> None:
        if self.attempt.protocol not in _MODES.values():
            raise ParameterError(
                "two servers have the protocols of a sum and of a shuffle only; choose one"
            )
        if not 0 <= self.opens < self.closes:
            raise ParameterError("an attempt must open before it closes; correct its times")
        if self.confirm_by and self.confirm_by <= self.closes:
            raise ParameterError("confirmations must end after the attempt closes; move that time")
        if self.slack > self.attempt.most_clients:
            raise ParameterError("slack must not exceed the number of clients; lower it")
        if self.attempt.protocol is Protocol.SHUFFLER:
            if not 1 <= self.payload_bytes <= MAX_PAYLOAD_BYTES:
                raise ParameterError(
                    f"a payload must have 1 to {MAX_PAYLOAD_BYTES} bytes, got {self.payload_bytes}"
                )
        elif self.payload_bytes or self.slack or self.confirm_by:
            raise ParameterError("a sum has no payloads and no confirmations; leave them at 0")
        object.__setattr__(self, "ann", digest(self.attempt.protocol, "announcement", self._body()))

    @property
    def place(self) -> Place:
        """The attempt, as journals name it."""
        run, number, attempt = self.attempt.place
        return Place(federation=self.attempt.federation, run=run, round=number, attempt=attempt)

    @property
    def ciphertext_bytes(self) -> int:
        """Size of every ciphertext to the collector."""
        return (self.payload_bytes or SEED_BYTES) + hpke.OVERHEAD_BYTES

    @property
    def is_confirmed(self) -> bool:
        """Whether clients of a shuffle confirm that their messages are in the list."""
        return self.confirm_by > 0

    @property
    def terms(self) -> bytes:
        """Digest of everything that a charge depends on, which is fixed for a run."""
        asked = self.attempt
        return digest(
            asked.protocol,
            "terms",
            asked.dimension,
            asked.uplinks,
            asked.levels,
            asked.threshold,
            asked.mechanism,
            asked.adjacency,
            asked.unit,
            int(self.is_confirmed),
            self.slack,
            self.payload_bytes,
        )

    def check(self, operators: Operators, protocol: Protocol | None = None) -> None:
        """Raise unless the pinned collector announced this for these operators.

        Raises:
            WireError: It has another signer, other parties or another protocol.
        """
        asked = self.attempt
        if asked.parties != operators.digest or asked.federation != operators.federation:
            raise WireError("expected an announcement for the pinned operators, got another one")
        if protocol not in (None, asked.protocol):
            raise WireError(f"expected an announcement of {protocol}, got one of {asked.protocol}")
        check_signature(
            operators.collector, self.signature, asked.protocol, "announce", self._body()
        )

    def check_content(self, content: bytes) -> None:
        """Raise WireError unless these are the bytes, such as a model, that were announced."""
        if not hmac.compare_digest(hashlib.sha256(content).digest(), self.attempt.model_digest):
            raise WireError("expected the content that was announced, got other bytes")

    def signed(self, key: TrustKey) -> Self:
        """Return the announcement with the collector's signature."""
        return replace(self, signature=key.sign(self.attempt.protocol, "announce", self._body()))

    def _body(self) -> bytes:
        asked = self.attempt
        (mode,) = (mode for mode, protocol in _MODES.items() if protocol is asked.protocol)
        return b"".join(
            [
                bytes([mode]),
                asked.parties,
                asked.federation,
                wire.short(asked.run),
                *(wire.integer(getattr(asked, name)) for name in _NUMBERS),
                wire.long(asked.mechanism),
                wire.short(asked.rotation_seed),
                wire.short(asked.adjacency),
                wire.short(asked.unit),
                asked.model_digest,
                *map(
                    wire.integer,
                    (self.opens, self.closes, self.confirm_by, self.slack, self.payload_bytes),
                ),
                self.hpke_key,
            ]
        )

    def to_bytes(self) -> bytes:
        """Return the announcement as it is sent."""
        return bytes([Kind.ANNOUNCE]) + self._body() + self.signature

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read an announcement; WireError if it is malformed or its numbers make no sense."""
        reader = Reader(content, Kind.ANNOUNCE)
        try:
            found = cls(
                attempt=_read_attempt(reader),
                opens=reader.integer(),
                closes=reader.integer(),
                confirm_by=reader.integer(),
                slack=reader.integer(),
                payload_bytes=reader.integer(),
                hpke_key=reader.take(KEY_BYTES),
                signature=reader.take(SIGNATURE_BYTES),
            )
        except ParameterError as error:
            raise WireError(f"expected an announcement that makes sense: {error}") from None
        reader.end()
        return found


def _read_attempt(reader: Reader) -> Attempt:
    mode = reader.take(1)[0]
    if mode not in _MODES:
        raise WireError(f"expected a sum or a shuffle, got the mode {mode}")
    parties, federation = reader.take(DIGEST_BYTES), reader.take(FEDERATION_ID_BYTES)
    run = reader.text(reader.short(_MAX_TEXT_BYTES))
    numbers = {name: reader.integer() for name in _NUMBERS}
    return Attempt(
        protocol=_MODES[mode],
        parties=parties,
        federation=federation,
        run=run,
        mechanism=reader.text(reader.long(_MAX_MECHANISM_BYTES)),
        rotation_seed=reader.short(_MAX_TEXT_BYTES),
        adjacency=reader.text(reader.short(_MAX_TEXT_BYTES)),
        unit=reader.text(reader.short(_MAX_TEXT_BYTES)),
        model_digest=reader.take(DIGEST_BYTES),
        **numbers,
    )
