"""From a spec to its data, its clients and its task."""

from typing import Any, assert_never

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.config.data_spec import (
    ByOwnerSpec,
    DirichletSpec,
    IidSpec,
    OneSampleSpec,
    ShardsSpec,
)
from sottovoce.config.model_spec import to_model
from sottovoce.config.spec import RunSpec
from sottovoce.errors import ConfigError
from sottovoce.experiments.feature_steps import steps_of
from sottovoce.learning import datasets, features, models, partitioners
from sottovoce.learning.clients import Clients
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.partitioners import (
    ByOwner,
    DirichletByLabel,
    Iid,
    OneSample,
    Partition,
    Shards,
)
from sottovoce.learning.task import Task
from sottovoce.randomness import SeededRandomness


def load_data(spec: RunSpec, schedule: SeededRandomness) -> Dataset:
    """The data as the spec wants them: a part of them, with another test set, as features."""
    given = spec.data
    data = datasets.load(
        given.dataset,
        schedule.generator("test split"),
        download=True,
        csv=given.csv.options() if given.csv else None,
    )
    if given.num_train or given.num_test:
        # The same part whatever the seed, so that its features are made once.
        generator = SeededRandomness(0).generator("subset")
        data = datasets.subset(data, given.num_train, given.num_test, generator)
    if spec.features:
        folder = datasets.data_folder(None) / "features"
        data = features.apply(steps_of(spec.features), data, folder, device=_device(spec))
    if given.validation_fraction:
        data = datasets.with_validation(
            data, given.validation_fraction, schedule.generator("validation")
        )
    return data


def clients_of(spec: RunSpec, data: Dataset, schedule: SeededRandomness) -> Clients:
    shares = partitioners.split(
        _partition(spec),
        data.train_labels,
        spec.data.clients,
        schedule.generator("partition"),
        owners=data.train_owners,
    )
    values: NDArray[Any] | torch.Tensor = data.train_features
    if _device(spec) == "cuda":  # where there is room for all of them, once
        values = torch.from_numpy(np.array(values)).to("cuda")
    return Clients(values, data.train_labels, shares)


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
        device=_device(spec),
    )


def _device(spec: RunSpec) -> str:
    wanted = spec.runtime.device
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise ConfigError(
            "runtime.device = 'cuda', but torch sees no GPU here; use 'cpu' or 'auto'"
        )
    return "cuda"


def _partition(spec: RunSpec) -> Partition:
    given = spec.data.partition
    match given:
        case IidSpec():
            return Iid()
        case DirichletSpec(alpha=alpha):
            return DirichletByLabel(alpha=alpha)
        case ShardsSpec(shards_per_client=shards):
            return Shards(shards_per_client=shards)
        case ByOwnerSpec():
            return ByOwner()
        case OneSampleSpec():
            return OneSample()
        case _:
            assert_never(given)
