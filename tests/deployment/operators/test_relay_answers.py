"""Questions through relay and collector that cannot be, or that a client refuses."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from questions import QUESTIONS
from relayed_people import (
    MEAN,
    SHUFFLER,
    SUM,
    RelayedPeople,
    relayed_people,
    slow,
    tables_of,
    write_people,
    write_policy,
)

from sottovoce.analytics.question import to_json
from sottovoce.core.errors import (
    DeploymentError,
    OutputError,
    ParameterError,
    SottovoceError,
)
from sottovoce.deployment.machines.submitted_runs import ESTIMATE_NAME
from sottovoce.deployment.operators import (
    announced_questions,
    relay_asking,
    relayed_questions,
)
from sottovoce.deployment.operators.checks import reach_relay
from sottovoce.deployment.operators.relay_asking import ask_through_relay


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayedPeople]:
    """Three clients with 1, 1 and 2 people, for what is refused."""
    tables = tables_of("mean", {"a": 1, "b": 1, "c": 2})
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch, relayed_people(folder, tables, patch) as people:
        yield people


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
        slow({"colluders": 2}, "age", SUM, "fewer than 2 honest ones"),
        ({"epsilon_per_round": 0.5}, "age", SUM, "'epsilon_per_round' is 0.5"),
    ],
)
def test_a_client_asks_its_own_policy_and_charges_nothing_that_it_refuses(
    world: RelayedPeople, policy: dict[str, Any], about: str, channel: str, said: str
) -> None:
    strict = world.devices[2]
    write_policy(strict, **policy)
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
