"""The function `simulate`: run a spec on this machine, with your own model and data if you like."""

import copy
import inspect
import logging
import os
import shutil
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sottovoce.core.errors import ConfigError, ParameterError
from sottovoce.learning.datasets.own import PREFIX, name_arrays
from sottovoce.learning.datasets.torch_datasets import arrays_and_clients
from sottovoce.learning.in_memory import InMemoryObject, provide_objects
from sottovoce.runs.loading import (
    check_code_allowed,
    data_folders,
    load,
    locate_data,
    override,
    parse,
    read_table,
)
from sottovoce.runs.opened import Run
from sottovoce.runs.site_counts import round_note
from sottovoce.runs.spec import ModelSpec, RunSpec

if TYPE_CHECKING:
    from torch import nn

    from sottovoce.learning.objectives import PerSample

    Model = nn.Module | Callable[..., nn.Module]

Log = str | logging.Logger | Callable[[dict[str, Any]], object]

_LABEL = "arrays"


def simulate(
    spec: str | Path | Mapping[str, Any] | RunSpec,
    *,
    model: "Model | None" = None,
    data: object = None,
    trainable: Sequence[str] = (),
    loss: "str | PerSample | None" = None,
    metric: "PerSample | None" = None,
    out: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    resume: bool = False,
    allow_code: bool = False,
    on_round: Callable[[dict[str, Any]], None] | None = None,
    log: "bool | Log | Sequence[Log]" = (),
    progress: bool | None = None,
    private: bool = True,
    keep_clipping: bool = False,
) -> Run:
    """Train a model as a spec says, with simulated clients on this machine, and return the run.

    Privacy is charged and messages are encoded as in a deployment, unless `runtime.messages` says
    otherwise. The stored spec names a model and data in memory by a label only. A digest of the
    data is stored with it (of the labels and, unless the spec computes features, of some rows'
    features), so that other data are noticed when the run is resumed, attacked or audited.

    Args:
        spec: The path of a TOML file, the same as a dictionary, or a `RunSpec`. In a dictionary
            `name` is "notebook" and `seed` is 0 unless given.
        model: A torch.nn.Module, or a function that creates one without arguments or from
            `input_shape` and `num_outputs`; it replaces the spec's model. A function draws its
            initial weights from the spec's seed.
        data: (x, y), (x_train, y_train, x_test, y_test), or a dictionary of arrays with the names
            of `npz:` data sets; or a map-style torch Dataset of pairs (x, y), (train, test) of two,
            or a list or dictionary with one for each client, also as (clients, test). They replace
            `data.dataset` of the spec, and those of clients its partition and names.
        trainable: Names of the parameters to train, in which * stands for any text, such as
            ["head.*"]; all others are frozen. By default those with requires_grad=True are trained.
        loss: The name of a loss, or a function of (outputs, labels) that returns one number for
            each sample; by default what fits the labels.
        metric: A function of (outputs, labels) that returns one number for each sample; their mean
            over the test data is reported in place of the accuracy.
        out: The run folder; by default a temporary one, which is deleted with the returned run.
        overrides: Values by dotted key, such as {"privacy.epsilon": 2.0}.
        resume: Continue the interrupted run in `out`, with the same spec, model and data. On a
            KeyboardInterrupt the finished rounds are saved before it is raised.
        allow_code: Import and run the code that a file or a dictionary names (model.kind =
            "module").
        on_round: Called with the metrics of each finished round.
        log: Where each round is logged: a tracker ("tensorboard", "mlflow"), a logging.Logger, a
            function of the round's metrics, or several of these; True for a line on stderr.
        progress: Whether to show a line of progress on stderr; by default in a terminal or a
            notebook.
        private: False for the baseline without privacy: the same training without noise, clipping,
            rounding and budgets. It charges no ledger, its name ends in "-no-privacy", and its
            result says that nothing is protected.
        keep_clipping: With `private=False`, clip as the private run does and leave out only noise,
            rounding and budgets, to see what clipping alone costs.

    Returns:
        The finished run: its result, rounds, guarantee and model. It may have `halted` before its
        last round because too few clients had budget left.

    Raises:
        ParameterError: `resume` without `out`, `model` is not a module or function, a parameter is
            out of range, or no noise keeps the budget.
        UnknownNameError: Something that the spec or `log` names is not registered.
        ConfigError: The spec is invalid, differs from that of the run to resume, or names code
            without `allow_code`; or the model has diverged.
        DataError: The data are missing or damaged, or differ from those of the run to resume.
        OutputError: `out` cannot be used: without `resume` it is not empty, with it there is no
            run.
        LedgerError: The ledger of the run to resume is damaged or lacks charges.

    Examples:
        >>> import numpy as np
        >>> import sottovoce
        >>> spec = {
        ...     "rounds": 2,
        ...     "randomness": "seeded",
        ...     "data": {"clients": 4},
        ...     "model": {"kind": "linear"},
        ...     "algorithm": {"kind": "fedavg", "server_learning_rate": 1.0},
        ...     "privacy": {"level": "sample", "clip_norm": 1.0, "epsilon": 4.0, "delta": 1e-3},
        ...     "mechanism": {"kind": "gauss_hermite", "levels": 2},
        ... }
        >>> run = sottovoce.simulate(spec, data=(np.eye(20), np.arange(20) % 2))
        >>> len(run.rounds), round(run.epsilon, 2), run.guarantee.partition(":")[0]
        (2, 4.0, 'sample-level local privacy')
    """
    if resume and out is None:
        raise ParameterError("resume needs the folder of the interrupted run; give it as out")
    if isinstance(trainable, str):
        raise ParameterError(f"trainable must be a list of names, give ['{trainable}']")
    if keep_clipping and private:
        raise ParameterError(
            "keep_clipping is for the baseline without noise; give private=False too, since a "
            "private run always clips"
        )
    parts = collect_parts(model, data, spec)
    values = dict(overrides or {}) | ({"model.trainable": list(trainable)} if trainable else {})
    if isinstance(loss, str):
        values["model.loss"] = loss
    elif loss is not None:
        parts += (_function("loss", loss),)
    if metric is not None:
        parts += (_function("metric", metric),)
    resolved = read_given_spec(spec, values, parts, _header(out) if resume else None)
    if not private:
        from sottovoce.runs.baseline import without_privacy

        resolved = without_privacy(resolved, keep_clipping=keep_clipping)
    # A RunSpec, and what `model` returns, are the caller's own code anyway.
    allowed = allow_code or isinstance(spec, RunSpec)
    check_code_allowed(resolved, allow_code=allowed, how="simulate(..., allow_code=True)")
    from sottovoce.runs.runner import launch  # Imported late: torch takes a while to load.
    from sottovoce.runs.tracking import track_run

    names, told = _logs(log, resolved.rounds)
    if out is None:
        _check_temporary(names)
    folder = Path(out).expanduser() if out is not None else Path(tempfile.mkdtemp(prefix="run-"))
    watch = _Watch(resolved.rounds, _is_watched() if progress is None else progress, on_round)
    try:
        with provide_objects(*parts), track_run(names, resolved, folder, warn=_warn) as trackers:
            for function in told:
                watch.also(function)
            watch.also(trackers)
            result = launch(
                resolved, folder, resume=resume, on_round=watch, on_resume=watch.resumed
            )
            trackers.finish(result)
        run = Run(folder, keep_alive=parts, temporary=out is None)
    except BaseException:
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        watch.end()
    if out is None:
        weakref.finalize(run, shutil.rmtree, folder, ignore_errors=True)
    return run


def _header(out: str | Path | None) -> dict[str, Any] | None:
    """Return the header of the run to resume; None if there is no run yet."""
    from sottovoce.runs.folder import RunFolder

    folder = RunFolder(Path(out or "").expanduser())
    return folder.header() if folder.exists else None


def read_given_spec(
    spec: str | Path | Mapping[str, Any] | RunSpec,
    overrides: dict[str, Any],
    parts: tuple[InMemoryObject, ...],
    resumed_header: dict[str, Any] | None = None,
) -> RunSpec:
    """Return the spec that a caller gave as a file, dictionary or `RunSpec`.

    Args:
        spec: The spec.
        overrides: Values by dotted key.
        parts: A model and data in memory, as `collect_parts` returns them; the spec names them.
        resumed_header: The header of a run to resume, whose path to the data stays as it was.

    Raises:
        ConfigError: The spec cannot be read, or has invalid keys or values.
        DataError: A file of data that a spec file names does not exist.
    """
    if isinstance(spec, str | Path):
        path = Path(spec).expanduser()
        values = {**_in_memory(parts, spec), **overrides}
        return locate_data(
            load(path, values=values), data_folders(path, values), resumed_header=resumed_header
        )
    return parse(read_given_table(spec, overrides, parts))


def read_given_table(
    spec: str | Path | Mapping[str, Any] | RunSpec,
    overrides: Mapping[str, Any],
    parts: tuple[InMemoryObject, ...],
) -> dict[str, Any]:
    """Return the plain data of the spec that a caller gave; its keys are not checked yet.

    Args:
        spec: The spec: a file, a dictionary (which is not changed) or a `RunSpec`.
        overrides: Values by dotted key.
        parts: A model and data in memory, as `collect_parts` returns them; the spec names them.

    Raises:
        ConfigError: The file cannot be read, an override is invalid, or `spec` is something else.
    """
    values = {**_in_memory(parts, spec), **overrides}
    if isinstance(spec, str | Path):
        return read_table(Path(spec).expanduser(), values=values)
    if isinstance(spec, RunSpec):
        table = spec.plain()
    elif not isinstance(spec, Mapping):
        raise ConfigError(
            f"spec must be a dictionary, a RunSpec or the path of a TOML file, got {spec!r}"
        )
    else:
        table = {"name": "notebook", "seed": 0, **copy.deepcopy(dict(spec))}
    for key, value in values.items():
        override(table, key, value, source="overrides")
    return table


def _in_memory(parts: tuple[InMemoryObject, ...], spec: object) -> dict[str, Any]:
    """Return the keys of a spec that name what is in memory."""
    found: dict[str, Any] = {}
    for part in parts:
        if part.kind == "data":
            found["data.dataset"] = PREFIX + part.label
            if part.clients:
                found["data.names"] = list(part.clients)
                found["data.partition"] = {"kind": "by_owner"}
        elif part.kind in ("loss", "metric"):
            found[f"model.{part.kind}"] = PREFIX + part.label
        else:
            found["model"] = {"kind": "in_memory", "label": part.label, **_kept_keys(spec)}
    return found


def _kept_keys(spec: Any) -> dict[str, Any]:
    """Return the keys of the spec's model that hold for every kind of model."""
    if isinstance(spec, RunSpec):
        given = spec.plain()["model"]
    else:
        table = spec if isinstance(spec, Mapping) else read_table(Path(spec).expanduser())
        given = table.get("model")
    common = set(ModelSpec.model_fields) - {"kind"}
    is_table = isinstance(given, Mapping)
    return {key: value for key, value in given.items() if key in common} if is_table else {}


def collect_parts(model: object, data: object, spec: object) -> tuple[InMemoryObject, ...]:
    """Return the model and data that are given in memory, with labels to name them in a spec.

    Args:
        model: A torch.nn.Module or a function that creates one; None if not in memory.
        data: Arrays, as for `simulate`; None if not in memory.
        spec: The spec. If it is a dictionary whose `data.dataset` is "memory:LABEL", the data have
            this label; otherwise (also for a file or a `RunSpec`) their label is "arrays".

    Returns:
        The data, as arrays by name, and then the model, as a function that creates it; what is None
        is left out. The label of the model is its own name or that of its class.

    Raises:
        ParameterError: `model` is neither a module nor a function.
        DataError: `data` cannot be read as arrays.
    """
    parts = []
    if data is not None:
        given = spec.get("data") if isinstance(spec, Mapping) else None
        name = given.get("dataset", "") if isinstance(given, Mapping) else ""
        label = str(name).removeprefix(PREFIX) if str(name).startswith(PREFIX) else _LABEL
        found = arrays_and_clients(data)
        arrays, clients = found or (name_arrays(data), ())
        if clients:
            _check_own_clients(spec)
        parts.append(InMemoryObject(kind="data", label=label, value=arrays, clients=clients))
    if model is not None:
        label = getattr(model, "__qualname__", type(model).__name__)
        parts.append(InMemoryObject(kind="model", label=label, value=_factory(model)))
    return tuple(parts)


def _check_own_clients(spec: object) -> None:
    """Refuse another partition than that into the clients that each gave a Dataset."""
    if isinstance(spec, str | Path):
        table: Any = read_table(Path(spec).expanduser())
    else:
        table = spec.plain() if isinstance(spec, RunSpec) else spec
    for name in ("data", "partition", "kind"):
        table = table.get(name) if isinstance(table, Mapping) else None
    if table not in (None, "by_owner"):
        raise ConfigError(
            f"data has a Dataset for each client, but data.partition.kind = '{table}' would split "
            "the rows in another way; leave data.partition out, or give one Dataset with all rows"
        )


def _function(kind: Literal["loss", "metric"], function: object) -> InMemoryObject:
    if not callable(function):
        raise ParameterError(
            f"{kind} must be a function of outputs and labels, got {type(function).__name__}"
        )
    label = getattr(function, "__qualname__", type(function).__name__)
    return InMemoryObject(kind=kind, label=label, value=function)


def _factory(model: Any) -> Callable[..., Any]:
    """Return a function of `input_shape` and `num_outputs` that creates the module."""
    from torch import nn

    if isinstance(model, nn.Module):
        return lambda input_shape, num_outputs: copy.deepcopy(model)  # noqa: ARG005
    if not callable(model):
        raise ParameterError(
            f"model must be a torch.nn.Module or a function that creates one, got "
            f"{type(model).__name__}"
        )
    made: Callable[..., Any] = model
    try:
        inspect.signature(made).bind()
    except (TypeError, ValueError):
        return made  # It needs arguments: input_shape and num_outputs, or the call will fail.
    return lambda input_shape, num_outputs: made()  # noqa: ARG005


def _inform(
    logger: logging.Logger, line: Callable[[dict[str, Any]], str], row: dict[str, Any]
) -> None:
    logger.info(line(row), extra={"metrics": row})


def _logs(
    log: "bool | Log | Sequence[Log]", rounds: int
) -> tuple[list[str], list[Callable[[dict[str, Any]], object]]]:
    """Return the names of trackers in `log`, and functions to call after each round."""

    def line(row: dict[str, Any]) -> str:
        return f"round {row['round']} of {rounds}  {round_note(row)}"

    names: list[str] = []
    functions: list[Callable[[dict[str, Any]], object]] = []
    if isinstance(log, bool):
        if log:
            functions.append(lambda row: print(line(row), file=sys.stderr, flush=True))
        return names, functions
    for one in log if isinstance(log, list | tuple) else (log,):
        if isinstance(one, str):
            names.append(one)
        elif isinstance(one, logging.Logger):
            functions.append(partial(_inform, one, line))
        elif callable(one):
            functions.append(one)
        else:
            raise ParameterError(
                "log must be the name of a tracker, a logging.Logger, a function, several of "
                f"these, True or False, got {one!r}"
            )
    return names, functions


def _check_temporary(names: Sequence[str]) -> None:
    """Refuse trackers that would write into a folder that is deleted with the returned run."""
    for name in names:
        if name == "tensorboard" or (name == "mlflow" and "MLFLOW_TRACKING_URI" not in os.environ):
            raise ParameterError(
                f"log='{name}' writes into the run folder, which is temporary without out; give "
                "out=FOLDER"
            )


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def _is_watched() -> bool:
    """Return whether stderr is a terminal, or this is the kernel of a notebook.

    A program may import ipykernel without being a notebook, so the shell is checked.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return sys.stderr.isatty() or hasattr(shell, "kernel")


class _Watch:
    """A line of progress that is overwritten after each round, and functions to call."""

    def __init__(
        self, rounds: int, shown: bool, on_round: Callable[[dict[str, Any]], None] | None
    ) -> None:
        self._rounds, self._shown = rounds, shown
        self._told: list[Callable[[dict[str, Any]], object]] = []
        self._told += [] if on_round is None else [on_round]
        self._width = 0

    def also(self, on_round: Callable[[dict[str, Any]], object]) -> None:
        """Call another function after each round."""
        self._told.append(on_round)

    def __call__(self, row: dict[str, Any]) -> None:
        if self._shown:
            text = f"round {row['round']} of {self._rounds}  {round_note(row)}"
            print(f"\r{text:<{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = len(text)
        for on_round in self._told:
            on_round(row)

    def resumed(self, where: str) -> None:
        """Print where a run continues."""
        if self._shown:
            print(where, file=sys.stderr, flush=True)

    def end(self) -> None:
        """End the line of progress."""
        if self._width:
            print(file=sys.stderr)
