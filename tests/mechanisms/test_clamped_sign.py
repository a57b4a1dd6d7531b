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
