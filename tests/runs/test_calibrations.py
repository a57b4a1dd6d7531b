"""What is remembered of calibrations saves time, and never privacy."""

import json
from pathlib import Path
from typing import Any

import pytest

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.registry import Registration
from sottovoce.mechanisms.release import ReleaseTerms
from sottovoce.planning import calibrate
from sottovoce.planning.calibrate import CalibrationTarget, calibrate_cached
from sottovoce.privacy import accounting
from sottovoce.privacy.events import Repeated
from sottovoce.protocol.channels.channel import Direct, terms_of

DOMAINS = [L2Ball(dimension=20, radius=1.0, records=n) for n in (3, 2)]
TARGET = CalibrationTarget(rounds=4, epsilon=3.0, delta=1e-5)
TERMS = ReleaseTerms(adjacency=Adjacency.ZERO_OUT)
GIVEN = {"levels": 2}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOTTOVOCE_CACHE", str(tmp_path))
    monkeypatch.setattr(calibrate, "WORTH_REMEMBERING_SECONDS", 0.0)
    return tmp_path / "calibrations"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A word for every calibration that is really made."""
    made: list[str] = []
    real = Registration.calibrate_for_all

    def counted(self: Registration, *args: Any, **more: Any) -> dict[str, Any]:
        made.append(self.kind)
        return real(self, *args, **more)

    monkeypatch.setattr(Registration, "calibrate_for_all", counted)
    return made


def found(target: CalibrationTarget = TARGET, terms: ReleaseTerms = TERMS) -> dict[str, Any]:
    return calibrate_cached(registry.find("gauss_hermite"), DOMAINS, GIVEN, target, terms)


def test_the_second_time_nothing_is_searched(calls: list[str], folder: Path) -> None:
    first = found()
    assert found() == first
    assert calls == ["gauss_hermite"]
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    ("target", "terms"),
    [
        (CalibrationTarget(rounds=5, epsilon=3.0, delta=1e-5), TERMS),
        (CalibrationTarget(rounds=4, epsilon=2.0, delta=1e-5), TERMS),
        (CalibrationTarget(rounds=4, epsilon=3.0, delta=1e-6), TERMS),
        (TARGET, ReleaseTerms(adjacency=Adjacency.REPLACE_ONE)),
        (TARGET, terms_of(Direct(), Adjacency.ZERO_OUT, record_sampling_rate=0.5)),
    ],
)
def test_another_question_has_an_answer_of_its_own(
    target: CalibrationTarget, terms: ReleaseTerms, calls: list[str]
) -> None:
    first = found()
    assert found(target, terms) != first
    assert len(calls) == 2


def test_an_answer_that_would_overspend_is_not_believed(calls: list[str], folder: Path) -> None:
    first = found()
    (entry,) = folder.iterdir()
    forged = {**first, "noise_multiplier": 0.99 * first["noise_multiplier"]}
    entry.write_text(json.dumps(forged), encoding="utf-8")
    again = found()
    assert again == first
    assert len(calls) == 2
    event = TERMS(registry.find("gauss_hermite").build(DOMAINS[0], again))
    assert accounting.epsilon(Repeated(event=event, count=4), 1e-5) <= 3.0


@pytest.mark.parametrize("content", ["", "[1]", '{"noise_multiplier": 9.0}', '{"sigma": 1}'])
def test_a_damaged_entry_is_found_anew(content: str, calls: list[str], folder: Path) -> None:
    first = found()
    (entry,) = folder.iterdir()
    entry.write_text(content, encoding="utf-8")
    assert found() == first
    assert len(calls) == 2
    assert json.loads(entry.read_text(encoding="utf-8")) == first


def test_what_is_found_at_once_is_not_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "WORTH_REMEMBERING_SECONDS", 60.0)
    found()
    assert not folder.exists()


def test_a_memory_that_cannot_be_written_only_costs_time(folder: Path) -> None:
    folder.write_text("a file where the folder should be", encoding="utf-8")
    assert found()["noise_multiplier"] > 0.0
