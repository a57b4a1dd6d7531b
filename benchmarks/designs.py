"""How good and how fast the MVU designs are: best known sums of variances, time, certificates.

make bench        prints these tables after the kernels'
python benchmarks/designs.py --all     every (input bits, output bits) over epsilon .05 to 50
"""

import sys
import time

import numpy as np

from sottovoce.design import store
from sottovoce.privacy.envelope import envelope_bound, linear_program_bound, pairwise_renyi

# (input bits, None for continuous; output bits): {epsilon: the best sum of variances known before}
BEST_KNOWN: dict[tuple[int | None, int], dict[float, float]] = {
    (1, 1): {1.0: 1.84135, 10.0: 9.081e-5},
    (3, 1): {1.0: 8.50824, 10.0: 1.14322},
    (3, 3): {0.25: 128.0044, 1.0: 7.88589, 3.0: 0.548243, 5.0: 0.095557, 10.0: 6.228e-4},
    (4, 4): {0.25: 256.284, 1.0: 15.6775, 3.0: 1.07481, 5.0: 0.194365, 10.0: 2.1962e-3},
    (5, 3): {0.25: 512.156, 1.0: 31.3382, 3.0: 2.17943, 5.0: 0.430790, 10.0: 0.106296},
    (9, 3): {0.25: 8194.76, 1.0: 500.00, 3.0: 34.557, 5.0: 6.9051, 10.0: 1.7744},
    (None, 3): {0.25: 16.0054, 1.0: 0.97664, 3.0: 0.06745, 5.0: 0.01348, 10.0: 0.003480},
}
EPSILONS = (0.05, 0.1, 0.3, 1.0, 3.0, 7.0, 15.0, 30.0, 50.0)


def best_known() -> None:
    print(
        f"{'bits':>8}{'epsilon':>9}{'variance':>13}{'to best':>10}{'gap':>9}{'CPU s':>7}{'bias':>9}"
    )
    for (input_bits, output_bits), values in BEST_KNOWN.items():
        for epsilon, best in values.items():
            design = store.solve(store.spec_of(epsilon, input_bits, output_bits))
            variance = design.sum_of_variances()
            gap = variance / design.lower_bound() - 1.0
            name = f"{'cont' if input_bits is None else input_bits},{output_bits}"
            print(
                f"{name:>8}{epsilon:>9g}{variance:>13.6g}{variance / best - 1.0:>10.1e}"
                f"{gap:>9.2%}{design.solve_seconds:>7.2f}{design.certificate()['max_bias']:>9.1e}"
            )


def whole_range() -> None:
    """The worst certificate over the whole range; a design that fails raises."""
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
        programme = linear_program_bound(costs, values, budget, dimension)
        worst = max(worst, abs(bound / programme - 1.0))
    print(f"envelope against the linear programme: {worst:.1e}, {1e3 * spent:.2f} ms an order")


if __name__ == "__main__":
    if "--all" in sys.argv:
        whole_range()
    else:
        best_known()
        envelope()
