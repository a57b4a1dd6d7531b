"""The CUDA kernels give the bits of the CPU: on a device, or else in Triton's interpreter.

The interpreter runs everything but the assembler; it is chosen by TRITON_INTERPRET=1, and needs
no device.
"""

import math
import os

import numpy as np
import pytest
from numpy.typing import NDArray

from sottovoce.errors import ParameterError, RandomnessError
from sottovoce.kernels import cuda
from sottovoce.kernels.ladder import Affine, Ladder
from sottovoce.kernels.one_bit import sample_payload
from sottovoce.randomness import Keystream

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton is not installed: the CUDA kernels are not tested")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not cuda.available():
    pytest.skip("no CUDA device: the CUDA kernels are not tested", allow_module_level=True)

from sottovoce.kernels.cuda import ladder, norm  # noqa: E402
from sottovoce.kernels.cuda.counts import OneCounts  # noqa: E402
from sottovoce.kernels.cuda.one_bit import Options, sample_rows  # noqa: E402

DEVICE = "cpu" if INTERPRETED else "cuda"
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def values_like(size: int, spread: float, dtype: object, seed: int = 0) -> NDArray[np.float64]:
    made = torch.from_numpy(spread * np.random.default_rng(seed).normal(size=size)).to(dtype)
    return np.asarray(made.double().numpy())


def key_of(seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(32)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [1, 9, 1023, 1024, 2051])
def test_bits_are_those_of_the_cpu(size: int, dtype: object) -> None:
    given = np.stack([values_like(size, 1.0, dtype, seed) for seed in range(2)])
    rows = torch.from_numpy(given).to(DEVICE, dtype)
    found = sample_rows(rows, 1.3, [Keystream(key_of(i)) for i in range(2)], scale=0.7)
    for i in range(2):
        expected = sample_payload(given[i], 1.3, Keystream(key_of(i)), scale=0.7)
        np.testing.assert_array_equal(found[i].cpu().numpy(), expected)


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.3, 5.0, 1e3, 1e30])
def test_bits_at_any_scale_whatever_the_options(spread: float, floats: bool) -> None:
    given = values_like(9000, spread, torch.float32)
    rows = torch.from_numpy(given).to(DEVICE, torch.float32)[None]
    found = sample_rows(rows, 1.0, [Keystream(key_of(3))], options=Options(repeat=2, floats=floats))
    expected = sample_payload(given, 1.0, Keystream(key_of(3)))
    np.testing.assert_array_equal(found[0].cpu().numpy(), expected)


@pytest.mark.parametrize(("scale", "stddev"), [(1e-290, 1e-290), (1.0, 1e-40), (1e12, 1e-9)])
def test_bits_where_float32_cannot_hold_the_slope(scale: float, stddev: float) -> None:
    given = values_like(1500, 1.0, torch.float32)
    rows = torch.from_numpy(given).to(DEVICE, torch.float32)[None]
    found = sample_rows(rows, stddev, [Keystream(key_of(4))], scale=scale)
    expected = sample_payload(given, stddev, Keystream(key_of(4)), scale=scale)
    np.testing.assert_array_equal(found[0].cpu().numpy(), expected)


def test_rows_of_a_wider_tensor_and_no_rows() -> None:
    wide = torch.from_numpy(values_like(6000, 1.0, torch.float32).reshape(2, 3000)).to(DEVICE)
    part = wide[:, 7:1200]
    found = sample_rows(part, 1.0, [Keystream(key_of(i)) for i in range(2)])
    for i in range(2):
        expected = sample_payload(part[i].cpu().numpy(), 1.0, Keystream(key_of(i)))
        np.testing.assert_array_equal(found[i].cpu().numpy(), expected)
    assert sample_rows(wide[:, :0], 1.0, [Keystream(key_of(i)) for i in range(2)]).shape == (2, 0)


def test_what_the_kernels_cannot_read_is_refused() -> None:
    rows = torch.zeros((2, 8), device=DEVICE)
    streams = [Keystream(key_of(i)) for i in range(2)]
    for bad in (rows.int(), rows[0], rows.t()):
        with pytest.raises(ParameterError):
            sample_rows(bad, 1.0, streams)
    with pytest.raises(ParameterError, match="one keystream for each row"):
        sample_rows(rows, 1.0, streams[:1])
    sample_rows(rows, 1.0, streams)
    with pytest.raises(RandomnessError):
        sample_rows(rows, 1.0, streams)


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
@pytest.mark.parametrize("size", [0, 1, 33, 1024, 1025, 40_000])
def test_sum_of_squares_is_that_of_the_tree(size: int, dtype: object) -> None:
    given = values_like(size, 1.0, dtype)
    found = norm.sum_of_squares(torch.from_numpy(given).to(DEVICE, dtype))
    assert float(found) == tree(given)


def test_privatise_clips_draws_and_packs() -> None:
    given = values_like(1500, 1.0, torch.float32)
    found = cuda.privatise(
        torch.from_numpy(given).to(DEVICE, torch.float32), 2.0, 0.5, Keystream(key_of(5))
    )
    scale = 2.0 / math.sqrt(tree(given))
    expected = sample_payload(given, 0.5, Keystream(key_of(5)), scale=scale)
    np.testing.assert_array_equal(found.cpu().numpy(), expected)
    broken = torch.tensor([1.0, math.nan], device=DEVICE)
    with pytest.raises(ParameterError, match="not a finite number"):
        cuda.privatise(broken, 1.0, 1.0, Keystream(key_of(6)))


@pytest.mark.parametrize("padding", [0, 3, 8])
@pytest.mark.parametrize(("dimension", "clients"), [(1, 1), (33, 9), (300, 70), (64, 1100)])
def test_counts_of_ones_over_batches(dimension: int, clients: int, padding: int) -> None:
    width = -(-dimension // 8)
    generator = np.random.default_rng(dimension)
    payloads = generator.integers(0, 256, size=(clients, width + padding), dtype=np.uint8)
    given = torch.from_numpy(payloads).to(DEVICE)[:, :width]
    bits = np.unpackbits(payloads[:, :width], axis=1, count=dimension, bitorder="little")
    counted = OneCounts(dimension, DEVICE)
    counted.add(given)
    counted.add(list(given))
    assert counted.clients == 2 * clients
    expected = 2 * bits.sum(axis=0, dtype=np.int32)
    np.testing.assert_array_equal(counted.counts.cpu().numpy(), expected)
    with pytest.raises(ParameterError, match="payloads must be bytes"):
        counted.add(given.int())


@pytest.mark.parametrize("levels", [2, 3, 4, 16, 17])
def test_codes_are_those_of_every_threshold_that_the_gap_allows(levels: int) -> None:
    centres = np.linspace(-2.0, 2.0, levels - 1)
    edges = np.linspace(-3.0, 3.0, 129)

    def thresholds(u: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(1.0 / (1.0 + np.exp(u[:, None] - centres[None, :])))

    # The second derivative of the logistic function is below .1: a chord is off by .1 h^2/8.
    errors = np.full(128, 0.1 * (6.0 / 128.0) ** 2 / 8.0)
    steps = Ladder.between(-3.0, 3.0, thresholds(edges), errors, 0.25)
    given = np.append(values_like(2500, 1.2, torch.float32), [-9.0, 9.0, 3.0])
    affine = Affine(shift=0.5, scale=2.0, divisor=2.5)
    found, left = ladder.sample_codes(
        torch.from_numpy(given).to(DEVICE, torch.float32), affine, steps, Keystream(key_of(7))
    )
    keystream = Keystream(key_of(7))
    draws = np.array([keystream.draw(16, i) for i in range(len(given))]) / 65536.0
    exact = thresholds(affine(given))
    lowest = (draws[:, None] >= exact).sum(axis=1)
    highest = (draws[:, None] + 2.0**-16 > exact).sum(axis=1)
    decided = np.setdiff1d(np.arange(len(given)), left)
    beyond = np.flatnonzero(np.abs(affine(given)) > 3.0)
    assert set(beyond) <= set(left)
    assert len(left) - len(beyond) < 100
    np.testing.assert_array_equal(found.cpu().numpy()[decided], lowest[decided])
    np.testing.assert_array_equal(found.cpu().numpy()[decided], highest[decided])


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("size", [1, 8, 3001])
def test_packing_is_that_of_numpy(size: int, bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 2**bits, size=size, dtype=np.uint8)
    each = (codes[:, None] >> np.arange(bits, dtype=np.uint8)) & 1
    expected = np.packbits(each.reshape(-1), bitorder="little")
    found = ladder.pack(torch.from_numpy(codes).to(DEVICE), bits)
    np.testing.assert_array_equal(found.cpu().numpy(), expected)
