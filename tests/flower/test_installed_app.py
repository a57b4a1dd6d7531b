"""A site's own Flower app: the site puts the mod before it, whatever the app's author did."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_grid import a_context, over_the_wire, server_identity, write_site
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from sottovoce.core.errors import PolicyError
from sottovoce.deployment.orders import Order
from sottovoce.deployment.site import Site
from sottovoce.flower import site_worker
from sottovoce.flower.announcement import RECORD, RoundAnnouncement
from sottovoce.flower.client import client_app, site_of
from sottovoce.flower.model_arrays import ModelLayout
from sottovoce.flower.site_worker import with_installed_app
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger

# It sends its arrays and its loss as they are: an author who thinks of no mod.
_APP = """
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
{imports}
app = ClientApp({mods})
no_app = 3

@app.train()
def train(message, context):
    metrics = MetricRecord({{"loss": 0.25, "num-examples": 7}})
    arrays = message.content["arrays"]
    return Message(RecordDict({{"arrays": arrays, "metrics": metrics}}), reply_to=message)

@app.evaluate()
def evaluate(message, context):
    metrics = MetricRecord({{"loss": 0.25}})
    return Message(RecordDict({{"metrics": metrics}}), reply_to=message)
"""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    site_worker._installed.cache_clear()
    with server_identity():
        yield


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def _site(folder: Path, app: str | None) -> Path:
    path = write_site(folder / "ada", "ada")
    if app is not None:
        path.write_text(f'app = "{app}"\n' + path.read_text())
    return path


def _model() -> ArrayRecord:
    return ArrayRecord({"weight": Array(np.zeros(32, dtype=np.float32))})


def _train_message(message_type: str = "train") -> Message:
    announcement = RoundAnnouncement(
        client="ada",
        round=1,
        rounds=2,
        cohort=3,
        mechanism="gauss_hermite",
        parameters={"levels": 2, "noise_multiplier": 2.0},
        dimension=32,
        clip_norm=1.0,
        adjacency="zero-out",
        layout=ModelLayout.of(_model()).digest(),
        num_examples=False,
    )
    content = RecordDict({"arrays": _model(), RECORD: announcement.record()})
    return over_the_wire(Message(content, dst_node_id=9, message_type=message_type))


def _never(order: Order, site: Site) -> list[bytes]:
    raise AssertionError("this is no order")


def _answer(message: Message, context: Context) -> Message:
    return over_the_wire(with_installed_app(client_app(_never), site_of)(message, context))


def _charges(site: Path) -> int:
    path = site.parent / LEDGER_NAME
    if not path.exists():
        return 0
    with Ledger(path) as ledger:
        return ledger.num_charges


def test_only_sealed_bytes_of_it_leave_and_they_are_charged(modules: Path) -> None:
    (modules / "careless_a.py").write_text(_APP.format(imports="", mods=""))
    site = _site(modules, "careless_a:app")
    reply = _answer(_train_message(), a_context(site=str(site)))
    assert not reply.has_error()
    assert list(reply.content) == [RECORD]
    assert list(reply.content[RECORD]) == ["sealed"]
    assert _charges(site) == 1


def test_what_it_says_to_an_evaluation_stays(modules: Path) -> None:
    (modules / "careless_b.py").write_text(_APP.format(imports="", mods=""))
    site = _site(modules, "careless_b:app")
    reply = _answer(_train_message("evaluate"), a_context(site=str(site)))
    assert reply.has_error()
    assert _charges(site) == 0


def test_a_site_without_an_app_answers_orders_only(modules: Path) -> None:
    site = _site(modules, None)
    reply = _answer(_train_message(), a_context(site=str(site)))
    assert reply.has_error()
    assert _charges(site) == 0


@pytest.mark.parametrize("part", ["order", "step"])
def test_an_order_and_a_step_of_a_secure_sum_never_reach_the_app(modules: Path, part: str) -> None:
    site = _site(modules, "nowhere:app")  # never looked for
    content = RecordDict({RECORD: ConfigRecord({part: b"{}"})})
    message = over_the_wire(Message(content, dst_node_id=9, message_type="train"))
    reply = _answer(message, a_context(site=str(site)))
    assert reply.has_error()
    assert part in str(reply.error.reason)


@pytest.mark.parametrize(
    ("reference", "what"),
    [
        ("nowhere_at_all:app", "cannot be loaded"),
        ("careless_c:other", "cannot be loaded"),
        ("careless_c", "cannot be loaded"),
        ("careless_c:no_app", "must be a ClientApp"),
    ],
)
def test_an_app_that_is_none_is_an_error(modules: Path, reference: str, what: str) -> None:
    (modules / "careless_c.py").write_text(_APP.format(imports="", mods=""))
    site = _site(modules, reference)
    with pytest.raises(PolicyError, match=what):
        _answer(_train_message(), a_context(site=str(site)))
    assert _charges(site) == 0


def test_two_mods_would_each_want_the_plan(modules: Path) -> None:
    imports = "from sottovoce.flower.mod import private_mod"
    (modules / "careful.py").write_text(_APP.format(imports=imports, mods="mods=[private_mod]"))
    with pytest.raises(PolicyError, match="must not contain private_mod"):
        _answer(_train_message(), a_context(site=str(_site(modules, "careful:app"))))
