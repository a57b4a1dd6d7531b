"""The filter holds against whoever chooses each event by all earlier answers.

Such a server is enumerated: of all its strategies the best one is found by dynamic programming over
the histories and the losses that they can have.
"""

import math
from collections.abc import Callable, Sequence

import pytest

from sottovoce.core.adjacency import Adjacency
from sottovoce.privacy.accounting import within
from sottovoce.privacy.calibration import calibrate, rounds_within
from sottovoce.privacy.compositions import compose_repeated
from sottovoce.privacy.events import (
    FinitePair,
    GaussianNoise,
    LaplaceNoise,
    NonPrivate,
    OneBit,
    PrivacyEvent,
    PureDp,
    Repeated,
    Sampled,
)
from sottovoce.privacy.filters import History, PrivacyFilter, first_delta

REPLACE, ZERO = Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT
Counts = tuple[tuple[int, int], ...]  # (place in the menu, how often), in the order of first use


def pair(p: float, q: float) -> FinitePair:
    return FinitePair(first=(p, 1.0 - p), second=(q, 1.0 - q), adjacency=REPLACE)


def response(epsilon: float) -> FinitePair:
    p = 1.0 / (1.0 + math.exp(-epsilon))
    return pair(p, 1.0 - p)


def largest_delta(
    menu: Sequence[FinitePair], admits: Callable[[History], bool], epsilon: float, most: int
) -> float:
    """delta at epsilon of the best of all strategies, of at most so many events.

    A strategy sees every answer, and with it the loss so far; each event may have either order.
    """
    allowed: dict[Counts, bool] = {}
    known: dict[tuple[Counts, float], float] = {}

    def admitted(counts: Counts) -> bool:
        if counts not in allowed:
            allowed[counts] = admits([(menu[place], count) for place, count in counts])
        return allowed[counts]

    def value(counts: Counts, loss: float, left: int) -> float:
        key = (counts, round(loss, 9))
        if key in known:
            return known[key]
        best = max(0.0, -math.expm1(epsilon - loss))
        for place, event in enumerate(menu if left else []):
            after = dict(counts)
            after[place] = after.get(place, 0) + 1
            if not admitted(tuple(after.items())):
                continue
            for ours, other in ((event.first, event.second), (event.second, event.first)):
                continued = [
                    p * value(tuple(after.items()), loss + math.log(p / q), left - 1)
                    for p, q in zip(ours, other, strict=True)
                ]
                best = max(best, math.fsum(continued))
        known[key] = best
        return best

    return value((), 0.0, most)


# Menus, epsilons, deltas and numbers of events. In the first four the bound of the charges alone is
# no filter; in the last one two rules that have all of delta each are none.
CASES = [
    ([response(0.5), pair(0.1, 0.01)], 2.0, 0.0444021825, 5),
    ([response(1.5), response(0.7), pair(0.1, 0.01)], 2.0, 0.2168344070, 5),
    ([pair(0.5, 0.25), pair(0.1, 0.25), response(0.3)], 2.0, 0.0139057457, 5),
    ([response(1.0), response(0.3), response(0.7)], 0.5, 0.3416970840, 5),
    ([response(0.3), pair(0.1, 0.05), pair(0.1, 0.4)], 1.5, 0.0094263355, 8),
]


def test_the_bound_of_the_charges_alone_is_no_filter() -> None:
    """Every composition has delta 0.0444 at most; choosing among them by the answers, 0.061."""
    menu, epsilon, delta, most = CASES[0]
    found = largest_delta(
        menu, lambda history: within(compose_repeated(history), delta, epsilon), epsilon, most
    )
    assert found > 1.35 * delta


@pytest.mark.parametrize("share", [1.0, 0.5, 2.0**-10])
@pytest.mark.parametrize(("menu", "epsilon", "delta", "most"), CASES)
def test_no_strategy_has_a_larger_delta_than_the_filter_says(
    menu: list[FinitePair], epsilon: float, delta: float, most: int, share: float
) -> None:
    filter_ = PrivacyFilter(epsilon=epsilon, delta=delta, first_delta=share * delta)
    assert largest_delta(menu, filter_.admits, epsilon, most) <= delta * (1.0 + 1e-9)


def test_strategies_that_change_events_are_among_those_that_are_admitted() -> None:
    """Else the enumeration above would say nothing about the rule for one order."""
    menu = [response(0.6), pair(0.3, 0.2)]
    filter_ = PrivacyFilter(epsilon=1.0, delta=0.1, first_delta=0.1 / 1024)
    assert filter_.admits([(menu[0], 1), (menu[1], 4)])
    assert 0.5 < largest_delta(menu, filter_.admits, 1.0, 6) / 0.1 <= 1.0


FAMILIES: dict[str, Callable[[float], PrivacyEvent]] = {
    "gaussian": lambda size: GaussianNoise(mu=size, adjacency=REPLACE),
    "one bit": lambda size: OneBit(shift=size, dimension=1000, adjacency=ZERO, against_zero=True),
    "pure": lambda size: PureDp(epsilon=size, adjacency=REPLACE),
    "sampled": lambda size: Sampled(
        event=GaussianNoise(mu=size, adjacency=ZERO),
        rate=0.05,
        scheme="poisson",
        hidden_by="own-records",
    ),
}


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_plan_calibrated_for_these_limits_is_admitted_as_a_whole(family: str) -> None:
    size = calibrate(
        lambda size: Repeated(event=FAMILIES[family](size), count=20),
        epsilon=2.0,
        delta=1e-5,
        more_private="smaller",
        ends=(20.0, 1e-3),
        relative_tolerance=1e-4,
    )
    event = FAMILIES[family](size)
    aside = first_delta(event, 20, epsilon=2.0, delta=1e-5)
    filter_ = PrivacyFilter(epsilon=2.0, delta=1e-5, first_delta=aside)
    assert aside == 1e-5
    assert filter_.admits([(event, 20)])
    assert not filter_.admits([(event, 21)])
    assert filter_.spent([(event, 20)]) == pytest.approx(2.0, rel=1e-3)
    # Nothing is left for others, but what is pure and fits.
    assert not filter_.admits_other_events
    assert not filter_.admits([(event, 1), (GaussianNoise(mu=1e-3, adjacency=event.adjacency), 1)])


def test_after_a_small_first_plan_one_order_admits_other_events() -> None:
    """A quarter of the epsilon first, then noise of other sizes and kinds."""
    first = GaussianNoise(mu=0.05, adjacency=REPLACE)
    aside = first_delta(first, 10, epsilon=8.0, delta=1e-5)
    assert aside == 1e-5 / 1024
    filter_ = PrivacyFilter(epsilon=8.0, delta=1e-5, first_delta=aside)
    second = GaussianNoise(mu=0.1, adjacency=REPLACE)
    most = rounds_within(second, epsilon=8.0, delta=1e-5)
    admitted = max(n for n in range(1, most + 1) if filter_.admits([(first, 10), (second, n)]))
    assert 0.85 * most < admitted < most
    mixed: History = [
        (first, 10),
        (LaplaceNoise(shift=0.5, dimension=1, adjacency=REPLACE), 3),
        (second, 9),
    ]
    assert filter_.admits(mixed)
    assert filter_.spent(mixed) < 8.0
    assert not filter_.admits([*mixed, (NonPrivate(adjacency=REPLACE), 1)])


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_pure_epsilons_add_up_to_the_limit_and_no_further(epsilon: float) -> None:
    question = PureDp(epsilon=epsilon, adjacency=REPLACE)
    other = PureDp(epsilon=epsilon / 2.0, adjacency=REPLACE)
    aside = first_delta(question, 1, epsilon=2.0 * epsilon, delta=1e-6)
    filter_ = PrivacyFilter(epsilon=2.0 * epsilon, delta=1e-6, first_delta=aside)
    assert filter_.admits([(question, 2)])
    assert filter_.admits([(question, 1), (other, 2)])
    assert not filter_.admits([(question, 2), (PureDp(epsilon=1e-6, adjacency=REPLACE), 1)])


def test_a_plan_that_does_not_fit_leaves_half_of_delta_to_others() -> None:
    event = GaussianNoise(mu=1.0, adjacency=REPLACE)
    assert first_delta(event, 10**15, epsilon=2.0, delta=1e-5) == 5e-6
