"""The message of one client, for tests that look at one at a time."""

from sottovoce.core.randomness import Randomness
from sottovoce.ledger.ledger import Ledger
from sottovoce.protocol.client import PrivatizationRequest, Refused, privatize
from sottovoce.protocol.plan import RoundPlan


def privatise_one(
    plan: RoundPlan, request: PrivatizationRequest, ledger: Ledger, randomness: Randomness
) -> bytes:
    """The message for one request; raises BudgetExhaustedError if the client is out of budget."""
    (outcome,) = privatize(plan, [request], ledger, randomness)
    if isinstance(outcome, Refused):
        raise outcome.error
    return outcome.message
