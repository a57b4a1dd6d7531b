"""Packed codes of 1 to 32 bits, no gaps: code i takes bits i*b ... i*b + b - 1, lowest first."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.errors import WireError
from sottovoce.core.native import native

UnsignedCodes = NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.uint32]
Octets = bytes | bytearray | memoryview | NDArray[np.uint8]

MAX_BITS = 32
_BYTE_BITS = 8


def packed_size(count: int, bits: int) -> int:
    """Bytes that `count` codes of `bits` bits take."""
    return (count * bits + 7) // 8


def pack(codes: UnsignedCodes, bits: int) -> bytes:
    """The packed codes; the unused bits of the last byte are zero."""
    dtype = _little_endian(bits)
    kernels = native()
    if kernels is None or codes.dtype != dtype.newbyteorder("="):
        return _pack(codes, bits, dtype)
    words = np.ascontiguousarray(codes)
    payload = np.empty(packed_size(words.size, bits), dtype=np.uint8)
    seen = kernels.library.pack(kernels.level, words, bits, payload)
    _refuse_beyond(seen, codes, bits)
    return payload.tobytes()


def _pack(codes: UnsignedCodes, bits: int, dtype: np.dtype[Any]) -> bytes:
    if codes.size:
        _refuse_beyond(int(codes.max()), codes, bits)
    if bits == 1:
        return np.packbits(codes.astype(np.uint8, copy=False), bitorder="little").tobytes()
    words = np.ascontiguousarray(codes, dtype=dtype)
    if bits == 8 * dtype.itemsize:
        return words.tobytes()
    octets = words.view(np.uint8).reshape(len(words), dtype.itemsize)
    planes = np.unpackbits(octets, axis=1, count=bits, bitorder="little")
    return np.packbits(planes.ravel(), bitorder="little").tobytes()


def _refuse_beyond(seen: int, codes: UnsignedCodes, bits: int) -> None:
    if seen >> bits:
        raise WireError(f"code {int(codes.max())} does not fit into {bits} bits")


def unpack(payload: Octets, count: int, bits: int) -> UnsignedCodes:
    """The inverse of `pack`; refuses a wrong length and non-zero padding.

    The codes come in the smallest unsigned type of 8, 16 or 32 bits that holds `bits` bits.
    """
    dtype = _little_endian(bits)
    octets = _checked(payload, count, bits)
    if bits == 8 * dtype.itemsize:
        return np.frombuffer(octets, dtype=dtype).astype(dtype.newbyteorder("="))
    kernels = native()
    if kernels is None:
        return _unpack(octets, count, bits, dtype)
    codes = np.empty(count, dtype=dtype.newbyteorder("="))
    kernels.library.unpack(kernels.level, octets, bits, codes)
    return codes


def _unpack(payload: memoryview, count: int, bits: int, dtype: np.dtype[Any]) -> UnsignedCodes:
    flat = np.unpackbits(np.frombuffer(payload, dtype=np.uint8), bitorder="little")
    if bits == 1:
        return flat[:count]
    planes = flat[: count * bits].reshape(count, bits)
    octets = np.zeros((count, dtype.itemsize), dtype=np.uint8)
    packed = np.packbits(planes, axis=1, bitorder="little")
    octets[:, : packed.shape[1]] = packed
    return octets.view(dtype).ravel().astype(dtype.newbyteorder("="), copy=False)


class PackedCodes:
    """`count` codes 0 ... levels - 1, still packed, and checked: whoever holds one can add it up.

    The payload is kept by reference if nobody can change it, else copied.
    """

    __slots__ = ("bits", "count", "levels", "payload")

    def __init__(self, payload: Octets, *, count: int, levels: int) -> None:
        self.levels = parameter_rules.integer("levels", levels, low=2, high=2**MAX_BITS)
        self.count = count
        self.bits = (levels - 1).bit_length()
        view = _view(payload)
        fixed = isinstance(view.obj, bytes) and view.contiguous
        self.payload = _checked(view if fixed else view.tobytes(), count, self.bits)
        if count and levels < 1 << self.bits and (largest := self._largest()) >= levels:
            raise WireError(f"code {largest} is not below the {levels} levels")

    def codes(self) -> UnsignedCodes:
        return unpack(self.payload, self.count, self.bits)

    def _largest(self) -> int:
        kernels = native()
        if kernels is None or self.bits > _BYTE_BITS:
            return int(self.codes().max())
        found: int = kernels.library.largest(kernels.level, self.payload, self.count, self.bits)
        return found


def check_rows(payloads: NDArray[np.uint8], *, count: int, levels: int) -> None:
    """Refuses a matrix unless each of its rows is a payload that `PackedCodes` takes."""
    bits = (levels - 1).bit_length()
    size = packed_size(count, bits)
    if payloads.dtype != np.uint8 or payloads.ndim != 2 or payloads.shape[1] != size:
        raise WireError(
            f"payloads are {payloads.dtype} of shape {payloads.shape}, but rows of {count} codes "
            f"of {bits} bits are uint8 of shape (clients, {size})"
        )
    if levels < 1 << bits:
        for row in payloads:
            PackedCodes(row, count=count, levels=levels)
    used = 8 - (8 * size - count * bits)
    if used < 8 and (payloads[:, -1] >> used).any():
        raise WireError("the padding bits after the last code are not zero")


def _view(payload: Octets) -> memoryview:
    # An array's `data` is the buffer that older type stubs do not see in it.
    return payload.data if isinstance(payload, np.ndarray) else memoryview(payload)


def _checked(payload: Octets, count: int, bits: int) -> memoryview:
    """The bytes of a payload that has as many as it should, and zeros after the last code."""
    view = _view(payload)
    plain = view.contiguous and view.ndim == 1 and view.format == "B"
    octets = view if plain else memoryview(view.tobytes())
    if len(octets) != packed_size(count, bits):
        raise WireError(
            f"payload has {len(octets)} bytes, but {count} codes of {bits} bits take "
            f"{packed_size(count, bits)}"
        )
    spare = 8 * len(octets) - count * bits
    if spare and octets[-1] >> (8 - spare):
        raise WireError("the padding bits after the last code are not zero")
    return octets


def _little_endian(bits: int) -> np.dtype[Any]:
    """The smallest unsigned type that holds `bits` bits, in the byte order of the wire."""
    parameter_rules.integer("bits", bits, low=1, high=MAX_BITS, remedy="codes have 1 to 32 bits")
    return np.dtype("u1" if bits <= 8 else "<u2" if bits <= 16 else "<u4")
