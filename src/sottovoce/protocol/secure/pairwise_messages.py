"""The messages of the secure sum by pairwise masks, and their bytes.

Server and sites send them in this order: the attempt itself opens; then `KeysMessage` from each
site, `KeyList` to all, `Shares` from each, `BoxMessage` to each, `Input` from each, `Survivors` to
all, `SurvivorsSignature` from each, `Quorum` to all and `AnswerMessage` from each. `read` refuses
all bytes but those that `to_bytes` writes. What a message means is checked by who receives it.
"""

from dataclasses import dataclass
from typing import Self

from sottovoce.core.errors import WireError
from sottovoce.protocol.secure import fields
from sottovoce.protocol.secure.encoding import (
    DIGEST_BYTES,
    KEY_BYTES,
    Field,
    Protocol,
    check_sorted,
)
from sottovoce.protocol.secure.roster import SIGNATURE_BYTES
from sottovoce.protocol.secure.shamir import SHARE_BYTES, read_share

SEALED_SHARES_BYTES = 2 * SHARE_BYTES + 16  # both shares, and the tag of ChaCha20-Poly1305
_MAX_UPLINKS = 1000


def _write(label: str, *parts: Field) -> bytes:
    return fields.write_message(Protocol.PAIRWISE, label, *parts)


def _read(content: bytes, label: str, count: int) -> list[bytes]:
    return fields.read_message(content, Protocol.PAIRWISE, label, fields=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysMessage:
    """What a site announces at the start.

    Attributes:
        name: Its name.
        channel_key: X25519 key under which peers encrypt shares for it.
        mask_key: X25519 key from which it has a mask with every peer.
        commitment: Digest of the seed of its own mask.
        rows: How many persons it declares, where a person is protected; else 0.
        signature: Its signature of all this and of the plan.
    """

    name: str
    channel_key: bytes
    mask_key: bytes
    commitment: bytes
    rows: int
    signature: bytes

    @property
    def statement(self) -> tuple[Field, ...]:
        """What the signature covers, in addition to the plan."""
        return self.name, self.channel_key, self.mask_key, self.commitment, self.rows

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        return _write("keys", *self._fields())

    def _fields(self) -> tuple[Field, ...]:
        return *self.statement, self.signature

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the message; WireError if it is malformed."""
        return cls._from_fields(_read(content, "keys", 6))

    @classmethod
    def _from_fields(cls, parts: list[bytes]) -> Self:
        return cls(
            name=fields.read_name(parts[0]),
            channel_key=fields.read_bytes(parts[1], KEY_BYTES, what="a channel key"),
            mask_key=fields.read_bytes(parts[2], KEY_BYTES, what="a mask key"),
            commitment=fields.read_bytes(parts[3], DIGEST_BYTES, what="a commitment"),
            rows=fields.read_integer(parts[4], what="a number of rows"),
            signature=fields.read_bytes(parts[5], SIGNATURE_BYTES, what="a signature"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyList:
    """The keys of all sites of an attempt, sorted by name.

    Attributes:
        entries: What each of them announced.
    """

    entries: tuple[KeysMessage, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sites."""
        return tuple(entry.name for entry in self.entries)

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        return _write("list", tuple(entry._fields() for entry in self.entries))

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the message; WireError if it is malformed."""
        (entries,) = _read(content, "list", 1)
        found = []
        for item in fields.split(entries):
            parts = fields.split(item, most=6)
            if len(parts) != 6:
                raise WireError(f"expected 6 fields of an entry of the list, got {len(parts)}")
            found.append(KeysMessage._from_fields(parts))
        check_sorted((entry.name for entry in found), what="the entries of a list")
        return cls(entries=tuple(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """A site's encrypted shares of its secrets.

    Attributes:
        sealed: Name of each peer and the ciphertext for it, sorted by name.
    """

    sealed: tuple[tuple[str, bytes], ...]

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        return _write("shares", self.sealed)

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the message; WireError if it is malformed."""
        (sealed,) = _read(content, "shares", 1)
        return cls(sealed=fields.read_pairs(sealed, SEALED_SHARES_BYTES, what="encrypted shares"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxMessage:
    """The sites that go on, and what they encrypted for one of them.

    Attributes:
        members: Names of the sites that have sent shares, sorted.
        sealed: Name of each of the others and its ciphertext for the receiver, sorted by name.
    """

    members: tuple[str, ...]
    sealed: tuple[tuple[str, bytes], ...]

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        return _write("box", self.members, self.sealed)

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the message; WireError if it is malformed."""
        members, sealed = _read(content, "box", 2)
        return cls(
            members=fields.read_names(members, what="the sites of a box"),
            sealed=fields.read_pairs(sealed, SEALED_SHARES_BYTES, what="encrypted shares"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A site's masked vectors.

    Attributes:
        vectors: The packed masked codes of each uplink.
        signature: Its signature of their digest and of the transcript.
    """

    vectors: tuple[bytes, ...]
    signature: bytes

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        return _write("input", self.vectors, self.signature)

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the message; WireError if it is malformed."""
        vectors, signature = _read(content, "input", 2)
        return cls(
            vectors=tuple(fields.split(vectors, most=_MAX_UPLINKS)),
            signature=fields.read_bytes(signature, SIGNATURE_BYTES, what="a signature"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivors:
    """The sites whose vectors are in the sum. Who dropped out follows from it and the box.

    Attributes:
        names: Their names, sorted.
    """

    names: tuple[str, ...]

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        return _write("survivors", self.names)

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the message; WireError if it is malformed."""
        (names,) = _read(content, "survivors", 1)
        return cls(names=fields.read_names(names, what="the survivors"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivorsSignature:
    """A site's signature of the survivors.

    Attributes:
        signature: The signature.
    """

    signature: bytes

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        return _write("sign", self.signature)

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the message; WireError if it is malformed."""
        (signature,) = _read(content, "sign", 1)
        return cls(signature=fields.read_bytes(signature, SIGNATURE_BYTES, what="a signature"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """Signatures of the survivors by enough of them.

    Attributes:
        signatures: Name of each signer and its signature, sorted by name.
    """

    signatures: tuple[tuple[str, bytes], ...]

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        return _write("quorum", self.signatures)

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the message; WireError if it is malformed."""
        (signatures,) = _read(content, "quorum", 1)
        return cls(signatures=fields.read_pairs(signatures, SIGNATURE_BYTES, what="signatures"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerMessage:
    """The shares that unmask the sum.

    Attributes:
        seed_shares: The site's share of each survivor's seed, in the order of their names.
        key_shares: Its share of the mask key of each site that dropped out, in the same order.
    """

    seed_shares: tuple[bytes, ...]
    key_shares: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        return _write("answer", self.seed_shares, self.key_shares)

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the message; WireError if it is malformed."""
        parts = [
            fields.read_all(part, SHARE_BYTES, what="shares")
            for part in _read(content, "answer", 2)
        ]
        for share in (*parts[0], *parts[1]):
            read_share(share)
        return cls(seed_shares=parts[0], key_shares=parts[1])
