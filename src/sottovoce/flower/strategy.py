"""A strategy of Flower's around which only private bits arrive.

    strategy = PrivateStrategy(FedAvg(), context)
    strategy.start(grid, arrays, num_rounds=30)

The strategy inside chooses nodes and averages as it always did: what it gets are models, decoded.
Clients need `private_mod`. The settings are read from the run config (`private_settings`).

Strategies of Flower's that cannot run on private bits, each with the reason and a way out.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedXgbBagging,
    FedXgbCyclic,
    QFedAvg,
    Result,
    Strategy,
)
from flwr.supercore import log

from sottovoce.core.display import show_epsilon
from sottovoce.core.errors import ConfigError, WireError
from sottovoce.core.randomness import SystemRandomness
from sottovoce.deployment.post import announce
from sottovoce.deployment.settings import settings_of
from sottovoce.flower.announcement import (
    NUM_EXAMPLES,
    RECORD,
    SEALED,
    Announcement,
    Introductions,
    part_of,
    round_plan,
    run_name,
)
from sottovoce.flower.model_arrays import Layout
from sottovoce.ledger.ledger import Ledger
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.protocol.charging import charge_round
from sottovoce.protocol.plan import RoundPlan
from sottovoce.protocol.server import RoundServer

_TWO_NOISES = (
    "updates would be clipped and noised twice; take the strategy inside it, and set "
    "'sottovoce.mechanism' and 'sottovoce.epsilon' in the run config"
)
_TREES = "trees are no vectors, so they have no difference to clip; no private form is offered"

_UNFIT: dict[type[Strategy], str] = {
    DifferentialPrivacyClientSideAdaptiveClipping: _TWO_NOISES,
    DifferentialPrivacyClientSideFixedClipping: _TWO_NOISES,
    DifferentialPrivacyServerSideAdaptiveClipping: _TWO_NOISES,
    DifferentialPrivacyServerSideFixedClipping: _TWO_NOISES,
    QFedAvg: "it weights clients by their losses, which do not leave them; use FedAvg",
    FedXgbBagging: _TREES,
    FedXgbCyclic: _TREES,
}


def check_fits(strategy: object) -> None:
    """Refuse, before anything starts, what would not do what it says."""
    name = type(strategy).__name__
    if not isinstance(strategy, Strategy):
        raise ConfigError(
            f"{name} is not a strategy from flwr.serverapp.strategy; Flower's legacy strategies "
            "and workflows, SecAgg+ among them, cannot be wrapped"
        )
    for unfit, reason in _UNFIT.items():
        if isinstance(strategy, unfit):
            raise ConfigError(f"PrivateStrategy cannot wrap {name}: {reason}")
    if type(strategy).start is not Strategy.start:
        raise ConfigError(
            f"PrivateStrategy cannot wrap {name}: it has a start() of its own, which would not be "
            "called; override configure_train and aggregate_train instead"
        )


_MAX_EXAMPLES = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What holds from the first round to the last, and whose name each node has claimed."""

    layout: Layout
    mechanism: Mechanism
    rounds: int
    ledger: Path
    timeout_seconds: float
    introductions: Introductions = field(default_factory=Introductions)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A round under way: by node, the client that it is and the model that it was sent."""

    plan: RoundPlan
    clients: dict[int, str]
    models: dict[int, tuple[str, ArrayRecord]]


class PrivateStrategy(Strategy):
    """Wraps `strategy`, so that clients send private bits and the ledger knows of them."""

    def __init__(self, strategy: Strategy, context: Context) -> None:
        check_fits(strategy)
        self.strategy = strategy
        self.settings = settings_of(context.run_config)
        self._run_name = run_name(context.run_id)
        self._weight_key = str(getattr(strategy, "weighted_by_key", NUM_EXAMPLES))
        self._run: _Run | None = None
        self._asked: _Asked | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds; the noise is calibrated once, for clients that take part in each."""
        layout = Layout.of(initial_arrays)
        mechanism = self.settings.calibrated(layout.dimension, num_rounds)
        with contextlib.ExitStack() as stack:
            ledger = self.settings.ledger
            if ledger is None:
                ledger = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "ledger.sqlite"
            Ledger(ledger, create=True).close()
            self._run = _Run(
                layout=layout,
                mechanism=mechanism,
                rounds=num_rounds,
                ledger=ledger,
                timeout_seconds=timeout,
            )
            try:
                return super().start(
                    grid,
                    initial_arrays,
                    num_rounds,
                    timeout,
                    train_config,
                    evaluate_config,
                    evaluate_fn,
                )
            finally:
                self._run = self._asked = None

    def summary(self) -> None:
        """Log what is promised, then the strategy's own summary."""
        settings, mechanism = self.settings, self._running().mechanism
        given = registry.parameters_of(mechanism)
        log(INFO, "\t├──> Sottovoce:")
        log(
            INFO,
            "\t│\t├── epsilon %g at delta %g over all rounds (a client, %s)",
            settings.epsilon,
            settings.delta,
            settings.adjacency,
        )
        log(INFO, "\t│\t├── %s %s, clip norm %g", settings.mechanism, given, settings.clip_norm)
        log(INFO, "\t│\t└── Ledger: %s", settings.ledger or "for this run only")
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The strategy's messages, each with its plan, charged before they are sent."""
        run = self._running()
        self._asked = None
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        models = _models_in(messages, run.layout)
        if len(models) < len(messages):
            raise ConfigError("the strategy asks a node twice in a round; ask each once")
        run.introductions.meet(messages, grid, timeout_seconds=run.timeout_seconds)
        names = run.introductions.names
        clients = {node: names[node] for node in models if node in names}
        if not clients:
            return []
        with Ledger(run.ledger) as ledger:
            refused = charge_round(
                self._plan(server_round, clients), ledger, SystemRandomness(), uplinks=1
            )
        for one in refused:
            log(WARNING, "round %d: not asked: %s", server_round, one.error)
        unpaid = {one.part.client for one in refused}
        clients = {node: client for node, client in clients.items() if client not in unpaid}
        if not clients:
            return []
        plan = self._plan(server_round, clients)
        self._asked = _Asked(plan=plan, clients=clients, models=models)
        announce(plan.largest_message_bytes, seconds=run.timeout_seconds)
        return [
            self._announced(message, clients[node], plan)
            for message in messages
            if (node := message.metadata.dst_node_id) in clients
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Open every reply, drop what is not what was asked for, and let the strategy average."""
        run, asked = self._running(), self._asked
        self._asked = None  # a round is aggregated once
        if asked is None:
            return self.strategy.aggregate_train(server_round, [])
        server = RoundServer(asked.plan, dimension=run.layout.dimension, keeps_each=True)
        accepted: list[tuple[Message, float]] = []
        failed: list[Message] = []
        num_dropped = 0
        for reply in replies:
            if reply.has_error():
                failed.append(reply)
                continue
            try:
                accepted.append((reply, self._receive(reply, asked, server)))
            except WireError as error:
                num_dropped += 1
                log(WARNING, "node %d: dropped: %s", reply.metadata.src_node_id, error)
        for (reply, weight), (_, update) in zip(accepted, server.each() or [], strict=True):
            key, model = asked.models[reply.metadata.src_node_id]
            metrics = MetricRecord({self._weight_key: weight})
            reply.content = RecordDict({key: run.layout.moved(model, update), "metrics": metrics})
        arrays, metrics = self._averaged(server_round, [*(one for one, _ in accepted), *failed])
        with Ledger(run.ledger) as ledger:
            spent = ledger.largest_spent(self.settings.delta)
        assert spent is not None  # the round was charged
        metrics["epsilon"] = spent.epsilon
        metrics["clients-asked"] = len(asked.clients)
        metrics["clients-answered"] = server.received
        metrics["replies-dropped"] = num_dropped
        metrics["bytes-up"] = server.total_bytes
        log(
            INFO,
            "sottovoce: epsilon %s spent at delta %g; %d of %d clients answered in %d bytes, "
            "%d replies dropped",
            show_epsilon(spent.epsilon),
            self.settings.delta,
            server.received,
            len(asked.clients),
            server.total_bytes,
            num_dropped,
        )
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nobody is asked: what clients measure on their data is private. Use `evaluate_fn`."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing was asked for."""
        return None

    # -- inside ----------------------------------------------------------------------------

    def _running(self) -> _Run:
        if self._run is None:
            raise ConfigError(
                "PrivateStrategy is not running: call its start(), and put it outside any other "
                "wrapper"
            )
        return self._run

    def _plan(self, server_round: int, clients: Mapping[int, str]) -> RoundPlan:
        parts = tuple(part_of(client, self._running().mechanism) for client in clients.values())
        return round_plan(self._run_name, server_round, self.settings.adjacency, parts)

    def _announced(self, message: Message, client: str, plan: RoundPlan) -> Message:
        """The message with its plan; the records of the strategy's own are shared, not changed."""
        run, settings = self._running(), self.settings
        announcement = Announcement(
            client=client,
            round=plan.round,
            rounds=run.rounds,
            cohort=len(plan.clients),
            mechanism=settings.mechanism,
            parameters=registry.parameters_of(run.mechanism),
            dimension=run.layout.dimension,
            clip_norm=float(settings.clip_norm),
            adjacency=str(settings.adjacency),
            layout=run.layout.digest(),
            num_examples=settings.public_num_examples,
        )
        message.content = RecordDict({**message.content, RECORD: announcement.record()})
        return message

    def _receive(self, reply: Message, asked: _Asked, server: RoundServer) -> float:
        """Add one reply, and say what it weighs; or raise WireError and change nothing."""
        node = reply.metadata.src_node_id
        if node not in asked.clients:
            raise WireError(f"node {node} was not asked")
        record = reply.content.config_records.get(RECORD, ConfigRecord())
        sealed, weight = record.get(SEALED), record.get(NUM_EXAMPLES, 1)
        if not isinstance(sealed, bytes):
            raise WireError("the reply has no sealed message; is private_mod among its mods?")
        if self.settings.public_num_examples:
            if type(weight) is not int or not 0 < weight <= _MAX_EXAMPLES:
                raise WireError(f"{weight!r} is no number of examples")
        else:
            weight = 1
        server.receive(asked.clients[node], sealed)
        return float(weight)

    def _averaged(
        self, server_round: int, replies: Sequence[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord]:
        try:
            arrays, metrics = self.strategy.aggregate_train(server_round, replies)
        except KeyError as error:
            raise ConfigError(
                f"{type(self.strategy).__name__} asked for {error}, which is not there: clients' "
                "metrics do not leave them; use its default train_metrics_aggr_fn"
            ) from error
        if arrays is not None:
            arrays = self._running().layout.typed(arrays)
        return arrays, MetricRecord() if metrics is None else metrics


def _models_in(messages: Sequence[Message], layout: Layout) -> dict[int, tuple[str, ArrayRecord]]:
    """The one model of each node's message, and its key; all must be shaped as the initial one."""
    models: dict[int, tuple[str, ArrayRecord]] = {}
    checked: set[int] = set()  # most strategies send one record to everybody
    for message in messages:
        records = message.content.array_records
        if len(records) != 1:
            raise ConfigError(
                f"the strategy sends {len(records)} ArrayRecords in a message; send the model in "
                "one"
            )
        ((key, record),) = records.items()
        if id(record) not in checked and Layout.of(record) != layout:
            raise ConfigError(
                "the strategy sends models of another shape than the initial one; the noise is "
                "calibrated for one model"
            )
        checked.add(id(record))
        models[message.metadata.dst_node_id] = (key, record)
    return models
