"""Keystreams that spell chosen uniform numbers, and exact readings of the numbers that keys spell.

Planted keystreams are for the numpy samplers: the kernels in C draw their stream from the key.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.randomness import Keystream

KEY = bytes(range(32))
FURTHER_BITS = 64  # that follow a draw in the second stage
FURTHER_BYTES = 16  # that the third stage reads first


class Planted(Keystream):
    """Coordinate i spells numbers[i], of the draw's bits and 64 more, and goes on as ever."""

    __slots__ = ("_draw_bits", "_numbers")

    def __init__(self, numbers: Sequence[int], draw_bits: int = 16) -> None:
        super().__init__(KEY)
        assert all(0 <= number < 1 << draw_bits + FURTHER_BITS for number in numbers)
        self._numbers = list(numbers)
        self._draw_bits = draw_bits

    def draws(self, bits: int, count: int) -> NDArray[Any]:
        self.spend()
        assert count == len(self._numbers)
        return self.draws_at(bits, np.arange(count)).astype(f"u{bits // 8}")

    def draws_at(self, bits: int, coordinates: NDArray[np.int64]) -> NDArray[np.uint32]:
        return np.array([self.draw(bits, int(i)) for i in coordinates], dtype=np.uint32)

    def draw(self, bits: int, coordinate: int) -> int:
        assert bits == self._draw_bits
        return self._numbers[coordinate] >> FURTHER_BITS

    def extensions(self, coordinates: NDArray[np.int64]) -> NDArray[np.uint64]:
        words = [int.from_bytes(self.extension(int(i), 8), "big") for i in coordinates]
        return np.array(words, dtype=np.uint64)

    def extension(self, coordinate: int, num_bytes: int) -> bytes:
        planted = (self._numbers[coordinate] % (1 << FURTHER_BITS)).to_bytes(8, "big")
        return (planted + super().extension(coordinate, max(num_bytes, 8))[8:])[:num_bytes]


class PlantedNumber(Keystream):
    """One coordinate that spells a draw and 64 bytes more; `asked` says how far it was read."""

    __slots__ = ("_rest", "_word", "asked")

    def __init__(self, word: int, rest: int) -> None:
        super().__init__(KEY)
        self._word = word
        self._rest = rest.to_bytes(64, "big")
        self.asked: list[int] = []

    def draws(self, bits: int, count: int) -> NDArray[Any]:
        assert count == 1
        return np.array([self._word], dtype=f"u{bits // 8}")

    def draws_at(self, bits: int, coordinates: NDArray[np.int64]) -> NDArray[np.uint32]:
        assert coordinates.tolist() == [0]
        return np.array([self._word], dtype=np.uint32)

    def draw(self, bits: int, coordinate: int) -> int:
        assert coordinate == 0
        return self._word

    def extensions(self, coordinates: NDArray[np.int64]) -> NDArray[np.uint64]:
        assert coordinates.tolist() == [0]
        return np.array([int.from_bytes(self.extension(0, 8), "big")], dtype=np.uint64)

    def extension(self, coordinate: int, num_bytes: int) -> bytes:
        self.asked.append(num_bytes)
        assert num_bytes <= 64, "the planted number should have been decided by now"
        return self._rest[:num_bytes]


def uniform_number(keystream: Keystream, bits: int, coordinate: int) -> tuple[int, int]:
    """What a coordinate spells, with 16 bytes more than its draw, and how many bits that is."""
    word = keystream.draw(bits, coordinate)
    further = int.from_bytes(keystream.extension(coordinate, FURTHER_BYTES), "big")
    return word << 8 * FURTHER_BYTES | further, bits + 8 * FURTHER_BYTES
