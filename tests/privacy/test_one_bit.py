"""The Renyi curve of logistic bits: the exact worst case over logits and over splits."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import ParameterError
from sottovoce.privacy import accounting
from sottovoce.privacy.divergences import finite_hockey_stick, finite_renyi, one_bit_renyi
from sottovoce.privacy.events import OneBit

ZERO_OUT = Adjacency.ZERO_OUT


def exact(logit: float, step: float, order: float) -> float:
    """D_a of one bit from `logit` + `step` to `logit`, in 60 digits."""
    with mpmath.workdps(60):
        z, s, a = mpmath.mpf(logit), mpmath.mpf(step), mpmath.mpf(order)
        softplus = [mpmath.log1p(mpmath.exp(z + k * s)) for k in (a, 1, 0)]
        return float((softplus[0] - a * softplus[1] + (a - 1) * softplus[2]) / (a - 1))


@given(
    logit=st.floats(-40.0, 40.0),
    step=st.floats(1e-4, 30.0),
    order=st.floats(1.0001, 500.0),
)
@settings(deadline=None, max_examples=300)
def test_no_logit_is_worse_than_the_closed_form(logit: float, step: float, order: float) -> None:
    assert one_bit_renyi(step, 1, order) >= exact(logit, step, order)


@pytest.mark.parametrize("step", [0.05, 0.5, 3.0, 12.0])
@pytest.mark.parametrize("order", [1.01, 2.0, 7.3, 60.0])
def test_the_closed_form_is_attained(step: float, order: float) -> None:
    logits = np.linspace(-order * step - 10.0, 10.0, 4001)
    values = np.logaddexp(0, logits + order * step) - order * np.logaddexp(0, logits + step)
    values += (order - 1.0) * np.logaddexp(0, logits)
    attained = exact(float(logits[np.argmax(values)]), step, order)
    assert one_bit_renyi(step, 1, order) == pytest.approx(attained, rel=1e-4)


def law_of(logits: np.ndarray) -> np.ndarray:
    law = np.ones(1)
    for one in 1.0 / (1.0 + np.exp(-logits)):
        law = np.multiply.outer(law, np.array([1.0 - one, one])).ravel()
    return law


@given(data=st.data())
@settings(deadline=None, max_examples=200)
def test_no_split_of_the_shift_is_worse_than_the_equal_one(data: st.DataObject) -> None:
    dimension = data.draw(st.integers(1, 5))
    coordinate = st.floats(-3.0, 3.0)
    centre = np.array(data.draw(st.lists(coordinate, min_size=dimension, max_size=dimension)))
    move = np.array(data.draw(st.lists(coordinate, min_size=dimension, max_size=dimension)))
    shift = float(np.linalg.norm(move)) + 1e-9
    order = data.draw(st.floats(1.05, 40.0))
    bound = one_bit_renyi(shift, dimension, order)
    first, second = law_of(centre), law_of(centre + move)
    for p, q in ((first, second), (second, first)):
        assert finite_renyi(p, q, order) <= bound * (1.0 + 1e-9) + 1e-12
    event = OneBit(shift=shift, dimension=dimension, adjacency=ZERO_OUT)
    for delta in (1e-2, 1e-5):
        epsilon = accounting.epsilon(event, delta)
        assert finite_hockey_stick(first, second, epsilon) <= delta * (1.0 + 1e-9)


@given(order=st.floats(1.01, 200.0), step=st.floats(1e-3, 10.0), ratio=st.floats(1.01, 4.0))
@settings(deadline=None, max_examples=200)
def test_the_curve_is_concave_in_the_squared_shift(order: float, step: float, ratio: float) -> None:
    # Concave through 0: d g(S^2/d) grows with d, up to the Gaussian's a S^2/8.
    few, many = one_bit_renyi(step, 1, order), one_bit_renyi(step * ratio, 1, order)
    assert many <= few * ratio**2 * (1.0 + 1e-9)
    middle = one_bit_renyi(step * math.sqrt((1.0 + ratio**2) / 2.0), 1, order)
    assert middle >= (few + many) / 2.0 * (1.0 - 1e-5)  # below a s = .01 the curve is rounded up
    assert few <= order * step**2 / 8.0 * (1.0 + 1e-12)


# The worst (epsilon, delta = 1e-5) found by searching over logits and splits: rho, dimension, eps.
WORST = [
    (0.01, 1, 0.280),
    (0.01, 10, 0.490),
    (0.01, 100, 0.496),
    (0.01, 10_000, 0.497),
    (0.1, 1, 0.890),
    (0.1, 10, 1.717),
    (0.1, 100, 1.755),
    (0.1, 10_000, 1.760),
    (1.0, 1, 2.822),
    (1.0, 10, 6.242),
    (1.0, 100, 6.540),
    (1.0, 10_000, 6.572),
    (10.0, 1, 8.938),
    (10.0, 10, 23.84),
    (10.0, 100, 27.86),
    (10.0, 10_000, 28.37),
]


@pytest.mark.parametrize(("rho", "dimension", "worst"), WORST)
def test_epsilon_is_near_the_worst_case_and_never_below(
    rho: float, dimension: int, worst: float
) -> None:
    event = OneBit(shift=math.sqrt(8.0 * rho), dimension=dimension, adjacency=ZERO_OUT)
    found = accounting.epsilon(event, 1e-5)
    half_a_digit = 0.005 if worst > 20 else 0.0005
    assert worst - half_a_digit <= found <= worst * (1.06 if dimension <= 10 else 1.10)


def test_one_bit_alone_is_exact() -> None:
    """sup over z of delta(eps) = (e^(s/2) - e^(eps/2))^2/(e^s - 1), by its stationary point."""
    shift, delta = 2.0, 1e-5
    epsilon = 2.0 * math.log(math.exp(shift / 2) - math.sqrt(delta * math.expm1(shift)))
    found = accounting.epsilon(OneBit(shift=shift, dimension=1, adjacency=ZERO_OUT), delta)
    assert epsilon <= found <= epsilon * (1.0 + 1e-5)


@pytest.mark.parametrize("shift", [0.0, -1.0, math.nan, math.inf])
def test_a_shift_must_be_positive(shift: float) -> None:
    with pytest.raises(ParameterError, match="shift"):
        OneBit(shift=shift, dimension=3, adjacency=ZERO_OUT)
