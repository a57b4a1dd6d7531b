"""Log a run to TensorBoard or MLflow while it trains; a failing tracker never stops a run.

A tracker is a log in one of these programs. It has nothing to do with privacy accounting.

    with track_run(["tensorboard"], spec, folder, warn=print) as log:
        log.finish(launch(spec, folder, on_round=log))

The logged figures have the same names in every tracker.
"""

import contextlib
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sottovoce.core.errors import UnknownNameError
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.spec import RunSpec

Row = Mapping[str, Any]

# The figures of a round that are logged, with their names in metrics.jsonl.
_ROUND_FIGURES = (
    "accuracy",
    "loss",
    "epsilon",
    "total_bytes_up",
    "total_bytes_down",
    "payload_bytes_up",
    "payload_bytes_down",
    "clients_asked",
    "clients_received",
    "clients_out_of_budget",
)
_FINAL_FIGURES = (
    "accuracy",
    "loss",
    "rounds",
    "epsilon",
    "local_epsilon",
    "central_epsilon",
    "bits_per_coordinate",
    "total_bytes_up_per_client",
    "clients_out_of_budget",
)
_FINAL_WORDS = ("guarantee", "accountant", "halted", "channel", "spec_hash", "sampling_grade")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run that trackers log.

    Attributes:
        folder: The run folder, which need not exist yet.
        spec: The spec as plain data.
        rounds_so_far: A function that returns the metrics of the rounds that are already finished.
    """

    folder: Path
    spec: Mapping[str, Any]
    rounds_so_far: Callable[[], Sequence[Row]]

    @property
    def name(self) -> str:
        """The name of the run: the spec's `name`, else the name of its folder."""
        return str(self.spec.get("name", self.folder.name))


class Tracker(Protocol):
    """A log of a run's rounds, in order, in a program such as TensorBoard.

    After a resume it may be given rounds that it has already logged.
    """

    def log(self, row: Row) -> None:
        """Log the figures of a round, from its row of metrics."""
        ...

    def finish(self, result: Mapping[str, Any]) -> None:
        """Log the result of a run that ended normally, given as the content of its result.json.

        The log stays open until `close`.
        """
        ...

    def close(self, *, finished: bool) -> None:
        """Close the log; `finished` says whether the run has ended normally."""
        ...


def without_secrets(text: str) -> str:
    """Return a text with user, password and query removed from the URLs in it."""
    return re.sub(r"\?\S+", "", re.sub(r"://[^/\s]*@", "://", text))


def round_figures(row: Row) -> dict[str, float]:
    """Return the figures of a round that are logged, by name, from its row of metrics.

    Those that are missing or not finite numbers are left out.
    """
    return _with_metrics(row, _finite(row, _ROUND_FIGURES))


def final_figures(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a result that are logged, by name, such as "final/accuracy".

    Those that are missing or not finite numbers are left out.
    """
    found = _with_metrics(result, _finite(result, _FINAL_FIGURES))
    return {f"final/{name}": value for name, value in found.items()}


def _with_metrics(row: Row, found: dict[str, float]) -> dict[str, float]:
    """Return figures with those of the test data under their own names, if they are no accuracy."""
    metrics = row.get("metrics")
    if not isinstance(metrics, Mapping):
        return found
    named = {str(name).replace(" ", "_"): value for name, value in metrics.items()}
    kept = {name: value for name, value in found.items() if name != "accuracy"}
    return {**_finite(named, tuple(named)), **kept}


def final_texts(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of a result that are logged, by name; missing ones are left out.

    All warnings are joined to one text.
    """
    words = {name: str(result[name]) for name in _FINAL_WORDS if result.get(name) is not None}
    warnings = result.get("warnings")
    if isinstance(warnings, list) and warnings:
        words["warnings"] = "; ".join(map(str, warnings))
    return words


def flatten_spec(spec: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Return a spec as {"a.b": value}, with the keys that `--set` takes.

    Null values and empty lists are left out; other lists become text.
    """
    return dict(_flat(spec, ""))


def _flat(value: Any, path: str) -> Iterator[tuple[str, bool | int | float | str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, bool | int | float | str):
        yield path, value
    elif value is not None and value != [] and value != ():
        yield path, str(value)


def _finite(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    """Return the named values that are finite numbers.

    Rows of a resumed run come from a file, which may hold anything under these names.
    """
    found = {name: values.get(name) for name in names}
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and abs(value) <= sys.float_info.max
    }


FOLDER_NAME = "tensorboard"


class TensorBoardTracker:
    """A tracker that writes TensorBoard event files to a folder in the run folder.

    A resumed run replaces the rounds that it repeats.
    """

    def __init__(self, run: TrackedRun) -> None:
        _writer_class()  # Fails before training if the optional package is missing.
        self._run = run
        self._folder = run.folder / FOLDER_NAME
        self._writer: Any = None

    def log(self, row: Row) -> None:
        """Log the figures of a round; before the first one, log the spec and any missing rounds."""
        if self._writer is None:
            self._open(int(row["round"]))
        self._write(row)
        self._writer.flush()  # A killed run keeps what it has logged.

    def finish(self, result: Mapping[str, Any]) -> None:
        """Log the texts of the result, and the spec together with the final figures.

        Do nothing if no round was run and an earlier attempt has logged.
        """
        if self._writer is None:  # No round was left to run.
            if self._folder.is_dir():
                return
            self._open(result["rounds"] + 1)
        for name, words in final_texts(result).items():
            self._writer.add_text(name, words)
        self._writer.add_hparams(
            flatten_spec(self._run.spec),
            final_figures(result),
            run_name=".",
            global_step=result["rounds"],
        )

    def close(self, *, finished: bool) -> None:  # noqa: ARG002
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()

    def _open(self, first: int) -> None:
        """Start at round `first`: readers ignore what an earlier attempt wrote from that round on.

        Where nothing was logged before, the earlier rounds are written now.
        """
        known = self._folder.is_dir()
        self._writer = _writer_class()(str(self._folder), purge_step=first if known else None)
        self._writer.add_text("spec", f"```json\n{json.dumps(dict(self._run.spec), indent=2)}\n```")
        for row in () if known else self._run.rounds_so_far():
            if row["round"] < first:
                self._write(row)

    def _write(self, row: Row) -> None:
        for name, value in round_figures(row).items():
            self._writer.add_scalar(name, value, int(row["round"]))


def _writer_class() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Hide warnings of the packages that it imports.
        from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter


Warn = Callable[[str], None]


def _mlflow(run: TrackedRun) -> Tracker:
    from sottovoce.runs.mlflow_tracker import MlflowTracker

    return MlflowTracker(run)


TRACKERS: Mapping[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "mlflow": _mlflow,
}


class Trackers:
    """All trackers of a run; call it with the metrics of each round to log them with all.

    A tracker that fails is reported once, by a call of `warn`, and not used again.

    A run spends privacy that cannot be recovered, so a failing log must not stop it.

    Args:
        trackers: The trackers by name.
        warn: A function that is called with a sentence for each tracker that fails.
    """

    def __init__(self, trackers: Mapping[str, Tracker], warn: Warn) -> None:
        self._working = dict(trackers)
        self._warn = warn
        self._finished = False

    def __call__(self, row: Row) -> None:
        self._each(lambda tracker: tracker.log(row))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Log the result with every tracker that has not failed."""
        self._each(lambda tracker: tracker.finish(result))
        self._finished = True

    def close(self) -> None:
        """Close the logs of all trackers that have not failed."""
        self._each(lambda tracker: tracker.close(finished=self._finished))

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._working.items()):
            try:
                act(tracker)
            except Exception as error:
                del self._working[name]
                said = str(error) or type(error).__name__
                reason = without_secrets(said.splitlines()[0])
                self._warn(f"the run continues without logging to {name}, which failed: {reason}")


@contextlib.contextmanager
def open_trackers(names: Sequence[str], run: TrackedRun, *, warn: Warn) -> Iterator[Trackers]:
    """Create the named trackers before training starts, and close them however the run ends.

    Args:
        names: The names of the trackers: "tensorboard", "mlflow".
        run: The run to log.
        warn: A function that is called with a sentence for each tracker that fails.

    Raises:
        UnknownNameError: There is no tracker of that name.
        ModuleNotFoundError: A package that a tracker needs is not installed.
        OutputError: The MLflow server of MLFLOW_TRACKING_URI cannot be used.
    """
    for name in names:
        if name not in TRACKERS:
            raise UnknownNameError.among("tracker", name, TRACKERS)
    opened = Trackers({name: TRACKERS[name](run) for name in dict.fromkeys(names)}, warn)
    try:
        yield opened
    finally:
        opened.close()


def track_run(
    names: Sequence[str], spec: RunSpec, folder: Path, *, warn: Warn
) -> AbstractContextManager[Trackers]:
    """Return a context manager that opens and closes the trackers of a run.

    Args:
        names: The names of the trackers: "tensorboard", "mlflow".
        spec: The spec of the run.
        folder: The run folder.
        warn: A function that is called with a sentence for each tracker that fails.

    Returns:
        The context manager, whose value is the `Trackers` object: call it with the metrics of each
        round. Entering it raises the errors of `open_trackers`.
    """
    run = TrackedRun(
        folder=folder, spec=spec.plain(), rounds_so_far=lambda: RunFolder(folder).metrics()
    )
    return open_trackers(names, run, warn=warn)
