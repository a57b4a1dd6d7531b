"""How `algorithm.aggregation` of federated averaging becomes a server's step.

    @register_aggregation("foo", summary="...")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class FooSection(AggregationSection):
        def build(self, averaging: FedAvg, setting: Setting) -> Algorithm: ...

Drop the file into `algorithms/aggregations/`, or name its module under the entry point group
`sottovoce.aggregations`. What it makes of decoded messages is post-processing and costs no privacy:
clients and their messages are those of the `averaging` that it is given.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from sottovoce.core.errors import PluginError
from sottovoce.core.plugin_returns import MAPPING, TEXTS, Contract, hold
from sottovoce.core.registry import Register
from sottovoce.core.sections import Registered, check_keys
from sottovoce.federated.algorithms.algorithm import ALGORITHM, Algorithm, State
from sottovoce.federated.algorithms.recipe import HELD_OUT, PublicRows, Setting

if TYPE_CHECKING:  # bring torch
    from sottovoce.federated.algorithms.fedavg import FedAvg
    from sottovoce.learning.datasets import Dataset
    from sottovoce.learning.task import Task


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


R = TypeVar("R", bound=type[AggregationSection])

AGGREGATIONS: Register[Registered[AggregationSection]] = Register(
    "aggregation", package="sottovoce.federated.algorithms.aggregations"
)


_CONTRACT = Contract(
    base=AggregationSection,
    needs=("build",),
    returns={
        "hold_out": HELD_OUT,
        "build": ALGORITHM,
        "warnings": TEXTS,
        "metrics": MAPPING,
    },
)


def register_aggregation(kind: str, *, summary: str) -> Callable[[R], R]:
    """Class decorator that enters an aggregation, a frozen dataclass with a method `build`.

    Raises:
        PluginError: If the class is no `AggregationSection`, or lacks `build`.
    """

    def enter(section: R) -> R:
        if not issubclass(section, AggregationSection):
            raise PluginError(
                f"the aggregation '{kind}' is registered by a class that is no AggregationSection; "
                "inherit from sottovoce.federated.AggregationSection"
            )
        hold(AGGREGATIONS, kind, section, _CONTRACT)
        registered: Registered[AggregationSection] = Registered(section=section, summary=summary)
        AGGREGATIONS.enter(kind, registered, module=section.__module__)
        return section

    return enter
