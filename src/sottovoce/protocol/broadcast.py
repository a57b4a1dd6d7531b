"""What the server sends down: vectors of the model's size, d numbers in 4 d bytes or fewer.

    format    bytes               error of a number x                    largest |x|
    float32   4 d                 2^-24 |x|                              3.4e38
    float16   2 d                 2^-11 |x|; 2^-25 where |x| < 2^-14     65504
    bfloat16  2 d                 2^-8 |x|                               3.3e38
    int8      d + 4 ceil(d/256)   half a step of its block               1.7e38

(float32 and bfloat16 lose more below 2^-126.) Numbers go to the nearest that the format has, ties
to even, bfloat16 by way of float32: the same vector always becomes the same bytes. int8 cuts a
vector into blocks of 256 coordinates, of which the last may be shorter. A block's step is its
largest magnitude over 127, rounded up to a float32 of 17 significant bits, and its codes are whole
numbers of steps from -127 to 127. All steps come first as float32, then all codes. Everything is
little-endian. Whatever is read is a float32 number exactly (hence the 17 bits: a code has seven),
so that a client that trains in float32 starts from just what was sent.

What the server has is released already: rounding it is post-processing, and costs no privacy.
Nothing saturates: clients that train from something else than the server's model would go astray
unseen, so a vector that does not fit is an error.

`sent` and `received` are the two ends of it: the server's model stays in float64 with
the server. Clients start from what arrives, and their updates are relative to it, so that the
server can add them to its own model: rounding on the way down never adds up over rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never, get_args

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.domains import MAX_DIMENSION, Vector
from sottovoce.core.errors import UnknownNameError, WireError

DownlinkFormat = Literal["float32", "float16", "bfloat16", "int8"]
DOWNLINK_FORMATS: tuple[DownlinkFormat, ...] = get_args(DownlinkFormat)

BLOCK = 256  # more, and outliers coarsen more numbers; fewer, and steps take more bytes
_MOST_STEPS = 127
_SPARE_BITS = np.uint32(0x7F)  # of a step's float32: its last seven
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_LARGEST: dict[str, float] = {
    "float32": _FLOAT32_MAX,
    "float16": float(np.finfo(np.float16).max),
    "bfloat16": 2.0**128 - 2.0**120,
    "int8": 2.0**127,  # 127 steps that were rounded up are still below float32's largest
}


def payload_bytes(dimension: int, number_format: DownlinkFormat) -> int:
    """What a vector takes, exactly."""
    parameter_rules.integer("dimension", dimension, low=1, high=MAX_DIMENSION)
    _check_known(number_format)
    match number_format:
        case "float32":
            return 4 * dimension
        case "float16" | "bfloat16":
            return 2 * dimension
        case "int8":
            return dimension + 4 * _blocks(dimension)
        case _:
            assert_never(number_format)


def pack(vector: Vector, number_format: DownlinkFormat) -> bytes:
    """The vector as it is sent; WireError if a number is not finite or does not fit the format."""
    _check_known(number_format)
    _check_fits(vector, number_format)
    match number_format:
        case "float32":
            return vector.astype("<f4").tobytes()
        case "float16":
            return vector.astype("<f2").tobytes()
        case "bfloat16":
            return _upper_halves(vector.astype(np.float32)).astype("<u2").tobytes()
        case "int8":
            return _in_steps(vector)
        case _:
            assert_never(number_format)


def unpack(payload: bytes | memoryview, dimension: int, number_format: DownlinkFormat) -> Vector:
    """What a client reads; refuses a wrong length, and numbers, steps or codes out of range."""
    expected = payload_bytes(dimension, number_format)
    if len(payload) != expected:
        raise WireError(
            f"payload has {len(payload)} bytes, but {dimension} numbers as {number_format} take "
            f"{expected}; server and client need the same model and the same runtime.downlink"
        )
    match number_format:
        case "float32":
            return _widened(np.frombuffer(payload, dtype="<f4"))
        case "float16":
            return _widened(np.frombuffer(payload, dtype="<f2"))
        case "bfloat16":
            halves = np.frombuffer(payload, dtype="<u2").astype(np.uint32)
            return _widened((halves << np.uint32(16)).view(np.float32))
        case "int8":
            return _from_steps(payload, dimension)
        case _:
            assert_never(number_format)


def _check_known(number_format: str) -> None:
    if number_format not in DOWNLINK_FORMATS:
        raise UnknownNameError.among("downlink format", number_format, DOWNLINK_FORMATS)


def _check_fits(vector: Vector, number_format: str) -> None:
    if vector.ndim != 1 or not vector.size:
        raise WireError(f"expected a vector of numbers, got shape {vector.shape}; flatten it first")
    magnitudes, largest = np.abs(vector), _LARGEST[number_format]
    if magnitudes.max() <= largest:  # which NaN is not
        return
    where = int(np.flatnonzero(~(magnitudes <= largest))[0])
    remedy = "lower the learning rate"
    if number_format == "float16":
        remedy += ", or set runtime.downlink = 'bfloat16'"
    raise WireError(
        f"coordinate {where} of what the server sends down is {vector[where]:g}, and "
        f"{number_format} reaches {largest:g}; {remedy}"
    )


def _upper_halves(numbers: NDArray[np.float32]) -> NDArray[np.uint32]:
    """The upper 16 bits of float32 numbers, rounded to the nearest, ties to even."""
    bits = numbers.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)


def _widened(numbers: NDArray[np.floating[Any]]) -> Vector:
    if not np.isfinite(numbers).all():  # asked first: numpy warns of some NaNs that it converts
        raise WireError("payload holds a NaN or infinite value; ask for it again")
    return numbers.astype(np.float64)


def _blocks(dimension: int) -> int:
    return -(-dimension // BLOCK)


def _in_steps(vector: Vector) -> bytes:
    """A step for each block, then how many of them each number is."""
    rows = np.zeros((_blocks(len(vector)), BLOCK))
    rows.reshape(-1)[: len(vector)] = vector
    largest = np.abs(rows).max(axis=1)
    steps = (largest / _MOST_STEPS).astype(np.float32)
    short = steps.astype(np.float64) * _MOST_STEPS < largest  # exact: 24 bits times 7
    steps[short] = np.nextafter(steps[short], np.float32(np.inf))
    steps = ((steps.view(np.uint32) + _SPARE_BITS) & ~_SPARE_BITS).view(np.float32)
    # A block of zeros has no step, and any divisor leaves zeros.
    rows /= np.where(steps > 0.0, steps, 1.0).astype(np.float64)[:, None]
    codes = np.rint(rows).astype(np.int8).reshape(-1)[: len(vector)]
    return b"".join((steps.astype("<f4").tobytes(), codes.tobytes()))


def _from_steps(payload: bytes | memoryview, dimension: int) -> Vector:
    blocks = _blocks(dimension)
    words = np.frombuffer(payload, dtype="<u4", count=blocks).astype(np.uint32)
    steps = _widened(words.view(np.float32))
    codes = np.frombuffer(payload, dtype=np.int8, offset=4 * blocks)
    too_large = steps.max() * _MOST_STEPS > _FLOAT32_MAX
    if too_large or np.signbit(steps).any() or (words & _SPARE_BITS).any():
        raise WireError(
            "payload holds a step that is negative, too large or has more than 17 bits; "
            "ask for it again"
        )
    if codes.min() < -_MOST_STEPS:
        raise WireError(f"payload holds a code below -{_MOST_STEPS}; ask for it again")
    return np.repeat(steps, BLOCK)[:dimension] * codes


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where clients start from in a round: the model, and the state that they may read."""

    model: Vector
    state: Mapping[str, NDArray[Any]]


def sent(start: Start, shared_state: Sequence[str], downlink: DownlinkFormat) -> tuple[bytes, ...]:
    """The vectors that go down, packed: the model, then what the algorithm shares of its state."""
    vectors = (start.model, *(start.state[name] for name in shared_state))
    return tuple(pack(vector, downlink) for vector in vectors)


def received(
    payloads: Sequence[bytes],
    shared_state: Sequence[str],
    dimension: int,
    downlink: DownlinkFormat,
) -> Start:
    """What a client reads of what was `sent`, else WireError."""
    if len(payloads) != 1 + len(shared_state):
        raise WireError(
            f"{len(payloads)} vectors arrived, expected {1 + len(shared_state)}; server and client "
            "need the same algorithm"
        )
    model, *others = (unpack(payload, dimension, downlink) for payload in payloads)
    return Start(model=model, state=dict(zip(shared_state, others, strict=True)))
