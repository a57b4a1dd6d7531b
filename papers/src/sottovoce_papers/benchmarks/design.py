"""The speed of solving MVU designs, and how near their variance is to the lower bound."""

import itertools
import math
from typing import Any

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.mechanisms.design import store
from sottovoce.mechanisms.design.store import Design
from sottovoce_papers.benchmarks.measurement import TimedAction, rates, ratio, require, result

UNIT = "designs_per_second"
# (input bits, None for continuous; output bits): {epsilon: best sum of variances known before}
BEST_KNOWN: dict[tuple[int | None, int], dict[float, float]] = {
    (1, 1): {1.0: 1.84135, 10.0: 9.081e-5},
    (3, 1): {1.0: 8.50824, 10.0: 1.14322},
    (3, 3): {0.25: 128.0044, 1.0: 7.88589, 3.0: 0.548243, 5.0: 0.095557, 10.0: 6.228e-4},
    (4, 4): {0.25: 256.284, 1.0: 15.6775, 3.0: 1.07481, 5.0: 0.194365, 10.0: 2.1962e-3},
    (5, 3): {0.25: 512.156, 1.0: 31.3382, 3.0: 2.17943, 5.0: 0.430790, 10.0: 0.106296},
    (9, 3): {0.25: 8194.76, 1.0: 500.00, 3.0: 34.557, 5.0: 6.9051, 10.0: 1.7744},
    (None, 3): {0.25: 16.0054, 1.0: 0.97664, 3.0: 0.06745, 5.0: 0.01348, 10.0: 0.003480},
}
# The largest tables, in cells, that a linear program checks and that a generic solver of the whole
# problem, whose time grows with the cube of the cells, is timed on.
_LINEAR_PROGRAM_CELLS, _GENERIC_CELLS = 1 << 10, 1 << 6
# HiGHS satisfies its constraints up to 1e-7, which makes its value inexact.
_LINEAR_PROGRAM_ERROR = 1e-4


def measure(
    *,
    epsilon: float = 1.0,
    input_bits: int | None = 3,
    bits: int = 3,
    seconds: float = 3.0,
) -> dict[str, Any]:
    """Measure designs solved and certified per second on one core.

    `input_bits` is None for continuous inputs.
    """
    spec = store.spec_of(epsilon, input_bits, bits)
    design = store.solve(spec)
    lower, variance = design.lower_bound(), design.sum_of_variances()
    checked = _check(design, lower)
    actions = {"ours": TimedAction(lambda: store.solve(spec), 1.0)}
    if _fits_linear_program(design):
        optimum = _solve_linear_program(design)
        require(
            variance <= optimum * (1.0 + _LINEAR_PROGRAM_ERROR),
            f"the design's variance {variance:.6g} is above {optimum:.6g}, which a linear "
            "program finds for the same letters",
        )
        checked += "; no table for its letters has less variance (by a linear program)"
    generic = None
    if design.spec.inputs is not None and design.channel.rows.size <= _GENERIC_CELLS:
        generic = _generic(design)
        actions["scipy"] = TimedAction(lambda: _generic(design), 1.0)
    speeds = rates(actions, seconds)
    best = BEST_KNOWN.get((input_bits, bits), {}).get(epsilon)
    return result(
        UNIT,
        speeds["ours"],
        checked=checked,
        numpy=None,
        torch=None,
        limit=None,
        limit_per_second=None,
        notes={
            "numpy": "has no solver",
            "torch": "has no solver",
            "limit": "no limit of the machine is known for solving; variance_over_lower_bound says "
            "how near the result is to the lower bound of every design",
            "scipy": "minimize(method='SLSQP') on letters and table, gradients given, from "
            "randomized response; neither certified nor rounded"
            if "scipy" in speeds
            else "not compared: continuous inputs, or a table too large for a generic solver",
        },
        ratio_to_scipy=ratio(speeds["ours"], speeds.get("scipy")),
        scipy_variance_over_ours=None if generic is None else generic / variance,
        epsilon=epsilon,
        input_bits="continuous" if input_bits is None else input_bits,
        bits=bits,
        sum_of_variances=variance,
        variance_over_lower_bound=variance / lower,
        variance_over_best_known=None if best is None else variance / best,
        max_bias=design.certificate()["max_bias"],
    )


def _check(design: Design, lower: float) -> str:
    certificate = design.certificate()
    require(
        certificate["table_epsilon"] <= design.spec.epsilon,
        f"the table's epsilon is {certificate['table_epsilon']!r}, above {design.spec.epsilon!r}",
    )
    require(
        design.sum_of_variances() >= lower * (1.0 - 1e-9),
        "the variance is below the lower bound",
    )
    return "epsilon of the integer table, bias, and variance against its lower bound"


def _fits_linear_program(design: Design) -> bool:
    return design.spec.inputs is not None and design.channel.rows.size <= _LINEAR_PROGRAM_CELLS


def _solve_linear_program(design: Design) -> float:
    """Return the least sum of variances for the design's letters, by scipy's linear program.

    The rows of P sum to 1 and have means x_i; column j lies between m_j and e^epsilon m_j, with m_j
    free.
    """
    from scipy.optimize import linprog

    inputs, letters = design.channel.knots, design.channel.letters
    n, m = design.channel.rows.shape
    cost = np.concatenate([((letters - inputs[:, None]) ** 2).ravel(), np.zeros(m)])
    equal = np.zeros((2 * n, n * m + m))
    for i in range(n):
        equal[i, i * m : i * m + m] = 1.0
        equal[n + i, i * m : i * m + m] = letters
    bounded = _private(n, m, design.spec.epsilon)
    sums = np.concatenate([np.ones(n), inputs])
    found = linprog(cost, -bounded, np.zeros(2 * n * m), equal, sums, method="highs")
    require(found.success, f"scipy's linear program failed: {found.message}")
    return float(found.fun)


def _private(n: int, m: int, epsilon: float) -> Vector:
    """Return rows A with A (P, m) >= 0 exactly where m_j <= P_ij <= e^epsilon m_j for all i, j."""
    rows = np.zeros((2 * n * m, n * m + m))
    for cell, (i, j) in enumerate(itertools.product(range(n), range(m))):
        rows[cell, [i * m + j, n * m + j]] = 1.0, -1.0
        rows[n * m + cell, [n * m + j, i * m + j]] = math.exp(epsilon), -1.0
    return rows


def _generic(design: Design) -> float:
    """Return the sum of variances that a generic solver reaches on letters and table together."""
    from scipy.optimize import minimize

    inputs, epsilon = design.channel.knots, design.spec.epsilon
    n, m = design.channel.rows.shape
    private = np.insert(_private(n, m, epsilon), [n * m + m] * m, 0.0, axis=1)

    def parts(unknown: Vector) -> tuple[Vector, Vector]:
        return unknown[: n * m].reshape(n, m), unknown[n * m + m :]

    def variance(unknown: Vector) -> tuple[float, Vector]:
        table, letters = parts(unknown)
        distances = letters - inputs[:, None]
        gradient = [(distances**2).ravel(), np.zeros(m), (2.0 * table * distances).sum(axis=0)]
        return float((table * distances**2).sum()), np.concatenate(gradient)

    def unmet(unknown: Vector) -> Vector:
        table, letters = parts(unknown)
        return np.concatenate([table.sum(axis=1) - 1.0, table @ letters - inputs])

    def slopes(unknown: Vector) -> Vector:
        table, letters = parts(unknown)
        found = np.zeros((2 * n, len(unknown)))
        for i in range(n):
            found[i, i * m : i * m + m] = 1.0
            found[n + i, i * m : i * m + m] = letters
            found[n + i, n * m + m :] = table[i]
        return found

    places = np.linspace(0.0, 1.0, m)
    near = np.abs(inputs[:, None] - places) <= 0.5 / (m - 1) + 1e-9
    table = np.where(near, math.exp(epsilon), 1.0)
    table /= table.sum(axis=1, keepdims=True)
    spread = (math.exp(epsilon) + m - 1.0) / math.expm1(epsilon)
    letters = 0.5 + spread * 2.0 * (places - 0.5)
    found = minimize(
        variance,
        np.concatenate([table.ravel(), table.min(axis=0), letters]),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * (n * m + m) + [(None, None)] * m,
        constraints=[
            {"type": "eq", "fun": unmet, "jac": slopes},
            {"type": "ineq", "fun": lambda u: private @ u, "jac": lambda _: private},
        ],
        options={"maxiter": 500},
    )
    return float(found.fun)
