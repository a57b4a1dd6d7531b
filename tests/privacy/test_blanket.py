"""A secret order, by bounded densities: no enumerated shuffle exceeds the bound, which is tight."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

import sottovoce
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, L1Ball, L2Ball
from sottovoce.core.errors import PrivacyError
from sottovoce.mechanisms.cldp import Cldp
from sottovoce.mechanisms.mvu import Mvu
from sottovoce.mechanisms.randomized_response import GeneralizedRandomizedResponse
from sottovoce.mechanisms.seeded_sign import SeededSign
from sottovoce.mechanisms.seeded_step import SeededStep
from sottovoce.privacy.accounting import find_accountant
from sottovoce.privacy.binomial import pmf_window
from sottovoce.privacy.event_json import from_json, to_json
from sottovoce.privacy.events import PureDp, Repeated, Shuffled
from sottovoce.privacy.shuffling import BlanketPair, ClonesPair, shuffled_event, shuffled_pair

R = Adjacency.REPLACE_ONE
Floats = NDArray[np.float64]


def event(lo: float, hi: float, clients: int, eps0: float | None = None) -> Shuffled:
    local = PureDp(epsilon=math.log(hi / lo) if eps0 is None else eps0, adjacency=R)
    return Shuffled(event=local, clients=clients, ratios=(lo, hi))


def bound(lo: float, hi: float, clients: int, epsilon: float, count: int = 1) -> float:
    repeated = Repeated(event=event(lo, hi, clients), count=count)
    return find_accountant("pld").delta(repeated, epsilon)


def extreme_law(base: Floats, lo: float, hi: float, order: Sequence[int]) -> Floats:
    """A law with density in [lo, hi] against `base`, as large as it can be, letter by letter."""
    law, left = lo * base, 1.0 - lo
    for letter in order:
        more = min(left, (hi - lo) * base[letter])
        law[letter] += more
        left -= more
    return law


def transcripts(laws: dict[tuple[int, ...], Floats], clients: Sequence[int]) -> Floats:
    """The law of all messages, averaged over all orders; laws[past][input] is a row."""
    letters = next(iter(laws.values())).shape[1]
    orders = list(itertools.permutations(clients))
    found = []
    for said in itertools.product(range(letters), repeat=len(clients)):
        chances = [
            math.prod(laws[said[:i]][x, said[i]] for i, x in enumerate(order)) for order in orders
        ]
        found.append(math.fsum(chances) / len(orders))
    return np.array(found)


def hockey_stick(one: Floats, other: Floats, epsilon: float) -> float:
    return float(np.sum(np.maximum(0.0, one - math.exp(epsilon) * other)))


@pytest.mark.parametrize(("lo", "hi"), [(0.3, 3.0), (0.6, 1.7), (0.3, 1.3)])
def test_no_enumerated_shuffle_exceeds_the_bound(lo: float, hi: float) -> None:
    """Laws, and the law that all share, follow the messages before; hi + lo < 2 included."""
    rng = np.random.default_rng(7)
    largest = 0.0
    for clients in (1, 2, 3):
        bounds = {epsilon: bound(lo, hi, clients, epsilon) for epsilon in (0.0, 0.2, 0.47, 0.9)}
        for _ in range(40):
            laws = {}
            for size in range(clients):
                for past in itertools.product(range(3), repeat=size):
                    base = rng.dirichlet(np.ones(3))
                    orders = [rng.permutation(3).tolist() for _ in range(4)]
                    laws[past] = np.array([extreme_law(base, lo, hi, order) for order in orders])
            others = rng.integers(4, size=clients - 1).tolist()
            one, other = (transcripts(laws, (mine, *others)) for mine in (0, 1))
            for epsilon, claimed in bounds.items():
                truth = max(hockey_stick(one, other, epsilon), hockey_stick(other, one, epsilon))
                assert truth <= claimed
                largest = max(largest, truth / claimed)
    assert largest > (0.8 if lo + hi >= 2.0 else 0.4)


def test_densities_that_overlap_are_covered() -> None:
    """lo + hi < 2: both laws are large on the same letter, which disjoint ones cannot show."""
    lo, hi = 0.3, 1.3
    base = np.array([0.4, 0.3, 0.3])
    rows = np.array([[hi, hi, lo], [hi, lo, hi], [lo, hi, hi]]) * base
    rows /= rows.sum(axis=1, keepdims=True)
    laws = {past: rows for size in range(3) for past in itertools.product(range(3), repeat=size)}
    one, other = (transcripts(laws, (mine, 2, 2)) for mine in (0, 1))
    for epsilon in (0.0, 0.2, 0.47):
        assert hockey_stick(one, other, epsilon) <= bound(lo, hi, 3, epsilon)


def test_epochs_with_orders_of_their_own_compose() -> None:
    lo, hi, base = 0.4, 2.5, np.array([0.2, 0.5, 0.3])
    rows = np.array([extreme_law(base, lo, hi, order) for order in ((0, 1, 2), (2, 1, 0))])
    laws = {past: rows for size in range(2) for past in itertools.product(range(3), repeat=size)}
    one, other = (transcripts(laws, (mine, 1)) for mine in (0, 1))
    for epsilon in (0.0, 0.5, 1.0):
        truth = hockey_stick(np.outer(one, other), np.outer(other, one), epsilon)
        assert truth <= bound(lo, hi, 2, epsilon, count=2)


@pytest.mark.parametrize(
    ("clients", "lo", "hi", "count", "epsilon"),
    [
        # Exact values of the pair, computed by other means (2-D tables of the multinomial).
        (50_000, 0.1678, 29.52, 4, 0.62552),
        (60_000, 0.1744, 25.8833, 1, 0.24626),
        (1_000, 0.42034, 3.10595, 1, 0.33998),
        (1_000, 0.42034, 3.10595, 4, 0.71137),
        (1_000, math.exp(-1.0), math.e, 1, 0.35701),
    ],
)
def test_golden_values(clients: int, lo: float, hi: float, count: int, epsilon: float) -> None:
    repeated = Repeated(event=event(lo, hi, clients), count=count)
    found = find_accountant("pld").epsilon(repeated, 1e-6)
    assert epsilon - 1e-5 <= found <= 1.001 * epsilon


def test_the_pair_is_that_of_the_multinomial() -> None:
    """Against the definition, term by term, for few clients."""
    lo, hi, clients = 0.35, 4.0, 6
    p = (1.0 - lo) / (hi - lo)
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        exact = 0.0
        for m in range(clients):
            heads = math.comb(clients - 1, m) * lo**m * (1 - lo) ** (clients - 1 - m)
            for n0 in range(m + 2):
                for n1 in range(m + 2 - n0):
                    ways = math.comb(m + 1, n0) * math.comb(m + 1 - n0, n1)
                    chance = heads * ways * p ** (n0 + n1) * (1 - 2 * p) ** (m + 1 - n0 - n1)
                    one, other = (lo + (hi - lo) * n / (m + 1) for n in (n0, n1))
                    exact += chance * max(0.0, one - math.exp(epsilon) * other)
        assert exact <= bound(lo, hi, clients, epsilon) <= exact * (1.0 + 1e-4) + 1e-7


def test_wider_bounds_and_fewer_clients_cost_more() -> None:
    base = bound(0.4, 3.0, 200, 0.3)
    assert base < bound(0.4, 3.0, 190, 0.3)
    assert base < bound(0.38, 3.0, 200, 0.3)
    assert base < bound(0.4, 3.2, 200, 0.3)
    none = Shuffled(event=PureDp(epsilon=1e-9, adjacency=R), clients=10, ratios=(1.0, 1.0))
    assert find_accountant("pld").delta(none, 0.0) < 1e-6


def test_the_better_of_blanket_and_clones_is_composed() -> None:
    assert shuffled_pair(event(0.3, 3.0, 100)) == BlanketPair(0.3, 3.0, 100)
    assert isinstance(shuffled_pair(event(1e-6, 1e6, 100, eps0=1.0)), ClonesPair)
    assert isinstance(
        shuffled_pair(shuffled_event(PureDp(epsilon=1.0, adjacency=R), 100)), ClonesPair
    )


def test_the_event_survives_the_ledger() -> None:
    one = event(0.3, 3.0, 100)
    assert from_json(to_json(one)) == one
    assert "ratios" not in to_json(Shuffled(event=one.event, clients=100))


def test_binomial_windows_hold_all_but_what_they_say() -> None:
    first, pmf = pmf_window(1000, 0.1, 0.9, 20.0)
    exact = [math.comb(1000, k) * 0.1**k * 0.9 ** (1000 - k) for k in range(1001)]
    assert pmf == pytest.approx(exact[first : first + len(pmf)], rel=1e-8)
    assert math.fsum(exact) - math.fsum(exact[first : first + len(pmf)]) < math.exp(-20.0)


# -- where the bounds come from ------------------------------------------------------------


@pytest.mark.parametrize(
    "domain", [Box(dimension=4, lower=-1.0, upper=1.0), L1Ball(dimension=4, radius=1.0)]
)
def test_cldp_lies_within_its_bounds_of_a_fair_sign(domain: Box | L1Ball) -> None:
    mechanism = Cldp(input_domain=domain, epsilon=1.5)
    lo, hi = mechanism.density_ratios()
    rng = np.random.default_rng(1)
    for _ in range(20):
        values = domain.project(rng.normal(size=4) * 3.0)
        density = mechanism.law(values).pmf * 8.0  # type: ignore[union-attr]
        assert lo * (1 - 1e-12) <= density.min() <= density.max() <= hi * (1 + 1e-12)
    assert math.log(hi / lo) == pytest.approx(1.5, rel=1e-12)


def test_randomized_response_among_k_levels_has_its_known_bounds() -> None:
    box = Box(dimension=1, lower=0.0, upper=1.0)
    mechanism = GeneralizedRandomizedResponse(input_domain=box, epsilon=1.0, bits=3)
    ratios = mechanism.density_ratios()
    lo = 8.0 / (math.e + 7.0)
    assert ratios == pytest.approx((lo, lo * math.e), rel=1e-9)
    assert ratios is not None
    assert ratios[0] <= lo


@pytest.mark.parametrize("dimension", [1, 3])
def test_every_row_of_a_table_lies_within_its_bounds_of_one_law(dimension: int) -> None:
    """In rationals: one law exists if the lower bounds sum to at most 1 and the upper to at least
    that, for every letter's law must lie between row/hi and row/lo."""
    box = Box(dimension=dimension, lower=0.0, upper=1.0)
    mechanism = Mvu(input_domain=box, epsilon=1.0, input_bits=2, output_bits=2)
    ratios = mechanism.density_ratios()
    assert ratios is not None
    lo, hi = (ratio ** (1.0 / dimension) for ratio in ratios)
    rows = mechanism.table.channel.rows
    least, most = rows.max(axis=0) / hi, rows.min(axis=0) / lo
    assert np.all(least <= most * (1 + 1e-12))
    assert least.sum() <= 1.0 + 1e-12
    assert most.sum() >= 1.0 - 1e-12


def test_a_vector_of_many_coordinates_has_no_bounds_worth_stating() -> None:
    box = Box(dimension=100_000, lower=0.0, upper=1.0)
    mechanism = Mvu(input_domain=box, epsilon=1.0, input_bits=1, output_bits=1)
    assert mechanism.density_ratios() is None


def test_seeds_are_bounded_against_fair_signs() -> None:
    ball = L2Ball(dimension=100, radius=1.0)
    step = SeededStep(
        input_domain=ball, epsilon=5.17, length="kept", generator="chacha20-1", timing="constant"
    )
    assert step.density_ratios() == pytest.approx((0.1678, 29.52), rel=1e-3)
    assert math.log(step.density_ratios()[1] / step.density_ratios()[0]) <= 5.17
    timed = dataclasses.replace(step, timing="variable")  # what the number of tries tells counts
    for one, other in zip(step.density_ratios(), timed.density_ratios(), strict=True):
        assert abs(math.log(other / one)) >= step.choice().timing_loss
    tilted = SeededSign(
        input_domain=ball,
        noise_multiplier=1.0,
        blocks=1,
        generator="chacha20-1",
        timing="variable",
    )
    bounds = tilted.density_ratios()
    assert bounds is not None
    lo, hi = bounds
    choice = tilted.choice()
    limit = math.exp(choice.log_limit)
    assert lo <= 1.0 / (limit * (1.0 + choice.tail / limit))
    assert hi >= limit / (1.0 - choice.tail)


def test_the_same_messages_cost_less_than_two_thirds_of_what_clones_say() -> None:
    """50,000 honest of 60,000, four epochs: 1.000 by clones."""
    spent = sottovoce.spend(
        "seeded_step",
        dimension=100,
        epsilon=5.17,
        length="kept",
        generator="auto",
        timing="auto",
        rounds=4,
        delta=1e-6,
        shuffled_clients=50_000,
        adjacency="replace-one",
    )
    assert 0.625 < spent.epsilon < 0.627
    assert spent.local_epsilon == pytest.approx(20.68, rel=1e-3)


def test_one_record_of_several_is_not_hidden_by_others() -> None:
    with pytest.raises(PrivacyError, match="whole clients"):
        sottovoce.spend(
            "cldp",
            epsilon=1.0,
            clip_geometry="l2",
            records=5,
            shuffled_clients=100,
            adjacency="replace-one",
            delta=1e-6,
        )
