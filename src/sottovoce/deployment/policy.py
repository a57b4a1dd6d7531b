"""What a site allows, in a file that the site owns; whatever it does not allow is refused.

A run's submitter chooses the spec and may choose the code. So the site decides by itself, from its
own file and its own ledger, before it trains, and again in the transaction that charges. Without a
file nothing is answered. Every reason for a refusal is public: it depends on the request, the file
and the ledger, never on the data.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from sottovoce import parameters
from sottovoce.adjacency import Adjacency, Unit
from sottovoce.channels.channel import Direct
from sottovoce.errors import PolicyError, UnknownNameError
from sottovoce.ledger.records import Due
from sottovoce.mechanisms import registry
from sottovoce.privacy.accounting import privacy_spent, show_epsilon
from sottovoce.privacy.events import PrivacyEvent, multiset
from sottovoce.randomness import Grade
from sottovoce.rounds.plan import ClientPlan, RoundPlan

E = TypeVar("E", bound=StrEnum)
History = Sequence[tuple[PrivacyEvent, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The most that a site gives away, and to whom.

    Epsilons are at `delta`, under `adjacency`, for one `level` (a sample, or the whole client);
    `epsilon_total` covers everything in the site's ledger. `smallest_cohort` is how many clients a
    round must ask; the server says how many it asks, and could lie.

    trust_server        charge less where the *server* is trusted to shuffle, or to reveal sums only
    float_noise         mechanisms whose noise is drawn in floating point, which leaks low bits
    seeded_randomness   keys that whoever knows the seed can make: for tests, no privacy at all
    public_counts       say of how many examples an update is made, in the clear and uncharged
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

    def __post_init__(self) -> None:
        for kind in self.mechanisms:
            registry.find(kind)  # a misspelt name allows nothing; better said at once
        for name in ("epsilon_per_round", "epsilon_total"):
            parameters.positive(name, getattr(self, name))
        parameters.delta(self.delta)
        parameters.integer("smallest_cohort", self.smallest_cohort, low=1, high=2**31)

    def check_request(self, plan: RoundPlan, part: ClientPlan, cohort: int, grade: Grade) -> None:
        """Refuse what is not allowed whatever it costs."""
        kind = registry.kind_of(part.mechanism)
        if kind not in self.mechanisms:
            allowed = ", ".join(f"'{name}'" for name in self.mechanisms) or "none"
            raise PolicyError(f"mechanism '{kind}' is not allowed (allowed: {allowed})")
        if plan.unit is not self.level:
            raise PolicyError(f"the level is '{plan.unit}', and '{self.level}' is allowed")
        if plan.adjacency is not self.adjacency:
            raise PolicyError(f"the adjacency is {plan.adjacency}, and {self.adjacency} is allowed")
        if cohort < self.smallest_cohort:
            raise PolicyError(
                f"{cohort} clients are asked, and the smallest cohort is {self.smallest_cohort}"
            )
        if not self.trust_server and plan.channel != Direct():
            raise PolicyError(
                f"the charge relies on the server ({plan.channel.describe()}); "
                "'trust_server' is false"
            )
        if not self.float_noise and part.mechanism.sampling == "float":
            raise PolicyError(
                f"mechanism '{kind}' draws its noise in floating point; 'float_noise' is false"
            )
        if not self.seeded_randomness and grade == "seeded":
            raise PolicyError("keys would come from a seed; 'seeded_randomness' is false")

    def check_spending(self, history: History, dues: Sequence[Due]) -> None:
        """Refuse a round that costs more than a round may, or than is left."""
        for due in dues:
            if due.attempt:
                # Its message may have been seen and is not kept: another one would cost again.
                raise PolicyError(f"{due.release} was answered before; start a new run")
        if not dues:
            return
        asked = [(due.event, 1) for due in dues]
        now = privacy_spent(multiset(asked), self.delta).epsilon
        if now > self.epsilon_per_round:
            raise PolicyError(
                f"the round costs epsilon {show_epsilon(now)} at delta {self.delta:g}, and "
                f"{self.epsilon_per_round:g} is allowed in a round"
            )
        after = privacy_spent(multiset([*history, *asked]), self.delta).epsilon
        if after > self.epsilon_total:
            raise PolicyError(
                f"it would have spent epsilon {show_epsilon(after)} at delta {self.delta:g}, and "
                f"{self.epsilon_total:g} is allowed in all"
            )


def from_table(table: Mapping[str, Any]) -> Policy:
    """The policy that a TOML table holds; every field without a default must be there."""
    fields = {field.name: field for field in dataclasses.fields(Policy)}
    for name in table:
        if name not in fields:
            raise UnknownNameError.among("key of [policy]", name, fields)
    missing = [
        f"'{name}'"
        for name, field in fields.items()
        if name not in table and field.default is dataclasses.MISSING
    ]
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
