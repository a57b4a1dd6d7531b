"""The message of one client, for tests that look at one at a time."""

from sottovoce.core.randomness import Randomness
from sottovoce.ledger.ledger import Ledger
from sottovoce.protocol.client import Refused, Request, privatise
from sottovoce.protocol.plan import RoundPlan


def privatise_one(
    plan: RoundPlan, request: Request, ledger: Ledger, randomness: Randomness
) -> bytes:
    """The message for one request; raises BudgetExhaustedError if the client is out of budget."""
    (outcome,) = privatise(plan, [request], ledger, randomness)
    if isinstance(outcome, Refused):
        raise outcome.error
    return outcome.message
