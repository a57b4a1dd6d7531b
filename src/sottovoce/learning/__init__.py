"""Data sets, models, partitions of data over clients, and local training, on torch.

    data = load("digits", np.random.default_rng(0))

A data set of a package of your own is added with `register`. This package needs the extra `learn`,
contains nothing about privacy, and imports only `core`.
"""

from typing import TYPE_CHECKING

from sottovoce.core.faces import export_lazily

if TYPE_CHECKING:
    from sottovoce.learning.clients import ClientData as ClientData
    from sottovoce.learning.clients import Clients as Clients
    from sottovoce.learning.datasets import load as load
    from sottovoce.learning.datasets.dataset import Dataset as Dataset
    from sottovoce.learning.datasets.register import DataFile as DataFile
    from sottovoce.learning.datasets.register import DataSource as DataSource
    from sottovoce.learning.datasets.register import Digest as Digest
    from sottovoce.learning.datasets.register import LoadRequest as LoadRequest
    from sottovoce.learning.datasets.register import register as register
    from sottovoce.learning.features import FeatureContext as FeatureContext
    from sottovoce.learning.features import Features as Features
    from sottovoce.learning.features import FeatureStep as FeatureStep
    from sottovoce.learning.features import register_feature as register_feature
    from sottovoce.learning.models.register import Model as Model
    from sottovoce.learning.models.register import register_model as register_model
    from sottovoce.learning.partition import ByOwner as ByOwner
    from sottovoce.learning.partition import DirichletByLabel as DirichletByLabel
    from sottovoce.learning.partition import Iid as Iid
    from sottovoce.learning.partition import OneSample as OneSample
    from sottovoce.learning.partition import Partition as Partition
    from sottovoce.learning.partition import Shards as Shards
    from sottovoce.learning.partition import register_partition as register_partition
    from sottovoce.learning.partition import split as split
    from sottovoce.learning.task import Evaluation as Evaluation
    from sottovoce.learning.task import Task as Task

export_lazily(
    __name__,
    {
        "clients": ["ClientData", "Clients"],
        "datasets": ["load"],
        "datasets.dataset": ["Dataset"],
        "datasets.register": ["DataFile", "Digest", "LoadRequest", "DataSource", "register"],
        "features": ["Features", "FeatureContext", "FeatureStep", "register_feature"],
        "models.register": ["Model", "register_model"],
        "partition": [
            "ByOwner",
            "DirichletByLabel",
            "Iid",
            "OneSample",
            "Partition",
            "Shards",
            "register_partition",
            "split",
        ],
        "task": ["Evaluation", "Task"],
    },
)
