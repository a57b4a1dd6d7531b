"""The MVU mechanisms: acceptance figures, and what they refuse."""

from typing import Any

import numpy as np
import pytest

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Domain, L1Ball, L2Ball
from sottovoce.core.errors import DomainError, ParameterError, UnknownNameError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.metric_mvu import MetricMvu
from sottovoce.mechanisms.mvu import Mvu
from sottovoce.mechanisms.registry import parameter_hash
from sottovoce.privacy.events import MetricDp, PureDp, Repeated, basic_counts

INPUTS = np.linspace(-1.0, 1.0, 50)
WIDE = Box(dimension=50, lower=-1.0, upper=1.0)


def variances(kind: str, **parameters: Any) -> Any:
    law = registry.find(kind).build(WIDE, parameters).law(INPUTS)
    np.testing.assert_allclose(law.mean(), INPUTS, atol=1e-12)
    return law.variance()


@pytest.mark.parametrize(
    ("kind", "parameters", "mean", "largest"),
    [
        ("bitwise_rr", {"epsilon": 1.0, "bits": 3}, 15.30, 15.31),
        ("bitwise_rr", {"epsilon": 3.0, "bits": 3}, 1.591, 1.598),
        ("bitwise_rr", {"epsilon": 5.0, "bits": 3}, 0.505, 0.512),
        ("generalized_rr", {"epsilon": 1.0, "bits": 3}, 12.97, 15.94),
        ("generalized_rr", {"epsilon": 3.0, "bits": 3}, 0.419, 0.674),
        ("generalized_rr", {"epsilon": 5.0, "bits": 3}, 0.0571, 0.0879),
        ("mvu", {"epsilon": 1.0, "input_bits": 1, "output_bits": 1}, 4.336, 4.682),
        ("mvu", {"epsilon": 3.0, "input_bits": 1, "output_bits": 1}, 0.874, 1.220),
        ("mvu", {"epsilon": 5.0, "input_bits": 1, "output_bits": 1}, 0.680, 1.027),
    ],
)
def test_the_closed_forms_have_the_published_variances(
    kind: str, parameters: dict[str, Any], mean: float, largest: float
) -> None:
    found = variances(kind, **parameters)
    assert found.mean() == pytest.approx(mean, rel=2e-3)
    assert found.max() == pytest.approx(largest, rel=2e-3)


@pytest.mark.parametrize(
    ("epsilon", "grid", "continuous"),
    [(1.0, 3.942, 3.92), (3.0, 0.281, 0.272), (5.0, 0.0597, 0.0545)],
)
def test_three_bits_are_as_good_as_the_best_known(
    epsilon: float, grid: float, continuous: float
) -> None:
    # The 50 inputs include both ends, where the variance is largest: a little above the integral.
    assert variances("mvu", epsilon=epsilon, input_bits=3, output_bits=3).mean() <= grid
    found = variances("mvu", epsilon=epsilon, input_bits="continuous", output_bits=3)
    assert found.mean() <= continuous


@pytest.mark.parametrize(
    ("epsilon", "mse"),
    [(1.0, 1.70e-4), (2.0, 5.09e-5), (3.0, 2.51e-5), (4.0, 1.52e-5), (5.0, 1.03e-5)],
)
def test_three_bits_on_the_l1_ball_have_the_published_error(epsilon: float, mse: float) -> None:
    ball = L1Ball(dimension=128, radius=1.0)
    mechanism = MetricMvu(
        input_domain=ball, epsilon=epsilon, metric="l1", input_bits=9, output_bits=3
    )
    flat = np.full(128, 1.0 / 128.0)
    law = mechanism.law(ball.project(flat))
    assert law.variance().mean() / 1e4 <= mse * 1.001
    event = mechanism.privacy(Adjacency.ZERO_OUT)
    assert isinstance(event, MetricDp)
    assert event.pure().epsilon == pytest.approx(epsilon, rel=1e-9)


def test_one_metric_bit_is_linear() -> None:
    ball = L2Ball(dimension=4, radius=1.0)
    mechanism = MetricMvu(input_domain=ball, epsilon=1.0, metric="l1", input_bits=1, output_bits=1)
    # a = -1/eps and 1 + 1/eps on [0, 1], with eps = 2 over the width: -1 and 2 ... on [-1, 1]
    np.testing.assert_allclose(mechanism.points, [-2.0, 2.0], rtol=1e-12)


def test_coordinates_of_a_box_compose() -> None:
    mechanism = Mvu(
        input_domain=Box(dimension=7, lower=0.0, upper=1.0),
        epsilon=1.0,
        input_bits=3,
        output_bits=3,
    )
    event = mechanism.privacy(Adjacency.REPLACE_ONE)
    expected = PureDp(epsilon=1.0, adjacency=Adjacency.REPLACE_ONE)
    assert basic_counts(event) == {expected: 7}


def test_the_design_is_part_of_what_both_sides_must_share(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = Mvu(input_domain=WIDE, epsilon=1.0, input_bits=3, output_bits=3)
    honest = parameter_hash(mechanism)
    monkeypatch.setattr(Mvu, "design_digest", lambda self: "other")
    assert parameter_hash(mechanism) != honest


@pytest.mark.parametrize("kind", ["bitwise_rr", "generalized_rr", "mvu", "metric_mvu"])
@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), 1e6, float("inf"), "many"])
def test_an_epsilon_that_means_nothing_is_refused(kind: str, epsilon: Any) -> None:
    registration = registry.find(kind)
    with pytest.raises(ParameterError, match="epsilon"):
        registration.build(
            registration.example_domain, {**registration.examples[0], "epsilon": epsilon}
        )


@pytest.mark.parametrize("kind", ["bitwise_rr", "generalized_rr", "mvu", "metric_mvu"])
@pytest.mark.parametrize("bits", [0, 20, -1, 1.5, True])
def test_bits_out_of_range_are_refused(kind: str, bits: Any) -> None:
    registration = registry.find(kind)
    example = registration.examples[0]
    for name in set(example) & {"bits", "input_bits", "output_bits"}:
        with pytest.raises(ParameterError, match=name):
            registration.build(registration.example_domain, {**example, name: bits})


@pytest.mark.parametrize("kind", ["bitwise_rr", "generalized_rr", "mvu"])
def test_a_ball_is_refused_with_the_alternative(kind: str) -> None:
    registration = registry.find(kind)
    with pytest.raises(ParameterError, match="metric_mvu"):
        registration.build(L2Ball(dimension=3, radius=1.0), registration.examples[0])


@pytest.mark.parametrize(
    ("domain", "metric", "error"),
    [
        (L2Ball(dimension=3, radius=1.0), "euclidean", ParameterError),
        (L1Ball(dimension=3, radius=1.0), "l2_squared", ParameterError),
        (L1Ball(dimension=3, radius=1.0), "hamming", UnknownNameError),
    ],
)
def test_a_metric_without_a_guarantee_is_refused(
    domain: Domain, metric: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="l1"):
        MetricMvu(input_domain=domain, epsilon=1.0, metric=metric, input_bits=5, output_bits=2)


def test_input_bits_are_a_number_or_continuous() -> None:
    with pytest.raises(ParameterError, match="continuous"):
        Mvu(
            input_domain=WIDE,
            epsilon=1.0,
            input_bits="smooth",  # type: ignore[arg-type]
            output_bits=3,
        )


def test_values_outside_the_interval_are_refused_and_never_clamped() -> None:
    mechanism = Mvu(
        input_domain=Box(dimension=1, lower=0.0, upper=1.0),
        epsilon=1.0,
        input_bits=3,
        output_bits=3,
    )
    for value in (-1e-9, 1.0 + 1e-9, float("nan")):
        with pytest.raises(DomainError):
            mechanism.encode([value], SeededRandomness(1).stream("a"))


def test_the_squared_metric_on_a_ball_has_a_far_larger_variance_at_the_same_budget() -> None:
    """The paper's figure 3: rows are nearly equal, so letters lie far out."""
    ball = L2Ball(dimension=4, radius=1.0)
    squared = MetricMvu(
        input_domain=ball, epsilon=1.0, metric="l2_squared", input_bits=5, output_bits=1
    )
    plain = MetricMvu(input_domain=ball, epsilon=1.0, metric="l1", input_bits=5, output_bits=1)
    assert squared.law(np.zeros(4)).variance()[0] > 50.0 * plain.law(np.zeros(4)).variance()[0]


def test_the_squared_metric_in_an_interval_claims_the_whole_table() -> None:
    mechanism = MetricMvu(
        input_domain=Box(dimension=1, lower=0.0, upper=1.0),
        epsilon=3.0,
        metric="l2_squared",
        input_bits=2,
        output_bits=2,
    )
    event = mechanism.privacy(Adjacency.REPLACE_ONE)
    assert isinstance(event, Repeated)
    table = mechanism.table.channel
    grid = np.linspace(0.0, 1.0, 4)
    losses = np.abs(np.log(table.at(grid)[:, None] / table.at(grid)[None])).max(axis=2)
    assert (losses <= 3.0 * (grid[:, None] - grid[None]) ** 2 + 1e-9).all()


@pytest.mark.parametrize("codes", [[-1], [8], [1.5], [True, False]])
def test_codes_that_no_client_sends_are_refused(codes: list[Any]) -> None:
    mechanism = Mvu(input_domain=WIDE, epsilon=1.0, input_bits=3, output_bits=3)
    with pytest.raises(DomainError, match="integers from 0 to 7"):
        mechanism.decode(np.array(codes))
