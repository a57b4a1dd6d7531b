"""Training rounds whose server learns only sums: the pairwise protocol over a transport.

Each round is one attempt. Every site that takes part charges its own ledger before it draws its
codes, and the server charges every site that it asks, attempt by attempt. A site that does not
answer a step has dropped out. With too few sites left the attempt is abandoned, nothing is
unmasked, and the model stays as it is.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from sottovoce.core import printable_text
from sottovoce.core.errors import AbandonedError, BudgetExhaustedError
from sottovoce.deployment.masked_conversation import Conversation
from sottovoce.deployment.masked_orders import attempt_of
from sottovoce.deployment.masked_site import agreed
from sottovoce.deployment.orders import Order
from sottovoce.deployment.remote_rounds import RemoteRounds, bytes_between
from sottovoce.federated.rounds import ServedRound
from sottovoce.federated.training import SiteReply, pack_shared
from sottovoce.ledger.journal import Place
from sottovoce.ledger.ledger import Ledger
from sottovoce.protocol.broadcast import Start
from sottovoce.protocol.charging import Refused
from sottovoce.protocol.plan import RoundPlan
from sottovoce.protocol.secure.contribution import masked_charges
from sottovoce.protocol.secure.pairwise_result import SummedRound
from sottovoce.protocol.secure.roster import Roster
from sottovoce.protocol.server import SummedUplink

_LOG = printable_text.logger()
BEGUN, DONE = "begun", "done"


def charge_attempt(
    plan: RoundPlan, ledger: Ledger, federation: bytes, uplinks: int
) -> list[Refused]:
    """Begin a round's next attempt in a server's journal, and charge all its clients for it.

    Args:
        plan: The plan of the round.
        ledger: The server's ledger.
        federation: The federation's id.
        uplinks: How many vectors each client sends.

    Returns:
        The clients whose budget does not cover it.
    """
    if not plan.clients:
        return []
    journal = ledger.journal()
    number = journal.newest_attempt(federation, plan.run, plan.round) + 1
    refused = []
    with ledger.transaction():
        journal.begin(attempt_place(plan, federation, number), BEGUN)
        for part in plan.clients:
            pending = masked_charges(plan, part, uplinks, number)
            refused += [
                Refused(part=part, uplink=due.release.uplink, error=outcome)
                for due, outcome in zip(pending, ledger.charge_all(pending), strict=True)
                if isinstance(outcome, BudgetExhaustedError)
            ]
    return refused


def attempt_place(plan: RoundPlan, federation: bytes, number: int) -> Place:
    """Return an attempt at a round, as journals name it."""
    return Place(federation=federation, run=plan.run, round=plan.round, attempt=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedRounds(RemoteRounds):
    """Rounds with clients that a transport reaches, whose messages only their sum reveals.

    Attributes:
        roster: The operator's copy of the sites' roster, for its own checks.
    """

    roster: Roster

    def _charge(self, plan: RoundPlan) -> Sequence[Refused]:
        """Begin the round's next attempt in the journal, and charge all its clients for it."""
        return charge_attempt(plan, self.ledger, self.roster.federation, self.algorithm.uplinks)

    def _serve(self, plan: RoundPlan, asked: Sequence[int], start: Start) -> ServedRound:
        if not asked:
            return ServedRound(servers=())
        journal = self.ledger.journal()
        number = journal.newest_attempt(self.roster.federation, plan.run, plan.round)
        vectors = pack_shared(self.algorithm, start, self.downlink)
        orders = {
            self.parts[i].client: self._order(
                plan, self.parts[i], len(asked), vectors, attempt=number
            )
            for i in asked
        }
        first = next(iter(orders.values()))
        attempt = attempt_of(
            plan,
            plan.clients[0].mechanism,
            roster=self.roster,
            number=number,
            cohort=len(asked),
            uplinks=self.algorithm.uplinks,
            order=agreed(first),
            vectors=vectors,
        )
        before = self.post.traffic()
        talk = Conversation(
            post=self.post,
            roster=self.roster,
            attempt=attempt,
            colluders=plan.channel.most_colluders,
            seconds_left=self.seconds_left,
            pause=self.pause,
        )
        summed = _sum_of(talk, plan, orders)
        counted = summed.survivors if summed else ()
        found = _uplinks(plan, talk, summed) if summed else []
        journal.advance(attempt_place(plan, self.roster.federation, number), BEGUN, DONE)
        self._progress.reasons.update(talk.failed)
        up, down = bytes_between(before, self.post.traffic()) or (talk.bytes_up, talk.bytes_down)
        return ServedRound(
            servers=found,
            enough=bool(found) and found[0].received >= self.needed,
            total_bytes_up=up,
            total_bytes_down=down,
            replies_dropped=talk.dropped,
            unanswered=dict(talk.failed),
            sites={site: _outcome(site, counted, talk.failed) for site in orders},
        )


def _sum_of(talk: Conversation, plan: RoundPlan, orders: Mapping[str, Order]) -> SummedRound | None:
    """Return the sum of a round; None if the attempt is abandoned."""
    mechanism = plan.clients[0].mechanism
    try:
        return talk.run(orders).result(
            logit_norm=getattr(mechanism, "logit_norm", None),
            logit_bound=getattr(mechanism, "logit_bound", None),
        )
    except AbandonedError as error:
        _LOG.warning("round %d is abandoned: %s", plan.round, error)
        return None


def _uplinks(plan: RoundPlan, talk: Conversation, summed: SummedRound) -> list[SummedUplink]:
    attempt, received = talk.attempt, len(summed.survivors)
    return [
        SummedUplink(
            plan=plan,
            sums=sums,
            received=received,
            payload_bytes=received * (attempt.dimension * attempt.bits + 7) // 8,
            total_bytes=talk.bytes_up // attempt.uplinks,
        )
        for sums in summed.vectors
    ]


def _outcome(site: str, counted: Container[str], failed: Container[str]) -> SiteReply:
    if site in counted:
        return SiteReply(outcome="counted")
    return SiteReply(outcome="refused" if site in failed else "silent")
