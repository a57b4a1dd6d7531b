"""What the machine can do at best, measured in the same run: reading memory, drawing keystreams."""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from sottovoce.core.randomness import Keystream
from sottovoce_papers.benchmarks.measurement import Contender, rates, side_by_side

_KEY = bytes(range(32))
# Small enough for a second-level cache, where neither waits for memory, and large enough that a
# call costs nothing beside it.
_CACHED_BYTES = 1 << 16
_CALLS = 16
_BEYOND_CACHES = 1 << 30  # more bytes than this are read no faster or slower


def read_rate(num_bytes: int, threads: int, seconds: float) -> float:
    """Bytes a second that are read from an array of this size: its largest word, nothing else.

    Each thread has an array of its own.
    """
    words = -(-min(num_bytes, _BEYOND_CACHES) // 8)
    arrays = [np.ones(words, dtype=np.uint64) for _ in range(threads)]
    run = side_by_side([array.max for array in arrays])
    return rates({"read": Contender(run, 8.0 * words * threads)}, seconds)["read"]


def keystream_rate(threads: int, seconds: float) -> float:
    """Bytes of ChaCha20 keystream a second: by cryptography's or by ours, whichever is faster."""
    amount = float(_CACHED_BYTES * _CALLS * threads)
    found = rates(
        {
            "theirs": Contender(side_by_side([_theirs] * threads), amount),
            "ours": Contender(side_by_side([_ours] * threads), amount),
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
