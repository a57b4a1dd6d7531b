"""Minimum variance unbiased (MVU) channels under metric DP: |d log P_j / dx| <= eps on [0, 1].

P_j(x) is the probability of output j for the input x, and the letter a_j is the value to which the
output is decoded. For given letters the best channel is a linear program over its rows P_kj at
evenly spaced knots x_k. The ratio of adjacent rows is at most 1 + eps * step, so the interpolated
channel satisfies metric DP for continuous input (mechanisms/design/channel.py). The letters, which
are symmetric about 1/2, are found by L-BFGS. The gradient of the sum of variances V comes from the
multipliers lambda_k of unbiasedness: d V/d a_j = sum_k P_kj (2 (a_j - x_k) - lambda_k).

A solver satisfies the constraints only to 1e-9, so its solution is corrected afterwards: the ratio
that it was given is slightly smaller than necessary, a small part of a common row is mixed into
every row, and each row's sum and mean are corrected. Then the ratios are strictly below their
limit, and sums and means are right up to rounding.

Two letters have a closed form: P linear in x, a = -1/eps and 1 + 1/eps.

Reference: Chaudhuri, Guo and Rabbat 2022, condition (3), for the problem.
"""

import math

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.core.errors import DesignError
from sottovoce.mechanisms.design.channel import ChannelMatrix

_STARTS = (1.15, 1.6)  # Multiples of the smallest reach that two letters can have.
_STRICTER = 1e-7
_COARSE, _EVALUATIONS, _POLISHING = 64, 60, 6
_INFEASIBLE = 500.0


def solve(epsilon: float, letters: int, inputs: int) -> ChannelMatrix:
    """Return the best channel found with `inputs` knots, for epsilon per unit on [0, 1].

    Best means the least sum of variances over the knots, among unbiased channels. The result is
    deterministic. Good letters hardly depend on the knots: they are found with few knots and
    refined with all of them.

    Args:
        epsilon: The bound on |d log P / dx|.
        letters: The even number of outputs, each of which is decoded to a value (its letter). For
            2 the solution has a closed form with two knots.
        inputs: The number of knots, the inputs that have a row.

    Returns:
        The channel.

    Raises:
        DesignError: No channel was found, or its rounding errors could not be corrected.
    """
    if letters == 2:
        return two_letters(epsilon)
    strict = epsilon * (1.0 - _STRICTER)
    coarse = _LinearProgram(strict, letters, min(inputs, _COARSE))
    smallest = 2.0 * (0.5 + 1.0 / epsilon) / (letters - 1)
    starts = [np.full(letters // 2, math.log(factor * smallest)) for factor in _STARTS]
    value, found = min(
        (_descend(coarse, start, _EVALUATIONS) for start in starts), key=lambda pair: pair[0]
    )
    program = coarse
    if inputs > _COARSE:
        program = _LinearProgram(strict, letters, inputs)
        value, found = _descend(program, found, _POLISHING)
    solved = program.rows(_letters(found))
    if solved is None or value >= _INFEASIBLE:
        raise DesignError(
            f"no metric DP table with {inputs} inputs and {letters} outputs was found for a "
            f"privacy loss of {epsilon:g} per unit on [0, 1]; use more input bits"
        )
    return _settled(_letters(found) + 0.5, solved[0], inputs, epsilon)


def _descend(program: "_LinearProgram", start: Vector, evaluations: int) -> tuple[float, Vector]:
    from scipy.optimize import minimize

    result = minimize(
        program.objective,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxfun": evaluations, "ftol": 1e-9},
    )
    return float(result.fun), np.asarray(result.x)


def two_letters(epsilon: float) -> ChannelMatrix:
    """Return the unbiased channel with two outputs under |d log P/dx| <= epsilon on [0, 1].

    P(1 | x) is linear in x, and as steep as the smaller probability allows.
    """
    low = 1.0 / (2.0 + epsilon * (1.0 - 1e-13))
    return ChannelMatrix(
        knots=np.array([0.0, 1.0]),
        rows=np.array([[1.0 - low, low], [low, 1.0 - low]]),
        letters=np.array([0.5 - 0.5 / (1.0 - 2.0 * low), 0.5 + 0.5 / (1.0 - 2.0 * low)]),
    )


def _letters(log_spacings: Vector) -> Vector:
    """Return centered letters from the log spacings, from the center outward."""
    spacings = np.exp(log_spacings)
    outer = np.cumsum(spacings) - spacings[0] / 2.0
    return np.concatenate((-outer[::-1], outer))


class _LinearProgram:
    """The linear program min sum_kj P_kj (a_j - x_k)^2 over the first half of the rows.

    The other half mirrors it.
    """

    def __init__(self, epsilon: float, letters: int, inputs: int) -> None:
        from scipy import sparse

        self.letters, self.half = letters, inputs // 2
        self.points = np.linspace(-0.5, 0.5, inputs)[: self.half]
        ratio = 1.0 + epsilon / (inputs - 1)
        cells = np.arange(self.half * letters).reshape(self.half, letters)
        below = cells.ravel()
        # Beyond the center the rows are mirrored.
        above = np.vstack((cells[1:], cells[-1, ::-1])).ravel()
        count = np.arange(len(below))
        size = (len(below), cells.size)
        first = sparse.coo_matrix((np.ones(len(below)), (count, below)), shape=size)
        second = sparse.coo_matrix((np.ones(len(below)), (count, above)), shape=size)
        self.ratios = sparse.vstack((first - ratio * second, second - ratio * first)).tocsr()
        self.sums = sparse.kron(sparse.eye(self.half), np.ones((1, letters)))

    def rows(self, letters: Vector) -> tuple[Vector, float, Vector] | None:
        """Return the best rows, their sum of variances, and the multipliers of unbiasedness."""
        from scipy import sparse
        from scipy.optimize import linprog

        means = sparse.kron(sparse.eye(self.half), letters[None, :])
        result = linprog(
            ((letters - self.points[:, None]) ** 2).ravel(),
            A_ub=self.ratios,
            b_ub=np.zeros(self.ratios.shape[0]),
            A_eq=sparse.vstack((self.sums, means)).tocsr(),
            b_eq=np.concatenate((np.ones(self.half), self.points)),
            method="highs",
        )
        if result.status != 0:
            return None
        multipliers = result.eqlin.marginals[self.half :]
        return result.x.reshape(self.half, -1), 2.0 * float(result.fun), multipliers

    def objective(self, log_spacings: Vector) -> tuple[float, Vector]:
        """Return log(sum of variances) and its gradient."""
        letters = _letters(log_spacings)
        solved = self.rows(letters)
        if solved is None:  # The letters are too narrow; wider ones are always feasible.
            return 2.0 * _INFEASIBLE - float(log_spacings.sum()), -np.ones_like(log_spacings)
        rows, total, multipliers = solved
        slopes = 2.0 * (letters - self.points[:, None]) - multipliers[:, None]
        by_letters = 2.0 * (rows * slopes).sum(axis=0)
        middle = self.letters // 2
        outer = by_letters[middle:] - by_letters[:middle][::-1]
        by_spacing = np.cumsum(outer[::-1])[::-1]
        by_spacing[0] -= outer.sum() / 2.0
        return math.log(total), by_spacing * np.exp(log_spacings) / total


def _settled(letters: Vector, half_rows: Vector, inputs: int, epsilon: float) -> ChannelMatrix:
    """Return the solver's channel, corrected so that its epsilon is below `epsilon`.

    Up to rounding, its rows sum to 1 and their means are the knots.
    """
    knots = np.linspace(0.0, 1.0, inputs)
    rows = np.maximum(np.vstack((half_rows, half_rows[::-1, ::-1])), 0.0)
    common = 0.5 * (rows.mean(axis=0) + 1.0 / len(letters))
    common = (common + common[::-1]) / 2.0
    for share in (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3):
        mixed = (1.0 - share) * rows + share * common
        # The common row moves every mean toward 1/2, so the letters move out by as much.
        wider = 0.5 + (letters - 0.5) / (1.0 - share)
        # Adding `tilt` increases a row's mean and keeps its sum; small cells change least.
        tilt = common * (wider - 0.5)
        tilt /= float(tilt @ wider)
        for _ in range(3):
            mixed /= mixed.sum(axis=1, keepdims=True)
            mixed += (knots - mixed @ wider)[:, None] * tilt
        channel = ChannelMatrix(knots=knots, rows=mixed, letters=wider)
        if mixed.min() > 0.0 and channel.metric_epsilon() <= epsilon * (1.0 - 1e-13):
            return channel
    raise DesignError(
        f"the solution for a privacy loss of {epsilon:g} per unit on [0, 1] violates a constraint "
        "of metric DP by more than can be corrected; change the mechanism's epsilon by about 1%"
    )
