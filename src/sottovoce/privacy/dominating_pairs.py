"""Dominating pairs of events, for the PLD accountant.

A pair (P, Q) dominates an event if its privacy profile H(x) = sup P - x Q is, for every x > 0, at
least that of any two neighbors. Products of dominating pairs dominate adaptive compositions (Zhu,
Dong and Wang 2022).
"""

import math
from functools import lru_cache
from typing import assert_never

import numpy as np

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import UnsupportedEventError
from sottovoce.privacy.allocation import allocated_pairs
from sottovoce.privacy.events import (
    Allocated,
    BasicEvent,
    FinitePair,
    FiniteTable,
    GaussianNoise,
    LaplaceNoise,
    MetricDp,
    NonPrivate,
    OneBit,
    PrivacyEvent,
    PureDp,
    RenyiCurve,
    Sampled,
    SeededBits,
    Shuffled,
    SummedBits,
    SummedNoise,
    ZeroConcentrated,
    basic_counts,
)
from sottovoce.privacy.finite_menus import is_small, sampled_table_pairs
from sottovoce.privacy.gaussian_sums import gaussian_mu_of_sum
from sottovoce.privacy.loss_distributions import grid_law, grid_step, loss_range
from sottovoce.privacy.loss_pairs import (
    MAX_SAMPLING_RATE,
    PAIR_ACCURACY,
    AtomPair,
    GaussianPair,
    LaplacePair,
    LogisticBitPair,
    LossPair,
    SampledAwayPair,
    SampledPair,
    SwappedPair,
    randomized_response,
    symmetric_pair,
    upper_pair,
)
from sottovoce.privacy.pure import pure_epsilon
from sottovoce.privacy.sampling import LARGEST_CENTER, AntipodalPair
from sottovoce.privacy.shuffling import shuffled_pair

_LEAST = 1e-100  # Smaller mus and rates count as this, so that no quotient overflows.
_LARGEST_MU = 1000.0  # Beyond it losses of a million are common, so it counts as non-private.
_CELLS = 4096  # Grid cells of a release that is composed before it is sampled.
_TAIL = 1e-40  # Mass of such a release that each step cuts off and counts as an infinite loss.

# A pair for the contribution in the first neighbor, one for it in the second, and a count.
CountedPairs = tuple[LossPair, LossPair, int]


def dominating_pairs(event: PrivacyEvent) -> list[CountedPairs]:
    """Return pairs whose composition dominates the event; all Gaussian parts become one pair.

    Each item has a pair (P, Q) in which the law with the contribution is P, a pair in which it is
    Q, and how often the part occurs. The first pairs together dominate one direction, the second
    pairs the other; under replace-one they are the same. Several bits (`OneBit` of dimension 2 or
    more) and secure sums count as Gaussian. `UnsupportedEventError` is raised if a part has no
    known pair.
    """
    mus, found = [], []
    for part, count in basic_counts(event).items():
        mu = _gaussian_mu(part)
        if mu is None:
            found.append((*_pairs(part), count))
        else:
            mus.append(mu * math.sqrt(float(min(count, 2**1000))))
    if mus:
        total = max(math.hypot(*mus), _LEAST) * (1.0 + 2.0**-48)
        gaussian: LossPair = GaussianPair(total) if total <= _LARGEST_MU else _disjoint()
        found.append((gaussian, gaussian, 1))
    return found


def _gaussian_mu(event: BasicEvent) -> float | None:
    """Return the mu of an event that a Gaussian pair dominates; None for any other event.

    A bit Bern(sigmoid(z)) is the sign of a unit Gaussian with mean Phi^-1(sigmoid(z)). That mean
    moves at most sqrt(2 pi)/4 times as much as z, because its slope is largest at z = 0. So bits
    whose logits move by S are post-processing of Gaussians whose means move by S sqrt(2 pi)/4.
    """
    match event:
        case GaussianNoise():
            return event.mu
        case SummedBits() | SummedNoise():
            return gaussian_mu_of_sum(event)
        case OneBit() if event.dimension > 1:
            return event.shift * math.sqrt(2.0 * math.pi) / 4.0
        case _:
            return None


@lru_cache(maxsize=256)
def _pairs(event: BasicEvent) -> tuple[LossPair, LossPair]:
    match event:
        case NonPrivate():
            return _both_directions(_disjoint())
        case PureDp():
            return _both_directions(randomized_response(event.epsilon))
        case MetricDp():
            return _both_directions(randomized_response(event.pure().epsilon))
        case LaplaceNoise() if event.dimension == 1:
            return _both_directions(LaplacePair(event.shift))
        case OneBit():  # A single bit; several bits are Gaussian (`_gaussian_mu`).
            return _both_directions(LogisticBitPair(event.shift))
        case FinitePair():
            return _both_directions(symmetric_pair(event.first, event.second))
        case FiniteTable():
            return _table(event, 1.0)
        case Sampled(event=FiniteTable() as table) if event.scheme == "poisson":
            return _table(table, max(event.rate, _LEAST))
        case Sampled():
            return _sampled(event)
        case Allocated():
            return allocated_pairs(event)
        case Shuffled():
            return _both_directions(shuffled_pair(event))
        case SeededBits():
            return _both_directions(randomized_response(event.largest_loss))
        case LaplaceNoise() | GaussianNoise() | SummedBits() | SummedNoise():
            raise _no_pair(event)
        case ZeroConcentrated() | RenyiCurve():
            raise _no_pair(event)
        case _:
            assert_never(event)


def _no_pair(event: BasicEvent) -> UnsupportedEventError:
    return UnsupportedEventError(
        f"the pld accountant needs a dominating pair, and has none for this "
        f"{type(event).__name__}; use renyi"
    )


def _disjoint() -> LossPair:
    """Return two laws without a common outcome: no guarantee at all."""
    return symmetric_pair((1.0, 0.0), (0.0, 1.0))


def _both_directions(pair: LossPair) -> tuple[LossPair, LossPair]:
    """Return one pair for both directions: it dominates the event in both orders."""
    return pair, pair


def _table(table: FiniteTable, rate: float) -> tuple[LossPair, LossPair]:
    """Return the pairs with the largest profile over the rows of a table, sampled at `rate`.

    Under zero-out the two directions have different pairs. A table with too many rows to list is
    counted by its pure epsilon.
    """
    if not is_small(table):
        pure = pure_epsilon(table)
        return _both_directions(randomized_response(pure) if math.isfinite(pure) else _disjoint())
    pairs = sampled_table_pairs(table, rate)
    if table.adjacency == Adjacency.REPLACE_ONE:
        return _both_directions(upper_pair(pairs))
    return upper_pair(pairs), upper_pair(tuple((second, first) for first, second in pairs))


def _sampled(event: Sampled) -> tuple[LossPair, LossPair]:
    (base, away), rate = _whole_release(event.event), max(event.rate, _LEAST)
    if rate > MAX_SAMPLING_RATE:
        return base, away  # By joint convexity sampling only lowers the profile.
    if event.adjacency == Adjacency.REPLACE_ONE:
        opposite = _antipodal(event, base, rate)
        return _both_directions(opposite or SwappedPair(base, rate))
    return SampledPair(base, rate), SampledAwayPair(away, rate)


def _antipodal(event: Sampled, base: LossPair, rate: float) -> AntipodalPair | None:
    """Return the pair of zero-centered Gaussian noise on a Poisson sample; None for other events.

    Bits count as Gaussians, because one threshold turns a Gaussian into the bit, for the law
    without the contribution and for both contributions; see `_gaussian_mu`.
    """
    centered = all(
        isinstance(part, GaussianNoise | OneBit) and part.zero_centered
        for part in basic_counts(event.event)
    )
    if event.scheme != "poisson" or not centered or not isinstance(base, GaussianPair):
        return None
    center = base.mu / 2.0
    return AntipodalPair(center, rate) if center <= LARGEST_CENTER else None


def _whole_release(event: PrivacyEvent) -> tuple[LossPair, LossPair]:
    """Return one pair for a whole release without amplification, in each direction."""
    parts = dominating_pairs(event)
    towards = _products([_power(pair, count) for pair, _, count in parts])
    if all(pair is away for pair, away, _ in parts):
        return towards, towards
    return towards, _products([_power(pair, count) for _, pair, count in parts])


def _products(pairs: list[LossPair]) -> LossPair:
    total = pairs[0]
    for pair in pairs[1:]:
        total = _product(total, pair)
    return total


def _power(pair: LossPair, count: int) -> LossPair:
    """Return the pair composed `count` times with itself, by repeated squaring."""
    if count == 1:
        return pair
    half = _power(pair, count // 2)
    square = _product(half, half)
    return _product(square, pair) if count % 2 else square


def _product(one: LossPair, two: LossPair) -> AtomPair:
    """Return the composition of two pairs: losses add, on a grid to which both are rounded up.

    The convolution is direct: all terms are positive, so each mass is accurate relative to itself,
    which sampling the result requires. An FFT would be accurate relative to the largest mass only.
    """
    ranges = [loss_range(pair, _TAIL) for pair in (one, two)]
    step = grid_step(max(max(high - low, 1e-9) for low, high in ranges) / _CELLS)
    laws = [grid_law(pair, step, _TAIL) for pair in (one, two)]
    # Each mass is a sum of at most 2^14 terms.
    finite = np.convolve(laws[0].law.masses, laws[1].law.masses) * (1.0 + PAIR_ACCURACY)
    losses = (laws[0].start + laws[1].start + np.arange(len(finite), dtype=np.float64)) * step
    second = finite * np.exp(-np.maximum(losses, -700.0))
    # Rounding losses up removes Q mass. It is put at loss -inf, because a sampled pair mixes Q
    # into P and must have all of its mass.
    rest = max(0.0, 1.0 - float(np.sum(second)))
    infinite = laws[0].law.infinite + laws[1].law.infinite
    return AtomPair(
        np.concatenate(([-math.inf], losses, [math.inf])),
        np.concatenate(([0.0], finite, [infinite])),
        np.concatenate(([rest], second, [0.0])),
    )
