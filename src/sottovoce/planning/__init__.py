"""Which mechanism to use, with which noise, and what is spent.

    sottovoce.plan(epsilon=2.0, delta=1e-5, rounds=100, dimension=10_000)[0].mechanism
    sottovoce.calibrate("gauss_hermite", levels=2, epsilon=2.0, delta=1e-5, dimension=10_000)

`plan`, `calibrate` and `spend` answer in Python what the commands answer. It imports protocol and
below.
"""

from typing import TYPE_CHECKING

from sottovoce.core.faces import show

if TYPE_CHECKING:
    from sottovoce.planning.candidates import Candidate as Candidate
    from sottovoce.planning.candidates import Setting as Setting
    from sottovoce.planning.plan import Plan as Plan
    from sottovoce.planning.plan import Planned as Planned
    from sottovoce.planning.plan import Ranking as Ranking
    from sottovoce.planning.plan import rank as rank
    from sottovoce.planning.spending import Spent as Spent
    from sottovoce.planning.spending import spend as spend

show(
    __name__,
    {
        "candidates": ["Candidate", "Setting"],
        "plan": ["Plan", "Planned", "Ranking", "rank"],
        "spending": ["Spent", "spend"],
    },
)
