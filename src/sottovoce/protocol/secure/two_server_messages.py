"""The messages of a secure sum with two servers, and their bytes.

`SumReport` goes from a client to the relay, `Frozen` from the relay to the collector, `Accepted`
back, and `Summed` to the collector. `read` refuses all bytes but those that `to_bytes` writes. What
a message means is checked by who receives it.
"""

from dataclasses import dataclass
from typing import Self

from sottovoce.mechanisms.packing import packed_size
from sottovoce.protocol.secure import hpke, wire
from sottovoce.protocol.secure.announcement import SEED_BYTES, Announcement
from sottovoce.protocol.secure.encoding import (
    DIGEST_BYTES,
    Field,
    Protocol,
    check_sorted,
    digest,
    labeled,
)
from sottovoce.protocol.secure.operators import Admission
from sottovoce.protocol.secure.roster import SIGNATURE_BYTES
from sottovoce.protocol.secure.wire import Kind, Reader

SUM = Protocol.TWO_SERVER_SUM
CIPHERTEXT_BYTES = SEED_BYTES + hpke.OVERHEAD_BYTES
MAX_VECTOR_BYTES = 2**29  # All of one client's: a relay keeps them as one value of its file.
_MAX_ADMISSION_BYTES = 2**10


def seed_info(ann: bytes, client: str) -> bytes:
    """Return the `info` under which a client seals its seed."""
    return labeled(SUM, "seed", ann, client)


def collector_statement(ann: bytes, client: str, ciphertext: bytes) -> tuple[Field, ...]:
    """Return what a client signs for the collector: nothing that depends on its codes."""
    return ann, client, digest(SUM, "ciphertext", ciphertext)


def relay_statement(
    ann: bytes, client: str, vectors: bytes, ciphertext: bytes
) -> tuple[Field, ...]:
    """Return what a client signs for the relay, which never forwards it."""
    hashes = digest(SUM, "vectors", vectors), digest(SUM, "ciphertext", ciphertext)
    return ann, client, *hashes


def vector_bytes(announcement: Announcement) -> int:
    """Return the size of one masked vector."""
    return packed_size(announcement.attempt.dimension, announcement.attempt.bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class SumReport:
    """What a client sends to the relay.

    Attributes:
        name: Name of the client.
        ciphertext: The seed of its masks, sealed to the collector.
        for_collector: Signature over the ciphertext, which the relay forwards.
        for_relay: Signature over ciphertext and vectors, which it does not.
        vectors: Its masked vectors, one an uplink.
    """

    name: str
    ciphertext: bytes
    for_collector: bytes
    for_relay: bytes
    vectors: bytes

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        head = bytes([Kind.SUM_REPORT]) + wire.short(self.name)
        return b"".join([head, self.ciphertext, self.for_collector, self.for_relay, self.vectors])

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the message; WireError if it is malformed."""
        reader = Reader(content, Kind.SUM_REPORT)
        return cls(
            name=reader.name(),
            ciphertext=reader.take(CIPHERTEXT_BYTES),
            for_collector=reader.take(SIGNATURE_BYTES),
            for_relay=reader.take(SIGNATURE_BYTES),
            vectors=reader.rest(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """What the collector learns of one client before the sum.

    Attributes:
        admission: The client's certificate.
        ciphertext: Its sealed seed.
        signature: Its signature for the collector.
    """

    admission: Admission
    ciphertext: bytes
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """The clients whose vectors the relay has, sorted by name.

    Attributes:
        ann: Digest of the announcement.
        entries: One entry a client.
    """

    ann: bytes
    entries: tuple[Sealed, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the clients."""
        return tuple(entry.admission.name for entry in self.entries)

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        parts = [bytes([Kind.FROZEN]), self.ann, wire.integer(len(self.entries))]
        for entry in self.entries:
            parts += [wire.long(entry.admission.to_bytes()), entry.ciphertext, entry.signature]
        return b"".join(parts)

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the message; WireError if it is malformed or out of order."""
        reader = Reader(content, Kind.FROZEN)
        ann = reader.take(DIGEST_BYTES)
        entries = tuple(
            Sealed(
                admission=Admission.read(reader.long(_MAX_ADMISSION_BYTES)),
                ciphertext=reader.take(CIPHERTEXT_BYTES),
                signature=reader.take(SIGNATURE_BYTES),
            )
            for _ in range(reader.count(CIPHERTEXT_BYTES + SIGNATURE_BYTES))
        )
        reader.end()
        check_sorted((entry.admission.name for entry in entries), what="frozen clients")
        return cls(ann=ann, entries=entries)


def frozen_digest(ann: bytes, frozen: bytes) -> bytes:
    """Return H(S0): the digest of the list that the relay has frozen."""
    return digest(SUM, "frozen", ann, frozen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The clients whose sum the collector asks for.

    Attributes:
        ann: Digest of the announcement.
        frozen: Digest of the list from which they are.
        names: Their names, sorted.
        signature: The collector's signature of all this.
    """

    ann: bytes
    frozen: bytes
    names: tuple[str, ...]
    signature: bytes

    @property
    def statement(self) -> tuple[Field, ...]:
        """What the signature covers."""
        return self.ann, self.frozen, self.names

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        head = [bytes([Kind.ACCEPTED]), self.ann, self.frozen, wire.integer(len(self.names))]
        return b"".join([*head, *map(wire.short, self.names), self.signature])

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the message; WireError if it is malformed or out of order."""
        reader = Reader(content, Kind.ACCEPTED)
        ann, frozen = reader.take(DIGEST_BYTES), reader.take(DIGEST_BYTES)
        names = tuple(reader.name() for _ in range(reader.count(2)))
        signature = reader.take(SIGNATURE_BYTES)
        reader.end()
        check_sorted(names, what="accepted clients")
        return cls(ann=ann, frozen=frozen, names=names, signature=signature)


def accepted_digest(ann: bytes, names: tuple[str, ...]) -> bytes:
    """Return the digest of a set of clients whose sum is asked for."""
    return digest(SUM, "accepted", ann, names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """The sums of the accepted clients' masked vectors.

    Attributes:
        ann: Digest of the announcement.
        accepted: Digest of the set of clients.
        sums: The packed sums modulo 2^k, one an uplink.
        signature: The relay's signature of all this.
    """

    ann: bytes
    accepted: bytes
    sums: bytes
    signature: bytes

    @property
    def statement(self) -> tuple[Field, ...]:
        """What the signature covers."""
        return self.ann, self.accepted, digest(SUM, "sums", self.sums)

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        return b"".join([bytes([Kind.SUMMED]), self.ann, self.accepted, self.signature, self.sums])

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the message; WireError if it is malformed."""
        reader = Reader(content, Kind.SUMMED)
        return cls(
            ann=reader.take(DIGEST_BYTES),
            accepted=reader.take(DIGEST_BYTES),
            signature=reader.take(SIGNATURE_BYTES),
            sums=reader.rest(),
        )
