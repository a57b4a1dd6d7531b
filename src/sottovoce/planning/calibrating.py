"""`calibrate`: the mechanism that just stays within a budget."""

from sottovoce.core.adjacency import Adjacency
from sottovoce.mechanisms.privatizing import Privatizing
from sottovoce.mechanisms.registry import Parameters
from sottovoce.planning.release import Release, release_of
from sottovoce.planning.spending import check_names, checked_rounds


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
