"""The downlink format: vectors of the model's size, d numbers in 4 d bytes or fewer.

    format    bytes               error of a number x                    largest |x|
    float32   4 d                 2^-24 |x|                              3.4e38
    float16   2 d                 2^-11 |x|; 2^-25 where |x| < 2^-14     65504
    bfloat16  2 d                 2^-8 |x|                               3.3e38
    int8      d + 4 ceil(d/256)   half a step of its block               1.7e38

(float32 and bfloat16 lose more below 2^-126.) Each number is rounded to the nearest one that the
format has, ties to even; bfloat16 is rounded from float32. The same vector always becomes the same
bytes. int8 cuts a vector into blocks of 256 coordinates, of which the last may be shorter. A
block's step is its largest magnitude over 127, rounded up to a float32 of 17 significant bits, and
its codes are whole numbers of steps from -127 to 127. All steps come first as float32, then all
codes. Everything is little-endian. Every number that a client reads is exactly a float32 (a code
has seven bits, hence the 17 bits of a step), so that a client that trains in float32 starts from
exactly what was sent.

The server's model is computed from released messages, so rounding it is post-processing and costs
no privacy. A vector that does not fit the format is an error. It is not clamped, because clients
would then train from a model that differs from the server's without anyone noticing.

`pack_start` packs what the server sends in a round, `unpack_start` reads it. The server keeps its
model in float64. Clients start from what arrives, and their updates are relative to it, so the
server can add them to its own model, and rounding errors of the downlink do not accumulate over
rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never, get_args

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.domains import MAX_DIMENSION, Floats, Vector
from sottovoce.core.errors import UnknownNameError, WireError

DownlinkFormat = Literal["float32", "float16", "bfloat16", "int8"]
DOWNLINK_FORMATS: tuple[DownlinkFormat, ...] = get_args(DownlinkFormat)

# In larger blocks an outlier coarsens more numbers; with smaller blocks the steps take more bytes.
BLOCK = 256
_TOGETHER = 1 << 20  # A multiple of BLOCK: how many numbers are rounded or checked at once.
_MOST_STEPS = 127
_SPARE_BITS = np.uint32(0x7F)  # The last seven bits of a step's float32, which are always zero.
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_LARGEST: dict[str, float] = {
    "float32": _FLOAT32_MAX,
    "float16": float(np.finfo(np.float16).max),
    "bfloat16": 2.0**128 - 2.0**120,
    "int8": 2.0**127,  # 127 steps that were rounded up are still below the largest float32.
}


def payload_bytes(dimension: int, number_format: DownlinkFormat) -> int:
    """Return the exact number of bytes that a vector of `dimension` numbers takes in a format.

    Raises:
        ParameterError: The dimension is below 1 or too large.
        UnknownNameError: There is no such format.
    """
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


def pack(vector: Floats, number_format: DownlinkFormat) -> bytes:
    """Return a vector as the server sends it.

    Args:
        vector: One number for each coordinate.
        number_format: 'float32', 'float16', 'bfloat16' or 'int8'.

    Returns:
        The payload, `payload_bytes(len(vector), number_format)` bytes long.

    Raises:
        WireError: A number is not finite or does not fit the format, or `vector` is empty or no
            vector.
        UnknownNameError: There is no such format.

    Examples:
        >>> import numpy as np
        >>> payload = pack(np.array([0.5, -1.0, 2.0]), "float16")
        >>> len(payload)
        6
        >>> unpack(payload, 3, "float16").tolist()
        [0.5, -1.0, 2.0]
    """
    _check(vector, number_format)
    return _packed(vector, number_format)


def _packed(vector: Floats, number_format: DownlinkFormat) -> bytes:
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
    """Return the vector that a client reads from a payload.

    Args:
        payload: The bytes that arrived.
        dimension: The number of coordinates of the model.
        number_format: The format that server and client have agreed on.

    Returns:
        The vector as float64; each number is exactly a float32.

    Raises:
        WireError: The length is wrong, or a number, a step or a code is out of range.
        ParameterError: The dimension is below 1 or too large.
        UnknownNameError: There is no such format.
    """
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


def as_received(vector: Floats, number_format: DownlinkFormat) -> NDArray[np.float32]:
    """Return `unpack(pack(vector))`, what clients read of a vector, in float32, which is exact.

    A large vector is rounded piece by piece, so that it takes no more memory than the result.

    Raises:
        WireError: A number is not finite or does not fit the format, or `vector` is empty or no
            vector.
        UnknownNameError: There is no such format.
    """
    _check(vector, number_format)
    if number_format == "float32":
        return vector.astype(np.float32)
    found = np.empty(len(vector), dtype=np.float32)
    for first in range(0, len(vector), _TOGETHER):
        part = vector[first : first + _TOGETHER]
        found[first : first + _TOGETHER] = unpack(
            _packed(part, number_format), len(part), number_format
        )
    return found


def _check(vector: Floats, number_format: DownlinkFormat) -> None:
    _check_known(number_format)
    if vector.ndim != 1 or not vector.size:
        raise WireError(f"expected a vector of numbers, got shape {vector.shape}; flatten it first")
    for first in range(0, len(vector), _TOGETHER):
        _check_fits(vector[first : first + _TOGETHER], number_format, first=first)


def _check_known(number_format: str) -> None:
    if number_format not in DOWNLINK_FORMATS:
        raise UnknownNameError.among("downlink format", number_format, DOWNLINK_FORMATS)


def _check_fits(vector: Floats, number_format: str, *, first: int) -> None:
    """Refuse numbers that do not fit; `first` is the index of the first of these coordinates."""
    magnitudes, largest = np.abs(vector), _LARGEST[number_format]
    if magnitudes.max() <= largest:  # False if any number is NaN.
        return
    where = int(np.flatnonzero(~(magnitudes <= largest))[0])
    remedy = "lower the learning rate"
    if number_format == "float16":
        remedy += ", or set runtime.downlink = 'bfloat16'"
    raise WireError(
        f"coordinate {first + where} of the vector that the server sends is {vector[where]:g}, but "
        f"the largest magnitude of {number_format} is {largest:g}; {remedy}"
    )


def _upper_halves(numbers: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return the upper 16 bits of float32 numbers, rounded to the nearest, ties to even."""
    bits = numbers.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)


def _widened(numbers: NDArray[np.floating[Any]]) -> Vector:
    # Checked before the conversion, because numpy warns when it converts some NaNs.
    if not np.isfinite(numbers).all():
        raise WireError("payload holds a NaN or infinite value; ask for it again")
    return numbers.astype(np.float64)


def _blocks(dimension: int) -> int:
    return -(-dimension // BLOCK)


def _in_steps(vector: Floats) -> bytes:
    """Return the step of each block, followed by the number of steps of each coordinate."""
    rows = np.zeros((_blocks(len(vector)), BLOCK))
    rows.reshape(-1)[: len(vector)] = vector
    largest = np.abs(rows).max(axis=1)
    steps = (largest / _MOST_STEPS).astype(np.float32)
    # The product is exact in float64: it has 24 + 7 bits.
    short = steps.astype(np.float64) * _MOST_STEPS < largest
    steps[short] = np.nextafter(steps[short], np.float32(np.inf))
    steps = ((steps.view(np.uint32) + _SPARE_BITS) & ~_SPARE_BITS).view(np.float32)
    # The step of a block of zeros is 0; dividing by 1 instead leaves zeros.
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
    """The vectors that the server sends in a round, unpacked.

    Attributes:
        model: The parameters that clients start from. As clients receive them, they are float32.
        state: The algorithm's state that clients read, by name, each a vector of the model's size;
            in a simulation also the rest of the state, of any size.
    """

    model: Floats
    state: Mapping[str, NDArray[Any]]


def pack_start(
    start: Start,
    shared_state: Sequence[str],
    downlink: DownlinkFormat,
    shared_numbers: Sequence[str] = (),
) -> tuple[bytes, ...]:
    """Return the packed vectors of a round: the model, then the state that the algorithm shares.

    Args:
        start: The vectors to send.
        shared_state: The names of the state that clients read, in the order of sending.
        downlink: The number format of all vectors.
        shared_numbers: The names of single numbers of the state that clients read; all of them are
            one more vector, in float32.

    Returns:
        One payload for each vector.

    Raises:
        WireError: A number is not finite or does not fit the format.
    """
    vectors = (start.model, *(start.state[name] for name in shared_state))
    packed = tuple(pack(vector, downlink) for vector in vectors)
    if not shared_numbers:
        return packed
    numbers = np.concatenate([start.state[name] for name in shared_numbers])
    return (*packed, pack(numbers, "float32"))


def unpack_start(
    payloads: Sequence[bytes],
    shared_state: Sequence[str],
    dimension: int,
    downlink: DownlinkFormat,
    shared_numbers: Sequence[str] = (),
) -> Start:
    """Return what a client reads from the payloads that `pack_start` made.

    Raises:
        WireError: The number of payloads or their length is wrong, or a number is out of range.
    """
    expected = 1 + len(shared_state) + bool(shared_numbers)
    if len(payloads) != expected:
        raise WireError(
            f"{len(payloads)} vectors arrived, expected {expected}; server and client need the "
            "same algorithm"
        )
    numbers = unpack(payloads[-1], len(shared_numbers), "float32") if shared_numbers else ()
    vectors = payloads[: 1 + len(shared_state)]
    model, *others = (unpack(payload, dimension, downlink) for payload in vectors)
    state = dict(zip(shared_state, others, strict=True))
    state |= {name: np.array([one]) for name, one in zip(shared_numbers, numbers, strict=True)}
    return Start(model=model.astype(np.float32), state=state)
