"""Intervals within a range: as usual far from its ends, exact in coverage at them, never empty."""

import numpy as np
import pytest
from cases import denser
from scipy.special import ndtri

from sottovoce.analytics import intervals
from sottovoce.core.errors import ParameterError


def test_far_from_the_ends_it_is_the_usual_interval() -> None:
    low, high = intervals.bounded_interval(0.4, 0.01, 0.0, 1.0, 0.95)
    reach = 0.01 * float(ndtri(0.975))
    assert (low[0], high[0]) == pytest.approx((0.4 - reach, 0.4 + reach), abs=1e-12)


def test_the_general_rule_joins_the_shortcut_smoothly() -> None:
    reach = 0.1 * float(ndtri(0.975))
    edge = 2.0 * reach
    just_in = intervals.bounded_interval(edge + 1e-9, 0.1, 0.0, 1.0, 0.95)
    just_out = intervals.bounded_interval(edge - 1e-9, 0.1, 0.0, 1.0, 0.95)
    assert just_in[0][0] == pytest.approx(just_out[0][0], abs=1e-6)
    assert just_in[1][0] == pytest.approx(just_out[1][0], abs=1e-6)


def test_a_gaussian_bounded_at_0_has_feldman_and_cousins_table_x_at_90_percent() -> None:
    low, high = intervals.bounded_interval(
        [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0], 1.0, 0.0, 1e2, 0.9
    )
    assert low == pytest.approx([0.0, 0.0, 0.0, 0.0, 0.0, 0.58, 1.37], abs=0.006)
    assert high == pytest.approx([0.26, 0.40, 0.81, 1.64, 2.64, 3.64, 4.64], abs=0.006)


@pytest.mark.parametrize("truth", denser([0.0, 0.02, 0.3, 1.0]))
@pytest.mark.parametrize("stddev", [0.03, 0.4])
def test_coverage_is_as_stated_at_the_ends_too(truth: float, stddev: float) -> None:
    noise = np.random.default_rng(5).normal(size=20_000)
    low, high = intervals.bounded_interval(truth + stddev * noise, stddev, 0.0, 1.0, 0.95)
    assert (low <= high).all()
    assert (low >= 0.0).all()
    assert (high <= 1.0).all()
    covered = float(((low <= truth) & (truth <= high)).mean())
    assert covered == pytest.approx(0.95, abs=0.006)


def test_a_standard_deviation_that_depends_on_the_truth_gives_wilsons_interval() -> None:
    hits, people, z = 37, 100, float(ndtri(0.975))
    share = hits / people
    low, high = intervals.bounded_interval(
        share, lambda p: np.sqrt(p * (1.0 - p) / people), 0.0, 1.0, 0.95
    )
    middle = (share + z**2 / (2 * people)) / (1 + z**2 / people)
    half = z / (1 + z**2 / people) * np.sqrt(share * (1 - share) / people + z**2 / 4 / people**2)
    assert (low[0], high[0]) == pytest.approx((middle - half, middle + half), abs=1e-5)


def test_nothing_is_felt_of_units() -> None:
    small = intervals.bounded_interval(-0.2, 1.0, 0.0, 5.0, 0.9)
    large = intervals.bounded_interval(-0.2e11, 1e11, 0.0, 5e11, 0.9)
    assert large[1][0] == pytest.approx(1e11 * small[1][0], rel=1e-5)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0, 0.3, float("nan")])
def test_a_confidence_that_is_none_is_refused(confidence: float) -> None:
    with pytest.raises(ParameterError, match="confidence"):
        intervals.check_confidence(confidence)
