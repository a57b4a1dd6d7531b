"""Rows that kernels make while they encode: the bits of matrices that are made first."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import thinned

from sottovoce.core import native
from sottovoce.core.domains import Box, Domain, L2Ball
from sottovoce.core.errors import DomainError, RandomnessError
from sottovoce.core.randomness import Keystream, SeededRandomness
from sottovoce.learning.datasets.dataset import SelectedRows
from sottovoce.mechanisms import row_batches
from sottovoce.mechanisms.encoding import EncodesPacked, encode_packed, prepare
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.kernels import ladder, one_bit
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.registry import find
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.mechanisms.row_batches import FactoredRows, OuterProducts, RowBatch

SEEDED = SeededRandomness(5)
NUM_ROWS = 37
# Dimensions below, at and above those from which blocks are transformed by kernels.
SHAPES = [(1, 1), (3, 2), (5, 7), (4, 128), (13, 56), (10, 331)]


def some_rows(outputs: int, features: int, *, biases: bool = True) -> FactoredRows:
    """Outer products next to a dense part, with rows that are zero, tiny, huge and clipped."""
    generator = np.random.default_rng(outputs)
    left = generator.normal(size=(NUM_ROWS, outputs)).astype(np.float32)
    right = generator.normal(size=(NUM_ROWS, features)).astype(np.float32)
    dense = generator.normal(size=(NUM_ROWS, 3)).astype(np.float32)
    scales = np.resize([1.0, 0.0, 1e-30, 1e30, 1e-3, 0.1], NUM_ROWS).astype(np.float32)[:, None]
    return FactoredRows((OuterProducts(left * scales, right, biases), dense * scales))


def a_mechanism(dimension: int, levels: int) -> GaussHermite:
    ball = L2Ball(dimension=dimension, radius=2.0)
    return GaussHermite(input_domain=ball, levels=levels, noise_multiplier=0.8)


def keystreams() -> Sequence[Keystream]:
    return SEEDED.streams([("client", i) for i in range(NUM_ROWS)])


def payloads(mechanism: Mechanism, rows: Any, rotation: Rotation | None) -> bytes:
    prepared = prepare(mechanism, rows, rotation=rotation)
    return encode_packed(prepared, keystreams()).on_cpu().tobytes()


def one_by_one(mechanism: Mechanism, rows: Any, rotation: Rotation | None) -> bytes:
    """Encode each row by itself with numpy."""
    streams, found = keystreams(), b""
    with native.using("numpy"):
        for i, row in enumerate(rows):
            prepared = prepare(mechanism, row, rotation=rotation)
            found += encode_packed(prepared, [streams[i]]).on_cpu().tobytes()
    return found


@pytest.mark.parametrize(
    ("outputs", "features", "levels", "threads"), thinned(SHAPES, [2, 3, 4, 8, 16], ["1", "5"])
)
def test_factored_rows_are_encoded_like_their_matrix(
    outputs: int, features: int, levels: int, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOTTOVOCE_THREADS", threads)
    rows = some_rows(outputs, features)
    mechanism = a_mechanism(rows.shape[1], levels)
    for rotation in (None, Rotation(bytes(range(32)), rows.shape[1])):
        expected = one_by_one(mechanism, rows.matrix(), rotation)
        for level in native.levels():
            with native.using(level):
                assert payloads(mechanism, rows, rotation) == expected
                assert payloads(mechanism, rows.matrix(), rotation) == expected
                assert payloads(mechanism, rows.matrix().astype(np.float64), rotation) == expected


@pytest.mark.parametrize("bits", [5, 16, 20])
@pytest.mark.parametrize("rotated", [False, True])
def test_rounded_noise_is_drawn_for_rows_as_for_single_vectors(bits: int, rotated: bool) -> None:
    """With 20 bits the grid is so fine that draws of 32 bits leave many codes undecided."""
    rows = some_rows(10, 331)
    dimension = rows.shape[1]
    ball = L2Ball(dimension=dimension, radius=2.0)
    box = Box(dimension=dimension, lower=-0.1, upper=0.7)
    given = {"noise_multiplier": 0.8, "bits": bits, "steps_per_radius": "auto"}
    kinds: list[tuple[str, Domain]] = [("discrete_gaussian", ball), ("discrete_laplace", box)]
    for kind, domain in kinds[:1] if rotated else kinds:
        found = find(kind)
        mechanism = found.build(domain, found.resolve(domain, given))
        rotation = Rotation(bytes(32), dimension) if rotated else None
        expected = one_by_one(mechanism, rows.matrix(), rotation)
        for level in native.levels():
            with native.using(level):
                assert payloads(mechanism, rows, rotation) == expected


def test_rows_without_biases_of_one_part_and_of_many_parts_are_their_matrix() -> None:
    rows = some_rows(5, 7, biases=False)
    many = FactoredRows(tuple(np.ascontiguousarray(rows.matrix()[:, [i]]) for i in range(38)) * 2)
    one = FactoredRows(rows.parts[:1])
    for given in (rows, many, one):
        rotation = Rotation(bytes(32), given.shape[1])
        mechanism = a_mechanism(given.shape[1], 2)
        assert payloads(mechanism, given, rotation) == one_by_one(
            mechanism, given.matrix(), rotation
        )
        assert given.select(slice(2, 5)).matrix().tobytes() == given.matrix()[2:5].tobytes()
        assert given.select([4, 0]).matrix().tobytes() == given.matrix()[[4, 0]].tobytes()


@pytest.mark.parametrize("rotated", [False, True])
def test_mechanisms_without_kernels_for_rows_see_the_same_rows(rotated: bool) -> None:
    rows = some_rows(5, 7)
    ball = L2Ball(dimension=rows.shape[1], radius=2.0)
    rotation = Rotation(bytes(32), rows.shape[1]) if rotated else None
    for kind, parameters in [
        ("clamped_sign", {"noise_multiplier": 2.0, "logit_bound": 1.0}),
        ("gaussian", {"noise_multiplier": 1.0}),
    ]:
        mechanism = find(kind).build(ball, parameters)
        expected = one_by_one(mechanism, rows.matrix(), rotation)
        assert payloads(mechanism, rows, rotation) == expected


@pytest.mark.parametrize("factored", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_refused_or_count_as_zeros(bad: float, factored: bool) -> None:
    rows = some_rows(5, 7)
    matrix = rows.matrix()
    matrix[4, 3] = bad
    zeroed = matrix.copy()
    zeroed[4] = 0.0
    given = FactoredRows((matrix,)) if factored else matrix
    mechanism, rotation = a_mechanism(38 + 5, 2), Rotation(bytes(32), 38 + 5)
    with pytest.raises(DomainError, match="finite"):
        prepare(mechanism, given, rotation=rotation)
    prepared = prepare(mechanism, given, rotation=rotation, zero_nonfinite=True)
    found = encode_packed(prepared, keystreams()).on_cpu().tobytes()
    assert found == one_by_one(mechanism, zeroed, rotation)


def test_chosen_rows_and_single_vectors_are_those_of_the_batch() -> None:
    rows = some_rows(10, 331)
    rotation = Rotation(bytes(32), rows.shape[1])
    mechanism = a_mechanism(rows.shape[1], 4)
    prepared = prepare(mechanism, rows, rotation=rotation)
    chosen = prepared.take([7, 3])
    assert chosen.vector(0).tobytes() == prepared.vector(7).tobytes()
    assert prepared.batch is not None
    assert prepared.batch.vector(3).tobytes() == prepared.vector(3).tobytes()
    assert prepared.rows.shape == rows.shape
    assert prepared.scales is None


def test_large_rows_are_made_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTOVOCE_THREADS", "64")
    rows = some_rows(16, 60)
    mechanism, rotation = a_mechanism(rows.shape[1], 2), Rotation(bytes(32), rows.shape[1])
    expected = payloads(mechanism, rows, rotation)
    monkeypatch.setattr(row_batches, "_LARGE_ROW", 64)
    batch = RowBatch(source=rows, rotation=rotation)
    assert not batch.suits_rows
    assert payloads(mechanism, rows, rotation) == expected


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("levels", [2, 3, 16])
def test_a_keystream_is_refused_if_it_was_used(levels: int, rotated: bool) -> None:
    rows = some_rows(5, 7)
    mechanism = a_mechanism(rows.shape[1], levels)
    rotation = Rotation(bytes(32), rows.shape[1]) if rotated else None
    streams = keystreams()
    streams[11].spend()
    with pytest.raises(RandomnessError, match="already used"):
        encode_packed(prepare(mechanism, rows, rotation=rotation), streams)


class UndecidedLibrary:
    """The C kernels, which leave some coordinates of some rows undecided and spoil their codes."""

    def __init__(self, library: Any, bits: int, places: list[tuple[int, int]]) -> None:
        self._library, self._bits, self._places = library, bits, places

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def _spoil(self, out: Any, left: Any) -> int:
        for k, (row, i) in enumerate(self._places[: left.shape[1]]):
            left[:, k] = row, i
            at = i * self._bits
            out[row, at // 8] ^= 1 << at % 8
        return len(self._places)

    def one_bit_rows(self, *args: Any) -> int:
        assert self._library.one_bit_rows(*args) == 0
        return self._spoil(*args[-2:])

    def ladder_rows(self, *args: Any) -> int:
        assert self._library.ladder_rows(*args) == 0
        return self._spoil(*args[-2:])


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("kind", ["2", "3", "16", "table"])
def test_undecided_coordinates_are_decided_exactly(
    kind: str, rotated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = native.native()
    if found is None:
        pytest.skip("there are no C kernels")
    rows = some_rows(5, 7)
    rotation = Rotation(bytes(32), rows.shape[1]) if rotated else None
    mechanism: Mechanism
    if kind == "table":
        ball = L2Ball(dimension=rows.shape[1], radius=2.0)
        parameters = {"epsilon": 2.0, "metric": "l1", "input_bits": 1, "output_bits": 1}
        mechanism = find("metric_mvu").build(ball, parameters)
    else:
        mechanism = a_mechanism(rows.shape[1], int(kind))
    assert isinstance(mechanism, EncodesPacked)
    expected = payloads(mechanism, rows, rotation)
    bits = mechanism.code_format().bits
    places = [(0, 5), (0, 30), (9, 0), (36, rows.shape[1] - 1)]
    spoiled = native.Native(UndecidedLibrary(found.library, bits, places), found.level)  # type: ignore[arg-type]
    for module in (row_batches, one_bit, ladder):
        monkeypatch.setattr(module, "native", lambda: spoiled)
    monkeypatch.setattr(row_batches, "_FIRST_CAPACITY", 2)  # Too few, so kernels run again.
    assert payloads(mechanism, rows, rotation) == expected


def test_factors_of_rows_are_those_of_the_ball() -> None:
    ball = L2Ball(dimension=43, radius=2.0)
    rows = some_rows(5, 7)
    matrix = rows.matrix().astype(np.float64)
    matrix[3] *= 1e90
    expected = [float(ball.clip_scale(row) or np.nan) for row in matrix]
    for level in native.levels():
        with native.using(level):
            assert row_batches.clip_factors(matrix, ball).tolist() == pytest.approx(
                expected, rel=0, abs=0, nan_ok=True
            )


def test_rows_of_a_part_of_a_file_are_chosen_like_those_of_an_array(tmp_path: Path) -> None:
    """Training data are such a part of the cached features where some of them are held out."""
    whole = np.random.default_rng(2).normal(size=(40, 3, 5)).astype(np.float32)
    np.save(tmp_path / "features.npy", whole)
    on_disk = np.load(tmp_path / "features.npy", mmap_mode="r")
    part: Any = SelectedRows(on_disk, np.arange(0, 40, 3))
    positions = np.array([1, 4, 5, 13])
    chosen = row_batches.select_singles(part, positions)
    np.testing.assert_array_equal(chosen, whole[3 * positions])
    np.testing.assert_array_equal(row_batches.select_singles(on_disk, positions), whole[positions])
