"""A run as an object: its result, rounds, guarantee and model; and the export of its model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce.core import display, files, parameter_rules
from sottovoce.core.charts.lines import ChartLine, LineChart
from sottovoce.core.charts.style import standalone
from sottovoce.core.display import Table, show_epsilon, text_fields
from sottovoce.core.domains import Vector
from sottovoce.core.errors import OutputError
from sottovoce.federated.algorithms.model_average import AVERAGED
from sottovoce.ledger.ledger import LEDGER_NAME
from sottovoce.ledger.reader import LedgerReader
from sottovoce.runs.diagnosis import AccuracyDiagnosis
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.record import check_result, read_rows
from sottovoce.runs.site_counts import figures_of, has_sites

if TYPE_CHECKING:
    import torch

    from sottovoce.federated.training import Progress


_NO_AVERAGE = "keeps no average of models; take the last model, or train with algorithm.averaging"


def export_model(folder: Path, destination: Path, *, averaged: bool = False) -> dict[str, object]:
    """Write the model of the newest checkpoint as a .safetensors file of float32 tensors.

    Args:
        folder: The run folder.
        destination: The file to write; an existing one is replaced.
        averaged: Whether to write the average of models that `algorithm.averaging` keeps.

    Returns:
        The file, the number of tensors and parameters, and the metadata that were written: what is
        guaranteed, and the largest epsilon of any client in the whole ledger, as a text. For a run
        that counts charges in memory it is that of the finished rounds.

    Raises:
        OutputError: There is no checkpoint yet, a file is damaged, the name has another suffix, a
            parameter is too large for float32, or the run keeps no average of models.
        LedgerError: The ledger is damaged, or missing though the run stores messages.
    """
    from safetensors.numpy import save

    if destination.suffix != ".safetensors":
        raise OutputError(
            f"{destination} must end in .safetensors, so that no other file is overwritten"
        )
    run_folder = RunFolder(folder)
    header, progress = run_folder.header(), run_folder.load_checkpoint()
    if progress is None:
        raise OutputError(f"{folder} has no checkpoint yet; resume the run until it saves one")
    model = progress.algorithm_state.get(AVERAGED) if averaged else progress.model
    if model is None:
        raise OutputError(f"{folder} {_NO_AVERAGE}")
    _check(folder, header, model.size)
    delta = header["spec"]["privacy"]["delta"]
    tensors, start = {}, 0
    for name, shape in header["layout"]:
        size = math.prod(shape)
        flat = model[start : start + size]
        if not np.all(np.abs(flat) <= np.finfo(np.float32).max):
            raise OutputError(
                f"{folder}: tensor '{name}' of the newest checkpoint has NaN or numbers too large "
                "for float32, so the training has diverged; train again with a smaller learning "
                "rate"
            )
        tensors[name] = np.ascontiguousarray(flat.reshape(shape).astype(np.float32))
        start += size
    metadata = {
        "spec_hash": header["spec_hash"],
        "rounds": str(progress.rounds_done),
        "epsilon": _spent(run_folder, header),
        "delta": repr(delta),
        "adjacency": header["spec"]["privacy"]["adjacency"],
        "guarantee": header["guarantee"],
        "randomness": header["randomness"],
        "sampling_grade": header["sampling_grade"],
    }
    files.write_atomic(destination, save(tensors, metadata=metadata))
    return {"file": str(destination), "tensors": len(tensors), "parameters": start, **metadata}


def _spent(folder: RunFolder, header: Mapping[str, Any]) -> str:
    """Return the largest epsilon that any client has spent, as a text."""
    runtime = header["spec"].get("runtime")
    if isinstance(runtime, Mapping) and runtime.get("messages") in ("packed", "none"):
        return show_epsilon(open_run(folder.path).epsilon)
    with folder.ledger() as ledger:
        ledger.check_unaltered()
        spent = ledger.largest_spent(header["spec"]["privacy"]["delta"])
    return show_epsilon(spent.epsilon) if spent else "0"


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
        raise OutputError(
            f"{folder / 'run.json'} does not match its checkpoint.npz; restore both from a backup"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round: the model after it, what was sent, and the epsilon spent so far.

    Attributes:
        round: The number of the round, from 1.
        accuracy: The test accuracy after the round, or the most important figure instead, which
            `Run.score` names, such as R-squared; None where the model was not tested.
        loss: The test loss; None where the model was not tested.
        epsilon: The largest epsilon that any client has spent so far; None without a guarantee.
        clients_asked: The number of clients that were asked, and charged.
        clients_received: The number of clients whose replies counted.
        clients_out_of_budget: The number of sampled clients without budget, who were not asked.
        payload_bytes_up: The bytes of the codes that clients sent.
        total_bytes_up: The same with message headers and, over a network, transport.
        payload_bytes_down: The bytes of the models that clients received.
        total_bytes_down: The same with message headers and, over a network, transport.
        clients_unreachable: The number of sampled clients that could not be reached.
        replies_dropped: The number of replies that arrived in time but were not the messages that
            were asked for.
        others: All other figures of the round by name, such as those of some algorithms only.
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
class ClientSpending:
    """What one client has spent, by the server's count.

    Attributes:
        client: The name of the client.
        group: The number of its table in `privacy.groups`, from 1; 0 if no table names it.
        budget: The largest epsilon that it may spend; None without a budget.
        delta: The failure probability of budget and epsilon.
        epsilon: What it has spent; None without a guarantee.
        rounds: The number of rounds in which it was charged.
        ran_out: Whether its budget did not cover the last round, unless it had already taken part
            as often as the sampling can ask it.
        answered: In a federation, the number of its replies that counted; otherwise None.
        refused: In a federation, the number of its replies without a message; otherwise None.
        site_charged: The rounds that the site's own ledger was charged, as the site reports; None
            if it does not report, or without a federation.
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
    """A run folder, opened for reading: no data are needed, and nothing is changed.

    Header, metrics and result are read once, when the object is created, so a run that is not
    finished has the values of its finished rounds up to then; see `finished`. Its ledger and its
    checkpoint are read when `epsilon` and `model` are first used.

    Args:
        folder: The run folder.
        keep_alive: Objects to keep alive as long as the run, such as a model in memory.
        temporary: Whether the caller deletes the folder together with this object; only for the
            text that is printed.

    Raises:
        OutputError: The folder holds no run, or its files are damaged.
    """

    def __init__(
        self, folder: Path, *, keep_alive: tuple[object, ...] = (), temporary: bool = False
    ) -> None:
        self._folder, self._held, self._temporary = RunFolder(folder), keep_alive, temporary
        self._header = self._folder.header()
        found = {*self._header, *(f"spec.{key}" for key in self._header["spec"])}
        if missing := [key for key in _KEYS if key not in found]:
            raise OutputError(
                f"{folder / 'run.json'} is damaged: '{missing[0]}' is missing; restore it from a "
                "backup"
            )
        self._metrics = read_rows(folder / "metrics.jsonl")
        self._result = self._folder.result()
        if self._result is not None:
            check_result(folder / "result.json", self._result)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._folder.path

    @property
    def name(self) -> str:
        """The name of the run, from its spec."""
        return str(self._header["spec"]["name"])

    @property
    def spec(self) -> dict[str, Any]:
        """The spec as plain data, with defaults and calibrated noise filled in."""
        return dict(self._header["spec"])

    @property
    def finished(self) -> bool:
        """Whether the run has ended; also true if it halted because too few clients had budget."""
        return self._result is not None

    @property
    def halted(self) -> str | None:
        """Why the run stopped before its last round: too few clients had budget left.

        It is None for a run that has all of its rounds, was interrupted or has not ended.
        """
        return self._result["halted"] if self._result else None

    @property
    def diverged(self) -> str | None:
        """Why the run stopped before its last round: its test loss was not finite; or None."""
        return self._result.get("diverged") if self._result else None

    @property
    def diagnosis(self) -> AccuracyDiagnosis | None:
        """Why the accuracy is what it is, and what is likely to raise it; None before the end."""
        table = (self._result or {}).get("diagnosis")
        return None if table is None else AccuracyDiagnosis.read(table)

    def _last(self, name: str) -> Any:
        rows = self._metrics
        return self._result[name] if self._result else rows[-1][name] if rows else None

    @property
    def score(self) -> str:
        """What `accuracy` measures: "accuracy", or for a regression "R-squared"."""
        last = self._result or (self._metrics[-1] if self._metrics else {})
        return str(last.get("score", "accuracy"))

    @property
    def accuracy(self) -> float | None:
        """The share of correct test labels, or the most important figure, which `score` names.

        It is that of the final model, or after the last finished round; None before the first.
        """
        value: float | None = self._last("accuracy")
        return value

    @property
    def metrics(self) -> dict[str, float]:
        """The figures of the final or newest model on the test data, the most important one first.

        They are empty before the first round; for a regression they are "R-squared" and "mean
        absolute error".
        """
        tested = [row for row in self._metrics if row["accuracy"] is not None]
        last = self._result or (tested[-1] if tested else None)
        found = {} if last is None else figures_of(last)
        return {name: value for name, value in found.items() if value is not None}

    @property
    def loss(self) -> float | None:
        """The test loss of the final model, or after the last finished round; None without one."""
        value: float | None = self._last("loss")
        return value

    @cached_property
    def epsilon(self) -> float:
        """The largest epsilon that any client has spent; infinite without a guarantee.

        For a run that has not ended it covers everything in its ledger, also what was charged for
        a round that is not finished. A run without a ledger counts charges in memory, so there it
        covers the finished rounds.
        """
        value: float | None = self._last("epsilon") if self._result or self._metrics else 0.0
        if value is None:
            return math.inf
        if self._result is not None or not self._folder.has_ledger:
            return value
        with LedgerReader(self._folder.path / LEDGER_NAME) as ledger:
            charged = ledger.largest_spent(self.delta)
        return max(value, charged.epsilon if charged else 0.0)

    @property
    def delta(self) -> float:
        """The failure probability of `epsilon`."""
        return float(self._header["spec"]["privacy"]["delta"])

    @property
    def adjacency(self) -> str:
        """Which data sets count as neighbors: "zero-out" or "replace-one"."""
        return str(self._header["spec"]["privacy"]["adjacency"])

    @property
    def tuning(self) -> dict[str, Any] | None:
        """How `tune` chose this run and what that cost; None if it was not chosen by `tune`."""
        found: dict[str, Any] | None = self._header.get("tuning")
        return found

    @property
    def guarantee(self) -> str:
        """What is protected, and on which assumptions, in a sentence."""
        return str(self._header["guarantee"])

    @property
    def warnings(self) -> list[str]:
        """Sentences to read before relying on the result; empty if there are none.

        A run that has not ended has one: how many of its rounds are finished.
        """
        if self._result is None:
            done, wanted = len(self._metrics), self._header["spec"]["rounds"]
            return [f"not finished: {done} of {wanted} rounds; resume the run with the same spec"]
        return list(self._result["warnings"])

    @cached_property
    def rounds(self) -> Table[Round]:
        """The finished rounds, one row each, in order."""
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
    def clients(self) -> Table[ClientSpending]:
        """What each client has spent, one row each; empty before the end of the run."""
        rows = self._result["clients"] if self._result else []
        shown = {name: name for name in (rows[0] if rows else ())}
        return Table(
            [ClientSpending(**row) for row in rows],
            caption=f"clients of {self.name}",
            columns=shown,
        )

    @cached_property
    def model(self) -> Vector:
        """The parameters of the newest checkpoint as one vector.

        Raises:
            OutputError: There is no checkpoint yet, or it is damaged.
        """
        return self._checkpoint.model

    @cached_property
    def averaged_model(self) -> Vector | None:
        """The average of models at the newest checkpoint; None without `algorithm.averaging`.

        Raises:
            OutputError: There is no checkpoint yet, or it is damaged.
        """
        return self._checkpoint.algorithm_state.get(AVERAGED)

    @cached_property
    def _checkpoint(self) -> "Progress":
        progress = self._folder.load_checkpoint()
        if progress is None:
            raise OutputError(
                f"{self.folder} has no checkpoint yet, so there is no model; resume the run until "
                "it saves one"
            )
        return progress

    def tensors(
        self, *, averaged: bool = False
    ) -> dict[str, "np.ndarray[Any, np.dtype[np.float32]]"]:
        """Return the parameters of the newest checkpoint by name.

        Args:
            averaged: Whether to return the average of models that `algorithm.averaging` keeps.

        Returns:
            A float32 array for each tensor of the model.

        Raises:
            OutputError: There is no checkpoint yet, it is damaged, or it has no average of models.
        """
        model = self.averaged_model if averaged else self.model
        if model is None:
            raise OutputError(f"{self.folder} {_NO_AVERAGE}")
        found, start = {}, 0
        for name, shape in self._header["layout"]:
            size = math.prod(shape)
            flat = model[start : start + size]
            found[name] = np.ascontiguousarray(flat.reshape(shape).astype(np.float32))
            start += size
        return found

    def state_dict(self, *, averaged: bool = False) -> "dict[str, torch.Tensor]":
        """Return the parameters for `module.load_state_dict`.

        A module with frozen parameters or buffers needs `strict=False`: they are not trained.

        Args:
            averaged: Whether to return the average of models that `algorithm.averaging` keeps.

        Returns:
            A float32 torch tensor for each name.

        Raises:
            OutputError: There is no checkpoint yet, it is damaged, or it has no average of models.
        """
        import torch

        found = self.tensors(averaged=averaged)
        return {name: torch.from_numpy(values) for name, values in found.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data.

        Returns:
            The content of result.json with all clients; empty before the end of the run.
        """
        return dict(self._result or {})

    # -- how it looks ----------------------------------------------------------------------

    def figures(self) -> dict[str, object]:
        """Return the key figures of the run, such as accuracy, epsilon, guarantee and rounds.

        Returns:
            The names and values that are printed for the run.
        """
        result = self._result or {}
        up = result.get("total_bytes_up_per_message")
        spec = self._header["spec"]
        mechanism = spec["mechanism"]
        return {
            **(self.metrics or {self.score: None}),
            "server-counted epsilon" if has_sites(spec) else "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "guarantee": self.guarantee,
            "mechanism": mechanism["kind"] if isinstance(mechanism, dict) else mechanism,
            "bits_per_coordinate": self._header["bits_per_coordinate"],
            "rounds": f"{len(self._metrics)} of {self._header['spec']['rounds']}",
            **({} if up is None else {"bytes_up_per_message": up}),
            **({"halted": self.halted} if self.halted else {}),
            **({"diverged": self.diverged} if self.diverged else {}),
            "folder": "temporary (give out=FOLDER to keep it)"
            if self._temporary
            else str(self.folder),
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
                    ChartLine(
                        name=self.name,
                        x=[float(number) for number, _ in measured],
                        y=[value for _, value in measured],
                    )
                ],
            )
            parts.append(display.picture(standalone(chart.svg()), title))
        return "\n".join(parts)


def open_run(folder: Path | str) -> Run:
    """Open an earlier run by its folder, finished or not.

    Args:
        folder: The run folder.

    Returns:
        The run, for reading.

    Raises:
        OutputError: The folder holds no run, or its files are damaged.
    """
    return Run(Path(folder).expanduser())
