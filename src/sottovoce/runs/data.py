"""From a spec to its data, its clients and its task."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.core.errors import ConfigError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.learning import datasets, models, partition
from sottovoce.learning.clients import Clients, ClientsElsewhere, client_name
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.task import Task
from sottovoce.runs.model_spec import to_model
from sottovoce.runs.prepared_data import Wanted, device_of, kept, prepared
from sottovoce.runs.spec import RunSpec


def load_data(spec: RunSpec, schedule: SeededRandomness) -> Dataset:
    """The data as the spec wants them: a part of them, with another test set, as features."""
    wanted = Wanted.by(spec)
    data = kept(wanted) or prepared(wanted, schedule.generator("test split"))
    if spec.data.validation_fraction:
        data = datasets.with_validation(
            data, spec.data.validation_fraction, schedule.generator("validation")
        )
    return data


def clients_of(spec: RunSpec, data: Dataset, schedule: SeededRandomness) -> Clients:
    if spec.data.sites:
        return ClientsElsewhere(spec.data.sites)
    shares = partition.split(
        spec.data.partition.opened(),
        data.train_labels,
        len(spec.data.names) or spec.data.clients,
        schedule.generator("partition"),
        owners=data.train_owners,
    )
    values: NDArray[Any] | torch.Tensor = data.train_features
    if device_of(spec) == "cuda":  # where there is room for all of them, once
        values = torch.from_numpy(np.array(values)).to("cuda")
    return Clients(values, data.train_labels, shares, names=_names(spec, len(shares)))


def digest_of(spec: RunSpec, clients: Clients, task: Task) -> str:
    """What tells whether clients have the same data, and the test is the same.

    Attacks take test rows for what no model saw: others in their place could hide a leak.
    """
    raw = not spec.features  # what is computed may differ in its last bits
    return f"{clients.digest(features=raw)} {task.test_digest(features=raw)}"


def _names(spec: RunSpec, num_clients: int) -> list[str]:
    """What the spec calls its clients."""
    names = spec.data.names
    if names and len(names) != num_clients:
        raise ConfigError(
            f"'data.names' has {len(names)} names, but the data make {num_clients} clients"
        )
    return list(names) or [client_name(number) for number in range(num_clients)]


def task_of(spec: RunSpec, data: Dataset, schedule: SeededRandomness) -> Task:
    module = models.create(
        to_model(spec.model),
        data.input_shape,
        data.num_outputs,
        schedule.generator("initial model"),
    )
    return Task(
        module,
        data.test_features,
        torch.from_numpy(data.test_labels),
        objective="regression" if data.num_classes is None else "classification",
        device=device_of(spec),
    )
