"""Calibrated parameters, remembered on disk where finding them took long.

Seeds and learning rates do not change them, so a sweep finds them once for each mechanism and
budget. What is remembered is no promise: it is used only if the accountant, asked again, finds it
within the budget on every domain. An entry that is damaged, of another version or over budget is
found anew.

`calibrate`: the mechanism that just stays within a budget.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.core import files
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Domain
from sottovoce.core.errors import OutputError, SottovoceError
from sottovoce.mechanisms.design.store import cache_folder
from sottovoce.mechanisms.encoding import Privatizing
from sottovoce.mechanisms.registry import Parameters, Registration
from sottovoce.mechanisms.release import ReleaseTerms
from sottovoce.planning.release import Release, release_of
from sottovoce.planning.spending import check_names, checked_rounds
from sottovoce.privacy import accounting
from sottovoce.privacy.events import Repeated
from sottovoce.version import __version__


def calibrate(
    mechanism: str,
    *,
    epsilon: float,
    delta: float,
    dimension: int,
    rounds: int = 1,
    clip_norm: float = 1.0,
    clip_geometry: str | None = None,
    records: int = 1,
    adjacency: str | Adjacency = Adjacency.ZERO_OUT,
    sampling_rate: float | None = None,
    sampling: str = "poisson",
    sampling_hidden_by: str = "own-records",
    shuffled_clients: int | None = None,
    secure_sum_clients: int | None = None,
    **mechanism_parameters: object,
) -> Privatizing:
    """Return the least noisy mechanism whose releases over all rounds stay within a budget.

        calibrate("gauss_hermite", levels=2, epsilon=2.0, delta=1e-5, rounds=100, dimension=10_000)

    Args:
        mechanism: A name from `sottovoce mechanism list`.
        epsilon: The budget of a client over all `rounds` in which it takes part.
        delta: The failure probability of that budget.
        dimension: Coordinates of an update.
        clip_norm: The largest norm of a contribution; longer ones are clipped to it.
        mechanism_parameters: All parameters of the mechanism but the one that is found, such as
            `levels=2`; "auto" where the mechanism can choose.

    The others are the options of `sottovoce privacy calibrate`. The parameter that is found is
    rounded toward privacy: `spend` of the result is never above `epsilon`.

    Raises:
        ParameterError: A parameter is missing or out of range, or no value keeps the budget.
        PrivacyError: No bound is proved for what was asked for.
    """
    release = release_of(
        mechanism,
        dimension=dimension,
        clip_norm=clip_norm,
        clip_geometry=clip_geometry,
        records=records,
        adjacency=adjacency,
        sampling_rate=sampling_rate,
        sampling=sampling,
        sampling_hidden_by=sampling_hidden_by,
        shuffled_clients=shuffled_clients,
        secure_sum_clients=secure_sum_clients,
    )
    check_names("calibrate", release.registration, mechanism_parameters)
    return calibrated_release(
        release, mechanism_parameters, rounds=rounds, epsilon=epsilon, delta=delta
    )


def calibrated_release(
    release: Release, given: Parameters, *, rounds: int, epsilon: float, delta: float
) -> Privatizing:
    """Return the mechanism of a release whose `rounds` repetitions spend at most `epsilon`."""
    registration, domain = release.registration, release.domain
    found = registration.calibrated(
        domain,
        given,
        rounds=checked_rounds(rounds),
        epsilon=epsilon,
        delta=delta,
        event_of=release.terms,
    )
    return registration.build(domain, found)


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
