"""Flower messages of a question behind a secure sum, in one process."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from masked_sites import NAMES, Sites
from questions import QUESTIONS

pytest.importorskip("flwr")
from flwr.app import Context, Message, RecordDict

from sottovoce.deployment.orders import Blobs
from sottovoce.deployment.post import OutgoingRequest
from sottovoce.flower.client import make_question_handler
from sottovoce.flower.records import from_records, to_records


@dataclass
class HandledSites(Sites):
    """Sites whose messages pass through the handler of a Flower app."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.handlers = {
            name: make_question_handler(lambda site: self.columns(site.name), self._site_of(name))
            for name in self.people
        }

    def _site_of(self, name: str):  # type: ignore[no-untyped-def]
        return lambda _: self.site(name)

    def reply(self, name: str, request: OutgoingRequest) -> Blobs:
        message = Message(
            content=to_records(request.blobs()),
            dst_node_id=1,
            message_type=request.message_type,
        )
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
        return from_records(self.handlers[name](message, context).content)


@pytest.mark.usefixtures("flower_task")
def test_all_steps_of_a_sum_are_answered_by_the_handler_of_questions(tmp_path: Path) -> None:
    sites = HandledSites(tmp_path, dict.fromkeys(NAMES, 30), QUESTIONS["categories"], {"b": 2})
    found = sites.ask()
    assert found.people == 90
    assert [len(sites.events(name)) for name in NAMES] == [1, 0, 1, 1]


@pytest.mark.usefixtures("flower_task")
def test_what_a_policy_refuses_is_refused_with_its_reason(tmp_path: Path) -> None:
    sites = HandledSites(tmp_path, dict.fromkeys(NAMES, 30), QUESTIONS["mean"])
    sites.write_policy("c", honest="honest = 3")
    found = sites.ask()
    assert found.people == 90
    assert any("no answer of 'c'" in note and "'honest' is 3" in note for note in found.notes)
