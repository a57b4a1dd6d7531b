"""The channel 'central', simulated: a trusted server sees every update and adds noise to the sum.

This is not local privacy: clients send their clipped updates without noise, and the server is
trusted with them. Released is the sum plus the noise of *one* message, divided by a public number.
One contribution moves the sum by as much as it would move its own message, so the privacy event is
that of one message; but there is one noise in the sum instead of one for each client.

If each client takes part independently with probability `client_sampling_rate`, and only the
trusted server knows who does, the event is the subsampled one. For this to hold:

- every client is charged for every round, whether it was sampled or not;
- the divisor, and everything else that is published, does not depend on who was sampled;
- noise is released even if no client takes part.
"""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Self

from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import ConfigError, ParameterError
from sottovoce.core.sections import DERIVED
from sottovoce.mechanisms.coordinate_laws import CentralNoise, noise_of
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.noise.laws import ScalarGaussian, ScalarLaplace
from sottovoce.mechanisms.release import NoisySums
from sottovoce.protocol.channels.channel import (
    Channel,
    ChannelContext,
    RuntimeFacts,
    register_channel,
)


@register_channel("central", summary="a trusted server adds noise once, to the sum; simulated")
@dataclass(frozen=True, slots=True, kw_only=True)
class Central(Channel):
    """The channel on which a trusted server adds noise once, to the sum of the updates.

    The server sees every update; all other parties see only the noisy means. At client level with
    sampling 'poisson' only the server knows who was sampled, and every client is charged for every
    round. At sample level `privacy.record_sampling_rate` does the same for records.

    Attributes:
        client_sampling_rate: The probability with which each client takes part in a round. It
            follows from the sampling of the spec and cannot be set in [channel].
    """

    assumption: ClassVar[str | None] = (
        "the server is trusted with every update, and adds the noise once, to the sum"
    )

    client_sampling_rate: float = field(default=1.0, metadata=DERIVED)

    def __post_init__(self) -> None:
        _ = self.visibility  # Checks the rate.

    @property
    def wire_name(self) -> str:
        """The text that stands for the channel in the hash of a plan; it never changes."""
        return f"Central(client_sampling_rate={self.client_sampling_rate!r})"

    @property
    def visibility(self) -> NoisySums:
        """Sums with noise added once; a round costs every client the same, even if not sampled."""
        return NoisySums(client_sampling_rate=self.client_sampling_rate)

    def check_runtime(self, facts: RuntimeFacts) -> None:
        """Refuse everything but a seeded simulation without messages and without rotation.

        Args:
            facts: Where and how the run is computed.

        Raises:
            ConfigError: The run would create messages, use other randomness, or rotate updates.
        """
        if facts.messages != "none" or not facts.seeded:
            raise ConfigError(
                "the channel 'central' is simulated without messages; set runtime.messages = "
                "'none' and randomness = 'seeded'"
            )
        if facts.rotation == "on":
            raise ConfigError(
                "rotation = 'on' rotates updates before they are encoded, but the channel "
                "'central' encodes none; set rotation = 'off'"
            )

    def check_federation(self, backend: str) -> None:
        raise ConfigError(
            f"runtime.backend = '{backend}' has no trusted server that adds noise to sums; set "
            "channel.kind = 'direct', or simulate with runtime.backend = 'fast'"
        )

    def check_order(self) -> None:
        raise ConfigError(
            "the channel 'central' has no messages, so a site cannot send any; set channel.kind = "
            "'direct'"
        )

    def check(self, context: ChannelContext) -> None:
        rate = context.sampling.independent_rate
        if rate is None:
            raise ConfigError(
                "the channel 'central' accounts for sampling 'everyone' or 'poisson', got "
                f"'{context.sampling.kind}'; set sampling.kind to one of them"
            )
        if context.unit is Unit.SAMPLE and rate < 1.0:
            raise ConfigError(
                "a client that is sampled contributes all of its records, so sampling of clients "
                "is not counted as amplification for a single record; set "
                "privacy.record_sampling_rate and sampling 'everyone', or privacy.level = "
                "'client'"
            )

    def resolved(self, context: ChannelContext) -> Self:
        """Return the channel with the sampling rate of the spec.

        Args:
            context: The facts of the run.

        Returns:
            A channel with that rate, or 1 if clients are not sampled independently.
        """
        return dataclasses.replace(
            self, client_sampling_rate=context.sampling.independent_rate or 1.0
        )

    def check_cohort(self, cohort: Iterable[tuple[Mechanism, float]]) -> None:
        """Refuse clients with different noise, because there is one noise for all.

        Args:
            cohort: Mechanism and weight of each client.

        Raises:
            ParameterError: The mechanisms' noises, scaled by the weights, differ.
            PrivacyError: A mechanism does more than add Gaussian or Laplace noise.
        """
        noise_of_sum(set(cohort))

    def serves(self, clients: int) -> bool:  # noqa: ARG002
        """Return True: noise is released for every cohort, even an empty one.

        Args:
            clients: The size of the cohort.

        Returns:
            True.
        """
        return True

    def describe(self) -> str:
        return "central noise, simulated: this process is trusted with every update"

    def guarantee(self) -> str:
        return f"central privacy ({self.describe()}): the noisy sums hide"

    def seen_by(self, *, private: bool) -> str:  # noqa: ARG002
        return (
            "The server is trusted with every update, which it sees. All other parties see only "
            "noisy means."
        )

    def warnings(
        self,
        local_epsilon: float | None,  # noqa: ARG002
        central_epsilon: float | None,  # noqa: ARG002
    ) -> list[str]:
        return [
            "central noise is not local privacy: the server is trusted with every update and must "
            "keep secret who was sampled; bytes are counted as one float32 message of every "
            "client in every round"
        ]


def noise_of_sum(cohort: Iterable[tuple[Mechanism, float]]) -> CentralNoise | None:
    """Return the noise to add to each coordinate of the weighted sum, or None for an empty cohort.

    A message's noise and sensitivity are both scaled by its weight, so its event is also that of
    the sum if the noise on the sum is at least its weight times its own noise. Products of weights
    and widths agree up to rounding only, so the largest is taken.

    Raises:
        ParameterError: The clients' noises, each times the client's weight, differ by more than
            rounding.
        PrivacyError: A mechanism does more than add Gaussian or Laplace noise.
    """
    found = [_scaled(noise_of(mechanism), weight) for mechanism, weight in cohort]
    if not found:
        return None
    largest = max(found, key=_width)
    for noise in found:
        if type(noise) is not type(largest) or not math.isclose(
            _width(noise), _width(largest), rel_tol=1e-9
        ):
            raise ParameterError(
                f"a sum has one noise, but clients need {noise} and {largest}; give all clients "
                "the same mechanism, budget (remove 'privacy.groups') and weight"
            )
    return largest


def _scaled(noise: CentralNoise, factor: float) -> CentralNoise:
    if isinstance(noise, ScalarGaussian):
        return ScalarGaussian(stddev=noise.stddev * factor)
    return ScalarLaplace(scale=noise.scale * factor)


def _width(noise: CentralNoise) -> float:
    return noise.stddev if isinstance(noise, ScalarGaussian) else noise.scale
