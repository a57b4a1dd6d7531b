"""Packing against a naive packer that shifts codes into one big integer."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from sottovoce.errors import ParameterError, WireError
from sottovoce.wire.packing import Codes, pack, packed_size, unpack

ALL_BITS = range(1, 33)
NOT_BITS = [-1, 0, 33, 64, True]

# A deadline would be a timing assertion.
examples = settings(deadline=None, max_examples=200)


@st.composite
def bits_and_codes(draw: st.DrawFn) -> tuple[int, list[int]]:
    bits = draw(st.integers(1, 32))
    return bits, draw(st.lists(st.integers(0, 2**bits - 1), max_size=70))


def as_codes(values: list[int]) -> NDArray[np.uint8]:
    return np.array(values, dtype=np.uint8)


def in_dtype_of(bits: int, values: ArrayLike) -> Codes:
    return np.asarray(values, dtype=dtype_of(bits))


def dtype_of(bits: int) -> np.dtype[Any]:
    return np.dtype(np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32)


def naive_pack(codes: list[int], bits: int) -> bytes:
    """The documented layout: a little-endian number in which code i counts 2^(i bits)."""
    number = sum(code << (i * bits) for i, code in enumerate(codes))
    return number.to_bytes((len(codes) * bits + 7) // 8, "little")


@examples
@given(bits_and_codes())
def test_unpacking_what_was_packed_gives_the_codes_back(case: tuple[int, list[int]]) -> None:
    bits, values = case
    back = unpack(pack(in_dtype_of(bits, values), bits), len(values), bits)
    assert back.dtype == dtype_of(bits)
    assert back.tolist() == values


@examples
@given(bits_and_codes())
def test_code_i_lies_at_bit_i_times_b_with_its_lowest_bit_first(
    case: tuple[int, list[int]],
) -> None:
    bits, values = case
    packed = pack(in_dtype_of(bits, values), bits)
    assert packed == naive_pack(values, bits)
    assert len(packed) == packed_size(len(values), bits)


@pytest.mark.parametrize("bits", ALL_BITS)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 63, 65, 10_001])
def test_every_width_and_awkward_length_agrees_with_the_naive_packer(bits: int, count: int) -> None:
    codes = in_dtype_of(bits, np.random.default_rng([bits, count]).integers(0, 2**bits, count))
    packed = pack(codes, bits)
    assert packed == naive_pack(codes.tolist(), bits)
    assert np.array_equal(unpack(packed, count, bits), codes)


def test_a_small_example_by_hand() -> None:
    # 3 bits: 001 | 010 | 111, lowest first, is the number 0b111_010_001 = 0x1d1.
    assert pack(as_codes([1, 2, 7]), 3) == b"\xd1\x01"


def test_no_codes_take_no_bytes() -> None:
    assert pack(as_codes([]), 5) == b""
    assert unpack(b"", 0, 5).shape == (0,)


@pytest.mark.parametrize("bits", ALL_BITS)
def test_strided_codes_are_packed_like_contiguous_ones(bits: int) -> None:
    codes = in_dtype_of(bits, np.random.default_rng(bits).integers(0, 2**bits, 41))
    assert pack(codes[::2], bits) == naive_pack(codes[::2].tolist(), bits)


def test_a_view_into_a_message_unpacks_without_a_copy_being_needed() -> None:
    codes = as_codes([3, 0, 1, 2, 3])
    framed = b"head" + pack(codes, 2)
    assert np.array_equal(unpack(memoryview(framed)[4:], 5, 2), codes)


@pytest.mark.parametrize("bits", NOT_BITS)
def test_a_width_outside_one_to_32_is_refused(bits: int) -> None:
    with pytest.raises(ParameterError, match="bits"):
        pack(as_codes([0]), bits)
    with pytest.raises(ParameterError, match="bits"):
        unpack(b"\x00" * 8, 1, bits)


@pytest.mark.parametrize("bits", [*range(1, 8), *range(9, 16), *range(17, 32)])
def test_a_code_that_does_not_fit_is_refused_and_named(bits: int) -> None:
    assert pack(in_dtype_of(bits, [2**bits - 1]), bits)  # the largest that fits
    with pytest.raises(WireError, match=f"code {2**bits} does not fit into {bits} bits"):
        pack(in_dtype_of(bits, [0, 2**bits, 0]), bits)


@pytest.mark.parametrize("bits", ALL_BITS)
@pytest.mark.parametrize("count", [0, 1, 5, 8])
def test_every_wrong_length_is_refused(bits: int, count: int) -> None:
    right = packed_size(count, bits)
    for size in set(range(right + 10)) - {right}:
        with pytest.raises(WireError, match=f"payload has {size} bytes"):
            unpack(bytes(size), count, bits)


@pytest.mark.parametrize("bits", [*range(1, 9), 9, 17, 31])
@pytest.mark.parametrize("count", range(1, 9))
def test_every_padding_bit_must_be_zero(bits: int, count: int) -> None:
    packed = pack(in_dtype_of(bits, [2**bits - 1] * count), bits)
    used = count * bits
    for position in range(used, 8 * len(packed)):
        spoilt = int.from_bytes(packed, "little") | 1 << position
        with pytest.raises(WireError, match="padding"):
            unpack(spoilt.to_bytes(len(packed), "little"), count, bits)
    assert unpack(packed, count, bits).tolist() == [2**bits - 1] * count
