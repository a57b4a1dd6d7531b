"""What one round releases of a client, apart from the mechanism's own parameters."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Domain, clip_norm_of, clipped, geometry_of
from sottovoce.core.errors import ParameterError, PrivacyError, UnknownNameError
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.registry import Registration
from sottovoce.mechanisms.release import (
    EveryMessage,
    NoisySums,
    NoSenders,
    OnlySums,
    ReleaseTerms,
    SecretSample,
    Visibility,
)
from sottovoce.privacy.events import HiddenBy, SamplingScheme

# How an error calls an argument: a command says --sampling-rate where a program says sampling_rate.
Named = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One message a round: its mechanism's kind and domain, and the terms of its release."""

    registration: Registration
    domain: Domain
    dimension: int | None
    clip_norm: float
    terms: ReleaseTerms


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
    terms = sampled_terms(adjacency, sampling_rate, sampling, sampling_hidden_by, named=named)
    if shuffled_clients is not None:
        hidden: Visibility = NoSenders(minimum_clients=shuffled_clients)
        terms = dataclasses.replace(terms, visibility=hidden)
    elif secure_sum_clients is not None:
        hidden = OnlySums(minimum_clients=secure_sum_clients)
        terms = dataclasses.replace(terms, visibility=hidden)
    return Release(
        registration=registration,
        domain=domain,
        dimension=dimension,
        clip_norm=clip_norm,
        terms=dataclasses.replace(terms, any_dimension=dimension is None),
    )


def sampled_terms(
    adjacency: str | Adjacency,
    sampling_rate: float | None,
    sampling: str,
    sampling_hidden_by: str,
    *,
    named: Named = str,
) -> ReleaseTerms:
    """The terms of a release on the sample that is asked for; without one, messages are seen.

    Behind a secure sum each message has its own noise and is charged as if it were seen: what is
    counted on is that nobody sees who sent the encoding of zero.
    """
    sample = secret_sample(sampling_rate, sampling, sampling_hidden_by, named=named)
    central = sample is not None and sample.hidden_by == "central-noise"
    visibility = NoisySums() if central else EveryMessage()
    return ReleaseTerms(adjacency=Adjacency.parse(adjacency), visibility=visibility, sample=sample)


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
