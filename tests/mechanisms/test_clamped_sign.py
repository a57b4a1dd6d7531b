import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.clamped_sign import ClampedSign
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.release import ReleaseTerms
from sottovoce.privacy import accounting
from sottovoce.privacy.events import Repeated

BALL = L2Ball(dimension=4, radius=1.0)
SIGN = ClampedSign(input_domain=BALL, noise_multiplier=0.5, logit_bound=1.0)


def test_every_logit_is_clamped() -> None:
    values = np.array([-0.7, -0.2, 0.1, 0.6])
    logits = np.clip(2.0 * values / 0.5, -1.0, 1.0)
    law = SIGN.law(values)
    np.testing.assert_allclose(law.table[:, 1], 1.0 / (1.0 + np.exp(-logits)), rtol=1e-15)
    np.testing.assert_allclose(law.mean(), 0.5 * np.tanh(logits / 2.0), rtol=1e-14)
    # Each value is sent with at least half the probability of the fair coin inside.
    coin = 2.0 / (1.0 + math.exp(1.0))
    assert law.table.min() == pytest.approx(coin / 2.0)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_a_clamp_costs_no_privacy(adjacency: Adjacency) -> None:
    plain = GaussHermite(input_domain=BALL, levels=2, noise_multiplier=0.5)
    assert SIGN.privacy(adjacency) == plain.privacy(adjacency)
    tight = dataclasses.replace(SIGN, logit_bound=0.1)
    diagonal = 2.0 * 0.1 * math.sqrt(4)
    diagonals = 1.0 if adjacency is Adjacency.ZERO_OUT else 2.0
    assert tight.privacy(adjacency).shift == pytest.approx(diagonals * diagonal, rel=1e-7)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("bound", [0.05, 0.5, 3.0])
def test_with_next_to_no_noise_the_clamp_is_what_is_charged(
    adjacency: Adjacency, bound: float
) -> None:
    bits, delta = 8, 1e-3
    ball = L2Ball(dimension=bits, radius=1.0)
    tiny = ClampedSign(input_domain=ball, noise_multiplier=1e-4, logit_bound=bound)
    laws = [tiny.law(np.full(bits, sign / math.sqrt(bits))).table[0, 1] for sign in (1, -1)]
    one, other = laws[0], 0.5 if adjacency is Adjacency.ZERO_OUT else laws[1]
    epsilon = accounting.epsilon(tiny.privacy(adjacency), delta)
    for p, q in ((one, other), (other, one)):
        found = [
            math.comb(bits, k)
            * max(
                0.0, p**k * (1 - p) ** (bits - k) - math.exp(epsilon) * q**k * (1 - q) ** (bits - k)
            )
            for k in range(bits + 1)
        ]
        assert math.fsum(found) <= delta
    assert epsilon <= bits * bound * (2 if adjacency is Adjacency.ZERO_OUT else 4)


@pytest.mark.parametrize("records", [1, 2, 5])
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_no_two_neighbors_have_logits_farther_apart_than_is_charged(
    adjacency: Adjacency, records: int
) -> None:
    rng = np.random.default_rng(records)
    ball = L2Ball(dimension=3, radius=1.0, records=records)
    for noise, bound in ((0.01, 0.3), (0.5, 1.0), (2.0, 5.0)):
        sign = ClampedSign(input_domain=ball, noise_multiplier=noise, logit_bound=bound)
        event = sign.privacy(adjacency)
        for _ in range(300):
            rows = rng.normal(size=(records, 3))
            rows *= rng.choice([1.0, rng.random()]) / np.linalg.norm(rows, axis=1, keepdims=True)
            without, other = rows.copy(), rows.copy()
            without[0] = 0.0
            other[0] = -rows[0]
            logits = [2.0 * sign._tilts(each.mean(axis=0)) for each in (rows, without, other)]
            assert np.linalg.norm(logits[0]) <= sign.logit_norm
            if adjacency is Adjacency.ZERO_OUT:
                assert np.linalg.norm(logits[0] - logits[1]) <= event.shift
            else:
                assert np.linalg.norm(logits[0] - logits[2]) <= event.shift
                assert np.linalg.norm(logits[0] - logits[1]) <= event.shift / 2.0


def test_where_no_logit_reaches_the_clamp_it_is_the_plain_sign() -> None:
    plain = GaussHermite(input_domain=BALL, levels=2, noise_multiplier=0.5)
    values = np.array([-0.24, -0.1, 0.0, 0.24])
    np.testing.assert_array_equal(SIGN.law(values).table, plain.law(values).table)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 101.0, "1", True])
def test_a_senseless_bound_is_refused_with_a_remedy(bad: Any) -> None:
    with pytest.raises(ParameterError, match="logit_bound"):
        ClampedSign(input_domain=BALL, noise_multiplier=1.0, logit_bound=bad)


def test_calibration_can_be_told_what_a_message_is_charged_with() -> None:
    registration = registry.find("clamped_sign")
    budget: dict[str, Any] = {"rounds": 3, "epsilon": 2.0, "delta": 1e-5}
    seen = ReleaseTerms(adjacency=Adjacency.ZERO_OUT)

    def twice(mechanism: Mechanism) -> Repeated:
        return Repeated(event=seen(mechanism), count=2)

    ball = L2Ball(radius=1.0, dimension=100)  # few bits are accounted for step by step, and slowly
    plain = registration.calibrated(ball, {"logit_bound": 1.0}, **budget, event_of=seen)
    found = registration.calibrate_for_all([ball], {"logit_bound": 1.0}, **budget, event_of=twice)
    assert found["noise_multiplier"] > plain["noise_multiplier"]
    event = twice(registration.build(ball, found))
    assert 1.999 < accounting.epsilon(Repeated(event=event, count=3), 1e-5) <= 2.0
