"""Central noise, simulated: this process is trusted with every update, and adds noise to their sum.

Not local privacy: clients send their clipped updates as they are, to somebody who tells nobody.
What is released is the sum plus the noise of *one* message, divided by a public number. One
contribution moves the sum by as much as it would move its own message, so the event is the same;
but the noise is there once and not once for each client.

Where each client takes part by a coin of probability `client_sampling_rate` that nobody else sees,
the event is the sampled one. It holds for a client only if every round is charged, whether the coin
fell so or not; if the divisor, and whatever else is published, does not depend on the coins; and if
noise is released even where nobody takes part.
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
from sottovoce.mechanisms.noise.laws import Gaussian, Laplace
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
    """Noise once on a sum, over clients of whom each takes part with a secret probability.

    At client level with sampling 'poisson' nobody else sees who was sampled, and every client is
    charged for every round; at sample level privacy.record_sampling_rate does the same for records.
    """

    assumption: ClassVar[str | None] = (
        "the server is trusted with every update, and adds the noise once, to the sum"
    )

    client_sampling_rate: float = field(default=1.0, metadata=DERIVED)

    def __post_init__(self) -> None:
        _ = self.visibility  # which checks the rate

    @property
    def wire_name(self) -> str:
        """The name in the hash of a plan, whatever the class is called; it never changes."""
        return f"Central(client_sampling_rate={self.client_sampling_rate!r})"

    @property
    def visibility(self) -> NoisySums:
        """Sums with one noise, which cost every client the same, whether it took part or not."""
        return NoisySums(client_sampling_rate=self.client_sampling_rate)

    def check_runtime(self, facts: RuntimeFacts) -> None:
        """A simulation without messages: nobody sends what a trusted server would add up."""
        if facts.messages != "none" or not facts.seeded:
            raise ConfigError(
                "the channel 'central' is simulated without messages: set runtime.messages = "
                "'none' and randomness = 'seeded'"
            )
        if facts.rotation == "on":
            raise ConfigError(
                "'rotation' turns messages before they are encoded, and the channel 'central' "
                "encodes none; set it to 'off'"
            )

    def check_federation(self, backend: str) -> None:
        raise ConfigError(
            f"runtime.backend = '{backend}' has no trusted server that adds noise to sums; set "
            "channel.kind = 'direct'"
        )

    def check_order(self) -> None:
        raise ConfigError("the channel 'central' has no messages; there is nothing to send")

    def check(self, context: ChannelContext) -> None:
        rate = context.sampling.independent_rate
        if rate is None:
            raise ConfigError(
                f"the channel 'central' accounts for sampling 'everyone' or 'poisson', not for "
                f"'{context.sampling.kind}'"
            )
        if context.unit is Unit.SAMPLE and rate < 1.0:
            raise ConfigError(
                "a client that is sampled brings all of its records, so sampling clients hides "
                "no single record: set privacy.record_sampling_rate and sampling 'everyone', "
                "or privacy.level = 'client'"
            )

    def resolved(self, context: ChannelContext) -> Self:
        """Return the channel with the secret sampling that the spec asks for."""
        return dataclasses.replace(
            self, client_sampling_rate=context.sampling.independent_rate or 1.0
        )

    def check_cohort(self, cohort: Iterable[tuple[Mechanism, float]]) -> None:
        """There is one noise, so all clients' must be the same."""
        noise_of_sum(set(cohort))

    def serves(self, clients: int) -> bool:  # noqa: ARG002
        """Noise is released for any cohort, even where nobody takes part."""
        return True

    def describe(self) -> str:
        return "central noise, simulated: this process is trusted with every update"

    def guarantee(self) -> str:
        return f"central privacy ({self.describe()}): the noisy sums hide"

    def seen_by(self, *, private: bool) -> str:  # noqa: ARG002
        return (
            "Everybody but the server sees only noisy means. The server itself is trusted with "
            "every update."
        )

    def warnings(
        self,
        local_epsilon: float | None,  # noqa: ARG002
        central_epsilon: float | None,  # noqa: ARG002
    ) -> list[str]:
        return [
            "central noise is no local privacy: the server is trusted with every update, and "
            "nobody else may see who was sampled; bytes are those of a float32 message of every "
            "client in every round"
        ]


def noise_of_sum(cohort: Iterable[tuple[Mechanism, float]]) -> CentralNoise | None:
    """The noise on the weighted sum, which is what any one message would bring; None for nobody.

    A message's noise and sensitivity are both scaled by its weight, so its event is that of the
    sum if the noise there is at least weight times its own. The largest is taken: products of
    weights and widths agree up to rounding only.
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
                f"a sum has one noise, but clients ask for {noise} and {largest}; give all clients "
                "the same mechanism and budget (drop 'privacy.groups')"
            )
    return largest


def _scaled(noise: CentralNoise, factor: float) -> CentralNoise:
    if isinstance(noise, Gaussian):
        return Gaussian(stddev=noise.stddev * factor)
    return Laplace(scale=noise.scale * factor)


def _width(noise: CentralNoise) -> float:
    return noise.stddev if isinstance(noise, Gaussian) else noise.scale
