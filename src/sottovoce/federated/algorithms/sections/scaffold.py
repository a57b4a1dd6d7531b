"""The [algorithm] table of SCAFFOLD."""

from dataclasses import dataclass, field

from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import ConfigError
from sottovoce.core.sections import POSITIVE, whole
from sottovoce.federated.algorithms.algorithm import Algorithm
from sottovoce.federated.algorithms.recipe import (
    AlgorithmSection,
    AlgorithmTraits,
    Setting,
    check_memory,
    register,
)
from sottovoce.federated.algorithms.sections.fedavg import ONE_STEP, clipped_gradient, given_rate

_CONTROLS = (
    "the server's control variate adds up the noise of all rounds, for clients send changes of "
    "theirs: compare with the algorithm 'fedavg', which has one uplink to pay for"
)


@register("scaffold", summary="local steps corrected by control variates")
@dataclass(frozen=True, slots=True, kw_only=True)
class ScaffoldSection(AlgorithmSection):
    """Local steps corrected by control variates (Karimireddy et al. 2020).

    At client level a client sends two vectors a round and pays for both; changes of its control
    variate are clipped to `control_clip_norm`, unless given to privacy.clip_norm/(local steps times
    their rate). At sample level there is one step a round, and control variates are messages that
    were sent before: on the channel 'direct' only.
    """

    server_learning_rate: float = field(metadata=POSITIVE)
    local_steps: int = field(default=1, metadata=whole(1, 10**6))
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

    def build(self, setting: Setting) -> Algorithm:
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
        rate, clip_norm = given_rate(self.local_learning_rate), setting.clip_norm
        return Scaffold(
            clip_norm=clip_norm,
            control_clip_norm=self.control_clip_norm or clip_norm / (self.local_steps * rate),
            local_steps=self.local_steps,
            local_learning_rate=rate,
            server_learning_rate=self.server_learning_rate,
            clients=tuple(setting.clients.names),
        )

    def _for_samples(self, setting: Setting) -> Algorithm:
        from sottovoce.federated.algorithms.scaffold import SampleScaffold

        if self.control_clip_norm is not None:
            raise ConfigError(
                "at sample level control variates are messages that were sent before, clipped "
                "already: drop 'algorithm.control_clip_norm', or set privacy.level = 'client'"
            )
        if self.local_steps != 1 or self.local_learning_rate is not None:
            raise ConfigError(ONE_STEP)
        work = clipped_gradient(setting)
        return SampleScaffold(
            local_work=work,
            server_learning_rate=self.server_learning_rate,
            clients=tuple(setting.clients.names),
            total_weight=float(sum(work.records(size) for size in setting.clients.sizes)),
        )
