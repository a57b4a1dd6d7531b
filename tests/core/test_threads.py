"""Ranges that threads share: they cover everything once, and errors come through."""

import pytest

from sottovoce.core.errors import ParameterError
from sottovoce.core.threads import VARIABLE, over_ranges, thread_count


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000, 4096])
@pytest.mark.parametrize("threads", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("unit", [1, 8, 64])
def test_ranges_cover_everything_once_and_end_at_units(size: int, threads: int, unit: int) -> None:
    seen: list[tuple[int, int]] = []
    over_ranges(lambda b, e: seen.append((b, e)), size, unit=unit, least=32, threads=threads)
    assert sorted(i for b, e in seen for i in range(b, e)) == list(range(size))
    assert all(b % unit == 0 and (e % unit == 0 or e == size) for b, e in seen)
    assert 1 <= len(seen) <= threads


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
    assert 1 <= thread_count() <= 8
    monkeypatch.setenv(VARIABLE, "3")
    assert thread_count() == 3
    assert thread_count(5) == 5
    for nonsense in ("0", "-1", "many", "1000", ""):
        monkeypatch.setenv(VARIABLE, nonsense)
        with pytest.raises(ParameterError, match=VARIABLE):
            thread_count()
    with pytest.raises(ParameterError, match="threads"):
        thread_count(0)
