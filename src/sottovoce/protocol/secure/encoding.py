"""The bytes that the protocols hash, sign and derive keys from.

`encode` is injective for a given sequence of types: before each field stands its length, 32 bits
and little-endian. Integers have unsigned 64 bits and floats are binary64, little-endian. A tuple is
encoded by itself and stands as one field. The number and the types of the fields follow from the
label in front of them, so two different statements never have the same bytes.
"""

import hashlib
import itertools
import math
import struct
from collections.abc import Iterable
from enum import StrEnum
from typing import TypeAlias

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sottovoce.core.errors import WireError

Field: TypeAlias = "bytes | str | int | float | tuple[Field, ...]"

DIGEST_BYTES = 32
KEY_BYTES = 32
_LARGEST = 2**64


class Protocol(StrEnum):
    """The protocols; each has labels of its own, so no signature of one is valid in another."""

    PAIRWISE = "sottovoce/pairwise/1"
    TWO_SERVER_SUM = "sottovoce/two-server/1"
    SHUFFLER = "sottovoce/shuffler/1"


def encode(*fields: Field) -> bytes:
    """Return the fields as bytes, each after its length.

    Args:
        fields: Bytes, text (as UTF-8), integers from 0 to 2^64 - 1, finite floats, or tuples.

    Returns:
        The encoding.

    Raises:
        WireError: An integer is out of range or a float is not finite.

    Examples:
        >>> encode(b"ab", 1).hex()
        '020000006162080000000100000000000000'
    """
    parts = []
    for field in fields:
        content = _content(field)
        parts += [struct.pack("<I", len(content)), content]
    return b"".join(parts)


def _content(field: Field) -> bytes:
    match field:
        case bytes():
            return field
        case str():
            return field.encode()
        case bool():
            raise WireError("expected an integer, got a truth value")
        case int():
            if not 0 <= field < _LARGEST:
                raise WireError(f"expected an integer from 0 to 2^64 - 1, got {field}")
            return struct.pack("<Q", field)
        case float():
            if not math.isfinite(field):
                raise WireError(f"expected a finite number, got {field}")
            return struct.pack("<d", field)
        case tuple():
            return encode(*field)


def sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return names in the order of their UTF-8 bytes, in which every set is encoded."""
    return tuple(sorted(names, key=str.encode))


def check_sorted(names: Iterable[str], *, what: str) -> tuple[str, ...]:
    """Return the names as a tuple if they strictly increase in the order of their bytes.

    Raises:
        WireError: A name is repeated or out of order; the message starts with `what`.
    """
    found = tuple(names)
    keys = [name.encode() for name in found]
    if any(left >= right for left, right in itertools.pairwise(keys)):
        raise WireError(f"{what} must be sorted by their bytes and have no duplicates")
    return found


def labeled(protocol: Protocol, label: str, *fields: Field) -> bytes:
    """Return the bytes of a statement: what a signature covers and what a digest is of."""
    return encode(f"{protocol} {label}", *fields)


def digest(protocol: Protocol, label: str, *fields: Field) -> bytes:
    """Return the SHA-256 digest of a statement, 32 bytes."""
    return hashlib.sha256(labeled(protocol, label, *fields)).digest()


def derive_key(secret: bytes, protocol: Protocol, label: str, *fields: Field) -> bytes:
    """Return a 32-byte key for one purpose, by HKDF-SHA256 without a salt.

    Args:
        secret: A secret of high entropy, such as the result of a key exchange.
        protocol: The protocol.
        label: The purpose.
        fields: What the key is bound to.

    Returns:
        The key.
    """
    info = labeled(protocol, label, *fields)
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)
