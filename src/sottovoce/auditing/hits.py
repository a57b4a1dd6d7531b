"""From counts of two neighbours' draws to what they give away."""

import math
from dataclasses import dataclass

from sottovoce.core import proportion_bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """How often draws of two neighbours fell into one set that was fixed before.

    The bounds hold together with probability 1 - error: half of it is for each side.
    """

    first: int
    first_trials: int
    second: int
    second_trials: int

    def delta(self, epsilon: float, error: float) -> float:
        """At or below the true delta at `epsilon`: P(S) - e^eps Q(S).

        At epsilon = 0 it is 2 r - 1, r the share of draws that the set tells right: one bound for
        all of them is closer than two. They are not all right with the same probability, which
        makes their sum's tail no heavier than the binomial's beyond its mean (Hoeffding 1956).
        """
        if epsilon == 0.0 and self.first_trials == self.second_trials:
            right = self.first + self.second_trials - self.second
            share = proportion_bounds.lower(right, self.first_trials + self.second_trials, error)
            return max(0.0, 2.0 * float(share) - 1.0)
        p, q = self._bounds(error)
        return max(0.0, p - math.exp(min(epsilon + math.log(q), 700.0)))

    def epsilon(self, delta: float, error: float) -> float:
        """At or below the true epsilon at `delta`: log((P(S) - delta)/Q(S))."""
        p, q = self._bounds(error)
        return max(0.0, math.log((p - delta) / q)) if p > delta else 0.0

    def _bounds(self, error: float) -> tuple[float, float]:
        return (
            float(proportion_bounds.lower(self.first, self.first_trials, error / 2.0)),
            float(proportion_bounds.upper(self.second, self.second_trials, error / 2.0)),
        )
