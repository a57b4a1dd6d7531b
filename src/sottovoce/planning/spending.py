"""The function `spend`: the epsilon of a number of rounds, by every accountant that has a bound."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.core import display, parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.display import show_epsilon, text_fields
from sottovoce.core.domains import MAX_DIMENSION, geometry_of
from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.core.files import finite
from sottovoce.mechanisms.mechanism import Mechanism, bits_per_coordinate
from sottovoce.mechanisms.registry import Registration, kind_of, parameters_of
from sottovoce.planning.release import PlannedRelease, release_of
from sottovoce.privacy.accounting import PrivacySpent, privacy_spent
from sottovoce.privacy.calibration import MAX_ROUNDS
from sottovoce.privacy.compositions import compose_repeated, describe_assumptions
from sottovoce.privacy.events import PrivacyEvent, Repeated, basic_counts

FLOAT_GRADE = "float (simulation only: the low-order bits of float noise can leak the input)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendResult:
    """What a client has spent after a number of rounds.

    Attributes:
        epsilon: The bound of `accountant`; infinite where there is no guarantee.
        delta: The failure probability of that epsilon; 0 for pure differential privacy.
        adjacency: Which data sets count as neighbors.
        accountant: The accountant that was asked for, else the one with the smallest bound; "local"
            is the smallest bound that ignores shuffling, secure sums and random allocation.
        assumes: What epsilon rests on in addition to its proof, in a sentence; None for nothing.
        rounds: The number of rounds.
        bounds: The bounds by accountant: of all built-in ones that have a bound, or only of the
            built-in one that was asked for. Each of them holds. A plug-in that was asked for is
            listed in addition to them; its bound holds if its claim is true.
        local_epsilon: Where a mechanism was given and its messages or samples are hidden, the
            epsilon against an observer who sees every message and every sample; otherwise None,
            also for a privacy event.
        details: The mechanism, its parameters, clipping and bits, where a mechanism was given.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    accountant: str
    assumes: str | None
    rounds: int
    bounds: Mapping[str, float]
    local_epsilon: float | None = None
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def private(self) -> bool:
        """Whether there is a guarantee: epsilon is finite."""
        return math.isfinite(self.epsilon)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data.

        Returns:
            The same as `privacy spend --json` prints; None stands for an infinite epsilon.
        """
        result: dict[str, Any] = finite(self._fields())
        return result

    def fields(self) -> dict[str, Any]:
        """Return names and values as they are printed.

        Returns:
            The same fields as `to_dict`, with explanations in place of bare codes.
        """
        found = self._fields()
        if self.rounds == MAX_ROUNDS:
            found["rounds"] = f"{self.rounds} (the largest number that is accounted)"
        if found.get("sampling_grade") == "float":
            found["sampling_grade"] = FLOAT_GRADE
        return found

    def _fields(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": str(self.adjacency),
            "accountant": self.accountant,
            "assumes": self.assumes,
            "private": self.private,
            **({} if self.details else {"rounds": self.rounds}),
            **self.details,
            "bounds": dict(self.bounds),
        }
        if self.local_epsilon is not None:
            found["local_epsilon"] = self.local_epsilon
        return found

    def __str__(self) -> str:
        return text_fields(self.fields())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        caption = f"epsilon {show_epsilon(self.epsilon)} at delta {self.delta!r} ({self.adjacency})"
        return display.fields(self.fields(), caption=caption)


def spend(
    mechanism: str | Mechanism | PrivacyEvent,
    *,
    delta: float,
    rounds: int = 1,
    adjacency: str | Adjacency | None = None,
    dimension: int | None = None,
    clip_norm: float | None = None,
    clip_geometry: str | None = None,
    records: int | None = None,
    sampling_rate: float | None = None,
    sampling: str = "poisson",
    sampling_hidden_by: str = "own-records",
    shuffled_clients: int | None = None,
    secure_sum_clients: int | None = None,
    accountant: str | None = None,
    **mechanism_parameters: object,
) -> SpendResult:
    """Return the epsilon that a client spends over a number of rounds.

    Give a mechanism by name, with its parameters and the clipping; or a mechanism object, which has
    both; or a privacy event, which describes one round completely.

    Args:
        mechanism: A name from `sottovoce mechanism list`, a mechanism object or a privacy event.
        delta: The failure probability at which epsilon is reported, strictly between 0 and 1.
        rounds: The number of rounds in which the client takes part.
        adjacency: "zero-out" (the default) or "replace-one"; an event has its own.
        dimension: The number of coordinates of an update. It may be omitted where the cost is the
            same in every dimension.
        clip_norm: The largest norm of a contribution, 1 by default.
        clip_geometry: The norm that is clipped: "l2", "l1" or "linf". By default the one that the
            mechanism is made for.
        records: How many records an update averages, 1 by default; each is clipped to `clip_norm`,
            and one of them is protected. With 1 the whole update is protected.
        sampling_rate: The probability of being in the secret sample of a round; None for no
            sampling.
        sampling: How the sample is drawn: "poisson" or "fixed-size".
        sampling_hidden_by: What hides the sample: "own-records", "central-noise" or "secure-sum".
        shuffled_clients: The smallest number of messages that a trusted shuffler mixes; None
            without a shuffler.
        secure_sum_clients: The smallest number of clients in a secure sum; None without one.
        accountant: Use this accountant only; by default the smallest bound of the built-in ones.
        **mechanism_parameters: The parameters of a mechanism given by name.

    Returns:
        Epsilon, the bounds of all accountants that were asked, and what they assume.

    Raises:
        ParameterError: A parameter is missing, out of range, or already part of `mechanism`.
        UnknownNameError: There is no such mechanism, parameter, accountant, adjacency, geometry or
            sampling.
        PrivacyError: No bound is proved for this combination of sampling, shuffling and sums.

    Examples:
        >>> import sottovoce
        >>> spent = sottovoce.spend("gaussian", noise_multiplier=10.0, rounds=100, delta=1e-5)
        >>> round(spent.epsilon, 2), spent.accountant
        (4.38, 'gaussian')
    """
    clip = {
        "dimension": dimension,
        "clip_norm": clip_norm,
        "clip_geometry": clip_geometry,
        "records": records,
    }
    hiding = {
        "sampling_rate": sampling_rate,
        "shuffled_clients": shuffled_clients,
        "secure_sum_clients": secure_sum_clients,
    }
    if isinstance(mechanism, PrivacyEvent):
        _refuse_given(
            "a privacy event already describes the round",
            {**clip, **hiding, **_given_sampling(sampling, sampling_hidden_by)}
            | {"adjacency": adjacency},
            mechanism_parameters,
        )
        check_rounds(rounds)
        spent = privacy_spent(Repeated(event=mechanism, count=rounds), delta, accountant)
        return _spent(spent, rounds)
    if not isinstance(mechanism, str):
        _refuse_given("a mechanism object already has its own", clip, mechanism_parameters)
    release = release_of(
        mechanism,
        dimension=dimension,
        clip_norm=1.0 if clip_norm is None else clip_norm,
        clip_geometry=clip_geometry,
        records=1 if records is None else records,
        adjacency=adjacency or Adjacency.ZERO_OUT,
        sampling_rate=sampling_rate,
        sampling=sampling,
        sampling_hidden_by=sampling_hidden_by,
        shuffled_clients=shuffled_clients,
        secure_sum_clients=secure_sum_clients,
    )
    if isinstance(mechanism, str):
        check_names("spend", release.registration, mechanism_parameters)
    parameter_rules.delta(delta)
    check_rounds(rounds)
    built = (
        release.registration.build(release.domain, mechanism_parameters)
        if isinstance(mechanism, str)
        else mechanism
    )
    return spending_of_mechanism(built, release, rounds=rounds, delta=delta, accountant=accountant)


def spending_of_mechanism(
    mechanism: Mechanism,
    release: PlannedRelease,
    *,
    rounds: int,
    delta: float,
    accountant: str | None = None,
) -> SpendResult:
    """Return what `rounds` releases of a mechanism spend, under the terms of `release`.

    `accountant` is the only accountant to use; None for the smallest bound of the built-in ones.
    """
    terms = release.terms
    event = Repeated(event=terms(mechanism), count=rounds)
    spent = terms.spent(event, delta, accountant)
    local = Repeated(event=terms.local(mechanism), count=rounds)
    any_dimension = release.dimension is None and any(
        getattr(part, "dimension", 1) == MAX_DIMENSION for part in basic_counts(local)
    )
    details = {
        "mechanism": kind_of(mechanism),
        "parameters": parameters_of(mechanism),
        "dimension": "any" if any_dimension else mechanism.input_domain.dimension,
        "clip_norm": release.clip_norm,
        "clip_geometry": geometry_of(mechanism.input_domain),
        "records": getattr(mechanism.input_domain, "records", 1),
        "noise_stddev": getattr(mechanism, "noise_stddev", None),
        "rounds": rounds,
        "bits_per_coordinate": bits_per_coordinate(mechanism),
        "sampling_grade": mechanism.sampling,
        "rounding_inflation": getattr(mechanism, "inflation", None),
        **terms.describe(),
    }
    local_epsilon = privacy_spent(local, delta).epsilon if terms.amplified else None
    return _spent(spent, rounds, local_epsilon, details)


def spending_of_charges(
    history: Sequence[tuple[PrivacyEvent, int]], delta: float | None, pure: float
) -> PrivacySpent:
    """Return the epsilon that charges have spent at `delta`, or the sum of their pure epsilons.

    The pure sum, which needs no delta, is returned where `delta` is None, or where it prints as the
    same epsilon as the bound at `delta`.

    Args:
        history: At least one pair of a privacy event and how often it was charged.
        delta: The delta at which epsilon is computed; None for the pure sum.
        pure: The sum of the pure epsilons of all charges; infinite if one of them has none.

    Returns:
        Epsilon with its delta, 0 for the pure sum, and what it assumes.
    """
    event = compose_repeated(history)
    if delta is not None:
        spent = privacy_spent(event, delta)
        if not math.isfinite(pure) or show_epsilon(pure) != show_epsilon(spent.epsilon):
            return spent
    return PrivacySpent(
        epsilon=pure,
        delta=0.0,
        adjacency=event.adjacency,
        accountant="pure",
        bounds=(("pure", pure),),
        assumptions=describe_assumptions(event),
    )


def _spent(
    spent: PrivacySpent,
    rounds: int,
    local_epsilon: float | None = None,
    details: Mapping[str, Any] | None = None,
) -> SpendResult:
    return SpendResult(
        epsilon=spent.epsilon,
        delta=spent.delta,
        adjacency=spent.adjacency,
        accountant=spent.accountant,
        assumes=spent.assumes,
        rounds=rounds,
        bounds=dict(spent.bounds),
        local_epsilon=local_epsilon,
        details=details or {},
    )


def check_rounds(rounds: int) -> int:
    """Return the number of rounds; raise ParameterError if it is below 1 or above the maximum."""
    return parameter_rules.integer("rounds", rounds, low=1, high=MAX_ROUNDS)


def _given_sampling(sampling: str, hidden_by: str) -> dict[str, str | None]:
    """Return how a sample is drawn and hidden, with None for the defaults."""
    return {
        "sampling": None if sampling == "poisson" else sampling,
        "sampling_hidden_by": None if hidden_by == "own-records" else hidden_by,
    }


def _refuse_given(
    why: str, given: Mapping[str, object], mechanism_parameters: Mapping[str, object]
) -> None:
    named = [name for name, value in given.items() if value is not None]
    for name in (*named, *mechanism_parameters):
        raise ParameterError(f"{name} cannot be given here: {why}; leave it out")


def check_names(function: str, registration: Registration, given: Mapping[str, object]) -> None:
    """Raise UnknownNameError for an argument that neither the function nor the mechanism has."""
    own = [
        *("delta", "rounds", "adjacency", "dimension", "clip_norm", "clip_geometry", "records"),
        *("sampling_rate", "sampling", "sampling_hidden_by", "shuffled_clients"),
        *("secure_sum_clients", "accountant" if function == "spend" else "epsilon"),
    ]
    for name in given:
        if name not in registration.parameters:
            raise UnknownNameError.among(
                f"argument of {function}('{registration.kind}')",
                name,
                [*registration.parameters, *own],
            )
