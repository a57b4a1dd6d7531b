"""The signs of seeds and their inner products with weights, in numpy."""

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.randomness import Keystream

_CHUNK = 1 << 18  # The number of coordinates that are unpacked at once.


def sign_row(key: bytes, count: int) -> NDArray[np.uint8]:
    """Return the first `count` bits of a key's ChaCha20 stream with nonce 0, packed.

    The lowest bit of a byte comes first; unused bits are 0. A key has 32 bytes.
    """
    words = Keystream(key).words(-(-count // 64)).astype("<u8", copy=False)
    row = words.view(np.uint8)[: -(-count // 8)].copy()
    if count % 8:
        row[-1] &= (1 << count % 8) - 1
    return row


def score(key: bytes, weights: NDArray[np.int16]) -> int:
    """Return sum_i b_i w_i, exactly: b_i is +1 if bit i of `sign_row` is 1, and -1 if it is 0."""
    row = sign_row(key, len(weights))
    total = 0
    for start in range(0, len(weights), _CHUNK):
        part = weights[start : start + _CHUNK].astype(np.int64)
        packed = row[start // 8 : (start + _CHUNK) // 8]
        bits = np.unpackbits(packed, count=len(part), bitorder="little")
        total += int(part @ (2 * bits.astype(np.int64) - 1))
    return total
