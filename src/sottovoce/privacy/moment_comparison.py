"""The moments accountant: bits on a secret sample, compared with sampled Gaussian noise.

Setting: Poisson sampling at rate q, zero-out. A = e^eps, and W is the likelihood ratio of all
releases with the contribution to those without it; expectations are under the law without it. If
the contribution is in the first neighbor (forward), then for every s with 0 <= s < A

    delta <= c_k (A - s)^(1-k) E (W_G - s)_+^k,    c_k = (k-1)^(k-1)/k^k,

where W_G is the likelihood ratio of sampled Gaussian noise: k = 3 for bits against fair ones, with
mu_d^2 = d log(1 + tanh^2(mu/sqrt d)), and k = 5 for any other bits, with mu (half the shift of the
logits). If the contribution is in the second neighbor (reverse), then for every s > 1/A

    delta <= A E (s - W*)_+^2/(4 (s - 1/A)),

where W* is the likelihood ratio of two-point laws with the D_2 of a release. In each direction the
Renyi bound and the bound of the privacy loss distribution hold as well, and the smallest counts.
The worse direction determines epsilon.

Proofs: docs/explanation/privacy.md, section 29. Reference: Pinelis 2006 (fifth powers); the rest
    is our own.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import UnsupportedEventError
from sottovoce.privacy.accounting import register
from sottovoce.privacy.conversion import golden_section
from sottovoce.privacy.divergences import one_bit_renyi
from sottovoce.privacy.events import (
    BasicEvent,
    GaussianNoise,
    OneBit,
    PrivacyEvent,
    Sampled,
    basic_counts,
)
from sottovoce.privacy.loss_distributions import grid_step
from sottovoce.privacy.loss_pairs import MAX_SAMPLING_RATE
from sottovoce.privacy.moment_laws import (
    LARGEST_PLACE,
    LEAST_REACH,
    ForwardLaw,
    ReverseLaw,
    Rounds,
    countable,
    fits_grid,
)
from sottovoce.privacy.pld import direction_delta, direction_epsilon, plan_composition
from sottovoce.privacy.renyi import RenyiAccountant

_MOST_KINDS = 3  # Kinds of sampled releases in one composition.
_UP = 1.0 + 2.0**-45
_LARGEST_EPSILON = 300.0  # Up to here nothing overflows.
_MOST_ROUNDS = 2**50
_LEAST = 1e-100  # Smaller sizes and rates count as this, so that no quotient overflows.
_COARSER = 3.0  # Factor to the grid step of the PLD accountant; it costs 1e-4 of epsilon at most.


@register(summary="sampled bits, compared with sampled Gaussian noise", turn=5, slow=True)
class MomentsAccountant:
    """The moments accountant, for Poisson-sampled bits under zero-out, also with Gaussian noise.

    In each direction it takes the smallest of three bounds: moments of the likelihood ratio
    compared with those of sampled Gaussian noise or of a two-point law, the Renyi bound, and that
    of the privacy loss distribution. The worse direction counts. At most 3 kinds of sampled
    releases are supported.
    """

    name = "moments"

    def epsilon(self, event: PrivacyEvent, delta: float) -> float:
        parameter_rules.delta(delta)
        compared = _compared(event)
        renyi = RenyiAccountant().epsilon(event, delta)  # It holds in both directions.
        return _worse(
            min(renyi, _forward_epsilon(*compared, delta)),
            min(renyi, _reverse_epsilon(event, delta, renyi)),
            lambda direction: direction_epsilon(event, delta, direction),
        )

    def delta(self, event: PrivacyEvent, epsilon: float) -> float:
        compared = _compared(event)
        renyi = RenyiAccountant().delta(event, epsilon)
        return _worse(
            min(renyi, _forward_delta(*compared, epsilon)),
            min(renyi, _reverse_delta(event, epsilon)),
            lambda direction: direction_delta(event, epsilon, direction),
        )


def _worse(
    forward: float, reverse: float, by_losses: Callable[[Literal["towards", "away"]], float]
) -> float:
    """Return the larger bound of both directions.

    The privacy loss distribution, which takes longer, is computed only for the direction that
    determines the result.
    """
    if forward >= reverse:
        forward = min(forward, by_losses("towards"))
    if reverse > forward:
        reverse = min(reverse, by_losses("away"))
    return max(forward, reverse)


# --- From events to rounds.


def _compared(event: PrivacyEvent) -> tuple[tuple[Rounds, ...], int]:
    """Return the rounds of Gaussian noise to compare with, and the power of the comparison."""
    parts = basic_counts(event)
    _check(parts)
    bits = [part for part in _unsampled_parts(parts) if isinstance(part, OneBit)]
    rounds, whole = [], 0.0
    for part, count in parts.items():
        square, rate = _total(part, _forward_square), _rate(part)
        if rate == 1.0:
            whole += float(min(count, 2**1000)) * square
        else:
            rounds.append(_rounds(rate, square, count))
    if whole > 0.0:
        rounds.append(_rounds(1.0, whole, 1))
    return tuple(rounds), 3 if all(bit.against_zero for bit in bits) else 5


def _reverse_rounds(event: PrivacyEvent) -> tuple[tuple[Rounds, ...], float]:
    """Return the rounds of two-point laws, and the mu of the releases that are not sampled."""
    rounds, square = [], 0.0
    for part, count in basic_counts(event).items():
        if _rate(part) == 1.0:
            square += float(min(count, 2**1000)) * _total(part, _dominating_square)
        else:
            rounds.append(_rounds(_rate(part), _total(part, _second_order), count))
    return tuple(rounds), math.sqrt(square) * _UP


def _rounds(rate: float, square: float, count: int) -> Rounds:
    return Rounds(max(rate, _LEAST), max(math.sqrt(square), _LEAST) * _UP, count)


def _check(parts: dict[BasicEvent, int]) -> None:
    sampled = [part for part in parts if isinstance(part, Sampled) and _rate(part) < 1.0]
    inner = _unsampled_parts(parts)
    strange = [part for part in inner if not isinstance(part, OneBit | GaussianNoise)]
    if (
        strange
        or not sampled
        or not any(isinstance(part, OneBit) for part in inner)
        or any(part.adjacency != Adjacency.ZERO_OUT for part in parts)
        or any(part.scheme != "poisson" for part in sampled)
    ):
        raise UnsupportedEventError(
            "the moments accountant supports OneBit, alone or with GaussianNoise, on a Poisson "
            "sample under zero-out; use renyi or pld"
        )
    if len(sampled) > _MOST_KINDS:
        raise UnsupportedEventError(
            f"the moments accountant composes at most {_MOST_KINDS} kinds of sampled releases, got "
            f"{len(sampled)}; use renyi"
        )


def _unsampled_parts(parts: dict[BasicEvent, int]) -> list[BasicEvent]:
    """Return the events that are released, sampled or not."""
    found: list[BasicEvent] = []
    for part in parts:
        found.extend(basic_counts(part.event) if isinstance(part, Sampled) else [part])
    return found


def _rate(part: BasicEvent) -> float:
    """Return the sampling rate; a rate of almost 1 counts as no sampling, an upper bound."""
    rate = part.rate if isinstance(part, Sampled) else 1.0
    return rate if rate <= MAX_SAMPLING_RATE else 1.0


def _total(part: BasicEvent, square: Callable[[BasicEvent], float]) -> float:
    """Return the sum over all events that one sampling decision includes."""
    inner = basic_counts(part.event) if isinstance(part, Sampled) else {part: 1}
    return math.fsum(float(min(count, 2**1000)) * square(one) for one, count in inner.items())


def _forward_square(part: BasicEvent) -> float:
    """Return mu^2 of the Gaussian noise that a release is compared with.

    For bits mu is half the shift of their logits.
    """
    match part:
        case GaussianNoise():
            return part.mu**2
        case OneBit():
            mu, d = part.shift / 2.0, part.dimension
            if part.against_zero:
                return d * math.log1p(math.tanh(mu / math.sqrt(d)) ** 2) * _UP
            return mu * mu
        case _:
            raise UnsupportedEventError(
                f"no moment comparison is known for {type(part).__name__}; use renyi"
            )


def _second_order(part: BasicEvent) -> float:
    """Return at least D_2 of a release against the release without the contribution."""
    if isinstance(part, OneBit) and not part.against_zero:
        return one_bit_renyi(part.shift, part.dimension, 2.0)
    return _forward_square(part)


def _dominating_square(part: BasicEvent) -> float:
    """Return mu^2 of Gaussian noise of which a release is post-processing.

    See `dominating_pairs`.
    """
    if isinstance(part, OneBit):
        return part.shift**2 * math.pi / 8.0
    return _forward_square(part)


# --- With the contribution in the first neighbor.


@lru_cache(maxsize=256)
def _forward_epsilon(rounds: tuple[Rounds, ...], power: int, delta: float) -> float:
    planned = _forward_law(rounds, power, delta)
    if planned is None:
        return math.inf
    law, near = planned
    log_c = _log_constant(power) - math.log(delta)

    def log_a(log_s: float) -> float:
        rest = (log_c + law.log_moment(log_s)) / (power - 1.0)
        return float(np.logaddexp(log_s, rest))

    least = _least(log_a, near, -1.0)
    return max(0.0, least + 2.0**-45 * (1.0 + abs(least)))


def _forward_delta(rounds: tuple[Rounds, ...], power: int, epsilon: float) -> float:
    planned = _forward_law(rounds, power, 1e-30, epsilon)
    if planned is None:
        return 1.0
    law, _ = planned

    def log_delta(log_s: float) -> float:
        log_gap = epsilon + math.log(-math.expm1(log_s - epsilon))
        return _log_constant(power) - (power - 1.0) * log_gap + law.log_moment(log_s)

    least = _least(log_delta, epsilon, -1.0)
    return math.exp(min(0.0, least + 2.0**-40))


def _forward_law(
    rounds: tuple[Rounds, ...], power: int, delta: float, epsilon: float | None = None
) -> tuple[ForwardLaw, float] | None:
    """Return the law on a grid, and about where epsilon is; None if there is no such grid."""
    if sum(one.count for one in rounds) > _MOST_ROUNDS or not all(
        power * one.size <= LARGEST_PLACE for one in rounds
    ):
        return None
    pairs = tuple((one.gaussian_pair(), one.count) for one in rounds)
    plan = plan_composition(pairs, delta, epsilon)
    if plan is None:
        return None
    step = grid_step(_COARSER * plan.step)
    if not all(fits_grid(one, step) for one in rounds):
        return None
    variances = (one.count * math.log1p(one.rate**2 * math.expm1(one.size**2)) for one in rounds)
    below = min(1.2, max(plan.epsilon, math.sqrt(math.fsum(variances))))
    law = ForwardLaw(
        rounds,
        power,
        step=step,
        tilt=plan.tilts.middle,
        reach_down_to=plan.epsilon - below,
        reach=max(LEAST_REACH, math.sqrt(2.0 * math.log(1e6 / max(plan.delta, 1e-100)))),
    )
    return law, plan.epsilon


def _log_constant(power: int) -> float:
    """Return log c_k of (x - A)_+ <= c_k (A - s)^(1-k) (x - s)_+^k, rounded up.

    Equality holds at x = A + (A - s)/(k - 1).
    """
    return (power - 1.0) * math.log(power - 1.0) - power * math.log(power) + 2.0**-48


# --- With the contribution in the second neighbor.


def _reverse_epsilon(event: PrivacyEvent, delta: float, near: float) -> float:
    rounds, mu = _reverse_rounds(event)
    if not countable(rounds, mu) or near > _LARGEST_EPSILON:
        return math.inf
    return _two_point_epsilon(rounds, mu, delta, near)


@lru_cache(maxsize=256)
def _two_point_epsilon(rounds: tuple[Rounds, ...], mu: float, delta: float, near: float) -> float:
    """Return the smallest log A with A^2 R <= 4 delta (s A - 1), minimized over s.

    At one s, where R = E (s - W*)_+^2, it is A = 2/(s + sqrt(s^2 - R/delta)).
    """
    law = ReverseLaw(rounds, mu)

    def log_a(log_s: float) -> float:
        s = math.exp(log_s)
        rest = s * s - law.moment(s) / delta * (1.0 + 2.0**-40)
        return -math.log((s + math.sqrt(rest)) / 2.0) if rest >= 0.0 else math.inf

    return max(0.0, _least(log_a, -1.5 * near, 1.0) + 2.0**-40)


def _reverse_delta(event: PrivacyEvent, epsilon: float) -> float:
    rounds, mu = _reverse_rounds(event)
    if not countable(rounds, mu) or epsilon > _LARGEST_EPSILON:
        return 1.0
    law = ReverseLaw(rounds, mu)

    def log_delta(log_s: float) -> float:
        s = math.exp(log_s)
        gap = s * -math.expm1(-epsilon - log_s)
        return epsilon + math.log(max(law.moment(s), 1e-300)) - math.log(4.0 * gap)

    return math.exp(min(0.0, _least(log_delta, -epsilon, 1.0) + 2.0**-40))


def _least(bound: Callable[[float], float], origin: float, sign: float) -> float:
    """Return the smallest bound at origin + sign * gap over gaps > 0; each of them is sound."""
    gaps = np.log(np.geomspace(1e-3 * min(1.0, max(abs(origin), 1e-6)), 3.0, 16))

    def at(log_gap: float) -> float:
        return bound(origin + sign * math.exp(log_gap))

    values = [at(gap) for gap in gaps.tolist()]
    best = int(np.argmin(values))
    ends = gaps[max(0, best - 1)], gaps[min(len(gaps) - 1, best + 1)]
    return min(values[best], golden_section(at, float(ends[0]), float(ends[1]), tolerance=1e-3)[1])
