"""The sampler of exponential families: P(code j) = w_j e^(y_j z) / sum_k w_k e^(y_k z)."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core.domains import Vector, contiguous_vector
from sottovoce.core.native import native
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.kernels.ladder import (
    NARROW_CELLS,
    Affine,
    Ladder,
    Law,
    NarrowLadder,
    Payloads,
    sample,
    sample_packed_rows,
)
from sottovoce.mechanisms.kernels.reference import family as reference
from sottovoce.mechanisms.row_batches import RowBatch

Codes = NDArray[np.uint8]

MAX_LEVELS = 256
# There are enough cells to keep a chord within a quarter of 2^-16, up to a bound on the memory.
_CHORD_ERROR = 0.25 * 2.0**-16
_FEWEST_CELLS, _MOST_NUMBERS = 4, 1 << 18
_NARROW_REACH = 0.25  # Over this range 32 chords are within 2^-15.


def sample_exponential_family(
    values: ArrayLike,
    affine: Affine,
    points: Vector,
    weights: Vector,
    keystream: Keystream,
    *,
    reach: float,
    fisher_bound: float,
) -> Codes:
    """Return a random code for each value x, drawn at the tilt z that `affine` gives.

    Code j has probability w_j e^(y_j z) / sum_k w_k e^(y_k z), exactly.

    Args:
        values: A vector of values x. The caller must check that they are finite.
        affine: The map from x to the tilt z.
        points: The points y_j.
        weights: The weights w_j.
        keystream: The randomness; it is used up.
        reach: A public bound on |z|. It affects only the speed: larger tilts are encoded as
            exactly, but more slowly.
        fisher_bound: A bound on the variance of y_j for every z. It must hold, because the error
            margins of the kernels rest on it; a larger bound affects only the speed.

    Returns:
        A code for each value, as uint8.

    Raises:
        DomainError: `values` is no vector of numbers.
        RandomnessError: The keystream was used before.
    """
    kernels, vector = native(), contiguous_vector(np.asarray(values))
    if kernels is None or not has_ladder(affine, points, reach):
        tilts = affine(vector.astype(np.float64, copy=False))
        return reference.sample_exponential_family(tilts, points, weights, keystream)
    ladders = _ladders(points, weights, fisher_bound, reach, len(vector))
    law = Law(is_table=False, first=np.array(points), second=np.array(weights))
    codes, left = sample(vector, affine, *ladders, law, keystream, kernels)
    for i in left:
        word = keystream.draw(16, i)
        codes[i] = reference.exact_code(
            affine.at(float(vector[i])), points, weights, word, i, keystream
        )
    return codes


def sample_family_rows(
    batch: RowBatch,
    affine: Affine,
    points: Vector,
    weights: Vector,
    keystreams: Sequence[Keystream],
    *,
    reach: float,
    fisher_bound: float,
) -> Payloads | None:
    """Return the packed codes of many rows, drawn with one call of the C kernels for many rows.

    Args:
        batch: The rows; row i is multiplied with its clipping factor.
        affine: The map from a clipped value to the tilt; its shift must be 0 and its scale 1.
        points: The points y_j.
        weights: The weights w_j.
        keystreams: The randomness of each row; it is used up.
        reach: As for `sample_exponential_family`.
        fisher_bound: As for `sample_exponential_family`.

    Returns:
        A row of bytes for each row: the packed codes that `sample_exponential_family` returns for
        it. None if the C kernels do not suit these rows; the keystreams are then not used.

    Raises:
        RandomnessError: A keystream was used before.
    """
    scaled = [replace(affine, scale=float(factor)) for factor in batch.factor_range()]
    if not all(has_ladder(one, points, reach) for one in scaled):
        return None
    law = Law(is_table=False, first=np.array(points), second=np.array(weights))
    ladders = _ladders(points, weights, fisher_bound, reach, batch.dimension)

    def exact(tilt: float, word: int, i: int, keystream: Keystream) -> int:
        return reference.exact_code(tilt, points, weights, word, i, keystream)

    return sample_packed_rows(batch, affine, *ladders, law, keystreams, exact)


def _ladders(
    points: Vector, weights: Vector, fisher_bound: float, reach: float, count: int
) -> tuple[Ladder, NarrowLadder | None]:
    """Return the ladder of a family and, if it has one, the narrow one for `count` tilts."""
    family = (points.tobytes(), weights.tobytes(), float(fisher_bound))
    narrow = _narrow(*family, min(usual_reach(reach, count), _NARROW_REACH))
    return ladder_of(points, weights, fisher_bound, reach), narrow


def has_ladder(affine: Affine, points: Vector, reach: float) -> bool:
    """Return whether the fast kernels, which use a `Ladder`, can sample this family.

    They need moderate numbers (`affine.is_moderate`, and `reach` between 2^-60 and 2^60), because
    they compute in float32, and at most 256 points, because a code is a byte.
    """
    return affine.is_moderate and 2.0**-60 < reach < 2.0**60 and len(points) <= MAX_LEVELS


def ladder_of(
    points: Vector,
    weights: Vector,
    fisher_bound: float,
    reach: float,
    *,
    fewest: int = _FEWEST_CELLS,
) -> Ladder:
    """Return the `Ladder` (approximate thresholds) of a family for tilts z, |z| <= `reach`.

    Threshold j is P(code <= j) at z. The error margins rest on `fisher_bound`, a bound on the
    variance of the points for every z. There are at least `fewest` cells. Ladders are cached.
    """
    return _ladder(points.tobytes(), weights.tobytes(), float(fisher_bound), float(reach), fewest)


def usual_reach(reach: float, count: int) -> float:
    """Return a bound on most of `count` tilts of this norm, `reach` or a power of two below.

    At most one in 64 is larger.
    """
    share = 8.0 * reach / math.sqrt(max(count, 1))
    return min(float(reach), 2.0 ** math.ceil(math.log2(share)))


@lru_cache(maxsize=64)
def _ladder(
    points: bytes, weights: bytes, fisher_bound: float, reach: float, fewest: int
) -> Ladder:
    wanted = 2.0 * reach / math.sqrt(8.0 * _CHORD_ERROR / fisher_bound)
    most = max(_FEWEST_CELLS, 8 * _MOST_NUMBERS // len(points))
    cells = int(min(max(math.ceil(wanted), fewest), most))
    return Ladder.between(*_chords(points, weights, fisher_bound, reach, cells))


@lru_cache(maxsize=64)
def _narrow(
    points: bytes, weights: bytes, fisher_bound: float, reach: float
) -> NarrowLadder | None:
    return NarrowLadder.between(*_chords(points, weights, fisher_bound, reach, NARROW_CELLS))


def _chords(
    points: bytes, weights: bytes, fisher_bound: float, reach: float, cells: int
) -> tuple[float, float, Vector, Vector, float]:
    """Return the thresholds at the edges of equal cells, and bounds on the error of their chords.

    F_j(z) = P(code <= j) has |F_j'| <= sqrt(M)/2 and |F_j''| <= M with M the Fisher information, so
    a chord over a cell of width h is off by at most M h^2/8.
    """
    nodes, masses = np.frombuffer(points), np.frombuffer(weights)
    edges = np.linspace(-reach, reach, cells + 1)
    exponents = np.multiply.outer(edges, nodes)
    exponents -= exponents.max(axis=1, keepdims=True)
    cumulative = np.cumsum(masses * np.exp(exponents), axis=1)
    thresholds = cumulative[:, :-1] / cumulative[:, -1:]
    width = 2.0 * reach / cells
    errors = np.full(cells, fisher_bound * width**2 / 8.0)
    return -reach, reach, thresholds, errors, math.sqrt(fisher_bound) / 2.0
