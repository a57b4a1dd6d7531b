"""A run that is logged to TensorBoard or MLflow while it works; no tracker ever stops a run.

    with tracked(["tensorboard"], spec, folder, warn=print) as log:
        log.finish(launch(spec, folder, on_round=log))

What is logged has the same names in every tracker.
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

# What is logged of a round, as it is called in metrics.jsonl.
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
    """The run that is logged: its spec as plain data, its folder, and the rounds it has so far."""

    folder: Path
    spec: Mapping[str, Any]
    rounds_so_far: Callable[[], Sequence[Row]]

    @property
    def name(self) -> str:
        return str(self.spec.get("name", self.folder.name))


class Tracker(Protocol):
    """Takes rounds in order. Of a resumed run it may be given rounds that it has already."""

    def log(self, row: Row) -> None: ...

    def finish(self, result: Mapping[str, Any]) -> None:
        """The last line of the story."""
        ...

    def close(self, *, finished: bool) -> None: ...


def without_secrets(text: str) -> str:
    """Addresses without the user, password and query that they may hold."""
    return re.sub(r"\?\S+", "", re.sub(r"://[^/\s]*@", "://", text))


def round_figures(row: Row) -> dict[str, float]:
    """The figures of a round; an epsilon without a guarantee is no number, and is left out."""
    return _finite(row, _ROUND_FIGURES)


def final_figures(result: Mapping[str, Any]) -> dict[str, float]:
    return {f"final/{name}": value for name, value in _finite(result, _FINAL_FIGURES).items()}


def final_words(result: Mapping[str, Any]) -> dict[str, str]:
    words = {name: str(result[name]) for name in _FINAL_WORDS if result.get(name) is not None}
    warnings = result.get("warnings")
    if isinstance(warnings, list) and warnings:
        words["warnings"] = "; ".join(map(str, warnings))
    return words


def flat(spec: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """A spec as a.b = value, as `--set` takes it; nothing is null, and lists are their text."""
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
    """Rows of a resumed run are read from a file, which may hold anything under these names."""
    found = {name: values.get(name) for name in names}
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and abs(value) <= sys.float_info.max
    }


FOLDER_NAME = "tensorboard"


class TensorBoardTracker:
    """One folder of events a run. A resumed run drops the rounds that are made again."""

    def __init__(self, run: TrackedRun) -> None:
        _writer_class()  # an extra that is missing is noticed before anything is trained
        self._run = run
        self._folder = run.folder / FOLDER_NAME
        self._writer: Any = None

    def log(self, row: Row) -> None:
        if self._writer is None:
            self._open(int(row["round"]))
        self._write(row)
        self._writer.flush()  # a run that is killed has what it showed

    def finish(self, result: Mapping[str, Any]) -> None:
        if self._writer is None:  # there was no round left to run
            if self._folder.is_dir():
                return
            self._open(result["rounds"] + 1)
        for name, words in final_words(result).items():
            self._writer.add_text(name, words)
        self._writer.add_hparams(
            flat(self._run.spec), final_figures(result), run_name=".", global_step=result["rounds"]
        )

    def close(self, *, finished: bool) -> None:  # noqa: ARG002  an event file has no state
        if self._writer is not None:
            self._writer.close()

    def _open(self, first: int) -> None:
        """Begin at round `first`: readers forget what an earlier attempt wrote of it and after.

        Where nothing was logged before, the rounds before it are written now.
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
        warnings.simplefilter("ignore")  # of the packages that come with it
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


class Tracking:
    """Hands each round to every tracker. One that fails is named once and asked no more.

    A run spends privacy that cannot be had back: no diary is worth losing it.
    """

    def __init__(self, trackers: Mapping[str, Tracker], warn: Warn) -> None:
        self._working = dict(trackers)
        self._warn = warn
        self._finished = False

    def __call__(self, row: Row) -> None:
        self._each(lambda tracker: tracker.log(row))

    def finish(self, result: Mapping[str, Any]) -> None:
        self._each(lambda tracker: tracker.finish(result))
        self._finished = True

    def close(self) -> None:
        self._each(lambda tracker: tracker.close(finished=self._finished))

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._working.items()):
            try:
                act(tracker)
            except Exception as error:
                del self._working[name]
                said = str(error) or type(error).__name__
                reason = without_secrets(said.splitlines()[0])
                self._warn(f"{name} is not logged to any more, and the run goes on: {reason}")


@contextlib.contextmanager
def tracking(names: Sequence[str], run: TrackedRun, *, warn: Warn) -> Iterator[Tracking]:
    """Trackers by name, made before anything is trained, and closed however the run ends."""
    for name in names:
        if name not in TRACKERS:
            raise UnknownNameError.among("tracker", name, TRACKERS)
    opened = Tracking({name: TRACKERS[name](run) for name in dict.fromkeys(names)}, warn)
    try:
        yield opened
    finally:
        opened.close()


def tracked(
    names: Sequence[str], spec: RunSpec, folder: Path, *, warn: Warn
) -> AbstractContextManager[Tracking]:
    """Trackers for the run of `spec` in `folder`, which need not be there yet."""
    run = TrackedRun(
        folder=folder, spec=spec.plain(), rounds_so_far=lambda: RunFolder(folder).metrics()
    )
    return tracking(names, run, warn=warn)
