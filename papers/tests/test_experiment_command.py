"""The commands around experiments: what they print, where they write, how they end."""

import re
from pathlib import Path
from typing import Any

import pytest
from fake_training import fake_train

from sottovoce.core.errors import ConfigError
from sottovoce_papers import experiment as register
from sottovoce_papers.experiment import (
    Experiment,
    Findings,
    Settings,
    find,
    known_differences,
)
from sottovoce_papers.learning import study as learning_study

ROOT = Path(__file__).parents[2]
FAST = ("experiment", "run", "digits-sweep", "--fast")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(learning_study, "default_train", lambda: fake_train)


def test_the_list_shows_what_needs_data(cli: Any) -> None:
    needs = {row["name"]: row["data"] for row in cli("experiment", "list", "--json").json}
    assert needs["imvu-mnist"] == "mnist"
    assert needs["digits-sweep"] is None
    text = cli("experiment", "list").out
    assert "needs data" in text
    line = next(line for line in text.splitlines() if "imvu-mnist" in line)
    assert line.rstrip().endswith("mnist")


def test_a_run_is_labeled_as_reduced(cli: Any) -> None:
    result = cli("experiment", "run", "digits-sweep", "--fast", "--jobs", 1)
    assert result.code == 0
    assert "Reduced: rounds is 5, not 30" in result.out
    assert "Of 2 budgets, one bit is below" in result.out
    assert Path("experiments-out/digits-sweep/index.html").is_file()


def test_failures_are_told_and_the_exit_status_is_one(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(spec: Any, *, on_round: Any = None) -> dict[str, Any]:
        if spec.mechanism.kind == "stochastic_sign":
            raise ConfigError("the model diverged")
        return fake_train(spec)

    monkeypatch.setattr(learning_study, "default_train", lambda: train)
    result = cli(*FAST)
    assert result.code == 1
    assert "4 of 16 trials failed; read why on the page" in result.err
    assert "the model diverged" in Path("experiments-out/digits-sweep/index.html").read_text()


def test_an_interrupt_says_how_to_go_on(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(spec: Any, *, on_round: Any = None) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(learning_study, "default_train", lambda: interrupted)
    result = cli(*FAST, "--out", "a folder")
    assert result.code == 130
    assert "run the same command to continue: sottovoce experiment run digits-sweep" in result.err
    assert "--out 'a folder'" in result.err
    monkeypatch.setattr(learning_study, "default_train", lambda: fake_train)
    assert cli(*FAST, "--out", "a folder").code == 0


def test_what_trains_nothing_takes_no_jobs(cli: Any) -> None:
    result = cli("experiment", "run", "mvu-bits", "--fast", "--jobs", 2)
    assert result.code == 2
    assert result.err == "error: 'mvu-bits' trains no model; leave out --jobs\n"


def test_publishing(cli: Any) -> None:
    assert cli("experiment", "publish", "digits-sweep").code == 2
    assert cli(*FAST).code == 0
    result = cli("experiment", "publish", "digits-sweep", "--to", "kept")
    assert result.out == "Published: kept/digits-sweep/README.md\n"
    page = Path("kept/digits-sweep/README.md").read_text()
    assert "\n\nTuning: Rate, momentum and clipping norm are the same for all mechanisms" in page


def test_every_published_study_says_whether_its_tuning_was_charged() -> None:
    pages = [path.read_text() for path in (ROOT / "results").glob("*/README.md")]
    studies = [page for page in pages if "\n## How it was measured\n" in page]
    assert len(studies) > 20
    for page in studies:
        assert re.search("not charged|none of it is charged|\nTuning: ", page, re.IGNORECASE), page


def test_every_page_says_how_it_differs_from_the_paper() -> None:
    of_papers = {
        one.name
        for one in register.experiments()
        if re.search(r"\((MVU|I-MVU|UDP-FL)[,)]", one.title)
    }
    known = known_differences()
    assert len(of_papers) > 30
    assert of_papers <= set(known)
    assert set(known) <= {one.name for one in register.experiments()}
    for path in (ROOT / "results").glob("*/README.md"):
        page = path.read_text()
        for sentence in known.get(path.parent.name, ()):
            assert f"\n- {sentence}\n" in page, path


def test_a_refused_option_keeps_the_results_of_an_earlier_run(cli: Any) -> None:
    assert cli(*FAST, "--out", "kept").code == 0
    before = {path: path.read_bytes() for path in Path("kept").iterdir() if path.is_file()}
    assert len(before) > 4
    result = cli(*FAST, "--out", "kept", "--set", "round=3")
    assert result.code == 2, result.err
    after = {path: path.read_bytes() for path in Path("kept").iterdir() if path.is_file()}
    assert after == before


def _broken(settings: Settings) -> Findings:
    raise ZeroDivisionError("division by zero")


def test_all_goes_on_after_a_failure_and_sums_up(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Experiment(name="broken", title="t", claim="c", default_seeds=0, run=_broken)
    few = (broken, find("digits-sweep"), find("mvu-consistency"))
    monkeypatch.setattr(register, "experiments", lambda: few)
    result = cli("experiment", "all", "--fast", "--jobs", 1, "--json")
    assert result.code == 1
    assert '"verdict": "ZeroDivisionError: division by zero"' in result.out
    monkeypatch.setattr(register, "experiments", lambda: few[1:])
    result = cli("experiment", "all", "--fast")
    assert result.code == 0
    assert "Of 2 budgets, one bit is below Gaussian (float32) in 2" in result.out
    assert {path.name for path in Path("experiments-out").iterdir()} == {
        "broken",
        "digits-sweep",
        "mvu-consistency",
    }
