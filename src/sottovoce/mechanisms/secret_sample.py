"""A secret sample of contributions in each round: what it takes, and what it is charged with."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from sottovoce import parameter_rules
from sottovoce.adjacency import Adjacency
from sottovoce.errors import PrivacyError
from sottovoce.mechanisms.mechanism import Float32Codes, Mechanism
from sottovoce.mechanisms.registry import kind_of
from sottovoce.privacy.compositions import beside_others
from sottovoce.privacy.events import HiddenBy, PrivacyEvent, Sampled, SamplingScheme

# What hides a sample, and what must be true for it.
ASSUMPTIONS: dict[HiddenBy, str] = {
    "own-records": "each client samples its own records in secret; one that is left out counts "
    "as zero",
    "central-noise": "someone trusted adds the noise once, to the sum; nobody sees who was sampled",
    "secure-sum": "nobody sees who was sampled, and whoever was not sends the encoding of zero",
}


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

    @property
    def assumption(self) -> str:
        """What must be true for the epsilon to hold, in a sentence."""
        return ASSUMPTIONS[self.hidden_by]

    def event(self, mechanism: Mechanism, event: PrivacyEvent) -> Sampled:
        """`event`, which `mechanism` gives rise to, on the sample."""
        if self.hidden_by == "central-noise" and not isinstance(
            mechanism.code_format(), Float32Codes
        ):
            raise PrivacyError(
                f"'{kind_of(mechanism)}' draws codes at each client, so no noise is added to a "
                "sum; use gaussian or laplace, or hide the sample by own-records"
            )
        others_remain = self.hidden_by == "own-records" and event.adjacency is Adjacency.ZERO_OUT
        if others_remain and isinstance(mechanism, Anchored) and mechanism.hides_only_against_zero:
            raise PrivacyError(
                f"'{kind_of(mechanism)}' claims less against zero than between two updates, but "
                "where a client leaves one of its own records out the others remain; ask for "
                "adjacency replace-one"
            )
        return Sampled(
            event=self.unsampled(event),
            rate=self.rate,
            scheme=self.scheme,
            hidden_by=self.hidden_by,
        )

    def unsampled(self, event: PrivacyEvent) -> PrivacyEvent:
        """The release if the sample were seen: where a client's own records are sampled, others are
        in its message."""
        return beside_others(event) if self.hidden_by == "own-records" else event

    def describe(self) -> dict[str, Any]:
        return {"rate": self.rate, "scheme": self.scheme, "hidden_by": self.hidden_by}
