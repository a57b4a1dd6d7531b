"""Packed codes: codes of a fixed number of bits without gaps, and their checks.

Code i of b bits takes bits i*b ... i*b + b - 1 of a payload, the lowest bit of a byte first.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.domains import plain_array
from sottovoce.core.errors import WireError
from sottovoce.core.native import native
from sottovoce.core.threads import over_rows

UnsignedCodes = NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.uint32]
Octets = bytes | bytearray | memoryview | NDArray[np.uint8]

MAX_BITS = 32
_BYTE_BITS = 8


def packed_size(count: int, bits: int) -> int:
    """Return the number of bytes that `count` codes of `bits` bits take."""
    return (count * bits + 7) // 8


def pack(codes: UnsignedCodes, bits: int) -> bytes:
    """Pack codes of a fixed number of bits without gaps, the lowest bit of each code first.

    Args:
        codes: Unsigned integers below 2^bits.
        bits: The number of bits of each code, from 1 to 32.

    Returns:
        The packed codes; the unused bits of the last byte are zero.

    Raises:
        WireError: A code needs more than `bits` bits, or is negative; or these are no integers in a
            vector.
        ParameterError: `bits` is out of range.

    Examples:
        >>> pack(np.array([1, 2, 3], dtype=np.uint8), bits=2).hex()
        '39'
    """
    dtype, codes = _little_endian(bits), plain_array(codes)
    kernels = native()
    if kernels is None or codes.dtype != dtype.newbyteorder("=") or codes.ndim != 1:
        return _pack(codes, bits, dtype)
    words = np.ascontiguousarray(codes)
    payload = np.empty(packed_size(words.size, bits), dtype=np.uint8)
    seen = kernels.library.pack(kernels.level, words, bits, payload)
    _refuse_beyond(seen, codes, bits)
    return payload.tobytes()


def _pack(codes: UnsignedCodes, bits: int, dtype: np.dtype[Any]) -> bytes:
    if codes.dtype.kind not in "uib" or codes.ndim != 1:
        raise WireError(
            f"expected a vector of unsigned integers, got {codes.dtype} of shape {codes.shape}"
        )
    if codes.size:
        if codes.min() < 0:
            raise WireError(f"expected unsigned codes, got code {int(codes.min())}")
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
        raise WireError(f"expected codes of {bits} bits, got code {int(codes.max())}")


def unpack(payload: Octets, count: int, bits: int) -> UnsignedCodes:
    """Unpack codes that `pack` has packed.

    Args:
        payload: The packed bytes.
        count: The number of codes.
        bits: The number of bits of each code, from 1 to 32.

    Returns:
        The codes in the smallest unsigned type of 8, 16 or 32 bits that holds `bits` bits.

    Raises:
        WireError: The payload has a wrong length, or nonzero bits after the last code.
        ParameterError: `bits` is out of range.

    Examples:
        >>> unpack(bytes.fromhex("39"), count=3, bits=2).tolist()
        [1, 2, 3]
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
    """A packed message of `count` codes 0 ... levels - 1, checked on construction.

    The payload is kept by reference if it is immutable, else copied.

    Raises:
        WireError: The payload has a wrong length, nonzero bits after the last code, or a code that
            is not below `levels`.
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
            raise WireError(f"expected codes below {levels}, got code {largest}")

    def codes(self) -> UnsignedCodes:
        """Return the `count` codes in the smallest unsigned type that holds their bits."""
        return unpack(self.payload, self.count, self.bits)

    def _largest(self) -> int:
        kernels = native()
        if kernels is None or self.bits > _BYTE_BITS:
            return int(self.codes().max())
        found: int = kernels.library.largest(kernels.level, self.payload, self.count, self.bits)
        return found


def check_rows(payloads: NDArray[np.uint8], *, count: int, levels: int) -> None:
    """Raise WireError unless each row of a matrix of bytes is a payload that `PackedCodes` accepts.

    Args:
        payloads: The packed messages, one in each row.
        count: The number of codes in a message.
        levels: Codes must be below it.
    """
    bits = (levels - 1).bit_length()
    size = packed_size(count, bits)
    if not isinstance(payloads, np.ndarray):
        raise WireError(
            f"expected payloads as the rows of a uint8 array, got {type(payloads).__name__}"
        )
    if payloads.dtype != np.uint8 or payloads.ndim != 2 or payloads.shape[1] != size:
        raise WireError(
            f"expected uint8 payloads of shape (clients, {size}) for {count} codes of {bits} bits, "
            f"got {payloads.dtype} of shape {payloads.shape}"
        )
    if levels < 1 << bits and (largest := _largest_in_rows(payloads, count, bits)) >= levels:
        raise WireError(f"expected codes below {levels}, got code {largest}")
    used = 8 - (8 * size - count * bits)
    if used < 8 and (payloads[:, -1] >> used).any():
        raise WireError("expected zero padding bits after the last code, got other bits")


def _largest_in_rows(payloads: NDArray[np.uint8], count: int, bits: int) -> int:
    """Return the largest code of all rows of a matrix; 0 if there is none."""
    kernels = native()
    if kernels is None or bits > _BYTE_BITS:
        return max((int(unpack(row, count, bits).max(initial=0)) for row in payloads), default=0)
    rows, found = np.ascontiguousarray(payloads), [0]

    def work(begin: int, end: int) -> None:
        found.append(kernels.library.largest_in_rows(kernels.level, rows, count, bits, begin, end))

    if rows.size:
        over_rows(work, len(rows), count)
    return max(found)


def _view(payload: Octets) -> memoryview:
    # Older type stubs do not know that an array supports the buffer protocol; its `data` does.
    return payload.data if isinstance(payload, np.ndarray) else memoryview(payload)


def _checked(payload: Octets, count: int, bits: int) -> memoryview:
    """Return the bytes of a payload; raise WireError for a wrong length or nonzero padding."""
    view = _view(payload)
    plain = view.contiguous and view.ndim == 1 and view.format == "B"
    octets = view if plain else memoryview(view.tobytes())
    if len(octets) != packed_size(count, bits):
        raise WireError(
            f"expected a payload of {packed_size(count, bits)} bytes for {count} codes of {bits} "
            f"bits, got {len(octets)} bytes"
        )
    spare = 8 * len(octets) - count * bits
    if spare and octets[-1] >> (8 - spare):
        raise WireError("expected zero padding bits after the last code, got other bits")
    return octets


def _little_endian(bits: int) -> np.dtype[Any]:
    """Return the smallest unsigned type that holds `bits` bits, in little-endian byte order."""
    parameter_rules.integer(
        "bits", bits, low=1, high=MAX_BITS, remedy="choose between 1 and 32 bits"
    )
    return np.dtype("u1" if bits <= 8 else "<u2" if bits <= 16 else "<u4")
