"""Read and check the files of a run folder, as the basis of a report.

A run that is still in progress is read as far as it has come. A folder whose files contradict each
other is refused with one sentence, because a report on it would be wrong.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from sottovoce.core import bounded_json, files
from sottovoce.core.errors import ConfigError, OutputError
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.loading import parse
from sottovoce.runs.sections import problem_in
from sottovoce.runs.spec import RunSpec

# How the sentence begins that says why a run stopped whose test loss is not finite.
DIVERGED = "the model diverged"

_Number = Annotated[float, Field(allow_inf_nan=False)]
_Amount = Annotated[_Number, Field(ge=0.0)]


class _Table(BaseModel):
    """A table of a file; keys that are not listed are ignored."""

    model_config = ConfigDict(strict=True)


class _Measures(_Table):
    """Values that are null where nothing was measured, or without a guarantee."""

    accuracy: _Number | None
    loss: _Number | None
    epsilon: _Amount | None


class _Reply(_Table):
    outcome: Any
    rounds_charged: _Amount | None


class _Row(_Measures):
    """A line of metrics.jsonl."""

    round: _Amount
    clients_asked: _Amount
    clients_received: _Amount
    clients_out_of_budget: _Amount
    payload_bytes_up: _Amount
    total_bytes_up: _Amount
    payload_bytes_down: _Amount
    total_bytes_down: _Amount
    bounds: dict[str, _Amount | None] = {}
    sites: dict[str, _Reply] = {}


class _Account(_Table):
    group: Any
    budget: _Amount | None
    delta: _Amount
    epsilon: _Amount | None
    rounds: _Amount
    ran_out: Any


class _Client(_Account):
    client: str


class _Mechanism(_Table):
    kind: Any


class _Group(_Account):
    clients: Any
    mechanism: _Mechanism | str | None


class _Suggestion(_Table):
    key: str
    change: str
    reason: str


class _Diagnosis(_Table):
    at_chance: bool
    signal_norm: _Amount | None
    noise_norm: _Amount | None
    findings: list[str]
    suggestions: list[_Suggestion]


class _Result(_Measures):
    """The content of result.json."""

    rounds: _Amount
    guarantee: Any
    clients: list[_Client]
    groups: list[_Group]
    warnings: list[str]
    halted: str | None = None
    diagnosis: _Diagnosis | None = None  # Older results have none.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run as its folder holds it.

    Attributes:
        folder: The run folder.
        spec: The resolved spec.
        header: The content of run.json, with all clients.
        rows: The metrics of each round.
        result: The content of result.json; None before the end of the run.
    """

    folder: RunFolder
    spec: RunSpec
    header: dict[str, Any]
    rows: list[dict[str, Any]]
    result: dict[str, Any] | None

    @property
    def rounds_done(self) -> int:
        """The number of finished rounds."""
        return len(self.rows)

    @property
    def dimension(self) -> int:
        """The number of parameters of the model."""
        return sum(math.prod(shape) for _, shape in self.header["layout"])

    @property
    def has_sites(self) -> bool:
        """Whether clients keep their own ledgers; the run's ledger is then the server's count."""
        return self.spec.runtime.backend != "fast"

    @property
    def stores_messages(self) -> bool:
        """Whether the run charges messages in a ledger; otherwise they were counted in memory."""
        return self.spec.runtime.messages == "stored"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmFacts:
    """What a report needs to know about an algorithm, which may not be installed where it is made.

    Attributes:
        enforces_budget: Whether privacy.epsilon is a budget that the ledger enforced.
        sends: What a message describes; {numbers} stands for text such as "7,850 numbers".
    """

    enforces_budget: bool
    sends: str


def algorithm_facts(header: Mapping[str, Any]) -> AlgorithmFacts:
    """Return what run.json says about the algorithm; for older folders, what its kind implies."""
    told = header.get("algorithm")
    if isinstance(told, dict):
        enforces, sends = told.get("enforces_budget"), told.get("sends")
        if isinstance(enforces, bool) and isinstance(sends, str):
            return AlgorithmFacts(enforces_budget=enforces, sends=sends)
    spec = header.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    algorithm, privacy = spec.get("algorithm"), spec.get("privacy")
    kind = algorithm.get("kind") if isinstance(algorithm, dict) else None
    level = privacy.get("level") if isinstance(privacy, dict) else None
    sends = "an update of {numbers}"
    if kind == "nbafl":
        sends = "a trained model of {numbers}"
    elif kind == "scaffold" and level == "client":
        sends = "an update and the change of a control variate, of {numbers} each,"
    return AlgorithmFacts(enforces_budget=kind != "nbafl", sends=sends)


def read_record(path: Path) -> RunRecord:
    """Read and check a run folder.

    Args:
        path: The folder.

    Returns:
        The run, as far as it has come.

    Raises:
        OutputError: The folder holds no run, or its files are damaged or contradict each other.
    """
    if not path.exists():
        raise OutputError(f"there is no folder {path}; name the folder of a run")
    if not path.is_dir():
        raise OutputError(f"{path} is a file; name the folder of a run")
    folder = RunFolder(path)
    result = folder.result()  # Read this first: the run may end in the meantime.
    header = folder.full_header()
    spec = _spec(path / "run.json", header)
    rows = read_rows(path / "metrics.jsonl")
    if result is not None:
        check_result(path / "result.json", result)
        if result.get("spec_hash", spec.hash) != spec.hash:
            raise OutputError(
                f"{path / 'result.json'} belongs to another spec ({result['spec_hash']}) than "
                f"run.json ({spec.hash}); restore the file that was changed"
            )
        if len(rows) < result["rounds"]:
            raise OutputError(
                f"{path / 'metrics.jsonl'} is damaged: it holds {len(rows)} complete rounds, but "
                f"result.json says {result['rounds']}; restore it from a backup"
            )
        rows = rows[: result["rounds"]]
    return RunRecord(folder=folder, spec=spec, header=header, rows=rows, result=result)


def read_finding(path: Path, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the content of a file that an audit or an attack has written; None if there is none.

    Args:
        path: The JSON file.
        keys: The keys that it must have.

    Raises:
        OutputError: The file is damaged, or lacks one of the keys.
    """
    if not path.is_file():
        return None
    finding = files.read_json(path)
    fields: dict[str, Any] = dict.fromkeys(keys, Any)
    _check(create_model("Finding", **fields), path, finding)
    assert isinstance(finding, dict)
    return finding


def _spec(path: Path, header: Mapping[str, Any]) -> RunSpec:
    try:
        spec = parse(header["spec"], str(path))
    except ConfigError as error:
        raise OutputError(
            f"{error}; the file is damaged or was written by another version: restore it, or use "
            "the version of Sottovoce that wrote it"
        ) from None
    if any(
        not isinstance(one, dict) or not isinstance(one.get("client"), str)
        for one in header.get("clients", [])
    ):
        raise OutputError(f"{path} is damaged: 'clients' must be a list of clients; restore it")
    return spec


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the metrics of all rounds from a metrics.jsonl; empty if there is no such file.

    A last line that is cut off, as by a crash, is left out.

    Raises:
        OutputError: Another line is damaged, or the rounds are not numbered 1, 2, ...
    """
    if not path.exists():
        return []
    with files.explain_os_errors("read", path):
        lines = path.read_bytes().splitlines()
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = bounded_json.loads(line)
        except bounded_json.JsonError as error:
            if number == len(lines) and not isinstance(error, bounded_json.BoundsError):
                break
            raise OutputError(f"{path} is damaged: line {number} {error}; restore it") from None
        _check(_Row, path, row, where=f"line {number}: ")
        if row["round"] != number:
            raise OutputError(
                f"{path} is damaged: line {number} belongs to round {row['round']}, not {number}; "
                "restore it from a backup"
            )
        rows.append(row)
    return rows


def check_result(path: Path, result: Any) -> None:
    """Raise OutputError if a result.json lacks keys or has values of wrong types.

    Args:
        path: The file, for the message.
        result: Its content.
    """
    _check(_Result, path, result)


def _check(model: type[BaseModel], path: Path, value: object, *, where: str = "") -> None:
    try:
        model.model_validate(value)
    except ValidationError as error:
        problem = problem_in(error, model)
        raise OutputError(f"{path} is damaged: {where}{problem}; restore it") from None
