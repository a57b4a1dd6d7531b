"""A wrapper of Flower strategies whose clients send differentially private messages.

    strategy = PrivateStrategy(FedAvg(), context)
    strategy.start(grid, arrays, num_rounds=30)

The wrapped strategy chooses nodes and averages as usual; it receives decoded models. Clients need
`private_mod`. The settings are read from the run config (`deployment.settings`).

The module also lists the strategies of Flower that cannot be wrapped, each with the reason.
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
    NodeNames,
    RoundAnnouncement,
    make_client_plan,
    round_plan,
    run_name,
)
from sottovoce.flower.model_arrays import ModelLayout
from sottovoce.ledger.ledger import Ledger
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.protocol.charging import charge_round
from sottovoce.protocol.plan import RoundPlan
from sottovoce.protocol.server import RoundServer

_TWO_NOISES = (
    "updates would be clipped and noised twice; wrap the strategy inside it, and set "
    "'sottovoce.mechanism' and 'sottovoce.epsilon' in the run config"
)
_TREES = (
    "trees are not vectors, so there is no update to clip; no private form exists, so use a model "
    "with weights"
)

_UNFIT: dict[type[Strategy], str] = {
    DifferentialPrivacyClientSideAdaptiveClipping: _TWO_NOISES,
    DifferentialPrivacyClientSideFixedClipping: _TWO_NOISES,
    DifferentialPrivacyServerSideAdaptiveClipping: _TWO_NOISES,
    DifferentialPrivacyServerSideFixedClipping: _TWO_NOISES,
    QFedAvg: "it weights clients by their losses, which do not leave them; use FedAvg",
    FedXgbBagging: _TREES,
    FedXgbCyclic: _TREES,
}


def check_wrappable(strategy: object) -> None:
    """Raise `ConfigError` for a strategy that would not work as documented."""
    name = type(strategy).__name__
    if not isinstance(strategy, Strategy):
        raise ConfigError(
            f"{name} is not a strategy from flwr.serverapp.strategy; use one of these. Flower's "
            "legacy strategies and workflows, such as SecAgg+, cannot be wrapped."
        )
    for unfit, reason_and_remedy in _UNFIT.items():
        if isinstance(strategy, unfit):
            raise ConfigError(f"PrivateStrategy cannot wrap {name}: {reason_and_remedy}")
    if type(strategy).start is not Strategy.start:
        raise ConfigError(
            f"PrivateStrategy cannot wrap {name}: its own start() would not be called. Remove it "
            "and override configure_train and aggregate_train."
        )


_MAX_EXAMPLES = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What stays the same in all rounds, and the site name that each node has claimed."""

    layout: ModelLayout
    mechanism: Mechanism
    rounds: int
    ledger: Path
    timeout_seconds: float
    introductions: NodeNames = field(default_factory=NodeNames)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A round in progress: the client that each node is, and the model that it was sent."""

    plan: RoundPlan
    clients: dict[int, str]
    models: dict[int, tuple[str, ArrayRecord]]


class PrivateStrategy(Strategy):
    """A Flower strategy whose clients send charged, differentially private messages.

    It wraps another strategy from `flwr.serverapp.strategy`. Each round it adds the plan to the
    messages of the wrapped strategy, charges the clients in a ledger before they are asked to
    train, decodes the replies of `private_mod`, and passes the decoded models on. Each client is
    protected as a whole: its update is clipped to `sottovoce.clip-norm`, and the noise is
    calibrated so that a client that takes part in all rounds spends at most `sottovoce.epsilon` at
    `sottovoce.delta`. A client does not rely on the server for this: it checks the plan against its
    own policy and charges its own ledger.

    The settings come from the run config:

        [tool.flwr.app.config.sottovoce]
        epsilon = 8.0       # of each client, over the whole run
        delta = 1e-5
        clip-norm = 1.0     # L2 norm of a client's whole update

    Further keys are `mechanism`, `bits`, `adjacency`, `ledger`, `public-num-examples` and
    `parameters.NAME`. Client-side evaluation is turned off, because its metrics would be private
    data in the clear; use `evaluate_fn`.

    Args:
        strategy: The strategy to wrap, for example `FedAvg`. `PrivateStrategy` must be the
            outermost wrapper.
        context: The context of the `ServerApp`, for its run config and run id.

    Raises:
        ConfigError: If the strategy cannot be wrapped (Flower's own differential privacy wrappers,
            `QFedAvg`, gradient-boosted trees, legacy strategies), or a setting is missing or
            invalid.
        ParameterError: If a setting is outside its range.
        UnknownNameError: If the run config has an unknown key that starts with `sottovoce.`, or
            names an unknown mechanism or adjacency.

    Examples:
        The server app:

            app = ServerApp()

            @app.main()
            def main(grid: Grid, context: Context) -> None:
                strategy = PrivateStrategy(FedAvg(fraction_train=0.5), context)
                arrays = ArrayRecord(Net().state_dict())
                result = strategy.start(grid, arrays, num_rounds=30, evaluate_fn=evaluate)

        The client app: `app = ClientApp(mods=[private_mod])`.
    """

    def __init__(self, strategy: Strategy, context: Context) -> None:
        """Wrap a strategy with the settings of the run config."""
        check_wrappable(strategy)
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
        """Run all rounds.

        The noise is calibrated once, for clients that take part in every round. Without the setting
        `sottovoce.ledger` the server's ledger is temporary and deleted at the end.

        Args:
            grid: The grid of the `ServerApp`.
            initial_arrays: The initial model; its floating-point arrays are trained.
            num_rounds: Number of rounds.
            timeout: Seconds to wait for the replies of a round.
            train_config: Config that the wrapped strategy sends to clients.
            evaluate_config: Not used, because clients are not asked to evaluate.
            evaluate_fn: Evaluates the model at the server, before the first round and after each.

        Returns:
            The result of Flower's `Strategy.start`. The training metrics of each round in which
            a client was asked contain "epsilon" (the largest that any client has spent),
            "clients-asked", "clients-answered", "replies-dropped" and "bytes-up".

        Raises:
            ParameterError: If the model has no floating-point array, or no noise keeps the budget.
            ConfigError: If the wrapped strategy sends something that cannot be made private.
            DeploymentError: If no node gives the name of its site.
        """
        layout = ModelLayout.of(initial_arrays)
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
        """Log the guarantee and the mechanism, then the wrapped strategy's summary.

        Raises:
            ConfigError: If called outside `start`, which calibrates the mechanism.
        """
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
        """Return the wrapped strategy's messages with their plans, for the charged clients.

        Clients are charged, durably, before any message is returned. Nodes without a name and
        clients without enough budget are left out.

        Args:
            server_round: The round, counted from 1.
            arrays: The server's model.
            config: Config that the wrapped strategy sends to clients.
            grid: The grid, through which new nodes are asked for the names of their sites.

        Returns:
            One message per client that is asked; none if no client can pay.

        Raises:
            ConfigError: If the wrapped strategy addresses a node twice in a round, or does not send
                one ArrayRecord with the names, shapes and types of the initial model.
            DeploymentError: If no node gives the name of its site.
        """
        run = self._running()
        self._asked = None
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        models = _models_in(messages, run.layout)
        if len(models) < len(messages):
            raise ConfigError(
                "the strategy asks a node twice in a round; send each node one message"
            )
        run.introductions.ask_names(messages, grid, timeout_seconds=run.timeout_seconds)
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
            self._announce(message, clients[node], plan)
            for message in messages
            if (node := message.metadata.dst_node_id) in clients
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode every reply that matches its plan, and let the wrapped strategy average them.

        A reply that does not match is dropped, with a warning in the log.

        Args:
            server_round: The round, counted from 1.
            replies: The replies of the nodes.

        Returns:
            The wrapped strategy's model (None if it gives none), and its metrics with those that
            `start` lists. If no client was asked, what the wrapped strategy makes of no replies.

        Raises:
            ConfigError: If the wrapped strategy reads metrics that clients do not send.
        """
        run, asked = self._running(), self._asked
        self._asked = None  # A round is aggregated once.
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
        arrays, metrics = self._average(server_round, [*(one for one, _ in accepted), *failed])
        with Ledger(run.ledger) as ledger:
            spent = ledger.largest_spent(self.settings.delta)
        assert spent is not None, "the round was charged"
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
        """Return no messages, because metrics of the clients' data are private; use `evaluate_fn`.

        Args:
            server_round: The round, counted from 1.
            arrays: The server's model.
            config: Not used.
            grid: Not used.

        Returns:
            An empty list.
        """
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return None, because no client was asked to evaluate.

        Args:
            server_round: The round, counted from 1.
            replies: Not used.

        Returns:
            None.
        """
        return None

    def _running(self) -> _Run:
        if self._run is None:
            raise ConfigError(
                "PrivateStrategy is not running; call its start() method, and make it the "
                "outermost wrapper"
            )
        return self._run

    def _plan(self, server_round: int, clients: Mapping[int, str]) -> RoundPlan:
        parts = tuple(
            make_client_plan(client, self._running().mechanism) for client in clients.values()
        )
        return round_plan(self._run_name, server_round, self.settings.adjacency, parts)

    def _announce(self, message: Message, client: str, plan: RoundPlan) -> Message:
        """Return the message with its plan; records that the strategy shares are not changed."""
        run, settings = self._running(), self.settings
        announcement = RoundAnnouncement(
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
        """Add one reply and return its weight; on a WireError nothing changes."""
        node = reply.metadata.src_node_id
        if node not in asked.clients:
            raise WireError(f"node {node} was not asked")
        record = reply.content.config_records.get(RECORD, ConfigRecord())
        sealed, weight = record.get(SEALED), record.get(NUM_EXAMPLES, 1)
        if not isinstance(sealed, bytes):
            raise WireError(
                "the reply has no private message; give the node's ClientApp mods=[private_mod]"
            )
        if self.settings.public_num_examples:
            if type(weight) is not int or not 0 < weight <= _MAX_EXAMPLES:
                raise WireError(
                    f"expected a number of examples from 1 to {_MAX_EXAMPLES}, got {weight!r}"
                )
        else:
            weight = 1
        server.receive(asked.clients[node], sealed)
        return float(weight)

    def _average(
        self, server_round: int, replies: Sequence[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord]:
        try:
            arrays, metrics = self.strategy.aggregate_train(server_round, replies)
        except KeyError as error:
            raise ConfigError(
                f"{type(self.strategy).__name__} looks for {error}, which the replies do not have: "
                "clients' metrics are private and are not sent; use its default "
                "train_metrics_aggr_fn"
            ) from error
        if arrays is not None:
            arrays = self._running().layout.typed(arrays)
        return arrays, MetricRecord() if metrics is None else metrics


def _models_in(
    messages: Sequence[Message], layout: ModelLayout
) -> dict[int, tuple[str, ArrayRecord]]:
    """Return the key and model of each node's message; all models must have the initial layout."""
    models: dict[int, tuple[str, ArrayRecord]] = {}
    checked: set[int] = set()  # Most strategies send the same record to all nodes.
    for message in messages:
        records = message.content.array_records
        if len(records) != 1:
            raise ConfigError(
                f"the strategy sends {len(records)} ArrayRecords in a message; send the model in "
                "one ArrayRecord"
            )
        ((key, record),) = records.items()
        if id(record) not in checked and ModelLayout.of(record) != layout:
            raise ConfigError(
                "the strategy sends a model whose names, shapes or types differ from the initial "
                "one, for which the noise is calibrated; send the same arrays in every round"
            )
        checked.add(id(record))
        models[message.metadata.dst_node_id] = (key, record)
    return models
