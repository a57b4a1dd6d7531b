"""Questions through relay and collector: only counts are revealed, and people pay for the crowd."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crowd_laws import cell_law, worst_delta
from questions import QUESTIONS
from relayed_people import (
    DELTA,
    HAAR,
    HADAMARD,
    K_ARY,
    MEAN,
    NAMES,
    SHUFFLER,
    SUM,
    WORDS,
    relayed_people,
    slow,
    tables_of,
)

from sottovoce.analytics.estimates import question_for, secret_tally_of
from sottovoce.analytics.histogram import HistogramQuestion
from sottovoce.analytics.quantiles import QuantilesQuestion
from sottovoce.analytics.question import epsilon_of
from sottovoce.analytics.tallies import CodeCounts
from sottovoce.core.errors import (
    DeploymentError,
)
from sottovoce.deployment.machines.submitted_runs import ESTIMATE_NAME
from sottovoce.deployment.operators import (
    relay_answers,
    relay_asking,
)
from sottovoce.deployment.operators.relayed_questions import (
    RelayedQuestion,
)
from sottovoce.deployment.operators.routes import Route
from sottovoce.privacy.accounting import privacy_spent


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[CodeCounts]:
    """The tallies that clients have drawn, in the order in which they did."""
    found: list[CodeCounts] = []

    def recorded(*given: Any) -> CodeCounts:
        tally = secret_tally_of(*given)
        assert isinstance(tally, CodeCounts)
        found.append(tally)
        return tally

    monkeypatch.setattr(relay_answers, "secret_tally_of", recorded)
    return found


@pytest.mark.parametrize(
    ("channel", "name"),
    [
        (SUM, "categories"),
        (SHUFFLER, "mean"),
        *[
            slow(channel, name)
            for channel in (SUM, SHUFFLER)
            for name in ("variance", "histogram", "quantiles", "location")
            if (channel, name) != (SHUFFLER, "variance")  # Four people are too few for one.
        ],
    ],
)
def test_the_estimate_is_that_of_the_counts_and_people_pay_for_the_crowd(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    drawn: list[CodeCounts],
    channel: str,
    name: str,
) -> None:
    question = QUESTIONS[name]
    sizes = dict(zip(NAMES, (1, 1, 1, 1) if channel == SHUFFLER else (40, 3, 1, 12), strict=True))
    with relayed_people(tmp_path, tables_of(name, sizes), monkeypatch) as people:
        found = people.ask(question, channel, minimum_clients=3, delta=DELTA)
        total = CodeCounts(counts=np.sum([one.counts for one in drawn], axis=0))
        expected = question.estimate(total).to_dict()
        assert {key: found[key] for key in expected if key != "notes"} == {
            key: value for key, value in expected.items() if key != "notes"
        }
        assert found["people"] == sum(sizes.values())
        assert found["clients"] == {"admitted": 4, "answered": 4, "dropped": 0}
        assert json.loads((people.folder() / ESTIMATE_NAME).read_text()) == found
        # Three clients are honest, each of the two others with at least one person.
        for one in people.devices:
            assert people.events(one.folder) == [question.event_among(sizes[one.name] + 2)]
        assert people.events(people.folder()) == [question.event_among(3)] * 4
        costs = [
            privacy_spent(event, DELTA).epsilon
            for one in people.devices
            for event in people.events(one.folder)
        ]
    assert found[channel]["central_epsilon"] >= max(costs)
    assert found[channel]["local_epsilon"] == pytest.approx(epsilon_of(question.event), rel=1e-6)
    assert "do not work together" in found[channel]["promise"]
    # No client's own counts are in anything that the relay was sent.
    reports = {body for route, body in people.sent if route is Route.REPORT}
    assert len(reports) == 4
    for tally in drawn:
        assert not any(tally.counts.astype("<u4").tobytes() in body for body in reports)


@pytest.mark.parametrize(
    ("channel", "question", "values"),
    [
        (SUM, HADAMARD, WORDS),
        slow(SHUFFLER, K_ARY, WORDS),
        slow(SUM, K_ARY, WORDS),
        slow(SHUFFLER, HADAMARD, WORDS),
        slow(SUM, HAAR, (0.5, 1.5, 2.5, 3.5)),
        slow(SHUFFLER, HAAR, (0.5, 1.5, 2.5, 3.5)),
    ],
)
def test_no_client_charges_less_than_the_counts_of_its_crowd_reveal(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    channel: str,
    question: HistogramQuestion | QuantilesQuestion,
    values: tuple[object, ...],
) -> None:
    """Against the exact law of the counts, with all but the honest clients known."""
    first = 1 if channel == SHUFFLER else 2
    tables = {name: values[:first] if name == "a" else values[:1] for name in NAMES}
    with relayed_people(tmp_path, tables, monkeypatch) as people:
        found = people.ask(question, channel, minimum_clients=3, delta=0.05)
        charged = {one.name: people.events(one.folder) for one in people.devices}
    for name, crowd in (("a", first + 2), ("b", 3)):
        (event,) = charged[name]
        for delta in (0.1, 0.05, 0.01):
            epsilon = privacy_spent(event, delta).epsilon
            assert worst_delta(question, values, crowd, epsilon) <= delta * (1.0 + 1e-9)
    # The printed one is that of the smallest crowd.
    assert worst_delta(question, values, 3, found[channel]["central_epsilon"]) <= 0.05
    larger = privacy_spent(question.event_among(100), 0.05).epsilon
    assert worst_delta(question, values, 3, larger) > 0.05


@pytest.mark.parametrize(
    ("question", "value"), [(HADAMARD, "b"), (K_ARY, "x"), (HAAR, 2.5)], ids=["row", "k", "haar"]
)
def test_clients_draw_cells_by_the_law_that_is_charged(question: Any, value: object) -> None:
    people = 40_000
    tally = secret_tally_of(question, [np.full(people, value)])
    assert isinstance(tally, CodeCounts)
    law = cell_law(question, value)
    error = np.sqrt(people * law * (1.0 - law))
    assert (np.abs(tally.counts.ravel() - people * law) <= 6.0 * error).all()


@pytest.mark.slow
@pytest.mark.parametrize(("channel", "rows"), [(SUM, 5), (SHUFFLER, 1)])
def test_estimates_are_unbiased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channel: str, rows: int
) -> None:
    question = question_for("mean", lower=0.0, upper=100.0, epsilon=2.0)
    ages: dict[str, Any] = {
        name: 10.0 * number + np.arange(rows) for number, name in enumerate("abcdef")
    }
    with relayed_people(tmp_path, ages, monkeypatch, epsilon_total=10_000.0) as people:
        found = [people.ask(question, channel)["estimate"] for _ in range(80)]
    truth = float(np.concatenate([*ages.values()]).mean())
    error = float(np.std(found, ddof=1)) / len(found) ** 0.5
    assert abs(float(np.mean(found)) - truth) < 4.5 * error
    assert 0.0 < error < 3.0


def test_an_answer_that_did_not_arrive_is_sent_again_and_charged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[CodeCounts]
) -> None:
    with relayed_people(
        tmp_path, tables_of("mean", dict.fromkeys("abc", 1)), monkeypatch
    ) as people:
        people.lost = 2  # Of the first client: before and after it was registered.
        found = people.ask(MEAN, SUM)
        assert found["clients"]["answered"] == 3
        assert people.lost == 0
        assert len(drawn) == 3
        for one in people.devices:
            assert people.events(one.folder) == [MEAN.event_among(2)]
    reports = {body for route, body in people.sent if route is Route.REPORT}
    assert len(reports) == 3


def test_charges_count_on_the_people_that_every_client_must_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"a": 50, "b": 40, "c": 30, "d": 29}
    with relayed_people(tmp_path, tables_of("mean", sizes), monkeypatch) as people:
        found = people.ask(MEAN, SUM, people_per_client=30)
        assert found["people"] == 120
        assert found["clients"]["answered"] == 3
        assert "has 29 people, and clients with fewer than 30" in people.told["d"]
        charged = [people.events(one.folder) for one in people.devices]
        assert charged == [[MEAN.event_among(size)] for size in (80, 70, 60)] + [[]]
        assert people.events(people.folder()) == [MEAN.event_among(60)] * 4
    assert found[SUM]["charged_people"] == 60
    assert found[SUM]["central_epsilon"] == privacy_spent(MEAN.event_among(60), 1e-6).epsilon


def test_a_second_attempt_draws_and_charges_again_on_the_same_terms_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[CodeCounts]
) -> None:
    original, number = relay_asking._request, iter((1, 2, 3))

    def later(*given: Any) -> RelayedQuestion:
        return dataclasses.replace(original(*given), run="again", attempt=next(number))

    monkeypatch.setattr(relay_asking, "_request", later)
    tables = tables_of("mean", dict.fromkeys("abcd", 200))
    with relayed_people(tmp_path, tables, monkeypatch) as people:
        people.ask(MEAN, SUM)
        people.ask(MEAN, SUM)
        assert len(drawn) == 8
        assert not np.array_equal(drawn[0].counts, drawn[4].counts)
        with pytest.raises(DeploymentError, match="there is no estimate"):
            people.ask(MEAN, SUM, minimum_clients=3)
        assert all("begun with other terms" in told for told in people.told.values())
        for one in people.devices:
            assert people.events(one.folder) == [MEAN.event_among(201)] * 2
