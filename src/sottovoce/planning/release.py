"""What one round releases of a client, apart from the mechanism's own parameters."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import MAX_DIMENSION, Domain, L2Ball, clip_norm_of, clipped, geometry_of
from sottovoce.core.errors import ParameterError, PrivacyError, UnknownNameError
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.registry import Registration
from sottovoce.mechanisms.secret_sample import SecretSample
from sottovoce.privacy import events
from sottovoce.privacy.events import (
    Assumed,
    HiddenBy,
    LaplaceNoise,
    OneBit,
    PrivacyEvent,
    Sampled,
    SamplingScheme,
    Shuffled,
)
from sottovoce.protocol.channels.channel import Channel, SecureSum, Shuffler
from sottovoce.protocol.plan import channel_of_sample, released_event

# How an error calls an argument: a command says --sampling-rate where a program says sampling_rate.
Named = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One message a round: its domain, its adjacency, and what hides it."""

    registration: Registration
    domain: Domain
    dimension: int | None
    clip_norm: float
    adjacency: Adjacency
    channel: Channel
    sample: SecretSample | None

    @property
    def amplified(self) -> bool:
        return self.sample is not None or isinstance(self.channel, Shuffler | SecureSum)

    def event(self, mechanism: Mechanism) -> PrivacyEvent:
        """What is seen of one client in one round: what a run with these settings charges."""
        event = released_event(self.channel, mechanism, self.adjacency, self.sample)
        return event if self.dimension is not None else self._any_dimension(event)

    def _any_dimension(self, event: PrivacyEvent) -> PrivacyEvent:
        """Without a stated dimension with which epsilon grows, the largest counts."""
        match event:
            case OneBit() | events.SecureSum():
                return dataclasses.replace(event, dimension=MAX_DIMENSION)
            case LaplaceNoise() if isinstance(self.domain, L2Ball):
                return dataclasses.replace(event, dimension=MAX_DIMENSION)
            case Assumed() | Sampled():
                return dataclasses.replace(event, event=self._any_dimension(event.event))
            case Shuffled() if self._any_dimension(event.event) != event.event:
                raise ParameterError(
                    f"how well shuffling hides a message of '{self.registration.kind}' depends on "
                    "its dimension; give the number of coordinates of an update"
                )
            case _:
                return event

    def describe(self) -> dict[str, Any]:
        """How the release is amplified, for the result; empty if it is not."""
        described: dict[str, Any] = {}
        if self.sample is not None:
            described["sampling"] = self.sample.describe()
        match self.channel:
            case Shuffler(minimum_clients=clients):
                described["shuffled_clients"] = clients
            case SecureSum(minimum_clients=clients):
                described["secure_sum_clients"] = clients
            case _:
                pass
        return described


def release_of(
    mechanism: str | Mechanism,
    *,
    dimension: int | None = None,
    clip_norm: float = 1.0,
    clip_geometry: str | None = None,
    records: int = 1,
    adjacency: str | Adjacency = Adjacency.ZERO_OUT,
    sampling_rate: float | None = None,
    sampling: str = "poisson",
    sampling_hidden_by: str = "own-records",
    shuffled_clients: int | None = None,
    secure_sum_clients: int | None = None,
    named: Named = str,
) -> Release:
    """The release of a mechanism by its name, on the domain of the clip; or of one that is built.

    A mechanism that is built has a domain of its own, so that the clip says nothing of it.
    """
    hiding = {
        "sampling_rate": sampling_rate,
        "shuffled_clients": shuffled_clients,
        "secure_sum_clients": secure_sum_clients,
    }
    given = [named(name) for name, value in hiding.items() if value is not None]
    if isinstance(mechanism, str):
        registration = registry.find(mechanism)
        geometry = clip_geometry or geometry_of(registration.example_domain)
        domain = clipped(geometry, 1 if dimension is None else dimension, clip_norm, records)
    else:
        registration = registry.find(registry.kind_of(mechanism))
        domain, dimension = mechanism.input_domain, mechanism.input_domain.dimension
        clip_norm = clip_norm_of(domain)
    if len(given) > 1:
        raise PrivacyError(
            f"no bound is proved for {' and '.join(given)} together; give one of them"
        )
    sample = secret_sample(sampling_rate, sampling, sampling_hidden_by, named=named)
    channel = channel_of_sample(sample)
    if shuffled_clients is not None:
        channel = Shuffler(minimum_clients=shuffled_clients)
    elif secure_sum_clients is not None:
        channel = SecureSum(minimum_clients=secure_sum_clients)
    return Release(
        registration=registration,
        domain=domain,
        dimension=dimension,
        clip_norm=clip_norm,
        adjacency=Adjacency.parse(adjacency),
        channel=channel,
        sample=sample,
    )


def secret_sample(
    rate: float | None, scheme: str, hidden_by: str, *, named: Named = str
) -> SecretSample | None:
    """The sample that `sampling_rate`, `sampling` and `sampling_hidden_by` ask for."""
    rate_name, scheme_name, hidden_name = map(
        named, ("sampling_rate", "sampling", "sampling_hidden_by")
    )
    if scheme not in get_args(SamplingScheme):
        raise UnknownNameError.among(scheme_name, scheme, get_args(SamplingScheme))
    if hidden_by not in (*get_args(HiddenBy), "nothing"):
        raise UnknownNameError.among(hidden_name, hidden_by, [*get_args(HiddenBy), "nothing"])
    if rate is None:
        if (scheme, hidden_by) != ("poisson", "own-records"):
            raise ParameterError(
                f"{scheme_name} and {hidden_name} need {rate_name}, the probability to be "
                "in the sample"
            )
        return None
    parameter_rules.fraction("sampling rate", rate)
    if hidden_by == "nothing":
        raise PrivacyError(
            "a server that receives each message sees who took part, so sampling clients "
            f"amplifies nothing; leave out {rate_name} and count as {named('rounds')} those in "
            "which a client takes part, or hide the sample by own-records, central-noise or "
            "secure-sum"
        )
    return SecretSample(rate=rate, scheme=scheme, hidden_by=hidden_by)  # type: ignore[arg-type]
