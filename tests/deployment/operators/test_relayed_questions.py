"""What clients of a relay send when they are asked, and what is made of it."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from questions import QUESTIONS
from relayed_people import (
    HAAR,
    HADAMARD,
    K_ARY,
    MEAN,
    NAMES,
    SHUFFLER,
    SUM,
    relayed_people,
    tables_of,
)

from sottovoce.analytics import estimates
from sottovoce.analytics.estimates import secret_tally_of
from sottovoce.analytics.question import Question
from sottovoce.analytics.tallies import CodeCounts
from sottovoce.core.errors import (
    DeploymentError,
    DomainError,
    WireError,
)
from sottovoce.deployment.machines.submitted_runs import ESTIMATE_NAME
from sottovoce.deployment.operators import (
    relay_answers,
)
from sottovoce.deployment.operators.relay_orders import unpack_order
from sottovoce.deployment.operators.relayed_questions import (
    RelayedQuestion,
    cell_payload,
    pack_question,
    payload_bytes,
    tally_of_payloads,
    tally_of_sum,
    unpack_question,
)


@pytest.mark.parametrize("question", [HADAMARD, K_ARY, HAAR, MEAN, QUESTIONS["variance"]])
def test_a_shuffled_message_is_the_cell_of_one_person_and_others_are_dropped(
    question: Question,
) -> None:
    value = "b" if question in (HADAMARD, K_ARY) else 2.0
    tally = secret_tally_of(question, [np.array([value])])
    assert isinstance(tally, CodeCounts)
    size = payload_bytes(question)
    payload = cell_payload(question, tally)
    assert len(payload) == size == 1
    cells = tally.counts.size
    others = [bytes([cell]) for cell in range(cells, 256)]
    if question is HADAMARD:  # Nobody is asked for the first row.
        others += [b"\x00", b"\x01"]
    found, dropped = tally_of_payloads(question, [*others, payload, payload])
    np.testing.assert_array_equal(found.counts, 2 * tally.counts)
    assert dropped == len(others)
    every = [bytes([cell]) for cell in range(cells)]
    assert tally_of_payloads(question, every)[0].people == cells - 2 * (question is HADAMARD)


def test_what_a_lying_client_sends_is_dropped_or_ends_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, wrong = relay_answers._drawn, iter([b"\xff", [np.ones(8, np.uint32)]])

    def lie(*given: Any) -> Any:
        return next(lies, None) or original(*given)

    monkeypatch.setattr(relay_answers, "_drawn", lie)
    with relayed_people(tmp_path, {name: ["a"] for name in NAMES}, monkeypatch) as people:
        lies = iter([next(wrong)])
        found = people.ask(HADAMARD, SHUFFLER)
        assert found["clients"] == {"admitted": 4, "answered": 4, "dropped": 1}
        assert found["people"] == 3
        lies = iter([next(wrong)])
        with pytest.raises(DeploymentError, match="assigned to no person"):
            people.ask(HADAMARD, SUM)
        assert not (people.folder() / ESTIMATE_NAME).exists()


def test_a_sum_that_clients_cannot_have_is_no_tally() -> None:
    total = np.array([0, 0, 1, 2, 0, 0, 1, 0], dtype=np.uint32)
    assert tally_of_sum(HADAMARD, total, 4).people == 4
    with pytest.raises(DomainError, match="at least 5 people"):
        tally_of_sum(HADAMARD, total, 5)
    total[1] = 1
    with pytest.raises(DomainError, match="assigned to no person"):
        tally_of_sum(HADAMARD, total, 4)


def test_a_question_is_no_order_and_is_for_all_clients() -> None:
    asked = RelayedQuestion(
        run="r",
        client="a",
        cohort=10**6,
        first=0,
        about="age",
        question={"kind": "mean"},
        people_per_client=1,
        attempt=1,
    )
    content = pack_question(asked)
    assert unpack_question(content, "b") == dataclasses.replace(asked, client="b")
    with pytest.raises(WireError, match="cut off"):
        unpack_order(content, "a")
    for other in (b"", content[8:], content.replace(b"everyone", b"a"), content + b"x"):
        with pytest.raises(WireError):
            unpack_question(other, "a")


def test_a_variance_of_too_few_people_was_asked_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = QUESTIONS["variance"]
    numbers = iter(number for number in range(100) if _group(question, number) == 0)
    monkeypatch.setattr(estimates, "secret_numbers", lambda _: np.array([next(numbers)], np.uint64))
    tables = tables_of("mean", dict.fromkeys("abc", 1))
    with relayed_people(tmp_path, tables, monkeypatch) as people:
        with pytest.raises(DeploymentError, match="answered and charged, but there is no estimate"):
            people.ask(question, SHUFFLER)
        assert not (people.folder() / ESTIMATE_NAME).exists()


def _group(question: Question, number: int) -> int:
    tally = question.tally(np.zeros(1, np.uint8), np.array([number], np.uint64))
    assert isinstance(tally, CodeCounts)
    return int(np.flatnonzero(tally.counts)[0] > 0)
