"""Runs that are stopped by a signal or an interrupt, and when they are saved."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specs import small_spec, small_table

from sottovoce.cli.run import Interrupted, interruptible
from sottovoce.federated.training import Training
from sottovoce.ledger.ledger import Ledger
from sottovoce.runs import runner
from sottovoce.runs.folder import Checkpoints, RunFolder
from sottovoce.runs.loading import toml_text
from sottovoce.runs.runner import run

# The command line in a process of its own for each line that is read (arguments, and the round in
# which it waits to be stopped, after its charges); torch is loaded once. A process that is told to
# wait in a save, too, can be stopped twice.
LIVES = """
import json, os, sys, time
import sklearn.datasets, torch
from sottovoce.cli.main import main
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.runner import launch
from sottovoce.federated.training import Training
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.resolve import resolve
from specs import small_spec

resolve(load_inputs(small_spec(checkpoint_every=10)))  # modules, data, calibration
step, encode, save = Training.step, GaussHermite.encode_packed, RunFolder.save_checkpoint

def live(words, waits_in, saves_slowly):
    def watched_step(self, progress):
        live.round = progress.rounds_done + 1
        return step(self, progress)

    def slow_encode(self, *given):
        if live.round == waits_in:
            print("encoding", flush=True)
            time.sleep(60)
        return encode(self, *given)

    def slow_save(self, *given):
        print("saving", flush=True)
        time.sleep(60)

    Training.step, GaussHermite.encode_packed = watched_step, slow_encode
    if saves_slowly:
        RunFolder.save_checkpoint = slow_save
    sys.argv[1:] = words
    main()

for line in sys.stdin:
    process = os.fork()
    if process == 0:
        print(os.getpid(), flush=True)
        try:
            live(*json.loads(line))
        except SystemExit as ended:
            sys.stderr.flush()
            os._exit(ended.code or 0)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


class Lives:
    """Processes that run the command line, one after another; what they say is in a file."""

    def __init__(self, parent: "subprocess.Popen[str]", said: Path) -> None:
        self._parent, self._said = parent, said

    def start(self, *words: object, waits_in: int = 0, saves_slowly: bool = False) -> int:
        assert self._parent.stdin is not None
        self._said.write_text("")
        order = [[str(word) for word in words], waits_in, saves_slowly]
        self._parent.stdin.write(json.dumps(order) + "\n")
        self._parent.stdin.flush()
        return int(self.reads())

    def reads(self) -> str:
        assert self._parent.stdout is not None
        line = self._parent.stdout.readline()
        assert line, "there is no more to read"
        return line.strip()

    def finishes(self) -> int:
        """The status, which follows whatever is printed."""
        while not (line := self.reads()).lstrip("-").isdigit():
            pass
        return int(line)

    def ended(self) -> tuple[int, list[str]]:
        """The status, and what was said on stderr."""
        return int(self.reads()), self._said.read_text().splitlines()


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    said = tmp_path_factory.mktemp("lives") / "stderr"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "OMP_NUM_THREADS": "1",  # threads would not survive a fork
    }
    with (
        said.open("a") as errors,
        subprocess.Popen(
            [sys.executable, "-c", LIVES],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        ) as parent,
    ):
        yield Lives(parent, said)
        assert parent.stdin is not None
        parent.stdin.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="lives are forked")
def test_a_signal_in_a_round_saves_those_before_it_and_resume_says_where_it_goes_on(
    tmp_path: Path, lives: Lives
) -> None:
    run(small_spec(checkpoint_every=10), tmp_path / "whole")
    spec, out = tmp_path / "spec.toml", tmp_path / "cut"
    spec.write_text(toml_text(small_table(checkpoint_every=10)))
    words = ("run", spec, "--out", out)
    again = f"continue with: sottovoce run {spec} --out {out} --resume"

    process = lives.start(*words, waits_in=1)
    assert lives.reads() == "encoding"
    os.kill(process, signal.SIGTERM)
    code, said = lives.ended()
    assert code == 143
    assert said == [f"stopped by SIGTERM before the end of round 1 of 6; {again}"]

    process = lives.start(*words, "--resume", waits_in=4)
    assert lives.reads() == "encoding"
    os.kill(process, signal.SIGTERM)
    code, said = lives.ended()
    assert code == 143
    assert said == [
        "no checkpoint yet: starting again at round 1; its charges stay, and the messages that it "
        "stored are sent again",
        f"stopped by SIGTERM after round 3 of 6; {again}",
    ]

    process = lives.start(*words, "--resume", waits_in=6)
    assert lives.reads() == "encoding"
    os.kill(process, signal.SIGINT)
    code, said = lives.ended()
    assert code == 130
    assert said[0].startswith("resuming at round 4 of 6 (checkpoint of round 3, saved 20")
    assert said[1] == f"stopped by SIGINT after round 5 of 6; {again}"

    process = lives.start(*words, "--resume", waits_in=6)
    assert lives.reads() == "encoding"
    os.kill(process, signal.SIGKILL)  # loses the round alone
    assert lives.ended()[0] == -signal.SIGKILL

    lives.start(*words, "--resume")
    assert lives.finishes() == 0
    assert_same_outcome(tmp_path / "whole", out)
    with Ledger(out / "ledger.sqlite") as ledger:
        assert [row["attempt"] for row in ledger.rows()] == [0] * 6 * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="lives are forked")
def test_a_second_signal_ends_the_process_at_once(tmp_path: Path, lives: Lives) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(toml_text(small_table(checkpoint_every=10)))
    process = lives.start("run", spec, "--out", tmp_path / "run", waits_in=3, saves_slowly=True)
    assert lives.reads() == "encoding"
    os.kill(process, signal.SIGTERM)
    assert lives.reads() == "saving"
    os.kill(process, signal.SIGINT)
    assert lives.ended() == (-signal.SIGINT, [])
    assert RunFolder(tmp_path / "run").last_checkpoint() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="lives are forked")
def test_kill_nine_at_any_point_loses_nothing_and_hides_no_charge(
    tmp_path: Path, lives: Lives
) -> None:
    """A real process, really killed, again and again, then resumed to the end."""
    run(small_spec(rounds=30), tmp_path / "whole")
    spec, out = tmp_path / "spec.toml", tmp_path / "cut"
    spec.write_text(toml_text(small_table(rounds=30)))
    generator = np.random.default_rng(0)
    codes: list[int] = []
    while 0 not in codes:
        assert len(codes) < 40
        resume = ["--resume"] * (out / "run.json").exists()
        process = lives.start("run", spec, "--out", out, *resume)
        if len(codes) < 6:
            time.sleep(generator.uniform(0.0, 0.3))
            with contextlib.suppress(ProcessLookupError):  # it may be over
                os.kill(process, signal.SIGKILL)
        codes.append(lives.finishes())
    assert set(codes) == {-signal.SIGKILL, 0}
    assert_same_outcome(tmp_path / "whole", out)
    with Ledger(tmp_path / "whole" / "ledger.sqlite") as one, Ledger(out / "ledger.sqlite") as two:
        keys = [
            [{k: row[k] for k in ("client", "round", "attempt", "event")} for row in ledger.rows()]
            for ledger in (one, two)
        ]
        assert keys[0] == keys[1]
        assert two.verify() == []


def assert_same_outcome(first: Path, second: Path) -> None:
    for name in ("checkpoint.npz", "metrics.jsonl", "result.json", "run.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    assert {path.name for path in first.iterdir()} == {path.name for path in second.iterdir()}


@pytest.mark.parametrize(
    ("seconds", "saved"), [(25.0, [0, 0, 3, 3, 3, 6]), (180.0, [1, 2, 3, 4, 5, 6])]
)
def test_a_run_is_saved_once_a_minute_or_after_every_longer_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, saved: list[int]
) -> None:
    spec = small_spec(checkpoint_every=10)
    run(spec, tmp_path / "quick")
    now = 0.0
    step = Training.step

    def slow_step(self: Training, *given: Any) -> Any:
        nonlocal now
        now += seconds
        return step(self, *given)

    monkeypatch.setattr(Training, "step", slow_step)
    monkeypatch.setattr(runner, "Checkpoints", functools.partial(Checkpoints, clock=lambda: now))
    found = []

    def look(_: object) -> None:
        checkpoint = RunFolder(tmp_path / "slow").last_checkpoint()
        found.append(checkpoint[0] if checkpoint else 0)

    run(spec, tmp_path / "slow", on_round=look)
    assert found == saved
    assert_same_outcome(tmp_path / "quick", tmp_path / "slow")


def test_resuming_a_finished_run_says_that_nothing_is_left(tmp_path: Path) -> None:
    said: list[str] = []
    spec = small_spec(rounds=1)
    run(spec, tmp_path / "run")
    run(spec, tmp_path / "run", resume=True, on_resume=said.append)
    assert said[0].startswith("all 1 rounds are done (checkpoint of round 1, saved 20")


def test_handlers_are_restored_and_an_ignored_signal_stays_ignored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with contextlib.suppress(Interrupted), interruptible() as interruption:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            assert interruption.number == signal.SIGTERM
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is before
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, ignored)
