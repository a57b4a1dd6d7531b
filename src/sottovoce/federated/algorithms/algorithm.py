"""The interface of federated algorithms, and the registers of `[algorithm]` tables.

    @register("foo", summary="...")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class FooSection(AlgorithmSection):
        server_learning_rate: float = field(metadata=POSITIVE)

        def build(self, setting: AlgorithmSetting) -> Algorithm: ...

The fields of the class are the keys that the table accepts in addition to `kind = "foo"`. Whatever
else an algorithm asks of a run (public data, its own noise, text and figures in reports) it
declares by overriding methods of `AlgorithmSection`: no other code tests for its class or kind.

`algorithm.aggregation` of federated averaging is such a table too. An aggregation is
post-processing of decoded messages and costs no privacy: the clients and their messages are those
of the `averaging` that it is given.

    @register_aggregation("foo", summary="...")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class FooSection(AggregationSection):
        def build(self, averaging: FedAvg, setting: AlgorithmSetting) -> Algorithm: ...

Name the module under the entry point group `sottovoce.algorithms` or `sottovoce.aggregations` (see
`core.registry`). The built-in sections are in `sections` and `aggregation_sections`. They import
torch only inside the methods that need it, because specs are also read where torch is not
installed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import Floats, L2Ball, SteppedBall, Vector
from sottovoce.core.errors import ConfigError, PluginError
from sottovoce.core.plugin_returns import (
    MAPPING,
    NUMBER,
    TEXT,
    TEXTS,
    Contract,
    ReturnCondition,
    enforce_contract,
    instance,
    with_attributes,
)
from sottovoce.core.randomness import Randomness, SeededRandomness
from sottovoce.core.registry import Register
from sottovoce.core.sections import POSITIVE as POSITIVE
from sottovoce.core.sections import RegisteredSection, check_keys, complete
from sottovoce.mechanisms.mechanism import Mechanism

if TYPE_CHECKING:  # These import torch, which reading a checkpoint does not need.
    from sottovoce.federated.algorithms.fedavg import FedAvg
    from sottovoce.learning.clients import ClientData, Clients, Rows
    from sottovoce.learning.datasets import Dataset
    from sottovoce.learning.task import Task

State = Mapping[str, NDArray[Any]]

# The built-in sections.
_PLACES = {
    "fedavg": "sottovoce.federated.algorithms.sections",
    "scaffold": "sottovoce.federated.algorithms.scaffold_section",
}
_AGGREGATIONS = "sottovoce.federated.algorithms.aggregation_sections"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStepInput:
    """The input of the clients' computation in a round.

    Attributes:
        run: Name of the run.
        round: The round, counted from 1.
        model: The model as clients receive it, rounded to the downlink format. What a client sends
            is relative to it.
        state: The algorithm's state; the entries of `shared_state` are as clients receive them.
        randomness: The clients' own randomness, for samples of records and for the noise of local
            steps.
        mechanism_of: Returns the mechanism of a client from its position among the clients whose
            vectors are computed; needed only where local steps add noise.
    """

    run: str
    round: int
    model: Floats
    state: State
    randomness: Randomness
    mechanism_of: Callable[[int], Mechanism] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The vectors that some consecutive clients send in a round, before clipping and noise.

    Attributes:
        start: Position of the first client among those that `Algorithm.client_steps` was given.
        uplinks: For each uplink (vector that a client sends), a matrix with one row per client.
    """

    start: int
    uplinks: "tuple[Rows, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatedUplink:
    """What the server has received on one uplink: the first, second ... vector of each client.

    Attributes:
        mean: The weighted mean of the decoded vectors.
        each: All decoded vectors if the algorithm gathers them, otherwise None.
    """

    mean: Vector
    each: "ClientVectors | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientVectors:
    """The decoded vectors of a round, each with its sender and weight, in the same order.

    Attributes:
        clients: Names of the senders.
        rows: A matrix with one decoded vector per sender.
        weights: The senders' public weights.
    """

    clients: tuple[str, ...]
    rows: Vector
    weights: Vector


class Algorithm(Protocol):
    """A federated algorithm on flat model vectors.

    For all data and models `client_steps` must yield vectors that are finite, or that the
    projection onto the domain makes finite. An error that depends on the data would reveal
    something that no charge accounts for.
    """

    @property
    def unit(self) -> Unit:
        """What neighboring data sets differ in: a record, or all data of a client."""
        ...

    @property
    def record_sampling_rate(self) -> float:
        """The probability with which a client's record secretly takes part in a round; usually 1.

        Messages are charged with the amplification of this rate, so no record may take part more
        often.
        """
        ...

    @property
    def uplinks(self) -> int:
        """The number of vectors that a client sends in a round, for all data; each is charged."""
        ...

    @property
    def shared_state(self) -> tuple[str, ...]:
        """The keys of the state that are sent to each client together with the model.

        Each value has the model's size. Clients must read nothing else of the state except what
        they keep themselves.
        """
        ...

    @property
    def gathers(self) -> bool:
        """Whether the server needs each decoded vector instead of only their mean."""
        ...

    def domain(self, dimension: int, num_samples: int) -> L2Ball | SteppedBall:
        """Return the domain of the mechanism's inputs, which determines the sensitivity.

        Args:
            dimension: Number of model parameters.
            num_samples: Number of the client's records.

        Returns:
            The ball onto which every vector of the client is projected before noise is added; a
            `SteppedBall` if the client adds noise to each of its local steps.
        """
        ...

    def weight(self, num_samples: int) -> float:
        """Return the client's public weight in the mean.

        Args:
            num_samples: Number of the client's records.

        Returns:
            A positive number.
        """
        ...

    def initialize(self, model: Vector) -> State:
        """Return the state before the first round.

        Args:
            model: The initial model.

        Returns:
            Arrays by name; checkpoints keep them.
        """
        ...

    def client_steps(
        self, task: "Task", clients: Sequence["ClientData"], step: ClientStepInput
    ) -> Iterator[Block]:
        """Compute the vectors that some clients send in a round, before projection and noise.

        Args:
            task: The model and its loss.
            clients: The clients' data.
            step: The round, the model and the state that the clients start from.

        Returns:
            Blocks of consecutive clients, as they become ready; together they have all clients.
        """
        ...

    def server_step(
        self, model: Vector, combined: Sequence[AggregatedUplink], state: State
    ) -> tuple[Vector, State]:
        """Return the next model and state.

        Args:
            model: The server's model, in float64.
            combined: What arrived on each uplink, one entry per uplink.
            state: The state before the round.

        Returns:
            A model of the same shape, and the state after the round.
        """
        ...


@runtime_checkable
class SendsPrivateVectors(Protocol):
    """An algorithm whose clients may add the noise themselves, before they send a vector."""

    def message_mechanism(self, mechanism: Mechanism) -> Mechanism:
        """Return the mechanism that encodes messages, for the one that the spec names.

        Args:
            mechanism: The mechanism of the spec, on the algorithm's domain.

        Returns:
            The same mechanism if it privatizes the vectors, or one that only compresses them.
        """
        ...


def message_mechanism(algorithm: Algorithm, mechanism: Mechanism) -> Mechanism:
    """Return the mechanism that encodes the messages of an algorithm's clients.

    Args:
        algorithm: The algorithm.
        mechanism: The mechanism of the spec, on the algorithm's domain.

    Returns:
        The same mechanism, unless the algorithm is a `SendsPrivateVectors` that says otherwise.
    """
    if isinstance(algorithm, SendsPrivateVectors):
        return algorithm.message_mechanism(mechanism)
    return mechanism


@runtime_checkable
class SharesNumbers(Protocol):
    """An algorithm that sends single numbers of its state to each client, together with the model.

    They are sent in float32, whatever the downlink format is.
    """

    @property
    def shared_numbers(self) -> tuple[str, ...]:
        """The keys of the state that are sent; each value is an array with one number."""
        ...


def shared_numbers_of(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the keys of the state that an algorithm sends to clients as single numbers."""
    return algorithm.shared_numbers if isinstance(algorithm, SharesNumbers) else ()


def seeded_steps(
    algorithm: Algorithm, task: "Task", clients: Sequence["ClientData"], step: ClientStepInput
) -> Iterator[Block]:
    """Return `algorithm.client_steps`, with random layers of the model seeded for the round."""
    task.seed_layers(step.randomness, step.run, step.round)
    return algorithm.client_steps(task, clients, step)


MAX_BYTES = 2 << 30  # The most memory that one row for each client may take in all.


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmTraits:
    """What channels and backends may ask about an algorithm before any data are read.

    Attributes:
        uplinks: Number of vectors that a client sends in a round.
        most_vectors_down: The most vectors that a client receives in a round, including the model.
        gathers: Whether the server needs each decoded vector instead of only their mean.
        keeps_client_state: Whether clients keep state from round to round.
        plain_mean: Whether the server needs only the weighted mean of one update of each client
            and clients keep no state. Channels that release one noisy mean, and the secret order,
            require this.
        sends_models: Whether a message is a model instead of a change of the model that was sent.
        holds_out: Whether rows of the training data are taken as public data.
        named: How error messages name what gathers or holds out, such as "aggregation 'median'".
    """

    uplinks: int = 1
    most_vectors_down: int = 1
    gathers: bool = False
    keeps_client_state: bool = False
    plain_mean: bool = False
    sends_models: bool = False
    holds_out: bool = False
    named: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The public numbers of a run from which an algorithm may derive its mechanism's noise.

    Attributes:
        unit: What is protected: single records, or all data of a client.
        clip_norm: Clipping norm of a record's gradient, or of a client's update.
        epsilon: The budget in the spec; None if it has none.
        delta: The delta of the budget.
        grouped: Whether some clients have budgets or mechanisms of their own.
        rounds: Number of rounds.
        clients: Number of clients.
        smallest_dataset: Number of records of the client that has the fewest.
    """

    unit: Unit
    clip_norm: float
    epsilon: float | None
    delta: float
    grouped: bool
    rounds: int
    clients: int
    smallest_dataset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicRows:
    """Training rows that the spec declares public; no client holds them.

    Attributes:
        features: One row of features per record.
        labels: One label per record.
    """

    features: NDArray[np.float32]
    labels: NDArray[Any]


class BudgetGroup(Protocol):
    """Clients with the same budget."""

    @property
    def where(self) -> str:
        """The table of the spec that sets the budget."""
        ...

    @property
    def clients(self) -> tuple[str, ...]:
        """Names of the clients."""
        ...

    @property
    def epsilon(self) -> float | None:
        """The budget's epsilon; None if it has none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmSetting:
    """What the rest of the spec provides for building an algorithm.

    Attributes:
        facts: The public numbers of the run.
        record_sampling_rate: The probability with which a record secretly takes part in a round.
        normalizes: Whether records' gradients are normalized instead of clipped
            (privacy.clip_norm = "auto" at sample level).
        exact_sums: Whether gradients must be added exactly, so that sums do not depend on their
            order; False in simulations that send no messages.
        mechanism: The mechanism's parameters, as `AlgorithmSection.adjust` returned them.
        groups: All clients, by budget.
        task: The model and its loss.
        clients: The clients' data.
        randomness: For noise that the server adds.
        schedule: Seeded randomness for choices that hide nothing and must be reproducible.
        public: The rows that `AlgorithmSection.hold_out` took; None if it took none.
        computes_features: Whether the model takes features that the spec computes from the data.
        largest_dataset: Number of records of the client that has the most; None if it is not known,
            because sites keep them.
    """

    facts: Facts
    record_sampling_rate: float
    normalizes: bool
    exact_sums: bool
    mechanism: Mapping[str, Any]
    groups: Sequence[BudgetGroup]
    task: "Task"
    clients: "Clients"
    randomness: Randomness
    schedule: SeededRandomness
    public: PublicRows | None
    computes_features: bool = False
    largest_dataset: int | None = None

    @property
    def unit(self) -> Unit:
        """What is protected: single records, or all data of a client."""
        return self.facts.unit

    @property
    def clip_norm(self) -> float:
        """The clipping norm of a record's gradient, or of a client's update."""
        return self.facts.clip_norm

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return self.facts.rounds

    def check_all_records(self) -> None:
        """Refuse to sample records where all records of a client are protected together.

        Raises:
            ConfigError: If `record_sampling_rate` is below 1.
        """
        if self.record_sampling_rate < 1.0:
            raise ConfigError(
                "'privacy.record_sampling_rate' samples records, but client-level privacy protects "
                "all of them together; drop it, or set privacy.level = 'sample'"
            )

    def check_batch_size(self, batch_size: int | None) -> None:
        """Refuse minibatches that are larger than the data of each client.

        Args:
            batch_size: Number of records of a local step; None for all of a client.

        Raises:
            ConfigError: No client has as many records.
        """
        largest = self.largest_dataset
        if batch_size is not None and largest is not None and batch_size > largest:
            raise ConfigError(
                f"'algorithm.batch_size' = {batch_size} is more than the {largest} records of the "
                "largest client; lower it, or drop it to use all records of a client in each step"
            )


class AlgorithmSection:
    """The keys of an `[algorithm]` table, the algorithm that they build and what the run must know.

    A subclass must define `build` and overrides the other methods where it differs.

    Attributes:
        enforces_budget: Whether ledgers enforce `privacy.epsilon` as a budget. If not, it is only
            the number from which `adjust` derives the noise: audits that simulate the run again
            keep it, and reports do not compare the spending with it. What is spent is charged and
            printed in either case.
    """

    __slots__ = ()

    enforces_budget: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_keys(self, "algorithm")

    def traits(self, unit: Unit) -> AlgorithmTraits:  # noqa: ARG002
        """Return what channels and backends may ask about the algorithm.

        Args:
            unit: What is protected: single records, or all data of a client.

        Returns:
            The traits; by default those of an algorithm with one uplink.
        """
        return AlgorithmTraits()

    def sends(self, unit: Unit) -> str:  # noqa: ARG002
        """Return what a message of a client describes, for reports.

        Args:
            unit: What is protected: single records, or all data of a client.

        Returns:
            A noun phrase with the placeholder `{numbers}`. Reports replace it by the number of
            model parameters and the word "numbers", such as "7,850 numbers".
        """
        return "an update of {numbers}"

    def hold_out(
        self,
        data: "Dataset",
        generator: np.random.Generator,  # noqa: ARG002
    ) -> "tuple[Dataset, PublicRows | None]":
        """Take rows that the spec declares public out of the training data; by default none.

        Args:
            data: The training data.
            generator: Seeded generator for the choice of rows.

        Returns:
            The remaining training data, and the public rows or None.
        """
        return data, None

    def adjust(
        self,
        kind: str,  # noqa: ARG002
        parameters: Mapping[str, Any],
        facts: Facts,  # noqa: ARG002
    ) -> Mapping[str, Any]:
        """Return the mechanism's parameters with those that the algorithm prescribes.

        The resulting noise is charged like any other noise.

        Args:
            kind: The mechanism's registered name.
            parameters: The mechanism's parameters in the spec.
            facts: The public numbers of the run.

        Returns:
            The parameters to use; by default unchanged.
        """
        return parameters

    def build(self, setting: AlgorithmSetting) -> Algorithm:
        """Check the section against the rest of the spec and return the algorithm.

        Args:
            setting: What the rest of the spec provides.

        Returns:
            The algorithm.

        Raises:
            NotImplementedError: If a subclass does not define it.
        """
        raise NotImplementedError

    def at_site(self) -> Self:
        """Return the section as a client needs it, without what only the server uses.

        Returns:
            The section; by default unchanged.
        """
        return self

    def without_privacy(self, unit: Unit, *, clip_norm: float | None) -> Self:  # noqa: ARG002
        """Return the section for the same training without privacy (`runs.baseline`).

        A subclass that clips or adds noise by keys of its own, or uses budgets, overrides it.

        Args:
            unit: What the private run protects: single records, or all data of a client.
            clip_norm: The norm, too large to clip anything, to which every clip norm of the section
                is set; None to clip as before.

        Returns:
            The section; by default unchanged.

        Raises:
            ConfigError: The algorithm adds noise of its own (`enforces_budget` is false).
        """
        if not self.enforces_budget:
            raise ConfigError(
                "this algorithm derives noise of its own from 'privacy.epsilon', so it has no "
                "baseline without privacy; compare with algorithm.kind = 'fedavg'"
            )
        return self

    def guarantee(self) -> str:
        """Return what this algorithm makes public in addition to the messages.

        Returns:
            A phrase that is appended to the run's sentence about its guarantee; empty by default.
        """
        return ""

    def warnings(self, unit: Unit, *, private: bool) -> list[str]:  # noqa: ARG002
        """Return what a person should know before trusting the result.

        Args:
            unit: What is protected: single records, or all data of a client.
            private: Whether the run is private.

        Returns:
            Sentences; none by default.
        """
        return []

    def metrics(self, task: "Task", state: State) -> dict[str, Any]:  # noqa: ARG002
        """Return the algorithm's own metrics after a round, recorded together with the accuracy.

        Args:
            task: The model and its loss.
            state: The algorithm's state after the round.

        Returns:
            Values by name; none by default.
        """
        return {}

    def figures(
        self,
        algorithm: Algorithm,  # noqa: ARG002
        mechanism: Mapping[str, Any],  # noqa: ARG002
        facts: Facts,  # noqa: ARG002
        most_rounds: int,  # noqa: ARG002
    ) -> dict[str, float]:
        """Return the algorithm's own figures for the result; none of them is a guarantee.

        Args:
            algorithm: The algorithm that was run.
            mechanism: The mechanism's parameters.
            facts: The public numbers of the run.
            most_rounds: The number of rounds that the most charged client was charged for.

        Returns:
            Numbers by name; none by default.
        """
        return {}

    def is_ours(self) -> bool:
        """Return whether everything in the section is built in, without loading a plug-in.

        Returns:
            False if a part of the section comes from a plug-in.
        """
        return True

    def plug_ins(self) -> list[str]:
        """Return the plug-ins inside the section whose claims the run's privacy relies on.

        Returns:
            Their names.
        """
        return []

    def written(self) -> dict[str, Any]:
        """Return every key of the table with its value, defaults included, as plain data.

        Keys that the class variable `LEFT_OUT_AS_DEFAULT` names are left out if they have their
        default.

        Returns:
            The table, without `kind`.
        """
        return complete(self)


R = TypeVar("R", bound=type[AlgorithmSection])

# Strategies of other libraries, which are settings of one algorithm here.
_STRATEGIES = {
    "fedprox": "'fedavg' with a 'proximal_weight'",
    "fedavgm": "'fedavg' with 'server_momentum'",
    "fedmedian": "'fedavg' with aggregation = { kind = 'median' }",
    "fedtrimmedavg": "'fedavg' with aggregation = { kind = 'trimmed_mean', fraction = ... }",
    **{
        kind: f"'fedavg' with server_optimizer = {{ kind = '{kind}' }}"
        for kind in ("fedadagrad", "fedadam", "fedyogi")
    },
}
ALGORITHMS: Register[RegisteredSection[AlgorithmSection]] = Register(
    "algorithm", places=_PLACES, elsewhere=_STRATEGIES
)


def _is_next(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], np.ndarray)
        and isinstance(value[1], Mapping)
    )


# What `build` and `hold_out` of a plug-in must return.
_ALGORITHM = with_attributes(
    (
        *("unit", "record_sampling_rate", "uplinks", "shared_state", "gathers", "domain"),
        *("weight", "initialize", "client_steps", "server_step"),
    ),
    "a sottovoce.federated.Algorithm",
    methods={
        "domain": instance(L2Ball, "a sottovoce.core.L2Ball"),
        "weight": NUMBER,
        "initialize": MAPPING,
        "client_steps": ReturnCondition(
            what="an iterator of sottovoce.federated.Block",
            fits=lambda value: isinstance(value, Iterable),
            yields=instance(Block, "a sottovoce.federated.Block"),
        ),
        "server_step": ReturnCondition(
            what="the next model, a numpy array, and the next state, a dictionary of arrays",
            fits=_is_next,
        ),
    },
)
_HELD_OUT = ReturnCondition(
    what="the data that are left, and the sottovoce.federated.PublicRows taken from them or None",
    fits=lambda value: isinstance(value, tuple) and len(value) == 2 and value[0] is not None,
)
_ALGORITHM_CONTRACT = Contract(
    base=AlgorithmSection,
    needs=("build",),
    returns={
        "traits": instance(AlgorithmTraits, "sottovoce.federated.AlgorithmTraits"),
        "at_site": instance(AlgorithmSection, "an AlgorithmSection"),
        "build": _ALGORITHM,
        "hold_out": _HELD_OUT,
        **dict.fromkeys(("sends", "guarantee"), TEXT),
        **dict.fromkeys(("warnings", "plug_ins"), TEXTS),
        **dict.fromkeys(("adjust", "metrics", "figures", "written"), MAPPING),
    },
)


def register(kind: str, *, summary: str) -> Callable[[R], R]:
    """Return a class decorator that registers a section, a frozen dataclass with a method `build`.

    Args:
        kind: The name that `algorithm.kind` has in specs.
        summary: A short description for lists.

    Returns:
        The decorator; it returns the class unchanged.

    Raises:
        PluginError: By the decorator, if the class is not an `AlgorithmSection`, is a plug-in's and
            not a dataclass or without `build`, or if another module has registered `kind`.
    """

    def enter(section: R) -> R:
        if not issubclass(section, AlgorithmSection):
            raise PluginError(
                f"the algorithm '{kind}' is registered by a class that is not an AlgorithmSection; "
                "inherit from sottovoce.federated.AlgorithmSection"
            )
        enforce_contract(ALGORITHMS, kind, section, _ALGORITHM_CONTRACT)
        registered: RegisteredSection[AlgorithmSection] = RegisteredSection(
            section=section, summary=summary
        )
        ALGORITHMS.enter(kind, registered, module=section.__module__)
        return section

    return enter


def check_memory(
    what: str, rows: int, dimension: int, bytes_each: int, *, fewer: str = "use fewer clients"
) -> None:
    """Raise `ConfigError` if one row of numbers for each client would take more than 2 GiB.

    Args:
        what: The part of the run that keeps the rows, for the message.
        rows: Number of clients that have a row.
        dimension: Number of coordinates of a row.
        bytes_each: Number of bytes of a coordinate.
        fewer: How to reduce the number of rows, for the message.
    """
    needed = rows * dimension * bytes_each
    if needed > MAX_BYTES:
        raise ConfigError(
            f"{what}: {rows} clients times {dimension} coordinates take {needed / 2**30:.1f} GiB, "
            f"more than the limit of {MAX_BYTES / 2**30:g} GiB; {fewer}, use a smaller model, or "
            "use the algorithm 'fedavg' with aggregation 'mean', which keeps only a sum"
        )


class AggregationSection:
    """The keys of an `[algorithm.aggregation]` table and what the run must know about it.

    A subclass must define `build` and overrides the other methods where it differs.

    Attributes:
        gathers: Whether the aggregation needs each message instead of only the mean.
        holds_out: Whether it takes rows of the training data as public data.
    """

    __slots__ = ()

    gathers: ClassVar[bool] = True
    holds_out: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_keys(self, "algorithm.aggregation")

    def hold_out(
        self,
        data: "Dataset",
        generator: np.random.Generator,  # noqa: ARG002
    ) -> "tuple[Dataset, PublicRows | None]":
        """Take rows that the spec declares public out of the training data; by default none.

        Args:
            data: The training data.
            generator: Seeded generator for the choice of rows.

        Returns:
            The remaining training data, and the public rows or None.
        """
        return data, None

    def build(self, averaging: "FedAvg", setting: AlgorithmSetting) -> Algorithm:
        """Return federated averaging with the aggregation's server step.

        Args:
            averaging: Federated averaging with the mean; its clients stay as they are.
            setting: What the rest of the spec provides.

        Returns:
            The algorithm.

        Raises:
            NotImplementedError: If a subclass does not define it.
        """
        raise NotImplementedError

    def warnings(self) -> list[str]:
        """Return what a person should know before trusting the result.

        Returns:
            Sentences; none by default.
        """
        return []

    def metrics(self, task: "Task", state: State) -> dict[str, Any]:  # noqa: ARG002
        """Return the aggregation's own metrics after a round, recorded together with the accuracy.

        Args:
            task: The model and its loss.
            state: The algorithm's state after the round.

        Returns:
            Values by name; none by default.
        """
        return {}


G = TypeVar("G", bound=type[AggregationSection])

AGGREGATIONS: Register[RegisteredSection[AggregationSection]] = Register(
    "aggregation", places=dict.fromkeys(("mean", "median", "trimmed_mean"), _AGGREGATIONS)
)


_AGGREGATION_CONTRACT = Contract(
    base=AggregationSection,
    needs=("build",),
    returns={
        "hold_out": _HELD_OUT,
        "build": _ALGORITHM,
        "warnings": TEXTS,
        "metrics": MAPPING,
    },
)


def register_aggregation(kind: str, *, summary: str) -> Callable[[G], G]:
    """Return a class decorator that registers an aggregation, a frozen dataclass with `build`.

    Args:
        kind: The name that `algorithm.aggregation.kind` has in specs.
        summary: A short description for lists.

    Returns:
        The decorator; it returns the class unchanged.

    Raises:
        PluginError: By the decorator, if the class is not an `AggregationSection`, is a plug-in's
            and not a dataclass or without `build`, or if another module has registered `kind`.
    """

    def enter(section: G) -> G:
        if not issubclass(section, AggregationSection):
            raise PluginError(
                f"the aggregation '{kind}' is registered by a class that is not an "
                "AggregationSection; inherit from sottovoce.federated.AggregationSection"
            )
        enforce_contract(AGGREGATIONS, kind, section, _AGGREGATION_CONTRACT)
        registered: RegisteredSection[AggregationSection] = RegisteredSection(
            section=section, summary=summary
        )
        AGGREGATIONS.enter(kind, registered, module=section.__module__)
        return section

    return enter
