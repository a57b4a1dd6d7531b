"""One attempt at a secure sum by pairwise masks, as its server leads it over a transport.

A site that does not answer a step in time, or answers wrongly, has dropped out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sottovoce.core import printable_text
from sottovoce.core.errors import WireError
from sottovoce.deployment.masked_orders import Action, Step, read_step_reply
from sottovoce.deployment.orders import read_refusal
from sottovoce.deployment.post import (
    OVERHEAD_BYTES,
    OutgoingRequest,
    Reply,
    Transport,
    announce,
    check_length,
)
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.pairwise_server import PairwiseServer
from sottovoce.protocol.secure.roster import Roster

_LOG = printable_text.logger()
_POLL_SECONDS = 0.1
# Shares of what is left of an attempt's time that a step may take. Training is in 'contribute'.
_SHARE = {"open": 0.3, "share": 0.2, "contribute": 0.7, "sign": 0.5, "answer": 1.0}
_BYTES_OF_A_PEER = 512  # of keys, shares, signatures and answers, for each site of the attempt
_Take = Callable[[str, bytes], object]


@dataclass(slots=True, kw_only=True)
class Conversation:
    """One attempt: its steps in order, and what became of each site.

    Attributes:
        post: The transport, which carries steps as well as the requests that open an attempt.
        roster: The operator's copy of the sites' roster.
        attempt: What all parties agree on.
        colluders: The most sites that may work together with the server.
        seconds_left: Returns the seconds until the end of the attempt.
        pause: Sleeps for a number of seconds.
        step: The kind of step that sites are sent.
        failed: Reasons of the sites that have dropped out.
        dropped: Number of replies that were not taken.
        bytes_up: Bytes of the replies.
        bytes_down: Bytes of the requests.
    """

    post: Transport[Any]
    roster: Roster
    attempt: Attempt
    colluders: int
    seconds_left: Callable[[], float]
    pause: Callable[[float], None]
    step: type[Step] = Step
    failed: dict[str, str] = field(default_factory=dict)
    dropped: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    server: PairwiseServer = field(init=False)

    def __post_init__(self) -> None:
        self.server = PairwiseServer(
            roster=self.roster, attempt=self.attempt, colluders=self.colluders
        )

    def run(
        self,
        requests: Mapping[str, OutgoingRequest],
        *,
        check_keys: _Take = lambda _site, _keys: None,
        before_contributions: Callable[[], None] = lambda: None,
    ) -> PairwiseServer:
        """Run the attempt, and return the server from which the sum can be taken.

        Args:
            requests: The request to each site that opens the attempt.
            check_keys: Gets a site's name and its first message; raises WireError to refuse it.
            before_contributions: Called before any site is asked for its masked vectors.

        Raises:
            AbandonedError: Too few sites are left; nothing is unmasked.
        """
        server = self.server
        peers = _BYTES_OF_A_PEER * (len(requests) + 1)
        vectors = self.attempt.uplinks * (self.attempt.dimension * self.attempt.bits // 8 + 64)

        def take_keys(site: str, message: bytes) -> None:
            check_keys(site, message)
            server.receive_keys(site, message)

        self._step("open", requests, take_keys, peers)
        listed = server.list_message()
        self._ask("share", server.listed, lambda _: listed, server.receive_shares, peers)
        members = server.members()
        before_contributions()
        self._ask("contribute", members, server.box, server.receive_input, vectors)
        survivors = server.survivors()
        counted = server.survivor_names
        self._ask("sign", counted, lambda _: survivors, server.receive_signature, peers)
        quorum = server.quorum()
        self._ask("answer", counted, lambda _: quorum, server.receive_answer, peers)
        return server

    def _ask(
        self,
        action: Action,
        sites: Sequence[str],
        content: Callable[[str], bytes],
        take: _Take,
        most_bytes: int,
    ) -> None:
        steps = {
            site: self.step(
                run=self.attempt.run,
                client=site,
                cohort=self.attempt.most_clients,
                round=self.attempt.round,
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
        take: _Take,
        most_bytes: int,
    ) -> None:
        """Send a step's requests, and take replies until all are there or its time is over."""
        post, left = self.post, self.seconds_left()
        seconds = left * _SHARE[name]
        announce(most_bytes, seconds=seconds)
        self.bytes_down += post.send(requests, expires_seconds=seconds)
        waiting = set(requests)
        while True:
            for reply in post.collect():
                self._take(reply, waiting, take, most_bytes)
            over = left - self.seconds_left() >= seconds
            if not waiting or over:
                break
            self.pause(_POLL_SECONDS)
        _LOG.info(
            "round %d, step '%s': %d of %d sites answered after %.1f s",
            self.attempt.round,
            name,
            len(requests) - len(waiting),
            len(requests),
            left - self.seconds_left(),
        )
        for site in waiting:
            self.failed.setdefault(site, f"it did not answer the step '{name}' in time")

    def _take(
        self,
        reply: Reply,
        waiting: set[str],
        take: _Take,
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
            _LOG.warning("round %d: a reply is dropped: %s", self.attempt.round, error)
