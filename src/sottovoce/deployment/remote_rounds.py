"""Training rounds with clients on other machines, whose replies are checked and waited for.

Every client that is asked has been charged before, whether or not it answers. A reply counts if it
opens under the plan: its round, parameters, length and codes, once per client. Every other reply is
dropped and counted as dropped. No round takes longer than its deadline.

The total bytes of a round are all bytes that passed the link while it lasted, including polls,
refusals and what other runs sent at the same time. If the link does not count, they are the bytes
of the messages.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sottovoce.core import printable_text
from sottovoce.core.errors import DeploymentError, WireError
from sottovoce.deployment.orders import Order, read_refusal, read_reply, read_rounds_charged
from sottovoce.deployment.post import OVERHEAD_BYTES, Reply, Transport, announce, check_length
from sottovoce.federated.rounds import ChargedRounds, ServedRound, Server
from sottovoce.federated.training import Cohort, CollectedRound, SiteReply, pack_shared
from sottovoce.mechanisms import registry
from sottovoce.protocol.broadcast import DownlinkFormat, Start
from sottovoce.protocol.message import open_packed
from sottovoce.protocol.plan import ClientPlan, RoundPlan
from sottovoce.runs.spec import RunSpec

_LOG = printable_text.logger()
#: Shortest and longest pause between polls; the pause grows with the time that a round takes.
POLL_SECONDS = (0.1, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitLimits:
    """How long a round is waited for, and how many replies are sufficient.

    Attributes:
        deadline_seconds: Seconds after which a round closes.
        enough: Fraction of the asked clients whose replies close the round earlier.
        minimum_replies: With fewer replies a round does not count.
        idle_rounds: Number of consecutive rounds with fewer than `minimum_replies` that ends the
            run.
    """

    deadline_seconds: float
    enough: float
    minimum_replies: int
    idle_rounds: int


@dataclass(slots=True)
class _Progress:
    """State between rounds: when the current one started, and rounds without enough replies."""

    round_started: float = 0.0
    idle_rounds: int = 0
    reasons: dict[str, str] = field(default_factory=dict)  # of idle rounds, by client


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRounds(ChargedRounds):
    """Rounds with clients that a transport reaches.

    Attributes:
        spec: The resolved spec as JSON data.
        classes: Number of classes, if the run predicts classes.
        frozen: Digest of the model's frozen parameters and buffers; empty if it has none.
        downlink: Format of the vectors that are sent to clients.
        post: The transport.
        patience: The deadline of a round and the required numbers of replies.
        clock: Returns seconds that never go back.
        pause: Sleeps for a number of seconds.
    """

    spec: dict[str, Any]
    classes: int | None
    frozen: str = ""
    downlink: DownlinkFormat
    post: Transport[Order]
    patience: WaitLimits
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep
    _progress: _Progress = field(default_factory=_Progress, init=False, repr=False, compare=False)

    def collect(self, number: int, cohort: Cohort, start: Start) -> CollectedRound:
        # One deadline covers waiting for sites and waiting for their replies.
        """Run round `number` with the clients of these indices, and return its sum.

        It ends with enough replies or at the deadline, and every client that is asked is charged.
        If fewer clients than `needed` are reachable, none is asked or charged. Raises
        DeploymentError after `idle_rounds` rounds in a row with fewer replies.
        """
        self._progress.round_started = self.clock()
        # Not super(): a dataclass with slots is a new class, and super() would refer to the old
        # one.
        collected = ChargedRounds.collect(self, number, cohort, start)
        if len(cohort):  # an empty cohort says nothing about the sites
            self._count_idle(number, collected.clients_received)
        return collected

    def _reachable(self, cohort: Sequence[int]) -> Sequence[int]:
        """Return the clients that can be asked.

        Waits for as many clients as a round needs for at most half of its time. If fewer come,
        none is asked: the round could not count, but would be charged. The other half is for
        replies, since a client that is asked too late is charged for a reply that does not count.
        """
        names, needed = [self.parts[i].client for i in cohort], self.needed
        while True:
            reached = self.post.reachable(names)
            half = self.patience.deadline_seconds / 2.0
            if len(reached) >= min(len(names), needed) or self.seconds_left() <= half:
                offline = [name for name in names if name not in reached]
                self._progress.reasons.update(dict.fromkeys(offline, "it is offline"))
                if len(reached) < needed:
                    return []
                return [i for i in cohort if self.parts[i].client in reached]
            self.pause(POLL_SECONDS[-1])

    @property
    def needed(self) -> int:
        """The fewest replies of a round that counts: the spec's, or more if the channel asks it."""
        return max(self.patience.minimum_replies, self.channel.fewest_messages)

    def seconds_left(self) -> float:
        """Return the seconds until the round's deadline."""
        return self.patience.deadline_seconds - (self.clock() - self._progress.round_started)

    def _serve(self, plan: RoundPlan, asked: Sequence[int], start: Start) -> ServedRound:
        if not asked:
            return ServedRound(servers=())
        servers = [self._open(plan, uplink) for uplink in range(self.algorithm.uplinks)]
        vectors = pack_shared(self.algorithm, start, self.downlink)
        parts = [self.parts[i] for i in asked]
        orders = {part.client: self._order(plan, part, len(asked), vectors) for part in parts}
        reply_bytes = len(servers) * plan.largest_message_bytes
        announce(reply_bytes, seconds=self.seconds_left())
        before = self.post.traffic()
        sent_bytes = self.post.send(orders, expires_seconds=self.seconds_left())
        inbox = _Inbox(plan, parts, servers, most_bytes=reply_bytes + OVERHEAD_BYTES)
        # Rounded first, so that 1/1.1 of 55 is 50 despite the rounding error of the product.
        wanted = max(1, math.ceil(round(len(asked) * self.patience.enough, 9)))
        while True:
            for reply in self.post.collect():
                inbox.take(reply)
            left = self.seconds_left()
            if inbox.settled or inbox.received >= wanted or left <= 0.0:
                break
            shortest, longest = POLL_SECONDS
            waited = self.patience.deadline_seconds - left
            self.pause(min(longest, max(shortest, waited / 20.0), left))
        inbox.close()
        self._progress.reasons.update(inbox.failed)
        up, down = bytes_between(before, self.post.traffic()) or (inbox.total_bytes, sent_bytes)
        return ServedRound(
            servers=servers,
            enough=inbox.received >= self.needed,
            total_bytes_up=up,
            total_bytes_down=down,
            replies_dropped=inbox.dropped,
            unanswered=dict(inbox.failed),
            sites=inbox.sites(),
        )

    def _order(
        self,
        plan: RoundPlan,
        part: ClientPlan,
        cohort: int,
        vectors: Sequence[bytes],
        *,
        attempt: int = 0,
    ) -> Order:
        return Order(
            spec=self.spec,
            run=plan.run,
            round=plan.round,
            client=part.client,
            cohort=cohort,
            mechanism={
                "kind": registry.kind_of(part.mechanism),
                **registry.parameters_of(part.mechanism),
            },
            keep_from=plan.round,  # every earlier round is in a checkpoint
            classes=self.classes,
            frozen=self.frozen,
            attempt=attempt,
            vectors=tuple(vectors),
        )

    def _count_idle(self, number: int, received: int) -> None:
        """Raise DeploymentError after too many rounds without replies, with the reasons."""
        if received >= self.needed:
            self._progress.idle_rounds = 0
            self._progress.reasons.clear()
            return
        self._progress.idle_rounds += 1
        if self._progress.idle_rounds >= self.patience.idle_rounds:
            raise DeploymentError(
                f"{self._progress.idle_rounds} rounds in a row, up to round {number}, brought "
                f"fewer than {self.needed} replies; "
                f"{printable_text.format_reasons(self._progress.reasons)}if sites refused, lower "
                "privacy.epsilon or ask the sites to allow more; otherwise check the sites' logs. "
                "Then resume the run"
            )


def bytes_between(
    before: tuple[int, int] | None, after: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Return the bytes that passed between two counts; None if not counted or started over."""
    if before is None or after is None or after[0] < before[0] or after[1] < before[1]:
        return None
    return after[0] - before[0], after[1] - before[1]


class _Inbox:
    """The replies of a round, checked when they come and added in the order of the plan.

    So the sum does not depend on the order of arrival, and memory holds only what came out of
    order.
    """

    def __init__(
        self,
        plan: RoundPlan,
        parts: Sequence[ClientPlan],
        servers: Sequence[Server],
        *,
        most_bytes: int,
    ) -> None:
        self._plan = plan
        self._most_bytes = most_bytes
        self._parts = {part.client: part for part in parts}
        self._servers = servers
        self._order = [part.client for part in parts]
        self._next = 0
        self._waiting: dict[str, list[bytes]] = {}
        self._received: set[str] = set()
        self._replies: dict[str, SiteReply] = {}
        self.failed: dict[str, str] = {}  # why a client's reply does not count, by client
        self.dropped = 0
        self.total_bytes = 0

    @property
    def received(self) -> int:
        """Number of replies that count."""
        return len(self._received)

    @property
    def settled(self) -> bool:
        """Whether every client has answered or failed."""
        return len(self._received) + len(self.failed) == len(self._order)

    def take(self, reply: Reply) -> None:
        """Check a reply and keep its messages, if it is valid and has any.

        A refusal or failure is recorded in `failed` with its reason. An invalid reply, a second
        reply of a client and a reply of a client that was not asked are dropped: they are counted
        in `dropped` and logged, and raise no error. A client whose first reply is invalid has
        failed.
        """
        self.total_bytes += reply.total_bytes
        client = reply.client
        try:
            if client not in self._parts:
                raise WireError(f"client '{client}' was not asked")
            if client in self._received or client in self.failed:
                raise WireError(f"client '{client}' has answered already")
            blobs = reply.blobs
            check_length(blobs, self._most_bytes)
            charged = None if blobs is None else read_rounds_charged(blobs)
            refusal = reply.failure or "no reason given" if blobs is None else read_refusal(blobs)
            if blobs is None or refusal is not None:
                # The site refused or failed, so there is no message to drop.
                self.failed[client] = refusal or "no reason given"
                self._replies[client] = SiteReply(outcome="refused", rounds_charged=charged)
                _LOG.warning("round %d: no message of '%s': %s", self._plan.round, client, refusal)
                return
            messages = read_reply(blobs, uplinks=len(self._servers))
            for uplink, message in enumerate(messages):
                open_packed(message, self._plan.envelope(self._parts[client], uplink))
        except WireError as error:
            self.dropped += 1
            if client in self._parts and client not in self._received:
                # The first reply of a client is the one that counts.
                self.failed.setdefault(client, str(error))
                self._replies.setdefault(client, SiteReply(outcome="dropped"))
            _LOG.warning("round %d: a reply is dropped: %s", self._plan.round, error)
            return
        self._received.add(client)
        self._replies[client] = SiteReply(outcome="counted", rounds_charged=charged)
        self._waiting[client] = messages
        self._add_in_order()

    def sites(self) -> dict[str, SiteReply]:
        """Return the outcome of every client that was asked, in the order of the plan."""
        silent = SiteReply(outcome="silent")
        return {client: self._replies.get(client, silent) for client in self._order}

    def close(self) -> None:
        """Stop to wait, and add what came out of order."""
        for client in self._order:
            if client not in self._received:
                self.failed.setdefault(client, "it did not answer in time")
        self._add_in_order()

    def _add_in_order(self) -> None:
        while self._next < len(self._order):
            client = self._order[self._next]
            messages = self._waiting.pop(client, None)
            if messages is not None:
                for server, message in zip(self._servers, messages, strict=True):
                    server.receive(client, message)
            elif client not in self.failed:
                return
            self._next += 1


def spec_for_sites(spec: RunSpec) -> dict[str, Any]:
    """Return the spec that sites receive, without the path of the server's test data."""
    plain = spec.plain()
    kind, colon, path = spec.data.dataset.partition(":")
    if colon and spec.data.sites:  # Such sites train on their own records and need no path.
        plain["data"]["dataset"] = f"{kind}:{Path(path).name}"
    return plain
