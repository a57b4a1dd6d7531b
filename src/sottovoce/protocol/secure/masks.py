"""Masks: keystreams that are added to integer codes modulo 2^k and cancel in the sum.

A mask is the ChaCha20 keystream (RFC 8439) of its own key, with nonce 0 and counter 0: one byte a
coordinate for k <= 8 bits, two for k <= 16 and four for k <= 32, little-endian, reduced modulo 2^k.
Masks only ever cover integers. A key is used for one vector, so a nonce of 0 never repeats.
"""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.errors import WireError
from sottovoce.mechanisms.packing import UnsignedCodes, pack, packed_size, unpack

MAX_BITS = 32
_NONCE = bytes(16)  # counter 0 and nonce 0
_AT_ONCE = 2**17  # Coordinates of a mask that are computed at a time, so that they stay in cache.


def word_dtype(bits: int) -> np.dtype[np.unsignedinteger]:
    """Return the type of the words in which sums modulo 2^bits are computed.

    Raises:
        ParameterError: `bits` is not from 1 to 32.
    """
    parameter_rules.integer("bits", bits, low=1, high=MAX_BITS)
    size = 1 if bits <= 8 else 2 if bits <= 16 else 4
    return np.dtype(f"<u{size}")


def bits_for_sum(largest: int) -> int:
    """Return the least k such that a sum from 0 to `largest` is determined modulo 2^k.

    Raises:
        ParameterError: It would be more than 32 bits.
    """
    parameter_rules.integer("the largest sum", largest, low=1, high=2**MAX_BITS - 1)
    return largest.bit_length()


class MaskedSum:
    """A vector of integers modulo 2^bits, to which codes and masks are added in place.

    Args:
        dimension: Number of coordinates.
        bits: Number of bits of each coordinate, from 1 to 32.
    """

    def __init__(self, dimension: int, bits: int) -> None:
        self._words = np.zeros(dimension, dtype=word_dtype(bits))
        self.bits = bits

    @property
    def dimension(self) -> int:
        """Number of coordinates."""
        return len(self._words)

    @property
    def packed_bytes(self) -> int:
        """Number of bytes of `packed`."""
        return packed_size(self.dimension, self.bits)

    def add_codes(self, codes: UnsignedCodes) -> None:
        """Add integers, one for each coordinate; they wrap around modulo 2^bits.

        Raises:
            WireError: There is another number of codes, or they are no integers.
        """
        if codes.dtype.kind not in "ui":
            raise WireError(f"expected integers, got {codes.dtype}: a mask hides nothing else")
        if codes.shape != self._words.shape:
            raise WireError(f"expected {self.dimension} codes, got an array of {codes.shape}")
        self._words += codes.astype(self._words.dtype, copy=False)

    def add_mask(self, key: bytes) -> None:
        """Add the mask of a key."""
        self._mask(key, np.add)

    def subtract_mask(self, key: bytes) -> None:
        """Subtract the mask of a key."""
        self._mask(key, np.subtract)

    def _mask(self, key: bytes, apply: np.ufunc) -> None:
        stream = Cipher(ChaCha20(key, _NONCE), mode=None).encryptor()
        words = self._words
        count = min(len(words), _AT_ONCE)
        zeros, mask = bytes(count * words.itemsize), bytearray(count * words.itemsize)
        for start in range(0, len(words), max(1, count)):
            part = words[start : start + count]
            size = part.nbytes
            stream.update_into(memoryview(zeros)[:size], memoryview(mask)[:size])
            apply(part, np.frombuffer(mask, dtype=words.dtype, count=len(part)), out=part)

    def add_packed(self, payload: bytes) -> None:
        """Add a masked vector as it is sent.

        Raises:
            WireError: The payload has another length or sets unused bits.
        """
        self.add_codes(unpack(payload, self.dimension, self.bits))

    def packed(self) -> bytes:
        """Return the vector modulo 2^bits, packed without gaps."""
        return pack(self.values(), self.bits)

    def values(self) -> UnsignedCodes:
        """Return the vector modulo 2^bits as new unsigned integers."""
        if self.bits == 8 * self._words.itemsize:
            return self._words.copy()
        kept: UnsignedCodes = self._words & self._words.dtype.type(2**self.bits - 1)
        return kept

    def centered(self) -> NDArray[np.int64]:
        """Return the residues from -2^(bits-1) to 2^(bits-1) - 1, for sums of signed integers."""
        values = self.values().astype(np.int64)
        values[values >= 2 ** (self.bits - 1)] -= 2**self.bits
        return values
