"""A run that is over, or has come to a checkpoint, with the data that its model was trained on."""

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
    """What an attacker or an auditor starts from.

    `spec` is the resolved one, noise and all. The training rows of `data` are those that clients
    had: the members. Its test rows are none.
    """

    folder: Path
    spec: RunSpec
    header: dict[str, Any]
    result: dict[str, Any] | None
    rounds_done: int
    model: Vector
    inputs: Inputs
    data: Dataset

    def place_of(self, name: str) -> Path:
        """Where a result is to be kept: refused now if it cannot be, not after hours of work."""
        path = self.folder / name
        files.check_writable(path)
        return path


def open_run(folder: Path, *, allow_code: bool = False) -> FinishedRun:
    """The run in `folder`; an error unless it has a model, and the data are those it was fed.

    A model of `kind` "module" is built by the code that run.json names: `allow_code` says that it
    may be run.
    """
    run_folder = RunFolder(folder)
    header = run_folder.header()
    spec = parse(header["spec"], str(folder / "run.json"))
    check_code_allowed(spec, allow_code=allow_code)
    progress = run_folder.load_checkpoint()
    if progress is None:
        raise OutputError(
            f"{folder} has no checkpoint, so there is no model to look at; let the run reach its "
            "first one (--resume goes on)"
        )
    if spec.data.sites:
        raise DataError(
            f"the records of {folder} are at the sites of a federation, not here: what is attacked "
            "or audited must be; simulate the spec with 'data.clients' in place of 'data.sites'"
        )
    schedule = SeededRandomness(spec.seed)
    data = load_data(spec, schedule)
    inputs = load_inputs(spec, data)
    if inputs.task.dimension != len(progress.model):
        raise DataError(
            f"the model of {folder} has {len(progress.model)} parameters, and on the data of today "
            f"it would have {inputs.task.dimension}; restore the data set '{spec.data.dataset}' as "
            "it was"
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
    """An attack on records that the model never saw would find nothing, and reassure wrongly."""
    expected = run_folder.data_digest()
    if expected is not None and expected != digest_of(inputs.spec, inputs.clients, inputs.task):
        raise DataError(
            f"the model of {run_folder.path} never saw these data: '{inputs.spec.data.dataset}' is "
            "not what it was when the run was made; restore it, or run the spec again on it"
        )
