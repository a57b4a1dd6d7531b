"""The `[algorithm]` table of SCAFFOLD; no torch."""

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar, Self

from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import ConfigError
from sottovoce.core.sections import POSITIVE, whole
from sottovoce.federated.algorithms.algorithm import (
    Algorithm,
    AlgorithmSection,
    AlgorithmSetting,
    AlgorithmTraits,
    check_memory,
    register,
)
from sottovoce.federated.algorithms.sections import (
    make_clipped_gradient,
    make_schedule,
    refuse_local_keys,
    require_learning_rate,
)

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

    def without_privacy(self, unit: Unit, *, clip_norm: float | None) -> Self:
        if clip_norm is None or unit is Unit.SAMPLE:
            return self
        return dataclasses.replace(self, control_clip_norm=clip_norm)

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
        setting.check_batch_size(self.batch_size)
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
