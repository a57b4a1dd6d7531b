"""Values on the very edge of a ladder, and beyond it, get the codes of the reference."""

import numpy as np
import pytest
from numpy.typing import NDArray

from sottovoce.core import native
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms.design import families
from sottovoce.mechanisms.kernels.family import sample_exponential_family
from sottovoce.mechanisms.kernels.ladder import Affine
from sottovoce.mechanisms.kernels.table import sample_table


class _TwoKnots:
    knots = np.array([0.0, 1.0])
    thresholds = np.array([[0.875, 1.0], [0.125, 1.0]])
    cumulative = ((7, 8), (1, 8))


@pytest.mark.parametrize("levels", [3, 4, 16, 17, 256])
def test_the_ends_of_a_ladder_are_decided_exactly(levels: int) -> None:
    design = families.gauss_hermite(levels)
    ends = np.array([1.0, -1.0, np.nextafter(1.0, 2.0), np.nextafter(-1.0, -2.0), 1.5, -1.5])
    values = np.tile(ends, 400)

    def drawn() -> bytes:
        return sample_exponential_family(
            values,
            Affine(divisor=0.5),
            design.points,
            design.weights,
            SeededRandomness(1).stream("ends", levels),
            reach=2.0,
            fisher_bound=design.fisher_bound,
        ).tobytes()

    with native.using("numpy"):
        expected = drawn()
    for level in native.levels():
        with native.using(level):
            assert drawn() == expected, level


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_lies_far_beyond_a_table_has_the_code_of_the_nearer_end(dtype: type) -> None:
    far = [0.0, 1.0, 2.0, 1023.0, 65535.0, 65536.0, 1e6, 3e38]
    values: NDArray[np.floating] = np.tile(
        np.array([*far, *(-one for one in far)], dtype=dtype), 64
    )

    def drawn(places: NDArray[np.floating]) -> bytes:
        stream = SeededRandomness(1).stream("far")
        return sample_table(places, _TwoKnots(), stream, clamp=True).tobytes()

    with native.using("numpy"):
        expected = drawn(np.clip(values, 0.0, 1.0))
    for level in native.levels():
        with native.using(level):
            assert drawn(values) == expected, level
