"""Predicted against simulated errors, and how long a plan takes: `make bench`.

Every setting of every mechanism is calibrated, and as many updates are really encoded and decoded
as it takes to know the error to a standard error of 0.4%.
"""

import time

from simulated_errors import simulated_mse

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import clipped_domain
from sottovoce.mechanisms.release import ReleaseTerms
from sottovoce.planning.candidates import PlanSetting
from sottovoce.planning.plan import rank

CASES = (("l2", 1000, 2.0, 1), ("l2", 1000, 2.0, 50), ("l1", 16, 2.0, 1), ("linf", 4, 2.0, 1))
RELATIVE_ERROR = 0.004


def main() -> None:
    for geometry, dimension, epsilon, rounds in CASES:
        setting = PlanSetting(
            domain=clipped_domain(geometry, dimension, 1.0),
            epsilon=epsilon,
            delta=1e-5,
            terms=ReleaseTerms(adjacency=Adjacency.ZERO_OUT),
            rounds=rounds,
        )
        start = time.perf_counter()
        ranking = rank(setting)
        seconds = time.perf_counter() - start
        print(
            f"\n{geometry}, {dimension} coordinates, epsilon {epsilon:g}, {rounds} rounds: "
            f"ranked in {seconds:.1f} s"
        )
        for one in ranking.candidates:
            simulated = simulated_mse(
                one.mechanism, setting.domain, relative_error=RELATIVE_ERROR, seed=1
            )
            print(
                f"  {one.kind:<18}{dict(one.setting)!s:<60}predicted {one.mse:10.4g}  "
                f"simulated {simulated:10.4g}  ratio {one.mse / simulated:.4f}"
            )


if __name__ == "__main__":
    main()
