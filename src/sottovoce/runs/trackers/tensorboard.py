"""TensorBoard: event files in RUN/tensorboard, through torch's writer."""

import json
import warnings
from collections.abc import Mapping
from typing import Any

from sottovoce.runs.trackers.tracker import Row, TrackedRun, final_figures, final_words, flat
from sottovoce.runs.trackers.tracker import round_figures as figures_of

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
        for name, value in figures_of(row).items():
            self._writer.add_scalar(name, value, int(row["round"]))


def _writer_class() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages that come with it
        from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter
