"""Shuffling: never below exact histograms, never above the local guarantee, known figures."""

import math
from collections import defaultdict

import mpmath
import numpy as np
import pytest
from cases import denser, thinned
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError, UnsupportedEventError
from sottovoce.privacy import accounting
from sottovoce.privacy.binomial import TAIL_ERROR, binomial_cdf, fair_pmf
from sottovoce.privacy.events import (
    Composed,
    GaussianNoise,
    OneBit,
    PrivacyEvent,
    PureDp,
    Repeated,
    Shuffled,
    ZeroConcentrated,
)
from sottovoce.privacy.renyi import renyi_divergence
from sottovoce.privacy.shuffling import (
    ClonesPair,
    ShufflingAccountant,
    local_epsilon,
    shuffled_delta,
    shuffled_epsilon,
    shuffled_event,
    shuffled_pair,
)

ZERO_OUT, REPLACE_ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
ACCOUNTANT = ShufflingAccountant()


def pure(epsilon: float, adjacency: Adjacency = REPLACE_ONE) -> PureDp:
    return PureDp(epsilon=epsilon, adjacency=adjacency)


@st.composite
def tables(draw: st.DrawFn) -> Vector:
    """Some laws over two or three messages, as rows."""
    rows, messages = draw(st.integers(2, 4)), draw(st.integers(2, 3))
    spread = draw(st.sampled_from([0.3, 1.0, 2.0]))
    logs = draw(
        st.lists(st.floats(-spread, spread), min_size=rows * messages, max_size=rows * messages)
    )
    table = np.exp(np.reshape(logs, (rows, messages)))
    return np.asarray(table / table.sum(axis=1, keepdims=True))


def histogram_law(laws: list[Vector]) -> dict[tuple[int, ...], float]:
    """The exact law of how often each message occurs."""
    law: dict[tuple[int, ...], float] = {(0,) * len(laws[0]): 1.0}
    for row in laws:
        after: dict[tuple[int, ...], float] = defaultdict(float)
        for counts, mass in law.items():
            for message, chance in enumerate(row.tolist()):
                grown = tuple(c + (i == message) for i, c in enumerate(counts))
                after[grown] += mass * chance
        law = dict(after)
    return law


@given(table=tables(), clients=st.integers(1, 6), data=st.data())
@settings(max_examples=200)
def test_no_exact_histogram_exceeds_the_bound(
    table: Vector, clients: int, data: st.DataObject
) -> None:
    rows = st.integers(0, len(table) - 1)
    others = data.draw(st.lists(rows, min_size=clients - 1, max_size=clients - 1))
    eps0 = float(np.log(table.max(axis=0) / table.min(axis=0)).max()) * (1 + 1e-12) + 1e-12
    laws = [
        histogram_law([table[victim], *(table[other] for other in others)]) for victim in (0, 1)
    ]
    for share in (0.0, 0.1, 0.4, 0.8, 0.99):
        epsilon = share * eps0
        bound = shuffled_delta(eps0, clients, epsilon)
        for first, second in (laws, laws[::-1]):
            exact = math.fsum(max(0.0, first[k] - math.exp(epsilon) * second[k]) for k in first)
            assert exact <= bound + 1e-14


def pair_delta(eps0: float, clients: int, epsilon: float) -> float:
    """The clones pair's delta by brute force over C and the first entry."""
    with mpmath.workdps(40):
        e, n = mpmath.mpf(eps0), clients - 1
        chance, p = mpmath.exp(-e), 1 / (1 + mpmath.exp(-e))
        factor, total = mpmath.exp(epsilon), mpmath.mpf(0)
        for c in range(n + 1):
            weight = math.comb(n, c) * chance**c * (1 - chance) ** (n - c) / 2**c
            for x in range(c + 2):
                one, none = math.comb(c, x - 1) if x > 0 else 0, math.comb(c, x)
                gap = p * one + (1 - p) * none - factor * ((1 - p) * one + p * none)
                total += weight * max(gap, 0)
        return float(total)


@pytest.mark.parametrize("eps0", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("clients", [1, 2, 5, 40])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_delta_is_the_shuffled_pairs_own_for_few_clients(
    eps0: float, clients: int, share: float
) -> None:
    exact = pair_delta(eps0, clients, share * eps0)
    assert exact <= shuffled_delta(eps0, clients, share * eps0) <= exact * (1 + 1e-6)


@pytest.mark.parametrize(
    ("eps0", "epsilon"), [(0.5, 0.0706), (1.0, 0.1825), (2.0, 0.5455), (4.0, 3.98997)]
)
def test_a_thousand_clients_by_the_bound_of_2021(eps0: float, epsilon: float) -> None:
    assert shuffled_epsilon(eps0, 1000, 1e-6) == pytest.approx(epsilon, rel=1e-3)
    assert shuffled_delta(eps0, 1000, shuffled_epsilon(eps0, 1000, 1e-6)) <= 1e-6


@pytest.mark.parametrize(
    ("clients", "delta", "epsilon"), [(10, 1e-5, 1.000), (1000, 1e-5, 0.154), (1000, 1e-6, 0.182)]
)
def test_ten_clients_buy_nothing_and_a_thousand_do(
    clients: int, delta: float, epsilon: float
) -> None:
    event = shuffled_event(pure(1.0), clients)
    assert accounting.epsilon(event, delta) == pytest.approx(epsilon, abs=5e-4)


def shuffled_responses(eps0: float, clients: int, ones: int) -> tuple[Vector, Vector]:
    """How many of n randomised responses say 1 if the first client's truth is 0, and if it is 1.

    `ones` of the other clients have a 1.
    """
    truth = 1.0 / (1.0 + math.exp(-eps0))
    zero, one = np.array([truth, 1.0 - truth]), np.array([1.0 - truth, truth])
    rows = [one] * ones + [zero] * (clients - 1 - ones)
    first, second = (histogram_law([own, *rows]) for own in (zero, one))  # keyed by (zeros, ones)
    keys = [(clients - k, k) for k in range(clients + 1)]
    return np.array([first[k] for k in keys]), np.array([second[k] for k in keys])


@pytest.mark.parametrize(
    ("eps0", "clients", "rounds"), thinned(denser([0.3, 1.0, 2.5]), [2, 6, 15], [1, 2, 3])
)
def test_rounds_of_shuffled_randomized_response_lie_between_exact_and_local(
    eps0: float, clients: int, rounds: int
) -> None:
    event = Repeated(event=shuffled_event(pure(eps0), clients), count=rounds)
    composed = []
    for ones in {0, clients // 2, clients - 1}:
        pair = shuffled_responses(eps0, clients, ones)
        laws = []
        for law in pair:
            joint = np.ones(1)
            for _ in range(rounds):
                joint = np.outer(joint, law).ravel()
            laws.append(joint)
        composed += [laws, laws[::-1]]
    for delta in (1e-6, 1e-3, 3e-2):
        claimed = accounting.epsilon(event, delta)
        assert claimed <= rounds * eps0 * (1.0 + 1e-9)
        for first, second in composed:
            exact = math.fsum(np.maximum(0.0, first - math.exp(claimed) * second).tolist())
            assert exact <= delta * (1.0 + 1e-9) + 1e-14


@given(eps0=st.floats(1e-3, 200.0), clients=st.integers(1, 2**31), log_delta=st.floats(-200, -0.01))
@settings(max_examples=60)
def test_epsilon_never_exceeds_the_local_one_and_falls_with_clients(
    eps0: float, clients: int, log_delta: float
) -> None:
    delta = math.exp(log_delta)
    epsilon = shuffled_epsilon(eps0, clients, delta)
    assert 0.0 <= epsilon <= eps0
    assert shuffled_delta(eps0, clients, epsilon) <= delta
    assert shuffled_epsilon(eps0, min(2**31, 4 * clients), delta) <= epsilon * 1.01 + 1e-12


@pytest.mark.parametrize(("eps0", "clients"), [(1.0, 1), (0.5, 300), (2.0, 5000), (6.0, 10**8)])
def test_the_pair_agrees_with_delta_and_is_symmetric(eps0: float, clients: int) -> None:
    pair = ClonesPair(eps0, clients)
    reach = min(eps0, 4.0 * shuffled_epsilon(eps0, clients, 1e-6))
    # Edges off the lattice of losses: ties go to the bin above, on both sides.
    edges = np.linspace(-reach, reach, 1001) + 1.7e-7 * reach
    first, second = pair.masses(edges)
    assert first.sum() == pytest.approx(1.0, abs=1e-12)
    assert second.sum() == pytest.approx(1.0, abs=1e-12)
    mirrored, _ = pair.masses(-edges[::-1])
    np.testing.assert_allclose(mirrored, second[::-1], rtol=1e-6, atol=1e-14)
    assert pair.reverse() is pair
    for share in (0.0, 0.25, 0.6):
        epsilon = float(edges[500 + int(share * 500)])
        direct = shuffled_delta(eps0, clients, max(epsilon, 0.0))
        above = edges >= epsilon  # bins that begin at or above epsilon
        binned = float(np.sum((first - math.exp(epsilon) * second)[1:][above]))
        assert binned == pytest.approx(direct, rel=1e-5, abs=1e-14)


def test_no_loss_exceeds_eps0() -> None:
    first, second = ClonesPair(1.5, 200).masses(np.array([-1.5 - 1e-9, 1.5]))
    assert first[0] == second[0] == first[2] == second[2] == 0.0


@pytest.mark.parametrize(
    "event",
    [GaussianNoise(mu=0.1, adjacency=ZERO_OUT), ZeroConcentrated(rho=0.1, adjacency=ZERO_OUT)],
)
def test_what_has_no_pure_epsilon_is_refused(event: PrivacyEvent) -> None:
    with pytest.raises(UnsupportedEventError, match=f"pure local.*{type(event).__name__}.*mvu"):
        shuffled_event(Composed(events=(pure(1.0, ZERO_OUT), event)), 100)
    with pytest.raises(UnsupportedEventError, match="pure local"):
        ACCOUNTANT.epsilon(Shuffled(event=event, clients=100), 1e-6)
    with pytest.raises(UnsupportedEventError, match="pure local"):
        shuffled_pair(Shuffled(event=event, clients=100))


def test_zero_out_counts_twice_and_the_local_guarantee_still_holds() -> None:
    one, other = shuffled_event(pure(1.0, ZERO_OUT), 1000), shuffled_event(pure(2.0), 1000)
    assert local_epsilon(one) == pytest.approx(2.0)
    assert local_epsilon(one) >= 2.0
    assert ACCOUNTANT.epsilon(one, 1e-6) == pytest.approx(ACCOUNTANT.epsilon(other, 1e-6))
    few = shuffled_event(pure(1.0, ZERO_OUT), 2)
    assert ACCOUNTANT.epsilon(few, 1e-9) == pytest.approx(1.0)
    assert ACCOUNTANT.delta(few, 0.5) == pytest.approx((math.e - math.exp(0.5)) / (1 + math.e))


def test_one_shuffled_release_only() -> None:
    once = shuffled_event(pure(1.0), 1000)
    assert ACCOUNTANT.epsilon(Repeated(event=once, count=1), 1e-6) == ACCOUNTANT.epsilon(once, 1e-6)
    assert renyi_divergence(once, 3.0) == renyi_divergence(once.event, 3.0)
    for event in (Repeated(event=once, count=2), Composed(events=(once, pure(1.0))), pure(1.0)):
        with pytest.raises(UnsupportedEventError, match="one shuffled release"):
            ACCOUNTANT.epsilon(event, 1e-6)


def test_shuffling_whole_vectors_of_bits_amplifies_nothing() -> None:
    bits = OneBit(shift=1.0, dimension=10_000, adjacency=REPLACE_ONE)
    event = shuffled_event(bits, 10**6)
    assert local_epsilon(event) == pytest.approx(100.0)
    assert ACCOUNTANT.epsilon(event, 1e-6) == pytest.approx(100.0, rel=1e-6)


@pytest.mark.parametrize(
    ("eps0", "clients", "epsilon"),
    [
        (0.0, 5, 0.1),
        (-1.0, 5, 0.1),
        (math.nan, 5, 0.1),
        (1.0, 0, 0.1),
        (1.0, 5, -0.1),
        (1.0, 5, math.nan),
    ],
)
def test_bad_input_is_refused(eps0: float, clients: int, epsilon: float) -> None:
    with pytest.raises(ParameterError):
        shuffled_delta(eps0, clients, epsilon)


# --- binomial laws


@pytest.mark.parametrize("coins", [1, 2, 7, 1000, 20_001])
@pytest.mark.parametrize("chance", denser([1e-3, 0.3, 0.5]))
def test_binomial_tails_against_mpmath(coins: int, chance: float) -> None:
    spread = math.sqrt(coins * chance * (1 - chance))
    counts = np.unique(np.floor(coins * chance + np.array([-9, -3, 0, 3]) * spread))
    counts = counts[(counts >= 0) & (counts < coins)]
    found = binomial_cdf(counts, coins, chance)
    with mpmath.workdps(30):
        odds = mpmath.mpf(chance) / (1 - mpmath.mpf(chance))
        mass = (1 - mpmath.mpf(chance)) ** coins
        total, exact = mpmath.mpf(0), {}
        for count in range(int(counts.max()) + 1):
            total += mass
            exact[count] = total
            mass *= odds * (coins - count) / (count + 1)
        for count, value in zip(counts.tolist(), found.tolist(), strict=True):
            assert abs(value / float(exact[count]) - 1.0) < TAIL_ERROR
    assert binomial_cdf([-1.0, float(coins)], coins, chance).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("coins", [10**6, 10**8, 2**31])
def test_large_binomial_tails_agree_with_sums_of_the_pmf(coins: int) -> None:
    first, pmf = fair_pmf(coins)
    ends = np.linspace(0.3, 0.6, 7) * len(pmf)
    sums = np.cumsum(pmf)[ends.astype(int)]
    tails = binomial_cdf(first + ends.astype(int), coins, 0.5)
    np.testing.assert_allclose(sums, tails, rtol=1e-9)


@pytest.mark.parametrize("coins", [0, 1, 2, 5, 9, 400])
def test_the_fair_pmf_is_the_binomial(coins: int) -> None:
    first, pmf = fair_pmf(coins)
    exact = [math.comb(coins, first + k) / 2**coins for k in range(len(pmf))]
    np.testing.assert_allclose(pmf, exact, rtol=1e-12)
