"""A site's policy: what the site allows, in a file that the site owns.

The submitter of a run chooses the spec and may choose the code, so a site does not rely on either.
It decides from its own file and its own ledger, before it trains and again in the transaction that
charges. Without a policy nothing is answered, and what the policy does not allow is refused. Every
reason for a refusal is public: it depends on the request, the file and the ledger, never on the
data.

A policy also has a largest epsilon for a record that is in the sample of a round, and a smallest
sampling rate, because (epsilon, delta) alone does not protect such a record. A record that a round
samples with probability q is sampled in T rounds with probability at most qT, so releasing it
without any noise is (0, qT)-DP: with qT <= delta, rounds that give a sampled record no protection
satisfy a policy of (epsilon, delta). More generally, if a round is (a, d)-DP for the records in its
sample, then it is (log(1 + q (e^a - 1)), q d)-DP overall; so a bound at delta on the whole bounds
the failure probability for a record in the sample only by d = delta/q.

So a round on a secret sample must satisfy two conditions that do not rely on the sampling:

epsilon_if_sampled       The round without its sampling is (epsilon_if_sampled, delta)-DP. This is
                         the guarantee of a record that is in the sample, for any mechanism.
smallest_sampling_rate   q is at least this rate. With the default, 100 delta, d = delta/q is at
                         most 1%, and since q > delta in each round, qT <= delta is excluded for
                         every T; the number of rounds, for which the site would rely on the
                         server, is not needed.

DP-SGD at noise multiplier 0.4 has epsilon 33 in the sample at delta 1e-5 (40 at 1e-8) under
replace-one, and 13 under zero-out. Where a site allows an unsampled round to cost more, the default
of `epsilon_if_sampled` is that larger number.
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
from sottovoce.ledger.records import Budget, PendingCharge
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.privacy.accounting import privacy_spent, within
from sottovoce.privacy.compositions import compose_repeated, reveal_messages
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
    """Raise if a round costs a record in its sample too much, or samples too rarely.

    A round without secret sampling passes.

    Args:
        event: The event of the whole round.
        delta: Delta of the policy.
        epsilon_if_sampled: Largest epsilon of the round for a record in its sample.
        smallest_sampling_rate: Smallest probability with which a record may be sampled.

    Raises:
        PolicyError: A limit is violated; the reason follows from the event and the limits.
    """
    rates = [part.rate for part in basic_counts(event) if isinstance(part, Sampled)]
    if not rates:
        return  # no amplification by sampling: `epsilon_per_round` is the only limit
    if not min(rates) >= smallest_sampling_rate:
        raise PolicyError(
            f"each record is sampled with probability {min(rates):g}, but "
            f"'smallest_sampling_rate' is {smallest_sampling_rate:g} at this site: the smaller the "
            f"rate, the weaker at delta {delta:g} is the guarantee of a record that is sampled; "
            "raise the sampling rate"
        )
    seen = reveal_messages(event, reveal_samples=True)
    if not within(seen, delta, epsilon_if_sampled):
        epsilon = show_epsilon(privacy_spent(seen, delta).epsilon)
        raise PolicyError(
            f"the round costs a record that is sampled epsilon {epsilon} at delta {delta:g}, but "
            f"'epsilon_if_sampled' is {epsilon_if_sampled:g}; add noise"
        )


def noise_multiplier_of(mechanism: Mechanism) -> float | None:
    """Return the parameter `noise_multiplier` of a mechanism; None if it has none."""
    found = getattr(mechanism, _NOISE_MULTIPLIER, None)
    return None if found is None else float(found)


def without_noise_multiplier(kinds: Iterable[str]) -> list[str]:
    """Return those kinds of mechanisms that have no parameter `noise_multiplier`.

    They stay in order. Raises UnknownNameError for a kind that is not registered.
    """
    return [kind for kind in kinds if _NOISE_MULTIPLIER not in registry.find(kind).parameters]


E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The properties of a server's request that a policy checks before the site's data are read.

    Attributes:
        mechanism: Kind of the mechanism.
        level: Unit that is protected, a sample or the whole client.
        adjacency: Adjacency of the guarantee.
        channel: Channel between the clients and the server.
        cohort: Number of clients that the server says it asks in the round.
        grade: Source of the keys of the noise: "system" (the operating system) or "seeded".
        noise_multiplier: The mechanism's noise multiplier, if it has one and it is known yet.
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
        """Return the terms that a round has for one client, to be checked against a policy.

        Args:
            plan: The plan of the round, with the unit, the adjacency and the channel.
            part: The client's own plan in that round, with its mechanism.
            cohort: Number of clients that the server says it asks in the round.
            grade: Source of the keys of the noise: "system" (the operating system) or "seeded".

        Returns:
            The terms.
        """
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
    """The limits on what a site spends and on what it answers.

    All epsilons are at `delta`, under `adjacency`, for one `level`. `epsilon_total` covers
    everything in the site's ledger by a privacy filter: it holds against a server that chooses each
    order (each request to the site) after it has seen all earlier answers, as long as the limits
    are not changed. `smallest_cohort` relies on the server, which states how many clients it asks
    and could lie.

    Attributes:
        mechanisms: Kinds of mechanisms that are allowed.
        level: Unit that is protected, a sample or the whole client.
        adjacency: Adjacency under which everything is charged.
        epsilon_per_round: Largest epsilon of one round.
        epsilon_total: Largest epsilon over everything in the ledger.
        delta: Delta at which all epsilons are computed.
        smallest_cohort: Smallest number of clients that a round must ask.
        trust_server: Allow charges that rely on the server to shuffle, or to reveal only sums.
        honest: Smallest number of clients that follow the protocol, this one included, over which
            a cryptographic protocol may release a sum. Default: no such protocol is allowed.
        colluders: The most clients of which the site assumes that they may work together with the
            server; at least 1, because every client sees the published model. Required together
            with `honest`.
        retries: How many attempts of a run may go beyond its planned rounds; each is charged.
        float_noise: Allow mechanisms that draw noise in floating point, whose low bits leak.
        seeded_randomness: Allow keys that follow from a seed. Anyone who knows the seed can derive
            them: for tests only, without any privacy.
        public_counts: Allow to send the number of examples of an update, which is neither
            privatized nor charged.
        epsilon_if_sampled: Largest epsilon of a round for a record in its sample. Default: 40, or
            `epsilon_per_round` if that is larger.
        smallest_sampling_rate: Smallest probability with which a round may sample a record.
            Default: 100 delta, at most 1.
        smallest_noise_multiplier: Smallest noise multiplier of mechanisms that have one; it does
            not apply to questions. Default: no limit.
        rounds_per_day: Most rounds that are charged within 24 hours, questions included. Default:
            no limit.
        warn_at: Fraction of `epsilon_total` from which on the site is warned.

    Raises:
        UnknownNameError: A mechanism is not registered.
        ParameterError: A number is out of range.
        PolicyError: `smallest_noise_multiplier` applies to none of the mechanisms.
    """

    mechanisms: tuple[str, ...]
    level: Unit
    adjacency: Adjacency
    epsilon_per_round: float
    epsilon_total: float
    delta: float
    smallest_cohort: int
    trust_server: bool = False
    honest: int | None = None
    colluders: int | None = None
    retries: int = 3
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
            registry.find(kind)  # raises for a misspelled name, which would allow nothing
        for name in ("epsilon_per_round", "epsilon_total"):
            parameter_rules.positive(name, getattr(self, name))
        parameter_rules.delta(self.delta)
        parameter_rules.integer("smallest_cohort", self.smallest_cohort, low=1, high=2**31)
        self._check_floors()

        if (self.honest is None) is not (self.colluders is None):
            raise PolicyError(
                "'honest' and 'colluders' go together: over how many honest clients a sum must be, "
                "and how many others may work against this site; set both or neither"
            )
        if self.honest is not None:
            parameter_rules.integer("honest", self.honest, low=2, high=2**31)
        if self.colluders is not None:
            parameter_rules.integer("colluders", self.colluders, low=1, high=2**31)
        parameter_rules.integer("retries", self.retries, low=0, high=2**31)

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
            if self.mechanisms and len(self.mechanisms_without_noise_floor) == len(self.mechanisms):
                raise PolicyError(
                    "'smallest_noise_multiplier' has no effect: none of the allowed mechanisms "
                    f"({', '.join(self.mechanisms)}) has a noise multiplier; remove it, and use "
                    "'epsilon_per_round' and 'epsilon_if_sampled' to limit them"
                )

    @property
    def mechanisms_without_noise_floor(self) -> list[str]:
        """Allowed mechanisms that a given `smallest_noise_multiplier` does not limit.

        Empty if the policy has no `smallest_noise_multiplier`.
        """
        if self.smallest_noise_multiplier is None:
            return []
        return without_noise_multiplier(self.mechanisms)

    @property
    def largest_if_sampled(self) -> float:
        """The value of `epsilon_if_sampled`, by default 40 or `epsilon_per_round` if larger."""
        if self.epsilon_if_sampled is not None:
            return self.epsilon_if_sampled
        return max(EPSILON_IF_SAMPLED, self.epsilon_per_round)

    @property
    def least_sampling_rate(self) -> float:
        """The value of `smallest_sampling_rate`, by default 100 delta but at most 1."""
        if self.smallest_sampling_rate is not None:
            return self.smallest_sampling_rate
        return min(1.0, SAMPLING_RATE_IN_DELTAS * self.delta)

    def _check_protocol(self, channel: Channel) -> None:
        """Raise if a channel's cryptographic protocol counts on more than the site assumes."""
        if channel.trusts_server or channel.shows_each:
            return
        if self.honest is None or self.colluders is None:
            raise PolicyError(
                f"the run uses a {channel.describe()}, and this site's policy does not say over "
                "how many honest clients a sum must be; set 'honest' and 'colluders' in [policy]"
            )
        counted = channel.fewest_messages - channel.most_colluders
        if counted < self.honest:
            raise PolicyError(
                f"the run counts on {counted} honest clients in a sum, but 'honest' is "
                f"{self.honest} at this site; raise channel.minimum_clients"
            )
        if channel.most_colluders < self.colluders:
            raise PolicyError(
                f"the run assumes at most {channel.most_colluders} clients that collude, but "
                f"'colluders' is {self.colluders} at this site; raise channel.colluders"
            )

    def check_terms(self, terms: Terms) -> None:
        """Raise if the policy does not allow a request with these terms, whatever its cost.

        Args:
            terms: The terms of the request.

        Raises:
            PolicyError: The policy forbids the mechanism, level, adjacency, cohort, channel, noise
                or keys.
        """
        kind = terms.mechanism
        if kind not in self.mechanisms:
            allowed = ", ".join(f"'{name}'" for name in self.mechanisms) or "none"
            raise PolicyError(
                f"mechanism '{kind}' is not allowed; use one of the site's 'mechanisms' ({allowed})"
            )
        if terms.level is not self.level:
            raise PolicyError(
                f"level '{terms.level}' is not allowed; use the site's level, '{self.level}'"
            )
        if terms.adjacency is not self.adjacency:
            raise PolicyError(
                f"adjacency {terms.adjacency} is not allowed; use the site's adjacency, "
                f"{self.adjacency}"
            )
        if not terms.cohort >= self.smallest_cohort:  # also refuses NaN
            raise PolicyError(
                f"{terms.cohort} clients are asked, but the site's 'smallest_cohort' is "
                f"{self.smallest_cohort}; ask more clients"
            )
        self._check_protocol(terms.channel)
        if not self.trust_server and terms.channel.trusts_server:
            raise PolicyError(
                f"the charge relies on the server ({terms.channel.describe()}), but 'trust_server' "
                "is false at this site; use the direct channel, or set 'trust_server' at the site "
                "if it trusts the server"
            )
        if not terms.channel.serves(terms.cohort):
            raise PolicyError(
                f"{terms.cohort} clients are asked, too few for {terms.channel.describe()}, so "
                "nothing could be released; ask more clients"
            )
        if not self.float_noise and registry.find(kind).sampling == "float":
            raise PolicyError(
                f"mechanism '{kind}' draws its noise in floating point, but 'float_noise' is false "
                "at this site; use a mechanism with exact sampling"
            )
        if not self.seeded_randomness and terms.grade == "seeded":
            raise PolicyError(
                "the noise would come from a seed, but 'seeded_randomness' is false at this site; "
                "use the system's randomness (in a spec, randomness = 'system')"
            )
        least, noise = self.smallest_noise_multiplier, terms.noise_multiplier
        if least is not None and noise is not None and not noise >= least:
            raise PolicyError(
                f"the noise multiplier is {noise:g}, but 'smallest_noise_multiplier' is {least:g} "
                "at this site; add noise"
            )

    def filter(self, first: Budget | None) -> PrivacyFilter:
        """Return the privacy filter that enforces `epsilon_total`.

        Args:
            first: The part of delta that was reserved for the first event. None for a ledger that
                an earlier version started: half of delta, whatever its first event is.

        Returns:
            The filter.
        """
        return PrivacyFilter(
            epsilon=self.epsilon_total,
            delta=self.delta,
            first_delta=self.delta / 2.0 if first is None else first.delta,
        )

    def reserve_for_first_event(self, event: PrivacyEvent, planned: int) -> Budget:
        """Return the part of `delta` that a ledger reserves for its first event, permanently.

        The privacy filter treats the event of a ledger's first order separately from all others.

        Args:
            event: The event of the first order.
            planned: Number of charges of this event that the run of the first order plans.

        Returns:
            A budget whose delta is the reserved part.
        """
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
        pending: Sequence[PendingCharge],
        first: Budget | None = None,
        *,
        this_round: History = (),
        retries: bool = False,
    ) -> None:
        """Raise if a round costs more than is allowed in a round, or than is left in total.

        Args:
            history: Everything in the site's ledger.
            pending: The charges to be made.
            first: What was reserved for the first event; see `filter`.
            this_round: What the ledger has already charged for the same round. A server that asks
                twice for parts of a round gets no more than one round's epsilon.
            retries: Whether a later attempt at a round is allowed, at its full cost: one at a
                secure sum, in which all clients draw fresh codes.

        Raises:
            PolicyError: A limit would be exceeded, or a release was charged before and cannot be
                answered again.
        """
        for due in pending:
            if due.attempt and not retries:
                # Its message may have been seen and is not kept. Another message would cost again.
                raise PolicyError(
                    f"{due.release} was charged before, and no message of it is stored that could "
                    "be sent again; start a new run"
                )
        if not pending:
            return
        asked = [(due.event, 1) for due in pending]
        now, after = compose_repeated([*this_round, *asked]), [*history, *asked]
        check_sampled(
            now,
            delta=self.delta,
            epsilon_if_sampled=self.largest_if_sampled,
            smallest_sampling_rate=self.least_sampling_rate,
        )
        if not within(now, self.delta, self.epsilon_per_round):
            raise PolicyError(
                f"the round costs epsilon {self._epsilon(now)} at delta {self.delta:g}, but "
                f"'epsilon_per_round' is {self.epsilon_per_round:g} at this site; add noise"
            )
        filter_ = self.filter(first)
        if not filter_.admits(after):
            alone = (
                "" if filter_.admits_other_events else "the first run's plan uses all of delta; "
            )
            raise PolicyError(
                f"{alone}the site would have spent epsilon {show_epsilon(filter_.spent(after))} at "
                f"delta {self.delta:g} in total, for orders that may depend on earlier answers, "
                f"but its 'epsilon_total' is {self.epsilon_total:g}; ask for fewer rounds or add "
                "noise"
            )

    def _epsilon(self, event: PrivacyEvent) -> str:
        return show_epsilon(privacy_spent(event, self.delta).epsilon)


# Keys without a default, which only the site can decide.
NEEDED = [one.name for one in dataclasses.fields(Policy) if one.default is dataclasses.MISSING]


def from_table(table: Mapping[str, Any]) -> Policy:
    """Return the policy in a TOML table; every field without a default must be present.

    Raises PolicyError, UnknownNameError or ParameterError for a missing, unknown or invalid key.
    """
    fields = {field.name: field for field in dataclasses.fields(Policy)}
    for name in table:
        if name not in fields:
            raise UnknownNameError.among("key of [policy]", name, fields)
    missing = [f"'{name}'" for name in NEEDED if name not in table]
    if missing:
        raise PolicyError(f"[policy] lacks {', '.join(missing)}; add what the site allows")
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
