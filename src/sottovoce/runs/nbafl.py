"""NbAFL from a spec: its noise by the published formulas, its published epsilon as a figure."""

import math

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ConfigError
from sottovoce.core.randomness import Randomness
from sottovoce.federated.algorithms.nbafl import NbAfl, PublishedNoise
from sottovoce.learning.clients import Clients
from sottovoce.runs.spec import MechanismSpec, NbAflSpec, RunSpec

WARNING = (
    "published_epsilon is NbAFL's own analysis: it assumes that one sample changes a trained model "
    "by at most 2C/m, which no training guarantees, adds up epsilons and leaves delta as it is; "
    "what holds for a whole client is epsilon"
)


def with_published_noise(spec: RunSpec, clients: Clients) -> RunSpec:
    """The spec with the noise multiplier that the published formula has for privacy.epsilon."""
    if spec.privacy.level != "client":
        raise ConfigError(
            "NbAFL sends whole models, and one sample may change all of its model: set "
            "privacy.level = 'client', or use the algorithm 'fedavg' to protect samples"
        )
    if spec.mechanism.kind != "gaussian":
        raise ConfigError(
            f"NbAFL adds Gaussian noise: set mechanism.kind = 'gaussian', not "
            f"'{spec.mechanism.kind}', or use the algorithm 'fedavg'"
        )
    given, epsilon = spec.mechanism.parameters, spec.privacy.epsilon
    if epsilon is None:
        if "noise_multiplier" not in given:
            raise ConfigError(
                "NbAFL needs 'privacy.epsilon', the target of its published analysis, or "
                "'mechanism.noise_multiplier'"
            )
        return spec
    stddev = published_noise(spec, clients).uplink_stddev(epsilon, _exposures(spec))
    multiplier = stddev / spec.privacy.clip_norm
    if "noise_multiplier" in given:
        own = parameter_rules.noise_multiplier(given["noise_multiplier"])
        if not math.isclose(own, multiplier, rel_tol=1e-9):
            raise ConfigError(
                f"'mechanism.noise_multiplier' is {own:g}, but NbAFL's formula has {multiplier:g} "
                f"for 'privacy.epsilon' = {epsilon:g}; give one of the two"
            )
        return spec
    mechanism = MechanismSpec.model_validate(
        {"kind": spec.mechanism.kind, **given, "noise_multiplier": multiplier}
    )
    return spec.model_copy(update={"mechanism": mechanism})


def algorithm(spec: RunSpec, clients: Clients, randomness: Randomness) -> NbAfl:
    """NbAFL with the downlink noise that the paper has beside this uplink noise."""
    given, exposures = _section(spec), _exposures(spec)
    target = published_epsilon(spec, clients, exposures)
    return NbAfl(
        clip_norm=spec.privacy.clip_norm,
        local_steps=given.local_steps,
        local_learning_rate=given.local_learning_rate,
        proximal_weight=given.proximal_weight,
        downlink_stddev=published_noise(spec, clients).downlink_stddev(target, exposures),
        randomness=randomness,
    )


def published_noise(spec: RunSpec, clients: Clients) -> PublishedNoise:
    return PublishedNoise(
        clip_norm=spec.privacy.clip_norm,
        delta=spec.privacy.delta,
        rounds=spec.rounds,
        clients=len(clients),
        smallest_dataset=min(clients.sizes),
    )


def published_epsilon(spec: RunSpec, clients: Clients, exposures: int) -> float:
    """What the paper would print for a client whose model was sent that often."""
    multiplier = parameter_rules.noise_multiplier(spec.mechanism.parameters["noise_multiplier"])
    stddev = multiplier * spec.privacy.clip_norm
    return published_noise(spec, clients).epsilon(stddev, exposures)


def _exposures(spec: RunSpec) -> int:
    exposures = _section(spec).exposures
    if exposures is None:
        return spec.rounds
    if exposures > spec.rounds:
        raise ConfigError(f"'algorithm.exposures' {exposures} exceeds the {spec.rounds} rounds")
    return exposures


def _section(spec: RunSpec) -> NbAflSpec:
    assert isinstance(spec.algorithm, NbAflSpec)
    return spec.algorithm
