"""Log runs to MLflow: to the server in MLFLOW_TRACKING_URI, or to a database in RUN/mlflow."""

import hashlib
import logging
import os
import re
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sottovoce.core import files
from sottovoce.core.errors import OutputError
from sottovoce.runs.tracking import (
    Row,
    TrackedRun,
    final_figures,
    final_texts,
    flatten_spec,
    round_figures,
    without_secrets,
)

FOLDER_NAME, NOTE_NAME, EXPERIMENT = "mlflow", "mlflow.json", "sottovoce"
_MARK = "clients_asked"  # Logged in every round, so its history lists the rounds that are there.
_LONGEST_VALUE, _LONGEST_NAME = 500, 250  # Characters that every version of MLflow accepts.
_REFUSED = re.compile(r"[^A-Za-z0-9_.\- ]|_(?=x)")


class MlflowTracker:
    """A tracker with one MLflow run per run folder; a resumed run continues the same MLflow run."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = run
        self._uri = os.environ.get("MLFLOW_TRACKING_URI") or None
        self._client: Any = None
        self._run_id, self._experiment = "", ""
        self._last_round = 0
        _check_packages(local=self._uri is None)
        if self._uri is not None:
            self._connect(self._uri)  # Fails before training if the server does not answer.

    def log(self, row: Row) -> None:
        """Log the figures of a round to the MLflow run, unless that or a later round is there.

        The first call starts or continues the MLflow run, and logs all finished rounds after the
        last one there.
        """
        self._open()
        self._write(row)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Log the final figures and texts of the result, unless an earlier call has done so."""
        self._open()
        with _quietly():
            if self._client.get_metric_history(self._run_id, "final/rounds"):
                return  # The run was resumed after its end.
            for name, value in final_figures(result).items():
                self._client.log_metric(self._run_id, name, value, step=result["rounds"])
            for name, words in final_texts(result).items():
                self._client.set_tag(self._run_id, name, words[:_LONGEST_VALUE])

    def close(self, *, finished: bool) -> None:
        """End the MLflow run, if one was started, as FINISHED or, if not `finished`, as KILLED."""
        if self._run_id:
            with _quietly():
                self._client.set_terminated(self._run_id, "FINISHED" if finished else "KILLED")

    def _connect(self, uri: str, *, artifacts: str | None = None) -> None:
        with _quietly():
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient

            try:
                self._client = MlflowClient(tracking_uri=uri)
                found = self._client.get_experiment_by_name(EXPERIMENT)
                self._experiment = (
                    found.experiment_id
                    if found
                    else self._client.create_experiment(EXPERIMENT, artifact_location=artifacts)
                )
            except MlflowException as error:
                reason = without_secrets(str(error).splitlines()[0]).rstrip(".")
                raise OutputError(
                    f"MLflow at {without_secrets(uri)} cannot be used: {reason}; correct "
                    "MLFLOW_TRACKING_URI, or unset it to log into the run folder"
                ) from None

    def _open(self) -> None:
        """Continue the MLflow run of this folder, or start one with all rounds so far."""
        if self._run_id:
            return
        if self._client is None:
            folder = (self._run.folder / FOLDER_NAME).absolute()
            folder.mkdir(exist_ok=True)
            self._connect(f"sqlite:///{folder / 'mlflow.db'}", artifacts=folder.as_uri())
        with _quietly():
            self._run_id = self._noted() or self._begin()
            history = self._client.get_metric_history(self._run_id, _MARK)
        self._last_round = max((metric.step for metric in history), default=0)
        for row in self._run.rounds_so_far():
            self._write(row)

    def _noted(self) -> str | None:
        """Return the id of the MLflow run that an earlier attempt started on this server."""
        note = self._note_path
        if not note.is_file():
            return None
        known = files.read_json(note)
        if known["tracking_uri"] != self._place:
            return None
        run_id = str(known["run_id"])
        self._client.update_run(run_id, status="RUNNING")
        return run_id

    def _begin(self) -> str:
        from mlflow.entities import Param, RunTag

        spec = flatten_spec(self._run.spec)
        run = self._client.create_run(self._experiment, run_name=self._run.name)
        run_id = str(run.info.run_id)
        self._client.log_batch(
            run_id,
            params=[
                Param(allowed_name(key), str(value)[:_LONGEST_VALUE]) for key, value in spec.items()
            ],
            tags=[RunTag("run_folder", str(self._run.folder.absolute()))],
        )
        files.write_json(self._note_path, {"tracking_uri": self._place, "run_id": run_id})
        return run_id

    @property
    def _place(self) -> str | None:
        """The tracking server as it is written to the note, without passwords."""
        return None if self._uri is None else without_secrets(self._uri)

    @property
    def _note_path(self) -> Path:
        return self._run.folder / NOTE_NAME

    def _write(self, row: Row) -> None:
        """Log a round, unless it is already there.

        A repeated round is the same bit for bit, but logging it twice would duplicate its step.
        """
        number = int(row["round"])
        if number <= self._last_round:
            return
        with _quietly():
            from mlflow.entities import Metric

            now = int(time.time() * 1000)
            figures = round_figures(row)
            self._client.log_batch(
                self._run_id,
                metrics=[Metric(name, value, now, number) for name, value in figures.items()],
            )
        self._last_round = number


def allowed_name(key: str) -> str:
    """Return a key of the spec as a name that MLflow accepts.

    Columns and sites may have any name. A refused character is written as _x, its hexadecimal
    number and _, and so is the underscore of an _x that is already there: different keys get
    different names. A name that is too long ends in a digest of the whole key.
    """
    name = _REFUSED.sub(lambda found: f"_x{ord(found.group()):x}_", key)
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return f"{name[: _LONGEST_NAME - len(digest) - 1]}_{digest}"


def _check_packages(*, local: bool) -> None:
    """Import MLflow now, so that a missing package is noticed before training."""
    # MLflow sends no telemetry about a private run unless the user sets the variable, and a server
    # that is down does not delay the run for minutes.
    for name, value in (
        ("MLFLOW_DISABLE_TELEMETRY", "true"),
        ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1"),
        ("MLFLOW_HTTP_REQUEST_TIMEOUT", "10"),
    ):
        os.environ.setdefault(name, value)
    with _quietly():
        import mlflow.tracking  # noqa: F401

        if local:  # A local store is a database, which needs two more packages.
            import alembic  # noqa: F401
            import sqlalchemy  # noqa: F401


@contextmanager
def _quietly() -> Iterator[None]:
    """Hide MLflow's log messages and warnings about its database and its own future."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
