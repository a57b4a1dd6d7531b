"""The aggregation "mode_connectivity": models joined by curves on samples *declared public*."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sottovoce.core.errors import ConfigError
from sottovoce.core.files import finite_or_none
from sottovoce.core.sections import POSITIVE, one_of, whole
from sottovoce.federated.algorithms.algorithm import (
    AggregationSection,
    Algorithm,
    AlgorithmSetting,
    PublicRows,
    State,
    register_aggregation,
)

if TYPE_CHECKING:  # These import torch.
    from sottovoce.federated.algorithms.fedavg import FedAvg
    from sottovoce.learning.datasets import Dataset
    from sottovoce.learning.task import Task

_PROXY = (
    "the proxy samples were taken from the training data and are declared public: the guarantee "
    "does not cover them, and a gain over accuracy_average that accuracy_fine_tuned also has "
    "comes from them, not from curves; compare accuracy_connected with accuracy_fine_tuned"
)


@register_aggregation(
    "mode_connectivity", summary="models joined by curves of low loss on public samples"
)
@dataclass(frozen=True, slots=True, kw_only=True)
class ModeConnectivitySection(AggregationSection):
    """Settings of mode connectivity: `proxy_samples` samples and `steps` gradient steps per pair.

    The samples are drawn from the training data before it is distributed to clients, and no client
    has them. The run continues from the model that `follow` names; the other two are also reported.
    """

    proxy_samples: int = field(metadata=whole(1, 2**40))
    steps: int = field(metadata=whole(1, 10**7))
    learning_rate: float = field(metadata=POSITIVE)
    curve: Any = field(default="bezier", metadata=one_of("bezier", "polygonal"))
    follow: Any = field(default="connected", metadata=one_of("connected", "average", "fine_tuned"))
    holds_out: ClassVar[bool] = True

    def hold_out(
        self, data: "Dataset", generator: np.random.Generator
    ) -> "tuple[Dataset, PublicRows | None]":
        """Take the proxy samples from the training data; test data must not train anything."""
        from sottovoce.learning.datasets import with_training_rows

        wanted, available = self.proxy_samples, len(data.train_labels)
        if wanted >= available:
            raise ConfigError(
                f"'algorithm.aggregation.proxy_samples' = {wanted} leaves none of the {available} "
                "training samples to the clients; give a smaller number"
            )
        order = generator.permutation(available)
        public, private = np.sort(order[:wanted]), np.sort(order[wanted:])
        rows = PublicRows(
            features=np.ascontiguousarray(data.train_features[public], dtype=np.float32),
            labels=data.train_labels[public],
        )
        return with_training_rows(data, private), rows

    def build(self, averaging: "FedAvg", setting: AlgorithmSetting) -> Algorithm:
        import torch

        from sottovoce_papers.algorithms.connected import ConnectedAverage
        from sottovoce_papers.algorithms.mode_connectivity import ModeConnectivity, ProxySet

        if averaging.server_momentum:
            raise ConfigError(
                "aggregation 'mode_connectivity' combines models, so a momentum of updates does "
                "not apply; remove 'algorithm.server_momentum'"
            )
        if not averaging.has_plain_server:
            raise ConfigError(
                "aggregation 'mode_connectivity' combines models and replaces the step of the "
                "server; remove 'algorithm.server_optimizer', 'algorithm.server_schedule' and "
                "'algorithm.averaging'"
            )
        task, public = setting.task, setting.public
        assert public is not None, "hold_out has returned it"
        return ConnectedAverage(
            averaging=averaging,
            joining=ModeConnectivity(
                kind=self.curve,
                steps=self.steps,
                learning_rate=self.learning_rate,
                proxy=ProxySet(
                    features=torch.from_numpy(public.features).to(task.device),
                    labels=torch.from_numpy(public.labels).to(task.device),
                ),
            ),
            task=task,
            follow=self.follow,
            schedule=setting.schedule,
        )

    def warnings(self) -> list[str]:
        return [_PROXY]

    def metrics(self, task: "Task", state: State) -> dict[str, Any]:
        """Return the accuracies of the three models of the last round, and the mean barriers."""
        from sottovoce_papers.algorithms.connected import JOINED_MODELS

        accuracies = {name: task.evaluate(state[name]).score for name in JOINED_MODELS}
        curve, straight = (finite_or_none(float(value)) for value in state["barriers"])
        return {
            **{f"accuracy_{name}": accuracy for name, accuracy in accuracies.items()},
            "barrier_curve": curve,
            "barrier_straight": straight,
        }
