"""The assignment of sub-questions to people, from the question's seed and a person's number.

Person i gets the 64-bit word mix(key + (i + 1) * 0x9E3779B97F4A7C15) of SplitMix64, where the key
is a digest of the question's seed and the name of the draw. The assignment never depends on a
value, so a person reveals nothing but the code.

Where every code is sent, people are numbered one after the other and the assignment is public.
Where only counts over all people are revealed, each person draws a secret number
(`secret_numbers`): if it were public who answers what, a person would hide only among those with
the same sub-question. With secret numbers all people send sub-question and code by one and the same
random map, so each hides among all.

Reference: Steele, Lea and Flood 2014 (SplitMix64).
"""

import hashlib
import os
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Keystream, Randomness

#: The number of the first of several people who are numbered one after the other, or the number of
#: each of them.
PersonNumbers: TypeAlias = "int | NDArray[np.uint64]"

MAX_SEED = 2**63 - 1
MAX_PEOPLE = 2**48
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_HALF_WORD = np.uint64(32)


def check_seed(seed: int) -> int:
    """Return the seed; raise ParameterError unless it is an integer from 0 to 2^63 - 1."""
    return parameter_rules.integer("seed", seed, low=0, high=MAX_SEED)


def secret_numbers(count: int) -> NDArray[np.uint64]:
    """Return a number from 0 to 2^48 - 1 for each of `count` persons, from the operating system.

    They are uniform, independent, and must be forgotten once the people are tallied.
    """
    parameter_rules.integer("count", count, low=0, high=MAX_PEOPLE)
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(16)


def stream_of(randomness: Randomness, draw: str, first: PersonNumbers) -> Keystream:
    """Return the keystream of the answers of people with these numbers."""
    if not isinstance(first, np.ndarray):
        return randomness.stream(draw, first)
    if randomness.grade == "seeded":
        raise ParameterError(
            "secret numbers need randomness from the operating system; use SystemRandomness"
        )
    return randomness.stream(draw)


def assign_choices(
    seed: int, draw: str, first: PersonNumbers, count: int, choices: int
) -> NDArray[np.int64]:
    """Return a number from 0 to choices - 1 for each of `count` persons, drawn uniformly.

    The persons are first, first + 1, ..., or have the numbers `first`. What a person gets follows
    from the seed, the name `draw` and the person's number. Raise ParameterError if an argument is
    out of range.
    Each probability is within choices/2^32 of 1/choices in relative terms, and exact if `choices`
    is a power of two.
    """
    parameter_rules.integer("choices", choices, low=1, high=2**31)
    top = _words(seed, draw, first, count) >> _HALF_WORD
    return ((top * np.uint64(choices)) >> _HALF_WORD).astype(np.int64)


def _words(seed: int, draw: str, first: PersonNumbers, count: int) -> NDArray[np.uint64]:
    parameter_rules.integer("count", count, low=0, high=MAX_PEOPLE)
    if not isinstance(first, np.ndarray):
        parameter_rules.integer("first", first, low=0, high=MAX_PEOPLE)
        numbers = np.arange(first + 1, first + 1 + count, dtype=np.uint64)
    elif len(first) != count:
        raise ParameterError(
            f"expected the numbers of {count} people, got {len(first)}; give one for each person"
        )
    else:
        numbers = first + np.uint64(1)
    text = f"{check_seed(seed)}:{draw}".encode()
    key = np.uint64(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))
    mixed = key + numbers * _GOLDEN  # Arrays of uint64 wrap around modulo 2^64.
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
