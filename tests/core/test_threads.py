"""Ranges that threads share: they cover everything once, and errors come through."""

from pathlib import Path

import pytest

from sottovoce.core import threads
from sottovoce.core.errors import ParameterError
from sottovoce.core.threads import VARIABLE, over_ranges, over_rows, thread_count


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000, 4096])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("unit", [1, 8, 64])
def test_ranges_cover_everything_once_and_end_at_units(size: int, count: int, unit: int) -> None:
    seen: list[tuple[int, int]] = []
    over_ranges(lambda b, e: seen.append((b, e)), size, unit=unit, least=32, threads=count)
    assert sorted(i for b, e in seen for i in range(b, e)) == list(range(size))
    assert all(b % unit == 0 and (e % unit == 0 or e == size) for b, e in seen)
    assert 1 <= len(seen) <= count


def test_little_work_stays_on_one_thread() -> None:
    seen: list[tuple[int, int]] = []
    over_ranges(lambda b, e: seen.append((b, e)), 99, unit=1, least=50, threads=8)
    assert seen == [(0, 99)]


@pytest.mark.parametrize("bad", [0, 70])
def test_an_error_in_any_range_comes_through(bad: int) -> None:
    def work(begin: int, end: int) -> None:
        if begin <= bad < end:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        over_ranges(work, 100, unit=1, least=1, threads=4)


def test_the_environment_chooses_and_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert 1 <= thread_count() <= 64
    monkeypatch.setenv(VARIABLE, "3")
    assert thread_count() == 3
    assert thread_count(5) == 5
    for nonsense in ("0", "-1", "many", "1000", ""):
        monkeypatch.setenv(VARIABLE, nonsense)
        with pytest.raises(ParameterError, match=VARIABLE):
            thread_count()
    with pytest.raises(ParameterError, match="threads"):
        thread_count(0)


def test_rows_may_be_shared_inside_shared_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "3")
    seen: list[int] = []

    def outer(begin: int, end: int) -> None:
        for _ in range(begin, end):
            over_rows(lambda b, e: seen.extend(range(b, e)), 7, 1 << 20)

    over_rows(outer, 40, 1 << 20)
    assert sorted(seen) == sorted([*range(7)] * 40)


def test_more_threads_than_the_machine_has_do_all_of_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "200")
    seen: list[int] = []
    over_rows(lambda b, e: seen.extend(range(b, e)), 5000, 1 << 20)
    assert sorted(seen) == list(range(5000))


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", 256), ("150000 100000", 2), ("nonsense", 256)]
)
def test_a_container_limits_the_default(
    text: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(text, encoding="ascii")
    monkeypatch.setattr(threads, "_QUOTA", tmp_path / "cpu.max")
    assert threads._quota() == cores
