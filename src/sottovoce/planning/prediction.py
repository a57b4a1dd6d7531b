"""Prediction of the error of a decoded update from the law that a mechanism declares.

Nothing here depends on a particular mechanism: its law gives the mean and variance of each decoded
coordinate. Errors are averaged over random updates of full norm:

    l2     a uniform direction, which is what a random rotation makes of any update.
    l1     a uniform point of the sphere: exponential magnitudes over their sum, random signs.
    linf   uniform in the box.

One coordinate is then +-r t, where r is the clip norm and t has, up to a factor, the density

    l2     cos^(d-2) theta, t = sin theta          l1     (1 - t)^(d-2)          linf     1

In dimension 1 the coordinate is uniform in its interval in every geometry.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from sottovoce.core.domains import Domain, Vector, geometry_of
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.registry import Parameters, Registration

_NODES = 24
# Less than 1e-17 of the mass lies beyond so many standard deviations (l2) or means (l1).
_L2_REACH, _L1_REACH = 9.0, 40.0
# A fixed seed: the same question always has the same plan.
_SEED = 1


def coordinate_nodes(geometry: str, dimension: int) -> tuple[Vector, Vector]:
    """Return points and weights of a quadrature over one coordinate of a random update.

    The points are in units of the clip norm, and the weights sum to 1: a weighted sum of f(point)
    is the mean of f. It is Gauss-Legendre quadrature in theta (l2) or t, for both signs.
    """
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    unit = (nodes + 1.0) / 2.0
    match geometry:
        case _ if geometry == "linf" or dimension == 1:
            points = unit
        case "l1":
            points = unit * min(1.0, _L1_REACH / (dimension - 1))
            weights = weights * np.exp((dimension - 2) * np.log1p(-points))
        case _:
            angles = unit * min(math.pi / 2.0, _L2_REACH / math.sqrt(dimension))
            points = np.sin(angles)
            weights = weights * np.exp((dimension - 2) * np.log(np.cos(angles)))
    half = weights / weights.sum() / 2.0
    return np.concatenate([-points, points]), np.concatenate([half, half])


def typical_updates(geometry: str, dimension: int, count: int) -> Vector:
    """Return `count` random updates as rows, in units of the clip norm, the same in every call.

    The sample is a Latin hypercube: each coordinate takes every stratum of its distribution once,
    so that a small sample is enough.
    """
    from scipy.special import ndtri

    generator = np.random.default_rng(_SEED)
    strata = np.tile(np.arange(count, dtype=np.float64)[:, None], (1, dimension))
    uniforms = (generator.permuted(strata, axis=0) + generator.random(strata.shape)) / count
    match geometry:
        case _ if geometry == "linf" or dimension == 1:
            return 2.0 * uniforms - 1.0
        case "l1":
            signs = np.where(uniforms < 0.5, -1.0, 1.0)
            sizes = -np.log1p(-np.abs(2.0 * uniforms - 1.0))
            return np.asarray(signs * sizes / sizes.sum(axis=1, keepdims=True))
        case _:
            normal = ndtri(uniforms)
            return np.asarray(normal / np.linalg.norm(normal, axis=1, keepdims=True))


RELATIVE_BIAS = 0.01  # Below this part of the standard deviation a coordinate counts as unbiased.
_COORDINATES = 2**16  # The coordinates of all sampled whole updates together.
_MAX_UPDATES = 64
MAX_WHOLE_DIMENSION = 2**24
# The smallest fraction of the clip norm, the number of fractions scanned for a first bias, and the
# halvings that then refine it.
_SMALLEST, _SCANNED, _HALVINGS = 1e-5, 17, 15

Moments = Callable[[float], tuple[float, float]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The predicted error per coordinate of a decoded update of full norm.

    Attributes:
        mse: The mean over coordinates and updates of E(decode(encode(x)) - x)^2, for one client or
            for the mean of several.
        unbiased_within: The largest |x_i| up to which |bias| is at most 1% of the standard
            deviation, in the data's unit; None if that holds everywhere in the domain, and 0 if it
            fails even at 1e-5 of the clip norm.
    """

    mse: float
    unbiased_within: float | None


def predict(
    registration: Registration,
    parameters: Parameters,
    mechanism: Mechanism,
    updates: Domain,
    *,
    averaged: int = 1,
) -> Prediction:
    """Return the predicted error of a mechanism on `updates` of full norm.

    Args:
        registration: The mechanism's registration.
        parameters: All parameters of `mechanism`.
        mechanism: The mechanism.
        updates: The set of updates. It may be a part of the mechanism's own domain, as an L1 ball
            is of a Euclidean one.
        averaged: The number of clients over which a mean is taken. They all have the same update,
            the worst case for the bias, which a mean does not reduce.

    Returns:
        The error averaged over coordinates and random updates, and the range without bias.

    Raises:
        ParameterError: The error depends on whole updates, and they have too many coordinates.
    """
    domain = mechanism.input_domain
    largest = largest_coordinate(updates)
    if not registration.coordinatewise:
        if domain.dimension > MAX_WHOLE_DIMENSION:
            raise ParameterError(
                f"its error depends on the whole update and is computed for at most "
                f"{MAX_WHOLE_DIMENSION} coordinates, got {domain.dimension}; split the update"
            )
        return Prediction(
            mse=_mean_over_updates(mechanism, updates, largest, averaged),
            unbiased_within=_unbiased_within(_moments_of_a_spike(mechanism), largest),
        )
    alone = registration.build(dataclasses.replace(domain, dimension=1), parameters)  # type: ignore[type-var]
    moments = _moments_of_a_spike(alone)
    points, weights = coordinate_nodes(geometry_of(updates), domain.dimension)
    errors = [
        (mean - x) ** 2 + variance / averaged
        for x, (mean, variance) in ((x, moments(x)) for x in (largest * points).tolist())
    ]
    return Prediction(
        mse=float(weights @ np.array(errors)), unbiased_within=_unbiased_within(moments, largest)
    )


def largest_coordinate(domain: Domain) -> float:
    """Return the largest value of a coordinate: the clip norm, in a ball less a rounding margin.

    A single nonzero coordinate is the norm of its vector, so the domain of dimension 1 tells it.
    """
    alone: Domain = dataclasses.replace(domain, dimension=1)  # type: ignore[type-var]
    return float(alone.project([np.finfo(np.float64).max])[0])


def _mean_over_updates(
    mechanism: Mechanism, updates: Domain, clip_norm: float, averaged: int
) -> float:
    domain = mechanism.input_domain
    count = max(1, min(_MAX_UPDATES, _COORDINATES // domain.dimension))
    total = 0.0
    for update in typical_updates(geometry_of(updates), domain.dimension, count):
        values: Vector = domain.project(clip_norm * update)
        law = mechanism.law(values)
        total += float(np.mean((law.mean() - values) ** 2 + law.variance() / averaged))
    return total / count


def _moments_of_a_spike(mechanism: Mechanism) -> Moments:
    """Return a function for mean and variance of the first coordinate, all others being 0."""
    domain = mechanism.input_domain

    def moments(x: float) -> tuple[float, float]:
        spike = np.zeros(domain.dimension)
        spike[0] = x
        law = mechanism.law(spike)
        return float(law.mean()[0]), float(law.variance()[0])

    return moments


def _unbiased_within(moments: Moments, largest: float) -> float | None:
    """Return the largest |x| without a notable bias; None if there is none in the domain."""

    def unbiased(fraction: float) -> bool:
        for x in (-fraction * largest, fraction * largest):
            mean, variance = moments(x)
            # Rounding errors of float64 in the mean are not a bias.
            slack = RELATIVE_BIAS * math.sqrt(max(variance, 0.0)) + 1e-9 * largest
            if abs(mean - x) > slack:
                return False
        return True

    fractions: list[float] = np.geomspace(_SMALLEST, 1.0, _SCANNED).tolist()
    outside = next((n for n, fraction in enumerate(fractions) if not unbiased(fraction)), None)
    if outside is None:
        return None
    if outside == 0:
        return 0.0
    low, high = fractions[outside - 1], fractions[outside]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if unbiased(middle) else (low, middle)
    return low * largest
