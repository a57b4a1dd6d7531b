"""Public facts about a run from which its diagnosis follows: noise, rounding and a trivial model.

They follow from the spec, from the sizes that the guarantee declares public, and from the test
data, on which the accuracy is measured too; never from a client's records.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from sottovoce.core.domains import Domain, SteppedBall
from sottovoce.core.errors import SottovoceError
from sottovoce.federated.algorithms.fedavg import SendsLocalWork
from sottovoce.federated.algorithms.noisy_steps import NoisyLocalSteps
from sottovoce.federated.training import Progress
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.compressed_update import compressed
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.release import NoisySums
from sottovoce.protocol.broadcast import as_received
from sottovoce.protocol.plan import ClientPlan
from sottovoce.runs.groups import calibrate_group
from sottovoce.runs.resolve import Resolved, rounds_per_client
from sottovoce.runs.spec import MechanismSpec

_MOST_DOMAINS = (
    64  # Clients with different numbers of records, for each of which noise is computed.
)
_HUGE_LOSS = 100.0  # In nats; guessing among c classes has a loss of log c.
_MOST_COORDINATES = 2**16  # Where a mechanism's law depends on whole updates.


def public_facts(
    resolved: Resolved, rows: list[dict[str, Any]], progress: Progress
) -> dict[str, Any]:
    """Return the facts that `runs.diagnosis` reads.

    Args:
        resolved: The run.
        rows: The metrics of its rounds.
        progress: The model after the last round.

    Returns:
        `trivial_score`: the score of the best constant answer on the test data; `test_samples`;
        `equal_weights`: whether all clients have the same weight; `clients`: the mean number of
        replies in a round; `update_norm`: the root mean square of the norms of the decoded mean
        updates; `noise_norm`: that of the noise in them, which is known; `gaussian_noise_norm`:
        that of Gaussian noise of the same budget; `downlink_error`: the norm of the rounding of the
        model that clients receive; `overshoots`: whether the test loss is far above that of
        guessing; with local DP-SGD `step_noise_norm`, the noise in a client's mean gradient,
        `sampling_rate`, the largest rate of a client's records, and `rounding_factor`, by which the
        bits of messages multiply the noise. An entry that is not known is None.
    """
    replies = [row["clients_received"] for row in rows if row["clients_received"]]
    clients = sum(replies) / len(replies) if replies else 0.0
    norms = [row["update_norm"] for row in rows if row.get("update_norm") is not None]
    noise = noise_norm(resolved, resolved.parts, clients)
    steps = _noisy_steps(resolved)
    received = as_received(progress.model, resolved.spec.runtime.downlink)
    return {
        "trivial_score": resolved.task.trivial_score(),
        "test_samples": resolved.task.num_test_samples,
        "equal_weights": len({part.weight for part in resolved.parts}) == 1,
        "clients": clients,
        "update_norm": math.sqrt(sum(n * n for n in norms) / len(norms)) if norms else None,
        "noise_norm": noise,
        "gaussian_noise_norm": (
            _gaussian_noise_norm(resolved, clients) if noise and steps is None else None
        ),
        **(_facts_of_steps(steps, resolved.parts) if steps else {}),
        "downlink_error": float(np.linalg.norm(received - progress.model)),
        "overshoots": overshoots(resolved, rows),
    }


def overshoots(resolved: Resolved, rows: list[dict[str, Any]]) -> bool:
    """Return whether the last test loss is far above that of guessing.

    Args:
        resolved: The run.
        rows: The metrics of its rounds.
    """
    loss = rows[-1]["loss"] if rows else None
    return resolved.task.has_softmax and loss is not None and loss > _HUGE_LOSS


def noise_norm(resolved: Resolved, parts: tuple[ClientPlan, ...], clients: float) -> float | None:
    """Return the root mean square of the norm of the noise in a mean of so many clients."""
    if not clients or resolved.section.traits(resolved.algorithm.unit).sends_models:
        return None
    variance_of: dict[int, float] = {}
    total = weights = 0.0
    steps = _noisy_steps(resolved)
    for part in parts:
        key = id(part.mechanism)
        if key not in variance_of:
            if steps is None:
                found = noise_energy(part.mechanism)
            else:
                found = _energy_of_steps(steps, part.mechanism, resolved.spec.rounds)
            if found is None:
                return None
            variance_of[key] = found
        total += part.weight**2 * variance_of[key]
        weights += part.weight
    mean_weight, energy = weights / len(parts), total / len(parts)
    visibility = resolved.channel.visibility
    if isinstance(visibility, NoisySums):  # One noise, divided by the expected weight.
        return math.sqrt(energy) / (visibility.client_sampling_rate * weights)
    return math.sqrt(energy / clients) / mean_weight


def noise_energy(mechanism: Mechanism) -> float | None:
    """Return the expected squared norm of the noise in a decoded message about a zero update.

    None where it depends on whole updates that are too long to compute it, and where clients add
    the noise to their local steps.
    """
    if isinstance(mechanism, registry.PostProcesses):
        return None
    domain = mechanism.input_domain
    registration = registry.find(registry.kind_of(mechanism))
    if registration.coordinatewise:
        alone: Domain = dataclasses.replace(domain, dimension=1)  # type: ignore[type-var]
        small = dataclasses.replace(mechanism, input_domain=alone)  # type: ignore[type-var]
        return domain.dimension * float(small.law(np.zeros(1)).variance()[0])
    if domain.dimension > _MOST_COORDINATES:
        return None
    return float(mechanism.law(np.zeros(domain.dimension)).variance().sum())


def _noisy_steps(resolved: Resolved) -> NoisyLocalSteps | None:
    """Return the local steps of the run's clients, if they add the noise."""
    algorithm = resolved.algorithm
    work = algorithm.local_work if isinstance(algorithm, SendsLocalWork) else None
    return work if isinstance(work, NoisyLocalSteps) else None


def _energy_of_steps(work: NoisyLocalSteps, mechanism: Mechanism, rounds: int) -> float | None:
    """Return the expected squared norm of the noise in the change of a client's model.

    The noise of one step moves the gradients of later ones as well, which is left out. None if
    steps are not plain SGD, so that the optimizer decides how far noise moves the model.
    """
    charged = registry.charged_mechanism(mechanism)
    domain, energy = charged.input_domain, noise_energy(charged)
    if energy is None or not work.optimizer.is_plain_sgd:
        return None
    assert isinstance(domain, SteppedBall), "the domain of noisy steps"
    squares = [work.learning_rate_of(number) ** 2 for number in range(1, rounds + 1)]
    factor = _rounding_factor(work, charged) ** 2
    return domain.steps * energy * factor * sum(squares) / len(squares)


def _rounding_factor(work: NoisyLocalSteps, charged: Mechanism) -> float:
    """Return by what the bits of a message multiply the norm of rotated noise that it carries."""
    domain = charged.input_domain
    dimension = min(domain.dimension, _MOST_COORDINATES)
    small = dataclasses.replace(domain, dimension=dimension)  # type: ignore[type-var]
    like = dataclasses.replace(charged, input_domain=small)  # type: ignore[type-var]
    # A rotation makes coordinates nearly Gaussian. The factor hardly depends on the draw.
    noise = np.random.default_rng(0).normal(size=dimension)
    law = compressed(like, work.message_bits).law(noise)
    error = float(np.sum((law.mean() - noise) ** 2) + np.sum(law.variance()))
    return math.sqrt(1.0 + error / float(noise @ noise))


def _facts_of_steps(work: NoisyLocalSteps, parts: tuple[ClientPlan, ...]) -> dict[str, Any]:
    """Return what `public_facts` has of local DP-SGD."""
    messages = {id(part.mechanism): part.mechanism for part in parts}.values()
    charged = [registry.charged_mechanism(one) for one in messages]
    energies = [found for one in charged if (found := noise_energy(one)) is not None]
    domains = [one.input_domain for one in charged]
    return {
        "step_noise_norm": math.sqrt(max(energies)) if energies else None,
        "sampling_rate": max(one.sampling_rate for one in domains if isinstance(one, SteppedBall)),
        "rounding_factor": _rounding_factor(work, charged[0]),
    }


def _gaussian_noise_norm(resolved: Resolved, clients: float) -> float | None:
    """Return the noise of the mechanism 'gaussian' with the budgets of the run.

    None if the run has no budget, or hides messages or records, so that the comparison would take
    long or need another mechanism.
    """
    domain_of = {part.client: part.mechanism.input_domain for part in resolved.parts}
    if (
        not resolved.channel.shows_each
        or any(one.epsilon is None for one in resolved.groups)
        or resolved.algorithm.record_sampling_rate < 1.0
        or len(set(domain_of.values())) > _MOST_DOMAINS
    ):
        return None
    rounds = rounds_per_client(resolved.spec, len(resolved.clients)) * resolved.algorithm.uplinks
    parts = {part.client: part for part in resolved.parts}
    found = []
    try:
        for group in resolved.groups:
            domains = list(dict.fromkeys(domain_of[name] for name in group.clients))
            wanted = dataclasses.replace(group, mechanism=MechanismSpec(kind="gaussian"))
            done = calibrate_group(wanted, domains, rounds=rounds, terms=resolved.terms)
            registration = registry.find("gaussian")
            built = {
                domain: registration.build(domain, done.mechanism.parameters) for domain in domains
            }
            found += [
                dataclasses.replace(parts[name], mechanism=built[domain_of[name]])
                for name in group.clients
            ]
    except SottovoceError:  # No noise keeps this budget, or no bound is proved for it.
        return None
    return noise_norm(resolved, tuple(found), clients)
