"""Some cases of every entrance; `make fuzz CASES=1000000` draws them all."""

import signal
from pathlib import Path

import pytest
from fuzzing.entrances import ENTRANCES
from fuzzing.harness import ChangedError, Entrance, check, run_cases

from sottovoce.core.errors import ParameterError

_FEW = {"run-folders": 10, "command-line": 30, "designs": 100, "ledgers-by-sql": 60}
_MANY = 200


@pytest.mark.parametrize("entrance", ENTRANCES, ids=lambda one: one.name)
def test_hostile_input_is_refused_or_comes_back_as_it_was(entrance: Entrance) -> None:
    outcome = run_cases(entrance, _FEW.get(entrance.name, _MANY), seed=1)
    assert outcome.found == []
    assert outcome.accepted  # cases that never get past the first check test nothing


def test_names_are_told_apart_and_shares_make_a_million() -> None:
    assert len({one.name for one in ENTRANCES}) == len(ENTRANCES)
    assert sum(one.share for one in ENTRANCES) >= 1_000_000


def _of(case: object) -> Entrance:
    return Entrance(name="toy", share=1, prepare=lambda _: case)  # type: ignore[arg-type, return-value]


def test_what_must_not_happen_is_found() -> None:
    def refuses(_: object) -> None:
        raise ParameterError("no")

    def breaks(_: object) -> None:
        raise KeyError("a bug")

    def changes(_: object) -> None:
        check(False, "it came back as another")

    assert run_cases(_of(lambda _: None), 3, seed=1).accepted == 3
    assert run_cases(_of(refuses), 3, seed=1).refused == 3
    assert run_cases(_of(breaks), 3, seed=1).num_found == 3
    (found, *_) = run_cases(_of(changes), 1, seed=1).found
    assert ChangedError.__name__ in found


def test_a_hang_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuzzing import harness

    def hangs(_: object) -> None:
        while True:
            try:
                signal.pause()
            except Exception:  # what hangs may swallow errors too
                continue

    monkeypatch.setattr(harness, "LONGEST_SECONDS", 0.05)
    outcome = run_cases(_of(hangs), 1, seed=1)
    assert outcome.num_found == 1
    assert "no end within" in outcome.found[0]


def test_a_seed_gives_the_same_cases_again() -> None:
    drawn: list[list[float]] = []
    for seed in (1, 1, 2):
        numbers: list[float] = []
        run_cases(_of(lambda random, into=numbers: into.append(random.random())), 4, seed=seed)
        drawn.append(numbers)
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 4


def test_the_tool_counts_writes_and_goes_on(tmp_path: Path) -> None:
    import fuzz

    page = tmp_path / "fuzz.md"
    given = ["--cases", "50", "--only", "events", "--out", str(page)]
    assert fuzz.main(given) == 0
    first = page.read_text()
    assert "| events | 50 |" in first
    kept = tmp_path / "fuzz.md.json"
    kept.write_text(kept.read_text().replace('"num_found": 0', '"num_found": 7'))
    assert fuzz.main([*given, "--resume"]) == 1  # taken from what was kept
    assert fuzz.main(["--only", "nowhere"]) == 2
    assert fuzz.main(["--only", "events", "--case", "3"]) == 0
