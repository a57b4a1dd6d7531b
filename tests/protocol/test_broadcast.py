"""What is sent down: exact bytes, the nearest numbers, and nothing that a client cannot use."""

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError, UnknownNameError, WireError
from sottovoce.protocol.broadcast import (
    BLOCK,
    DOWNLINK_FORMATS,
    DownlinkFormat,
    pack,
    payload_bytes,
    unpack,
)

LARGEST = {"float32": 2.0**128 - 2.0**104, "float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120}
LARGEST["int8"] = 2.0**127

examples = settings(deadline=None, max_examples=100)
every_format = pytest.mark.parametrize("number_format", DOWNLINK_FORMATS)


def vectors(largest: float, smallest: float = 0.0) -> st.SearchStrategy[Vector]:
    """Vectors of numbers that are zero or have a magnitude between `smallest` and `largest`."""
    magnitudes = st.floats(min_value=smallest, max_value=largest, allow_subnormal=False)
    numbers = st.one_of(st.just(0.0), magnitudes, magnitudes.map(lambda value: -value))
    return st.lists(numbers, min_size=1, max_size=3 * BLOCK).map(lambda own: np.array(own))


def through(vector: Vector, number_format: DownlinkFormat) -> Vector:
    return unpack(pack(vector, number_format), len(vector), number_format)


# -- what is read -------------------------------------------------------------------------


@examples
@given(vectors(LARGEST["float32"]))
def test_float32_is_the_nearest_float32_bit_for_bit(vector: Vector) -> None:
    assert pack(vector, "float32") == struct.pack(f"<{len(vector)}f", *vector)
    found = through(vector, "float32")
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, vector.astype(np.float32).astype(np.float64))
    normal = np.abs(vector) >= 2.0**-126
    assert (np.abs(found - vector) <= 2.0**-24 * np.abs(vector))[normal].all()


@examples
@given(vectors(LARGEST["float16"]))
@example(np.array([65504.0, -65504.0, 2.0**-14, 2.0**-24, 2.0**-25, 1.0 + 2.0**-11]))
def test_float16_errs_by_2_to_the_minus_11_or_where_it_is_coarse_by_2_to_the_minus_25(
    vector: Vector,
) -> None:
    error = np.abs(through(vector, "float16") - vector)
    assert (error <= np.maximum(2.0**-11 * np.abs(vector), 2.0**-25)).all()
    assert pack(vector, "float16") == struct.pack(f"<{len(vector)}e", *vector)


@examples
@given(vectors(LARGEST["bfloat16"], smallest=2.0**-126))
@example(np.array([LARGEST["bfloat16"], -LARGEST["bfloat16"], 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8]))
def test_bfloat16_errs_by_2_to_the_minus_8_and_is_torchs(vector: Vector) -> None:
    found = through(vector, "bfloat16")
    assert (np.abs(found - vector) <= 2.0**-8 * np.abs(vector)).all()
    expected = torch.from_numpy(vector.astype(np.float32)).to(torch.bfloat16)
    np.testing.assert_array_equal(found, expected.to(torch.float64).numpy())


@examples
@given(vectors(LARGEST["int8"]))
@example(np.array([LARGEST["int8"], 1.0]))
@example(np.array([5e-324, 0.0]))  # its step is the smallest float32 above 0
@example(np.array([1e-43, -1e-45]))
def test_int8_errs_by_half_a_step_of_its_block_and_steps_are_no_wider_than_they_must(
    vector: Vector,
) -> None:
    payload, blocks = pack(vector, "int8"), math.ceil(len(vector) / BLOCK)
    steps = np.frombuffer(payload, dtype="<f4", count=blocks)
    largest = [np.abs(vector[i : i + BLOCK]).max() for i in range(0, len(vector), BLOCK)]
    for step, top in zip(steps, largest, strict=True):
        assert float(step) * 127 >= top
        word = int(step.view(np.uint32))
        assert word % 128 == 0
        below = np.uint32(max(word - 128, 0)).view(np.float32)
        assert float(below) * 127 < top or step == 0.0
    own = np.repeat(steps.astype(np.float64), BLOCK)[: len(vector)]
    error = np.abs(unpack(payload, len(vector), "int8") - vector)
    assert (error <= 0.5 * own * (1 + 1e-12)).all()


@every_format
@examples
@given(st.data())
def test_what_was_read_is_packed_as_it_was(
    number_format: DownlinkFormat, data: st.DataObject
) -> None:
    """So whoever sends a model on sends the same one; 2^-100 keeps the steps of int8 normal."""
    top = min(LARGEST[number_format], 2.0**100)
    vector = data.draw(vectors(top, smallest=2.0**-100))
    payload = pack(vector, number_format)
    assert pack(unpack(payload, len(vector), number_format), number_format) == payload


@every_format
@pytest.mark.parametrize("dimension", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 650, 5 * BLOCK])
def test_bytes_are_exact(number_format: DownlinkFormat, dimension: int) -> None:
    vector = np.random.default_rng(dimension).normal(size=dimension)
    expected = {
        "float32": 4 * dimension,
        "float16": 2 * dimension,
        "bfloat16": 2 * dimension,
        "int8": dimension + 4 * math.ceil(dimension / 256),
    }[number_format]
    assert len(pack(vector, number_format)) == payload_bytes(dimension, number_format) == expected


@pytest.mark.parametrize(
    ("number_format", "expected"),
    [
        ("float32", "0000803f 000020c0 00000000"),
        ("float16", "003c 00c1 0000"),
        ("bfloat16", "803f 20c0 0000"),
        ("int8", "0043a13c 33 81 00"),
    ],
)
def test_the_layout_of_1_and_minus_2_and_a_half_and_0(
    number_format: DownlinkFormat, expected: str
) -> None:
    assert pack(np.array([1.0, -2.5, 0.0]), number_format) == bytes.fromhex(expected)


def test_int8_blocks_have_their_own_steps() -> None:
    vector = np.concatenate([np.full(BLOCK, 1000.0), np.full(3, 1e-3)])
    np.testing.assert_allclose(through(vector, "int8"), vector, rtol=2.0**-16)
    assert not through(np.zeros(700), "int8").any()


@every_format
@examples
@given(st.data())
def test_a_client_in_float32_starts_from_exactly_what_was_sent(
    number_format: DownlinkFormat, data: st.DataObject
) -> None:
    found = through(data.draw(vectors(LARGEST[number_format])), number_format)
    np.testing.assert_array_equal(found.astype(np.float32).astype(np.float64), found)


# -- what is refused ----------------------------------------------------------------------


@every_format
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e39, -1e39])
def test_a_vector_that_does_not_fit_is_refused(number_format: DownlinkFormat, bad: float) -> None:
    vector = np.array([0.0, 1.0, bad, bad])
    with pytest.raises(WireError, match=r"coordinate 2 .* lower the learning rate"):
        pack(vector, number_format)


@every_format
def test_the_range_is_what_it_says(number_format: DownlinkFormat) -> None:
    largest = LARGEST[number_format]
    assert np.isfinite(
        through(np.array([largest, -largest]), number_format).astype(np.float32)
    ).all()
    with pytest.raises(WireError, match="largest magnitude of"):
        pack(np.array([np.nextafter(largest, np.inf)]), number_format)


def test_what_is_too_large_for_float16_is_sent_to_bfloat16() -> None:
    with pytest.raises(WireError, match=r"float16 is 65504; .*set runtime.downlink = 'bfloat16'"):
        pack(np.array([7e4]), "float16")


@every_format
@pytest.mark.parametrize("change", [-1, 1])
def test_a_wrong_length_is_refused(number_format: DownlinkFormat, change: int) -> None:
    size = payload_bytes(300, number_format)
    with pytest.raises(WireError, match=f"take {size}; server and client need the same model"):
        unpack(bytes(size + change), 300, number_format)


@pytest.mark.parametrize(
    ("number_format", "payload"),
    [
        ("float32", "0000807f"),  # infinity
        ("float32", "000080ff"),
        ("float32", "0000c07f"),  # a quiet NaN, and a signalling one
        ("float32", "0100807f"),
        ("float16", "007c"),
        ("float16", "017c"),
        ("bfloat16", "807f"),
        ("bfloat16", "817f"),
        ("int8", "0000807f 00"),
        ("int8", "0100807f 00"),
        ("int8", "000080bf 01"),  # a negative step
        ("int8", "00000080 01"),
        ("int8", "80ff7f7f 01"),  # two such steps are no float32
        ("int8", "0100803f 01"),  # more than 17 bits
        ("int8", "0000803f 80"),  # the code -128
    ],
)
def test_what_pack_does_not_send_is_refused(number_format: DownlinkFormat, payload: str) -> None:
    with pytest.raises(WireError, match="payload holds"):
        unpack(bytes.fromhex(payload), 1, number_format)


@settings(examples, max_examples=300)
@given(st.sampled_from(DOWNLINK_FORMATS), st.binary(min_size=1, max_size=40), st.integers(1, 40))
def test_any_bytes_are_a_finite_vector_or_a_wire_error(
    number_format: DownlinkFormat, payload: bytes, dimension: int
) -> None:
    try:
        found = unpack(payload, dimension, number_format)
    except WireError:
        return
    assert found.shape == (dimension,)
    assert np.isfinite(found.astype(np.float32)).all()


@pytest.mark.parametrize("shape", [(0,), (2, 3), ()])
def test_only_vectors_are_sent(shape: tuple[int, ...]) -> None:
    with pytest.raises(WireError, match="flatten it first"):
        pack(np.zeros(shape), "float32")


def test_unknown_formats_and_no_dimension_are_refused() -> None:
    for call in (
        lambda: pack(np.zeros(1), "float23"),  # type: ignore[arg-type]
        lambda: unpack(b"1234", 1, "float23"),  # type: ignore[arg-type]
        lambda: payload_bytes(1, "float23"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UnknownNameError, match="did you mean 'float32'"):
            call()
    with pytest.raises(ParameterError, match="dimension"):
        payload_bytes(0, "int8")
