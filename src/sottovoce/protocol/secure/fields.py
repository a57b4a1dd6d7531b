"""Reading what `encode` has written, from a party that may lie.

A message is a label and fields, each after its length. The reader of a message knows how many
fields it has and what they may be, so nothing is nested deeper than the message says and no number
in it decides how much memory is taken. All functions raise WireError and nothing else.
"""

import struct
from collections.abc import Sequence

from sottovoce.core.errors import WireError
from sottovoce.protocol.secure.encoding import Field, Protocol, check_sorted, labeled

MAX_NAME_BYTES = 1000
MAX_NAMES = 10_000
_LENGTH = struct.Struct("<I")


def write_message(protocol: Protocol, label: str, *fields: Field) -> bytes:
    """Return a message of a protocol; no signature of the protocol covers the same bytes."""
    return labeled(protocol, f"message {label}", *fields)


def read_message(content: bytes, protocol: Protocol, label: str, *, fields: int) -> list[bytes]:
    """Return the fields of a message that `write_message` has written.

    Args:
        content: The message.
        protocol: The protocol that it must belong to.
        label: The label that it must have.
        fields: The number of fields that it must have.

    Returns:
        The fields.

    Raises:
        WireError: The message is malformed or another one.
    """
    found = split(content, most=fields + 1)
    if not found or found[0] != f"{protocol} message {label}".encode():
        raise WireError(f"expected the message '{label}' of {protocol}, got another one")
    if len(found) != fields + 1:
        raise WireError(f"expected {fields} fields in '{label}', got {len(found) - 1}")
    return found[1:]


def split(content: bytes, *, most: int = MAX_NAMES) -> list[bytes]:
    """Return fields that stand one after another, at most `most` of them.

    Raises:
        WireError: A length does not fit, or there are more fields.
    """
    found: list[bytes] = []
    position = 0
    while position < len(content):
        if len(found) == most:
            raise WireError(f"expected at most {most} fields, got more")
        start = position + _LENGTH.size
        if start > len(content):
            raise WireError("expected the length of a field, got the end of the message")
        (size,) = _LENGTH.unpack_from(content, position)
        position = start + size
        if position > len(content):
            raise WireError(f"expected a field of {size} bytes, got the end of the message")
        found.append(content[start:position])
    return found


def read_bytes(field: bytes, size: int, *, what: str) -> bytes:
    """Return a field that must have `size` bytes; the error starts with `what`."""
    if len(field) != size:
        raise WireError(f"{what} must have {size} bytes, got {len(field)}")
    return field


def read_integer(field: bytes, *, what: str) -> int:
    """Return an unsigned integer of 64 bits."""
    return int.from_bytes(read_bytes(field, 8, what=what), "little")


def read_name(field: bytes) -> str:
    """Return the name of a party."""
    if not 1 <= len(field) <= MAX_NAME_BYTES:
        raise WireError(f"a name must have 1 to {MAX_NAME_BYTES} bytes, got {len(field)}")
    try:
        return field.decode()
    except UnicodeDecodeError:
        raise WireError("a name must be text in UTF-8") from None


def read_names(field: bytes, *, what: str) -> tuple[str, ...]:
    """Return a set of names, which must be sorted and without duplicates."""
    return check_sorted(map(read_name, split(field)), what=what)


def read_pairs(field: bytes, size: int, *, what: str) -> tuple[tuple[str, bytes], ...]:
    """Return pairs of a name and `size` bytes, sorted by name and without duplicates."""
    pairs = []
    for item in split(field):
        parts = split(item, most=2)
        if len(parts) != 2:
            raise WireError(f"{what} must be pairs of a name and {size} bytes")
        pairs.append((read_name(parts[0]), read_bytes(parts[1], size, what=what)))
    check_sorted((name for name, _ in pairs), what=what)
    return tuple(pairs)


def read_all(field: bytes, size: int, *, what: str) -> tuple[bytes, ...]:
    """Return a sequence of fields that must have `size` bytes each."""
    return tuple(read_bytes(item, size, what=what) for item in split(field))


def check_same_names(found: Sequence[str], expected: Sequence[str], *, what: str) -> None:
    """Raise WireError unless two sorted sequences of names are the same."""
    if tuple(found) != tuple(expected):
        raise WireError(f"{what} must be for exactly {len(expected)} expected sites, got others")
