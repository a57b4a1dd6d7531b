"""Federated averaging with models joined by curves of low loss, and two models to compare with.

In each round the model of client k is the server's model plus s times its decoded update. From
these models the server makes three on a public proxy set: the plain average, the average of curve
midpoints over random pairs, and the average trained on the proxy set with as many gradients as the
curves took. The run continues from one of them, and all three are kept, so that every result can
show them together.

Messages are private when they arrive and the proxy set is public, so all of this is post-
processing.

Reference: Garipov et al. 2018 (curves); McMahan et al. 2017 (the average).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import L2Ball, SteppedBall, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms.algorithm import AggregatedUplink, Block, ClientStepInput, State
from sottovoce.federated.algorithms.fedavg import FedAvg
from sottovoce.learning.clients import ClientData
from sottovoce.learning.task import Task
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce_papers.algorithms.mode_connectivity import CombinedModels, ModeConnectivity

JoinedModel = Literal["connected", "average", "fine_tuned"]
JOINED_MODELS: tuple[JoinedModel, ...] = ("connected", "average", "fine_tuned")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedAverage:
    """Federated averaging followed by mode connectivity on a public proxy set.

    `averaging` defines the work of clients, and `follow` names the model from which the run
    continues. Pairs and points on curves are drawn from `schedule` by the number of server steps,
    which is part of the state, so that a resumed run repeats them.
    """

    averaging: FedAvg
    joining: ModeConnectivity
    task: Task
    follow: JoinedModel
    schedule: SeededRandomness
    uplinks: ClassVar[int] = 1
    shared_state: ClassVar[tuple[str, ...]] = ()
    gathers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.averaging.server_momentum or self.averaging.robust_mean is not None:
            raise ParameterError(
                "mode connectivity combines models, so a momentum or a robust mean of updates does "
                "not apply; set server_momentum to 0 and robust_mean to None"
            )

    @property
    def unit(self) -> Unit:
        return self.averaging.unit

    @property
    def record_sampling_rate(self) -> float:
        return self.averaging.record_sampling_rate

    def domain(self, dimension: int, num_samples: int) -> L2Ball | SteppedBall:
        return self.averaging.domain(dimension, num_samples)

    def message_mechanism(self, mechanism: Mechanism) -> Mechanism:
        """Return the mechanism of the clients' messages, which are those of the averaging."""
        return self.averaging.message_mechanism(mechanism)

    def weight(self, num_samples: int) -> float:
        return self.averaging.weight(num_samples)

    def initialize(self, model: Vector) -> State:
        models: dict[str, Vector] = {name: model.copy() for name in JOINED_MODELS}
        return {"server_steps": np.zeros(1), "barriers": np.full(2, np.nan), **models}

    def client_steps(
        self, task: Task, clients: Sequence[ClientData], step: ClientStepInput
    ) -> Iterator[Block]:
        return self.averaging.client_steps(task, clients, step)

    def server_step(
        self, model: Vector, combined: Sequence[AggregatedUplink], state: State
    ) -> tuple[Vector, State]:
        each = combined[0].each
        assert each is not None  # `gathers` is True.
        # Sorted by name, so that the order of arrival does not decide the pairs.
        order = np.argsort(each.clients)
        models = model + self.averaging.server_learning_rate * each.rows[order]
        number = int(state["server_steps"][0])
        generator = self.schedule.generator("pairs", number)
        joined = self.joining.combine(models, each.weights[order], self.task, generator)
        kept: dict[str, Vector] = {name: getattr(joined, name) for name in JOINED_MODELS}
        after = {"server_steps": np.array([number + 1.0]), "barriers": _mean_barriers(joined)}
        return kept[self.follow], {**after, **kept}


def _mean_barriers(joined: CombinedModels) -> Vector:
    """Return the mean barrier of the curves and of the straight lines; NaN without a pair."""
    if not joined.barriers:
        return np.full(2, np.nan)
    found = [(pair.curve, pair.straight) for pair in joined.barriers]
    return np.asarray(np.mean(found, axis=0))
