"""Questions through relay and collector: only counts are revealed, and people pay for the crowd."""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crowd_laws import cell_law, worst_delta
from questions import QUESTIONS, values_for
from relayed_people import DELTA, RelayedPeople, relayed_people, write_people, write_policy

from sottovoce.analytics import estimates
from sottovoce.analytics.estimates import question_for, secret_tally_of
from sottovoce.analytics.histogram import HistogramQuestion
from sottovoce.analytics.quantiles import QuantilesQuestion
from sottovoce.analytics.question import Question, epsilon_of, to_json
from sottovoce.analytics.tallies import CodeCounts
from sottovoce.core.errors import (
    DeploymentError,
    DomainError,
    OutputError,
    ParameterError,
    SottovoceError,
    WireError,
)
from sottovoce.deployment.asking import ESTIMATE_NAME
from sottovoce.deployment.operators import (
    announced_questions,
    relay_answers,
    relay_asking,
    relayed_questions,
)
from sottovoce.deployment.operators.checks import reach_relay
from sottovoce.deployment.operators.relay_asking import ask_through_relay
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
from sottovoce.deployment.operators.routes import Route
from sottovoce.deployment.site import read_site
from sottovoce.privacy.accounting import privacy_spent

NAMES = ("a", "b", "c", "d")
SUM, SHUFFLER = "secure_sum", "shuffler"
WORDS = ("a", "b", "x")
HADAMARD = question_for(
    "histogram", categories=WORDS[:2], epsilon=1.0, mechanism="hadamard_response", public_seed=1
)
K_ARY = question_for("histogram", categories=WORDS[:2], epsilon=1.0, public_seed=1)
HAAR = question_for(
    "quantiles", lower=0, upper=4, epsilon=1.0, mechanism="haar_hadamard", depth=2, public_seed=1
)


def slow(*values: Any) -> Any:
    """Return a case that only the full run has."""
    return pytest.param(*values, marks=pytest.mark.slow)


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


def tables_of(name: str, sizes: dict[str, int]) -> dict[str, Any]:
    return {one: values_for(name, size, ord(one)) for one, size in sizes.items()}


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


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayedPeople]:
    """Three clients with 1, 1 and 2 people, for what is refused."""
    tables = tables_of("mean", {"a": 1, "b": 1, "c": 2})
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch, relayed_people(folder, tables, patch) as people:
        yield people


MEAN: Question = QUESTIONS["mean"]


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"channel": "direct"}, ParameterError, "use 'secure_sum', or 'shuffler' if"),
        ({"channel": "local"}, ParameterError, "use 'secure_sum', or 'shuffler' if"),
        ({"question": to_json(QUESTIONS["mean-laplace"])}, ParameterError, "--mechanism mvu"),
        ({"question": "{}"}, SottovoceError, "kind of question"),
        ({"minimum_clients": 1}, ParameterError, "the collector's file has minimum_clients = 2"),
        ({"colluders": 0}, ParameterError, "the collector's file has colluders = 1"),
        ({"minimum_clients": 3}, DeploymentError, "3 clients were admitted, .* needs 4"),
        ({"colluders": 2}, DeploymentError, "no client was asked or charged. Admit more clients"),
        ({"people_per_client": 0}, ParameterError, "people_per_client"),
        ({"people_per_client": 2**31}, ParameterError, "people_per_client"),
        ({"people_per_client": 2, "channel": SHUFFLER}, ParameterError, "--people-per-client"),
        ({"delta": 1.0}, ParameterError, "delta"),
        ({"deadline_seconds": 0.0}, ParameterError, "deadline_seconds"),
        ({"confidence": 2.0}, ParameterError, "confidence"),
    ],
)
def test_a_question_that_cannot_be_is_refused_before_anyone_is_asked(
    world: RelayedPeople, changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    before = len(world.sent)
    with pytest.raises(error, match=said):
        world.ask(MEAN, SUM, **changes)
    assert len(world.sent) == before
    assert not world.folder().exists()


def test_a_folder_with_files_is_not_used(world: RelayedPeople, tmp_path: Path) -> None:
    (tmp_path / "estimate.json").write_text("mine")
    given = {"question": to_json(MEAN), "about": "age", "channel": SUM}
    with pytest.raises(OutputError, match="name a new folder"):
        ask_through_relay(world.operators.collector, tmp_path, **given)  # type: ignore[arg-type]
    assert (tmp_path / "estimate.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("policy", "about", "channel", "said"),
    [
        ({}, "age", SHUFFLER, "2 people, and a shuffle .* one person .*--channel secure_sum"),
        ({}, "income", SUM, "answers no questions about 'income'"),
        slow({"mechanisms": ["generalized_rr"]}, "age", SUM, "'mvu' is not allowed"),
        slow({"level": "client"}, "age", SUM, "level 'sample' is not allowed"),
        slow({"adjacency": "zero-out"}, "age", SUM, "replace-one is not allowed"),
        slow({"smallest_cohort": 4}, "age", SUM, "'smallest_cohort' is 4"),
        ({"honest": 3}, "age", SUM, "'honest' is 3"),
        slow({"colluders": 2}, "age", SUM, "'colluders' is 2 at this client, .* 1 of 3 clients"),
        ({"epsilon_per_round": 0.5}, "age", SUM, "'epsilon_per_round' is 0.5"),
    ],
)
def test_a_client_asks_its_own_policy_and_charges_nothing_that_it_refuses(
    world: RelayedPeople, policy: dict[str, Any], about: str, channel: str, said: str
) -> None:
    strict = world.devices[2]
    write_policy(strict, **policy)
    world.participants["c"].site = read_site(strict.site_file)
    charged = len(world.events(strict.folder))
    with pytest.raises(DeploymentError, match=r"there is no estimate: .* clients"):
        world.ask(MEAN, channel, about=about)
    assert re.search(said, world.told["c"]), world.told["c"]
    assert len(world.events(strict.folder)) == charged
    assert len(world.events(world.folder())) == 3
    assert not (world.folder() / ESTIMATE_NAME).exists()


def test_a_table_without_people_or_the_relays_absence_costs_nothing(
    world: RelayedPeople, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = world.devices[2]
    write_policy(empty)
    world.participants["c"].site = read_site(empty.site_file)
    write_people(empty, [])
    charged = len(world.events(empty.folder))
    with pytest.raises(DeploymentError, match="there is no estimate"):
        world.ask(MEAN, SUM)
    assert "has no rows of data" in world.told["c"]
    assert len(world.events(empty.folder)) == charged
    monkeypatch.setattr(relay_asking, "reach_relay", reach_relay)
    with pytest.raises(DeploymentError, match="does not answer"):
        world.ask(MEAN, SUM)
    assert not world.folder().exists()


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


def test_a_client_refuses_an_announcement_that_does_not_say_what_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector that announces more clients than its question says would lower no charge."""
    original = relayed_questions.relayed_attempt

    def lie(*given: Any) -> Any:
        return dataclasses.replace(original(*given), threshold=3, most_clients=3)

    with relayed_people(
        tmp_path, tables_of("mean", dict.fromkeys("abcd", 1)), monkeypatch
    ) as people:
        monkeypatch.setattr(announced_questions, "relayed_attempt", lie)
        with pytest.raises(DeploymentError, match="there is no estimate"):
            people.ask(MEAN, SUM, minimum_clients=3)
        assert all("do not belong together" in told for told in people.told.values())
        assert len(people.told) == 4
        assert all(people.events(one.folder) == [] for one in people.devices)


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


def test_a_client_refuses_messages_of_another_size_before_it_charges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tables_of("mean", dict.fromkeys("abc", 1))
    with relayed_people(tmp_path, tables, monkeypatch) as people:
        monkeypatch.setattr(relay_asking, "payload_bytes", lambda _: 2)
        with pytest.raises(DeploymentError, match="there is no estimate"):
            people.ask(MEAN, SHUFFLER)
        assert all("do not belong together" in told for told in people.told.values())
        assert all(people.events(one.folder) == [] for one in people.devices)


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
