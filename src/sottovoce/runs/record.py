"""What a run has left in its folder, read and checked: the ground of a report.

A run that still goes on is read as far as it has come. A folder that does not hold together is
refused in one sentence: a page about it would not be true.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.core import bounded_json, files
from sottovoce.core.errors import ConfigError, OutputError
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.loading import parse
from sottovoce.runs.spec import RunSpec

_COUNTS = (
    "round",
    "clients_asked",
    "clients_received",
    "clients_out_of_budget",
    "payload_bytes_up",
    "total_bytes_up",
    "payload_bytes_down",
    "total_bytes_down",
)
_SIGNED = ("accuracy", "loss")  # whatever else is counted or spent is never below 0
_MEASURED = ("accuracy", "loss", "epsilon")  # null where not measured, or without a guarantee
_RESULT = ("rounds", "accuracy", "loss", "epsilon", "guarantee", "clients", "groups", "warnings")
_OF_CLIENT = ("client", "group", "budget", "delta", "epsilon", "rounds", "ran_out")
_OF_GROUP = ("group", "clients", "mechanism", "budget", "delta", "epsilon", "rounds", "ran_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run as its folder tells it; `result` is None before its end."""

    folder: RunFolder
    spec: RunSpec
    header: dict[str, Any]
    rows: list[dict[str, Any]]
    result: dict[str, Any] | None

    @property
    def rounds_done(self) -> int:
        return len(self.rows)

    @property
    def dimension(self) -> int:
        return sum(math.prod(shape) for _, shape in self.header["layout"])

    @property
    def has_sites(self) -> bool:
        """Whether clients keep ledgers of their own, so that this one is the server's count."""
        return self.spec.runtime.backend != "fast"

    @property
    def stores_messages(self) -> bool:
        """Whether there is a ledger; elsewhere charges were counted in memory."""
        return self.spec.runtime.messages == "stored"


def read_record(path: Path) -> RunRecord:
    """The run in a folder; OutputError says what is wrong with it."""
    if not path.exists():
        raise OutputError(f"there is no folder {path}; name the folder of a run")
    if not path.is_dir():
        raise OutputError(f"{path} is a file; name the folder of a run")
    folder = RunFolder(path)
    result = folder.result()  # first: a run may end while it is read
    header = folder.full_header()
    spec = _spec(path / "run.json", header)
    rows = read_rows(path / "metrics.jsonl")
    if result is not None:
        check_result(path / "result.json", result)
        if result.get("spec_hash", spec.hash) != spec.hash:
            raise OutputError(
                f"{path / 'result.json'} is of another spec ({result['spec_hash']}) than run.json "
                f"({spec.hash}); restore whichever was changed"
            )
        if len(rows) < result["rounds"]:
            raise OutputError(
                f"{path / 'metrics.jsonl'} is damaged: it holds {len(rows)} whole rounds, and "
                f"result.json says {result['rounds']}; restore it"
            )
        rows = rows[: result["rounds"]]
    return RunRecord(folder=folder, spec=spec, header=header, rows=rows, result=result)


def read_finding(path: Path, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """What an audit or an attack left in the folder, if it did."""
    if not path.is_file():
        return None
    finding = files.read_json(path)
    _check_keys(path, finding, keys)
    assert isinstance(finding, dict)
    return finding


def _spec(path: Path, header: Mapping[str, Any]) -> RunSpec:
    try:
        spec = parse(header["spec"], str(path))
    except ConfigError as error:
        raise OutputError(
            f"{error}; the file is damaged, or of another version: restore it, or use the "
            "Sottovoce that wrote it"
        ) from None
    if any(
        not isinstance(one, dict) or not isinstance(one.get("client"), str)
        for one in header.get("clients", [])
    ):
        raise OutputError(f"{path} is damaged: 'clients' is no list of clients; restore it")
    return spec


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of all rounds; only the last line may be cut off, as by a crash."""
    if not path.exists():
        return []
    with files.explained("read", path):
        lines = path.read_bytes().splitlines()
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = bounded_json.loads(line)
        except bounded_json.JsonError as error:
            if number == len(lines) and not isinstance(error, bounded_json.BoundsError):
                break
            raise OutputError(f"{path} is damaged: line {number} {error}; restore it") from None
        where = f"{path}, line {number}"
        _check_keys(path, row, (*_COUNTS, *_MEASURED), where=f"line {number}")
        for name in (*_COUNTS, *_MEASURED):
            _check_number(where, name, row[name], may_be_null=name in _MEASURED)
        if row["round"] != number:
            raise OutputError(
                f"{path} is damaged: line {number} is of round {row['round']}; restore it"
            )
        bounds = row.get("bounds", {})
        _check_keys(path, bounds, (), where=f"line {number}, 'bounds'")
        for name, bound in bounds.items():
            _check_number(where, name, bound, may_be_null=True)
        _check_sites(path, row.get("sites", {}), where=f"line {number}, 'sites'")
        rows.append(row)
    return rows


def _check_sites(path: Path, sites: Any, *, where: str) -> None:
    _check_keys(path, sites, (), where=where)
    for reply in sites.values():
        _check_keys(path, reply, ("outcome", "rounds_charged"), where=where)
        charged = reply["rounds_charged"]
        _check_number(f"{path}, {where}", "rounds_charged", charged, may_be_null=True)


def check_result(path: Path, result: Any) -> None:
    """Refuse a result.json whose keys are not there, or not what they should be."""
    _check_keys(path, result, _RESULT)
    _check_number(str(path), "rounds", result["rounds"])
    for name in _MEASURED:
        _check_number(str(path), name, result[name], may_be_null=True)
    if not isinstance(result.get("halted"), str | None):
        raise OutputError(f"{path} is damaged: 'halted' is no text; restore it")
    for name, keys in (("clients", _OF_CLIENT), ("groups", _OF_GROUP), ("warnings", None)):
        if not isinstance(result[name], list):
            raise OutputError(f"{path} is damaged: '{name}' is no list; restore it")
        if name == "warnings" and not all(isinstance(one, str) for one in result[name]):
            raise OutputError(f"{path} is damaged: 'warnings' is no list of texts; restore it")
        for entry in result[name] if keys else ():
            _check_keys(path, entry, keys or (), where=f"'{name}'")
            if name == "clients" and not isinstance(entry["client"], str):
                raise OutputError(f"{path} is damaged: a client has no name; restore it")
            if name == "groups" and isinstance(entry["mechanism"], dict):
                _check_keys(path, entry["mechanism"], ("kind",), where="a group's mechanism")
            for number in ("rounds", "delta"):
                _check_number(str(path), number, entry[number])
            for number in ("budget", "epsilon"):
                _check_number(str(path), number, entry[number], may_be_null=True)


def _check_keys(path: Path, value: Any, keys: tuple[str, ...], *, where: str = "it") -> None:
    if not isinstance(value, dict):
        raise OutputError(f"{path} is damaged: {where} is no table; restore it")
    for key in keys:
        if key not in value:
            raise OutputError(f"{path} is damaged: {where} lacks '{key}'; restore it")


def _check_number(where: str, name: str, value: Any, *, may_be_null: bool = False) -> None:
    if value is None and may_be_null:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise OutputError(f"{where} is damaged: '{name}' is no number, got {value!r}; restore it")
    if value < 0 and name not in _SIGNED:
        raise OutputError(f"{where} is damaged: '{name}' is below 0, got {value!r}; restore it")
