"""Calibrated parameters, remembered on disk where finding them took long.

Seeds and learning rates do not change them, so a sweep finds them once for each mechanism and
budget. What is remembered is no promise: it is used only if the accountant, asked again, finds it
within the budget on every domain. An entry that is damaged, of another version or over budget is
found anew.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.core import files
from sottovoce.core.domains import Domain
from sottovoce.core.errors import OutputError, SottovoceError
from sottovoce.mechanisms.design.store import cache_folder
from sottovoce.mechanisms.registry import Parameters, Registration
from sottovoce.mechanisms.release import ReleaseTerms
from sottovoce.privacy import accounting
from sottovoce.privacy.events import Repeated
from sottovoce.version import __version__

WORTH_REMEMBERING_SECONDS = 0.5
_VERSION = 2  # to be raised when calibration finds other values


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The budget that so many releases are to keep."""

    rounds: int
    epsilon: float
    delta: float


def calibrated(
    registration: Registration,
    domains: Sequence[Domain],
    given: Parameters,
    target: Target,
    terms: ReleaseTerms,
) -> dict[str, Any]:
    """`Registration.calibrated_for_all`, from memory where that has an answer that still holds."""
    path = _folder() / f"{_key(registration.kind, domains, given, target, terms)}.json"
    found = _read(path)
    if found is not None and _keeps(registration, domains, found, target, terms):
        return found
    start = time.perf_counter()
    found = registration.calibrated_for_all(
        domains,
        given,
        rounds=target.rounds,
        epsilon=target.epsilon,
        delta=target.delta,
        event_of=terms,
    )
    if time.perf_counter() - start > WORTH_REMEMBERING_SECONDS:
        _write(path, found)
    return found


def _folder() -> Path:
    return cache_folder().parent / "calibrations"


def _key(
    kind: str, domains: Sequence[Domain], given: Parameters, target: Target, terms: ReleaseTerms
) -> str:
    """A digest of all that the answer follows from.

    Names of classes are in it, and may change: so does the version, and whatever is not found is
    calibrated again.
    """
    asked = [kind, dict(given), [repr(domain) for domain in domains], repr(target), repr(terms)]
    text = json.dumps([_VERSION, __version__, *asked], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found = files.read_json(path)
    except OutputError:
        return None
    return found if isinstance(found, dict) else None


def _keeps(
    registration: Registration,
    domains: Sequence[Domain],
    found: Parameters,
    target: Target,
    terms: ReleaseTerms,
) -> bool:
    """Whether the parameters are the mechanism's, and spend no more than asked on any domain."""
    try:
        for domain in domains:
            event = terms(registration.build(domain, found))
            whole = Repeated(event=event, count=target.rounds)
            if not accounting.within(whole, target.delta, target.epsilon):
                return False
    except SottovoceError:
        return False
    return True


def _write(path: Path, found: Parameters) -> None:
    try:
        with files.explained("create", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, dict(found))
    except OutputError:  # a memory that cannot be written only costs time
        pass
