"""Federated algorithms, the training loop and the simulation backends; the package needs torch.

    algorithm = FedAvg(local_work=work, server_learning_rate=1.0, server_momentum=0.9)

`Training` runs rounds on a `RoundBackend`. An `Algorithm` defines what clients compute and what the
server does with the mean; plug-ins add algorithms with `register`. The package imports
`sottovoce.learning`, `sottovoce.protocol` and the packages below them.
"""

from typing import TYPE_CHECKING

from sottovoce.core.faces import export_lazily

if TYPE_CHECKING:
    from sottovoce.federated.algorithms.algorithm import POSITIVE as POSITIVE
    from sottovoce.federated.algorithms.algorithm import AggregationSection as AggregationSection
    from sottovoce.federated.algorithms.algorithm import Algorithm as Algorithm
    from sottovoce.federated.algorithms.algorithm import AlgorithmSection as AlgorithmSection
    from sottovoce.federated.algorithms.algorithm import AlgorithmSetting as AlgorithmSetting
    from sottovoce.federated.algorithms.algorithm import AlgorithmTraits as AlgorithmTraits
    from sottovoce.federated.algorithms.algorithm import Block as Block
    from sottovoce.federated.algorithms.algorithm import Facts as Facts
    from sottovoce.federated.algorithms.algorithm import PublicRows as PublicRows
    from sottovoce.federated.algorithms.algorithm import SharesNumbers as SharesNumbers
    from sottovoce.federated.algorithms.algorithm import register as register
    from sottovoce.federated.algorithms.algorithm import (
        register_aggregation as register_aggregation,
    )
    from sottovoce.federated.algorithms.client_statistics import WithStatistics as WithStatistics
    from sottovoce.federated.algorithms.fedavg import FedAvg as FedAvg
    from sottovoce.federated.algorithms.fedavg import LocalSgd as LocalSgd
    from sottovoce.federated.algorithms.fedavg import SampleClippedGradient as SampleClippedGradient
    from sottovoce.federated.algorithms.scaffold import Scaffold as Scaffold
    from sottovoce.federated.algorithms.statistics import AdaptiveClip as AdaptiveClip
    from sottovoce.federated.algorithms.statistics import PrivateEvaluation as PrivateEvaluation
    from sottovoce.federated.cohorts import ClientSampling as ClientSampling
    from sottovoce.federated.cohorts import register_sampling as register_sampling
    from sottovoce.federated.training import RoundBackend as RoundBackend
    from sottovoce.federated.training import RoundRecord as RoundRecord
    from sottovoce.federated.training import Training as Training

export_lazily(
    __name__,
    {
        "algorithms.algorithm": [
            "AggregationSection",
            "Algorithm",
            "AlgorithmSection",
            "AlgorithmTraits",
            "Block",
            "Facts",
            "POSITIVE",
            "PublicRows",
            "SharesNumbers",
            "AlgorithmSetting",
            "register",
            "register_aggregation",
        ],
        "algorithms.client_statistics": ["WithStatistics"],
        "algorithms.fedavg": ["FedAvg", "LocalSgd", "SampleClippedGradient"],
        "algorithms.scaffold": ["Scaffold"],
        "algorithms.statistics": ["AdaptiveClip", "PrivateEvaluation"],
        "cohorts": ["ClientSampling", "register_sampling"],
        "training": ["RoundBackend", "RoundRecord", "Training"],
    },
)
