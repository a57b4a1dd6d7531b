"""The limits of this machine, measured in the same run: reading memory and drawing keystreams."""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from sottovoce.core.randomness import Keystream
from sottovoce_papers.benchmarks.measurement import TimedAction, rates, side_by_side

_KEY = bytes(range(32))
# Small enough for the second-level cache, so that memory does not slow it, and large enough that
# the cost of a call is negligible.
_CACHED_BYTES = 1 << 16
_CALLS = 16
_BEYOND_CACHES = 1 << 30  # With more bytes than this, the speed of reading does not change.


def read_rate(num_bytes: int, threads: int, seconds: float) -> float:
    """Return the bytes per second that are read from an array of this size, by taking its maximum.

    Each thread has its own array.
    """
    words = -(-min(num_bytes, _BEYOND_CACHES) // 8)
    arrays = [np.ones(words, dtype=np.uint64) for _ in range(threads)]
    run = side_by_side([array.max for array in arrays])
    return rates({"read": TimedAction(run, 8.0 * words * threads)}, seconds)["read"]


def keystream_rate(threads: int, seconds: float) -> float:
    """Return bytes of ChaCha20 keystream per second: the faster of cryptography's and ours."""
    amount = float(_CACHED_BYTES * _CALLS * threads)
    found = rates(
        {
            "theirs": TimedAction(side_by_side([_theirs] * threads), amount),
            "ours": TimedAction(side_by_side([_ours] * threads), amount),
        },
        seconds,
    )
    return max(found.values())


def _theirs() -> None:
    zeros, target = bytes(_CACHED_BYTES), bytearray(_CACHED_BYTES)
    cipher = Cipher(ChaCha20(_KEY, bytes(16)), mode=None).encryptor()
    for _ in range(_CALLS):
        cipher.update_into(zeros, target)


def _ours() -> None:
    for _ in range(_CALLS):
        Keystream(_KEY).draws(16, _CACHED_BYTES // 2)
