"""A question as a collector announces it, with its terms, its folder and its charges.

The collector charges its own ledger for every client that it has admitted, since any of them may
answer: for the smallest crowd that the terms allow, so never less than the client charges itself.
The folder of a question:

question.json    what was asked, of which clients, about what
ledger.sqlite    what each client's people were charged with, by the collector's account
estimate.json    the estimate, once there is one
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from sottovoce.analytics.question import Question, epsilon_of
from sottovoce.core import files, parameter_rules
from sottovoce.core.errors import DeploymentError, OutputError
from sottovoce.deployment.asking import QUESTION_NAME
from sottovoce.deployment.masked_answers import masked_question_charge
from sottovoce.deployment.masked_questions import most_people
from sottovoce.deployment.operators.folders import CollectorFolder
from sottovoce.deployment.operators.relayed_questions import (
    PROTOCOLS,
    RelayedQuestion,
    pack_question,
    relayed_attempt,
)
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.operators import Operators


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionTerms:
    """On how many clients and people a question counts.

    Attributes:
        honest: The least number of clients that follow the protocol.
        colluders: How many others may work against them.
        people_per_client: The fewest people with which a client takes part.
        clients: The names of all clients that may answer.
    """

    honest: int
    colluders: int
    people_per_client: int
    clients: tuple[str, ...]

    @classmethod
    def of(
        cls,
        collector: CollectorFolder,
        minimum_clients: int | None,
        colluders: int | None,
        people_per_client: int,
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
                f"honest ones and up to {most} that collude needs {honest + most}; no client was "
                "asked or charged. Admit more clients with 'sottovoce deploy admit', or lower "
                "--minimum-clients or --colluders"
            )
        largest = most_people(len(clients))
        parameter_rules.integer("people_per_client", people_per_client, low=1, high=largest)
        return cls(
            honest=honest, colluders=most, people_per_client=people_per_client, clients=clients
        )

    def promise(self) -> str:
        """Return what is assumed of operators and clients, as text."""
        return (
            "relay and collector do not work together, and at most "
            f"{self.colluders} of the clients work together with one of them or depart from the "
            f"protocol, so at least {self.honest} clients follow it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedQuestion:
    """A question with its terms, as all clients get it.

    Attributes:
        question: The question.
        channel: "secure_sum" or "shuffler".
        terms: On whom it counts.
        request: What is sent to the clients.
    """

    question: Question
    channel: str
    terms: QuestionTerms
    request: RelayedQuestion

    @property
    def content(self) -> bytes:
        """What is announced."""
        return pack_question(self.request)

    @property
    def least_crowd(self) -> int:
        """The smallest number of people on whom an honest client's charge counts."""
        return self.request.crowd(self.terms.people_per_client, self.terms.honest)

    def attempt(self, operators: Operators) -> Attempt:
        """Return the public parameters of the question."""
        protocol = PROTOCOLS[self.channel]
        return relayed_attempt(self.request, self.question, protocol, operators, self.content)

    def begin(self, folder: Path) -> None:
        """Write what is asked, and charge the collector's own ledger for all clients."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise OutputError(
                f"{folder} is not an empty folder; name a new folder for each question"
            )
        with files.explain_os_errors("create", folder):
            folder.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
        terms, request = self.terms, self.request
        written = {
            "run": request.run,
            "about": request.about,
            "question": request.question,
            "channel": self.channel,
            "minimum_clients": terms.honest,
            "colluders": terms.colluders,
            "people_per_client": terms.people_per_client,
            "asked": list(terms.clients),
        }
        files.write_json(folder / QUESTION_NAME, written, mode=files.PRIVATE)
        everyone = masked_question_charge(request, self.question, self.least_crowd)
        with Ledger(folder / LEDGER_NAME, create=True) as ledger:
            releases = [replace(everyone.release, client=name) for name in terms.clients]
            ledger.charge_all([replace(everyone, release=release) for release in releases])

    def promised(self, delta: float) -> dict[str, Any]:
        """Return both epsilons of a person, and what the smaller one assumes."""
        question, terms = self.question, self.terms
        return {
            "central_epsilon": privacy_spent(question.event_among(self.least_crowd), delta).epsilon,
            "delta": delta,
            "local_epsilon": epsilon_of(question.event),
            "minimum_clients": terms.honest,
            "colluders": terms.colluders,
            "people_per_client": terms.people_per_client,
            "charged_people": self.least_crowd,
            "promise": terms.promise(),
        }
