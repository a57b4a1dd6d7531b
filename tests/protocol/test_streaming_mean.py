"""The streamed mean: packed codes add what their vectors would, to the last bit."""

import numpy as np
import pytest
from numpy.typing import NDArray

from sottovoce.core import native
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.packing import PackedCodes, pack
from sottovoce.protocol.sums import StreamingMean

Rows = list[tuple[PackedCodes, Vector, float]]


def some_messages(clients: int, dimension: int, *, most_levels: int = 256) -> Rows:
    """Mechanisms and weights that all differ."""
    generator = np.random.default_rng([clients, dimension, most_levels])
    found = []
    for _ in range(clients):
        levels = int(generator.integers(2, most_levels + 1))
        codes = generator.integers(0, levels, dimension).astype(np.min_scalar_type(levels - 1))
        payload = pack(codes, (levels - 1).bit_length())
        points = generator.normal(size=levels) * 10.0 ** generator.integers(-8, 8)
        packed = PackedCodes(payload, count=dimension, levels=levels)
        found.append((packed, points, float(generator.uniform(0.1, 9.0))))
    return found


def by_hand(messages: Rows, dimension: int) -> NDArray[np.float64]:
    total, weights = np.zeros(dimension), 0.0
    for packed, points, weight in messages:
        total += weight * points[packed.codes()]
        weights += weight
    return total / weights


def check_packed(mean: StreamingMean, messages: Rows, dimension: int) -> None:
    for message in messages:
        mean.add_packed(*message)
    found = mean.result()
    assert found is not None
    assert found.tobytes() == by_hand(messages, dimension).tobytes()


@pytest.mark.parametrize("kernels", native.levels())
@pytest.mark.parametrize("dimension", [1, 7, 8, 9, 63, 511, 512, 513, 2000])
@pytest.mark.parametrize("most_levels", [2, 16, 256, 1000])
def test_packed_codes_add_up_as_vectors_do(kernels: str, dimension: int, most_levels: int) -> None:
    messages = some_messages(37, dimension, most_levels=most_levels)
    with native.using(kernels):
        check_packed(StreamingMean(dimension), messages, dimension)


@pytest.mark.parametrize("kernels", native.levels())
def test_vectors_and_packed_codes_are_added_in_the_order_they_come(kernels: str) -> None:
    messages = some_messages(23, 100)
    with native.using(kernels):
        mean = StreamingMean(100)
        for number, (packed, points, weight) in enumerate(messages):
            if number % 3:
                mean.add_packed(packed, points, weight)
            else:
                mean.add(points[packed.codes()], weight)
            if number % 5 == 0:
                assert mean.result() is not None
        found = mean.result()
    assert found is not None
    assert found.tobytes() == by_hand(messages, 100).tobytes()


@pytest.mark.parametrize("kernels", native.levels())
def test_threads_change_nothing(kernels: str) -> None:
    dimension = (1 << 19) + 13
    messages = some_messages(3, dimension, most_levels=20)
    with native.using(kernels):
        check_packed(StreamingMean(dimension, threads=2), messages, dimension)


def test_nothing_is_no_mean_and_what_does_not_fit_is_refused() -> None:
    mean = StreamingMean(8)
    assert mean.result() is None
    for count, points in ((8, np.ones(3)), (9, np.ones(2))):
        packed = PackedCodes(bytes((count + 7) // 8), count=count, levels=2)
        with pytest.raises(ParameterError, match="codes and one point for each level"):
            mean.add_packed(packed, points, 1.0)
    assert mean.result() is None
