"""Signs of seeds and their scores: the same on every level, and those of any ChaCha20."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sottovoce.core import native
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.kernels import seeded
from sottovoce.mechanisms.kernels.reference import seeded as reference
from sottovoce.protocol.sums import LevelCounts

SIZES = (0, 1, 7, 8, 9, 31, 33, 511, 512, 513, 8191, 8192, 8193, 100_003)
every_level = pytest.mark.parametrize("level", native.levels())


def keystream(seed: bytes, size: int) -> bytes:
    """What a library of somebody else gives."""
    cipher = Cipher(ChaCha20(seed + b"sottovoce-signs1", bytes(16)), mode=None)
    return cipher.encryptor().update(bytes(size))


def score_of(seed: bytes, weights: Sequence[int]) -> int:
    """One sign after the other, in Python's integers."""
    stream = keystream(seed, -(-len(weights) // 8))
    return sum(w if stream[i // 8] >> i % 8 & 1 else -w for i, w in enumerate(weights))


def some_seeds(count: int, number: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng([count, number]).integers(0, 256, (count, 16), dtype=np.uint8)


def some_weights(count: int, reach: int = 32767) -> NDArray[np.int16]:
    generator = np.random.default_rng([count, reach])
    return generator.integers(-reach - 1, reach + 1, count).astype(np.int16)


@every_level
def test_a_known_answer(level: str) -> None:
    seed = bytes(range(16))
    with native.using(level):
        assert seeded.signs(seed, 128).tobytes().hex() == "8a4ae4ecff6fde21614d2987d4fda672"
        # The lowest bits of 8a are 0, 1, 0: -1, +1, -1.
        assert seeded.signs(seed, 3).tolist() == [0b010]
        matrix = np.frombuffer(seed, dtype=np.uint8)[None]
        assert seeded.scores(matrix, np.array([1, 10, 100], dtype=np.int16)).tolist() == [-91]


@every_level
@pytest.mark.parametrize("size", SIZES)
def test_signs_are_the_bits_of_the_keystream(level: str, size: int) -> None:
    seeds = some_seeds(3, size)
    with native.using(level):
        rows = seeded.sign_rows(seeds, size)
        alone = seeded.signs(seeds[1].tobytes(), size)
    assert rows.shape == (3, -(-size // 8))
    np.testing.assert_array_equal(alone, rows[1])
    for seed, row in zip(seeds, rows, strict=True):
        expected = bytearray(keystream(seed.tobytes(), len(row)))
        if size % 8:
            expected[-1] &= (1 << size % 8) - 1
        assert row.tobytes() == expected


@every_level
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [0, 1, 3, 17])
def test_scores_are_those_of_integers(level: str, size: int, count: int) -> None:
    seeds, weights = some_seeds(count, size), some_weights(size)
    with native.using(level):
        found = seeded.scores(seeds, weights)
    assert found.dtype == np.int64
    checked = range(count) if size < 1000 else range(0, count, 8)
    for k in checked:
        assert found[k] == score_of(seeds[k].tobytes(), weights.tolist())
    with native.using("numpy"):
        np.testing.assert_array_equal(found, seeded.scores(seeds, weights))


@every_level
@pytest.mark.parametrize("extreme", [-32768, 32767])
def test_weights_at_their_ends_never_overflow(level: str, extreme: int) -> None:
    """Also where weights have the signs of one seed, so that nothing cancels."""
    size = 140_001  # times 2^15 is more than 32 bits hold
    seeds = some_seeds(9)
    bits = np.unpackbits(seeded.signs(seeds[4].tobytes(), size), count=size, bitorder="little")
    plain = np.full(size, extreme, dtype=np.int16)
    aligned: Any = np.where(bits == 1, extreme, -extreme if extreme > 0 else 32767)
    with native.using(level):
        flat = seeded.scores(seeds, plain)
        largest = seeded.scores(seeds, aligned.astype(np.int16))
    ones = int(bits.sum())
    assert flat[4] == extreme * (2 * ones - size)
    other = -extreme if extreme > 0 else 32767
    assert largest[4] == extreme * ones - other * (size - ones)
    assert abs(int(largest[4])) > 2**32
    for found, weights in ((flat, plain), (largest, aligned.astype(np.int16))):
        with native.using("numpy"):
            np.testing.assert_array_equal(found, seeded.scores(seeds, weights))


@every_level
@pytest.mark.parametrize("count", [15, 16, 127, 128, 129, 300])
def test_as_many_seeds_as_one_likes(level: str, count: int) -> None:
    seeds, weights = some_seeds(count), some_weights(1029, 500)
    bits = np.unpackbits(seeded.sign_rows(seeds, 1029), axis=1, count=1029, bitorder="little")
    with native.using(level):
        found = seeded.scores(seeds, weights)
    np.testing.assert_array_equal(found, (2 * bits.astype(np.int64) - 1) @ weights.astype(np.int64))


@every_level
@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads(level: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, weights = some_seeds(70), some_weights(777)
    with native.using("numpy"):
        expected = seeded.scores(seeds, weights), seeded.sign_rows(seeds, 777)
    monkeypatch.setattr(seeded, "_ALONE", 1)
    with native.using(level):
        np.testing.assert_array_equal(seeded.scores(seeds, weights, threads=threads), expected[0])
        np.testing.assert_array_equal(seeded.sign_rows(seeds, 777, threads=threads), expected[1])


@every_level
def test_arrays_of_any_layout(level: str) -> None:
    seeds, weights = some_seeds(5), some_weights(700)
    raw = bytearray(1 + weights.nbytes)
    misaligned = np.frombuffer(raw, dtype=np.int16, offset=1)
    misaligned[:] = weights
    with native.using(level):
        expected = seeded.scores(seeds, weights)
        for form in (misaligned, np.repeat(weights, 2)[::2], weights.astype(">i2")):
            np.testing.assert_array_equal(seeded.scores(seeds, form), expected)
        for form in (np.asfortranarray(seeds), np.repeat(seeds, 2, axis=0)[::2]):
            np.testing.assert_array_equal(seeded.scores(form, weights), expected)


@given(
    number=st.integers(0, 2**32 - 1),
    count=st.integers(0, 40),
    weights=st.lists(st.integers(-32768, 32767), max_size=1100),
)
@settings(max_examples=60, deadline=None)
def test_scores_of_any_weights(number: int, count: int, weights: list[int]) -> None:
    seeds, given_weights = some_seeds(count, number), np.array(weights, dtype=np.int16)
    expected = [score_of(seed.tobytes(), weights) for seed in seeds]
    for level in native.levels():
        with native.using(level):
            assert seeded.scores(seeds, given_weights).tolist() == expected


def test_the_reference_goes_on_beyond_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, key = some_weights(1001), bytes(16) + seeded.TAG
    expected = score_of(bytes(16), weights.tolist())
    assert reference.score(key, weights) == expected
    monkeypatch.setattr(reference, "_CHUNK", 64)
    assert reference.score(key, weights) == expected


@every_level
def test_rows_are_payloads_that_servers_count(level: str) -> None:
    seeds = some_seeds(70)
    bits = [np.frombuffer(keystream(seed.tobytes(), 126), dtype=np.uint8) for seed in seeds]
    ones = np.unpackbits(np.stack(bits), axis=1, count=1003, bitorder="little").sum(axis=0)
    with native.using(level):
        counts = LevelCounts(1003, 2)
        counts.add_rows(seeded.sign_rows(seeds, 1003))
        np.testing.assert_array_equal(counts.counts()[0], ones)


@every_level
@pytest.mark.parametrize("size", [0, 15, 17, 32])
def test_seeds_of_another_length_are_refused(level: str, size: int) -> None:
    weights = np.ones(8, dtype=np.int16)
    with native.using(level):
        with pytest.raises(ParameterError, match=f"a seed must have 16 bytes, got {size}"):
            seeded.signs(bytes(size), 8)
        with pytest.raises(
            ParameterError, match=rf"\(seeds, 16\), got uint8 of shape \(2, {size}\)"
        ):
            seeded.scores(np.zeros((2, size), dtype=np.uint8), weights)
        with pytest.raises(ParameterError, match="of shape"):
            seeded.sign_rows(np.zeros(16, dtype=np.uint8), 8)


@every_level
def test_what_is_no_number_of_signs_or_weight_is_refused(level: str) -> None:
    seeds: Any = some_seeds(2)
    with native.using(level):
        for count in (-1, seeded.MAX_SIGNS + 1, 1.5):
            with pytest.raises(ParameterError, match="count"):
                seeded.signs(bytes(16), count)  # type: ignore[arg-type]
        for weights in (np.ones(3), np.ones(3, dtype=np.uint16), np.ones((2, 3), dtype=np.int16)):
            with pytest.raises(ParameterError, match="vector of int16"):
                seeded.scores(seeds, weights)  # type: ignore[arg-type]
        with pytest.raises(ParameterError, match="got int64"):
            seeded.scores(seeds.astype(np.int64), np.ones(3, dtype=np.int16))
