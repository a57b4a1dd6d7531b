"""Aggregation by the midpoints of low-loss curves, with the models that it must be compared with.

Clients' models are paired at random; each pair gives the midpoint of a low-loss curve between its
two models, and the midpoints are averaged. Curves are found on a public proxy set, and the models
that arrive here are already private, so everything is post-processing and costs no privacy.

The proxy set alone may explain a gain. Therefore `combine` also returns the plain average, and the
average trained on the same proxy set with as many gradients as all curves took.

Reference: Garipov et al. 2018 (curves); McMahan et al. 2017 (the average).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.func import grad

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce_papers.algorithms.curves import Curve, CurveKind, LossOf, check_kind, connect

MIDPOINT = 0.5


class ProxyTask(Protocol):
    """The part of a task that training on the proxy set needs."""

    def loss(self, flat: Tensor, features: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a flat model on samples, differentiable by torch.func."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySet:
    """Public samples at the server; none of them may come from a client."""

    features: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if not len(self.labels) or len(self.features) != len(self.labels):
            raise ParameterError(
                f"the proxy set has {len(self.features)} samples and {len(self.labels)} labels; "
                "give at least one sample, and one label each"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairBarriers:
    """The barriers of the curve and of the straight line between two models, on the proxy set."""

    first: int
    second: int
    curve: float
    straight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedModels:
    """Three ways to combine many models; the last two took `gradient_steps` steps each."""

    average: Vector
    connected: Vector
    fine_tuned: Vector
    gradient_steps: int
    barriers: tuple[PairBarriers, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeConnectivity:
    """Aggregation by curve midpoints over disjoint random pairs, `steps` gradient steps each."""

    kind: CurveKind
    steps: int
    learning_rate: float
    proxy: ProxySet | None

    def __post_init__(self) -> None:
        check_kind(self.kind)
        parameter_rules.integer("steps", self.steps, low=1, high=10**7)
        parameter_rules.positive("learning_rate", self.learning_rate)
        self._public_proxy()

    def combine(
        self,
        models: ArrayLike,
        weights: ArrayLike,
        task: ProxyTask,
        generator: np.random.Generator,
    ) -> CombinedModels:
        """Return one model from the rows of `models`; a pair has the weight of its two models.

        With an odd number of models the remaining one enters the mean unchanged. If every bend
        stayed half-way and the weights were equal, the result would be the plain average.
        """
        rows, shares = _checked(models, weights)
        proxy = self._public_proxy()

        def loss_of(flat: Tensor) -> Tensor:
            return task.loss(flat, proxy.features, proxy.labels)

        pairs, left = disjoint_pairs(len(rows), generator)
        curves = [self._curve(loss_of, rows[i], rows[j], generator) for i, j in pairs]
        connected = sum((shares[k] * rows[k] for k in left), start=np.zeros(rows.shape[1]))
        for (i, j), curve in zip(pairs, curves, strict=True):
            connected += (shares[i] + shares[j]) * _numpy(curve.point(MIDPOINT))
        average: Vector = shares @ rows
        gradient_steps = self.steps * len(pairs)
        return CombinedModels(
            average=average,
            connected=connected,
            fine_tuned=self._descend(loss_of, average, gradient_steps),
            gradient_steps=gradient_steps,
            barriers=_barriers(pairs, curves),
        )

    def _curve(
        self, loss_of: LossOf, first: Vector, second: Vector, generator: np.random.Generator
    ) -> Curve:
        return connect(
            loss_of,
            self._tensor(first),
            self._tensor(second),
            kind=self.kind,
            steps=self.steps,
            learning_rate=self.learning_rate,
            generator=generator,
        )

    def _descend(self, loss_of: LossOf, start: Vector, steps: int) -> Vector:
        """Return the model after plain gradient descent on the proxy set."""
        gradient, flat = grad(loss_of), self._tensor(start)
        for _ in range(steps):
            flat = flat - self.learning_rate * gradient(flat)
        return _numpy(flat) if steps else start.copy()

    def _tensor(self, flat: Vector) -> Tensor:
        return torch.as_tensor(
            flat, dtype=torch.float32, device=self._public_proxy().features.device
        )

    def _public_proxy(self) -> ProxySet:
        if self.proxy is None:
            raise ParameterError(
                "mode connectivity has no proxy set, but the loss along a curve needs data at the "
                "server; give a public proxy set, which costs no privacy, or use the plain average"
            )
        return self.proxy


def disjoint_pairs(
    number: int, generator: np.random.Generator
) -> tuple[list[tuple[int, int]], list[int]]:
    """Return random pairs of the positions 0 to number - 1, and the remaining one if it is odd."""
    order = generator.permutation(number).tolist()
    even = number - number % 2
    return list(zip(order[0:even:2], order[1:even:2], strict=True)), order[even:]


def _checked(models: ArrayLike, weights: ArrayLike) -> tuple[NDArray[np.float64], Vector]:
    rows, given = np.asarray(models, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    if rows.ndim != 2 or not len(rows) or given.shape != (len(rows),):
        raise ParameterError(
            f"expected models as rows and a weight for each, got shapes {rows.shape} and "
            f"{given.shape}; stack at least one flat model"
        )
    if not np.isfinite(rows).all():
        raise ParameterError("a model is not finite; leave out models that have diverged")
    if not (np.isfinite(given).all() and (given >= 0.0).all() and given.sum() > 0.0):
        raise ParameterError(
            "the weights of models must be finite and at least 0, with a positive sum; use the "
            "public numbers of samples"
        )
    return rows, given / given.sum()


def _barriers(
    pairs: Sequence[tuple[int, int]], curves: Sequence[Curve]
) -> tuple[PairBarriers, ...]:
    return tuple(
        PairBarriers(first=i, second=j, curve=curve.barrier, straight=curve.straight_barrier)
        for (i, j), curve in zip(pairs, curves, strict=True)
    )


def _numpy(flat: Tensor) -> Vector:
    values: Vector = flat.detach().to(torch.float64).cpu().numpy()
    return values
