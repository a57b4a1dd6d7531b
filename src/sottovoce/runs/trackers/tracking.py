"""Several trackers as one: a callable to be given as `on_round`, which never stops a run.

A run that is logged to TensorBoard or MLflow while it works.

with tracked(["tensorboard"], spec, folder, warn=print) as log:
    log.finish(launch(spec, folder, on_round=log))
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sottovoce.core.errors import UnknownNameError
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.spec import RunSpec
from sottovoce.runs.trackers.tracker import Row, TrackedRun, Tracker, without_secrets

Warn = Callable[[str], None]


def _tensorboard(run: TrackedRun) -> Tracker:
    from sottovoce.runs.trackers.tensorboard import TensorBoardTracker

    return TensorBoardTracker(run)


def _mlflow(run: TrackedRun) -> Tracker:
    from sottovoce.runs.trackers.mlflow import MlflowTracker

    return MlflowTracker(run)


TRACKERS: Mapping[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": _tensorboard,
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
