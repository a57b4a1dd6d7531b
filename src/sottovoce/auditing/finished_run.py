"""A run that has finished or reached a checkpoint, with the data that its model was trained on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.core import files
from sottovoce.core.domains import Vector
from sottovoce.core.errors import DataError, OutputError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.learning import datasets
from sottovoce.learning.datasets import Dataset
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.inputs import Inputs, digest_of, load_data, load_inputs
from sottovoce.runs.loading import check_code_allowed, parse
from sottovoce.runs.spec import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """What an attack or an audit of a run starts from.

    Attributes:
        folder: The run's folder.
        spec: The resolved spec, including the calibrated noise.
        header: The content of run.json.
        result: The result of the run; None if it has not finished.
        rounds_done: Rounds up to the checkpoint.
        model: The parameters at the checkpoint.
        inputs: The clients, the task and the groups of the run.
        data: Its training rows are the records of the clients (members), its test rows are
            non-members.
    """

    folder: Path
    spec: RunSpec
    header: dict[str, Any]
    result: dict[str, Any] | None
    rounds_done: int
    model: Vector
    inputs: Inputs
    data: Dataset

    def result_path(self, name: str) -> Path:
        """Return the path of the file `name` in the run's folder; nothing is written.

        Raise OutputError if it cannot be written, before hours of work and not after them.
        """
        path = self.folder / name
        files.check_writable(path)
        return path


def open_run(folder: Path, *, allow_code: bool = False) -> FinishedRun:
    """Return the run in `folder`, with its model at the last checkpoint and its data.

    Raise OutputError if there is no run or no checkpoint, and DataError if the data are at the
    sites of a federation or are not those that it was trained on. A model of `kind` "module" is
    built by the code that run.json names; without `allow_code`, ConfigError is raised instead.
    """
    run_folder = RunFolder(folder)
    header = run_folder.header()
    spec = parse(header["spec"], str(folder / "run.json"))
    check_code_allowed(spec, allow_code=allow_code)
    progress = run_folder.load_checkpoint()
    if progress is None:
        raise OutputError(
            f"{folder} has no checkpoint and so no model; resume the run (--resume) until it has "
            "written one"
        )
    if spec.data.sites:
        raise DataError(
            f"the records of {folder} are at the sites of a federation, and an attack or audit "
            "needs them here; simulate the spec with 'data.clients' in place of 'data.sites'"
        )
    schedule = SeededRandomness(spec.seed)
    data = load_data(spec, schedule)
    inputs = load_inputs(spec, data)
    if inputs.task.dimension != len(progress.model):
        raise DataError(
            f"the model of {folder} has {len(progress.model)} parameters, but with the present "
            f"data and code it would have {inputs.task.dimension}; restore the data set "
            f"'{spec.data.dataset}' of the run, or the code of its model.factory"
        )
    _check_same_data(run_folder, inputs)
    private, _ = inputs.section.hold_out(data, schedule.generator("proxy"))
    return FinishedRun(
        folder=folder,
        spec=spec,
        header=header,
        result=run_folder.result(),
        rounds_done=progress.rounds_done,
        model=progress.model,
        inputs=inputs,
        data=datasets.with_training_rows(private, np.sort(inputs.clients.rows)),
    )


def _check_same_data(run_folder: RunFolder, inputs: Inputs) -> None:
    """Raise unless the data have the digest of the run.

    An attack on records that the model was not trained on would find nothing, which would be
    misleading.
    """
    expected = run_folder.data_digest()
    if expected is not None and expected != digest_of(inputs.spec, inputs.clients, inputs.task):
        raise DataError(
            f"the data set '{inputs.spec.data.dataset}' has changed since the model of "
            f"{run_folder.path} was trained on it; restore it, or run the spec again"
        )
