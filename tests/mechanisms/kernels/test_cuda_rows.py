"""Rows on a CUDA device are clipped, rotated and added up there, with the bits of the CPU.

The tests run on a device, or else in Triton's interpreter, which TRITON_INTERPRET=1 chooses.
"""

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sottovoce.core.domains import Box, L1Ball, L2Ball, Vector, square_sum
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.mechanisms import encoding, packing
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.kernels import cuda
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.protocol.sums import LevelCounts

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton is not installed: the CUDA kernels are not tested")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not cuda.available():
    pytest.skip("no CUDA device: the CUDA kernels are not tested", allow_module_level=True)

from sottovoce.mechanisms.kernels.cuda import batch, level_counts, norm, rotation  # noqa: E402
from sottovoce.mechanisms.kernels.cuda import rows as device_rows  # noqa: E402
from sottovoce.mechanisms.kernels.cuda.counts import OneCounts  # noqa: E402
from sottovoce.mechanisms.kernels.cuda.row_sums import DeviceCounts, DeviceSum  # noqa: E402

# Where numbers overflow, devices do not warn; numpy does, which the interpreter computes with.
pytestmark = pytest.mark.filterwarnings(
    "ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning"
)
DEVICE = "cpu" if INTERPRETED else "cuda"
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def values_like(size: int, spread: float, dtype: object, seed: int = 0) -> NDArray[np.float64]:
    made = torch.from_numpy(spread * np.random.default_rng(seed).normal(size=size)).to(dtype)
    return np.asarray(made.double().numpy())


def tree(values: NDArray[np.float64]) -> float:
    """The sum of squares, lane by lane, then by adjacent pairs."""
    tiles = max(1, -(-len(values) // 1024))
    padded = np.zeros(1024 * (1 << (tiles - 1).bit_length()))
    padded[: len(values)] = values * values
    nodes = padded.reshape(-1, 32, 32).transpose(0, 2, 1).reshape(-1)
    while len(nodes) > 1:
        nodes = nodes[::2] + nodes[1::2]
    return float(nodes[0])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [1, 2, 33, 1024, 1025, 10_000])
def test_sums_of_squares_are_those_of_the_tree(size: int, dtype: object) -> None:
    given = np.stack([values_like(size, spread, dtype, 1) for spread in (1.0, 0.03, 40.0)])
    found = norm.square_sums(torch.from_numpy(given).to(DEVICE, dtype))
    assert found.tolist() == [tree(row) for row in given] == [square_sum(row) for row in given]


def test_sums_of_squares_of_a_long_row_are_added_by_more_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(norm, "_LAST", 4)
    given = np.stack([values_like(35_000, 1.0, torch.float32, seed) for seed in range(2)])
    found = norm.square_sums(torch.from_numpy(given).to(DEVICE))
    assert found.tolist() == [square_sum(row) for row in given]


@pytest.mark.parametrize("size", [1, 33, 1500])
@pytest.mark.parametrize("rotated", [False, True])
def test_clipped_and_rotated_rows_are_those_of_the_cpu(size: int, rotated: bool) -> None:
    ball = L2Ball(dimension=size, radius=1.5)
    turn = Rotation(bytes(range(32)), size)
    for dtype, spreads in (
        (torch.float32, (1.0, 1e-4, 0.0, 3e19)),
        (torch.float64, (1e-3, 1e-200, 1e90, 1e200, 1.0)),
        (torch.bfloat16, (1.0, 0.01)),
    ):
        given = np.stack([values_like(size, spread, dtype, size) for spread in spreads])
        rows, scales = device_rows.clipped(torch.from_numpy(given).to(DEVICE, dtype), ball)
        expected = np.stack([ball.project(row) for row in given])
        if rotated:
            rows, scales = rotation.rotate_rows(rows, turn, scales), None
            turn.rotate_rows(expected)
        found = rows.double() if scales is None else device_rows.scaled(rows, scales)
        assert found.cpu().numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_are_not_finite_become_zeros_on_request(dtype: Any) -> None:
    ball = L2Ball(dimension=3000, radius=1.5)
    given = np.stack([values_like(3000, 1.0, dtype, seed) for seed in range(4)])
    given[1, 7], given[3, 2999] = np.nan, np.inf
    rows = torch.from_numpy(given).to(DEVICE, dtype)
    with pytest.raises(DomainError, match=r"coordinate 7 .* finite"):
        device_rows.clipped(rows, ball)
    found, scales = device_rows.clipped(rows, ball, zero_nonfinite=True)
    assert scales is not None
    given[[1, 3]] = 0.0
    expected = np.stack([ball.project(row) for row in given])
    np.testing.assert_array_equal(device_rows.scaled(found, scales).cpu().numpy(), expected)


def turned(rows: NDArray[np.float64], turn: Rotation) -> NDArray[np.float64]:
    found = rows.copy()
    turn.rotate_rows(found)
    return found


@pytest.mark.parametrize("least_rows", [1, 1000])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 31, 32, 33, 100, 1024, 2600])
def test_rotated_rows_are_those_of_the_cpu(
    size: int, least_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least so many short rows are taken whole, others level by level."""
    monkeypatch.setattr(rotation, "_LEAST_ROWS", least_rows)
    turn = Rotation(bytes(range(32)), size)
    for dtype in (torch.float32, torch.float64, torch.bfloat16)[: 3 if size < 100 else 1]:
        given = np.stack([values_like(size, 1.0, dtype, seed) for seed in range(2)])
        scales = np.array([0.3, 1.0])
        rows = torch.from_numpy(given).to(DEVICE, dtype)
        found = rotation.rotate_rows(rows, turn, torch.from_numpy(scales).to(DEVICE))
        expected = turned(given * scales[:, None], turn)
        assert found.cpu().numpy().tobytes() == expected.tobytes()
        rotation.rotate_back(found[0], turn)
        assert found[0].cpu().numpy().tobytes() == turn.inverse(expected[0]).tobytes()


@pytest.mark.skipif(INTERPRETED, reason="no CUDA device: the interpreter takes minutes for it")
@pytest.mark.parametrize("size", [20_000, 95_000, 262_144, 3_000_001])
def test_long_rotated_rows_are_those_of_the_cpu(size: int) -> None:
    turn = Rotation(bytes(range(32)), size)
    given = np.stack([values_like(size, 1.0, torch.float32, seed) for seed in range(2)])
    rows = torch.from_numpy(given).to(DEVICE, torch.float32)
    found = rotation.rotate_rows(rows, turn)
    assert found.cpu().numpy().tobytes() == turned(given, turn).tobytes()
    rotation.rotate_back(found[1], turn)
    assert found[1].cpu().numpy().tobytes() == turn.inverse(turned(given, turn)[1]).tobytes()


def test_rows_in_a_box_are_left_alone_and_others_moved_to_its_edge() -> None:
    box = Box(dimension=700, lower=-0.1, upper=1.0)
    for spread in (0.01, 3.0):
        given = np.stack([values_like(700, spread, torch.float32, seed) for seed in range(2)])
        found, scales = device_rows.clipped(torch.from_numpy(given).to(DEVICE).float(), box)
        assert scales is None
        expected = np.stack([box.project(row) for row in given])
        assert found.double().cpu().numpy().tobytes() == expected.tobytes()


def test_what_is_not_finite_or_has_no_projection_is_refused() -> None:
    for domain in (L2Ball(dimension=40, radius=1.0), Box(dimension=40, lower=-1.0, upper=1.0)):
        for bad in (np.nan, np.inf):
            given = np.stack([values_like(40, 1.0, torch.float32, seed) for seed in range(2)])
            given[1, 7] = bad
            with pytest.raises(DomainError, match=r"coordinate 7 .* finite"):
                device_rows.clipped(torch.from_numpy(given).to(DEVICE), domain)
    with pytest.raises(ParameterError, match=r"\.cpu\(\)"):
        device_rows.clipped(torch.zeros((2, 4), device=DEVICE), L1Ball(dimension=4, radius=1.0))
    with pytest.raises(DomainError, match="dimension 4"):
        device_rows.matrix(torch.zeros((2, 5), device=DEVICE), 4)


def packed_codes(levels: int, clients: int, dimension: int, seed: int) -> Any:
    """Return random codes [clients, d], and the same packed, as an array of bytes."""
    codes = np.random.default_rng(seed).integers(0, levels, (clients, dimension), dtype=np.uint8)
    bits = (levels - 1).bit_length()
    rows = [np.frombuffer(packing.pack(one, bits), dtype=np.uint8) for one in codes]
    return codes, np.stack(rows)


def mean_of(total: Vector, weight: float, turn: Rotation | None) -> Vector:
    return total / weight if turn is None else turn.inverse(total / weight)


@pytest.mark.parametrize("levels", [2, 3, 5, 16])
@pytest.mark.parametrize("rotated", [False, True])
def test_means_of_counted_messages_are_those_of_the_cpu(levels: int, rotated: bool) -> None:
    dimension = 300
    points = np.sort(np.random.default_rng(levels).normal(size=levels))
    turn = Rotation(bytes(range(32)), dimension) if rotated else None
    expected = LevelCounts(dimension, levels)
    found = DeviceCounts(dimension, points, torch.device(DEVICE))
    for seed in range(2):
        _, rows = packed_codes(levels, 9, dimension, seed)
        expected.add_rows(rows)
        found.add(torch.from_numpy(rows).to(DEVICE))
    mean = found.mean(18.0, turn)
    assert mean.tobytes() == mean_of(expected.total(points), 18.0, turn).tobytes()


@pytest.mark.parametrize("rotated", [False, True])
def test_messages_of_several_weights_and_mechanisms_are_added_in_order(rotated: bool) -> None:
    dimension, generator = 300, np.random.default_rng(1)
    turn = Rotation(bytes(range(32)), dimension) if rotated else None
    levels = (2, 3, 7, 200)
    points = [generator.normal(size=one) for one in levels]
    codes, payloads = zip(*(packed_codes(one, 5, dimension, one) for one in levels), strict=True)
    placed = [torch.from_numpy(rows).to(DEVICE) for rows in payloads]
    found, total, weights = DeviceSum(dimension, torch.device(DEVICE)), np.zeros(dimension), []
    for _ in range(2):
        order = [(i % 4, i // 4) for i in generator.permutation(20).tolist()]
        some = generator.uniform(0.1, 3.0, size=20).tolist()
        found.add(placed, points, some, order)
        for (group, row), weight in zip(order, some, strict=True):
            total += weight * points[group][codes[group][row]]
        weights += some
    assert found.total().tobytes() == total.tobytes()
    mean = found.mean(sum(weights), turn)
    assert mean.tobytes() == mean_of(total, sum(weights), turn).tobytes()


@pytest.mark.parametrize("padding", [0, 3, 8])
@pytest.mark.parametrize(
    ("dimension", "clients"), [(1, 1), (33, 9), (300, 70), (64, 130 if INTERPRETED else 1100)]
)
def test_counts_of_ones_over_batches(dimension: int, clients: int, padding: int) -> None:
    width = -(-dimension // 8)
    generator = np.random.default_rng(dimension)
    payloads = generator.integers(0, 256, size=(clients, width + padding), dtype=np.uint8)
    given = torch.from_numpy(payloads).to(DEVICE)[:, :width]
    bits = np.unpackbits(payloads[:, :width], axis=1, count=dimension, bitorder="little")
    counted = OneCounts(dimension, DEVICE)
    counted.add(given)
    counted.add(given.clone())
    assert counted.clients == 2 * clients
    expected = 2 * bits.sum(axis=0, dtype=np.int32)
    np.testing.assert_array_equal(counted.counts.cpu().numpy(), expected)
    with pytest.raises(ParameterError, match="payloads must be bytes"):
        counted.add(given.int())


@pytest.mark.parametrize("levels", [3, 4, 5, 8, 9, 16])
@pytest.mark.parametrize(
    ("dimension", "clients"), [(1, 1), (37, 9), (300, 70), (5, 1100 if not INTERPRETED else 90)]
)
def test_counts_of_levels_are_those_of_the_cpu(dimension: int, clients: int, levels: int) -> None:
    generator = np.random.default_rng([dimension, levels])
    codes = generator.integers(0, levels, size=(clients, dimension), dtype=np.uint8)
    bits = (levels - 1).bit_length()
    rows = [np.frombuffer(packing.pack(one, bits), dtype=np.uint8) for one in codes]
    expected = LevelCounts(dimension, levels)
    expected.add_rows(np.stack(rows))
    expected.add_rows(np.stack(rows))
    wide = torch.from_numpy(np.stack([np.append(row, np.uint8(255)) for row in rows])).to(DEVICE)
    counted = level_counts.CudaLevelCounts(dimension, levels, DEVICE)
    counted.add(wide[:, :-1].contiguous())
    counted.add(wide[:, :-1])  # with something between the payloads
    assert counted.clients == expected.received
    np.testing.assert_array_equal(counted.counts.cpu().numpy(), expected.counts())
    if levels < 1 << bits:
        beyond = np.full(dimension, (1 << bits) - 1, dtype=np.uint8)
        broken = np.frombuffer(packing.pack(beyond, bits), dtype=np.uint8).copy()
        counted.add(torch.from_numpy(broken)[None].to(DEVICE))
        with pytest.raises(ParameterError, match="must be below"):
            _ = counted.counts
    with pytest.raises(ParameterError, match=r"torch\.stack"):
        counted.add(wide)


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("levels", [2, 4, 32])
def test_simulated_means_of_the_same_rows_are_those_of_the_cpu(
    levels: int, equal: bool, rotated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training rounds differently there, so the rows are given; one of them is not finite.

    Where codes are counted, the kernels claim once that one of them is left to the CPU, and leave
    wrong ones.
    """
    from sottovoce.core.randomness import SeededRandomness
    from sottovoce.federated.simulation.packed import PackedMessages
    from sottovoce.learning.clients import DenseRows
    from sottovoce.protocol.plan import ClientPlan

    count, dimension = (3, 70) if INTERPRETED else (40, 700)
    ball = L2Ball(dimension=dimension, radius=1.0)
    mechanism = GaussHermite(input_domain=ball, levels=levels, noise_multiplier=1.0)
    weights = [2.0 if equal else 1.0 + i / 7.0 for i in range(count)]
    parts = [
        ClientPlan(client=f"c{i}", mechanism=mechanism, weight=weight)
        for i, weight in enumerate(weights)
    ]
    made = np.stack([values_like(dimension, 0.05, torch.float32, seed) for seed in range(count)])
    made[1, 5] = np.nan
    nothing: Any = None
    algorithm: Any = SimpleNamespace(gathers=False, uplinks=1)
    means: list[Vector] = []
    attempts: list[int] = []

    class Given(PackedMessages):
        def _blocks(self, *_: Any) -> Any:
            yield 0, np.arange(count), rows

    class GivenThere(Given):
        def _given(self, rows: Any) -> Any:
            return rows.values

        def _counts_on_device(self, mechanism: Any) -> bool:
            return levels <= 16

        def _encode(self, *given: Any) -> Any:
            attempts.append(len(attempts))
            for some, groups in super()._encode(*given):
                if len(attempts) == 1 and equal and levels <= 16:
                    groups[0].packed.payloads[:, 0] = 0
                yield some, groups

    undecided = iter([False])
    decided = batch.Unread.all_decided
    monkeypatch.setattr(
        batch.Unread, "all_decided", lambda self: next(undecided, True) and decided(self)
    )
    for device in ("cpu", DEVICE if INTERPRETED else "cuda"):
        task: Any = SimpleNamespace(dimension=dimension, device=torch.device(device))
        rows = DenseRows(torch.from_numpy(made).to(device, torch.float32))
        if means:
            monkeypatch.setattr(encoding, "_has_kernels", lambda *_: True)
        backend = (GivenThere if means else Given)(
            run="r",
            task=task,
            clients=nothing,
            parts=parts,
            algorithm=algorithm,
            randomness=SeededRandomness(1),
            tally=nothing,
            rotated=rotated,
            channel=nothing,
        )
        (combined,) = backend.combine(1, np.arange(count), nothing)
        means.append(combined.mean)
    np.testing.assert_array_equal(means[0], means[1])
    assert len(attempts) == 1 + (equal and levels <= 16)
