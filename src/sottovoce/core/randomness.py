"""ChaCha20 keystreams, the only source of randomness of a mechanism.

A keystream is used for one input. There are two sources: `SystemRandomness`, whose keys come from
the operating system and are not stored (for deployment), and `SeededRandomness`, whose keys are
derived from a seed and a label, so that a simulation can be repeated. A run records which of the
two it used.

The layout is fixed, so that every kernel computes the same codes from the same key. Kernels read
*draws* of 16 or 32 bits from the stream with nonce 0, which is cut into tiles of 32 blocks: with n
draws in a block, coordinate i = 32 n t + 32 k + l reads draw k of block 32 t + l, little-endian. So
adjacent coordinates find their draws in the same word of adjacent blocks, which suits processors
and GPUs that compute ChaCha20 on several blocks at once. Where a draw does not decide a code, its
coordinate reads further bits, its *extension*, from the stream with nonce i + 1. Everything else
reads the little-endian 64-bit words of the stream with nonce 0.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol, overload

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError, RandomnessError
from sottovoce.core.native import native as native_kernels
from sottovoce.core.threads import threads_for_size

Grade = Literal["system", "seeded"]
Keys = NDArray[np.uint8]

_KEY_BYTES = 32
_CHUNK_BYTES = 1 << 16
# ChaCha20 has a 32-bit counter of blocks of 64 bytes.
_MAX_STREAM_BYTES = 64 * 2**32
_MAIN, _COMMITMENT = 0, 2**96 - 1
_WORD = 2**64
_TILE_BLOCKS = 32
_TILE_BYTES = 64 * _TILE_BLOCKS
_FEW_WORDS = 1 << 12  # Up to so many, making a cipher takes longer than the stream.
_ZEROS = memoryview(bytes(_CHUNK_BYTES))


class ExtendedDraws(NamedTuple):
    """The uniform numbers in [0, 1) of some coordinates, to 64 bits after the draw.

    The binary digits of coordinate i's number are those of its draw, then those of its extension.

    Attributes:
        coordinates: The coordinates.
        words: The draw of each coordinate, 16 or 32 bits.
        extensions: The first 64 bits of each coordinate's extension, the first one most
            significant.
    """

    coordinates: NDArray[np.int64]
    words: NDArray[np.unsignedinteger]
    extensions: NDArray[np.uint64]


class Keystream:
    """A ChaCha20 keystream that may be drawn from once.

    Args:
        key: The 32 bytes of the ChaCha20 key.
        grade: The source of the key: "system", or "seeded" for simulations.

    Attributes:
        grade: The source of the key. A seeded key is known to all who know the seed, so code that
            uses it need not run in constant time.

    Raises:
        ParameterError: The key does not have 32 bytes.
    """

    __slots__ = ("_key", "_spent", "grade")

    def __init__(self, key: bytes, *, grade: Grade = "system") -> None:
        if len(key) != _KEY_BYTES:
            raise ParameterError(f"a ChaCha20 key must have {_KEY_BYTES} bytes, got {len(key)}")
        self._key = key
        self._spent = False
        self.grade = grade

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return the first 64-bit words of the stream; this uses the keystream up.

        Args:
            count: The number of words.

        Returns:
            `count` uniform words, always the same for the same key.

        Raises:
            RandomnessError: The keystream was used before.
            ParameterError: `count` is negative, or more than the stream has (2^35 words).
        """
        key, native = self.spend(), native_kernels()
        parameter_rules.integer("count", count, low=0, high=_MAX_STREAM_BYTES // 8)
        if native is not None and count <= _FEW_WORDS:
            tiles = -(-8 * count // _TILE_BYTES)
            draws = np.empty((tiles, _TILE_BYTES // 4 // _TILE_BLOCKS, _TILE_BLOCKS), np.uint32)
            native.library.draws(native.level, key, 32, 0, draws.reshape(-1))
            # The draws of a tile are its blocks of the stream, transposed.
            return draws.transpose(0, 2, 1).reshape(-1).view(np.uint64)[:count]
        return np.frombuffer(self._bytes(_MAIN, 8 * count), dtype="<u8").astype(
            np.uint64, copy=False
        )

    def draws(self, bits: int, count: int) -> NDArray[Any]:
        """Return one uniform integer, a draw, for each of coordinates 0 to count - 1.

        This uses the keystream up.

        Args:
            bits: The size of a draw, 16 or 32 bits.
            count: The number of coordinates.

        Returns:
            The draws in the order of the coordinates, as uint16 or uint32. The docstring of this
            module defines which bits of the stream they are.

        Raises:
            RandomnessError: The keystream was used before.
            ParameterError: `bits` is not 16 or 32, or the stream is too short for `count` draws.
        """
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
        """Return the draws of some coordinates again, for those whose draw did not decide the code.

        The keystream may be used up, and is not used up by this.

        Args:
            bits: The size of a draw, 16 or 32 bits.
            coordinates: The coordinates.

        Returns:
            The same numbers as `draws` returns for them, as uint32.
        """
        native = native_kernels()
        if native is None:
            return np.array([self.draw(bits, int(i)) for i in coordinates], dtype=np.uint32)
        found = np.empty(len(coordinates), dtype=np.uint32)
        numbers = np.ascontiguousarray(coordinates, np.int64)
        native.library.draws_at(self._key, bits, numbers, found)
        return found

    def draw(self, bits: int, coordinate: int) -> int:
        """Return the draw of one coordinate again; this does not use the keystream up.

        Args:
            bits: The size of a draw, 16 or 32 bits.
            coordinate: The coordinate.

        Returns:
            The same number as `draws` returns for it.

        Raises:
            ParameterError: `bits` is not 16 or 32.
        """
        tile, rest = divmod(coordinate, _tile_draws(bits))
        place, block = divmod(rest, _TILE_BLOCKS)
        view = memoryview(bytearray(64))
        self._fill(_MAIN, view, _TILE_BLOCKS * tile + block)
        size = bits // 8
        return int.from_bytes(view[size * place : size * (place + 1)], "little")

    def spend(self) -> bytes:
        """Return the key, once, for a kernel that computes the stream itself.

        This uses the keystream up.

        Returns:
            The 32 bytes of the key.

        Raises:
            RandomnessError: The keystream was used before; two inputs with the same randomness
                have no privacy guarantee.
        """
        if self._spent:
            raise RandomnessError(
                "this keystream was already used for an input; take a fresh one with stream()"
            )
        self._spent = True
        return self._key

    def extensions(self, coordinates: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the first 64 bits of the extension of each of some coordinates.

        The extension is a coordinate's further uniform bits, which are read where its draw does not
        decide its code. This does not use the keystream up.

        Args:
            coordinates: The coordinates.

        Returns:
            A word for each coordinate, in the order given; the first bit is the most significant.
        """
        native = native_kernels()
        if native is None:
            words = [int.from_bytes(self.extension(int(i), 8), "big") for i in coordinates]
            return np.array(words, dtype=np.uint64)
        found = np.empty(len(coordinates), dtype=np.uint64)
        native.library.extensions(self._key, np.ascontiguousarray(coordinates, np.int64), found)
        return found

    def spelled(self, bits: int, coordinates: NDArray[np.int64]) -> ExtendedDraws:
        """Return the draws of some coordinates again, with the first 64 bits of their extensions.

        The extension is a coordinate's further uniform bits, which are read where its draw does not
        decide its code. This does not use the keystream up.

        Args:
            bits: The size of a draw, 16 or 32 bits.
            coordinates: The coordinates.

        Returns:
            The coordinates, their draws and their extensions.
        """
        words = self.draws_at(bits, coordinates)
        return ExtendedDraws(coordinates, words, self.extensions(coordinates))

    def extension(self, coordinate: int, num_bytes: int) -> bytes:
        """Return the first bytes of one coordinate's extension, to decide what its draw did not.

        The extension is the ChaCha20 stream of the same key with nonce coordinate + 1. This does
        not use the keystream up.

        Args:
            coordinate: The coordinate.
            num_bytes: The number of bytes.

        Returns:
            The bytes.

        Raises:
            ParameterError: The coordinate is negative, or 2^96 - 2 or more.
        """
        parameter_rules.integer("coordinate", coordinate, low=0, high=_COMMITMENT - 2)
        return bytes(self._bytes(coordinate + 1, num_bytes))

    def commitment(self, *data: bytes | memoryview) -> bytes:
        """Return a digest of the input, keyed by the stream: without the key it reveals nothing.

        This does not use the keystream up.

        Args:
            *data: The input for which this stream is used, as parts that follow each other.

        Returns:
            16 bytes: BLAKE2b of the input, keyed with the stream of the last nonce.
        """
        key = bytes(self._bytes(_COMMITMENT, 64))
        digest = hashlib.blake2b(key=key, digest_size=16)
        for part in data:
            digest.update(part)
        return digest.digest()

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


class Keystreams(Sequence[Keystream]):
    """The keystreams of several inputs, whose keys are the rows of one matrix.

    It is a sequence of `Keystream` objects that are created only when they are asked for, so that
    kernels which take many keys at once need no Python object for each.

    Args:
        keys: The keys, uint8 of shape (inputs, 32).
        grade: The source of the keys.

    Raises:
        ParameterError: The keys have another shape or type.
    """

    __slots__ = ("_keys", "_made", "_spent", "grade")

    def __init__(self, keys: NDArray[np.uint8], *, grade: Grade = "system") -> None:
        if keys.dtype != np.uint8 or keys.ndim != 2 or keys.shape[1] != _KEY_BYTES:
            raise ParameterError(
                f"keys must be uint8 of shape (inputs, {_KEY_BYTES}), got {keys.dtype} of shape "
                f"{keys.shape}"
            )
        self._keys, self.grade = np.ascontiguousarray(keys), grade
        self._made: dict[int, Keystream] = {}
        self._spent = False

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, index: int) -> Keystream: ...
    @overload
    def __getitem__(self, index: slice) -> list[Keystream]: ...
    def __getitem__(self, index: int | slice) -> Keystream | list[Keystream]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        place = range(len(self))[index]
        if place not in self._made:
            made = Keystream(self._keys[place].tobytes(), grade=self.grade)
            if self._spent:
                made.spend()
            self._made[place] = made
        return self._made[place]

    def spend(self) -> NDArray[np.uint8]:
        """Return all keys, once, for kernels that compute the streams themselves.

        Returns:
            The keys, uint8 of shape (inputs, 32).

        Raises:
            RandomnessError: One of the keystreams was used before.
        """
        if self._spent:
            raise RandomnessError(
                "these keystreams were already used for inputs; take fresh ones with streams()"
            )
        for made in self._made.values():
            made.spend()
        self._spent = True
        return self._keys


def spend_all(keystreams: Sequence[Keystream]) -> NDArray[np.uint8]:
    """Return the keys of several keystreams, and use all of them up.

    Args:
        keystreams: The keystreams, as a list or as `Keystreams`, which is faster.

    Returns:
        The keys, uint8 of shape (inputs, 32).

    Raises:
        RandomnessError: One of them was used before.
    """
    if isinstance(keystreams, Keystreams):
        return keystreams.spend()
    keys = b"".join([one.spend() for one in keystreams])
    return np.frombuffer(keys, dtype=np.uint8).reshape(len(keystreams), _KEY_BYTES)


def _tile_draws(bits: int) -> int:
    if bits not in (16, 32):
        raise ParameterError(f"bits of a draw must be 16 or 32, got {bits!r}")
    return 8 * _TILE_BYTES // bits


def open_uniforms(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return uniform numbers in the open interval (0, 1), made of 53 bits each.

    Args:
        words: Uniform 64-bit words, of which the upper 53 bits are used.

    Returns:
        (m + 1/2) 2^-53 for each 53-bit number m, so neither 0 nor 1 occurs.

    Examples:
        >>> open_uniforms(np.array([0], dtype=np.uint64)) == 2.0**-54
        array([ True])
    """
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def uniform_below(bound: int, word: int, keystream: Keystream, coordinate: int = 0) -> int:
    """Return an exactly uniform integer below `bound` by rejection (Lemire 2019).

    Args:
        bound: The number of possible results, from 1 to 2^64.
        word: The coordinate's own 64 uniform bits.
        keystream: The stream from which further words are read after a rejection, from the
            coordinate's extension; it is not used up.
        coordinate: The coordinate.

    Returns:
        An integer from 0 to bound - 1.
    """
    taken = 0
    while True:
        product = word * bound
        if product % _WORD >= _WORD % bound:
            return product // _WORD
        taken += 8
        word = int.from_bytes(keystream.extension(coordinate, taken)[-8:], "little")


def permutation(count: int, keystream: Keystream) -> list[int]:
    """Return the numbers 0 to count - 1 in a uniformly random order.

    This is the shuffle of Fisher and Yates (Durstenfeld 1964). Each swap takes an exactly uniform
    partner, so every order has the same probability.

    Args:
        count: The number of elements.
        keystream: The randomness; it is used up.

    Returns:
        The order.

    Raises:
        RandomnessError: The keystream was used before.
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
    def grade(self) -> Grade:
        """Whether keys come from the operating system ("system") or from a seed ("seeded")."""

    def stream(self, *label: str | int) -> Keystream:
        """Return a keystream for the one input that `label` names.

        Args:
            *label: What identifies the input, such as client and round.

        Returns:
            An unused keystream, whose key no other label gives. With grade "seeded" the same label
            gives the same key again, with "system" every call gives a fresh key.

        Raises:
            RandomnessError: The grade is "seeded" and the label is empty or has an enumeration.
        """
        ...


def streams_of_labels(
    randomness: Randomness, labels: Sequence[Sequence[str | int]]
) -> Sequence[Keystream]:
    """Return a keystream for each label, all at once if the source can derive many keys."""
    if isinstance(randomness, SystemRandomness | SeededRandomness):
        return randomness.streams(labels)
    return [randomness.stream(*label) for label in labels]


class SystemRandomness:
    """A source of fresh keys from the operating system, for deployment; labels are not used."""

    grade: Grade = "system"

    def stream(self, *label: str | int) -> Keystream:
        return Keystream(os.urandom(_KEY_BYTES))

    def streams(self, labels: Sequence[Sequence[str | int]]) -> Keystreams:
        """Return a keystream for each of several inputs.

        Args:
            labels: The label of each input; only their number matters here.

        Returns:
            Unused keystreams with fresh keys.
        """
        keys = np.frombuffer(os.urandom(_KEY_BYTES * len(labels)), dtype=np.uint8)
        return Keystreams(keys.reshape(len(labels), _KEY_BYTES), grade=self.grade)


class LabelParts:
    """Parts of labels, such as the names of clients, encoded once for many calls of `streams_of`.

    Args:
        parts: The parts.

    Raises:
        RandomnessError: A part is an enumeration.
    """

    __slots__ = ("chosen", "data", "ends")

    def __init__(self, parts: Sequence[str | int]) -> None:
        self._hold([_encode_part(part) for part in parts])

    @classmethod
    def encoded(cls, parts: Sequence[bytes]) -> "LabelParts":
        """Return parts that are encoded already."""
        made = cls.__new__(cls)
        made._hold(parts)
        return made

    def _hold(self, parts: Sequence[bytes]) -> None:
        self.data, self.chosen = b"".join(parts), np.arange(len(parts), dtype=np.int64)
        self.ends = np.cumsum([len(part) for part in parts], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.chosen)

    def take(self, positions: NDArray[np.int64]) -> "LabelParts":
        """Return some of the parts, in the order given, with the same memory."""
        taken = LabelParts.__new__(LabelParts)
        taken.data, taken.ends, taken.chosen = self.data, self.ends, self.chosen[positions]
        return taken

    def each(self) -> Iterator[bytes]:
        """Yield the bytes of each part."""
        for number in self.chosen.tolist():
            yield self.data[self.ends[number - 1] if number else 0 : self.ends[number]]


class SeededRandomness:
    """A source of keys derived from a seed and a label, for simulations and tests only.

    key(label) = BLAKE2b-256(length-prefixed label parts, key = seed)

    Args:
        seed: An integer from 0 to 2^128 - 1, else ParameterError is raised. All who know it can
            compute every key.

    Examples:
        >>> one, other = (SeededRandomness(7).stream("client", 3) for _ in range(2))
        >>> one.words(2) == other.words(2)
        array([ True,  True])
    """

    grade: Grade = "seeded"
    __slots__ = ("_root",)

    def __init__(self, seed: int) -> None:
        parameter_rules.integer("seed", seed, low=0, high=2**128 - 1)
        self._root = int(seed).to_bytes(16, "little")

    def stream(self, *label: str | int) -> Keystream:
        if not label:
            raise RandomnessError(_NO_LABEL)
        return Keystream(self._derive("keystream", *label), grade=self.grade)

    def streams(self, labels: Sequence[Sequence[str | int]]) -> Keystreams:
        """Return a keystream for each of several inputs.

        Args:
            labels: The label of each input, as the arguments of `stream`.

        Returns:
            Unused keystreams, the same that `stream` returns for each label.

        Raises:
            RandomnessError: A label is empty or has an enumeration.
        """
        if not all(labels):
            raise RandomnessError(_NO_LABEL)
        middles = LabelParts.encoded([_encode_label(label) for label in labels])
        keys = _derive_keys(self._root, _encode_label(["keystream"]), middles, b"")
        return Keystreams(keys, grade=self.grade)

    def streams_of(
        self,
        before: Sequence[str | int],
        names: "Sequence[str | int] | LabelParts",
        after: Sequence[str | int],
    ) -> Keystreams:
        """Return a keystream for each of several inputs whose labels differ in one part only.

        Args:
            before: The parts of the labels before the one that differs.
            names: The part that differs, such as the name of a client, for each input. `LabelParts`
                save time if the same names occur in many calls.
            after: The parts after it.

        Returns:
            Unused keystreams, the same that `stream(*before, name, *after)` returns for each name.

        Raises:
            RandomnessError: A part is an enumeration.
        """
        parts = names if isinstance(names, LabelParts) else LabelParts(names)
        common = _encode_label(["keystream", *before]), _encode_label(after)
        return Keystreams(_derive_keys(self._root, common[0], parts, common[1]), grade=self.grade)

    def generator(self, *label: str | int) -> np.random.Generator:
        """Return a numpy generator for public choices: partitions, initial weights, cohorts.

        Args:
            *label: What the generator is for.

        Returns:
            A new PCG64 generator; the same seed and label always give the same numbers.
        """
        seed = int.from_bytes(self._derive("generator", *label), "little")
        return np.random.Generator(np.random.PCG64(seed))

    def _derive(self, *label: str | int) -> bytes:
        return _digest(self._root, _encode_label(label))


_NO_LABEL = (
    "a seeded stream needs a label: without one, all inputs would share a keystream; pass what "
    "identifies the input, such as client and round"
)
_LEAST_KEYS = 512  # The fewest keys that are worth a thread.


def _encode_label(label: Sequence[str | int]) -> bytes:
    """Return the parts of a label, each after its length."""
    return b"".join([_encode_part(part) for part in label])


# The names of the clients occur in every round. The type is part of the label: 1 and "1" are
# different clients.
@lru_cache(maxsize=1 << 17, typed=True)
def _encode_part(part: str | int) -> bytes:
    if isinstance(part, Enum):
        raise RandomnessError(
            "a label must consist of strings and integers, got an enumeration, whose class name "
            "would change the keystream; convert it with str()"
        )
    encoded = f"{type(part).__name__}:{part}".encode()
    return len(encoded).to_bytes(4, "little") + encoded


def _digest(root: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=root, digest_size=_KEY_BYTES).digest()


def _derive_keys(root: bytes, before: bytes, middles: LabelParts, after: bytes) -> Keys:
    """Return BLAKE2b-256 of before + middle + after for each middle, keyed with `root`."""
    keys = np.empty((len(middles), _KEY_BYTES), dtype=np.uint8)
    native = native_kernels()
    if native is None:
        for key, middle in zip(keys, middles.each(), strict=True):
            key[:] = np.frombuffer(_digest(root, before + middle + after), dtype=np.uint8)
        return keys
    threads = threads_for_size(len(middles), least=_LEAST_KEYS)
    native.library.derive_keys(
        native.level, root, before, middles.data, middles.ends, middles.chosen, after, keys, threads
    )
    return keys
