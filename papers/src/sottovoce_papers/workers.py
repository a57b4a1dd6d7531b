"""Training of several specs, in this process or in workers; a failure does not stop the others."""

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
# Called with the index of a spec and the metrics of one of its rounds.
OnRound = Callable[[int, Round], None]

NEEDED = frozenset({"accuracy", "loss", "epsilon", "delta", "rounds", "bits_per_coordinate"})
_SECONDS_BETWEEN_NOTES = 0.5
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Train(Protocol):
    """A function that trains one spec in memory.

    It returns a dict that JSON can hold, with at least the keys of `NEEDED`.
    """

    def __call__(
        self, spec: RunSpec, *, on_round: Callable[[dict[str, Any]], None] | None = None
    ) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The outcome of training one spec: a result, or an error message."""

    result: Mapping[str, Any] | None
    error: str | None
    seconds: float


def attempts(
    specs: Sequence[RunSpec], *, jobs: int, train: Train, on_round: OnRound
) -> Generator[tuple[int, Attempt], None, None]:
    """Yield the index and the attempt of each spec as they finish.

    With one job the specs are trained in this process.
    """
    if jobs == 1:
        for number, spec in enumerate(specs):

            def report(row: Round, number: int = number) -> None:
                on_round(number, row)

            yield number, attempt(spec, train, report)
        return
    with contextlib.closing(_in_processes(specs, jobs, train, on_round)) as found:
        yield from found


def attempt(spec: RunSpec, train: Train, on_round: Callable[[Round], None]) -> Attempt:
    """Train one spec; an exception gives an attempt with a message, an interrupt passes on."""
    start = time.perf_counter()
    try:
        result, error = _check_result(train(spec, on_round=on_round)), None
    except Exception as reason:
        result, error = None, explain(reason)
    return Attempt(result=result, error=error, seconds=time.perf_counter() - start)


def _check_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Check that the result has all keys and that accuracy and loss are finite."""
    missing = sorted(NEEDED - set(result))
    assert not missing, f"the result of a trial lacks {', '.join(missing)}"
    for name in ("accuracy", "loss"):
        if not math.isfinite(result[name]):
            raise ConfigError(f"the model diverged: {name} is {result[name]}; lower learning rates")
    finite: dict[str, Any] = files.finite(dict(result))
    return finite


def explain(error: Exception) -> str:
    """Return an error as one line, with the remedy where it is known."""
    text = str(error).strip()
    if isinstance(error, SottovoceError):
        return text
    if type(error).__name__ == "OutOfMemoryError":  # Torch need not be installed here.
        return (
            f"the accelerator is out of memory ({_first_line(text)}); use fewer --jobs, train "
            "fewer clients at a time, or choose --device cpu"
        )
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return "out of memory; use fewer --jobs, fewer clients or a smaller model"
    return f"{type(error).__name__}: {_first_line(text)} ({_where(error)})"


def _first_line(text: str) -> str:
    return text.partition("\n")[0] or "no message"


def _where(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "no traceback"
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}, line {trace.tb_lineno}"


# -- in worker processes -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    process: BaseProcess
    connection: Connection

    def give(self, task: object) -> None:
        # If the worker has died, the next read from its pipe reports it.
        with contextlib.suppress(BrokenPipeError):
            self.connection.send(task)

    def end(self) -> None:
        """Close the pipe, which ends a worker that waits for a task, and wait for the process."""
        self.connection.close()
        self.process.join()


def _start_worker(train: Train) -> _Worker:
    """Start a worker by spawning: a fork of a process that has threads may hang."""
    context = multiprocessing.get_context("spawn")
    parent_end, child_end = context.Pipe()
    process = context.Process(target=_work, args=(child_end,), daemon=True)
    process.start()
    # Otherwise the death of the worker would not end a read from the pipe.
    child_end.close()
    worker = _Worker(process=process, connection=parent_end)
    worker.give(train)
    return worker


def _in_processes(
    specs: Sequence[RunSpec], jobs: int, train: Train, on_round: OnRound
) -> Generator[tuple[int, Attempt], None, None]:
    """Yield attempts as workers finish them; replace a worker that died."""
    waiting = deque(enumerate(specs))
    busy: dict[Connection, tuple[int, _Worker, float]] = {}

    def give_next(worker: _Worker) -> None:
        number, spec = waiting.popleft()
        busy[worker.connection] = number, worker, time.perf_counter()
        worker.give(spec)

    try:
        for _ in range(min(jobs, len(specs))):
            give_next(_start_worker(train))
        while busy:
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                number, worker, start = busy[connection]
                message = _receive(worker, start)
                if not isinstance(message, Attempt):
                    on_round(number, message)
                    continue
                del busy[connection]
                if waiting:
                    give_next(_start_worker(train) if connection.closed else worker)
                else:
                    worker.end()
                yield number, message
    finally:
        for _, worker, _ in busy.values():
            worker.process.terminate()
            worker.end()


def _receive(worker: _Worker, start: float) -> Round | Attempt:
    """Return a round's metrics or an attempt; if the worker has died, an attempt with an error."""
    try:
        message: Round | Attempt = worker.connection.recv()
    except (EOFError, OSError):
        return _failed_attempt(worker, time.perf_counter() - start)
    return message


def _failed_attempt(worker: _Worker, seconds: float) -> Attempt:
    worker.end()
    code = worker.process.exitcode
    assert code is not None
    if code >= 0:
        error = f"the worker process ended with exit status {code}; see what it printed"
    else:
        error = (
            f"the worker process was killed by signal {-code} ({signal.Signals(-code).name}), as "
            "happens when memory runs out; repeat the command with fewer --jobs"
        )
    return Attempt(result=None, error=error, seconds=seconds)


def _work(connection: Connection) -> None:
    """Train the specs that arrive through the pipe until it closes, and report some rounds."""
    # Ctrl-C reaches all processes of the terminal; the parent ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Set before the first task imports torch.
    os.environ.update(dict.fromkeys(_THREADS, "1"))
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
    """Exit when the parent process ends: otherwise hours of training would go on without it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
