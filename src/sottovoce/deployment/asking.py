"""One question to the sites of a federation: charge, ask, add the tallies, estimate.

The server charges its own ledger for every site before it asks, whether or not the site answers. A
reply counts if it is a tally of this question, is the first of its site, and comes before the
deadline. Every other reply is dropped and counted as dropped. The folder of a question:

question.json    what was asked, of which sites, about what
ledger.sqlite    what each site's people were charged with, by the server's account
estimate.json    the estimate, once there is one
"""

import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sottovoce.analytics.estimates  # noqa: F401  (registers every kind of question)
from sottovoce.analytics.question import Question, to_dict
from sottovoce.analytics.result import Estimate
from sottovoce.analytics.tallies import Tally, add_tallies
from sottovoce.core import files, printable_text
from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import DeploymentError, WireError
from sottovoce.deployment.machines.submitted_runs import ESTIMATE_NAME
from sottovoce.deployment.masked_asking import SumTerms, sum_answers
from sottovoce.deployment.masked_questions import check_countable
from sottovoce.deployment.orders import (
    MOST_PEOPLE,
    QuestionRequest,
    largest_tally_bytes,
    read_refusal,
    read_tally,
)
from sottovoce.deployment.post import OVERHEAD_BYTES, Reply, Transport, announce, check_length
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.ledger.records import PendingCharge, Release

_LOG = printable_text.logger()
_POLL_SECONDS = 0.2
QUESTION_NAME = "question.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FederatedQuestion:
    """A question to sites.

    Attributes:
        question: The question.
        about: Name of what it is about, which each site's own file maps to a column.
        run: Name of the question in every ledger.
        sites: Names of the sites.
        deadline_seconds: Seconds to wait for replies.
        minimum_sites: With fewer replies there is no estimate.
        confidence: Confidence level of the interval.
        secure_sum: The terms under which sites reveal only the sum of their tallies; None if each
            sends its own.
    """

    question: Question
    about: str
    run: str
    sites: Sequence[str]
    deadline_seconds: float = 600.0
    minimum_sites: int = 1
    confidence: float = 0.95
    secure_sum: SumTerms | None = None


@dataclass(slots=True)
class _Inbox:
    """Tallies in the order of arrival; the first reply of each site is the one that counts."""

    question: Question
    asked: frozenset[str]
    most_bytes: int
    tallies: dict[str, Tally] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    dropped: int = 0
    total_bytes: int = 0

    @property
    def settled(self) -> bool:
        """Whether every site has answered or failed."""
        return len(self.tallies) + len(self.failed) == len(self.asked)

    def take(self, reply: Reply) -> None:
        self.total_bytes += reply.total_bytes
        site = reply.client
        if site not in self.asked or site in self.tallies or site in self.failed:
            self.dropped += 1
            _LOG.warning("a reply of '%s' is dropped: it was not asked, or answered before", site)
            return
        if reply.blobs is None:
            self.failed[site] = reply.failure or "no reason given"
            return
        try:
            check_length(reply.blobs, self.most_bytes)
            refusal = read_refusal(reply.blobs)
            if refusal is not None:
                self.failed[site] = refusal
                return
            self.tallies[site] = read_tally(reply.blobs, self.question)
        except WireError as error:
            self.dropped += 1
            self.failed[site] = str(error)
            _LOG.warning("the reply of '%s' is dropped: %s", site, error)


def ask(
    asking: FederatedQuestion,
    post: Transport[QuestionRequest],
    folder: Path,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Estimate:
    """Ask every reachable site once and estimate from the replies that come in time.

    Before sites are asked, each is charged in the server's own ledger in `folder`, whether or not
    it answers. In a secure sum this is before they are asked for their masked counts; then the sum
    over enough sites is all that is revealed. `folder` also gets question.json and, with the
    estimate, estimate.json. Waiting ends early once every site has answered or failed. Raises
    DeploymentError if fewer than `minimum_sites` can be reached (nothing is charged or written
    then) or have answered.
    """
    reached = sorted(post.reachable(asking.sites))
    if len(reached) < asking.minimum_sites:
        raise DeploymentError(
            f"{len(reached)} of {len(asking.sites)} sites are online, but the question needs "
            f"{asking.minimum_sites}; no site was asked or charged. Start the nodes of the sites"
        )
    if asking.secure_sum is not None:
        left = _time_left(asking.deadline_seconds, clock)
        return _ask_sum(asking, asking.secure_sum, reached, post, folder, left, pause)
    files.write_json(folder / QUESTION_NAME, _written(asking, reached), mode=files.PRIVATE)
    _charge(asking, reached, folder / LEDGER_NAME)
    requests = {
        site: _inquiry(asking, site, number, len(reached)) for number, site in enumerate(reached)
    }
    reply_bytes = largest_tally_bytes(asking.question)
    inbox = _Inbox(
        question=asking.question,
        asked=frozenset(reached),
        most_bytes=reply_bytes + OVERHEAD_BYTES,
    )
    announce(reply_bytes, seconds=asking.deadline_seconds)
    ends = clock() + asking.deadline_seconds
    post.send(requests, expires_seconds=asking.deadline_seconds)
    while True:
        for reply in post.collect():
            inbox.take(reply)
        if inbox.settled or clock() >= ends:
            break
        pause(_POLL_SECONDS)
    for site in reached:
        if site not in inbox.tallies:
            inbox.failed.setdefault(site, "it did not answer in time")
    return _estimated(asking, inbox, folder)


def _time_left(deadline_seconds: float, clock: Callable[[], float]) -> Callable[[], float]:
    ends = clock() + deadline_seconds
    return lambda: ends - clock()


def _ask_sum(
    asking: FederatedQuestion,
    terms: SumTerms,
    reached: Sequence[str],
    post: Transport[QuestionRequest],
    folder: Path,
    seconds_left: Callable[[], float],
    pause: Callable[[float], None],
) -> Estimate:
    """Ask for masked tallies, and estimate from their sum."""
    check_countable(asking.question)
    sites = [site for site in reached if site in terms.roster.keys]
    honest = terms.honest_sites(len(sites))
    requests = {
        site: dataclasses.replace(
            _inquiry(asking, site, 0, len(sites)),
            attempt=1,
            minimum_clients=honest,
            colluders=terms.colluders,
        )
        for site in sites
    }
    files.write_json(folder / QUESTION_NAME, _written(asking, sites), mode=files.PRIVATE)
    with Ledger(folder / LEDGER_NAME, create=True) as ledger:
        summed = sum_answers(
            asking.question, terms, requests, post, ledger, seconds_left=seconds_left, pause=pause
        )
    _check_answers(asking, len(sites), len(summed.people), summed.failed)
    found = asking.question.estimate(summed.tally, asking.confidence)
    found = found.noted(
        *_site_notes(len(sites), len(summed.people), summed.failed),
        "only the sum over all sites was revealed; epsilon is that of one code if it were seen, "
        "and the central epsilon is that of the sum",
    )
    local = found.details.get("epsilon_across_the_map", found.epsilon)
    written = {
        "secure_sum": {
            "central_epsilon": summed.central_epsilon,
            "delta": summed.delta,
            "local_epsilon": local,
            "minimum_clients": honest,
            "colluders": terms.colluders,
            "charged_people": summed.charged_people,
            "promise": summed.promise,
        },
        "sites": {
            "answered": summed.people,
            "failed": dict(sorted(summed.failed.items())),
            "replies_dropped": summed.replies_dropped,
            "total_bytes_up": summed.bytes_up,
        },
    }
    files.write_json(folder / ESTIMATE_NAME, {**found.to_dict(), **written})
    return found


def run_name(question: Question, about: str, number: str) -> str:
    """Return a question's name in ledgers: question-DIGEST-NUMBER.

    DIGEST covers the question and what it is about; `number` must be new each time it is asked.
    """
    digest = hashlib.sha256(f"{to_dict(question)}{about}".encode()).hexdigest()
    return f"question-{digest[:12]}-{number}"


def _inquiry(asking: FederatedQuestion, site: str, number: int, cohort: int) -> QuestionRequest:
    return QuestionRequest(
        run=asking.run,
        client=site,
        cohort=cohort,
        first=number * MOST_PEOPLE,
        about=asking.about,
        question=to_dict(asking.question),
    )


def _charge(asking: FederatedQuestion, sites: Sequence[str], path: Path) -> None:
    """Charge the server's own ledger for all sites before they are asked."""
    with Ledger(path, create=True) as ledger:
        ledger.charge_all(
            [
                PendingCharge(
                    release=Release(
                        unit=Unit.SAMPLE,
                        run=asking.run,
                        client=site,
                        round=QuestionRequest.round,
                        uplink=0,
                    ),
                    attempt=0,
                    event=asking.question.event,
                )
                for site in sites
            ]
        )


def _written(asking: FederatedQuestion, reached: Sequence[str]) -> dict[str, Any]:
    return {
        "run": asking.run,
        "about": asking.about,
        "question": to_dict(asking.question),
        "asked": list(reached),
        "absent": sorted(set(asking.sites) - set(reached)),
    }


def _estimated(asking: FederatedQuestion, inbox: _Inbox, folder: Path) -> Estimate:
    _check_answers(asking, len(inbox.asked), len(inbox.tallies), inbox.failed)
    total: Tally | None = None
    for site in sorted(inbox.tallies):  # by name: a sum must not depend on the order of arrival
        tally = inbox.tallies[site]
        total = tally if total is None else add_tallies(total, tally)
    assert total is not None
    found = asking.question.estimate(total, asking.confidence)
    found = found.noted(*_site_notes(len(inbox.asked), len(inbox.tallies), inbox.failed))
    sites = {
        "sites": {
            "answered": {site: inbox.tallies[site].people for site in sorted(inbox.tallies)},
            "failed": dict(sorted(inbox.failed.items())),
            "replies_dropped": inbox.dropped,
            "total_bytes_up": inbox.total_bytes,
        }
    }
    files.write_json(folder / ESTIMATE_NAME, {**found.to_dict(), **sites})
    return found


def _check_answers(
    asking: FederatedQuestion, asked: int, answered: int, failed: Mapping[str, str]
) -> None:
    """Raise DeploymentError if fewer sites have answered than the question needs."""
    if answered >= asking.minimum_sites:
        return
    raise DeploymentError(
        f"{answered} of {asked} sites have answered, but the question "
        f"needs {asking.minimum_sites}; {printable_text.format_reasons(failed)}check the sites' "
        "logs and ask again. The server's own ledger counts every site that was asked as "
        "charged, but a site that refused has charged nothing"
    )


def _site_notes(asked: int, answered: int, failed: Mapping[str, str]) -> list[str]:
    notes = [f"asked of {asked} sites, of which {answered} have answered"]
    return notes + [f"no answer of '{site}': {reason}" for site, reason in sorted(failed.items())]
