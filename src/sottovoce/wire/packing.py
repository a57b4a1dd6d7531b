"""Packed codes of 1 to 32 bits, no gaps: code i takes bits i*b ... i*b + b - 1, lowest first."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce import parameters
from sottovoce.errors import WireError

Codes = NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.uint32]

MAX_BITS = 32


def packed_size(count: int, bits: int) -> int:
    """Bytes that `count` codes of `bits` bits take."""
    return (count * bits + 7) // 8


def pack(codes: Codes, bits: int) -> bytes:
    """The packed codes; the unused bits of the last byte are zero."""
    dtype = _little_endian(bits)
    if codes.size and int(codes.max()) >> bits:
        raise WireError(f"code {int(codes.max())} does not fit into {bits} bits")
    if bits == 1:
        return np.packbits(codes.astype(np.uint8, copy=False), bitorder="little").tobytes()
    words = np.ascontiguousarray(codes, dtype=dtype)
    if bits == 8 * dtype.itemsize:
        return words.tobytes()
    octets = words.view(np.uint8).reshape(len(words), dtype.itemsize)
    planes = np.unpackbits(octets, axis=1, count=bits, bitorder="little")
    return np.packbits(planes.ravel(), bitorder="little").tobytes()


def unpack(payload: bytes | memoryview, count: int, bits: int) -> Codes:
    """The inverse of `pack`; refuses a wrong length and non-zero padding.

    The codes come in the smallest unsigned type of 8, 16 or 32 bits that holds `bits` bits.
    """
    dtype = _little_endian(bits)
    if len(payload) != packed_size(count, bits):
        raise WireError(
            f"payload has {len(payload)} bytes, but {count} codes of {bits} bits take "
            f"{packed_size(count, bits)}"
        )
    flat = np.unpackbits(np.frombuffer(payload, dtype=np.uint8), bitorder="little")
    if flat[count * bits :].any():
        raise WireError("the padding bits after the last code are not zero")
    planes = flat[: count * bits].reshape(count, bits)
    octets = np.zeros((count, dtype.itemsize), dtype=np.uint8)
    packed = np.packbits(planes, axis=1, bitorder="little")
    octets[:, : packed.shape[1]] = packed
    return octets.view(dtype).ravel().astype(dtype.newbyteorder("="), copy=False)


def _little_endian(bits: int) -> np.dtype[Any]:
    """The smallest unsigned type that holds `bits` bits, in the byte order of the wire."""
    parameters.integer("bits", bits, low=1, high=MAX_BITS, remedy="codes have 1 to 32 bits")
    return np.dtype("u1" if bits <= 8 else "<u2" if bits <= 16 else "<u4")
