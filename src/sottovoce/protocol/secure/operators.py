"""The two operators whom a client pins, and how both admit a client.

Relay and collector are run by two parties that do not collude. A client counts only if both have
admitted it, each with a key of its own, so neither can add clients that it invented. A certificate
holds until a date, and names the operators by the digest of all their keys.
"""

import hashlib
from dataclasses import dataclass
from typing import Self

from sottovoce.core.errors import ParameterError, WireError
from sottovoce.protocol.secure import wire
from sottovoce.protocol.secure.encoding import KEY_BYTES, Field, Protocol, encode
from sottovoce.protocol.secure.roster import (
    FEDERATION_ID_BYTES,
    PUBLIC_KEY_BYTES,
    SIGNATURE_BYTES,
    TrustKey,
    check_signature,
)
from sottovoce.protocol.secure.wire import Kind, Reader

_LABEL = "admission"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """The public keys of relay and collector, which every client pins.

    Attributes:
        federation: The federation's id, 16 bytes.
        relay: Ed25519 key with which the relay signs.
        relay_hpke: X25519 key to which a report is sealed where its connection does not end at the
            relay.
        collector: Ed25519 key with which the collector signs.
        relay_admission: Ed25519 key with which the relay's operator admits clients.
        collector_admission: Ed25519 key with which the collector's operator admits clients.
    """

    federation: bytes
    relay: bytes
    relay_hpke: bytes
    collector: bytes
    relay_admission: bytes
    collector_admission: bytes

    def __post_init__(self) -> None:
        if len(self.federation) != FEDERATION_ID_BYTES:
            raise ParameterError(
                f"give a federation's id of {FEDERATION_ID_BYTES} bytes, got {len(self.federation)}"
            )
        keys = self._keys()
        if any(len(key) != KEY_BYTES for key in keys):
            raise ParameterError(f"each key of the operators must have {KEY_BYTES} bytes")
        if len(set(keys)) < len(keys):
            raise ParameterError("two keys of the operators are the same; make one for each use")

    def _keys(self) -> tuple[bytes, ...]:
        return (
            self.relay,
            self.relay_hpke,
            self.collector,
            self.relay_admission,
            self.collector_admission,
        )

    @property
    def digest(self) -> bytes:
        """The SHA-256 digest by which the operators are pinned, 32 bytes."""
        return hashlib.sha256(
            encode("sottovoce/operators/1", self.federation, *self._keys())
        ).digest()


def sign_admission(
    key: TrustKey, operators: Operators, *, name: str, public_key: bytes, valid_until: int
) -> bytes:
    """Return one operator's signature that admits a client.

    Args:
        key: The operator's admission key.
        operators: Keys of both operators.
        name: Name of the client.
        public_key: Its Ed25519 key.
        valid_until: Time in seconds up to which it is admitted.

    Returns:
        The signature, which becomes half of an `Admission`.
    """
    fields = _statement(operators, wire.check_name(name), public_key, valid_until)
    return key.sign(Protocol.TWO_SERVER_SUM, _LABEL, *fields)


def _statement(
    operators: Operators, name: str, public_key: bytes, valid_until: int
) -> tuple[Field, ...]:
    return operators.digest, name, public_key, valid_until


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The certificate by which both operators have admitted a client.

    Attributes:
        name: Name of the client.
        key: Its Ed25519 public key.
        valid_until: Time in seconds up to which it is admitted.
        by_relay: Signature of the relay's admission key.
        by_collector: Signature of the collector's admission key.
    """

    name: str
    key: bytes
    valid_until: int
    by_relay: bytes
    by_collector: bytes

    @classmethod
    def issue(
        cls,
        operators: Operators,
        relay_admission: TrustKey,
        collector_admission: TrustKey,
        *,
        name: str,
        key: bytes,
        valid_until: int,
    ) -> Self:
        """Return the certificate that both admission keys sign; two operators sign separately."""
        halves = [
            sign_admission(each, operators, name=name, public_key=key, valid_until=valid_until)
            for each in (relay_admission, collector_admission)
        ]
        return cls(
            name=name, key=key, valid_until=valid_until, by_relay=halves[0], by_collector=halves[1]
        )

    def check(self, operators: Operators, now: int) -> None:
        """Raise unless both operators have admitted the client until `now` or later.

        Raises:
            WireError: A signature is wrong, or the certificate has expired.
        """
        if self.valid_until < now:
            raise WireError(f"the admission of '{self.name}' has expired; both operators renew it")
        fields = _statement(operators, self.name, self.key, self.valid_until)
        for key, signature in (
            (operators.relay_admission, self.by_relay),
            (operators.collector_admission, self.by_collector),
        ):
            check_signature(key, signature, Protocol.TWO_SERVER_SUM, _LABEL, *fields)

    def to_bytes(self) -> bytes:
        """Return the certificate as it is sent."""
        return b"".join(
            [
                bytes([Kind.ADMISSION]),
                wire.short(self.name),
                self.key,
                wire.integer(self.valid_until),
                self.by_relay,
                self.by_collector,
            ]
        )

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read a certificate; WireError if it is malformed."""
        reader = Reader(content, Kind.ADMISSION)
        found = cls(
            name=reader.name(),
            key=reader.take(PUBLIC_KEY_BYTES),
            valid_until=reader.integer(),
            by_relay=reader.take(SIGNATURE_BYTES),
            by_collector=reader.take(SIGNATURE_BYTES),
        )
        reader.end()
        return found
