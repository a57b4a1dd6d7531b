"""Unbiased bitwise and generalized randomized response as channels on [0, 1].

Reference: Chaudhuri, Guo and Rabbat 2022, sections 3.2 and 3.3, theorems 8 and 9.
"""

import math

import numpy as np

from sottovoce.mechanisms.design.channel import ChannelMatrix


def bitwise(epsilon: float, bits: int) -> ChannelMatrix:
    """Return the channel on [0, 1] that sends each bit of the input by randomized response.

    The input is rounded at random, without bias, to one of 2^bits even levels. Each bit has
    epsilon/bits. A bit y is kept with probability 1/(1 + e^(-eps/bits)) and decoded to t with
    E[t] = y: -1/(e^(eps/bits) - 1) for 0, e^(eps/bits)/(e^(eps/bits) - 1) for 1. The letters are
    the sums sum_j 2^j t_j / (2^bits - 1).
    """
    share = epsilon / bits
    kept, flipped = 1.0 / (1.0 + math.exp(-share)), 1.0 / (1.0 + math.exp(share))
    zero, one = -1.0 / math.expm1(share), 1.0 / -math.expm1(-share)
    levels = 1 << bits
    bit = (np.arange(levels)[:, None] >> np.arange(bits)) & 1
    same = (bit[:, None, :] == bit[None, :, :]).sum(axis=2)
    rows = kept**same * flipped ** (bits - same)
    letters = np.where(bit == 1, one, zero) @ (2.0 ** np.arange(bits)) / (levels - 1)
    return ChannelMatrix(knots=np.linspace(0.0, 1.0, levels), rows=rows, letters=letters)


def k_ary(epsilon: float, levels: int) -> ChannelMatrix:
    """Return the channel on [0, 1] that keeps a level with odds e^eps to 1 against any other one.

    The input is rounded at random, without bias, to one of B even levels. With B levels,
    P_ii = e^eps/(B + e^eps - 1), else 1/(B + e^eps - 1). If output i is decoded to the letter a_i,
    row i has mean ((e^eps - 1) a_i + sum_j a_j)/(B + e^eps - 1), which is i/(B - 1) for

        a_i = 1/2 + (i/(B - 1) - 1/2) (B + e^eps - 1)/(e^eps - 1)
    """
    total = levels + math.expm1(epsilon)
    rows = np.full((levels, levels), 1.0 / total)
    np.fill_diagonal(rows, math.exp(epsilon) / total)
    knots = np.linspace(0.0, 1.0, levels)
    letters = 0.5 + (knots - 0.5) * (total / math.expm1(epsilon))
    return ChannelMatrix(knots=knots, rows=rows, letters=letters)
