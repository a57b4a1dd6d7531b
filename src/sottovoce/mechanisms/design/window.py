"""The strict MVU design: epsilon-DP, unbiased and of least variance, by sliding windows.

Inputs x in [0, 1], output letters a_1 < ... < a_B. With column minima l_j, epsilon-DP says that
every row lies in [l_j, e^eps l_j]. Given letters and minima, the row of least variance with mean x
fills the capacities (e^eps - 1) l_j, on top of the minima, in one contiguous *window* of mass
1 - sum(l): by linear programming duality its reduced costs are (a_j - p)(a_j - q), negative exactly
between the letters p and q at the window's two edges. Sliding the window moves the mean from its
least to its largest value, so the row for a given mean is found by one interpolation, and rows are
piecewise linear in x. Nothing depends on the number of inputs: a continuous input is the same
problem with an integral in place of the sum.

The remaining variables are the B/2 spacings, the B/2 minima (the design is symmetric about 1/2) and
the total mass of the minima. The scale follows: the extreme windows have means 0 and 1 exactly. The
objective has kinks where a window's edge passes a letter and several local optima, so L-BFGS runs
from many starts and then from perturbations of the best.

By the envelope theorem, with rows P_i and edges p_i, q_i,

    d Var_i / d a_j = P_ij (2 a_j - p_i - q_i)
    d Var_i / d l_j = (a_j - p_i)(a_j - q_i) * (e^eps inside the window, 1 outside)

Reference: Chaudhuri, Guo and Rabbat 2022, problem (2), for the problem.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.domains import Vector

# The choices of the solver affect only the accuracy of a design, not its privacy.
_STARTS = 10
_EVALUATIONS, _CELLS_OF_HALF_SPEED, _LEAST_EVALUATIONS = 9_000, 8_192, 800
_FRUITLESS_HOPS = 18
_HOP_SIZES = (0.5, 0.003, 0.2, 0.02, 0.1, 0.001)
_SEED = 1
_FAILED = 1e3
_SAME_KNOT = 1e-9
_LOST_TO_ROUNDING = 1e-12
_LOG_BOUND, _HIGHEST_LOGIT = 20.0, 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """An unbiased epsilon-DP randomizer of inputs from -1/2 to 1/2, by its letters and minima.

    At every input, output j has a probability from minima[j] to e^epsilon minima[j].

    Attributes:
        epsilon: The epsilon between any two inputs.
        letters: The output values a_j, ascending and symmetric about 0.
        minima: The least probability l_j of each output over all inputs, symmetric.
    """

    epsilon: float
    letters: Vector
    minima: Vector

    @property
    def mass(self) -> float:
        """1 - sum(minima): the probability that a row adds to the minima of its outputs."""
        return 1.0 - float(self.minima.sum())

    def knots(self) -> Vector:
        """Return the inputs from -1/2 to 1/2, ascending, between which the rows are linear.

        Both ends are included. Inputs within 1e-9 of another one are left out.
        """
        means = self._slides()[1]
        inside = np.unique(means[np.abs(means) < 0.5 - _SAME_KNOT])
        inside = inside[np.diff(inside, prepend=-0.5) > _SAME_KNOT]
        return np.concatenate(([-0.5], inside, [0.5]))

    def rows(self, means: Vector) -> Vector:
        """Return, for each input (the mean of its row), the output probabilities of least variance.

        The result has a row for each input and a column for each letter.
        """
        return self.minima + self._fill(means)[0]

    def _slides(self) -> tuple[Vector, Vector]:
        """Return the window positions at which an edge passes a letter, and the means there."""
        capacities = math.expm1(self.epsilon) * self.minima
        edges = np.concatenate(([0.0], np.cumsum(capacities)))
        moments = np.concatenate(([0.0], np.cumsum(capacities * self.letters)))
        last = max(0.0, edges[-1] - self.mass)
        slides = np.unique(np.clip(np.concatenate((edges, edges - self.mass)), 0.0, last))
        means = np.interp(slides + self.mass, edges, moments) - np.interp(slides, edges, moments)
        return slides, np.maximum.accumulate(means)

    def _fill(self, means: Vector) -> tuple[Vector, NDArray[np.intp], NDArray[np.intp]]:
        """Return what the window adds to the minima, and the letters at its left and right edge."""
        capacities = math.expm1(self.epsilon) * self.minima
        edges = np.concatenate(([0.0], np.cumsum(capacities)))
        slides, slide_means = self._slides()
        start = np.interp(means, slide_means, slides)
        stop = start + self.mass
        last = len(self.letters) - 1
        left = np.clip(np.searchsorted(edges, start, "right") - 1, 0, last)
        right = np.clip(np.searchsorted(edges, stop, "left") - 1, 0, last)
        fill = np.minimum(edges[1:], stop[:, None]) - np.maximum(edges[:-1], start[:, None])
        # Between the edges a letter has its full capacity, without the rounding of a difference.
        index = np.arange(last + 1)
        full = (index > left[:, None]) & (index < right[:, None])
        return np.where(full, capacities, np.clip(fill, 0.0, capacities)), left, right


def solve(epsilon: float, letters: int, inputs: int | None) -> Window:
    """Return the best design found for `inputs` evenly spaced points on [0, 1].

    The result is deterministic. The variance is summed over the points, or averaged over [0, 1].

    Args:
        epsilon: The epsilon between any two inputs.
        letters: The even number of output values.
        inputs: The number of points; None for all of [0, 1].

    Returns:
        The design, centered: its inputs run from -1/2 to 1/2.
    """
    from scipy.optimize import minimize

    if letters == 2:
        return randomized_response_window(epsilon)
    problem = _Problem(epsilon, letters, inputs)
    generator = np.random.default_rng(_SEED)
    cells = letters * (inputs or 2 * letters)
    budget = max(_LEAST_EVALUATIONS, _EVALUATIONS / (1.0 + cells / _CELLS_OF_HALF_SPEED))
    spent = 0

    def descend(start: Vector, target: _Problem = problem) -> tuple[float, tuple[float, ...]]:
        nonlocal spent
        result = minimize(
            target.objective,
            np.clip(start, *problem.bounds.T),
            jac=True,
            method="L-BFGS-B",
            bounds=problem.bounds,
            options={"maxiter": 2000, "maxfun": 4000, "maxcor": 30, "ftol": 1e-14, "gtol": 1e-10},
        )
        spent += result.nfev
        return float(result.fun), tuple(result.x)

    smooth = _Problem(epsilon, letters, None)
    relaxed = np.array(descend(problem.plain_start(), smooth)[1])
    starts = [relaxed, problem.plain_start(), *problem.quantizer_starts(generator)]
    while len(starts) < _STARTS:
        starts.append(problem.plain_start() + 0.3 * generator.normal(size=problem.size))
    best: list[tuple[float, tuple[float, ...]]] = []
    for start in starts:
        best = sorted([*best, descend(start)])[:4]
        if spent > budget:
            break
    fruitless = 0
    for hop in itertools.count():
        if spent > budget or fruitless > _FRUITLESS_HOPS:
            break
        _, origin = best[0] if hop % 2 == 0 else best[int(generator.integers(len(best)))]
        step = _HOP_SIZES[hop % len(_HOP_SIZES)] * generator.normal(size=problem.size)
        moved = np.array(origin) + step * (generator.random(problem.size) < 0.5)
        found = descend(moved)
        fruitless = 0 if found[0] < best[0][0] - 1e-6 else fruitless + 1
        best = sorted([*best, found])[:4]
    return problem.window(np.array(best[0][1]))


def randomized_response_window(epsilon: float) -> Window:
    """Return the epsilon-DP design with two letters, which has the least variance at every input.

    The letters are -1/(e^eps - 1) and e^eps/(e^eps - 1) on [0, 1], and 1/2 less in the result,
    which is centered. With two letters a < b the variance at x is (x - a)(b - x); epsilon-DP
    requires (1 - a)/(0 - a) <= e^eps and (b - 0)/(b - 1) <= e^eps, and equality in both is best.
    """
    reach = 0.5 / math.tanh(epsilon / 2.0)
    low = 1.0 / (1.0 + math.exp(epsilon))
    return Window(epsilon=epsilon, letters=np.array([-reach, reach]), minima=np.array([low, low]))


class _Problem:
    """The logarithm of the variance and its gradient, in unconstrained parameters.

    The parameters, with h = B/2: h log spacings from the center outward, h log weights of the
    minima from the center outward, and the logit of their total between e^-eps and 1.
    """

    def __init__(self, epsilon: float, letters: int, inputs: int | None) -> None:
        self.epsilon, self.letters, self.inputs = epsilon, letters, inputs
        self.half = letters // 2
        self.size = 2 * self.half + 1
        self.ratio = math.exp(epsilon)
        # No letter needs a capacity above 1, so the total need not exceed B/(e^eps - 1).
        low, high = 1.0 / self.ratio, min(1.0, letters / (self.ratio - 1.0))
        rest = 1.0 - high
        highest = math.log((high - low) / rest) if rest > 0.0 else math.inf
        self.bounds = np.array(
            [(-_LOG_BOUND, _LOG_BOUND)] * (self.size - 1)
            + [(-epsilon - 5.0, min(highest, _HIGHEST_LOGIT))]
        )

    def plain_start(self) -> Vector:
        """Return even spacings, equal minima, and the total of generalized randomized response."""
        start = np.zeros(self.size)
        low = 1.0 / self.ratio
        total = min(0.999, max(self.letters / (self.ratio + self.letters - 1.0), 1.0001 * low))
        fraction = min(0.999, max(0.001 * low, (total - low) / (1.0 - low)))
        start[-1] = math.log(fraction / (1.0 - fraction))
        return start

    def quantizer_starts(self, generator: np.random.Generator) -> Iterator[Vector]:
        """Yield letters on input points, as even as the grid allows: optimal as epsilon grows."""
        if self.inputs is None or self.letters >= self.inputs:
            return
        gap, wider = divmod(self.inputs - 1, self.letters - 1)
        center = self.half - 1
        for pick in itertools.islice(itertools.combinations(range(center), wider // 2), 6):
            outwards = np.full(self.half, float(gap))
            outwards[0] += wider % 2
            outwards[[center - i for i in pick]] += 1.0
            start = self.plain_start()
            start[: self.half] = np.log(outwards / outwards[0])
            yield start + 0.02 * generator.normal(size=self.size)

    def window(self, parameters: Vector) -> Window:
        """Return the design of these parameters."""
        letters, minima = self._shape(parameters)
        return Window(
            epsilon=self.epsilon, letters=letters * self._reach(letters, minima)[0], minima=minima
        )

    def _shape(self, parameters: Vector) -> tuple[Vector, Vector]:
        """Return the letters up to scale, and the minima."""
        spacings = np.exp(parameters[: self.half])
        outer = np.cumsum(spacings) - spacings[0] / 2.0
        weights = np.exp(parameters[self.half : -1] - parameters[self.half : -1].max())
        weights /= 2.0 * weights.sum()
        low = 1.0 / self.ratio
        total = low + (1.0 - low) / (1.0 + math.exp(-parameters[-1]))
        return (
            np.concatenate((-outer[::-1], outer)),
            total * np.concatenate((weights[::-1], weights)),
        )

    def _reach(self, letters: Vector, minima: Vector) -> tuple[float, Vector, Vector, float]:
        """Return the scale that puts the topmost window at 1/2, its row, d mean/d minima, mean."""
        capacities = (self.ratio - 1.0) * minima
        from_top = np.cumsum(capacities[::-1])
        mass = 1.0 - float(minima.sum())
        depth = min(int(np.searchsorted(from_top, mass)), self.letters - 1)
        edge = self.letters - 1 - depth
        fill, factors = np.zeros(self.letters), np.ones(self.letters)
        fill[edge + 1 :] = capacities[edge + 1 :]
        fill[edge] = mass - (from_top[depth - 1] if depth else 0.0)
        factors[edge + 1 :] = self.ratio
        mean = float(fill @ letters)  # The minima are symmetric, so their mean is 0.
        scale = 0.5 / mean if mean > 1e-200 else math.inf
        return scale, minima + fill, (letters - letters[edge]) * factors, mean

    def objective(self, parameters: Vector) -> tuple[float, Vector]:
        """Return the logarithm of the design's summed variances over inputs, and its gradient."""
        shape, minima = self._shape(parameters)
        scale, top_row, top_by_minima, top_mean = self._reach(shape, minima)
        if not math.isfinite(scale):  # The window covers all letters, so its only mean is 1/2.
            return _FAILED, np.zeros(self.size)
        letters = scale * shape
        window = Window(epsilon=self.epsilon, letters=letters, minima=minima)
        points, weights, excess = self._points(window)
        fill, left, right = window._fill(points)
        rows = minima + fill
        total = float(weights @ (rows * (letters - points[:, None]) ** 2).sum(axis=1)) - excess
        lost = float(np.abs(fill.sum(axis=1) - window.mass).max())
        if not (math.isfinite(total) and total > 0.0 and lost < _LOST_TO_ROUNDING):
            return _FAILED, np.zeros(self.size)
        low, high = letters[left][:, None], letters[right][:, None]
        index = np.arange(self.letters)
        inside = (index > left[:, None]) & (index < right[:, None])
        by_letters = weights @ (rows * (2.0 * letters - low - high))
        reduced = (letters - low) * (letters - high)
        by_minima = weights @ (reduced * np.where(inside, self.ratio, 1.0))
        # The scale 1/(2 top mean) depends on shape and minima, and contributes to both gradients.
        by_scale = float(by_letters @ shape) * -scale / top_mean
        by_shape = scale * by_letters + by_scale * top_row
        by_minima = by_minima + by_scale * top_by_minima
        return math.log(total), self._pull_back(parameters, by_shape, by_minima) / total

    def _points(self, window: Window) -> tuple[Vector, Vector, float]:
        """Return where to evaluate rows, with which weights, and what to subtract from the sum.

        On a linear piece of length t the mean of the variance is the midpoint's less t^2/12.
        """
        if self.inputs is not None:
            return np.linspace(-0.5, 0.5, self.inputs), np.ones(self.inputs), 0.0
        knots = window.knots()
        lengths = np.diff(knots)
        return (knots[1:] + knots[:-1]) / 2.0, lengths, float((lengths**3).sum()) / 12.0

    def _pull_back(self, parameters: Vector, by_shape: Vector, by_minima: Vector) -> Vector:
        half = self.half
        gradient = np.empty(self.size)
        spacings = np.exp(parameters[:half])
        outer = by_shape[half:] - by_shape[:half][::-1]
        by_spacing = np.cumsum(outer[::-1])[::-1]
        by_spacing[0] -= outer.sum() / 2.0
        gradient[:half] = by_spacing * spacings
        weights = np.exp(parameters[half:-1] - parameters[half:-1].max())
        weights /= weights.sum()
        low = 1.0 / self.ratio
        sigmoid = 1.0 / (1.0 + math.exp(-parameters[-1]))
        total = low + (1.0 - low) * sigmoid
        pairs = (by_minima[half:] + by_minima[:half][::-1]) / 2.0
        gradient[half:-1] = total * weights * (pairs - weights @ pairs)
        gradient[-1] = float(pairs @ weights) * (1.0 - low) * sigmoid * (1.0 - sigmoid)
        return gradient
