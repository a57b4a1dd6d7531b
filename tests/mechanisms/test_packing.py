"""Packing against a naive packer that shifts codes into one big integer, on every level."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from sottovoce.core import native
from sottovoce.core.errors import ParameterError, WireError
from sottovoce.mechanisms.packing import (
    PackedCodes,
    UnsignedCodes,
    check_rows,
    pack,
    packed_size,
    unpack,
)

ALL_BITS = range(1, 33)
NOT_BITS = [-1, 0, 33, 64, True]

# A deadline would be a timing assertion.
examples = settings(
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # a level stays what it is
)


@pytest.fixture(autouse=True, params=native.levels())
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Everything here holds for numpy and for each level of the kernels."""
    with native.using(request.param):
        yield request.param


@st.composite
def bits_and_codes(draw: st.DrawFn) -> tuple[int, list[int]]:
    bits = draw(st.integers(1, 32))
    return bits, draw(st.lists(st.integers(0, 2**bits - 1), max_size=70))


def as_codes(values: list[int]) -> NDArray[np.uint8]:
    return np.array(values, dtype=np.uint8)


def in_dtype_of(bits: int, values: ArrayLike) -> UnsignedCodes:
    return np.asarray(values, dtype=dtype_of(bits))


def dtype_of(bits: int) -> np.dtype[Any]:
    return np.dtype(np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32)


def naive_pack(codes: list[int], bits: int) -> bytes:
    """The documented layout: a little-endian number in which code i counts 2^(i bits)."""
    number = int("0" + "".join(f"{code:0{bits}b}" for code in reversed(codes)), 2)
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
def test_every_width_and_awkward_length_agrees_with_the_naive_packer(bits: int) -> None:
    for count in (0, 1, 2, 3, 7, 8, 9, 63, 65, 10_001):
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
    with pytest.raises(WireError, match=f"expected codes of {bits} bits, got code {2**bits}"):
        pack(in_dtype_of(bits, [0, 2**bits, 0]), bits)


@pytest.mark.parametrize("bits", ALL_BITS)
def test_every_wrong_length_is_refused(bits: int) -> None:
    for count in (0, 1, 5, 8):
        right = packed_size(count, bits)
        for size in set(range(right + 10)) - {right}:
            with pytest.raises(WireError, match=f"got {size} bytes"):
                unpack(bytes(size), count, bits)


@pytest.mark.parametrize("bits", [*range(1, 9), 9, 17, 31])
def test_every_padding_bit_must_be_zero(bits: int) -> None:
    for count in range(1, 9):
        packed = pack(in_dtype_of(bits, [2**bits - 1] * count), bits)
        for position in range(count * bits, 8 * len(packed)):
            spoilt = int.from_bytes(packed, "little") | 1 << position
            with pytest.raises(WireError, match="padding"):
                unpack(spoilt.to_bytes(len(packed), "little"), count, bits)
        assert unpack(packed, count, bits).tolist() == [2**bits - 1] * count


@pytest.mark.parametrize("bits", [1, 3, 8, 12, 16, 20, 32])
def test_codes_that_must_not_change_are_packed_and_any_integers_too(bits: int) -> None:
    codes = in_dtype_of(bits, np.random.default_rng(bits).integers(0, 2**bits, 77))
    codes.flags.writeable = False
    expected = naive_pack(codes.tolist(), bits)
    assert pack(codes, bits) == expected
    assert pack(codes.astype(np.int64), bits) == expected  # type: ignore[arg-type]
    assert pack(codes.byteswap().view(codes.dtype.newbyteorder()), bits) == expected


@pytest.mark.parametrize("bits", [1, 5, 8, 11, 32])
def test_payloads_of_any_kind_of_buffer_are_unpacked_into_fresh_codes(bits: int) -> None:
    values = np.random.default_rng(bits).integers(0, 2**bits, 50).tolist()
    payload = naive_pack(values, bits)
    spaced = np.repeat(np.frombuffer(payload, dtype=np.uint8), 3)[::3]
    for one in (payload, bytearray(payload), memoryview(payload), spaced):
        codes = unpack(one, 50, bits)
        codes[0] = 0  # one's own
        assert codes[1:].tolist() == values[1:]
    assert naive_pack(values, bits) == payload


# -- checked and still packed --------------------------------------------------------------


@pytest.mark.parametrize("levels", [2, 3, 4, 5, 7, 16, 100, 255, 256, 257, 1000, 2**16, 2**32])
def test_packed_codes_open_to_what_was_packed(levels: int) -> None:
    bits = (levels - 1).bit_length()
    codes = in_dtype_of(bits, np.random.default_rng(levels).integers(0, levels, 1013))
    packed = PackedCodes(pack(codes, bits), count=1013, levels=levels)
    assert (packed.bits, packed.levels, packed.count) == (bits, levels, 1013)
    assert np.array_equal(packed.codes(), codes)


@pytest.mark.parametrize("levels", [3, 5, 6, 100, 255, 257, 1000, 70_000])
@pytest.mark.parametrize("where", [0, 7, 511, 512, 1023, 1024, 1201])
def test_a_code_beyond_the_last_level_is_found_wherever_it_is(levels: int, where: int) -> None:
    bits = (levels - 1).bit_length()
    codes = in_dtype_of(bits, np.full(1202, levels - 1))
    PackedCodes(pack(codes, bits), count=1202, levels=levels)
    codes[where] = levels
    payload = pack(codes, bits)
    with pytest.raises(WireError, match=f"expected codes below {levels}, got code {levels}"):
        PackedCodes(payload, count=1202, levels=levels)
    if bits <= 8:
        rows = np.stack([np.zeros_like(np.frombuffer(payload, np.uint8)), payload_row(payload)])
        with pytest.raises(WireError, match="expected codes below"):
            check_rows(rows, count=1202, levels=levels)


def payload_row(payload: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(payload, dtype=np.uint8)


@pytest.mark.parametrize("levels", [2, 4, 7, 300])
def test_a_wrong_length_or_padding_is_refused_packed_as_well(levels: int) -> None:
    bits = (levels - 1).bit_length()
    payload = bytes(packed_size(13, bits))
    for wrong in (payload + b"\x00", payload[:-1], b""):
        with pytest.raises(WireError, match=f"got {len(wrong)} bytes"):
            PackedCodes(wrong, count=13, levels=levels)
    with pytest.raises(WireError, match="padding"):
        PackedCodes(payload[:-1] + b"\x80", count=13, levels=levels)
    with pytest.raises(ParameterError, match="levels"):
        PackedCodes(payload, count=13, levels=1)


def test_what_the_sender_could_change_is_copied_and_the_rest_is_not() -> None:
    message = b"head" + bytes([3, 5])
    assert PackedCodes(memoryview(message)[4:], count=16, levels=2).payload.obj is message
    for one in (bytearray([3, 5]), np.array([3, 5], dtype=np.uint8)):
        packed = PackedCodes(one, count=16, levels=2)
        one[0] = one[1] = 0
        assert bytes(packed.payload) == b"\x03\x05"


def test_rows_of_payloads_are_checked_like_single_ones() -> None:
    rows = np.zeros((3, 2), dtype=np.uint8)
    check_rows(rows, count=13, levels=2)
    for wrong in (rows[0], rows[:, :1], rows.astype(np.uint16)):
        with pytest.raises(WireError, match="for 13 codes of 1 bits"):
            check_rows(wrong, count=13, levels=2)  # type: ignore[arg-type]
    rows[1, 1] = 1 << 5
    with pytest.raises(WireError, match="padding"):
        check_rows(rows, count=13, levels=2)
