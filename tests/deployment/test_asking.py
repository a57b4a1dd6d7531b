"""The server's side of a question: charged first, every reply doubted, the sum in one order."""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from questions import QUESTIONS, values_for

from sottovoce.analytics import question
from sottovoce.analytics.estimates import tally_of
from sottovoce.analytics.question import Question, from_dict
from sottovoce.analytics.tallies import CodeCounts, Moments, Tally, add_tallies
from sottovoce.core.errors import DeploymentError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.deployment.asking import QUESTION_NAME, FederatedQuestion, ask
from sottovoce.deployment.machines.submitted_runs import ESTIMATE_NAME
from sottovoce.deployment.orders import (
    MOST_PEOPLE,
    TALLY,
    QuestionRequest,
    largest_tally_bytes,
    refusal_blobs,
    tally_bytes,
)
from sottovoce.deployment.post import OutgoingRequest, Reply
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger

SITES = ("a", "b", "c")


def _tally(question: Question, inquiry: QuestionRequest, people: int = 40) -> Tally:
    seed = SITES.index(inquiry.client)
    values = values_for(question.kind, people, seed)
    return tally_of(question, [values], SeededRandomness(seed), first=inquiry.first)


@dataclass
class FakePost:
    """Sites that answer honestly, but for those that are told what to say."""

    online: Sequence[str] = SITES
    instead: Mapping[str, Sequence[Reply]] = field(default_factory=dict)
    ledger: Path | None = None
    sent: dict[str, QuestionRequest] = field(default_factory=dict)
    charged_before: int = 0

    def reachable(self, clients: Sequence[str]) -> frozenset[str]:
        return frozenset(self.online) & set(clients)

    def send(self, orders: Mapping[str, OutgoingRequest], *, expires_seconds: float) -> int:
        assert expires_seconds > 0.0
        for site, order in orders.items():
            assert isinstance(order, QuestionRequest)
            self.sent[site] = order
        if self.ledger is not None:
            with Ledger(self.ledger) as ledger:
                self.charged_before = ledger.num_charges
        return 0

    def traffic(self) -> None:
        return None

    def collect(self) -> Iterable[Reply]:
        for site, inquiry in sorted(self.sent.items(), reverse=True):
            if site in self.instead:
                yield from self.instead[site]
                continue
            blob = tally_bytes(_tally(from_dict(inquiry.question), inquiry))
            yield Reply(client=site, blobs={TALLY: blob}, total_bytes=len(blob))
        self.sent = {}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def _asking(name: str = "mean", minimum_sites: int = 1) -> FederatedQuestion:
    return FederatedQuestion(
        question=QUESTIONS[name],
        about="age",
        run="r",
        sites=SITES,
        deadline_seconds=5.0,
        minimum_sites=minimum_sites,
    )


@pytest.mark.parametrize("name", ["mean", "variance", "histogram", "quantiles"])
def test_the_estimate_is_that_of_everybodys_codes_together(tmp_path: Path, name: str) -> None:
    post = FakePost(ledger=tmp_path / LEDGER_NAME)
    found = ask(_asking(name), post, tmp_path)
    assert post.charged_before == len(SITES)  # before anybody is asked
    question = QUESTIONS[name]
    total: Tally | None = None
    for number, site in enumerate(SITES):
        inquiry = QuestionRequest(
            run="r", client=site, cohort=3, first=number * MOST_PEOPLE, about="", question={}
        )
        tally = _tally(question, inquiry)
        total = tally if total is None else add_tallies(total, tally)
    assert total is not None
    expected = question.estimate(total)
    assert found.numbers == expected.numbers
    assert found.people == 120
    written = json.loads((tmp_path / ESTIMATE_NAME).read_text())
    assert written["sites"]["answered"] == dict.fromkeys(SITES, 40)
    assert json.loads((tmp_path / QUESTION_NAME).read_text())["asked"] == list(SITES)
    with Ledger(tmp_path / LEDGER_NAME) as ledger:
        assert ledger.rounds_charged("r") == dict.fromkeys(SITES, 1)
        assert not ledger.verify()


def test_bad_replies_are_dropped_and_the_others_count(tmp_path: Path) -> None:
    nonsense = Reply(client="a", blobs={TALLY: b'{"counts": [[1]]}'})
    stranger = Reply(client="z", blobs={TALLY: b"{}"})
    refused = Reply(client="b", blobs=None, failure="'mvu' is not allowed")
    post = FakePost(instead={"a": [nonsense, nonsense, stranger], "b": [refused]})
    found = ask(_asking(), post, tmp_path)
    assert found.people == 40
    assert "no answer of 'b': 'mvu' is not allowed" in found.notes
    written = json.loads((tmp_path / ESTIMATE_NAME).read_text())["sites"]
    assert sorted(written["failed"]) == ["a", "b"]
    assert written["replies_dropped"] == 3


@pytest.mark.parametrize("name", ["mean", "variance", "histogram", "quantiles"])
def test_no_tally_is_longer_than_what_is_announced_to_the_gate(name: str) -> None:
    question = QUESTIONS[name]
    match _tally(
        question, QuestionRequest(run="r", client="a", cohort=1, first=0, about="", question={})
    ):
        case CodeCounts(counts=counts):
            longest: Tally = CodeCounts(counts=np.full_like(counts, MOST_PEOPLE))
        case Moments(sums=sums):
            longest = Moments(sums=np.full_like(sums, -1.2345678901234567e-300))
    assert len(tally_bytes(longest)) <= largest_tally_bytes(question)


def test_a_reply_longer_than_any_tally_is_not_parsed(tmp_path: Path) -> None:
    post = FakePost(instead={"a": [Reply(client="a", blobs={TALLY: b"[" * 10**6})]})
    found = ask(_asking(), post, tmp_path)
    assert any("bytes, got 1000000" in note for note in found.notes)


def test_who_does_not_answer_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    clock = Clock()
    post = FakePost(instead={"c": []})
    found = ask(_asking(), post, tmp_path, clock=clock, pause=clock.pause)
    assert 5.0 <= clock.now < 6.0
    assert found.people == 80
    assert "no answer of 'c': it did not answer in time" in found.notes


def test_too_few_sites_are_not_asked_and_not_charged(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match="1 of 3 sites are online, but the question needs 2"):
        ask(_asking(minimum_sites=2), FakePost(online=["a"]), tmp_path)
    assert not any(tmp_path.iterdir())


def test_too_few_answers_are_no_estimate(tmp_path: Path) -> None:
    refused = [Reply(client="a", blobs=refusal_blobs("out of budget"))]
    post = FakePost(online=["a"], instead={"a": refused})
    said = (
        r"0 of 1 sites have answered.*'a': out of budget.*a site that refused has charged nothing"
    )
    with pytest.raises(DeploymentError, match=said):
        ask(_asking(), post, tmp_path)
    assert not (tmp_path / ESTIMATE_NAME).exists()


def test_a_server_knows_every_kind_of_question_by_itself() -> None:
    """Not only where something else has imported what registers them."""
    program = (
        "import sottovoce.deployment.asking; from sottovoce.analytics.question import _KINDS; "
        "print(*sorted(_KINDS))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert set(done.stdout.decode().split()) == set(question._KINDS)
