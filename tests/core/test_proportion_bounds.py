import pytest

from sottovoce.core import statistics


def test_clopper_and_pearson_as_tabulated() -> None:
    assert statistics.two_sided_bounds(0, 10, 0.95) == pytest.approx((0.0, 0.3085), abs=1e-4)
    assert statistics.two_sided_bounds(3, 10, 0.95) == pytest.approx((0.0667, 0.6525), abs=1e-4)
