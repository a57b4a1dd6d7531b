"""Rows on a device: plain torch operations give the numbers of the CPU, so any device will do."""

import numpy as np
import pytest
from numpy.typing import NDArray

from sottovoce.core.domains import Box, L1Ball, L2Ball, square_sum
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.mechanisms.rotation import Rotation

torch = pytest.importorskip("torch")

from sottovoce.mechanisms.kernels.cuda import rows as device_rows  # noqa: E402

SIZES = [1, 2, 33, 1024, 1025, 5003]
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def rows_like(size: int, dtype: object, spreads: tuple[float, ...]) -> NDArray[np.float64]:
    generator = np.random.default_rng(size)
    made = np.stack([spread * generator.normal(size=size) for spread in spreads])
    return np.asarray(torch.from_numpy(made).to(dtype).double().numpy())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", SIZES)
def test_sums_of_squares_are_those_of_the_cpu(size: int, dtype: object) -> None:
    given = rows_like(size, dtype, (1.0, 0.03, 40.0))
    found = device_rows.square_sums(torch.from_numpy(given).to(dtype))
    assert found.tolist() == [square_sum(row) for row in given]


def test_many_rows_are_added_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_rows, "_TOGETHER", 2000)
    given = rows_like(900, torch.float64, (1.0,) * 7)
    found = device_rows.square_sums(torch.from_numpy(given))
    assert found.tolist() == [square_sum(row) for row in given]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rotated", [False, True])
def test_clipped_and_rotated_rows_are_those_of_the_cpu(size: int, rotated: bool) -> None:
    ball = L2Ball(dimension=size, radius=1.5)
    rotation = Rotation(bytes(range(32)), size)
    for dtype, spreads in (
        (torch.float32, (1.0, 1e-4, 0.0, 3e19)),
        (torch.float64, (1e-3, 1e-200, 1e90, 1e200, 1.0)),
        (torch.bfloat16, (1.0, 0.01)),
    ):
        given = rows_like(size, dtype, spreads)
        rows, scales = device_rows.clipped(torch.from_numpy(given).to(dtype), ball)
        expected = [ball.project(row) for row in given]
        if rotated:
            rows, scales = device_rows.rotate_rows(rows, scales, rotation.passes()), None
            expected = [rotation.forward(row) for row in expected]
        found = rows.double() if scales is None else device_rows.scaled(rows, scales)
        assert found.numpy().tobytes() == np.stack(expected).tobytes()


def test_rows_in_a_box_are_left_alone_and_others_moved_to_its_edge() -> None:
    box = Box(dimension=700, lower=-0.1, upper=1.0)
    for spread in (0.01, 3.0):
        given = rows_like(700, torch.float32, (spread, spread))
        found, scales = device_rows.clipped(torch.from_numpy(given).float(), box)
        assert scales is None
        expected = np.stack([box.project(row) for row in given])
        assert found.double().numpy().tobytes() == expected.tobytes()


def test_what_is_not_finite_or_has_no_projection_is_refused() -> None:
    for domain in (L2Ball(dimension=40, radius=1.0), Box(dimension=40, lower=-1.0, upper=1.0)):
        for bad in (np.nan, np.inf):
            given = rows_like(40, torch.float32, (1.0, 1.0))
            given[1, 7] = bad
            with pytest.raises(DomainError, match=r"coordinate 7 .* finite"):
                device_rows.clipped(torch.from_numpy(given), domain)
    with pytest.raises(ParameterError, match=r"\.cpu\(\)"):
        device_rows.clipped(torch.zeros((2, 4)), L1Ball(dimension=4, radius=1.0))
    with pytest.raises(DomainError, match="dimension 4"):
        device_rows.matrix(torch.zeros((2, 5)), 4)
