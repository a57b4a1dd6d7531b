"""Training samples that a spec declares public, and that no client has."""

import numpy as np
import torch

from sottovoce.core.errors import ConfigError
from sottovoce.federated.mode_connectivity import ProxySet
from sottovoce.learning.datasets import Dataset, with_training_rows
from sottovoce.runs.spec import FedAvgSpec, ModeConnectivitySpec, RunSpec


def held_out_proxy(
    spec: RunSpec, data: Dataset, generator: np.random.Generator
) -> tuple[Dataset, ProxySet | None]:
    """The data without its public part, and that part; all of it and None if nobody asks for one.

    The test data is left alone: it must not train anything either.
    """
    if not isinstance(spec.algorithm, FedAvgSpec) or not isinstance(
        spec.algorithm.aggregation, ModeConnectivitySpec
    ):
        return data, None
    wanted, available = spec.algorithm.aggregation.proxy_samples, len(data.train_labels)
    if wanted >= available:
        raise ConfigError(
            f"'algorithm.aggregation.proxy_samples' {wanted} leaves nothing of the {available} "
            "training samples to the clients; ask for fewer"
        )
    order = generator.permutation(available)
    public, private = np.sort(order[:wanted]), np.sort(order[wanted:])
    features = np.ascontiguousarray(data.train_features[public], dtype=np.float32)
    proxy = ProxySet(
        features=torch.from_numpy(features),
        labels=torch.from_numpy(data.train_labels[public]),
    )
    return with_training_rows(data, private), proxy
