"""The optional extension: what it refuses, and that nothing but the speed depends on it."""

import math
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.core import domains, native
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.design.families import gauss_hermite
from sottovoce.mechanisms.kernels import one_bit
from sottovoce.mechanisms.kernels.family import sample_exponential_family
from sottovoce.mechanisms.kernels.ladder import Affine
from sottovoce.mechanisms.kernels.reference.one_bit import exact_bit
from sottovoce.mechanisms.noise.laws import ScalarGaussian
from sottovoce.mechanisms.noise.rounded import sample_rounded

ROOT = Path(__file__).parents[2]
KEY = bytes(range(32))
BUILT = native.levels()[1:]
every_level = pytest.mark.parametrize("level", native.levels())
needs_the_extension = pytest.mark.skipif(not BUILT, reason="the extension is not built")


@pytest.mark.skipif(
    not any(map(shutil.which, ("gcc", "clang"))), reason="no C compiler: numpy does the work"
)
def test_where_there_is_a_compiler_the_extension_is_built() -> None:
    """Or else every test of the C kernels would be skipped, and a broken build go unseen."""
    assert BUILT, "build it: python setup.py build_ext --inplace, and read what the compiler says"


def family_codes(values: Any) -> Any:
    design = gauss_hermite(4)
    return sample_exponential_family(
        values, Affine(), design.points, design.weights, Keystream(KEY),
        reach=4.0, fisher_bound=design.fisher_bound,
    )  # fmt: skip


SAMPLERS: dict[str, Callable[[Any], Any]] = {
    "one bit": lambda values: one_bit.sample_payload(values, 1.0, Keystream(KEY)),
    "family": family_codes,
}
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS)


# -- values of any shape and type ------------------------------------------------------------


@every_level
@every_sampler
@pytest.mark.parametrize("dtype", ["<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "<i8", "i1", "u2"])
def test_arrays_of_any_layout_are_read_for_their_values(
    level: str, sampler: str, dtype: str
) -> None:
    plain = np.random.default_rng(1).integers(-2, 3, 3001).astype(np.float64)
    plain = np.abs(plain) if dtype == "u2" else plain
    with native.using("numpy"):
        expected = SAMPLERS[sampler](plain)
    raw = bytearray(1 + 3001 * np.dtype(dtype).itemsize)
    misaligned = np.frombuffer(raw, dtype=np.dtype(dtype), offset=1)
    misaligned[:] = plain
    read_only = plain.astype(dtype)
    read_only.flags.writeable = False
    with native.using(level):
        for values in (
            plain.astype(dtype),
            np.repeat(plain, 3).astype(dtype)[::3],
            plain[::-1].astype(dtype)[::-1],
            misaligned,
            read_only,
            plain.astype(dtype).tolist(),
        ):
            np.testing.assert_array_equal(SAMPLERS[sampler](values), expected)
    np.testing.assert_array_equal(read_only, plain)


@every_level
def test_norms_and_noise_of_arrays_of_any_layout(level: str) -> None:
    plain = np.random.default_rng(2).normal(size=3001)
    raw = bytearray(1 + plain.nbytes)
    misaligned = np.frombuffer(raw, dtype=np.float64, offset=1)
    misaligned[:] = plain
    with native.using("numpy"):
        total = domains.square_sum(plain)
        codes = sample_rounded(plain, ScalarGaussian(stddev=1.0), 0.1, Keystream(KEY))
    with native.using(level):
        for values in (plain, np.repeat(plain, 2)[::2], misaligned):
            assert domains.square_sum(values) == total
            found = sample_rounded(values, ScalarGaussian(stddev=1.0), 0.1, Keystream(KEY))
            np.testing.assert_array_equal(found, codes)


@every_level
@every_sampler
@pytest.mark.parametrize(
    "values",
    [np.zeros((2, 3)), np.array(1.0), np.array([None]), np.array(["1"]), np.array([1j]),
     np.array([True]), np.array([1, "x"], dtype=object)],
    ids=str,
)  # fmt: skip
def test_what_is_no_vector_of_numbers_is_refused(level: str, sampler: str, values: Any) -> None:
    with native.using(level), pytest.raises(DomainError, match="expected"):
        SAMPLERS[sampler](values)


@every_level
@every_sampler
def test_no_values_have_no_codes(level: str, sampler: str) -> None:
    with native.using(level):
        assert SAMPLERS[sampler]([]).shape == (0,)
        assert SAMPLERS[sampler](np.zeros(0, dtype=np.float32)).shape == (0,)


@every_level
def test_not_a_number_is_refused_or_drawn_but_never_waited_for(level: str) -> None:
    """Mechanisms check their input; below them, arbitrary precision would read on for ever."""
    with native.using(level), suppress(DomainError):
        payload = one_bit.sample_payload(np.full(64, np.nan), 1.0, Keystream(KEY))
        assert payload.shape == (8,)
    with pytest.raises(DomainError, match="coordinate 5 is NaN"):
        exact_bit(math.nan, 0, 5, Keystream(KEY))


# -- the functions of the extension ----------------------------------------------------------


def arguments() -> dict[str, list[Any]]:
    """A call of each function that is accepted."""
    design = gauss_hermite(3)
    values, left = np.zeros(10), np.zeros(4, dtype=np.int64)
    rows, gaps = np.zeros((3, 2, 16), dtype=np.float32), np.full(3, np.inf, dtype=np.float32)
    rows[:, 0] = np.inf
    narrow = np.zeros((2, 2, 32), dtype=np.int16)
    ladder = (
        0.0, 1.0, 1.0, 1.0, 1.0, 3, 16, rows, gaps, False, design.points.copy(),
        design.weights.copy(), narrow, 2, 1.0, 1.0, 7,
    )  # fmt: skip
    return {
        "draws": [0, KEY, 16, 0, np.zeros(2048, dtype=np.uint8).view(np.uint16)],
        "draws_at": [KEY, 16, np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.uint32)],
        "extensions": [KEY, np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.uint64)],
        "square_sum": [0, values, True],
        "one_bit": [0, KEY, 0, 1.0, 1.0, 1.0, values, True, np.zeros(2, dtype=np.uint8), left],
        "ladder": [
            0, KEY, 0, ladder, values, True, np.zeros(10, dtype=np.uint8), left,
        ],
        "grid_noise": [
            0, KEY, 0, 1.0, 0.1, np.zeros((19 << 10, 4)), values, np.zeros(10, dtype=np.int32),
            left,
        ],
        "expand_signs": [0, KEY[:16], bytes(48), 10, np.zeros((3, 2), dtype=np.uint8)],
        "score_signs": [
            0, KEY[:16], bytes(48), np.zeros(10, dtype=np.int16), np.zeros(3, dtype=np.int64),
        ],
        **arguments_of_rows(ladder),
    }  # fmt: skip


def arguments_of_rows(ladder: tuple[Any, ...]) -> dict[str, list[Any]]:
    """Calls of the functions for many rows, of three rows of twenty coordinates."""
    left, right = np.ones((3, 2), dtype=np.float32), np.ones((3, 9), dtype=np.float32)
    # Two passes of sixteen signs.
    rows = [(left, right, 1)], 3, 20, 0, np.ones(3), np.zeros(4, dtype=np.uint8), 2
    keys, undecided = np.zeros((3, 32), dtype=np.uint8), np.zeros((2, 4), dtype=np.int64)
    matrix, planes = np.zeros((2, 10), dtype=np.uint8), [np.zeros(64, dtype=np.uint8)] * 5
    ends, short = np.array([2, 5]), np.zeros((2, 2), dtype=np.uint8)
    counters = np.zeros((2, 4, 64), dtype=np.uint8)
    return {
        "clip_factors": [0, rows, 1.0, 1e-200, 1e200, np.zeros(3)],
        "prepared_rows": [0, rows, np.zeros((3, 20))],
        "one_bit_rows": [
            0, rows, keys, 1.0, 1.0, np.zeros((3, 3), dtype=np.uint8), undecided,
        ],
        "ladder_rows": [
            0, rows, keys, ladder, 2, np.zeros((3, 5), dtype=np.uint8), undecided,
        ],
        "derive_keys": [
            0, memoryview(KEY), memoryview(b"a"), memoryview(b"bcdef"), ends, np.array([1, 0]),
            memoryview(b""), keys[:2], 2,
        ],
        "count_bit_rows": [0, planes, matrix, 10, 2],
        "count_level_rows": [0, counters, 3, 2, matrix, 10, 2],
        "add_point_rows": [0, np.zeros(10), short, 2, 1, np.zeros((2, 256)), 2],
        "largest_in_rows": [0, short, 10, 1, 0, 2],
        "gather_rows": [matrix, 10, np.array([1, 0, 1]), np.zeros((3, 10), dtype=np.uint8), 2],
    }  # fmt: skip


WITHOUT_LEVEL = ["draws_at", "extensions", "gather_rows"]
WITH_LEVEL = [
    "draws", "square_sum", "one_bit", "ladder", "grid_noise", "expand_signs", "score_signs",
    "clip_factors", "prepared_rows", "one_bit_rows", "ladder_rows", "count_bit_rows",
    "count_level_rows", "add_point_rows", "largest_in_rows", "derive_keys",
]  # fmt: skip
FUNCTIONS = WITHOUT_LEVEL + WITH_LEVEL


def leaves(given: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
    """The arguments with their places, those inside tuples and lists one by one."""
    for at, value in enumerate(given):
        if isinstance(value, list | tuple):
            yield from (((at, *rest), leaf) for rest, leaf in leaves(value))
        else:
            yield (at,), value


def replaced(given: Any, place: tuple[int, ...], value: Any) -> Any:
    """The arguments with another value at one place."""
    at, *rest = place
    new = replaced(given[at], tuple(rest), value) if rest else value
    return type(given)([*given[:at], new, *given[at + 1 :]])


def misplaced(array: np.ndarray) -> np.ndarray:
    """The same at an odd address."""
    raw = np.zeros(array.nbytes + 1, dtype=np.uint8)
    start = 1 if raw.ctypes.data % 2 == 0 else 0
    return raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)


@needs_the_extension
@pytest.mark.parametrize("name", FUNCTIONS)
def test_buffers_of_the_wrong_size_are_refused(name: str) -> None:
    with native.using(BUILT[-1]):
        chosen = native.native()
    assert chosen is not None
    call = getattr(chosen.library, name)
    given = arguments()[name]
    if name not in WITHOUT_LEVEL:
        given[0] = chosen.level
    call(*given)
    refused = 0
    for place, value in leaves(given):
        if isinstance(value, bytes):
            wrong: list[Any] = [value[:-1], value + b"x", b""]
        elif isinstance(value, np.ndarray):
            flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            wrong = [flat[:-1].copy(), flat[: len(flat) // 2 - 1].copy()]
            wrong += [misplaced(value)] if value.itemsize > 1 else []
        else:
            continue
        for bad in wrong:
            with pytest.raises(ValueError, match=r"\w"):
                call(*replaced(given, place, bad))
            refused += 1
    assert refused >= 2
    with pytest.raises((TypeError, ValueError)):
        call(*given[:-1])
    for place, value in leaves(given):
        if isinstance(value, np.ndarray):
            with pytest.raises((TypeError, ValueError, BufferError)):
                call(*replaced(given, place, None))


@needs_the_extension
@pytest.mark.parametrize("name", WITH_LEVEL)
@pytest.mark.parametrize("level", [-1, 3, 1000])
def test_levels_that_no_processor_has_are_refused(name: str, level: int) -> None:
    chosen = native._native
    assert chosen is not None
    with pytest.raises(ValueError, match="no kernels of level"):
        getattr(chosen, name)(level, *arguments()[name][1:])


@needs_the_extension
@pytest.mark.parametrize(
    ("place", "value"),
    [((2,), 1), ((2,), -1024), *(((3, 5), levels) for levels in (1, 257, 4)),
     *(((3, 6), width) for width in (0, 8, 17, 32, 2**60, -16)), ((3, 9), True), ((3, 13), -1),
     ((3, 13), 33)],
)  # fmt: skip
def test_parts_of_a_ladder_that_do_not_fit_are_refused(place: tuple[int, ...], value: Any) -> None:
    given = replaced(arguments()["ladder"], place, value)
    with pytest.raises(ValueError, match=r"fit|tiles"):
        native._native.ladder(*given)  # type: ignore[union-attr]


@needs_the_extension
@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        *(("prepared_rows", (1, at), bad) for at in (1, 2) for bad in (0, -1, 2, 19, 2**62)),
        *(("prepared_rows", (1, 6), threads) for threads in (-1, 0, 257)),
        *(("ladder_rows", (4,), bits) for bits in (0, 1, 9)),
        *(("derive_keys", (4,), np.array(ends)) for ends in ([5, 2], [2, 6], [-1, 5])),
        *(("derive_keys", (5,), np.array(chosen)) for chosen in ([2, 0], [0, -1])),
        *(("derive_keys", (8,), threads) for threads in (0, 257)),
        *(("count_bit_rows", (at,), bad) for at, bad in ((3, 0), (3, 3), (4, 0), (4, 257))),
        *(("count_level_rows", (at,), bad) for at, bad in ((2, 5), (3, 1), (3, 8), (6, 0))),
        *(("add_point_rows", (at,), bad) for at, bad in ((3, 1), (4, 0), (4, 9), (6, 0))),
        *(("gather_rows", (2,), np.array(chosen)) for chosen in ([0, 2, 1], [0, 1, -1], [0, 1])),
        *(("gather_rows", (at,), bad) for at, bad in ((1, 0), (1, 3), (4, 0), (4, 257))),
        *(("largest_in_rows", (at,), bad) for at, bad in ((2, 0), (2, 24), (3, 0), (3, 9), (5, 3))),
    ],
)
def test_numbers_that_do_not_fit_the_rows_are_refused(
    name: str, place: tuple[int, ...], value: Any
) -> None:
    given = replaced(arguments()[name], place, value)
    with pytest.raises(ValueError, match=r"\w"):
        getattr(native._native, name)(*given)


@needs_the_extension
@pytest.mark.parametrize("name", ["one_bit_rows", "ladder_rows"])
def test_places_of_undecided_coordinates_are_rows_and_coordinates(name: str) -> None:
    """The portable kernels leave NaN open, which no caller passes."""
    given = arguments()[name]
    matrix = np.zeros((3, 20), dtype=np.float32)
    matrix[0, 7] = matrix[2, 5] = matrix[2, 19] = np.nan
    given[1] = [(matrix, None, 0)], 3, 20, 0, b"", b"", 2
    for capacity in (2, 4):
        left = np.full((2, capacity), -1)
        assert getattr(native._native, name)(*given[:-1], left) == 3
        assert set(zip(*left.tolist(), strict=True)) <= {(0, 7), (2, 5), (2, 19), (-1, -1)}
        assert len(set(left[0] * 20 + left[1])) == capacity


def gathered(threads: int) -> bytes:
    """Rows that the extension copies on several threads."""
    rows = np.arange(3000 * 100, dtype=np.float32).reshape(3000, 100)
    out = np.zeros_like(rows)
    chosen = np.arange(3000)[::-1].copy()
    native._native.gather_rows(rows, 400, chosen, out, threads)  # type: ignore[union-attr]
    assert np.array_equal(out, rows[::-1])
    return out.tobytes()


@needs_the_extension
def test_several_callers_share_the_threads_of_the_extension() -> None:
    with ThreadPoolExecutor(max_workers=8) as pool:
        assert len(set(pool.map(gathered, [1, 2, 3, 40] * 20))) == 1


@needs_the_extension
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_starts_threads_of_its_own() -> None:
    gathered(3)  # The parent has threads, which the child does not inherit.
    child = os.fork()
    if not child:
        with suppress(BaseException):
            gathered(3)
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@needs_the_extension
def test_an_overflowing_width_is_not_a_size() -> None:
    """8 * 2 * 2^60 bytes are 0 bytes modulo 2^64."""
    given = arguments()["ladder"]
    for at, value in ((6, 2**60), (7, b""), (8, np.zeros(2, dtype=np.float32))):
        given = replaced(given, (3, at), value)
    with pytest.raises(ValueError, match="fit"):
        native._native.ladder(*given)  # type: ignore[union-attr]


@needs_the_extension
def test_only_writable_buffers_are_written_to() -> None:
    given = arguments()["one_bit"]
    given[8] = given[8].tobytes()
    with pytest.raises((TypeError, BufferError)):
        native._native.one_bit(*given)  # type: ignore[union-attr]


# -- with and without it ---------------------------------------------------------------------


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not used a kernel yet."""
    monkeypatch.setattr(native, "_choice", native._Choice())
    monkeypatch.delenv(native.VARIABLE, raising=False)


def test_a_missing_extension_is_said_once_and_changes_no_bit(
    undecided: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(3).normal(size=5000)
    expected = [SAMPLERS[name](values) for name in SAMPLERS]
    monkeypatch.setattr(native, "_native", None)
    monkeypatch.setattr(native, "_choice", native._Choice())
    with pytest.warns(native.NativeMissingWarning, match="install a C compiler") as caught:
        first = SAMPLERS["one bit"](values)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = SAMPLERS["family"](values)
    np.testing.assert_array_equal(first, expected[0])
    np.testing.assert_array_equal(second, expected[1])
    assert native.levels() == ("numpy",)
    assert native.native() is None


def test_a_missing_extension_that_was_not_wanted_is_not_missed(
    undecided: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_native", None)
    monkeypatch.setenv(native.VARIABLE, "numpy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert native.native() is None
    with (
        pytest.raises(ParameterError, match=r"this machine can run, got .*: auto, numpy"),
        native.using("avx2"),
    ):
        pass


def test_the_variable_chooses_a_level(undecided: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in native.levels():
        monkeypatch.setattr(native, "_choice", native._Choice())
        monkeypatch.setenv(native.VARIABLE, name)
        chosen = native.native()
        assert (chosen.name if chosen else "numpy") == name
    monkeypatch.setattr(native, "_choice", native._Choice())
    monkeypatch.setenv(native.VARIABLE, "auto")
    best = native.native()
    assert (best.name if best else "numpy") == native.levels()[-1]


def test_a_level_that_no_one_knows_is_refused(
    undecided: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(native.VARIABLE, "sse9")
    with pytest.raises(ParameterError, match="can run, got 'sse9'; choose one of: auto"):
        native.native()


def test_another_level_lasts_as_long_as_its_block() -> None:
    before = native.native()
    inside: list[object] = []
    with suppress(ZeroDivisionError), native.using("numpy"):
        inside.append(native.native())
        inside.append(1 // 0)
    assert inside == [None]
    assert native.native() == before


# -- what takes long -------------------------------------------------------------------------


@pytest.mark.slow
def test_without_a_compiler_the_package_builds_without_the_extension(tmp_path: Path) -> None:
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "CC": "/bin/false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("*.so"))
    program = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from sottovoce.core import native; from sottovoce.mechanisms.kernels import one_bit\n"
        "from sottovoce.core.randomness import Keystream\n"
        "assert native.native() is None\n"
        "print(one_bit.sample_payload([0.1] * 16, 1.0, Keystream(bytes(32))).tobytes().hex())\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    payload = one_bit.sample_payload([0.1] * 16, 1.0, Keystream(bytes(32)))
    assert found.stdout.strip() == payload.tobytes().hex()


@pytest.mark.slow
@needs_the_extension
def test_more_coordinates_than_32_bits_can_count() -> None:
    """2^31 + 8 of them: at tilt 0 the bit is the first of the draw, wherever that decides."""
    count = 2**31 + 8
    payload = one_bit.sample_payload(np.zeros(count, dtype=np.float32), 1.0, Keystream(KEY))
    assert payload.shape == (2**28 + 1,)
    keystream = Keystream(KEY)
    for start in (0, 2**16 - 40, 2**30, 2**31 - 1024, 2**31 - 40, count - 64):
        for i in range(start, min(start + 64, count)):
            bit = payload[i // 8] >> i % 8 & 1
            assert bit == (keystream.draw(16, i) >= 2**15)
    ones = np.array([number.bit_count() for number in range(256)], dtype=np.uint8)
    whole = int(ones[payload].sum(dtype=np.int64))
    assert abs(whole - count / 2) < 6.0 * (count / 4) ** 0.5


@needs_the_extension
def test_an_extension_of_another_interface_is_as_good_as_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert native._library() is not None
    monkeypatch.setattr(native._native, "INTERFACE", native._INTERFACE + 1)
    assert native._library() is None
    monkeypatch.delattr(native._native, "INTERFACE")
    assert native._library() is None
