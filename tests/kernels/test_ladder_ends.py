"""Values on the very edge of a ladder, and beyond it, get the codes of the reference."""

import numpy as np
import pytest

from sottovoce import native
from sottovoce.design import hermite
from sottovoce.kernels.family import sample_exponential_family
from sottovoce.kernels.ladder import Affine
from sottovoce.randomness import SeededRandomness


@pytest.mark.parametrize("levels", [3, 4, 16, 17, 256])
def test_the_ends_of_a_ladder_are_decided_exactly(levels: int) -> None:
    design = hermite.gauss_hermite(levels)
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
