"""The variance of one coordinate's noise at a given budget, for each mechanism."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from scipy.optimize import brentq

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Domain, L1Ball, L2Ball
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.noise.laws import ScalarStaircase, nu_for_variance
from sottovoce.mechanisms.release import ReleaseTerms
from sottovoce.privacy.additive_noise import laplace_renyi, product_staircase_renyi_l2
from sottovoce.privacy.conversion import epsilon_from_renyi

NUMBER = L2Ball(dimension=1, radius=1.0)
GAUSSIAN, LAPLACE = "Gaussian", "Laplace"
STAIRCASE, WIDE_STAIRCASE = "Staircase", "Staircase, nu = 0.999"
# nu of least variance at the epsilon of a step, and nu near its upper end: after many releases the
# privacy loss matters more than the variance, and it is less if steps are nearly on one level.
_MECHANISMS: Mapping[str, tuple[str, dict[str, Any]]] = {
    GAUSSIAN: ("gaussian", {}),
    LAPLACE: ("laplace", {}),
    STAIRCASE: ("staircase", {"nu": "auto", "step_multiplier": 1.0}),
    WIDE_STAIRCASE: ("staircase", {"nu": 0.999, "step_multiplier": 1.0}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseBudget:
    """(epsilon, delta) under zero-out, for all releases together."""

    epsilon: float
    delta: float
    releases: int


def variance_at(name: str, domain: Domain, budget: NoiseBudget) -> float:
    """Return the variance of the named noise on `domain`, by the least sound epsilon."""
    kind, given = _MECHANISMS[name]
    registration = registry.find(kind)
    found = registration.calibrated(
        domain,
        given,
        rounds=budget.releases,
        epsilon=budget.epsilon,
        delta=budget.delta,
        event_of=ReleaseTerms(adjacency=Adjacency.ZERO_OUT),
    )
    law = registration.build(domain, found).law([0.0] * domain.dimension)
    return float(law.variance()[0])


def number_ratio(name: str, budget: NoiseBudget) -> float:
    """Return variance over the Gaussian's, for releases of one number of magnitude at most 1."""
    return variance_at(name, NUMBER, budget) / variance_at(GAUSSIAN, NUMBER, budget)


def one_shot_l1_ratio(name: str, dimension: int, budget: NoiseBudget) -> float:
    """Return variance over the Gaussian's, on vectors of L1 norm at most 1.

    Such a vector lies in the L2 ball of the same radius, which is all that the Gaussian can use.
    """
    variance = variance_at(name, L1Ball(dimension=dimension, radius=1.0), budget)
    return variance / variance_at(GAUSSIAN, L2Ball(dimension=dimension, radius=1.0), budget)


def _staircase_of_scale(scale: float) -> ScalarStaircase:
    """Return a staircase with steps of the clip norm, 1, and the nu of least variance."""
    return ScalarStaircase(step=1.0, epsilon=1.0 / scale, nu=nu_for_variance(1.0 / scale))


def _renyi_l2(name: str, scale: float, dimension: int, order: float) -> float:
    """Return the exact worst-case D_a under an L2 clip of 1."""
    if name == GAUSSIAN:
        return order / (2.0 * scale**2)
    if name == LAPLACE:
        return laplace_renyi(1.0 / scale, dimension, order)
    noise = _staircase_of_scale(scale)
    return product_staircase_renyi_l2(order, noise.epsilon, noise.nu, 1.0, dimension)


def _renyi_l2_variance(name: str, dimension: int, budget: NoiseBudget) -> float:
    def missing(log_scale: float) -> float:
        curve = partial(_renyi_l2, name, math.exp(log_scale), dimension)
        spent = epsilon_from_renyi(lambda order: budget.releases * curve(order), budget.delta)
        return spent - budget.epsilon

    scale = math.exp(float(brentq(missing, math.log(0.01), math.log(1e8))))
    variances = {
        GAUSSIAN: scale**2,
        LAPLACE: 2.0 * scale**2,
        STAIRCASE: _staircase_of_scale(scale).variance,
    }
    return variances[name]


def renyi_l2_ratio(name: str, dimension: int, budget: NoiseBudget) -> float:
    """Return variance over the Gaussian's on every coordinate, under an L2 clip.

    The library refuses the staircase as a mechanism there; only the Renyi curve of its worst case
    is known. Therefore the other noises are also converted from their Renyi curves.
    """
    gaussian = _renyi_l2_variance(GAUSSIAN, dimension, budget)
    return _renyi_l2_variance(name, dimension, budget) / gaussian
