"""Questions behind a secure sum: only the sum of tallies, charged for a crowd of people."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from masked_sites import DELTA, NAMES, Sites
from questions import QUESTIONS, values_for

from sottovoce.analytics.estimates import secret_tally_of
from sottovoce.analytics.question import Question, to_dict
from sottovoce.analytics.tallies import CodeCounts, Tally, add_tallies
from sottovoce.core.errors import (
    DeploymentError,
    ParameterError,
    PolicyError,
    SottovoceError,
)
from sottovoce.deployment import masked_answers
from sottovoce.deployment.machines.submitted_runs import ESTIMATE_NAME
from sottovoce.deployment.masked_answers import opening_of_question
from sottovoce.deployment.masked_asking import SumTerms
from sottovoce.deployment.orders import (
    QuestionRequest,
)
from sottovoce.deployment.post import OutgoingRequest
from sottovoce.ledger.ledger import LEDGER_NAME
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.protocol.secure.pairwise_messages import KeysMessage
from sottovoce.protocol.secure.roster import Roster


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Tally]:
    """The tallies that sites have drawn, in the order in which they did."""
    found: list[Tally] = []

    def recorded(*given: Any) -> Tally:
        found.append(secret_tally_of(*given))
        return found[-1]

    monkeypatch.setattr(masked_answers, "secret_tally_of", recorded)
    return found


@pytest.mark.parametrize(
    ("name", "count", "gone"),
    [
        ("mean", 3, {}),
        ("variance", 4, {"b": 2}),
        ("histogram", 4, {"d": 0}),
        ("quantiles", 4, {"a": 3}),
        ("categories", 4, {"c": 4}),
        ("histogram", 4, {"a": 1}),
    ],
)
def test_the_estimate_is_that_of_the_sum_of_all_tallies(
    tmp_path: Path, drawn: list[CodeCounts], name: str, count: int, gone: dict[str, int]
) -> None:
    people = {site: 20 + 10 * number for number, site in enumerate(NAMES[:count])}
    sites = Sites(tmp_path, people, QUESTIONS[name], gone)
    found = sites.ask()
    # With its vectors sent a site is in the sum, whatever becomes of it later.
    there = {site: size for site, size in people.items() if gone.get(site, 9) > 2}
    total: Tally = drawn[0]
    for tally in drawn[1:]:
        total = add_tallies(total, tally)
    assert len(drawn) == len(there)
    assert found.people == sum(there.values())
    expected = QUESTIONS[name].estimate(total)
    assert found.numbers == expected.numbers
    written = json.loads((tmp_path / "server" / ESTIMATE_NAME).read_text())
    assert written["sites"]["answered"] == there
    assert sorted(written["sites"]["failed"]) == sorted(set(people) - set(there))
    for tally in drawn:  # no site's own counts are in anything that it has sent
        assert not any(tally.counts.astype("<u4").tobytes() in message for message in sites.seen)


def test_people_are_charged_for_the_smallest_crowd_that_their_site_can_count_on(
    tmp_path: Path,
) -> None:
    people = {"a": 20, "b": 300, "c": 40, "d": 50}
    sites = Sites(tmp_path, people, QUESTIONS["mean"])
    sites.ask()
    # Two honest sites are in each sum: a person hides among its site and the smallest other one.
    crowds = {"a": 60, "b": 320, "c": 60, "d": 70}
    for name, crowd in crowds.items():
        assert sites.events(name) == [QUESTIONS["mean"].event_among(crowd)]
    assert {str(event) for event in sites.events("server")} == {
        str(QUESTIONS["mean"].event_among(crowd)) for crowd in crowds.values()
    }
    written = json.loads((tmp_path / "server" / ESTIMATE_NAME).read_text())["secure_sum"]
    largest = privacy_spent(QUESTIONS["mean"].event_among(60), DELTA).epsilon
    assert written["central_epsilon"] == largest
    assert written["charged_people"] == 60
    assert written["local_epsilon"] == 2.0
    assert largest < 2.0


@pytest.mark.parametrize(
    "name",
    [
        "mean",
        "variance",
        "histogram",
        "categories",
        "quantiles",
        pytest.param("location", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("people", [1, 2, 50, 3000])
def test_no_crowd_costs_more_than_being_seen(name: str, people: int) -> None:
    question = QUESTIONS[name]
    local = privacy_spent(question.event, DELTA).epsilon
    central = privacy_spent(question.event_among(people), DELTA).epsilon
    assert central <= local * (1.0 + 1e-9)
    assert central < 0.95 * local or people < 3000


@pytest.mark.parametrize("name", ["variance", "histogram", "categories", "quantiles"])
def test_what_a_person_is_asked_does_not_follow_from_public_data(name: str) -> None:
    """Else a person would hide only among those who are asked the same."""
    question = QUESTIONS[name]
    values = values_for(name, 400)
    tallies = [secret_tally_of(question, [values]) for _ in range(8)]
    assert all(isinstance(tally, CodeCounts) and tally.people == 400 for tally in tallies)
    sizes = {tuple(tally.counts.sum(axis=1)) for tally in tallies}  # type: ignore[union-attr]
    groups = tallies[0].counts.shape[0]  # type: ignore[union-attr]
    assert len(sizes) > 1 or groups == 1


@pytest.mark.parametrize(
    ("count", "terms", "said"),
    [
        (1, {}, "1 sites are online, but a sum over 2 honest sites .* needs 3"),
        (2, {}, "2 sites are online, but a sum over 2 honest sites .* needs 3"),
        (3, {"minimum_clients": 3}, "needs 4"),
        (3, {"colluders": 2}, "needs 4"),
        (4, {"colluders": 2, "minimum_clients": 2}, None),
    ],
)
def test_a_sum_of_too_few_sites_is_not_asked_for(
    tmp_path: Path, count: int, terms: dict[str, int], said: str | None
) -> None:
    sites = Sites(tmp_path, dict.fromkeys(NAMES[:count], 20), QUESTIONS["mean"])
    if said is None:
        assert sites.ask(**terms).people == 80
        return
    with pytest.raises(DeploymentError, match=said):
        sites.ask(**terms)
    assert not sites.seen


def test_the_least_threshold_that_rules_out_two_sums_is_the_default() -> None:
    terms = SumTerms(roster=Roster(federation=bytes(16), version=1, keys={"a": bytes(32)}))
    for sites in range(3, 60):
        for colluders in (1, 2, 5):
            if sites < 2 + colluders:
                continue
            given = dataclasses.replace(terms, colluders=colluders)
            honest = given.honest_sites(sites)
            assert 2 * (honest + colluders) > sites + colluders
            if honest > 2:
                with pytest.raises(DeploymentError, match=f"--minimum-clients {honest}"):
                    dataclasses.replace(given, minimum_clients=honest - 1).honest_sites(sites)


@pytest.mark.parametrize("terms", [{"minimum_clients": 1}, {"colluders": 0}])
def test_terms_that_promise_nothing_are_refused(tmp_path: Path, terms: dict[str, int]) -> None:
    sites = Sites(tmp_path, dict.fromkeys(NAMES, 20), QUESTIONS["mean"])
    with pytest.raises(SottovoceError, match=r"from 2|from 1"):
        sites.ask(**terms)
    assert not sites.seen


def test_numbers_in_floating_point_cannot_be_masked(tmp_path: Path) -> None:
    sites = Sites(tmp_path, dict.fromkeys(NAMES[:3], 20), QUESTIONS["mean-laplace"])
    with pytest.raises(ParameterError, match="--mechanism mvu"):
        sites.ask()
    request = _request(QUESTIONS["mean-laplace"])
    assert b"--mechanism mvu" in sites.reply("a", request)["refused"]
    assert not sites.seen


def _request(question: Question, **changes: Any) -> QuestionRequest:
    asked = QuestionRequest(
        run="r",
        client="a",
        cohort=3,
        first=0,
        about="age",
        question=to_dict(question),
        attempt=1,
        minimum_clients=2,
        colluders=1,
    )
    return dataclasses.replace(asked, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"minimum_clients": 1}, "not valid"),
        ({"colluders": 0}, "not valid"),
        ({"cohort": 2}, "too few"),
        ({"client": "b"}, "this site is 'a'"),
        ({"about": "income"}, "no questions about 'income'"),
    ],
)
def test_a_site_refuses_a_sum_that_does_not_protect_it(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    sites = Sites(tmp_path, dict.fromkeys(NAMES[:3], 20), QUESTIONS["mean"])
    refused = sites.reply("a", _request(QUESTIONS["mean"], **changes))
    assert said in refused["refused"].decode()


@pytest.mark.parametrize(
    ("line", "new", "said"),
    [
        ("honest", "", "go together"),
        ("honest", "honest = 3", "'honest' is 3"),
        ("colluders", "colluders = 2", "'colluders' is 2"),
        ("mechanisms", 'mechanisms = ["generalized_rr"]', "'mvu' is not allowed"),
        ("adjacency", 'adjacency = "zero-out"', "replace-one is not allowed"),
    ],
)
def test_a_site_asks_its_own_policy(tmp_path: Path, line: str, new: str, said: str) -> None:
    sites = Sites(tmp_path, dict.fromkeys(NAMES[:3], 20), QUESTIONS["mean"])
    sites.write_policy("a", **{line: new})
    with pytest.raises(PolicyError, match=said):
        opening_of_question(_request(QUESTIONS["mean"]), sites.site("a"), {"age": _never})


def test_a_policy_without_honest_or_a_site_without_roster_takes_part_in_no_sum(
    tmp_path: Path,
) -> None:
    sites = Sites(tmp_path, dict.fromkeys(NAMES[:3], 20), QUESTIONS["mean"])
    asked = _request(QUESTIONS["mean"])
    sites.write_policy("a", honest="", colluders="")
    with pytest.raises(PolicyError, match="set 'honest' and 'colluders'"):
        opening_of_question(asked, sites.site("a"), {"age": _never})
    sites.write_policy("a", **{"[trust]": "", "roster_digest": ""})
    with pytest.raises(PolicyError, match="no usable key or pinned roster"):
        opening_of_question(asked, sites.site("a"), {"age": _never})


def _never(_: Question) -> Iterator[Any]:
    raise AssertionError("read before it was allowed")


def test_a_site_whose_budget_is_spent_is_a_dropout_and_sends_nothing(tmp_path: Path) -> None:
    sites = Sites(tmp_path, dict.fromkeys(NAMES, 20), QUESTIONS["mean"])
    sites.write_policy("a", epsilon_per_round="epsilon_per_round = 0.5")
    found = sites.ask()
    assert found.people == 60
    assert any("'epsilon_per_round' is 0.5" in note for note in found.notes)
    assert sites.events("a") == []


def test_with_one_site_less_than_the_threshold_nothing_is_revealed(tmp_path: Path) -> None:
    sites = Sites(tmp_path, dict.fromkeys(NAMES, 20), QUESTIONS["mean"], {"a": 2, "b": 2})
    with pytest.raises(DeploymentError, match="2 sites have sent vectors, but 3 are needed"):
        sites.ask()
    assert not (tmp_path / "server" / ESTIMATE_NAME).exists()
    assert [len(sites.events(name)) for name in NAMES] == [0, 0, 1, 1]
    # The server has charged all of them before it asked any for counts.
    assert len(sites.events("server")) == 4


def test_a_server_that_lists_other_numbers_of_people_gets_no_counts(tmp_path: Path) -> None:
    """The declarations are signed, so a server can neither raise nor lower the crowd."""
    sites = Sites(tmp_path, dict.fromkeys(NAMES, 20), QUESTIONS["mean"])

    def lie(name: str, request: OutgoingRequest) -> OutgoingRequest:
        if getattr(request, "action", "") != "share":
            return request
        from sottovoce.protocol.secure.pairwise_messages import KeyList

        listed = KeyList.read(request.content)  # type: ignore[attr-defined]
        changed = [
            dataclasses.replace(entry, rows=10**6) if entry.name != name else entry
            for entry in listed.entries
        ]
        content = KeyList(entries=tuple(changed)).to_bytes()
        return dataclasses.replace(request, content=content)  # type: ignore[type-var]

    sites.lie = lie
    with pytest.raises(DeploymentError, match="valid signature of the statement 'keys'"):
        sites.ask()
    assert all(sites.events(name) == [] for name in NAMES)


def test_a_server_that_leaves_large_sites_out_pays_for_the_small_crowd(tmp_path: Path) -> None:
    people = {"a": 20, "b": 21, "c": 22, "d": 5000}
    sites = Sites(tmp_path, people, QUESTIONS["mean"], {"d": 0})
    sites.ask()
    assert sites.events("a") == [QUESTIONS["mean"].event_among(41)]


def test_a_site_that_declares_too_many_people_lowers_nobodys_charge(tmp_path: Path) -> None:
    sites = Sites(tmp_path, dict.fromkeys(NAMES, 20), QUESTIONS["mean"])

    def declare(name: str, message: bytes) -> bytes:
        if name != "d" or sites.number != 0:
            return message
        keys = KeysMessage.read(message)
        from sottovoce.deployment.machines.trust_files import read_trust_key
        from sottovoce.protocol.secure.encoding import Protocol

        party = sites.exchanges["d"]._open["r"].party
        lied = dataclasses.replace(keys, rows=1000)
        key = read_trust_key(tmp_path / "d" / "trust.key")
        signature = key.sign(Protocol.PAIRWISE, "keys", party._plan, *lied.statement)
        lied = dataclasses.replace(lied, signature=signature)
        party._memory.own = lied
        return lied.to_bytes()

    sites.change_reply = declare
    with pytest.raises(DeploymentError, match=r"add up to 80, .* declared 1060 people"):
        sites.ask()
    assert sites.events("a") == [QUESTIONS["mean"].event_among(40)]


def test_an_attempt_is_answered_once_and_another_question_needs_another_run(
    tmp_path: Path,
) -> None:
    sites = Sites(tmp_path, dict.fromkeys(NAMES[:3], 20), QUESTIONS["mean"])
    first = sites.reply("a", _request(QUESTIONS["mean"]))
    assert "refused" not in first
    again = sites.reply("a", _request(QUESTIONS["mean"]))
    assert b"begin a later attempt" in again["refused"]
    other = sites.reply("a", _request(QUESTIONS["mean"], attempt=2, minimum_clients=3, cohort=4))
    assert b"differs from the one that its first attempt fixed" in other["refused"]
    assert "refused" not in sites.reply("a", _request(QUESTIONS["mean"], attempt=2))


def test_a_later_attempt_is_charged_again_and_draws_fresh_codes(
    tmp_path: Path, drawn: list[CodeCounts]
) -> None:
    sites = Sites(tmp_path, dict.fromkeys(NAMES[:3], 200), QUESTIONS["mean"])
    sites.ask()
    (tmp_path / "server" / LEDGER_NAME).unlink()
    sites.number = -1
    sites.ask(run="again")
    assert [len(sites.events(name)) for name in NAMES[:3]] == [2, 2, 2]
    assert not np.array_equal(drawn[0].counts, drawn[3].counts)
