"""Means of the decoded messages: weighted, or robust against some clients that lie.

Anything but the mean needs every message, so the channel 'direct'. The robust ones pay where
messages are noisy: the median of Gaussian messages has pi/2 times their mean's variance.

Reference: Yin et al. 2018.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from sottovoce.core.sections import below
from sottovoce.federated.algorithms.aggregation import AggregationSection, register_aggregation
from sottovoce.federated.algorithms.algorithm import Algorithm, Setting

if TYPE_CHECKING:  # brings torch
    from sottovoce.federated.algorithms.fedavg import FedAvg

_ROBUST = (
    "a median or trimmed mean of noisy messages is noisier than their mean, up to pi/2 times its "
    "variance with Gaussian noise, and biased for messages of a few letters; it is unweighted"
)


@register_aggregation("mean", summary="the weighted mean")
@dataclass(frozen=True, slots=True, kw_only=True)
class MeanSection(AggregationSection):
    """The mean, weighted by public weights."""

    gathers: ClassVar[bool] = False

    def build(self, averaging: "FedAvg", setting: Setting) -> Algorithm:  # noqa: ARG002
        return averaging


@register_aggregation("median", summary="the median of each coordinate, unweighted")
@dataclass(frozen=True, slots=True, kw_only=True)
class MedianSection(AggregationSection):
    """The median of each coordinate of the decoded messages, unweighted."""

    def build(self, averaging: "FedAvg", setting: Setting) -> Algorithm:  # noqa: ARG002
        from sottovoce.federated.algorithms.fedavg import CoordinateMedian

        return dataclasses.replace(averaging, robust_mean=CoordinateMedian())

    def warnings(self) -> list[str]:
        return [_ROBUST]


@register_aggregation(
    "trimmed_mean", summary="the mean without the extremes of each coordinate, unweighted"
)
@dataclass(frozen=True, slots=True, kw_only=True)
class TrimmedMeanSection(AggregationSection):
    """The mean without the largest and smallest `fraction` of each coordinate, unweighted."""

    fraction: float = field(metadata=below(0.5))

    def build(self, averaging: "FedAvg", setting: Setting) -> Algorithm:  # noqa: ARG002
        from sottovoce.federated.algorithms.fedavg import TrimmedMean

        return dataclasses.replace(averaging, robust_mean=TrimmedMean(fraction=self.fraction))

    def warnings(self) -> list[str]:
        return [_ROBUST]
