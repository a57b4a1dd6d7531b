"""Flower's strategies on private bits: what they average, what is dropped, what is charged."""

import hashlib
import logging
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_grid import (
    RUN_ID,
    FakeGrid,
    Tamper,
    a_context,
    an_app,
    moves_by,
    over_the_wire,
    server_identity,
    write_site,
)
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import ConfigError, DeploymentError, SottovoceError, UnknownNameError
from sottovoce.flower import announcement as introductions
from sottovoce.flower.announcement import RECORD, read_announcement
from sottovoce.flower.model_arrays import ModelLayout
from sottovoce.flower.strategy import PrivateStrategy
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.ledger.records import Budget
from sottovoce.protocol.message import HEADER_BYTES, open_sealed

pytestmark = pytest.mark.usefixtures("flower_server")

CONFIG: Mapping[str, Any] = {
    "num-server-rounds": 2,
    "sottovoce.epsilon": 8.0,
    "sottovoce.delta": 1e-5,
    "sottovoce.clip-norm": 1.0,
}
DIMENSION = 20
NUM_CLIENTS = 8


def the_model() -> ArrayRecord:
    return ArrayRecord(
        {
            "weight": Array(np.linspace(-1.0, 1.0, 16, dtype=np.float32).reshape(4, 4)),
            "batches": Array(np.array(3)),
            "bias": Array(np.zeros(4)),
        }
    )


@dataclass
class Federation:
    """Clients with sites of their own, by node id."""

    folder: Path
    grid: FakeGrid

    def run(self, strategy: Strategy, num_rounds: int = 2, **changes: Any) -> Result:
        wrapped = PrivateStrategy(strategy, a_context({**CONFIG, **changes}))
        return wrapped.start(self.grid, the_model(), num_rounds=num_rounds)

    def charges(self, node: int) -> int:
        path = self.folder / f"site-{node}" / LEDGER_NAME
        if not path.exists():
            return 0
        with Ledger(path) as ledger:
            return ledger.num_charges


def a_federation(
    tmp_path: Path,
    *,
    num_clients: int = NUM_CLIENTS,
    tamper: Tamper | None = None,
    public_counts: bool = False,
) -> Federation:
    nodes = {}
    for node in range(100, 100 + num_clients):
        site = write_site(tmp_path / f"site-{node}", f"site-{node}", public_counts=public_counts)
        app = an_app(moves_by(0.01 * (node - 100), num_examples=node))
        nodes[node] = (app, a_context(site=str(site)))
    return Federation(folder=tmp_path, grid=FakeGrid(nodes, tamper))


class Watching(FedAvg):
    """FedAvg that keeps what it is given."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.contents: list[list[RecordDict]] = []

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        self.contents.append([reply.content for reply in replies if reply.has_content()])
        return super().aggregate_train(server_round, replies)


def plans_and_messages(grid: FakeGrid, round_number: int) -> dict[int, tuple[Any, bytes]]:
    """By node: what was announced in a round, and what was sealed, before anybody tampered."""
    announced = {}
    for sent in grid.sent:
        record = sent.content.config_records[RECORD]
        if "plan" in record and read_announcement(record).round == round_number:
            announced[sent.metadata.message_id] = read_announcement(record)
    found = {}
    for reply in grid.replies:
        announcement = announced.get(reply.metadata.reply_to_message_id)
        if announcement is not None and reply.has_content():
            sealed = reply.content.config_records[RECORD]["sealed"]
            assert isinstance(sealed, bytes)
            found[reply.metadata.src_node_id] = (announcement, sealed)
    return found


def decoded(announcement: Any, sealed: bytes) -> Any:
    asked = announcement.asked(f"flower-{RUN_ID}")
    codes = open_sealed(sealed, asked.plan.envelope(asked.part, 0))
    assert asked.plan.rotation is not None
    return asked.plan.rotation.inverse(asked.part.mechanism.decode(codes))


def expected_model(
    grid: FakeGrid, base: ArrayRecord, round_number: int, *, without: Any = ()
) -> Any:
    """The plain mean of what was sealed in a round, added to a model; by hand."""
    updates = [
        decoded(*one)
        for node, one in plans_and_messages(grid, round_number).items()
        if node not in without
    ]
    return ModelLayout.of(base).vector(base) + np.mean(updates, axis=0)


WORKING: dict[str, Callable[[], Strategy]] = {
    "FedAvg": flower.FedAvg,
    "FedAvgM": lambda: flower.FedAvgM(server_momentum=0.9),
    "FedProx": lambda: flower.FedProx(proximal_mu=0.1),
    "FedAdam": flower.FedAdam,
    "FedYogi": flower.FedYogi,
    "FedAdagrad": flower.FedAdagrad,
    "FedMedian": flower.FedMedian,
    "FedTrimmedAvg": flower.FedTrimmedAvg,
    "Krum": lambda: flower.Krum(num_malicious_nodes=1),
    "MultiKrum": lambda: flower.MultiKrum(num_malicious_nodes=1, num_nodes_to_select=3),
    "Bulyan": lambda: flower.Bulyan(num_malicious_nodes=1),
}


def alone(strategy: Strategy, grid: FakeGrid) -> ArrayRecord:
    """What a strategy makes of two rounds without us, on models decoded here from what was sent."""
    model = the_model()
    layout = ModelLayout.of(model)
    for round_number in (1, 2):
        list(strategy.configure_train(round_number, model, ConfigRecord(), grid))
        replies = [
            Message(
                RecordDict(
                    {
                        "arrays": layout.moved(model, decoded(*one)),
                        "metrics": MetricRecord({"num-examples": 1.0}),
                    }
                ),
                dst_node_id=1,
                message_type="train",
            )
            for one in plans_and_messages(grid, round_number).values()
        ]
        arrays, _ = strategy.aggregate_train(round_number, replies)
        assert arrays is not None
        model = layout.typed(arrays)
    return model


def as_lists(record: ArrayRecord) -> dict[str, Any]:
    return {name: array.numpy().tolist() for name, array in record.items()}


@pytest.mark.parametrize("name", WORKING)
def test_every_strategy_that_fits_runs_as_it_is(tmp_path: Path, name: str) -> None:
    federation = a_federation(tmp_path)
    result = federation.run(WORKING[name](), num_rounds=2)
    assert ModelLayout.of(result.arrays) == ModelLayout.of(the_model())
    assert as_lists(result.arrays) == as_lists(alone(WORKING[name](), federation.grid))
    for round_number in (1, 2):
        metrics = result.train_metrics_clientapp[round_number]
        assert metrics["clients-asked"] == metrics["clients-answered"] == NUM_CLIENTS
        assert metrics["replies-dropped"] == 0
        assert metrics["bytes-up"] == NUM_CLIENTS * (HEADER_BYTES + 3)
    last = result.train_metrics_clientapp[2]["epsilon"]
    first = result.train_metrics_clientapp[1]["epsilon"]
    assert isinstance(first, float)
    assert isinstance(last, float)
    assert 0.0 < first < last <= 8.0
    assert last > 7.99  # calibrated for these two rounds


def test_proximal_weights_go_down_with_the_plan(tmp_path: Path) -> None:
    federation = a_federation(tmp_path)
    federation.run(WORKING["FedProx"](), num_rounds=1)
    assert federation.grid.sent[-1].content.config_records["config"]["proximal-mu"] == 0.1


def test_the_strategy_averages_exactly_what_was_sealed(tmp_path: Path) -> None:
    federation = a_federation(tmp_path)
    watching = Watching()
    result = federation.run(watching, num_rounds=1)
    start = the_model()
    assert ModelLayout.of(start).vector(result.arrays) == pytest.approx(
        expected_model(federation.grid, start, 1), rel=1e-6, abs=1e-6
    )
    for content in watching.contents[0]:
        assert list(content) == ["arrays", "metrics"]
        assert dict(content["metrics"]) == {"num-examples": 1.0}
        assert ModelLayout.of(content.array_records["arrays"]) == ModelLayout.of(start)


def sealed_of(message: Message) -> bytes:
    sealed = message.content.config_records[RECORD]["sealed"]
    assert isinstance(sealed, bytes)
    return sealed


def with_sealed(message: Message, sealed: object) -> None:
    message.content = RecordDict({RECORD: ConfigRecord({"sealed": sealed})})  # type: ignore[dict-item]


def is_training(replies: list[Message]) -> bool:
    return any("sealed" in one.content.config_records.get(RECORD, {}) for one in replies)


def flipped(position: int) -> Any:
    def flip(message: Message) -> None:
        sealed = bytearray(sealed_of(message))
        sealed[position] ^= 1
        with_sealed(message, bytes(sealed))

    return flip


def forged(offset: int, form: str, value: object) -> Any:
    """A header field with another value, and a checksum that fits it."""

    def forge(message: Message) -> None:
        sealed = bytearray(sealed_of(message))
        struct.pack_into(form, sealed, offset, value)
        digest = hashlib.blake2b(bytes(sealed[:36]), digest_size=8)
        digest.update(bytes(sealed[HEADER_BYTES:]))
        sealed[36:44] = digest.digest()
        with_sealed(message, bytes(sealed))

    return forge


TAMPERED: dict[str, Any] = {
    "magic": forged(0, "<4s", b"STVX"),
    "version": forged(4, "<B", 2),
    "bits": forged(5, "<B", 2),
    "uplink": forged(6, "<B", 1),
    "reserved": forged(7, "<B", 1),
    "round": forged(8, "<I", 2),
    "dimension": forged(12, "<Q", 21),
    "hash": forged(20, "<16s", b"x" * 16),
    "checksum": flipped(40),
    "payload": flipped(HEADER_BYTES),
    "padding": forged(HEADER_BYTES + 2, "<B", 255),
    "truncated": lambda m: with_sealed(m, sealed_of(m)[:-1]),
    "header only": lambda m: with_sealed(m, sealed_of(m)[:HEADER_BYTES]),
    "empty": lambda m: with_sealed(m, b""),
    "oversized": lambda m: with_sealed(m, sealed_of(m) + bytes(10_000)),
    "text": lambda m: with_sealed(m, "sealed"),
    "no record": lambda m: setattr(m, "content", RecordDict()),
    "a model in the clear": lambda m: setattr(
        m,
        "content",
        RecordDict({"arrays": the_model(), "metrics": MetricRecord({"num-examples": 10**9})}),
    ),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_what_is_not_as_announced_is_dropped_and_the_rest_is_exact(
    tmp_path: Path, what: str
) -> None:
    def tamper(replies: list[Message]) -> list[Message]:
        if is_training(replies):
            TAMPERED[what](replies[2])
        return replies

    federation = a_federation(tmp_path, tamper=tamper)
    result = federation.run(FedAvg(), num_rounds=1)
    metrics = result.train_metrics_clientapp[1]
    assert (metrics["clients-answered"], metrics["replies-dropped"]) == (NUM_CLIENTS - 1, 1)
    bad = list(plans_and_messages(federation.grid, 1))[2]
    start = the_model()
    assert ModelLayout.of(start).vector(result.arrays) == pytest.approx(
        expected_model(federation.grid, start, 1, without=[bad]), rel=1e-6, abs=1e-6
    )


def test_a_message_sent_before_a_twin_or_a_stranger_is_dropped(tmp_path: Path) -> None:
    kept: list[bytes] = []

    def tamper(replies: list[Message]) -> list[Message]:
        if not is_training(replies):
            return replies
        by_node = sorted(replies, key=lambda one: one.metadata.src_node_id)
        if not kept:
            kept.append(sealed_of(by_node[0]))
            twin, stranger = over_the_wire(by_node[1]), over_the_wire(by_node[2])
            stranger.metadata.__dict__["_src_node_id"] = 999
            return [*by_node, twin, stranger]
        with_sealed(by_node[0], kept[0])  # round 1's message in round 2
        with_sealed(by_node[1], sealed_of(by_node[2]))  # another client's
        return by_node

    federation = a_federation(tmp_path, tamper=tamper)
    result = federation.run(FedAvg(), num_rounds=2)
    first, second = (result.train_metrics_clientapp[number] for number in (1, 2))
    assert (first["clients-answered"], first["replies-dropped"]) == (NUM_CLIENTS, 2)
    assert (second["clients-answered"], second["replies-dropped"]) == (NUM_CLIENTS - 2, 2)


def test_round_one_is_exact_with_twins_and_strangers(tmp_path: Path) -> None:
    def tamper(replies: list[Message]) -> list[Message]:
        if not is_training(replies):
            return replies
        stranger = over_the_wire(replies[0])
        stranger.metadata.__dict__["_src_node_id"] = 999
        return [stranger, *replies, over_the_wire(replies[0])]

    federation = a_federation(tmp_path, tamper=tamper)
    result = federation.run(FedAvg(), num_rounds=1)
    start = the_model()
    assert ModelLayout.of(start).vector(result.arrays) == pytest.approx(
        expected_model(federation.grid, start, 1), rel=1e-6, abs=1e-6
    )


def test_names_are_bound_to_the_first_node_that_claims_them(tmp_path: Path) -> None:
    federation = a_federation(tmp_path)
    twin = write_site(tmp_path / "twin", "site-100")
    federation.grid.nodes[200] = (an_app(moves_by(0.5)), a_context(site=str(twin)))
    result = federation.run(FedAvg(), num_rounds=2)
    assert result.train_metrics_clientapp[2]["clients-asked"] == NUM_CLIENTS
    with Ledger(tmp_path / "twin" / LEDGER_NAME) as ledger:
        asked_twin = ledger.num_charges
    assert {asked_twin, federation.charges(100)} == {0, 2}


def test_nodes_that_cannot_answer_are_left_out_or_counted(tmp_path: Path) -> None:
    """No site, no mod: not asked. A policy that runs out: asked, charged here, and not answered."""
    federation = a_federation(tmp_path)
    nodes = federation.grid.nodes
    nodes[200] = (an_app(moves_by(0.5)), a_context())
    nodes[201] = (an_app(moves_by(0.5), mods=()), a_context())
    poor = write_site(tmp_path / "poor", "poor", epsilon_total=0.1)
    nodes[202] = (an_app(moves_by(0.5)), a_context(site=str(poor)))
    book = tmp_path / "server.sqlite"
    result = federation.run(FedAvg(), num_rounds=1, **{"sottovoce.ledger": str(book)})
    metrics = result.train_metrics_clientapp[1]
    assert (metrics["clients-asked"], metrics["clients-answered"]) == (NUM_CLIENTS + 1, NUM_CLIENTS)
    with Ledger(tmp_path / "poor" / LEDGER_NAME) as ledger:
        assert ledger.num_charges == 0
    with Ledger(book) as ledger:
        assert sorted(ledger.clients()) == sorted(
            [f"site-{node}" for node in range(100, 108)] + ["poor"]
        )


@pytest.mark.parametrize(("pause", "times"), [(600.0, 1), (0.0, 3)])
def test_a_silent_node_is_waited_for_briefly_and_not_in_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause: float, times: int
) -> None:
    def silenced(replies: list[Message]) -> list[Message]:
        return [one for one in replies if one.metadata.src_node_id != 101]

    monkeypatch.setattr(introductions, "SILENT_SECONDS", pause)
    federation = a_federation(tmp_path, num_clients=4, tamper=silenced)
    result = federation.run(FedAvg(), num_rounds=3)
    asked = [one for one in federation.grid.sent if one.metadata.dst_node_id == 101]
    assert len(asked) == times
    waited = [seconds for seconds in federation.grid.timeouts if seconds != 3600]
    assert waited == [120.0] * times
    for number in (1, 2, 3):
        assert result.train_metrics_clientapp[number]["clients-answered"] == 3


def with_little_budget(book: Path, clients: Iterable[str]) -> None:
    """Budgets in the server's ledger that do not hold a single round."""
    budget = Budget(unit=Unit.CLIENT, adjacency=Adjacency.ZERO_OUT, epsilon=0.1, delta=1e-5)
    with Ledger(book, create=True) as ledger:
        for client in clients:
            ledger.set_budget(client, budget)


def test_whichever_client_is_out_of_budget_in_the_servers_ledger_is_not_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    book = tmp_path / "server.sqlite"
    with_little_budget(book, ["site-101", "site-104"])
    federation = a_federation(tmp_path)
    result = federation.run(FedAvg(), num_rounds=1, **{"sottovoce.ledger": str(book)})
    metrics = result.train_metrics_clientapp[1]
    assert metrics["clients-asked"] == metrics["clients-answered"] == NUM_CLIENTS - 2
    asked = plans_and_messages(federation.grid, 1)
    assert set(asked) == set(range(100, 108)) - {101, 104}
    assert {announcement.cohort for announcement, _ in asked.values()} == {NUM_CLIENTS - 2}
    assert [federation.charges(node) for node in (101, 104)] == [0, 0]
    told = [one.getMessage() for one in caplog.records if "not asked" in one.getMessage()]
    assert len(told) == 2
    assert all("budget" in one for one in told)
    assert "site-101" in sorted(told)[0]


def test_where_no_one_has_budget_no_one_is_asked_and_the_model_stays(tmp_path: Path) -> None:
    book = tmp_path / "server.sqlite"
    with_little_budget(book, [f"site-{node}" for node in range(100, 108)])
    federation = a_federation(tmp_path)
    result = federation.run(FedAvg(), num_rounds=2, **{"sottovoce.ledger": str(book)})
    assert all("arrays" not in sent.content for sent in federation.grid.sent)
    assert result.train_metrics_clientapp == {}
    with Ledger(book) as ledger:
        assert ledger.num_charges == 0


def test_no_one_to_charge_is_an_error_and_nothing_is_asked(tmp_path: Path) -> None:
    federation = a_federation(tmp_path, num_clients=2)
    federation.grid.nodes = {
        node: (an_app(moves_by(0.5)), a_context()) for node in federation.grid.nodes
    }
    with pytest.raises(DeploymentError, match="private_mod"):
        federation.run(FedAvg(), num_rounds=1)
    assert all("arrays" not in sent.content for sent in federation.grid.sent)


def test_the_servers_ledger_is_charged_before_anything_is_asked(tmp_path: Path) -> None:
    book = tmp_path / "server.sqlite"
    counts: list[int] = []

    def tamper(replies: list[Message]) -> list[Message]:
        if is_training(replies):
            raise KeyboardInterrupt
        with Ledger(book) as ledger:
            counts.append(ledger.num_charges)
        return replies

    federation = a_federation(tmp_path, tamper=tamper)
    with pytest.raises(KeyboardInterrupt):
        federation.run(FedAvg(), num_rounds=2, **{"sottovoce.ledger": str(book)})
    assert counts == [0]  # asked for names, nobody was charged
    with Ledger(book) as ledger:
        assert ledger.num_charges == NUM_CLIENTS
    assert [federation.charges(node) for node in range(100, 108)] == [1] * NUM_CLIENTS


def test_both_ledgers_hold_at_least_what_was_sent_run_after_run(tmp_path: Path) -> None:
    book = tmp_path / "server.sqlite"
    federation = a_federation(tmp_path)
    federation.run(FedAvg(), num_rounds=2, **{"sottovoce.ledger": str(book)})
    with server_identity(run_id=RUN_ID + 1):
        context = a_context({**CONFIG, "sottovoce.ledger": str(book)})
        context.run_id = RUN_ID + 1
        again = PrivateStrategy(FedAvg(), context)
        result = again.start(federation.grid, the_model(), num_rounds=2)
    assert result.train_metrics_clientapp[2]["replies-dropped"] == 0
    with Ledger(book) as ledger:
        theirs = {name: ledger.history(name) for name in ledger.clients()}
    for node in range(100, 108):
        with Ledger(federation.folder / f"site-{node}" / LEDGER_NAME) as ledger:
            assert ledger.history(f"site-{node}") == theirs[f"site-{node}"]
            assert sum(count for _, count in ledger.history(f"site-{node}")) == 4
    spent = result.train_metrics_clientapp[2]["epsilon"]
    assert isinstance(spent, float)
    assert spent > 8.0  # two runs cost more than one


def test_declared_counts_are_weights(tmp_path: Path) -> None:
    federation = a_federation(tmp_path, public_counts=True)
    watching = Watching(weighted_by_key="n")
    federation.run(watching, num_rounds=1, **{"sottovoce.public-num-examples": True})
    weights = sorted(content.metric_records["metrics"]["n"] for content in watching.contents[0])
    assert weights == [float(node) for node in range(100, 108)]


def test_absurd_counts_are_dropped(tmp_path: Path) -> None:
    def tamper(replies: list[Message]) -> list[Message]:
        if is_training(replies):
            for reply, count in zip(replies, (0, -1, 2**40, 1.5, True), strict=False):
                content = reply.content.config_records[RECORD]
                reply.content = RecordDict(
                    {RECORD: ConfigRecord({"sealed": content["sealed"], "num-examples": count})}
                )
        return replies

    federation = a_federation(tmp_path, tamper=tamper, public_counts=True)
    result = federation.run(FedAvg(), num_rounds=1, **{"sottovoce.public-num-examples": True})
    assert result.train_metrics_clientapp[1]["replies-dropped"] == 5


def test_no_one_is_asked_to_evaluate(tmp_path: Path) -> None:
    federation = a_federation(tmp_path)
    result = federation.run(FedAvg(fraction_evaluate=1.0), num_rounds=1)
    assert {sent.metadata.message_type for sent in federation.grid.sent} == {"train"}
    assert result.evaluate_metrics_clientapp == {}


class Personal(Watching):
    """Sends every node a model of its own."""

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        for message in super().configure_train(server_round, arrays, config, grid):
            by = np.full(DIMENSION, float(message.metadata.dst_node_id))
            own = ModelLayout.of(arrays).moved(arrays, by)
            message.content = RecordDict({"arrays": own, "config": config})
            yield message


def test_a_model_of_ones_own_comes_back_moved(tmp_path: Path) -> None:
    federation = a_federation(tmp_path, num_clients=3)
    personal = Personal()
    federation.run(personal, num_rounds=1)
    layout = ModelLayout.of(the_model())
    sealed = plans_and_messages(federation.grid, 1)
    for (node, one), content in zip(sealed.items(), personal.contents[0], strict=True):
        own = layout.moved(the_model(), np.full(DIMENSION, float(node)))
        expected = as_lists(layout.moved(own, decoded(*one)))
        assert as_lists(content.array_records["arrays"]) == expected


class OtherShapes(FedAvg):
    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        del arrays["bias"]
        return super().configure_train(server_round, arrays, config, grid)


class OwnStart(FedAvg):
    def start(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def test_what_cannot_work_is_refused_with_a_way_out(tmp_path: Path) -> None:
    plain = FedAvg()
    context = a_context(CONFIG)
    noisy = flower.DifferentialPrivacyServerSideFixedClipping(plain, 1.0, 1.0, 5)
    adaptive = flower.DifferentialPrivacyClientSideAdaptiveClipping(plain, 0.1, 50)
    for strategy, reason in (
        (noisy, "noised twice"),
        (adaptive, "noised twice"),
        (flower.QFedAvg(client_learning_rate=0.1), "losses"),
        (flower.FedXgbBagging(), "trees"),
        (flower.FedXgbCyclic(), "trees"),
        (LegacyFedAvg(), "legacy"),
        (SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2), "SecAgg"),
        (OwnStart(), "start"),
    ):
        with pytest.raises(ConfigError, match=reason):
            PrivateStrategy(strategy, context)  # type: ignore[arg-type]
    wrapped = flower.DifferentialPrivacyServerSideFixedClipping(
        PrivateStrategy(plain, context), 1.0, 1.0, 5
    )
    federation = a_federation(tmp_path, num_clients=2)
    with pytest.raises(ConfigError, match="outermost wrapper"):
        wrapped.start(federation.grid, the_model(), num_rounds=1)
    with pytest.raises(ConfigError, match="differ from the initial"):
        federation.run(OtherShapes())
    with pytest.raises(ConfigError, match="start"):
        PrivateStrategy(PrivateStrategy(plain, context), context)

    def needs_losses(contents: list[RecordDict], key: str) -> MetricRecord:
        return MetricRecord(
            {"loss": float(np.mean([one["metrics"]["train_loss"] for one in contents]))}
        )

    with pytest.raises(ConfigError, match="train_metrics_aggr_fn"):
        federation.run(FedAvg(train_metrics_aggr_fn=needs_losses))


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"sottovoce.epsilon": None}, ConfigError, "'sottovoce.epsilon'"),
        ({"sottovoce.epsilon": -1.0}, SottovoceError, "epsilon"),
        ({"sottovoce.clip-norm": "big"}, SottovoceError, "clip-norm"),
        ({"sottovoce.clip-norm": "auto"}, SottovoceError, "for adaptive clipping train a spec"),
        ({"sottovoce.epsilom": 1.0}, UnknownNameError, "did you mean 'epsilon'"),
        ({"sottovoce.mechanism": "signum"}, UnknownNameError, "mechanism"),
        ({"sottovoce.mechanism": "mvu"}, SottovoceError, "clipped in L2"),
        ({"sottovoce.mechanism": "gaussian", "sottovoce.bits": 1}, ConfigError, "bits"),
        ({"sottovoce.bits": 0}, SottovoceError, "bits"),
        ({"sottovoce.parameters.noise": 1.0}, UnknownNameError, "noise"),
        ({"sottovoce.public-num-examples": "yes"}, ConfigError, "true or false"),
        ({"sottovoce.core.adjacency": "none"}, UnknownNameError, "adjacency"),
    ],
)
def test_a_run_config_that_means_nothing_is_refused(
    changes: dict[str, Any], error: type[Exception], reason: str
) -> None:
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    with pytest.raises(error, match=reason):
        PrivateStrategy(FedAvg(), a_context(config))


def test_bits_and_parameters_are_read_from_the_run_config(tmp_path: Path) -> None:
    def levels(**changes: Any) -> int:
        strategy = PrivateStrategy(FedAvg(), a_context({**CONFIG, **changes}))
        return strategy.settings.calibrated(DIMENSION, 2).code_format().levels  # type: ignore[union-attr]

    assert levels() == 2
    assert levels(**{"sottovoce.bits": 3}) == 8
    assert levels(**{"sottovoce.parameters.levels": 5}) == 5
    assert levels(**{"sottovoce.bits": "auto"}) > 2
    assert levels(**{"sottovoce.mechanism": "discrete_gaussian", "sottovoce.bits": 8}) <= 256
