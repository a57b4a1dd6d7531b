"""Secure sums of bits: never below exact sums, never above the local bound, 1/n for many."""

import functools
import itertools
import math

import numpy as np
import pytest
from cases import denser
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.privacy.divergences import finite_renyi, one_bit_renyi
from sottovoce.privacy.events import Repeated, SummedBits
from sottovoce.privacy.renyi import RenyiAccountant, renyi_divergence
from sottovoce.privacy.secure_sum import NODES, secure_sum_renyi

ORDERS = (1.1, 1.5, 2.0, 3.7, 8.0, 30.0, 200.0)


def secure_sum(shift: float, dimension: int, logit_bound: float, clients: int) -> SummedBits:
    return SummedBits(
        shift=shift,
        dimension=dimension,
        logit_bound=logit_bound,
        clients=clients,
        adjacency=Adjacency.ZERO_OUT,
    )


def probability(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-logit))


def sum_law(logits: list[float]) -> Vector:
    """The exact law of a sum of independent bits."""
    law = np.ones(1)
    for logit in logits:
        law = np.convolve(law, [1.0 - probability(logit), probability(logit)])
    return law


bounds = st.sampled_from([0.1, 0.5, 1.0, 2.0, 4.0, 8.0])


@given(
    bound=bounds,
    clients=st.integers(2, 6),
    order=st.sampled_from(ORDERS),
    at_bound=st.booleans(),
    data=st.data(),
)
@settings(max_examples=150)
def test_one_sum_is_covered_whatever_the_others_send(
    bound: float, clients: int, order: float, at_bound: bool, data: st.DataObject
) -> None:
    unit = st.sampled_from([-1.0, 1.0]) if at_bound else st.floats(-1.0, 1.0)
    others = data.draw(st.lists(unit, min_size=clients - 1, max_size=clients - 1))
    one, other = (bound * data.draw(st.floats(-1.0, 1.0)) for _ in range(2))
    shift = max(abs(one - other), 1e-3)
    rest = [bound * value for value in others]
    exact = finite_renyi(sum_law([one, *rest]), sum_law([other, *rest]), order)
    event = secure_sum(shift * (1 + 1e-12), 1, bound, clients)
    assert secure_sum_renyi(event, order) >= exact * (1 - 1e-9) - 1e-14


@given(
    bound=bounds,
    clients=st.integers(2, 5),
    order=st.sampled_from(ORDERS),
    data=st.data(),
)
@settings(max_examples=80)
def test_two_sums_are_covered_however_the_shift_is_split(
    bound: float, clients: int, order: float, data: st.DataObject
) -> None:
    logits = st.floats(-bound, bound)
    exact, squares = 0.0, 0.0
    for _ in range(2):
        rest = data.draw(st.lists(logits, min_size=clients - 1, max_size=clients - 1))
        one, other = data.draw(logits), data.draw(logits)
        exact += finite_renyi(sum_law([one, *rest]), sum_law([other, *rest]), order)
        squares += (one - other) ** 2
    event = secure_sum(max(math.sqrt(squares) * (1 + 1e-12), 1e-3), 2, bound, clients)
    assert secure_sum_renyi(event, order) >= exact * (1 - 1e-9) - 1e-14


@pytest.mark.parametrize("bound", denser([0.5, 2.0, 4.0]))
@pytest.mark.parametrize("clients", [2, 10, 60])
def test_the_worst_clients_of_all_are_covered(bound: float, clients: int) -> None:
    """Others at the bound hide least; the victim anywhere."""
    for shift in (0.05, 0.5, min(2.0, 2 * bound), 2 * bound):
        event = secure_sum(shift, 1, bound, clients)
        claimed = {order: secure_sum_renyi(event, order) for order in ORDERS}
        for low in np.linspace(-bound, bound - shift, 5) if shift < 2 * bound else [-bound]:
            for positive in (0, (clients - 1) // 2, clients - 1):
                rest = [bound] * positive + [-bound] * (clients - 1 - positive)
                first, second = (tuple(sum_law([z, *rest])) for z in (low, low + shift))
                for (p, q), order in itertools.product(((first, second), (second, first)), ORDERS):
                    assert claimed[order] >= finite_renyi(p, q, order) * (1 - 1e-9) - 1e-13


@functools.cache
def bit_and_coins(logit: float, coins: int) -> tuple[float, ...]:
    """The law of a bit and so many fair coins."""
    if not coins:
        return tuple(sum_law([logit]).tolist())
    return tuple(np.convolve(bit_and_coins(logit, coins - 1), [0.5, 0.5]).tolist())


def given_the_coins(low: float, shift: float, bound: float, clients: int, order: float) -> float:
    """D_a of one sum whose number of fair coins is known, exactly; the larger direction."""
    chance, moments = 2.0 * probability(-bound), [0.0, 0.0]
    for coins in range(clients):
        weight = math.comb(clients - 1, coins) * chance**coins
        weight *= (1.0 - chance) ** (clients - 1 - coins)
        laws = [bit_and_coins(z, coins) for z in (low, low + shift)]
        for way, (p, q) in enumerate((laws, laws[::-1])):
            moments[way] += weight * math.expm1((order - 1.0) * finite_renyi(p, q, order))
    return math.log1p(max(moments)) / (order - 1.0)


@pytest.mark.parametrize("bound", [0.5, 2.0, 3.0])
@pytest.mark.parametrize("clients", [17, 40])  # of fewer, the worst laws are listed
@pytest.mark.parametrize("shift", [0.1, 0.9])
@pytest.mark.parametrize("order", [1.5, 2.0, 5.0])
def test_the_bound_is_close_above_what_is_left_when_the_coins_are_known(
    bound: float, clients: int, shift: float, order: float
) -> None:
    exact = max(
        given_the_coins(low, shift, bound, clients, order)
        for low in np.linspace(-bound, bound - shift, 9).tolist()
    )
    local = one_bit_renyi(shift, 1, order)
    value = secure_sum_renyi(secure_sum(shift, 1, bound, clients), order)
    # Loosest, by 18%, where the shift is nearly the whole range: the polygon leaves the box there.
    loosest = 1.2 if shift > 0.8 * bound else 1.12
    assert exact * (1 - 1e-9) <= value <= min(local, loosest * exact)


@pytest.mark.parametrize(
    ("clients", "dimension", "bound", "shift"),
    [
        (1000, 100, 2.0, 1.0),
        (10**4, 10**6, 4.0, 1.0),
        (10**6, 10**9, 1.0, 1.0),
        (2**31, 10, 6.0, 0.5),
    ],
)
def test_many_clients_hide_one_behind_their_fair_coins(
    clients: int, dimension: int, bound: float, shift: float
) -> None:
    coins = (clients - 1) * 2.0 / (1.0 + math.exp(bound))
    event = secure_sum(shift, dimension, bound, clients)
    for order in (1.5, 2.0, 4.0):
        crowd = secure_sum_renyi(event, order) / (order * shift**2 / 8.0)
        assert 0.9 / coins < crowd < 1.1 / coins


@given(
    shift=st.floats(1e-3, 40.0),
    dimension=st.sampled_from([1, 7, 10**6]),
    bound=st.floats(0.01, 35.0),
    clients=st.sampled_from([1, 2, 50, 10**5]),
)
@settings(max_examples=25)
def test_the_bound_is_at_most_local_and_grows_with_the_order(
    shift: float, dimension: int, bound: float, clients: int
) -> None:
    event = secure_sum(shift, dimension, bound, clients)
    before = 0.0
    for order in (1.01, 1.3, 2.0, 2.2, 9.0, 77.0, 5000.0, 1e6):
        local = one_bit_renyi(shift, dimension, order)
        value = secure_sum_renyi(event, order)
        assert before * (1 - 1e-3) <= value <= local
        assert renyi_divergence(event, order) == value
        before = value
    if clients == 1:
        assert value == local


def test_more_clients_and_smaller_logits_never_cost_more() -> None:
    for one, other in itertools.pairwise((2, 10, 100, 10**4, 10**7)):
        few, many = (secure_sum(1.0, 100, 2.0, clients) for clients in (one, other))
        for order in (1.5, 8.0, 64.0):
            assert secure_sum_renyi(many, order) <= secure_sum_renyi(few, order) * (1 + 1e-2)


def test_epsilon_of_many_rounds_shows_the_crowd() -> None:
    central = Repeated(event=secure_sum(2.0, 10**6, 2.0, 10**4), count=100)
    local = Repeated(event=secure_sum(2.0, 10**6, 2.0, 1), count=100)
    epsilon = RenyiAccountant().epsilon(central, 1e-5)
    assert 0.3 < epsilon < 1.0
    assert RenyiAccountant().epsilon(local, 1e-5) > 50.0


def test_extremes_neither_overflow_nor_vanish() -> None:
    for shift, bound in ((1e-200, 1.0), (1e12, 5.0), (1.0, 1e-300), (1.0, 1e12), (1e-90, 1.0)):
        event = secure_sum(shift, 2**34, bound, 2**31)
        for order in (1.0001, 2.0, NODES[-1], 1e9):
            value = secure_sum_renyi(event, order)
            assert 0.0 <= value <= one_bit_renyi(shift, 2**34, order)
            assert value > 0.0 or shift < 1e-80


@pytest.mark.parametrize("order", [1.0, 0.0, -3.0, math.nan])
def test_orders_up_to_one_are_refused(order: float) -> None:
    with pytest.raises(ParameterError):
        secure_sum_renyi(secure_sum(1.0, 1, 1.0, 5), order)


def test_no_clients_are_refused() -> None:
    with pytest.raises(ParameterError):
        secure_sum(1.0, 1, 1.0, 0)
