"""A secret sample of contributions in each round: what it takes, and what it is charged with."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import PrivacyError
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.registry import kind_of
from sottovoce.privacy.compositions import beside_others
from sottovoce.privacy.events import HiddenBy, PrivacyEvent, Sampled, SamplingScheme


@runtime_checkable
class Anchored(Protocol):
    """A mechanism whose zero-out event may hold against the input 0 alone."""

    @property
    def hides_only_against_zero(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSample:
    """Each round works on a sample that nobody sees, taken with probability `rate`."""

    rate: float
    scheme: SamplingScheme
    hidden_by: HiddenBy

    def __post_init__(self) -> None:
        parameter_rules.fraction("sampling rate", self.rate)

    def event(self, mechanism: Mechanism, event: PrivacyEvent) -> Sampled:
        """`event`, which `mechanism` gives rise to, on the sample; `rounds.plan` asks for it."""
        if self.hidden_by == "secure-sum" and getattr(mechanism.input_domain, "records", 1) != 1:
            raise PrivacyError(
                "a client that sends the encoding of zero leaves all of its records out, so a "
                "sample hidden by secure-sum hides no single record as it is accounted: hide it by "
                "own-records, or protect whole clients (records = 1)"
            )
        others_remain = self.hidden_by == "own-records" and event.adjacency is Adjacency.ZERO_OUT
        if others_remain and isinstance(mechanism, Anchored) and mechanism.hides_only_against_zero:
            raise PrivacyError(
                f"'{kind_of(mechanism)}' claims less against zero than between two updates, but "
                "where a client leaves one of its own records out the others remain; ask for "
                "adjacency replace-one"
            )
        # Where a client's own records are sampled, others are in its message.
        return Sampled(
            event=beside_others(event) if self.hidden_by == "own-records" else event,
            rate=self.rate,
            scheme=self.scheme,
            hidden_by=self.hidden_by,
        )

    def describe(self) -> dict[str, Any]:
        return {"rate": self.rate, "scheme": self.scheme, "hidden_by": self.hidden_by}
