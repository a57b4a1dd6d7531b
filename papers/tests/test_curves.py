import numpy as np
import pytest
import torch
from flat_network import FlatNetwork, digits
from torch import Tensor

from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce_papers.algorithms.curves import Curve, CurveKind, connect

KINDS: list[CurveKind] = ["polygonal", "bezier"]
A, B = torch.tensor([1.0, -2.0, 0.3]), torch.tensor([0.1, 4.0, 0.7])


def bowl(flat: Tensor) -> Tensor:
    """A quadratic loss, least at (1, 1, 1)."""
    return ((flat - 1.0) ** 2).sum() / 2.0


def curve(kind: CurveKind, steps: int = 5, learning_rate: float = 0.1) -> Curve:
    return connect(
        bowl,
        A,
        B,
        kind=kind,
        steps=steps,
        learning_rate=learning_rate,
        generator=np.random.default_rng(0),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_ends_are_the_two_models_exactly(kind: CurveKind) -> None:
    found = curve(kind)
    assert torch.equal(found.point(0.0), A)
    assert torch.equal(found.point(1.0), B)


def test_midpoints_are_as_defined() -> None:
    polygonal, bezier = curve("polygonal"), curve("bezier")
    assert torch.equal(polygonal.point(0.5), polygonal.bend)
    torch.testing.assert_close(bezier.point(0.5), A / 4 + bezier.bend / 2 + B / 4)
    torch.testing.assert_close(polygonal.point(0.25), (A + polygonal.bend) / 2)
    torch.testing.assert_close(polygonal.point(0.75), (polygonal.bend + B) / 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_the_gradient_with_respect_to_the_bend(kind: CurveKind) -> None:
    t = float(np.random.default_rng(0).uniform())
    start = curve(kind, steps=0)
    bend = start.bend.clone().requires_grad_()
    moved = Curve(
        kind=kind, start=A, bend=bend, end=B, losses=start.losses, straight_losses=start.losses
    )
    bowl(moved.point(t)).backward()  # type: ignore[no-untyped-call]
    assert bend.grad is not None
    torch.testing.assert_close(curve(kind, steps=1).bend, start.bend - 0.1 * bend.grad)


# The minimiser of E_t |phi(t) - m|^2, from the moments of the three weights under a uniform t.
@pytest.mark.parametrize(
    ("kind", "of_m", "of_ends"), [("polygonal", 1.5, 0.25), ("bezier", 2.5, 0.75)]
)
def test_the_bend_comes_to_the_minimizer_of_the_mean_loss(
    kind: CurveKind, of_m: float, of_ends: float
) -> None:
    expected = of_m * torch.ones(3) - of_ends * (A + B)
    found = curve(kind, steps=1200, learning_rate=0.03)
    torch.testing.assert_close(found.bend, expected, rtol=0.0, atol=0.25)


def test_the_barrier_of_a_bowl_is_zero_and_of_a_hill_its_height() -> None:
    assert curve("bezier", steps=0).straight_barrier == 0.0
    hill = connect(
        lambda flat: torch.exp(-((flat - 0.5) ** 2).sum()),
        torch.zeros(1),
        torch.ones(1),
        kind="polygonal",
        steps=0,
        learning_rate=1.0,
        generator=np.random.default_rng(0),
    )
    assert hill.straight_barrier == pytest.approx(1.0 - np.exp(-0.25), rel=1e-6)
    assert hill.barrier == pytest.approx(hill.straight_barrier)  # the bend lies on the chord


@pytest.mark.parametrize("kind", KINDS)
def test_a_curve_goes_round_the_barrier_between_two_trained_networks(kind: CurveKind) -> None:
    data, network = digits(), FlatNetwork(64, 10, hidden_units=8)
    ends = [network.trained(seed, data.features, data.labels, steps=100) for seed in (0, 1)]
    found = connect(
        lambda flat: network.loss(flat, data.features, data.labels),
        *ends,
        kind=kind,
        steps=100,
        learning_rate=2.0,
        generator=np.random.default_rng(2),
    )
    assert found.straight_barrier > 0.2
    assert found.barrier < found.straight_barrier / 2.0


def test_a_loss_that_diverges_is_refused() -> None:
    with pytest.raises(ParameterError, match="lower the learning rate"):
        curve("polygonal", steps=500, learning_rate=1e3)


def test_models_of_two_lengths_are_refused() -> None:
    with pytest.raises(ParameterError, match="one architecture"):
        connect(
            bowl,
            A,
            B[:2],
            kind="bezier",
            steps=1,
            learning_rate=1.0,
            generator=np.random.default_rng(0),
        )


def test_an_unknown_curve_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="bezier, polygonal"):
        curve("circle")  # type: ignore[arg-type]
