"""Mechanisms calibrated to one rho by their own accountants, and the errors of what they send."""

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
# Of a noise multiplier: far finer than any error that is measured.
_TOLERANCE = 1e-12
_SPIKES = 3.0  # the power that makes coordinates uneven before they are rotated


def rho_of_orders(event: PrivacyEvent) -> float:
    """max D_a/a over a = 2 ... 64: the least rho that is stated for these orders."""
    return max(renyi_divergence(event, order) / order for order in ORDERS)


def calibrated(
    kind: str, dimension: int, mu: float, given: Mapping[str, Any] | None = None
) -> Mechanism:
    """The mechanism on the unit ball whose rho against nothing is mu^2/2, from the private side.

    What is 'auto' is settled once, for the noise of a Gaussian of that rho.
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
    """The least number that meets a condition which larger ones meet too: up to rounding."""
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
    """A spiky unit vector, rotated as rounds do it; a hair inside the ball, for the norm rounds."""
    normals = SeededRandomness(number).generator("update", dimension).standard_normal(dimension)
    spiky = normals**_SPIKES
    spiky *= (1.0 - ROUNDING_HEADROOM) / np.linalg.norm(spiky)
    return Rotation.of_round("equal-rho", number, dimension).forward(spiky)


@dataclass(frozen=True, slots=True)
class Sent:
    """How far what one client sent lies from its update, |v - u|^2, and along it, <v, u>/|u|^2."""

    squared_error: float
    alignment: float

    @classmethod
    def of(cls, decoded: Vector, update: Vector) -> "Sent":
        difference = decoded - update
        return cls(float(difference @ difference), float(decoded @ update) / float(update @ update))
