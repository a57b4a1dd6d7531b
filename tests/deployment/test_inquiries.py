"""Questions and tallies as bytes: what is read, and what is refused."""

import json
from typing import Any

import numpy as np
import pytest
from questions import QUESTIONS, values_for

from sottovoce.analytics.estimates import tally_of
from sottovoce.analytics.question import from_dict, to_dict
from sottovoce.analytics.tallies import CodeCounts
from sottovoce.core.errors import DomainError, ParameterError, SottovoceError, WireError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.deployment.orders import (
    INQUIRY,
    TALLY,
    QuestionRequest,
    read_question_request,
    read_tally,
    tally_bytes,
)

ASKED = QuestionRequest(
    run="r", client="a", cohort=3, first=7, about="age", question=to_dict(QUESTIONS["mean"])
)


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_and_its_tally_come_back_as_they_were_sent(name: str) -> None:
    question = QUESTIONS[name]
    asked = QuestionRequest(
        run="r", client="a", cohort=1, first=0, about="x", question=to_dict(question)
    )
    assert from_dict(read_question_request(asked.blobs()).question) == question
    tally = tally_of(question, [values_for(name, 300)], SeededRandomness(1))
    found = read_tally({TALLY: tally_bytes(tally)}, question)
    assert type(found) is type(tally)
    assert found.people == 300
    assert question.estimate(found).to_dict() == question.estimate(tally).to_dict()


def _changed(**changes: Any) -> dict[str, bytes]:
    plain = {**json.loads(ASKED.blobs()[INQUIRY]), **changes}
    return {INQUIRY: json.dumps(plain).encode()}


@pytest.mark.parametrize(
    "blobs",
    [
        {},
        {"order": b"{}"},
        {INQUIRY: b"\xff"},
        {INQUIRY: b"[]"},
        {INQUIRY: b'{"version": 2}'},
        {INQUIRY: b'{"version": 2, "first": NaN}'},
        {**ASKED.blobs(), "more": b""},
        _changed(version=True),
        _changed(cohort=0),
        _changed(cohort=True),
        _changed(first=-1),
        _changed(first=2**60),
        _changed(about=""),
        _changed(about="a\nb"),
        _changed(client=3),
        _changed(question=[]),
        _changed(extra=1),
    ],
)
def test_an_odd_inquiry_is_refused(blobs: dict[str, bytes]) -> None:
    with pytest.raises(WireError):
        read_question_request(blobs)


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 1e9},
        {"epsilon": None},
        {"lower": 100.0},
        {"mechanism": "gaussian"},
        {"bits": 3.5},
        {"kind": "anything"},
        {"digest": "0"},
        {"more": 1},
    ],
)
def test_an_odd_question_is_refused(change: dict[str, Any]) -> None:
    question = {**to_dict(QUESTIONS["mean"]), **change}
    with pytest.raises(SottovoceError):
        from_dict(read_question_request(_changed(question=question)).question)


def _counts(rows: object) -> dict[str, bytes]:
    return {TALLY: json.dumps({"counts": rows}).encode()}


def _moments(rows: object) -> dict[str, bytes]:
    return {TALLY: json.dumps({"moments": rows}).encode()}


@pytest.mark.parametrize(
    "blobs",
    [
        {},
        {TALLY: b""},
        {TALLY: b"[]"},
        {TALLY: b"{}"},
        {TALLY: b'{"counts": [[1]], "moments": []}'},
        {"tally ": b"{}"},
        _counts(3),
        _counts([3]),
        _counts([[1, 2, 3]]),
        _counts([[1] * 8, [1] * 8]),
        _counts([[0] * 8]),
        _counts([[1.0] * 8]),
        _counts([[True] * 8]),
        _counts([[-1, *[2] * 7]]),
        _counts([[2**33, *[0] * 7]]),
        _counts([[2**70, *[0] * 7]]),
        _counts([["1"] * 8]),
        _moments([[1, 0.0, 0.0]]),
    ],
)
def test_an_odd_tally_of_counts_is_refused(blobs: dict[str, bytes]) -> None:
    assert read_tally(_counts([[1] * 8]), QUESTIONS["mean"]).people == 8
    with pytest.raises(WireError):
        read_tally(blobs, QUESTIONS["mean"])


def test_answers_to_the_row_that_no_one_is_asked_are_refused() -> None:
    question = QUESTIONS["categories"]
    assert read_tally(_counts([[0, 0], [3, 1], [2, 2], [0, 5]]), question).people == 13
    for forged in ([1, 0], [0, 9]):
        with pytest.raises(WireError, match="row 0"):
            read_tally(_counts([forged, [3, 1], [2, 2], [0, 5]]), question)
        tally = CodeCounts(counts=np.array([forged, [3, 1], [2, 2], [0, 5]]))
        with pytest.raises(DomainError, match="row 0"):
            question.estimate(tally)


@pytest.mark.parametrize(
    "rows",
    [
        [[0, 0.0, 0.0]],
        [[1.5, 0.0, 0.0]],
        [[-1, 0.0, 0.0]],
        [[1, 2.0, 1.0]],
        [[1, 0.0, -1.0]],
        [[2**40, 0.0, 1.0]],
        [[1, 1e308, 1e308]],
        [[1000, 1e200, 1e308]],
        [[2**32, 1e160, 1.7e308]],
        [[1, 0.0]],
    ],
)
def test_odd_moments_are_refused(rows: object) -> None:
    question = QUESTIONS["mean-laplace"]
    assert read_tally(_moments([[2, 1.0, 1.0]]), question).people == 2
    with pytest.raises(WireError):
        read_tally(_moments(rows), question)


def test_a_tally_of_one_question_answers_no_other() -> None:
    tally = tally_of(QUESTIONS["histogram"], [np.arange(10.0)], SeededRandomness(1))
    with pytest.raises((WireError, ParameterError)):
        read_tally({TALLY: tally_bytes(tally)}, QUESTIONS["mean"])
