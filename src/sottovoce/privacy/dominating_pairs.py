"""From events to pairs of laws that dominate them, for the PLD accountant."""

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
    SecureSum,
    SeededBits,
    Shuffled,
    ZeroConcentrated,
    basic_counts,
)
from sottovoce.privacy.finite_menus import is_small, sampled_table_pairs
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
    either_order,
    randomised_response,
    upper_pair,
)
from sottovoce.privacy.pure import pure_epsilon
from sottovoce.privacy.sampling import LARGEST_CENTER, AntipodalPair
from sottovoce.privacy.shuffling import shuffled_pair

_LEAST = 1e-100  # mus and rates below it count as this: no quotient overflows
_LARGEST_MU = 1000.0  # beyond it, losses of a million are common
_CELLS = 4096  # of a release that is composed before it is sampled
_TAIL = 1e-40  # the same, cut off (and counted as infinite) at each step

# A pair for a contribution in the first of two neighbours, one for it in the second, and a count.
CountedPairs = tuple[LossPair, LossPair, int]


def dominating_pairs(event: PrivacyEvent) -> list[CountedPairs]:
    """Pairs whose composition dominates the event; Gaussians are one, however many."""
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
    """The mu of an event that a Gaussian pair dominates; None for another event.

    A bit, Bern(sigmoid(z)), is the sign of a unit Gaussian at Phi^-1(sigmoid(z)), which moves by
    at most sqrt(2 pi)/4 times as much as z: its slope is largest at z = 0. So bits whose logits
    move by S are post-processed from Gaussians that move by S sqrt(2 pi)/4.
    """
    match event:
        case GaussianNoise():
            return event.mu
        case OneBit() if event.dimension > 1:
            return event.shift * math.sqrt(2.0 * math.pi) / 4.0
        case _:
            return None


@lru_cache(maxsize=256)
def _pairs(event: BasicEvent) -> tuple[LossPair, LossPair]:
    match event:
        case NonPrivate():
            return _alike(_disjoint())
        case PureDp():
            return _alike(randomised_response(event.epsilon))
        case MetricDp():
            return _alike(randomised_response(event.pure().epsilon))
        case LaplaceNoise() if event.dimension == 1:
            return _alike(LaplacePair(event.shift))
        case OneBit():  # a single one; more are Gaussian, above
            return _alike(LogisticBitPair(event.shift))
        case FinitePair():
            return _alike(either_order(event.first, event.second))
        case FiniteTable():
            return _table(event, 1.0)
        case Sampled(event=FiniteTable() as table) if event.scheme == "poisson":
            return _table(table, max(event.rate, _LEAST))
        case Sampled():
            return _sampled(event)
        case Allocated():
            return allocated_pairs(event)
        case Shuffled():
            return _alike(shuffled_pair(event))
        case SeededBits():
            return _alike(randomised_response(event.largest_loss))
        case LaplaceNoise() | GaussianNoise() | SecureSum() | ZeroConcentrated() | RenyiCurve():
            raise UnsupportedEventError(
                f"the pld accountant needs a dominating pair, which {type(event).__name__} does "
                "not have; use renyi"
            )
        case _:
            assert_never(event)


def _disjoint() -> LossPair:
    """Two laws without a common outcome: no guarantee at all."""
    return either_order((1.0, 0.0), (0.0, 1.0))


def _alike(pair: LossPair) -> tuple[LossPair, LossPair]:
    """One pair for both directions: it dominates the event in both orders."""
    return pair, pair


def _table(table: FiniteTable, rate: float) -> tuple[LossPair, LossPair]:
    """The largest of the curves of a table's rows, sampled: under zero-out in each direction.

    A table of very many rows counts as what its pure epsilon says.
    """
    if not is_small(table):
        pure = pure_epsilon(table)
        return _alike(randomised_response(pure) if math.isfinite(pure) else _disjoint())
    pairs = sampled_table_pairs(table, rate)
    if table.adjacency == Adjacency.REPLACE_ONE:
        return _alike(upper_pair(pairs))
    return upper_pair(pairs), upper_pair(tuple((second, first) for first, second in pairs))


def _sampled(event: Sampled) -> tuple[LossPair, LossPair]:
    (base, away), rate = _whole_release(event.event), max(event.rate, _LEAST)
    if rate > MAX_SAMPLING_RATE:
        return base, away  # sampling never hurts: joint convexity
    if event.adjacency == Adjacency.REPLACE_ONE:
        opposite = _antipodal(event, base, rate)
        return _alike(opposite or SwappedPair(base, rate))
    return SampledPair(base, rate), SampledAwayPair(away, rate)


def _antipodal(event: Sampled, base: LossPair, rate: float) -> AntipodalPair | None:
    """The pair of Gaussian noise around zero on a Poisson sample; None for anything else.

    Bits count as Gaussians, for one threshold turns a Gaussian into the bit for the left-out law
    and for both contributions; see `_gaussian_mu`.
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
    """One pair for a whole release without amplification, in each direction."""
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
    """The pair `count` times, by squaring."""
    if count == 1:
        return pair
    half = _power(pair, count // 2)
    square = _product(half, half)
    return _product(square, pair) if count % 2 else square


def _product(one: LossPair, two: LossPair) -> AtomPair:
    """Two pairs, one after the other: losses add, on a grid that both are rounded up to.

    By direct convolution: every sum is of positive terms, so that each mass is right relatively to
    itself, as the sampling of the result needs it; an FFT would be right to the largest only.
    """
    ranges = [loss_range(pair, _TAIL) for pair in (one, two)]
    step = grid_step(max(max(high - low, 1e-9) for low, high in ranges) / _CELLS)
    laws = [grid_law(pair, step, _TAIL) for pair in (one, two)]
    # Each mass is a sum of at most 2^14 terms.
    finite = np.convolve(laws[0].law.masses, laws[1].law.masses) * (1.0 + PAIR_ACCURACY)
    losses = (laws[0].start + laws[1].start + np.arange(len(finite), dtype=np.float64)) * step
    second = finite * np.exp(-np.maximum(losses, -700.0))
    # The Q mass that rounding up took away must be somewhere: sampling leaves it to P as well.
    rest = max(0.0, 1.0 - float(np.sum(second)))
    infinite = laws[0].law.infinite + laws[1].law.infinite
    return AtomPair(
        np.concatenate(([-math.inf], losses, [math.inf])),
        np.concatenate(([0.0], finite, [infinite])),
        np.concatenate(([rest], second, [0.0])),
    )
