"""The messages of the shuffler, and their bytes.

`ShuffleReport` goes from a client to the relay, `ShuffledList` from the relay to the collector,
`Root` back, root and path (`join_proof`) to each client, `Confirmation` from each client to the
relay, and all of them as `Confirmations` to the collector. `read` refuses all bytes but those that
`to_bytes` writes.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from sottovoce.core.errors import WireError
from sottovoce.protocol.secure import hpke, wire
from sottovoce.protocol.secure.announcement import MAX_PAYLOAD_BYTES
from sottovoce.protocol.secure.encoding import (
    DIGEST_BYTES,
    Field,
    Protocol,
    check_sorted,
    digest,
    labeled,
)
from sottovoce.protocol.secure.merkle import root_digest
from sottovoce.protocol.secure.operators import Admission
from sottovoce.protocol.secure.roster import SIGNATURE_BYTES
from sottovoce.protocol.secure.wire import Kind, Reader

SHUFFLER = Protocol.SHUFFLER
_MAX_LEVELS = 64
_MAX_ADMISSION_BYTES = 2**10


def payload_info(ann: bytes) -> bytes:
    """Return the `info` under which a payload is sealed; it does not name the client."""
    return labeled(SHUFFLER, "payload", ann)


def report_statement(ann: bytes, ciphertext: bytes) -> tuple[Field, ...]:
    """Return what a client signs for the relay, which never forwards it."""
    return ann, digest(SHUFFLER, "ciphertext", ciphertext)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleReport:
    """What a client sends to the relay; the announcement that it is for is in the signature.

    Attributes:
        name: Name of the client.
        signature: Its signature over the ciphertext.
        ciphertext: Its payload, sealed to the collector.
    """

    name: str
    signature: bytes
    ciphertext: bytes

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        head = bytes([Kind.SHUFFLE_REPORT]) + wire.short(self.name)
        return b"".join([head, self.signature, self.ciphertext])

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the message; WireError if it is malformed."""
        reader = Reader(content, Kind.SHUFFLE_REPORT)
        return cls(
            name=reader.name(), signature=reader.take(SIGNATURE_BYTES), ciphertext=reader.rest()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledList:
    """All ciphertexts in strictly increasing order of their bytes, which is a random order.

    Attributes:
        ann: Digest of the announcement.
        ciphertexts: The list; all have one length.
        signature: The relay's signature.
    """

    ann: bytes
    ciphertexts: tuple[bytes, ...]
    signature: bytes

    @property
    def statement(self) -> tuple[Field, ...]:
        """What the signature covers."""
        return self.ann, digest(SHUFFLER, "list", b"".join(self.ciphertexts))

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        size = len(self.ciphertexts[0])
        head = [bytes([Kind.LIST]), self.ann, self.signature, wire.integer(size)]
        return b"".join([*head, *self.ciphertexts])

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the message; WireError if it is malformed or not strictly increasing."""
        reader = Reader(content, Kind.LIST)
        ann, signature = reader.take(DIGEST_BYTES), reader.take(SIGNATURE_BYTES)
        size, joined = reader.integer(), reader.rest()
        if not hpke.OVERHEAD_BYTES < size <= MAX_PAYLOAD_BYTES + hpke.OVERHEAD_BYTES:
            raise WireError(f"expected ciphertexts of a payload, got a size of {size} bytes")
        if not joined or len(joined) % size:
            raise WireError(f"expected ciphertexts of {size} bytes, got {len(joined)} bytes")
        found = tuple(joined[start : start + size] for start in range(0, len(joined), size))
        if any(left >= right for left, right in itertools.pairwise(found)):
            raise WireError("ciphertexts must strictly increase in the order of their bytes")
        return cls(ann=ann, ciphertexts=found, signature=signature)


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """The root of the list that the collector has received.

    Attributes:
        ann: Digest of the announcement.
        count: Number of ciphertexts.
        top: Top of their tree.
        signature: The collector's signature over the root.
    """

    ann: bytes
    count: int
    top: bytes
    signature: bytes

    @property
    def digest(self) -> bytes:
        """The root."""
        return root_digest(self.ann, self.count, self.top)

    @property
    def statement(self) -> tuple[Field, ...]:
        """What the signature covers."""
        return self.ann, self.digest, self.count

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        head = bytes([Kind.ROOT]) + self.ann + wire.integer(self.count)
        return head + self.top + self.signature

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the message; WireError if it is malformed."""
        reader = Reader(content, Kind.ROOT)
        found = cls(
            ann=reader.take(DIGEST_BYTES),
            count=reader.integer(),
            top=reader.take(DIGEST_BYTES),
            signature=reader.take(SIGNATURE_BYTES),
        )
        reader.end()
        return found


ROOT_BYTES = 1 + DIGEST_BYTES + 8 + DIGEST_BYTES + SIGNATURE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The path from a leaf to the top.

    Attributes:
        index: Position of the leaf.
        siblings: The digests on the way, from below.
    """

    index: int
    siblings: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        return b"".join([bytes([Kind.PATH]), wire.integer(self.index), *self.siblings])

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the message; WireError if it is malformed."""
        reader = Reader(content, Kind.PATH)
        index = reader.integer()
        if reader.left % DIGEST_BYTES or reader.left > _MAX_LEVELS * DIGEST_BYTES:
            raise WireError(f"expected at most {_MAX_LEVELS} digests, got {reader.left} bytes")
        return cls(
            index=index,
            siblings=tuple(reader.take(DIGEST_BYTES) for _ in range(reader.left // DIGEST_BYTES)),
        )


def join_proof(root: bytes, path: bytes) -> bytes:
    """Return root and path as the relay hands them out together."""
    return root + path


def split_proof(content: bytes) -> tuple[bytes, bytes]:
    """Return root and path, each of which is checked where it is read.

    Raises:
        WireError: There is no root.
    """
    if len(content) <= ROOT_BYTES:
        raise WireError(f"expected a root and a path, got {len(content)} bytes")
    return content[:ROOT_BYTES], content[ROOT_BYTES:]


MOST_LEAVES = 2**16  # Of a list whose digests are handed out together: 2 MiB.


def join_leaves(root: bytes, leaves: Sequence[bytes]) -> bytes:
    """Return a root and the digests of the whole list.

    Raises:
        WireError: The list is too long for that.
    """
    if len(leaves) > MOST_LEAVES:
        raise WireError(
            f"the digests of at most {MOST_LEAVES} messages are handed out together, and the list "
            f"has {len(leaves)}; a client asks for the path of its own message"
        )
    return root + b"".join(leaves)


def split_leaves(content: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    """Return root and digests that `join_leaves` has joined; they are checked where they are read.

    Raises:
        WireError: They are cut off, or too many.
    """
    root, joined = content[:ROOT_BYTES], content[ROOT_BYTES:]
    if not joined or len(joined) % DIGEST_BYTES or len(joined) > MOST_LEAVES * DIGEST_BYTES:
        raise WireError(f"expected a root and digests of a list, got {len(content)} bytes")
    return root, tuple(
        joined[start : start + DIGEST_BYTES] for start in range(0, len(joined), DIGEST_BYTES)
    )


def confirmation_statement(root: Root, client: str) -> tuple[Field, ...]:
    """Return what a client signs when its own ciphertext is under a root."""
    return root.ann, root.digest, root.count, client


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """A client's statement that its ciphertext is in the collector's list.

    Attributes:
        name: Name of the client.
        signature: Its signature over root, count and name.
    """

    name: str
    signature: bytes

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        return bytes([Kind.CONFIRMATION]) + wire.short(self.name) + self.signature

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the message; WireError if it is malformed."""
        reader = Reader(content, Kind.CONFIRMATION)
        found = cls(name=reader.name(), signature=reader.take(SIGNATURE_BYTES))
        reader.end()
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmations:
    """All confirmations with the certificates of those who sent them, sorted by name.

    Attributes:
        ann: Digest of the announcement.
        entries: Certificate and signature of each client.
    """

    ann: bytes
    entries: Sequence[tuple[Admission, bytes]]

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        parts = [bytes([Kind.CONFIRMATIONS]), self.ann, wire.integer(len(self.entries))]
        for admission, signature in self.entries:
            parts += [wire.long(admission.to_bytes()), signature]
        return b"".join(parts)

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the message; WireError if it is malformed or out of order."""
        reader = Reader(content, Kind.CONFIRMATIONS)
        ann = reader.take(DIGEST_BYTES)
        entries = tuple(
            (Admission.read(reader.long(_MAX_ADMISSION_BYTES)), reader.take(SIGNATURE_BYTES))
            for _ in range(reader.count(SIGNATURE_BYTES))
        )
        reader.end()
        check_sorted((admission.name for admission, _ in entries), what="confirmations")
        return cls(ann=ann, entries=entries)
