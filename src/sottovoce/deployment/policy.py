"""What a site allows, in a file that the site owns; whatever it does not allow is refused.

A run's submitter chooses the spec and may choose the code. So the site decides by itself, from its
own file and its own ledger, before it trains, and again in the transaction that charges. Without a
file nothing is answered. Every reason for a refusal is public: it depends on the request, the file
and the ledger, never on the data.

Floors under what a sampled record gets: noise and sampling rate below which a site refuses.

(epsilon, delta) alone is no floor. A record that a round works on with probability q is touched in
T rounds with probability at most qT, so releasing it without any noise is (0, qT)-DP: with
qT <= delta a policy of (epsilon, delta) is kept by rounds that protect nobody whom they touch.
More generally, a sample that is (e, d)-DP for the records in it is (log(1 + q (e^e - 1)), q d)-DP:
a bound at delta on the whole bounds the failures for a record in the sample by d = delta/q only.

So two things are asked of a round on a secret sample, neither of which counts on the sample:

epsilon_if_sampled       the round without its sample is (epsilon_if_sampled, delta)-DP: what holds
                         for a record that is in the sample, by any mechanism
smallest_sampling_rate   q is at least 100 delta, so that d = delta/q is at most 1%. One round above
                         delta is enough to exclude qT <= delta, whatever T is, so the number of
                         rounds, which the server would tell, is not needed.

DP-SGD at noise multiplier 0.4 has epsilon 33 in the sample at delta 1e-5 (40 at 1e-8) under
replace-one, 13 under zero-out. Where a site lets an unsampled round cost more, so may this.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self, TypeVar

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.display import show_epsilon
from sottovoce.core.errors import PolicyError, UnknownNameError
from sottovoce.core.randomness import Grade
from sottovoce.ledger.records import Budget, Due
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.privacy.accounting import privacy_spent, within
from sottovoce.privacy.compositions import multiset, unhidden
from sottovoce.privacy.events import PrivacyEvent, Sampled, basic_counts
from sottovoce.privacy.filters import History, PrivacyFilter, first_delta
from sottovoce.protocol.channels.channel import Channel
from sottovoce.protocol.plan import ClientPlan, RoundPlan

EPSILON_IF_SAMPLED = 40.0
SAMPLING_RATE_IN_DELTAS = 100.0
_NOISE_MULTIPLIER = "noise_multiplier"


def check_sampled(
    event: PrivacyEvent, *, delta: float, epsilon_if_sampled: float, smallest_sampling_rate: float
) -> None:
    """Refuse a round that protects too little what is in its sample, or samples too rarely.

    Raises:
        PolicyError: with a reason that follows from the event and the limits.
    """
    rates = [part.rate for part in basic_counts(event) if isinstance(part, Sampled)]
    if not rates:
        return  # nothing is amplified by a sample: `epsilon_per_round` says it all
    if not min(rates) >= smallest_sampling_rate:
        raise PolicyError(
            f"each record is sampled with probability {min(rates):g}, and "
            f"'smallest_sampling_rate' is {smallest_sampling_rate:g}: at delta {delta:g} next to "
            "nothing would be promised to a record that is sampled"
        )
    seen = unhidden(event, samples_too=True)
    if not within(seen, delta, epsilon_if_sampled):
        epsilon = show_epsilon(privacy_spent(seen, delta).epsilon)
        raise PolicyError(
            f"the round costs a record that is sampled epsilon {epsilon} at delta {delta:g}, and "
            f"'epsilon_if_sampled' is {epsilon_if_sampled:g}; add noise"
        )


def noise_multiplier_of(mechanism: Mechanism) -> float | None:
    """Return the noise of a mechanism in units of what one record moves; None if it has none."""
    found = getattr(mechanism, _NOISE_MULTIPLIER, None)
    return None if found is None else float(found)


def without_noise_multiplier(kinds: Iterable[str]) -> list[str]:
    """Return the mechanisms for which a smallest noise multiplier means nothing."""
    return [kind for kind in kinds if _NOISE_MULTIPLIER not in registry.find(kind).parameters]


E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is asked of a site, as far as it can be said before its data are looked at.

    `mechanism` is a kind, `cohort` how many clients are asked, `grade` whose keys are used.
    `noise_multiplier` is the mechanism's, if it has one and it is known yet.
    """

    mechanism: str
    level: Unit
    adjacency: Adjacency
    channel: Channel
    cohort: int
    grade: Grade
    noise_multiplier: float | None = None

    @classmethod
    def of(cls, plan: RoundPlan, part: ClientPlan, *, cohort: int, grade: Grade) -> Self:
        """The terms of a plan."""
        return cls(
            mechanism=registry.kind_of(part.mechanism),
            level=plan.unit,
            adjacency=plan.adjacency,
            channel=plan.channel,
            cohort=cohort,
            grade=grade,
            noise_multiplier=noise_multiplier_of(part.mechanism),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The most that a site gives away, and to whom.

    Epsilons are at `delta`, under `adjacency`, for one `level` (a sample, or the whole client);
    `epsilon_total` covers everything in the site's ledger, by a privacy filter: it holds against a
    server that chooses each order by all earlier answers, as long as the limits stay what they are.
    `smallest_cohort` is how many clients a round must ask; the server says how many it asks, and
    could lie.

    trust_server        charge less where the *server* is trusted to shuffle, or to reveal sums only
    float_noise         mechanisms whose noise is drawn in floating point, which leaks low bits
    seeded_randomness   keys that whoever knows the seed can make: for tests, no privacy at all
    public_counts       say of how many examples an update is made, in the clear and uncharged

    Floors, whatever the epsilons (`deployment.floors` says why, and which defaults):

    epsilon_if_sampled          the most that a round may cost a record that is in its sample
    smallest_sampling_rate      the least probability with which a round may sample a record
    smallest_noise_multiplier   the least noise of mechanisms that have a noise multiplier
    rounds_per_day              rounds that are charged within 24 hours, questions among them
    warn_at                     the share of `epsilon_total` from which on the site is warned
    """

    mechanisms: tuple[str, ...]
    level: Unit
    adjacency: Adjacency
    epsilon_per_round: float
    epsilon_total: float
    delta: float
    smallest_cohort: int
    trust_server: bool = False
    float_noise: bool = False
    seeded_randomness: bool = False
    public_counts: bool = False
    epsilon_if_sampled: float | None = None
    smallest_sampling_rate: float | None = None
    smallest_noise_multiplier: float | None = None
    rounds_per_day: int | None = None
    warn_at: float = 0.8

    def __post_init__(self) -> None:
        for kind in self.mechanisms:
            registry.find(kind)  # a misspelt name allows nothing; better said at once
        for name in ("epsilon_per_round", "epsilon_total"):
            parameter_rules.positive(name, getattr(self, name))
        parameter_rules.delta(self.delta)
        parameter_rules.integer("smallest_cohort", self.smallest_cohort, low=1, high=2**31)
        self._check_floors()

    def _check_floors(self) -> None:
        if self.epsilon_if_sampled is not None:
            parameter_rules.positive("epsilon_if_sampled", self.epsilon_if_sampled)
        if self.smallest_sampling_rate is not None:
            parameter_rules.fraction("smallest_sampling_rate", self.smallest_sampling_rate)
        if self.rounds_per_day is not None:
            parameter_rules.integer("rounds_per_day", self.rounds_per_day, low=1, high=2**31)
        parameter_rules.fraction("warn_at", self.warn_at)
        if self.smallest_noise_multiplier is not None:
            parameter_rules.positive("smallest_noise_multiplier", self.smallest_noise_multiplier)
            if self.mechanisms and len(self.beyond_noise_floor) == len(self.mechanisms):
                raise PolicyError(
                    "'smallest_noise_multiplier' means nothing here: none of the allowed "
                    f"mechanisms ({', '.join(self.mechanisms)}) has a noise multiplier; limit "
                    "them by 'epsilon_per_round' and 'epsilon_if_sampled'"
                )

    @property
    def beyond_noise_floor(self) -> list[str]:
        """Allowed mechanisms to which `smallest_noise_multiplier` does not apply."""
        if self.smallest_noise_multiplier is None:
            return []
        return without_noise_multiplier(self.mechanisms)

    @property
    def largest_if_sampled(self) -> float:
        """`epsilon_if_sampled`, or its default."""
        if self.epsilon_if_sampled is not None:
            return self.epsilon_if_sampled
        return max(EPSILON_IF_SAMPLED, self.epsilon_per_round)

    @property
    def least_sampling_rate(self) -> float:
        """`smallest_sampling_rate`, or its default."""
        if self.smallest_sampling_rate is not None:
            return self.smallest_sampling_rate
        return min(1.0, SAMPLING_RATE_IN_DELTAS * self.delta)

    def check_terms(self, terms: Terms) -> None:
        """Refuse what is not allowed whatever it costs."""
        kind = terms.mechanism
        if kind not in self.mechanisms:
            allowed = ", ".join(f"'{name}'" for name in self.mechanisms) or "none"
            raise PolicyError(f"mechanism '{kind}' is not allowed (allowed: {allowed})")
        if terms.level is not self.level:
            raise PolicyError(f"the level is '{terms.level}', and '{self.level}' is allowed")
        if terms.adjacency is not self.adjacency:
            raise PolicyError(
                f"the adjacency is {terms.adjacency}, and {self.adjacency} is allowed"
            )
        if not terms.cohort >= self.smallest_cohort:  # which NaN is not
            raise PolicyError(
                f"{terms.cohort} clients are asked, and the smallest cohort is "
                f"{self.smallest_cohort}"
            )
        if not self.trust_server and not terms.channel.shows_each:
            raise PolicyError(
                f"the charge relies on the server ({terms.channel.describe()}); "
                "'trust_server' is false"
            )
        if not terms.channel.serves(terms.cohort):
            raise PolicyError(
                f"{terms.cohort} clients are asked, too few for {terms.channel.describe()}; "
                "nothing could be released"
            )
        if not self.float_noise and registry.find(kind).sampling == "float":
            raise PolicyError(
                f"mechanism '{kind}' draws its noise in floating point; 'float_noise' is false"
            )
        if not self.seeded_randomness and terms.grade == "seeded":
            raise PolicyError("keys would come from a seed; 'seeded_randomness' is false")
        least, noise = self.smallest_noise_multiplier, terms.noise_multiplier
        if least is not None and noise is not None and not noise >= least:
            raise PolicyError(
                f"the noise multiplier is {noise:g}, and the smallest that is allowed is {least:g}"
            )

    def filter(self, first: Budget | None) -> PrivacyFilter:
        """What the total means; `first` is what was set aside for the first event.

        None for a ledger that an earlier version began: half of delta, whatever its first event is.
        """
        return PrivacyFilter(
            epsilon=self.epsilon_total,
            delta=self.delta,
            first_delta=self.delta / 2.0 if first is None else first.delta,
        )

    def set_aside(self, event: PrivacyEvent, planned: int) -> Budget:
        """What the first order of all, which plans so many charges of its event, fixes for good."""
        limits = {"epsilon": self.epsilon_total, "delta": self.delta}
        return Budget(
            epsilon=min(self.epsilon_total, parameter_rules.MAX_EPSILON),
            delta=first_delta(event, planned, **limits),
            adjacency=self.adjacency,
            unit=self.level,
        )

    def check_spending(
        self,
        history: History,
        dues: Sequence[Due],
        first: Budget | None = None,
        *,
        this_round: History = (),
    ) -> None:
        """Refuse a round that costs more than a round may, or than is left.

        `this_round` is what the ledger has charged for the same round already: a server that asks
        twice for parts of a round does not get more than one round's epsilon.
        """
        for due in dues:
            if due.attempt:
                # Its message may have been seen and is not kept: another one would cost again.
                raise PolicyError(f"{due.release} was answered before; start a new run")
        if not dues:
            return
        asked = [(due.event, 1) for due in dues]
        now, after = multiset([*this_round, *asked]), [*history, *asked]
        check_sampled(
            now,
            delta=self.delta,
            epsilon_if_sampled=self.largest_if_sampled,
            smallest_sampling_rate=self.least_sampling_rate,
        )
        if not within(now, self.delta, self.epsilon_per_round):
            raise PolicyError(
                f"the round costs epsilon {self._epsilon(now)} at delta {self.delta:g}, and "
                f"{self.epsilon_per_round:g} is allowed in a round"
            )
        filter_ = self.filter(first)
        if not filter_.admits(after):
            alone = "" if filter_.takes_others else "the first run's plan needs all of delta; "
            raise PolicyError(
                f"{alone}it would have spent epsilon {show_epsilon(filter_.spent(after))} at delta "
                f"{self.delta:g}, for orders that may depend on earlier answers, and "
                f"{self.epsilon_total:g} is allowed in all"
            )

    def _epsilon(self, event: PrivacyEvent) -> str:
        return show_epsilon(privacy_spent(event, self.delta).epsilon)


# What only the site can say: there are no defaults.
NEEDED = [one.name for one in dataclasses.fields(Policy) if one.default is dataclasses.MISSING]


def from_table(table: Mapping[str, Any]) -> Policy:
    """The policy that a TOML table holds; every field without a default must be there."""
    fields = {field.name: field for field in dataclasses.fields(Policy)}
    for name in table:
        if name not in fields:
            raise UnknownNameError.among("key of [policy]", name, fields)
    missing = [f"'{name}'" for name in NEEDED if name not in table]
    if missing:
        raise PolicyError(f"[policy] says nothing about {', '.join(missing)}; fill it in")
    for name, field in fields.items():
        if field.type is bool and not isinstance(table.get(name, False), bool):
            raise PolicyError(f"[policy] {name} must be true or false, got {table[name]!r}")
    return Policy(
        **{
            **table,
            "mechanisms": _names(table["mechanisms"]),
            "level": _choice("level", table["level"], Unit),
            "adjacency": _choice("adjacency", table["adjacency"], Adjacency),
        }
    )


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise PolicyError(f"[policy] mechanisms must be a list of names, got {value!r}")
    return tuple(value)


def _choice(name: str, value: str, choices: type[E]) -> E:
    try:
        return choices(value)
    except ValueError:
        raise UnknownNameError.among(f"{name} in [policy]", str(value), list(choices)) from None
