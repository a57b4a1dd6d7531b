"""The people of a file as one account in a ledger: charged before anything is encoded.

Everybody answers every question once, so all of them spend the same, and one account says it. The
budget is pure: the epsilons of all charges together stay within it. A ledger's budgets have a
delta, too; 1e-9 is the smallest at which the accountants' own rounding does not refuse 1 and 0.5
within 1.5, and alone it would let 336 questions of 0.01 pass within 1.
"""

import decimal
import math
import secrets
from collections.abc import Sequence
from pathlib import Path

from sottovoce.analytics.question import Question
from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.display import show_epsilon, show_left
from sottovoce.core.errors import BudgetExhaustedError, LedgerError, ParameterError
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.reader import LedgerReader
from sottovoce.ledger.records import Budget, Release
from sottovoce.privacy.compositions import multiset
from sottovoce.privacy.events import PrivacyEvent, PureDp, basic_counts
from sottovoce.privacy.pure import pure_epsilon

BUDGET_DELTA = 1e-9
_RUN_PREFIX = "estimate-"  # of the run that each question is charged as
_ROUNDING = 2.0**-40  # what sums of epsilons round up


def check_budget(epsilon: float | None) -> None:
    if epsilon is not None:
        parameter_rules.epsilon(epsilon, "budget")


def pure_left(budget: float, spent: float) -> float:
    """What is left of a pure budget, by the rule that the next question is held to."""
    return max(0.0, budget * (1.0 + _ROUNDING) - spent)


def is_pure_account(ledger: LedgerReader, account: str) -> bool:
    """Whether every charge of an account is a question's, so that its budget is a pure one."""
    budget = ledger.budget(account)
    if budget is not None and budget.delta != BUDGET_DELTA:
        return False
    return all(str(row["run"]).startswith(_RUN_PREFIX) for row in ledger.rows(account))


def pure_spent(history: Sequence[tuple[PrivacyEvent, int]]) -> float:
    """Return the sum of the pure epsilons of all charges, rounded up; infinite if one has none.

    Epsilons that were asked for are added as the decimals they were written as: 0.1 and 0.2 are
    0.3, where the sum of their floats is a little more.
    """
    if not history:
        return 0.0
    counts = basic_counts(multiset(history))
    stated = {part.epsilon: count for part, count in counts.items() if isinstance(part, PureDp)}
    if len(stated) < len(counts):
        return pure_epsilon(multiset(history))
    with decimal.localcontext(prec=1000):  # exact
        total = sum(decimal.Decimal(repr(one)) * count for one, count in stated.items())
        nearest = float(total)
        below = decimal.Decimal(repr(nearest)) < total
    return math.nextafter(nearest, math.inf) if below else nearest


def _check_pure(ledger: Ledger, account: str, asked: Question) -> None:
    """Refuse what would carry the sum of all epsilons beyond the account's budget."""
    budget = ledger.budget(account)
    if budget is None:
        return
    charges = [*ledger.history(account), (asked.event, 1)]
    total = pure_epsilon(multiset(charges))
    # What is not pure, charged by others, is the ledger's own matter.
    if math.isfinite(total) and total > budget.epsilon * (1.0 + _ROUNDING):
        raise BudgetExhaustedError(
            f"account '{account}': the epsilons of all questions would add up to "
            f"{show_epsilon(pure_spent(charges))}, above the budget {budget.epsilon:.15g}; "
            "nothing is sent and nothing is spent"
        )


def _check_same_budget(ledger: Ledger, path: Path, account: str, epsilon: float) -> None:
    """In the words of whoever asks: the ledger's own are about clients."""
    present = ledger.budget(account)
    if present is not None and present.epsilon != epsilon:
        raise LedgerError(
            f"account '{account}' of {path} has the budget {present.epsilon:.15g} already, and a "
            f"budget is set once: leave --budget {epsilon:.15g} away to ask within it"
        )


def charge(path: Path, account: str, asked: Question, *, budget: float | None = None) -> str:
    """Enter the question's event, or raise BudgetExhaustedError; what a result says about it.

    The account is a name for the people, given by who asks: a file's name would give a renamed
    copy of it a budget of its own.
    """
    if not account.strip():
        raise ParameterError("account is empty; name the people whose data is asked about")
    with Ledger(path, create=True) as ledger:
        if budget is not None:
            _check_same_budget(ledger, path, account, budget)
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
            run=f"{_RUN_PREFIX}{secrets.token_hex(8)}",
            client=account,
            round=0,
            uplink=0,
        )
        with ledger.transaction():
            _check_pure(ledger, account, asked)
            entered = ledger.charge(release, 0, asked.event)
        limit, spent = ledger.budget(account), pure_epsilon(multiset(ledger.history(account)))
    said = (
        f"charged to account '{account}' of {path} (charge {entered.id}), which counts what is "
        "asked by that name, not by the data"
    )
    if limit is None or not math.isfinite(spent):
        return said
    left = show_left(pure_left(limit.epsilon, spent))
    return f"{said}; {left} of its budget {limit.epsilon:.15g} is left"
