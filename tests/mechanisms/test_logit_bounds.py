"""The automatic logit bound: from public values, small, and seldom reached after rotation."""

import numpy as np
import pytest

from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.clamped_sign import ClampedSign
from sottovoce.mechanisms.logit_bounds import automatic_logit_bound
from sottovoce.mechanisms.rotation import Rotation

SIGN = registry.find("clamped_sign")


def bound(dimension: int, multiplier: float = 0.4, records: int = 1, trials: int = 1) -> float:
    ball = L2Ball(dimension=dimension, radius=3.0, records=records)
    return automatic_logit_bound(ball, {"noise_multiplier": multiplier, "trials": trials})


def test_it_is_the_logit_of_a_large_coordinate_of_a_rotated_update() -> None:
    assert bound(10**6) == pytest.approx(3.0 * 2.0 / 0.4 / 1000.0)
    assert bound(10**6, records=5) == pytest.approx(5.0 * bound(10**6))
    assert bound(10**6, trials=4) == pytest.approx(bound(10**6) / 2.0)
    assert bound(10**6, multiplier=0.8) == pytest.approx(bound(10**6) / 2.0)


def test_it_is_never_more_than_the_largest_logit() -> None:
    assert bound(1) == pytest.approx(2.0 / 0.4)
    assert bound(8) == pytest.approx(2.0 / 0.4)
    assert bound(3, multiplier=1e-4) == 100.0


def test_few_coordinates_of_a_rotated_spike_are_clamped() -> None:
    dimension, clamped = 1024, 0
    spike = np.zeros(dimension)
    spike[5] = 1.0
    limit = bound(dimension) / 2.0 * 0.4
    for number in range(50):
        rotated = Rotation.of_round("run", number + 1, dimension).forward(spike)
        clamped += int(np.sum(np.abs(rotated) > limit))
    assert clamped <= 0.004 * 50 * dimension


def test_left_out_it_is_automatic() -> None:
    ball = L2Ball(dimension=10**4, radius=3.0)
    built = SIGN.build(ball, {"noise_multiplier": 0.4})
    assert isinstance(built, ClampedSign)
    assert built.logit_bound == bound(10**4)
    assert SIGN.build(ball, {"noise_multiplier": 0.4, "logit_bound": "auto"}) == built
    assert SIGN.resolve(ball, {"noise_multiplier": 0.4}) == {
        "noise_multiplier": 0.4,
        "logit_bound": built.logit_bound,
    }


def test_what_cannot_be_automatic_must_be_given() -> None:
    with pytest.raises(ParameterError, match="needs noise_multiplier"):
        SIGN.build(L2Ball(dimension=4, radius=1.0), {})
