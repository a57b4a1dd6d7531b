"""Every accountant against exact enumeration: whatever it says, the truth is not worse.

The laws that run are enumerated outcome by outcome; every bound that `privacy_spent` names, not
only the winner, must cover them.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.divergences import finite_hockey_stick
from sottovoce.privacy.events import (
    FinitePair,
    HiddenBy,
    OneBit,
    PrivacyEvent,
    PureDp,
    Repeated,
    Sampled,
    SamplingScheme,
    SummedBits,
    ZeroConcentrated,
)

ZERO_OUT, REPLACE_ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
HIDDEN: HiddenBy = "own-records"
deltas = st.sampled_from([0.3, 1e-2, 1e-5, 1e-9])
rates = st.sampled_from([1e-3, 0.01, 0.2, 0.7, 1.0])


def check(event: PrivacyEvent, first: Vector, second: Vector, delta: float, times: int) -> None:
    """Every bound on `times` independent releases covers both orders of the exact laws."""
    spent = privacy_spent(Repeated(event=event, count=times), delta)
    p, q = power(first, times), power(second, times)
    for name, epsilon in spent.bounds:
        truth = max(finite_hockey_stick(p, q, epsilon), finite_hockey_stick(q, p, epsilon))
        assert truth <= delta * (1.0 + 1e-9) + 1e-15, f"{name} says {epsilon}"


def power(law: Vector, times: int) -> Vector:
    result = law
    for _ in range(times - 1):
        result = np.multiply.outer(result, law).ravel()
    return result


def mixed(rate: float, present: Vector, absent: Vector) -> Vector:
    return rate * present + (1.0 - rate) * absent


@st.composite
def pmfs(draw: st.DrawFn, size: int) -> Vector:
    weights = draw(st.lists(st.floats(0.02, 1.0), min_size=size, max_size=size))
    law = np.array(weights)
    return np.asarray(law / law.sum())


def largest_log_ratio(laws: list[Vector]) -> float:
    return max(float(np.max(np.log(p / q))) for p, q in itertools.permutations(laws, 2)) + 1e-12


def bits_law(logits: Vector) -> Vector:
    ones = 1.0 / (1.0 + np.exp(-logits))
    law = np.ones(1)
    for one in ones:
        law = np.multiply.outer(law, np.array([1.0 - one, one])).ravel()
    return law


@given(data=st.data(), rate=rates, delta=deltas, times=st.integers(1, 3))
@settings(deadline=None, max_examples=25)
def test_a_finite_pair_sampled_and_composed(
    data: st.DataObject, rate: float, delta: float, times: int
) -> None:
    size = data.draw(st.integers(2, 4))
    present, absent = data.draw(pmfs(size)), data.draw(pmfs(size))
    event: PrivacyEvent = FinitePair(
        first=tuple(present.tolist()), second=tuple(absent.tolist()), adjacency=ZERO_OUT
    )
    check(event, present, absent, delta, times)
    event = Sampled(event=event, rate=rate, scheme="poisson", hidden_by=HIDDEN)
    check(event, mixed(rate, present, absent), absent, delta, times)
    check(event, mixed(rate, absent, present), present, delta, times)


@given(data=st.data(), rate=rates, delta=deltas, times=st.integers(1, 3))
@settings(deadline=None, max_examples=25)
def test_a_pure_event_sampled_under_both_adjacencies(
    data: st.DataObject, rate: float, delta: float, times: int
) -> None:
    size = data.draw(st.integers(2, 4))
    one, other, left_out = (data.draw(pmfs(size)) for _ in range(3))
    epsilon = largest_log_ratio([one, other, left_out])
    for adjacency in (ZERO_OUT, REPLACE_ONE):
        check(PureDp(epsilon=epsilon, adjacency=adjacency), one, other, delta, times)
    event = Sampled(
        event=PureDp(epsilon=epsilon, adjacency=ZERO_OUT),
        rate=rate,
        scheme="poisson",
        hidden_by=HIDDEN,
    )
    check(event, mixed(rate, one, left_out), left_out, delta, times)
    schemes: tuple[SamplingScheme, ...] = ("poisson", "fixed-size")
    for scheme in schemes:
        event = Sampled(
            event=PureDp(epsilon=epsilon, adjacency=REPLACE_ONE),
            rate=rate,
            scheme=scheme,
            hidden_by=HIDDEN,
        )
        check(event, mixed(rate, one, left_out), mixed(rate, other, left_out), delta, times)


@given(data=st.data(), rate=rates, delta=deltas, times=st.integers(1, 2))
@settings(deadline=None, max_examples=25)
def test_bits_sampled_and_composed(
    data: st.DataObject, rate: float, delta: float, times: int
) -> None:
    dimension = data.draw(st.integers(1, 3))
    coordinates = st.lists(st.floats(-2.5, 2.5), min_size=dimension, max_size=dimension)
    centre, move = (np.array(data.draw(coordinates)) for _ in range(2))
    shift = float(np.linalg.norm(move)) + 1e-9
    present, absent = bits_law(centre + move), bits_law(centre)
    bits = OneBit(shift=shift, dimension=dimension, adjacency=ZERO_OUT)
    check(bits, present, absent, delta, times)
    event = Sampled(event=bits, rate=rate, scheme="poisson", hidden_by=HIDDEN)
    check(event, mixed(rate, present, absent), absent, delta, times)
    concentrated = ZeroConcentrated(rho=shift**2 / 8.0, adjacency=ZERO_OUT)
    event = Sampled(event=concentrated, rate=rate, scheme="poisson", hidden_by=HIDDEN)
    check(event, mixed(rate, present, absent), absent, delta, times)


@given(data=st.data(), delta=deltas, bound=st.floats(0.2, 3.0), times=st.integers(1, 2))
@settings(deadline=None, max_examples=15)
def test_secure_sums_of_clamped_bits(
    data: st.DataObject, delta: float, bound: float, times: int
) -> None:
    clients, dimension = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 2))
    logit = st.floats(-1.0, 1.0)
    cell = st.lists(logit, min_size=dimension, max_size=dimension)
    logits = bound * np.array([data.draw(cell) for _ in range(clients + 1)])
    laws = []
    for mine in (logits[0], logits[1]):
        law = np.ones(1)
        for coordinate in range(dimension):
            sums = np.ones(1)
            for z in (mine[coordinate], *logits[2:, coordinate]):
                sums = np.convolve(sums, bits_law(np.array([z])))
            law = np.multiply.outer(law, sums).ravel()
        laws.append(law)
    event = SummedBits(
        shift=float(np.linalg.norm(logits[0] - logits[1])) + 1e-9,
        dimension=dimension,
        logit_bound=bound,
        clients=clients,
        adjacency=REPLACE_ONE,
    )
    check(event, laws[0], laws[1], delta, times)


def test_this_check_can_fail() -> None:
    """A Gaussian of the bits' rho is no bound: the check finds it."""
    from sottovoce.privacy.divergences import gaussian_delta

    shift, epsilon = 0.5, 0.0
    first, second = bits_law(np.array([shift / 2])), bits_law(np.array([-shift / 2]))
    assert gaussian_delta(shift / 2.0, epsilon) < finite_hockey_stick(first, second, epsilon)
    with pytest.raises(AssertionError, match="renyi says"):
        check(PureDp(epsilon=0.1, adjacency=ZERO_OUT), first, second, 1e-5, 1)
