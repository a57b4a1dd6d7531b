"""What one round releases of a client, apart from the mechanism's own parameters."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from sottovoce import parameter_rules
from sottovoce.adjacency import Adjacency
from sottovoce.channels.channel import SecureSum as SecureSumChannel
from sottovoce.channels.shuffler import hidden_among
from sottovoce.domains import MAX_DIMENSION, Domain, L2Ball, clip_norm_of, clipped, geometry_of
from sottovoce.errors import ParameterError, PrivacyError, UnknownNameError
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.registry import Registration
from sottovoce.mechanisms.secret_sample import ASSUMPTIONS, SecretSample
from sottovoce.privacy.events import LaplaceNoise, OneBit, PrivacyEvent, SamplingScheme, SecureSum

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
    sample: SecretSample | None
    shuffled_clients: int | None
    secure_sum_clients: int | None

    @property
    def amplified(self) -> bool:
        return any(
            value is not None
            for value in (self.sample, self.shuffled_clients, self.secure_sum_clients)
        )

    def event(self, mechanism: Mechanism) -> PrivacyEvent:
        """What is seen of one client in one round."""
        if self.secure_sum_clients is not None:
            channel = SecureSumChannel(minimum_clients=self.secure_sum_clients)
            event = self._any_dimension(channel.event(mechanism, self.adjacency))
        elif self.shuffled_clients is not None:
            # Others hide any change of an input, so that is what is asked of each message, and
            # zero-out is one such change.
            hidden = hidden_among(self.shuffled_clients, mechanism, Adjacency.REPLACE_ONE)
            event = dataclasses.replace(hidden, event=self._any_dimension(hidden.event))
        else:
            event = self._any_dimension(mechanism.privacy(self.adjacency))
        if self.sample is not None:
            event = self.sample.event(mechanism, event)
        return registry.vouched(mechanism, event)

    def local_event(self, mechanism: Mechanism, adjacency: Adjacency) -> PrivacyEvent:
        """What a message alone would give away."""
        event = self._any_dimension(mechanism.privacy(adjacency))
        return event if self.sample is None else self.sample.unsampled(event)

    def _any_dimension(self, event: PrivacyEvent) -> PrivacyEvent:
        """Without a stated dimension with which epsilon grows, the largest counts."""
        grows = isinstance(event, OneBit | SecureSum) or (
            isinstance(event, LaplaceNoise) and isinstance(self.domain, L2Ball)
        )
        if self.dimension is None and grows:
            assert isinstance(event, OneBit | SecureSum | LaplaceNoise)
            return dataclasses.replace(event, dimension=MAX_DIMENSION)
        return event

    def describe(self) -> dict[str, Any]:
        """How the release is amplified, for the result; empty if it is not."""
        described: dict[str, Any] = {}
        if self.sample is not None:
            described["sampling"] = self.sample.describe()
        if self.shuffled_clients is not None:
            described["shuffled_clients"] = self.shuffled_clients
        if self.secure_sum_clients is not None:
            described["secure_sum_clients"] = self.secure_sum_clients
        if self.amplified:
            described["assumes"] = self._assumption()
        return described

    def _assumption(self) -> str:
        """What must be true for the epsilon to hold, in a sentence."""
        if self.shuffled_clients is not None:
            return (
                f"a trusted shuffler mixes at least {self.shuffled_clients} messages each round; "
                "any change of an input is hidden (replace-one), zero-out among them"
            )
        if self.secure_sum_clients is not None:
            return (
                f"nobody sees more than sums over at least {self.secure_sum_clients} clients who "
                "do not collude"
            )
        assert self.sample is not None
        return self.sample.assumption


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
    return Release(
        registration=registration,
        domain=domain,
        dimension=dimension,
        clip_norm=clip_norm,
        adjacency=Adjacency.parse(adjacency),
        sample=secret_sample(sampling_rate, sampling, sampling_hidden_by, named=named),
        shuffled_clients=shuffled_clients,
        secure_sum_clients=secure_sum_clients,
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
    if hidden_by not in (*ASSUMPTIONS, "nothing"):
        raise UnknownNameError.among(hidden_name, hidden_by, [*ASSUMPTIONS, "nothing"])
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
