"""Envelopes over metric designs compared with a linear program, and certificates of designs.

    python benchmarks/designs.py           the envelopes
    python benchmarks/designs.py --known   variances and the best known before, as JSON
    python benchmarks/designs.py --all     every (input bits, output bits) over epsilon .05 to 50

`sottovoce benchmark design` measures one design.
"""

import json
import sys
import time

import numpy as np

from sottovoce.mechanisms.design import store
from sottovoce.privacy.envelope import envelope_bound, linear_program_bound, pairwise_renyi
from sottovoce_papers.benchmarks.design import BEST_KNOWN

EPSILONS = (0.05, 0.1, 0.3, 1.0, 3.0, 7.0, 15.0, 30.0, 50.0)


def whole_range() -> None:
    """Print the worst certificate over the whole range; a design that fails raises."""
    worst: dict[str, float] = {}
    slowest = 0.0
    for epsilon in EPSILONS:
        for input_bits in (1, 2, 3, 4, 5, 6, 7, 8, None):
            for output_bits in range(1, 9):
                design = store.solve(store.spec_of(epsilon, input_bits, output_bits))
                certificate = design.certificate()
                assert certificate["table_epsilon"] <= epsilon
                for name, value in certificate.items():
                    worst[name] = max(worst.get(name, value), value)
                slowest = max(slowest, design.solve_seconds)
        print(f"epsilon {epsilon:g}: worst so far {worst}, slowest {slowest:.1f} s", flush=True)
    print(json.dumps({**worst, "slowest_seconds": slowest}))


def known() -> None:
    """Print a row for each design that was known before."""
    rows = []
    for (input_bits, output_bits), values in BEST_KNOWN.items():
        for epsilon, best in values.items():
            design = store.solve(store.spec_of(epsilon, input_bits, output_bits))
            rows.append(
                {
                    "input_bits": input_bits,
                    "output_bits": output_bits,
                    "epsilon": epsilon,
                    "variance_over_best_known": design.sum_of_variances() / best,
                    "solve_seconds": design.solve_seconds,
                    **design.certificate(),
                }
            )
    print(json.dumps(rows))


def envelope() -> None:
    rows = store.solve(store.spec_of(1.0, 9, 3, "l1")).channel.rows
    steps = np.abs(np.subtract.outer(np.arange(512), np.arange(512))).astype(float)
    budget, dimension = (511 * 0.5) ** 2, 128
    worst, spent = 0.0, 0.0
    for order in (1.5, 2.0, 8.0, 64.0):
        divergences = pairwise_renyi(rows, rows, order)
        values = np.array([np.diag(divergences, k).max() for k in range(512)])
        values = np.maximum(values, [np.diag(divergences.T, k).max() for k in range(512)])
        costs = steps[0] ** 2
        start = time.perf_counter()
        bound = envelope_bound(costs, values, budget, dimension)
        spent = max(spent, time.perf_counter() - start)
        program = linear_program_bound(costs, values, budget, dimension)
        worst = max(worst, abs(bound / program - 1.0))
    print(f"envelope against the linear program: {worst:.1e}, {1e3 * spent:.2f} ms an order")


if __name__ == "__main__":
    if "--all" in sys.argv:
        whole_range()
    elif "--known" in sys.argv:
        known()
    else:
        envelope()
