"""Questions about people, inquiries that bring them to sites, and tallies that come back."""

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzzing.harness import Case, Entrance, check
from fuzzing.mutation import bytes_mutated, odd_json, plain_mutated
from sottovoce.analytics import question as questions
from sottovoce.analytics.estimates import question_for
from sottovoce.analytics.question import Question
from sottovoce.core.errors import SottovoceError
from sottovoce.deployment.orders import (
    INQUIRY,
    TALLY,
    QuestionRequest,
    read_question_request,
    read_tally,
    tally_bytes,
)
from sottovoce.deployment.site import Site, read_site
from sottovoce.deployment.site_answers import answer
from sottovoce.ledger import seal
from sottovoce.ledger.ledger import Ledger

_BOUNDS: dict[str, Any] = {"lower": 0.0, "upper": 100.0, "epsilon": 1.0}
_SITE = """
name = "clinic"
[policy]
mechanisms = ["generalized_rr", "bitwise_rr", "laplace"]
level = "sample"
adjacency = "replace-one"
epsilon_per_round = 2.0
epsilon_total = 1e6
delta = 1e-6
smallest_cohort = 2
float_noise = true
"""


def _questions() -> list[Question]:
    return [
        question_for("mean", **_BOUNDS, mechanism="generalized_rr", bits=3),
        question_for("mean", **_BOUNDS, mechanism="laplace"),
        question_for("variance", **_BOUNDS, public_seed=1, mechanism="bitwise_rr", bits=2),
        question_for("histogram", **_BOUNDS, bins=5, public_seed=1),
        question_for("histogram", categories=("a", "b"), epsilon=2.0, public_seed=1, bits=1),
        question_for("quantiles", **_BOUNDS, public_seed=1, bits=1),
    ]


def _read_questions(_: Path) -> Case:
    plain = [questions.to_dict(one) for one in _questions()]

    def case(random: Random) -> None:
        changed = plain_mutated(random, random.choice(plain))
        found = questions.parse_question(changed if isinstance(changed, dict) else {})
        written = questions.to_dict(found, str(changed.get("digest")))
        again = questions.parse_question(json.loads(json.dumps(written, allow_nan=False)))
        check(again == found, "a question changes when it is written down")
        check(found.event is not None, "a question costs nothing")

    return case


def _inquiries(folder: Path) -> Case:
    asked = [
        QuestionRequest(run="r", client="clinic", cohort=3, first=7, about="age", question=plain)
        for plain in (questions.to_dict(one) for one in _questions())
    ]
    tables = [json.loads(one.blobs()[INQUIRY]) for one in asked]
    (folder / "site.toml").write_text(_SITE)
    seal.create(folder)
    site: Site = read_site(folder / "site.toml")
    people = {"age": lambda _: [np.array([1.0, 50.0, 99.0])]}

    def charges() -> int:
        with Ledger(site.ledger) as ledger:
            return ledger.num_charges

    def case(random: Random) -> None:
        table = plain_mutated(random, random.choice(tables))
        try:
            text = json.dumps(table, allow_nan=random.random() < 0.1).encode()
        except (TypeError, ValueError):
            text = json.dumps(odd_json(random)).encode()
        if random.random() < 0.1:
            text = bytes_mutated(random, text)
        inquiry = read_question_request({INQUIRY: text})
        check(read_question_request(inquiry.blobs()) == inquiry, "an inquiry changes on its way")
        if random.random() < 0.9:  # answering takes a ledger
            return
        before = charges()
        try:
            first = answer(inquiry, site, people)
        except SottovoceError:
            check(charges() == before, "a refused inquiry was charged")
            raise
        check(answer(inquiry, site, people) == first, "the second answer is another one")
        check(charges() <= before + 1, "an inquiry was charged twice")

    return case


def _tallies(_: Path) -> Case:
    asked = _questions()
    examples = []
    for one in asked:
        codes = np.zeros(40, dtype=one.code_format.dtype)
        examples.append((one, json.loads(tally_bytes(one.tally(codes)))))

    def case(random: Random) -> None:
        question, plain = random.choice(examples)
        try:
            text = json.dumps(plain_mutated(random, plain), allow_nan=False).encode()
        except (TypeError, ValueError):
            text = bytes_mutated(random, json.dumps(plain).encode())
        tally = read_tally({TALLY: text}, question)
        again = read_tally({TALLY: tally_bytes(tally)}, question)
        check(tally_bytes(again) == tally_bytes(tally), "a tally changes on its way")
        if random.random() < 0.05:
            question.estimate(tally + tally)  # type: ignore[operator]

    return case


ENTRANCES = (
    Entrance(name="questions", share=60_000, prepare=_read_questions),
    Entrance(name="inquiries", share=50_000, prepare=_inquiries),
    Entrance(name="tallies", share=60_000, prepare=_tallies),
)
