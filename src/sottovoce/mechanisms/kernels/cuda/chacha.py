"""ChaCha20 (RFC 8439) in Triton: each lane computes a block, sixteen 32-bit words in registers.

In the stream with nonce 0 only the counter varies, so the first quarter rounds of columns 1 to 3
are the same in every block; a program computes them once, when it loads a key.
"""

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

KEY_WORDS = 8


def key_words(keys: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return the 8 words that a kernel reads for each key, from a matrix with a key in each row."""
    return np.ascontiguousarray(keys).view("<i4").astype(np.int32, copy=False)


@triton.jit
def _turned(x, by: tl.constexpr):
    return (x << by) | (x >> (32 - by))


@triton.jit
def _quarter(a, b, c, d):
    a = a + b
    d = _turned(d ^ a, 16)
    c = c + d
    b = _turned(b ^ c, 12)
    a = a + b
    d = _turned(d ^ a, 8)
    c = c + d
    b = _turned(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _columns(
    s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,
):  # fmt: skip
    s0, s4, s8, s12 = _quarter(s0, s4, s8, s12)
    s1, s5, s9, s13 = _quarter(s1, s5, s9, s13)
    s2, s6, s10, s14 = _quarter(s2, s6, s10, s14)
    s3, s7, s11, s15 = _quarter(s3, s7, s11, s15)
    return s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15


@triton.jit
def _diagonals(
    s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,
):  # fmt: skip
    s0, s5, s10, s15 = _quarter(s0, s5, s10, s15)
    s1, s6, s11, s12 = _quarter(s1, s6, s11, s12)
    s2, s7, s8, s13 = _quarter(s2, s7, s8, s13)
    s3, s4, s9, s14 = _quarter(s3, s4, s9, s14)
    return s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15


@triton.jit
def _double_round(s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15):
    s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15 = _columns(
        s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15
    )
    return _diagonals(s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15)


@triton.jit
def _word(key, j: tl.constexpr, like):
    """Return word j at `key` (a pointer, or one for each lane), in the shape of `like`."""
    return tl.load(key + j).to(tl.uint32, bitcast=True) + tl.zeros_like(like)


@triton.jit
def load_key(key, like):
    """Load the 8 words at `key` and compute columns 1 to 3 after their first quarter rounds.

    Returns:
        The 20 numbers that `main_block` takes, each in the shape of `like`.
    """
    k0, k1, k2, k3 = _four_words(key, 0, like)
    k4, k5, k6, k7 = _four_words(key, 4, like)
    zero = tl.zeros_like(k0)
    a1, b1, c1, d1 = _quarter(zero + 0x3320646E, k1, k5, zero)
    a2, b2, c2, d2 = _quarter(zero + 0x79622D32, k2, k6, zero)
    a3, b3, c3, d3 = _quarter(zero + 0x6B206574, k3, k7, zero)
    return k0, k1, k2, k3, k4, k5, k6, k7, a1, b1, c1, d1, a2, b2, c2, d2, a3, b3, c3, d3


@triton.jit
def main_block(counter, key):
    """Return the sixteen words of block `counter` (uint32) of a key's stream with nonce 0.

    `key` is what `load_key` returns.
    """
    k0, k1, k2, k3, k4, k5, k6, k7, s1, s5, s9, s13, s2, s6, s10, s14, s3, s7, s11, s15 = key
    zero = tl.zeros_like(counter)
    s0, s4, s8, s12 = _quarter(zero + 0x61707865, k0, k4, counter)
    s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15 = _diagonals(
        s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15
    )
    # Unrolled, the loop would be 4% faster, but take half a minute to compile.
    for _ in range(9):
        s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15 = _double_round(
            s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15
        )
    return (
        s0 + 0x61707865, s1 + 0x3320646E, s2 + 0x79622D32, s3 + 0x6B206574,
        s4 + k0, s5 + k1, s6 + k2, s7 + k3, s8 + k4, s9 + k5, s10 + k6, s11 + k7,
        s12 + counter, s13, s14, s15,
    )  # fmt: skip


@triton.jit
def _four_words(key, j: tl.constexpr, like):
    return (
        _word(key, j, like), _word(key, j + 1, like),
        _word(key, j + 2, like), _word(key, j + 3, like),
    )  # fmt: skip


@triton.jit
def extension(key, coordinate):
    """Return the 64 random bits that follow a coordinate's draw, as a uint64.

    They are the first 64 bits, big-endian, of the key's ChaCha20 stream with nonce coordinate + 1.
    """
    nonce = coordinate.to(tl.uint64) + 1
    low = nonce.to(tl.uint32)
    high = (nonce >> 32).to(tl.uint32)
    zero = tl.zeros_like(low)
    k0, k1, k2, k3 = _four_words(key, 0, low)
    k4, k5, k6, k7 = _four_words(key, 4, low)
    s0, s1, s2, s3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    s4, s5, s6, s7, s8, s9, s10, s11 = k0, k1, k2, k3, k4, k5, k6, k7
    s12, s13, s14, s15 = zero, low, high, zero
    for _ in range(10):
        s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15 = _double_round(
            s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15
        )
    first, second = s0 + 0x61707865, s1 + 0x3320646E
    return (_bytes_reversed(first).to(tl.uint64) << 32) | _bytes_reversed(second).to(tl.uint64)


@triton.jit
def _bytes_reversed(x):
    return (x << 24) | ((x & 0xFF00) << 8) | ((x >> 8) & 0xFF00) | (x >> 24)
