"""Training rounds whose server learns only sums: the pairwise protocol over a transport.

Each round is one attempt. Every site that takes part charges its own ledger before it draws its
codes, and the server charges every site that it asks, attempt by attempt. A site that does not
answer a step has dropped out. With too few sites left the attempt is abandoned, nothing is
unmasked, and the model stays as it is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from sottovoce.core import printable_text
from sottovoce.core.errors import AbandonedError, BudgetExhaustedError, WireError
from sottovoce.deployment.masked_orders import Action, Step, attempt_of, read_step_reply
from sottovoce.deployment.masked_site import agreed
from sottovoce.deployment.orders import Order, read_refusal
from sottovoce.deployment.post import (
    OVERHEAD_BYTES,
    OutgoingRequest,
    Reply,
    Transport,
    announce,
    check_length,
)
from sottovoce.deployment.remote_rounds import POLL_SECONDS, RemoteRounds, bytes_between
from sottovoce.federated.rounds import ServedRound
from sottovoce.federated.training import SiteReply
from sottovoce.ledger.journal import Place
from sottovoce.ledger.ledger import Ledger
from sottovoce.protocol.broadcast import Start, pack_start
from sottovoce.protocol.charging import Refused
from sottovoce.protocol.plan import RoundPlan
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.contribution import masked_charges
from sottovoce.protocol.secure.pairwise_server import PairwiseServer
from sottovoce.protocol.secure.roster import Roster
from sottovoce.protocol.server import SummedUplink

_LOG = printable_text.logger()
BEGUN, DONE = "begun", "done"
# Shares of what is left of a round's time that a step may take. Training is in 'contribute'.
_SHARE = {"open": 0.3, "share": 0.2, "contribute": 0.7, "sign": 0.5, "answer": 1.0}
_BYTES_OF_A_PEER = 512  # of keys, shares, signatures and answers, for each site of the attempt


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
        vectors = tuple(pack_start(start, self.algorithm.shared_state, self.downlink))
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
        talk = _Conversation(rounds=self, plan=plan, attempt=attempt)
        found = talk.run(orders)
        journal.advance(attempt_place(plan, self.roster.federation, number), BEGUN, DONE)
        self._progress.reasons.update(talk.failed)
        up, down = bytes_between(before, self.post.traffic()) or (talk.bytes_up, talk.bytes_down)
        return ServedRound(
            servers=found,
            enough=bool(found) and found[0].received >= self.patience.minimum_replies,
            total_bytes_up=up,
            total_bytes_down=down,
            replies_dropped=talk.dropped,
            unanswered=dict(talk.failed),
            sites=talk.sites(list(orders)),
        )


@dataclass(slots=True, kw_only=True)
class _Conversation:
    """One attempt: its steps in order, and what became of each site."""

    rounds: MaskedRounds
    plan: RoundPlan
    attempt: Attempt
    failed: dict[str, str] = field(default_factory=dict)
    dropped: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    counted: tuple[str, ...] = ()

    def run(self, orders: Mapping[str, Order]) -> list[SummedUplink]:
        """Return the sum of each uplink; an empty list if the attempt is abandoned."""
        channel = self.plan.channel
        server = PairwiseServer(
            roster=self.rounds.roster, attempt=self.attempt, colluders=channel.most_colluders
        )
        peers = _BYTES_OF_A_PEER * (len(orders) + 1)
        vectors = self.attempt.uplinks * (self.attempt.dimension * self.attempt.bits // 8 + 64)
        try:
            self._step("open", orders, server.receive_keys, peers)
            listed = server.list_message()
            self._ask("share", server.listed, lambda _: listed, server.receive_shares, peers)
            self._ask("contribute", server.members(), server.box, server.receive_input, vectors)
            survivors = server.survivors()
            self.counted = server.survivor_names
            self._ask("sign", self.counted, lambda _: survivors, server.receive_signature, peers)
            quorum = server.quorum()
            self._ask("answer", self.counted, lambda _: quorum, server.receive_answer, peers)
            mechanism = self.plan.clients[0].mechanism
            found = server.result(
                logit_norm=getattr(mechanism, "logit_norm", None),
                logit_bound=getattr(mechanism, "logit_bound", None),
            )
        except AbandonedError as error:
            self.counted = ()
            _LOG.warning("round %d is abandoned: %s", self.plan.round, error)
            return []
        self.counted = found.survivors
        payload = len(found.survivors) * (self.attempt.dimension * self.attempt.bits + 7) // 8
        return [
            SummedUplink(
                plan=self.plan,
                sums=sums,
                received=len(found.survivors),
                payload_bytes=payload,
                total_bytes=self.bytes_up // self.attempt.uplinks,
            )
            for sums in found.vectors
        ]

    def _ask(
        self,
        action: Action,
        sites: Sequence[str],
        content: Callable[[str], bytes],
        take: Callable[[str, bytes], object],
        most_bytes: int,
    ) -> None:
        steps = {
            site: Step(
                run=self.plan.run,
                client=site,
                cohort=self.attempt.most_clients,
                round=self.plan.round,
                attempt=self.attempt.attempt,
                action=action,
                content=content(site),
            )
            for site in sites
        }
        self._step(action, steps, take, most_bytes)

    def _step(
        self,
        name: str,
        requests: Mapping[str, OutgoingRequest],
        take: Callable[[str, bytes], object],
        most_bytes: int,
    ) -> None:
        """Send a step's requests, and take replies until all are there or its time is over."""
        # One transport carries every kind of request.
        post = cast("Transport[OutgoingRequest]", self.rounds.post)
        left = self.rounds.seconds_left()
        seconds = left * _SHARE[name]
        announce(most_bytes, seconds=seconds)
        self.bytes_down += post.send(requests, expires_seconds=seconds)
        waiting = set(requests)
        while True:
            for reply in post.collect():
                self._take(reply, waiting, take, most_bytes)
            over = left - self.rounds.seconds_left() >= seconds
            if not waiting or over:
                break
            self.rounds.pause(POLL_SECONDS[0])
        _LOG.info(
            "round %d, step '%s': %d of %d sites answered after %.1f s",
            self.plan.round,
            name,
            len(requests) - len(waiting),
            len(requests),
            left - self.rounds.seconds_left(),
        )
        for site in waiting:
            self.failed.setdefault(site, f"it did not answer the step '{name}' in time")

    def _take(
        self,
        reply: Reply,
        waiting: set[str],
        take: Callable[[str, bytes], object],
        most_bytes: int,
    ) -> None:
        self.bytes_up += reply.total_bytes
        if reply.client not in waiting:
            self.dropped += 1
            return
        waiting.discard(reply.client)
        try:
            check_length(reply.blobs, most_bytes + OVERHEAD_BYTES)
            refusal = reply.failure if reply.blobs is None else read_refusal(reply.blobs)
            if reply.blobs is None or refusal is not None:
                self.failed[reply.client] = refusal or "no reason given"
                return
            take(reply.client, read_step_reply(reply.blobs))
        except WireError as error:
            self.dropped += 1
            self.failed[reply.client] = str(error)
            _LOG.warning("round %d: a reply is dropped: %s", self.plan.round, error)

    def sites(self, asked: Sequence[str]) -> dict[str, SiteReply]:
        """Return what became of each site that was asked."""
        return {
            site: SiteReply(
                outcome="counted"
                if site in self.counted
                else "refused"
                if site in self.failed
                else "silent"
            )
            for site in asked
        }
