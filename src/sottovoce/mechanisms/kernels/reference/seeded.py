"""The signs of seeds and their inner products with weights, in numpy."""

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.randomness import Keystream

_CHUNK = 1 << 18  # The number of coordinates that are unpacked at once.


def sign_row(key: bytes, count: int) -> NDArray[np.uint8]:
    """Return the first `count` bits of the stream with nonce 0, packed; unused bits are 0."""
    words = Keystream(key).words(-(-count // 64)).astype("<u8", copy=False)
    row = words.view(np.uint8)[: -(-count // 8)].copy()
    if count % 8:
        row[-1] &= (1 << count % 8) - 1
    return row


def score(key: bytes, weights: NDArray[np.int16]) -> int:
    """Return the sum of sign times weight, in integers."""
    row = sign_row(key, len(weights))
    total = 0
    for start in range(0, len(weights), _CHUNK):
        part = weights[start : start + _CHUNK].astype(np.int64)
        packed = row[start // 8 : (start + _CHUNK) // 8]
        bits = np.unpackbits(packed, count=len(part), bitorder="little")
        total += int(part @ (2 * bits.astype(np.int64) - 1))
    return total
