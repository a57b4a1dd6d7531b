"""Readiness checks of a party's folder, each with a remedy: what `deploy check` runs."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from sottovoce.core.errors import SottovoceError

State = Literal["ok", "FAILS", "not checked"]
_LEAST_FREE_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessCheck:
    """The result of one check.

    Attributes:
        name: What was checked.
        state: "ok", "FAILS", or "not checked" if a check that it needs has failed.
        detail: What was found.
        remedy: What to do if it fails; empty otherwise.
    """

    name: str
    state: State
    detail: str
    remedy: str = ""


class CheckError(Exception):
    """A problem that a check has found, and its remedy."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.detail, self.remedy = detail, remedy


Look: TypeAlias = tuple[str, Callable[[], str]]  # A check: its name, and what finds the detail.


def look_at(part: Look) -> ReadinessCheck:
    """Run one check; a SottovoceError, OSError or ValueError that it raises is a failure."""
    name, look = part
    try:
        return ReadinessCheck(name=name, state="ok", detail=look())
    except CheckError as problem:
        return ReadinessCheck(
            name=name, state="FAILS", detail=problem.detail, remedy=problem.remedy
        )
    except (SottovoceError, OSError, ValueError) as error:
        return ReadinessCheck(
            name=name, state="FAILS", detail=str(error), remedy="correct what this text names"
        )


def look_in_turn(parts: list[Look]) -> Iterator[ReadinessCheck]:
    """Run checks each of which needs the one before."""
    failed = ""
    for name, look in parts:
        if failed:
            yield ReadinessCheck(name=name, state="not checked", detail=f"needs '{failed}'")
            continue
        check = look_at((name, look))
        yield check
        failed = name if check.state == "FAILS" else ""


def demand(problem: str | None, remedy: str) -> None:
    """Raise CheckError if there is a problem."""
    if problem:
        raise CheckError(problem, remedy)


def free_disk(folder: Path) -> str:
    """Return how much disk space is free; raise CheckError if it is less than 512 MiB."""
    free = shutil.disk_usage(folder).free
    shown_free = f"{free / 2**30:.1f} GiB free"
    if free < _LEAST_FREE_BYTES:
        raise CheckError(
            f"{shown_free} in {folder}",
            "free disk space; a site that cannot write its ledger does not answer",
        )
    return shown_free
