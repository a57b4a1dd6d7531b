"""The `[algorithm]` tables of federated averaging and SCAFFOLD, and the aggregations; no torch.

The median and the trimmed mean need each message and so the channel 'direct'. With Gaussian noise
the median has pi/2 times the variance of the mean, so robust aggregation costs accuracy.

Reference: Yin et al. 2018.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import ConfigError
from sottovoce.core.sections import (
    BOOLEAN,
    NOT_NEGATIVE,
    POSITIVE,
    below,
    complete,
    complete_table,
    rule,
    section_from,
    whole,
)
from sottovoce.federated.algorithms.algorithm import (
    AGGREGATIONS,
    AggregationSection,
    Algorithm,
    AlgorithmSection,
    AlgorithmSetting,
    AlgorithmTraits,
    BudgetGroup,
    PublicRows,
    State,
    check_memory,
    register,
    register_aggregation,
)

if TYPE_CHECKING:  # These import torch.
    from sottovoce.federated.algorithms.fedavg import FedAvg, LocalWork, SampleClippedGradient
    from sottovoce.learning.datasets import Dataset
    from sottovoce.learning.minibatches import LocalSchedule
    from sottovoce.learning.task import Task

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


_LOCAL_KEYS = ("local_epochs", "batch_size", "local_learning_rate")


def refuse_local_keys(section: "FedAvgSection | ScaffoldSection") -> None:
    """Refuse keys of local steps at sample level, where a client takes one clipped step.

    Raises:
        ConfigError: `local_steps` is not 1, or another of these keys is given.
    """
    given = [name for name in _LOCAL_KEYS if getattr(section, name) is not None]
    if section.local_steps != 1:
        given.insert(0, "local_steps")
    if given:
        told = " and ".join(f"'algorithm.{name}'" for name in given)
        raise ConfigError(
            f"sample-level privacy takes one clipped full-batch step a round; drop {told}, or set "
            "privacy.level = 'client'"
        )


def make_schedule(section: "FedAvgSection | ScaffoldSection") -> "LocalSchedule":
    """Return the local steps of a client at client level.

    Raises:
        ConfigError: Both `local_steps` and `local_epochs` are given.
    """
    from sottovoce.learning.minibatches import LocalSchedule

    if section.local_epochs is not None and section.local_steps != 1:
        raise ConfigError(
            "'algorithm.local_steps' and 'algorithm.local_epochs' both say how long a client "
            "trains; give one of them"
        )
    return LocalSchedule(
        steps=section.local_steps, epochs=section.local_epochs, batch_size=section.batch_size
    )


_MEAN = {"kind": "mean"}


def _aggregation(name: str, value: Any) -> dict[str, Any]:
    """Return the table with the defaults of a built-in aggregation filled in."""
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str):
        raise ConfigError(
            f"'{name}' must be a table with the 'kind' of an aggregation, such as 'mean'"
        )
    given = {key: item for key, item in value.items() if key != "kind"}
    return {"kind": kind, **complete_table(AGGREGATIONS, name, kind, given)}


@register(
    "fedavg",
    summary="the mean of clients' updates, or of clipped gradients; FedProx with a weight",
)
@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvgSection(AlgorithmSection):
    """Federated averaging.

    Attributes:
        server_learning_rate: Step size of the server.
        server_momentum: Momentum of the server, in [0, 1).
        local_steps: Local steps a round; at sample level always 1.
        local_epochs: Passes over a client's records a round, instead of `local_steps`.
        batch_size: Records of a local step; by default all of the client.
        local_learning_rate: Step size of local steps; required at client level only.
        proximal_weight: The FedProx weight.
        budget_penalty: Whether clients with smaller budgets stay closer to the shared model.
        aggregation: How the server combines the decoded updates.
    """

    server_learning_rate: float = field(metadata=POSITIVE)
    server_momentum: float = field(default=0.0, metadata=below(1.0))
    local_steps: int = field(default=1, metadata=whole(1, 10**6))
    local_epochs: int | None = field(default=None, metadata=whole(1, 10**6))
    batch_size: int | None = field(default=None, metadata=whole(1, 2**31))
    LEFT_OUT_AS_DEFAULT: ClassVar[tuple[str, ...]] = ("local_epochs", "batch_size")
    local_learning_rate: float | None = field(default=None, metadata=POSITIVE)
    proximal_weight: float = field(default=0.0, metadata=NOT_NEGATIVE)
    budget_penalty: bool = field(default=False, metadata=BOOLEAN)
    aggregation: Mapping[str, Any] = field(
        default_factory=lambda: dict(_MEAN), metadata=rule(_aggregation)
    )

    @property
    def _aggregated(self) -> AggregationSection:
        given = {key: value for key, value in self.aggregation.items() if key != "kind"}
        kind = self.aggregation["kind"]
        return section_from(AGGREGATIONS, "algorithm.aggregation", kind, given)

    def traits(self, unit: Unit) -> AlgorithmTraits:  # noqa: ARG002
        aggregated = self._aggregated
        return AlgorithmTraits(
            gathers=aggregated.gathers,
            plain_mean=self.aggregation == _MEAN,
            holds_out=aggregated.holds_out,
            named=f"aggregation '{self.aggregation['kind']}'",
        )

    def hold_out(
        self, data: "Dataset", generator: np.random.Generator
    ) -> "tuple[Dataset, PublicRows | None]":
        return self._aggregated.hold_out(data, generator)

    def build(self, setting: AlgorithmSetting) -> Algorithm:
        from sottovoce.federated.algorithms.fedavg import FedAvg

        averaging = FedAvg(
            local_work=self._local_work(setting),
            server_learning_rate=self.server_learning_rate,
            server_momentum=self.server_momentum,
        )
        return self._aggregated.build(averaging, setting)

    def at_site(self) -> Self:
        """Return the section with the mean: clients do not need the server's aggregation."""
        return dataclasses.replace(self, aggregation=_MEAN)

    def warnings(self, unit: Unit, *, private: bool) -> list[str]:  # noqa: ARG002
        return self._aggregated.warnings()

    def metrics(self, task: "Task", state: State) -> dict[str, Any]:
        return self._aggregated.metrics(task, state)

    def is_ours(self) -> bool:
        return AGGREGATIONS.find_ours(self.aggregation["kind"]) is not None

    def plug_ins(self) -> list[str]:
        AGGREGATIONS.find(self.aggregation["kind"])
        found = AGGREGATIONS.describe_plugin(self.aggregation["kind"])
        return [found] if found else []

    def written(self) -> dict[str, Any]:
        every = {"kind": self.aggregation["kind"], **dataclasses.asdict(self._aggregated)}  # type: ignore[call-overload]
        return {**complete(self), "aggregation": every}

    def _local_work(self, setting: AlgorithmSetting) -> "LocalWork":
        from sottovoce.federated.algorithms.fedavg import LocalSgd

        if setting.unit is Unit.SAMPLE:
            for name in ("budget_penalty", "proximal_weight"):
                if getattr(self, name):
                    raise ConfigError(
                        f"'algorithm.{name}' acts between local steps, but sample-level privacy "
                        "takes only one step; drop it, or set privacy.level = 'client'"
                    )
            refuse_local_keys(self)
            return make_clipped_gradient(setting)
        setting.check_all_records()
        schedule = make_schedule(self)
        return LocalSgd(
            clip_norm=setting.clip_norm,
            steps=schedule.steps,
            epochs=schedule.epochs,
            batch_size=schedule.batch_size,
            learning_rate=require_learning_rate(self.local_learning_rate),
            proximal_weight=self.proximal_weight,
            penalties=_penalties(setting.groups) if self.budget_penalty else {},
        )


def require_learning_rate(rate: float | None) -> float:
    """Return the learning rate of local steps; raise `ConfigError` if the spec does not set it."""
    if rate is None:
        raise ConfigError(
            "client-level privacy needs 'algorithm.local_learning_rate'; set it above 0"
        )
    return rate


def make_clipped_gradient(setting: AlgorithmSetting) -> "SampleClippedGradient":
    """Return the computation of clients at sample level: one clipped gradient."""
    from sottovoce.federated.algorithms.fedavg import SampleClippedGradient

    return SampleClippedGradient(
        clip_norm=setting.clip_norm,
        normalizes=setting.normalizes,
        sampling_rate=setting.record_sampling_rate,
        summation="exact" if setting.exact_sums else "float",
    )


def _penalties(groups: Sequence[BudgetGroup]) -> dict[str, float]:
    from sottovoce.federated.algorithms.fedavg import budget_penalties

    epsilons: dict[str, float] = {}
    for group in groups:
        if group.epsilon is None:
            raise ConfigError(
                f"'algorithm.budget_penalty' compares budgets, but '{group.where}.epsilon' is not "
                "set; set it, or drop the penalty"
            )
        epsilons |= dict.fromkeys(group.clients, group.epsilon)
    return budget_penalties(epsilons)


_CONTROLS = (
    "clients send changes of their control variates, so the server's control variate accumulates "
    "the noise of all rounds; compare with the algorithm 'fedavg', which pays for one uplink only"
)


@register("scaffold", summary="local steps corrected by control variates")
@dataclass(frozen=True, slots=True, kw_only=True)
class ScaffoldSection(AlgorithmSection):
    """SCAFFOLD: local steps corrected by control variates (Karimireddy et al. 2020).

    At client level a client sends two vectors a round and pays for both. Changes of its control
    variate are clipped to `control_clip_norm`, which defaults to privacy.clip_norm/(steps *
    local_learning_rate), and must be given if `local_epochs` and `batch_size` are, because the
    number of steps is private then. At sample level there is one step a round, and control variates
    are messages that were sent before; this needs the channel 'direct'.
    """

    server_learning_rate: float = field(metadata=POSITIVE)
    local_steps: int = field(default=1, metadata=whole(1, 10**6))
    local_epochs: int | None = field(default=None, metadata=whole(1, 10**6))
    batch_size: int | None = field(default=None, metadata=whole(1, 2**31))
    LEFT_OUT_AS_DEFAULT: ClassVar[tuple[str, ...]] = ("local_epochs", "batch_size")
    local_learning_rate: float | None = field(default=None, metadata=POSITIVE)
    control_clip_norm: float | None = field(default=None, metadata=POSITIVE)

    def traits(self, unit: Unit) -> AlgorithmTraits:
        client = unit is Unit.CLIENT
        return AlgorithmTraits(
            uplinks=2 if client else 1,
            most_vectors_down=2,
            gathers=not client,
            keeps_client_state=client,
        )

    def sends(self, unit: Unit) -> str:
        if unit is Unit.SAMPLE:
            return "an update of {numbers}"
        return "an update and the change of a control variate, of {numbers} each,"

    def warnings(self, unit: Unit, *, private: bool) -> list[str]:
        return [_CONTROLS] if unit is Unit.CLIENT and private else []

    def build(self, setting: AlgorithmSetting) -> Algorithm:
        from sottovoce.federated.algorithms.scaffold import BYTES_PER_COORDINATE, Scaffold

        check_memory(
            "SCAFFOLD keeps a control variate for each client",
            len(setting.clients),
            setting.task.dimension,
            BYTES_PER_COORDINATE,
        )
        if setting.unit is Unit.SAMPLE:
            return self._for_samples(setting)
        setting.check_all_records()
        rate, clip_norm = require_learning_rate(self.local_learning_rate), setting.clip_norm
        schedule = make_schedule(self)
        return Scaffold(
            clip_norm=clip_norm,
            control_clip_norm=self._control_clip_norm(clip_norm, rate),
            local_steps=schedule.steps,
            local_epochs=schedule.epochs,
            batch_size=schedule.batch_size,
            local_learning_rate=rate,
            server_learning_rate=self.server_learning_rate,
            clients=tuple(setting.clients.names),
        )

    def _control_clip_norm(self, clip_norm: float, rate: float) -> float:
        if self.control_clip_norm is not None:
            return self.control_clip_norm
        if self.local_epochs is not None and self.batch_size is not None:
            raise ConfigError(
                "with 'algorithm.local_epochs' and 'algorithm.batch_size' the number of local "
                "steps follows from the number of a client's records, which is private; set "
                "'algorithm.control_clip_norm'"
            )
        return clip_norm / ((self.local_epochs or self.local_steps) * rate)

    def _for_samples(self, setting: AlgorithmSetting) -> Algorithm:
        from sottovoce.federated.algorithms.scaffold import SampleScaffold

        if self.control_clip_norm is not None:
            raise ConfigError(
                "at sample level control variates are messages that were sent before and are "
                "already clipped; drop 'algorithm.control_clip_norm', or set privacy.level = "
                "'client'"
            )
        refuse_local_keys(self)
        work = make_clipped_gradient(setting)
        return SampleScaffold(
            local_work=work,
            server_learning_rate=self.server_learning_rate,
            clients=tuple(setting.clients.names),
            total_weight=float(sum(work.records(size) for size in setting.clients.sizes)),
        )
