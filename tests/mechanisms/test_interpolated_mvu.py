"""The published I-MVU: its closed form at one bit, what more bits are, and what it refuses."""

import math
from typing import Any

import numpy as np
import pytest
from cases import denser

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, L1Ball, L2Ball
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms import interpolated_mvu, registry
from sottovoce.mechanisms.design import store
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.interpolated_mvu import InterpolatedMvu, interpolated_family
from sottovoce.mechanisms.registry import parameter_hash
from sottovoce.privacy.events import OneBit, ZeroConcentrated
from sottovoce.privacy.renyi import renyi_divergence
from sottovoce.privacy.zcdp import total_rho

# (epsilon, output bits) of two-row designs: where every theta is +-epsilon, and where not.
COLLAPSED = [(1.0, 1), (3.0, 1), (1.0, 2), (3.0, 2)]
NOT_QUITE = [(10.0, 2), (5.0, 3)]


def built(
    epsilon: float = 1.0,
    beta: float = 1.0,
    output_bits: int = 1,
    *,
    dimension: int = 1,
    radius: float = 1.0,
    records: int = 1,
) -> InterpolatedMvu:
    ball = L2Ball(dimension=dimension, radius=radius, records=records)
    return InterpolatedMvu(input_domain=ball, epsilon=epsilon, beta=beta, output_bits=output_bits)


@pytest.mark.parametrize(("epsilon", "bits"), [*COLLAPSED, *NOT_QUITE])
def test_the_two_row_designs_are_symmetric_up_to_rounding_and_have_no_empty_cell(
    epsilon: float, bits: int
) -> None:
    channel = store.find(store.spec_of(epsilon, 1, bits)).channel
    np.testing.assert_allclose(channel.rows[0], channel.rows[1][::-1], rtol=0.0, atol=1e-14)
    np.testing.assert_allclose(channel.letters + channel.letters[::-1], 1.0, atol=1e-14)
    assert channel.rows.min() > 0.0
    family = interpolated_family(epsilon, bits).family
    assert np.array_equal(family.points, -family.points[::-1])
    assert np.array_equal(family.weights, family.weights[::-1])
    # At x = 0 and 1 the family gives the design's own rows back.
    for x, row in enumerate(channel.rows):
        masses = family.weights * np.exp((x - 0.5) * family.points)
        np.testing.assert_allclose(masses / masses.sum(), row, rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize(("epsilon", "bits"), COLLAPSED)
def test_these_designs_tell_one_bit(epsilon: float, bits: int) -> None:
    found = interpolated_family(epsilon, bits)
    assert set(found.family.points) == {-epsilon, epsilon}
    assert found.one_bit_range == 2.0 * epsilon
    assert found.family.fisher_bound == pytest.approx(epsilon**2, rel=1e-15)


@pytest.mark.parametrize(("epsilon", "bits"), NOT_QUITE)
def test_the_others_have_next_to_no_weight_elsewhere(epsilon: float, bits: int) -> None:
    found = interpolated_family(epsilon, bits)
    assert found.one_bit_range is None
    inside = np.abs(found.family.points) < 0.99 * epsilon
    assert inside.any()
    # How little depends on the processor, in whose rounding the optimizer stops.
    assert found.family.weights[inside].sum() < 1e-3
    assert found.family.fisher_bound == pytest.approx(epsilon**2, rel=1e-3)


@pytest.mark.parametrize("records", [1, 50])
def test_one_bit_is_the_logistic_function_of_the_input(records: int) -> None:
    epsilon, beta, radius = 3.0, 4.0, 2.0
    mechanism = built(epsilon, beta, dimension=5, radius=radius, records=records)
    values = np.array([-1.2, -0.1, 0.0, 0.4, 1.5])
    theta = 2.0 * epsilon  # the range of the log-odds over [0, 1]
    logits = theta * beta * records * values / (2.0 * radius)
    np.testing.assert_allclose(mechanism.law(values).table[:, 1], 1.0 / (1.0 + np.exp(-logits)))
    fisher_bound = interpolated_family(epsilon, 1).family.fisher_bound
    assert fisher_bound == pytest.approx(theta**2 / 4.0, rel=1e-15)


@pytest.mark.parametrize(("epsilon", "beta"), [(0.5, 8.0), (1.0, 1.0), (5.0, 0.3)])
def test_one_bit_is_gauss_hermite_with_larger_letters(epsilon: float, beta: float) -> None:
    published = built(epsilon, beta, dimension=3, radius=2.0, records=7)
    ours = GaussHermite(
        input_domain=published.input_domain, levels=2, noise_multiplier=2.0 / (epsilon * beta)
    )
    values = np.array([0.2, -0.9, 0.05])
    theirs, law = published.law(values), ours.law(values)
    np.testing.assert_allclose(theirs.table, law.table, rtol=1e-12)
    factor = (epsilon / 2.0) / math.tanh(epsilon / 2.0)
    np.testing.assert_allclose(theirs.points, factor * law.points, rtol=1e-12)
    for adjacency in Adjacency:
        rhos = [total_rho(mechanism.privacy(adjacency)) for mechanism in (published, ours)]
        assert rhos[0] == pytest.approx(rhos[1], rel=1e-6)


@pytest.mark.parametrize(
    ("epsilon", "largest"), [(1.0, 0.0153), (3.0, 0.101), (5.0, 0.186), (10.0, 0.303)]
)
def test_the_largest_bias_on_the_unit_interval_by_enumeration(
    epsilon: float, largest: float
) -> None:
    mechanism = built(epsilon, radius=0.5)
    inputs = np.linspace(-0.5, 0.5, 1001)
    biases = np.array([float(mechanism.law([u]).mean()[0]) - u for u in inputs])
    assert np.abs(biases).max() == pytest.approx(largest, rel=5e-3)
    for unbiased in (0, 500, 1000):  # x = 0, 1/2, 1
        assert biases[unbiased] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("bits", [1, 2])
def test_a_spike_far_outside_the_unit_interval_is_not_clamped(bits: int) -> None:
    mechanism = built(3.0, 4.0, bits, dimension=2)
    at_the_end, beyond = (mechanism.law([u, 0.0]).table[0, : 1 << (bits - 1)] for u in (0.25, 1.0))
    # x = 1 and x = 5/2: log-odds of 3 and 12.
    assert at_the_end.sum() == pytest.approx(1.0 / (1.0 + math.exp(3.0)), rel=1e-6)
    assert beyond.sum() == pytest.approx(1.0 / (1.0 + math.exp(12.0)), rel=1e-6)
    strong = built(3.0, 1e6, bits, dimension=2)
    codes = strong.encode([0.8, -0.5], SeededRandomness(1).stream("spike"))
    assert codes[0] >= 1 << (bits - 1) > codes[1]


@pytest.mark.parametrize("records", denser([1, 9]))
def test_neighbors_are_beta_or_half_of_it_apart_whatever_the_records(records: int) -> None:
    epsilon, beta = 3.0, 0.7
    one_bit = built(epsilon, beta, dimension=4, radius=2.0, records=records)
    for adjacency, distance in ((Adjacency.ZERO_OUT, beta / 2), (Adjacency.REPLACE_ONE, beta)):
        event = one_bit.privacy(adjacency)
        assert isinstance(event, OneBit)
        assert event.dimension == 4
        assert 2.0 * epsilon * distance <= event.shift
        assert event.shift == pytest.approx(2.0 * epsilon * distance, rel=1e-7)
        more = built(5.0, beta, 3, dimension=4, radius=2.0, records=records).privacy(adjacency)
        assert isinstance(more, ZeroConcentrated)
        assert more.rho == pytest.approx(25.0 * distance**2 / 2.0, rel=1e-3)
        # Theorem 1 is the ceiling of the bit's own event.
        assert renyi_divergence(event, 8.0) < 8.0 * epsilon**2 * distance**2 / 2.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"beta": 0.0}, "beta must lie between"),
        ({"beta": -1.0}, "beta must lie between"),
        ({"beta": 1e7}, "beta must lie between"),
        ({"beta": math.nan}, "beta must be finite"),
        ({"beta": math.inf}, "beta must be finite"),
        ({"beta": "large"}, "beta must be a number"),
        ({"output_bits": 0}, "output_bits must be an integer from 1 to 8"),
        ({"output_bits": 9}, "output_bits must be an integer from 1 to 8"),
        ({"output_bits": 1.5}, "output_bits must be an integer from 1 to 8"),
        ({"epsilon": 0.0}, "epsilon between any two inputs"),
        ({"epsilon": math.nan}, "epsilon must be finite"),
        ({"epsilon": 100.0}, "epsilon between any two inputs"),
        ({"input_domain": Box(dimension=1, lower=0.0, upper=1.0)}, "must be an L2Ball"),
        ({"input_domain": L1Ball(dimension=1, radius=1.0)}, "must be an L2Ball"),
    ],
)
def test_senseless_parameters_are_refused(changes: dict[str, Any], reason: str) -> None:
    given: dict[str, Any] = {
        "input_domain": L2Ball(dimension=1, radius=1.0),
        "epsilon": 1.0,
        "beta": 1.0,
        "output_bits": 1,
    }
    with pytest.raises(ParameterError, match=reason):
        InterpolatedMvu(**{**given, **changes})


def test_server_and_client_must_hold_the_same_family(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = built()
    before = parameter_hash(mechanism)
    assert registry.public_parameters(mechanism)["design"] == interpolated_family(1.0, 1).digest
    other = interpolated_family(2.0, 1)
    monkeypatch.setattr(interpolated_mvu, "interpolated_family", lambda *_: other)
    assert parameter_hash(mechanism) != before
