"""Calibration: find the mechanism with the least noise that stays within a privacy budget.

`calibrate` is the public function. `calibrate_cached` does the same for the groups of a run and
caches its results on disk when finding them took long: seeds and learning rates do not change
them, so a sweep calibrates once for each mechanism and budget. A cached result is never trusted.
It is used only if the accountant, asked again, finds it within the budget on every domain; an
entry that is damaged, of another version or over budget is calibrated again.
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
from sottovoce.planning.release import PlannedRelease, release_of
from sottovoce.planning.spending import check_names, check_rounds
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

    Calibrated is the parameter that sets the noise, such as `noise_multiplier`. It is rounded
    toward privacy: `spend` of the result is never above `epsilon`.

    Args:
        mechanism: A name from `sottovoce mechanism list`.
        epsilon: The budget of a client over all `rounds` in which it takes part.
        delta: The failure probability of that budget, strictly between 0 and 1.
        dimension: The number of coordinates of an update.
        rounds: The number of rounds in which a client takes part.
        clip_norm: The largest norm of a contribution; longer ones are clipped to it.
        clip_geometry: The norm that is clipped: "l2", "l1" or "linf". By default the one that the
            mechanism is made for.
        records: How many records an update averages; each is clipped to `clip_norm`, and one of
            them is protected. With 1 the whole update is protected.
        adjacency: "zero-out" or "replace-one".
        sampling_rate: The probability of being in the secret sample of a round; None for no
            sampling.
        sampling: How the sample is drawn: "poisson" or "fixed-size".
        sampling_hidden_by: What hides the sample: "own-records", "central-noise" or "secure-sum".
        shuffled_clients: The smallest number of messages that a trusted shuffler mixes; None
            without a shuffler.
        secure_sum_clients: The smallest number of clients in a secure sum; None without one.
        **mechanism_parameters: The parameters of the mechanism except the calibrated one, such as
            `levels=2`; "auto" where the mechanism can choose.

    Returns:
        The mechanism, ready to privatize updates.

    Raises:
        ParameterError: A parameter is missing or out of range, or no value keeps the budget.
        UnknownNameError: There is no such mechanism, parameter, adjacency, geometry or sampling.
        PrivacyError: No bound is proved for this combination of sampling, shuffling and sums.

    Examples:
        >>> import sottovoce
        >>> mechanism = sottovoce.calibrate(
        ...     "gaussian", epsilon=2.0, delta=1e-5, rounds=10, dimension=100
        ... )
        >>> round(mechanism.noise_multiplier, 2)
        6.3
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
    return calibrate_release(
        release, mechanism_parameters, rounds=rounds, epsilon=epsilon, delta=delta
    )


def calibrate_release(
    release: PlannedRelease, given: Parameters, *, rounds: int, epsilon: float, delta: float
) -> Privatizing:
    """Return the least noisy mechanism of a release whose `rounds` repetitions keep a budget.

    Args:
        release: The kind of mechanism, its domain and what an observer sees.
        given: Every parameter of the mechanism except the calibrated one.
        rounds: The number of releases of one client.
        epsilon: The largest epsilon of all of them together.
        delta: The failure probability of that epsilon.

    Returns:
        The mechanism on the domain of the release.

    Raises:
        ParameterError: A parameter is missing or out of range, or no value keeps the budget.
        UnknownNameError: The mechanism has no such parameter.
        PrivacyError: No bound is proved for what the observer sees.
    """
    registration, domain = release.registration, release.domain
    found = registration.calibrated(
        domain,
        given,
        rounds=check_rounds(rounds),
        epsilon=epsilon,
        delta=delta,
        event_of=release.terms,
    )
    return registration.build(domain, found)


WORTH_REMEMBERING_SECONDS = 0.5
_VERSION = 2  # Raise it when calibration would find other values.


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationTarget:
    """The budget that a number of releases must keep.

    Attributes:
        rounds: The number of releases of one client.
        epsilon: The largest epsilon of all of them together.
        delta: The failure probability of that epsilon.
    """

    rounds: int
    epsilon: float
    delta: float


def calibrate_cached(
    registration: Registration,
    domains: Sequence[Domain],
    given: Parameters,
    target: CalibrationTarget,
    terms: ReleaseTerms,
) -> dict[str, Any]:
    """Return calibrated parameters, from the cache where it holds ones that still keep the budget.

    Parameters that took more than half a second to find are written to the cache on disk.

    Args:
        registration: The mechanism's registration.
        domains: Every domain on which the parameters must keep the budget.
        given: The parameters that are not calibrated.
        target: The budget, and how many releases share it.
        terms: What an observer sees of a release, and its adjacency.

    Returns:
        All parameters, as `Registration.calibrate_for_all` finds them.

    Raises:
        ParameterError: No value of the calibrated parameter keeps the budget on every domain.
    """
    path = _folder() / f"{_key(registration.kind, domains, given, target, terms)}.json"
    found = _read(path)
    if found is not None and _keeps(registration, domains, found, target, terms):
        return found
    start = time.perf_counter()
    found = registration.calibrate_for_all(
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
    kind: str,
    domains: Sequence[Domain],
    given: Parameters,
    target: CalibrationTarget,
    terms: ReleaseTerms,
) -> str:
    """Return a digest of everything that the calibrated parameters depend on.

    Class names are part of it, so a renamed class only means that the entry is calibrated again.
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
    target: CalibrationTarget,
    terms: ReleaseTerms,
) -> bool:
    """Return whether the parameters are valid and stay within the target on every domain."""
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
        with files.explain_os_errors("create", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, dict(found))
    except OutputError:  # A cache that cannot be written only costs time.
        pass
