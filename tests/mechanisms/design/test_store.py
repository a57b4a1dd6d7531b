"""The store: a design is checked whenever it is read, and damage is an error that says so."""

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sottovoce.core.errors import DesignError, ParameterError, UnknownNameError
from sottovoce.mechanisms.design import store
from sottovoce.mechanisms.design.channel import ChannelMatrix
from sottovoce.mechanisms.design.store import DesignSpec, spec_of

SPEC = spec_of(2.0, 2, 2)
SOLVED = functools.cache(store.find)  # this one comes with the package


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store.save(SOLVED(SPEC), tmp_path)
    return tmp_path


def test_a_design_survives_the_disk_bit_by_bit(folder: Path) -> None:
    solved, loaded = SOLVED(SPEC), store.load(folder, SPEC)
    for name in ("knots", "rows", "letters"):
        np.testing.assert_array_equal(getattr(solved.channel, name), getattr(loaded.channel, name))
    assert solved.table.digest == loaded.table.digest


def arrays_of(folder: Path) -> Path:
    (found,) = folder.glob(f"{SPEC.name}-*.npz")
    return found


def truncated(folder: Path) -> None:
    path = arrays_of(folder)
    path.write_bytes(path.read_bytes()[:-40])


def emptied(folder: Path) -> None:
    (arrays_of(folder)).write_bytes(b"")


def missing(folder: Path) -> None:
    (arrays_of(folder)).unlink()


def not_json(folder: Path) -> None:
    (folder / f"{SPEC.name}.json").write_text("{")


def not_an_object(folder: Path) -> None:
    (folder / f"{SPEC.name}.json").write_text("[1, 2]")


def edited(key: str, value: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / f"{SPEC.name}.json"
        content = json.loads(path.read_text())
        content[key] = value
        path.write_text(json.dumps(content))

    return edit


def edited_tail_of_digest(folder: Path) -> None:
    digest = json.loads((folder / f"{SPEC.name}.json").read_text())["digest"]
    edited("digest", digest[:16] + "0" * 16)(folder)


def without_digest(folder: Path) -> None:
    path = folder / f"{SPEC.name}.json"
    content = json.loads(path.read_text())
    del content["digest"]
    path.write_text(json.dumps(content))


def other_parameters(folder: Path) -> None:
    other = spec_of(2.5, 1, 1)
    store.save(SOLVED(other), folder)
    shutil.move(folder / f"{other.name}.json", folder / f"{SPEC.name}.json")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncated, "cannot be read"),
        (emptied, "cannot be read"),
        (missing, "No such file"),
        (not_json, "damaged"),
        (not_an_object, "cannot be read"),
        (without_digest, "digest"),
        (edited("digest", "00" * 16), "No such file"),
        (edited_tail_of_digest, "not those"),
        (edited("sum_of_variances", 0.01), "variance"),
        (edited("sum_of_variances", None), "cannot be read"),
        (other_parameters, "No such file|other parameters"),
    ],
)
def test_a_damaged_design_is_an_error_that_says_what_to_do(
    folder: Path, damage: Callable[[Path], None], reason: str
) -> None:
    damage(folder)
    with pytest.raises(DesignError, match=reason) as caught:
        store.load(folder, SPEC)
    assert "delete it" in str(caught.value)


def test_a_flipped_byte_is_noticed_or_harmless(folder: Path) -> None:
    path = arrays_of(folder)
    content = path.read_bytes()
    noticed = 0
    for position in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        try:
            loaded = store.load(folder, SPEC)
        except DesignError:
            noticed += 1
        else:  # a date in the archive's directory, say
            assert loaded.table.digest == SOLVED(SPEC).table.digest
    assert noticed > 20


def tampered(change: Callable[[ChannelMatrix], ChannelMatrix]) -> ChannelMatrix:
    honest = SOLVED(SPEC).channel
    copy = ChannelMatrix(
        knots=honest.knots.copy(), rows=honest.rows.copy(), letters=honest.letters.copy()
    )
    return change(copy)


def leaky(channel: ChannelMatrix) -> ChannelMatrix:
    channel.rows[0, 0] *= 1.0 + 1e-9
    channel.rows[0] /= channel.rows[0].sum()
    return channel


def biased(channel: ChannelMatrix) -> ChannelMatrix:
    channel.letters[0] += 1e-9
    return channel


def unnormalised(channel: ChannelMatrix) -> ChannelMatrix:
    channel.rows[1] *= 1.0 + 1e-9
    return channel


def with_nan(channel: ChannelMatrix) -> ChannelMatrix:
    channel.rows[1, 1] = np.nan
    return channel


def with_a_hole(channel: ChannelMatrix) -> ChannelMatrix:
    channel.rows[0, 0] = 0.0
    return channel


def shorter(channel: ChannelMatrix) -> ChannelMatrix:
    return ChannelMatrix(knots=channel.knots[1:], rows=channel.rows[1:], letters=channel.letters)


def fewer_letters(channel: ChannelMatrix) -> ChannelMatrix:
    return ChannelMatrix(knots=channel.knots, rows=channel.rows[:, 1:], letters=channel.letters[1:])


@pytest.mark.parametrize(
    "change", [leaky, biased, unnormalised, with_nan, with_a_hole, shorter, fewer_letters]
)
def test_a_design_that_fails_its_certificate_is_never_used(
    change: Callable[[ChannelMatrix], ChannelMatrix],
) -> None:
    with pytest.raises(DesignError):
        store.certify(SPEC, tampered(change), 0.0)


def test_solved_designs_are_cached_and_a_read_only_cache_only_costs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(2.125, 3, 1)
    monkeypatch.setenv("SOTTOVOCE_CACHE", str(tmp_path))
    store.find.cache_clear()
    store.find(spec)
    assert (tmp_path / "designs" / f"{spec.name}.json").is_file()
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("SOTTOVOCE_CACHE", str(blocked))
    store.find.cache_clear()
    assert store.find(spec).spec == spec


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_shipped_designs_are_whole_certified_and_near_their_bound(every: int) -> None:
    described, _ = store._shipped()
    assert len(described) > 50
    for number, entry in list(enumerate(described.values()))[::every]:
        spec = DesignSpec(**entry["spec"])
        design = store._load_shipped(spec)
        assert design is not None
        certificate = design.certificate()
        assert certificate["table_epsilon"] <= spec.epsilon
        assert max(certificate["max_bias"], certificate["row_error"]) <= 1e-12
        assert certificate["dp_excess"] <= 1e-12
        if number % 25 == 0:
            assert design.lower_bound() <= design.sum_of_variances()


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), float("inf"), 1e6, True, "1"])
def test_an_epsilon_that_means_nothing_is_refused(epsilon: float) -> None:
    with pytest.raises(ParameterError, match="epsilon"):
        spec_of(epsilon, 3, 3)


@pytest.mark.parametrize("bits", [0, -1, 20, 2.5, True])
def test_bits_out_of_range_are_refused(bits: int) -> None:
    with pytest.raises(ParameterError, match="output_bits"):
        spec_of(1.0, 3, bits)
    with pytest.raises(ParameterError, match="input_bits"):
        spec_of(1.0, bits, 3)


def test_other_metrics_and_continuous_metric_designs_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="l1"):
        spec_of(1.0, 3, 3, "l3")
    with pytest.raises(ParameterError, match="input_bits"):
        spec_of(1.0, None, 3, "l1")
    with pytest.raises(ParameterError):
        DesignSpec(family="metric", epsilon=1.0, inputs=None, letters=4)


def test_the_squared_metric_is_the_l1_metric_with_a_smaller_epsilon() -> None:
    assert spec_of(3.0, 2, 2, "l2_squared") == spec_of(1.0, 2, 2, "l1")
