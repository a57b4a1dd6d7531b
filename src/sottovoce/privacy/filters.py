"""A privacy filter: which charges are allowed if each may depend on all earlier answers.

An accountant bounds a composition whose events were fixed beforehand. A server that chooses its
next request by earlier answers needs more: whatever its strategy, no admitted request may take the
whole interaction beyond (epsilon, delta). A history is admitted by one of three rules, among which
delta is divided:

    pure     The pure epsilons add up to at most epsilon plus the rule's share of delta, which
             covers rounding.
    first    All events of the history equal the first one, and an accountant shows epsilon at
             `first_delta` for their number.
    renyi    The Renyi divergences of one order a add up to a sum that converts to at most epsilon
             at the rest of delta.

`first_delta` and a depend on the limits and the first request only: before it, nothing was
answered.
Proof: docs/explanation/privacy.md, section 33.

References: Feldman and Zrnic 2021, theorem 3.1, and Lecuyer 2021 (one order). That filters can be
combined at the sum of their deltas is our own remark.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from sottovoce.privacy.accounting import epsilon as smallest_epsilon
from sottovoce.privacy.accounting import within
from sottovoce.privacy.compositions import compose_repeated
from sottovoce.privacy.conversion import epsilon_at_order
from sottovoce.privacy.envelope import ORDERS
from sottovoce.privacy.events import PrivacyEvent, Repeated
from sottovoce.privacy.pure import pure_epsilon
from sottovoce.privacy.renyi import renyi_divergence

History = Sequence[tuple[PrivacyEvent, int]]

_PURE_SHARE = 2.0**-10
_FIRST_SHARES = (2.0**-10, 2.0**-6, 2.0**-4, 2.0**-2, 2.0**-1)
_ROUNDING = 2.0**-46
_MOST = 2**40  # Longer plans count as this many repetitions.


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyFilter:
    """The limits of a whole interaction, and the part of `delta` reserved for the first event.

    A history is a sequence of (event, count); the event that was charged first comes first. Each
    event may have been chosen by the answers to all earlier ones.

    Attributes:
        epsilon: The epsilon that the whole interaction must not exceed at `delta`.
        delta: The delta of the whole interaction.
        first_delta: The delta, out of `delta`, for histories that only repeat the first event.
    """

    epsilon: float
    delta: float
    first_delta: float

    def admits(self, history: History) -> bool:
        """Return whether a history, which must not be empty, stays within (epsilon, delta).

        One of three rules has to show it: pure epsilons add up to at most `epsilon` (plus a small
        part of `delta`); or all events equal the first one, and an accountant shows `epsilon` at
        `first_delta` for their number; or Renyi divergences of one order, fixed by the first event,
        convert to at most `epsilon` at the rest of `delta`. False if none of them does.
        """
        whole = compose_repeated(history)
        if self._pure(whole) <= self.epsilon:
            return True
        if _is_repeated(history) and within(whole, self._first_delta, self.epsilon):
            return True
        return self._renyi(whole, history[0][0]) <= self.epsilon

    def spent(self, history: History) -> float:
        """Return the smallest epsilon that one of the three rules of `admits` shows for a history.

        The parts of delta and the Renyi order are those of this filter's own limits. 0 for an empty
        history; infinity if no rule shows a finite epsilon.
        """
        if not history:
            return 0.0
        whole = compose_repeated(history)
        least = min(self._pure(whole), self._renyi(whole, history[0][0]))
        if _is_repeated(history):
            least = min(least, smallest_epsilon(whole, self._first_delta))
        return max(0.0, least)

    @property
    def admits_other_events(self) -> bool:
        """Whether events that neither equal the first one nor have a pure epsilon can be admitted.

        False if the reserved parts use up `delta`, so that nothing is left for the Renyi rule.
        """
        return self._renyi_delta > 0.0

    @property
    def _first_delta(self) -> float:
        return min(self.first_delta, self.delta)

    @property
    def _pure_delta(self) -> float:
        return min(_PURE_SHARE * self.delta, self.delta - self._first_delta)

    @property
    def _renyi_delta(self) -> float:
        left = self.delta - self._first_delta - self._pure_delta
        return left if left > 1e-300 else 0.0

    def _pure(self, whole: PrivacyEvent) -> float:
        # Losses of at most epsilon + x have delta of at most 1 - e^-x < x at epsilon.
        return pure_epsilon(whole) - self._pure_delta

    def _renyi(self, whole: PrivacyEvent, first: PrivacyEvent) -> float:
        if not self.admits_other_events:
            return math.inf
        delta = self._renyi_delta
        order = _order(first, self.epsilon, delta)
        shown = epsilon_at_order(renyi_divergence(whole, order), order, delta)
        return shown + _ROUNDING * (1.0 + abs(shown))


def first_delta(event: PrivacyEvent, count: int, *, epsilon: float, delta: float) -> float:
    """Return the part of `delta` to reserve for a first request that plans `count` repetitions.

    The result is a delta, for `PrivacyFilter.first_delta`: the smallest of a few fractions of
    `delta` at which the whole plan costs at most `epsilon`. That is all of `delta` for a plan that
    was calibrated for exactly these limits, a small fraction for a small plan, and half of `delta`
    for a plan that exceeds `epsilon` even at the whole `delta`.
    """
    plan = Repeated(event=event, count=min(max(count, 1), _MOST))
    if not within(plan, delta, epsilon):
        return delta / 2.0
    shares = (max(share * delta, 1e-300) for share in _FIRST_SHARES)
    return next((share for share in shares if within(plan, share, epsilon)), delta)


@lru_cache(maxsize=256)
def _order(first: PrivacyEvent, epsilon: float, delta: float) -> float:
    """Return the Renyi order that admits the first event most often.

    Orders beyond the best one for Gaussian noise are left out. They are the best for a few nearly
    pure events, which have a rule of their own, and at such an order other events could not follow.
    """
    allowed = {order: epsilon - epsilon_at_order(0.0, order, delta) for order in ORDERS}
    largest = max(ORDERS, key=lambda order: allowed[order] / order)

    def repetitions(order: float) -> float:
        cost = renyi_divergence(first, order)
        return allowed[order] / cost if cost > 0.0 else math.inf

    return max((order for order in ORDERS if order <= largest), key=repetitions)


def _is_repeated(history: History) -> bool:
    return all(event == history[0][0] for event, _ in history)
