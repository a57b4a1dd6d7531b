"""The [algorithm] section of NbAFL: noise by the published formulas, whose epsilon is no bound."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import ConfigError
from sottovoce.core.sections import NOT_NEGATIVE, POSITIVE, whole
from sottovoce.federated.algorithms.algorithm import (
    Algorithm,
    AlgorithmSection,
    AlgorithmSetting,
    AlgorithmTraits,
    Facts,
    register,
)

if TYPE_CHECKING:  # This imports torch.
    from sottovoce_papers.algorithms.nbafl import PublishedNoise

_PUBLISHED = (
    "published_epsilon is not a bound: NbAFL's analysis assumes that one sample changes a trained "
    "model by at most 2C/m, which no training guarantees, and adds up epsilons but not delta; "
    "use epsilon, which holds for a whole client"
)


@register("nbafl", summary="noise before aggregation: clients send clipped models")
@dataclass(frozen=True, slots=True, kw_only=True)
class NbAflSection(AlgorithmSection):
    """Noise before aggregation (Wei et al. 2020): clients send clipped models, not updates.

    `exposures`, by default all rounds, is how often the published calibration counts that a
    client's model is sent. privacy.epsilon is the target of that calibration, which is below what a
    client really spends: it determines the noise and is not a budget.
    """

    local_steps: int = field(default=1, metadata=whole(1, 10**6))
    local_learning_rate: float = field(metadata=POSITIVE)
    proximal_weight: float = field(default=0.0, metadata=NOT_NEGATIVE)
    exposures: int | None = field(default=None, metadata=whole(1, 2**32))
    enforces_budget: ClassVar[bool] = False

    def traits(self, unit: Unit) -> AlgorithmTraits:  # noqa: ARG002
        return AlgorithmTraits(sends_models=True)

    def sends(self, unit: Unit) -> str:  # noqa: ARG002
        return "a trained model of {numbers}"

    def guarantee(self) -> str:
        return "the size of the smallest data set is public"  # The noise is computed from it.

    def warnings(self, unit: Unit, *, private: bool) -> list[str]:  # noqa: ARG002
        return [_PUBLISHED]

    def adjust(self, kind: str, parameters: Mapping[str, Any], facts: Facts) -> Mapping[str, Any]:
        """Return the parameters with the noise multiplier of the published formula for epsilon."""
        if facts.grouped:
            raise ConfigError(
                "'privacy.groups' are budgets, but NbAFL's epsilon is not a budget; use the "
                "algorithm 'fedavg'"
            )
        if facts.unit is not Unit.CLIENT:
            raise ConfigError(
                "NbAFL sends whole models, and one sample may change a whole model; set "
                "privacy.level = 'client', or use the algorithm 'fedavg' to protect samples"
            )
        if kind != "gaussian":
            raise ConfigError(
                f"NbAFL adds Gaussian noise, got mechanism.kind = '{kind}'; set it to 'gaussian', "
                "or use the algorithm 'fedavg'"
            )
        if facts.epsilon is None:
            if "noise_multiplier" not in parameters:
                raise ConfigError(
                    "NbAFL has no noise: give 'privacy.epsilon', the target of its published "
                    "analysis, or 'mechanism.noise_multiplier'"
                )
            return parameters
        stddev = _published(facts).uplink_stddev(facts.epsilon, self._exposures(facts))
        multiplier = stddev / facts.clip_norm
        if "noise_multiplier" not in parameters:
            return {**parameters, "noise_multiplier": multiplier}
        own = parameter_rules.noise_multiplier(parameters["noise_multiplier"])
        if not math.isclose(own, multiplier, rel_tol=1e-9):
            raise ConfigError(
                f"'mechanism.noise_multiplier' is {own:g}, but NbAFL's formula has {multiplier:g} "
                f"for 'privacy.epsilon' = {facts.epsilon:g}; give one of the two"
            )
        return parameters

    def build(self, setting: AlgorithmSetting) -> Algorithm:
        """Return NbAFL with the downlink noise that the paper asks for with this uplink noise."""
        from sottovoce_papers.algorithms.nbafl import NbAfl

        setting.check_all_records()
        facts, exposures = setting.facts, self._exposures(setting.facts)
        target = _published_epsilon(setting.mechanism, facts, exposures)
        return NbAfl(
            clip_norm=facts.clip_norm,
            local_steps=self.local_steps,
            local_learning_rate=self.local_learning_rate,
            proximal_weight=self.proximal_weight,
            downlink_stddev=_published(facts).downlink_stddev(target, exposures),
            randomness=setting.randomness,
        )

    def figures(
        self, algorithm: Algorithm, mechanism: Mapping[str, Any], facts: Facts, most_rounds: int
    ) -> dict[str, float]:
        """Return the epsilon that the paper would print, and the downlink noise."""
        from sottovoce_papers.algorithms.nbafl import NbAfl

        assert isinstance(algorithm, NbAfl), "`build` returns it"
        return {
            "published_epsilon": _published_epsilon(mechanism, facts, most_rounds),
            "downlink_stddev": algorithm.downlink_stddev,
        }

    def _exposures(self, facts: Facts) -> int:
        if self.exposures is None:
            return facts.rounds
        if self.exposures > facts.rounds:
            raise ConfigError(
                f"'algorithm.exposures' must be at most the {facts.rounds} rounds, got "
                f"{self.exposures}"
            )
        return self.exposures


def _published(facts: Facts) -> "PublishedNoise":
    from sottovoce_papers.algorithms.nbafl import PublishedNoise

    return PublishedNoise(
        clip_norm=facts.clip_norm,
        delta=facts.delta,
        rounds=facts.rounds,
        clients=facts.clients,
        smallest_dataset=facts.smallest_dataset,
    )


def _published_epsilon(mechanism: Mapping[str, Any], facts: Facts, exposures: int) -> float:
    """Return the epsilon that the paper would print for a client with so many exposures."""
    multiplier = parameter_rules.noise_multiplier(mechanism["noise_multiplier"])
    return _published(facts).epsilon(multiplier * facts.clip_norm, exposures)
