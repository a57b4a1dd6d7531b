"""A run as an object: what it came to, round by round, its guarantee, and its model as a file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce.core import display, files, parameter_rules
from sottovoce.core.charts.lines import Line, LineChart
from sottovoce.core.charts.style import standalone
from sottovoce.core.display import Table, show_epsilon, text_fields
from sottovoce.core.domains import Vector
from sottovoce.core.errors import OutputError
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.record import check_result, read_rows
from sottovoce.runs.site_counts import has_sites

if TYPE_CHECKING:
    import torch


def export_model(folder: Path, destination: Path) -> dict[str, object]:
    """Write the model of the newest checkpoint; returns what was written."""
    from safetensors.numpy import save

    if destination.suffix != ".safetensors":
        raise OutputError(f"{destination} must end in .safetensors, so that nothing else is lost")
    run_folder = RunFolder(folder)
    header, progress = run_folder.header(), run_folder.load_checkpoint()
    if progress is None:
        raise OutputError(f"{folder} has no checkpoint yet; let the run reach its first one")
    _check(folder, header, progress.model.size)
    delta = header["spec"]["privacy"]["delta"]
    with run_folder.ledger() as ledger:
        ledger.check_unaltered()
        spent = ledger.largest_spent(delta)
    tensors, start = {}, 0
    for name, shape in header["layout"]:
        size = math.prod(shape)
        flat = progress.model[start : start + size]
        if not np.all(np.abs(flat) <= np.finfo(np.float32).max):
            raise OutputError(
                f"{folder}: tensor '{name}' of the newest checkpoint has numbers that no float32 "
                "holds, so the training has diverged; train again with a smaller learning rate"
            )
        tensors[name] = np.ascontiguousarray(flat.reshape(shape).astype(np.float32))
        start += size
    metadata = {
        "spec_hash": header["spec_hash"],
        "rounds": str(progress.rounds_done),
        "epsilon": show_epsilon(spent.epsilon) if spent else "0",
        "delta": repr(delta),
        "adjacency": header["spec"]["privacy"]["adjacency"],
        "guarantee": header["guarantee"],
        "randomness": header["randomness"],
        "sampling_grade": header["sampling_grade"],
    }
    files.write_atomic(destination, save(tensors, metadata=metadata))
    return {"file": str(destination), "tensors": len(tensors), "parameters": start, **metadata}


_WORDS = ("spec_hash", "guarantee", "randomness", "sampling_grade")


def _check(folder: Path, header: Mapping[str, Any], size: int) -> None:
    """Refuse a run.json that does not describe its checkpoint."""
    try:
        privacy = header["spec"]["privacy"]
        parameter_rules.delta(privacy["delta"])
        words = [*(header[name] for name in _WORDS), privacy["adjacency"]]
        shapes = [(name, tuple(shape)) for name, shape in header["layout"]]
        sizes = [
            parameter_rules.integer("size", part, low=0, high=size)
            for _, shape in shapes
            for part in shape
        ]
        names = [name for name, _ in shapes]
        holds = (
            len(sizes) == sum(len(shape) for _, shape in shapes)
            and all(isinstance(one, str) and one.isprintable() for one in [*words, *names])
            and len(set(names)) == len(names)
            and sum(math.prod(shape) for _, shape in shapes) == size
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        holds = False
    if not holds:
        raise OutputError(f"{folder / 'run.json'} does not describe its checkpoint; restore it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round: the model after it, what it sent, and the epsilon spent up to then.

    `epsilon` is the largest of any client; None where there is no guarantee. `others` are figures
    that only some algorithms have.
    """

    round: int
    accuracy: float | None
    loss: float | None
    epsilon: float | None
    clients_asked: int
    clients_received: int
    clients_out_of_budget: int
    payload_bytes_up: int
    total_bytes_up: int
    payload_bytes_down: int
    total_bytes_down: int
    clients_unreachable: int = 0
    replies_dropped: int = 0
    others: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSpent:
    """What one client has spent, beside its budget (None for none), at its own delta.

    In a federation that is the server's count. `answered` and `refused` are the site's replies, and
    `site_charged` the rounds that it says its own ledger was charged (None: it says nothing).
    """

    client: str
    group: int
    budget: float | None
    delta: float
    epsilon: float | None
    rounds: int
    ran_out: bool
    answered: int | None = None
    refused: int | None = None
    site_charged: int | None = None


_KEYS = ("spec.name", "spec.rounds", "spec.mechanism", "guarantee", "bits_per_coordinate")


class Run:
    """A run folder, looked at: no data are needed, and nothing is changed.

    A run that has not come to its end has what its rounds so far tell; `finished` says so.
    `held` is kept alive as long as the run is; a `temporary` folder is gone after it.
    """

    def __init__(
        self, folder: Path, *, held: tuple[object, ...] = (), temporary: bool = False
    ) -> None:
        self._folder, self._held, self._temporary = RunFolder(folder), held, temporary
        self._header = self._folder.header()
        found = {*self._header, *(f"spec.{key}" for key in self._header["spec"])}
        if missing := [key for key in _KEYS if key not in found]:
            raise OutputError(
                f"{folder / 'run.json'} is damaged: '{missing[0]}' is missing; restore it"
            )
        self._metrics = read_rows(folder / "metrics.jsonl")
        self._result = self._folder.result()
        if self._result is not None:
            check_result(folder / "result.json", self._result)

    @property
    def folder(self) -> Path:
        return self._folder.path

    @property
    def name(self) -> str:
        return str(self._header["spec"]["name"])

    @property
    def spec(self) -> dict[str, Any]:
        """The resolved spec, as plain data."""
        return dict(self._header["spec"])

    @property
    def finished(self) -> bool:
        """Whether the run came to its end (also: halted because too few clients could pay)."""
        return self._result is not None

    @property
    def halted(self) -> str | None:
        """Why the run stopped before its last round; None if it did not."""
        return self._result["halted"] if self._result else None

    def _last(self, name: str) -> Any:
        rows = self._metrics
        return self._result[name] if self._result else rows[-1][name] if rows else None

    @property
    def score(self) -> str:
        """What `accuracy` is: of a regression, 1 - mean absolute error."""
        last = self._result or (self._metrics[-1] if self._metrics else {})
        return str(last.get("score", "accuracy"))

    @property
    def accuracy(self) -> float | None:
        """On the test data: the share of right labels (of numbers, 1 - the mean absolute error)."""
        value: float | None = self._last("accuracy")
        return value

    @property
    def loss(self) -> float | None:
        value: float | None = self._last("loss")
        return value

    @property
    def epsilon(self) -> float:
        """The most that any client has spent; infinite where there is no guarantee."""
        if self._result is None and not self._metrics:
            return 0.0
        value: float | None = self._last("epsilon")
        return math.inf if value is None else value

    @property
    def delta(self) -> float:
        return float(self._header["spec"]["privacy"]["delta"])

    @property
    def adjacency(self) -> str:
        return str(self._header["spec"]["privacy"]["adjacency"])

    @property
    def guarantee(self) -> str:
        """What is protected, in a sentence; and what the sentence does not cover."""
        return str(self._header["guarantee"])

    @property
    def warnings(self) -> list[str]:
        """What a person should know before believing the result."""
        if self._result is None:
            done, wanted = len(self._metrics), self._header["spec"]["rounds"]
            return [f"not finished: {done} of {wanted} rounds; resume it with the same spec"]
        return list(self._result["warnings"])

    @cached_property
    def rounds(self) -> Table[Round]:
        """One row a round."""
        known = set(Round.__dataclass_fields__) - {"others"}
        rows = [
            Round(
                **{name: row[name] for name in known & set(row)},
                others={name: row[name] for name in row if name not in known},
            )
            for row in self._metrics
        ]
        columns = {
            **{name: name for name in ("round", "accuracy", "loss", "epsilon")},
            "clients_received": "answered",
            "total_bytes_up": "bytes up",
            "total_bytes_down": "bytes down",
        }
        return Table(rows, caption=f"rounds of {self.name}", columns=columns)

    @cached_property
    def clients(self) -> Table[ClientSpent]:
        """One row a client, once the run is finished."""
        rows = self._result["clients"] if self._result else []
        shown = {name: name for name in (rows[0] if rows else ())}
        return Table(
            [ClientSpent(**row) for row in rows], caption=f"clients of {self.name}", columns=shown
        )

    @cached_property
    def model(self) -> Vector:
        """The parameters of the newest checkpoint, one after the other."""
        progress = self._folder.load_checkpoint()
        if progress is None:
            raise OutputError(
                f"{self.folder} has no checkpoint yet, so there is no model; let the run reach its "
                "first one (resume goes on)"
            )
        return progress.model

    def tensors(self) -> dict[str, "np.ndarray[Any, np.dtype[np.float32]]"]:
        """The parameters by name, as float32 arrays."""
        found, start = {}, 0
        for name, shape in self._header["layout"]:
            size = math.prod(shape)
            flat = self.model[start : start + size]
            found[name] = np.ascontiguousarray(flat.reshape(shape).astype(np.float32))
            start += size
        return found

    def state_dict(self) -> "dict[str, torch.Tensor]":
        """For `module.load_state_dict`; a module with buffers wants strict=False."""
        import torch

        return {name: torch.from_numpy(values) for name, values in self.tensors().items()}

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data, the same as `run --json` prints; empty before the end."""
        return dict(self._result or {})

    # -- how it looks ----------------------------------------------------------------------

    def figures(self) -> dict[str, object]:
        """The key figures, by name."""
        result = self._result or {}
        up = result.get("total_bytes_up_per_message")
        spec = self._header["spec"]
        mechanism = spec["mechanism"]
        return {
            self.score: self.accuracy,
            "server-counted epsilon" if has_sites(spec) else "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "guarantee": self.guarantee,
            "mechanism": mechanism["kind"] if isinstance(mechanism, dict) else mechanism,
            "bits_per_coordinate": self._header["bits_per_coordinate"],
            "rounds": f"{len(self._metrics)} of {self._header['spec']['rounds']}",
            **({} if up is None else {"bytes_up_per_message": up}),
            **({"halted": self.halted} if self.halted else {}),
            "folder": "temporary (out=FOLDER keeps one)" if self._temporary else str(self.folder),
        }

    def __str__(self) -> str:
        warned = "".join(f"\nwarning: {warning}" for warning in self.warnings)
        return f"run {self.name}\n{text_fields(self.figures())}{warned}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        parts = [display.fields(self.figures(), caption=f"run {self.name}")]
        parts += [display.note(f"Warning: {warning}") for warning in self.warnings]
        measured = [(row["round"], row["accuracy"]) for row in self._metrics]
        measured = [(number, value) for number, value in measured if value is not None]
        if len(measured) > 1:
            title = (
                f"Test {self.score} of {self.name} by round, up to epsilon "
                f"{show_epsilon(self.epsilon, 2)}"
            )
            chart = LineChart(
                title=title,
                x_label="round",
                y_label=f"test {self.score}",
                lines=[
                    Line(
                        name=self.name,
                        x=[float(number) for number, _ in measured],
                        y=[value for _, value in measured],
                    )
                ],
            )
            parts.append(display.picture(standalone(chart.svg()), title))
        return "\n".join(parts)


def open_run(folder: Path | str) -> Run:
    """An earlier run, by its folder; finished or not."""
    return Run(Path(folder).expanduser())
