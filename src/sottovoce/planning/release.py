"""What one round releases about a client, apart from the mechanism's own parameters."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Domain, clip_norm_of, clipped_domain, geometry_of
from sottovoce.core.errors import ParameterError, PrivacyError, UnknownNameError
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.registry import Registration
from sottovoce.mechanisms.release import (
    EveryMessage,
    NoisySums,
    OnlySums,
    ReleaseTerms,
    SecretSample,
    ShuffledMessages,
    Visibility,
)
from sottovoce.privacy.events import HiddenBy, SamplingScheme

# Formats the name of an argument in errors: the command line writes sampling_rate with dashes.
NameFormat = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRelease:
    """One message per round: its mechanism and domain, and what an observer sees of it.

    Attributes:
        registration: The mechanism's registration.
        domain: The set that updates are clipped to; of dimension 1 if `dimension` is None.
        dimension: The number of coordinates; None if the caller gave none.
        clip_norm: The largest norm in `domain`.
        terms: The adjacency, the sampling and what an observer sees.
    """

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
    format_name: NameFormat = str,
) -> PlannedRelease:
    """Return the release of a mechanism, given by name or as an object.

    A name needs the domain, which the clipping arguments (`dimension` to `records`) describe. A
    mechanism object has its own domain, so those arguments are ignored. For a name without a
    dimension the terms are those of an unknown dimension. `format_name` changes the names of
    arguments in error messages.

    Raises:
        ParameterError: An argument is out of range, or a sampling scheme has no sampling rate.
        PrivacyError: More than one of sampling, shuffling and secure sums was given, or nothing
            hides the sample.
        UnknownNameError: There is no such mechanism, geometry, sampling scheme or way to hide a
            sample.
    """
    hiding = {
        "sampling_rate": sampling_rate,
        "shuffled_clients": shuffled_clients,
        "secure_sum_clients": secure_sum_clients,
    }
    given = [format_name(name) for name, value in hiding.items() if value is not None]
    if isinstance(mechanism, str):
        registration = registry.find(mechanism)
        geometry = clip_geometry or geometry_of(registration.example_domain)
        domain = clipped_domain(geometry, 1 if dimension is None else dimension, clip_norm, records)
    else:
        registration = registry.find(registry.kind_of(mechanism))
        domain, dimension = mechanism.input_domain, mechanism.input_domain.dimension
        clip_norm = clip_norm_of(domain)
    if len(given) > 1:
        raise PrivacyError(
            f"no privacy bound is proved for {' and '.join(given)} together; give only one of them"
        )
    terms = sampled_terms(
        adjacency, sampling_rate, sampling, sampling_hidden_by, format_name=format_name
    )
    if shuffled_clients is not None:
        hidden: Visibility = ShuffledMessages(minimum_clients=shuffled_clients)
        terms = dataclasses.replace(terms, visibility=hidden)
    elif secure_sum_clients is not None:
        hidden = OnlySums(minimum_clients=secure_sum_clients)
        terms = dataclasses.replace(terms, visibility=hidden)
    return PlannedRelease(
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
    format_name: NameFormat = str,
) -> ReleaseTerms:
    """Return the terms of a release on a secret sample; without a rate there is no sample.

    Every message is charged as visible, unless the sample is hidden by "central-noise": then only
    a sum is seen, with noise that a trusted party adds. The errors are those of `secret_sample`.
    Behind a secure sum each message has its own noise and is charged as if it were visible. The
    amplification relies only on this: an observer cannot tell who sent the encoding of zero.
    """
    sample = secret_sample(sampling_rate, sampling, sampling_hidden_by, format_name=format_name)
    central = sample is not None and sample.hidden_by == "central-noise"
    visibility = NoisySums() if central else EveryMessage()
    return ReleaseTerms(adjacency=Adjacency.parse(adjacency), visibility=visibility, sample=sample)


def secret_sample(
    rate: float | None, scheme: str, hidden_by: str, *, format_name: NameFormat = str
) -> SecretSample | None:
    """Return the sample that the three arguments describe; None without a sampling rate.

    Raises:
        ParameterError: The rate is out of range, or missing although `scheme` or `hidden_by` is
            not the default ("poisson", "own-records").
        PrivacyError: `hidden_by` is "nothing", so sampling does not amplify privacy.
        UnknownNameError: There is no such scheme or way to hide a sample.
    """
    rate_name, scheme_name, hidden_name = map(
        format_name, ("sampling_rate", "sampling", "sampling_hidden_by")
    )
    if scheme not in get_args(SamplingScheme):
        raise UnknownNameError.among(scheme_name, scheme, get_args(SamplingScheme))
    if hidden_by not in (*get_args(HiddenBy), "nothing"):
        raise UnknownNameError.among(hidden_name, hidden_by, [*get_args(HiddenBy), "nothing"])
    if rate is None:
        if (scheme, hidden_by) != ("poisson", "own-records"):
            raise ParameterError(
                f"{scheme_name} and {hidden_name} need {rate_name}; give it as the probability of "
                "being in the sample"
            )
        return None
    parameter_rules.fraction("sampling rate", rate)
    if hidden_by == "nothing":
        raise PrivacyError(
            "a server that receives each message sees who took part, so sampling clients does not "
            f"amplify privacy; leave out {rate_name} and give as {format_name('rounds')} the "
            f"number of rounds in which one client takes part, or set {hidden_name} to "
            "own-records, central-noise or secure-sum"
        )
    return SecretSample(rate=rate, scheme=scheme, hidden_by=hidden_by)  # type: ignore[arg-type]


PLANNED_CHANNELS = ("direct", "secure_sum")


def planned_terms(
    terms: ReleaseTerms,
    *,
    channel: str,
    clients: int | None,
    honest: int | None,
    format_name: NameFormat = str,
) -> ReleaseTerms:
    """Return the terms of a plan on a channel; of a secure sum only `honest` clients hide others.

    Raises:
        ParameterError: The numbers of clients are missing, out of range, or given without a sum.
        PrivacyError: There is both a sample and a secure sum.
        UnknownNameError: There is no such channel to plan for.
    """
    clients_name, honest_name = map(format_name, ("clients", "honest"))
    if channel not in PLANNED_CHANNELS:
        raise UnknownNameError.among("channel", channel, PLANNED_CHANNELS)
    if channel == "direct":
        if clients is not None or honest is not None:
            raise ParameterError(
                f"{clients_name} and {honest_name} are those of a secure sum; set "
                f"{format_name('channel')} to secure_sum, or leave them out"
            )
        return terms
    if clients is None:
        raise ParameterError(
            f"a secure sum needs {clients_name}; give the number of messages in a sum"
        )
    parameter_rules.integer(clients_name, clients, low=3, high=2**31)
    if terms.sample is not None:
        raise PrivacyError(
            "no privacy bound is proved for a sample and a secure sum together; leave out "
            f"{format_name('sampling_rate')}"
        )
    # The model is public, so at least one client must be taken to know what the others do not.
    counted = clients - 1 if honest is None else honest
    parameter_rules.integer(honest_name, counted, low=2, high=clients)
    return dataclasses.replace(terms, visibility=OnlySums(minimum_clients=counted))
