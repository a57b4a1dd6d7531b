"""A run that is logged to TensorBoard or MLflow while it works.

with tracked(["tensorboard"], spec, folder, warn=print) as log:
    log.finish(launch(spec, folder, on_round=log))
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from sottovoce.runs.folder import RunFolder
from sottovoce.runs.spec import RunSpec
from sottovoce.runs.trackers.tracker import TrackedRun
from sottovoce.runs.trackers.tracking import Tracking, Warn, tracking


def tracked(
    names: Sequence[str], spec: RunSpec, folder: Path, *, warn: Warn
) -> AbstractContextManager[Tracking]:
    """Trackers for the run of `spec` in `folder`, which need not be there yet."""
    run = TrackedRun(
        folder=folder, spec=spec.plain(), rounds_so_far=lambda: RunFolder(folder).metrics()
    )
    return tracking(names, run, warn=warn)
