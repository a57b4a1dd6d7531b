"""Sites in one process that are asked for masked tallies: a transport that carries bytes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from questions import values_for

from sottovoce.analytics.question import Question
from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import PolicyError, WireError
from sottovoce.deployment.asking import FederatedQuestion, ask
from sottovoce.deployment.exchanges import Exchanges
from sottovoce.deployment.machines.trust_files import (
    create_trust_key,
    read_trust_public_key,
    write_roster,
)
from sottovoce.deployment.masked_answers import opening_of_question
from sottovoce.deployment.masked_asking import SumTerms
from sottovoce.deployment.masked_orders import STEP, read_step, step_blobs
from sottovoce.deployment.orders import Blobs, read_question_request, refusal_blobs
from sottovoce.deployment.post import OutgoingRequest, Reply
from sottovoce.deployment.site import Site, read_site
from sottovoce.deployment.site_answers import Values
from sottovoce.ledger import seal
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.protocol.secure.roster import Roster

NAMES = ("a", "b", "c", "d")
DELTA = 1e-6
POLICY = """
name = "NAME"
[policy]
mechanisms = ["mvu", "generalized_rr", "metric_mvu", "laplace"]
level = "sample"
adjacency = "replace-one"
epsilon_per_round = 30.0
epsilon_total = 100.0
delta = 1e-6
smallest_cohort = 2
float_noise = true
honest = 2
colluders = 1
[columns.age]
csv = "people.csv"
column = "age"
[trust]
roster_digest = "DIGEST"
"""


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Sites:
    """Sites in one process: a transport that carries requests to them as bytes.

    `gone` says before which message of the protocol a site is gone: 0 for its keys ... 4 for its
    shares of secrets. `lie` may change a request on its way, as a server could.
    """

    folder: Path
    people: Mapping[str, int]
    question: Question
    gone: Mapping[str, int] = field(default_factory=dict)
    lie: Callable[[str, OutgoingRequest], OutgoingRequest] | None = None
    change_reply: Callable[[str, bytes], bytes] | None = None

    def __post_init__(self) -> None:
        keys = {}
        for name in self.people:
            (self.folder / name).mkdir()
            create_trust_key(self.folder / name, name=name)
            keys[name] = read_trust_public_key(self.folder / name / "trust.pub")[1]
            seal.create(self.folder / name)
        self.roster = Roster(federation=b"f" * 16, version=1, keys=keys)
        for name in self.people:
            write_roster(self.folder / name / "roster.toml", self.roster)
            self.write_policy(name)
        self.exchanges = {name: Exchanges() for name in self.people}
        self.sent: dict[str, OutgoingRequest] = {}
        self.number = -1
        self.seen: list[bytes] = []

    def write_policy(self, name: str, **changes: str) -> None:
        text = POLICY.replace("NAME", name).replace("DIGEST", self.roster.digest.hex())
        for old, new in changes.items():
            assert old in text
            text = "\n".join(new if line.startswith(old) else line for line in text.splitlines())
        (self.folder / name / "site.toml").write_text(text)

    def site(self, name: str) -> Site:
        return read_site(self.folder / name / "site.toml")

    def columns(self, name: str) -> dict[str, Values]:
        def read(_: Question) -> Iterator[Any]:
            values = values_for(self.question.kind, self.people[name], seed=ord(name[0]))
            yield values[:7]
            yield values[7:]

        return {"age": read}

    def reachable(self, clients: Sequence[str]) -> frozenset[str]:
        return frozenset(self.people) & set(clients)

    def traffic(self) -> None:
        return None

    def send(self, orders: Mapping[str, OutgoingRequest], *, expires_seconds: float) -> int:
        assert expires_seconds > 0.0
        self.sent, self.number = dict(orders), self.number + 1
        return 0

    def collect(self) -> Iterable[Reply]:
        sent, self.sent = self.sent, {}
        for name, request in sorted(sent.items(), reverse=True):
            if self.gone.get(name, 9) > self.number:
                asked = self.lie(name, request) if self.lie else request
                blobs = self.reply(name, asked)
                yield Reply(client=name, blobs=blobs, total_bytes=sum(map(len, blobs.values())))

    def reply(self, name: str, request: OutgoingRequest) -> Blobs:
        site, blobs = self.site(name), request.blobs()
        assert request.message_type == "query"
        try:
            if STEP in blobs:
                message = self.exchanges[name].step(read_step(blobs), site)
            else:
                inquiry = read_question_request(blobs)
                opening = opening_of_question(inquiry, site, self.columns(name))
                message = self.exchanges[name].begin(opening, site)
        except (PolicyError, WireError) as error:
            return refusal_blobs(str(error))
        self.seen.append(message)
        if self.change_reply:
            message = self.change_reply(name, message)
        return step_blobs(message)

    def ask(self, **changes: Any) -> Any:
        terms = {"minimum_clients": 2, "colluders": 1} | {
            key: changes.pop(key) for key in ("minimum_clients", "colluders") if key in changes
        }
        clock = Clock()
        (self.folder / "server").mkdir(exist_ok=True)
        asking = FederatedQuestion(
            question=self.question,
            about="age",
            run=changes.pop("run", "r"),
            sites=tuple(self.people),
            deadline_seconds=50.0,
            secure_sum=SumTerms(roster=self.roster, delta=DELTA, **terms),
            **changes,
        )
        return ask(asking, self, self.folder / "server", clock=clock, pause=clock.pause)

    def events(self, name: str) -> list[Any]:
        """What a site, or the server, has charged."""
        with Ledger(self.folder / name / LEDGER_NAME) as ledger:
            assert ledger.verify() == []
            history = ledger.history_of_all(Unit.SAMPLE)
            return [event for event, count in history for _ in range(count)]
