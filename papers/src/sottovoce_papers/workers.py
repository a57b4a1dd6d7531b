"""Train specs here or in worker processes; whatever happens to one, the others go on."""

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from sottovoce.core import files
from sottovoce.core.errors import ConfigError, SottovoceError
from sottovoce.runs.spec import RunSpec

Round = Mapping[str, Any]
# Called with the number of a spec and its round's metrics.
OnRound = Callable[[int, Round], None]

NEEDED = frozenset({"accuracy", "loss", "epsilon", "delta", "rounds", "bits_per_coordinate"})
_SECONDS_BETWEEN_NOTES = 0.5
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Train(Protocol):
    """Trains one spec in memory; what it returns fits JSON and has at least the keys `NEEDED`."""

    def __call__(
        self, spec: RunSpec, *, on_round: Callable[[dict[str, Any]], None] | None = None
    ) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What became of one spec: a result, or the error that stands in its place."""

    result: Mapping[str, Any] | None
    error: str | None
    seconds: float


def attempts(
    specs: Sequence[RunSpec], *, jobs: int, train: Train, on_round: OnRound
) -> Generator[tuple[int, Attempt], None, None]:
    """Each spec's number and attempt, as they are finished; one job trains in this process."""
    if jobs == 1:
        for number, spec in enumerate(specs):

            def report(row: Round, number: int = number) -> None:
                on_round(number, row)

            yield number, attempt(spec, train, report)
        return
    with contextlib.closing(_in_processes(specs, jobs, train, on_round)) as found:
        yield from found


def attempt(spec: RunSpec, train: Train, on_round: Callable[[Round], None]) -> Attempt:
    """Train once. A failure of any kind is an attempt with a message; an interrupt is none."""
    start = time.perf_counter()
    try:
        result, error = _checked(train(spec, on_round=on_round)), None
    except Exception as reason:
        result, error = None, explain(reason)
    return Attempt(result=result, error=error, seconds=time.perf_counter() - start)


def _checked(result: Mapping[str, Any]) -> dict[str, Any]:
    missing = sorted(NEEDED - set(result))
    assert not missing, f"a trial's result lacks {', '.join(missing)}"
    for name in ("accuracy", "loss"):
        if not math.isfinite(result[name]):
            raise ConfigError(f"the model diverged: {name} is {result[name]}; lower learning rates")
    finite: dict[str, Any] = files.finite(dict(result))
    return finite


def explain(error: Exception) -> str:
    """An error in one line, with the remedy where it is known."""
    text = str(error).strip()
    if isinstance(error, SottovoceError):
        return text
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which need not be installed here
        return (
            f"the accelerator is out of memory ({_first_line(text)}); give a smaller --jobs, train "
            "fewer clients at once, or choose --device cpu"
        )
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return "out of memory; give a smaller --jobs, or fewer clients or a smaller model"
    return f"{type(error).__name__}: {_first_line(text)} ({_where(error)})"


def _first_line(text: str) -> str:
    return text.partition("\n")[0] or "no message"


def _where(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "nowhere"
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}, line {trace.tb_lineno}"


# -- in worker processes -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    process: BaseProcess
    connection: Connection

    def give(self, task: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # it died; reading from it will tell
            self.connection.send(task)

    def end(self) -> None:
        """A worker that waits for a task ends when its pipe closes."""
        self.connection.close()
        self.process.join()


def _started(train: Train) -> _Worker:
    """A new process: spawned, since a fork of a process with threads may hang."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()  # else its death would not end our reading
    worker = _Worker(process=process, connection=ours)
    worker.give(train)
    return worker


def _in_processes(
    specs: Sequence[RunSpec], jobs: int, train: Train, on_round: OnRound
) -> Generator[tuple[int, Attempt], None, None]:
    waiting = deque(enumerate(specs))
    busy: dict[Connection, tuple[int, _Worker, float]] = {}

    def give_next(worker: _Worker) -> None:
        number, spec = waiting.popleft()
        busy[worker.connection] = number, worker, time.perf_counter()
        worker.give(spec)

    try:
        for _ in range(min(jobs, len(specs))):
            give_next(_started(train))
        while busy:
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                number, worker, start = busy[connection]
                message = _heard(worker, start)
                if not isinstance(message, Attempt):
                    on_round(number, message)
                    continue
                del busy[connection]
                if waiting:
                    give_next(_started(train) if connection.closed else worker)
                else:
                    worker.end()
                yield number, message
    finally:
        for _, worker, _ in busy.values():
            worker.process.terminate()
            worker.end()


def _heard(worker: _Worker, start: float) -> Round | Attempt:
    """A round's metrics or the attempt; of a dead worker, whose pipe is at its end, the latter."""
    try:
        message: Round | Attempt = worker.connection.recv()
    except (EOFError, OSError):
        return _death(worker, time.perf_counter() - start)
    return message


def _death(worker: _Worker, seconds: float) -> Attempt:
    worker.end()
    code = worker.process.exitcode
    assert code is not None
    if code >= 0:
        error = f"the worker process ended with exit status {code}; what it printed says why"
    else:
        error = (
            f"the worker process was killed by signal {-code} ({signal.Signals(-code).name}), as "
            "happens when memory runs out; give a smaller --jobs and the same command again"
        )
    return Attempt(result=None, error=error, seconds=seconds)


def _work(connection: Connection) -> None:
    """Train what comes through the pipe until it closes; rounds are reported now and then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches everyone; the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(dict.fromkeys(_THREADS, "1"))  # before the first task brings torch
    train = connection.recv()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    last = 0.0

    def report(row: Round) -> None:
        nonlocal last
        if time.monotonic() - last > _SECONDS_BETWEEN_NOTES:
            last = time.monotonic()
            connection.send({"round": row.get("round")})

    while True:
        try:
            spec = connection.recv()
        except EOFError:
            return
        connection.send(attempt(spec, train, report))


def _end_with_parent() -> None:
    """A killed parent must not leave hours of training behind."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
