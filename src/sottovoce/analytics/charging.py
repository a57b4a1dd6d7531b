"""Charges of questions to a ledger: all people of a file are one account, charged before encoding.

Everyone answers every question once, so all people spend the same, and one account represents them.
The budget is pure: the sum of the epsilons of all charges must stay within it. Budgets of a ledger
also have a delta, here 1e-9. This is the smallest delta at which the rounding of the accountants
does not refuse epsilons 1 and 0.5 within a budget of 1.5. With this delta alone, the ledger would
allow 336 questions of epsilon 0.01 within a budget of 1; so the pure sum is checked here as well.
"""

import decimal
import math
import secrets
from collections.abc import Sequence
from pathlib import Path

from sottovoce.analytics.question import Question
from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.display import show_epsilon, show_remaining
from sottovoce.core.errors import BudgetExhaustedError, LedgerError, ParameterError
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.reader import LedgerReader
from sottovoce.ledger.records import Budget, Release
from sottovoce.privacy.compositions import compose_repeated
from sottovoce.privacy.events import PrivacyEvent, PureDp, basic_counts
from sottovoce.privacy.pure import pure_epsilon

BUDGET_DELTA = 1e-9
_RUN_PREFIX = "estimate-"  # Each question is charged as a run of its own.
_LEAST_EPSILON = 1e-3  # A question with less is refused.
_ROUNDING = 2.0**-40  # Relative tolerance: sums of epsilons are rounded up.


def check_budget(epsilon: float | None) -> None:
    """Raise ParameterError unless the budget is None or an epsilon above 0 and at most 1000."""
    if epsilon is not None:
        parameter_rules.epsilon(epsilon, "budget")


def remaining_pure_epsilon(budget: float, spent: float) -> float:
    """Return what is left of a pure budget: the budget times 1 + 2^-40 minus `spent`, at least 0.

    Charges are checked with the same tolerance, because sums of epsilons are rounded up.
    """
    return max(0.0, budget * (1.0 + _ROUNDING) - spent)


def is_pure_account(ledger: LedgerReader, account: str) -> bool:
    """Return whether all charges of an account are questions, so that its budget is pure.

    An account without charges is pure, too, unless its budget was not set for questions.
    """
    budget = ledger.budget(account)
    if budget is not None and budget.delta != BUDGET_DELTA:
        return False
    return all(str(row["run"]).startswith(_RUN_PREFIX) for row in ledger.rows(account))


def pure_spent(history: Sequence[tuple[PrivacyEvent, int]]) -> float:
    """Return the sum of the pure epsilons of all charges, rounded up; infinite if one has none.

    Epsilons that users stated are added as decimals: 0.1 and 0.2 give 0.3, while the sum of their
    floats is slightly larger.
    """
    if not history:
        return 0.0
    counts = basic_counts(compose_repeated(history))
    stated = {part.epsilon: count for part, count in counts.items() if isinstance(part, PureDp)}
    if len(stated) < len(counts):
        return pure_epsilon(compose_repeated(history))
    with decimal.localcontext(prec=1000):  # The sum is exact.
        total = sum(decimal.Decimal(repr(one)) * count for one, count in stated.items())
        nearest = float(total)
        below = decimal.Decimal(repr(nearest)) < total
    return math.nextafter(nearest, math.inf) if below else nearest


def _check_pure(ledger: Ledger, account: str, asked: Question) -> None:
    """Raise if the sum of all pure epsilons would exceed the account's budget."""
    budget = ledger.budget(account)
    if budget is None:
        return
    before = ledger.history(account)
    charges = [*before, (asked.event, 1)]
    total = pure_epsilon(compose_repeated(charges))
    # If the account also has charges that are not pure, the ledger's own check decides.
    if math.isfinite(total) and total > budget.epsilon * (1.0 + _ROUNDING):
        raise BudgetExhaustedError(
            f"account '{account}': the epsilons of all questions would add up to "
            f"{show_epsilon(pure_spent(charges))}, above the budget {budget.epsilon:.15g}; nothing "
            f"was sent or spent. {_remedy(budget.epsilon, before)}"
        )


def _remedy(budget: float, charges: Sequence[tuple[PrivacyEvent, int]]) -> str:
    spent = pure_epsilon(compose_repeated(charges)) if charges else 0.0
    left = remaining_pure_epsilon(budget, spent)
    if left < _LEAST_EPSILON:
        return "No budget is left; ask this account no more questions"
    return (
        f"To ask within the budget, lower epsilon to {show_remaining(left)} or less (for a "
        "location, whose epsilon is per kilometer: that between opposite corners of the map)"
    )


def _check_same_budget(ledger: Ledger, path: Path, account: str, epsilon: float) -> None:
    """Raise if the account has another budget.

    The ledger checks this, too, but its message is about clients.
    """
    present = ledger.budget(account)
    if present is not None and present.epsilon != epsilon:
        raise LedgerError(
            f"account '{account}' of {path} already has the budget {present.epsilon:.15g}, which "
            f"cannot be changed; leave out --budget {epsilon:.15g} to ask within it"
        )


def charge(path: Path, account: str, asked: Question, *, budget: float | None = None) -> str:
    """Charge a question to an account and return a sentence about it, for the result's notes.

    The ledger at `path` is created if there is none. `budget` becomes the account's pure epsilon
    budget, for good; None keeps the present one, if any. Raise BudgetExhaustedError if the budget
    does not allow the question; then nothing is charged, but a new budget stays. Raise LedgerError
    if the account has another budget, and ParameterError if its name is empty. The caller names the
    account: if it were the file's name, a renamed copy of the file would have a budget of its own.
    """
    if not account.strip():
        raise ParameterError(
            "the account's name is empty; name the people whose data the question is about"
        )
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
        limit, spent = (
            ledger.budget(account),
            pure_epsilon(compose_repeated(ledger.history(account))),
        )
    said = (
        f"charged to account '{account}' of {path} (charge {entered.id}); the ledger tells people "
        "apart by this name, not by the data"
    )
    if limit is None or not math.isfinite(spent):
        return said
    left = show_remaining(remaining_pure_epsilon(limit.epsilon, spent))
    return f"{said}; {left} of its budget {limit.epsilon:.15g} is left"
