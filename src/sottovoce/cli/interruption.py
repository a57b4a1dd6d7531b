"""End a run on SIGINT or SIGTERM: save what is finished, and say in one line how to go on."""

import contextlib
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from sottovoce.cli.output import print_json, say

_STOPPING = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """The work was ended by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interruption:
    """The signal that has come, if any."""

    def __init__(self) -> None:
        self.number: int | None = None

    def check(self) -> None:
        """Raise if a signal has come whose exception was lost, as it is in a finalizer."""
        if self.number is not None:
            raise Interrupted(self.number)


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Raise `Interrupted` here on the first signal; the second one ends the process at once.

    A signal that the process was told to ignore, as in a shell's background, stays ignored.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption  # signals are the main thread's
        return
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in _STOPPING}

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for one in handled:
            signal.signal(one, signal.SIG_DFL)
        interruption.number = number
        raise Interrupted(number)

    handled = [number for number in _STOPPING if before[number] is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield interruption
    finally:
        for number in handled:
            signal.signal(number, before[number])


def end(
    interrupt: KeyboardInterrupt, folder: Path | None, rounds: int, *, as_json: bool
) -> NoReturn:
    """Say how far the run in `folder` has come and how to go on; exit with the signal's status.

    Args:
        interrupt: What ended the work.
        folder: The run's folder, or None where the run had not begun.
        rounds: How many rounds the spec has.
        as_json: Whether stdout is read as JSON.
    """
    from sottovoce.runs.folder import RunFolder

    number = interrupt.number if isinstance(interrupt, Interrupted) else signal.SIGINT
    name = signal.Signals(number).name
    saved = RunFolder(folder).checkpoint_saved() if folder else None
    done = saved[0] if saved else 0
    again = ["sottovoce", *(word for word in sys.argv[1:] if word != "--debug")]
    if folder is None:
        where = f"before the run began; begin it with: {shlex.join(again)}"
    else:
        again += [] if "--resume" in again else ["--resume"]
        after = f"after round {done}" if done else "before the end of round 1"
        where = f"{after} of {rounds}; go on with: {shlex.join(again)}"
    say(f"stopped by {name} {where}", err=True)
    if as_json:
        place = str(folder) if folder else None
        print_json({"stopped_by": name, "rounds_done": done, "rounds": rounds, "folder": place})
    raise SystemExit(128 + number)
