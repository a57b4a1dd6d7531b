"""A question to the clients of a relay, of whose answers the collector learns only the counts.

The collector charges its own ledger, announces the question, waits until the window closes, and
estimates from a sum or from shuffled messages. An attempt that brings too few clients is over, and
nothing of it is opened.
"""

import math
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.analytics import intervals
from sottovoce.analytics.question import Question, from_json, to_dict
from sottovoce.analytics.result import Estimate
from sottovoce.analytics.tallies import CodeCounts
from sottovoce.core import files, parameter_rules
from sottovoce.core.errors import (
    AbandonedError,
    DeploymentError,
    DomainError,
    ParameterError,
    WireError,
)
from sottovoce.deployment.asking import run_name
from sottovoce.deployment.machines.submitted_runs import ESTIMATE_NAME
from sottovoce.deployment.masked_questions import check_countable
from sottovoce.deployment.operators.announced_questions import AnnouncedQuestion, QuestionTerms
from sottovoce.deployment.operators.calls import RefusedError
from sottovoce.deployment.operators.checks import reach_relay
from sottovoce.deployment.operators.collecting import (
    CollectorLink,
    ReportWindow,
    Wait,
    open_collector,
)
from sottovoce.deployment.operators.folders import CollectorFolder
from sottovoce.deployment.operators.relay_orders import EVERYONE
from sottovoce.deployment.operators.relayed_questions import (
    SHUFFLER,
    RelayedQuestion,
    check_channel,
    payload_bytes,
    tally_of_payloads,
    tally_of_sum,
)
from sottovoce.mechanisms.packing import UnsignedCodes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answers:
    """What came of a question: the tally, how many clients sent it, and what is no answer."""

    tally: CodeCounts
    clients: int
    dropped: int = 0


def ask_through_relay(
    collector: CollectorFolder,
    folder: Path,
    *,
    question: str,
    about: str,
    channel: str,
    minimum_clients: int | None = None,
    colluders: int | None = None,
    people_per_client: int = 1,
    delta: float = 1e-6,
    deadline_seconds: float = 600.0,
    confidence: float = 0.95,
    wait: Wait = time.sleep,
) -> dict[str, Any]:
    """Ask all clients of a collector's relay, and return the content of estimate.json.

    Args:
        collector: The collector's folder.
        folder: A new or empty folder for question, ledger and estimate.
        question: The question as JSON, as `analytics.to_json` returns it.
        about: Name of what it is about, which each client's own file maps to a column.
        channel: "secure_sum", for clients with any number of people, or "shuffler", for clients
            with one person each.
        minimum_clients: The least number of honest clients; None for the collector's own number.
        colluders: How many other clients may collude; None for the collector's own number.
        people_per_client: Clients with fewer people do not take part, so charges count on so many
            people of each. Only 1 in a shuffle.
        delta: Delta at which the central epsilon is stated.
        deadline_seconds: How long clients may answer. Nothing is forwarded earlier.
        confidence: Confidence level of the intervals.
        wait: Sleeps for a number of seconds; what it raises ends the question.

    Raises:
        ParameterError: A parameter is not valid, or the channel cannot carry the question; no
            client was asked.
        DeploymentError: Too few clients are admitted or have answered, or their counts are not
            those of honest clients.
        OutputError: The folder is not empty.
    """
    intervals.check_confidence(confidence)
    parameter_rules.delta(delta)
    parameter_rules.positive("deadline_seconds", deadline_seconds)
    asked = from_json(question)
    terms = terms_of(
        collector,
        asked,
        channel=channel,
        minimum_clients=minimum_clients,
        colluders=colluders,
        people_per_client=people_per_client,
    )
    asking = AnnouncedQuestion(
        question=asked, channel=channel, terms=terms, request=_request(asked, about, terms)
    )
    with open_collector(collector, wait=wait) as link:
        reach_relay(collector.operators)  # Before anything is written or charged.
        asking.begin(folder)
        found = _collected(link, asking, _window(collector, channel, deadline_seconds))
    result = {
        **_estimate(asking, found, confidence).to_dict(),
        channel: asking.promised(delta),
        "clients": {
            "admitted": len(terms.clients),
            "answered": found.clients,
            "dropped": found.dropped,
        },
    }
    files.write_json(folder / ESTIMATE_NAME, result)
    return result


def terms_of(
    collector: CollectorFolder,
    question: Question,
    *,
    channel: str,
    minimum_clients: int | None,
    colluders: int | None,
    people_per_client: int,
) -> QuestionTerms:
    """Return on whom a question counts; the arguments and errors are those of `ask_through_relay`.

    Raises:
        ParameterError: The channel cannot carry the question, or a number is below that of the
            collector's file.
        DeploymentError: Too few clients are admitted.
    """
    _check_carried(question, channel, people_per_client)
    return QuestionTerms.of(collector, minimum_clients, colluders, people_per_client)


def _check_carried(question: Question, channel: str, people_per_client: int) -> None:
    """Raise ParameterError unless the channel can carry the question."""
    check_channel(channel)
    check_countable(question)
    if channel == SHUFFLER and people_per_client != 1:
        raise ParameterError(
            "a shuffle takes the message of one person of each client; leave out people_per_client "
            "(--people-per-client), or use the channel 'secure_sum'"
        )


def _request(question: Question, about: str, terms: QuestionTerms) -> RelayedQuestion:
    return RelayedQuestion(
        run=run_name(question, about, secrets.token_hex(4)),
        client=EVERYONE,
        cohort=len(terms.clients),
        first=0,
        about=about,
        question=to_dict(question),
        attempt=1,
        minimum_clients=terms.honest,
        colluders=terms.colluders,
        people_per_client=terms.people_per_client,
    )


def _window(collector: CollectorFolder, channel: str, deadline_seconds: float) -> ReportWindow:
    seconds = math.ceil(deadline_seconds)
    if channel != SHUFFLER:
        return ReportWindow(report_seconds=seconds)
    return ReportWindow(
        report_seconds=seconds,
        confirm_seconds=collector.confirm_seconds,
        slack=collector.slack,
    )


def _collected(link: CollectorLink, asking: AnnouncedQuestion, window: ReportWindow) -> _Answers:
    """Announce a question, wait, and return what came of it."""
    collect = _shuffled if asking.channel == SHUFFLER else _summed
    try:
        return collect(link, asking, window)
    except (AbandonedError, RefusedError, WireError) as error:
        raise DeploymentError(
            f"the question is abandoned, and there is no estimate: {error}; check that the clients "
            "run and that their policies allow it, then ask again. Clients that have answered are "
            "charged, and the collector's own ledger counts all clients as charged"
        ) from None


def _summed(link: CollectorLink, asking: AnnouncedQuestion, window: ReportWindow) -> _Answers:
    question, each = asking.question, asking.terms.people_per_client

    def check(sums: list[UnsignedCodes], clients: int) -> None:
        try:
            tally_of_sum(question, sums[0], clients * each)
        except DomainError as error:
            raise AbandonedError(str(error)) from None

    link.announce(asking.attempt(link.keys), asking.content, window, clients=asking.terms.clients)
    sums, clients = link.sums(check)
    return _Answers(tally=tally_of_sum(question, sums[0], clients * each), clients=clients)


def _shuffled(link: CollectorLink, asking: AnnouncedQuestion, window: ReportWindow) -> _Answers:
    question = asking.question
    size = payload_bytes(question)
    link.announce(
        asking.attempt(link.keys),
        asking.content,
        window,
        payload_bytes=size,
        clients=asking.terms.clients,
    )
    payloads = link.payloads()
    tally, dropped = tally_of_payloads(question, payloads)
    if not tally.people:
        raise AbandonedError("no client has sent a code of this question")
    return _Answers(tally=tally, clients=len(payloads), dropped=dropped)


def _estimate(asking: AnnouncedQuestion, found: _Answers, confidence: float) -> Estimate:
    try:
        estimate = asking.question.estimate(found.tally, confidence)
    except ParameterError as error:
        raise DeploymentError(
            f"the question was answered and charged, but there is no estimate: {error}. Wait "
            "until more clients are there; another question is charged again"
        ) from None
    clients = len(asking.terms.clients)
    return estimate.noted(
        f"asked of {clients} admitted clients, of which {found.clients} have answered",
        "only the counts over all people were revealed; epsilon is that of one code if it were "
        "seen, and the central epsilon is that of the counts",
    )
