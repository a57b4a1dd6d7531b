"""Packed codes of 1 to 8 bits, no gaps: code i takes bits i*b ... i*b + b - 1, lowest first."""

import numpy as np
from numpy.typing import NDArray

from sottovoce import parameters
from sottovoce.errors import WireError

Codes = NDArray[np.uint8]


def packed_size(count: int, bits: int) -> int:
    """Bytes that `count` codes of `bits` bits take."""
    return (count * bits + 7) // 8


def pack(codes: Codes, bits: int) -> bytes:
    """The packed codes; the unused bits of the last byte are zero."""
    parameters.integer("bits", bits, low=1, high=8, remedy="codes have 1 to 8 bits")
    if codes.size and int(codes.max()) >> bits:
        raise WireError(f"code {int(codes.max())} does not fit into {bits} bits")
    if bits == 1:
        return np.packbits(codes, bitorder="little").tobytes()
    if bits == 8:
        return codes.tobytes()
    planes = np.unpackbits(codes[:, None], axis=1, count=bits, bitorder="little")
    return np.packbits(planes.ravel(), bitorder="little").tobytes()


def unpack(payload: bytes | memoryview, count: int, bits: int) -> Codes:
    """The inverse of `pack`; refuses a wrong length and non-zero padding."""
    parameters.integer("bits", bits, low=1, high=8, remedy="codes have 1 to 8 bits")
    if len(payload) != packed_size(count, bits):
        raise WireError(
            f"payload has {len(payload)} bytes, but {count} codes of {bits} bits take "
            f"{packed_size(count, bits)}"
        )
    flat = np.unpackbits(np.frombuffer(payload, dtype=np.uint8), bitorder="little")
    if flat[count * bits :].any():
        raise WireError("the padding bits after the last code are not zero")
    planes = flat[: count * bits].reshape(count, bits)
    return np.packbits(planes, axis=1, bitorder="little").ravel()
