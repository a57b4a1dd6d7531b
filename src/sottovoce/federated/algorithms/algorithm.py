"""What an algorithm is (state in, state out), and how a spec's [algorithm] becomes one.

    @register("foo", summary="...")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class FooSection(AlgorithmSection):
        server_learning_rate: float = field(metadata=POSITIVE)

        def build(self, setting: Setting) -> Algorithm: ...

Its fields are the keys that may stand beside `kind = "foo"`. What an algorithm asks of a run beyond
`build` (public data, a noise of its own, words and figures in reports) it says by overriding a
method of `AlgorithmSection`: nothing else tests for its class or its kind.

`algorithm.aggregation` of federated averaging is such a table too. What an aggregation makes of
decoded messages is post-processing and costs no privacy: clients and their messages are those of
the `averaging` that it is given.

    @register_aggregation("foo", summary="...")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class FooSection(AggregationSection):
        def build(self, averaging: FedAvg, setting: Setting) -> Algorithm: ...

Name the module under the entry point group `sottovoce.algorithms` or `sottovoce.aggregations` (see
`core.registry`). Our own sections are in `sections`. They import no torch, for specs are read where
none is installed; they import it in the methods that need it.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import L2Ball, Vector
from sottovoce.core.errors import ConfigError, PluginError
from sottovoce.core.plugin_returns import (
    MAPPING,
    NUMBER,
    TEXT,
    TEXTS,
    Contract,
    Returns,
    having,
    hold,
    instance,
)
from sottovoce.core.randomness import Randomness, SeededRandomness
from sottovoce.core.registry import Register
from sottovoce.core.sections import POSITIVE as POSITIVE
from sottovoce.core.sections import Registered, check_keys

if TYPE_CHECKING:  # bring torch, which a reader of checkpoints does not need
    from sottovoce.federated.algorithms.fedavg import FedAvg
    from sottovoce.learning.clients import ClientData, Clients, Rows
    from sottovoce.learning.datasets import Dataset
    from sottovoce.learning.task import Task

State = Mapping[str, NDArray[Any]]

_SECTIONS = "sottovoce.federated.algorithms.sections"  # where ours are


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What clients start from in a round; `randomness` is their own, for samples of records.

    `model` and what of `state` is sent down are as clients read them, not as the server has them:
    rounded. What a client sends is relative to that.
    """

    run: str
    round: int
    model: Vector
    state: State
    randomness: Randomness


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Every vector that will leave some clients: `uplinks` hold a row for each of them.

    The clients are those from position `start` on, as many as there are rows.
    """

    start: int
    uplinks: "tuple[Rows, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """What the server has of one uplink: the weighted mean, and all vectors if it gathers them."""

    mean: Vector
    each: "Each | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Each:
    """The decoded vectors of a round as rows, with who sent them and their public weights."""

    clients: tuple[str, ...]
    rows: Vector
    weights: Vector


class Algorithm(Protocol):
    """A federated algorithm on flat model vectors.

    Whatever the data and the model, `client_steps` yields finite vectors, or such as a projection
    onto the domain makes finite: an error that depends on the data would tell the server what no
    charge has paid for.
    """

    @property
    def unit(self) -> Unit:
        """What the domain's neighbours differ in."""
        ...

    @property
    def record_sampling_rate(self) -> float:
        """With which probability a client's record takes part in a round, in secret; mostly 1.

        Messages are charged for the sample that this says, and for no other.
        """
        ...

    @property
    def uplinks(self) -> int:
        """How many vectors leave a client in a round, whatever its data: it pays for them first."""
        ...

    @property
    def shared_state(self) -> tuple[str, ...]:
        """What of the state is sent to each client of a round beside the model, each of its size.

        Clients must not read anything else of the state, but for what is their own.
        """
        ...

    @property
    def gathers(self) -> bool:
        """Whether the server needs each decoded vector, and not only their mean."""
        ...

    def domain(self, dimension: int, num_samples: int) -> L2Ball:
        """Where the uplinks of a client with so many samples live; so what a neighbour changes."""
        ...

    def weight(self, num_samples: int) -> float:
        """The client's public weight in the mean."""
        ...

    def initialise(self, model: Vector) -> State: ...

    def client_steps(
        self, task: "Task", clients: Sequence["ClientData"], step: Step
    ) -> Iterator[Block]:
        """Clients' uplinks, as they become ready."""
        ...

    def server_step(
        self, model: Vector, combined: Sequence[Combined], state: State
    ) -> tuple[Vector, State]:
        """The next model from what arrived of each uplink."""
        ...


MOST_BYTES = 2 << 30  # that rows of all clients may take


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmTraits:
    """What channels and backends may ask of an algorithm, before any data are read.

    Attributes:
        uplinks: Vectors that a client sends in a round.
        most_vectors_down: The most vectors that a client reads in a round, the model among them.
        gathers: Whether the server needs each decoded vector, and not only their mean.
        keeps_client_state: Whether clients keep something from round to round.
        plain_mean: Whether the server needs nothing but the mean of one update of each client, and
            clients keep nothing of it. Channels that hide more than messages ask for this.
        sends_models: Whether a message is a model, and not a change of the model sent down.
        holds_out: Whether rows of the training data are taken for public.
        named: What to call, in messages, the part of the section that gathers or holds out.
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
    """The public numbers of a run from which an algorithm may prescribe its mechanism's noise.

    Attributes:
        unit: What is protected: samples, or whole clients.
        clip_norm: Of a sample's gradient, or of a client's update.
        epsilon: As the spec has it; None where it has none.
        grouped: Whether some clients have budgets or mechanisms of their own.
        smallest_dataset: The number of records of the client that has the fewest.
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
    """Training rows that a spec declares public, and that no client has."""

    features: NDArray[np.float32]
    labels: NDArray[Any]


class BudgetGroup(Protocol):
    """Clients with the same budget; `where` is the table of the spec that gives it."""

    @property
    def where(self) -> str: ...

    @property
    def clients(self) -> tuple[str, ...]: ...

    @property
    def epsilon(self) -> float | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the rest of the spec says, for an algorithm to be built from.

    Attributes:
        record_sampling_rate: With which probability a record takes part in a round, in secret.
        exact_sums: Whether sums of gradients must not depend on their order.
        mechanism: The parameters of the run's mechanism, as `AlgorithmSection.adjust` left them.
        groups: All clients, by budget.
        randomness: For noise of the server's own.
        schedule: For what must be the same again from the same seed, and hides nothing.
        public: The rows that `AlgorithmSection.hold_out` took.
    """

    facts: Facts
    record_sampling_rate: float
    exact_sums: bool
    mechanism: Mapping[str, Any]
    groups: Sequence[BudgetGroup]
    task: "Task"
    clients: "Clients"
    randomness: Randomness
    schedule: SeededRandomness
    public: PublicRows | None

    @property
    def unit(self) -> Unit:
        return self.facts.unit

    @property
    def clip_norm(self) -> float:
        return self.facts.clip_norm

    @property
    def rounds(self) -> int:
        return self.facts.rounds

    def check_all_records(self) -> None:
        """Refuse to sample records where a client's records are protected together."""
        if self.record_sampling_rate < 1.0:
            raise ConfigError(
                "'privacy.record_sampling_rate' samples records, and client-level privacy protects "
                "all of them together; drop it, or set privacy.level = 'sample'"
            )


class AlgorithmSection:
    """The keys of an [algorithm] table, what they make, and what the run must know of it.

    A subclass overrides what differs, and has to have `build`.
    """

    __slots__ = ()

    # Whether privacy.epsilon is a budget that ledgers enforce. Where it is not, `adjust` makes the
    # noise of it, it stays in specs that are simulated again, and reports do not measure against
    # it: what is spent is still charged, accounted and printed.
    enforces_budget: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_keys(self, "algorithm")

    def traits(self, unit: Unit) -> AlgorithmTraits:  # noqa: ARG002
        """Return what channels and backends may ask, where `unit` is protected."""
        return AlgorithmTraits()

    def sends(self, unit: Unit) -> str:  # noqa: ARG002
        """Return what a reply describes; {numbers} stands for how many numbers a model has."""
        return "an update of {numbers}"

    def hold_out(
        self,
        data: "Dataset",
        generator: np.random.Generator,  # noqa: ARG002
    ) -> "tuple[Dataset, PublicRows | None]":
        """Take declared-public rows out of the training data; by default none."""
        return data, None

    def adjust(
        self,
        kind: str,  # noqa: ARG002
        parameters: Mapping[str, Any],
        facts: Facts,  # noqa: ARG002
    ) -> Mapping[str, Any]:
        """Return the mechanism's parameters with what the algorithm prescribes; by default as is.

        Whatever it prescribes is charged like anybody's noise.
        """
        return parameters

    def build(self, setting: Setting) -> Algorithm:
        """Check the section against the rest of the spec and return the algorithm."""
        raise NotImplementedError

    def at_site(self) -> Self:
        """Return the section as a client needs it, without what is the server's own affair."""
        return self

    def guarantee(self) -> str:
        """Return what is public beside the usual, for the sentence of the guarantee."""
        return ""

    def warnings(self, unit: Unit, *, private: bool) -> list[str]:  # noqa: ARG002
        """Return what a person should know of the algorithm before believing its result."""
        return []

    def metrics(self, task: "Task", state: State) -> dict[str, Any]:  # noqa: ARG002
        """Return what to note beside the accuracy after a round, from the algorithm's state."""
        return {}

    def figures(
        self,
        algorithm: Algorithm,  # noqa: ARG002
        mechanism: Mapping[str, Any],  # noqa: ARG002
        facts: Facts,  # noqa: ARG002
        most_rounds: int,  # noqa: ARG002
    ) -> dict[str, float]:
        """Return figures of the algorithm's own for the result; none of them is a guarantee.

        `most_rounds` is in how many rounds the client with most charges was charged.
        """
        return {}

    def is_ours(self) -> bool:
        """Return whether all that stands in the section is this project's, no plug-in asked."""
        return True

    def plug_ins(self) -> list[str]:
        """Return the plug-ins inside the section on whose word the run's privacy rests."""
        return []

    def written(self) -> dict[str, Any]:
        """Return every key with its value, as the resolved spec has it."""
        return dataclasses.asdict(self)  # type: ignore[call-overload,no-any-return]


R = TypeVar("R", bound=type[AlgorithmSection])

RECIPES: Register[Registered[AlgorithmSection]] = Register(
    "algorithm", places=dict.fromkeys(("fedavg", "scaffold"), _SECTIONS)
)


def _is_next(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], np.ndarray)
        and isinstance(value[1], Mapping)
    )


# What a plug-in must return for an algorithm, and for what its section holds out.
_ALGORITHM = having(
    (
        *("unit", "record_sampling_rate", "uplinks", "shared_state", "gathers", "domain"),
        *("weight", "initialise", "client_steps", "server_step"),
    ),
    "a sottovoce.federated.Algorithm",
    methods={
        "domain": instance(L2Ball, "a sottovoce.core.L2Ball"),
        "weight": NUMBER,
        "initialise": MAPPING,
        "client_steps": Returns(
            what="an iterator of sottovoce.federated.Block",
            fits=lambda value: isinstance(value, Iterable),
            yields=instance(Block, "a sottovoce.federated.Block"),
        ),
        "server_step": Returns(
            what="the next model, a numpy array, and the next state, a dictionary of arrays",
            fits=_is_next,
        ),
    },
)
_HELD_OUT = Returns(
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
    """Class decorator that enters a section, a frozen dataclass with a method `build`.

    Raises:
        PluginError: If the class is no `AlgorithmSection`, or lacks `build`.
    """

    def enter(section: R) -> R:
        if not issubclass(section, AlgorithmSection):
            raise PluginError(
                f"the algorithm '{kind}' is registered by a class that is no AlgorithmSection; "
                "inherit from sottovoce.federated.AlgorithmSection"
            )
        hold(RECIPES, kind, section, _ALGORITHM_CONTRACT)
        registered: Registered[AlgorithmSection] = Registered(section=section, summary=summary)
        RECIPES.enter(kind, registered, module=section.__module__)
        return section

    return enter


def check_memory(what: str, rows: int, dimension: int, bytes_each: int) -> None:
    """Refuse rows of clients that would take more than MOST_BYTES."""
    needed = rows * dimension * bytes_each
    if needed > MOST_BYTES:
        raise ConfigError(
            f"{what}: {rows} clients times {dimension} coordinates take {needed / 2**30:.1f} GiB, "
            f"more than {MOST_BYTES / 2**30:g} GiB; use fewer clients (sampling.kind = "
            "'fixed_size' asks some of them), a smaller model, or the algorithm 'fedavg' with "
            "aggregation 'mean'"
        )


class AggregationSection:
    """The keys of an aggregation, and what the run must know of it; override what differs."""

    __slots__ = ()

    gathers: ClassVar[bool] = True  # whether it needs each message, and not only the mean
    holds_out: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_keys(self, "algorithm.aggregation")

    def hold_out(
        self,
        data: "Dataset",
        generator: np.random.Generator,  # noqa: ARG002
    ) -> "tuple[Dataset, PublicRows | None]":
        """Take declared-public rows out of the training data; by default none."""
        return data, None

    def build(self, averaging: "FedAvg", setting: Setting) -> Algorithm:
        """Return federated averaging with another step of the server."""
        raise NotImplementedError

    def warnings(self) -> list[str]:
        """Return what a person should know of it before believing a result."""
        return []

    def metrics(self, task: "Task", state: State) -> dict[str, Any]:  # noqa: ARG002
        """Return what to note beside the accuracy after a round."""
        return {}


G = TypeVar("G", bound=type[AggregationSection])

AGGREGATIONS: Register[Registered[AggregationSection]] = Register(
    "aggregation", places=dict.fromkeys(("mean", "median", "trimmed_mean"), _SECTIONS)
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
    """Class decorator that enters an aggregation, a frozen dataclass with a method `build`.

    Raises:
        PluginError: If the class is no `AggregationSection`, or lacks `build`.
    """

    def enter(section: G) -> G:
        if not issubclass(section, AggregationSection):
            raise PluginError(
                f"the aggregation '{kind}' is registered by a class that is no AggregationSection; "
                "inherit from sottovoce.federated.AggregationSection"
            )
        hold(AGGREGATIONS, kind, section, _AGGREGATION_CONTRACT)
        registered: Registered[AggregationSection] = Registered(section=section, summary=summary)
        AGGREGATIONS.enter(kind, registered, module=section.__module__)
        return section

    return enter
