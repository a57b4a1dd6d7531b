"""Bellman's recursion: never below an adversary that is enumerated, and close to the best one."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.core.errors import UnsupportedEventError
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.bellman import BellmanAccountant
from sottovoce.privacy.divergences import finite_hockey_stick
from sottovoce.privacy.events import (
    Composed,
    FiniteTable,
    GaussianNoise,
    OneBit,
    PrivacyEvent,
    PureDp,
    Repeated,
    Sampled,
    SummedBits,
)
from sottovoce.privacy.finite_menus import sum_pairs
from sottovoce.privacy.pld import PldAccountant

ZERO_OUT, REPLACE_ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
BELLMAN, PLD = BellmanAccountant(), PldAccountant()
DELTA = 1e-5
ROWS = ((0.9, 0.1), (0.6, 0.4))
MIDDLE = ((0.75, 0.25),)

Laws = list[tuple[Vector, Vector]]


def sampled(event: PrivacyEvent, rate: float, count: int = 1) -> PrivacyEvent:
    one = Sampled(event=event, rate=rate, scheme="poisson", hidden_by="own-records")
    return Repeated(event=one, count=count)


def bits(dimension: int, rho: float) -> OneBit:
    return OneBit(
        shift=math.sqrt(8.0 * rho), dimension=dimension, adjacency=ZERO_OUT, against_zero=True
    )


def secure_sum(
    shift: float, dimension: int, bound: float, clients: int, *, against_zero: bool = False
) -> SummedBits:
    return SummedBits(
        shift=shift,
        dimension=dimension,
        logit_bound=bound,
        clients=clients,
        adjacency=ZERO_OUT if against_zero else REPLACE_ONE,
        against_zero=against_zero,
    )


def sigmoid(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-logit))


def bit_law(logit: float) -> Vector:
    return np.array([sigmoid(-logit), sigmoid(logit)])


def sum_law(logits: Sequence[float]) -> Vector:
    law = np.ones(1)
    for logit in logits:
        law = np.convolve(law, bit_law(logit))
    return law


def product(laws: Sequence[Vector]) -> Vector:
    total = np.ones(1)
    for law in laws:
        total = np.multiply.outer(total, law).ravel()
    return total


def menus(table: FiniteTable, rate: float) -> list[Laws]:
    """What neighbors' laws may be, in each direction that must be counted; by the definition."""
    rows = [np.array(row) for row in table.rows]
    left_out = rows if table.zero is None else [rows[table.zero]]
    found: Laws = []
    for zero in left_out:
        present = [rate * row + (1.0 - rate) * zero for row in rows]
        if table.adjacency == ZERO_OUT:
            found += [(row, zero) for row in present]
        else:
            found += list(itertools.permutations(present, 2))
    backward = [(q, p) for p, q in found]
    return [found, backward] if table.adjacency == ZERO_OUT else [found]


def worst_tree(menu: Sequence[Laws], counts: tuple[int, ...], p: float, q: float) -> float:
    """The largest sum of (P - Q)_+ over all adversaries, who also choose what comes next."""
    if not any(counts):
        return max(0.0, p - q)
    best = 0.0
    for i, count in enumerate(counts):
        if count:
            left = (*counts[:i], count - 1, *counts[i + 1 :])
            for first, second in menu[i]:
                letters = zip(first.tolist(), second.tolist(), strict=True)
                best = max(best, sum(worst_tree(menu, left, p * a, q * b) for a, b in letters))
    return best


@st.composite
def tables(draw: st.DrawFn, adjacency: Adjacency, most_rows: int = 3) -> FiniteTable:
    letters, rows = draw(st.integers(2, 3)), draw(st.integers(2, most_rows))
    weights = st.lists(st.integers(0, 9), min_size=letters, max_size=letters).filter(any)
    drawn = [draw(weights) for _ in range(rows)]
    zeros = st.integers(0, rows - 1)
    return FiniteTable(
        rows=tuple(tuple(w / sum(row) for w in row) for row in drawn),
        zero=draw(zeros if adjacency == ZERO_OUT else st.none() | zeros),
        adjacency=adjacency,
    )


@pytest.mark.parametrize("adjacency", list(Adjacency))
@given(data=st.data(), rate=st.sampled_from([0.05, 0.3, 1.0]), epsilon=st.floats(0.0, 2.0))
@settings(deadline=None, max_examples=30)
def test_tables_cover_every_adaptive_adversary_and_no_more(
    adjacency: Adjacency, data: st.DataObject, rate: float, epsilon: float
) -> None:
    table = data.draw(tables(adjacency))
    few = table.zero is not None and len(table.rows) == 2
    count = data.draw(st.integers(1, 3 if few else 2))
    ways = menus(table, rate)
    exact = max(worst_tree([menu], (count,), 1.0, math.exp(epsilon)) for menu in ways)
    event = sampled(table, rate, count)
    assert PLD.delta(event, epsilon) >= exact * (1.0 - 1e-12)
    try:
        found = BELLMAN.delta(event, epsilon)
    except UnsupportedEventError:  # a single pair, which pld has exactly
        found = PLD.delta(event, epsilon)
    assert exact * (1.0 - 1e-12) <= found <= exact * 1.001 + 1e-5


@given(data=st.data(), epsilon=st.floats(0.0, 2.0))
@settings(deadline=None, max_examples=12)
def test_different_tables_are_covered_in_any_order(data: st.DataObject, epsilon: float) -> None:
    rates, both = (0.2, 1.0), [data.draw(tables(REPLACE_ONE, most_rows=2)) for _ in range(2)]
    counts = (2, 1)
    steps = [menus(table, rate)[0] for table, rate in zip(both, rates, strict=True)]
    exact = worst_tree(steps, counts, 1.0, math.exp(epsilon))
    event = Composed(events=tuple(map(sampled, both, rates, counts)))
    for accountant in (BELLMAN, PLD):
        assert accountant.delta(event, epsilon) >= exact * (1.0 - 1e-12)


# The larger delta is that of the neighbor without the contribution first.
AWAY = FiniteTable(rows=((1.0, 0.0), (0.9, 0.1)), zero=1, adjacency=ZERO_OUT)


@given(
    both=st.tuples(tables(ZERO_OUT, most_rows=2), tables(ZERO_OUT, most_rows=2)),
    rate=st.sampled_from([0.05, 0.3]),
    epsilon=st.floats(0.0, 2.0),
)
@example(both=(AWAY, AWAY), rate=0.3, epsilon=0.2)
@settings(deadline=None, max_examples=12)
def test_several_tables_in_one_sampled_release_keep_their_directions(
    both: tuple[FiniteTable, FiniteTable], rate: float, epsilon: float
) -> None:
    without = product([np.array(table.rows[table.zero or 0]) for table in both])
    found = PLD.delta(sampled(Composed(events=both), rate), epsilon)
    for rows in itertools.product(*(table.rows for table in both)):
        mixed = rate * product([np.array(row) for row in rows]) + (1.0 - rate) * without
        for p, q in ((mixed, without), (without, mixed)):
            assert found >= finite_hockey_stick(p, q, epsilon) * (1.0 - 1e-12)


@pytest.mark.parametrize(
    ("rows", "zero", "golden", "upper_pair"),
    [
        (ROWS + MIDDLE, 2, 2.13897, 2.4018),
        (ROWS, 0, 3.39061, 3.8895),
        (ROWS, None, 3.39061, 3.8895),
    ],
)
def test_fifty_sampled_responses_have_the_known_epsilon(
    rows: tuple[tuple[float, ...], ...], zero: int | None, golden: float, upper_pair: float
) -> None:
    event = sampled(FiniteTable(rows=rows, zero=zero, adjacency=REPLACE_ONE), 0.1, 50)
    spent = privacy_spent(event, DELTA)
    assert spent.accountant == "bellman"
    assert golden * (1.0 - 1e-5) <= spent.epsilon <= golden * 1.001
    assert dict(spent.bounds)["pld"] == pytest.approx(upper_pair, rel=1e-4)


def test_against_the_row_of_zero_the_order_is_fixed() -> None:
    event = sampled(FiniteTable(rows=ROWS, zero=0, adjacency=ZERO_OUT), 0.1, 50)
    assert 3.33919 <= privacy_spent(event, DELTA).epsilon <= 3.33919 * 1.0005
    with pytest.raises(UnsupportedEventError, match="pld accountant is exact"):
        BELLMAN.epsilon(event, DELTA)


def test_outcomes_that_only_one_row_has_stay_an_atom() -> None:
    table = FiniteTable(
        rows=((0.4, 0.6, 0.0), (0.4, 0.0, 0.6), (1.0, 0.0, 0.0)), zero=None, adjacency=REPLACE_ONE
    )
    for accountant in (BELLMAN, PLD):
        assert accountant.delta(table, 1.0) == pytest.approx(0.6, abs=1e-9)
        assert accountant.epsilon(table, 0.59) == math.inf
        assert accountant.epsilon(table, 0.61) < 1.0


# Equal splits over all coordinates, the worst that are known: forward and reverse.
@pytest.mark.parametrize(
    ("dimension", "rho", "forward", "reverse", "close"),
    [
        (1, 0.1, 0.35037, 0.54403, 1.001),
        (3, 0.1, 0.67565, 0.87342, 1.0125),
        (12, 0.1, 1.43981, 1.60709, 1.025),
        (12, 1.0, 3.92477, 5.8306, 1.03),
    ],
)
def test_bits_against_fair_ones_are_close_to_the_worst_split(
    dimension: int, rho: float, forward: float, reverse: float, close: float
) -> None:
    epsilon = BELLMAN.epsilon(bits(dimension, rho), DELTA)
    assert max(forward, reverse) <= epsilon <= close * max(forward, reverse)


@given(data=st.data(), dimension=st.integers(1, 3), epsilon=st.floats(0.0, 2.5))
@settings(deadline=None, max_examples=30)
def test_no_split_of_the_bits_lies_above(
    data: st.DataObject, dimension: int, epsilon: float
) -> None:
    shares = st.lists(st.floats(0.0, 1.0), min_size=dimension, max_size=dimension)
    split = np.array(data.draw(shares.filter(lambda drawn: sum(drawn) > 0.1)))
    event = bits(dimension, data.draw(st.sampled_from([0.02, 0.3, 1.5])))
    logits = event.shift * np.sqrt(split / split.sum())
    tilted = product([bit_law(z) for z in logits.tolist()])
    fair = np.full(len(tilted), 1.0 / len(tilted))
    found = BELLMAN.delta(event, epsilon)
    for p, q in ((tilted, fair), (fair, tilted)):
        assert found >= finite_hockey_stick(p, q, epsilon) * (1.0 - 1e-12)


def test_bits_of_two_releases_may_follow_the_past() -> None:
    """The second release splits its budget by what was seen of the first."""
    one, epsilon = bits(2, 0.3), 0.8
    moves = [(1.0, 0.0), (math.sqrt(0.5), math.sqrt(0.5)), (0.6, 0.8)]
    laws = [product([bit_law(one.shift * part) for part in move]) for move in moves]
    fair = np.full(4, 0.25)
    for menu in ([(law, fair) for law in laws], [(fair, law) for law in laws]):
        exact = worst_tree([menu], (2,), 1.0, math.exp(epsilon))
        assert BELLMAN.delta(Repeated(event=one, count=2), epsilon) >= exact


@pytest.mark.parametrize(
    ("clients", "dimension", "bound", "shift", "known"),
    [
        (3, 1, 1.0, 1.0, 0.62008),
        (6, 1, 1.0, 1.0, 0.62002),
        (2, 1, 2.0, 2.0, 1.43376),
        (2, 2, 1.0, 1.0, 0.92586),
        (3, 2, 1.0, 1.0, 0.92577),
    ],
)
def test_secure_sums_of_few_are_close_to_the_worst_clients_found(
    clients: int, dimension: int, bound: float, shift: float, known: float
) -> None:
    epsilon = BELLMAN.epsilon(secure_sum(shift, dimension, bound, clients), DELTA)
    assert known * (1.0 - 1e-5) <= epsilon <= known * (1.0005 if dimension == 1 else 1.01)


@given(data=st.data(), clients=st.integers(2, 4), dimension=st.integers(1, 2))
@settings(deadline=None, max_examples=25)
def test_no_clients_sums_lie_above(data: st.DataObject, clients: int, dimension: int) -> None:
    bound, epsilon = data.draw(st.sampled_from([0.5, 2.0])), data.draw(st.floats(0.0, 1.5))
    unit = st.sampled_from([-1.0, 1.0]) | st.floats(-1.0, 1.0)
    cell = st.lists(unit, min_size=dimension, max_size=dimension)
    logits = bound * np.array([data.draw(cell) for _ in range(clients + 1)])
    against_zero = data.draw(st.booleans())
    if against_zero:
        logits[1] = 0.0
    with_it, without = (
        product([sum_law([mine[i], *logits[2:, i].tolist()]) for i in range(dimension)])
        for mine in (logits[0], logits[1])
    )
    shift = float(np.linalg.norm(logits[0] - logits[1])) + 1e-9
    event = secure_sum(shift, dimension, bound, clients, against_zero=against_zero)
    found = BELLMAN.delta(event, epsilon)
    for p, q in ((with_it, without), (without, with_it)):
        assert found >= finite_hockey_stick(p, q, epsilon) * (1.0 - 1e-12) - 1e-15


@given(
    move=st.floats(0.01, 5.0),
    bound=st.floats(0.1, 3.0),
    part=st.floats(0.0, 1.0),
    to=st.floats(0.0, 1.0),
)
@settings(deadline=None)
def test_neighbors_lie_within_the_polygon(
    move: float, bound: float, part: float, to: float
) -> None:
    """Every edge, in the order of p', has all points of the curve below it."""
    reach = min(move, 2.0 * bound)
    low = -bound + part * (2.0 * bound - reach)
    p, at = sigmoid(low + to * reach), sigmoid(low)
    corners = sorted(
        (second[1], first[1])
        for first, second in sum_pairs(move, bound, 1, spacing=0.5, against_zero=False)
    )
    ends = [(sigmoid(-bound), sigmoid(-bound)), (sigmoid(bound), sigmoid(bound))]
    edges = itertools.pairwise([ends[0], *corners, ends[1]])
    for (x0, y0), (x1, y1) in edges:
        cross = (x1 - x0) * (p - y0) - (y1 - y0) * (at - x0)
        assert cross <= 1e-12


@pytest.mark.parametrize(
    "event",
    [
        PureDp(epsilon=1.0, adjacency=ZERO_OUT),
        GaussianNoise(mu=1.0, adjacency=ZERO_OUT),
        OneBit(shift=1.0, dimension=3, adjacency=ZERO_OUT),
        bits(13, 0.1),
        Repeated(event=bits(12, 0.1), count=100),
        secure_sum(1.0, 1, 1.0, 17),
        bits(1, 1e9),
        Composed(
            events=(bits(1, 0.1), FiniteTable(rows=ROWS + MIDDLE, zero=2, adjacency=ZERO_OUT))
        ),
        FiniteTable(rows=ROWS * 50, zero=None, adjacency=REPLACE_ONE),
        Repeated(event=FiniteTable(rows=ROWS, zero=0, adjacency=REPLACE_ONE), count=2**50),
    ],
)
def test_what_is_not_small_is_left_to_others(event: PrivacyEvent) -> None:
    with pytest.raises(UnsupportedEventError, match=r"use (pld|renyi)"):
        BELLMAN.epsilon(event, DELTA)


@pytest.mark.parametrize("delta", [0.5, 1e-2, 1e-9, 1e-14])
@pytest.mark.parametrize("shift", [1e-200, 1e-6, 30.0, 200.0])
def test_extremes_neither_fail_nor_fall_below_one_bit(shift: float, delta: float) -> None:
    event = OneBit(shift=shift, dimension=1, adjacency=ZERO_OUT, against_zero=True)
    epsilon = BELLMAN.epsilon(event, delta)
    law = bit_law(shift)
    for p, q in ((law, np.full(2, 0.5)), (np.full(2, 0.5), law)):
        assert math.isinf(epsilon) or finite_hockey_stick(p, q, epsilon) <= delta * (1.0 + 1e-12)
