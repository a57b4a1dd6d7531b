"""The `[algorithm.aggregation]` tables of federated averaging; no torch.

The median and the trimmed mean need each message and so the channel 'direct'. With Gaussian noise
the median has pi/2 times the variance of the mean, so robust aggregation costs accuracy.

Reference: Yin et al. 2018.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from sottovoce.core.sections import below
from sottovoce.federated.algorithms.algorithm import (
    AggregationSection,
    Algorithm,
    AlgorithmSetting,
    register_aggregation,
)

if TYPE_CHECKING:  # It imports torch.
    from sottovoce.federated.algorithms.fedavg import FedAvg

_ROBUST = (
    "a median or trimmed mean of noisy messages is noisier than their mean (with Gaussian noise it "
    "has up to pi/2 times the variance), biased if a coordinate of a message has few possible "
    "values, and unweighted"
)


@register_aggregation("mean", summary="the weighted mean")
@dataclass(frozen=True, slots=True, kw_only=True)
class MeanSection(AggregationSection):
    """The mean, weighted by public weights."""

    gathers: ClassVar[bool] = False

    def build(self, averaging: "FedAvg", setting: AlgorithmSetting) -> Algorithm:  # noqa: ARG002
        return averaging


@register_aggregation("median", summary="the median of each coordinate, unweighted")
@dataclass(frozen=True, slots=True, kw_only=True)
class MedianSection(AggregationSection):
    """The median of each coordinate of the decoded messages, unweighted."""

    def build(self, averaging: "FedAvg", setting: AlgorithmSetting) -> Algorithm:  # noqa: ARG002
        from sottovoce.federated.algorithms.fedavg import CoordinateMedian

        return dataclasses.replace(averaging, robust_mean=CoordinateMedian())

    def warnings(self) -> list[str]:
        return [_ROBUST]


@register_aggregation(
    "trimmed_mean", summary="the mean without the extremes of each coordinate, unweighted"
)
@dataclass(frozen=True, slots=True, kw_only=True)
class TrimmedMeanSection(AggregationSection):
    """The unweighted mean of each coordinate without the `fraction` of its values at either end."""

    fraction: float = field(metadata=below(0.5))

    def build(self, averaging: "FedAvg", setting: AlgorithmSetting) -> Algorithm:  # noqa: ARG002
        from sottovoce.federated.algorithms.fedavg import TrimmedMean

        return dataclasses.replace(averaging, robust_mean=TrimmedMean(fraction=self.fraction))

    def warnings(self) -> list[str]:
        return [_ROBUST]
