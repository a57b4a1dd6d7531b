"""How a spec's [algorithm] becomes an algorithm: one decorator on a frozen dataclass.

    @register("foo", summary="...")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class FooSection(AlgorithmSection):
        server_learning_rate: float = field(metadata=POSITIVE)

        def build(self, setting: Setting) -> Algorithm: ...

Its fields are the keys that may stand beside `kind = "foo"`. What an algorithm asks of a run beyond
`build` (public data, a noise of its own, words and figures in reports) it says by overriding a
method of `AlgorithmSection`: nothing else tests for its class or its kind.

Drop the file into `algorithms/sections/`, or name its module under the entry point group
`algorithms` (see `core.registry`). Our own sections import no torch, for specs are
read where none is installed; they import it in the methods that need it.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import ConfigError, PluginError
from sottovoce.core.plugin_returns import (
    MAPPING,
    TEXT,
    TEXTS,
    Contract,
    Returns,
    hold,
    instance,
)
from sottovoce.core.randomness import Randomness, SeededRandomness
from sottovoce.core.registry import Register
from sottovoce.core.sections import POSITIVE as POSITIVE
from sottovoce.core.sections import Registered, check_keys
from sottovoce.federated.algorithms.algorithm import ALGORITHM, Algorithm, State

if TYPE_CHECKING:  # bring torch
    from sottovoce.learning.clients import Clients
    from sottovoce.learning.datasets import Dataset
    from sottovoce.learning.task import Task

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
    "algorithm", package="sottovoce.federated.algorithms.sections"
)


HELD_OUT = Returns(
    what="the data that are left, and the sottovoce.federated.PublicRows taken from them or None",
    fits=lambda value: isinstance(value, tuple) and len(value) == 2 and value[0] is not None,
)
_CONTRACT = Contract(
    base=AlgorithmSection,
    needs=("build",),
    returns={
        "traits": instance(AlgorithmTraits, "sottovoce.federated.AlgorithmTraits"),
        "sends": TEXT,
        "hold_out": HELD_OUT,
        "adjust": MAPPING,
        "build": ALGORITHM,
        "at_site": instance(AlgorithmSection, "an AlgorithmSection"),
        "guarantee": TEXT,
        "warnings": TEXTS,
        "metrics": MAPPING,
        "figures": MAPPING,
        "plug_ins": TEXTS,
        "written": MAPPING,
    },
)


def register(kind: str, *, summary: str) -> Callable[[R], R]:
    """Class decorator that enters a section, a frozen dataclass with a method `build`.

    Raises:
        PluginError: If the class is no `AlgorithmSection`.
    """

    def enter(section: R) -> R:
        if not issubclass(section, AlgorithmSection):
            raise PluginError(
                f"the algorithm '{kind}' is registered by a class that is no AlgorithmSection; "
                "inherit from sottovoce.federated.algorithms.recipe.AlgorithmSection"
            )
        hold(RECIPES, kind, section, _CONTRACT)
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
