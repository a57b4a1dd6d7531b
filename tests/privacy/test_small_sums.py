"""Sums over a few clients: never below enumeration, close to it, below the fair coins' bound."""

import math

import numpy as np
import pytest
from cases import cases

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.divergences import finite_renyi
from sottovoce.privacy.events import SummedBits
from sottovoce.privacy.secure_sum import MAX_CLIENTS, small_sum_renyi


def sums(logits: Vector) -> Vector:
    """The law of the sums of a matrix of bits, clients by coordinates."""
    law = np.ones(1)
    for column in logits.T:
        one = np.ones(1)
        for logit in column:
            p = 1.0 / (1.0 + math.exp(-logit))
            one = np.convolve(one, [1.0 - p, p])
        law = np.multiply.outer(law, one).ravel()
    return law


def an_event(clients: int, bound: float, shift: float, dimension: int, *, zero: bool) -> SummedBits:
    return SummedBits(
        shift=shift,
        dimension=dimension,
        logit_bound=bound,
        clients=clients,
        adjacency=Adjacency.ZERO_OUT if zero else Adjacency.REPLACE_ONE,
        against_zero=zero,
    )


def test_no_clients_and_no_neighbors_exceed_it() -> None:
    rng = np.random.default_rng(6)
    for case in range(cases(40)):
        clients, dimension = int(rng.integers(2, 5)), int(rng.integers(1, 4))
        bound, zero = float(rng.uniform(0.3, 2.5)), bool(case % 2)
        shift = float(rng.uniform(0.1, 2.0 * bound))
        order = float(rng.choice([1.3, 2.0, 4.5, 20.0]))
        event = an_event(clients, bound, shift, dimension, zero=zero)
        claimed = small_sum_renyi(event, order)
        for _ in range(4):
            logits = rng.choice([-bound, bound], size=(clients, dimension))
            if rng.uniform() < 0.3:
                logits = rng.uniform(-bound, bound, size=(clients, dimension))
            move = rng.normal(size=dimension)
            if rng.uniform() < 0.5:
                move = np.sign(move)
            move *= shift / np.linalg.norm(move)
            start = np.zeros(dimension) if zero else rng.uniform(-bound, bound, size=dimension)
            end = np.clip(start + move, -bound, bound)
            laws = []
            for own in (start, end):
                laws.append(sums(np.vstack([own, logits[1:]])))
            for first, second in (laws, laws[::-1]):
                assert finite_renyi(first, second, order) <= claimed * (1.0 + 1e-9)


@pytest.mark.parametrize("clients", [2, MAX_CLIENTS])
def test_equal_splits_over_some_coordinates_come_within_three_percent_of_it(clients: int) -> None:
    dimension, order, worst = 4, 6.0, 0.0
    claimed = small_sum_renyi(an_event(clients, 1.0, 1.0, dimension, zero=False), order)
    for moved in range(1, dimension + 1):
        step = 1.0 / math.sqrt(moved)
        for ups in range(clients):
            others = [1.0] * ups + [-1.0] * (clients - 1 - ups)
            for start in np.linspace(-1.0, 1.0 - step, 15).tolist():
                first, second = (
                    sums(np.array([[own, *others]]).T) for own in (start + step, start)
                )
                worst = max(worst, moved * finite_renyi(first, second, order))
    assert worst <= claimed <= 1.03 * worst


def test_a_few_clients_hide_more_than_their_fair_coins_say() -> None:
    """By those it was 1.4784."""
    event = an_event(6, 1.0, 1.0, 6, zero=False)
    assert privacy_spent(event, 1e-5).epsilon == pytest.approx(1.245, abs=2e-3)
