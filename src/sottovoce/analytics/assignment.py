"""The public assignment of sub-questions to people, from the question's seed and a person's number.

Person i gets the 64-bit word mix(key + (i + 1) * 0x9E3779B97F4A7C15) of SplitMix64, where the key
is a digest of the question's seed and the name of the draw. The assignment can be recomputed from
public data and never depends on a value, so a person reveals nothing but the code.

Reference: Steele, Lea and Flood 2014 (SplitMix64).
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules

MAX_SEED = 2**63 - 1
MAX_PEOPLE = 2**48
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_HALF_WORD = np.uint64(32)


def check_seed(seed: int) -> int:
    """Return the seed; raise ParameterError unless it is an integer from 0 to 2^63 - 1."""
    return parameter_rules.integer("seed", seed, low=0, high=MAX_SEED)


def assign_choices(seed: int, draw: str, first: int, count: int, choices: int) -> NDArray[np.int64]:
    """Return a number from 0 to choices - 1 for each of `count` persons, drawn uniformly.

    The persons are first, first + 1, ... A person's number follows from the seed, the name `draw`
    and the person's position, and is public. Raise ParameterError if an argument is out of range.
    Each probability is within choices/2^32 of 1/choices in relative terms, and exact if `choices`
    is a power of two.
    """
    parameter_rules.integer("choices", choices, low=1, high=2**31)
    top = _words(seed, draw, first, count) >> _HALF_WORD
    return ((top * np.uint64(choices)) >> _HALF_WORD).astype(np.int64)


def _words(seed: int, draw: str, first: int, count: int) -> NDArray[np.uint64]:
    parameter_rules.integer("first", first, low=0, high=MAX_PEOPLE)
    parameter_rules.integer("count", count, low=0, high=MAX_PEOPLE)
    text = f"{check_seed(seed)}:{draw}".encode()
    key = np.uint64(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))
    numbers = np.arange(first + 1, first + 1 + count, dtype=np.uint64)
    mixed = key + numbers * _GOLDEN  # Arrays of uint64 wrap around modulo 2^64.
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
