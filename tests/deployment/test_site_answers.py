"""A site that is asked about its people: policy first, then the charge, then one code each."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from questions import QUESTIONS, values_for

from sottovoce.analytics.question import Question, to_dict
from sottovoce.core.errors import DataError, PolicyError
from sottovoce.deployment.orders import TALLY, QuestionRequest, read_tally
from sottovoce.deployment.site import Site, read_site
from sottovoce.deployment.site_answers import Values, answer, own_columns
from sottovoce.ledger import seal
from sottovoce.ledger.ledger import Ledger

POLICY = """
name = "clinic"
[policy]
mechanisms = ["mvu", "generalized_rr", "metric_mvu"]
level = "sample"
adjacency = "replace-one"
epsilon_per_round = 2.0
epsilon_total = 5.0
delta = 1e-6
smallest_cohort = 2
[columns.age]
csv = "people.csv"
column = "age"
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return _site(tmp_path, POLICY)


def _site(folder: Path, text: str) -> Site:
    (folder / "site.toml").write_text(text)
    if not (folder / seal.SEAL_NAME).exists():
        seal.create(folder)
    return read_site(folder / "site.toml")


def _inquiry(name: str = "mean", **changes: Any) -> QuestionRequest:
    asked = QuestionRequest(
        run="r",
        client="clinic",
        cohort=3,
        first=0,
        about="age",
        question=to_dict(QUESTIONS[name]),
    )
    return dataclasses.replace(asked, **changes)


def _people(count: int = 50) -> dict[str, Values]:
    def read(_: Question) -> Iterator[Any]:
        yield values_for("mean", count)

    return {"age": read}


def _never(_: Question) -> Iterator[Any]:
    raise AssertionError("read before it was allowed")


def _spent(site: Site) -> float:
    with Ledger(site.ledger) as ledger:
        spent = ledger.largest_spent(1e-6)
    return spent.epsilon if spent else 0.0


@pytest.mark.parametrize("name", list(QUESTIONS))
@pytest.mark.parametrize(
    "changes",
    [
        {"mechanisms = [": 'mechanisms = ["gaussian"]  # ['},
        {"smallest_cohort = 2": "smallest_cohort = 4"},
        {"epsilon_total = 5.0": "epsilon_total = 0.01"},
        {'name = "clinic"': 'name = "other"'},
        {"[columns.age]": "[columns.weight]"},
    ],
)
def test_no_table_is_solved_for_a_question_that_is_refused_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, changes: dict[str, str]
) -> None:
    text = POLICY
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    site, inquiry = _site(tmp_path, text), _inquiry(name)

    def solved(_: Question) -> str:
        raise AssertionError("its tables were solved")

    monkeypatch.setattr(type(QUESTIONS[name]), "digest", property(solved))
    with pytest.raises(PolicyError):
        answer(inquiry, site, own_columns(site))
    assert _spent(site) == 0.0


def test_a_question_with_the_digest_of_other_tables_is_refused_and_costs_nothing(
    site: Site,
) -> None:
    for digest in ("0" * 32, 7, None):
        question = {**to_dict(QUESTIONS["mean"]), "digest": digest}
        with pytest.raises(PolicyError, match="not valid"):
            answer(_inquiry(question=question), site, {"age": _never})
    assert _spent(site) == 0.0


@pytest.mark.parametrize("name", ["mean", "variance", "histogram", "quantiles"])
def test_people_are_charged_once_and_every_one_is_counted(site: Site, name: str) -> None:
    tally = read_tally({TALLY: answer(_inquiry(name), site, _people())}, QUESTIONS[name])
    assert tally.people == 50
    assert _spent(site) == pytest.approx(2.0)


def test_asked_again_it_sends_the_same_bytes_and_nothing_is_charged(site: Site) -> None:
    first = answer(_inquiry(), site, _people())
    assert answer(_inquiry(), site, {"age": _never}) == first
    assert _spent(site) == pytest.approx(2.0)


def test_another_question_under_the_same_name_is_charged_again(site: Site) -> None:
    answer(_inquiry(), site, _people())
    answer(_inquiry("histogram"), site, _people())
    assert _spent(site) == pytest.approx(4.0)
    with pytest.raises(PolicyError, match="'epsilon_total' is 5"):
        answer(_inquiry("quantiles"), site, {"age": _never})
    assert _spent(site) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"mvu", ', "", "mechanism 'mvu' is not allowed"),
        ('level = "sample"', 'level = "client"', "level 'sample' is not allowed"),
        ("replace-one", "zero-out", "adjacency replace-one is not allowed"),
        ("epsilon_per_round = 2.0", "epsilon_per_round = 1.9", "'epsilon_per_round' is 1.9"),
        ("smallest_cohort = 2", "smallest_cohort = 4", "3 clients are asked"),
    ],
)
def test_the_policy_is_asked_before_anything_is_read(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert old in POLICY
    site = _site(tmp_path, POLICY.replace(old, new))
    with pytest.raises(PolicyError, match=said):
        answer(_inquiry(), site, {"age": _never})
    assert _spent(site) == 0.0


@pytest.mark.parametrize(
    ("inquiry", "said"),
    [
        (_inquiry(about="income"), "no questions about 'income'"),
        (_inquiry(client="other"), "this site is 'clinic', but the request is for 'other'"),
        (_inquiry(question={"kind": "mean"}), "the question is not valid"),
        (_inquiry("mean-laplace"), "mechanism 'laplace' is not allowed"),
    ],
)
def test_what_is_not_answered_is_not_read_either(
    site: Site, inquiry: QuestionRequest, said: str
) -> None:
    with pytest.raises(PolicyError, match=said):
        answer(inquiry, site, {"age": _never})
    assert _spent(site) == 0.0


def test_values_that_cannot_be_read_cost_nothing(site: Site) -> None:
    def broken(_: Question) -> Iterator[Any]:
        yield [1.0]
        raise DataError("row 2 is not a number")

    with pytest.raises(DataError):
        answer(_inquiry(), site, {"age": broken})
    with pytest.raises(DataError, match="no people"):
        answer(_inquiry(), site, {"age": lambda _: []})
    assert _spent(site) == 0.0


def test_the_sites_file_says_where_its_people_are(tmp_path: Path, site: Site) -> None:
    rows = "\n".join(f"{number},{age}" for number, age in enumerate(values_for("mean", 40)))
    (tmp_path / "people.csv").write_text(f"id,age\n{rows}\n")
    message = answer(_inquiry(), site, own_columns(site))
    assert read_tally({TALLY: message}, QUESTIONS["mean"]).people == 40


def test_places_are_two_columns(tmp_path: Path) -> None:
    text = POLICY.replace('column = "age"', 'latitude = "lat"\nlongitude = "lon"')
    site = _site(tmp_path, text.replace("= 2.0", "= 20.0").replace("= 5.0", "= 50.0"))
    rows = "\n".join(f"{lat},{lon}" for lat, lon in values_for("location", 30))
    (tmp_path / "people.csv").write_text(f"lat,lon\n{rows}\n")
    message = answer(_inquiry("location"), site, own_columns(site))
    assert read_tally({TALLY: message}, QUESTIONS["location"]).people == 30
    assert 0.0 < _spent(site) < np.inf


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("[columns]\nage = 3", "must be a table"),
        ('[columns.age]\ncsv = "x"', "either 'column'"),
        (
            '[columns.age]\ncsv = "x"\ncolumn = 3',
            "'columns.age.column' must be a valid string",
        ),
        ('[columns.age]\ncsv = "x"\ncolumn = "y"\nrow = 1', "unknown key 'row'.*in .columns.age."),
        (
            '[columns.home]\ncsv = "x"\nlatitude = "y"',
            "'column' or both 'latitude' and 'longitude'",
        ),
    ],
)
def test_a_bad_table_of_columns_is_said_in_a_sentence(
    tmp_path: Path, table: str, said: str
) -> None:
    with pytest.raises(PolicyError, match=said):
        _site(tmp_path, POLICY.split("[columns.age]")[0] + table)


@pytest.mark.parametrize("odd", ["unknown", "", "nan", "inf", "1e999"])
@pytest.mark.parametrize("name", ["mean", "variance", "histogram", "categories", "quantiles"])
def test_nothing_of_a_cell_shows_in_whether_it_is_read(
    tmp_path: Path, site: Site, name: str, odd: str
) -> None:
    (tmp_path / "people.csv").write_text(f"id,age\n1,40\n2,{odd}\n3,41\n")
    message = answer(_inquiry(name), site, own_columns(site))
    assert read_tally({TALLY: message}, QUESTIONS[name]).people == 3
    assert _spent(site) == pytest.approx(2.0)
