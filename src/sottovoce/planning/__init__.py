"""Choose a mechanism for a privacy budget, calibrate its noise, and compute what it spends.

    sottovoce.plan(epsilon=2.0, delta=1e-5, rounds=100, dimension=10_000)[0].mechanism
    sottovoce.calibrate("gauss_hermite", levels=2, epsilon=2.0, delta=1e-5, dimension=10_000)

`plan`, `calibrate` and `spend` are the Python functions behind the commands `sottovoce plan`,
`privacy calibrate` and `privacy spend`. The package imports `protocol` and the packages below it.
"""

from typing import TYPE_CHECKING

from sottovoce.core.faces import export_lazily

if TYPE_CHECKING:
    from sottovoce.planning.candidates import Candidate as Candidate
    from sottovoce.planning.candidates import PlanSetting as PlanSetting
    from sottovoce.planning.plan import Plan as Plan
    from sottovoce.planning.plan import PlannedMechanism as PlannedMechanism
    from sottovoce.planning.plan import Ranking as Ranking
    from sottovoce.planning.plan import rank as rank
    from sottovoce.planning.spending import SpendResult as SpendResult
    from sottovoce.planning.spending import spend as spend

export_lazily(
    __name__,
    {
        "candidates": ["Candidate", "PlanSetting"],
        "plan": ["Plan", "PlannedMechanism", "Ranking", "rank"],
        "spending": ["SpendResult", "spend"],
    },
)
