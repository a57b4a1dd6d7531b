"""A question to the clients of a relay, of whose answers the collector learns only the counts.

The collector charges its own ledger for every client that it has admitted, since any of them may
answer: with the smallest crowd that the terms allow, so never less than the client charges itself.
Then it announces the question, waits until the window closes, and estimates from a sum or from
shuffled messages. An attempt that brings too few clients is over, and nothing of it is opened. The
folder of a question:

question.json    what was asked, of how many clients, about what
ledger.sqlite    what each client's people were charged with, by the collector's account
estimate.json    the estimate, once there is one
"""

import math
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from sottovoce.analytics import intervals
from sottovoce.analytics.question import Question, from_json, to_dict
from sottovoce.analytics.result import Estimate
from sottovoce.analytics.tallies import CodeCounts
from sottovoce.core import files, parameter_rules
from sottovoce.core.errors import (
    AbandonedError,
    DeploymentError,
    DomainError,
    OutputError,
    ParameterError,
    WireError,
)
from sottovoce.deployment.asking import ESTIMATE_NAME, QUESTION_NAME, run_name
from sottovoce.deployment.masked_answers import masked_question_charge
from sottovoce.deployment.masked_questions import check_countable
from sottovoce.deployment.operators.calls import RefusedError
from sottovoce.deployment.operators.checks import reach_relay
from sottovoce.deployment.operators.collecting import CollectorLink, ReportWindow, open_collector
from sottovoce.deployment.operators.folders import CollectorFolder
from sottovoce.deployment.operators.relay_orders import EVERYONE, pack_question
from sottovoce.deployment.operators.relayed_questions import (
    PROTOCOLS,
    SHUFFLER,
    check_channel,
    payload_bytes,
    relayed_attempt,
    tally_of_payloads,
    tally_of_sum,
)
from sottovoce.deployment.orders import QuestionRequest
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.mechanisms.packing import UnsignedCodes
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.protocol.secure.attempt import Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """How many clients a question counts on.

    Attributes:
        honest: The least number of clients that follow the protocol.
        colluders: How many others may work against them.
        clients: The names of all clients that may answer.
    """

    honest: int
    colluders: int
    clients: tuple[str, ...]

    @classmethod
    def of(
        cls, collector: CollectorFolder, minimum_clients: int | None, colluders: int | None
    ) -> Self:
        """Return the terms, by default those of the collector's own file.

        Raises:
            ParameterError: They are below those of the file.
            DeploymentError: Too few clients were admitted.
        """
        honest = collector.minimum_clients if minimum_clients is None else minimum_clients
        most = collector.colluders if colluders is None else colluders
        for name, value, least in (
            ("minimum_clients", honest, collector.minimum_clients),
            ("colluders", most, collector.colluders),
        ):
            remedy = f"the collector's file has {name} = {least}"
            parameter_rules.integer(name, value, low=least, high=2**20, remedy=remedy)
        clients = tuple(sorted(collector.clients()))
        if len(clients) < honest + most:
            raise DeploymentError(
                f"{len(clients)} clients were admitted, but a question that counts on {honest} "
                f"honest ones and up to {most} that collude needs {honest + most}; nobody was "
                "asked or charged. Admit more clients with 'sottovoce deploy admit', or lower "
                "--minimum-clients or --colluders"
            )
        return cls(honest=honest, colluders=most, clients=clients)

    def promise(self) -> str:
        """Return what is assumed of operators and clients, as text."""
        return (
            "relay and collector do not work together, and at most "
            f"{self.colluders} of the clients work together with one of them or depart from the "
            f"protocol, so at least {self.honest} clients follow it"
        )


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
    delta: float = 1e-6,
    deadline_seconds: float = 600.0,
    confidence: float = 0.95,
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
        delta: Delta at which the central epsilon is stated.
        deadline_seconds: How long clients may answer. Nothing is forwarded earlier.
        confidence: Confidence level of the intervals.

    Raises:
        ParameterError: A parameter is not valid, or the channel cannot carry the question; nobody
            was asked.
        DeploymentError: Too few clients are admitted or have answered, or their counts are not
            those of honest clients.
        OutputError: The folder is not empty.
    """
    asked = from_json(question)
    check_channel(channel)
    check_countable(asked)
    intervals.check_confidence(confidence)
    parameter_rules.delta(delta)
    parameter_rules.positive("deadline_seconds", deadline_seconds)
    terms = _Terms.of(collector, minimum_clients, colluders)
    request = _request(asked, about, terms)
    content = pack_question(request)
    with open_collector(collector) as link:
        attempt = relayed_attempt(request, asked, PROTOCOLS[channel], link.keys, content)
        reach_relay(collector.operators)  # Before anything is charged.
        _begin(folder, request, asked, terms, channel)
        window = _window(collector, channel, deadline_seconds)
        found = _collected(link, asked, attempt, content, window)
    estimate = _estimate(asked, found, confidence).noted(
        f"asked of {len(terms.clients)} admitted clients, of which {found.clients} have answered",
        "only the counts over all people were revealed; epsilon is that of one code if it were "
        "seen, and the central epsilon is that of the counts",
    )
    central = privacy_spent(asked.event_among(terms.honest), delta).epsilon
    written = {
        channel: {
            "central_epsilon": central,
            "delta": delta,
            "local_epsilon": estimate.details.get("epsilon_across_the_map", estimate.epsilon),
            "minimum_clients": terms.honest,
            "colluders": terms.colluders,
            "charged_people": terms.honest,
            "promise": terms.promise(),
        },
        "clients": {
            "admitted": len(terms.clients),
            "answered": found.clients,
            "dropped": found.dropped,
        },
    }
    result = {**estimate.to_dict(), **written}
    files.write_json(folder / ESTIMATE_NAME, result)
    return result


def _estimate(question: Question, found: _Answers, confidence: float) -> Estimate:
    try:
        return question.estimate(found.tally, confidence)
    except ParameterError as error:
        raise DeploymentError(
            f"the question was answered and charged, but there is no estimate: {error}"
        ) from None


def _request(question: Question, about: str, terms: _Terms) -> QuestionRequest:
    return QuestionRequest(
        run=run_name(question, about, secrets.token_hex(4)),
        client=EVERYONE,
        cohort=len(terms.clients),
        first=0,
        about=about,
        question=to_dict(question),
        attempt=1,
        minimum_clients=terms.honest,
        colluders=terms.colluders,
    )


def _begin(
    folder: Path, request: QuestionRequest, question: Question, terms: _Terms, channel: str
) -> None:
    """Write what is asked, and charge the collector's own ledger for all clients."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder} is not an empty folder; name a new folder for each question")
    with files.explain_os_errors("create", folder):
        folder.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
    written = {
        "run": request.run,
        "about": request.about,
        "question": request.question,
        "channel": channel,
        "minimum_clients": terms.honest,
        "colluders": terms.colluders,
        "asked": list(terms.clients),
    }
    files.write_json(folder / QUESTION_NAME, written, mode=files.PRIVATE)
    everyone = masked_question_charge(request, question, terms.honest)
    with Ledger(folder / LEDGER_NAME, create=True) as ledger:
        releases = [replace(everyone.release, client=name) for name in terms.clients]
        ledger.charge_all([replace(everyone, release=release) for release in releases])


def _window(collector: CollectorFolder, channel: str, deadline_seconds: float) -> ReportWindow:
    seconds = math.ceil(deadline_seconds)
    if channel != SHUFFLER:
        return ReportWindow(report_seconds=seconds)
    return ReportWindow(
        report_seconds=seconds,
        confirm_seconds=collector.confirm_seconds,
        slack=collector.slack,
    )


def _collected(
    link: CollectorLink, question: Question, attempt: Attempt, content: bytes, window: ReportWindow
) -> _Answers:
    """Announce a question, wait, and return what came of it."""
    try:
        if attempt.protocol is PROTOCOLS[SHUFFLER]:
            return _shuffled(link, question, attempt, content, window)
        return _summed(link, question, attempt, content, window)
    except (AbandonedError, RefusedError, WireError) as error:
        raise DeploymentError(
            f"the question is abandoned, and there is no estimate: {error}; check that the clients "
            "run and that their policies allow it, then ask again. Clients that have answered are "
            "charged, and the collector's own ledger counts all clients as charged"
        ) from None


def _summed(
    link: CollectorLink, question: Question, attempt: Attempt, content: bytes, window: ReportWindow
) -> _Answers:
    def check(sums: list[UnsignedCodes], clients: int) -> None:
        try:
            tally_of_sum(question, sums[0], clients)
        except DomainError as error:
            raise AbandonedError(str(error)) from None

    link.announce(attempt, content, window)
    sums, clients = link.sums(check)
    return _Answers(tally=tally_of_sum(question, sums[0], clients), clients=clients)


def _shuffled(
    link: CollectorLink, question: Question, attempt: Attempt, content: bytes, window: ReportWindow
) -> _Answers:
    link.announce(attempt, content, window, payload_bytes=payload_bytes(question))
    payloads = link.payloads()
    tally, dropped = tally_of_payloads(question, payloads)
    if not tally.people:
        raise AbandonedError("no client has sent a code of this question")
    return _Answers(tally=tally, clients=len(payloads), dropped=dropped)
