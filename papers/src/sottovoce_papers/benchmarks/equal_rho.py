"""Mechanisms calibrated to one rho by their own accountants, and the errors of their messages."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import ROUNDING_HEADROOM, L2Ball, Vector
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.release import release_event
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.privacy.renyi import renyi_divergence

ORDERS = range(2, 65)
# Relative tolerance of a noise multiplier, far below any measured error.
_TOLERANCE = 1e-12
_SPIKES = 3.0  # The power that makes coordinates uneven before they are rotated.


def rho_of_orders(event: PrivacyEvent) -> float:
    """Return max D_a/a over the orders a = 2 ... 64: the least rho that these orders allow."""
    return max(renyi_divergence(event, order) / order for order in ORDERS)


def calibrate_to_rho(
    kind: str, dimension: int, mu: float, given: Mapping[str, Any] | None = None
) -> Mechanism:
    """Return the mechanism on the unit ball with rho = mu^2/2 under zero-out, never above it.

    Parameters that are 'auto' are resolved once, for the noise of a Gaussian with that rho.
    """
    ball = L2Ball(dimension=dimension, radius=1.0)
    found = registry.find(kind)
    gaussian = {**(given or {}), "noise_multiplier": 1.0 / mu}
    settled = {**gaussian, **found.resolve(ball, gaussian)}
    rho = mu**2 / 2.0

    def at(noise_multiplier: float) -> Mechanism:
        return found.build(ball, {**settled, "noise_multiplier": noise_multiplier})

    def private_enough(noise_multiplier: float) -> bool:
        event = release_event(at(noise_multiplier), adjacency=Adjacency.ZERO_OUT)
        return rho_of_orders(event) <= rho

    return at(_least(private_enough, 1.0 / mu))


def _least(meets: Callable[[float], bool], guess: float) -> float:
    """Return the least number that meets a monotone condition, up to the tolerance, from above."""
    step = guess * 2.0**-20
    low, high = guess - step, guess
    while not meets(high):
        step *= 2.0
        low, high = high, guess + step
    while meets(low):
        step *= 2.0
        low, high = max(guess - step, 0.5 * low), low
    while high - low > _TOLERANCE * guess:
        middle = (low + high) / 2.0
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def rotated_update(dimension: int, number: int) -> Vector:
    """Return an uneven vector, rotated as rounds do it; its norm is just below 1 for rounding."""
    normals = SeededRandomness(number).generator("update", dimension).standard_normal(dimension)
    spiky = normals**_SPIKES
    spiky *= (1.0 - ROUNDING_HEADROOM) / np.linalg.norm(spiky)
    return Rotation.of_round("equal-rho", number, dimension).forward(spiky)


@dataclass(frozen=True, slots=True)
class SentError:
    """The error of one client's decoded message v for update u: |v - u|^2 and <v, u>/|u|^2."""

    squared_error: float
    alignment: float

    @classmethod
    def of(cls, decoded: Vector, update: Vector) -> "SentError":
        """Return the error of a decoded message."""
        difference = decoded - update
        return cls(float(difference @ difference), float(decoded @ update) / float(update @ update))
