"""Keystreams: the cipher, its layout, and the separation of streams."""

import hashlib
import itertools
from collections import Counter

import numpy as np
import pytest
from cases import cases
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core import native
from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import ParameterError, RandomnessError
from sottovoce.core.randomness import (
    Keystream,
    LabelParts,
    Randomness,
    SeededRandomness,
    SystemRandomness,
    permutation,
    spend_all,
    uniform_below,
)

ZERO_KEY = bytes(32)
# RFC 8439, appendix A.1, test vectors 1 and 2: key 0, nonce 0, block counters 0 and 1.
RFC_8439_ZERO_KEY_BLOCKS_0_AND_1 = bytes.fromhex(
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
)
# Test vector 3: the last byte of the key is 1, nonce 0, block counter 1.
RFC_8439_KEY_ENDING_IN_1_BLOCK_1 = bytes.fromhex(
    "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
    "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0"
)
# Test vector 5: key 0, the last byte of the nonce is 2, block counter 0.
RFC_8439_ZERO_KEY_NONCE_ENDING_IN_2 = bytes.fromhex(
    "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
    "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d"
)

Label = tuple[str | int, ...]


def first_words(source: Randomness, *label: str | int, count: int = 4) -> list[int]:
    words: list[int] = source.stream(*label).words(count).tolist()
    return words


def test_words_reproduce_rfc_8439_appendix_a1_vectors_1_and_2() -> None:
    words = Keystream(ZERO_KEY).words(16)
    assert words.astype("<u8").tobytes() == RFC_8439_ZERO_KEY_BLOCKS_0_AND_1


def test_words_reproduce_rfc_8439_appendix_a1_vector_3() -> None:
    words = Keystream(bytes(31) + b"\x01").words(16)
    assert words[8:].astype("<u8").tobytes() == RFC_8439_KEY_ENDING_IN_1_BLOCK_1


def test_extension_reproduces_rfc_8439_appendix_a1_vector_5() -> None:
    # Coordinate i reads nonce i + 1, little-endian in 12 bytes.
    coordinate = int.from_bytes(bytes(11) + b"\x02", "little") - 1
    stream = Keystream(ZERO_KEY).extension(coordinate, 64)
    assert stream == RFC_8439_ZERO_KEY_NONCE_ENDING_IN_2


def test_the_first_word_of_the_rfc_stream_is_read_little_endian() -> None:
    words = Keystream(ZERO_KEY).words(1)
    assert words.dtype == np.uint64
    assert words.tolist() == [0x903DF1A0ADE0B876]


@pytest.mark.parametrize("count", [1, 256, 257, 4096, 4097, 8191, 8192, 8193, 20_000])
def test_words_are_the_keystream_however_it_is_made(count: int) -> None:
    key = bytes(range(32))
    whole = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * count))
    assert Keystream(key).words(count).astype("<u8").tobytes() == whole


@given(st.integers(0, 100), st.integers(0, 100))
@settings(deadline=None)
def test_asking_for_more_words_does_not_change_the_first(few: int, more: int) -> None:
    few, more = sorted((few, more))
    key = bytes(range(32))
    assert np.array_equal(Keystream(key).words(more)[:few], Keystream(key).words(few))


def test_no_words_are_an_empty_array() -> None:
    assert Keystream(ZERO_KEY).words(0).shape == (0,)


def test_words_are_served_once() -> None:
    keystream = Keystream(ZERO_KEY)
    keystream.words(3)
    with pytest.raises(RandomnessError, match="already used for an input; take a fresh one"):
        keystream.words(3)


def test_even_an_empty_request_spends_the_stream() -> None:
    keystream = Keystream(ZERO_KEY)
    keystream.words(0)
    with pytest.raises(RandomnessError, match="already used for an input"):
        keystream.words(1)


every_level = pytest.mark.parametrize("level", native.levels())


def drawn(key: bytes, bits: int, coordinate: int) -> int:
    """A coordinate's draw, from the cipher's own stream and the layout in words."""
    per_block = 512 // bits
    tile, rest = divmod(coordinate, 32 * per_block)
    place, lane = divmod(rest, 32)
    start = 64 * (32 * tile + lane) + place * bits // 8
    whole = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    stream = whole.update(bytes(start + bits // 8))
    return int.from_bytes(stream[start:], "little")


@every_level
@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("count", [0, 1, 31, 33, 511, 512, 513, 1023, 1024, 1025, 5000])
def test_draws_have_the_documented_layout(level: str, bits: int, count: int) -> None:
    key = bytes(range(32))
    with native.using(level):
        draws = Keystream(key).draws(bits, count)
    assert draws.shape == (count,)
    assert draws.dtype.itemsize == bits // 8
    for i in {*range(0, count, 97), *range(max(0, count - 40), count)}:
        assert draws[i] == drawn(key, bits, i)


@every_level
@pytest.mark.parametrize("bits", [16, 32])
def test_single_draws_are_those_of_the_whole(level: str, bits: int) -> None:
    key = bytes(range(1, 33))
    whole = Keystream(key).draws(bits, 3000)
    wanted = np.array([0, 1, 31, 32, 511, 512, 1023, 1024, 2999, 5])
    with native.using(level):
        keystream = Keystream(key)
        assert keystream.draws_at(bits, wanted).tolist() == whole[wanted].tolist()
        assert keystream.draws_at(bits, wanted[:0]).tolist() == []
        assert [keystream.draw(bits, int(i)) for i in wanted] == whole[wanted].tolist()
        far = np.array([2**33 + 12345, 2**34 - 1])
        assert keystream.draws_at(bits, far).tolist() == [keystream.draw(bits, int(i)) for i in far]


@every_level
def test_extensions_of_many_are_the_first_bytes_of_each(level: str) -> None:
    coordinates = np.array([0, 1, 255, 2**32 - 2, 2**32 - 1, 2**32, 2**40, 2**62])
    keystream = Keystream(bytes(range(32)))
    with native.using(level):
        found = keystream.extensions(coordinates)
        assert keystream.extensions(coordinates[:0]).shape == (0,)
    assert found.dtype == np.uint64
    expected = [int.from_bytes(keystream.extension(int(i), 8), "big") for i in coordinates]
    assert found.tolist() == expected


@every_level
def test_draws_and_words_are_served_once_together(level: str) -> None:
    with native.using(level):
        for first in ("words", "draws", "spend"):
            for second in ("words", "draws", "spend"):
                keystream = Keystream(ZERO_KEY)
                serve = {
                    "words": lambda stream: stream.words(3),
                    "draws": lambda stream: stream.draws(16, 0),
                    "spend": lambda stream: stream.spend(),
                }
                serve[first](keystream)
                with pytest.raises(RandomnessError, match="already used for an input"):
                    serve[second](keystream)


@pytest.mark.parametrize("bits", [0, 8, 15, 64])
def test_draws_of_another_size_are_refused_and_spend_nothing(bits: int) -> None:
    keystream = Keystream(ZERO_KEY)
    with pytest.raises(ParameterError, match="must be 16 or 32"):
        keystream.draws(bits, 1)
    with pytest.raises(ParameterError, match="must be 16 or 32"):
        keystream.draw(bits, 1)
    keystream.spend()


@every_level
@pytest.mark.parametrize("count", [-1, 2**37 + 1, 1.5, True])
def test_more_draws_than_the_block_counter_can_serve_are_refused(level: str, count: int) -> None:
    with native.using(level), pytest.raises(ParameterError, match="count must be an integer"):
        Keystream(ZERO_KEY).draws(16, count)


def test_extensions_may_be_read_again_and_grow_at_the_end() -> None:
    # The exact sampler asks for more bytes of the same number until they decide.
    keystream = Keystream(ZERO_KEY)
    short = keystream.extension(7, 16)
    assert keystream.extension(7, 32)[:16] == short
    assert keystream.extension(7, 16) == short


def test_extensions_of_different_coordinates_and_the_main_stream_all_differ() -> None:
    keystream = Keystream(bytes(range(32)))
    main = keystream.words(64).astype("<u8").tobytes()
    streams = [main] + [keystream.extension(i, 512) for i in (0, 1, 2, 255, 256, 2**32, 2**40)]
    blocks = [stream[i : i + 8] for stream in streams for i in range(0, 512, 8)]
    assert len(set(blocks)) == len(blocks)


@pytest.mark.parametrize("length", [0, 16, 31, 33, 64])
def test_a_key_of_the_wrong_length_is_refused(length: int) -> None:
    with pytest.raises(ParameterError, match=f"key must have 32 bytes, got {length}"):
        Keystream(bytes(length))


@pytest.mark.parametrize("count", [-1, 2**35 + 1, 1.5, True])
def test_a_count_beyond_what_the_block_counter_can_serve_is_refused(count: int) -> None:
    with pytest.raises(ParameterError, match="count must be an integer from 0 to 34359738368"):
        Keystream(ZERO_KEY).words(count)


def test_a_commitment_is_a_function_of_key_and_data() -> None:
    keys, inputs = [bytes(range(32)), bytes(range(1, 33))], [b"", b"a", b"b", b"a" * 1000]
    digests = {(key, data): Keystream(key).commitment(data) for key in keys for data in inputs}
    assert len(set(digests.values())) == len(digests)
    assert all(len(digest) == 16 for digest in digests.values())
    assert all(Keystream(key).commitment(data) == d for (key, data), d in digests.items())


def test_a_commitment_does_not_spend_the_stream() -> None:
    keystream = Keystream(ZERO_KEY)
    before = keystream.commitment(b"update")
    words = keystream.words(16).astype("<u8").tobytes()
    assert words == RFC_8439_ZERO_KEY_BLOCKS_0_AND_1
    assert keystream.commitment(b"update") == before


def test_a_commitment_without_the_key_is_not_the_plain_digest() -> None:
    plain = hashlib.blake2b(b"update", digest_size=16).digest()
    assert Keystream(ZERO_KEY).commitment(b"update") != plain


@given(
    st.integers(0, 2**128 - 1),
    st.lists(st.text() | st.integers(), min_size=1, max_size=4).map(tuple),
)
@settings(deadline=None)
def test_the_same_seed_and_label_give_the_same_words(seed: int, label: Label) -> None:
    first, second = SeededRandomness(seed), SeededRandomness(seed)
    assert first_words(first, *label) == first_words(second, *label)
    # A stream does not depend on what was asked for before.
    first.stream("something else")
    assert first_words(first, *label) == first_words(second, *label)


def test_seeded_keys_are_the_documented_blake2b_of_the_label() -> None:
    digest = hashlib.blake2b(key=(77).to_bytes(16, "little"), digest_size=32)
    for part in (b"str:keystream", b"str:client", b"int:3"):
        digest.update(len(part).to_bytes(4, "little") + part)
    expected = Keystream(digest.digest()).words(8)
    assert np.array_equal(SeededRandomness(77).stream("client", 3).words(8), expected)


def test_no_name_of_a_class_gets_into_a_keystream() -> None:
    with pytest.raises(RandomnessError, match=r"convert it with str\(\)"):
        SeededRandomness(77).stream("client", Unit.CLIENT)


def test_labels_that_look_alike_give_different_streams() -> None:
    labels: list[Label] = [
        ("",),
        ("", ""),
        (1,),
        ("1",),
        ("int:1",),
        (1, 1),
        (11,),
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        ("a", "b", "c"),
        ("c", "ab"),
        (-1,),
        ("keystream",),
        ("generator",),
    ]
    source = SeededRandomness(5)
    for one, other in itertools.combinations(labels, 2):
        assert first_words(source, *one) != first_words(source, *other), (one, other)


@given(
    st.lists(st.text(max_size=3) | st.integers(0, 99), min_size=1, max_size=3).map(tuple),
    st.lists(st.text(max_size=3) | st.integers(0, 99), min_size=1, max_size=3).map(tuple),
)
@settings(deadline=None)
def test_different_labels_give_different_streams(one: Label, other: Label) -> None:
    source = SeededRandomness(5)
    assert (first_words(source, *one) == first_words(source, *other)) == (one == other)


def test_different_seeds_give_different_streams() -> None:
    firsts = [tuple(first_words(SeededRandomness(seed), "x")) for seed in (0, 1, 256, 2**127)]
    assert len(set(firsts)) == len(firsts)


@pytest.mark.parametrize("seed", [-1, 2**128, 1.5, True, "7"])
def test_a_seed_that_is_no_128_bit_integer_is_refused(seed: int) -> None:
    with pytest.raises(ParameterError, match="seed must be an integer from 0 to"):
        SeededRandomness(seed)


def test_a_seeded_generator_repeats_and_depends_on_seed_and_label() -> None:
    def draw(seed: int, *label: str | int) -> list[float]:
        numbers: list[float] = SeededRandomness(seed).generator(*label).random(4).tolist()
        return numbers

    assert draw(3, "cohort", 1) == draw(3, "cohort", 1)
    assert draw(3, "cohort", 1) != draw(3, "cohort", 2)
    assert draw(3, "cohort", 1) != draw(4, "cohort", 1)


def test_system_streams_differ_even_for_one_label() -> None:
    source = SystemRandomness()
    firsts = {tuple(first_words(source, "client", 1)) for _ in range(50)}
    assert len(firsts) == 50


def test_each_source_names_its_grade() -> None:
    assert SystemRandomness().grade == "system"
    assert SeededRandomness(0).grade == "seeded"


def test_a_seeded_stream_without_a_label_is_refused_lest_all_inputs_share_it() -> None:
    with pytest.raises(RandomnessError, match="needs a label"):
        SeededRandomness(5).stream()


# -- uniform integers and permutations -----------------------------------------------------


def test_a_word_that_would_favor_a_number_is_replaced_by_a_further_one() -> None:
    """2^64 = 1 mod 3: the word 0 is the one too many."""
    further = int.from_bytes(Keystream(bytes(32)).extension(4, 8), "little")
    assert further * 3 % 2**64 >= 1
    assert uniform_below(3, 0, Keystream(bytes(32)), 4) == further * 3 // 2**64
    third = 2**64 // 3
    for word, number in ((1, 0), (third, 0), (third + 1, 1), (2 * third + 1, 2), (2**64 - 1, 2)):
        assert uniform_below(3, word, Keystream(bytes(32))) == number


@pytest.mark.parametrize("count", [0, 1, 2, 57])
def test_a_permutation_holds_every_number_once(count: int) -> None:
    order = permutation(count, SeededRandomness(4).stream("order", count))
    assert sorted(order) == list(range(count))


def test_every_permutation_is_as_likely_as_any_other() -> None:
    randomness = SeededRandomness(1)
    draws = cases(4800)
    counts = Counter(tuple(permutation(4, randomness.stream("order", n))) for n in range(draws))
    assert len(counts) == 24
    chi_square = sum((count - draws / 24) ** 2 / (draws / 24) for count in counts.values())
    assert chi_square < 57.1  # 23 degrees of freedom: once in 10^4


def test_many_keystreams_are_those_of_each_label() -> None:
    seeded, labels = SeededRandomness(7), [("client", i, 3) for i in range(5)]
    many = seeded.streams(labels)
    assert [many[i].spend() for i in range(5)] == [seeded.stream(*one).spend() for one in labels]


@pytest.mark.parametrize("kernels", native.levels())
def test_keys_derived_together_are_those_of_hashlib(kernels: str) -> None:
    """Names of any alphabet and length: the blocks of the hash end at every place."""
    names = [*range(3), 2**70, -5, "", "0", *("é" * n + "x" * (n % 3) for n in range(0, 300, 7))]
    seeded = SeededRandomness(2**127 + 3)
    before, after = ("encode", "a run's name"), (3, 0, "end")
    with native.using(kernels):
        together = seeded.streams_of(before, names, after).spend()
        by_label = seeded.streams([(*before, name, *after) for name in names]).spend()
        some = np.array([40, 3, 0, 3])
        taken = seeded.streams_of(before, LabelParts(names).take(some), after).spend()
    np.testing.assert_array_equal(taken, together[some])
    root = (2**127 + 3).to_bytes(16, "little")
    for name, one, other in zip(names, together, by_label, strict=True):
        parts = ["str:keystream", *(f"{type(part).__name__}:{part}" for part in before)]
        parts += [f"{type(name).__name__}:{name}", "int:3", "int:0", "str:end"]
        encoded = [part.encode() for part in parts]
        label = b"".join(len(part).to_bytes(4, "little") + part for part in encoded)
        expected = hashlib.blake2b(label, key=root, digest_size=32).digest()
        assert one.tobytes() == other.tobytes() == expected


def test_many_labels_are_refused_like_one() -> None:
    seeded = SeededRandomness(1)
    with pytest.raises(RandomnessError, match="needs a label"):
        seeded.streams([("a",), ()])
    for bad in (seeded.streams, lambda labels: seeded.streams_of((), labels[0], ())):
        with pytest.raises(RandomnessError, match="enumeration"):
            bad([[Unit.CLIENT]])
    assert len(seeded.streams([])) == len(seeded.streams_of(("a",), [], ())) == 0


def test_a_commitment_is_that_of_the_parts_together() -> None:
    stream = SeededRandomness(1).stream("a")
    parts = b"ab", np.arange(3.0).data
    assert stream.commitment(*parts) == stream.commitment(b"ab" + np.arange(3.0).tobytes())


def test_many_keystreams_can_be_spent_only_once_together_or_one_by_one() -> None:
    together = SystemRandomness().streams([(i,) for i in range(3)])
    one = together[1]
    assert spend_all(together)[1].tobytes() == one._key
    for again in (together.spend, one.spend, together[2].spend):
        with pytest.raises(RandomnessError, match="already used"):
            again()
    apart = SystemRandomness().streams([("a",), ("b",)])
    apart[0].spend()
    with pytest.raises(RandomnessError, match="already used"):
        apart.spend()
