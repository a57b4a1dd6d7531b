"""What a case is, what may come out of it, and how cases are counted.

A case takes one mutated input to one entrance. Three things may happen: it is accepted, and then it
must come back as it was; it is refused with one of our errors, and then nothing may be charged; or
something is found: another exception, a change, a charge, or no end within some seconds.
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
    """Something was accepted that does not come back as it was, or was charged all the same."""


class TooLongError(BaseException):
    """No end; no handler of ordinary errors may swallow it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    """`prepare` makes what cases start from, in a folder of their own, and gives the case.

    `share` is how many of a million cases are of this entrance.
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
    """For a case: what must be so of an input that was accepted, or refused."""
    if not holds:
        raise ChangedError(what)


def case_seed(seed: int, name: str, number: int) -> int:
    """Every case has its own: it can be tried again alone."""
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
    """Cases first, first + 1, ... of an entrance; the same seed gives the same cases."""
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
    """A folder in memory, where there is one: ledgers wait for the disk otherwise."""
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
