import stat
from pathlib import Path

import numpy as np
import pytest

from sottovoce.auditing.run_membership import load_or_train
from sottovoce.core.domains import Vector


def rows_of(numbers: range) -> Vector:
    return np.array([[number, -number] for number in numbers], dtype=np.float64)


def test_an_interrupted_training_goes_on(tmp_path: Path) -> None:
    asked: list[range] = []

    def failing(numbers: range) -> Vector:
        if numbers[0] == 4:
            raise KeyboardInterrupt
        asked.append(numbers)
        return rows_of(numbers)

    def train(numbers: range) -> Vector:
        asked.append(numbers)
        return rows_of(numbers)

    steps: list[tuple[int, int]] = []

    def models(how: object = train, recipe: str = "r") -> Vector:
        assert callable(how)
        return load_or_train(
            tmp_path, recipe, 5, block=2, train=how, on_block=lambda *step: steps.append(step)
        )

    with pytest.raises(KeyboardInterrupt):
        models(failing)
    np.testing.assert_array_equal(models(), rows_of(range(5)))
    assert asked == [range(0, 2), range(2, 4), range(4, 5)]
    assert steps[-4:] == [(0, 5), (2, 5), (4, 5), (5, 5)]
    models(recipe="another")
    assert asked[3:] == [range(0, 2), range(2, 4), range(4, 5)]


def test_a_damaged_block_is_trained_again_and_blocks_are_the_owners(tmp_path: Path) -> None:
    def models() -> Vector:
        return load_or_train(tmp_path, "r", 3, block=3, train=rows_of, on_block=lambda *_: None)

    models()
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(path.read_bytes()[:50])
    np.testing.assert_array_equal(models(), rows_of(range(3)))
