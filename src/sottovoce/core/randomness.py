"""ChaCha20 keystreams: the only source of randomness a mechanism ever sees.

A keystream serves one input. Two sources hand them out: SystemRandomness, whose keys come from the
operating system and are forgotten (deployment), and SeededRandomness, whose keys are derived from a
seed and a label, so that a simulation can be repeated. A run records which of the two it used.

Layout (fixed, so that every kernel gives the same codes from the same key). Kernels read *draws* of
16 or 32 bits from the stream with nonce 0, cut into tiles of 32 blocks: with n draws to a block,
coordinate i = 32 n t + 32 k + l reads draw k of block 32 t + l, little-endian. So neighbouring
coordinates find their draws in the same word of neighbouring blocks, which is how processors and
GPUs compute ChaCha20. Where a draw does not decide a code, its coordinate reads on in the stream
with nonce i + 1. Everything else reads the little-endian 64-bit words of the stream with nonce 0.
"""

import hashlib
import os
from enum import Enum
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError, RandomnessError
from sottovoce.core.native import native as native_kernels

Grade = Literal["system", "seeded"]

_KEY_BYTES = 32
_CHUNK_BYTES = 1 << 16
# The 32-bit block counter of ChaCha20 ends here.
_MAX_STREAM_BYTES = 64 * 2**32
_MAIN, _COMMITMENT = 0, 2**96 - 1
_WORD = 2**64
_TILE_BLOCKS = 32
_TILE_BYTES = 64 * _TILE_BLOCKS
_ZEROS = memoryview(bytes(_CHUNK_BYTES))


class Spelled(NamedTuple):
    """Uniform numbers 0.word,extension... of some coordinates, as far as 64 bits after the draw."""

    coordinates: NDArray[np.int64]
    words: NDArray[np.unsignedinteger]
    extensions: NDArray[np.uint64]


class Keystream:
    """One ChaCha20 keystream; it may be drawn from once.

    `grade` is its source's. A seeded one hides nothing from who has the seed, so what it serves
    need not hide how long it takes either.
    """

    __slots__ = ("_key", "_spent", "grade")

    def __init__(self, key: bytes, *, grade: Grade = "system") -> None:
        if len(key) != _KEY_BYTES:
            raise ParameterError(f"a ChaCha20 key has {_KEY_BYTES} bytes, got {len(key)}")
        self._key = key
        self._spent = False
        self.grade = grade

    def words(self, count: int) -> NDArray[np.uint64]:
        """The first `count` 64-bit words; a second call is refused."""
        self.spend()
        parameter_rules.integer("count", count, low=0, high=_MAX_STREAM_BYTES // 8)
        return np.frombuffer(self._bytes(_MAIN, 8 * count), dtype="<u8").astype(
            np.uint64, copy=False
        )

    def draws(self, bits: int, count: int) -> NDArray[Any]:
        """The draws of coordinates 0 to count - 1, in place of `words`: one of the two, once."""
        tile = _tile_draws(bits)
        key, native = self.spend(), native_kernels()
        parameter_rules.integer("count", count, low=0, high=8 * _MAX_STREAM_BYTES // bits)
        tiles = -(-count // tile)
        if native is not None:
            found = np.empty(tiles * tile, dtype=f"u{bits // 8}")
            native.library.draws(native.level, key, bits, 0, found)
            return found[:count]
        stream = np.frombuffer(self._bytes(_MAIN, tiles * _TILE_BYTES), dtype=f"<u{bits // 8}")
        blocks = stream.reshape(tiles, _TILE_BLOCKS, tile // _TILE_BLOCKS)
        interleaved = blocks.transpose(0, 2, 1).astype(f"u{bits // 8}").ravel()
        return np.asarray(interleaved[:count])

    def draws_at(self, bits: int, coordinates: NDArray[np.int64]) -> NDArray[np.uint32]:
        """The draws of some coordinates, again: for those that they left undecided."""
        native = native_kernels()
        if native is None:
            return np.array([self.draw(bits, int(i)) for i in coordinates], dtype=np.uint32)
        found = np.empty(len(coordinates), dtype=np.uint32)
        numbers = np.ascontiguousarray(coordinates, np.int64)
        native.library.draws_at(self._key, bits, numbers, found)
        return found

    def draw(self, bits: int, coordinate: int) -> int:
        """One coordinate's draw, again."""
        tile, rest = divmod(coordinate, _tile_draws(bits))
        place, block = divmod(rest, _TILE_BLOCKS)
        view = memoryview(bytearray(64))
        self._fill(_MAIN, view, _TILE_BLOCKS * tile + block)
        size = bits // 8
        return int.from_bytes(view[size * place : size * (place + 1)], "little")

    def spend(self) -> bytes:
        """The key, once: for a kernel that draws the stream itself."""
        if self._spent:
            raise RandomnessError(
                "this keystream has served an input already; take a fresh one with stream()"
            )
        self._spent = True
        return self._key

    def extensions(self, coordinates: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The first 64 bits that each of these coordinates reads on with."""
        native = native_kernels()
        if native is None:
            words = [int.from_bytes(self.extension(int(i), 8), "big") for i in coordinates]
            return np.array(words, dtype=np.uint64)
        found = np.empty(len(coordinates), dtype=np.uint64)
        native.library.extensions(self._key, np.ascontiguousarray(coordinates, np.int64), found)
        return found

    def spelled(self, bits: int, coordinates: NDArray[np.int64]) -> Spelled:
        """The draws of some coordinates, again, and what they read on with."""
        words = self.draws_at(bits, coordinates)
        return Spelled(coordinates, words, self.extensions(coordinates))

    def extension(self, coordinate: int, num_bytes: int) -> bytes:
        """Further bytes for one coordinate that its draw left undecided."""
        parameter_rules.integer("coordinate", coordinate, low=0, high=_COMMITMENT - 2)
        return bytes(self._bytes(coordinate + 1, num_bytes))

    def commitment(self, data: bytes) -> bytes:
        """A keyed digest of the input this stream is for; tells nothing without the key."""
        key = bytes(self._bytes(_COMMITMENT, 64))
        return hashlib.blake2b(data, key=key, digest_size=16).digest()

    def _bytes(self, nonce: int, count: int) -> bytearray:
        stream = bytearray(count)
        self._fill(nonce, memoryview(stream))
        return stream

    def _fill(self, nonce: int, view: memoryview, first_block: int = 0) -> None:
        counter_and_nonce = first_block.to_bytes(4, "little") + nonce.to_bytes(12, "little")
        cipher = Cipher(ChaCha20(self._key, counter_and_nonce), mode=None).encryptor()
        for start in range(0, len(view), _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, len(view) - start)
            cipher.update_into(_ZEROS[:size], view[start : start + size])


def _tile_draws(bits: int) -> int:
    if bits not in (16, 32):
        raise ParameterError(f"draws have 16 or 32 bits, got {bits!r}")
    return 8 * _TILE_BYTES // bits


def open_uniforms(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Uniform numbers in the open interval (0, 1): 53 bits of each word, centred in their cell."""
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def uniform_below(bound: int, word: int, keystream: Keystream, coordinate: int = 0) -> int:
    """A uniform integer below `bound`, exactly (Lemire 2019): by `word`, or further ones.

    `word` is the coordinate's own 64 bits; further ones come from its extension.
    """
    taken = 0
    while True:
        product = word * bound
        if product % _WORD >= _WORD % bound:
            return product // _WORD
        taken += 8
        word = int.from_bytes(keystream.extension(coordinate, taken)[-8:], "little")


def permutation(count: int, keystream: Keystream) -> list[int]:
    """The numbers 0 to count - 1 in a uniformly random order (Fisher and Yates; Durstenfeld 1964).

    Each swap takes an exactly uniform partner, so no order is likelier than another.
    """
    order = list(range(count))
    words = keystream.words(count).tolist()
    for last in range(count - 1, 0, -1):
        partner = uniform_below(last + 1, words[last], keystream, last)
        order[last], order[partner] = order[partner], order[last]
    return order


class Randomness(Protocol):
    """A source of keystreams."""

    @property
    def grade(self) -> Grade: ...

    def stream(self, *label: str | int) -> Keystream:
        """A keystream for the one input that `label` names."""
        ...


class SystemRandomness:
    """Fresh keys from the operating system: for deployment. Labels are not needed."""

    grade: Grade = "system"

    def stream(self, *label: str | int) -> Keystream:
        return Keystream(os.urandom(_KEY_BYTES))


class SeededRandomness:
    """Keys derived from a seed and a label: for simulation and tests, by explicit choice.

    key(label) = BLAKE2b-256(length-prefixed label parts, key = seed)
    """

    grade: Grade = "seeded"
    __slots__ = ("_root",)

    def __init__(self, seed: int) -> None:
        parameter_rules.integer("seed", seed, low=0, high=2**128 - 1)
        self._root = int(seed).to_bytes(16, "little")

    def stream(self, *label: str | int) -> Keystream:
        if not label:
            raise RandomnessError(
                "a seeded stream needs a label that names its one input, such as client and round: "
                "without one, all inputs would share a keystream"
            )
        return Keystream(self._derive("keystream", *label), grade=self.grade)

    def generator(self, *label: str | int) -> np.random.Generator:
        """A numpy generator for what needs no secrecy: partitions, initial weights, cohorts."""
        seed = int.from_bytes(self._derive("generator", *label), "little")
        return np.random.Generator(np.random.PCG64(seed))

    def _derive(self, *label: str | int) -> bytes:
        if any(isinstance(part, Enum) for part in label):
            raise RandomnessError(
                "a label holds text and whole numbers; an enumeration would put the name of its "
                "class into the keystream, so convert it with str()"
            )
        # The type is part of the label: 1 and "1" are different clients.
        parts = [f"{type(part).__name__}:{part}".encode() for part in label]
        prefixed = b"".join([len(part).to_bytes(4, "little") + part for part in parts])
        return hashlib.blake2b(prefixed, key=self._root, digest_size=_KEY_BYTES).digest()
