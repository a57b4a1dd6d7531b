"""Settings of all tests: property tests draw the same cases on every run, unless told otherwise.

`make test-full` sets HYPOTHESIS_PROFILE=explore, which draws new cases each time, ten times as many
where a test does not say how many. `make test` draws half of the usual number, `make soundness`
ten times the usual number everywhere (CASES=10).
"""

import dataclasses
import functools
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cases
import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

if TYPE_CHECKING:
    from sottovoce.ledger.ledger import Ledger

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
profile = os.environ.get("HYPOTHESIS_PROFILE", "fixed")
settings.load_profile(profile)
if profile == "fixed" and hasattr(providers, "_get_local_constants"):
    # Hypothesis also tries constants that it reads in whatever modules are imported by then, which
    # depends on the tests that a worker has run before.
    nothing = Constants()
    providers._get_local_constants = lambda: nothing

# In a shell's background interrupts are ignored, by children too: a test that interrupts one would
# wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Designs that tests solve stay out of the user's cache; those who share the work share them.
made_cache: Path | None = None
if "PYTEST_XDIST_WORKER" not in os.environ:
    made_cache = Path(tempfile.mkdtemp(prefix="sottovoce-tests-"))
    os.environ["SOTTOVOCE_CACHE"] = str(made_cache)

# Imported and collected objects live to the end, so the garbage collector need not scan them, and
# neither what a file of tests leaves behind.
gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Digits are read from scikit-learn's file once, not for each of hundreds of runs."""
    module: Any = sys.modules.get("sklearn.datasets")  # imported by a run, for it takes long
    if module is not None and not hasattr(module.load_digits, "cache_info"):
        module.load_digits = functools.cache(module.load_digits)


@pytest.fixture(scope="module")
def ranked_once() -> Iterator[None]:
    """Rankings of the same setting share their calibrations; bits and exactness only choose."""
    from sottovoce.core.errors import SottovoceError
    from sottovoce.planning import candidates  # with all mechanisms: not for every test

    known: dict[Any, Any] = {}
    calibrated = candidates._candidate

    def once(registration: Any, free: Any, setting: Any, guesses: Any) -> Any:
        asked = dataclasses.replace(setting, bits=None, exact=False)
        key = registration.factory, tuple(sorted(free.items())), asked
        if key not in known:
            try:
                known[key] = calibrated(registration, free, setting, guesses)
            except SottovoceError as error:
                known[key] = error
        if isinstance(known[key], SottovoceError):
            raise known[key]
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "_candidate", once)
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a ledger goes."""
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> "Iterator[Ledger]":
    """A new ledger."""
    from sottovoce.ledger.ledger import Ledger

    with Ledger(path, create=True) as opened:
        yield opened


class Result:
    """What a command came to."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """A command line that tests can call."""
    import typer.main
    from command_line import parser

    from sottovoce.cli.main import main

    def call(*arguments: object) -> Result:
        words = [str(a) for a in arguments]
        monkeypatch.setattr(sys, "argv", ["sottovoce", *words])
        monkeypatch.setattr(typer.main, "get_command", parser)
        with pytest.raises(SystemExit) as exit_:
            main()  # always ends the process, as click's standalone mode does
        captured = capsys.readouterr()
        return Result(int(exit_.value.code or 0), captured.out, captured.err)

    return call


def pytest_unconfigure() -> None:
    """Remove the cache in the process that made it; its workers have ended by then."""
    if made_cache is not None:
        shutil.rmtree(made_cache, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """CASES times as many examples of every property test, and counted.

    `make test` draws half of the usual number: they are the same ones on every run.
    """
    counts = "CASES" in os.environ
    is_quick = not counts and config.getoption("markexpr") == "not slow"
    if not counts and not is_quick:
        return
    tests = {item.obj for item in items if isinstance(item, pytest.Function)}
    for test in (test for test in tests if hasattr(test, "hypothesis")):
        usual = getattr(test, _SETTINGS, None) or settings()
        wanted = cases.FACTOR * usual.max_examples if counts else -(-usual.max_examples // 2)
        setattr(test, _SETTINGS, settings(usual, max_examples=wanted))
        if counts:
            test.hypothesis.inner_test = cases.counted(test.hypothesis.inner_test)


_SETTINGS = "_hypothesis_internal_use_settings"  # where a test keeps those that it was given


def pytest_sessionfinish(session: pytest.Session) -> None:
    """How many cases each test has tried, where CASES_LOG says."""
    if log := os.environ.get("CASES_LOG"):
        cases.write(Path(log), [item.nodeid for item in session.items])
