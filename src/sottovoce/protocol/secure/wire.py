"""Short binary messages of two servers, and a reader that refuses whatever they do not allow.

A message is one byte that says what it is, then its fields. A field of fixed size stands alone; one
of variable size follows its length, in one byte or in four, little-endian. No number in a message
decides how much memory is taken, and every message has one encoding only.
"""

from enum import IntEnum

from sottovoce.core.errors import WireError

MAX_NAME_BYTES = 128


class Kind(IntEnum):
    """The messages, by their first byte."""

    ANNOUNCE = 1
    ADMISSION = 2
    SUM_REPORT = 3
    FROZEN = 4
    ACCEPTED = 5
    SUMMED = 6
    SHUFFLE_REPORT = 7
    LIST = 8
    ROOT = 9
    PATH = 10
    CONFIRMATION = 11
    CONFIRMATIONS = 12
    RECEIPT = 13
    SEALED = 14


def short(content: bytes | str) -> bytes:
    """Return a field of at most 255 bytes, after its length."""
    return _counted(content, 1)


def long(content: bytes | str) -> bytes:
    """Return a field of less than 2^32 bytes, after its length."""
    return _counted(content, 4)


def _counted(content: bytes | str, width: int) -> bytes:
    octets = content.encode() if isinstance(content, str) else content
    if len(octets) >= 1 << 8 * width:
        raise WireError(f"expected a field below {1 << 8 * width} bytes, got {len(octets)}")
    return len(octets).to_bytes(width, "little") + octets


def integer(value: int) -> bytes:
    """Return an integer from 0 to 2^64 - 1 as 8 bytes."""
    if not 0 <= value < 2**64:
        raise WireError(f"expected an integer from 0 to 2^64 - 1, got {value}")
    return value.to_bytes(8, "little")


class Reader:
    """A message that is read field by field; every method raises WireError and nothing else.

    Args:
        content: The message.
        kind: What it must be.
    """

    def __init__(self, content: bytes, kind: Kind) -> None:
        if content[:1] != bytes([kind]):
            raise WireError(f"expected the message {kind.name}, got another one")
        self._content = content
        self._position = 1

    @property
    def left(self) -> int:
        """Number of bytes that have not been read."""
        return len(self._content) - self._position

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        if size > self.left:
            raise WireError(f"expected {size} more bytes of a message, got {self.left}")
        self._position += size
        return self._content[self._position - size : self._position]

    def rest(self) -> bytes:
        """Return all bytes that are left."""
        return self.take(self.left)

    def short(self, most: int) -> bytes:
        """Return a field of variable size, after a length of one byte."""
        return self._counted(1, most)

    def long(self, most: int) -> bytes:
        """Return a field of variable size, after a length of four bytes."""
        return self._counted(4, most)

    def _counted(self, width: int, most: int) -> bytes:
        size = int.from_bytes(self.take(width), "little")
        if size > most:
            raise WireError(f"expected a field of at most {most} bytes, got {size}")
        return self.take(size)

    def text(self, field: bytes) -> str:
        """Return a field as text."""
        try:
            return field.decode()
        except UnicodeDecodeError:
            raise WireError("expected text in UTF-8, got other bytes") from None

    def name(self) -> str:
        """Return the name of a client."""
        return check_name(self.text(self.short(MAX_NAME_BYTES)))

    def integer(self) -> int:
        """Return an integer of 8 bytes."""
        return int.from_bytes(self.take(8), "little")

    def count(self, least_bytes: int) -> int:
        """Return a number of entries, each of which takes at least `least_bytes` of the rest."""
        found = self.integer()
        if found * least_bytes > self.left:
            raise WireError(f"expected {found} entries in {self.left} bytes, which is too little")
        return found

    def end(self) -> None:
        """Check that nothing is left."""
        if self.left:
            raise WireError(f"expected the end of a message, got {self.left} more bytes")


def check_name(name: str) -> str:
    """Return the name of a client if it is one.

    Raises:
        WireError: It is empty, too long, or no text that can be encoded.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= MAX_NAME_BYTES:
        raise WireError(f"a client's name must have 1 to {MAX_NAME_BYTES} bytes of UTF-8")
    return name
