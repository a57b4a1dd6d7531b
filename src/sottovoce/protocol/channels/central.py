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

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.coordinate_laws import CentralNoise, noise_of
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.noise.gaussian import Gaussian
from sottovoce.mechanisms.noise.laplace import Laplace
from sottovoce.mechanisms.release import NoisySums


@dataclass(frozen=True, slots=True, kw_only=True)
class Central:
    """Noise once on a sum, over clients of whom each takes part with a secret probability."""

    client_sampling_rate: float = 1.0

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

    def check(self, cohort: Iterable[tuple[Mechanism, float]]) -> None:
        """There is one noise, so all clients' must be the same."""
        noise_of_sum(set(cohort))

    def serves(self, clients: int) -> bool:  # noqa: ARG002
        """Noise is released for any cohort, even where nobody takes part."""
        return True

    def describe(self) -> str:
        return "central noise, simulated: this process is trusted with every update"


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
