"""The CUDA kernels give the bits of the CPU: on a device, or else in Triton's interpreter.

The interpreter runs everything but the assembler; it is chosen by TRITON_INTERPRET=1, and needs
no device.
"""

import math
import os
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sottovoce.core.domains import Box, Domain, L1Ball, L2Ball
from sottovoce.core.errors import DomainError, ParameterError, RandomnessError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms import packing as cpu_packing
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.encoding import encode_packed, prepare, prepare_on_device, take_clipped
from sottovoce.mechanisms.kernels import cuda, seeded
from sottovoce.mechanisms.kernels.one_bit import sample_payload
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.noise import rounded
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.protocol.sums import LevelCounts

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton is not installed: the CUDA kernels are not tested")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not cuda.available():
    pytest.skip("no CUDA device: the CUDA kernels are not tested", allow_module_level=True)

from sottovoce.mechanisms.kernels.cuda import batch, grid_noise, one_bit  # noqa: E402
from sottovoce.mechanisms.kernels.cuda import packing as cuda_packing  # noqa: E402
from sottovoce.mechanisms.kernels.cuda import seeded as cuda_seeded  # noqa: E402
from sottovoce.mechanisms.kernels.cuda.counts import OneCounts  # noqa: E402
from sottovoce.mechanisms.kernels.cuda.one_bit import Options, sample_rows  # noqa: E402

# Where numbers overflow, devices do not warn; numpy does, which the interpreter computes with.
pytestmark = pytest.mark.filterwarnings(
    "ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning"
)
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
    found = sample_rows(rows, 1.3, [Keystream(key_of(i)) for i in range(2)], scales=(0.7, 0.7))
    for i in range(2):
        expected = sample_payload(given[i], 1.3, Keystream(key_of(i)), scale=0.7)
        np.testing.assert_array_equal(found[i].cpu().numpy(), expected)


@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.3, 5.0, 1e3, 1e30])
def test_bits_at_any_scale_whatever_the_options(spread: float) -> None:
    given = values_like(9000, spread, torch.float32)
    rows = torch.from_numpy(given).to(DEVICE, torch.float32)[None]
    found = sample_rows(rows, 1.0, [Keystream(key_of(3))], options=Options(repeat=2))
    expected = sample_payload(given, 1.0, Keystream(key_of(3)))
    np.testing.assert_array_equal(found[0].cpu().numpy(), expected)


@pytest.mark.parametrize(("scale", "stddev"), [(1e-290, 1e-290), (1.0, 1e-40), (1e12, 1e-9)])
def test_bits_where_float32_cannot_hold_the_slope(scale: float, stddev: float) -> None:
    given = values_like(1500, 1.0, torch.float32)
    rows = torch.from_numpy(given).to(DEVICE, torch.float32)[None]
    found = sample_rows(rows, stddev, [Keystream(key_of(4))], scales=(scale,))
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
    with pytest.raises(ParameterError, match="give one for each row"):
        sample_rows(rows, 1.0, streams[:1])
    sample_rows(rows, 1.0, streams)
    with pytest.raises(RandomnessError):
        sample_rows(rows, 1.0, streams)


def seeds_like(count: int, number: int) -> NDArray[np.uint8]:
    return np.random.default_rng(number).integers(0, 256, size=(count, 16), dtype=np.uint8)


@pytest.mark.parametrize("size", [0, 1, 9, 31, 511, 512, 513, 2051])
def test_signs_of_seeds_are_those_of_the_cpu(size: int) -> None:
    for seeds in (seeds_like(2, size), seeds_like(0, size)):
        rows = cuda_seeded.sign_rows(seeds, size, DEVICE)
        assert rows.dtype == torch.uint8
        np.testing.assert_array_equal(rows.cpu().numpy(), seeded.sign_rows(seeds, size))


@pytest.mark.parametrize("size", [0, 1, 512, 2051])
@pytest.mark.parametrize("count", [0, 1, 3, 33])
def test_scores_of_seeds_are_those_of_the_cpu(count: int, size: int) -> None:
    seeds = seeds_like(count, size)
    given = np.random.default_rng(size).integers(-32768, 32768, size=size).astype(np.int16)
    found = cuda_seeded.scores(seeds, torch.from_numpy(given).to(DEVICE))
    assert found.dtype == torch.int64
    np.testing.assert_array_equal(found.cpu().numpy(), seeded.scores(seeds, given))


# 64 blocks of the largest weights for each lane are sums that need more than 32 bits.
@pytest.mark.parametrize("size", [5003] if INTERPRETED else [5003, 150_001, 5_000_000])
def test_scores_where_a_lane_takes_many_blocks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_seeded, "_ENOUGH", 1)
    seeds = seeds_like(33, 1)
    bits = np.unpackbits(seeded.signs(seeds[0].tobytes(), size), count=size, bitorder="little")
    weights = np.where(bits == 1, 32767, -32768).astype(np.int16)
    found = cuda_seeded.scores(seeds, torch.from_numpy(weights).to(DEVICE))
    np.testing.assert_array_equal(found.cpu().numpy(), seeded.scores(seeds, weights))
    assert int(found[0]) >= 32767 * size


def test_signs_of_seeds_are_counted_on_the_device() -> None:
    seeds = seeds_like(5, 2)
    rows = cuda_seeded.sign_rows(seeds, 1003, DEVICE)
    np.testing.assert_array_equal(
        cuda_seeded.signs(seeds[3].tobytes(), 1003, DEVICE).cpu().numpy(), rows[3].cpu().numpy()
    )
    counted = OneCounts(1003, DEVICE)
    counted.add(rows)
    expected = LevelCounts(1003, 2)
    expected.add_rows(seeded.sign_rows(seeds, 1003))
    np.testing.assert_array_equal(counted.counts.cpu().numpy(), expected.counts()[0])


def test_seeds_and_weights_that_are_none_are_refused() -> None:
    seeds, weights = np.zeros((2, 16), dtype=np.uint8), torch.ones(8, dtype=torch.int16)
    placed = weights.to(DEVICE)
    for bad in (placed.int(), placed[None], placed[::2]):
        with pytest.raises(ParameterError, match="vector of int16"):
            cuda_seeded.scores(seeds, bad)
    with pytest.raises(ParameterError, match="of shape"):
        cuda_seeded.scores(seeds[:, :15], weights.to(DEVICE))
    with pytest.raises(ParameterError, match="a seed must have 16 bytes, got 17"):
        cuda_seeded.signs(bytes(17), 8, DEVICE)
    with pytest.raises(ParameterError, match="count"):
        cuda_seeded.sign_rows(seeds, -1, DEVICE)


@pytest.mark.parametrize("bits", [*range(1, 13), 16, 20, 31])
@pytest.mark.parametrize("size", [1, 8, 1501])
def test_packing_is_that_of_the_cpu(size: int, bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 2**bits, size=size, dtype=np.int32)
    narrow: Any = codes.astype(np.min_scalar_type(2**bits - 1))
    expected = cpu_packing.pack(narrow, bits)
    forms = [codes, codes.astype(np.uint8)] if bits <= 8 else [codes]
    for form in forms:
        found = cuda_packing.pack(torch.from_numpy(form).to(DEVICE), bits)
        assert found.cpu().numpy().tobytes() == expected
    rows = torch.from_numpy(np.stack([codes, codes, codes])).to(DEVICE)[1:, :]
    assert [row.cpu().numpy().tobytes() for row in cuda_packing.pack(rows, bits)] == [expected] * 2


MECHANISMS: list[tuple[str, dict[str, Any], str]] = [
    *(
        ("gauss_hermite", {"levels": levels, "noise_multiplier": 0.7}, "l2")
        for levels in (2, 3, 4, 16, 64, 256)
    ),
    # So little signal that the ladder has one cell.
    *(("gauss_hermite", {"levels": levels, "noise_multiplier": 200.0}, "l2") for levels in (3, 16)),
    ("interpolated_mvu", {"epsilon": 3.0, "beta": 0.5, "output_bits": 2}, "l2"),
    ("mvu", {"epsilon": 1.0, "input_bits": 3, "output_bits": 3}, "box"),
    ("mvu", {"epsilon": 1.0, "input_bits": 3, "output_bits": 3}, "far box"),
    ("generalized_rr", {"epsilon": 8.0, "bits": 8}, "box"),
    ("discrete_gaussian", {"noise_multiplier": 5.0, "bits": 16, "steps_per_radius": "auto"}, "l2"),
    ("discrete_gaussian", {"noise_multiplier": 0.5, "bits": 5, "steps_per_radius": 9.0}, "l2"),
    ("discrete_laplace", {"noise_multiplier": 1.0, "bits": 16, "steps_per_radius": "auto"}, "l2"),
    (
        "discrete_laplace",
        {"noise_multiplier": 1.0, "bits": 20, "steps_per_radius": 99.0},
        "far box",
    ),
    (
        "discrete_staircase",
        {
            "step_epsilon": 1.0,
            "nu": "auto",
            "step_multiplier": 2.0,
            "bits": 16,
            "steps_per_radius": "auto",
        },
        "box",
    ),
    (
        "seeded_sign",
        {"noise_multiplier": 0.5, "blocks": 4, "generator": "auto", "timing": "auto"},
        "l2",
    ),
    (
        "seeded_step",
        {"epsilon": 4.0, "length": "kept", "generator": "auto", "timing": "constant"},
        "l2",
    ),
]


def built(kind: str, given: dict[str, Any], where: str, dimension: int) -> Mechanism:
    domains: dict[str, Domain] = {
        "l1": L1Ball(dimension=dimension, radius=1.5),
        "l2": L2Ball(dimension=dimension, radius=1.5),
        "box": Box(dimension=dimension, lower=-1.0, upper=1.0),
        "far box": Box(dimension=dimension, lower=100.0, upper=101.0),
    }
    entry = registry.find(kind)
    return entry.build(domains[where], entry.resolve(domains[where], given))


def update_for(where: str, size: int, reach: float, dtype: Any) -> Any:
    spread = reach if "box" in where else reach / math.sqrt(size)
    middle = 100.5 if "far" in where else 0.0
    made = middle + spread * np.random.default_rng(size).normal(size=size)
    return torch.from_numpy(made).to(DEVICE, dtype)


def payload_of(mechanism: Mechanism, update: Any, key: bytes) -> Any:
    """What the device makes of an update (in the interpreter, of a tensor on the CPU)."""
    return encode_packed(prepare_on_device(mechanism, update), [Keystream(key)]).payloads[0]


def same_payload(mechanism: Mechanism, update: Any, key: bytes) -> None:
    found = payload_of(mechanism, update, key)
    assert found.dtype == torch.uint8
    assert found.device.type == DEVICE
    (expected,) = encode_packed(prepare(mechanism, update.cpu()), [Keystream(key)]).on_cpu()
    np.testing.assert_array_equal(found.cpu().numpy(), expected)


@pytest.mark.parametrize(("kind", "given", "where"), MECHANISMS)
@pytest.mark.parametrize("dtype", TYPES)
def test_payloads_are_those_of_the_cpu(
    kind: str, given: dict[str, Any], where: str, dtype: Any
) -> None:
    for size, reach in ((1, 0.5), (33, 0.5), (1025, 1.0), (2003, 4.0)):
        update = update_for(where, size, reach, dtype)
        same_payload(built(kind, given, where, size), update, key_of(size))


@pytest.mark.parametrize(("kind", "given", "where"), MECHANISMS)
def test_payloads_of_extreme_updates(kind: str, given: dict[str, Any], where: str) -> None:
    mechanism = built(kind, given, where, 600)
    generator = np.random.default_rng(1)
    plain = generator.normal(size=600)
    for scale, dtype in (
        (0.0, torch.float32),
        (1e-42, torch.float32),
        (1e37, torch.float32),
        (1e-300, torch.float64),
        (1e150, torch.float64),
        (1e300, torch.float64),
    ):
        same_payload(mechanism, torch.from_numpy(scale * plain).to(DEVICE, dtype), key_of(2))


@pytest.mark.parametrize(("kind", "given", "where"), MECHANISMS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(
    kind: str, given: dict[str, Any], where: str, bad: float
) -> None:
    mechanism = built(kind, given, where, 40)
    update = update_for(where, 40, 0.5, torch.float32)
    update[7] = bad
    with pytest.raises(DomainError, match=r"coordinate 7 .* finite"):
        payload_of(mechanism, update, key_of(1))


def test_tensors_with_gaps_or_gradients_and_what_is_no_vector() -> None:
    mechanism = built("gauss_hermite", {"levels": 4, "noise_multiplier": 1.0}, "l2", 50)
    wide = update_for("l2", 100, 1.0, torch.float32)
    same_payload(mechanism, wide[::2], key_of(1))
    same_payload(mechanism, wide[:50].clone().requires_grad_(), key_of(1))
    for bad in (wide, wide[:0], wide[:50, None]):
        with pytest.raises(DomainError, match="expected a vector of dimension 50"):
            payload_of(mechanism, bad, key_of(1))
    with pytest.raises(ParameterError, match=r"torch\.float32"):
        payload_of(mechanism, wide[:50].int(), key_of(1))


@pytest.mark.parametrize(("kind", "given", "where"), MECHANISMS)
@pytest.mark.parametrize("rotated", [False, True])
def test_many_rows_are_those_of_the_cpu(
    kind: str, given: dict[str, Any], where: str, rotated: bool
) -> None:
    """Clipped or not, each by its own scale; and rotated, which keeps float64."""
    if rotated and where != "l2":
        pytest.skip("a box does not hold what a rotation makes of it")
    size = 1500
    mechanism = built(kind, given, where, size)
    rotation = Rotation(key_of(9), size) if rotated else None
    for dtype, reaches in (
        (torch.float32, (0.5, 4.0, 1.4)),
        (torch.float64, (0.5, 1e150, 2.0)),
        (torch.float32, (0.1, 0.2)),
    ):
        rows = torch.stack([update_for(where, size, reach, dtype) for reach in reaches])
        found = encode_packed(
            prepare_on_device(mechanism, rows, rotation=rotation), streams_for(rows)
        )
        expected = encode_packed(
            prepare(mechanism, rows.cpu(), rotation=rotation), streams_for(rows)
        )
        assert found.on_device
        np.testing.assert_array_equal(found.on_cpu(), expected.on_cpu())


@pytest.mark.parametrize("levels", [2, 4, 9])
def test_lists_that_are_too_short_are_made_longer(
    levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coordinates far above the root mean square are all undecided at first."""
    monkeypatch.setattr(batch, "_LEAST_CAPACITY", 1)
    monkeypatch.setattr(one_bit, "SMALL", 0)
    mechanism = built("gauss_hermite", {"levels": levels, "noise_multiplier": 0.7}, "l2", 2051)
    rows = torch.full((2, 2051), 1e-5, device=DEVICE)
    rows[:, ::20] = torch.tensor([[0.1], [-0.1]], device=DEVICE)
    if levels == 2:
        rows *= 1e38  # beyond the slopes of float32, so that nothing is decided at first
    found = encode_packed(prepare_on_device(mechanism, rows), streams_for(rows))
    expected = encode_packed(prepare(mechanism, rows.cpu()), streams_for(rows))
    np.testing.assert_array_equal(found.on_cpu(), expected.on_cpu())


@pytest.mark.parametrize(
    ("kind", "noise_multiplier"), [("discrete_gaussian", 10.0), ("discrete_laplace", 0.5)]
)
def test_what_chords_leave_is_decided_by_the_series_of_the_tail(
    kind: str, noise_multiplier: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise is millions of steps wide, and the chords are coarse; the CPU gets nothing."""
    monkeypatch.setattr(grid_noise, "_FINE_BITS", 10)
    given = {"noise_multiplier": noise_multiplier, "bits": 20, "steps_per_radius": 4e5}
    mechanism = built(kind, given, "l2", 600)
    update = update_for("l2", 600, 1.0, torch.float32)
    (expected,) = encode_packed(prepare(mechanism, update.cpu()), [Keystream(key_of(1))]).on_cpu()
    monkeypatch.setattr(rounded, "settle_codes", None)
    found = payload_of(mechanism, update, key_of(1))
    np.testing.assert_array_equal(found.cpu().numpy(), expected)


@pytest.mark.parametrize("kind", ["mvu", "discrete_laplace"])
def test_values_at_the_ends_of_a_box(kind: str) -> None:
    parameters: dict[str, dict[str, Any]] = {
        "mvu": {"epsilon": 1.0, "input_bits": 3, "output_bits": 3},
        "discrete_laplace": {"noise_multiplier": 1.0, "bits": 12, "steps_per_radius": "auto"},
    }
    mechanism = built(kind, parameters[kind], "box", 600)
    update = torch.tensor([1.0, -1.0, 0.0, 1.0 - 2.0**-24], device=DEVICE).repeat(150)
    same_payload(mechanism, update, key_of(5))


def streams_for(rows: Any) -> list[Keystream]:
    return [Keystream(key_of(i)) for i in range(len(rows))]


def test_mechanisms_without_a_kernel_are_served_by_the_cpu() -> None:
    for kind, given, where in (
        ("clamped_sign", {"noise_multiplier": 2.0, "logit_bound": 1.0}, "l2"),
        (
            "discrete_laplace",
            {"noise_multiplier": 1.0, "bits": 8, "steps_per_radius": "auto"},
            "l1",
        ),
        ("metric_mvu", {"epsilon": 2.0, "metric": "l1", "input_bits": 1, "output_bits": 1}, "l1"),
    ):
        mechanism = built(kind, given, where, 8)
        update = update_for("l2", 8, 1.0, torch.float32)
        found = encode_packed(prepare(mechanism, update), [Keystream(key_of(1))])
        assert not found.on_device
        expected = encode_packed(prepare(mechanism, update.cpu()), [Keystream(key_of(1))])
        np.testing.assert_array_equal(found.on_cpu(), expected.on_cpu())


@pytest.mark.skipif(INTERPRETED, reason="no CUDA device: only there do tensors stay where they are")
def test_tensors_on_a_device_stay_there() -> None:
    mechanism = built("gauss_hermite", {"levels": 4, "noise_multiplier": 1.0}, "l2", 500)
    update = update_for("l2", 500, 1.0, torch.bfloat16)
    prepared = prepare(mechanism, update)
    assert prepared.on_device
    found = encode_packed(prepared, [Keystream(key_of(1))])
    assert found.payloads.device.type == "cuda"
    expected = encode_packed(prepare(mechanism, update.cpu()), [Keystream(key_of(1))])
    np.testing.assert_array_equal(found.on_cpu(), expected.on_cpu())
    rows = torch.stack([update, update])
    assert take_clipped(mechanism, rows).on_device
