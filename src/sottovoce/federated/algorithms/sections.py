"""The `[algorithm]` table of federated averaging, and what it shares with SCAFFOLD; no torch."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import ConfigError
from sottovoce.core.files import finite_or_none
from sottovoce.core.sections import (
    BOOLEAN,
    NOT_NEGATIVE,
    POSITIVE,
    below,
    complete,
    complete_table,
    one_of,
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
    register,
)
from sottovoce.federated.algorithms.model_average import AVERAGED, ModelAverage, average_of
from sottovoce.federated.schedules import CONSTANT, RateSchedule, check_table

if TYPE_CHECKING:  # These import torch.
    from sottovoce.federated.algorithms.fedavg import LocalWork, SampleClippedGradient
    from sottovoce.federated.algorithms.scaffold_section import ScaffoldSection
    from sottovoce.federated.algorithms.server_steps import ServerOptimizer
    from sottovoce.learning.augmentation import Augmentation
    from sottovoce.learning.datasets import Dataset
    from sottovoce.learning.minibatches import LocalSchedule
    from sottovoce.learning.optimizers import OptimizerSettings
    from sottovoce.learning.task import Task


class ServerSteps(TypedDict):
    """How the server moves the model, as arguments of `FedAvg`."""

    server_optimizer: "ServerOptimizer | None"
    server_schedule: RateSchedule | None
    model_average: ModelAverage | None


_LOCAL_KEYS = ("local_epochs", "batch_size", "local_learning_rate", "gradient_clip")
_NO_CHANGE = "none"


def refuse_local_keys(section: "FedAvgSection | ScaffoldSection") -> None:
    """Refuse keys of local steps at sample level, where a client takes one clipped step.

    Raises:
        ConfigError: `local_steps` is not 1, or another of these keys is given.
    """
    given = [name for name in _LOCAL_KEYS if getattr(section, name, None) is not None]
    defaults = {
        "local_optimizer": _SGD,
        "local_schedule": CONSTANT,
        "augmentation": _NO_CHANGE,
    }
    given += [name for name, one in defaults.items() if getattr(section, name, one) != one]
    if section.local_steps != 1:
        given.insert(0, "local_steps")
    if given:
        told = " and ".join(f"'algorithm.{name}'" for name in given)
        raise ConfigError(
            f"sample-level privacy takes one clipped step a round; drop {told}, set the algorithm "
            "'fedavg' with local_work = 'dp_sgd' (several noisy steps), or privacy.level = 'client'"
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


def _message_bits(name: str, value: Any) -> int:
    """Return the number of bits of a coordinate of an update that is private already."""
    from sottovoce.mechanisms.compressed_update import check_message_bits

    return check_message_bits(value, name)


_MEAN = {"kind": "mean"}
_SGD = {"kind": "sgd"}
_NO_CLIP = 0.0
_LARGEST_CLIP = 1e12


def _optimizer(name: str, value: Any) -> dict[str, Any]:
    """Return the table of an optimizer; whether torch has it is checked when a run is built."""
    if not isinstance(value, Mapping) or not isinstance(value.get("kind"), str):
        raise ConfigError(
            f"'{name}' must be a table with the 'kind' of an optimizer, such as 'adam'"
        )
    return {**value, "kind": value["kind"].lower()}


def _averaging(name: str, value: Any) -> dict[str, Any]:
    average_of(value, name)
    return dict(value)


def _gradient_clip(name: str, value: Any) -> float:
    if value == "off":
        return _NO_CLIP
    number = parameter_rules.finite(name, value)
    if number == _NO_CLIP:
        return number
    return parameter_rules.positive(name, number, remedy="0 or 'off' is for no clipping")


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
        server_optimizer: How the server moves the model by the mean update; None for momentum.
        server_schedule: How the step size of the server changes from round to round.
        averaging: An average of the models of the rounds, which is evaluated, too; None for none.
        local_steps: Local steps a round; at sample level always 1.
        local_epochs: Passes over a client's records a round, instead of `local_steps`.
        batch_size: Records of a local step; by default all of the client.
        local_learning_rate: Step size of local steps; required where there are any.
        local_optimizer: How gradients move the model of a client.
        local_schedule: How the step size of local steps changes from round to round.
        augmentation: How images are changed at random in each local step: "flip", "crop" or
            "flip_and_crop"; "none" for not at all.
        gradient_clip: The norm to which the gradient of each local step is clipped; 0 for no
            clipping. By default no step of plain SGD moves the model further than
            `privacy.clip_norm`, the norm to which the whole update is clipped.
        local_work: "dp_sgd" for local DP-SGD at sample level: several steps a round, each on a
            secret Poisson sample of `batch_size` expected records and with the mechanism's noise.
            "auto" for one clipped gradient at sample level, and local SGD at client level.
        message_bits: With "dp_sgd", the bits of a coordinate in which an update is sent: 32, 4, 2
            or 1. They cost no privacy.
        clip_geometry: With "dp_sgd", the norm in which gradients are clipped: "l2" or "l1".
        proximal_weight: The FedProx weight.
        budget_penalty: Whether clients with smaller budgets stay closer to the shared model.
        aggregation: How the server combines the decoded updates.
    """

    server_learning_rate: float = field(metadata=POSITIVE)
    server_momentum: float = field(default=0.0, metadata=below(1.0))
    local_steps: int = field(default=1, metadata=whole(1, 10**6))
    local_epochs: int | None = field(default=None, metadata=whole(1, 10**6))
    batch_size: int | None = field(default=None, metadata=whole(1, 2**31))
    LEFT_OUT_AS_DEFAULT: ClassVar[tuple[str, ...]] = (
        *("local_work", "message_bits", "clip_geometry"),
        *("local_epochs", "batch_size", "local_optimizer", "local_schedule", "gradient_clip"),
        *("server_optimizer", "server_schedule", "averaging", "augmentation"),
    )
    local_learning_rate: float | None = field(default=None, metadata=POSITIVE)
    local_optimizer: Mapping[str, Any] = field(
        default_factory=lambda: dict(_SGD), metadata=rule(_optimizer)
    )
    local_schedule: Mapping[str, Any] = field(
        default_factory=lambda: dict(CONSTANT), metadata=rule(check_table)
    )
    augmentation: str = field(
        default=_NO_CHANGE, metadata=one_of(_NO_CHANGE, "flip", "crop", "flip_and_crop")
    )
    gradient_clip: float | None = field(default=None, metadata=rule(_gradient_clip))
    server_optimizer: Mapping[str, Any] | None = field(default=None, metadata=rule(_optimizer))
    server_schedule: Mapping[str, Any] = field(
        default_factory=lambda: dict(CONSTANT), metadata=rule(check_table)
    )
    averaging: Mapping[str, Any] | None = field(default=None, metadata=rule(_averaging))
    local_work: str = field(default="auto", metadata=one_of("auto", "dp_sgd"))
    message_bits: int = field(default=32, metadata=rule(_message_bits))
    clip_geometry: str = field(default="l2", metadata=one_of("l2", "l1"))
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
            **self._server_steps(setting),
        )
        return self._aggregated.build(averaging, setting)

    def _server_steps(self, setting: AlgorithmSetting) -> "ServerSteps":
        """Return the optimizer, the schedule and the average of models at the server."""
        from sottovoce.federated.algorithms.server_steps import server_optimizer

        optimizer = average = None
        if self.server_optimizer is not None:
            if self.server_momentum:
                raise ConfigError(
                    "'algorithm.server_momentum' and 'algorithm.server_optimizer' both say how the "
                    "server moves the model; give one of them (the optimizer 'sgd' has a momentum)"
                )
            optimizer = server_optimizer(self.server_optimizer, "algorithm.server_optimizer")
        if self.averaging is not None:
            average = average_of(self.averaging, "algorithm.averaging")
            average.check_memory(setting.task.dimension)
        schedule = RateSchedule.of(
            self.server_schedule, rounds=setting.rounds, where="algorithm.server_schedule"
        )
        return {
            "server_optimizer": optimizer,
            "server_schedule": schedule,
            "model_average": average,
        }

    def at_site(self) -> Self:
        """Return the section without what only the server uses: clients do not need it."""
        return dataclasses.replace(
            self, aggregation=_MEAN, server_optimizer=None, server_schedule=CONSTANT, averaging=None
        )

    def without_privacy(self, unit: Unit, *, clip_norm: float | None) -> Self:  # noqa: ARG002
        return dataclasses.replace(self, budget_penalty=False, message_bits=32)

    def warnings(self, unit: Unit, *, private: bool) -> list[str]:  # noqa: ARG002
        return self._aggregated.warnings()

    def metrics(self, task: "Task", state: State) -> dict[str, Any]:
        found = self._aggregated.metrics(task, state)
        if AVERAGED not in state:
            return found
        averaged = task.evaluate(state[AVERAGED])
        return {
            **found,
            "accuracy_averaged": finite_or_none(averaged.score),
            "loss_averaged": finite_or_none(averaged.loss),
        }

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
        from sottovoce.learning.optimizers import OptimizerSettings

        if self.local_work == "dp_sgd":
            return self._noisy_steps(setting)
        for name, default in (("message_bits", 32), ("clip_geometry", "l2")):
            if getattr(self, name) != default:
                raise ConfigError(
                    f"'algorithm.{name}' has an effect with algorithm.local_work = 'dp_sgd' only; "
                    "drop it, or set that"
                )
        if setting.unit is Unit.SAMPLE:
            for name in ("budget_penalty", "proximal_weight"):
                if getattr(self, name):
                    raise ConfigError(
                        f"'algorithm.{name}' acts between local steps, but this takes only one; "
                        "drop it, set algorithm.local_work = 'dp_sgd' (several noisy steps), or "
                        "privacy.level = 'client'"
                    )
            refuse_local_keys(self)
            return make_clipped_gradient(setting)
        setting.check_all_records()
        setting.check_batch_size(self.batch_size)
        schedule = make_schedule(self)
        rate = require_learning_rate(self.local_learning_rate)
        optimizer = OptimizerSettings.of(self.local_optimizer, "algorithm.local_optimizer")
        return LocalSgd(
            clip_norm=setting.clip_norm,
            steps=schedule.steps,
            epochs=schedule.epochs,
            batch_size=schedule.batch_size,
            learning_rate=rate,
            rate_schedule=RateSchedule.of(
                self.local_schedule, rounds=setting.rounds, where="algorithm.local_schedule"
            ),
            optimizer=optimizer,
            augmentation=self._augmentation(setting),
            gradient_clip=self._gradient_clip(schedule, rate, setting.clip_norm),
            proximal_weight=self.proximal_weight,
            penalties=self._penalties(setting, schedule, rate, optimizer),
        )

    def _penalties(
        self,
        setting: AlgorithmSetting,
        schedule: "LocalSchedule",
        rate: float,
        optimizer: "OptimizerSettings",
    ) -> dict[str, float]:
        """Return the weight of each client in addition to `proximal_weight`.

        Raises:
            ConfigError: The weights have no effect, or make every client diverge.
        """
        penalties = _penalties(setting.groups) if self.budget_penalty else {}
        if penalties and not any(penalties.values()):
            raise ConfigError(
                "'algorithm.budget_penalty' keeps clients with smaller budgets closer to the "
                "released model, but all clients have the same epsilon; give some another one in "
                "[[privacy.groups]], or drop it"
            )
        largest = self.proximal_weight + max(penalties.values(), default=0.0)
        if not largest:
            return {}
        sampled = self.local_epochs is not None and setting.record_sampling_rate < 1.0
        if schedule.is_one_step and not sampled:
            name = "proximal_weight" if self.proximal_weight else "budget_penalty"
            raise ConfigError(
                f"'algorithm.{name}' acts between local steps, but a client takes only one; raise "
                "'algorithm.local_steps', set 'algorithm.local_epochs' with a 'batch_size', or "
                "drop it"
            )
        if optimizer.is_plain_sgd and rate * largest >= 2.0:
            raise ConfigError(
                f"local steps with 'algorithm.local_learning_rate' = {rate:g} and a proximal "
                f"weight of {largest:g} (with 'budget_penalty') move ever further away from the "
                "released model; keep the product of the two below 2, best below 1"
            )
        return penalties

    def _augmentation(self, setting: AlgorithmSetting) -> "Augmentation | None":
        from sottovoce.learning.augmentation import Augmentation

        if self.augmentation == _NO_CHANGE:
            return None
        if setting.computes_features:
            raise ConfigError(
                "'algorithm.augmentation' changes images, but the model takes what [[features]] "
                "computes from them; drop one of the two"
            )
        found = Augmentation.of(self.augmentation)
        found.check(tuple(setting.task.test_samples(1).shape[1:]), "algorithm.augmentation")
        return found

    def _gradient_clip(
        self, schedule: "LocalSchedule", rate: float, clip_norm: float
    ) -> float | None:
        if self.gradient_clip is not None:
            return self.gradient_clip or None
        # A single step is the whole update, which is clipped anyway.
        return None if schedule.is_one_step else min(clip_norm / rate, _LARGEST_CLIP)

    def _noisy_steps(self, setting: AlgorithmSetting) -> "LocalWork":
        from sottovoce.federated.algorithms.noisy_steps import NoisyLocalSteps
        from sottovoce.learning.optimizers import OptimizerSettings
        from sottovoce.mechanisms.compressed_update import check_message_bits

        if setting.unit is not Unit.SAMPLE:
            raise ConfigError(
                "algorithm.local_work = 'dp_sgd' adds noise to each local step and protects single "
                "records; set privacy.level = 'sample', or drop it to protect whole clients"
            )
        if self.gradient_clip is not None:
            raise ConfigError(
                "local steps with noise clip the gradient of each record to 'privacy.clip_norm'; "
                "drop 'algorithm.gradient_clip'"
            )
        schedule, sampling_rate = make_schedule(self), setting.record_sampling_rate
        if self.batch_size is not None and sampling_rate < 1.0:
            raise ConfigError(
                "'algorithm.batch_size' and 'privacy.record_sampling_rate' both say how many "
                "records a local step uses; give one of them"
            )
        optimizer = OptimizerSettings.of(self.local_optimizer, "algorithm.local_optimizer")
        rate = require_learning_rate(self.local_learning_rate, "algorithm.local_work = 'dp_sgd'")
        return NoisyLocalSteps(
            clip_norm=setting.clip_norm,
            normalizes=setting.normalizes,
            geometry="l2" if self.clip_geometry == "l2" else "l1",
            steps=schedule.steps,
            epochs=schedule.epochs,
            batch_size=self.batch_size,
            rate=None if self.batch_size is not None else sampling_rate,
            learning_rate=rate,
            rate_schedule=RateSchedule.of(
                self.local_schedule, rounds=setting.rounds, where="algorithm.local_schedule"
            ),
            optimizer=optimizer,
            proximal_weight=self.proximal_weight,
            penalties=self._penalties(setting, schedule, rate, optimizer),
            augmentation=self._augmentation(setting),
            message_bits=check_message_bits(self.message_bits, "message_bits"),
            summation="exact" if setting.exact_sums else "float",
        )


def require_learning_rate(rate: float | None, needed_by: str = "client-level privacy") -> float:
    """Return the learning rate of local steps; raise `ConfigError` if the spec does not set it."""
    if rate is None:
        raise ConfigError(f"{needed_by} needs 'algorithm.local_learning_rate'; set it above 0")
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
