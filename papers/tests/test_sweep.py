"""Sweeps: the grid, results that are kept at once, and failures that stop nobody else."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_training import fake_train
from specs import small_table

from sottovoce.core import files
from sottovoce.core.errors import ConfigError, OutputError, ParameterError
from sottovoce_papers import sweep
from sottovoce_papers.sweep import Choice, Trial, TrialResult, expand, label, run_trials

SEEDS = [Choice(value=n, overrides={"seed": n}) for n in (1, 2, 3)]


def _quiet(*_: object) -> None:
    pass


def _run(trials: list[Trial], folder: Path, **options: Any) -> list[TrialResult]:
    defaults: dict[str, Any] = {"jobs": 1, "on_step": _quiet, "train": fake_train}
    return run_trials(trials, folder, **defaults | options)


def _counted(calls: list[int]) -> Any:
    def train(spec: Any, *, on_round: Any = None) -> dict[str, Any]:
        calls.append(spec.seed)
        return fake_train(spec, on_round=on_round)

    return train


def _rounds(*values: int) -> list[Trial]:
    choices = [Choice(value=n, overrides={"rounds": n}) for n in values]
    return expand(small_table(), {"rounds": choices})


def test_axes_multiply_and_set_dotted_paths() -> None:
    epsilons = [Choice(value=e, overrides={"privacy.epsilon": e}) for e in (1.0, 2.0)]
    trials = expand(small_table(), {"epsilon": epsilons, "seed": SEEDS})
    assert [tuple(trial.key.values()) for trial in trials][:4] == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert [trial.spec.privacy.epsilon for trial in trials] == [1.0] * 3 + [2.0] * 3
    assert [trial.spec.seed for trial in trials] == [1, 2, 3] * 2
    assert label(trials[0].key) == "epsilon 1.0, seed 1"


def test_a_choice_may_take_away_what_another_axis_has_set() -> None:
    mechanisms = [
        Choice(
            value="none",
            overrides={"mechanism": {"kind": "no_privacy"}},
            removed=["privacy.epsilon", "nothing.there"],
        )
    ]
    epsilons = [Choice(value=e, overrides={"privacy.epsilon": e}) for e in (1.0, 2.0)]
    first, second = expand(small_table(), {"mechanism": mechanisms, "epsilon": epsilons})
    assert first.spec.privacy.epsilon is None
    assert first.spec.hash == second.spec.hash


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([], "axis 'a' has no values"),
        ([SEEDS[0], SEEDS[0]], "axis 'a' has a value twice"),
        ([Choice(value=1, overrides={"rouns": 1})], "did you mean 'rounds'"),
        ([Choice(value=1, overrides={"rounds.x": 1})], "'rounds' is a value, not a table"),
    ],
)
def test_a_wrong_axis_is_named(choices: list[Choice], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        expand(small_table(), {"a": choices})


def test_results_are_kept_with_their_spec_and_not_trained_again(tmp_path: Path) -> None:
    trials = expand(small_table(), {"seed": SEEDS})
    calls: list[int] = []
    first = _run(trials, tmp_path, train=_counted(calls))
    assert calls == [1, 2, 3]
    for trial, result in zip(trials, first, strict=True):
        record = json.loads((tmp_path / "trials" / f"{trial.spec.hash}.json").read_text())
        assert record["spec"] == trial.spec.plain()
        assert record["spec_hash"] == trial.spec.hash == result.spec_hash
        assert record["key"] == {"seed": trial.spec.seed} == result.key
        assert record["result"] == result.result
    assert _run(trials, tmp_path, train=_counted(calls)) == first
    assert calls == [1, 2, 3]


def test_equal_specs_are_trained_once_and_answer_for_every_key(tmp_path: Path) -> None:
    same = [Choice(value=word, overrides={}) for word in ("a", "b")]
    calls: list[int] = []
    a, b = _run(expand(small_table(), {"word": same}), tmp_path, train=_counted(calls))
    assert len(calls) == 1
    assert (a.key, b.key) == ({"word": "a"}, {"word": "b"})
    assert a.result == b.result


def _damage(path: Path, how: str) -> None:
    record = json.loads(path.read_text())
    match how:
        case "cut":
            path.write_bytes(path.read_bytes()[:100])
        case "binary":
            path.write_bytes(b"\xff\xfe\x00")
        case "list":
            path.write_text("[]")
        case "spec":
            record["spec"]["rounds"] += 1
        case "hash":
            record["spec_hash"] = "0" * 16
        case "version":
            record["results_version"] += 1
        case "result":
            del record["result"]["accuracy"]
        case "neither":
            record["result"] = None
    if how in ("spec", "hash", "version", "result", "neither"):
        files.write_json(path, record)


@pytest.mark.parametrize(
    "how", ["cut", "binary", "list", "spec", "hash", "version", "result", "neither"]
)
def test_what_is_damaged_or_of_another_spec_is_trained_again(tmp_path: Path, how: str) -> None:
    trials = expand(small_table(), {"seed": SEEDS})
    first = _run(trials, tmp_path)
    _damage(tmp_path / "trials" / f"{trials[1].spec.hash}.json", how)
    calls: list[int] = []
    again = _run(trials, tmp_path, train=_counted(calls))
    assert calls == [2]
    assert [r.result for r in again] == [r.result for r in first]


def test_a_failure_is_recorded_stops_no_one_and_is_tried_again(tmp_path: Path) -> None:
    trials = _rounds(101, 102, 103, 107, 5)
    results = _run(trials, tmp_path)
    errors = [result.error for result in results]
    assert errors[0] == "the model diverged in round 7; lower the rate"
    assert errors[1] is not None
    assert "out of memory; use fewer --jobs" in errors[1]
    assert errors[2] is not None
    assert errors[2].startswith("the accelerator is out of memory (tried to allocate 20 GiB); use")
    assert errors[3] is not None
    assert errors[3].startswith("ZeroDivisionError: division by zero (fake_training.py, line")
    assert errors[4] is None
    path = tmp_path / "trials" / f"{trials[0].spec.hash}.json"
    assert json.loads(path.read_text())["error"] == errors[0]
    calls: list[int] = []
    _run(trials, tmp_path, train=_counted(calls))
    assert len(calls) == 4


def test_a_result_that_is_not_finite_is_a_failure(tmp_path: Path) -> None:
    def diverging(spec: Any, *, on_round: Any = None) -> dict[str, Any]:
        return fake_train(spec) | {"loss": float("nan")}

    (result,) = _run(_rounds(5), tmp_path, train=diverging)
    assert result.error == "the model diverged: loss is nan; lower learning rates"


@pytest.mark.slow
def test_workers_that_are_killed_are_reported_and_replaced(tmp_path: Path) -> None:
    steps: list[tuple[object, ...]] = []
    results = _run(
        _rounds(104, 5, 101, 6, 105, 7),
        tmp_path,
        jobs=2,
        on_step=lambda *step: steps.append(step),
    )
    errors = [result.error for result in results]
    assert errors[0] is not None
    assert "killed by signal 9 (SIGKILL)" in errors[0]
    assert errors[2] == "the model diverged in round 7; lower the rate"
    assert errors[4] is not None
    assert "ended with exit status 3" in errors[4]
    whole = [result.result for result in results if result.result]
    assert [result["rounds"] for result in whole] == [5, 6, 7]
    assert all(result["process"] != os.getpid() for result in whole)
    assert {result["threads"] for result in whole} == {"1"}
    assert steps[-1][:3] == ("trials", 6, 6)


def test_an_interrupted_sweep_keeps_what_is_finished_and_goes_on(tmp_path: Path) -> None:
    trials = expand(small_table(), {"seed": SEEDS})

    def interrupted(spec: Any, *, on_round: Any = None) -> dict[str, Any]:
        if spec.seed == 2:
            raise KeyboardInterrupt
        return fake_train(spec)

    with pytest.raises(KeyboardInterrupt):
        _run(trials, tmp_path, train=interrupted)
    calls: list[int] = []
    assert len(_run(trials, tmp_path, train=_counted(calls))) == 3
    assert calls == [2, 3]


SWEEP = """
import sys
from pathlib import Path
from fake_training import fake_train
from specs import small_table
from sottovoce_papers.sweep import Choice, expand, run_trials
if __name__ == "__main__":
    choices = [Choice(value=n, overrides={"rounds": n}) for n in (5, 106, 6)]
    trials = expand(small_table(), {"rounds": choices})
    def say(*step): print(*step, flush=True)
    run_trials(trials, Path(sys.argv[1]), jobs=2, on_step=say, train=fake_train)
"""


def test_a_killed_sweep_leaves_no_worker_behind_and_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SWEEP)
    paths = os.pathsep.join([*sys.path, str(Path(__file__).parent.parent / "helpers")])
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("trials 2 3"):
                break
        with pytest.raises(OutputError, match="another process is running"):
            _run(_rounds(5), tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        # Workers hold the pipe too: it ends when the last of them has.
        start = time.monotonic()
        process.stdout.read()
        assert time.monotonic() - start < 5.0
    calls: list[int] = []
    results = _run(_rounds(5, 6, 7), tmp_path, train=_counted(calls))
    assert len(calls) == 1
    assert [result.error for result in results] == [None] * 3


def test_half_written_files_are_cleared_away(tmp_path: Path) -> None:
    store = tmp_path / sweep.TRIALS
    store.mkdir()
    (store / ".0123.json.abc").write_text("{")
    _run(_rounds(5), tmp_path)
    assert not list(store.glob(".*"))


def test_jobs_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="jobs must be an integer from 1"):
        _run(_rounds(5), tmp_path, jobs=0)
