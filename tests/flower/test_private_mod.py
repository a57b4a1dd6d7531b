"""What leaves a client of a Flower app: sealed bits, a refusal, or nothing that tells anything."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_grid import (
    RUN_ID,
    Train,
    a_context,
    an_app,
    moves_by,
    over_the_wire,
    server_identity,
    write_site,
)
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from watched_encoding import watch_encoding

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.core.errors import PolicyError
from sottovoce.flower.announcement import RECORD, RoundAnnouncement
from sottovoce.flower.client import NO_LEDGER
from sottovoce.flower.mod import private_mod
from sottovoce.flower.model_arrays import ModelLayout
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.events import Repeated
from sottovoce.protocol.message import HEADER_BYTES
from sottovoce.protocol.server import RoundServer

pytestmark = pytest.mark.usefixtures("flower_server")

SECRET = "patient 4711"
MODEL = {
    "weight": np.linspace(-1.0, 1.0, 24, dtype=np.float32).reshape(4, 6),
    "batches": np.array(3),
    "bias": np.zeros(8, dtype=np.float64),
}
DIMENSION = 32


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return write_site(tmp_path / "ada", "ada")


def the_model() -> ArrayRecord:
    return ArrayRecord({name: Array(values) for name, values in MODEL.items()})


def an_announcement(**changes: Any) -> RoundAnnouncement:
    fields: dict[str, Any] = {
        "client": "ada",
        "round": 1,
        "rounds": 2,
        "cohort": 3,
        "mechanism": "gauss_hermite",
        "parameters": {"levels": 2, "noise_multiplier": 2.0},
        "dimension": DIMENSION,
        "clip_norm": 1.0,
        "adjacency": "zero-out",
        "layout": ModelLayout.of(the_model()).digest(),
        "num_examples": False,
    }
    return RoundAnnouncement(**{**fields, **changes})


def a_message(
    announcement: RoundAnnouncement | None = None,
    *,
    message_type: str = "train",
    records: Mapping[str, Any] | None = None,
) -> Message:
    content = RecordDict({"arrays": the_model(), "config": ConfigRecord({"lr": 0.5})})
    content.update(records or {})
    if announcement is not None:
        content[RECORD] = announcement.record()
    return over_the_wire(Message(content, dst_node_id=9, message_type=message_type))


def answer(message: Message, train: Train, **node_config: Any) -> Message:
    return over_the_wire(an_app(train)(message, a_context(**node_config)))


def charges(site: Path) -> list[dict[str, object]]:
    path = site.parent / LEDGER_NAME
    if not path.exists():
        return []
    with Ledger(path) as ledger:
        return list(ledger.rows())


def opened(reply: Message, announcement: RoundAnnouncement) -> Vector:
    """What the server makes of a reply, rotated back."""
    asked = announcement.asked(f"flower-{RUN_ID}")
    server = RoundServer(asked.plan, dimension=DIMENSION, keeps_each=True)
    sealed = reply.content[RECORD]["sealed"]
    assert isinstance(sealed, bytes)
    server.receive("ada", sealed)
    ((_, vector),) = server.each() or []
    return vector


def test_of_a_reply_only_the_sealed_bytes_leave(site: Path) -> None:
    reply = answer(a_message(an_announcement()), moves_by(0.1), site=str(site))
    assert list(reply.content) == [RECORD]
    record = reply.content[RECORD]
    assert list(record) == ["sealed"]
    assert len(record["sealed"]) == HEADER_BYTES + DIMENSION // 8  # type: ignore[arg-type]
    (charge,) = charges(site)
    assert (charge["run"], charge["client"], charge["round"]) == (f"flower-{RUN_ID}", "ada", 1)


def test_a_run_of_the_announced_length_is_answered_to_its_end(tmp_path: Path) -> None:
    announced = [an_announcement(round=number, rounds=3) for number in (1, 2, 3, 4)]
    event = announced[0].asked("run").part.mechanism.privacy(Adjacency.ZERO_OUT)
    total = privacy_spent(Repeated(event=event, count=3), 1e-5).epsilon
    site = write_site(tmp_path, "ada", epsilon_total=total)
    replies = [answer(a_message(one), moves_by(0.1), site=str(site)) for one in announced]
    assert [reply.has_error() for reply in replies] == [False, False, False, True]


def test_the_app_sees_what_it_would_see_without_the_mod(site: Path) -> None:
    seen: list[Message] = []

    def train(message: Message, context: Context) -> Message:
        seen.append(message)
        return moves_by(0.1)(message, context)

    answer(a_message(an_announcement()), train, site=str(site))
    (message,) = seen
    assert list(message.content) == ["arrays", "config"]
    assert message.content["config"]["lr"] == 0.5


def test_the_decoded_update_is_unbiased(tmp_path: Path) -> None:
    """Within 4.5 standard errors in each of 32 coordinates, and along the update itself."""
    draws, noise_stddev = 60, 0.1
    parameters = {"levels": 64, "noise_multiplier": noise_stddev}
    announcement = an_announcement(parameters=parameters)
    total = np.zeros(DIMENSION)
    for number in range(draws):
        site = write_site(tmp_path / str(number), "ada")
        reply = answer(a_message(announcement), moves_by(0.1), site=str(site))
        total += opened(reply, announcement)
    deviation = total / draws - 0.1
    standard_error = noise_stddev / math.sqrt(draws)
    assert np.abs(deviation).max() < 4.5 * standard_error
    assert abs(deviation.sum()) / math.sqrt(DIMENSION) < 4.5 * standard_error


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_diverged_update_is_sent_as_zero(
    site: Path, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[Vector] = []
    watch_encoding(monkeypatch, lambda values, _: encoded.append(values))
    reply = answer(a_message(an_announcement()), moves_by(bad), site=str(site))
    assert list(reply.content[RECORD]) == ["sealed"]
    (values,) = encoded
    assert values.tolist() == [0.0] * DIMENSION
    assert len(charges(site)) == 1


def test_arrays_that_training_leaves_as_they_were_are_named_in_the_nodes_log_alone(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def trains_the_head(message: Message, context: Context) -> Message:
        reply = moves_by(0.1)(message, context)
        reply.content.array_records["arrays"]["weight"] = Array(MODEL["weight"])
        return reply

    reply = answer(a_message(an_announcement()), trains_the_head, site=str(site))
    assert list(reply.content[RECORD]) == ["sealed"]
    (told,) = [line for line in caplog.messages if "did not change" in line]
    assert "training did not change 'weight'" in told
    assert "requires_grad=False" in told


def test_huge_updates_are_clipped(site: Path) -> None:
    reply = answer(a_message(an_announcement()), moves_by(1e38), site=str(site))
    assert list(reply.content[RECORD]) == ["sealed"]


def refusal(reply: Message) -> str:
    assert reply.has_error()
    assert reply.error.reason is not None
    return reply.error.reason


def never_trains(message: Message, context: Context) -> Message:
    raise AssertionError("a refused round is not trained")


def test_without_a_site_nothing_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SOTTOVOCE_SITE", raising=False)
    for node_config in ({}, {"site": str(tmp_path / "nowhere" / "site.toml")}):
        reason = refusal(answer(a_message(an_announcement()), never_trains, **node_config))
        assert "no site with a readable policy" in reason
        assert "Nothing was sent" in reason
        assert "nowhere" not in reason  # where a site keeps its files is nobody's business


def test_the_environment_may_name_the_site(
    site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SOTTOVOCE_SITE", str(tmp_path / "{partition-id}" / "site.toml"))
    reply = answer(a_message(an_announcement()), moves_by(0.1), **{"partition-id": "ada"})
    assert list(reply.content[RECORD]) == ["sealed"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"parameters": {"levels": 2, "noise_multiplier": 0.5}}, "'epsilon_total' is"),
        ({"mechanism": "gaussian", "parameters": {"noise_multiplier": 9.0}}, "is not allowed"),
        ({"adjacency": "replace-one"}, "adjacency replace-one is not allowed"),
        ({"cohort": 0}, "'smallest_cohort' is 1"),
        ({"client": "bob"}, "this site is 'ada', but the request is for 'bob'"),
        ({"num_examples": True}, "'public_counts' is false"),
        ({"mechanism": "nonsense"}, "unknown mechanism"),
        ({"dimension": 0}, "not valid"),
        ({"layout": "00"}, "other arrays than the plan"),
    ],
)
def test_what_the_policy_does_not_allow_is_refused(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    site = write_site(tmp_path, "ada", epsilon_total=5.0)
    message = a_message(an_announcement(**changes))
    assert reason in refusal(answer(message, never_trains, site=str(site)))
    assert charges(site) == []


def test_a_message_without_a_plan_is_refused(site: Path) -> None:
    assert "PrivateStrategy" in refusal(answer(a_message(), never_trains, site=str(site)))
    legacy = a_message(records={"fitins.parameters": ArrayRecord()})
    assert "legacy" in refusal(answer(legacy, never_trains, site=str(site)))
    unreadable = a_message(records={RECORD: ConfigRecord({"plan": "{"})})
    assert "cannot be read" in refusal(answer(unreadable, never_trains, site=str(site)))


def test_a_legacy_client_is_refused_with_a_sentence(site: Path) -> None:
    app = ClientApp(client_fn=lambda context: NumPyClient().to_client(), mods=[private_mod])
    reply = app(a_message(an_announcement()), a_context(site=str(site)))
    assert "legacy API (NumPyClient" in refusal(reply)
    assert charges(site) == []


@pytest.mark.parametrize("message_type", ["evaluate", "query"])
def test_replies_to_other_messages_are_private(site: Path, message_type: str) -> None:
    message = a_message(an_announcement(), message_type=message_type)
    reason = refusal(answer(message, never_trains, site=str(site)))
    assert f"'{message_type}' would be private data" in reason


def raises(message: Message, context: Context) -> Message:
    raise ValueError(SECRET)


def raises_ours(message: Message, context: Context) -> Message:
    raise PolicyError(SECRET)


def answers_an_error(message: Message, context: Context) -> Message:
    return Message(Error(0, SECRET), reply_to=message)


def answers_other_arrays(message: Message, context: Context) -> Message:
    record = ArrayRecord({SECRET: Array(np.zeros(2))})
    return Message(RecordDict({"arrays": record}), reply_to=message)


def answers_other_shapes(message: Message, context: Context) -> Message:
    record = ArrayRecord({name: Array(values.ravel()) for name, values in MODEL.items()})
    return Message(RecordDict({"arrays": record}), reply_to=message)


def answers_nothing(message: Message, context: Context) -> Message:
    return Message(RecordDict(), reply_to=message)


@pytest.mark.parametrize(
    "train",
    [
        raises,
        raises_ours,
        answers_an_error,
        answers_other_arrays,
        answers_other_shapes,
        answers_nothing,
    ],
)
def test_a_failing_app_tells_the_server_nothing_but_that(site: Path, train: Train) -> None:
    reply = an_app(train)(a_message(an_announcement()), a_context(site=str(site)))
    assert refusal(reply) == "sottovoce: failed: the node's log says why. Nothing was sent."
    assert SECRET.encode() not in message_to_proto(reply).SerializeToString()
    assert charges(site) == []


def test_counts_leave_where_both_sides_call_them_public(tmp_path: Path) -> None:
    site = write_site(tmp_path, "ada", public_counts=True)
    message = a_message(an_announcement(num_examples=True))
    record = answer(message, moves_by(0.1, num_examples=17), site=str(site)).content[RECORD]
    assert set(record) == {"sealed", "num-examples"}
    assert record["num-examples"] == 17


def test_asked_for_its_name_a_site_says_it_and_charges_nothing(site: Path) -> None:
    message = over_the_wire(
        Message(RecordDict({RECORD: ConfigRecord()}), dst_node_id=9, message_type="train")
    )
    reply = answer(message, never_trains, site=str(site))
    assert dict(reply.content[RECORD]) == {"name": "ada"}
    assert charges(site) == []


def test_asked_twice_it_sends_the_same_bytes_for_one_charge(site: Path) -> None:
    def sealed(step: float, **changes: Any) -> object:
        message = a_message(an_announcement(**changes))
        return answer(message, moves_by(step), site=str(site)).content[RECORD]["sealed"]

    first = sealed(0.1)
    assert sealed(-0.4) == first  # another model's answer would be another release
    assert len(charges(site)) == 1
    sealed(0.1, round=2)
    assert len(charges(site)) == 2
    with server_identity(run_id=RUN_ID + 1):  # the same app, run again
        sealed(0.1)
    assert len(charges(site)) == 3


def test_where_the_ledger_is_lost_the_server_hears_no_more_than_that(site: Path) -> None:
    answer(a_message(an_announcement()), moves_by(0.1), site=str(site))
    (site.parent / LEDGER_NAME).unlink()
    reason = refusal(answer(a_message(an_announcement(round=2)), never_trains, site=str(site)))
    assert NO_LEDGER in reason
    assert str(site.parent) not in reason
    assert not (site.parent / LEDGER_NAME).exists()
