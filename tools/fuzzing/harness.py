"""The definition of a case, its possible outcomes, and how cases are counted.

A case passes one mutated input to one entrance. It is accepted, and then it must come back
unchanged; or it is refused with one of our errors, and then nothing may be charged; or something is
found: another exception, a change, a charge, or no end within some seconds.
"""

import contextlib
import hashlib
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from sottovoce.core.errors import SottovoceError

Case = Callable[[Random], object]
LONGEST_SECONDS = 30.0
_SHOWN = 5


class ChangedError(Exception):
    """An error: an accepted input did not come back unchanged, or a refused one was charged."""


class TooLongError(BaseException):
    """An error: a case does not end. No handler of ordinary errors may catch it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    """An entrance; `prepare` makes the start of its cases in a folder and returns the case.

    `share` is the number of cases of this entrance in a million.
    """

    name: str
    share: int
    prepare: Callable[[Path], Case]


@dataclass(slots=True)
class Outcome:
    """How the cases of an entrance ended."""

    accepted: int = 0
    refused: int = 0
    found: list[str] = field(default_factory=list)
    num_found: int = 0

    @property
    def cases(self) -> int:
        return self.accepted + self.refused + self.num_found


def check(holds: bool, what: str) -> None:
    """Raise ChangedError unless a condition on an accepted or refused input holds."""
    if not holds:
        raise ChangedError(what)


def case_seed(seed: int, name: str, number: int) -> int:
    """Return the seed of one case, so that it can be repeated alone."""
    text = f"{seed}/{name}/{number}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def run_cases(
    entrance: Entrance,
    cases: int,
    seed: int,
    *,
    first: int = 0,
    on_case: Callable[[int], None] | None = None,
    on_error: Callable[[BaseException], None] | None = None,
) -> Outcome:
    """Run the cases first, first + 1, ... of an entrance; the same seed gives the same cases."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory(dir=_memory()) as folder, _alarmed():
        case = entrance.prepare(Path(folder))
        for number in range(first, first + cases):
            run_one(case, entrance.name, number, seed, outcome, on_error)
            if on_case is not None:
                on_case(number)
    return outcome


def run_one(
    case: Case,
    name: str,
    number: int,
    seed: int,
    outcome: Outcome,
    on_error: Callable[[BaseException], None] | None = None,
) -> None:
    signal.setitimer(signal.ITIMER_REAL, LONGEST_SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            case(Random(case_seed(seed, name, number)))  # noqa: S311  (repeatable, not secret)
        outcome.accepted += 1
    except SottovoceError as error:
        outcome.refused += 1
        if on_error is not None:
            on_error(error)
    except (Exception, SystemExit, TooLongError) as error:
        outcome.num_found += 1
        if on_error is not None:
            on_error(error)
        if len(outcome.found) < _SHOWN:
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__}: {str(error)[:200]}"
            outcome.found.append(f"case {number}: {said} ({where.filename}:{where.lineno})")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _memory() -> str | None:
    """Return a folder in memory if there is one, because ledgers wait for the disk otherwise."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108  (a folder of our own in it)


@contextlib.contextmanager
def _alarmed() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TooLongError(f"no end within {LONGEST_SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
