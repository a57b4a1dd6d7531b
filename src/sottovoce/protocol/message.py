"""The message format: a 44-byte header, followed by the packed codes.

    offset  size  field
         0     4  magic 'STVC'
         4     1  version, 1
         5     1  bits per code, 1 to 32
         6     1  uplink: the index of the vector among those that a client sends in the round
         7     1  reserved, 0
         8     4  round
        12     8  dimension
        20    16  hash of the public parameters, the run and the client (unless a channel hides it)
        36     8  BLAKE2b-64 of everything else

Integers are little-endian. *Payload* means the packed codes, *total* includes the header.
Two facts are not in the header: whether 32 bits are a float32 number or a packed code, and how many
codes there are (one per coordinate unless the mechanism says otherwise). Both follow from the
public parameters, which the hash fixes, so a message is only ever read in the format of its own
plan. The checksum detects damage, not forgery: authenticating clients is the transport's task.
"""

import hashlib
import struct
from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.domains import MAX_DIMENSION
from sottovoce.core.errors import WireError
from sottovoce.mechanisms.encoding import PackedRows, pack_codes
from sottovoce.mechanisms.mechanism import CodeFormat, Codes, Float32Codes, LevelCodes
from sottovoce.mechanisms.packing import PackedCodes

# The content of a message that was checked against its envelope.
MessageContent = PackedCodes | NDArray[np.float32]

MAGIC = b"STVC"
VERSION = 1
_FIELDS = struct.Struct("<4sBBBBIQ16s")
_CHECKSUM_BYTES = 8
HEADER_BYTES = _FIELDS.size + _CHECKSUM_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The properties of a message that both sides know before it is sent.

    The server computes the envelope from its own plan and never reads it from the client.

    Attributes:
        parameter_hash: 16 bytes: the hash of the public parameters, the run and the client.
        round: The number of the round, 0 to 2^32 - 1.
        uplink: The index of the vector among those that a client sends in the round, 0 to 255.
        dimension: The number of coordinates of the encoded vector.
        code_format: How the codes are packed: integer levels or float32.

    Raises:
        ParameterError: A number is outside its range.
        WireError: The hash does not have 16 bytes.
    """

    parameter_hash: bytes
    round: int
    uplink: int
    dimension: int
    code_format: CodeFormat

    def __post_init__(self) -> None:
        parameter_rules.integer("round", self.round, low=0, high=2**32 - 1)
        parameter_rules.integer("uplink", self.uplink, low=0, high=255)
        parameter_rules.integer("dimension", self.dimension, low=1, high=MAX_DIMENSION)
        if len(self.parameter_hash) != 16:
            raise WireError(f"a parameter hash has 16 bytes, got {len(self.parameter_hash)}")

    @property
    def num_codes(self) -> int:
        """The number of codes in the payload."""
        return self.code_format.num_codes(self.dimension)

    @property
    def payload_bytes(self) -> int:
        """The length of the payload in bytes."""
        return (self.code_format.payload_bits(self.dimension) + 7) // 8

    @property
    def total_bytes(self) -> int:
        """The length of the whole message in bytes, header included."""
        return HEADER_BYTES + self.payload_bytes


def seal_packed(payload: bytes, envelope: Envelope) -> bytes:
    """Return the message that carries a packed payload.

    A client sends nothing of its updates but such messages.

    Args:
        payload: The packed codes.
        envelope: What both sides know of the message.

    Returns:
        The header followed by the payload.

    Raises:
        WireError: The payload does not have the length that the envelope announces.
    """
    if len(payload) != envelope.payload_bytes:
        raise WireError(f"expected {envelope.payload_bytes} packed bytes, got {len(payload)}")
    fields = _header_fields(envelope)
    return fields + _checksum(fields, payload) + payload


def seal(codes: Codes, envelope: Envelope) -> bytes:
    """Pack codes and return the message that carries them.

    Args:
        codes: One vector of codes, not yet packed.
        envelope: What both sides know of the message.

    Returns:
        The header followed by the packed codes.

    Raises:
        WireError: The number of codes, or a code, is not one that the envelope allows.

    Examples:
        >>> import numpy as np
        >>> from sottovoce.mechanisms.mechanism import LevelCodes
        >>> envelope = Envelope(parameter_hash=bytes(16), round=1, uplink=0, dimension=8,
        ...                     code_format=LevelCodes(levels=2))
        >>> message = seal(np.array([1, 0, 0, 1, 1, 0, 1, 0], dtype=np.uint8), envelope)
        >>> len(message)
        45
        >>> open_sealed(message, envelope).tolist()
        [1, 0, 0, 1, 1, 0, 1, 0]
    """
    if codes.shape != (envelope.num_codes,):
        raise WireError(f"expected a vector of {envelope.num_codes} codes, got shape {codes.shape}")
    return seal_packed(pack_codes(codes, envelope.code_format), envelope)


def open_sealed(message: bytes, envelope: Envelope) -> Codes:
    """Return the codes of a message that agrees with its envelope in every field.

    A sealed message has a checksum, which detects damage but not forgery; it is not encrypted.

    Args:
        message: The bytes that arrived.
        envelope: What the receiver expects, computed from its own plan.

    Returns:
        The codes: integers, or float32 values if that is the format.

    Raises:
        WireError: The message is damaged or of another version, or differs from the envelope in
            round, uplink, dimension, bits per code, length or parameter hash, or holds a code that
            the format lacks or a value that is not finite.
    """
    return codes_of(open_packed(message, envelope))


def open_packed_rows(packed: PackedRows) -> list[MessageContent]:
    """Return the content of a message for each row of packed codes, without sealing any.

    The result is what `open_packed` would return if each row were sealed and sent.
    """
    payloads = packed.on_cpu().tobytes()
    size = len(payloads) // max(1, len(packed))
    return [
        _from_payload(memoryview(payloads)[at : at + size], packed.code_format, packed.num_codes)
        for at in range(0, len(payloads), size)
    ]


def codes_of(opened: MessageContent) -> Codes:
    """Return the codes of an opened message, unpacked: integers, or float32 values as they are."""
    return opened.codes() if isinstance(opened, PackedCodes) else opened


def open_packed(message: bytes, envelope: Envelope) -> MessageContent:
    """Check a message as `open_sealed` does, and return its codes still packed.

    Float32 values, which are not packed, are returned as an array. Servers add up packed codes, so
    integer codes are only unpacked where they are needed one by one.

    Raises:
        WireError: As for `open_sealed`.
    """
    if len(message) < HEADER_BYTES:
        raise WireError(f"message has {len(message)} bytes, the header alone takes {HEADER_BYTES}")
    fields, payload = message[: _FIELDS.size], memoryview(message)[HEADER_BYTES:]
    magic, version, bits, uplink, reserved, round_number, dimension, digest = _FIELDS.unpack(fields)
    if magic != MAGIC:
        raise WireError(f"not a Sottovoce message: it starts with {magic!r}")
    if version != VERSION:
        raise WireError(
            f"message has format version {version}, but this side reads version {VERSION}; use the "
            "same version of Sottovoce on both sides"
        )
    if message[_FIELDS.size : HEADER_BYTES] != _checksum(fields, payload):
        raise WireError("checksum mismatch: the message was damaged or truncated; ask for it again")
    _expect("reserved byte", reserved, 0)
    _expect("round", round_number, envelope.round)
    _expect("uplink", uplink, envelope.uplink)
    _expect("dimension", dimension, envelope.dimension)
    _expect("bits per code", bits, envelope.code_format.bits)
    if digest != envelope.parameter_hash:
        raise WireError(
            f"message has hash of the public parameters {digest.hex()}, expected "
            f"{envelope.parameter_hash.hex()}: another client sent it, or the two sides differ in "
            "the mechanism's parameters, the run's name, the channel or the rotation; make them "
            "the same"
        )
    _expect("payload length", len(payload), envelope.payload_bytes)
    return _from_payload(payload, envelope.code_format, envelope.num_codes)


def _expect(what: str, found: int | str, expected: int | str) -> None:
    if found != expected:
        raise WireError(f"message has {what} {found}, expected {expected}")


def _header_fields(envelope: Envelope) -> bytes:
    return _FIELDS.pack(
        MAGIC,
        VERSION,
        envelope.code_format.bits,
        envelope.uplink,
        0,
        envelope.round,
        envelope.dimension,
        envelope.parameter_hash,
    )


def _checksum(fields: bytes, payload: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(fields, digest_size=_CHECKSUM_BYTES)
    digest.update(payload)
    return digest.digest()


def _from_payload(payload: memoryview, code_format: CodeFormat, count: int) -> MessageContent:
    match code_format:
        case LevelCodes(levels=levels):
            return PackedCodes(payload, count=count, levels=levels)
        case Float32Codes():
            values = np.frombuffer(payload, dtype="<f4").astype(np.float32, copy=False)
            if not np.isfinite(values).all():
                raise WireError("payload holds a NaN or infinite value")
            return values
        case _:
            assert_never(code_format)
