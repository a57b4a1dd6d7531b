"""A Flower grid in this process: real messages, serialized both ways, and real ClientApps."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from sottovoce.deployment.orders import Order
from sottovoce.flower.mod import private_mod
from sottovoce.ledger import seal

RUN_ID, SERVER_NODE_ID = 77, 1
ORDER = Order(
    spec={}, run="r", round=1, client="ada", cohort=2, mechanism={}, classes=None, keep_from=1,
    vectors=(b"1234",),
)  # fmt: skip
Train = Callable[[Message, Context], Message]
# What a network, or an attacker in it, may do to the replies of a round.
Tamper = Callable[[list[Message]], list[Message]]

POLICY = """
name = "{name}"
[policy]
mechanisms = ["gauss_hermite"]
level = "client"
adjacency = "zero-out"
epsilon_per_round = 1000.0
epsilon_total = {epsilon_total}
delta = 1e-5
smallest_cohort = 1
public_counts = {public_counts}
"""


def write_site(
    folder: Path, name: str, *, epsilon_total: float = 1000.0, public_counts: bool = False
) -> Path:
    """A site's file that allows one bit, and how much of it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "site.toml"
    counts = str(public_counts).lower()
    path.write_text(POLICY.format(name=name, epsilon_total=epsilon_total, public_counts=counts))
    if not (folder / seal.SEAL_NAME).exists():
        seal.create(folder)
    return path


@contextmanager
def server_identity(run_id: int = RUN_ID) -> Iterator[None]:
    """What Flower knows about the process in which a ServerApp runs."""
    earlier = TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id
    TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = run_id, SERVER_NODE_ID, 5
    try:
        yield
    finally:
        TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = earlier


def a_context(run_config: Mapping[str, Any] | None = None, **node_config: Any) -> Context:
    return Context(
        run_id=RUN_ID,
        node_id=SERVER_NODE_ID,
        node_config=dict(node_config),
        state=RecordDict(),
        run_config=dict(run_config or {}),
    )


def over_the_wire(message: Message) -> Message:
    return message_from_proto(message_to_proto(message))


def moves_by(step: Any, *, num_examples: int = 10) -> Train:
    """An app's training: adds `step` to every floating-point array."""

    def train(message: Message, context: Context) -> Message:
        sent = message.content["arrays"]
        assert isinstance(sent, ArrayRecord)
        trained = {
            name: Array(np.asarray(values + step, dtype=values.dtype))
            if (values := array.numpy()).dtype.kind == "f"
            else Array(np.asarray(values + 1))
            for name, array in sent.items()
        }
        metrics = MetricRecord({"num-examples": num_examples, "train_loss": 3.25})
        content = RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics})
        return Message(content, reply_to=message)

    return train


def an_app(train: Train, *, mods: Any = (private_mod,)) -> ClientApp:
    app = ClientApp(mods=list(mods))
    app.train()(train)
    app.evaluate()(train)
    app.query()(train)
    return app


class FakeGrid(Grid):
    """Nodes by id, each an app and its context."""

    def __init__(
        self, nodes: Mapping[int, tuple[ClientApp, Context]], tamper: Tamper | None = None
    ) -> None:
        self.nodes = dict(nodes)
        self.tamper = tamper
        self.sent: list[Message] = []
        self.replies: list[Message] = []
        self.timeouts: list[float | None] = []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        replies = []
        self.timeouts.append(timeout)
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"message-{len(self.sent)}-{number}"
            arrived = over_the_wire(message)
            self.sent.append(over_the_wire(message))
            app, context = self.nodes[message.metadata.dst_node_id]
            try:
                reply = app(arrived, context)
            except Exception as error:  # as a SuperNode does
                reply = Message(Error(2, repr(error)), reply_to=arrived)
            replies.append(over_the_wire(reply))
        self.replies += [over_the_wire(reply) for reply in replies]
        return replies if self.tamper is None else self.tamper(replies)

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError
