"""Messages: what was announced is read back, anything else is a WireError and nothing worse."""

import hashlib
import math
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sottovoce.core.errors import ParameterError, WireError
from sottovoce.mechanisms import packing
from sottovoce.mechanisms.mechanism import CodeFormat, Codes, Float32Codes, LevelCodes
from sottovoce.protocol.message import HEADER_BYTES, Envelope, open_sealed, seal

HASH = bytes(range(100, 116))
FORMATS: list[CodeFormat] = [
    *(LevelCodes(levels=levels) for levels in (2, 3, 5, 16, 256, 300, 2**16, 2**17 + 1, 2**32)),
    Float32Codes(),
]

examples = settings(deadline=None, max_examples=300)


def an_envelope(code_format: CodeFormat, dimension: int = 5) -> Envelope:
    return Envelope(
        parameter_hash=HASH, round=7, uplink=2, dimension=dimension, code_format=code_format
    )


def some_codes(code_format: CodeFormat, dimension: int = 5) -> Codes:
    generator = np.random.default_rng(dimension)
    if isinstance(code_format, Float32Codes):
        return generator.standard_normal(dimension).astype(np.float32)
    count = code_format.num_codes(dimension)
    return generator.integers(0, code_format.levels, count).astype(code_format.dtype)


def with_checksum(fields: bytes, payload: bytes) -> bytes:
    """A message that a hostile client could make: its checksum is right, whatever it says."""
    return fields + hashlib.blake2b(fields + payload, digest_size=8).digest() + payload


def fields_of(
    envelope: Envelope, *, magic: bytes = b"STVC", version: int = 1, reserved: int = 0
) -> bytes:
    """The first 36 bytes, written from the documented table and from nothing in the package."""
    return (
        magic
        + bytes([version, envelope.code_format.bits, envelope.uplink, reserved])
        + envelope.round.to_bytes(4, "little")
        + envelope.dimension.to_bytes(8, "little")
        + envelope.parameter_hash
    )


# -- what is announced arrives -------------------------------------------------------------


@pytest.mark.parametrize("code_format", FORMATS)
@pytest.mark.parametrize("dimension", [1, 2, 7, 8, 9, 1000])
def test_opening_a_sealed_message_gives_the_codes_back(
    code_format: CodeFormat, dimension: int
) -> None:
    envelope = an_envelope(code_format, dimension)
    codes = some_codes(code_format, dimension)
    back = open_sealed(seal(codes, envelope), envelope)
    assert back.dtype == codes.dtype
    assert back.tobytes() == codes.tobytes()


@pytest.mark.parametrize("levels", [2, 3, 5, 16, 256, 257, 2**16, 2**16 + 1, 2**32])
def test_the_lowest_and_the_highest_code_survive(levels: int) -> None:
    envelope = an_envelope(LevelCodes(levels=levels), 3)
    codes = np.array([0, levels - 1, 0]).astype(LevelCodes(levels=levels).dtype)
    assert open_sealed(seal(codes, envelope), envelope).tolist() == [0, levels - 1, 0]


@examples
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_float32_values_survive_bit_by_bit(values: list[float]) -> None:
    envelope = an_envelope(Float32Codes(), len(values))
    codes = np.array(values, dtype=np.float32)  # -0.0 and subnormal numbers included
    assert open_sealed(seal(codes, envelope), envelope).tobytes() == codes.tobytes()


@pytest.mark.parametrize("code_format", FORMATS)
def test_the_message_is_laid_out_as_documented(code_format: CodeFormat) -> None:
    envelope = an_envelope(code_format)
    codes = some_codes(code_format)
    message = seal(codes, envelope)
    assert message[0:4] == b"STVC"
    assert message[4] == 1
    assert message[5] == code_format.bits
    assert message[6] == envelope.uplink
    assert message[7] == 0
    assert int.from_bytes(message[8:12], "little") == envelope.round
    assert int.from_bytes(message[12:20], "little") == envelope.dimension
    assert message[20:36] == envelope.parameter_hash
    payload = (
        struct.pack("<5f", *codes.tolist())
        if isinstance(code_format, Float32Codes)
        else packing.pack(codes.astype(code_format.dtype), code_format.bits)
    )
    assert message == with_checksum(fields_of(envelope), payload)


def test_the_header_takes_at_most_64_bytes() -> None:
    assert HEADER_BYTES == 44
    assert HEADER_BYTES <= 64


@pytest.mark.parametrize(
    ("code_format", "payload_bytes"),
    [
        (LevelCodes(levels=2), 125),
        (LevelCodes(levels=3), 250),
        (LevelCodes(levels=5), 375),
        (LevelCodes(levels=16), 500),
        (LevelCodes(levels=256), 1000),
        (LevelCodes(levels=257), 1125),
        (LevelCodes(levels=2**32), 4000),
        (LevelCodes(levels=2000, count=1), 2),
        (LevelCodes(levels=2, count=1001), 126),
        (Float32Codes(), 4000),
    ],
)
def test_a_thousand_coordinates_take_the_bytes_they_are_said_to(
    code_format: CodeFormat, payload_bytes: int
) -> None:
    envelope = an_envelope(code_format, 1000)
    assert envelope.payload_bytes == payload_bytes
    assert envelope.total_bytes == 44 + payload_bytes
    assert len(seal(some_codes(code_format, 1000), envelope)) == envelope.total_bytes


def test_the_extremes_of_round_and_uplink_fit_the_header() -> None:
    envelope = replace(an_envelope(LevelCodes(levels=2)), round=2**32 - 1, uplink=255)
    codes = some_codes(LevelCodes(levels=2))
    assert np.array_equal(open_sealed(seal(codes, envelope), envelope), codes)


# -- damage --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code_format", [LevelCodes(levels=2), LevelCodes(levels=5), Float32Codes()]
)
def test_every_single_flipped_bit_is_noticed(code_format: CodeFormat) -> None:
    envelope = an_envelope(code_format)
    message = seal(some_codes(code_format), envelope)
    for position in range(8 * len(message)):
        damaged = bytearray(message)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(WireError):
            open_sealed(bytes(damaged), envelope)


@pytest.mark.parametrize("code_format", [LevelCodes(levels=5), Float32Codes()])
def test_every_truncation_is_noticed(code_format: CodeFormat) -> None:
    envelope = an_envelope(code_format)
    message = seal(some_codes(code_format), envelope)
    for length in range(len(message)):
        with pytest.raises(WireError):
            open_sealed(message[:length], envelope)
        with pytest.raises(WireError):
            open_sealed(message[len(message) - length :], envelope)


@pytest.mark.parametrize("code_format", [LevelCodes(levels=5), Float32Codes()])
def test_every_extension_is_noticed_even_under_a_right_checksum(code_format: CodeFormat) -> None:
    envelope = an_envelope(code_format)
    message = seal(some_codes(code_format), envelope)
    for tail in (bytes(n) for n in range(1, 65)):
        with pytest.raises(WireError, match="checksum"):
            open_sealed(message + tail, envelope)
        forged = with_checksum(message[:36], message[HEADER_BYTES:] + tail)
        with pytest.raises(WireError, match="payload length"):
            open_sealed(forged, envelope)


@pytest.mark.parametrize("code_format", [LevelCodes(levels=5), Float32Codes()])
def test_a_payload_cut_short_under_a_right_checksum_is_noticed(code_format: CodeFormat) -> None:
    envelope = an_envelope(code_format)
    payload = seal(some_codes(code_format), envelope)[HEADER_BYTES:]
    for length in range(len(payload)):
        with pytest.raises(WireError, match="payload length"):
            open_sealed(with_checksum(fields_of(envelope), payload[:length]), envelope)


# -- the wrong message, with a right checksum ----------------------------------------------


@pytest.mark.parametrize("code_format", FORMATS)
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"round": 8}, "round 8, expected 7"),
        ({"uplink": 3}, "uplink 3, expected 2"),
        ({"parameter_hash": bytes(16)}, "hash of the public parameters"),
        ({"dimension": 6}, "dimension 6, expected 5"),
    ],
)
def test_a_message_for_something_else_is_refused_by_name(
    code_format: CodeFormat, change: dict[str, object], named: str
) -> None:
    expected = an_envelope(code_format)
    other = replace(expected, **change)  # type: ignore[arg-type]
    message = seal(some_codes(code_format, other.dimension), other)
    with pytest.raises(WireError, match=named):
        open_sealed(message, expected)


@pytest.mark.parametrize("sent", FORMATS)
@pytest.mark.parametrize("expected", FORMATS)
def test_a_message_with_other_bits_per_code_is_refused(
    sent: CodeFormat, expected: CodeFormat
) -> None:
    message = seal(some_codes(sent), an_envelope(sent))
    if {sent, expected} == {LevelCodes(levels=2**32), Float32Codes()}:
        return  # told apart by the hash, which here is made up
    if sent.bits == expected.bits:
        assert open_sealed(message, an_envelope(expected)).shape == (5,)
        return
    with pytest.raises(WireError, match=f"bits per code {sent.bits}"):
        open_sealed(message, an_envelope(expected))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (fields_of(an_envelope(LevelCodes(levels=2)), magic=b"STVX"), "not a Sottovoce message"),
        (fields_of(an_envelope(LevelCodes(levels=2)), version=0), "version 0"),
        (fields_of(an_envelope(LevelCodes(levels=2)), version=2), "version 2"),
        (fields_of(an_envelope(LevelCodes(levels=2)), reserved=1), "reserved byte 1"),
        (fields_of(an_envelope(LevelCodes(levels=2)), reserved=128), "reserved byte 128"),
    ],
)
def test_foreign_magic_version_and_reserved_byte_are_refused_by_name(
    fields: bytes, named: str
) -> None:
    with pytest.raises(WireError, match=named):
        open_sealed(with_checksum(fields, b"\x00"), an_envelope(LevelCodes(levels=2)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("position", range(5))
def test_a_float_that_is_not_finite_is_refused_even_under_a_right_checksum(
    value: float, position: int
) -> None:
    # One NaN in the sum would destroy the whole round's mean.
    envelope = an_envelope(Float32Codes())
    values = [0.25] * 5
    values[position] = value
    message = with_checksum(fields_of(envelope), struct.pack("<5f", *values))
    with pytest.raises(WireError, match="NaN or infinite"):
        open_sealed(message, envelope)


@pytest.mark.parametrize(("levels", "code"), [(3, 3), (5, 5), (5, 7), (200, 200), (200, 255)])
@pytest.mark.parametrize("position", range(5))
def test_a_code_that_is_no_level_is_refused_even_under_a_right_checksum(
    levels: int, code: int, position: int
) -> None:
    # It would fit into the bits, but the decoder has no value for it.
    envelope = an_envelope(LevelCodes(levels=levels))
    codes = np.zeros(5, dtype=np.uint8)
    codes[position] = code
    payload = packing.pack(codes, envelope.code_format.bits)
    with pytest.raises(WireError, match=f"expected codes below {levels}, got code {code}"):
        open_sealed(with_checksum(fields_of(envelope), payload), envelope)


@pytest.mark.parametrize("count", [1, 3, 5, 12])
def test_a_message_holds_as_many_codes_as_its_format_says(count: int) -> None:
    code_format = LevelCodes(levels=600, count=count)
    envelope = an_envelope(code_format)
    codes = some_codes(code_format)
    assert codes.shape == (count,)
    message = seal(codes, envelope)
    assert len(message) == envelope.total_bytes == 44 + math.ceil(10 * count / 8)
    assert int.from_bytes(message[12:20], "little") == 5  # the dimension is still the vector's
    assert open_sealed(message, envelope).tolist() == codes.tolist()
    with pytest.raises(WireError, match=f"expected a vector of {count} codes"):
        seal(np.zeros(count + 1, dtype=np.uint16), envelope)
    longer = an_envelope(LevelCodes(levels=600, count=count + 1))
    with pytest.raises(WireError, match="payload length"):
        open_sealed(message, longer)


def test_padding_that_is_not_zero_is_refused_even_under_a_right_checksum() -> None:
    # Free bits in the padding would be a covert channel and make messages ambiguous.
    envelope = an_envelope(LevelCodes(levels=2))
    for payload in (0b00100000, 0b01000000, 0b10000000):
        with pytest.raises(WireError, match="padding"):
            open_sealed(with_checksum(fields_of(envelope), bytes([payload])), envelope)


# -- fuzzing -------------------------------------------------------------------------------


@examples
@given(st.binary(max_size=120))
@example(b"")
@example(b"STVC")
def test_arbitrary_bytes_are_a_wire_error_and_never_another_exception(data: bytes) -> None:
    for code_format in FORMATS:
        with pytest.raises(WireError):
            open_sealed(data, an_envelope(code_format))


@examples
@given(
    magic=st.sampled_from([b"STVC", b"stvc"]),
    version=st.integers(0, 255),
    reserved=st.integers(0, 255),
    bits=st.integers(0, 255),
    uplink=st.integers(0, 255),
    round_number=st.integers(0, 2**32 - 1),
    dimension=st.integers(0, 2**64 - 1),
    payload=st.binary(max_size=40),
)
def test_arbitrary_headers_with_a_right_checksum_are_a_wire_error(
    magic: bytes,
    version: int,
    reserved: int,
    bits: int,
    uplink: int,
    round_number: int,
    dimension: int,
    payload: bytes,
) -> None:
    fields = struct.pack(
        "<4sBBBBIQ16s", magic, version, bits, uplink, reserved, round_number, dimension, HASH
    )
    for code_format in FORMATS:
        envelope = an_envelope(code_format)
        if fields == fields_of(envelope) and len(payload) == envelope.payload_bytes:
            continue  # drawn right by chance: the next test covers these
        with pytest.raises(WireError):
            open_sealed(with_checksum(fields, payload), envelope)


@examples
@given(code_format=st.sampled_from(FORMATS), data=st.data())
def test_a_payload_that_opens_is_the_only_one_for_its_codes(
    code_format: CodeFormat, data: st.DataObject
) -> None:
    envelope = an_envelope(code_format, 7)
    size = envelope.payload_bytes
    message = with_checksum(fields_of(envelope), data.draw(st.binary(min_size=size, max_size=size)))
    try:
        codes = open_sealed(message, envelope)
    except WireError:
        return
    assert seal(codes, envelope) == message


# -- sealing -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint16, np.int64, np.float32, np.float64])
def test_sealing_refuses_level_codes_that_are_not_uint8(dtype: type[np.generic]) -> None:
    with pytest.raises(WireError, match="uint8"):
        seal(np.zeros(5, dtype=dtype), an_envelope(LevelCodes(levels=2)))


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, np.float64])
def test_sealing_refuses_float_codes_that_are_not_float32(dtype: type[np.generic]) -> None:
    with pytest.raises(WireError, match="float32"):
        seal(np.zeros(5, dtype=dtype), an_envelope(Float32Codes()))


@pytest.mark.parametrize("shape", [(), (0,), (4,), (6,), (5, 1), (1, 5)])
@pytest.mark.parametrize("code_format", [LevelCodes(levels=2), Float32Codes()])
def test_sealing_refuses_another_shape(code_format: CodeFormat, shape: tuple[int, ...]) -> None:
    codes: Codes = np.zeros(shape, dtype=np.uint8)
    if isinstance(code_format, Float32Codes):
        codes = np.zeros(shape, dtype=np.float32)
    with pytest.raises(WireError, match="expected a vector of 5 codes"):
        seal(codes, an_envelope(code_format))


@pytest.mark.parametrize(("levels", "code"), [(2, 2), (3, 3), (5, 255)])
def test_sealing_refuses_a_code_that_is_no_level(levels: int, code: int) -> None:
    codes = np.array([0, 0, code, 0, 0], dtype=np.uint8)
    with pytest.raises(WireError, match=f"below {levels}"):
        seal(codes, an_envelope(LevelCodes(levels=levels)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_sealing_refuses_floats_that_are_not_finite(value: float) -> None:
    codes = np.array([0.0, value, 0.0, 0.0, 0.0], dtype=np.float32)
    with pytest.raises(WireError, match="finite"):
        seal(codes, an_envelope(Float32Codes()))


@pytest.mark.parametrize("change", [{"round": -1}, {"round": 2**32}, {"round": True}])
def test_an_envelope_refuses_a_round_that_the_header_cannot_hold(change: dict[str, int]) -> None:
    with pytest.raises(ParameterError, match="round"):
        replace(an_envelope(Float32Codes()), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("uplink", [-1, 256])
def test_an_envelope_refuses_an_uplink_that_the_header_cannot_hold(uplink: int) -> None:
    with pytest.raises(ParameterError, match="uplink"):
        replace(an_envelope(Float32Codes()), uplink=uplink)


@pytest.mark.parametrize("length", [0, 15, 17, 32])
def test_an_envelope_refuses_a_parameter_hash_of_another_length(length: int) -> None:
    with pytest.raises(WireError, match="16 bytes"):
        replace(an_envelope(Float32Codes()), parameter_hash=bytes(length))
