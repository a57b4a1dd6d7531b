"""Statistics that clients send as further coordinates of their update.

With clipping norm C, shares s and t, a = sqrt(1 - s - t), a quantile q with m = max(q, 1 - q), and
a client's update u, bit b (1 if |u| <= C) and result v in [0, 1], the client sends

    (a u min(1, C/|u|)/C,  sqrt(s) (b - q)/m,  sqrt(t) (2 v - 1)),

which lies in the unit ball of dimension d + 2, whatever u, b and v are (with a constant clipping
norm all of it is multiplied by C, so that the ball has radius C). A mechanism for that ball
privatizes it, so update and statistics together are one release and are charged as one, under any
mechanism, rotation and channel; a client that is replaced by zero contributes the zero vector. The
server decodes the mean, divides the further coordinates by their factors, and multiplies the rest
by C/a. What the server does is post-processing.

The next clipping norm is C exp(-gain x), where x is the decoded mean of b - q, at most m in
magnitude. The bound keeps noise from moving C far in one round, and it is symmetric, so that it
does not move the quantile. With little noise the gain is the rate of `AdaptiveClip`. With much
noise, as in a local channel, it is that of a Kalman filter for log C, so that C settles instead of
following the noise. The server finds the noise in what it has decoded: the mean update of norm at
most 1 explains no more than 1 of the squared norm. C is part of the state: checkpoints keep it, and
clients receive it with the model.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import L2Ball, Vector
from sottovoce.core.errors import ParameterError, WireError
from sottovoce.federated.algorithms.algorithm import (
    AggregatedUplink,
    Algorithm,
    Block,
    ClientStepInput,
    State,
)
from sottovoce.federated.algorithms.statistics import (
    LARGEST_CLIP_NORM,
    SMALLEST_CLIP_NORM,
    AdaptiveClip,
    PrivateEvaluation,
)
from sottovoce.learning.clients import (
    ClientData,
    DenseRows,
    LayeredRows,
    Rows,
    clipping_factors,
    hold_out,
)
from sottovoce.learning.task import Task

# Keys of the state; clients receive the first two.
CLIP_NORM, ROUNDS_RELEASED = "statistics clip norm", "statistics rounds"
# The latest result: its value between 0 and 1, and the number of rounds released before it.
EVALUATED = "statistics evaluation"
# The variance of log C around the quantile that is sought, as the server reckons it.
DOUBT = "statistics clip norm doubt"
# The latest decoded mean of the bits, and the standard error that noise gives it.
UNCLIPPED = "statistics unclipped"
_OWN = (CLIP_NORM, ROUNDS_RELEASED, EVALUATED, DOUBT, UNCLIPPED)

_FIRST_DOUBT = 9.0  # The first clipping norm may be wrong by a factor of twenty.
_DOUBT_OF_ROUND = 0.02  # Norms change by a seventh in a round.
# How fast the share of unclipped clients rises with log C, at least while C is not far off.
_BITS_PER_LOG_NORM = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class WithStatistics:
    """An algorithm at client level whose clients send statistics in the same message.

    Attributes:
        inner: The algorithm; its clients send one update, of which its server needs the mean.
        clip: The adaptive clipping, or the constant clipping norm.
        evaluation: What clients evaluate; None for nothing.

    Raises:
        ParameterError: `inner` protects samples, sends several vectors or needs each of them, or
            the clipping norm is out of range.

    Examples:
        >>> from sottovoce.federated.algorithms.fedavg import FedAvg, LocalSgd
        >>> work = LocalSgd(clip_norm=1.0, learning_rate=0.1)
        >>> inner = FedAvg(local_work=work, server_learning_rate=1.0, server_momentum=0.0)
        >>> algorithm = WithStatistics(inner=inner, clip=AdaptiveClip())
        >>> algorithm.domain(dimension=10, num_samples=50).dimension
        11

    Reference: Andrew et al. 2021, algorithm 1.
    """

    inner: Algorithm
    clip: AdaptiveClip | float
    evaluation: PrivateEvaluation | None = None
    uplinks: ClassVar[int] = 1
    gathers: ClassVar[bool] = False
    unit: ClassVar[Unit] = Unit.CLIENT
    record_sampling_rate: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.clip, AdaptiveClip):
            parameter_rules.clip_norm("clip_norm", self.clip)
        inner = self.inner
        if inner.unit is not Unit.CLIENT or inner.uplinks != 1 or inner.gathers:
            raise ParameterError(
                "statistics need an algorithm at client level whose clients send one update, of "
                "which the server needs only the mean; use federated averaging with the mean"
            )

    @property
    def shared_state(self) -> tuple[str, ...]:
        return self.inner.shared_state

    @property
    def shared_numbers(self) -> tuple[str, ...]:
        adaptive = (CLIP_NORM,) if isinstance(self.clip, AdaptiveClip) else ()
        return (*adaptive, *((ROUNDS_RELEASED,) if self.evaluation else ()))

    def domain(self, dimension: int, num_samples: int) -> L2Ball:  # noqa: ARG002
        """Return the ball with one more dimension for each statistic.

        Args:
            dimension: Number of model parameters.
            num_samples: Number of the client's records; not used.

        Returns:
            The domain of a message.
        """
        return L2Ball(dimension=dimension + self._places, radius=self._radius)

    def weight(self, num_samples: int) -> float:
        return self.inner.weight(num_samples)

    def initialize(self, model: Vector) -> State:
        own = {}
        if isinstance(self.clip, AdaptiveClip):
            own[CLIP_NORM] = _single(self.clip.initial)
            own[DOUBT] = np.array([_FIRST_DOUBT])
        if self.evaluation:
            own |= {ROUNDS_RELEASED: np.zeros(1), EVALUATED: np.full(2, np.nan)}
        return {**self.inner.initialize(model), **own}

    def client_steps(
        self, task: Task, clients: Sequence[ClientData], step: ClientStepInput
    ) -> Iterator[Block]:
        results = None
        if self.evaluation and self.evaluation.holdout_fraction:
            clients, held_out = hold_out(clients, self.evaluation.holdout_fraction)
        else:
            held_out = clients
        if self.evaluation and self._evaluates(step.state):
            results = self._results(self.evaluation, task, held_out, step)

        def extended(block: Block) -> Block:
            (rows,) = block.uplinks
            own = None if results is None else results[block.start : block.start + len(rows)]
            return Block(start=block.start, uplinks=(self._extended(rows, own, step.state),))

        # `map` keeps no reference to what it has yielded, unlike a loop.
        yield from map(extended, self.inner.client_steps(task, clients, step))

    def server_step(
        self, model: Vector, combined: Sequence[AggregatedUplink], state: State
    ) -> tuple[Vector, State]:
        mean, dimension = combined[0].mean / self._radius, len(model)
        clip_norm, own = self._clip_norm(state), dict[str, Vector]()
        update = mean[:dimension] * (clip_norm / self._signal(state))
        if isinstance(self.clip, AdaptiveClip):
            noise = _noise_of_coordinate(mean[:dimension])
            gain, doubt = _gain(self.clip, float(state[DOUBT][0]), noise)
            following = _next_clip_norm(self.clip, clip_norm, mean[dimension], gain)
            own |= {CLIP_NORM: _single(following), DOUBT: np.array([doubt])}
            own[UNCLIPPED] = _unclipped(self.clip, mean[dimension], noise)
        if self.evaluation:
            rounds = float(state[ROUNDS_RELEASED][0])
            own |= {ROUNDS_RELEASED: np.array([rounds + 1.0]), EVALUATED: state[EVALUATED]}
            if self._evaluates(state):
                centered = mean[-1] / math.sqrt(self.evaluation.share)
                own[EVALUATED] = np.array([(1.0 + centered) / 2.0, rounds])
        inner = {name: value for name, value in state.items() if name not in _OWN}
        model, after = self.inner.server_step(model, [AggregatedUplink(mean=update)], inner)
        return model, {**after, **own}

    @property
    def _radius(self) -> float:
        """The largest norm of a message: the clipping norm if it is constant, otherwise 1."""
        return 1.0 if isinstance(self.clip, AdaptiveClip) else self.clip

    @property
    def _places(self) -> int:
        """How many coordinates statistics take."""
        return isinstance(self.clip, AdaptiveClip) + (self.evaluation is not None)

    def _evaluates(self, state: State) -> bool:
        """Return whether clients evaluate in this round; clients and server agree on it."""
        if self.evaluation is None:
            return False
        return bool(state[ROUNDS_RELEASED][0] % self.evaluation.every == 0)

    def _clip_norm(self, state: State) -> float:
        """Return the clipping norm of this round; clients and server use the same one."""
        if not isinstance(self.clip, AdaptiveClip):
            return self.clip
        clip_norm = float(state[CLIP_NORM][0])
        if not SMALLEST_CLIP_NORM <= clip_norm <= LARGEST_CLIP_NORM:
            raise WireError(
                f"the clipping norm that the server sends must lie between {SMALLEST_CLIP_NORM:g} "
                f"and {LARGEST_CLIP_NORM:g}, got {clip_norm:g}; install the same version at server "
                "and client"
            )
        return clip_norm

    def _signal(self, state: State) -> float:
        """Return a, the norm that is left to the update."""
        taken = self.clip.share if isinstance(self.clip, AdaptiveClip) else 0.0
        if self.evaluation and self._evaluates(state):
            taken += self.evaluation.share
        return math.sqrt(1.0 - taken)

    def _extended(self, rows: Rows, results: Tensor | None, state: State) -> Rows:
        """Return what clients send: their updates scaled to norm a at most, and the statistics."""
        clip_norm = self._clip_norm(state)
        finite, factors = clipping_factors(rows, clip_norm)
        columns = []
        if isinstance(self.clip, AdaptiveClip):
            # False for a norm that is infinite or NaN.
            bits = (rows.norms() <= clip_norm).to(factors.dtype)
            quantile = self.clip.quantile
            columns.append((bits - quantile) * (math.sqrt(self.clip.share) / _reach(quantile)))
        if self.evaluation:
            if results is None:
                columns.append(torch.zeros_like(factors))
            else:
                centered = 2.0 * results.to(factors.dtype) - 1.0
                columns.append(centered * math.sqrt(self.evaluation.share))
        factors = factors * (self._radius * self._signal(state) / clip_norm)
        return _appended(finite, factors, [self._radius * column for column in columns])

    def _results(
        self,
        evaluation: PrivateEvaluation,
        task: Task,
        clients: Sequence[ClientData],
        step: ClientStepInput,
    ) -> Tensor:
        """Return the result of each client, between 0 and 1."""
        losses, scores = task.evaluate_clients(step.model, clients)
        found = scores if evaluation.metric == "accuracy" else losses / evaluation.scale
        # A loss that is not finite counts as the largest, a score as the smallest.
        worst = 0.0 if evaluation.metric == "accuracy" else 1.0
        return torch.nan_to_num(found, nan=worst, posinf=worst, neginf=worst).clamp(0.0, 1.0)


def released_clip_norm(state: State) -> float:
    """Return the clipping norm of the next round."""
    return float(state[CLIP_NORM][0])


def released_share(state: State) -> tuple[float, float] | None:
    """Return the latest private share of unclipped updates, and its standard error.

    None if no round has released it yet.
    """
    found = state.get(UNCLIPPED)
    return None if found is None else (float(found[0]), float(found[1]))


def released_result(state: State) -> tuple[float, bool]:
    """Return the latest result, before it is scaled, and whether the last release had it.

    The result is NaN if there was none yet.
    """
    value, before = state[EVALUATED].tolist()
    return value, before == state[ROUNDS_RELEASED][0] - 1.0


def _reach(quantile: float) -> float:
    """Return the largest magnitude of a bit less the quantile."""
    return max(quantile, 1.0 - quantile)


def _noise_of_coordinate(mean: Vector) -> float:
    """Return the standard deviation of noise in a decoded mean of updates of norm at most 1.

    It is 0 if the updates alone can explain the mean's norm.
    """
    return math.sqrt(max(float(mean @ mean) - 1.0, 0.0) / len(mean))


def _gain(clip: AdaptiveClip, doubt: float, noise: float) -> tuple[float, float]:
    """Return how far log C follows the bits in this round, and the variance that is left."""
    slope = _BITS_PER_LOG_NORM
    of_bits = noise**2 * _reach(clip.quantile) ** 2 / clip.share
    best = doubt * slope / (slope**2 * doubt + of_bits)
    gain = min(clip.rate, best) if noise else clip.rate
    left = (1.0 - gain * slope) ** 2 * doubt + gain**2 * of_bits
    return gain, left + _DOUBT_OF_ROUND


def _next_clip_norm(clip: AdaptiveClip, clip_norm: float, received: float, gain: float) -> float:
    """Return the next clipping norm from the decoded mean of the coordinate of the bits."""
    reach = _reach(clip.quantile)
    above = float(np.clip(received / math.sqrt(clip.share), -1.0, 1.0)) * reach
    moved = clip_norm * math.exp(-gain * above)
    return float(np.clip(moved, SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM))


def _unclipped(clip: AdaptiveClip, received: float, noise: float) -> Vector:
    """Return the mean of the clients' bits as decoded, and the standard error of its noise."""
    scale = _reach(clip.quantile) / math.sqrt(clip.share)
    return np.array([clip.quantile + scale * received, scale * noise])


def _single(number: float) -> Vector:
    """Return a number as clients receive it, in float32, so that both sides use the same one."""
    return np.array([np.float32(number)], dtype=np.float64)


def _appended(rows: Rows, factors: Tensor, columns: Sequence[Tensor]) -> Rows:
    """Return the rows, each times its factor, with further columns."""
    if isinstance(rows, DenseRows):
        values = rows.values
        made = values.new_empty(len(values), values.shape[1] + len(columns))
        torch.mul(values, factors[:, None], out=made[:, : values.shape[1]])
        for place, column in enumerate(columns, start=values.shape[1]):
            made[:, place] = column
        return DenseRows(made)
    scaled = rows.scaled(factors)
    layers = scaled.layers if isinstance(scaled, LayeredRows) else (scaled,)
    return LayeredRows((*layers, DenseRows(torch.stack(list(columns), dim=1))))
