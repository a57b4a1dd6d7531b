"""What a tracker is, and what is logged of a run: the same names in every one."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Row = Mapping[str, Any]

# What is logged of a round, as it is called in metrics.jsonl.
_ROUND_FIGURES = (
    "accuracy",
    "loss",
    "epsilon",
    "total_bytes_up",
    "total_bytes_down",
    "payload_bytes_up",
    "payload_bytes_down",
    "clients_asked",
    "clients_received",
    "clients_out_of_budget",
)
_FINAL_FIGURES = (
    "accuracy",
    "loss",
    "rounds",
    "epsilon",
    "local_epsilon",
    "central_epsilon",
    "bits_per_coordinate",
    "total_bytes_up_per_client",
    "clients_out_of_budget",
)
_FINAL_WORDS = ("guarantee", "accountant", "halted", "channel", "spec_hash", "sampling_grade")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """The run that is logged: its spec as plain data, its folder, and the rounds it has so far."""

    folder: Path
    spec: Mapping[str, Any]
    rounds_so_far: Callable[[], Sequence[Row]]

    @property
    def name(self) -> str:
        return str(self.spec.get("name", self.folder.name))


class Tracker(Protocol):
    """Takes rounds in order. Of a resumed run it may be given rounds that it has already."""

    def log(self, row: Row) -> None: ...

    def finish(self, result: Mapping[str, Any]) -> None:
        """The last line of the story."""
        ...

    def close(self, *, finished: bool) -> None: ...


def without_secrets(text: str) -> str:
    """Addresses without the user, password and query that they may hold."""
    return re.sub(r"\?\S+", "", re.sub(r"://[^/\s]*@", "://", text))


def round_figures(row: Row) -> dict[str, float]:
    """The figures of a round; an epsilon without a guarantee is no number, and is left out."""
    return _finite(row, _ROUND_FIGURES)


def final_figures(result: Mapping[str, Any]) -> dict[str, float]:
    return {f"final/{name}": value for name, value in _finite(result, _FINAL_FIGURES).items()}


def final_words(result: Mapping[str, Any]) -> dict[str, str]:
    words = {name: str(result[name]) for name in _FINAL_WORDS if result.get(name) is not None}
    warnings = result.get("warnings")
    if isinstance(warnings, list) and warnings:
        words["warnings"] = "; ".join(map(str, warnings))
    return words


def flat(spec: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """A spec as a.b = value, as `--set` takes it; nothing is null, and lists are their text."""
    return dict(_flat(spec, ""))


def _flat(value: Any, path: str) -> Iterator[tuple[str, bool | int | float | str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, bool | int | float | str):
        yield path, value
    elif value is not None and value != [] and value != ():
        yield path, str(value)


def _finite(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    """Rows of a resumed run are read from a file, which may hold anything under these names."""
    found = {name: values.get(name) for name in names}
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and abs(value) <= sys.float_info.max
    }
