"""The server's side of one announcement of a relay on a link: sites are asked, the relay gets it.

A run of the link passes one announcement to its sites, and what they answer to the relay, over the
relay's own HTTPS endpoint, as any device does. The reports are sealed to the relay, so this process
and the link's database hold none in plain. For a shuffle the sites are then asked to confirm. All
sites are given the digests of the whole list, so no request tells which message is whose.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from sottovoce.core import printable_text
from sottovoce.core.errors import ConfigError, DeploymentError, WireError
from sottovoce.deployment.machines.address import Address
from sottovoce.deployment.machines.federation import Federation
from sottovoce.deployment.machines.witness_store import WitnessStore
from sottovoce.deployment.operators.application import unpack_announcement
from sottovoce.deployment.operators.calls import RefusedError, RelayCalls
from sottovoce.deployment.operators.cards import RelayCard
from sottovoce.deployment.operators.routes import Route
from sottovoce.deployment.post import Reply, Transport, announce, check_length, with_witness
from sottovoce.flower.grid_post import GridPost, KeyedDirectory, count_no_traffic
from sottovoce.flower.node_messages import (
    ConfirmationRequest,
    RefusedBySiteError,
    ReportRequest,
    SiteConfirmation,
    SiteReport,
    read_answer,
)
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.relay_intake import SEALING_BYTES, largest_report
from sottovoce.protocol.secure.shuffle_messages import MOST_LEAVES

RELAY_KEY, ANN_KEY = "relay", "ann"  # of the run configuration
_CERTIFICATE_BYTES = 2**10
_TICK_SECONDS = 0.5
_AGAIN_SECONDS = 10.0  # before a site that failed, or a relay that is away, is asked again
_MOST_FAILURES = 3
_LOG = printable_text.logger()

Request = ReportRequest | ConfirmationRequest
SiteAnswer = SiteReport | SiteConfirmation


def serve_announcement(grid: Grid, config: Mapping[str, Any], federation: Federation) -> None:
    """Pass the announcement of the run configuration to the sites of a grid.

    Args:
        grid: The grid of the ServerApp.
        config: The run configuration with the relay's card and the announcement's digest.
        federation: The sites.
    """
    card, witness = RelayCard.read(Path(str(config[RELAY_KEY]))), WitnessStore(federation)
    directory = KeyedDirectory(grid, federation.sites_by_key())

    def open_post() -> Transport[Any]:
        return with_witness(GridPost(grid, directory, count_no_traffic), witness)

    # The relay runs on this machine; only its holder has the key of the pinned certificate.
    local = Address(host="localhost", port=card.address.port)
    with RelayCalls(local, card.certificate) as calls:
        passage = Passage(
            calls=calls,
            open_post=open_post,
            sites=federation.sites,
            ann=_digest(str(config[ANN_KEY])),
        )
        passage.run()


def _digest(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ConfigError(
            f"'{ANN_KEY}' of the run configuration is no digest; leave such runs to the relay"
        ) from None


class _SupersededError(Exception):
    """The collector has announced something else."""


@dataclass(slots=True, kw_only=True)
class Passage:
    """The passage of one announcement.

    Args:
        calls: Calls of the relay.
        open_post: Opens a transport to the sites; its replies are those to what it has sent.
        sites: Names of the sites.
        ann: Digest of the announcement.
        clock: Returns the time in seconds since 1970.
        pause: Sleeps for a number of seconds.
    """

    calls: RelayCalls
    open_post: Callable[[], Transport[Any]]
    sites: Sequence[str]
    ann: bytes
    clock: Callable[[], float] = time.time
    pause: Callable[[float], None] = time.sleep
    _refused: set[str] = field(init=False, default_factory=set)

    def run(self) -> None:
        """Pass the announcement on until all sites have answered, or it is over or superseded."""
        try:
            self._run()
        except _SupersededError:
            _LOG.info("the collector has announced something else")

    def _run(self) -> None:
        packed = self._patiently(Route.ANNOUNCEMENT, self.clock() + _AGAIN_SECONDS)
        if packed is None:
            raise DeploymentError("the relay does not answer; start it, and another run follows")
        asked, content = unpack_announcement(packed)
        found = Announcement.read(asked)
        if found.ann != self.ann:
            raise _SupersededError
        if found.is_confirmed and found.attempt.most_clients > MOST_LEAVES:
            _LOG.warning(
                "no site is asked: a list of up to %d messages cannot be confirmed over a link, "
                "only one of up to %d",
                found.attempt.most_clients,
                MOST_LEAVES,
            )
            return
        self._wait(found.opens)
        largest = SEALING_BYTES + largest_report(found) + _CERTIFICATE_BYTES
        self._gather(ReportRequest(announced=asked, content=content), found.closes, largest)
        if not found.is_confirmed:
            return
        self._wait(found.closes)
        leaves = self._patiently(Route.LEAVES, found.confirm_by)
        if leaves is not None:
            request = ConfirmationRequest(announced=asked, leaves=leaves)
            self._gather(request, found.confirm_by, _CERTIFICATE_BYTES)

    def _gather(self, request: Request, until: float, largest: int) -> None:
        """Ask all sites, and pass their answers on, until a time or until all are done."""
        announce(largest, seconds=max(0.0, until - self.clock()))
        gathering = Gathering(
            calls=self.calls,
            open_post=self.open_post,
            request=request,
            most_bytes=largest,
            missing=set(self.sites) - self._refused,
            clock=self.clock,
        )
        while gathering.missing and self.clock() < until:
            gathering.step(until)
            self._check_current()
            self.pause(_TICK_SECONDS)
        self._refused |= gathering.refused
        _LOG.info(
            "%d of %d sites answered, as far as the relay has taken it",
            gathering.answered,
            len(self.sites),
        )

    def _patiently(self, route: Route, until: float) -> bytes | None:
        """Return the relay's answer once there is one; None if there is none in time."""
        told = ""
        while self.clock() < until:
            try:
                return self.calls.ask(route)
            except DeploymentError as error:
                if not (isinstance(error, RefusedError) and error.is_too_early):
                    told = _tell_once(str(error), told)
            self._check_current()
            self.pause(_TICK_SECONDS)
        return None

    def _wait(self, until: float) -> None:
        while self.clock() < until:
            self._check_current()
            self.pause(min(_TICK_SECONDS, max(0.0, until - self.clock())))

    def _check_current(self) -> None:
        """Raise if the relay hands out another announcement; a relay that is away is waited for."""
        try:
            current = self.calls.ask(Route.ANNOUNCED)
        except DeploymentError:
            return
        if current != self.ann:
            raise _SupersededError


@dataclass(slots=True, kw_only=True)
class Gathering:
    """One answer of each site to one request, passed on to the relay.

    A site that was away, or has failed, is asked again: it answers with the same bytes.

    Args:
        calls: Calls of the relay.
        open_post: Opens a transport to the sites.
        request: What is asked.
        most_bytes: The most bytes of an answer.
        missing: The sites that may still answer.
        clock: Returns the time in seconds.
    """

    calls: RelayCalls
    open_post: Callable[[], Transport[Any]]
    request: Request
    most_bytes: int
    missing: set[str]
    clock: Callable[[], float]
    answered: int = 0
    refused: set[str] = field(default_factory=set)
    _posts: list[tuple[Transport[Any], set[str]]] = field(default_factory=list)
    _asked: set[str] = field(default_factory=set)
    _failures: dict[str, int] = field(default_factory=dict)
    _not_before: dict[str, float] = field(default_factory=dict)
    _waiting: dict[str, SiteAnswer] = field(default_factory=dict)
    _relay_again: float = 0.0
    _told: str = ""

    def step(self, until: float) -> None:
        """Ask sites that have come online, take replies, and pass answers on."""
        self._ask(until)
        for post, awaited in self._posts:
            for reply in post.collect():
                awaited.discard(reply.client)
                self._take(reply)
        self._posts = [(post, awaited) for post, awaited in self._posts if awaited & self.missing]
        if self.clock() >= self._relay_again:
            self._pass_on()

    def _ask(self, until: float) -> None:
        post, now = self.open_post(), self.clock()
        online = post.reachable(sorted(self.missing))
        self._asked &= online  # A site that was away may have missed the request; it gets another.
        new = {
            site
            for site in online - self._asked - self._waiting.keys()
            if now >= self._not_before.get(site, 0.0)
        }
        if new:
            post.send(dict.fromkeys(new, self.request), expires_seconds=max(1.0, until - now))
            self._asked |= new
            self._posts.append((post, new))

    def _take(self, reply: Reply) -> None:
        """Keep a site's answer for the relay, or note that it refuses or fails."""
        site = reply.client
        if site not in self.missing or site in self._waiting:
            return
        if reply.blobs is None:
            self._fail(site, reply.failure or "it gave no reason")
            return
        try:
            check_length(reply.blobs, self.most_bytes)
            answer = read_answer(reply.blobs)
            expected = SiteReport if isinstance(self.request, ReportRequest) else SiteConfirmation
            if not isinstance(answer, expected):
                raise WireError("it answered another request")
        except RefusedBySiteError as refused:
            _LOG.warning("'%s' refuses: %s", site, refused)
            self.missing.discard(site)
            self.refused.add(site)
        except WireError as error:
            self._fail(site, str(error))
        else:
            self._waiting[site] = answer

    def _fail(self, site: str, reason: str) -> None:
        _LOG.warning("'%s' did not answer: %s", site, reason)
        self._failures[site] = self._failures.get(site, 0) + 1
        self._not_before[site] = self.clock() + _AGAIN_SECONDS
        self._asked.discard(site)
        if self._failures[site] >= _MOST_FAILURES:
            self.missing.discard(site)

    def _pass_on(self) -> None:
        """Send answers to the relay; if it is away, they wait."""
        for site, answer in list(self._waiting.items()):
            try:
                self._send(answer)
                self.answered += 1
            except DeploymentError as error:
                if not isinstance(error, RefusedError) or error.is_busy or error.is_too_early:
                    self._told = _tell_once(str(error), self._told)
                    self._relay_again = self.clock() + _TICK_SECONDS
                    return
                _LOG.warning("the answer of '%s' does not count: %s", site, error)
            del self._waiting[site]
            self.missing.discard(site)

    def _send(self, answer: SiteAnswer) -> None:
        match answer:
            case SiteConfirmation():
                self.calls.ask(Route.CONFIRM, answer.confirmation)
            case SiteReport():
                try:
                    self.calls.ask(Route.REPORT, answer.sealed)
                except RefusedError as refused:
                    if not refused.is_unregistered:
                        raise
                    self.calls.ask(Route.REGISTER, answer.certificate)
                    self.calls.ask(Route.REPORT, answer.sealed)


def _tell_once(text: str, told: str) -> str:
    """Log a text unless it is what was told last; return it."""
    if text != told:
        _LOG.warning("%s", text)
    return text
