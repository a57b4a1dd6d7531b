"""`simulate`: a spec, run on this machine, with a model and data that may be one's own."""

import copy
import inspect
import shutil
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.core.errors import ConfigError, ParameterError
from sottovoce.learning.datasets.own import PREFIX, named
from sottovoce.learning.in_memory import Part, lent
from sottovoce.runs.loading import (
    check_code_allowed,
    data_folders,
    load,
    override,
    parse,
    read_table,
    with_data_from,
)
from sottovoce.runs.opened import Run
from sottovoce.runs.site_counts import round_note
from sottovoce.runs.spec import RunSpec

if TYPE_CHECKING:
    from torch import nn

    Model = nn.Module | Callable[..., nn.Module]

_LABEL = "arrays"


def simulate(
    spec: str | Path | Mapping[str, Any] | RunSpec,
    *,
    model: "Model | None" = None,
    data: object = None,
    out: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    resume: bool = False,
    allow_code: bool = False,
    on_round: Callable[[dict[str, Any]], None] | None = None,
    log: Sequence[str] = (),
    progress: bool | None = None,
) -> Run:
    """Train as a spec says, and return the run.

        simulate("examples/one_bit.toml", overrides={"rounds": 10})
        simulate(spec, model=lambda: nn.Linear(64, 10), data=(x_train, y_train, x_test, y_test))

    spec       a TOML file, the same as a dictionary (then `name` is "notebook" and `seed` 0 unless
               given), or a RunSpec.
    model      a torch.nn.Module, or a function that makes one, of nothing or of input_shape and
               num_outputs; in place of the spec's. A function draws weights from the spec's seed.
    data       (x, y), (x_train, y_train, x_test, y_test), or a dictionary of arrays with the names
               of `npz:` data sets; in place of the spec's.
    out        the run folder [one that is removed when the run is no longer used].
    overrides  values by dotted key: {"privacy.epsilon": 2.0}.
    resume     go on with an interrupted run in `out`, with the same spec, model and data.
    allow_code  import and run the code that a file or a dictionary names (model.kind = "module").
    resume     go on with an interrupted run in `out`, with the same spec, model and data. A
               KeyboardInterrupt saves the rounds that are finished before it is raised.
    on_round   called with each round's figures.
    log        trackers that each round is logged to: "tensorboard", "mlflow".
    progress   a line on stderr [where somebody watches: in a terminal or a notebook].

    The spec that is kept names model and data in memory by a label alone; a digest of the data is
    kept beside it (labels, and features of some rows), so that other data are noticed where a run
    goes on, is attacked or audited.
    """
    if resume and out is None:
        raise ParameterError("resume needs out, the folder of the run that is to go on")
    parts = parts_given(model, data, spec)
    resolved = spec_given(spec, dict(overrides or {}), parts, _header(out) if resume else None)
    # A RunSpec, and what `model` gives, are the caller's own code already.
    allowed = allow_code or isinstance(spec, RunSpec)
    check_code_allowed(resolved, allow_code=allowed, how="simulate(..., allow_code=True)")
    from sottovoce.runs.runner import launch  # torch takes a while to load
    from sottovoce.runs.tracking import tracked

    folder = Path(out).expanduser() if out is not None else Path(tempfile.mkdtemp(prefix="run-"))
    watch = _Watch(resolved.rounds, _is_watched() if progress is None else progress, on_round)
    try:
        with lent(*parts), tracked(log, resolved, folder, warn=_warn) as trackers:
            watch.also(trackers)
            result = launch(
                resolved, folder, resume=resume, on_round=watch, on_resume=watch.resumed
            )
            trackers.finish(result)
        run = Run(folder, held=parts, temporary=out is None)
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
    """What a run that goes on was begun with, if there is one."""
    from sottovoce.runs.folder import RunFolder

    folder = RunFolder(Path(out or "").expanduser())
    return folder.header() if folder.exists else None


def spec_given(
    spec: str | Path | Mapping[str, Any] | RunSpec,
    overrides: dict[str, Any],
    parts: tuple[Part, ...],
    begun: dict[str, Any] | None = None,
) -> RunSpec:
    """Return the spec that a caller gives, with overrides and with what is in memory."""
    if isinstance(spec, str | Path):
        path = Path(spec).expanduser()
        values = {**overrides, **_in_memory(parts)}
        return with_data_from(load(path, values=values), data_folders(path, values), begun=begun)
    return parse(table_given(spec, overrides, parts))


def table_given(
    spec: str | Path | Mapping[str, Any] | RunSpec,
    overrides: Mapping[str, Any],
    parts: tuple[Part, ...],
) -> dict[str, Any]:
    """Return the plain data of the spec that a caller gives, with overrides and parts."""
    values = {**overrides, **_in_memory(parts)}
    if isinstance(spec, str | Path):
        return read_table(Path(spec).expanduser(), values=values)
    if isinstance(spec, RunSpec):
        table = spec.plain()
    elif not isinstance(spec, Mapping):
        raise ConfigError(
            f"a spec is a dictionary, a RunSpec or the path of a TOML file, got {spec!r}"
        )
    else:
        table = {"name": "notebook", "seed": 0, **copy.deepcopy(dict(spec))}
    for key, value in values.items():
        override(table, key, value, source="overrides")
    return table


def _in_memory(parts: tuple[Part, ...]) -> dict[str, Any]:
    """Return the keys of a spec that say what is in memory."""
    found: dict[str, Any] = {}
    for part in parts:
        if part.kind == "data":
            found["data.dataset"] = PREFIX + part.label
        else:
            found["model"] = {"kind": "in_memory", "label": part.label}
    return found


def parts_given(model: object, data: object, spec: object) -> tuple[Part, ...]:
    """What is given in memory, under the labels that the spec will have."""
    parts = []
    if data is not None:
        given = spec.get("data") if isinstance(spec, Mapping) else None
        name = given.get("dataset", "") if isinstance(given, Mapping) else ""
        label = str(name).removeprefix(PREFIX) if str(name).startswith(PREFIX) else _LABEL
        parts.append(Part(kind="data", label=label, value=named(data)))
    if model is not None:
        label = getattr(model, "__qualname__", type(model).__name__)
        parts.append(Part(kind="model", label=label, value=_factory(model)))
    return tuple(parts)


def _factory(model: Any) -> Callable[..., Any]:
    """A function of input_shape and num_outputs, of whatever makes a module."""
    from torch import nn

    if isinstance(model, nn.Module):
        return lambda input_shape, num_outputs: copy.deepcopy(model)  # noqa: ARG005
    if not callable(model):
        raise ParameterError(
            f"model must be a torch.nn.Module or a function that makes one, got "
            f"{type(model).__name__}"
        )
    made: Callable[..., Any] = model
    try:
        inspect.signature(made).bind()
    except (TypeError, ValueError):
        return made  # it takes arguments: input_shape and num_outputs, or the error says so
    return lambda input_shape, num_outputs: made()  # noqa: ARG005


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def _is_watched() -> bool:
    """In a terminal, or in a notebook's kernel: a program may import ipykernel and be neither."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return sys.stderr.isatty() or hasattr(shell, "kernel")


class _Watch:
    """A line of progress that is written over, and the caller's own function."""

    def __init__(
        self, rounds: int, shown: bool, on_round: Callable[[dict[str, Any]], None] | None
    ) -> None:
        self._rounds, self._shown = rounds, shown
        self._told = [] if on_round is None else [on_round]
        self._width = 0

    def also(self, on_round: Callable[[dict[str, Any]], None]) -> None:
        """Tell another function of each round."""
        self._told.append(on_round)

    def __call__(self, row: dict[str, Any]) -> None:
        if self._shown:
            text = f"round {row['round']} of {self._rounds}  {round_note(row)}"
            print(f"\r{text:<{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = len(text)
        for on_round in self._told:
            on_round(row)

    def resumed(self, where: str) -> None:
        """Tell where a run goes on."""
        if self._shown:
            print(where, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._width:
            print(file=sys.stderr)
