"""Clients asked one after another in a secret order: every transcript enumerated."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from cases import denser
from numpy.typing import NDArray

from sottovoce.core.adjacency import Adjacency
from sottovoce.privacy.accounting import find_accountant
from sottovoce.privacy.events import PureDp, Repeated, Shuffled
from sottovoce.privacy.shuffling import shuffled_delta

Transcript = tuple[int, ...]
Law = dict[Transcript, float]
# What a client that has the bit `x` would say if it told the truth, after what was said before.
Question = Callable[[Transcript, int], int]


def asked_plainly(before: Transcript, x: int) -> int:
    return x


def asked_by_parity(before: Transcript, x: int) -> int:
    return x ^ (sum(before) % 2)


def asked_by_the_last_batch(before: Transcript, x: int) -> int:
    """The model moves on after every second message."""
    last = before[: len(before) // 2 * 2][-2:]
    return x & (1 - max(last, default=0))


def asked_ever_more(before: Transcript, x: int) -> int:
    return x if sum(before) <= len(before) / 2 else 1


QUESTIONS = [asked_plainly, asked_by_parity, asked_by_the_last_batch, asked_ever_more]


def epoch(
    data: Sequence[int], eps0: float, question: Question, begun: Transcript = ()
) -> dict[Transcript, float]:
    """The law of an epoch's transcript, averaged over all orders; `begun` is what came before."""
    truth = 1.0 / (1.0 + math.exp(-eps0))
    law: Law = {}
    orders = list(itertools.permutations(data))
    for order in orders:
        for said in itertools.product((0, 1), repeat=len(data)):
            chance = 1.0
            for place, x in enumerate(order):
                answer = question(begun + said[:place], x)
                chance *= truth if said[place] == answer else 1.0 - truth
            law[said] = law.get(said, 0.0) + chance / len(orders)
    return law


def epochs(data: Sequence[int], eps0: float, question: Question) -> Law:
    """Two of them, the second after the first, each in an order of its own."""
    return {
        first + second: chance * then
        for first, chance in epoch(data, eps0, question).items()
        for second, then in epoch(data, eps0, question, first).items()
    }


def hockey_stick(one: Law, other: Law, epsilon: float) -> float:
    return math.fsum(max(0.0, one[said] - math.exp(epsilon) * other[said]) for said in one)


def claimed(eps0: float, clients: int, count: int, epsilon: float) -> float:
    local = PureDp(epsilon=eps0, adjacency=Adjacency.REPLACE_ONE)
    event = Repeated(event=Shuffled(event=local, clients=clients), count=count)
    return find_accountant("pld").delta(event, epsilon)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("others", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 0, 1)])
@pytest.mark.parametrize("eps0", denser([0.5, 1.5]))
def test_an_epoch_of_questions_that_follow_answers_is_a_shuffle(
    question: Question, others: tuple[int, ...], eps0: float
) -> None:
    one, other = (epoch((x, *others), eps0, question) for x in (0, 1))
    for epsilon in (0.0, 0.1, 0.3, 0.9):
        bound = shuffled_delta(eps0, len(others) + 1, epsilon)
        assert hockey_stick(one, other, epsilon) <= bound
        assert hockey_stick(other, one, epsilon) <= bound


@pytest.mark.parametrize("question", QUESTIONS)
def test_epochs_compose_where_each_has_its_own_order(question: Question) -> None:
    one, other = (epochs((x, 0, 0, 1), 1.0, question) for x in (0, 1))
    for epsilon in (0.0, 0.4, 1.2):
        assert hockey_stick(one, other, epsilon) <= claimed(1.0, 4, 2, epsilon)


# -- why each condition is needed ----------------------------------------------------------


def binomial(coins: int, chance: float) -> NDArray[np.float64]:
    return np.array(
        [math.comb(coins, k) * chance**k * (1 - chance) ** (coins - k) for k in range(coins + 1)]
    )


def with_one_more(others: NDArray[np.float64], chance: float) -> NDArray[np.float64]:
    """How many say so, the protected client among them, who does with this chance."""
    return (1 - chance) * np.append(others, 0.0) + chance * np.append(0.0, others)


def excess(one: NDArray[np.float64], other: NDArray[np.float64], epsilon: float) -> float:
    return float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum())


EPS0, CLIENTS = 1.0, 100
TRUTH = 1.0 / (1.0 + math.exp(-EPS0))


def test_an_order_that_is_known_hides_nothing() -> None:
    seen = TRUTH - math.exp(0.5) * (1.0 - TRUTH)  # of a place that is known to be one client's
    assert seen > 10.0 * shuffled_delta(EPS0, CLIENTS, 0.5)


def test_one_order_for_all_epochs_tells_which_messages_are_one_clients() -> None:
    """Everyone else has a 0. Counting places with a 1 in all four epochs singles a client out.

    Two vectors of one client in the same round are linked just so.
    """
    always_false, always_true = (1.0 - TRUTH) ** 4, TRUTH**4
    others = binomial(CLIENTS - 1, always_false)
    one, other = (with_one_more(others, chance) for chance in (always_true, always_false))
    assert excess(one, other, 1.0) > 5.0 * claimed(EPS0, CLIENTS, 4, 1.0)


def test_whichever_client_is_known_to_be_in_an_epoch_cut_short_hides_among_those_asked() -> None:
    """Five of the hundred were asked, and a list of who was charged says that one was of them."""
    others = binomial(4, 1.0 - TRUTH)
    one, other = (with_one_more(others, chance) for chance in (TRUTH, 1.0 - TRUTH))
    assert excess(one, other, 0.5) > 10.0 * shuffled_delta(EPS0, CLIENTS, 0.5)
    assert excess(one, other, 0.5) <= shuffled_delta(EPS0, 5, 0.5)
