"""`spend`: the epsilon of some rounds, by every sound bound, with what it rests on."""

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
from sottovoce.planning.release import Release, release_of
from sottovoce.privacy.accounting import PrivacySpent, privacy_spent
from sottovoce.privacy.calibration import MAX_ROUNDS
from sottovoce.privacy.compositions import assumptions_in_words, multiset
from sottovoce.privacy.events import PrivacyEvent, Repeated, basic_counts

FLOAT_GRADE = "float (simulation only: float noise leaks in its last bits)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a client has spent after `rounds` rounds.

    epsilon        the smallest sound bound; infinite where there is no guarantee.
    bounds         every accountant's, by name; each of them holds.
    assumes        what epsilon rests on beside its proof, in a sentence; None for nothing.
    local_epsilon  where something is hidden, what holds if nothing of it is: every message and
                   every sample is seen.
    details        mechanism, parameters, clip and bits, where a mechanism was asked about.
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
        return math.isfinite(self.epsilon)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, the same as `privacy spend --json` prints; no guarantee is None."""
        result: dict[str, Any] = finite(self._fields())
        return result

    def fields(self) -> dict[str, Any]:
        """Names and values for people."""
        found = self._fields()
        if self.rounds == MAX_ROUNDS:
            found["rounds"] = f"{self.rounds} (more are not counted)"
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
) -> Spent:
    """The epsilon that a client spends over `rounds` rounds.

        spend("gaussian", noise_multiplier=10, rounds=100, delta=1e-5)
        spend(GaussHermite(input_domain=ball, levels=2, noise_multiplier=10.0), delta=1e-5)
        spend(Sampled(...), rounds=100, delta=1e-5)

    A name takes the mechanism's parameters and the clip (`dimension` [any, if the cost is the same;
    needed otherwise], `clip_norm` [1],
    `clip_geometry` [what it is made for], `records` [1]); a mechanism that is built has them; an
    event says everything but `rounds`. `adjacency` is zero-out unless given. The others are the
    options of `sottovoce privacy spend`.
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
            "an event says it all",
            {**clip, **hiding, **_given_sampling(sampling, sampling_hidden_by)}
            | {"adjacency": adjacency},
            mechanism_parameters,
        )
        checked_rounds(rounds)
        spent = privacy_spent(Repeated(event=mechanism, count=rounds), delta, accountant)
        return _spent(spent, rounds)
    if not isinstance(mechanism, str):
        _refuse_given("a built mechanism has its own", clip, mechanism_parameters)
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
    checked_rounds(rounds)
    built = (
        release.registration.build(release.domain, mechanism_parameters)
        if isinstance(mechanism, str)
        else mechanism
    )
    return spent_by(built, release, rounds=rounds, delta=delta, accountant=accountant)


def spent_by(
    mechanism: Mechanism,
    release: Release,
    *,
    rounds: int,
    delta: float,
    accountant: str | None = None,
) -> Spent:
    """What `rounds` releases of a mechanism spend."""
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


def spent_on(
    history: Sequence[tuple[PrivacyEvent, int]], delta: float | None, pure: float
) -> PrivacySpent:
    """Return what charges have spent at `delta`, or their `pure` sum where that is no larger."""
    event = multiset(history)
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
        assumptions=assumptions_in_words(event),
    )


def _spent(
    spent: PrivacySpent,
    rounds: int,
    local_epsilon: float | None = None,
    details: Mapping[str, Any] | None = None,
) -> Spent:
    return Spent(
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


def checked_rounds(rounds: int) -> int:
    return parameter_rules.integer("rounds", rounds, low=1, high=MAX_ROUNDS)


def _given_sampling(sampling: str, hidden_by: str) -> dict[str, str | None]:
    """How a sample is drawn and hidden, where that is not the default."""
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
    """Refuse a misspelt argument of the function itself: it is no parameter of the mechanism."""
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
