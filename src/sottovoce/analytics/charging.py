"""The people of a file as one account in a ledger: charged before anything is encoded.

Everybody answers every question once, so all of them spend the same, and one account says it. The
budget is pure in spirit: epsilon at a delta of 1e-9, the smallest at which the accountants' own
rounding does not refuse 1 and 0.5 within 1.5.
"""

import secrets
from pathlib import Path

from sottovoce import parameters
from sottovoce.adjacency import Adjacency, Unit
from sottovoce.analytics.question import Question
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Budget, Release

BUDGET_DELTA = 1e-9


def check_budget(epsilon: float | None) -> None:
    if epsilon is not None:
        parameters.epsilon(epsilon, "budget")


def charge(path: Path, account: str, asked: Question, *, budget: float | None = None) -> str:
    """Enter the question's event, or raise BudgetExhaustedError; what a result says about it."""
    with Ledger(path) as ledger:
        if budget is not None:
            ledger.set_budget(
                account,
                Budget(
                    epsilon=budget,
                    delta=BUDGET_DELTA,
                    adjacency=Adjacency.REPLACE_ONE,
                    unit=Unit.CLIENT,
                ),
            )
        release = Release(
            unit=Unit.CLIENT,
            run=f"estimate-{secrets.token_hex(8)}",
            client=account,
            round=0,
            uplink=0,
        )
        entered = ledger.charge(release, 0, asked.event)
    return f"charged to account '{account}' of {path} (charge {entered.id})"
