"""Curves of low loss between two models (mode connectivity).

A curve phi from a to b has one free point, its bend theta, which stochastic gradient steps find by
minimizing

    E_{t ~ U(0,1)} loss(phi_theta(t)),    theta starting half-way between a and b.

polygonal   two straight segments: a to theta for t <= 1/2, then theta to b.
bezier      (1-t)^2 a + 2t(1-t) theta + t^2 b.

The barrier of a curve is its largest loss on a grid of t, minus the larger loss of its ends: zero
if no point of the curve is worse than both ends.

Reference: Garipov, Izmailov, Podoprikhin, Vetrov and Wilson 2018, sections 3.1 to 3.4.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, assert_never, get_args

import numpy as np
import torch
from torch import Tensor
from torch.func import grad

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError, UnknownNameError

CurveKind = Literal["polygonal", "bezier"]
LossOf = Callable[[Tensor], Tensor]

GRID_POINTS = 21  # Of t, including both ends and the midpoint.


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A curve between two flat models, with the losses on a grid along it and along the chord."""

    kind: CurveKind
    start: Tensor
    bend: Tensor
    end: Tensor
    losses: Vector
    straight_losses: Vector

    def point(self, t: float) -> Tensor:
        """Return phi(t) for t in [0, 1]; exactly `start` at 0 and `end` at 1."""
        return _point(self.kind, self.start, self.bend, self.end, t)

    @property
    def barrier(self) -> float:
        return _barrier(self.losses)

    @property
    def straight_barrier(self) -> float:
        """The barrier of the straight line: the most that averaging the two models can cost."""
        return _barrier(self.straight_losses)


def check_kind(kind: CurveKind) -> None:
    """Check that the kind of curve is known."""
    if kind not in get_args(CurveKind):
        raise UnknownNameError.among("curve", kind, get_args(CurveKind))


def connect(
    loss_of: LossOf,
    a: Tensor,
    b: Tensor,
    *,
    kind: CurveKind,
    steps: int,
    learning_rate: float,
    generator: np.random.Generator,
) -> Curve:
    """Find the bend of a curve from a to b in `steps` gradient steps, with a new t for each."""
    check_kind(kind)
    parameter_rules.integer("steps", steps, low=0, high=10**7)
    parameter_rules.positive("learning_rate", learning_rate)
    if a.shape != b.shape or a.dim() != 1:
        raise ParameterError(
            f"the two models must be flat and of one length, got {tuple(a.shape)} and "
            f"{tuple(b.shape)}; connect models of one architecture"
        )
    gradient = grad(loss_of)
    bend = (a + b) / 2.0
    for t in generator.uniform(size=steps).tolist():
        # The curve is linear in its bend, so that the chain rule gives one factor.
        slope = _weights(kind, t)[1]
        bend = bend - learning_rate * slope * gradient(_point(kind, a, bend, b, t))
    grid = np.linspace(0.0, 1.0, GRID_POINTS)
    losses = _losses(loss_of, [_point(kind, a, bend, b, t) for t in grid])
    straight = _losses(loss_of, [(1.0 - t) * a + t * b for t in grid])
    return Curve(kind=kind, start=a, bend=bend, end=b, losses=losses, straight_losses=straight)


def _weights(kind: CurveKind, t: float) -> tuple[float, float, float]:
    """Return the weights of start, bend and end at t, which sum to 1."""
    match kind:
        case "polygonal":
            return max(0.0, 1.0 - 2.0 * t), 1.0 - abs(1.0 - 2.0 * t), max(0.0, 2.0 * t - 1.0)
        case "bezier":
            return (1.0 - t) ** 2, 2.0 * t * (1.0 - t), t**2
        case _:
            assert_never(kind)


def _point(kind: CurveKind, start: Tensor, bend: Tensor, end: Tensor, t: float) -> Tensor:
    of_start, of_bend, of_end = _weights(kind, t)
    return of_start * start + of_bend * bend + of_end * end


def _losses(loss_of: LossOf, points: list[Tensor]) -> Vector:
    with torch.no_grad():
        losses = np.array([float(loss_of(point)) for point in points])
    if not np.isfinite(losses).all():
        where = int(np.flatnonzero(~np.isfinite(losses))[0]) / (len(losses) - 1)
        raise ParameterError(
            f"the loss at t = {where:g} between two models is {losses[~np.isfinite(losses)][0]}; "
            "lower the learning rate of the curve, or leave out models that have diverged"
        )
    return losses


def _barrier(losses: Vector) -> float:
    return float(losses.max() - max(losses[0], losses[-1]))
