"""The rotation: orthogonal for every dimension, public, and what it turns is flat."""

import math

import numpy as np
import pytest
from cases import denser

from sottovoce.core import native
from sottovoce.core.domains import ROUNDING_HEADROOM, L2Ball
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.mechanisms.rotation import Rotation, block_size

SMALL = range(1, 71)
LARGE = (127, 128, 129, 1000, 1023, 1024, 4097, 99_991)


def a_seed(number: int = 0) -> bytes:
    return number.to_bytes(32, "little")


def matrix(rotation: Rotation) -> np.ndarray:
    return np.stack([rotation.forward(unit) for unit in np.eye(rotation.dimension)], axis=1)


@pytest.mark.parametrize(
    ("dimension", "size"), [(1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (1023, 512)]
)
def test_a_block_is_more_than_half_of_the_coordinates(dimension: int, size: int) -> None:
    assert block_size(dimension) == size


@pytest.mark.parametrize("dimension", SMALL)
def test_it_is_an_orthogonal_matrix_in_every_dimension(dimension: int) -> None:
    rotation = Rotation(a_seed(dimension), dimension)
    found = matrix(rotation)
    np.testing.assert_allclose(found.T @ found, np.eye(dimension), atol=1e-14)
    back = np.stack([rotation.inverse(unit) for unit in np.eye(dimension)], axis=1)
    np.testing.assert_allclose(back, found.T, atol=1e-15)


@pytest.mark.parametrize("dimension", [*SMALL, *LARGE])
def test_the_inverse_undoes_it_and_norms_are_kept(dimension: int) -> None:
    values = np.random.default_rng(dimension).normal(size=dimension)
    rotation = Rotation(a_seed(3), dimension)
    rotated = rotation.forward(values)
    assert np.linalg.norm(rotated) == pytest.approx(np.linalg.norm(values), rel=1e-13, abs=0)
    np.testing.assert_allclose(rotation.inverse(rotated), values, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dimension", denser([5, 64, 100, 1000]))
def test_rounding_stays_below_what_the_proof_allows(dimension: int) -> None:
    """Against integer arithmetic: integers of 20 bits times the unscaled transform are exact."""
    values = np.random.default_rng(1).integers(-(2**20), 2**20, size=dimension).astype(np.float64)
    rotation = Rotation(a_seed(5), dimension)
    size = block_size(dimension)
    k = size.bit_length() - 1
    scale = np.longdouble(1) / np.sqrt(np.longdouble(size))
    exact = values.astype(np.longdouble)
    for block, signs in zip(
        [slice(0, size), slice(dimension - size, dimension)],
        (signs for _, signs in rotation.passes()),
        strict=False,
    ):
        turned = exact[block] * signs
        half = 1
        while half < size:
            pairs = turned.reshape(-1, 2, half)
            pairs[:] = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
            half *= 2
        exact[block] = turned * scale
    error = float(np.linalg.norm((rotation.forward(values) - exact).astype(np.float64)))
    assert error <= 2 * (k + 3) * 2.0**-53 * float(np.linalg.norm(values))


@pytest.mark.parametrize("dimension", denser([1, 3, 100, 1000, 4097]))
def test_a_projected_vector_stays_in_its_ball(dimension: int) -> None:
    ball = L2Ball(dimension=dimension, radius=0.3)
    for seed in range(20):
        values = ball.project(np.random.default_rng(seed).normal(size=dimension) * 1e6)
        rotated = ball.check(Rotation(a_seed(seed), dimension).forward(values))
        assert ball.norm(rotated) == pytest.approx(0.3 * (1.0 - ROUNDING_HEADROOM), rel=1e-13)


@pytest.mark.parametrize("dimension", [2, 3, 64, 100, 127, 128, 1000, 1024, 5000])
def test_a_spike_that_meets_one_block_ends_flat(dimension: int) -> None:
    size = block_size(dimension)
    meets_one = range(dimension) if size == dimension else range(size, dimension)
    for position in [meets_one[0], meets_one[len(meets_one) // 2], meets_one[-1]]:
        spike = np.zeros(dimension)
        spike[position] = 1.0
        rotated = np.abs(Rotation(a_seed(1), dimension).forward(spike))
        assert rotated.max() <= math.sqrt(2.0 / dimension) * (1.0 + 1e-9)
        met = rotated[dimension - size :]
        np.testing.assert_allclose(met, 1.0 / math.sqrt(size), rtol=1e-14)


@pytest.mark.parametrize("dimension", [100, 1000, 3000])
def test_every_spike_and_the_all_equal_vector_end_small(dimension: int) -> None:
    """Sums with random signs: beyond t standard deviations with probability 2 e^(-t^2/2)."""
    starts = [np.full(dimension, dimension**-0.5)]
    for position in range(0, dimension, max(1, dimension // 20)):
        starts.append(np.eye(1, dimension, position)[0])
    for number, start in enumerate(starts):
        rotated = Rotation(a_seed(number), dimension).forward(start)
        assert np.abs(rotated).max() <= 6.5 / math.sqrt(block_size(dimension))


@pytest.mark.parametrize("dimension", [1, 5, 511, 512, 513, 1024, 3000, 5003, 70_000, 1 << 18])
def test_every_kernel_gives_numpys_bits(dimension: int) -> None:
    generator = np.random.default_rng(dimension)
    values = generator.normal(size=dimension) * 10.0 ** generator.integers(-9, 9, size=dimension)
    values[::7] = 0.0
    rotation = Rotation(a_seed(2), dimension)
    found = {}
    for name in native.levels():
        with native.using(name):
            turned, back = rotation.forward(values), rotation.inverse(values)
        found[name] = turned.tobytes(), back.tobytes()
    assert len(set(found.values())) == 1, found.keys()


@pytest.mark.parametrize("name", native.levels())
def test_kernels_agree_with_the_matrix(name: str) -> None:
    """Signs are where they should be: beside the sum of columns, not another kernel."""
    dimension = 1000
    rotation = Rotation(a_seed(6), dimension)
    values = np.random.default_rng(0).normal(size=dimension)
    expected = values.copy()
    for start, signs in rotation.passes():
        block = slice(start, start + len(signs))
        hadamard = np.ones((1, 1))
        while len(hadamard) < len(signs):
            hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
        expected[block] = hadamard @ (signs * expected[block]) / math.sqrt(len(signs))
    with native.using(name):
        np.testing.assert_allclose(rotation.forward(values), expected, atol=1e-13)
        np.testing.assert_allclose(rotation.inverse(expected), values, atol=1e-13)


@pytest.mark.parametrize("name", native.levels()[1:])
@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_threads_change_nothing(name: str, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).normal(size=600_000)
    rotation = Rotation(a_seed(8), 600_000)
    with native.using("numpy"):
        expected = rotation.forward(values).tobytes()
    monkeypatch.setenv("SOTTOVOCE_THREADS", threads)
    with native.using(name):
        assert rotation.forward(values).tobytes() == expected


def test_the_seed_is_all_there_is_to_know() -> None:
    values = np.random.default_rng(0).normal(size=777)
    first, second = (Rotation(a_seed(4), 777).forward(values) for _ in range(2))
    assert np.array_equal(first, second)
    others = {Rotation(a_seed(n), 777).forward(values).tobytes() for n in range(20)}
    assert len(others) == 20


def test_both_signs_are_equally_likely_and_the_passes_differ() -> None:
    (_, first), (_, second) = Rotation(a_seed(9), 3000).passes()
    for signs in (first, second, first * second):
        assert set(np.unique(signs)) == {-1.0, 1.0}
        assert abs(signs.mean()) < 5.0 / math.sqrt(len(signs))


def test_signs_are_the_keystreams_bits_as_every_version_must_read_them() -> None:
    """ChaCha20 under the zero key starts 76 b8 e0 ad: RFC 8439, A.1, test vector 1."""
    ((_, signs),) = Rotation(bytes(32), 8).passes()
    bits = [(0x76 >> position) & 1 for position in range(8)]
    assert signs.tolist() == [-1.0 if bit else 1.0 for bit in bits]


def test_each_round_of_each_run_has_its_own_rotation() -> None:
    found = {Rotation.of_round(run, n, 8) for run in ("one", "two", "one1") for n in (1, 2, 11)}
    assert len(found) == 9
    assert Rotation.of_round("one", 1, 8) == Rotation.of_round("one", 1, 8)


def test_the_callers_array_is_left_alone_and_nonsense_is_refused() -> None:
    values = np.ones(5)
    values.flags.writeable = False
    rotation = Rotation(a_seed(), 5)
    rotation.inverse(rotation.forward(values))
    assert (values == 1.0).all()
    for bad in (np.ones(4), np.ones((5, 1)), np.full(5, np.nan)):
        with pytest.raises(DomainError):
            rotation.forward(bad)
    with pytest.raises(ParameterError, match="32 bytes"):
        Rotation(b"short", 5)
    with pytest.raises(ParameterError, match="dimension"):
        Rotation(a_seed(), 0)
